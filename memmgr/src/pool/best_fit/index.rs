//! The index of the free spans of one class: which span is the smallest of at least a given length, ties by address.
//!
//! Spans below 64 MiB lie in lists of exactly one length each, one list for every multiple of the granule. Which lists have
//! spans is kept in bits, 64 to a node, three nodes deep, so that the next longer list is found by looking at three
//! words; nodes exist only where there are spans. Inside a list the spans form a tree by address (a treap: Seidel and Aragon,
//! "Randomized search trees", 1996, with priorities made from the slot), which is known by its lowest span: the smallest fit
//! is read off, taking it and putting it back costs the same however many spans have this length.
//! The few spans that are longer lie in a sorted list.

use super::GRANULE;
use super::blocks::{Blocks, Slot};

/// How many bits, and slots, a node has.
const WIDTH: usize = 64;
/// Lengths of at least this many granules (64 MiB) lie in the sorted list.
const EXACT: usize = WIDTH * WIDTH * WIDTH;
/// No node.
const NO_NODE: u32 = u32::MAX;

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
    /// A span as it is now.
    #[inline]
    pub fn of<T: Default>(blocks: &Blocks<T>, slot: Slot) -> Self {
        let block = blocks.at(slot);
        Self {
            len: block.len,
            addr: block.addr,
            slot,
        }
    }
}

/// What lies at the 64 places of a node: a node below, or the lowest span of one length.
type Below = [u32; WIDTH];

/// The nodes of the indexes of all classes.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Which places of each node are taken.
    bits: Vec<u64>,
    below: Vec<Below>,
    vacant: Vec<u32>,
}

/// Places in the three nodes that lead to a length.
#[derive(Clone, Copy)]
struct Path {
    top: usize,
    middle: usize,
    bottom: usize,
}

impl Path {
    /// To the lists of a length in granules, below [`EXACT`].
    #[inline]
    fn to(granules: usize) -> Self {
        Self {
            top: granules / (WIDTH * WIDTH) % WIDTH,
            middle: granules / WIDTH % WIDTH,
            bottom: granules % WIDTH,
        }
    }
}

/// The bits at `place` and above.
#[inline]
fn from(place: usize) -> u64 {
    u64::MAX << (place % WIDTH)
}

/// The bits above `place`.
#[inline]
fn above(place: usize) -> u64 {
    from(place) & !bit(place)
}

#[inline]
fn bit(place: usize) -> u64 {
    1 << (place % WIDTH)
}

/// The lowest place in these bits, which are not all zero.
#[inline]
fn lowest(bits: u64) -> usize {
    bits.trailing_zeros() as usize % WIDTH
}

impl Nodes {
    /// No nodes.
    pub const fn new() -> Self {
        Self {
            bits: Vec::new(),
            below: Vec::new(),
            vacant: Vec::new(),
        }
    }

    #[inline]
    fn bits(&self, number: u32) -> u64 {
        self.bits.get(number as usize).copied().unwrap_or(0)
    }

    /// What lies at a place whose bit is set.
    #[inline]
    fn below(&self, number: u32, place: usize) -> u32 {
        match self.below.get(number as usize) {
            Some(below) => below[place % WIDTH],
            None => NO_NODE,
        }
    }

    /// What lies at a place, if anything does.
    #[inline]
    fn child(&self, number: u32, place: usize) -> Option<u32> {
        (self.bits(number) & bit(place) != 0).then(|| self.below(number, place))
    }

    fn new_node(&mut self) -> u32 {
        if let Some(number) = self.vacant.pop() {
            return number;
        }
        let number = self.bits.len() as u32;
        self.bits.push(0);
        self.below.push([NO_NODE; WIDTH]);
        // Room to take all of them back, so that a free needs no memory.
        self.vacant
            .reserve(self.bits.len().saturating_sub(self.vacant.len()));
        number
    }

    #[inline]
    fn set(&mut self, number: u32, place: usize, what: u32) {
        if let Some(bits) = self.bits.get_mut(number as usize) {
            *bits |= bit(place);
        }
        self.replace(number, place, what);
    }

    /// Changes what lies at a place whose bit is set.
    #[inline]
    fn replace(&mut self, number: u32, place: usize, what: u32) {
        if let Some(below) = self.below.get_mut(number as usize) {
            below[place % WIDTH] = what;
        }
    }

