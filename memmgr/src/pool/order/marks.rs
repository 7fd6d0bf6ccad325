//! Questions about marks: which owners and requests must wait for whom, and what that costs.

use super::Order;
use crate::{
    event::Fence,
    planted::{self, Mistake},
    pool::best_fit::OwnerId,
    stream::StreamCore,
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Drops marks that a later one of the same stream proves, so that the marks of memory that changes hands for ever stay
/// few.
pub(super) fn drop_covered(marks: &mut Vec<Arc<Fence>>) {
    if marks.len() < 2 {
        return;
    }
    let mut last: FxHashMap<u64, u64> = FxHashMap::default();
    for mark in marks.iter() {
        let begun = last.entry(mark.core().uid).or_default();
        *begun = (*begun).max(mark.begun());
    }
    marks.retain(|mark| {
        last.get(&mark.core().uid)
            .is_none_or(|begun| *begun <= mark.ended())
    });
}

/// How many streams are remembered to follow a block's marks.
const FOLLOWERS: usize = 64;

/// Remembers a stream that follows a block's marks; one that is forgotten is made to wait once more.
pub(crate) fn add_follower(followers: &mut Vec<u64>, uid: u64) {
    if followers.contains(&uid) {
        return;
    }
    if followers.len() >= FOLLOWERS {
        followers.clear();
    }
    followers.push(uid);
}

impl Order {
    /// All marks of these owners that are not complete and not on the stream `besides`, ready to be waited for.
    pub fn marks_of(
        &mut self,
        owners: impl Iterator<Item = OwnerId>,
        besides: Option<&Arc<StreamCore>>,
    ) -> Vec<Arc<Fence>> {
        let mut marks: Vec<Arc<Fence>> = owners
            .filter_map(|id| self.entry(id))
            .flat_map(|entry| entry.marks.iter())
            .filter(|mark| {
                !mark.is_done() && !besides.is_some_and(|core| core.is_same(mark.core()))
            })
            .cloned()
            .collect();
        marks.sort_unstable_by_key(|mark| mark.uid);
        marks.dedup_by_key(|mark| mark.uid);
        if !planted::is_made(Mistake::EpochsGoOn) {
            for mark in &marks {
                self.detach(mark);
            }
        }
        marks
    }

    /// Whether any of these owners has a mark, complete or not, of another stream than `by`.
    pub fn has_marks_of_others(&self, owners: &[OwnerId], by: Option<&Arc<StreamCore>>) -> bool {
        let entries = owners.iter().filter_map(|id| self.entry(*id));
        let mut marks = entries.flat_map(|entry| &entry.marks);
        marks.any(|mark| !by.is_some_and(|core| core.is_same(mark.core())))
    }

    /// How costly it is to wait for an owner: streams to wait for, open epochs counting more. `None`: no proof of
    /// completion will come.
    pub fn rank(&self, id: OwnerId, by: Option<&Arc<StreamCore>>) -> Option<u32> {
        let Some(entry) = self.entry(id) else {
            return Some(0);
        };
        let mut rank = 0u32;
        for mark in entry.marks.iter().filter(|mark| !mark.is_done()) {
            if by.is_some_and(|core| core.is_same(mark.core())) {
                continue;
            }
            if mark.is_lost() {
                return None;
            }
            rank = rank.saturating_add(if mark.is_closed() || mark.core().is_retired() {
                1
            } else {
                1000
            });
        }
        Some(rank)
    }

    /// The streams that an owner waits for, by uid, in order. `None`: no proof of completion will come.
    pub fn streams_of(&self, ids: &[OwnerId]) -> Option<Vec<u64>> {
        let marks = || {
            (ids.iter())
                .filter_map(|id| self.entry(*id))
                .flat_map(|entry| &entry.marks)
        };
        let pending = || marks().filter(|mark| !mark.is_done());
        if pending().any(|mark| mark.is_lost()) {
            return None;
        }
        let mut streams: Vec<u64> = pending().map(|mark| mark.core().uid).collect();
        streams.sort_unstable();
        streams.dedup();
        Some(streams)
    }

    /// The streams whose work the spans of an owner wait for, by the driver's id, in order.
    pub fn streams_awaited(&self, id: OwnerId) -> Vec<u64> {
        let marks = self.entry(id).into_iter().flat_map(|entry| &entry.marks);
        let pending = marks.filter(|mark| !mark.is_done());
        let mut streams: Vec<u64> = pending.map(|mark| mark.core().id()).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Whether somebody waits for a fence of this kind.
    pub fn any_mark(&self, mut is: impl FnMut(&Fence) -> bool) -> bool {
        self.watches.values().any(|watch| is(&watch.fence))
    }

    /// Every fence that somebody waits for, open epochs included; for `shutdown`.
    pub fn all_marks(&mut self) -> Vec<Arc<Fence>> {
        let marks: Vec<Arc<Fence>> = self
            .watches
            .values()
            .map(|watch| watch.fence.clone())
            .collect();
        for mark in &marks {
            self.detach(mark);
        }
        marks
    }
}
