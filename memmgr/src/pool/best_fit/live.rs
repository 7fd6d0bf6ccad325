//! The table of the live blocks: from the first address of a block to its record.
//!
//! Buckets of eight entries, each a cache line, which is searched without a branch for each entry. An entry whose bucket is full
//! lies in the next one that is not, and every bucket that it passes counts it, so that a search knows whether to go on; a
//! removal moves nothing. An entry is the slot and 32 bits of the address, which give the home of the entry as well: growing
//! looks at no record.

use super::GRANULE;
use super::blocks::{Blocks, Datum, Slot};

/// How many entries a bucket has.
const WIDTH: usize = 8;
/// How many buckets there are at first, and from how many on it grows by an eighth at a time.
const FIRST: usize = 8;
const MANY: usize = 256;

#[derive(Debug, Clone)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WIDTH],
    /// None where there is no entry.
    slots: [Slot; WIDTH],
}

impl Bucket {
    const EMPTY: Self = Self {
        tags: [0; WIDTH],
        slots: [Slot::NONE; WIDTH],
    };

    /// A bit for each place with this tag. Some may have no entry.
    #[inline]
    fn with_tag(&self, tag: u32) -> u32 {
        let bits = (0..).zip(&self.tags);
        bits.fold(0, |bits, (place, found)| {
            bits | u32::from(*found == tag) << place
        })
    }

    /// A bit for each place with this slot.
    #[inline]
    fn with_slot(&self, slot: Slot) -> u32 {
        let bits = (0..).zip(&self.slots);
        bits.fold(0, |bits, (place, found)| {
            bits | u32::from(*found == slot) << place
        })
    }
}

/// The lowest of these bits, which are not all zero.
#[inline]
fn lowest(bits: u32) -> usize {
    bits.trailing_zeros() as usize % WIDTH
}

/// The live blocks by address.
#[derive(Debug, Default)]
pub(super) struct Table {
    buckets: Vec<Bucket>,
    /// How many entries passed each bucket, as it was full.
    passed: Vec<u32>,
    len: usize,
    /// With so many blocks it grows.
    most: usize,
}

/// What of an address an entry holds: the number of its granule, as far as it fits.
#[inline]
fn tag_of(addr: usize) -> u32 {
    (addr / GRANULE) as u32
}

impl Table {
    /// The number of live blocks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bucket in which an entry with this tag should lie.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        let mixed = u64::from(tag.wrapping_mul(0x9e37_79b1));
        (mixed.wrapping_mul(self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        let next = at.wrapping_add(1);
        if next < self.buckets.len() { next } else { 0 }
    }

    /// The record of the block at `addr`.
    #[inline]
    pub fn get<T: Datum>(&self, blocks: &Blocks<T>, addr: usize) -> Option<Slot> {
        let tag = tag_of(addr);
        let mut at = self.home(tag);
        for _ in 0..self.buckets.len() {
            let bucket = self.buckets.get(at)?;
            let mut found = bucket.with_tag(tag);
            while found != 0 {
                let slot = bucket.slots[lowest(found)];
                if !slot.is_none() && blocks.at(slot).addr() == addr {
                    return Some(slot);
                }
                found &= found - 1;
            }
            if self.passed.get(at) == Some(&0) {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// Adds a block, which is not there.
    #[inline]
    pub fn insert(&mut self, addr: usize, slot: Slot) {
        if self.len >= self.most {
            self.grow();
        }
        self.len = self.len.wrapping_add(1);
        self.put(tag_of(addr), slot);
    }

    #[inline]
    fn put(&mut self, tag: u32, slot: Slot) {
        let mut at = self.home(tag);
        // There is room: a quarter of all places is free.
        for _ in 0..self.buckets.len() {
            let Some(bucket) = self.buckets.get_mut(at) else {
                return;
            };
            let free = bucket.with_slot(Slot::NONE);
            if free != 0 {
                let place = lowest(free);
                (bucket.tags[place], bucket.slots[place]) = (tag, slot);
                return;
            }
            if let Some(passed) = self.passed.get_mut(at) {
                *passed = passed.wrapping_add(1);
            }
            at = self.next(at);
        }
    }

    #[cold]
    fn grow(&mut self) {
        let size = match self.buckets.len() {
            size @ MANY.. => size.saturating_add(size / 8),
            size => (size / 2).saturating_mul(3).max(FIRST),
        };
        self.most = size.saturating_mul(WIDTH / 4 * 3);
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; size]);
        self.passed.clear();
        self.passed.reserve_exact(size);
        self.passed.resize(size, 0);
        for bucket in old {
            for (tag, slot) in bucket.tags.into_iter().zip(bucket.slots) {
                if !slot.is_none() {
                    self.put(tag, slot);
                }
            }
        }
    }

    /// Removes the block of a record, at `addr`, which is there.
    #[inline(always)]
    pub fn remove(&mut self, addr: usize, slot: Slot) {
        let home = self.home(tag_of(addr));
        let mut at = home;
        for _ in 0..self.buckets.len() {
            let Some(bucket) = self.buckets.get_mut(at) else {
                break;
            };
            let found = bucket.with_slot(slot);
            if found != 0 {
                bucket.slots[lowest(found)] = Slot::NONE;
                self.len = self.len.wrapping_sub(1);
                if at != home {
                    self.forget(home, at);
                }
                return;
            }
            at = self.next(at);
        }
        debug_assert!(false, "a live block is not in the table");
    }

    /// An entry that passed all buckets from its home to this one is gone.
    #[cold]
    fn forget(&mut self, home: usize, at: usize) {
        let mut passed = home;
        while passed != at {
            if let Some(passed) = self.passed.get_mut(passed) {
                *passed = passed.wrapping_sub(1);
            }
            passed = self.next(passed);
        }
    }
}