    /// Empties a place; whether the node has none left.
    #[inline]
    fn clear(&mut self, number: u32, place: usize) -> bool {
        match self.bits.get_mut(number as usize) {
            Some(bits) => {
                *bits &= !bit(place);
                *bits == 0
            }
            None => false,
        }
    }

    /// The node at a place, made if there is none.
    #[inline]
    fn descend(&mut self, number: u32, place: usize) -> u32 {
        match self.child(number, place) {
            Some(child) => child,
            None => {
                let child = self.new_node();
                self.set(number, place, child);
                child
            }
        }
    }
}

/// The free spans of one class.
#[derive(Debug)]
pub(super) struct Index {
    top: u32,
    count: usize,
    /// The spans that are too long for the nodes, in order.
    long: Vec<Entry>,
}

impl Index {
    /// No spans.
    pub const fn new() -> Self {
        Self {
            top: NO_NODE,
            count: 0,
            long: Vec::new(),
        }
    }

    /// The number of spans.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a span.
    #[inline]
    pub fn insert<T: Default>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        self.count = self.count.saturating_add(1);
        let granules = entry.len / GRANULE;
        if granules >= EXACT {
            let place = self.long.partition_point(|other| *other < entry);
            self.long.insert(place, entry);
            return;
        }
        if self.top == NO_NODE {
            self.top = nodes.new_node();
        }
        let path = Path::to(granules);
        let middle = nodes.descend(self.top, path.top);
        let bottom = nodes.descend(middle, path.middle);
        match nodes.child(bottom, path.bottom) {
            None => nodes.set(bottom, path.bottom, entry.slot.number()),
            Some(head) => {
                let lowest = tree::insert(blocks, Slot::from_number(head), entry);
                nodes.replace(bottom, path.bottom, lowest.number());
            }
        }
    }

    /// Removes a span; nothing happens if it is not there.
    #[inline]
    pub fn remove<T: Default>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        let granules = entry.len / GRANULE;
        if granules >= EXACT {
            match self.long.binary_search(&entry) {
                Ok(place) => {
                    self.long.remove(place);
                    self.count = self.count.saturating_sub(1);
                }
                Err(_) => debug_assert!(false, "a free span is missing in its index"),
            }
            return;
        }
        let path = Path::to(granules);
        let Some(middle) = nodes.child(self.top, path.top) else {
            debug_assert!(false, "a free span is missing in its index");
            return;
        };
        let Some(bottom) = nodes.child(middle, path.middle) else {
            debug_assert!(false, "a free span is missing in its index");
            return;
        };
        let Some(head) = nodes.child(bottom, path.bottom) else {
            debug_assert!(false, "a free span is missing in its index");
            return;
        };
        self.count = self.count.saturating_sub(1);
        let lowest = tree::remove(blocks, Slot::from_number(head), entry.slot);
        if !lowest.is_none() {
            if lowest.number() != head {
                nodes.replace(bottom, path.bottom, lowest.number());
            }
        } else if nodes.clear(bottom, path.bottom) {
            nodes.vacant.push(bottom);
            if nodes.clear(middle, path.middle) {
                nodes.vacant.push(middle);
                nodes.clear(self.top, path.top);
            }
        }
    }

    /// The lowest span of exactly `len` bytes.
    #[inline]
    pub fn exact<T: Default>(&self, nodes: &Nodes, blocks: &Blocks<T>, len: usize) -> Option<Slot> {
        let granules = len / GRANULE;
        if granules >= EXACT {
            let first = self.first_from(nodes, blocks, granules)?;
            return (first.len == len).then_some(first.slot);
        }
        let path = Path::to(granules);
        let middle = nodes.child(self.top, path.top)?;
        let bottom = nodes.child(middle, path.middle)?;
        nodes.child(bottom, path.bottom).map(Slot::from_number)
    }

    /// The smallest span of at least `len` bytes.
    #[inline]
    pub fn smallest<T: Default>(
        &self,
        nodes: &Nodes,
        blocks: &Blocks<T>,
        len: usize,
    ) -> Option<Entry> {
        self.first_from(nodes, blocks, len.div_ceil(GRANULE))
    }

    /// The first span of at least so many granules.
    #[inline]
    fn first_from<T: Default>(
        &self,
        nodes: &Nodes,
        blocks: &Blocks<T>,
        granules: usize,
    ) -> Option<Entry> {
        if granules < EXACT
            && let Some(slot) = self.first_exact(nodes, Path::to(granules))
        {
            return Some(Entry::of(blocks, slot));
        }
        let least = granules.saturating_mul(GRANULE);
        let place = self.long.partition_point(|entry| entry.len < least);
        self.long.get(place).copied()
    }

    #[inline]
    fn first_exact(&self, nodes: &Nodes, path: Path) -> Option<Slot> {
        let lowest_of =
            |bottom: u32, bits: u64| Slot::from_number(nodes.below(bottom, lowest(bits)));
        let tops = nodes.bits(self.top);
        if tops & bit(path.top) != 0 {
            let middle = nodes.below(self.top, path.top);
            let middles = nodes.bits(middle);
            if middles & bit(path.middle) != 0 {
                let bottom = nodes.below(middle, path.middle);
                let bits = nodes.bits(bottom) & from(path.bottom);
                if bits != 0 {
                    return Some(lowest_of(bottom, bits));
                }
            }
            let middles = middles & above(path.middle);
            if middles != 0 {
                let bottom = nodes.below(middle, lowest(middles));
                return Some(lowest_of(bottom, nodes.bits(bottom)));
            }
        }
        let tops = tops & above(path.top);
        if tops == 0 {
            return None;
        }
        let middle = nodes.below(self.top, lowest(tops));
        let bottom = nodes.below(middle, lowest(nodes.bits(middle)));
        Some(lowest_of(bottom, nodes.bits(bottom)))
    }

    /// The span behind a span that is there.
    fn after<T: Default>(&self, nodes: &Nodes, blocks: &Blocks<T>, entry: Entry) -> Option<Entry> {
        let granules = entry.len / GRANULE;
        if granules >= EXACT {
            let place = self.long.partition_point(|other| *other <= entry);
            return self.long.get(place).copied();
        }
        let next = tree::after(blocks, entry.slot);
        if next.is_none() {
            self.first_from(nodes, blocks, granules.saturating_add(1))
        } else {
            Some(Entry::of(blocks, next))
        }
    }

    /// The spans of at least `len` bytes in ascending order.
    pub fn at_least<'a, T: Default>(
        &'a self,
        nodes: &'a Nodes,
        blocks: &'a Blocks<T>,
        len: usize,
    ) -> impl Iterator<Item = Entry> + 'a {
        let first = self.smallest(nodes, blocks, len);
        std::iter::successors(first, |entry| self.after(nodes, blocks, *entry))
            .take(self.count.saturating_add(1))
    }

    /// The length of the longest span; 0 when there is none.
    pub fn longest<T: Default>(&self, nodes: &Nodes, blocks: &Blocks<T>) -> usize {
        if let Some(last) = self.long.last() {
            return last.len;
        }
        let highest = |number: u32| {
            let bits = nodes.bits(number);
            let place = (bits != 0).then(|| (WIDTH - 1) - bits.leading_zeros() as usize)?;
            Some(nodes.below(number, place))
        };
        highest(self.top)
            .and_then(highest)
            .and_then(highest)
            .map_or(0, |slot| blocks.at(Slot::from_number(slot)).len)
    }
}

