//! The table of the live blocks: from the first address of a block to its record.
//!
//! Buckets of eight places. Of each entry a byte of its hash is kept, its tag, so that a bucket is searched by arithmetic on
//! one word (Lamport, "Multiple byte processing with full-word instructions", 1975). An entry whose bucket is full lies in the next
//! one that is not, and every bucket that it passes counts it, so that a search knows whether to go on; a removal moves nothing.

use super::GRANULE;
use super::blocks::{Blocks, Datum, Slot};

/// How many places a bucket has.
const WIDTH: usize = 8;
/// How many buckets there are at first, and from how many on it grows by an eighth at a time.
const FIRST: usize = 8;
const MANY: usize = 256;

/// A byte of one at each place, and the highest bit of each.
const ONES: u64 = u64::MAX / 0xff;
const HIGH: u64 = ONES << 7;

#[derive(Debug, Clone)]
struct Bucket {
    /// A byte for each place; 0 where there is no entry.
    tags: u64,
    slots: [Slot; WIDTH],
    /// How many entries passed, as it was full.
    passed: usize,
}

impl Bucket {
    const EMPTY: Self = Self {
        tags: 0,
        slots: [Slot::NONE; WIDTH],
        passed: 0,
    };

    /// The place of the entry with this tag for which `is` holds.
    #[inline(always)]
    fn place(&self, tag: u8, is: impl Fn(Slot) -> bool) -> Option<usize> {
        let mut found = zeros(self.tags ^ ONES.wrapping_mul(u64::from(tag)));
        while found != 0 {
            let place = lowest(found);
            if is(self.slots[place]) {
                return Some(place);
            }
            found &= found.wrapping_sub(1);
        }
        None
    }

    /// Puts an entry in, if there is room.
    #[inline]
    fn put(&mut self, tag: u8, slot: Slot) -> bool {
        let free = zeros(self.tags);
        if free != 0 {
            let place = lowest(free);
            self.tags |= u64::from(tag) << (place * 8);
            self.slots[place] = slot;
        }
        free != 0
    }

    /// Takes an entry out.
    #[inline]
    fn clear(&mut self, place: usize) {
        self.tags &= !(0xff << (place * 8));
        self.slots[place % WIDTH] = Slot::NONE;
    }
}

/// The live blocks by address.
#[derive(Debug, Default)]
pub(super) struct Table {
    buckets: Vec<Bucket>,
    len: usize,
    /// With so many blocks it grows.
    most: usize,
}

/// What tells entries of one bucket apart, and where they should lie: 32 bits of each.
#[inline]
fn mix(addr: usize) -> (u8, u32) {
    let mixed = ((addr / GRANULE) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((mixed >> 24) as u8).max(1), (mixed >> 32) as u32)
}

/// Places whose byte is zero, by their highest bit. Above the lowest there may be others.
#[inline]
fn zeros(bytes: u64) -> u64 {
    bytes.wrapping_sub(ONES) & !bytes & HIGH
}

/// The lowest of these places, of which there are some.
#[inline]
fn lowest(places: u64) -> usize {
    places.trailing_zeros() as usize / 8 % WIDTH
}

impl Table {
    /// The number of live blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bucket in which an entry should lie.
    #[inline]
    fn home(&self, mixed: u32) -> usize {
        (u64::from(mixed).wrapping_mul(self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        let next = at.wrapping_add(1);
        if next < self.buckets.len() { next } else { 0 }
    }

    /// The bucket, which is not the home, and the place of the entry with this tag for which `is` holds.
    #[cold]
    fn behind(&self, home: usize, tag: u8, is: impl Fn(Slot) -> bool) -> Option<(usize, usize)> {
        let mut at = home;
        for _ in 0..self.buckets.len() {
            if self.buckets.get(at)?.passed == 0 {
                return None;
            }
            at = self.next(at);
            if let Some(place) = self.buckets.get(at)?.place(tag, &is) {
                return Some((at, place));
            }
        }
        None
    }

    /// The record of the block at `addr`.
    #[inline]
    pub fn get<T: Datum>(&self, blocks: &Blocks<T>, addr: usize) -> Option<Slot> {
        let (tag, mixed) = mix(addr);
        let home = self.home(mixed);
        let is = |slot| blocks.starts_at(slot, addr);
        let bucket = self.buckets.get(home)?;
        match bucket.place(tag, is) {
            Some(place) => Some(bucket.slots[place]),
            None => {
                let (at, place) = self.behind(home, tag, is)?;
                self.buckets.get(at)?.slots.get(place).copied()
            }
        }
    }

    /// Adds a block, which is not there.
    #[inline]
    pub fn insert<T: Datum>(&mut self, blocks: &Blocks<T>, addr: usize, slot: Slot) {
        if self.len >= self.most {
            self.grow(blocks);
        }
        self.len = self.len.wrapping_add(1);
        self.put(addr, slot);
    }

    #[inline]
    fn put(&mut self, addr: usize, slot: Slot) {
        let (tag, mixed) = mix(addr);
        let home = self.home(mixed);
        let bucket = self.buckets.get_mut(home);
        if !bucket.is_some_and(|bucket| bucket.put(tag, slot)) {
            self.put_behind(home, tag, slot);
        }
    }

    /// Puts an entry into the next bucket that is not full: a quarter of all places is free.
    #[cold]
    fn put_behind(&mut self, home: usize, tag: u8, slot: Slot) {
        let mut at = home;
        for _ in 0..self.buckets.len() {
            let next = self.next(at);
            if let Some(bucket) = self.buckets.get_mut(at) {
                bucket.passed = bucket.passed.wrapping_add(1);
            }
            at = next;
            let bucket = self.buckets.get_mut(at);
            if bucket.is_some_and(|bucket| bucket.put(tag, slot)) {
                return;
            }
        }
    }

    #[cold]
    fn grow<T: Datum>(&mut self, blocks: &Blocks<T>) {
        let size = match self.buckets.len() {
            size @ MANY.. => size.saturating_add(size / 8),
            size => (size / 2).saturating_mul(3).max(FIRST),
        };
        self.most = size.saturating_mul(WIDTH / 4 * 3);
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; size]);
        for slot in old.into_iter().flat_map(|bucket| bucket.slots) {
            if !slot.is_none() {
                self.put(blocks.at(slot).addr(), slot);
            }
        }
    }

    /// Removes the block of a record, at `addr`, which is there.
    #[inline(always)]
    pub fn remove(&mut self, addr: usize, slot: Slot) {
        let (tag, mixed) = mix(addr);
        let home = self.home(mixed);
        self.len = self.len.wrapping_sub(1);
        if let Some(bucket) = self.buckets.get_mut(home)
            && let Some(place) = bucket.place(tag, |found| found == slot)
        {
            bucket.clear(place);
            return;
        }
        self.remove_behind(home, tag, slot);
    }

    #[cold]
    fn remove_behind(&mut self, home: usize, tag: u8, slot: Slot) {
        let Some((at, place)) = self.behind(home, tag, |found| found == slot) else {
            debug_assert!(false, "a live block is not in the table");
            return;
        };
        if let Some(bucket) = self.buckets.get_mut(at) {
            bucket.clear(place);
        }
        let mut passed = home;
        while passed != at {
            if let Some(bucket) = self.buckets.get_mut(passed) {
                bucket.passed = bucket.passed.wrapping_sub(1);
            }
            passed = self.next(passed);
        }
    }
}
