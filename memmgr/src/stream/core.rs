//! The shared state of one stream, and the handles that keep its raw handle alive.
//!
//! The runtime reuses the handle of a destroyed stream at once and crashes on a dead one. So every handle that is passed
//! to CUDA is a [`Handle`], which counts as a user of its stream; when the last one goes, the end of the stream's work
//! is recorded in one last event and the handle is destroyed (owned) or forgotten (borrowed). Pools keep the
//! [`StreamCore`] beyond that: it answers with the last event.

use crate::{
    capture::{self, Keeper},
    context,
    cuda::{self, RawEvent, RawStream},
    device::on_device,
    error::{Error, Result},
    event_cache::PooledEvent,
    planted::{self, Mistake},
    process,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        lock,
    },
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, Weak},
};

/// Streams by the driver's id, which only default streams of several devices share, and device.
type Registry = BTreeMap<(u64, i32), Weak<StreamCore>>;
/// Every stream with a live handle.
static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());
static NEXT_UID: AtomicU64 = AtomicU64::new(1);

/// Whether every stream that has a live handle is known to be idle.
pub(crate) fn all_idle() -> bool {
    let cores: Vec<Arc<StreamCore>> = lock(&REGISTRY).values().filter_map(Weak::upgrade).collect();
    cores.iter().all(|core| core.is_idle())
}

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
    /// The last handle went in a host function, where CUDA permits no call, or while the stream was captured: whoever comes
    /// next records the end.
    Deferred,
}

/// In [`StreamCore::submitting`]: a capture begins or ends.
const TURNS: u64 = 1 << 63;

/// As long as this lives, no capture of the manager's begins or ends on the stream.
pub(crate) struct Steady<'a>(&'a StreamCore);

impl Drop for Steady<'_> {
    fn drop(&mut self) {
        // Only the end of a capture waits, and it says so.
        if self.0.submitting.fetch_sub(1, Ordering::AcqRel) == TURNS + 1 {
            self.0.wake();
        }
    }
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
    /// The handles of users, times [`USER`], and the visitors: handles that a call of the manager holds while it runs.
    users: AtomicU64,
    /// Whether the stream was being captured when it was last asked: no event can be recorded on it then.
    capturing: AtomicBool,
    /// How many calls submit now, and whether a capture begins or ends ([`TURNS`]). Whether a stream is being captured is
    /// asked first, and something submitted then: nobody may begin or end a capture between the two, or the one is in a
    /// graph that does not keep its memory, and the other runs in no order.
    submitting: AtomicU64,
    turning: Mutex<()>,
    /// Signalled when nobody submits any more while a capture ends, and when a capture has begun or ended.
    quiet: Condvar,
    /// Who keeps what is allocated on the stream now: set while [`Stream::capture`](crate::Stream::capture) runs.
    keeps: AtomicBool,
    keeper: Mutex<Option<Arc<Keeper>>>,
    clock: AtomicU64,
    /// Which pool knows the stream at which place of its books: the one that used it last. A hint.
    place: std::sync::atomic::AtomicU64,
    end: Mutex<End>,
    ended: Condvar,
}

