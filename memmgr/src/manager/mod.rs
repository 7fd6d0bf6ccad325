//! [`MemoryManager`]: the reference API, routed to pools and async modes of each device.

pub(crate) mod adopted;
mod allocate;
mod clients;
mod copies;
mod figures;
mod free;
mod hook;
mod inner;
mod labels;
mod peaks;
mod release;
mod rescue;
mod settings;
mod snapshot;
mod submit;
mod traffic;
mod trim;
mod uses;
mod warm_up;

pub(crate) use copies::rows_span;
pub(crate) use inner::{Home, Inner};
pub use labels::LiveBlock;
pub use peaks::PeakScope;
pub use trim::ShutdownReport;

use crate::{
    checker,
    config::{Config, PinnedSource},
    context, cuda,
    error::{Error, Result},
    events,
    pool::{
        FreeOn, Pool, PoolConfig, best_fit,
        observer::{Observed, Observer},
        segment::Source,
    },
    process,
    stream::{AsStream, handle_of},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64},
        lock,
    },
};
use free::Memory;
use lazy_static::lazy_static;
use release::Releaser;
use std::{ffi::c_void, fmt, sync::Arc};
use warm_up::Warmer;

lazy_static! {
    static ref INSTANCE: MemoryManager = match Config::from_env() {
        Ok(config) => MemoryManager::with_config(config, None),
        // `instance` cannot fail: whoever allocates is told.
        Err(error) => MemoryManager::with_config(Config::default(), Some(error)),
    };
}

/// The memory manager (reference API: `MemoryManager`). All methods may be called by any number of threads at once.
///
/// Size 0 gives a null pointer, in every mode, without a CUDA call; freeing null does nothing. Every method leaves the
/// calling thread's current device and last CUDA error as they were.
pub struct MemoryManager {
    pub(crate) inner: Arc<Inner>,
}

