//! The steps that all operations are made of: spans into and out of the index, blocks cut and joined.
//!
//! Every change of a free span is a detach, a change of the block alone, and an attach; both ends keep the index, the lists
//! and the figures right, so that no operation has to think of them. One span, the *recent* one, is free but in no
//! list and no index yet: what the last operation left over or gave back. The next operation often takes just that, or
//! lengthens it, and then nothing has to be entered or looked up. Whoever needs the lists files it first
//! ([`Space::file_recent`]).

use super::blocks::{Datum, Slot};
use super::index::Entry;
use super::runs::Found;
use super::space::{Recent, Space};
use super::{ClassId, Owner, OwnerId, OwnerList, Taken};

impl<T: Datum> Space<T> {
    /// Makes the found place a live block. The spans under it leave the index; what is left of the first and of
    /// the last goes back with the same owner.
    #[inline]
    pub(super) fn take(&mut self, found: Found, size: usize, requested: usize) -> Taken {
        let Found { first, start } = found;
        let head = self.blocks.at(first);
        let (slot, owners) = match head.owner() {
            Some(owner) if start == head.addr() && size <= head.len() => {
                let span = Entry::of(&self.blocks, first);
                let class = self.owners.class_of(owner);
                let owned = Owner::new(owner, class);
                self.take_front(span, owned, (size, requested), T::default());
                (first, OwnerList::of(owner))
            }
            _ => {
                let taken = self.take_anywhere(found, size);
                self.blocks.at_mut(taken.0).set_requested(requested);
                taken
            }
        };
        self.enter(start, slot, size);
        Taken {
            addr: start,
            len: size,
            slot,
            owners,
        }
    }

    /// Enters a live block into the books.
    #[inline]
    pub(super) fn enter(&mut self, start: usize, slot: Slot, size: usize) {
        self.live.insert(&self.blocks, start, slot);
        self.in_use = self.in_use.wrapping_add(size);
    }

    /// Takes the first bytes of a span as a live block that carries `datum`: so many, of which so many were asked for. The rest
    /// becomes the recent span.
    #[inline]
    pub(super) fn take_front(
        &mut self,
        span: Entry,
        owner: Owner,
        (size, requested): (usize, usize),
        datum: T,
    ) {
        let first = span.slot;
        let Owner { id: owner, class } = owner;
        let was_recent = self.recent.slot == first;
        let mut behind_is_free = self.recent.seams.1;
        if was_recent {
            self.recent.clear();
        } else {
            self.file_recent();
            self.unfile(span, class);
        }
        if !was_recent {
            behind_is_free = self.blocks.at(first).seam();
        }
        let left = span.len.wrapping_sub(size);
        self.blocks.at_mut(first).make_live(size, requested, datum);
        let behind = span.addr.wrapping_add(size);
        let Some(record) = self.owners.owner_mut(owner) else {
            debug_assert!(false, "no owner has this id");
            return;
        };
        record.bytes = record.bytes.wrapping_sub(size);
        if left == 0 {
            record.spans = record.spans.wrapping_sub(1);
            return;
        }
        let blocks = &mut self.blocks;
        let rest = blocks.insert_free_after(first, behind, left, owner);
        debug_assert!(!rest.is_none(), "no room for a block");
        self.recent = Recent {
            slot: rest,
            owner,
            class,
            addr: behind,
            len: left,
            seams: (false, behind_is_free),
        };
        self.splits = self.splits.wrapping_add(1);
        if self.starts.are_kept() {
            self.starts.add(&self.blocks, rest, behind);
        }
    }