/// A capture begins or ends.
struct Turn<'a>(&'a StreamCore);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.submitting.fetch_sub(TURNS, Ordering::AcqRel);
        self.0.wake();
    }
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
            while self.users.load(Ordering::Acquire) > 0
                && !planted::is_made(Mistake::VisitorsAreForgotten)
            {
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

    /// To be held from the question whether the stream is being captured to the end of what depends on the answer. Refused
    /// while another thread begins or ends a capture.
    pub fn steady(&self) -> Result<Steady<'_>> {
        process::gate()?;
        self.submitting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |calls| {
                (calls & TURNS == 0).then_some(calls.wrapping_add(1))
            })
            .map_err(|_| capture::turning())?;
        Ok(Steady(self))
    }

    /// Wakes who ends a capture, and is between its look and its sleep or asleep.
    #[cold]
    fn wake(&self) {
        drop(lock(&self.turning));
        self.quiet.notify_all();
    }

    /// Begins a capture with `f`: refused while others submit, since such a call may take as long as the stream's work.
    pub fn begin_capture<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        process::gate()?;
        self.submitting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |calls| {
                (calls == 0).then_some(TURNS)
            })
            .map_err(|_| capture::turning())?;
        let _turn = Turn(self);
        f()
    }

    /// Ends a capture with `f`. Waits for others who submit: what is captured waits for no work.
    pub fn end_capture<T>(&self, f: impl FnOnce() -> T) -> T {
        // Who submitted when the process was forked does not exist in the child.
        if process::is_forked() {
            return f();
        }
        let turn = || {
            let free = |calls: u64| (calls & TURNS == 0).then_some(calls | TURNS);
            self.submitting
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, free)
        };
        let mut turning = lock(&self.turning);
        let wait = |turning| {
            self.quiet
                .wait(turning)
                .unwrap_or_else(PoisonError::into_inner)
        };
        while turn().is_err() {
            turning = wait(turning);
        }
        while self.submitting.load(Ordering::Acquire) != TURNS {
            turning = wait(turning);
        }
        drop(turning);
        let _turn = Turn(self);
        f()
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
            let key = (self.id, self.device);
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
        if !self.owes.load(Ordering::Acquire) {
            *lock(&self.end) = End::Done;
            self.ended.notify_all();
            return Ok(());
        }
        // The handle may be dead, with its context.
        let _ = context::check(self.device);
        // Neither a record nor the end of the handle would leave the capture whole: after it.
        if self.is_out_of_bounds() {
            return self.defer(capture::refusal(
                "the end of a stream",
                "it is recorded when the capture has ended",
            ));
        }
        // Nobody else holds the state: no block and no mark will ever ask for the end.
        let wanted = Arc::strong_count(self) > 1 && !planted::is_made(Mistake::EndsAreForgotten);
        let end = if !wanted {
            End::Done
        } else if let Err(error) = process::gate() {
            // Nothing is known of its work, and somebody may be waiting for that.
            End::Lost(error)
        } else {
            match PooledEvent::new(self.device)
                .and_then(|event| self.record_raw(event.raw()).map(|()| event))
            {
                Ok(event) => End::Recorded(Arc::new(event)),
                Err(error) if is_not_permitted(&error) => return self.defer(error),
                // SAFETY: the handle is alive until this function destroys it, or its owner after this call.
                Err(error) => match self.with_device(|| unsafe { cuda::stream_query(self.raw) }) {
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
        // A borrowed handle may be dead as soon as the drop returns, and a thread's default stream is another one elsewhere.
        if self.is_borrowed() || self.is_per_thread() {
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

/// Streams whose last handle went in a host function, or while they were captured.
static DEFERRED: Mutex<Vec<Arc<StreamCore>>> = Mutex::new(Vec::new());
static ANY_DEFERRED: AtomicBool = AtomicBool::new(false);

/// Ends the streams whose last handle went in a host function or a capture, and what graphs left. No lock may be held.
pub(crate) fn finish_retirements() {
    capture::bury();
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

/// How many streams are known, and how many wait for their end; numbers begin anew.
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) fn forget() -> (usize, usize) {
    NEXT_UID.store(1, Ordering::Relaxed);
    (lock(&REGISTRY).len(), lock(&DEFERRED).len())
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

    /// The stream is not being captured.
    pub fn record_raw(&self, event: RawEvent) -> Result<()> {
        self.core.record_raw(event)
    }

    /// Whether the stream is being captured.
    pub fn is_capturing(&self) -> Result<bool> {
        self.core.ask_capturing()
    }

    /// Whether nothing may be done to the stream because of a capture. Where no answer is to be had, the call itself will
    /// say why.
    pub fn is_out_of_bounds(&self) -> bool {
        self.core.is_out_of_bounds()
    }

    /// Refuses what would end the capture of the stream, if it is being captured.
    pub fn refuse_capture(&self, what: &str, instead: &str) -> Result<()> {
        if self.is_capturing()? {
            return Err(capture::refusal(what, instead));
        }
        Ok(())
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
        self.refuse_capture("waiting for a stream", "wait after the capture has ended")?;
        // SAFETY: this handle is alive.
        self.core
            .with_device(|| unsafe { cuda::stream_synchronize(self.raw()) })
    }

    /// The stream is not being captured.
    pub fn query(&self) -> Result<bool> {
        // SAFETY: this handle is alive.
        self.core
            .with_device(|| unsafe { cuda::stream_query(self.raw()) })
    }

    /// From now on the stream's end may be asked for.
    pub fn owe(&self) {
        self.core.owes.store(true, Ordering::Release);
    }

    /// A handle to a stream that somebody has one to already, other than the default streams: found by its id alone.
    pub(super) fn of_registered(id: u64, owned: bool) -> Option<Self> {
        let registry = lock(&REGISTRY);
        let known = registry
            .range((id, i32::MIN)..=(id, i32::MAX))
            .find_map(|(_, core)| {
                let core = core.upgrade()?;
                let is_own = matches!(core.kind, StreamKind::Blocking | StreamKind::NonBlocking);
                is_own.then(|| core.add_user())?
            });
        if let Some(handle) = &known {
            handle.core.owned.fetch_or(owned, Ordering::AcqRel);
        }
        known
    }

    /// A handle to a stream that is being captured, and that somebody has one to already: found by its raw handle, which is
    /// no other stream's as long as that one lives.
    pub(super) fn of_captured(raw: RawStream, owned: bool) -> Option<Self> {
        if process::is_forked() {
            return None;
        }
        let registry = lock(&REGISTRY);
        let known = registry.values().find_map(|core| {
            let core = core.upgrade()?;
            let is_own = matches!(core.kind, StreamKind::Blocking | StreamKind::NonBlocking);
            (is_own && core.raw.0 == raw.0).then(|| core.add_user())?
        });
        if let Some(handle) = &known {
            handle.core.owned.fetch_or(owned, Ordering::AcqRel);
        }
        known
    }

    /// Registers a raw handle; an existing state of the same stream is shared.
    ///
    /// # Safety
    /// The handle is alive, and stays so as long as users exist.
    pub(super) unsafe fn register(
        raw: RawStream,
        device: i32,
        kind: StreamKind,
        owned: bool,
    ) -> Result<Self> {
        finish_retirements();
        // SAFETY: as this function demands.
        let ask = || unsafe { cuda::stream_id(raw) };
        let id = match kind {
            StreamKind::Legacy | StreamKind::PerThread => on_device(device, ask)?,
            _ => ask()?,
        };
        Ok(Self::register_as(id, raw, device, kind, owned, true))
    }

    /// As [`Handle::register`], of a stream whose id is known. `owes`: whether the stream's end will be asked for.
    pub(super) fn register_as(
        id: u64,
        raw: RawStream,
        device: i32,
        kind: StreamKind,
        owned: bool,
        owes: bool,
    ) -> Self {
        let mut registry = lock(&REGISTRY);
        if let Some(handle) = registry
            .get(&(id, device))
            .and_then(Weak::upgrade)
            .and_then(|core| core.add_user())
        {
            handle.core.owned.fetch_or(owned, Ordering::AcqRel);
            handle.core.owes.fetch_or(owes, Ordering::AcqRel);
            return handle;
        }
        let core = Arc::new(StreamCore {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            id,
            device,
            kind,
            raw,
            owned: AtomicBool::new(owned),
            owes: AtomicBool::new(owes),
            users: AtomicU64::new(USER),
            capturing: AtomicBool::new(false),
            submitting: AtomicU64::new(0),
            turning: Mutex::new(()),
            quiet: Condvar::new(),
            keeps: AtomicBool::new(false),
            keeper: Mutex::new(None),
            clock: AtomicU64::new(1),
            place: std::sync::atomic::AtomicU64::new(0),
            end: Mutex::new(End::NotYet),
            ended: Condvar::new(),
        });
        registry.insert((id, device), Arc::downgrade(&core));
        let handle = Self { core, weight: USER };
        if kind == StreamKind::Legacy {
            // CUDA never ends it, and whoever makes a handle anew means the same stream: a user for good.
            std::mem::forget(handle.clone());
        }
        handle
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

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::{cuda, stream::Stream, stream::handle_of};
    use std::{
        sync::{
            atomic::{AtomicI32, AtomicU32, Ordering::SeqCst},
            mpsc,
        },
        thread,
        time::Duration,
    };

    /// No capture begins or ends between a question and what depends on its answer, and who ends one is woken.
    #[test]
    fn who_submits_and_who_begins_or_ends_a_capture_exclude_each_other() {
        let (sender, receiver) = mpsc::channel();
        let worker = thread::spawn(move || {
            let stream = Stream::new().unwrap();
            let core = handle_of(&stream).core();
            // Who submits, and -1 for a turn.
            let inside = AtomicI32::new(0);
            let (submitted, begun) = (AtomicU32::new(0), AtomicU32::new(0));
            let turn = || {
                assert_eq!(inside.swap(-1, SeqCst), 0, "somebody submits in a turn");
                thread::yield_now();
                assert_eq!(inside.swap(0, SeqCst), -1, "a turn within a turn");
            };
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..20_000 {
                            let Ok(steady) = core.steady() else {
                                thread::yield_now();
                                continue;
                            };
                            assert!(inside.fetch_add(1, SeqCst) >= 0, "a turn beside a call");
                            submitted.fetch_add(1, SeqCst);
                            inside.fetch_sub(1, SeqCst);
                            drop(steady);
                        }
                    });
                    scope.spawn(|| {
                        for _ in 0..5_000 {
                            core.end_capture(turn);
                            let turned = core.begin_capture(|| {
                                turn();
                                Ok(())
                            });
                            if turned.is_ok() {
                                begun.fetch_add(1, SeqCst);
                            }
                        }
                    });
                }
            });
            assert!(submitted.into_inner() > 0 && begun.into_inner() > 0);
            // Who ends a capture sleeps as long as somebody submits; nobody comes in meanwhile.
            let steady = core.steady().unwrap();
            thread::scope(|scope| {
                let ends = scope.spawn(|| core.end_capture(turn));
                thread::sleep(Duration::from_millis(100));
                assert!(!ends.is_finished() && core.steady().is_err());
                drop(steady);
            });
            // Nobody is left inside.
            assert!(core.begin_capture(|| Ok(())).is_ok());
            sender.send(()).unwrap();
        });
        let ended = receiver.recv_timeout(Duration::from_secs(60));
        if worker.is_finished() || ended.is_ok() {
            worker.join().unwrap();
        }
        assert!(ended.is_ok(), "somebody waits for ever");
    }

    /// The owner of a borrowed stream may destroy it once the last `Stream` is gone: no call of another thread uses it then.
    #[test]
    fn the_last_drop_of_a_borrowed_stream_waits_for_the_calls_that_use_it() {
        let raw = cuda::stream_create(cuda_sys::cudaStreamNonBlocking, 0).unwrap();
        // SAFETY: the stream is destroyed below, when the last handle is gone.
        let borrowed = unsafe { Stream::borrow_raw(cuda::pointer(raw.0)) }.unwrap();
        let visitor = handle_of(&borrowed).core().upgrade().unwrap();
        let (sender, receiver) = mpsc::channel();
        let dropper = thread::spawn(move || {
            drop(borrowed);
            sender.send(()).unwrap();
        });
        let early = receiver.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "the drop left a visitor behind");
        // Nobody comes after the last user, but for those who are there.
        drop(visitor.clone());
        drop(visitor);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        dropper.join().unwrap();
        // SAFETY: no handle is left.
        unsafe { cuda::stream_destroy(raw) }.unwrap();
    }
}
