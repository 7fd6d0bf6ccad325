//! Waiting for the least that lets a refused request grow: the work that keeps one segment from going back.

use super::{Pool, best_fit};
use crate::{
    error::Result,
    event::Fence,
    out_of_memory::{Holder, Holders, OutOfMemory},
};
use std::sync::Arc;

impl Pool {
    /// Waits on the host until one more segment without a live block is idle, if giving such segments back could make room
    /// for the request: the one with the fewest streams to wait for. False if there is none, or if it would not help.
    pub fn settle_segment(&self, refusal: &OutOfMemory) -> Result<bool> {
        self.flush_front();
        crate::stream::finish_retirements();
        let marks = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let unsettled = state.space.unsettled();
            let gained = (unsettled.iter()).fold(0usize, |sum, (len, _)| sum.saturating_add(*len));
            let rounded = best_fit::checked(refusal.requested)?;
            let would_have = |room: usize| room.saturating_add(gained) >= rounded;
            let limited = refusal
                .limit
                .is_some_and(|limit| !would_have(limit.saturating_sub(state.space.reserved())));
            if limited || refusal.device_free.is_some_and(|free| !would_have(free)) {
                return Ok(false);
            }
            let cost = |owners: &[best_fit::OwnerId]| {
                owners.iter().try_fold(0u32, |sum, id| {
                    Some(sum.saturating_add(state.order.rank(*id, None)?))
                })
            };
            let cheapest = (unsettled.iter())
                .filter_map(|(len, owners)| Some((cost(owners)?, *len, owners)))
                .min_by_key(|(cost, len, _)| (*cost, std::cmp::Reverse(*len)));
            let Some((_, _, owners)) = cheapest else {
                return Ok(false);
            };
            state.order.marks_of(owners.iter().copied(), None)
        };
        let waited = marks.iter().try_for_each(|mark| mark.wait_on_host());
        let (done, left): (Vec<Arc<Fence>>, Vec<Arc<Fence>>) =
            marks.into_iter().partition(|mark| mark.is_done());
        let mut state = self.state.lock();
        // What cannot be recorded now is recorded at its stream's next call.
        for mark in &left {
            state.order.enqueue(mark);
        }
        state.complete(&done, true);
        waited.map(|()| true)
    }

    /// Who holds what is in use. Looks at every block.
    pub fn holders(&self) -> Holders {
        self.flush_front();
        let state = self.state.lock();
        let stream = |live| Some(state.order.core(live)?.id());
        Holders::of(state.space.live_blocks().map(|live| Holder {
            size: self.requested(live.data),
            address: live.addr,
            stream: stream(live.data.stream()),
        }))
    }
}