/// The tree of the spans of one class and length, by address. It is known by its lowest span, from which everything is
/// reached: a span that is put in at the low end, or taken out there, needs no way through the tree.
mod tree {
    use super::{Blocks, Entry, Slot};

    /// Adds a span to the tree whose lowest span is `head`; the lowest one now.
    pub fn insert<T: Default>(blocks: &mut Blocks<T>, head: Slot, entry: Entry) -> Slot {
        let (addr, new) = (entry.addr, entry.slot);
        if addr < blocks.at(head).addr {
            blocks.span_mut(head).left = new;
            blocks.span_mut(new).parent = head;
            raise(blocks, new);
            return new;
        }
        // Up, along spans that nothing lies below on the left, then down.
        let mut above = head;
        loop {
            let parent = blocks.span(above).parent;
            if parent.is_none() || blocks.at(parent).addr > addr {
                break;
            }
            above = parent;
        }
        loop {
            let left = addr < blocks.at(above).addr;
            let span = blocks.span_mut(above);
            let below = if left {
                &mut span.left
            } else {
                &mut span.right
            };
            if below.is_none() {
                *below = new;
                blocks.span_mut(new).parent = above;
                break;
            }
            above = *below;
        }
        raise(blocks, new);
        head
    }

    /// Takes a span out of the tree whose lowest span is `head`; the lowest one now, or none.
    pub fn remove<T: Default>(blocks: &mut Blocks<T>, head: Slot, slot: Slot) -> Slot {
        let span = *blocks.span(slot);
        if span.left.is_none() && span.right.is_none() && span.parent.is_none() {
            return Slot::NONE;
        }
        let below = if span.left.is_none() {
            span.right
        } else if span.right.is_none() {
            span.left
        } else {
            merge(blocks, span.left, span.right)
        };
        let lowest = if slot != head {
            head
        } else if span.right.is_none() {
            span.parent
        } else {
            leftmost(blocks, span.right)
        };
        if !below.is_none() {
            blocks.span_mut(below).parent = span.parent;
        }
        if !span.parent.is_none() {
            let parent = blocks.span_mut(span.parent);
            if parent.left == slot {
                parent.left = below;
            } else {
                parent.right = below;
            }
        }
        let span = blocks.span_mut(slot);
        (span.left, span.right, span.parent) = (Slot::NONE, Slot::NONE, Slot::NONE);
        lowest
    }

