//! The index of the free spans of one class: which span is the smallest of at least a given length, ties by address.
//!
//! The spans of one length form a [tree] by address, which is known by its lowest span: the smallest fit is read off, taking it and
//! putting it back costs the same however many spans have this length. What leads to a length depends on how many
//! there are. Few lie in no order ([`Flat`]), and a search looks at all of them. Of many, those below 64 MiB are found by
//! bits ([`Lists`]), and the longer ones, once they are many for themselves, lie in order ([`Sorted`]).

mod flat;
mod nodes;
mod sorted;
mod tree;

use super::GRANULE;
use super::blocks::{Blocks, Datum, Slot};
use flat::Flat;
pub(super) use nodes::Nodes;
use nodes::{LONG, Lists};
use sorted::Sorted;

/// From this number of lengths down, they need no order.
const FEW: usize = 16;

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
    /// No span; every span comes before it. No span is as long, and an index without spans says that it has none shorter than
    /// `usize::MAX` bytes.
    pub const NONE: Self = Self {
        len: usize::MAX - 1,
        addr: usize::MAX,
        slot: Slot::NONE,
    };

    /// A span as it is now.
    #[inline]
    pub fn of<T: Datum>(blocks: &Blocks<T>, slot: Slot) -> Self {
        let block = blocks.at(slot);
        Self {
            len: block.len(),
            addr: block.addr(),
            slot,
        }
    }
}

/// The free spans of one class.
#[derive(Debug)]
pub(super) struct Index {
    count: usize,
    /// No span is shorter than this, in bytes.
    least: usize,
    /// The spans of at least this many bytes are in `flat`: all of them (0), those of [`LONG`] and more, or none (`usize::MAX`).
    floor: usize,
    flat: Flat,
    /// Those below [`LONG`].
    lists: Lists,
    /// The others.
    sorted: Sorted,
}

impl Index {
    /// No spans.
    pub const fn new() -> Self {
        Self {
            count: 0,
            least: usize::MAX,
            floor: 0,
            flat: Flat::new(),
            lists: Lists::new(),
            sorted: Sorted::new(),
        }
    }

    /// The number of spans.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A length in bytes that no span is below; [`usize::MAX`] if there are none.
    #[inline]
    pub fn least(&self) -> usize {
        self.least
    }

