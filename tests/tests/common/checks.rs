//! What a refused call must leave as it was; who makes CUDA calls; the kinds of memory that most promises hold for.

use super::{assert_sound, last_error, manager, manager_in};
use memmgr::{
    DeviceAllocatorMode, Error, MemoryManager, PoolStats, Result, Stats, Stream,
    cuda_calls_on_this_thread,
};
use std::{ffi::c_void, fmt::Debug, sync::mpsc, time::Duration};

/// Page-locked memory, or device memory in one of the modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Pinned,
    Device(DeviceAllocatorMode),
}

pub const KINDS: [Kind; 4] = [
    Kind::Pinned,
    Kind::Device(DeviceAllocatorMode::BestFitPool),
    Kind::Device(DeviceAllocatorMode::AsyncStreamOrdered),
    Kind::Device(DeviceAllocatorMode::CudaAsyncPool),
];

/// The pools that the manager itself runs.
pub const OWN_POOLS: [Kind; 2] = [Kind::Pinned, Kind::Device(DeviceAllocatorMode::BestFitPool)];

impl Kind {
    /// A manager that serves this kind.
    pub fn manager(self) -> MemoryManager {
        match self {
            Kind::Pinned => manager(),
            Kind::Device(mode) => manager_in(mode),
        }
    }

    /// Whether the manager's own pool serves it.
    pub fn is_own_pool(self) -> bool {
        OWN_POOLS.contains(&self)
    }

    pub fn allocate(self, manager: &MemoryManager, size: usize) -> Result<*mut c_void> {
        match self {
            Kind::Pinned => manager.allocate_pinned(size),
            Kind::Device(_) => manager.allocate_device(size),
        }
    }

    /// In the order of the stream; pinned memory knows no such allocation.
    pub fn allocate_on(
        self,
        manager: &MemoryManager,
        size: usize,
        stream: &Stream,
    ) -> Result<*mut c_void> {
        match self {
            Kind::Pinned => manager.allocate_pinned(size),
            Kind::Device(_) => manager.allocate_device_on(size, stream),
        }
    }

    /// # Safety
    /// Nobody uses the block afterwards.
    pub unsafe fn free(self, manager: &MemoryManager, ptr: *mut c_void) -> Result<()> {
        match self {
            // SAFETY: as this function demands.
            Kind::Pinned => unsafe { manager.free_pinned(ptr) },
            // SAFETY: as this function demands.
            Kind::Device(_) => unsafe { manager.free_device(ptr) },
        }
    }

    /// # Safety
    /// Nobody uses the block afterwards, other than work that is in the stream.
    pub unsafe fn free_on(
        self,
        manager: &MemoryManager,
        ptr: *mut c_void,
        stream: &Stream,
    ) -> Result<()> {
        match self {
            // SAFETY: as this function demands.
            Kind::Pinned => unsafe { manager.free_pinned(ptr) },
            // SAFETY: as this function demands.
            Kind::Device(_) => unsafe { manager.free_device_on(ptr, stream) },
        }
    }

    /// The figures of this kind on the first device.
    pub fn stats(self, manager: &MemoryManager) -> PoolStats {
        let stats = manager.stats();
        let device = stats.device.first().copied().unwrap_or_default();
        match self {
            Kind::Pinned => stats.pinned,
            Kind::Device(DeviceAllocatorMode::BestFitPool) => device.best_fit,
            Kind::Device(DeviceAllocatorMode::AsyncStreamOrdered) => device.async_stream_ordered,
            Kind::Device(DeviceAllocatorMode::CudaAsyncPool) => device.cuda_async_pool,
        }
    }

    pub fn set_pool_size(self, manager: &MemoryManager, size: usize) -> Result<()> {
        match self {
            Kind::Pinned => manager.set_pinned_pool_size(size),
            Kind::Device(_) => manager.set_device_pool_size(size),
        }
    }

    pub fn set_pool_limit(self, manager: &MemoryManager, limit: usize) {
        match self {
            Kind::Pinned => manager.set_pinned_pool_limit(Some(limit)),
            Kind::Device(_) => manager.set_device_pool_limit(Some(limit)),
        }
    }
}

/// All figures of a manager but two: what it refused, and the CUDA calls of the whole process.
pub fn figures(manager: &MemoryManager) -> Stats {
    let mut stats = manager.stats();
    stats.cuda_calls.clear();
    let of_devices = (stats.device.iter_mut()).flat_map(|device| {
        [
            &mut device.best_fit,
            &mut device.async_stream_ordered,
            &mut device.cuda_async_pool,
        ]
    });
    for of in of_devices.chain([&mut stats.pinned]) {
        (of.failures, of.largest_miss) = (0, 0);
    }
    stats
}

