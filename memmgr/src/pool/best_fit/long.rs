//! The spans of a class that are too long for lists of one length each.
//!
//! Mostly they are few. Then they lie in no order, each knows its place, and a search looks at all of them: that costs less than
//! to keep an order. Where they are many, they lie in order.

use super::blocks::{Blocks, Slot};
use super::index::Entry;

/// From this number on they are put in order.
const MANY: usize = 48;
/// And from this one down not any more.
const FEW: usize = 16;

/// Long spans.
#[derive(Debug)]
pub(super) struct Long {
    spans: Vec<Entry>,
    /// Whether they lie in order.
    sorted: bool,
}

impl Long {
    /// No spans.
    pub const fn new() -> Self {
        Self {
            spans: Vec::new(),
            sorted: false,
        }
    }

    /// Adds a span.
    #[inline]
    pub fn insert<T: Default>(&mut self, blocks: &mut Blocks<T>, entry: Entry) {
        let span = blocks.span_mut(entry.slot);
        (span.node, span.filed) = (self.spans.len() as u32, true);
        if !self.sorted && self.spans.len() < MANY {
            self.spans.push(entry);
        } else {
            self.insert_in_order(entry);
        }
    }

    #[cold]
    fn insert_in_order(&mut self, entry: Entry) {
        if !self.sorted {
            self.spans.sort_unstable();
            self.sorted = true;
        }
        let place = self.spans.partition_point(|other| *other < entry);
        self.spans.insert(place, entry);
    }

    /// Removes a span, which is there.
    #[inline]
    pub fn remove<T: Default>(&mut self, blocks: &mut Blocks<T>, entry: Entry) {
        let span = blocks.span_mut(entry.slot);
        span.filed = false;
        let place = if self.sorted {
            self.spans.partition_point(|other| *other < entry)
        } else {
            span.node as usize
        };
        if self.spans.get(place).map(|found| found.slot) != Some(entry.slot) {
            debug_assert!(false, "a free span is missing in its index");
            return;
        }
        if self.sorted {
            self.remove_in_order(blocks, place);
            return;
        }
        self.spans.swap_remove(place);
        if let Some(moved) = self.spans.get(place) {
            blocks.span_mut(moved.slot).node = place as u32;
        }
    }

    #[cold]
    fn remove_in_order<T: Default>(&mut self, blocks: &mut Blocks<T>, place: usize) {
        self.spans.remove(place);
        if self.spans.len() <= FEW {
            self.sorted = false;
            for (place, entry) in (0..).zip(&self.spans) {
                blocks.span_mut(entry.slot).node = place;
            }
        }
    }

    /// The lowest span of exactly `len` bytes.
    #[inline]
    pub fn exact(&self, len: usize) -> Option<Slot> {
        let found = self.smallest(len)?;
        (found.len == len).then_some(found.slot)
    }

    /// The smallest span of at least `len` bytes, ties by address.
    #[inline]
    pub fn smallest(&self, len: usize) -> Option<Entry> {
        if self.sorted {
            let place = self.spans.partition_point(|entry| entry.len < len);
            return self.spans.get(place).copied();
        }
        let mut best = Entry {
            len: usize::MAX,
            addr: usize::MAX,
            slot: Slot::NONE,
        };
        for entry in &self.spans {
            if entry.len >= len
                && entry.len <= best.len
                && (entry.len < best.len || entry.addr < best.addr)
            {
                best = *entry;
            }
        }
        (!best.slot.is_none()).then_some(best)
    }

    /// The span behind a span that is there.
    pub fn after(&self, entry: Entry) -> Option<Entry> {
        if self.sorted {
            let place = self.spans.partition_point(|other| *other <= entry);
            return self.spans.get(place).copied();
        }
        self.spans
            .iter()
            .filter(|other| **other > entry)
            .min()
            .copied()
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// The length of the longest; `None` if there are none.
    pub fn longest(&self) -> Option<usize> {
        if self.sorted {
            return self.spans.last().map(|entry| entry.len);
        }
        self.spans.iter().map(|entry| entry.len).max()
    }
}
