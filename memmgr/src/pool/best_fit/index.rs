//! The index of the free spans of one class: which span is the smallest of at least a given length.
//!
//! This is all that the search for a single span rests on. The structure behind it can be replaced without
//! touching anything else; the order of entries (length, then address) is the promise.

use std::collections::BTreeMap;

use super::blocks::Slot;

/// A free span in the index. The order is that of the fields: length, then address. No two spans have the same
/// address, so the slot never decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Entry {
    /// The length in bytes.
    pub len: usize,
    /// The first address.
    pub addr: usize,
    /// The record of the span.
    pub slot: Slot,
}

impl Entry {
    /// Length and address as one number of the same order, which is compared in one step.
    fn key(self) -> u128 {
        Self::least(self.len) | self.addr as u128
    }

    /// The key that is below those of all spans of this length.
    fn least(len: usize) -> u128 {
        (len as u128) << usize::BITS
    }
}

/// The free spans of one class in ascending order.
#[derive(Debug, Default)]
pub(super) struct Index {
    spans: BTreeMap<u128, Slot>,
}

impl Index {
    /// Adds a span. False if there was one of this length and address already.
    pub fn insert(&mut self, entry: Entry) -> bool {
        self.spans.insert(entry.key(), entry.slot).is_none()
    }

    /// Removes a span. False if it was not there.
    pub fn remove(&mut self, entry: Entry) -> bool {
        self.spans.remove(&entry.key()) == Some(entry.slot)
    }

    /// Whether a span is there.
    pub fn contains(&self, entry: Entry) -> bool {
        self.spans.get(&entry.key()) == Some(&entry.slot)
    }

    /// The spans of at least `len` bytes in ascending order.
    pub fn at_least(&self, len: usize) -> impl Iterator<Item = Entry> + '_ {
        self.spans
            .range(Entry::least(len)..)
            .map(|(key, slot)| Entry {
                len: (key >> usize::BITS) as usize,
                addr: *key as usize,
                slot: *slot,
            })
    }

    /// The length of the longest span; 0 when there is none.
    pub fn longest(&self) -> usize {
        let last = self.spans.last_key_value();
        last.map_or(0, |(key, _)| (key >> usize::BITS) as usize)
    }

    /// The number of spans.
    pub fn count(&self) -> usize {
        self.spans.len()
    }
}
