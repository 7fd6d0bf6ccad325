//! What an exact best-fit pool would reserve for a recording: a plain model, not the manager itself.
//!
//! A request takes the shortest hole that is long enough, at the lowest address among equals, and leaves
//! the rest as a hole; freed neighbours become one. Where no hole is long enough the pool grows by a
//! segment of its own, at least [`GROWTH`] long, with room for a whole number of such blocks if they are longer than a page.
//! Segments that are one hole and a sixteenth of that go first, if together they are an eighth, and the new one is at least as
//! long as they were. Streams are ignored: a freed block serves any of them at once. So it is what fragmentation
//! alone costs.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::recording::Recording;

/// The smallest segment, as the manager's pools have it.
pub const GROWTH: u64 = 32 << 20;
/// Segments are whole multiples of this.
const PAGE: u64 = 2 << 20;
/// Segments become a longer one if together they are such a part of it,
const SHARE: u64 = 8;
/// and each of them is such a part.
const PART: u64 = 16;
/// Blocks are whole multiples of this.
const UNIT: u64 = 256;

/// What the pool did.
#[derive(Debug, Default)]
pub struct Modelled {
    /// The bytes that it held, from each moment on at which that changed.
    pub reserved: Vec<(u32, u64)>,
    /// When it grew last: the moment that decides what it holds in the end.
    pub last_growth: Option<Growth>,
}

/// Why a pool grew though it had free memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    pub moment: u32,
    /// The bytes that were asked for.
    pub wanted: u64,
    /// The bytes that were free then, in all holes.
    pub free: u64,
    /// The longest hole.
    pub largest_hole: u64,
}

#[derive(Default)]
struct Pool {
    /// Holes by length, then address, and by address.
    by_length: BTreeSet<(u64, u64)>,
    by_address: BTreeMap<u64, u64>,
    /// Segments by address: their lengths.
    segments: BTreeMap<u64, u64>,
    held: u64,
    free: u64,
    /// Where the next segment begins; a gap between segments keeps holes from growing together.
    next: u64,
}

fn rounded(size: u64, to: u64) -> u64 {
    size.max(1)
        .checked_next_multiple_of(to)
        .unwrap_or(u64::MAX / to * to)
}

impl Pool {
    fn add(&mut self, address: u64, length: u64) {
        if length > 0 {
            self.by_length.insert((length, address));
            self.by_address.insert(address, length);
        }
    }

    fn remove(&mut self, address: u64, length: u64) {
        self.by_length.remove(&(length, address));
        self.by_address.remove(&address);
    }

    /// A place for so many bytes; `None` where the pool must grow.
    fn take(&mut self, length: u64) -> Option<u64> {
        let &(found, address) = self.by_length.range((length, 0)..).next()?;
        self.remove(address, found);
        self.add(address.saturating_add(length), found - length);
        self.free = self.free.saturating_sub(length);
        Some(address)
    }

    fn grow(&mut self, length: u64) {
        let least = match length < GROWTH && length > PAGE {
            true => rounded(GROWTH, length),
            false => GROWTH,
        };
        let made = rounded(length.max(least), PAGE);
        let length = made.max(self.join(length, made));
        self.add(self.next, length);
        self.segments.insert(self.next, length);
        self.next = self.next.saturating_add(length).saturating_add(PAGE);
        self.held = self.held.saturating_add(length);
        self.free = self.free.saturating_add(length);
    }

    /// Gives the segments back that are one hole and a good part of one of `made` bytes for a request of `length`; how long
    /// they were.
    fn join(&mut self, length: u64, made: u64) -> u64 {
        let is_hole = |(address, length): (&u64, &u64)| {
            let goes = self.by_address.get(address) == Some(length) && *length >= made / PART;
            goes.then_some((*address, *length))
        };
        let idle: Vec<(u64, u64)> = self.segments.iter().filter_map(is_hole).collect();
        let sum = (idle.iter()).fold(0u64, |sum, (_, length)| sum.saturating_add(*length));
        let is_short = self.segments.values().any(|segment| *segment < length);
        if !is_short || sum < made / SHARE {
            return 0;
        }
        for (address, length) in idle {
            self.remove(address, length);
            self.segments.remove(&address);
        }
        self.held = self.held.saturating_sub(sum);
        self.free = self.free.saturating_sub(sum);
        sum
    }

