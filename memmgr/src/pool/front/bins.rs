//! The bins of a lane: stacks of blocks that were freed, one for each size and stream.
//!
//! A stack's top is one word: the entry on top, how many there are, and how often the word has changed, so that a thread that
//! was stopped between its look and its exchange does not take an old top for the new one. An entry names the one below.
//!
//! Which bin is whose is only written down beside it, and may be out of date. So a block is taken only if its entry says that
//! it suits: as long as it is on top, nobody changes that.

use super::Entry;
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};

/// How many blocks a bin has at most.
pub(super) const DEPTH: u64 = if cfg!(shuttle) { 4 } else { 64 };
/// Bins of a lane are in sets of a cache line, and a size's bin is in one set.
const SETS: usize = if cfg!(shuttle) { 1 } else { 64 };
const WAYS: usize = 4;

const ENTRY_BITS: u32 = 14;
const COUNT_BITS: u32 = 8;
const _: () = assert!(super::ENTRIES < 1 << ENTRY_BITS && DEPTH < 1 << COUNT_BITS);

/// What a bin has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Top(u64);

impl Top {
    /// The number of the entry on top, plus one; 0 if the bin is empty.
    #[inline]
    fn entry(self) -> u32 {
        self.0 as u32 % (1 << ENTRY_BITS)
    }

    #[inline]
    fn count(self) -> u64 {
        self.0 >> ENTRY_BITS & ((1 << COUNT_BITS) - 1)
    }

    /// As this, changed once more.
    #[inline]
    fn changed(self, entry: u32, count: u64) -> Self {
        let changes = (self.0 >> (ENTRY_BITS + COUNT_BITS)).wrapping_add(1);
        Self(changes << (ENTRY_BITS + COUNT_BITS) | count << ENTRY_BITS | u64::from(entry))
    }
}

#[derive(Debug, Default)]
pub(super) struct Bin {
    /// Whose blocks it has, as [`key`] says; 0 if it has had none.
    key: AtomicU64,
    top: AtomicU64,
}

/// Bins that share a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([Bin; WAYS]);

#[derive(Debug)]
pub(super) struct Bins(Box<[Set]>);

