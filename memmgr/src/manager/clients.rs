//! What bindings for other languages need besides: whether the manager can be used, failures that nobody was told of, and limits
//! of single devices.

use super::{
    MemoryManager,
    inner::{Home, no_device},
};
use crate::{
    checker,
    config::is_share,
    cuda,
    error::{Error, Result},
    pool::Contention,
    process,
    stream::{Stream, handle_of},
    sync::lock,
};
use std::ffi::c_void;

impl MemoryManager {
    /// As [`MemoryManager::allocate_device_on`], on a stream of other code that need not be known: cheaper than with a
    /// [`Stream::borrow_raw`] of its own, since nothing is recorded where nothing is freed.
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_device_on`], and as [`Stream::borrow_raw`].
    ///
    /// # Safety
    /// `stream` is a live `cudaStream_t`, and stays so during the call.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn allocate_device_on_raw(
        &self,
        size: usize,
        stream: *mut c_void,
    ) -> Result<*mut c_void> {
        let _called = checker::called_here();
        // SAFETY: the stream is alive as long as this handle, says the caller.
        let stream = unsafe { Stream::borrow_to_allocate(stream)? };
        let handle = handle_of(&stream);
        let made = (self.inner).allocate_device(handle.device(), size, Some(handle), true);
        // The async modes may ask when the stream has come to the allocation.
        if !matches!(made, Ok((_, Home::Pool(_)))) {
            handle.owe();
        }
        made.map(|(address, _)| cuda::pointer(address))
    }

    /// The segment of a device pool that an address lies in: where it begins, and its bytes. That of `cudaMalloc` is what
    /// `cudaIpcGetMemHandle` shares ([`Config::shareable`](crate::Config::shareable)). `None` for memory of others, of the async
    /// modes, and in a forked child.
    pub fn device_segment(&self, ptr: *const c_void) -> Option<(*mut c_void, usize)> {
        if process::is_forked() {
            return None;
        }
        let address = ptr.addr();
        (self.inner.states())
            .find_map(|state| state.pool.segment_at(address))
            .map(|(base, len)| (cuda::pointer(base), len))
    }

    /// How threads have met at a device's own pool; `None` if it has not been used. For benchmarks: unlike
    /// [`MemoryManager::stats`], this gives nothing back that threads hold ready.
    #[doc(hidden)]
    pub fn contention(&self, device: i32) -> Option<Contention> {
        let state = self.inner.known_state(device)?;
        Some(state.pool.contention())
    }

    /// Whether there is a device with this ordinal (`cudaGetDeviceCount`); makes no context.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] if there is none; [`Error::Unavailable`] where the driver does not say, and
    /// [`Error::ForkedChild`].
    pub fn check_device(&self, ordinal: i32) -> Result<()> {
        process::gate()?;
        let count = cuda::device_count()?;
        if (0..count).contains(&ordinal) {
            return Ok(());
        }
        Err(no_device(ordinal, usize::try_from(count).unwrap_or(0)))
    }

    /// Whether this process can use the manager at all; makes no CUDA call.
    ///
    /// # Errors
    /// [`Error::ForkedChild`], or [`Error::Unavailable`] while the process exits and after a device was reset.
    pub fn usable(&self) -> Result<()> {
        process::gate()
    }

    /// Counts and keeps a failure that a client could not tell anybody, as those of drops are: in
    /// [`Stats::drop_failures`](crate::Stats::drop_failures), and for [`MemoryManager::take_error`].
    pub fn note_failure(&self, error: Error) {
        self.inner.note_drop_failure("a client", error);
    }

    /// As [`MemoryManager::set_device_pool_limit`], as a share of each device's memory (above 0, at most 1), which becomes bytes
    /// when a device's pool is next asked for more than it has.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for what is no share.
    pub fn set_device_pool_limit_share(&self, share: f64) -> Result<()> {
        checked(share)?;
        process::gate()?;
        {
            let mut config = lock(&self.inner.config);
            (config.device_pool_limit, config.device_pool_limit_share) = (None, Some(share));
        }
        for state in self.inner.states() {
            state.pool.set_limit_share(share);
        }
        Ok(())
    }

    /// As [`MemoryManager::set_device_pool_limit_share`], for one device.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for what is no share, [`Error::WrongDevice`] for what is no device.
    pub fn set_device_pool_limit_share_at(&self, ordinal: i32, share: f64) -> Result<()> {
        checked(share)?;
        process::gate()?;
        self.inner.state(ordinal)?.pool.set_limit_share(share);
        Ok(())
    }
}

fn checked(share: f64) -> Result<()> {
    if is_share(share) {
        return Ok(());
    }
    Err(Error::InvalidSetting {
        reason: format!("{share} is no share of a device's memory: above 0, at most 1"),
    })
}
