//! A request that waits for the work of others: on the device where it has a stream, on the host otherwise.

use super::State;
use crate::{
    error::Result,
    event::Fence,
    planted::{self, Mistake},
    pool::{GRANULE, Pool},
    spans,
    stream::Handle,
};
use std::sync::Arc;

impl Pool {
    /// Takes memory that other streams have freed, and waits for their marks: on the device for a request with a
    /// stream, on the host otherwise. Memory whose marks turn out to be lost is left alone.
    pub(super) fn wait_and_take(
        &self,
        size: usize,
        on: Option<&Handle>,
        raw: bool,
    ) -> Result<Option<usize>> {
        // A stream that is being captured cannot wait for what is outside of the capture: the host does.
        let waits = match on {
            Some(handle) if !handle.is_capturing()? => Some(handle),
            _ => None,
        };
        loop {
            let core = on.map(Handle::core);
            let (address, marks, stolen) = {
                let mut guard = self.state.lock();
                let State { space, order, .. } = &mut *guard;
                let Some(taken) =
                    space.allocate_ranked(size, GRANULE, &mut |id| order.rank(id, core))
                else {
                    return Ok(None);
                };
                let marks = order.marks_of(taken.owners.iter().copied(), core);
                let stolen = order.has_marks_of_others(&taken.owners, core);
                let place = core.map(|core| order.place(core));
                let address = guard.hand_out(taken, size, place, raw);
                (address, marks, stolen)
            };
            let _span = (!marks.is_empty()).then(|| spans::wait(self.place(), size));
            #[cfg(feature = "trace-events")]
            if !marks.is_empty() {
                let (place, streams) = (self.place(), marks.len());
                tracing::debug!(%place, bytes = size, streams, "a request waits for other streams");
            }
            let waited = marks.iter().try_for_each(|mark| match waits {
                _ if planted::is_made(Mistake::RequestsDoNotWait) => Ok(()),
                Some(handle) => mark.wait_on_stream(handle),
                None => mark.wait_on_host(),
            });
            let mut guard = self.state.lock();
            let state = &mut *guard;
            for mark in &marks {
                state.order.enqueue(mark);
            }
            match waited {
                Ok(()) => {
                    if on.is_none() {
                        state.disinherit(address);
                        state.complete(&marks, false);
                    }
                    state.counters.reuses += 1;
                    state.counters.waits += u64::from(!marks.is_empty());
                    state.counters.steals += u64::from(stolen);
                    return Ok(Some(address));
                }
                Err(error) => {
                    state.give_back(address);
                    drop(guard);
                    // A stream that lost its marks is somebody else's trouble: try what remains.
                    if !marks.iter().any(|mark| mark.is_lost()) {
                        return Err(error);
                    }
                    tracing::debug!(%error, "marks without a proof: their memory is left alone");
                }
            }
        }
    }
}

impl State {
    /// The host has waited for these marks: what is complete makes memory idle; what cannot be recorded now, as on a stream that is
    /// being captured, is recorded at its stream's next call. Whether any is complete.
    pub(super) fn note_waited(&mut self, marks: Vec<Arc<Fence>>) -> bool {
        let (done, left): (Vec<Arc<Fence>>, Vec<Arc<Fence>>) =
            marks.into_iter().partition(|mark| mark.is_done());
        for mark in &left {
            self.order.enqueue(mark);
        }
        self.complete(&done, true);
        !done.is_empty()
    }

    /// Undoes a take whose wait failed: the marks of the memory stay.
    pub(super) fn give_back(&mut self, address: usize) {
        let Some(slot) = self.space.find(address) else {
            return;
        };
        let Some(live) = self.space.data_at(slot).copied() else {
            return;
        };
        let requested = self.space.requested_at(slot);
        // The stream did not come to follow the marks: they must all stay.
        let (owner, _) = self
            .order
            .owner_for_free(&live.on_no_stream(), &self.extras, None);
        let _ = self.space.free_at(slot, owner);
        self.forget(&live, requested);
    }
}
