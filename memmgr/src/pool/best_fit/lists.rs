//! The lists of owners and of seams, which are tidied lazily: a slot stays where it was entered, whatever its block becomes, until
//! somebody walks the list and finds that it does not belong there.

use super::OwnerId;
use super::blocks::{Datum, Slot, UNLISTED};
use super::space::Space;

/// How much longer than one and a quarter times the number of spans an owner's list may be, and how many places of a longer one
/// are looked at with each slot that comes.
const LOOSE: usize = 64;
const LOOKS: usize = 2;

impl<T: Datum> Space<T> {
    /// Enters a slot into its owner's list, if that is kept and does not have it.
    #[inline]
    pub(super) fn note_owner(&mut self, slot: Slot, owner: OwnerId) {
        let is_kept = owner != OwnerId::IDLE
            && self
                .owners
                .owner(owner)
                .is_some_and(|record| !record.implied);
        if is_kept && self.blocks.listed(slot) != owner.0 {
            self.list(slot, owner);
        }
    }

    /// Enters a slot into its owner's list. A list with many slots that do not belong there any more loses a few with each
    /// that comes. One into which more have come than there are records is not kept any more: to make it when it is wanted costs
    /// less.
    fn list(&mut self, slot: Slot, owner: OwnerId) {
        let slots = self.blocks.slots();
        let Some(record) = self.owners.owner_mut(owner) else {
            return;
        };
        record.entered = record.entered.saturating_add(1);
        if record.entered > slots.max(LOOSE) {
            record.implied = true;
            record.list.clear();
            return;
        }
        let loose = record
            .spans
            .saturating_add(record.spans / 4)
            .saturating_add(LOOSE);
        if record.list.len() == record.list.capacity() {
            // Only what belongs there makes the list longer than it ever was.
            self.tidy(owner);
            if let Some(record) = self.owners.owner_mut(owner) {
                make_room(&mut record.list);
            }
        } else if record.list.len() >= loose {
            for _ in 0..LOOKS {
                let place = record.next_look;
                let Some(other) = record.list.get(place).copied() else {
                    record.next_look = 0;
                    continue;
                };
                let is_listed = self.blocks.listed(other) == owner.0;
                if is_listed && self.blocks.owner(other) == Some(owner) {
                    record.next_look = place.saturating_add(1);
                    continue;
                }
                if is_listed {
                    self.blocks.set_listed(other, UNLISTED);
                }
                record.list.swap_remove(place);
            }
        }
        if let Some(record) = self.owners.owner_mut(owner) {
            record.list.push(slot);
            self.blocks.set_listed(slot, owner.0);
        }
    }

    /// How long a list is at most: it was tidied at twice as many slots as the owner has spans, and [`LOOSE`].
    pub(super) fn longest_list(&self) -> usize {
        let slots = self.blocks.slots();
        slots.saturating_mul(2).saturating_add(LOOSE + 1)
    }

    /// Drops from an owner's list what is not its span any more.
    #[cold]
    fn tidy(&mut self, owner: OwnerId) {
        let blocks = &mut self.blocks;
        let Some(record) = self.owners.owner_mut(owner) else {
            return;
        };
        // A slot that is there twice stays once: `listed` is taken away at the first, and given back in the end.
        record.list.retain(|slot| {
            if blocks.listed(*slot) != owner.0 {
                return false;
            }
            blocks.set_listed(*slot, UNLISTED);
            blocks.owner(*slot) == Some(owner)
        });
        for slot in &record.list {
            blocks.set_listed(*slot, owner.0);
        }
    }

    /// Makes the list of an owner's spans, but for the recent one, if it is not kept.
    pub(super) fn make_list(&mut self, owner: OwnerId) {
        let Some(record) = self.owners.owner_mut(owner).filter(|owner| owner.implied) else {
            return;
        };
        (record.implied, record.entered, record.next_look) = (false, 0, 0);
        let list = &mut record.list;
        let recent = self.recent.slot;
        self.blocks.for_each(|slot, block, listed| {
            if *listed == owner.0 {
                *listed = UNLISTED;
            }
            if block.owner() == Some(owner) && slot != recent {
                *listed = owner.0;
                list.push(slot);
            }
        });
    }

    /// Takes a span of an owner that has some, but for the recent one, from its list; it stays free and filed.
    pub(super) fn pop_span(&mut self, owner: OwnerId) -> Option<Slot> {
        self.make_list(owner);
        let record = self.owners.owner_mut(owner)?;
        while let Some(slot) = record.list.pop() {
            if self.blocks.listed(slot) == owner.0 {
                self.blocks.set_listed(slot, UNLISTED);
                if self.blocks.owner(slot) == Some(owner) {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// The span behind this one is free too.
    #[inline]
    pub(super) fn note_seam(&mut self, slot: Slot) {
        let block = self.blocks.at_mut(slot);
        if !block.seam() {
            block.set_seam(true);
            if self.seams.len() == self.seams.capacity() {
                self.tidy_seams();
                make_room(&mut self.seams);
            }
            self.seams.push(slot);
        }
    }

    /// Drops from the list of seams what is none any more.
    fn tidy_seams(&mut self) {
        let blocks = &mut self.blocks;
        self.seams.retain(|slot| {
            let block = blocks.at(*slot);
            let stays = block.owner().is_some() && blocks.owner(block.next).is_some();
            blocks.at_mut(*slot).set_seam(stays);
            stays
        });
    }
}

/// Lets a list that has just been tidied grow by half where it is still nearly full.
fn make_room(list: &mut Vec<Slot>) {
    let (len, room) = (list.len(), list.capacity());
    if len >= room - room / 4 {
        list.reserve_exact((room / 2).max(LOOSE));
    }
}
