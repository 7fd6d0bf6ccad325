//! Streams: owning and borrowed handles, one shared state a stream, known by its id and never by its handle.

mod core;
mod host_function;

pub use self::core::StreamKind;
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) use self::core::forget;
pub(crate) use self::core::{Handle, StreamCore, all_idle, finish_retirements};

use self::core::{LEGACY, PER_THREAD};
use crate::{
    capture, context,
    cuda::{self, RawStream},
    device::on_device,
    error::{Error, Result},
    event::{Event, Fence},
};
use cuda_sys as sys;
use std::{
    ffi::c_void,
    fmt,
    hash::{Hash, Hasher},
    marker::PhantomData,
};

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
        context::check(device)?;
        let raw = on_device(device, || {
            let raw = cuda::stream_create(flags, self.priority)?;
            context::note(device);
            Ok(raw)
        })?;
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
        unsafe { Self::adopt(stream, true, true) }
    }

    /// Uses a stream that other code owns. The null stream and `cudaStreamLegacy` give the legacy default stream of the
    /// current device.
    ///
    /// # Errors
    /// What the runtime says when it is asked for the stream's id; [`Error::Unsupported`] for `cudaStreamPerThread`,
    /// which has a type of its own ([`PerThreadStream`]).
    ///
    /// Dropping the last handle waits for calls of the manager on other threads that use the stream at that moment, so
    /// that its owner may destroy it afterwards; it must not happen in a host function, nor while the stream is captured: what
    /// it left in pools would never be used again. What the stream gets after that is unknown to the manager: keep a handle
    /// as long as kernels in it use guards that were allocated on it.
    ///
    /// # Safety
    /// `stream` is a live `cudaStream_t` and stays so until the last handle made from it is dropped.
    pub unsafe fn borrow_raw(stream: *mut c_void) -> Result<Self> {
        // SAFETY: as this function demands.
        unsafe { Self::adopt(stream, false, true) }
    }

    /// As [`Stream::borrow_raw`], for one call that allocates memory for a raw pointer and does nothing else: as long as that is
    /// all, nothing asks for the stream's end, and none is recorded. Whoever does more says [`Handle::owe`].
    ///
    /// # Safety
    /// As [`Stream::borrow_raw`].
    pub(crate) unsafe fn borrow_to_allocate(stream: *mut c_void) -> Result<Self> {
        // SAFETY: as this function demands.
        unsafe { Self::adopt(stream, false, false) }
    }

    /// `owes`: whether the stream's end may be asked for.
    ///
    /// # Safety
    /// As the functions above.
    unsafe fn adopt(stream: *mut c_void, owned: bool, owes: bool) -> Result<Self> {
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
        if let Err(error) = unsafe { refuse_capture(raw) } {
            // Its id cannot be asked for, but who has a handle says that the stream is alive: it is the one with this number.
            return match Handle::of_captured(raw, owned) {
                Some(handle) => Ok(Self::owing(handle, owes)),
                None => Err(error),
            };
        }
        finish_retirements();
        // SAFETY: as above.
        let id = unsafe { cuda::stream_id(raw)? };
        if let Some(handle) = Handle::of_registered(id, owned) {
            return Ok(Self::owing(handle, owes));
        }
        // SAFETY: as above.
        let (device, flags) = unsafe { (cuda::stream_device(raw)?, cuda::stream_flags(raw)?) };
        let kind = if flags & sys::cudaStreamNonBlocking != 0 {
            StreamKind::NonBlocking
        } else {
            StreamKind::Blocking
        };
        let handle = Handle::register_as(id, raw, device, kind, owned, owes);
        Ok(Self { handle })
    }

    fn owing(handle: Handle, owes: bool) -> Self {
        if owes {
            handle.owe();
        }
        Self { handle }
    }

    /// The legacy default stream of a device. Unlike others it does not end with its last handle.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a driver; what the runtime says for an ordinal that does not exist.
    pub fn legacy(device: i32) -> Result<Self> {
        let (raw, kind) = (RawStream(LEGACY), StreamKind::Legacy);
        // SAFETY: the legacy handle is a constant that is valid as long as the runtime is.
        on_device(device, || unsafe { refuse_capture(raw) })?;
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
        self.handle.core().id()
    }

    /// The ordinal of the stream's device.
    pub fn device(&self) -> i32 {
        self.handle.core().device()
    }

    /// What kind of stream it is.
    pub fn kind(&self) -> StreamKind {
        self.handle.core().kind()
    }

    /// Waits on the host for all work submitted so far (`cudaStreamSynchronize`).
    ///
    /// # Errors
    /// What the runtime says, errors of earlier work included; [`Error::Unsupported`] while the stream is captured.
    pub fn synchronize(&self) -> Result<()> {
        self.handle.synchronize()
    }

    /// Whether all work submitted so far has finished (`cudaStreamQuery`).
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn query(&self) -> Result<bool> {
        query(&self.handle)
    }

    /// Records a point behind all work submitted so far (`cudaEventRecord`).
    ///
    /// # Errors
    /// What the runtime says; [`Error::Unsupported`] while the stream is captured.
    pub fn record(&self) -> Result<Event> {
        Ok(Event {
            fence: Fence::record(&self.handle)?,
        })
    }

    /// Makes all work submitted from now on wait for `event` (`cudaStreamWaitEvent`); the host does not wait.
    ///
    /// # Errors
    /// What the runtime says; [`Error::Unsupported`] while the stream is captured, unless the event is done.
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.fence.wait_on_stream(&self.handle)
    }

    /// Runs `function` on a thread of the runtime when all work submitted so far has finished (`cudaLaunchHostFunc`).
    /// The stream goes on when it returns. It must make no CUDA call; guards may be dropped in it,
    /// and viewed as long as no copy of theirs is under way. A panic in it is
    /// caught and reported through `tracing`.
    ///
    /// # Errors
    /// What the runtime says, and [`Error::Unsupported`] while the stream is captured, since the function can run only once;
    /// it is not run then.
    pub fn launch_host(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        let _steady = self.handle.core().steady()?;
        self.handle.refuse_capture(
            "a host function that can run only once",
            "launch it beside the graph",
        )?;
        host_function::launch(&self.handle, Box::new(function))
    }
}

impl sealed::Sealed for Stream {
    #[allow(private_interfaces)]
    fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Whether both are handles of one stream.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.handle.core().is_same(other.handle.core())
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.id(), self.device()).hash(state);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.core().fmt(f)
    }
}

fn query(handle: &Handle) -> Result<bool> {
    handle.refuse_capture("asking a stream", "ask after the capture has ended")?;
    handle.query()
}

/// Refuses a stream whose id cannot be asked for without ending its capture.
///
/// # Safety
/// The handle is alive.
unsafe fn refuse_capture(raw: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    match unsafe { cuda::stream_is_capturing(raw) } {
        Ok(false) => Ok(()),
        Ok(true) => Err(capture::refusal(
            "making the first handle of a stream",
            "make one before the capture begins (memmgr_stream_register in C), and keep it",
        )),
        Err(error) => Err(capture::implicit(error)),
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
        Self::on(cuda::get_device()?)
    }

    /// The calling thread's stream on a device, which need not be current.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a driver; what the runtime says for an ordinal that does not exist.
    pub fn on(device: i32) -> Result<Self> {
        // SAFETY: the handle is a constant that is valid as long as the runtime is.
        on_device(device, || unsafe { refuse_capture(RawStream(PER_THREAD)) })?;
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
        query(&self.handle)
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
        self.handle.core().fmt(f)
    }
}
