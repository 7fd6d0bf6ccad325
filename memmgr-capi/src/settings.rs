//! Pool sizes, limits, the allocator mode, giving back, and the end.

use manager::{DeviceAllocatorMode, MemoryManager};

use crate::status::{Failure, call, memmgr_status, put};

/// Which family of CUDA calls serves device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum memmgr_device_allocator_mode {
    /// The manager's own exact best-fit pool.
    MEMMGR_BEST_FIT_POOL = 0,
    /// `cudaMallocAsync` and `cudaFreeAsync` on the device's current memory pool.
    MEMMGR_ASYNC_STREAM_ORDERED = 1,
    /// `cudaMallocFromPoolAsync` on a memory pool of the manager's own.
    MEMMGR_CUDA_ASYNC_POOL = 2,
}

use memmgr_device_allocator_mode::*;

fn mm() -> &'static MemoryManager {
    MemoryManager::instance()
}

fn to_mode(number: i32) -> Result<DeviceAllocatorMode, Failure> {
    usize::try_from(number)
        .ok()
        .and_then(|place| DeviceAllocatorMode::ALL.get(place).copied())
        .ok_or_else(|| {
            Failure::argument(format!(
                "{number} is no allocator mode: 0 (best-fit pool), 1 (async, stream-ordered) or 2 (CUDA's pool)"
            ))
        })
}

fn from_mode(mode: DeviceAllocatorMode) -> memmgr_device_allocator_mode {
    match mode {
        DeviceAllocatorMode::BestFitPool => MEMMGR_BEST_FIT_POOL,
        DeviceAllocatorMode::AsyncStreamOrdered => MEMMGR_ASYNC_STREAM_ORDERED,
        DeviceAllocatorMode::CudaAsyncPool => MEMMGR_CUDA_ASYNC_POOL,
    }
}

/// Configures how many bytes the pinned pool reserves at its first allocation. Afterwards `MEMMGR_ALREADY_INITIALIZED`.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_set_pinned_pool_size(size: usize) -> memmgr_status {
    call(|| Ok(mm().set_pinned_pool_size(size)?))
}

/// Configures how many bytes each device's pool reserves at its first allocation. Afterwards `MEMMGR_ALREADY_INITIALIZED`.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_set_device_pool_size(size: usize) -> memmgr_status {
    call(|| Ok(mm().set_device_pool_size(size)?))
}

fn limit(size: usize) -> Option<usize> {
    (size != usize::MAX).then_some(size)
}

/// The most bytes that the pinned pool may reserve; `SIZE_MAX` is no limit.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_set_pinned_pool_limit(size: usize) -> memmgr_status {
    call(|| {
        mm().set_pinned_pool_limit(limit(size));
        Ok(())
    })
}

/// The most bytes that each device's pool may reserve; `SIZE_MAX` is no limit.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_set_device_pool_limit(size: usize) -> memmgr_status {
    call(|| {
        mm().set_device_pool_limit(limit(size));
        Ok(())
    })
}

/// Limits the pool of a device to this share of its memory (above 0, at most 1); the pool of each device if `device` is -1. It
/// takes the place of a limit in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_set_device_pool_limit_share(device: i32, share: f64) -> memmgr_status {
    call(|| match device {
        -1 => Ok(mm().set_device_pool_limit_share(share)?),
        device => Ok(mm().set_device_pool_limit_share_at(device, share)?),
    })
}

/// Sets the allocator mode (a `memmgr_device_allocator_mode`), at any time: each block is freed by the family that made it. Where
/// a device cannot do what is asked, the best-fit pool serves it: see `memmgr_effective_device_allocator_mode`.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_set_device_allocator_mode(mode: i32) -> memmgr_status {
    call(|| {
        mm().set_device_allocator_mode(to_mode(mode)?);
        Ok(())
    })
}

/// The mode that was asked for.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_requested_device_allocator_mode() -> memmgr_device_allocator_mode {
    from_mode(mm().requested_device_allocator_mode())
}

/// The mode that serves the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_effective_device_allocator_mode(
    out: *mut memmgr_device_allocator_mode,
) -> memmgr_status {
    call(|| {
        let mode = from_mode(mm().effective_device_allocator_mode()?);
        // SAFETY: the pointer may be written, says the caller.
        unsafe { put(out, mode) }
    })
}

/// Whether the current device can serve the async modes: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_supports_async_device_allocator(out: *mut i32) -> memmgr_status {
    call(|| {
        let supported = mm().supports_async_device_allocator()?;
        // SAFETY: the pointer may be written, says the caller.
        unsafe { put(out, i32::from(supported)) }
    })
}

/// Puts a number of bytes where it is wanted; null is not.
///
/// # Safety
/// `out` is null, or may be written.
unsafe fn tell(out: *mut usize, bytes: usize) -> Result<(), Failure> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: as this function demands.
    unsafe { put(out, bytes) }
}

/// Gives idle memory of all pools back to CUDA. `released` may be null; otherwise how many bytes that were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_trim(released: *mut usize) -> memmgr_status {
    call(|| {
        let bytes = mm().trim()?;
        // SAFETY: the pointer is null or may be written, says the caller.
        unsafe { tell(released, bytes) }
    })
}

/// Waits for the manager's own pending work and gives every segment without a live block back. Live blocks stay valid, and how
/// many there are goes to `live`. Both pointers may be null. The manager can be configured and used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_shutdown(released: *mut usize, live: *mut usize) -> memmgr_status {
    call(|| {
        let report = mm().shutdown()?;
        // SAFETY: the pointers are null or may be written, says the caller.
        unsafe {
            tell(released, report.released)?;
            tell(live, report.live.len())
        }
    })
}

/// As `memmgr_shutdown`, after waiting for the devices and freeing every block: nobody may use one afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_shutdown_and_free_all(
    released: *mut usize,
    live: *mut usize,
) -> memmgr_status {
    call(|| {
        // SAFETY: nobody uses the blocks any more, says the caller.
        let report = unsafe { mm().shutdown_and_free_raw()? };
        // SAFETY: the pointers are null or may be written, says the caller.
        unsafe {
            tell(released, report.released)?;
            tell(live, report.live.len())
        }
    })
}

/// Walks all bookkeeping and verifies it; for tests and debugging.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_check() -> memmgr_status {
    call(|| {
        mm().usable()?;
        mm().check().map_err(Failure::Internal)
    })
}

/// The last failure that nobody could be told of (of a free in PyTorch, or in a destructor) since it was last asked for: its status,
/// and `memmgr_last_error` says the rest. `MEMMGR_OK` if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_take_failure() -> memmgr_status {
    call(|| mm().take_error().map_or(Ok(()), |error| Err(error.into())))
}
