//! What managers and guards share: the pools and async modes of each device, and the routing of every request to them.

use super::{
    adopted::Adopted, hook::HookPlace, release::Releaser, rescue::Served, traffic::Traffic,
    warm_up::Warmer,
};
use crate::{
    capture,
    config::Config,
    context,
    cuda::{self, CopyKind},
    device::{memory_pools_supported, on_device},
    error::{Error, Place, Result},
    event::Fence,
    foreign,
    mode::DeviceAllocatorMode,
    planted::{self, Mistake},
    pool::{
        Announced, BlockRange, FreeOn, Pool, PoolConfig, best_fit, is_refused_by_limit,
        native::{Family, Native},
        observer::{By, Observed, Told, What},
        segment::Source,
    },
    process,
    source::DeviceSource,
    spans,
    stream::{Handle, StreamKind},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
        lock,
    },
};
use std::{cell::OnceCell, ffi::c_void, panic::Location, sync::Arc};

/// How often others may take what was made for a request.
const HASTY: usize = 8;

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

/// What an operation touches.
#[derive(Clone, Copy)]
pub(super) struct Touched {
    address: usize,
    size: usize,
    writes: bool,
    /// Whether it is probably memory of the stream's device.
    on_device: bool,
}

impl Touched {
    /// Where a copy writes and reads: address and bytes.
    pub fn by_copy(kind: CopyKind, dst: (usize, usize), src: (usize, usize)) -> [Self; 2] {
        let within = kind == CopyKind::DeviceToDevice;
        [
            Self {
                on_device: within || kind == CopyKind::HostToDevice,
                ..Self::by_fill(dst.0, dst.1)
            },
            Self {
                writes: false,
                on_device: within || kind == CopyKind::DeviceToHost,
                ..Self::by_fill(src.0, src.1)
            },
        ]
    }

    /// What a fill writes.
    pub fn by_fill(address: usize, size: usize) -> Self {
        Self {
            address,
            size,
            writes: true,
            on_device: true,
        }
    }
}

/// Which kind of memory a pointer should belong to.
#[derive(Clone, Copy)]
pub(super) enum Memory {
    Pinned,
    /// Of this device, or of any.
    Device(Option<i32>),
}

