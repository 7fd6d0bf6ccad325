//! Which marks are worth asking about, and what follows when they are complete: spans become idle.

use super::{Order, Slot};
use crate::{
    event::Fence,
    pool::{best_fit::Space, live::Live},
};
use std::sync::Arc;

/// How many fences of one stream are looked at in one call.
const QUERIES_PER_STREAM: usize = 8;

impl Order {
    /// Puts a closed fence where [`Order::candidates`] finds it, if anybody waits for it.
    pub fn enqueue(&mut self, fence: &Arc<Fence>) {
        if !self.watches.contains_key(&fence.uid) {
            return;
        }
        // What could not be recorded is tried again at the stream's next call.
        if !fence.is_closed() && !fence.core().is_retired() {
            let place = self.place(fence.core());
            if let Some(slot) = self.slot_mut(place)
                && slot.wanted.iter().all(|wanted| wanted.uid != fence.uid)
            {
                slot.wanted.push(fence.clone());
                self.wanted += 1;
                self.tell();
            }
            return;
        }
        self.queues
            .entry(fence.core().uid)
            .or_default()
            .insert((fence.begun(), fence.uid), fence.clone());
    }

    /// Whether [`Order::candidates`] has any, or spans of completed owners are still to be made idle.
    pub fn has_candidates(&self) -> bool {
        let has_ended = |slot: &Slot| {
            (slot.epoch.is_some() || !slot.wanted.is_empty()) && slot.core.is_retired()
        };
        !self.queues.is_empty()
            || !self.settling.is_empty()
            || self.slots.iter().flatten().any(has_ended)
    }

    /// Fences worth asking about: per stream the oldest closed ones, and the open epochs of streams that have ended.
    pub fn candidates(&mut self, all: bool) -> Vec<Vec<Arc<Fence>>> {
        let ended: Vec<Arc<Fence>> = self
            .slots
            .iter_mut()
            .flatten()
            .filter(|slot| slot.core.is_retired())
            .flat_map(|slot| {
                slot.epoch
                    .take()
                    .map(|(fence, _)| fence)
                    .into_iter()
                    .chain(slot.wanted.drain(..))
            })
            .collect();
        // Those that were wanted are among them.
        self.wanted = (self.slots.iter().flatten()).fold(0, |sum, slot| sum + slot.wanted.len());
        for fence in &ended {
            self.enqueue(fence);
        }
        let limit = if all { usize::MAX } else { QUERIES_PER_STREAM };
        self.queues
            .values()
            .map(|queue| queue.values().take(limit).cloned().collect())
            .collect()
    }

    /// Notes fences that have completed; their owners' spans become idle, up to `budget` of them now.
    pub fn complete<'a>(
        &mut self,
        fences: impl IntoIterator<Item = &'a Arc<Fence>>,
        space: &mut Space<Live>,
        budget: usize,
    ) {
        for fence in fences {
            let Some(watch) = self.watches.remove(&fence.uid) else {
                continue;
            };
            self.forget(fence);
            for id in watch.owners() {
                let Some(entry) = self.entry_mut(id) else {
                    continue;
                };
                entry.pending = entry.pending.saturating_sub(1);
                if entry.pending == 0 || entry.only_stream().is_some() {
                    self.settling.push_back(id);
                }
            }
        }
        self.settle(space, budget);
    }

    /// Goes on making the spans of completed owners idle.
    pub fn settle(&mut self, space: &mut Space<Live>, mut budget: usize) {
        while budget > 0 {
            let Some(id) = self.settling.front().copied() else {
                return;
            };
            // A number that was recycled meanwhile belongs to somebody else.
            let target = if self.is_complete(id) {
                None
            } else if let Some(entry) = self.entry(id).filter(|_| space.spans_of(id) > 0)
                && entry.only_stream().is_some()
            {
                // What remains lies on one stream, which may have the memory at once.
                Some(self.owner_of(entry.marks.clone()))
            } else {
                self.settling.pop_front();
                continue;
            };
            let before = space.spans_of(id);
            let finished = match target {
                None => space.settle(id, budget),
                // An error (ids that contradict each other) leaves the spans as they are.
                Some(target) => space.rename(id, target, budget).unwrap_or(true),
            };
            budget = budget.saturating_sub(before.saturating_sub(space.spans_of(id)).max(1));
            if finished {
                self.settling.pop_front();
                self.recycle(id, space);
            }
        }
    }

    /// Whether several owners wait for the fence.
    pub(super) fn is_shared(&self, fence: &Fence) -> bool {
        (self.watches.get(&fence.uid)).is_some_and(|watch| !watch.others.is_empty())
    }

    /// Nobody waits for the fence any more, which is watched no longer.
    pub(super) fn forget(&mut self, fence: &Fence) {
        let uid = fence.core().uid;
        if let Some(queue) = self.queues.get_mut(&uid) {
            queue.remove(&(fence.begun(), fence.uid));
            if queue.is_empty() {
                self.queues.remove(&uid);
            }
        }
        self.detach(fence);
        if let Some(slot) = self.slot_of_mut(fence.core()) {
            let before = slot.wanted.len();
            slot.wanted.retain(|wanted| wanted.uid != fence.uid);
            let gone = before - slot.wanted.len();
            self.wanted = self.wanted.saturating_sub(gone);
            self.tell();
        }
    }
}
