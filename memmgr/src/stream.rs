//! Streams: owning and borrowed handles, one shared state a stream, known by its id and never by its handle.
//!
//! The runtime reuses the handle of a destroyed stream at once and crashes on a dead one. So every handle that is passed
//! to CUDA is a [`Handle`], which counts as a user of its stream; when the last one goes, the end of the stream's work
//! is recorded in one last event and the handle is destroyed (owned) or forgotten (borrowed). Pools keep the
//! [`StreamCore`] beyond that: it answers with the last event.

use crate::{
    cuda::{self, RawEvent, RawStream},
    device::on_device,
    error::{Error, Result},
    event::{Event, Fence, PooledEvent},
    process,
    sync::lock,
};
use cuda_sys as sys;
use std::{
    collections::HashMap,
    ffi::c_void,
    fmt,
    marker::PhantomData,
    sync::{
        Arc, Condvar, LazyLock, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Streams by device and the driver's id.
type Registry = HashMap<(i32, u64), Weak<StreamCore>>;
/// Every stream with a live handle.
static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
static NEXT_UID: AtomicU64 = AtomicU64::new(1);

/// Whether every stream that has a live handle is known to be idle.
pub(crate) fn all_idle() -> bool {
    let cores: Vec<Arc<StreamCore>> = lock(&REGISTRY).values().filter_map(Weak::upgrade).collect();
    cores.iter().all(|core| core.is_idle())
}

/// The raw value of `cudaStreamLegacy`.
const LEGACY: usize = 1;
/// The raw value of `cudaStreamPerThread`.
const PER_THREAD: usize = 2;

/// What kind of stream it is, as far as ordering is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Created with `cudaStreamNonBlocking`: knows nothing of the legacy default stream.
    NonBlocking,
    /// Waits for the legacy default stream and the reverse.
    Blocking,
    /// The legacy default stream: a barrier for all blocking streams of its device.
    Legacy,
    /// The calling thread's default stream.
    PerThread,
}

/// How a stream ended.
enum End {
    /// It has live handles, or its end is being recorded.
    NotYet,
    /// The last event.
    Recorded(Arc<PooledEvent>),
    /// No work was left.
    Done,
    /// The last event could not be recorded: nothing proves that its work has finished.
    Lost(Error),
    /// The last handle went in a host function, where CUDA permits no call: whoever comes next records the end.
    Deferred,
}

/// The state of one stream, shared by all its handles and by whatever it left behind in pools.
pub(crate) struct StreamCore {
    /// Unique in the process, never reused.
    pub uid: u64,
    id: u64,
    device: i32,
    kind: StreamKind,
    raw: RawStream,
    owned: AtomicBool,
    /// The handles of users, times [`USER`], and the visitors: handles that a call of the manager holds while it runs.
    users: AtomicU64,
    clock: AtomicU64,
    end: Mutex<End>,
    ended: Condvar,
}

impl StreamCore {
    /// The driver's id of the stream.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether only its own thread can record on it.
    pub fn is_per_thread(&self) -> bool {
        self.kind == StreamKind::PerThread
    }

    /// A tick of the stream's clock.
    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    /// A live handle, if the stream has one and any thread may use it.
    pub fn upgrade(self: &Arc<Self>) -> Option<Handle> {
        if self.is_per_thread() {
            None
        } else {
            self.add(VISITOR, |users| users > 0)
        }
    }

    fn add_user(self: &Arc<Self>) -> Option<Handle> {
        self.add(USER, |users| users >= USER)
    }

    fn add(self: &Arc<Self>, weight: u64, alive: impl Fn(u64) -> bool) -> Option<Handle> {
        self.users
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| {
                alive(users).then(|| users + weight)
            })
            .ok()
            .map(|_| Handle {
                core: self.clone(),
                weight,
            })
    }

    /// Whether the raw handle is somebody else's, who may destroy it as soon as the last user's handle is gone.
    fn is_borrowed(&self) -> bool {
        !self.owned.load(Ordering::Acquire)
            && matches!(self.kind, StreamKind::Blocking | StreamKind::NonBlocking)
    }

    /// A handle is gone.
    fn leave(self: &Arc<Self>, weight: u64) {
        let left = self.users.fetch_sub(weight, Ordering::AcqRel) - weight;
        if left >= USER || (weight == VISITOR && left > 0) {
            return;
        }
        // No user has a handle any more, and none will: only the visitors of a call that runs are left.
        if self.is_borrowed() {
            if weight == VISITOR {
                // Under the lock, so that the waiting user does not miss it.
                drop(lock(&self.end));
                self.ended.notify_all();
                return;
            }
            let mut end = lock(&self.end);
            while self.users.load(Ordering::Acquire) > 0 {
                end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
            }
            drop(end);
            self.retire();
        } else if left == 0 {
            self.retire();
        }
    }

    /// Whether nobody can find out when the stream's work has finished: its end could not be recorded, or it is a
    /// thread's default stream, which only that thread can record on.
    pub fn is_out_of_reach(&self) -> bool {
        if self.is_retired() {
            matches!(*lock(&self.end), End::Lost(_))
        } else {
            self.is_per_thread()
        }
    }

    /// Whether the last handle is gone.
    pub fn is_retired(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
    }

    /// Blocks until the end of the stream has been recorded; only sensible once it is retired.
    pub fn wait_for_end(self: &Arc<Self>) -> Result<()> {
        self.end_point().map(drop)
    }

    /// The last event; `None` if no work was left.
    fn end_point(self: &Arc<Self>) -> Result<Option<Arc<PooledEvent>>> {
        let mut end = lock(&self.end);
        loop {
            match &*end {
                End::NotYet => end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner),
                End::Recorded(event) => return Ok(Some(event.clone())),
                End::Done => return Ok(None),
                End::Lost(error) => return Err(error.clone()),
                End::Deferred => {
                    *end = End::NotYet;
                    drop(end);
                    self.finish()?;
                    end = lock(&self.end);
                }
            }
        }
    }

    /// Whether the stream has ended and all its work has finished; never blocks.
    pub fn query_end(&self) -> Result<bool> {
        let event = match &*lock(&self.end) {
            End::NotYet | End::Lost(_) | End::Deferred => return Ok(false),
            End::Done => return Ok(true),
            End::Recorded(event) => event.clone(),
        };
        let done = event.query()?;
        if done {
            *lock(&self.end) = End::Done;
        }
        Ok(done)
    }

    /// Waits on the host for everything that was ever submitted to a stream that has ended.
    pub fn wait_for_end_on_host(self: &Arc<Self>) -> Result<()> {
        self.end_point()?
            .map_or(Ok(()), |event| event.synchronize())
    }

    /// Makes the stream of `handle` wait for everything that was ever submitted to a stream that has ended.
    pub fn wait_for_end_on_stream(self: &Arc<Self>, handle: &Handle) -> Result<()> {
        self.end_point()?
            .map_or(Ok(()), |event| handle.wait_raw(event.raw()))
    }

    /// Whether everything that was submitted so far has finished, as far as may be asked: never of a stream that is
    /// being captured, which the question would end. (To ask the legacy stream is no barrier, unlike recording on it.)
    pub fn is_idle(self: &Arc<Self>) -> bool {
        let Some(handle) = self.upgrade() else {
            return false;
        };
        // SAFETY: the handle is alive.
        let capturing = unsafe { cuda::stream_is_capturing(handle.raw()) };
        matches!(capturing, Ok(false)) && handle.query().unwrap_or(false)
    }

    /// Runs `f` with the device current where the handle itself does not name one.
    fn with_device<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.kind {
            StreamKind::Legacy | StreamKind::PerThread => on_device(self.device, f),
            StreamKind::Blocking | StreamKind::NonBlocking => f(),
        }
    }

    fn record_raw(&self, event: RawEvent) -> Result<()> {
        // SAFETY: called through a live handle, or by the one thread that retires the stream before it destroys the
        // handle; the event is alive and of the stream's device.
        self.with_device(|| unsafe { cuda::event_record(event, self.raw) })
    }

    /// The last handle is gone: records the end, then destroys the handle if it is ours.
    fn retire(self: &Arc<Self>) {
        // In a forked child the locks may be held by threads that do not exist.
        if process::is_forked() {
            return;
        }
        if let Err(error) = process::gate() {
            // Whoever waits for the end must not do so for ever.
            *lock(&self.end) = End::Lost(error);
            self.ended.notify_all();
            return;
        }
        {
            let mut registry = lock(&REGISTRY);
            let key = (self.device, self.id);
            if registry
                .get(&key)
                .is_some_and(|entry| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(self)))
            {
                registry.remove(&key);
            }
        }
        let _ = self.finish();
    }

    /// Records the end and destroys the handle if it is ours; left to a later call where CUDA permits none.
    fn finish(self: &Arc<Self>) -> Result<()> {
        // Nobody else holds the state: no block and no mark will ever ask for the end.
        let wanted = Arc::strong_count(self) > 1;
        let end = if !wanted || process::is_over() {
            End::Done
        } else {
            match PooledEvent::new(self.device)
                .and_then(|event| self.record_raw(event.raw()).map(|()| event))
            {
                Ok(event) => End::Recorded(Arc::new(event)),
                Err(error) if is_not_permitted(&error) => return self.defer(error),
                // SAFETY: the handle is alive until this function destroys it, or its owner after this call.
                Err(error) => match unsafe { cuda::stream_query(self.raw) } {
                    Ok(true) => End::Done,
                    _ => End::Lost(error),
                },
            }
        };
        *lock(&self.end) = end;
        self.ended.notify_all();
        if self.owned.load(Ordering::Acquire) && !process::is_over() {
            // SAFETY: this was the last handle, and pools pass no handle to CUDA without being a user.
            match unsafe { cuda::stream_destroy(self.raw) } {
                Err(error) if is_not_permitted(&error) => return self.defer(error),
                Err(error) => {
                    tracing::warn!(%error, stream = self.id, "a stream could not be destroyed");
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn defer(self: &Arc<Self>, error: Error) -> Result<()> {
        // A borrowed handle may be dead as soon as the drop returns.
        if self.is_borrowed() {
            *lock(&self.end) = End::Lost(error.clone());
            self.ended.notify_all();
            return Err(error);
        }
        *lock(&self.end) = End::Deferred;
        self.ended.notify_all();
        lock(&DEFERRED).push(self.clone());
        ANY_DEFERRED.store(true, Ordering::Release);
        Err(error)
    }
}

/// Streams whose last handle went in a host function.
static DEFERRED: Mutex<Vec<Arc<StreamCore>>> = Mutex::new(Vec::new());
static ANY_DEFERRED: AtomicBool = AtomicBool::new(false);

/// Ends the streams whose last handle went in a host function. No lock may be held.
pub(crate) fn finish_retirements() {
    if !ANY_DEFERRED.load(Ordering::Acquire) || !ANY_DEFERRED.swap(false, Ordering::AcqRel) {
        return;
    }
    let deferred = std::mem::take(&mut *lock(&DEFERRED));
    for core in deferred {
        let mut end = lock(&core.end);
        if matches!(*end, End::Deferred) {
            *end = End::NotYet;
            drop(end);
            let _ = core.finish();
        }
    }
}

fn is_not_permitted(error: &Error) -> bool {
    error.cuda_code() == Some(cuda::NOT_PERMITTED)
}

impl fmt::Debug for StreamCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id)
            .field("device", &self.device)
            .field("kind", &self.kind)
            .field("raw", &format_args!("{:#x}", self.raw.0))
            .finish_non_exhaustive()
    }
}

