//! The entry points for PyTorch. What they do is in `cpp/torch.cpp`, since it throws C++ exceptions and takes C++ objects; these
//! pass through. The rest is what that file needs besides.

use std::ffi::c_void;

use manager::MemoryManager;

use crate::{
    CUstream_st,
    status::{call, last_failure, memmgr_status},
};

/// Of PyTorch's private pools: `c10::cuda::MempoolId_t`.
///
/// cbindgen:ignore
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memmgr_torch_pool_id {
    first: u64,
    second: u64,
}

/// `cpp/torch.cpp`.
///
/// cbindgen:ignore
mod cpp {
    use super::{CUstream_st, c_void, memmgr_torch_pool_id};

    unsafe extern "C-unwind" {
        pub fn memmgr_cpp_alloc(size: usize, device: i32, stream: *mut CUstream_st) -> *mut c_void;
        pub fn memmgr_cpp_free(
            ptr: *mut c_void,
            size: usize,
            device: i32,
            stream: *mut CUstream_st,
        );
        pub fn memmgr_cpp_record_stream(ptr: *mut c_void, stream: *mut CUstream_st);
        pub fn memmgr_cpp_reset();
        pub fn memmgr_cpp_memory_fraction(fraction: f64, device: i32);
        pub fn memmgr_cpp_begin_allocate_to_pool(
            device: i32,
            pool: memmgr_torch_pool_id,
            filter: *mut c_void,
        );
        pub fn memmgr_cpp_end_allocate_to_pool(device: i32, pool: memmgr_torch_pool_id);
        pub fn memmgr_cpp_release_pool(device: i32, pool: memmgr_torch_pool_id);
    }
}
use cpp::*;

/// For `CUDAPluggableAllocator`: memory in the order of a stream. Throws `std::runtime_error` where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_alloc(
    size: usize,
    device: i32,
    stream: *mut CUstream_st,
) -> *mut c_void {
    // SAFETY: the arguments are passed on.
    unsafe { memmgr_cpp_alloc(size, device, stream) }
}

/// For `CUDAPluggableAllocator`: memory back, in the order of the stream that it was allocated on. Never throws: what fails is kept
/// for `memmgr_take_failure`, and the block stays out of use.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_free(
    ptr: *mut c_void,
    size: usize,
    device: i32,
    stream: *mut CUstream_st,
) {
    // SAFETY: the arguments are passed on.
    unsafe { memmgr_cpp_free(ptr, size, device, stream) }
}

/// For `set_record_stream_fn`: another stream uses the block until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_record_stream(
    ptr: *mut c_void,
    stream: *mut CUstream_st,
) {
    // SAFETY: the arguments are passed on.
    unsafe { memmgr_cpp_record_stream(ptr, stream) }
}

/// For `set_reset_fn` (`torch.cuda.empty_cache`): idle memory goes back to CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_reset() {
    // SAFETY: it takes nothing.
    unsafe { memmgr_cpp_reset() }
}

/// For `set_memory_fraction_fn`: limits the device's pool to this share of its memory. Throws for one that is none.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_memory_fraction(fraction: f64, device: i32) {
    // SAFETY: it takes numbers.
    unsafe { memmgr_cpp_memory_fraction(fraction, device) }
}

/// For `set_begin_allocate_to_pool`: a graph is about to be captured. `filter` is the `std::function<bool(cudaStream_t)>` that C++
/// passes by address.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_begin_allocate_to_pool(
    device: i32,
    pool: memmgr_torch_pool_id,
    filter: *mut c_void,
) {
    // SAFETY: the arguments are passed on; both sides pass such a pair in two registers, and the function by address.
    unsafe { memmgr_cpp_begin_allocate_to_pool(device, pool, filter) }
}

/// For `set_end_allocate_to_pool_fn`: the capture is over.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_end_allocate_to_pool(
    device: i32,
    pool: memmgr_torch_pool_id,
) {
    // SAFETY: the arguments are passed on.
    unsafe { memmgr_cpp_end_allocate_to_pool(device, pool) }
}

/// For `set_release_pool`: the graph is gone.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memmgr_torch_release_pool(device: i32, pool: memmgr_torch_pool_id) {
    // SAFETY: the arguments are passed on.
    unsafe { memmgr_cpp_release_pool(device, pool) }
}

/// Keeps the calling thread's last failure for `memmgr_take_failure`.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_torch_note_failure() {
    if let Some(error) = last_failure() {
        MemoryManager::instance().note_failure(error);
    }
}

/// The current device; 0 where there is none.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_torch_current_device() -> i32 {
    manager::current_device().unwrap_or(0)
}

/// Waits until nothing runs on a device any more (`cudaDeviceSynchronize`).
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_synchronize_device(device: i32) -> memmgr_status {
    call(|| Ok(manager::synchronize_device(device)?))
}
