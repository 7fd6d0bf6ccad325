//! Growing a pool of segments; idle segments of `cudaMalloc` that become a longer one.
//!
//! Segments can neither touch nor move. So a pool that grows by one segment after the other ends with many that are idle and
//! too short for what comes next. A growth therefore gives those back first, and makes one segment that is at least as
//! long as they were together. The pool holds no less afterwards, and never more in between. Each growth leaves it larger, or
//! with fewer segments, so that this ends.
//!
//! Segments that are much shorter than the new one stay. They would be missed later: what they served would lie in the long one,
//! which then is not idle when something as long comes again.
//!
//! `cudaFree` waits for all of the device. So segments join only while no stream that the manager knows has work, and only if that
//! spares a good part of the growth.

use super::{
    GRANULE, Growth, PAGE, Pool, Request, SegmentChange, State, Ticket,
    best_fit::{self, OwnerList},
    segment,
};
use crate::{
    cuda,
    error::{Error, Result},
    spans,
    sync::thread,
};

/// Segments join if together they are at least such a part of what the pool would make,
const SHARE: usize = 8;
/// and each of them is at least such a part.
const PART: usize = 16;

/// How long a segment is that the pool makes for such a request. One that is shorter than the least that the pool grows by gets
/// room for a whole number of its like: a program that asks for one such block asks for more, and what is left behind the
/// last would be too short for any.
fn made(rounded: usize, growth: usize, joins: bool) -> usize {
    let to_pages = |len: usize| len.checked_next_multiple_of(PAGE);
    let whole = |len: usize| growth.checked_next_multiple_of(len).and_then(to_pages);
    let for_its_like = match rounded < growth && rounded > PAGE && joins {
        true => whole(rounded).unwrap_or(growth),
        false => growth,
    };
    to_pages(rounded).unwrap_or(rounded).max(for_its_like)
}

impl Pool {
    /// As [`Pool::grow`], with segments.
    pub(super) fn grow_by_segment(&self, request: Request<'_>, rounded: usize) -> Result<Growth> {
        let _span = spans::grow(self.place(), rounded);
        // A segment that is long enough would have served the request, were it idle.
        let is_short = |segment: best_fit::SegmentInfo| segment.len < rounded;
        let joins = self.source.joins() && self.state.lock().space.segments().any(is_short);
        let mut asked = false;
        let mut may_join: Option<bool> = None;
        loop {
            let mut state = match self.lock_to_grow(request)? {
                Ok(state) => state,
                Err(growth) => return Ok(growth),
            };
            let joinable = match (joins && may_join != Some(false), asked) {
                (false, _) => 0,
                (true, false) => state.most_joinable(request.on.map(|on| on.core().uid)),
                (true, true) => state.joinable(rounded),
            };
            if rounded > state.room().saturating_add(joinable) {
                return Ok(Growth::Refused);
            }
            if !std::mem::replace(&mut asked, true) {
                drop(state);
                // Before anybody waits for this growth: what frees adopted memory is anybody's code.
                segment::release_idle_orphans();
                if joins {
                    self.complete_own(request);
                }
                continue;
            }
            if joinable > 0 && may_join.is_none() {
                drop(state);
                self.flush_front();
                may_join = Some(crate::stream::all_idle());
                continue;
            }
            state.growing = Some(thread::current().id());
            break;
        }
        let _ticket = Ticket(self);
        if rounded > self.source.capacity()?.total {
            return Ok(Growth::Refused);
        }
        let given = match may_join {
            Some(true) => self.give_idle_segments(rounded),
            _ => 0,
        };
        let wanted = {
            let state = self.state.lock();
            let room = state.room();
            if rounded > room {
                return Ok(Growth::Refused);
            }
            let made = made(rounded, state.config.growth, self.source.joins());
            let wanted = made.max(given).min(room);
            // The limit may cut into the last granule.
            wanted - wanted % GRANULE
        };
        let mut refused = Ok(Growth::Refused);
        let mut sizes = vec![
            wanted,
            rounded
                .checked_next_multiple_of(PAGE)
                .unwrap_or(rounded)
                .min(wanted),
            rounded,
        ];
        sizes.dedup();
        for len in sizes {
            match self.source.create(len) {
                Ok(base) => {
                    let mut state = self.enter(base, len)?;
                    let taken = state.take_usable_on(request);
                    return Ok(taken.map_or(Growth::Elsewhere, Growth::Served));
                }
                Err(Error::Cuda {
                    code: cuda::OUT_OF_MEMORY,
                    ..
                }) => {}
                Err(error) => {
                    refused = Err(error);
                    break;
                }
            }
        }
        refused
    }

    /// Gives idle segments back if the request has room then; the bytes. This thread grows the pool.
    fn give_idle_segments(&self, rounded: usize) -> usize {
        let taken = {
            let mut state = self.state.lock();
            let joinable = state.joinable(rounded);
            if joinable == 0 || rounded > state.room().saturating_add(joinable) {
                return 0;
            }
            let bases: Vec<usize> = state.joining(rounded).map(|(base, _)| base).collect();
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

/// The lengths of segments together.
fn sum(segments: impl Iterator<Item = (usize, usize)>) -> usize {
    segments.fold(0usize, |sum, (_, len)| sum.saturating_add(len))
}

impl State {
    /// What the segments are long together that go into a longer one for such a request.
    fn joinable(&self, rounded: usize) -> usize {
        sum(self.joining(rounded))
    }

    /// The segments that go into a longer one for such a request: those that are a part of it that is worth it, and all where the
    /// limit would refuse the request otherwise.
    fn joining(&self, rounded: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let made = made(rounded, self.config.growth, true);
        let is_part = move |(_, len): &(usize, usize)| *len >= made / PART;
        let parts = sum(self.idle_for_joining().filter(is_part));
        let parts = if parts >= made / SHARE { parts } else { 0 };
        let takes_all = rounded > self.room().saturating_add(parts);
        (self.idle_for_joining())
            .filter(move |segment| takes_all || (parts > 0 && is_part(segment)))
    }

    /// What the segments are long together that may go into a longer one, with those that only `own` keeps from being idle, the
    /// uid of a stream.
    fn most_joinable(&self, own: Option<u64>) -> usize {
        let waits_for_own = |owners: &OwnerList| {
            let streams = self.order.streams_of(owners);
            streams.is_some_and(|streams| streams.iter().all(|uid| Some(*uid) == own))
        };
        let pending = (self.space.unsettled().into_iter())
            .filter(|(_, owners)| waits_for_own(owners))
            .map(|(len, _)| len);
        let idle = self.idle_for_joining().map(|(_, len)| len);
        pending.chain(idle).fold(0usize, usize::saturating_add)
    }

    /// The segments that may go into a longer one: where they are, and their lengths.
    fn idle_for_joining(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (self.space.segments())
            .filter(|segment| segment.wholly_idle && !self.retiring.contains(&segment.base))
            .map(|segment| (segment.base, segment.len))
    }
}
