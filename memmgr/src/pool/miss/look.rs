//! Which work has ended: what nobody has to wait for any more is asked about, and becomes idle.

use super::{Request, State};
use crate::{
    cuda,
    event::Fence,
    planted::{self, Mistake},
    pool::Pool,
    stream::Handle,
};
use std::sync::Arc;

impl Pool {
    /// Asks about closed epochs and recorded uses, and searches again.
    pub(super) fn look(&self, request: Request<'_>) -> Option<usize> {
        crate::stream::finish_retirements();
        let ended = {
            let mut state = self.state.lock();
            let mut found = state.take_if_changed(request);
            // First what is cheap; then everything: before growing, nothing that is free may be overlooked.
            for all in [false, true] {
                if found.is_some() || !state.order.has_candidates() {
                    break;
                }
                drop(state);
                self.poll(all);
                state = self.state.lock();
                found = state.take_if_changed(request);
            }
            if found.is_some() {
                return found;
            }
            state.order.sweep();
            (state.order).end_epochs(request.on.map(|on| on.core().uid))
        };
        let done = idle_of(ended);
        let mut state = self.state.lock();
        if !done.is_empty() {
            state.complete(&done, true);
        }
        state.take_if_changed(request)
    }

    /// Ends the open epochs of all other streams. Those whose stream turns out to be idle are complete at once; the rest
    /// get their event at their stream's next call.
    pub(super) fn end_epochs(&self, on: Option<&Handle>) {
        let ended = self
            .state
            .lock()
            .order
            .end_epochs(on.map(|on| on.core().uid));
        self.complete_ended(ended);
    }

    /// What the request's own stream has freed can move, or join, only once that is idle.
    pub(super) fn complete_own(&self, request: Request<'_>) {
        if let Some(on) = request.on.filter(|on| on.core().is_idle()) {
            let ended = self.state.lock().order.end_epoch_of(on.core());
            self.complete_ended(ended);
        }
    }

    /// Of epochs that have ended, those whose stream turns out to be idle are complete.
    fn complete_ended(&self, ended: Vec<Arc<Fence>>) {
        let done = idle_of(ended);
        if !done.is_empty() {
            self.state.lock().complete(&done, true);
        }
    }

    /// Queries fences and makes what has completed idle: a bounded part, or all of it.
    pub(in crate::pool) fn poll(&self, all: bool) {
        crate::stream::finish_retirements();
        let candidates = self.state.lock().order.candidates(all);
        let mut done: Vec<Arc<Fence>> = Vec::new();
        let count = candidates.iter().map(Vec::len).sum();
        ask_at_once(count, || {
            for queue in candidates {
                for fence in queue {
                    match fence.query() {
                        Ok(true) => done.push(fence),
                        // Work of one stream completes in order.
                        Ok(false) => break,
                        // Without an answer there is no proof: the memory stays pending.
                        Err(error) => {
                            tracing::debug!(%error, "an event could not be queried");
                            break;
                        }
                    }
                }
            }
        });
        let mut state = self.state.lock();
        state.complete(&done, all);
        if all || state.order.is_crowded() {
            state.order.sweep();
        }
    }
}

impl State {
    /// Searches at once, if the pool is ready for that.
    pub(in crate::pool) fn hit_run(&mut self, request: Request<'_>) -> Option<usize> {
        if !self.prepared || self.release_due {
            return None;
        }
        let found = self.take_if_changed(request)?;
        self.counters.served += 1;
        Some(found)
    }

    /// Searches, unless the request has just found nothing.
    pub(super) fn take_if_changed(&mut self, request: Request<'_>) -> Option<usize> {
        let place = request.on.map(|on| self.order.place(on.core()));
        if self.has_missed(request.size, place) {
            return None;
        }
        let found = self.take_usable(request.size, place, request.raw);
        match found {
            Some(_) => self.counters.reuses += 1,
            None => self.note_miss(request.size, place),
        }
        found
    }
}

/// Asks so many questions, which are about work that is going on: with one change of the thread's capture mode, where each would
/// change it for itself. Where that is refused there are no answers.
fn ask_at_once(count: usize, ask: impl FnOnce()) {
    if count < 2 {
        ask();
        return;
    }
    let asked = cuda::relaxed(|| {
        ask();
        Ok(())
    });
    if let Err(error) = asked {
        tracing::debug!(%error, "nothing could be asked");
    }
}

/// Those of the epochs, which have ended, whose stream turns out to be idle: they are complete. Epochs of one stream lie side by
/// side.
fn idle_of(mut ended: Vec<Arc<Fence>>) -> Vec<Arc<Fence>> {
    let streams = ended.chunk_by(|one, other| one.core().uid == other.core().uid);
    let mut done = Vec::new();
    ask_at_once(streams.count(), || {
        let mut asked: Option<(u64, bool)> = None;
        ended.retain(|fence| {
            let uid = fence.core().uid;
            let is_idle = match asked {
                Some((known, is_idle)) if known == uid => is_idle,
                _ => fence.core().is_idle(),
            };
            asked = Some((uid, is_idle));
            let is_done = is_idle || planted::is_made(Mistake::EpochsEndUnproven);
            if is_done {
                fence.mark_done();
            }
            is_done
        });
        done = std::mem::take(&mut ended);
    });
    done
}
