//! Epochs: runs of frees of one stream that share one event. They open with a free, and end when somebody else wants the memory.

use super::{Order, Slot};
use crate::{
    event::Fence,
    pool::{best_fit::Owner, live::Place},
    stream::StreamCore,
};
use std::sync::Arc;

impl Order {
    /// The owner of what a stream frees now: its open epoch.
    #[inline]
    pub fn epoch(&mut self, place: Place) -> Owner {
        match self.slot(place) {
            Some(Slot {
                epoch: Some((_, id)),
                class,
                ..
            }) => Owner::new(*id, *class),
            _ => self.open_epoch(place),
        }
    }

    #[cold]
    fn open_epoch(&mut self, place: Place) -> Owner {
        let Some((core, class)) = self.slot(place).map(|slot| (slot.core.clone(), slot.class))
        else {
            debug_assert!(false, "no stream has this place");
            return Owner::IDLE;
        };
        let fence = Fence::open(core);
        let id = self.new_owner(vec![fence.clone()], class);
        if let Some(slot) = self.slot_mut(place) {
            slot.epoch = Some((fence, id));
        }
        Owner::new(id, class)
    }

    /// The owner of a block that was allocated on a stream and is freed in the stream's order, where nothing else is known of
    /// the block: `None` if only the stream's own thread can record its epochs.
    #[inline]
    pub fn plain_owner(&mut self, place: Place) -> Option<Owner> {
        let slot = self.slot(place)?;
        if slot.core.is_per_thread() {
            return None;
        }
        match &slot.epoch {
            Some((_, id)) => Some(Owner::new(*id, slot.class)),
            None => Some(self.open_epoch(place)),
        }
    }

    /// An epoch of its own for one free on a per-thread stream, which only its own thread can record: with
    /// [`Fence::record_begun`], at once.
    pub(super) fn single(&mut self, core: &Arc<StreamCore>) -> (Owner, Arc<Fence>) {
        let class = self.class(core);
        let fence = Fence::begun_by_caller(core.clone());
        let id = self.new_owner(vec![fence.clone()], class);
        (Owner::new(id, class), fence)
    }

    /// Whether the mark is the open epoch of its stream.
    pub(super) fn is_epoch(&self, mark: &Fence) -> bool {
        self.slot_of(mark.core())
            .and_then(|slot| slot.epoch.as_ref())
            .is_some_and(|(fence, _)| fence.uid == mark.uid)
    }

    /// A request of `by` (a stream's uid) found nothing: all other open epochs end here. Each is either known to be
    /// complete soon, because its stream turns out to be idle, or its stream records the event at its next call.
    pub fn end_epochs(&mut self, by: Option<u64>) -> Vec<Arc<Fence>> {
        let mut ended = Vec::new();
        let mut wanted = 0;
        for slot in self.slots.iter_mut().flatten() {
            if Some(slot.core.uid) == by {
                wanted += slot.wanted.len();
                continue;
            }
            if let Some((fence, _)) = slot.epoch.take() {
                slot.wanted.push(fence);
            }
            slot.wanted.retain(|fence| !fence.is_closed());
            ended.extend(slot.wanted.iter().cloned());
            wanted += slot.wanted.len();
        }
        self.wanted = wanted;
        self.tell();
        ended
    }

    /// Ends the open epoch of one stream; it, and those of the stream's that ended before and have no event yet.
    pub fn end_epoch_of(&mut self, core: &StreamCore) -> Vec<Arc<Fence>> {
        let Some(slot) = self.slot_of_mut(core) else {
            return Vec::new();
        };
        let mut added = 0;
        if let Some((fence, _)) = slot.epoch.take() {
            slot.wanted.push(fence);
            added = 1;
        }
        let ended = slot.wanted.clone();
        self.wanted = self.wanted.saturating_add(added);
        self.tell();
        ended
    }

    /// The epochs whose event the stream should record now, since others have asked for their memory.
    pub fn epochs_to_close(&mut self, core: &StreamCore) -> Vec<Arc<Fence>> {
        match self.slot_of_mut(core) {
            Some(slot) if !slot.wanted.is_empty() => {
                let wanted = std::mem::take(&mut slot.wanted);
                self.wanted = self.wanted.saturating_sub(wanted.len());
                self.tell();
                wanted
            }
            _ => Vec::new(),
        }
    }

    /// Detaches an epoch from its stream before somebody closes it: no later free may join.
    pub(super) fn detach(&mut self, fence: &Fence) {
        if let Some(slot) = self.slot_of_mut(fence.core())
            && slot
                .epoch
                .as_ref()
                .is_some_and(|(epoch, _)| epoch.uid == fence.uid)
        {
            slot.epoch = None;
        }
    }
}