    fn give(&mut self, address: u64, length: u64) {
        self.free = self.free.saturating_add(length);
        let (mut from, mut to) = (address, address.saturating_add(length));
        if let Some((&before, &long)) = self.by_address.range(..address).next_back()
            && before.saturating_add(long) == address
        {
            self.remove(before, long);
            from = before;
        }
        if let Some(&long) = self.by_address.get(&to) {
            self.remove(to, long);
            to = to.saturating_add(long);
        }
        self.add(from, to.saturating_sub(from));
    }
}

/// Runs all calls of a recording; `moved` hears of each.
pub fn run(recording: &Recording, mut moved: impl FnMut(u64)) -> Modelled {
    let mut calls: Vec<(u32, bool, u32)> = Vec::with_capacity(recording.blocks.len() * 2);
    for (index, block) in recording.blocks.iter().enumerate() {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        calls.push((block.start, true, index));
        if block.end <= recording.last {
            // Of two calls at one moment the free is first.
            calls.push((block.end, false, index));
        }
    }
    calls.sort_unstable();
    let mut pool = Pool::default();
    let mut places: FxHashMap<u32, u64> = FxHashMap::default();
    let mut result = Modelled::default();
    for (moment, allocates, index) in calls {
        moved(1);
        let Some(block) = recording.blocks.get(index as usize) else {
            continue;
        };
        let length = rounded(block.size, UNIT);
        if !allocates {
            if let Some(place) = places.remove(&index) {
                pool.give(place, length);
            }
            continue;
        }
        let place = pool.take(length).or_else(|| {
            let largest = pool.by_length.last();
            result.last_growth = Some(Growth {
                moment,
                wanted: block.size,
                free: pool.free,
                largest_hole: largest.map_or(0, |&(length, _)| length),
            });
            pool.grow(length);
            match result.reserved.last_mut() {
                Some((last, held)) if *last == moment => *held = pool.held,
                _ => result.reserved.push((moment, pool.held)),
            }
            pool.take(length)
        });
        if let Some(place) = place {
            places.insert(index, place);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::recording::tests::{block, recording};
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_pool_grows_only_where_no_hole_is_long_enough() {
        // Twice 16 MiB fill a segment; once both are free 30 MiB fit, and 40 MiB do not: they take its place.
        let blocks = vec![
            block(0, 16 * MIB, 1, 3),
            block(1, 16 * MIB, 2, 4),
            block(2, 30 * MIB, 5, 6),
            block(3, 40 * MIB, 7, 9),
        ];
        let modelled = run(&recording(blocks, 8), |_| {});
        assert_eq!(modelled.reserved, [(1, 32 * MIB), (7, 40 * MIB)]);
        let growth = modelled.last_growth.expect("grown");
        assert_eq!((growth.free, growth.largest_hole), (32 * MIB, 32 * MIB));
    }

    #[test]
    fn the_shortest_hole_is_taken() {
        let mut pool = Pool::default();
        pool.grow(GROWTH);
        let places: Vec<_> = [512, 256, 1024, 256]
            .map(|n| pool.take(n).expect("room"))
            .into();
        pool.give(places[0], 512);
        pool.give(places[2], 1024);
        assert_eq!(pool.take(768), Some(places[2]));
        assert_eq!(pool.take(256), Some(places[2] + 768));
        assert_eq!(pool.take(512), Some(places[0]));
        assert_eq!(pool.free, GROWTH - 512 - 256 - 1024 - 256);
    }

    #[test]
    fn segments_hold_whole_numbers_of_blocks_and_short_ones_stay() {
        let mut pool = Pool::default();
        // Three of 11 MiB, in whole pages; a page or less gets the least.
        for (length, held) in [(11 * MIB, 34), (PAGE, 66), (600 * MIB, 666)] {
            pool.grow(length);
            assert_eq!(pool.held, held * MIB);
        }
        // All are idle; the two short ones are less than a sixteenth of this.
        pool.grow(700 * MIB);
        assert_eq!((pool.held, pool.segments.len()), (766 * MIB, 3));
    }

    #[test]
    fn sizes_at_the_end_of_the_range_are_no_overflow() {
        let blocks = vec![block(0, 1 << 63, 1, 2), block(0, 1 << 63, 2, 3)];
        let modelled = run(&recording(blocks, 2), |_| {});
        assert_eq!(modelled.reserved, [(1, 1 << 63)]);
    }
}
