//! Allocate and free.

use std::ffi::c_void;

use manager::MemoryManager;

use crate::{
    CUstream_st,
    status::{Failure, call, memmgr_status, put},
    streams::{self, memmgr_stream_t, on_stream},
};

fn mm() -> &'static MemoryManager {
    MemoryManager::instance()
}

/// Puts the block into `*out`: null if there is none.
///
/// # Safety
/// `out` is null, or may be written.
unsafe fn hand_out(
    out: *mut *mut c_void,
    allocate: impl FnOnce() -> Result<*mut c_void, Failure>,
) -> memmgr_status {
    call(|| {
        // First, so that a block does not get lost, and nobody uses an old pointer.
        // SAFETY: as this function demands.
        unsafe { put(out, std::ptr::null_mut())? };
        let block = allocate()?;
        // SAFETY: as this function demands.
        unsafe { put(out, block) }
    })
}

/// Page-locked host memory of at least `size` bytes, 256-byte aligned. Size 0 gives null and `MEMMGR_OK`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_allocate_pinned(
    size: usize,
    out: *mut *mut c_void,
) -> memmgr_status {
    // SAFETY: the pointer may be written, says the caller.
    unsafe { hand_out(out, || Ok(mm().allocate_pinned(size)?)) }
}

/// Gives pinned memory back. It is not handed out again before every copy made through the manager that touches it has finished.
/// Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_free_pinned(ptr: *mut c_void) -> memmgr_status {
    // SAFETY: nobody uses the memory afterwards, says the caller.
    call(|| Ok(unsafe { mm().free_pinned(ptr) }?))
}

/// Device memory of at least `size` bytes on the current device, 256-byte aligned, usable at once on any stream. Size 0 gives null
/// and `MEMMGR_OK`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_allocate_device(
    size: usize,
    out: *mut *mut c_void,
) -> memmgr_status {
    // SAFETY: the pointer may be written, says the caller.
    unsafe { hand_out(out, || Ok(mm().allocate_device(size)?)) }
}

/// As `memmgr_allocate_device`, on the device with this ordinal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_allocate_device_at(
    device: i32,
    size: usize,
    out: *mut *mut c_void,
) -> memmgr_status {
    // SAFETY: the pointer may be written, says the caller.
    unsafe { hand_out(out, || Ok(mm().allocate_device_at(device, size)?)) }
}

/// Gives device memory back, in any mode. Unlike `cudaFree` it waits for nothing: no device work may use the memory any more, but
/// for copies through the manager and recorded uses. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_free_device(ptr: *mut c_void) -> memmgr_status {
    // SAFETY: nobody uses the memory afterwards, says the caller.
    call(|| Ok(unsafe { mm().free_device(ptr) }?))
}

/// Device memory of at least `size` bytes on the device of a raw stream, usable by what is submitted to the stream from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_allocate_device_on(
    size: usize,
    stream: *mut CUstream_st,
    out: *mut *mut c_void,
) -> memmgr_status {
    // SAFETY: the pointer may be written, and the stream is alive during the call, says the caller.
    unsafe { hand_out(out, || streams::allocate(None, size, stream)) }
}

/// Gives device memory back in the order of a raw stream: what the stream has been given may still use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_free_device_on(
    ptr: *mut c_void,
    stream: *mut CUstream_st,
) -> memmgr_status {
    call(|| {
        // SAFETY: the stream is alive during the call, says the caller.
        let known = unsafe { streams::raw(stream)? };
        // SAFETY: nobody but work of the stream uses the memory afterwards, says the caller.
        Ok(on_stream!(known, stream => unsafe { mm().free_device_on(ptr, stream) })?)
    })
}

/// Memory in the order of a raw stream; the default streams (null, `cudaStreamLegacy`, `cudaStreamPerThread`) are those of
/// `device`. As `memmgr_allocate_device_on` otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_allocate_device_at_on(
    device: i32,
    size: usize,
    stream: *mut CUstream_st,
    out: *mut *mut c_void,
) -> memmgr_status {
    // SAFETY: the pointer may be written, and the stream is alive during the call, says the caller.
    unsafe { hand_out(out, || streams::allocate(Some(device), size, stream)) }
}

/// As `memmgr_free_device_on`; the default streams are those of `device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_free_device_at_on(
    device: i32,
    ptr: *mut c_void,
    stream: *mut CUstream_st,
) -> memmgr_status {
    call(|| {
        // SAFETY: the stream is alive during the call, says the caller.
        let known = unsafe { streams::raw_on(device, stream)? };
        // SAFETY: nobody but work of the stream uses the memory afterwards, says the caller.
        on_stream!(known, stream => unsafe {
            mm().free_device_on(ptr, stream)
        })?;
        Ok(())
    })
}

/// As `memmgr_allocate_device_on`, on a registered stream: no CUDA call where the pool has the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_allocate_device_on_registered(
    size: usize,
    stream: memmgr_stream_t,
    out: *mut *mut c_void,
) -> memmgr_status {
    // SAFETY: the pointer may be written, and nobody releases the handle during the call, says the caller.
    unsafe {
        hand_out(out, || {
            let known = streams::registered(stream)?;
            Ok(on_stream!(known, stream => mm().allocate_device_on(size, stream))?)
        })
    }
}

/// As `memmgr_free_device_on`, on a registered stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_free_device_on_registered(
    ptr: *mut c_void,
    stream: memmgr_stream_t,
) -> memmgr_status {
    call(|| {
        // SAFETY: nobody releases the handle during the call, says the caller.
        let known = unsafe { streams::registered(stream)? };
        // SAFETY: nobody but work of the stream uses the memory afterwards, says the caller.
        Ok(on_stream!(known, stream => unsafe { mm().free_device_on(ptr, stream) })?)
    })
}

/// Says that work in a raw stream uses the memory, device or pinned, that `ptr` points into. It is not handed out again before
/// that work has finished, whenever it is freed: call it behind the work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_record_use(
    ptr: *const c_void,
    stream: *mut CUstream_st,
) -> memmgr_status {
    call(|| {
        // SAFETY: the stream is alive during the call, says the caller.
        let known = unsafe { streams::raw(stream)? };
        Ok(on_stream!(known, stream => mm().record_use(ptr, stream))?)
    })
}

/// As `memmgr_record_use`; the default streams are those of `device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_record_use_at(
    device: i32,
    ptr: *const c_void,
    stream: *mut CUstream_st,
) -> memmgr_status {
    call(|| {
        // SAFETY: the stream is alive during the call, says the caller.
        let known = unsafe { streams::raw_on(device, stream)? };
        Ok(on_stream!(known, stream => mm().record_use(ptr, stream))?)
    })
}
