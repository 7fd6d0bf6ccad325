//! Many lengths of long spans, in order.

use super::{Entry, tree};
use crate::pool::best_fit::blocks::{Blocks, Datum, Slot};

/// The lengths in ascending order, each with its lowest span.
#[derive(Debug)]
pub(super) struct Sorted {
    lengths: Vec<(usize, Slot)>,
}

impl Sorted {
    /// No spans.
    pub const fn new() -> Self {
        Self {
            lengths: Vec::new(),
        }
    }

    /// How many lengths there are.
    #[inline]
    pub fn lengths(&self) -> usize {
        self.lengths.len()
    }

    /// The first place of at least `len` bytes.
    fn from(&self, len: usize) -> usize {
        self.lengths.partition_point(|(other, _)| *other < len)
    }

    /// Adds a span, or all of a length that none has here: then it is the lowest.
    pub fn insert<T: Datum>(&mut self, blocks: &mut Blocks<T>, entry: Entry) {
        let place = self.from(entry.len);
        match self.lengths.get_mut(place) {
            Some((len, head)) if *len == entry.len => *head = tree::insert(blocks, *head, entry),
            _ => self.lengths.insert(place, (entry.len, entry.slot)),
        }
    }

    /// Takes out all spans of the greatest length; the lowest of them.
    pub fn release(&mut self) -> Option<Slot> {
        self.lengths.pop().map(|(_, head)| head)
    }

    /// Removes a span, which is there.
    pub fn remove<T: Datum>(&mut self, blocks: &mut Blocks<T>, entry: Entry) {
        let is_alone = blocks.is_alone(entry.slot);
        let place = self.from(entry.len);
        let Some((_, head)) = self
            .lengths
            .get_mut(place)
            .filter(|(len, _)| *len == entry.len)
        else {
            debug_assert!(false, "a free span is missing in its index");
            return;
        };
        if is_alone {
            self.lengths.remove(place);
            return;
        }
        let is_lowest = *head == entry.slot;
        if let Some(lowest) = tree::remove(blocks, entry.slot, is_lowest) {
            *head = lowest;
        }
    }

    /// The lowest span of exactly `len` bytes.
    pub fn exact(&self, len: usize) -> Option<Slot> {
        let (found, head) = self.lengths.get(self.from(len))?;
        (*found == len).then_some(*head)
    }

    /// The lowest of the smallest spans of at least `len` bytes.
    pub fn smallest(&self, len: usize) -> Option<Slot> {
        self.lengths.get(self.from(len)).map(|(_, head)| *head)
    }

    /// The greatest length.
    pub fn longest(&self) -> Option<usize> {
        self.lengths.last().map(|(len, _)| *len)
    }
}
