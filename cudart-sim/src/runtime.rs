//! The whole simulated machine behind one lock, and the states in which it refuses to work.

use crate::capture::Captures;
use crate::check;
use crate::config::{Config, MAX_DEVICES, Schedule};
use crate::device::Device;
use crate::engine::{Engine, Kind, Point};
use crate::error::{Answer, INVALID_DEVICE, INVALID_HANDLE};
use crate::event::Event;
use crate::graph::Graphs;
use crate::handles::Handles;
use crate::memory::Memory;
use crate::pool::{Location, Pool};
use crate::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::sys::cudaError;
use crate::vmm::Vmm;
use crate::{limit, mirror, thread, worker};

static RUNTIME: Mutex<Runtime> = Mutex::new(Runtime::new());
static STARTED: AtomicBool = AtomicBool::new(false);
static NO_DRIVER: AtomicBool = AtomicBool::new(false);
static DRIVER_VERSION: AtomicI32 = AtomicI32::new(0);
static RUNTIME_VERSION: AtomicI32 = AtomicI32::new(0);
static UNLOADED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);
static DEVICES: AtomicUsize = AtomicUsize::new(0);
static EPOCH: AtomicU64 = AtomicU64::new(1);
/// The id of each device's context: none yet, or how many there were before.
static CONTEXTS: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(NO_CONTEXT) }; MAX_DEVICES];
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(1);
const NO_CONTEXT: u64 = 0;
const DESTROYED: u64 = u64::MAX;
static BROKEN: [AtomicU32; MAX_DEVICES] = [const { AtomicU32::new(0) }; MAX_DEVICES];

/// The lock, held.
pub(crate) type Guard = MutexGuard<'static, Runtime>;

/// Everything that the simulated machine knows.
pub(crate) struct Runtime {
    pub(crate) config: Option<Config>,
    pub(crate) devices: Vec<Device>,
    pub(crate) engine: Engine,
    /// Handle → (slot, uid) of a stream.
    pub(crate) streams: Handles<(u32, u64)>,
    pub(crate) events: Handles<Event>,
    /// Handle → place in `pools`.
    pub(crate) pool_handles: Handles<usize>,
    pub(crate) pools: Vec<Option<Pool>>,
    pub(crate) memory: Memory,
    pub(crate) vmm: Vmm,
    pub(crate) captures: Captures,
    pub(crate) graphs: Graphs,
    fork_handler: bool,
}

/// Takes the lock.
pub(crate) fn lock() -> Guard {
    RUNTIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether this process is a forked child of one that has used the runtime.
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Whether the runtime has been unloaded, as it is while a process ends.
pub(crate) fn unloaded() -> bool {
    UNLOADED.load(Ordering::Relaxed)
}

pub(crate) fn set_unloaded(unloaded: bool) {
    UNLOADED.store(unloaded, Ordering::Relaxed);
}

/// Whether there is no driver, or one that is too old for the runtime.
pub(crate) fn no_driver() -> bool {
    NO_DRIVER.load(Ordering::Relaxed)
}

/// The version of the driver; 0: there is none.
pub(crate) fn driver_version() -> i32 {
    DRIVER_VERSION.load(Ordering::Relaxed)
}

/// The version of the runtime.
pub(crate) fn runtime_version() -> i32 {
    RUNTIME_VERSION.load(Ordering::Relaxed)
}

/// How many devices there are.
pub(crate) fn device_count() -> usize {
    DEVICES.load(Ordering::Relaxed)
}

/// Counts the resets, so that what threads remember from before is forgotten.
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// The error that a device's context is broken with, if it is.
pub(crate) fn broken(device: u32) -> Option<cudaError> {
    let code = BROKEN.get(device as usize)?.load(Ordering::Relaxed);
    (code != 0).then_some(cudaError(code))
}

pub(crate) fn set_broken(device: u32, code: u32) {
    if let Some(place) = BROKEN.get(device as usize) {
        place.store(code, Ordering::Relaxed);
    }
}

/// The id of a device's context. 201 where there is none yet, 709 where a reset has taken it.
pub(crate) fn context(device: u32) -> Answer<u64> {
    match CONTEXTS
        .get(device as usize)
        .map(|c| c.load(Ordering::Relaxed))
    {
        None | Some(NO_CONTEXT) => Err(cudaError::cudaErrorDeviceUninitialized),
        Some(DESTROYED) => Err(cudaError::cudaErrorContextIsDestroyed),
        Some(id) => Ok(id),
    }
}

/// A call that needs a context makes one.
pub(crate) fn make_context(device: u32) {
    if let Some(place) = CONTEXTS.get(device as usize)
        && matches!(place.load(Ordering::Relaxed), NO_CONTEXT | DESTROYED)
    {
        place.store(
            NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed),
            Ordering::Relaxed,
        );
    }
}