impl MemoryManager {
    /// The process's manager, made by whoever asks first (reference: `getInstance`). Makes no CUDA call and reserves
    /// nothing. Settings come from `MEMMGR_*` variables, see [`Config::from_env`]; if those cannot be used, every
    /// allocation answers [`Error::InvalidSetting`].
    #[doc(alias = "getInstance")]
    pub fn instance() -> &'static Self {
        &INSTANCE
    }

    /// A manager of its own, with pools of its own. Makes no CUDA call.
    ///
    /// When it is dropped, its guards and its raw blocks stay valid. Its segments go back to CUDA when the last guard is
    /// gone, at the next call of any manager that may wait (`trim`, `shutdown`, a request that finds no memory), never in
    /// a drop. Segments with live raw blocks stay for good: nobody is left who could free them.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if an initial size exceeds its limit.
    pub fn new(config: Config) -> Result<Self> {
        config.validate()?;
        Ok(Self::with_config(config, None))
    }

    fn with_config(config: Config, misconfigured: Option<Error>) -> Self {
        let pinned = PoolConfig {
            initial: config.pinned_pool_size,
            limit: config.pinned_pool_limit,
            limit_share: None,
            growth: config.pinned_growth,
            reuse: config.reuse,
        };
        let source = match config.pinned_source {
            PinnedSource::HostRegister => Source::Registered,
            PinnedSource::HostAlloc => Source::Pinned,
        };
        let observed = Observed::new(&config);
        let made = Self {
            inner: Arc::new_cyclic(|inner| Inner {
                pinned: Arc::new(Pool::new(source, pinned, observed.clone())),
                warmer: Warmer::new(config.pinned_warm_up),
                releaser: Releaser::new(&config, inner.clone()),
                devices: OnceLock::new(),
                mode: AtomicU8::new(config.mode.index()),
                pinned_fallback: config.pinned_fallback,
                call_sites: config.call_sites,
                is_plain: misconfigured.is_none() && !config.call_sites,
                config: Mutex::new(config),
                misconfigured,
                adopted: Default::default(),
                hook: Default::default(),
                observed,
                drop_failures: AtomicU64::new(0),
                last_drop_failure: Mutex::new(None),
                traffic: Default::default(),
                fallback_reported: AtomicBool::new(false),
            }),
        };
        made.inner.enter();
        made
    }

    // Pinned memory

    /// Page-locked host memory of at least `size` bytes, 256-byte aligned, portable, not write-combined (reference:
    /// `allocatePinned`; [`Config::pinned_source`] says where segments come from).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::LimitExceeded`], [`Error::InvalidSize`] (near `usize::MAX`),
    /// [`Error::Unavailable`].
    #[doc(alias = "allocatePinned")]
    #[track_caller]
    pub fn allocate_pinned(&self, size: usize) -> Result<*mut c_void> {
        let _called = checker::called_here();
        self.inner.allocate_pinned(size, true).map(cuda::pointer)
    }

    /// Gives pinned memory back (reference: `freePinned`). It is not handed out again before every copy made through
    /// the manager that touches it has finished.
    ///
    /// # Errors
    /// [`Error::DoubleFree`], [`Error::UnknownPointer`] (also for the block of a guard); nothing has changed then.
    ///
    /// # Safety
    /// Nobody uses the memory afterwards; apart from copies through the manager and recorded uses, no device work
    /// touches it.
    #[doc(alias = "freePinned")]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn free_pinned(&self, ptr: *mut c_void) -> Result<()> {
        let _called = checker::called_here();
        self.inner
            .free(ptr.expose_provenance(), FreeOn::Recorded, Memory::Pinned)
    }

    /// Whether `ptr` points into page-locked memory: of the manager's pinned pool, or adopted from the host. Otherwise it is
    /// memory of others, of a device, or pageable memory that [`Config::pinned_fallback`] has put in the place of pinned
    /// memory. Makes no CUDA call.
    pub fn is_pinned(&self, ptr: *const c_void) -> bool {
        !process::is_forked() && self.inner.is_pinned(ptr.addr())
    }

    /// Grows the pinned pool, on the calling thread, until at least `bytes` of it are idle; how many bytes were reserved for
    /// that, 0 if nothing had to be. What is missing comes as one segment. It counts as the pool's first allocation, which
    /// reserves [`Config::pinned_pool_size`].
    ///
    /// [`Config::pinned_warm_up`] does this in the background.
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_pinned`]; what has been reserved by then stays.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn warm_up_pinned(&self, bytes: usize) -> Result<usize> {
        let _called = checker::called_here();
        if bytes == 0 {
            return Ok(0);
        }
        self.inner.gate()?;
        best_fit::checked(bytes)?;
        self.inner.pinned.reserve_ahead(bytes)
    }

    // Device memory

    /// Device memory of at least `size` bytes on the current device, 256-byte aligned, usable at once on any stream
    /// (reference: `allocateDevice(size)`).
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_pinned`].
    #[doc(alias = "allocateDevice")]
    #[track_caller]
    pub fn allocate_device(&self, size: usize) -> Result<*mut c_void> {
        let _called = checker::called_here();
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        process::gate()?;
        let device = context::current_device()?;
        let (address, _) = self.inner.allocate_device(device, size, None, true)?;
        Ok(cuda::pointer(address))
    }

    /// As [`MemoryManager::allocate_device`], on the device with this ordinal.
    ///
    /// # Errors
    /// Also [`Error::WrongDevice`] for an ordinal that does not exist, unless `size` is 0, for which no device is asked.
    #[track_caller]
    pub fn allocate_device_at(&self, ordinal: i32, size: usize) -> Result<*mut c_void> {
        let _called = checker::called_here();
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        let (address, _) = self.inner.allocate_device(ordinal, size, None, true)?;
        Ok(cuda::pointer(address))
    }

    /// Gives device memory back, in any mode (reference: `freeDevice(ptr)`). Unlike `cudaFree` it waits for nothing.
    ///
    /// # Errors
    /// [`Error::DoubleFree`], [`Error::UnknownPointer`] (also for the block of a guard); nothing has changed then. In the async modes
    /// also what the runtime says.
    ///
    /// # Safety
    /// Nobody uses the memory afterwards; apart from copies through the manager and recorded uses, no device work
    /// touches it.
    #[doc(alias = "freeDevice")]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn free_device(&self, ptr: *mut c_void) -> Result<()> {
        let _called = checker::called_here();
        self.inner.free(
            ptr.expose_provenance(),
            FreeOn::Recorded,
            Memory::Device(None),
        )
    }

    /// Device memory of at least `size` bytes on the stream's device, usable by work submitted to `stream` from now on,
    /// in every mode (reference: `allocateDevice(size, stream)`).
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_pinned`].
    #[track_caller]
    pub fn allocate_device_on(&self, size: usize, stream: &impl AsStream) -> Result<*mut c_void> {
        let _called = checker::called_here();
        let handle = handle_of(stream);
        let device = handle.device();
        if let Some(address) = self.inner.hit(device, size, Some(handle), true) {
            return Ok(cuda::pointer(address));
        }
        let (address, _) =
            self.inner
                .allocate_device_at_length(device, size, Some(handle), true)?;
        Ok(cuda::pointer(address))
    }

    /// Gives device memory back in stream order: work that is in `stream` already may still use it; whoever gets the
    /// memory next is ordered behind that (reference: `freeDevice(ptr, stream)`).
    ///
    /// # Errors
    /// As [`MemoryManager::free_device`], and [`Error::WrongDevice`] if block and stream belong to different devices.
    ///
    /// # Safety
    /// Nobody uses the memory afterwards; device work that touches it is in `stream` (or ordered before what is), or is
    /// a copy through the manager or a recorded use.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn free_device_on(&self, ptr: *mut c_void, stream: &impl AsStream) -> Result<()> {
        let _called = checker::called_here();
        let handle = handle_of(stream);
        self.inner.free(
            ptr.expose_provenance(),
            FreeOn::Stream(handle),
            Memory::Device(Some(handle.device())),
        )
    }

    /// Has `observer` told of every block and segment from now on; once in a manager's life.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is one already.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) -> Result<()> {
        self.inner.observed.set(observer)
    }

    /// The last events, from the oldest on, as many as [`Config::event_ring`] keeps; none without that.
    pub fn events(&self) -> Vec<events::Event> {
        if process::is_forked() {
            return Vec::new();
        }
        self.inner.observed.sinks().events()
    }

    /// Writes out what the log ([`Config::log_file`]) has buffered. It is written by itself within a second, by
    /// [`MemoryManager::shutdown`], when the manager is dropped and when the process exits.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the log could not be written; it has ended then, and everything else goes on.
    pub fn flush_log(&self) -> Result<()> {
        process::gate()?;
        self.inner.observed.sinks().flush()
    }

    /// The last failure of a drop, if there was one since the last call; a drop has nobody to report to.
    pub fn take_error(&self) -> Option<Error> {
        if process::is_forked() {
            return None;
        }
        lock(&self.inner.last_drop_failure).take()
    }

    /// Walks all bookkeeping and verifies it; for tests and debugging. Takes time in proportion to the number of blocks.
    ///
    /// # Errors
    /// What contradicts what.
    pub fn check(&self) -> Result<(), String> {
        process::gate().map_err(|error| error.to_string())?;
        self.inner
            .pinned
            .check()
            .map_err(|error| format!("pinned pool: {error}"))?;
        self.inner.states().try_for_each(|state| {
            state
                .pool
                .check()
                .map_err(|error| format!("device {}: {error}", state.ordinal))
        })
    }
}

impl fmt::Debug for MemoryManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        f.debug_struct("MemoryManager")
            .field("backend", &crate::backend())
            .field("mode", &self.inner.requested())
            .field("pinned", &stats.pinned)
            .field("devices", &stats.device)
            .finish()
    }
}