/// A user of a stream: as long as one exists, the raw handle is alive.
pub(crate) struct Handle {
    core: Arc<StreamCore>,
    /// [`USER`] or [`VISITOR`].
    weight: u64,
}

/// A handle that the program holds, in [`StreamCore::users`].
const USER: u64 = 1 << 32;
/// A handle that a call of the manager holds while it runs.
const VISITOR: u64 = 1;

impl Handle {
    pub fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

    pub fn raw(&self) -> RawStream {
        self.core.raw
    }

    pub fn device(&self) -> i32 {
        self.core.device
    }

    pub fn record_raw(&self, event: RawEvent) -> Result<()> {
        self.core.record_raw(event)
    }

    pub fn wait_raw(&self, event: RawEvent) -> Result<()> {
        // SAFETY: this handle is alive, and events come from the cache, which never destroys one.
        self.core
            .with_device(|| unsafe { cuda::stream_wait_event(self.raw(), event) })
    }

    /// Runs `f` with the stream's device current where the raw handle does not name one.
    pub fn with_device<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.core.with_device(f)
    }

    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: this handle is alive.
        self.core
            .with_device(|| unsafe { cuda::stream_synchronize(self.raw()) })
    }

    pub fn query(&self) -> Result<bool> {
        // SAFETY: this handle is alive.
        self.core
            .with_device(|| unsafe { cuda::stream_query(self.raw()) })
    }

    /// Registers a raw handle; an existing state of the same stream is shared.
    ///
    /// # Safety
    /// The handle is alive, and stays so as long as users exist.
    unsafe fn register(raw: RawStream, device: i32, kind: StreamKind, owned: bool) -> Result<Self> {
        finish_retirements();
        // SAFETY: as this function demands.
        let ask = || unsafe { cuda::stream_id(raw) };
        let id = match kind {
            StreamKind::Legacy | StreamKind::PerThread => on_device(device, ask)?,
            _ => ask()?,
        };
        let mut registry = lock(&REGISTRY);
        if let Some(handle) = registry
            .get(&(device, id))
            .and_then(Weak::upgrade)
            .and_then(|core| core.add_user())
        {
            handle.core.owned.fetch_or(owned, Ordering::AcqRel);
            return Ok(handle);
        }
        let core = Arc::new(StreamCore {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            id,
            device,
            kind,
            raw,
            owned: AtomicBool::new(owned),
            users: AtomicU64::new(USER),
            clock: AtomicU64::new(1),
            end: Mutex::new(End::NotYet),
            ended: Condvar::new(),
        });
        registry.insert((device, id), Arc::downgrade(&core));
        Ok(Self { core, weight: USER })
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        self.core.users.fetch_add(self.weight, Ordering::AcqRel);
        Self {
            core: self.core.clone(),
            weight: self.weight,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.core.leave(self.weight);
        }
    }
}

