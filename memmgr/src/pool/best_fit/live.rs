//! The table of the live blocks: from the first address of a block to its record.
//!
//! Open addressing with linear probing; a removal moves what follows back, so that nothing dead is left behind (Knuth, "The
//! Art of Computer Programming", volume 3, 6.4, algorithm R). A place holds the slot and 32 bits of the address, which give
//! the home of the entry as well: growing and moving look at no record.

use super::GRANULE;
use super::blocks::{Blocks, Slot};

/// An empty place: its slot is none.
const EMPTY: u64 = u64::MAX;

/// From this number of places on half of them may be taken, and not a quarter: a search among few places seldom goes past the
/// first, and a processor guesses right that it does not.
const SOME: usize = 512;
/// And from this number on two thirds or so. It grows by an eighth then, so that not much less are at least: 14 bytes a block.
const MANY: usize = 2048;

/// The live blocks by address.
#[derive(Debug, Default)]
pub(super) struct Table {
    places: Vec<u64>,
    len: usize,
    /// With so many blocks it grows.
    most: usize,
}

/// What of an address a place holds: the number of its granule, as far as it fits.
#[inline]
fn tag(addr: usize) -> u32 {
    (addr / GRANULE) as u32
}

#[inline]
fn tag_of(place: u64) -> u32 {
    (place >> 32) as u32
}

#[inline]
fn slot_of(place: u64) -> Slot {
    Slot::from_number(place as u32)
}

impl Table {
    /// The number of live blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where an entry with this tag should lie.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        let mixed = u64::from(tag.wrapping_mul(0x9e37_79b1));
        (mixed.wrapping_mul(self.places.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        let next = place + 1;
        if next < self.places.len() { next } else { 0 }
    }

    /// How far it is from one place to another, forward.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            (to + self.places.len()).wrapping_sub(from)
        }
    }

    /// The place of the block at `addr`.
    #[inline]
    fn place<T: Default>(&self, blocks: &Blocks<T>, addr: usize) -> Option<usize> {
        let wanted = tag(addr);
        let mut place = self.home(wanted);
        loop {
            let found = *self.places.get(place)?;
            if found == EMPTY {
                return None;
            }
            if tag_of(found) == wanted && blocks.at(slot_of(found)).addr == addr {
                return Some(place);
            }
            place = self.next(place);
        }
    }

    /// The record of the block at `addr`.
    #[inline]
    pub fn get<T: Default>(&self, blocks: &Blocks<T>, addr: usize) -> Option<Slot> {
        let place = self.place(blocks, addr)?;
        self.places.get(place).map(|found| slot_of(*found))
    }

    /// Adds a block, which is not there.
    #[inline]
    pub fn insert(&mut self, addr: usize, slot: Slot) {
        if self.len >= self.most {
            self.grow();
        }
        self.len += 1;
        self.put(u64::from(tag(addr)) << 32 | u64::from(slot.number()));
    }

    #[inline]
    fn put(&mut self, entry: u64) {
        let mut place = self.home(tag_of(entry));
        loop {
            let next = self.next(place);
            match self.places.get_mut(place) {
                Some(found) if *found == EMPTY => {
                    *found = entry;
                    return;
                }
                Some(_) => place = next,
                None => return,
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let size = match self.places.len() {
            size @ MANY.. => size.saturating_add(size / 8),
            size => (size / 2).saturating_mul(3).max(64),
        };
        self.most = match size {
            MANY.. => size / 32 * 21,
            SOME.. => size / 2,
            _ => size / 4,
        };
        let old = std::mem::replace(&mut self.places, vec![EMPTY; size]);
        for entry in old {
            if entry != EMPTY {
                self.put(entry);
            }
        }
    }

    /// Removes the block of a record, at `addr`, which is there.
    #[inline(always)]
    pub fn remove(&mut self, addr: usize, slot: Slot) {
        let entry = u64::from(tag(addr)) << 32 | u64::from(slot.number());
        let mut hole = self.home(tag(addr));
        loop {
            match self.places.get(hole) {
                Some(found) if *found == entry => break,
                Some(found) if *found != EMPTY => hole = self.next(hole),
                _ => {
                    debug_assert!(false, "a live block is not in the table");
                    return;
                }
            }
        }
        let mut place = hole;
        loop {
            place = self.next(place);
            let Some(entry) = self.places.get(place).copied() else {
                break;
            };
            if entry == EMPTY {
                break;
            }
            // An entry may not move to a place before its home.
            let home = self.home(tag_of(entry));
            if self.distance(home, place) >= self.distance(hole, place) {
                if let Some(to) = self.places.get_mut(hole) {
                    *to = entry;
                }
                hole = place;
            }
        }
        if let Some(to) = self.places.get_mut(hole) {
            *to = EMPTY;
        }
        self.len = self.len.wrapping_sub(1);
    }
}
