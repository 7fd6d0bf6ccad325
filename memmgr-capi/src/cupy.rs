//! The entry points for CuPy's `CFunctionAllocator`, which names no stream.

use std::ffi::c_void;

use crate::{
    memory::{memmgr_allocate_device_at_on, memmgr_free_device_at_on},
    status::memmgr_status::MEMMGR_OK,
};

/// For `cupy.cuda.CFunctionAllocator`: memory in the order of the device's default stream, so for programs that use no stream
/// created as non-blocking; null where there is none. The allocator written in Python (`memmgr_cupy`) knows CuPy's current stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_cupy_malloc(
    _param: *mut c_void,
    size: usize,
    device: i32,
) -> *mut c_void {
    let mut block = std::ptr::null_mut();
    // SAFETY: the result may be written; the default stream is always alive.
    let status =
        unsafe { memmgr_allocate_device_at_on(device, size, std::ptr::null_mut(), &mut block) };
    if status == MEMMGR_OK {
        block
    } else {
        std::ptr::null_mut()
    }
}

/// For `cupy.cuda.CFunctionAllocator`: memory of `memmgr_cupy_malloc` back, in the order of the device's default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_cupy_free(_param: *mut c_void, ptr: *mut c_void, device: i32) {
    // SAFETY: nobody but work of the default stream uses the memory afterwards, says the caller. Who failed is told by
    // `memmgr_last_error` alone.
    let _ = unsafe { memmgr_free_device_at_on(device, ptr, std::ptr::null_mut()) };
}
