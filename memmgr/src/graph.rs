//! [`Graph`]: what a stream was told to do, recorded once and launched again and again.
//!
//! ```
//! use memmgr::{MemoryManager, Stream};
//! # fn main() -> memmgr::Result<()> {
//! let manager = MemoryManager::instance();
//! let stream = Stream::new()?;
//! let mut input = manager.pinned::<u32>(256)?;
//! let mut output = manager.pinned::<u32>(256)?;
//! let mut graph = stream.capture(|s| {
//!     let device = manager.device::<u32>(256, s)?; // kept by the graph
//!     let _ = s.copy_to_device(&input, &device)?;
//!     let _ = s.copy_to_host(&device, &mut output)?;
//!     Ok(())
//! })?;
//! for round in 0..3 {
//!     input.as_mut_slice()?.fill(round); // waits for the launch that reads it
//!     // SAFETY: no slice of `input` or `output` is alive, and other work on them is ordered by the manager.
//!     let _ = unsafe { graph.launch(&stream)? };
//!     assert_eq!(output.as_slice()?[9], round); // waits for the launch
//! }
//! # Ok(()) }
//! ```

use crate::{
    capture::{self, Keeper, Remains},
    checker, context,
    cuda::{self, RawExec, RawGraph},
    error::{Error, Result},
    event::{Event, Fence, Submitted},
    process,
    stream::{Handle, Stream, StreamKind, handle_of},
};
use std::{fmt, sync::Arc};

/// Which calls of *other* code end a capture (`cudaStreamCaptureMode`); those of the manager never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CaptureMode {
    /// Calls like `cudaMalloc` on any thread.
    Global,
    /// Calls like `cudaMalloc` on the thread that captures.
    #[default]
    ThreadLocal,
    /// None of these.
    Relaxed,
}

impl CaptureMode {
    /// Every mode, in CUDA's order.
    pub const ALL: [CaptureMode; 3] = [Self::Global, Self::ThreadLocal, Self::Relaxed];

    fn get(self) -> cuda::CaptureMode {
        match self {
            Self::Global => cuda::CaptureMode::cudaStreamCaptureModeGlobal,
            Self::ThreadLocal => cuda::CaptureMode::cudaStreamCaptureModeThreadLocal,
            Self::Relaxed => cuda::CaptureMode::cudaStreamCaptureModeRelaxed,
        }
    }
}

/// What [`Stream::capture`] recorded, ready to be launched (`cudaGraphExec_t`).
///
/// The rules for who uses it:
///
/// - It does the same operations on the same addresses at every launch. Whoever wants other data writes them into the
///   buffers between launches: a view of a buffer waits for the launches before it.
/// - It keeps every block that a captured operation of the manager uses, every block that was allocated on the stream
///   inside the closure, and what [`MemoryManager::record_use`](crate::MemoryManager::record_use) named there. They may be
///   freed, and their guards dropped, at any time: they are handed out again when the graph is gone and its launches have
///   finished. A kernel's other memory has to be named with `record_use` inside the closure, or kept by the caller.
/// - A launch follows all that the manager knows to use its blocks, on whatever stream; what is done with them afterwards
///   follows the launch. It does not matter on which stream it was captured.
/// - Launches of one graph follow one another.
/// - Dropping it is fine while a launch runs: CUDA's handle is destroyed later.
pub struct Graph {
    exec: RawExec,
    graph: RawGraph,
    device: i32,
    keeper: Arc<Keeper>,
    /// The launches that are not known to have finished.
    launches: Vec<Arc<Fence>>,
}

impl Stream {
    /// Records what `record` submits to this stream, instead of running it, in the mode [`CaptureMode::ThreadLocal`]. See
    /// [`Graph`] for the rules.
    ///
    /// Inside, copies and memsets on this stream are recorded; other streams, allocations and frees work as ever. What has
    /// no place in a graph, like waiting for this stream, is refused and does no harm. If `record` fails or panics, the
    /// capture ends and nothing of it is left.
    ///
    /// # Errors
    /// What `record` returns; [`Error::Unsupported`] for the legacy stream, for a stream that is being captured, and for one
    /// that another thread submits to at this moment (whose call is refused while the capture begins or ends); what the
    /// runtime says, `cudaErrorStreamCaptureInvalidated` (901) if other code has ended the capture by what it did.
    pub fn capture(&self, record: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        self.capturing().run(record)
    }

    /// A capture with settings: `stream.capturing().mode(CaptureMode::Relaxed).run(|s| …)`.
    pub fn capturing(&self) -> CaptureBuilder<'_> {
        CaptureBuilder {
            stream: self,
            mode: CaptureMode::default(),
        }
    }
}

/// How a stream is captured; from [`Stream::capturing`].
#[derive(Debug, Clone, Copy)]
pub struct CaptureBuilder<'a> {
    stream: &'a Stream,
    mode: CaptureMode,
}

