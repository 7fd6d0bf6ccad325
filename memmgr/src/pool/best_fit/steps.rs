//! The steps that all operations are made of: spans into and out of the index, blocks cut and joined.
//!
//! Every change of a free span keeps the lists of owners, the figures and the seams right, so that no operation has to
//! think of them. The general steps are a detach, a change of the block alone, and an attach; what happens all the time, a
//! block taken from the front of one span and a free beside at most two spans, changes the span where it lies.

use super::blocks::{Block, Body, NOWHERE, Slot, Span};
use super::index::Entry;
use super::owners::OwnerSlot;
use super::runs::Found;
use super::space::Space;
use super::{OwnerList, Taken};

impl<T: Default> Space<T> {
    /// Makes the found place a live block. The spans under it leave the index; what is left of the first and of
    /// the last goes back with the same owner.
    #[inline]
    pub(super) fn take(&mut self, found: Found, size: usize) -> Taken {
        let Found { first, start } = found;
        let head = self.blocks.at(first);
        let (slot, owners) = match head.owner() {
            Some(owner) if start == head.addr && size <= head.len => {
                self.take_front(first, owner, size)
            }
            _ => self.take_anywhere(found, size),
        };
        self.live.insert(start, slot);
        self.in_use = self.in_use.saturating_add(size);
        Taken {
            addr: start,
            len: size,
            slot,
            owners,
        }
    }

    /// Takes the first `size` bytes of a span.
    #[inline]
    fn take_front(&mut self, first: Slot, owner: OwnerSlot, size: usize) -> (Slot, OwnerList) {
        let id = self.owners.id(owner);
        let old = Entry::of(&self.blocks, first);
        let left = old.len.saturating_sub(size);
        if left == 0 {
            self.detach(first);
            return (first, OwnerList::of(id));
        }
        let seams = self.seams > 0;
        let mut span = *self.blocks.span(first);
        let (place, seam) = (span.place, span.seam);
        (span.left, span.right, span.parent) = (Slot::NONE, Slot::NONE, Slot::NONE);
        let behind = old.addr.saturating_add(size);
        let rest = self
            .blocks
            .insert_after(first, behind, left, Body::Free(span));
        if rest.is_none() {
            debug_assert!(false, "no room for a block");
            self.detach(first);
            return (first, OwnerList::of(id));
        }
        let new = Entry {
            len: left,
            addr: behind,
            slot: rest,
        };
        if let Some(record) = self.owners.owner_mut(owner) {
            record.bytes = record.bytes.saturating_sub(size);
            if let Some(known) = record.list.get_mut(place as usize) {
                *known = rest;
            }
            let class = record.class;
            if let Some(class) = self.owners.class_mut(class) {
                if let Some(known) = class.seams.get_mut(seam as usize) {
                    *known = rest;
                }
                class
                    .index
                    .change(&mut self.nodes, &mut self.blocks, old, new);
            }
        }
        let block = self.blocks.at_mut(first);
        block.len = size;
        block.body = Body::Live(T::default());
        let prev = block.prev;
        self.splits = self.splits.saturating_add(1);
        if self.starts.are_kept() {
            self.starts.add(&self.blocks, rest, behind);
        }
        if seams {
            self.update_seam(prev);
        }
        (first, OwnerList::of(id))
    }

