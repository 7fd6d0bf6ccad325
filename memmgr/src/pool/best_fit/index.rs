//! The index of the free spans of one class: which span is the smallest of at least a given length.
//!
//! This is all that the search for a single span rests on. The structure behind it can be replaced without
//! touching anything else; the order of entries (length, then address) is the promise.

use std::collections::BTreeSet;

use super::blocks::Slot;

/// A free span in the index. The order is that of the fields: length, then address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Entry {
    /// The length in bytes.
    pub len: usize,
    /// The first address.
    pub addr: usize,
    /// The record of the span.
    pub slot: Slot,
}

/// The free spans of one class in ascending order.
#[derive(Debug, Default)]
pub(super) struct Index {
    spans: BTreeSet<Entry>,
}

impl Index {
    /// Adds a span. False if it was there already.
    pub fn insert(&mut self, entry: Entry) -> bool {
        self.spans.insert(entry)
    }

    /// Removes a span. False if it was not there.
    pub fn remove(&mut self, entry: Entry) -> bool {
        self.spans.remove(&entry)
    }

    /// Whether a span is there.
    pub fn contains(&self, entry: Entry) -> bool {
        self.spans.contains(&entry)
    }

    /// The spans of at least `len` bytes in ascending order.
    pub fn at_least(&self, len: usize) -> impl Iterator<Item = Entry> + '_ {
        self.spans
            .range(
                Entry {
                    len,
                    addr: 0,
                    slot: Slot::FIRST,
                }..,
            )
            .copied()
    }

    /// The length of the longest span; 0 when there is none.
    pub fn longest(&self) -> usize {
        self.spans.last().map_or(0, |entry| entry.len)
    }

    /// The number of spans.
    pub fn count(&self) -> usize {
        self.spans.len()
    }
}
