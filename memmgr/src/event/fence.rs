//! Fences: the points in the order of a stream that marks are made of.
//!
//! A [`Fence`] starts open (no event yet), is recorded once, and is done once the runtime has said so.

use crate::{
    capture,
    error::{Error, Result},
    event_cache::PooledEvent,
    planted::{self, Mistake},
    process,
    stream::{Handle, StreamCore},
    sync::{
        Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        lock,
    },
};
use std::{
    fmt,
    sync::{Arc, PoisonError},
};

/// What is known of a fence.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// No event has been recorded; later frees may still join.
    Open,
    /// Somebody is recording the event.
    Closing,
    /// The event lies in the stream.
    Recorded,
}

/// A point in the order of one stream.
pub(crate) struct Fence {
    /// Unique in the process.
    pub uid: u64,
    core: Arc<StreamCore>,
    state: Mutex<State>,
    closed: Condvar,
    event: OnceLock<PooledEvent>,
    done: AtomicBool,
    /// The stream's clock before the record, and its tick after it: a fence begun after another ended covers it.
    begun: AtomicU64,
    ended: AtomicU64,
}

static NEXT_FENCE: AtomicU64 = AtomicU64::new(1);

/// Numbers begin anew.
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) fn forget() {
    NEXT_FENCE.store(1, Ordering::Relaxed);
}

impl Fence {
    /// A fence that is not recorded yet.
    pub fn open(core: Arc<StreamCore>) -> Arc<Self> {
        Arc::new(Self::unrecorded(core))
    }

    fn unrecorded(core: Arc<StreamCore>) -> Self {
        Self {
            uid: NEXT_FENCE.fetch_add(1, Ordering::Relaxed),
            core,
            state: Mutex::new(State::Open),
            closed: Condvar::new(),
            event: OnceLock::new(),
            done: AtomicBool::new(false),
            begun: AtomicU64::new(u64::MAX),
            ended: AtomicU64::new(u64::MAX),
        }
    }

    /// A fence that the calling thread is about to record with [`Fence::record_begun`]: everybody else waits for that.
    pub fn begun_by_caller(core: Arc<StreamCore>) -> Arc<Self> {
        let fence = Self::open(core);
        *lock(&fence.state) = State::Closing;
        fence
    }

    /// Records a fence at the end of what is in the stream now. What is captured has no such point: an event in it may never
    /// be asked for.
    pub fn record(handle: &Handle) -> Result<Arc<Self>> {
        let fence = Self::open(handle.core().clone());
        fence.close_with(handle)?;
        Ok(fence)
    }

    /// A fence that follows work which has just been submitted through `handle`, whose stream is not being captured,
    /// and stays so ([`StreamCore::steady`]). Where no event can be recorded, waits for the stream instead; where even that fails, the fence is lost and what it marks is parked for good.
    pub fn after_work(handle: &Handle) -> (Arc<Self>, Result<()>) {
        // Nobody knows the fence before it has its event: there is nobody to exclude, and nobody to wake.
        let core = handle.core();
        let recorded = PooledEvent::new(handle.device()).and_then(|event| {
            let begun = core.now();
            handle.record_raw(event.raw())?;
            Ok((event, begun, core.tick()))
        });
        match recorded {
            Ok((event, begun, ended)) => {
                let fence = Self {
                    state: Mutex::new(State::Recorded),
                    begun: AtomicU64::new(begun),
                    ended: AtomicU64::new(ended),
                    ..Self::unrecorded(core.clone())
                };
                let _ = fence.event.set(event);
                (Arc::new(fence), Ok(()))
            }
            Err(error) => {
                let fence = Self::open(core.clone());
                if handle.synchronize().is_ok() {
                    fence.set_done();
                }
                (fence, Err(error))
            }
        }
    }

    /// The stream whose order this is a point of.
    pub fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

    /// Whether the runtime is known to have passed this point.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn set_done(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// The stream turned out to have finished everything that was submitted to it, so nothing needs to be recorded.
    pub fn mark_done(&self) {
        self.set_done();
        let mut state = lock(&self.state);
        if *state == State::Open {
            *state = State::Recorded;
        }
    }

    /// Whether an event was recorded (or is not needed any more).
    pub fn is_closed(&self) -> bool {
        self.is_done() || matches!(*lock(&self.state), State::Recorded)
    }

    /// Whether somebody is recording the event.
    pub fn is_closing(&self) -> bool {
        *lock(&self.state) == State::Closing
    }

    /// Whether no proof of completion can be had now: the end of the stream could not be recorded, only another thread can
    /// record on it, or it is being captured.
    pub fn is_lost(&self) -> bool {
        !self.is_closed() && (self.core.is_out_of_reach() || self.core.was_capturing())
    }

