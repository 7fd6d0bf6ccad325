//! Waiting for the least that lets a refused request grow: the work that keeps segments from going back, or, with mapped memory,
//! chunks from moving.

use super::{
    Pool,
    best_fit::{self, OwnerList},
};
use crate::{
    error::Result,
    out_of_memory::{Held, Holders, OutOfMemory},
};
use std::cmp::Reverse;

/// Less than this cannot move: a chunk of mapped memory.
const CHUNK: usize = 2 << 20;

/// So many times a pool waits before it grows, and once more with every so many calls: what it holds is found in the beginning, and
/// a program whose requests miss again and again would otherwise wait for its device every time.
const WAITS: u64 = 64;
const CALLS: u64 = 16384;

/// A segment without a live block that work keeps from being idle; with mapped memory what one owner has.
struct Unsettled {
    len: usize,
    owners: OwnerList,
    /// For whom it waits, in order.
    streams: Vec<u64>,
}

impl Unsettled {
    fn waits_only_for(&self, streams: &[u64]) -> bool {
        (self.streams.iter()).all(|stream| streams.binary_search(stream).is_ok())
    }
}

/// The streams to wait for: the fewest that make room, beside what there is; else those that bring the most. `None` if even
/// all together would not do.
fn worth_waiting_for(unsettled: &[Unsettled], wanted: usize, room: usize) -> Option<&[u64]> {
    let gain = |streams: &[u64]| {
        (unsettled
            .iter()
            .filter(|segment| segment.waits_only_for(streams)))
        .fold(0usize, |sum, segment| sum.saturating_add(segment.len))
    };
    let all = (unsettled.iter()).fold(0usize, |sum, segment| sum.saturating_add(segment.len));
    if room.saturating_add(all) < wanted {
        return None;
    }
    let mut sets: Vec<&[u64]> = (unsettled.iter())
        .map(|segment| &*segment.streams)
        .collect();
    sets.sort_unstable();
    sets.dedup();
    sets.into_iter().min_by_key(|streams| {
        let gain = gain(streams);
        let suffices = room.saturating_add(gain) >= wanted;
        (
            !suffices,
            if suffices { streams.len() } else { 0 },
            Reverse(gain),
        )
    })
}

impl Pool {
    /// Waits on the host until more segments without a live block are idle, or more memory that can move, if that could make room
    /// for the request: for as few streams as do, or for those that bring the most. False if there are none, or if it
    /// would not help.
    pub fn settle_segments(&self, refusal: &OutOfMemory) -> Result<bool> {
        self.flush_front();
        crate::stream::finish_retirements();
        let rounded = best_fit::checked(refusal.requested)?;
        let marks = {
            let mut state = self.state.lock();
            let is_mapped = self.source.mapped().is_some();
            let (found, idle) = if is_mapped {
                (state.space.owned(), state.space.stats().idle)
            } else {
                (state.space.unsettled(), 0)
            };
            let unsettled: Vec<Unsettled> = (found.into_iter())
                .filter_map(|(len, owners)| {
                    let streams = state.order.streams_of(&owners)?;
                    Some(Unsettled {
                        len,
                        owners,
                        streams,
                    })
                })
                .collect();
            let limited = refusal
                .limit
                .map(|limit| limit.saturating_sub(state.space.reserved()));
            let room = limited
                .unwrap_or(usize::MAX)
                .min(refusal.device_free.unwrap_or(usize::MAX))
                .saturating_add(idle);
            let Some(streams) = worth_waiting_for(&unsettled, rounded, room) else {
                return Ok(false);
            };
            let owners = (unsettled.iter())
                .filter(|segment| segment.waits_only_for(streams))
                .flat_map(|segment| segment.owners.iter().copied());
            state.order.marks_of(owners, None)
        };
        let waited = marks.iter().try_for_each(|mark| mark.wait_on_host());
        self.state.lock().note_waited(marks);
        waited.map(|()| true)
    }

    /// Before a pool of device memory grows: waits on the host for what has been freed, by the request's own stream too, if that
    /// could spare a good part of the growth. Memory that work may touch cannot move, nor join with other segments; afterwards it
    /// can. Whether anything was waited for.
    pub(super) fn settle_before_growth(&self, rounded: usize) -> bool {
        let is_mapped = self.source.mapped().is_some();
        if !is_mapped && !self.source.joins() {
            return false;
        }
        self.flush_front();
        let marks = {
            let mut state = self.state.lock();
            let found = match is_mapped {
                true => state.space.owned(),
                false => state.space.unsettled(),
            };
            let pending = match is_mapped {
                true => state.space.stats().pending,
                false => (found.iter()).fold(0usize, |sum, (len, _)| sum.saturating_add(*len)),
            };
            let most = WAITS.saturating_add(state.calls() / CALLS);
            if pending < CHUNK || pending < rounded / 8 || state.counters.settled >= most {
                return false;
            }
            state.counters.settled = state.counters.settled.saturating_add(1);
            let owners = (found.iter()).flat_map(|(_, owners)| owners.iter().copied());
            state.order.marks_of(owners, None)
        };
        // What cannot be waited for (a stream that is being captured) stays pending.
        for mark in &marks {
            if let Err(error) = mark.wait_on_host() {
                tracing::debug!(%error, "some memory stays pending");
            }
        }
        self.state.lock().note_waited(marks)
    }

    /// Who holds what is in use. Looks at every block.
    pub fn holders(&self) -> Holders {
        self.flush_front();
        let state = self.state.lock();
        let stream = |live| Some(state.order.core(live)?.id());
        Holders::of(state.space.live_blocks().map(|live| Held {
            size: self.requested(&state.extras, &live),
            address: live.addr,
            stream: stream(live.data.stream()),
            label: state.extras.of(live.data).label.as_deref(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(len: usize, streams: &[u64]) -> Unsettled {
        Unsettled {
            len,
            owners: OwnerList::default(),
            streams: streams.to_vec(),
        }
    }

    #[test]
    fn the_fewest_streams_that_make_room_are_waited_for() {
        let all = [
            segment(2, &[1]),
            segment(2, &[2]),
            segment(2, &[2]),
            segment(8, &[1, 3]),
        ];
        assert_eq!(worth_waiting_for(&all, 4, 0), Some(&[2][..]));
        assert_eq!(worth_waiting_for(&all, 5, 1), Some(&[2][..]));
        assert_eq!(worth_waiting_for(&all, 10, 0), Some(&[1, 3][..]));
        // No one set does: those that bring the most come first.
        assert_eq!(worth_waiting_for(&all, 14, 0), Some(&[1, 3][..]));
    }

    #[test]
    fn nobody_waits_for_what_would_not_help() {
        let all = [segment(2, &[1]), segment(2, &[2])];
        assert_eq!(worth_waiting_for(&all, 5, 0), None);
        assert_eq!(worth_waiting_for(&[], 1, usize::MAX), None);
    }
}