/// A reset takes the context.
pub(crate) fn destroy_context(device: u32) {
    if let Some(place) = CONTEXTS.get(device as usize) {
        place.store(DESTROYED, Ordering::Relaxed);
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether the machine has been made.
pub(crate) fn started() -> bool {
    STARTED.load(Ordering::Acquire)
}

/// Makes the machine at the first call.
pub(crate) fn start() {
    if !STARTED.load(Ordering::Acquire) {
        lock().start();
    }
}

impl Runtime {
    const fn new() -> Runtime {
        Runtime {
            config: None,
            devices: Vec::new(),
            engine: Engine::new(),
            streams: Handles::new(),
            events: Handles::new(),
            pool_handles: Handles::new(),
            pools: Vec::new(),
            memory: Memory::new(),
            vmm: Vmm::new(),
            captures: Captures::new(),
            graphs: Graphs::new(),
            fork_handler: false,
        }
    }

    fn start(&mut self) {
        if STARTED.load(Ordering::Acquire) {
            return;
        }
        let config = self.config.get_or_insert_with(Config::from_env).clone();
        if !self.fork_handler {
            // SAFETY: the handler only stores to an atomic.
            self.fork_handler = unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0;
        }
        let count = config.devices.len().min(MAX_DEVICES);
        self.engine.restart(count);
        self.engine.schedule = Schedule::Eager;
        self.engine.patience = config.patience;
        self.engine.random_delay = config.random_delay;
        self.engine.depth = config.queue_depth.max(1);
        self.engine.time = config.time.clone();
        self.engine.set_schedule(config.schedule);
        self.devices = config
            .devices
            .iter()
            .take(count)
            .cloned()
            .map(|device| Device::new(device, config.fresh))
            .collect();
        for ordinal in 0..count {
            let place = self.pools.len();
            self.pools
                .push(Some(Pool::new(Location::Device(ordinal as u32), 0)));
            if let Ok(handle) = self.pool_handles.insert(place)
                && let Some(device) = self.devices.get_mut(ordinal)
            {
                device.default_pool = handle;
                device.current_pool = handle;
            }
            set_broken(ordinal as u32, 0);
        }
        let driver = if config.driver {
            config.driver_version
        } else {
            0
        };
        // Versions that differ in the minor number alone get along.
        let too_old = driver / 1000 < config.runtime_version / 1000;
        NO_DRIVER.store(!config.driver || too_old, Ordering::Relaxed);
        DRIVER_VERSION.store(driver, Ordering::Relaxed);
        RUNTIME_VERSION.store(config.runtime_version, Ordering::Relaxed);
        DEVICES.store(count, Ordering::Relaxed);
        STARTED.store(true, Ordering::Release);
    }

    /// Forgets everything but the lock; the next call makes a new machine. Nothing may be running.
    pub(crate) fn stop(&mut self) {
        STARTED.store(false, Ordering::Release);
        EPOCH.fetch_add(1, Ordering::Relaxed);
        for pool in self.pools.iter_mut().flatten() {
            pool.dissolve(&mut self.devices);
        }
        for (start, region) in &self.memory.pinned {
            if !region.registered {
                mirror::unmap_host(*start as usize, region.len as usize);
            }
        }
        self.memory = Memory::new();
        self.forget_physical(None);
        self.captures.clear();
        self.graphs.clear();
        self.pools.clear();
        self.pool_handles.clear();
        self.streams.clear();
        self.events.clear();
        self.devices.clear();
        self.config = None;
        for place in &BROKEN {
            place.store(0, Ordering::Relaxed);
        }
        UNLOADED.store(false, Ordering::Relaxed);
        limit::lift_host();
        check::restart();
    }

    /// The device of that ordinal.
    pub(crate) fn device(&mut self, ordinal: i32) -> Answer<&mut Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|d| self.devices.get_mut(d))
            .ok_or(INVALID_DEVICE)
    }

    /// The slot of the stream that a handle names, for a call of this thread. A dead handle is reported.
    pub(crate) fn stream(&mut self, handle: usize, call: &str) -> Answer<u32> {
        match handle {
            0 | 1 => Ok(self.engine.legacy(thread::device())),
            2 => Ok(self.per_thread_stream()),
            _ => match self.streams.get(handle) {
                Some((slot, _)) => Ok(*slot),
                // Measured, as in the other direction below.
                None if self.events.get(handle).is_some() => {
                    Err(cudaError::cudaErrorContextIsDestroyed)
                }
                None => {
                    eprintln!(
                        "cudart-sim: {call} was given the stream {handle:#x}, which was destroyed or never existed; \
                         the real runtime crashes on that"
                    );
                    Err(INVALID_HANDLE)
                }
            },
        }
    }

    /// The event that a handle names. A dead handle is reported.
    pub(crate) fn event(&mut self, handle: usize, call: &str) -> Answer<&mut Event> {
        if handle != 0 && self.events.get(handle).is_none() {
            if self.streams.get(handle).is_some() {
                return Err(cudaError::cudaErrorContextIsDestroyed);
            }
            eprintln!(
                "cudart-sim: {call} was given the event {handle:#x}, which was destroyed or never existed; \
                 the real runtime may crash on that"
            );
        }
        self.events.get_mut(handle).ok_or(INVALID_HANDLE)
    }

    /// What a synchronisation with a stream waits for: its end; for the legacy stream, the blocking streams' ends too.
    pub(crate) fn stream_ends(&self, slot: u32) -> Vec<Point> {
        self.engine.ends_before(slot)
    }

    fn per_thread_stream(&mut self) -> u32 {
        let device = thread::device();
        if let Some((slot, _)) = thread::default_stream(device) {
            return slot;
        }
        let slot = self.engine.create(device, Kind::PerThread, 0);
        let uid = self.engine.last(slot).uid;
        thread::set_default_stream(device, slot, uid);
        slot
    }

    /// A stream's handle is gone; the stream goes when its work is done.
    pub(crate) fn retire_stream(&mut self, slot: u32, uid: u64) {
        self.capture_forget(slot, uid);
        self.engine.destroy(slot, uid);
    }

    /// The host knows now that these points are done: pools give back what exceeds their thresholds.
    pub(crate) fn observe(&mut self, points: &[Point]) {
        for point in points {
            self.engine.observe(*point);
        }
        let Runtime {
            pools,
            engine,
            devices,
            ..
        } = self;
        for pool in pools.iter_mut().flatten() {
            if pool.reserved > pool.threshold {
                let keep = pool.threshold;
                pool.trim(engine, devices, keep);
            }
        }
        for place in 0..self.pools.len() {
            self.bury(place);
        }
        self.bury_graphs();
    }

    /// The pool that a handle names.
    pub(crate) fn pool(&mut self, handle: usize) -> Answer<&mut Pool> {
        let place = *self
            .pool_handles
            .get(handle)
            .ok_or(crate::error::INVALID_VALUE)?;
        self.pools
            .get_mut(place)
            .and_then(|p| p.as_mut())
            .ok_or(crate::error::INVALID_VALUE)
    }

    pub(crate) fn bus(&self, device: u32, direction: usize) -> Option<u64> {
        self.devices
            .get(device as usize)?
            .bus
            .get(direction)
            .copied()
    }

    pub(crate) fn set_bus(&mut self, device: u32, direction: usize, until: u64) {
        if let Some(device) = self.devices.get_mut(device as usize)
            && let Some(bus) = device.bus.get_mut(direction)
        {
            *bus = until;
        }
    }

    /// The ends of all busy streams, of one device or of all.
    pub(crate) fn ends(&self, device: Option<u32>) -> Vec<Point> {
        match device {
            Some(device) => self.engine.ends(device),
            None => (0..self.devices.len() as u32)
                .flat_map(|d| self.engine.ends(d))
                .collect(),
        }
    }
}

/// Waits for everything that is submitted, on one device or on all.
pub(crate) fn synchronize(mut rt: Guard, device: Option<u32>) -> Guard {
    let ends = rt.ends(device);
    let seen = check::device(device);
    rt = worker::wait(rt, &ends);
    check::host_behind(&seen);
    rt.engine.observe_idle(device);
    rt.observe(&[]);
    rt
}
