//! The steps that all operations are made of: spans into and out of the index, blocks cut and joined.
//!
//! Every change of a free span is a detach, a change of the block alone, and an attach. Both ends keep the
//! chains of owners, the figures and the seams right, so that no operation has to think of them.

use super::blocks::{Block, Chain, Slot, State};
use super::owners::OwnerSlot;
use super::runs::Found;
use super::space::Space;
use super::{OwnerList, Taken};

impl<T: Default> Space<T> {
    /// Makes the found place a live block. The spans under it leave the index; what is left of the first and of
    /// the last goes back with the same owner.
    pub(super) fn take(&mut self, found: Found, size: usize) -> Taken {
        let Found { first, start } = found;
        let end = start.saturating_add(size);
        let head = *self.blocks.at(first);
        let mut owners = OwnerList::default();
        let mut behind = head.end();
        // What is left keeps these owners; the first is idle only if the contradiction below occurs.
        let head_owner = self.blocks.owner(first).unwrap_or(OwnerSlot::IDLE);
        let mut tail_owner = head_owner;
        owners.add(self.owners.identity(head_owner).id);
        self.detach(first);
        while behind < end {
            let last = self.blocks.at(first).next;
            let Some(owner) = self.blocks.owner(last) else {
                debug_assert!(false, "a run ends before the block does");
                break;
            };
            tail_owner = owner;
            owners.add(self.owners.identity(owner).id);
            behind = self.blocks.at(last).end();
            self.detach(last);
            self.join(first, last);
        }
        debug_assert!(head.addr <= start && start < head.end() && end <= behind);
        let mut live = first;
        if start > head.addr {
            live = self.split(first, start);
            self.attach(first, head_owner);
        }
        if end < behind {
            let rest = self.split(live, end);
            self.attach(rest, tail_owner);
        }
        self.live.insert(start, live);
        self.in_use = self.in_use.saturating_add(size);
        Taken {
            addr: start,
            len: size,
            owners: owners.finish(),
        }
    }

    /// Makes a block that is in no index a free span, merged with those neighbours that have the same owner.
    pub(super) fn coalesce(&mut self, slot: Slot, owner: OwnerSlot) {
        let Block { prev, next, .. } = *self.blocks.at(slot);
        if self.blocks.owner(next) == Some(owner) {
            self.detach(next);
            self.join(slot, next);
        }
        if self.blocks.owner(prev) == Some(owner) {
            self.lengthen(prev, slot);
        } else {
            self.attach(slot, owner);
        }
    }

    /// Adds a block that is in no index to the free span before it, which stays where it is in its chain.
    fn lengthen(&mut self, span: Slot, block: Slot) {
        let old = self.entry(span);
        self.join(span, block);
        let new = self.entry(span);
        let Some(owner) = self.blocks.owner(span) else {
            debug_assert!(false, "a span that is to grow is not free");
            return;
        };
        let added = new.len.saturating_sub(old.len);
        let class = self.owners.class_of(owner);
        if let Some(record) = self.owners.owner_mut(owner) {
            record.bytes = record.bytes.saturating_add(added);
        }
        if let Some(record) = self.owners.class_mut(class) {
            record.bytes = record.bytes.saturating_add(added);
            let moved = record.index.remove(old) && record.index.insert(new);
            debug_assert!(moved, "a free span is missing in its index");
        }
        self.update_seam(span);
    }

    /// Cuts a block that is in no index at `at`, and returns the right part. There is room (see `request`).
    fn split(&mut self, slot: Slot, at: usize) -> Slot {
        let Block { addr, len, .. } = *self.blocks.at(slot);
        let left = at.saturating_sub(addr);
        let right = self.blocks.insert_after(slot, at, len.saturating_sub(left));
        if right.is_none() {
            debug_assert!(false, "no room for a block");
            return slot;
        }
        self.blocks.at_mut(slot).len = left;
        self.splits = self.splits.saturating_add(1);
        right
    }

    /// Makes two neighbours, which are in no index, one block: the left one.
    fn join(&mut self, left: Slot, right: Slot) {
        let len = self.blocks.at(right).len;
        self.blocks.remove(right);
        let block = self.blocks.at_mut(left);
        block.len = block.len.saturating_add(len);
        self.merges = self.merges.saturating_add(1);
    }

    /// Makes a block that is in no index a free span of this owner.
    pub(super) fn attach(&mut self, slot: Slot, owner: OwnerSlot) {
        let entry = self.entry(slot);
        self.blocks.at_mut(slot).state = State::Free(owner);
        let class = self.owners.class_of(owner);
        if let Some(record) = self.owners.owner_mut(owner) {
            record.spans = record.spans.saturating_add(1);
            record.bytes = record.bytes.saturating_add(entry.len);
            self.blocks.link(Chain::Owner, &mut record.first, slot);
        }
        if let Some(record) = self.owners.class_mut(class) {
            record.bytes = record.bytes.saturating_add(entry.len);
            let added = record.index.insert(entry);
            debug_assert!(added, "a free span is in its index twice");
        }
        self.update_seam(slot);
        self.update_seam(self.blocks.at(slot).prev);
    }

    /// Takes a free span out of everything that knows free spans. It counts as live until it is attached again.
    pub(super) fn detach(&mut self, slot: Slot) {
        let entry = self.entry(slot);
        let Some(owner) = self.blocks.owner(slot) else {
            debug_assert!(false, "a span that is to leave the index is not free");
            return;
        };
        let class = self.owners.class_of(owner);
        self.blocks.at_mut(slot).state = State::Live;
        if let Some(record) = self.owners.owner_mut(owner) {
            record.spans = record.spans.saturating_sub(1);
            record.bytes = record.bytes.saturating_sub(entry.len);
            self.blocks.unlink(Chain::Owner, &mut record.first, slot);
        }
        if let Some(record) = self.owners.class_mut(class) {
            record.bytes = record.bytes.saturating_sub(entry.len);
            let found = record.index.remove(entry);
            debug_assert!(found, "a free span is missing in its index");
        }
        self.update_seam(slot);
        self.update_seam(self.blocks.at(slot).prev);
    }

    /// Puts a block into the chain of seams to which it belongs now, and out of the one where it hangs.
    pub(super) fn update_seam(&mut self, slot: Slot) {
        if slot.is_none() {
            return;
        }
        let Block { next, seam, .. } = *self.blocks.at(slot);
        let wanted = match (self.blocks.owner(slot), self.blocks.owner(next)) {
            (Some(owner), Some(_)) => Some(self.owners.class_of(owner)),
            _ => None,
        };
        if wanted == seam {
            return;
        }
        if let Some(record) = seam.and_then(|class| self.owners.class_mut(class)) {
            self.blocks.unlink(Chain::Seam, &mut record.seams, slot);
        }
        if let Some(record) = wanted.and_then(|class| self.owners.class_mut(class)) {
            self.blocks.link(Chain::Seam, &mut record.seams, slot);
        }
        self.blocks.at_mut(slot).seam = wanted;
    }
}
