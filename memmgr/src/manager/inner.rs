//! What managers and guards share: the pools and async modes of each device, and which of them serves.

use super::{
    adopted::Adopted, hook::HookPlace, release::Releaser, traffic::Traffic, warm_up::Warmer,
};
use crate::{
    config::Config,
    cuda,
    device::memory_pools_supported,
    error::{Error, Result},
    mode::DeviceAllocatorMode,
    pool::{Pool, PoolConfig, native::Native, observer::Observed, segment::Source},
    process,
    source::DeviceSource,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
        lock,
    },
};
use std::sync::{Arc, Weak};

/// All managers of the process that are alive, and some that are not.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// What managers and guards share.
pub(crate) struct Inner {
    pub(super) pinned: Arc<Pool>,
    /// Keeps some of it idle.
    pub(super) warmer: Warmer,
    /// Gives back what has been idle for a while.
    pub(super) releaser: Releaser,
    pub(super) devices: OnceLock<Box<[OnceLock<DeviceState>]>>,
    pub(super) mode: AtomicU8,
    pub(super) config: Mutex<Config>,
    /// Settings of the environment that cannot be used: every allocation answers with this.
    pub(super) misconfigured: Option<Error>,
    /// Memory of others that guards own.
    pub(crate) adopted: Adopted,
    pub(super) hook: HookPlace,
    pub(super) observed: Observed,
    pub(super) drop_failures: AtomicU64,
    pub(super) last_drop_failure: Mutex<Option<Error>>,
    pub(super) fallback_reported: AtomicBool,
    /// What was copied and filled.
    pub(crate) traffic: Traffic,
    /// Whether pageable memory may take the place of pinned memory.
    pub(super) pinned_fallback: bool,
    /// Whether each block keeps where it was allocated.
    pub(super) call_sites: bool,
    /// Whether a request needs nothing but memory: there are usable settings, and no call sites to be kept.
    pub(super) is_plain: bool,
}

/// Everything of one device.
pub(super) struct DeviceState {
    pub(super) ordinal: i32,
    /// Where the pool's memory was asked to come from.
    pub(super) requested_source: DeviceSource,
    pub(super) pool: Pool,
    pub(super) native: Native,
    pub(super) pools_supported: OnceLock<bool>,
}

/// Where a block lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// The pinned pool.
    Pinned,
    /// The own pool of a device.
    Pool(i32),
    /// An async mode of a device.
    Native(i32),
    /// Memory of others.
    Adopted,
}

impl Home {
    /// The device of a block of the manager's device memory.
    pub fn device(self) -> Option<i32> {
        match self {
            Home::Pool(device) | Home::Native(device) => Some(device),
            Home::Pinned | Home::Adopted => None,
        }
    }
}

/// The error for an ordinal that none of so many devices has.
pub(super) fn no_device(ordinal: i32, count: usize) -> Error {
    Error::WrongDevice {
        reason: format!("there is no device {ordinal}; this machine has {count}"),
    }
}

impl DeviceState {
    pub(super) fn pools_supported(&self) -> Result<bool> {
        if let Some(supported) = self.pools_supported.get() {
            return Ok(*supported);
        }
        let supported = memory_pools_supported(self.ordinal)?;
        Ok(*self.pools_supported.get_or_init(|| supported))
    }
}

impl Inner {
    /// From now on other managers know of this one.
    pub(super) fn enter(self: &Arc<Self>) {
        if process::is_forked() {
            return;
        }
        let mut all = lock(&ALL);
        all.retain(|manager| manager.strong_count() > 0);
        all.push(Arc::downgrade(self));
    }

    /// What other managers' own pools of a device have idle, in bytes: their `trim` would give it back.
    #[cold]
    pub(super) fn idle_of_others(&self, ordinal: i32) -> usize {
        let all: Vec<Arc<Self>> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
        let others = all.iter().filter(|other| !std::ptr::eq(&***other, self));
        let pools = others.filter_map(|other| Some(&other.known_state(ordinal)?.pool));
        pools.fold(0, |sum, pool| sum.saturating_add(pool.idle()))
    }