    /// Adds a span.
    #[inline]
    pub fn insert<T: Datum>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        self.count = self.count.wrapping_add(1);
        self.least = self.least.min(entry.len);
        if entry.len >= self.floor {
            if self.flat.insert(blocks, entry) {
                return;
            }
            self.spread(nodes, blocks);
        }
        if entry.len >= self.floor {
            let inserted = self.flat.insert(blocks, entry);
            debug_assert!(inserted, "there is room now");
        } else if entry.len < LONG {
            self.lists.insert(nodes, blocks, entry);
        } else {
            self.sorted.insert(blocks, entry);
        }
    }

    /// Makes room where the spans lie in no order: the short ones leave it, or the long ones if there are no others.
    #[cold]
    fn spread<T: Datum>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>) {
        let (flat, lists, sorted) = (&mut self.flat, &mut self.lists, &mut self.sorted);
        if self.floor == 0 {
            self.floor = LONG;
            flat.release(LONG, blocks, |blocks, lowest| {
                lists.insert(nodes, blocks, lowest)
            });
        }
        if flat.is_full() {
            self.floor = usize::MAX;
            flat.release(usize::MAX, blocks, |blocks, lowest| {
                sorted.insert(blocks, lowest)
            });
        }
    }

    /// Gives up an order that so few lengths do not need.
    #[cold]
    fn gather<T: Datum>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>) {
        if self.floor > LONG && self.sorted.lengths() <= FEW {
            self.floor = LONG;
            for lowest in (0..FEW).map_while(|_| self.sorted.release()) {
                self.flat.insert(blocks, Entry::of(blocks, lowest));
            }
        }
        if self.floor == LONG && self.flat.lengths().saturating_add(self.lists.lengths()) <= FEW {
            self.floor = 0;
            for _ in 0..FEW {
                let Some(lowest) = self.lists.release(nodes, blocks) else {
                    break;
                };
                self.flat.insert(blocks, Entry::of(blocks, lowest));
            }
        }
    }

    /// Removes a span, which is there.
    #[inline]
    pub fn remove<T: Datum>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        self.count = self.count.wrapping_sub(1);
        if self.count == 0 {
            self.least = usize::MAX;
        }
        if entry.len >= self.floor {
            self.flat.remove(blocks, entry.slot);
            return;
        }
        let lengths = if entry.len < LONG {
            self.lists.remove(nodes, blocks, entry);
            self.lists.lengths()
        } else {
            self.sorted.remove(blocks, entry);
            self.sorted.lengths()
        };
        if lengths <= FEW {
            self.gather(nodes, blocks);
        }
    }

    /// Puts a span, or one that begins before it, in the place of one that has grown: `former` is there, and `entry`, which is
    /// longer, is not.
    #[inline]
    pub fn replace<T: Datum>(
        &mut self,
        nodes: &mut Nodes,
        blocks: &mut Blocks<T>,
        former: Entry,
        entry: Entry,
    ) {
        if former.len >= self.floor && self.flat.replace(blocks, former, entry) {
            return;
        }
        self.remove(nodes, blocks, former);
        self.insert(nodes, blocks, entry);
    }

    /// Forgets all spans, if they lie in no order. What each knows of its place here means nothing any more.
    pub fn clear(&mut self) -> bool {
        if self.floor > 0 {
            return false;
        }
        self.flat.clear();
        (self.count, self.least) = (0, usize::MAX);
        true
    }

    /// The lowest span of exactly `len` bytes.
    #[inline]
    pub fn exact(&self, nodes: &Nodes, len: usize) -> Option<Slot> {
        if len >= self.floor {
            self.flat.exact(len)
        } else if len < LONG {
            self.lists.exact(nodes, len)
        } else {
            self.sorted.exact(len)
        }
    }

    /// The smallest span of at least `len` bytes, a multiple of the granule.
    #[inline]
    pub fn smallest(&self, nodes: &Nodes, len: usize) -> Option<Slot> {
        if len < LONG && self.floor > 0 {
            let found = self.lists.smallest(nodes, len);
            if found.is_some() {
                return found;
            }
        }
        if self.floor <= LONG {
            self.flat.smallest(len)
        } else {
            self.sorted.smallest(len)
        }
    }

    /// The span behind a span that is there.
    fn after<T: Datum>(&self, nodes: &Nodes, blocks: &Blocks<T>, slot: Slot) -> Option<Slot> {
        let alone = blocks.is_alone(slot);
        let next = if alone {
            Slot::NONE
        } else {
            tree::after(blocks, slot)
        };
        if next.is_none() {
            self.smallest(nodes, blocks.at(slot).len().checked_add(GRANULE)?)
        } else {
            Some(next)
        }
    }

    /// The spans of at least `len` bytes in ascending order.
    pub fn at_least<'a, T: Datum>(
        &'a self,
        nodes: &'a Nodes,
        blocks: &'a Blocks<T>,
        len: usize,
    ) -> impl Iterator<Item = Entry> + 'a {
        let len = len.max(1).checked_next_multiple_of(GRANULE);
        let first = len.and_then(|len| self.smallest(nodes, len));
        std::iter::successors(first, |slot| self.after(nodes, blocks, *slot))
            .take(self.count.saturating_add(1))
            .map(|slot| Entry::of(blocks, slot))
    }

    /// The length of the longest span; 0 when there is none.
    pub fn longest<T: Datum>(&self, nodes: &Nodes, blocks: &Blocks<T>) -> usize {
        let in_lists = || self.lists.longest(nodes).map(|slot| blocks.at(slot).len());
        let longest = self.sorted.longest().or_else(|| self.flat.longest());
        longest.or_else(in_lists).unwrap_or(0)
    }

    /// What is wrong with what leads to the lengths, if anything is: for [`Space::check`](super::Space::check).
    pub fn check<T: Datum>(&self, blocks: &Blocks<T>) -> Result<(), String> {
        self.flat.check(blocks)
    }

    /// How many lengths lie in no order, in lists, and in order.
    #[cfg(test)]
    pub fn lengths(&self) -> [usize; 3] {
        let (flat, lists, sorted) = (&self.flat, &self.lists, &self.sorted);
        [flat.lengths(), lists.lengths(), sorted.lengths()]
    }
}
