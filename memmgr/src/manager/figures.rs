//! Figures of all pools, and of the driver's.

use super::MemoryManager;
use crate::{
    cuda,
    error::{Error, Result},
    mode::DeviceAllocatorMode,
    pool::native::Family,
    process,
    stats::{DeviceStats, Fragmentation, NativePoolUsage, Stats},
    sync::atomic::Ordering,
};

impl MemoryManager {
    /// The figures of all pools, in bytes; makes no CUDA call. Each pool is looked at in one moment, which takes less than a
    /// microsecond, however many blocks there are; while threads compete for a pool, what they hold back of it is given back
    /// first. What calls are still on their way to is not counted yet. All zero in a forked child.
    pub fn stats(&self) -> Stats {
        if process::is_forked() {
            return Stats::default();
        }
        Stats {
            device: self
                .inner
                .states()
                .map(|state| DeviceStats {
                    device: state.ordinal,
                    requested_source: state.requested_source,
                    source: state.pool.source(),
                    best_fit: state.pool.stats(),
                    async_stream_ordered: state.native.stats(Family::Current),
                    cuda_async_pool: state.native.stats(Family::Own),
                })
                .collect(),
            pinned: self.inner.pinned.stats(),
            copied: self.inner.traffic.copied(),
            drop_failures: self.inner.drop_failures.load(Ordering::Relaxed),
            cuda_calls: cuda::cuda_calls(),
        }
    }

    /// What of the idle memory of the manager's own pools lies in pieces that the largest request so far could not use;
    /// makes no CUDA call. Takes time in proportion to the number of blocks: a few nanoseconds each. All zero in a
    /// forked child.
    pub fn fragmentation(&self) -> Fragmentation {
        if process::is_forked() {
            return Fragmentation::default();
        }
        let states = self.inner.states();
        Fragmentation {
            device: states
                .map(|state| (state.ordinal, state.pool.fragmentation()))
                .collect(),
            pinned: self.inner.pinned.fragmentation(),
        }
    }

    /// Sets all peaks to what is the case now.
    pub fn reset_peak(&self) {
        if process::is_forked() {
            return;
        }
        self.inner.pinned.reset_peak();
        for state in self.inner.states() {
            state.pool.reset_peak();
            state.native.reset_peak();
        }
    }

    /// What the driver holds for an async mode on the current device, in bytes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for [`DeviceAllocatorMode::BestFitPool`] (see [`MemoryManager::stats`]) and on a device
    /// without memory pools; otherwise what the runtime says.
    pub fn native_pool_usage(&self, mode: DeviceAllocatorMode) -> Result<NativePoolUsage> {
        let family = Family::of(mode).ok_or_else(|| Error::Unsupported {
            reason: "driver figures for the manager's own pool: stats() has them".into(),
        })?;
        let state = self.inner.state(cuda::get_device()?)?;
        if !state.pools_supported()? {
            return Err(Error::Unsupported {
                reason: format!("memory pools on device {}", state.ordinal),
            });
        }
        state.native.usage(family)
    }
}