    /// Takes `size` bytes that may begin inside a span, and run over several.
    #[cold]
    fn take_anywhere(&mut self, found: Found, size: usize) -> (Slot, OwnerList) {
        self.file_recent();
        let Found { first, start } = found;
        let end = start.saturating_add(size);
        let head = self.blocks.at(first);
        let (addr, mut behind) = (head.addr(), head.end());
        let head_end = behind;
        let mut owners = OwnerList::default();
        // What is left keeps these owners; the first is idle only if the contradiction below occurs.
        let head_owner = self.blocks.owner(first).unwrap_or(OwnerId::IDLE);
        let mut tail_owner = head_owner;
        owners.add(head_owner);
        self.detach(first);
        while behind < end {
            let last = self.blocks.at(first).next;
            let Some(owner) = self.blocks.owner(last) else {
                debug_assert!(false, "a run ends before the block does");
                break;
            };
            tail_owner = owner;
            owners.add(owner);
            behind = self.blocks.at(last).end();
            self.detach(last);
            self.join(first, last);
        }
        debug_assert!(addr <= start && start < head_end && end <= behind);
        let mut live = first;
        if start > addr {
            live = self.split(first, start);
            self.attach(first, head_owner);
        }
        if end < behind {
            let rest = self.split(live, end);
            self.attach(rest, tail_owner);
        }
        (live, owners.finish())
    }

    /// Makes a block that is in no index a free span, merged with those neighbours that have the same owner. It becomes the
    /// recent span.
    #[inline(always)]
    pub(super) fn coalesce(&mut self, slot: Slot, owner: Owner) {
        let Owner { id, class } = owner;
        self.frees = self.frees.wrapping_add(1);
        let block = self.blocks.at(slot);
        let (prev, next, added) = (block.prev, block.next, block.len());
        let (mut addr, mut len) = (block.addr(), added);
        let (after, before) = (self.blocks.owner(next), self.blocks.owner(prev));
        let (joins_next, joins_prev) = (after == Some(id), before == Some(id));
        let recent = self.recent.slot;
        // A recent span that becomes a part of this one is not filed.
        let takes_next = joins_next && recent == next;
        let takes_prev = joins_prev && recent == prev;
        let recent_seams = self.recent.seams;
        if !(recent.is_none() || takes_next || takes_prev) {
            self.file_recent();
        }
        let mut seams = (before.is_some(), after.is_some());
        let (mut span, mut spans) = (slot, 1);
        if joins_next {
            let behind = Entry::of(&self.blocks, next);
            len = len.wrapping_add(behind.len);
            if takes_next {
                seams.1 = recent_seams.1;
            } else {
                seams.1 = self.blocks.at(next).seam();
                self.unfile(behind, class);
            }
            self.join(slot, next);
            spans -= 1;
        }
        if joins_prev {
            let before = Entry::of(&self.blocks, prev);
            addr = before.addr;
            len = len.wrapping_add(before.len);
            // A seam before a span that is filed is noted.
            seams.0 = takes_prev && recent_seams.0;
            if !takes_prev {
                self.unfile(before, class);
            }
            self.join(prev, slot);
            spans -= 1;
            span = prev;
        }
        self.blocks.at_mut(span).make_free(len, id);
        self.recent = Recent {
            slot: span,
            owner: id,
            class,
            addr,
            len,
            seams,
        };
        if let Some(record) = self.owners.owner_mut(id) {
            record.spans = record.spans.wrapping_add_signed(spans);
            record.bytes = record.bytes.wrapping_add(added);
        }
    }

    /// Enters the recent span where free spans are found.
    #[inline]
    pub(super) fn file_recent(&mut self) {
        if !self.recent.slot.is_none() {
            self.file();
        }
    }