    /// The span with the next higher address, or none.
    pub fn after<T: Default>(blocks: &Blocks<T>, slot: Slot) -> Slot {
        let right = blocks.span(slot).right;
        if !right.is_none() {
            return leftmost(blocks, right);
        }
        let mut below = slot;
        let mut above = blocks.span(slot).parent;
        while !above.is_none() && blocks.span(above).right == below {
            below = above;
            above = blocks.span(above).parent;
        }
        above
    }

    fn leftmost<T: Default>(blocks: &Blocks<T>, mut slot: Slot) -> Slot {
        loop {
            let left = blocks.span(slot).left;
            if left.is_none() {
                return slot;
            }
            slot = left;
        }
    }

    /// Rotates a span up until the one above has a higher priority.
    fn raise<T: Default>(blocks: &mut Blocks<T>, slot: Slot) {
        loop {
            let parent = blocks.span(slot).parent;
            if parent.is_none() || parent.priority() > slot.priority() {
                return;
            }
            let above = *blocks.span(parent);
            let moved = if above.left == slot {
                let span = blocks.span_mut(slot);
                let moved = std::mem::replace(&mut span.right, parent);
                blocks.span_mut(parent).left = moved;
                moved
            } else {
                let span = blocks.span_mut(slot);
                let moved = std::mem::replace(&mut span.left, parent);
                blocks.span_mut(parent).right = moved;
                moved
            };
            if !moved.is_none() {
                blocks.span_mut(moved).parent = parent;
            }
            blocks.span_mut(parent).parent = slot;
            blocks.span_mut(slot).parent = above.parent;
            if !above.parent.is_none() {
                let top = blocks.span_mut(above.parent);
                if top.left == parent {
                    top.left = slot;
                } else {
                    top.right = slot;
                }
            }
        }
    }

    /// Joins two trees, all of whose spans are in order; the topmost span.
    fn merge<T: Default>(blocks: &mut Blocks<T>, mut low: Slot, mut high: Slot) -> Slot {
        let top = if low.priority() > high.priority() {
            low
        } else {
            high
        };
        // Where the next span hangs: below this one, on the right or on the left.
        let mut hang: Option<(Slot, bool)> = None;
        loop {
            let takes_low = if low.is_none() {
                false
            } else {
                high.is_none() || low.priority() > high.priority()
            };
            let next = if takes_low { low } else { high };
            if let Some((above, right)) = hang {
                let span = blocks.span_mut(above);
                if right {
                    span.right = next;
                } else {
                    span.left = next;
                }
                if next.is_none() {
                    return top;
                }
                blocks.span_mut(next).parent = above;
            }
            if low.is_none() || high.is_none() {
                return top;
            }
            hang = Some((next, takes_low));
            if takes_low {
                low = blocks.span(low).right;
            } else {
                high = blocks.span(high).left;
            }
        }
    }
}
