//! Raw CUDA work that the manager knows nothing of (a stand-in for kernels), reading back, and managers whose pool has
//! one size and never grows.
#![allow(dead_code)]

use crate::common::bytes;
use memmgr::{Config, DeviceAllocatorMode, DeviceBuffer, Error, MemoryManager, Pod, Stream};
use std::{
    ffi::c_void,
    time::{Duration, Instant},
};

/// A manager whose device pool is one segment of `bytes` that cannot grow.
pub fn capped(bytes: usize) -> MemoryManager {
    MemoryManager::new(
        Config::default()
            .device_pool_size(bytes)
            .device_pool_limit(Some(bytes)),
    )
    .expect("the size is its own limit")
}

/// As [`capped`], for pinned memory.
pub fn capped_pinned(bytes: usize) -> MemoryManager {
    MemoryManager::new(
        Config::default()
            .pinned_pool_size(bytes)
            .pinned_pool_limit(Some(bytes)),
    )
    .expect("the size is its own limit")
}

/// Fills device memory as a kernel would: the manager does not see it.
///
/// # Safety
/// `ptr` has `len` bytes until the work has run, and the stream is alive.
pub unsafe fn kernel_fill(ptr: *mut c_void, value: u8, len: usize, stream: &Stream) {
    // SAFETY: as this function demands.
    let code = unsafe { cuda_sys::cudaMemsetAsync(ptr, value.into(), len, stream.as_raw().cast()) };
    assert_eq!(code.0, 0, "cudaMemsetAsync");
}

/// The contents of device memory, copied through a pinned block in `stream`; waits for it.
///
/// # Safety
/// `ptr` has `len` bytes of device memory.
pub unsafe fn read_back(
    manager: &MemoryManager,
    ptr: *mut c_void,
    len: usize,
    stream: &Stream,
) -> Vec<u8> {
    let host = manager.allocate_pinned(len).expect("pinned memory");
    // SAFETY: both blocks have `len` bytes, and the stream has finished before the host looks.
    unsafe {
        manager
            .copy_to_host_async(host, ptr, len, stream)
            .expect("a copy");
        stream.synchronize().expect("the copy runs");
        let copy = bytes(host, len).to_vec();
        manager.free_pinned(host).expect("the block is ours");
        copy
    }
}

/// The contents of a device buffer, read in a stream that is made to follow by itself.
pub fn contents<T: Pod>(
    manager: &MemoryManager,
    device: &DeviceBuffer<T>,
    stream: &Stream,
) -> Vec<T> {
    let mut host = manager.pinned::<T>(device.len()).unwrap();
    let _ = stream.copy_to_host(device, &mut host).unwrap();
    host.as_slice().unwrap().to_vec()
}

/// Fails unless the range was refused.
#[track_caller]
pub fn is_range_error<T>(result: memmgr::Result<T>) {
    match result {
        Err(Error::InvalidRange { .. }) => {}
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it succeeded"),
    }
}

/// Fails unless all bytes are `value`; tells the first that is not.
#[track_caller]
pub fn assert_all(contents: &[u8], value: u8, what: &str) {
    if let Some(at) = contents.iter().position(|byte| *byte != value) {
        panic!(
            "{what}: byte {at} of {} is {:#04x}, not {value:#04x}",
            contents.len(),
            contents[at]
        );
    }
}

/// What CUDA calls the calling thread makes in `f`, as the crate counts them, and as the simulated runtime does (which
/// also sees calls that only read the last error).
pub fn calls_of<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let before = calls();
    let value = f();
    (value, calls() - before)
}

#[cfg(feature = "sim")]
fn calls() -> u64 {
    cudart_sim::thread_calls().max(memmgr::cuda_calls_on_this_thread())
}

#[cfg(not(feature = "sim"))]
fn calls() -> u64 {
    memmgr::cuda_calls_on_this_thread()
}

/// The calling thread's current device, asked of CUDA itself.
pub fn current_device() -> i32 {
    let mut device = -1;
    // SAFETY: `device` is a place for one int.
    let code = unsafe { cuda_sys::cudaGetDevice(&mut device) };
    assert_eq!(code.0, 0);
    device
}

/// Free and total memory of the current device, asked of CUDA itself.
pub fn mem_get_info() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are places for one size.
    let code = unsafe { cuda_sys::cudaMemGetInfo(&mut free, &mut total) };
    assert_eq!(code.0, 0);
    (free, total)
}

/// Whether the device has memory pools; the async modes fall back to the best-fit pool otherwise.
pub fn has_pools() -> bool {
    MemoryManager::new(Config::default())
        .expect("the defaults are valid")
        .supports_async_device_allocator()
        .expect("a device")
}

/// The three modes, or what the device has of them.
pub fn modes() -> &'static [DeviceAllocatorMode] {
    if has_pools() {
        &DeviceAllocatorMode::ALL
    } else {
        memmgr_tests::skip("the async modes", "the device has no memory pools");
        &DeviceAllocatorMode::ALL[..1]
    }
}

/// Whether `f` comes true within a while.
pub fn eventually(mut f: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        if f() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}