mod sealed {
    /// Only the streams of this crate.
    pub trait Sealed {
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn handle(&self) -> &super::Handle;
    }
}

/// A stream that work can be submitted to: [`Stream`] or [`PerThreadStream`].
pub trait AsStream: sealed::Sealed {}

impl<S: sealed::Sealed> AsStream for S {}

pub(crate) fn handle_of(stream: &impl AsStream) -> &Handle {
    sealed::Sealed::handle(stream)
}

/// A CUDA stream. Cheap to clone: clones are handles to the same stream, and the last one destroys it.
///
/// Dropping the last handle while work is queued is fine: the work runs to its end, and memory that it uses is not
/// handed out before.
///
/// ```
/// # fn main() -> memmgr::Result<()> {
/// let stream = memmgr::Stream::new()?;
/// stream.synchronize()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Stream {
    handle: Handle,
}

/// How a stream is made; from [`Stream::builder`].
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamBuilder {
    device: Option<i32>,
    blocking: bool,
    priority: i32,
}

impl StreamBuilder {
    /// The device by ordinal; default: the calling thread's current one, which stays current in any case.
    #[must_use]
    pub fn device(mut self, ordinal: i32) -> Self {
        self.device = Some(ordinal);
        self
    }

    /// Whether the stream waits for the legacy default stream (`cudaStreamDefault`); default: no (`cudaStreamNonBlocking`).
    #[must_use]
    pub fn blocking(mut self, blocking: bool) -> Self {
        self.blocking = blocking;
        self
    }