/// What tells the bins of sizes and streams apart; never 0.
#[inline]
pub(super) fn key(len: usize, stream: u64) -> u64 {
    let both = (len / super::GRANULE) as u64 ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
    both.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

impl Bins {
    pub fn new() -> Self {
        Self((0..SETS).map(|_| Set::default()).collect())
    }

    #[inline]
    fn set(&self, key: u64) -> Option<&Set> {
        self.0.get((key >> 32) as usize % SETS)
    }

    /// The bin with this key.
    #[inline]
    pub fn find(&self, key: u64) -> Option<&Bin> {
        let set = self.set(key)?;
        set.0.iter().find(|bin| bin.key.load(Relaxed) == key)
    }

    /// The bin with this key, or an empty one that has it from now on.
    #[inline]
    pub fn find_or_make(&self, key: u64) -> Option<&Bin> {
        self.find(key).or_else(|| self.make(key))
    }

    #[cold]
    fn make(&self, key: u64) -> Option<&Bin> {
        let set = self.set(key)?;
        let mut bins = set.0.iter();
        let bin = bins.find(|bin| bin.count() == 0)?;
        bin.key.store(key, Relaxed);
        Some(bin)
    }

    pub fn all(&self) -> impl Iterator<Item = &Bin> {
        self.0.iter().flat_map(|set| &set.0)
    }
}

impl Bin {
    fn top(&self) -> Top {
        Top(self.top.load(SeqCst))
    }

    #[inline]
    pub fn count(&self) -> u64 {
        self.top().count()
    }

    /// Puts an entry on top, which only the caller can reach; false if the bin is full.
    #[inline]
    pub fn push(&self, entries: &[Entry], number: u32) -> bool {
        let Some(entry) = entries.get(number as usize) else {
            return false;
        };
        let mut top = self.top();
        loop {
            if top.count() >= DEPTH {
                return false;
            }
            entry.below.store(top.entry().into(), Relaxed);
            let next = top.changed(number.wrapping_add(1), top.count().wrapping_add(1));
            match (self.top).compare_exchange(top.0, next.0, SeqCst, Relaxed) {
                Ok(_) => return true,
                Err(now) => top = Top(now),
            }
        }
    }

    /// Takes the entry on top, if it suits.
    #[inline]
    pub fn pop<'a>(
        &self,
        entries: &'a [Entry],
        suits: impl Fn(&Entry) -> bool,
    ) -> Option<(u32, &'a Entry)> {
        let mut top = Top(self.top.load(Acquire));
        loop {
            let number = top.entry().checked_sub(1)?;
            let entry = entries.get(number as usize)?;
            if !suits(entry) {
                return None;
            }
            let below = entry.below.load(Relaxed) as u32;
            let next = top.changed(below, top.count().wrapping_sub(1));
            match (self.top).compare_exchange(top.0, next.0, SeqCst, Acquire) {
                Ok(_) => return Some((number, entry)),
                Err(now) => top = Top(now),
            }
        }
    }

    /// Takes everything: the numbers of the entries, from the top. What lies below an entry is read before the entry is
    /// handed on.
    pub fn empty<'a>(&self, entries: &'a [Entry]) -> impl Iterator<Item = u32> + use<'a> {
        let mut top = self.top();
        while top.entry() != 0 {
            let next = top.changed(0, 0);
            match (self.top).compare_exchange(top.0, next.0, SeqCst, Acquire) {
                Ok(_) => break,
                Err(now) => top = Top(now),
            }
        }
        let mut next = top.entry();
        std::iter::from_fn(move || {
            let number = next.checked_sub(1)?;
            // An exchange, though nobody else looks: the entry will be written, so its cache line is fetched for that at once.
            next = entries.get(number as usize)?.below.swap(0, Relaxed) as u32;
            Some(number)
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn entries(count: usize) -> Vec<Entry> {
        (0..count).map(|_| Entry::default()).collect()
    }

    #[test]
    fn the_last_one_in_is_the_first_one_out() {
        let (bin, entries) = (Bin::default(), entries(100));
        let pushed = (0..100)
            .filter(|number| bin.push(&entries, *number))
            .count() as u64;
        assert_eq!((pushed, bin.count()), (DEPTH, DEPTH));
        let top = DEPTH as u32 - 1;
        assert!(bin.pop(&entries, |_| false).is_none());
        assert_eq!(
            bin.pop(&entries, |_| true).map(|(number, _)| number),
            Some(top)
        );
        assert!(bin.push(&entries, 99));
        let all: Vec<u32> = bin.empty(&entries).collect();
        let expected: Vec<u32> = std::iter::once(99).chain((0..top).rev()).collect();
        assert_eq!((all, bin.count()), (expected, 0));
        assert!(bin.pop(&entries, |_| true).is_none());
    }

    #[test]
    fn a_bin_that_is_empty_serves_another_size() {
        let (bins, entries) = (Bins::new(), entries(64));
        let set = key(256, 1) >> 32 & (SETS as u64 - 1);
        let keys = (1..).map(|n| key(256 * n, 1));
        let keys: Vec<u64> = keys
            .filter(|key| key >> 32 & (SETS as u64 - 1) == set)
            .take(WAYS + 1)
            .collect();
        let (last, first) = keys.split_last().unwrap();
        for (number, key) in (0..).zip(first) {
            assert!(bins.find(*key).is_none());
            assert!(bins.find_or_make(*key).unwrap().push(&entries, number));
        }
        assert!(bins.find_or_make(*last).is_none(), "all have something");
        let bin = bins.find(first[1]).unwrap();
        assert_eq!(bin.empty(&entries).collect::<Vec<_>>(), [1]);
        assert!(std::ptr::eq(bins.find_or_make(*last).unwrap(), bin));
        assert!(bins.find(first[1]).is_none());
    }

    /// Whoever has an entry is the only one that has it.
    #[test]
    fn threads_never_get_one_entry_twice() {
        const COUNT: usize = 48;
        let (bins, entries) = ([Bin::default(), Bin::default()], entries(COUNT));
        let owners: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
        for number in 0..COUNT {
            assert!(bins[number % 2].push(&entries, number as u32));
        }
        std::thread::scope(|scope| {
            for thread in 1..=4u32 {
                let (bins, entries, owners) = (&bins, &entries, &owners);
                scope.spawn(move || {
                    let own = |number: u32| {
                        let before = owners[number as usize].swap(thread, SeqCst);
                        assert_eq!(before, 0, "entry {number} has two owners");
                    };
                    let give = |bin: &Bin, number: u32| {
                        assert_eq!(owners[number as usize].swap(0, SeqCst), thread);
                        assert!(bin.push(entries, number));
                    };
                    for round in 0..30_000u32 {
                        let (from, to) =
                            (&bins[(round % 2) as usize], &bins[(round / 2 % 2) as usize]);
                        if round % 64 == thread {
                            let all: Vec<u32> = from.empty(entries).inspect(|n| own(*n)).collect();
                            all.into_iter().for_each(|number| give(to, number));
                        } else if let Some((number, _)) = from.pop(entries, |_| true) {
                            own(number);
                            give(to, number);
                        }
                    }
                });
            }
        });
        let left: usize = bins.iter().map(|bin| bin.empty(&entries).count()).sum();
        assert_eq!(left, COUNT);
    }
}
