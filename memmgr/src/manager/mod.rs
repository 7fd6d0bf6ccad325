//! [`MemoryManager`]: the reference API, routed to pools and async modes of each device.

pub(crate) mod adopted;
mod clients;
mod hook;
mod inner;
mod labels;
mod peaks;
mod release;
mod rescue;
mod snapshot;
mod traffic;
mod warm_up;

pub(crate) use inner::{Home, Inner};
pub use labels::LiveBlock;
pub use peaks::PeakScope;

use crate::{
    capture, checker,
    config::{Config, PinnedSource},
    context,
    cuda::{self, CopyKind, Rows},
    device::on_device,
    error::{Error, Place, Result},
    event::Fence,
    events,
    mode::DeviceAllocatorMode,
    pool::{
        FreeOn, Pool, PoolConfig,
        native::Family,
        observer::{Observed, Observer},
        segment::Source,
    },
    process,
    stats::{DeviceStats, Fragmentation, NativePoolUsage, Stats},
    stream::{AsStream, handle_of},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
        lock,
    },
};
use inner::{Memory, Touched, sum};
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

/// What [`MemoryManager::shutdown`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Bytes given back to CUDA.
    pub released: usize,
    /// Blocks that are still live; they stay valid, and their segments follow when they are freed.
    pub live: Vec<LiveBlock>,
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes given back, {} blocks live",
            self.released,
            self.live.len()
        )?;
        for block in &self.live {
            write!(f, "\n  {block}")?;
        }
        Ok(())
    }
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
        Self {
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
        }
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
    /// [`Error::DoubleFree`], [`Error::UnknownPointer`]; nothing has changed then.
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
    /// Also [`Error::WrongDevice`] for an ordinal that does not exist.
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
    /// [`Error::DoubleFree`], [`Error::UnknownPointer`]; nothing has changed then. In the async modes also what the
    /// runtime says.
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

    // Copies

    /// Copies `size` bytes from host to device memory in `stream` (reference: `copyToDeviceAsync`; `cudaMemcpyAsync`).
    /// Returns at once for pinned memory. Both blocks are marked as used by the stream, also when the pointers point
    /// into them.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] if the range leaves a block of the manager, [`Error::UnknownPointer`] for free memory of the
    /// manager's own pools, both before any CUDA call; otherwise what the runtime says (also for memory that was freed in
    /// an async mode, which is the driver's then).
    ///
    /// # Safety
    /// `src` has `size` readable bytes and `dst` `size` bytes of device memory until the copy has run; memory of the
    /// manager is kept until then by itself. Other work that touches them is ordered.
    #[doc(alias = "copyToDeviceAsync")]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_to_device_async(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .copy(dst, src, size, CopyKind::HostToDevice, handle_of(stream))
        }
    }

    /// Copies `size` bytes from device to host memory in `stream` (reference: `copyToHostAsync`; `cudaMemcpyAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`].
    ///
    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`], with the roles exchanged; nobody reads `dst` before the copy has run.
    #[doc(alias = "copyToHostAsync")]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_to_host_async(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .copy(dst, src, size, CopyKind::DeviceToHost, handle_of(stream))
        }
    }

    /// Copies `size` bytes within device memory in `stream`.
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`].
    ///
    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`], with device memory on both sides.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_device_to_device(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .copy(dst, src, size, CopyKind::DeviceToDevice, handle_of(stream))
        }
    }

    /// Copies `height` rows of `width` bytes whose starts are `pitch` bytes apart (`cudaMemcpy2DAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`]; also [`Error::InvalidRange`] if a pitch is below the width.
    ///
    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`], for all rows.
    #[allow(clippy::too_many_arguments)]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_2d(
        &self,
        dst: *mut c_void,
        dst_pitch: usize,
        src: *const c_void,
        src_pitch: usize,
        width: usize,
        height: usize,
        kind: CopyKind,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        if width == 0 || height == 0 {
            return Ok(());
        }
        let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
        let spans = Touched::by_copy(
            kind,
            (dst, rows_span(dst_pitch, width, height)?),
            (src, rows_span(src_pitch, width, height)?),
        );
        let handle = handle_of(stream);
        self.inner.submit(handle, spans, || {
            let (dst, src) = (
                Rows {
                    start: dst,
                    pitch: dst_pitch,
                },
                Rows {
                    start: src,
                    pitch: src_pitch,
                },
            );
            // SAFETY: as this function demands; the handle is alive.
            unsafe { cuda::memcpy_2d_async(dst, src, width, height, kind, handle.raw())? };
            self.inner
                .traffic
                .add_copy(kind, width.saturating_mul(height));
            Ok(())
        })
    }

    /// Sets `size` bytes of device memory to `value` in `stream` (`cudaMemsetAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`].
    ///
    /// # Safety
    /// `ptr` has `size` bytes of device memory until the operation has run. Other work that touches them is ordered.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn memset(
        &self,
        ptr: *mut c_void,
        value: u8,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .memset(ptr.expose_provenance(), value, size, handle_of(stream))
        }
    }

    /// Sets `height` rows of `width` bytes whose starts are `pitch` bytes apart (`cudaMemset2DAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_2d`].
    ///
    /// # Safety
    /// As [`MemoryManager::memset`], for all rows.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn memset_2d(
        &self,
        ptr: *mut c_void,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        if width == 0 || height == 0 {
            return Ok(());
        }
        let start = ptr.expose_provenance();
        let spans = [Touched::by_fill(start, rows_span(pitch, width, height)?)];
        let handle = handle_of(stream);
        self.inner.submit(handle, spans, || {
            // SAFETY: as this function demands; the handle is alive.
            unsafe {
                cuda::memset_2d_async(Rows { start, pitch }, value, width, height, handle.raw())?
            };
            self.inner.traffic.add_fill(width.saturating_mul(height));
            Ok(())
        })
    }

    /// Tells the manager that work submitted to `stream` so far (a kernel launch) uses the block that `ptr` points into:
    /// the block is not handed out again before that work has finished. Call it after the launch. While `stream` is captured,
    /// the graph keeps the block.
    ///
    /// # Errors
    /// [`Error::UnknownPointer`] if `ptr` points into no live block; otherwise what the runtime says.
    pub fn record_use(&self, ptr: *const c_void, stream: &impl AsStream) -> Result<()> {
        process::gate()?;
        let address = ptr.expose_provenance();
        let Some((home, block)) = self.inner.find(address, 0)? else {
            return Err(Error::unknown(
                address,
                "no live block of the manager contains it",
            ));
        };
        let handle = handle_of(stream);
        let _steady = handle.core().steady()?;
        if let Some(keeper) = capture::keeper(handle)? {
            keeper.keep(&self.inner, home, block.whole(), true);
            return Ok(());
        }
        let (fence, recorded) = Fence::after_work(handle);
        self.inner.add_use(home, block.whole(), &fence, true);
        recorded
    }

    // Configuration

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

    /// Sets the most that each device's own pool may hold, in bytes, in place of [`Config::device_pool_limit_share`] too; what it holds beyond stays until it is trimmed.
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

    // Looking and giving back

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

    /// Gives all idle memory back to CUDA, in every family; the bytes. `cudaFree` and `cudaFreeHost` wait for the
    /// device's running work. Memory whose marks have not completed stays. Adopted memory whose guards are gone goes back to
    /// its owners, after waiting for what may still touch it.
    ///
    /// # Errors
    /// What the runtime says; the rest has been given back all the same.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn trim(&self) -> Result<usize> {
        self.trim_to(0)
    }

    /// As [`MemoryManager::trim`], until each pool (pinned; on each device that of every mode) holds at most `target` bytes:
    /// the bytes really given back. Memory goes back by whole segments, those first that leave the most; a pool whose live
    /// blocks lie in more than `target` bytes of segments keeps these.
    ///
    /// # Errors
    /// As [`MemoryManager::trim`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn trim_to(&self, target: usize) -> Result<usize> {
        let _called = checker::called_here();
        context::check_all()?;
        self.inner.adopted.release();
        let mut total = self.inner.trim_pinned_to(target);
        for state in self.inner.states() {
            total = sum(total, state.trim_to(target));
        }
        total
    }

    /// Waits for the manager's own pending work, gives back every segment without a live block, and reports the live
    /// ones (reference: `shutdown`, whose C++ form also frees raw blocks: [`MemoryManager::shutdown_and_free_raw`]).
    /// Live blocks stay valid. The manager can be configured and used again.
    ///
    /// # Errors
    /// What the runtime says; the rest has been given back all the same.
    pub fn shutdown(&self) -> Result<ShutdownReport> {
        context::check_all()?;
        self.inner.adopted.release();
        let mut released = {
            let _held = self.inner.warmer.hold(&self.inner.pinned);
            self.inner.pinned.shutdown()
        };
        for state in self.inner.states() {
            released = sum(released, state.pool.shutdown());
            if state.native.is_used() {
                released = sum(released, state.native.shutdown());
            }
        }
        crate::pool::segment::release_orphans();
        // What cannot be written has been told to the log of warnings.
        let _ = self.inner.observed.sinks().flush();
        Ok(ShutdownReport {
            released: released?,
            live: self.inner.live_blocks(),
        })
    }

    /// As [`MemoryManager::shutdown`], after freeing every block that was handed out as a raw pointer and waiting for
    /// the devices. Guards are not touched; what a captured graph uses follows when the graph is gone.
    ///
    /// # Errors
    /// What the runtime says.
    ///
    /// # Safety
    /// Nobody uses or frees those raw pointers afterwards.
    pub unsafe fn shutdown_and_free_raw(&self) -> Result<ShutdownReport> {
        context::check_all()?;
        for state in self.inner.states() {
            on_device(state.ordinal, cuda::wait_for_device)?;
        }
        for block in self
            .inner
            .live_blocks()
            .into_iter()
            .filter(|block| block.raw && !block.kept_by_graph)
        {
            let memory = match block.place {
                Place::Pinned => Memory::Pinned,
                Place::Device(_) => Memory::Device(None),
            };
            self.inner.free(block.address, FreeOn::Recorded, memory)?;
        }
        self.shutdown()
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

/// Bytes from the first byte of the first row to the last byte of the last.
pub(crate) fn rows_span(pitch: usize, width: usize, height: usize) -> Result<usize> {
    if pitch < width {
        return Err(Error::range(format!(
            "rows of {width} bytes do not fit a pitch of {pitch} bytes"
        )));
    }
    height
        .checked_sub(1)
        .and_then(|rows| rows.checked_mul(pitch))
        .and_then(|bytes| bytes.checked_add(width))
        .ok_or_else(|| Error::range(format!("{height} rows of pitch {pitch} overflow")))
}