    /// The priority; lower numbers run first. Values out of the device's range are clamped by the runtime.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Makes the stream (`cudaStreamCreateWithPriority`).
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a driver or device, otherwise what the runtime says.
    pub fn build(self) -> Result<Stream> {
        let device = match self.device {
            Some(ordinal) => ordinal,
            None => cuda::get_device()?,
        };
        let (flags, kind) = if self.blocking {
            (sys::cudaStreamDefault, StreamKind::Blocking)
        } else {
            (sys::cudaStreamNonBlocking, StreamKind::NonBlocking)
        };
        let raw = on_device(device, || cuda::stream_create(flags, self.priority))?;
        // SAFETY: the handle was just made and is ours; it lives until the last `Handle` is dropped.
        match unsafe { Handle::register(raw, device, kind, true) } {
            Ok(handle) => Ok(Stream { handle }),
            Err(error) => {
                // SAFETY: the handle was just made and nobody else knows it.
                let _ = unsafe { cuda::stream_destroy(raw) };
                Err(error)
            }
        }
    }
}

impl Stream {
    /// A new non-blocking stream on the calling thread's current device.
    ///
    /// # Errors
    /// As [`StreamBuilder::build`].
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// Everything else about a new stream: device, priority, blocking.
    pub fn builder() -> StreamBuilder {
        StreamBuilder::default()
    }

