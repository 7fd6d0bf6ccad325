//! Statistics.

use manager::{Error, MemoryManager, PoolStats, Stats};
use std::ffi::c_char;

use crate::status::{Failure, call, memmgr_status, put, refuse_in_child};

/// All figures, but in a forked child.
fn figures() -> Result<Stats, Failure> {
    let mm = MemoryManager::instance();
    refuse_in_child(mm)?;
    Ok(mm.stats())
}

/// Refuses a device that there is not. Where the driver does not say how many there are, none was used.
fn check_device(device: i32) -> Result<(), Failure> {
    match MemoryManager::instance().check_device(device) {
        Err(error @ Error::WrongDevice { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}

/// What a pool holds, and what it has done. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct memmgr_pool_stats {
    /// In live blocks, rounded up to the granule of 256 bytes.
    pub in_use: usize,
    /// Held from CUDA.
    pub reserved: usize,
    /// Free, and usable at once by anybody.
    pub idle: usize,
    /// Free, but work that may touch it has not finished.
    pub pending: usize,
    /// The largest idle piece.
    pub largest_idle: usize,
    /// The most that `in_use` has been.
    pub peak_in_use: usize,
    /// The most that `reserved` has been.
    pub peak_reserved: usize,
    /// Successful allocations.
    pub allocations: u64,
    /// Frees.
    pub frees: u64,
    /// Allocations served from memory that was used before.
    pub reuses: u64,
    /// Allocations that took memory which still had the mark of another stream, and had to wait for that.
    pub waits: u64,
    /// How often the pool grew.
    pub growths: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// How many blocks are live.
    pub live_blocks: usize,
    /// What live blocks hold beyond what was asked for.
    pub internal_waste: usize,
    /// The largest request that found nothing.
    pub largest_miss: usize,
    /// Allocations that took memory which still had the mark of another stream, those that had to wait included.
    pub steals: u64,
    /// Blocks divided in two.
    pub splits: u64,
    /// Neighbouring free blocks joined.
    pub merges: u64,
}

impl From<&PoolStats> for memmgr_pool_stats {
    fn from(stats: &PoolStats) -> Self {
        Self {
            in_use: stats.in_use,
            reserved: stats.reserved,
            idle: stats.idle,
            pending: stats.pending,
            largest_idle: stats.largest_idle,
            peak_in_use: stats.peak_in_use,
            peak_reserved: stats.peak_reserved,
            allocations: stats.allocations,
            frees: stats.frees,
            reuses: stats.reuses,
            waits: stats.waits,
            growths: stats.growths,
            failures: stats.failures,
            live_blocks: stats.live_blocks,
            internal_waste: stats.internal_waste,
            largest_miss: stats.largest_miss,
            steals: stats.steals,
            splits: stats.splits,
            merges: stats.merges,
        }
    }
}

/// Writes as much of the figures as the caller has room for, so that a program that was built with fewer still works.
///
/// # Safety
/// `out` is null, or has `size` bytes that may be written.
unsafe fn fill(out: *mut memmgr_pool_stats, size: usize, stats: &PoolStats) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::argument("the pointer for the result is null"));
    }
    let figures = memmgr_pool_stats::from(stats);
    let known = size.min(size_of::<memmgr_pool_stats>());
    // SAFETY: `out` has `size` bytes, says the caller, and `figures` has no fewer than `known`; they are numbers, so that any
    // part of them may be written.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(&figures).cast::<u8>(),
            out.cast::<u8>(),
            known,
        );
    }
    Ok(())
}

/// The figures of the pinned pool. `size` is `sizeof(memmgr_pool_stats)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_pinned_stats(
    out: *mut memmgr_pool_stats,
    size: usize,
) -> memmgr_status {
    // SAFETY: the pointer has `size` bytes, says the caller.
    call(|| unsafe { fill(out, size, &figures()?.pinned) })
}

/// The figures of a device's memory in one mode (a `memmgr_device_allocator_mode`): zero where it was not used. `size` is
/// `sizeof(memmgr_pool_stats)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_device_stats(
    device: i32,
    mode: i32,
    out: *mut memmgr_pool_stats,
    size: usize,
) -> memmgr_status {
    call(|| {
        let stats = figures()?;
        let nothing = PoolStats::default();
        let found = stats.device.iter().find(|stats| stats.device == device);
        let of_mode = match (mode, found) {
            (0, Some(found)) => &found.best_fit,
            (1, Some(found)) => &found.async_stream_ordered,
            (2, Some(found)) => &found.cuda_async_pool,
            (0..=2, None) => {
                check_device(device)?;
                &nothing
            }
            _ => return Err(Failure::argument(format!("{mode} is no allocator mode"))),
        };
        // SAFETY: the pointer has `size` bytes, says the caller.
        unsafe { fill(out, size, of_mode) }
    })
}

/// What is idle in a device's own pool, or in the pinned pool for device -1, and was of no use to the largest request that
/// found nothing; bytes. Looks at every block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_external_waste(device: i32, bytes: *mut usize) -> memmgr_status {
    call(|| {
        let mm = MemoryManager::instance();
        refuse_in_child(mm)?;
        let fragmentation = mm.fragmentation();
        let pool = match device {
            -1 => fragmentation.pinned,
            device => {
                check_device(device)?;
                fragmentation.of_device(device)
            }
        };
        // SAFETY: the pointer is null or a place for one number, says the caller.
        unsafe { put(bytes, pool.external_waste) }
    })
}

/// Writes all figures in Prometheus' text format, with a zero byte behind them, into `buf`, which has `len` bytes; and how many
/// bytes that takes, the zero byte included, to `needed` (unless that is null). Where `len` is less, nothing is written to
/// `buf`, which may be null then, and the call fails but for `len` 0. Figures grow longer as they grow: ask for the length,
/// and leave some room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_stats_prometheus(
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> memmgr_status {
    call(|| {
        let text = figures()?.to_prometheus();
        let bytes = text.len().saturating_add(1);
        if !needed.is_null() {
            // SAFETY: the pointer is not null, and then it is a place for one number, says the caller.
            unsafe { put(needed, bytes)? };
        }
        if len == 0 {
            return Ok(());
        }
        if len < bytes {
            let reason = format!("the text takes {bytes} bytes, and there is room for {len}");
            return Err(Failure::argument(reason));
        }
        if buf.is_null() {
            return Err(Failure::argument("the pointer for the text is null"));
        }
        // SAFETY: `buf` has `len` bytes that may be written, says the caller; the text and the zero byte are no more.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), text.len());
            buf.add(text.len()).write(0);
        }
        Ok(())
    })
}

/// Lets the peaks begin anew at what is there now.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_reset_peaks() -> memmgr_status {
    call(|| {
        MemoryManager::instance().reset_peak();
        Ok(())
    })
}
