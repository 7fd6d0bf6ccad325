//! The end of a stream: its last handle goes, one last event is recorded, and whoever asks later is answered with that.

use super::{Handle, StreamCore, registry};
use crate::{
    capture, context, cuda,
    error::{Error, Result},
    event_cache::PooledEvent,
    planted::{self, Mistake},
    process,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        lock,
    },
};
use std::sync::{Arc, PoisonError};

/// How a stream ended.
pub(super) enum End {
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

impl StreamCore {
    /// Whether the last handle is gone.
    pub fn is_retired(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
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

    /// The last handle is gone: records the end, then destroys the handle if it is ours.
    pub(super) fn retire(self: &Arc<Self>) {
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
        registry::remove(self);
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

/// How many streams wait for their end.
#[cfg(all(shuttle, feature = "sim"))]
pub(super) fn deferred() -> usize {
    lock(&DEFERRED).len()
}

fn is_not_permitted(error: &Error) -> bool {
    error.cuda_code() == Some(cuda::NOT_PERMITTED)
}