pub(super) fn sum(left: Result<usize>, right: Result<usize>) -> Result<usize> {
    match (left, right) {
        (Ok(left), Ok(right)) => Ok(left.saturating_add(right)),
        (Err(error), _) | (_, Err(error)) => Err(error),
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

    /// Gives idle memory back until each pool holds at most `target` bytes.
    pub(super) fn trim_to(&self, target: usize) -> Result<usize> {
        let mut total = self.pool.trim_to(target);
        if self.native.is_used() {
            total = sum(total, self.native.trim_to(Family::Current, target));
            total = sum(total, self.native.trim_to(Family::Own, target));
        }
        total
    }
}

impl Inner {
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
            .ok_or_else(|| Error::WrongDevice {
                reason: format!(
                    "there is no device {ordinal}; this machine has {}",
                    devices.len()
                ),
            })?;
        let requested = lock(&self.config).requested_source();
        let source = match requested.on(ordinal)? {
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

    /// Pinned memory for a raw pointer or a guard; the address, 0 for size 0.
    #[inline]
    #[track_caller]
    pub fn allocate_pinned(&self, size: usize, raw: bool) -> Result<usize> {
        match self.hit_pinned(size, raw) {
            Some(address) => Ok(address),
            None => self.allocate_pinned_at_length(size, raw),
        }
    }

    /// As [`Inner::hit`], of the pinned pool.
    #[inline]
    fn hit_pinned(&self, size: usize, raw: bool) -> Option<usize> {
        if !self.is_plain || !self.is_usual() {
            return None;
        }
        let address = self.pinned.hit(size, None, raw)?;
        self.warmer.after_allocation(&self.pinned);
        Some(address)
    }

    #[cold]
    #[track_caller]
    fn allocate_pinned_at_length(&self, size: usize, raw: bool) -> Result<usize> {
        if size == 0 {
            return Ok(0);
        }
        self.gate()?;
        // What is given back for this request stays there for it.
        let held = OnceCell::new();
        let trim = || {
            held.get_or_init(|| self.warmer.hold(&self.pinned));
            self.pinned.trim_to(0)
        };
        let served = Served {
            pool: &self.pinned,
            native: None,
            trim: &trim,
        };
        let served = match self.with_rescue(|| self.pinned.allocate(size, None, raw), served) {
            Err(error) if self.pinned_fallback && error.is_out_of_memory() => {
                self.allocate_pageable(size, raw, error)
            }
            other => other,
        };
        if let Err(error) = &served {
            self.report(Place::Pinned, None, (0, size), None, What::Failure(error));
        }
        let address = served?;
        drop(held);
        self.warmer.after_allocation(&self.pinned);
        self.releaser.after_growth();
        self.report(Place::Pinned, None, (address, size), None, What::Allocate);
        self.note_site(Home::Pinned, address);
        Ok(address)
    }

    /// Tells who listens of a block, by address and bytes, or of a request.
    #[track_caller]
    fn report(
        &self,
        place: Place,
        mode: Option<DeviceAllocatorMode>,
        (address, size): (usize, usize),
        on: Option<&Handle>,
        what: What<'_>,
    ) {
        spans::may_begin();
        #[cfg(feature = "trace-events")]
        if let What::Failure(error) = what {
            foreign::log(|| tracing::info!(%place, bytes = size, %error, "a request was refused"));
        }
        if !self.observed.is_set() {
            return;
        }
        let stream = on.map(|handle| handle.core().id());
        // By itself: the caller of a closure would be somebody else.
        let site = if self.call_sites {
            Some(Location::caller())
        } else {
            None
        };
        self.observed.tell(&Told {
            place,
            mode,
            address,
            size,
            by: stream.map_or(By::Host, By::Stream),
            stream,
            site,
            what,
        });
    }

    /// A request for pinned memory that found none, served with pageable memory.
    #[cold]
    fn allocate_pageable(&self, size: usize, raw: bool, refused: Error) -> Result<usize> {
        let Error::OutOfMemory(refusal) = &refused else {
            return Err(refused);
        };
        if is_refused_by_limit(&refused) {
            return Err(refused);
        }
        // It stands for the configured size, if that could not be had.
        let initial = if refusal.initial {
            refusal.requested
        } else {
            0
        };
        let len = best_fit::checked(size.max(initial))?;
        tracing::warn!(%refused, "pinned memory is served with pageable memory");
        // Others may be faster than this request.
        for _ in 0..HASTY {
            self.pinned.grow_pageable(len)?;
            if let Ok(address) = self.pinned.allocate(size, None, raw) {
                return Ok(address);
            }
        }
        Err(refused)
    }

    /// Whether the address lies in page-locked memory of the manager's, or in memory that it has registered for its owner.
    pub(super) fn is_pinned(&self, address: usize) -> bool {
        self.pinned.is_page_locked(address) || self.adopted.is_host(address)
    }

    /// Gives idle pinned memory back, as far as more than `target` bytes are held; nobody reserves it again meanwhile.
    pub(super) fn trim_pinned_to(&self, target: usize) -> Result<usize> {
        let _held = self.warmer.hold(&self.pinned);
        self.pinned.trim_to(target)
    }

    /// Device memory of the own pool, if it needs no look at anything else: the pool serves it from one span at once, and
    /// nobody wants to hear of it.
    #[inline]
    pub fn hit(&self, ordinal: i32, size: usize, on: Option<&Handle>, raw: bool) -> Option<usize> {
        let usual = self.mode.load(Ordering::Acquire) == DeviceAllocatorMode::BestFitPool.index()
            && self.is_plain
            && self.is_usual()
            && on.is_none_or(|handle| !handle.core().has_keeper());
        if usual {
            self.known_state(ordinal)?.pool.hit(size, on, raw)
        } else {
            None
        }
    }

    /// Whether anybody but the ordering checker wants reports.
    #[cfg(all(test, feature = "sim", feature = "nvtx"))]
    pub(crate) fn listens(&self) -> bool {
        self.observed.is_set() && !cudart_sim::is_checking()
    }

    /// Whether CUDA is there and nobody wants reports.
    #[inline]
    fn is_usual(&self) -> bool {
        process::is_running() && !self.observed.is_set()
    }

    /// Device memory for a raw pointer or a guard, and where it lives.
    #[inline]
    #[track_caller]
    pub fn allocate_device(
        self: &Arc<Self>,
        ordinal: i32,
        size: usize,
        on: Option<&Handle>,
        raw: bool,
    ) -> Result<(usize, Home)> {
        match self.hit(ordinal, size, on, raw) {
            Some(address) => Ok((address, Home::Pool(ordinal))),
            None => self.allocate_device_at_length(ordinal, size, on, raw),
        }
    }

    /// As [`Inner::allocate_device`], for what [`Inner::hit`] has not served.
    #[cold]
    #[track_caller]
    pub(super) fn allocate_device_at_length(
        self: &Arc<Self>,
        ordinal: i32,
        size: usize,
        on: Option<&Handle>,
        raw: bool,
    ) -> Result<(usize, Home)> {
        if size == 0 {
            return Ok((0, Home::Pool(ordinal)));
        }
        self.gate()?;
        let state = self.state(ordinal)?;
        let family = Family::of(self.effective(state)?);
        let allocate = || match family {
            None => state.pool.allocate(size, on, raw),
            Some(family) => state.native.allocate(family, size, on, raw),
        };
        let served = Served {
            pool: &state.pool,
            native: Some((state, family)),
            trim: &|| state.trim_to(0),
        };
        let place = Place::Device(ordinal);
        let mode = Some(family.map_or(DeviceAllocatorMode::BestFitPool, Family::mode));
        let served = self.with_rescue(allocate, served);
        if let Err(error) = &served {
            self.report(place, mode, (0, size), on, What::Failure(error));
        }
        let address = served?;
        self.releaser.after_growth();
        self.report(place, mode, (address, size), on, What::Allocate);
        let home = if family.is_some() {
            Home::Native(ordinal)
        } else {
            Home::Pool(ordinal)
        };
        // What is allocated for a graph stays as long as the graph, whatever of it uses the block.
        if let Some(keeper) = on.and_then(|handle| handle.core().keeper()) {
            keeper.keep(self, home, BlockRange::all(address), true);
        }
        self.note_site(home, address);
        Ok((address, home))
    }

    /// Frees a block of an own pool, if nothing else has to be looked at.
    #[inline]
    fn free_plain(&self, address: usize, on: FreeOn<'_>, memory: Memory) -> bool {
        if !self.is_usual() {
            return false;
        }
        match memory {
            Memory::Device(Some(device)) => self
                .known_state(device)
                .is_some_and(|state| state.pool.free_plain(address, on)),
            // The pools of others do not know the address, and leave it alone.
            Memory::Device(None) => self
                .states()
                .any(|state| state.pool.free_plain(address, on)),
            Memory::Pinned => {
                let freed = self.pinned.free_plain(address, on);
                if freed {
                    self.warmer.after_free();
                }
                freed
            }
        }
    }

    /// Frees a block by pointer; null does nothing.
    #[inline]
    pub(super) fn free(&self, address: usize, on: FreeOn<'_>, memory: Memory) -> Result<()> {
        if self.free_plain(address, on, memory) {
            Ok(())
        } else {
            self.free_at_length(address, on, memory)
        }
    }

    #[cold]
    fn free_at_length(&self, address: usize, on: FreeOn<'_>, memory: Memory) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        process::gate()?;
        let on = match on {
            FreeOn::Stream(handle) if handle.core().is_per_thread() => {
                self.order_of_free(address, on)?
            }
            _ => on,
        };
        if self.observed.is_set() && self.report_free(address, on, memory) {
            return Ok(());
        }
        match memory {
            Memory::Pinned => {
                if self.pinned.free(address, on)?.is_some() {
                    self.warmer.after_free();
                    return Ok(());
                }
                if self.find_device(address, 0).ok().flatten().is_some() {
                    return Err(Error::unknown(
                        address,
                        "it is device memory: free_device frees it",
                    ));
                }
            }
            Memory::Device(of) => {
                for state in self
                    .states()
                    .filter(|state| of.is_none_or(|device| state.ordinal == device))
                {
                    if state.pool.free(address, on)?.is_some()
                        || state.native.free(address, on)?.is_some()
                    {
                        return Ok(());
                    }
                }
                if let Some(device) = of
                    && let Some(other) = self.states().find(|state| {
                        state.pool.contains(address) || state.native.contains(address)
                    })
                {
                    return Err(Error::WrongDevice {
                        reason: format!(
                            "the block at {address:#x} belongs to device {}, the stream to device {device}",
                            other.ordinal
                        ),
                    });
                }
                if self.pinned.contains(address) {
                    return Err(Error::unknown(
                        address,
                        "it is pinned memory: free_pinned frees it",
                    ));
                }
            }
        }
        Err(Error::unknown(
            address,
            "no live block of this manager starts there (freed already, or from elsewhere)",
        ))
    }

    /// In whose order a block is freed that may have to wait for a graph. Only its own thread can record on a thread's
    /// default stream: there the point of the free is recorded now.
    fn order_of_free<'a>(&self, address: usize, on: FreeOn<'a>) -> Result<FreeOn<'a>> {
        let FreeOn::Stream(handle) = on else {
            return Ok(on);
        };
        let home = |state: &DeviceState| {
            if state.pool.is_held(address) {
                Some(Home::Pool(state.ordinal))
            } else {
                let native = state.native.is_held(address);
                native.then_some(Home::Native(state.ordinal))
            }
        };
        if handle.core().is_per_thread()
            && let Some(home) = self.states().find_map(home)
        {
            let _steady = handle.core().steady()?;
            handle.refuse_capture(
                "a free on the thread's default stream of what a graph uses",
                "free it after the capture has ended",
            )?;
            let (fence, _) = Fence::after_work(handle);
            self.add_use(home, BlockRange::all(address), &fence, true);
            return Ok(FreeOn::Recorded);
        }
        Ok(on)
    }

    /// Frees the block of a guard: after the work of the stream it was allocated on and all recorded uses. A failure is
    /// counted and kept for `take_error`.
    #[inline]
    pub fn free_guard(&self, address: usize, home: Home) {
        let plain = match home {
            Home::Pinned => self.free_plain(address, FreeOn::Recorded, Memory::Pinned),
            Home::Pool(device) => {
                self.free_plain(address, FreeOn::Allocating, Memory::Device(Some(device)))
            }
            Home::Native(_) | Home::Adopted => false,
        };
        if !plain {
            self.free_guard_at_length(address, home);
        }
    }

    #[cold]
    fn free_guard_at_length(&self, address: usize, home: Home) {
        if address == 0 || process::is_over() {
            return;
        }
        if home == Home::Adopted {
            self.adopted.leave(address);
            return;
        }
        if self.observed.is_set() {
            let memory = if home == Home::Pinned {
                Memory::Pinned
            } else {
                Memory::Device(None)
            };
            if self.report_free(address, FreeOn::Allocating, memory) {
                return;
            }
        }
        let result = match home {
            Home::Pinned => {
                let freed = self.pinned.free(address, FreeOn::Recorded);
                self.warmer.after_free();
                freed
            }
            Home::Pool(device) => self
                .state(device)
                .and_then(|state| state.pool.free(address, FreeOn::Allocating)),
            Home::Native(device) => self
                .state(device)
                .and_then(|state| state.native.free(address, FreeOn::Allocating)),
            Home::Adopted => Ok(None),
        };
        if let Err(error) = result {
            self.note_drop_failure("a guard", error);
        }
    }

    /// Counts and keeps what went wrong where nobody can be told. A device that turned out to be reset has taken the memory
    /// along, which is no failure of the drop.
    pub(super) fn note_drop_failure(&self, who: &str, error: Error) {
        if process::is_over() {
            return;
        }
        self.drop_failures.fetch_add(1, Ordering::Relaxed);
        foreign::log(
            || tracing::warn!(%error, "{who} could not free its memory: the block stays out of use"),
        );
        *lock(&self.last_drop_failure) = Some(error);
    }

    /// A captured graph uses a block from now on; whether there is such a block.
    pub fn hold(&self, home: Home, block: BlockRange) -> bool {
        match home {
            Home::Pinned => self.pinned.hold(block),
            Home::Pool(device) => self.state(device).is_ok_and(|state| state.pool.hold(block)),
            Home::Native(device) => self
                .state(device)
                .is_ok_and(|state| state.native.hold(block)),
            Home::Adopted => false,
        }
    }

    /// A graph does not use the block any more: frees it, if it was freed meanwhile and no other graph uses it.
    pub fn unhold(&self, home: Home, block: BlockRange) {
        if process::is_over() {
            return;
        }
        let freed = match home {
            Home::Pinned => self.pinned.unhold(block),
            Home::Pool(device) => self
                .state(device)
                .ok()
                .and_then(|state| state.pool.unhold(block)),
            Home::Native(device) => self
                .state(device)
                .ok()
                .and_then(|state| state.native.unhold(block)),
            Home::Adopted => None,
        };
        let Some(freed) = freed else { return };
        let memory = match home {
            Home::Pinned => Memory::Pinned,
            Home::Pool(device) | Home::Native(device) => Memory::Device(Some(device)),
            Home::Adopted => return,
        };
        if let Err(error) = self.free(block.start, freed.on(), memory) {
            self.note_drop_failure("a graph that is gone", error);
        }
    }

    /// Tells the observer, before anybody else can get the memory. Whether nothing is left to do, since a captured graph
    /// keeps the block.
    pub(super) fn report_free(&self, address: usize, on: FreeOn<'_>, memory: Memory) -> bool {
        let announced = match memory {
            Memory::Pinned => self
                .pinned
                .announce_free(address, on)
                .map(|announced| (Place::Pinned, announced)),
            Memory::Device(of) => self
                .states()
                .filter(|state| of.is_none_or(|device| state.ordinal == device))
                .find_map(|state| {
                    let announced = state
                        .pool
                        .announce_free(address, on)
                        .or_else(|| state.native.announce_free(address, on))?;
                    Some((Place::Device(state.ordinal), announced))
                }),
        };
        match announced {
            Some((place, Announced::Now(leaving))) => {
                self.observed.tell(&Told {
                    place,
                    mode: leaving.mode,
                    address,
                    size: leaving.size,
                    by: leaving.by,
                    stream: leaving.stream,
                    site: None,
                    what: What::Free,
                });
                false
            }
            Some((_, Announced::Left)) => true,
            None => false,
        }
    }

    /// The live device block that contains the range.
    pub(super) fn find_device(
        &self,
        address: usize,
        size: usize,
    ) -> Result<Option<(Home, BlockRange)>> {
        for state in self.states() {
            if let Some(block) = state.pool.locate(address, size)? {
                return Ok(Some((Home::Pool(state.ordinal), block)));
            }
            if let Some(block) = state.native.locate(address, size)? {
                return Ok(Some((Home::Native(state.ordinal), block)));
            }
        }
        Ok(None)
    }

    /// The live block that contains the range, if it is memory of this manager at all.
    pub(super) fn find(&self, address: usize, size: usize) -> Result<Option<(Home, BlockRange)>> {
        match self.pinned.locate(address, size)? {
            Some(block) => Ok(Some((Home::Pinned, block))),
            None => match self.find_device(address, size)? {
                None => Ok(self
                    .adopted
                    .locate(address, size)?
                    .map(|block| (Home::Adopted, block))),
                found => Ok(found),
            },
        }
    }

    /// As [`Inner::find`], for an address that probably belongs to this device: its tables are searched first.
    fn find_near(
        &self,
        address: usize,
        size: usize,
        device: Option<i32>,
    ) -> Result<Option<(Home, BlockRange)>> {
        if let Some(state) = device.and_then(|device| self.known_state(device))
            && let Some(block) = state.pool.locate(address, size)?
        {
            return Ok(Some((Home::Pool(state.ordinal), block)));
        }
        self.find(address, size)
    }

    /// Whether the address lies in memory of this manager, live or free.
    pub fn owns(&self, address: usize) -> bool {
        self.pinned.contains(address)
            || self
                .states()
                .any(|state| state.pool.contains(address) || state.native.contains(address))
    }

    /// Records a use of a block.
    pub fn add_use(&self, home: Home, block: BlockRange, fence: &Arc<Fence>, writes: bool) {
        if planted::is_made(Mistake::UsesAreForgotten) {
            return;
        }
        match home {
            Home::Pinned => self.pinned.add_use(block, fence, writes),
            Home::Pool(device) => {
                if let Ok(state) = self.state(device) {
                    state.pool.add_use(block, fence, writes);
                }
            }
            Home::Native(device) => {
                if let Ok(state) = self.state(device) {
                    state.native.add_use(block, fence, writes);
                }
            }
            Home::Adopted => self.adopted.add_use(block, fence, writes),
        }
    }

    /// Makes a stream wait for everything that a safe operation on a block must follow.
    pub fn order_before_use(
        &self,
        home: Home,
        block: BlockRange,
        handle: &Handle,
        writes: bool,
    ) -> Result<()> {
        if planted::is_made(Mistake::GuardsDoNotWait) {
            return Ok(());
        }
        let wait = |fences: &[Arc<Fence>]| {
            fences
                .iter()
                .try_for_each(|fence| fence.wait_on_stream(handle))
        };
        match home {
            Home::Pinned => wait(&self.pinned.before_use(block, handle, writes)),
            Home::Pool(device) => {
                let pool = &self.state(device)?.pool;
                let fences = pool.before_use(block, handle, writes);
                if fences.is_empty() {
                    return Ok(());
                }
                let waited = wait(&fences);
                pool.follows(block, handle, &fences, waited.is_ok());
                waited
            }
            Home::Native(device) => {
                let native = &self.state(device)?.native;
                wait(&native.before_use(block, handle, writes))?;
                native.follows(block, handle);
                Ok(())
            }
            Home::Adopted => {
                wait(&self.adopted.before_use(block, handle, writes))?;
                self.adopted.follows(block, handle);
                Ok(())
            }
        }
    }

    /// Waits on the host for the recorded uses of a block: all, or those that write.
    pub fn settle(&self, home: Home, block: BlockRange, only_writes: bool) -> Result<()> {
        process::gate()?;
        if planted::is_made(Mistake::ViewsDoNotWait) {
            return Ok(());
        }
        let fences = match home {
            Home::Pinned => self.pinned.uses(block, only_writes),
            Home::Pool(device) => self.state(device)?.pool.uses(block, only_writes),
            Home::Native(device) => self.state(device)?.native.uses(block, only_writes),
            Home::Adopted => self.adopted.uses(block, only_writes),
        };
        fences.iter().try_for_each(|fence| {
            context::check(fence.core().device())?;
            fence.wait_on_host()
        })
    }

    /// Submits work that touches ranges: checks those that belong to the manager, submits, and marks their blocks, also when
    /// the submission failed.
    ///
    /// Besides the work this makes two CUDA calls: the question whether the stream is being captured, which nobody else
    /// knows, and the record of the event behind the work. (On a machine with several devices also that for the current
    /// device.) Nothing but the fence is allocated.
    pub(super) fn submit<const N: usize>(
        self: &Arc<Self>,
        handle: &Handle,
        ranges: [Touched; N],
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let bytes = ranges.first().map_or(0, |range| range.size);
        let _span = spans::copy(Place::Device(handle.device()), bytes);
        process::gate()?;
        let mut blocks = [None; N];
        for (range, block) in ranges.iter().zip(&mut blocks) {
            if range.address == 0 {
                return Err(Error::unknown(0, "null"));
            }
            let device = range.on_device.then_some(handle.device());
            *block = self
                .find_near(range.address, range.size, device)?
                .map(|(home, block)| (home, block, range.writes));
        }
        let blocks = || blocks.iter().flatten().copied();
        // What is captured has not run when it is over, and runs again and again: the graph keeps its blocks.
        let homes = blocks().map(|(home, ..)| home);
        let _steady = handle.core().steady()?;
        if let Some(keeper) = capture::keeper(handle)? {
            for (home, block, writes) in blocks() {
                keeper.keep(self, home, block, writes);
            }
            return self.on_device_of(handle, homes, work);
        }
        let submitted = self.on_device_of(handle, homes, work);
        if blocks().next().is_none() {
            return submitted;
        }
        let (fence, recorded) = Fence::after_work(handle);
        for (home, block, writes) in blocks() {
            self.add_use(home, block, &fence, writes);
        }
        submitted.and(recorded)
    }

    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`].
    pub unsafe fn copy(
        self: &Arc<Self>,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        kind: CopyKind,
        handle: &Handle,
    ) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
        self.submit(
            handle,
            Touched::by_copy(kind, (dst, size), (src, size)),
            || {
                // SAFETY: as this function demands; the handle is alive.
                unsafe { cuda::memcpy_async(dst, src, size, kind, handle.raw())? };
                self.traffic.add_copy(kind, size);
                Ok(())
            },
        )
    }

    /// # Safety
    /// As [`MemoryManager::memset`].
    pub unsafe fn memset(
        self: &Arc<Self>,
        address: usize,
        value: u8,
        size: usize,
        handle: &Handle,
    ) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        self.submit(handle, [Touched::by_fill(address, size)], || {
            // SAFETY: as this function demands; the handle is alive.
            unsafe { cuda::memset_async(address, value, size, handle.raw())? };
            self.traffic.add_fill(size);
            Ok(())
        })
    }

    /// Runs `f`, which submits work that touches such memory, with the device current that CUDA wants then: copies of
    /// stream-ordered memory want the memory's, fills the stream's. With one device it is in any case.
    pub fn on_device_of<T>(
        &self,
        handle: &Handle,
        mut homes: impl Iterator<Item = Home>,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.devices.get().is_some_and(|devices| devices.len() == 1) {
            return f();
        }
        let stream_ordered = homes.find_map(|home| match home {
            Home::Native(device) => Some(device),
            _ => None,
        });
        // The handle of a default stream names no device.
        let device = match handle.core().kind() {
            StreamKind::Legacy | StreamKind::PerThread => handle.device(),
            _ => stream_ordered.unwrap_or(handle.device()),
        };
        on_device(device, f)
    }
}

#[cfg(all(test, feature = "sim", not(shuttle)))]
mod tests {
    use crate::{Config, MemoryManager, Stream, cuda_calls_on_this_thread as calls};

    #[test]
    fn a_copy_makes_two_calls_beside_the_copy_itself() {
        let (manager, stream) = (
            MemoryManager::new(Config::default()).unwrap(),
            Stream::new().unwrap(),
        );
        let device = manager.device::<u8>(4096, &stream).unwrap();
        let mut host = manager.pinned::<u8>(4096).unwrap();
        let (to, from) = (device.as_ptr(), host.as_ptr());
        for round in 0..8 {
            let before = calls();
            // SAFETY: both blocks have that many bytes.
            unsafe { manager.copy_to_device_async(to.cast(), from.cast(), 4096, &stream) }.unwrap();
            drop(stream.copy_to_device(&host, &device).unwrap());
            drop(stream.copy_to_host(&device, &mut host).unwrap());
            // The first may have to make events.
            assert!(round < 4 || calls() - before == 9, "{}", calls() - before);
        }
        stream.synchronize().unwrap();
    }
}