impl CaptureBuilder<'_> {
    /// Which calls of other code end the capture.
    #[must_use]
    pub fn mode(mut self, mode: CaptureMode) -> Self {
        self.mode = mode;
        self
    }

    /// As [`Stream::capture`].
    ///
    /// # Errors
    /// As [`Stream::capture`].
    pub fn run(self, record: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        let handle = handle_of(self.stream);
        let mut capture = Capture::begin(handle, self.mode)?;
        record(self.stream)?;
        let graph = capture.end()?;
        let keeper = capture.keeper.clone();
        // SAFETY: the graph was just made and is ours.
        match unsafe { cuda::graph_instantiate(graph) } {
            Ok(exec) => Ok(Graph {
                exec,
                graph,
                device: handle.device(),
                keeper,
                launches: Vec::new(),
            }),
            Err(error) => {
                capture::destroy(Remains {
                    device: handle.device(),
                    exec: None,
                    graph: Some(graph),
                    launches: Vec::new(),
                });
                keeper.release();
                Err(error)
            }
        }
    }
}

/// A capture that goes on; ended by its drop, if by nothing else.
struct Capture<'a> {
    handle: &'a Handle,
    id: Option<u64>,
    keeper: Arc<Keeper>,
    ended: bool,
}

impl<'a> Capture<'a> {
    fn begin(handle: &'a Handle, mode: CaptureMode) -> Result<Self> {
        if handle.core().kind() == StreamKind::Legacy {
            return Err(Error::Unsupported {
                reason: "a capture of the legacy default stream: capture another one".into(),
            });
        }
        context::check(handle.device())?;
        handle.refuse_capture("another capture", "end the first one")?;
        let begin = || {
            // SAFETY: the handle is alive.
            unsafe { cuda::stream_begin_capture(handle.raw(), mode.get())? };
            // SAFETY: the handle is alive.
            let info = unsafe { cuda::stream_capture_info(handle.raw()) };
            let keeper = Arc::<Keeper>::default();
            if let Ok(Some((id, _))) = info {
                capture::begin(id, &keeper);
                handle.core().set_keeper(Some(keeper.clone()));
            }
            Ok((keeper, info))
        };
        let (keeper, info) = handle.core().begin_capture(begin)?;
        let mut capture = Self {
            handle,
            id: None,
            keeper,
            ended: false,
        };
        let (id, _) = info?.ok_or_else(|| Error::Unsupported {
            reason: "a capture that ended while it began".into(),
        })?;
        capture.id = Some(id);
        Ok(capture)
    }

    fn end(&mut self) -> Result<RawGraph> {
        self.ended = true;
        let ended = self.handle.core().end_capture(|| {
            self.handle.core().set_keeper(None);
            if let Some(id) = self.id {
                capture::end(id);
            }
            // SAFETY: the handle is alive.
            unsafe { cuda::stream_end_capture(self.handle.raw()) }
        });
        // Events can be recorded on the stream again.
        let _ = self.handle.is_capturing();
        if ended.is_err() {
            self.keeper.release();
        }
        ended
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Ok(graph) = self.end() {
            capture::destroy(Remains {
                device: self.handle.device(),
                exec: None,
                graph: Some(graph),
                launches: Vec::new(),
            });
            self.keeper.release();
        }
    }
}

impl Graph {
    /// Runs the graph in `stream` (`cudaGraphLaunch`): after everything that the manager knows to use its blocks. Views of
    /// its buffers, and whoever gets their memory, wait for it from now on.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another device, [`Error::Unsupported`] for one that is being captured;
    /// otherwise what the runtime says.
    ///
    /// # Safety
    /// No slice of a pinned buffer that the graph writes is alive, and no mutable one of a buffer that it reads. Memory that
    /// the graph uses and that is not the manager's stays until the launch has run; work on it that was not submitted through
    /// the manager, or told to it, is ordered by the caller.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<Submitted> {
        let _called = checker::called_here();
        context::check(self.device)?;
        let handle = handle_of(stream);
        if handle.device() != self.device {
            return Err(Error::WrongDevice {
                reason: format!(
                    "the graph was captured on device {}, the stream belongs to device {}",
                    self.device,
                    handle.device()
                ),
            });
        }
        let _steady = handle.core().steady()?;
        handle.refuse_capture(
            "a launch of a graph",
            "launch it after the capture has ended",
        )?;
        self.keeper.try_each(|kept| {
            kept.inner
                .order_before_use(kept.home, kept.block, handle, kept.writes)
        })?;
        // SAFETY: both handles are alive, `&mut self` keeps everybody else away, and the blocks are held as long as this
        // lives and marked with the launch.
        let launched =
            handle.with_device(|| unsafe { cuda::graph_launch(self.exec, handle.raw()) });
        let (fence, recorded) = Fence::after_work(handle);
        self.keeper.try_each(|kept| {
            kept.inner
                .add_use(kept.home, kept.block, &fence, kept.writes);
            Ok(())
        })?;
        self.launches
            .retain(|launch| !launch.is_done() && !fence.covers(launch));
        self.launches.push(fence.clone());
        launched.and(recorded)?;
        Ok(Submitted {
            event: Some(Event { fence }),
        })
    }

    /// The ordinal of the device that it was captured on.
    pub fn device(&self) -> i32 {
        self.device
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that does not exist.
        if process::is_forked() {
            return;
        }
        self.keeper.release();
        capture::destroy(Remains {
            device: self.device,
            exec: Some(self.exec),
            graph: Some(self.graph),
            launches: std::mem::take(&mut self.launches),
        });
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.device)
            .field("pending_launches", &self.launches.len())
            .finish_non_exhaustive()
    }
}
