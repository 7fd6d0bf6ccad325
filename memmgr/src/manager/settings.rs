//! What can be set while a manager lives: sizes, limits and the device allocator.

use super::MemoryManager;
use crate::{
    cuda,
    error::{Error, Place, Result},
    mode::DeviceAllocatorMode,
    process,
    sync::{atomic::Ordering, lock},
};

impl MemoryManager {
    /// Sets how many bytes the pinned pool reserves at its first allocation; 0 grows by need (reference:
    /// `setPinnedPoolSize`). The last call before the first allocation counts.
    ///
    /// # Errors
    /// [`Error::AlreadyInitialized`] once the pool exists, [`Error::LimitExceeded`] above the limit.
    #[doc(alias = "setPinnedPoolSize")]
    pub fn set_pinned_pool_size(&self, size: usize) -> Result<()> {
        process::gate()?;
        self.inner
            .pinned
            .set_initial(size, "the pinned pool's size")
    }

    /// Sets how many bytes each device's pool reserves at its first allocation; 0 grows by need (reference:
    /// `setDevicePoolSize`). In [`DeviceAllocatorMode::CudaAsyncPool`] it is what the pool keeps when memory is released.
    ///
    /// # Errors
    /// [`Error::AlreadyInitialized`] once a device pool exists, [`Error::LimitExceeded`] above the limit.
    #[doc(alias = "setDevicePoolSize")]
    pub fn set_device_pool_size(&self, size: usize) -> Result<()> {
        process::gate()?;
        const WHAT: &str = "the device pools' size";
        let mut config = lock(&self.inner.config);
        if let Some(limit) = config.device_pool_limit.filter(|limit| size > *limit) {
            return Err(Error::LimitExceeded {
                place: Place::Device(0),
                requested: size,
                limit,
            });
        }
        if self
            .inner
            .states()
            .any(|state| state.pool.is_initialized() || state.native.is_initialized())
        {
            return Err(Error::AlreadyInitialized {
                what: WHAT,
                in_force: config.device_pool_size,
            });
        }
        for state in self.inner.states() {
            state.pool.set_initial(size, WHAT)?;
            state.native.set_keep(size);
        }
        config.device_pool_size = size;
        Ok(())
    }

    /// Sets the most that the pinned pool may hold, in bytes; what it holds beyond stays until it is trimmed.
    pub fn set_pinned_pool_limit(&self, limit: Option<usize>) {
        if process::is_forked() {
            return;
        }
        self.inner.pinned.set_limit(limit);
        self.inner.warmer.after_limit(&self.inner.pinned);
    }

    /// Sets the most that each device's own pool may hold, in bytes, in place of
    /// [`Config::device_pool_limit_share`](crate::Config::device_pool_limit_share) too; what it holds beyond stays until it
    /// is trimmed.
    pub fn set_device_pool_limit(&self, limit: Option<usize>) {
        if process::is_forked() {
            return;
        }
        {
            let mut config = lock(&self.inner.config);
            (config.device_pool_limit, config.device_pool_limit_share) = (limit, None);
        }
        for state in self.inner.states() {
            state.pool.set_limit(limit);
        }
    }

    /// Sets the device allocator (reference: `setDeviceAllocatorMode`); at any time, live blocks included: each block is
    /// freed by the family that made it.
    #[doc(alias = "setDeviceAllocatorMode")]
    pub fn set_device_allocator_mode(&self, mode: DeviceAllocatorMode) {
        self.inner.mode.store(mode.index(), Ordering::Release);
    }

    /// What was asked for (reference: `getRequestedDeviceAllocatorMode`).
    #[doc(alias = "getRequestedDeviceAllocatorMode")]
    pub fn requested_device_allocator_mode(&self) -> DeviceAllocatorMode {
        self.inner.requested()
    }

    /// What the current device grants (reference: `getEffectiveDeviceAllocatorMode`): a mode that it lacks falls back to
    /// [`DeviceAllocatorMode::BestFitPool`].
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    #[doc(alias = "getEffectiveDeviceAllocatorMode")]
    pub fn effective_device_allocator_mode(&self) -> Result<DeviceAllocatorMode> {
        let state = self.inner.state(cuda::get_device()?)?;
        self.inner.effective(state)
    }

    /// Whether the current device has memory pools and the driver is at least 11.2 (reference:
    /// `supportsAsyncDeviceAllocator`).
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    #[doc(alias = "supportsAsyncDeviceAllocator")]
    pub fn supports_async_device_allocator(&self) -> Result<bool> {
        self.inner.state(cuda::get_device()?)?.pools_supported()
    }
}