    /// When the record began, on the stream's clock; `u64::MAX` while the fence is open.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// When the record had ended, on the stream's clock; `u64::MAX` before.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether passing `self` proves that `other` has been passed.
    pub fn covers(&self, other: &Fence) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
            && self.begun.load(Ordering::Acquire) > other.ended.load(Ordering::Acquire)
    }

    /// The event, once it has been recorded.
    #[cfg(feature = "async")]
    pub fn raw_event(&self) -> Option<crate::cuda::RawEvent> {
        self.event.get().map(PooledEvent::raw)
    }

    /// Records the event through a live handle of the stream. Whoever comes second waits for the first.
    pub fn close_with(&self, handle: &Handle) -> Result<()> {
        if self.begin_closing()? {
            self.record_begun(handle)
        } else {
            Ok(())
        }
    }

    /// Records the event of a fence that the calling thread has begun to close.
    pub fn record_begun(&self, handle: &Handle) -> Result<()> {
        let steady = handle.core().steady();
        let event = match &steady {
            Ok(_) => handle
                .refuse_capture("an event", "record it after the capture has ended")
                .and_then(|()| PooledEvent::new(handle.device())),
            Err(error) => Err(error.clone()),
        };
        self.finish_record(handle, event)
    }

    fn finish_record(&self, handle: &Handle, event: Result<PooledEvent>) -> Result<()> {
        let result = event.and_then(|event| {
            self.begun.store(self.core.now(), Ordering::Release);
            handle.record_raw(event.raw())?;
            self.ended.store(self.core.tick(), Ordering::Release);
            let _ = self.event.set(event);
            Ok(())
        });
        self.finish_closing(result.clone());
        result
    }

    /// Makes sure that the fence has an event: its own, recorded through a handle that is still alive, or the last
    /// event of a stream that has ended.
    pub fn close(&self) -> Result<()> {
        {
            let mut state = lock(&self.state);
            while *state == State::Closing {
                state = self
                    .closed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            match &*state {
                _ if self.is_done() => return Ok(()),
                State::Recorded => return Ok(()),
                State::Open | State::Closing => {}
            }
        }
        match self.core.upgrade() {
            Some(handle) => self.close_with(&handle),
            None if self.core.is_per_thread() && !self.core.is_retired() => {
                Err(Error::Unsupported {
                    reason: "recording on another thread's default stream".into(),
                })
            }
            None => self.core.wait_for_end(),
        }
    }

    /// Takes the right to record; false if it is recorded already.
    fn begin_closing(&self) -> Result<bool> {
        let mut state = lock(&self.state);
        loop {
            match &*state {
                State::Open => {
                    *state = State::Closing;
                    return Ok(true);
                }
                State::Recorded => return Ok(false),
                State::Closing => {
                    state = self
                        .closed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }

    /// Gives up the right to record: whoever comes next may.
    pub fn leave_open(&self) {
        *lock(&self.state) = State::Open;
        self.closed.notify_all();
    }

    fn finish_closing(&self, result: Result<()>) {
        *lock(&self.state) = match result {
            Ok(()) => State::Recorded,
            // A later record covers more than this one would have: it may be tried again.
            Err(_) => State::Open,
        };
        if !planted::is_made(Mistake::FencesWakeNobody) {
            self.closed.notify_all();
        }
    }

    /// Asks the runtime whether the fence has been passed. An open fence has not.
    pub fn query(&self) -> Result<bool> {
        if self.is_done() {
            return Ok(true);
        }
        // In a forked child the locks may be held by threads that do not exist.
        process::gate()?;
        let done = match self.event.get() {
            Some(event) => event.query()?,
            None => self.core.query_end()?,
        };
        if done {
            self.set_done();
        }
        Ok(done)
    }

    /// Whether its event is still to be recorded, on a stream that is being captured now.
    pub fn waits_for_a_capture(&self) -> bool {
        !self.is_closed()
            && self
                .core
                .upgrade()
                .is_some_and(|handle| handle.is_out_of_bounds())
    }

    /// Waits on the host.
    pub fn wait_on_host(&self) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        process::gate()?;
        self.close()?;
        match self.event.get() {
            // Somebody found the stream idle meanwhile: there is no event, and nothing to wait for.
            None if self.is_done() => {}
            Some(event) => event.synchronize()?,
            None => self.core.wait_for_end_on_host()?,
        }
        self.set_done();
        Ok(())
    }

    /// Makes all work submitted to the stream of `handle` from now on wait for this fence.
    pub fn wait_on_stream(&self, handle: &Handle) -> Result<()> {
        if self.is_done() || self.core.is_same(handle.core()) {
            return Ok(());
        }
        process::gate()?;
        let _steady = handle.core().steady()?;
        if handle.is_capturing()? {
            if self.query()? {
                return Ok(());
            }
            return Err(capture::refusal(
                "waiting for work outside of a capture",
                "wait before the capture begins, or on the stream that the graph is launched in",
            ));
        }
        self.close()?;
        match self.event.get() {
            // Somebody found the stream idle meanwhile: there is no event, and nothing to wait for.
            None if self.is_done() => Ok(()),
            Some(event) => handle.wait_raw(event.raw()),
            None => self.core.wait_for_end_on_stream(handle),
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("uid", &self.uid)
            .field("stream", &self.core.id())
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::stream::{Stream, handle_of};
    use std::{
        sync::{Barrier, mpsc},
        thread,
        time::Duration,
    };

    /// Who waits for a fence is not left behind by somebody who finds the stream idle at the same moment.
    #[test]
    fn a_fence_that_is_found_done_while_others_wait_for_it_lets_them_go() {
        let (sender, receiver) = mpsc::channel();
        let worker = thread::spawn(move || {
            let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
            for _ in 0..20_000 {
                let fence = Fence::open(handle_of(&a).core().clone());
                let start = Barrier::new(2);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        start.wait();
                        fence.mark_done();
                    });
                    start.wait();
                    fence.wait_on_stream(handle_of(&b)).unwrap();
                    fence.wait_on_host().unwrap();
                });
            }
            sender.send(()).unwrap();
        });
        assert!(
            receiver.recv_timeout(Duration::from_secs(120)).is_ok(),
            "a waiter was left behind"
        );
        worker.join().unwrap();
    }
}