    pub(super) fn requested(&self) -> DeviceAllocatorMode {
        DeviceAllocatorMode::from_index(self.mode.load(Ordering::Acquire))
    }

    /// The devices that have been used.
    #[inline]
    pub(super) fn states(&self) -> impl Iterator<Item = &DeviceState> {
        let devices = self.devices.get().map_or(&[][..], |devices| devices);
        devices.iter().filter_map(OnceLock::get)
    }

    /// The state of a device, made when first asked for.
    #[inline]
    pub(super) fn state(&self, ordinal: i32) -> Result<&DeviceState> {
        match self.known_state(ordinal) {
            Some(state) => Ok(state),
            None => self.make_state(ordinal),
        }
    }

    /// The state of a device that has been used.
    #[inline]
    pub(super) fn known_state(&self, ordinal: i32) -> Option<&DeviceState> {
        let index = usize::try_from(ordinal).ok()?;
        self.devices.get()?.get(index)?.get()
    }

    #[cold]
    fn make_state(&self, ordinal: i32) -> Result<&DeviceState> {
        let devices = match self.devices.get() {
            Some(devices) => devices,
            None => {
                let count = usize::try_from(cuda::device_count()?).unwrap_or(0);
                self.devices
                    .get_or_init(|| (0..count).map(|_| OnceLock::new()).collect())
            }
        };
        let place = usize::try_from(ordinal)
            .ok()
            .and_then(|index| devices.get(index))
            .ok_or_else(|| no_device(ordinal, devices.len()))?;
        let requested = lock(&self.config).requested_source();
        let source = match requested.on(ordinal)? {
            DeviceSource::Virtual if requested == DeviceSource::Auto => {
                Source::mapped_or_malloc(ordinal)
            }
            DeviceSource::Virtual => Source::mapped_on(ordinal),
            DeviceSource::Auto | DeviceSource::Malloc => Source::malloc(ordinal),
        };
        Ok(place.get_or_init(|| {
            let config = lock(&self.config);
            DeviceState {
                ordinal,
                requested_source: requested,
                pool: Pool::new(
                    source,
                    PoolConfig {
                        initial: config.device_pool_size,
                        limit: config.device_pool_limit,
                        limit_share: config.device_pool_limit_share,
                        growth: config.device_growth,
                        reuse: config.reuse,
                    },
                    self.observed.clone(),
                ),
                native: Native::new(ordinal, config.device_pool_size, config.release_threshold),
                pools_supported: OnceLock::new(),
            }
        }))
    }

    #[inline]
    pub(super) fn effective(&self, state: &DeviceState) -> Result<DeviceAllocatorMode> {
        let requested = self.requested();
        if requested == DeviceAllocatorMode::BestFitPool {
            return Ok(requested);
        }
        self.effective_of(state, requested)
    }

    fn effective_of(
        &self,
        state: &DeviceState,
        requested: DeviceAllocatorMode,
    ) -> Result<DeviceAllocatorMode> {
        if requested == DeviceAllocatorMode::BestFitPool || state.pools_supported()? {
            return Ok(requested);
        }
        if !self.fallback_reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(device = state.ordinal, %requested, "the device has no memory pools: the best-fit pool serves it");
        }
        Ok(DeviceAllocatorMode::BestFitPool)
    }

    /// Refuses allocations where no CUDA call may be made or the settings cannot be used.
    #[inline]
    pub(super) fn gate(&self) -> Result<()> {
        process::gate()?;
        match &self.misconfigured {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Whether the address lies in page-locked memory of the manager's, or in memory that it has registered for its owner.
    pub(super) fn is_pinned(&self, address: usize) -> bool {
        self.pinned.is_page_locked(address) || self.adopted.is_host(address)
    }

    /// Whether anybody but the ordering checker wants reports.
    #[cfg(all(test, feature = "sim", feature = "nvtx"))]
    pub(crate) fn listens(&self) -> bool {
        self.observed.is_set() && !cudart_sim::is_checking()
    }

    /// Whether CUDA is there and nobody wants reports.
    #[inline]
    pub(super) fn is_usual(&self) -> bool {
        process::is_running() && !self.observed.is_set()
    }
}