    /// Takes over a stream that other code has made: it is destroyed with the last handle.
    ///
    /// # Errors
    /// What the runtime says when it is asked for the stream's id.
    ///
    /// # Safety
    /// `stream` is a live `cudaStream_t` (cudarc's `CUstream` is the same pointer) that nobody else destroys.
    pub unsafe fn from_raw(stream: *mut c_void) -> Result<Self> {
        // SAFETY: as this function demands.
        unsafe { Self::adopt(stream, true) }
    }

    /// Uses a stream that other code owns. The null stream and `cudaStreamLegacy` give the legacy default stream of the
    /// current device.
    ///
    /// # Errors
    /// What the runtime says when it is asked for the stream's id; [`Error::Unsupported`] for `cudaStreamPerThread`,
    /// which has a type of its own ([`PerThreadStream`]).
    ///
    /// Dropping the last handle waits for calls of the manager on other threads that use the stream at that moment, so
    /// that its owner may destroy it afterwards; it must not happen in a host function.
    ///
    /// # Safety
    /// `stream` is a live `cudaStream_t` and stays so until the last handle made from it is dropped.
    pub unsafe fn borrow_raw(stream: *mut c_void) -> Result<Self> {
        // SAFETY: as this function demands.
        unsafe { Self::adopt(stream, false) }
    }

    /// # Safety
    /// As the two functions above.
    unsafe fn adopt(stream: *mut c_void, owned: bool) -> Result<Self> {
        let raw = RawStream(stream.expose_provenance());
        match raw.0 {
            0 | LEGACY => return Self::legacy(cuda::get_device()?),
            PER_THREAD => {
                return Err(Error::Unsupported {
                    reason: "the per-thread default stream as a `Stream`: it means another stream on each thread, use `PerThreadStream`".into(),
                });
            }
            _ => {}
        }
        // SAFETY: the handle is alive, says the caller.
        let (device, flags) = unsafe { (cuda::stream_device(raw)?, cuda::stream_flags(raw)?) };
        let kind = if flags & sys::cudaStreamNonBlocking != 0 {
            StreamKind::NonBlocking
        } else {
            StreamKind::Blocking
        };
        // SAFETY: the handle is alive and stays so, says the caller.
        let handle = unsafe { Handle::register(raw, device, kind, owned)? };
        Ok(Self { handle })
    }

    /// The legacy default stream of a device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a driver; what the runtime says for an ordinal that does not exist.
    pub fn legacy(device: i32) -> Result<Self> {
        let (raw, kind) = (RawStream(LEGACY), StreamKind::Legacy);
        // SAFETY: the legacy handle is a constant that is valid as long as the runtime is.
        let handle = unsafe { Handle::register(raw, device, kind, false)? };
        Ok(Self { handle })
    }

    /// The raw `cudaStream_t`, for launching kernels; valid as long as a handle exists.
    pub fn as_raw(&self) -> *mut c_void {
        cuda::pointer(self.handle.raw().0)
    }

