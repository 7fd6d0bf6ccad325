//! The chunks that a plan can take, by their length and by where they are.

use super::Chunk;
use crate::pool::best_fit::Slot;
use std::{collections::BTreeMap, ops::Range};

/// A chunk that could move.
#[derive(Debug, Clone, Copy)]
pub(super) struct Idle {
    pub chunk: Chunk,
    /// Where it is; `None`: mapped nowhere.
    pub from: Option<usize>,
    /// The span around it; `None`: it sleeps, or is mapped nowhere.
    pub span: Option<Slot>,
}

impl Idle {
    /// Whether it lies outside of a block.
    pub fn is_apart(&self, block: &Range<usize>) -> bool {
        self.from.is_none_or(|start| {
            start.saturating_add(self.chunk.len) <= block.start || block.end <= start
        })
    }
}

/// Chunks that could move. Of those of one length the last that came is taken first.
#[derive(Debug, Default)]
pub(super) struct Stock {
    /// Those that were there from the beginning come first, by address. None where one has been taken.
    all: Vec<Option<Idle>>,
    /// Where those are.
    places: Vec<usize>,
    /// Length → places in `all`, of which some may have been taken.
    lists: BTreeMap<usize, Vec<usize>>,
}

impl Stock {
    /// Of chunks by ascending address.
    pub fn of(chunks: impl Iterator<Item = Idle>) -> Self {
        let mut stock = Self::default();
        for idle in chunks {
            stock.places.extend(idle.from);
            stock.put(idle);
        }
        stock
    }

    /// One more, which is taken before others.
    pub fn put(&mut self, idle: Idle) {
        let list = self.lists.entry(idle.chunk.len).or_default();
        list.push(self.all.len());
        self.all.push(Some(idle));
    }

    fn number(&self, place: usize) -> Option<usize> {
        self.places.binary_search(&place).ok()
    }

    /// Whether one that was there from the beginning is at an address, and has not been taken.
    pub fn has(&self, place: usize) -> bool {
        let idle = self.number(place).and_then(|number| self.all.get(number));
        idle.is_some_and(Option::is_some)
    }

    /// That one.
    pub fn at(&mut self, place: usize) -> Option<Idle> {
        let number = self.number(place)?;
        self.all.get_mut(number)?.take()
    }

    fn take(&mut self, len: usize) -> Option<Idle> {
        let list = self.lists.get_mut(&len)?;
        while let Some(number) = list.pop() {
            let found = self.all.get_mut(number).and_then(Option::take);
            if found.is_some() {
                return found;
            }
        }
        self.lists.remove(&len);
        None
    }

    /// The longest that is not longer, and idle: it may sleep in place of another.
    pub fn idle_at_most(&mut self, len: usize) -> Option<Idle> {
        let all = &mut self.all;
        self.lists.range_mut(..=len).rev().find_map(|(_, list)| {
            // Those that have been taken by their place are passed over once.
            while let Some(number) = list.last()
                && all.get(*number).is_none_or(Option::is_none)
            {
                list.pop();
            }
            let last = list.iter().rposition(|number| {
                let idle = all.get(*number).and_then(Option::as_ref);
                idle.is_some_and(|idle| idle.span.is_some())
            })?;
            let number = list.remove(last);
            all.get_mut(number)?.take()
        })
    }

    /// The longest that is not longer.
    pub fn at_most(&mut self, len: usize) -> Option<Idle> {
        while let Some(found) = self.lists.range(..=len).next_back().map(|(len, _)| *len) {
            let taken = self.take(found);
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// The shortest that is longer, but not too long.
    pub fn longer(&mut self, than: usize, most: usize) -> Option<Idle> {
        while let Some(found) = self.lists.range(than..).next().map(|(len, _)| *len)
            && found <= most
        {
            let taken = self.take(found);
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// Those that came later to sleep here.
    pub fn into_laid(self) -> impl Iterator<Item = Idle> {
        let all = self.all.into_iter().flatten();
        all.filter(|idle| idle.span.is_some())
    }
}
