//! The shared state of one stream, and the handles that keep its raw handle alive.
//!
//! The runtime reuses the handle of a destroyed stream at once and crashes on a dead one. So every handle that is passed
//! to CUDA is a [`Handle`], which counts as a user of its stream; when the last one goes, the end of the stream's work
//! is recorded in one last event and the handle is destroyed (owned) or forgotten (borrowed). Pools keep the
//! [`StreamCore`] beyond that: it answers with the last event.

mod end;
mod handle;
mod registry;
mod turns;

pub(crate) use end::finish_retirements;
pub(crate) use handle::Handle;
pub(crate) use registry::all_idle;
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) use registry::forget;

use crate::{
    capture::{self, Keeper},
    cuda::{self, RawEvent, RawStream},
    device::on_device,
    error::{Error, Result},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        lock,
    },
};
use end::End;
use std::{fmt, sync::Arc};
use turns::Turns;

/// The raw value of `cudaStreamLegacy`.
pub(super) const LEGACY: usize = 1;
/// The raw value of `cudaStreamPerThread`.
pub(super) const PER_THREAD: usize = 2;

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

/// The state of one stream, shared by all its handles and by whatever it left behind in pools.
pub(crate) struct StreamCore {
    /// Unique in the process, never reused.
    pub uid: u64,
    id: u64,
    device: i32,
    kind: StreamKind,
    raw: RawStream,
    owned: AtomicBool,
    /// Whether anything may ask for the stream's end: not of a stream on which memory was allocated for raw pointers alone.
    owes: AtomicBool,
    /// The handles of users, times [`USER`](handle::USER), and the visitors: handles that a call of the manager holds while
    /// it runs.
    users: AtomicU64,
    /// Whether the stream was being captured when it was last asked: no event can be recorded on it then.
    capturing: AtomicBool,
    turns: Turns,
    /// Who keeps what is allocated on the stream now: set while [`Stream::capture`](crate::Stream::capture) runs.
    keeps: AtomicBool,
    keeper: Mutex<Option<Arc<Keeper>>>,
    clock: AtomicU64,
    /// Which pool knows the stream at which place of its books: the one that used it last. A hint.
    place: std::sync::atomic::AtomicU64,
    end: Mutex<End>,
    ended: Condvar,
}

impl StreamCore {
    /// The driver's id of the stream.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The ordinal of its device.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// What kind of stream it is.
    pub fn kind(&self) -> StreamKind {
        self.kind
    }

    /// Whether both are states of one stream: it is known by the driver's id, which is never given twice, whatever handles came
    /// and went in between.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || (self.id == other.id
                && self.device == other.device
                && !self.is_per_thread()
                && !other.is_per_thread())
    }

    /// Whether only its own thread can record on it.
    pub fn is_per_thread(&self) -> bool {
        self.kind == StreamKind::PerThread
    }

    /// The pool that used the stream last, and the place of the stream in its books.
    #[inline]
    pub fn place(&self) -> (u32, u32) {
        let place = self.place.load(std::sync::atomic::Ordering::Relaxed);
        ((place >> 32) as u32, place as u32)
    }

    /// A pool has the stream at this place.
    #[inline]
    pub fn set_place(&self, pool: u32, place: u32) {
        let both = u64::from(pool) << 32 | u64::from(place);
        self.place.store(both, std::sync::atomic::Ordering::Relaxed);
    }

    /// What the stream's clock says.
    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    /// What the stream's clock says, for the last time: whoever asks after this is told more.
    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    /// Whether the stream was being captured when it was last asked.
    pub fn was_capturing(&self) -> bool {
        self.capturing.load(Ordering::Relaxed)
    }

    /// Who keeps what is allocated on the stream now, if that is known without a question: inside
    /// [`Stream::capture`](crate::Stream::capture).
    #[inline]
    pub fn keeper(&self) -> Option<Arc<Keeper>> {
        if !self.keeps.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.keeper).clone()
    }

    /// Whether anybody keeps what is allocated on the stream now.
    #[inline]
    pub fn has_keeper(&self) -> bool {
        self.keeps.load(Ordering::Acquire)
    }

    /// Sets who keeps what is allocated on the stream from now on.
    pub fn set_keeper(&self, keeper: Option<Arc<Keeper>>) {
        let mut place = lock(&self.keeper);
        self.keeps.store(keeper.is_some(), Ordering::Release);
        let former = std::mem::replace(&mut *place, keeper);
        drop(place);
        drop(former);
    }

    /// Whether the stream is being captured: the one question that a capture survives.
    fn ask_capturing(&self) -> Result<bool> {
        // SAFETY: called through a live handle, or by the one thread that retires the stream before it destroys the handle.
        let asked = self.with_device(|| unsafe { cuda::stream_is_capturing(self.raw) });
        self.capturing
            .store(!matches!(asked, Ok(false)), Ordering::Relaxed);
        asked.map_err(capture::implicit)
    }

    /// Whether a capture keeps everybody from the stream: its own, or, for the legacy stream, that of a stream that follows
    /// it.
    fn is_out_of_bounds(&self) -> bool {
        matches!(
            self.ask_capturing(),
            Ok(true) | Err(Error::Unsupported { .. })
        )
    }

    /// Whether everything that was submitted so far has finished, as far as may be asked: never of a stream that is
    /// being captured, which the question would end. (To ask the legacy stream is no barrier, unlike recording on it.)
    pub fn is_idle(self: &Arc<Self>) -> bool {
        let Some(handle) = self.upgrade() else {
            return false;
        };
        matches!(handle.is_capturing(), Ok(false)) && handle.query().unwrap_or(false)
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