    /// Takes `size` bytes that may begin inside a span, and run over several.
    #[cold]
    fn take_anywhere(&mut self, found: Found, size: usize) -> (Slot, OwnerList) {
        let Found { first, start } = found;
        let end = start.saturating_add(size);
        let head = self.blocks.at(first);
        let (addr, mut behind) = (head.addr, head.end());
        let head_end = behind;
        let mut owners = OwnerList::default();
        // What is left keeps these owners; the first is idle only if the contradiction below occurs.
        let head_owner = self.blocks.owner(first).unwrap_or(OwnerSlot::IDLE);
        let mut tail_owner = head_owner;
        owners.add(self.owners.id(head_owner));
        self.detach(first);
        while behind < end {
            let last = self.blocks.at(first).next;
            let Some(owner) = self.blocks.owner(last) else {
                debug_assert!(false, "a run ends before the block does");
                break;
            };
            tail_owner = owner;
            owners.add(self.owners.id(owner));
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

    /// Makes a block that is in no index a free span, merged with those neighbours that have the same owner.
    #[inline]
    pub(super) fn coalesce(&mut self, slot: Slot, owner: OwnerSlot) {
        let Block {
            prev,
            next,
            addr,
            len,
            ..
        } = *self.blocks.at(slot);
        let before = self.blocks.owner(prev);
        let behind = self.blocks.owner(next);
        match (before == Some(owner), behind == Some(owner)) {
            (false, false) => {
                self.insert_span(slot, owner);
                if behind.is_some() {
                    self.update_seam(slot);
                }
                if before.is_some() {
                    self.update_seam(prev);
                }
            }
            (true, joins_next) => {
                if joins_next {
                    self.detach(next);
                    self.join(slot, next);
                }
                let added = self.blocks.at(slot).len;
                let old = Entry::of(&self.blocks, prev);
                let new = Entry {
                    len: old.len.saturating_add(added),
                    ..old
                };
                self.change(owner, old, new, added);
                self.join(prev, slot);
                self.update_seam(prev);
            }
            (false, true) => {
                // The span behind becomes this block's, with its places in all lists.
                let old = Entry::of(&self.blocks, next);
                let new = Entry {
                    addr,
                    len: len.saturating_add(old.len),
                    slot,
                };
                let mut span = *self.blocks.span(next);
                let (place, seam) = (span.place, span.seam);
                (span.left, span.right, span.parent) = (Slot::NONE, Slot::NONE, Slot::NONE);
                self.blocks.at_mut(slot).body = Body::Free(span);
                if let Some(record) = self.owners.owner_mut(owner) {
                    if let Some(known) = record.list.get_mut(place as usize) {
                        *known = slot;
                    }
                    let class = record.class;
                    if let Some(known) = self
                        .owners
                        .class_mut(class)
                        .and_then(|class| class.seams.get_mut(seam as usize))
                    {
                        *known = slot;
                    }
                }
                self.change(owner, old, new, len);
                self.join(slot, next);
                if before.is_some() {
                    self.update_seam(prev);
                }
            }
        }
    }

    /// Notes in the index of an owner's class that a span has other bounds, and `added` bytes more than before. The lengths
    /// in the records follow.
    #[inline]
    fn change(&mut self, owner: OwnerSlot, old: Entry, new: Entry, added: usize) {
        let Some(record) = self.owners.owner_mut(owner) else {
            debug_assert!(false, "no owner has this slot");
            return;
        };
        record.bytes = record.bytes.saturating_add(added);
        let class = record.class;
        if let Some(class) = self.owners.class_mut(class) {
            class
                .index
                .change(&mut self.nodes, &mut self.blocks, old, new);
        }
    }

    /// Cuts a block that is in no index at `at`, and returns the right part. There is room (see `request`).
    fn split(&mut self, slot: Slot, at: usize) -> Slot {
        let Block { addr, len, .. } = *self.blocks.at(slot);
        let left = at.saturating_sub(addr);
        let body = Body::Live(T::default());
        let right = self
            .blocks
            .insert_after(slot, at, len.saturating_sub(left), body);
        if right.is_none() {
            debug_assert!(false, "no room for a block");
            return slot;
        }
        self.blocks.at_mut(slot).len = left;
        self.splits = self.splits.saturating_add(1);
        if self.starts.are_kept() {
            self.starts.add(&self.blocks, right, at);
        }
        right
    }

    /// Makes two neighbours one block: the left one. The right one is in no index any more.
    #[inline]
    fn join(&mut self, left: Slot, right: Slot) {
        let Block {
            addr, len, next, ..
        } = *self.blocks.at(right);
        self.blocks.remove(right);
        let block = self.blocks.at_mut(left);
        block.len = block.len.saturating_add(len);
        self.merges = self.merges.saturating_add(1);
        if self.starts.are_kept() {
            self.starts.remove(&self.blocks, right, addr, next);
        }
    }

    /// Makes a block that is in no index a free span of this owner.
    pub(super) fn attach(&mut self, slot: Slot, owner: OwnerSlot) {
        self.insert_span(slot, owner);
        self.update_seam(slot);
        self.update_seam(self.blocks.at(slot).prev);
    }

    /// Puts a block that is in no index where free spans are found; the seams are the caller's.
    #[inline]
    fn insert_span(&mut self, slot: Slot, owner: OwnerSlot) {
        let entry = Entry::of(&self.blocks, slot);
        let mut span = Span::of(owner);
        let Some(record) = self.owners.owner_mut(owner) else {
            debug_assert!(false, "no owner has this slot");
            return;
        };
        record.spans = record.spans.saturating_add(1);
        record.bytes = record.bytes.saturating_add(entry.len);
        if owner != OwnerSlot::IDLE {
            span.place = record.list.len() as u32;
            record.list.push(slot);
        }
        let class = record.class;
        self.blocks.at_mut(slot).body = Body::Free(span);
        if let Some(class) = self.owners.class_mut(class) {
            class.index.insert(&mut self.nodes, &mut self.blocks, entry);
        }
    }

    /// Takes a free span out of everything that knows free spans. It counts as live until it is attached again.
    #[inline]
    pub(super) fn detach(&mut self, slot: Slot) {
        let entry = Entry::of(&self.blocks, slot);
        let Some(owner) = self.blocks.owner(slot) else {
            debug_assert!(false, "a span that is to leave the index is not free");
            return;
        };
        let Span { place, seam, .. } = *self.blocks.span(slot);
        if let Some(record) = self.owners.owner_mut(owner) {
            record.spans = record.spans.saturating_sub(1);
            record.bytes = record.bytes.saturating_sub(entry.len);
            if owner != OwnerSlot::IDLE {
                remove_at(&mut record.list, place, |moved| {
                    self.blocks.span_mut(moved).place = place;
                });
            }
            let class = record.class;
            if let Some(class) = self.owners.class_mut(class) {
                class.index.remove(&mut self.nodes, &mut self.blocks, entry);
                if seam != NOWHERE {
                    remove_at(&mut class.seams, seam, |moved| {
                        self.blocks.span_mut(moved).seam = seam;
                    });
                    self.seams = self.seams.saturating_sub(1);
                }
            }
        }
        let block = self.blocks.at_mut(slot);
        block.body = Body::Live(T::default());
        let prev = block.prev;
        if self.seams > 0 {
            self.update_seam(prev);
        }
    }

    /// Puts a span into the list of seams to which it belongs now, or takes it out.
    pub(super) fn update_seam(&mut self, slot: Slot) {
        let Some(owner) = self.blocks.owner(slot) else {
            return;
        };
        let next = self.blocks.at(slot).next;
        let wanted = self.blocks.owner(next).is_some();
        let seam = self.blocks.span(slot).seam;
        if wanted == (seam != NOWHERE) {
            return;
        }
        let class = self.owners.class_of(owner);
        let Some(class) = self.owners.class_mut(class) else {
            return;
        };
        if wanted {
            self.blocks.span_mut(slot).seam = class.seams.len() as u32;
            class.seams.push(slot);
            self.seams = self.seams.saturating_add(1);
        } else {
            remove_at(&mut class.seams, seam, |moved| {
                self.blocks.span_mut(moved).seam = seam;
            });
            self.blocks.span_mut(slot).seam = NOWHERE;
            self.seams = self.seams.saturating_sub(1);
        }
    }
}

/// Removes what is at a place of a list that has no order; `moved` is told what lies there now, if anything does.
#[inline]
fn remove_at(list: &mut Vec<Slot>, place: u32, moved: impl FnOnce(Slot)) {
    let place = place as usize;
    if place >= list.len() {
        debug_assert!(false, "a span is missing in a list");
        return;
    }
    list.swap_remove(place);
    if let Some(slot) = list.get(place) {
        moved(*slot);
    }
}