/// How often this thread has asked the simulated driver for memory; always 0 on a GPU.
pub fn driver_allocations() -> u64 {
    #[cfg(feature = "sim")]
    let calls = [
        "cudaMalloc",
        "cudaHostAlloc",
        "cudaMallocHost",
        "cudaHostRegister",
        "cudaMallocAsync",
        "cudaMallocFromPoolAsync",
    ]
    .iter()
    .map(|name| cudart_sim::thread_calls_of(name))
    .sum();
    #[cfg(not(feature = "sim"))]
    let calls = 0;
    calls
}

/// How many CUDA calls the manager makes on this thread meanwhile.
pub fn calls_of<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let before = cuda_calls_on_this_thread();
    let result = f();
    (result, cuda_calls_on_this_thread() - before)
}

/// Runs what must make no CUDA call.
#[track_caller]
pub fn without_calls<T>(what: &str, f: impl FnOnce() -> T) -> T {
    #[cfg(feature = "sim")]
    let before = cudart_sim::thread_calls();
    let (result, calls) = calls_of(f);
    assert_eq!(calls, 0, "{what} makes CUDA calls");
    #[cfg(feature = "sim")]
    assert_eq!(
        cudart_sim::thread_calls(),
        before,
        "{what} reaches the runtime"
    );
    result
}

/// The code of [`leave_foreign_error`]: an invalid device ordinal.
pub const FOREIGN: u32 = 101;

/// Leaves an error in `cudaGetLastError`, as other code does that ignores the answers it gets.
pub fn leave_foreign_error() {
    // SAFETY: any ordinal may be passed; a wrong one is answered with an error.
    let answer = unsafe { cuda_sys::cudaSetDevice(9999) };
    assert_eq!((answer.0, last_error()), (FOREIGN, FOREIGN));
}

/// Takes the error out of `cudaGetLastError`.
pub fn clear_error() -> u32 {
    // SAFETY: the function has no preconditions.
    unsafe { cuda_sys::cudaGetLastError() }.0
}

/// The calling thread's current device.
pub fn current_device() -> i32 {
    let mut device = -1;
    // SAFETY: `device` is a place for one int.
    let answer = unsafe { cuda_sys::cudaGetDevice(&mut device) };
    assert_eq!(answer.0, 0);
    device
}

/// Runs a call that must be refused before CUDA hears of it, and verifies that it changed nothing: not the figures, not
/// the bookkeeping, not the current device, not `cudaGetLastError` (clean, or with an error that others left there). The
/// text of the error must contain each of `names`.
#[track_caller]
pub fn refused<T: Debug>(
    manager: &MemoryManager,
    what: &str,
    names: &[String],
    call: impl Fn() -> Result<T>,
) -> Error {
    let (before, device) = (figures(manager), current_device());
    assert_eq!(last_error(), 0, "before {what}");
    let error = match call() {
        Err(error) => error,
        Ok(value) => panic!("{what} succeeded: {value:?}"),
    };
    assert_eq!(last_error(), 0, "{what} leaves an error behind");
    leave_foreign_error();
    let again = call();
    assert_eq!(last_error(), FOREIGN, "{what} takes the error of others");
    clear_error();
    match again {
        Err(again) => assert_eq!(
            std::mem::discriminant(&again),
            std::mem::discriminant(&error),
            "{what}: first {error}, then {again}"
        ),
        Ok(value) => panic!("{what} succeeded the second time: {value:?}"),
    }
    let text = error.to_string();
    for name in names {
        assert!(text.contains(name), "{what}: `{text}` lacks `{name}`");
    }
    assert_eq!(figures(manager), before, "{what} changes the figures");
    assert_eq!(current_device(), device, "{what} changes the device");
    assert_sound(manager);
    error
}

/// An address as the errors print it.
pub fn hex(ptr: *const c_void) -> String {
    format!("{:#x}", ptr.addr())
}

/// Runs `f` on a thread of its own, for five seconds at most.
#[track_caller]
pub fn within_five_seconds<T: Send + 'static>(
    what: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(f());
    });
    match receiver.recv_timeout(Duration::from_secs(5)) {
        Ok(result) => {
            let _ = thread.join();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} does not return"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what} panicked"),
    }
}

/// Whether the ranges (start, bytes) are disjoint.
pub fn are_disjoint(ranges: &[(usize, usize)]) -> bool {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| match pair {
        [(start, len), (next, _)] => start + len <= *next,
        _ => true,
    })
}