    /// Enters the recent span, which its owner counts already and which is there, where free spans are found.
    ///
    /// The index forgets a span at once when it goes. The lists of owners and seams do not: a slot stays there, whatever its
    /// block becomes, until somebody walks the list and finds that it does not belong there, and it is not entered twice. So a
    /// span that comes and goes costs no list anything.
    fn file(&mut self) {
        let Recent {
            slot,
            owner,
            class,
            addr,
            len,
            seams,
        } = self.recent;
        self.recent.clear();
        let block = self.blocks.at(slot);
        debug_assert_eq!(
            (block.owner(), block.addr(), block.len()),
            (Some(owner), addr, len),
            "a span that is to be filed is another"
        );
        let prev = block.prev;
        let entry = Entry { len, addr, slot };
        self.note_owner(slot, owner);
        if let Some(class) = self.owners.class_mut(class) {
            class.index.insert(&mut self.nodes, &mut self.blocks, entry);
        }
        if seams.1 {
            self.note_seam(slot);
        }
        if seams.0 && !prev.is_none() {
            self.note_seam(prev);
        }
    }

    /// Takes a free span out of the index; its owner still counts it.
    #[inline(always)]
    pub(super) fn unfile(&mut self, entry: Entry, class: ClassId) {
        if let Some(class) = self.owners.class_mut(class) {
            class.index.remove(&mut self.nodes, &mut self.blocks, entry);
        }
    }

    /// Cuts a block that is in no index at `at`, and returns the right part. There is room (see `request`).
    pub(super) fn split(&mut self, slot: Slot, at: usize) -> Slot {
        let block = self.blocks.at(slot);
        let (addr, len) = (block.addr(), block.len());
        let left = at.saturating_sub(addr);
        let right = self.blocks.insert_after(slot, at, len.saturating_sub(left));
        if right.is_none() {
            debug_assert!(false, "no room for a block");
            return slot;
        }
        self.blocks.at_mut(slot).set_len(left);
        self.splits = self.splits.wrapping_add(1);
        if self.starts.are_kept() {
            self.starts.add(&self.blocks, right, at);
        }
        right
    }

    /// Makes two neighbours, which are in no index, one block: the left one.
    #[inline(always)]
    pub(super) fn join(&mut self, left: Slot, right: Slot) {
        let block = self.blocks.at(right);
        let (addr, len, next) = (block.addr(), block.len(), block.next);
        self.blocks.remove(right);
        let block = self.blocks.at_mut(left);
        block.set_len(block.len().wrapping_add(len));
        self.merges = self.merges.wrapping_add(1);
        if self.starts.are_kept() {
            self.starts.remove(&self.blocks, right, addr, next);
        }
    }

    /// Makes a block that is in no index a free span of this owner.
    pub(super) fn attach(&mut self, slot: Slot, owner: OwnerId) {
        self.frees = self.frees.wrapping_add(1);
        let class = self.owners.class_of(owner);
        let block = self.blocks.at(slot);
        let (addr, len) = (block.addr(), block.len());
        self.blocks.at_mut(slot).make_free(len, owner);
        if let Some(record) = self.owners.owner_mut(owner) {
            record.spans = record.spans.saturating_add(1);
            record.bytes = record.bytes.saturating_add(len);
        }
        let block = self.blocks.at(slot);
        let (prev, next) = (block.prev, block.next);
        let is_free = |slot| self.blocks.owner(slot).is_some();
        let seams = (is_free(prev), is_free(next));
        self.file_recent();
        self.recent = Recent {
            slot,
            owner,
            class,
            addr,
            len,
            seams,
        };
        self.file_recent();
    }

    /// Takes a free span out of everything that knows free spans. It counts as live until it is attached again.
    pub(super) fn detach(&mut self, slot: Slot) {
        let Some(owner) = self.blocks.owner(slot) else {
            debug_assert!(false, "a span that is to leave the index is not free");
            return;
        };
        if self.recent.slot == slot {
            self.recent.clear();
        } else {
            let class = self.owners.class_of(owner);
            self.unfile(Entry::of(&self.blocks, slot), class);
        }
        let len = self.blocks.at(slot).len();
        self.blocks.at_mut(slot).make_live(len, len, T::default());
        if let Some(record) = self.owners.owner_mut(owner) {
            record.spans = record.spans.saturating_sub(1);
            record.bytes = record.bytes.saturating_sub(len);
        }
    }
}