    /// The driver's id: unique in the process, never reused.
    pub fn id(&self) -> u64 {
        self.handle.core.id
    }

    /// The ordinal of the stream's device.
    pub fn device(&self) -> i32 {
        self.handle.core.device
    }

    /// What kind of stream it is.
    pub fn kind(&self) -> StreamKind {
        self.handle.core.kind
    }

    /// Waits on the host for all work submitted so far (`cudaStreamSynchronize`).
    ///
    /// # Errors
    /// What the runtime says, errors of earlier work included.
    pub fn synchronize(&self) -> Result<()> {
        self.handle.synchronize()
    }

    /// Whether all work submitted so far has finished (`cudaStreamQuery`).
    ///
    /// # Errors
    /// What the runtime says, errors of earlier work included.
    pub fn query(&self) -> Result<bool> {
        self.handle.query()
    }

    /// Records a point behind all work submitted so far (`cudaEventRecord`).
    ///
    /// # Errors
    /// What the runtime says.
    pub fn record(&self) -> Result<Event> {
        Ok(Event {
            fence: Fence::record(&self.handle)?,
        })
    }

    /// Makes all work submitted from now on wait for `event` (`cudaStreamWaitEvent`); the host does not wait.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.fence.wait_on_stream(&self.handle)
    }

    /// Runs `function` on a thread of the runtime when all work submitted so far has finished (`cudaLaunchHostFunc`).
    /// The stream goes on when it returns. It must make no CUDA call; guards may be dropped in it. A panic in it is
    /// caught and reported through `tracing`.
    ///
    /// # Errors
    /// What the runtime says; the function is not run then.
    pub fn launch_host(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        type Job = Box<dyn FnOnce() + Send>;
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: `data` came from `Box::into_raw` below and the runtime calls this once.
            let job = unsafe { Box::from_raw(data.cast::<Job>()) };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                tracing::error!("a host function panicked");
            }
        }
        let job: *mut Job = Box::into_raw(Box::new(Box::new(function)));
        let raw = self.handle.raw();
        // SAFETY: the handle is alive; `run` takes the box back once, on whatever thread, which `Send` allows.
        let launched = self
            .handle
            .core
            .with_device(|| unsafe { cuda::launch_host_func(raw, run, job.cast()) });
        if launched.is_err() {
            // SAFETY: the runtime refused the function, so nobody else takes the box.
            drop(unsafe { Box::from_raw(job) });
        }
        launched
    }
}

impl sealed::Sealed for Stream {
    #[allow(private_interfaces)]
    fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.core.fmt(f)
    }
}

/// The calling thread's default stream (`cudaStreamPerThread`). Neither `Send` nor `Sync`: on another thread the same
/// handle means another stream.
///
/// ```compile_fail
/// fn send<T: Send>(_: T) {}
/// send(memmgr::PerThreadStream::new().unwrap());
/// ```
pub struct PerThreadStream {
    handle: Handle,
    not_send: PhantomData<*const ()>,
}

impl PerThreadStream {
    /// The calling thread's stream on its current device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a driver or device.
    pub fn new() -> Result<Self> {
        let device = cuda::get_device()?;
        // SAFETY: the handle is a constant that is valid as long as the runtime is, and the type stays on this thread.
        let handle = unsafe {
            Handle::register(RawStream(PER_THREAD), device, StreamKind::PerThread, false)?
        };
        Ok(Self {
            handle,
            not_send: PhantomData,
        })
    }

    /// The raw `cudaStream_t`.
    pub fn as_raw(&self) -> *mut c_void {
        cuda::pointer(PER_THREAD)
    }

    /// The ordinal of the stream's device.
    pub fn device(&self) -> i32 {
        self.handle.device()
    }

    /// Waits on the host for all work submitted so far.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn synchronize(&self) -> Result<()> {
        self.handle.synchronize()
    }

    /// Whether all work submitted so far has finished.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn query(&self) -> Result<bool> {
        self.handle.query()
    }
}

impl sealed::Sealed for PerThreadStream {
    #[allow(private_interfaces)]
    fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl fmt::Debug for PerThreadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.core.fmt(f)
    }
}
