//! Segments of `cudaMalloc` that become a longer one.
//!
//! Such segments can neither touch nor move. So a pool that grows by one segment after the other ends with many that are idle and
//! too short for what comes next. A growth therefore gives those back first, and makes one segment that is at least as
//! long as they were together. The pool holds no less afterwards, and never more in between. Each growth leaves it larger, or
//! with fewer segments, so that this ends.
//!
//! `cudaFree` waits for all of the device. So segments join only while no stream that the manager knows has work.

use super::{Pool, Request, SegmentChange, State};
use crate::error::Result;

impl Pool {
    /// Whether idle segments may become a longer one now. What the request's own stream has freed is idle afterwards, if so.
    pub(super) fn may_join(&self, request: Request<'_>) -> bool {
        if !self.source.joins() || !crate::stream::all_idle() {
            return false;
        }
        self.flush_front();
        if let Some(on) = request.on {
            let ended = self.state.lock().order.end_epoch_of(on.core());
            self.complete_ended(ended);
        }
        true
    }

    /// Gives idle segments back if the request has room then; the bytes. This thread grows the pool.
    pub(super) fn give_idle_segments(&self, rounded: usize) -> usize {
        let taken = {
            let mut state = self.state.lock();
            if rounded > state.most_room(Some(true), true) {
                return 0;
            }
            let bases: Vec<usize> = state.joinable().map(|(base, _)| base).collect();
            let taken = self.take_segments(&mut state, |_, base| bases.contains(&base));
            state.counters.joined = state.counters.joined.saturating_add(taken.len() as u64);
            taken
        };
        let mut given = 0usize;
        for (base, len) in taken {
            match self.destroy_segment(base, len) {
                Ok(()) => given = given.saturating_add(len),
                Err(error) => tracing::warn!(%error, "a segment could not be given back"),
            }
        }
        given
    }

    /// Takes the idle segments that are `wanted` out of the books: where they are, and their lengths.
    pub(super) fn take_segments(
        &self,
        state: &mut State,
        mut wanted: impl FnMut(&State, usize) -> bool,
    ) -> Vec<(usize, usize)> {
        let idle: Vec<(usize, usize)> = (state.space.segments())
            .filter(|segment| segment.wholly_idle && wanted(state, segment.base))
            .map(|segment| (segment.base, segment.len))
            .collect();
        let removed = idle
            .into_iter()
            .filter(|(base, _)| {
                state.retiring.remove(base);
                state.space.remove_segment(*base).is_ok()
            })
            .collect();
        state.set_quota(&self.front);
        removed
    }

    /// Gives back a segment that [`Pool::take_segments`] has taken.
    pub(super) fn destroy_segment(&self, base: usize, len: usize) -> Result<()> {
        self.report_segment(base, len, SegmentChange::Removed);
        // SAFETY: the segment came from this source, is out of the books, and nothing pending touches it: it was wholly
        // idle.
        unsafe { self.source.destroy(base) }
    }
}

impl State {
    /// What the pool may get at most, in bytes, as far as is known before and after it was asked whether segments may join.
    pub(super) fn most_room(&self, may_join: Option<bool>, joins: bool) -> usize {
        let given = match may_join {
            None if joins => self.space.reserved().saturating_sub(self.space.in_use()),
            Some(true) => self.joinable_len(),
            None | Some(false) => 0,
        };
        self.room().saturating_add(given)
    }

    /// What the segments are long together that may go into a longer one.
    fn joinable_len(&self) -> usize {
        (self.joinable()).fold(0usize, |sum, (_, len)| sum.saturating_add(len))
    }

    /// The segments that may go into a longer one: where they are, and their lengths.
    fn joinable(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (self.space.segments())
            .filter(|segment| segment.wholly_idle && !self.retiring.contains(&segment.base))
            .map(|segment| (segment.base, segment.len))
    }
}
