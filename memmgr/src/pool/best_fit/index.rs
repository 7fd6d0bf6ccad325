//! The index of the free spans of one class: which span is the smallest of at least a given length, ties by address.
//!
//! Spans below 64 MiB lie in lists of exactly one length each, one list for every multiple of the granule. Which lists have
//! spans is kept in bits, 64 to a node, three nodes deep, so that the next longer list is found by looking at three
//! words; nodes exist only where there are spans. Inside a list the spans form a tree by address (a treap: Seidel and Aragon,
//! "Randomized search trees", 1996, with priorities made from the slot), which is known by its lowest span: the smallest fit
//! is read off, taking it and putting it back costs the same however many spans have this length.
//! The few spans that are longer are [`Long`].

use super::GRANULE;
use super::blocks::{Blocks, Slot};
use super::long::Long;

/// How many bits, and slots, a node has.
const WIDTH: usize = 64;
/// Lengths of at least this many granules (64 MiB) are long.
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

/// 64 places: which are taken, and what lies there (a node below, or the lowest span of one length).
#[derive(Debug)]
struct Node {
    bits: u64,
    below: [u32; WIDTH],
    /// The node above, and the place there.
    above: u32,
    place: u32,
}

/// The nodes of the indexes of all classes.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    /// What a wrong number leads to.
    stray: Node,
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

impl Node {
    const EMPTY: Self = Self {
        bits: 0,
        below: [NO_NODE; WIDTH],
        above: NO_NODE,
        place: 0,
    };

    /// What lies at the lowest of these places, which are not none.
    #[inline]
    fn lowest(&self, bits: u64) -> u32 {
        self.below[lowest(bits)]
    }

    /// What lies at a place, if anything does.
    #[inline]
    fn child(&self, place: usize) -> Option<u32> {
        (self.bits & bit(place) != 0).then(|| self.below[place % WIDTH])
    }

    #[inline]
    fn set(&mut self, place: usize, what: u32) {
        self.bits |= bit(place);
        self.below[place % WIDTH] = what;
    }
}

impl Nodes {
    /// No nodes.
    pub const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            vacant: Vec::new(),
            stray: Node::EMPTY,
        }
    }

    #[inline]
    fn at(&self, number: u32) -> &Node {
        self.nodes.get(number as usize).unwrap_or(&self.stray)
    }

    #[inline]
    fn at_mut(&mut self, number: u32) -> &mut Node {
        match self.nodes.get_mut(number as usize) {
            Some(node) => node,
            None => {
                debug_assert!(false, "no node has this number");
                self.stray = Node::EMPTY;
                &mut self.stray
            }
        }
    }

    fn new_node(&mut self, above: u32, place: usize) -> u32 {
        let number = match self.vacant.pop() {
            Some(number) => number,
            None => {
                self.nodes.push(Node::EMPTY);
                // Room to take all of them back, so that a free needs no memory.
                let room = self.nodes.capacity();
                self.vacant
                    .reserve_exact(room.saturating_sub(self.vacant.len()));
                (self.nodes.len() - 1) as u32
            }
        };
        let node = self.at_mut(number);
        (node.bits, node.above, node.place) = (0, above, place as u32);
        number
    }

    /// The node at a place, made if there is none.
    #[inline]
    fn descend(&mut self, number: u32, place: usize) -> u32 {
        match self.at(number).child(place) {
            Some(child) => child,
            None => {
                let child = self.new_node(number, place);
                self.at_mut(number).set(place, child);
                child
            }
        }
    }

    /// Empties a place of a node, and drops the node if nothing is left in it.
    #[inline]
    fn clear(&mut self, number: u32, place: usize) {
        let node = self.at_mut(number);
        node.bits &= !bit(place);
        if node.bits == 0 && node.above != NO_NODE {
            let (above, place) = (node.above, node.place);
            self.vacant.push(number);
            self.clear_above(above, place as usize);
        }
    }

    fn clear_above(&mut self, number: u32, place: usize) {
        let node = self.at_mut(number);
        node.bits &= !bit(place);
        if node.bits == 0 && node.above != NO_NODE {
            let (above, place) = (node.above, node.place);
            self.vacant.push(number);
            self.at_mut(above).bits &= !bit(place as usize);
        }
    }
}

/// The free spans of one class.
#[derive(Debug)]
pub(super) struct Index {
    top: u32,
    count: usize,
    /// No span is shorter than this, in bytes.
    least: usize,
    /// The spans that are too long for the nodes.
    long: Long,
}

impl Index {
    /// No spans.
    pub const fn new() -> Self {
        Self {
            top: NO_NODE,
            count: 0,
            least: usize::MAX,
            long: Long::new(),
        }
    }

    /// The number of spans.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of spans that are too long for the nodes.
    #[cfg(test)]
    pub fn long_count(&self) -> usize {
        self.long.count()
    }

    /// A length in bytes that no span is below; [`usize::MAX`] if there are none.
    #[inline]
    pub fn least(&self) -> usize {
        self.least
    }

    /// Adds a span.
    #[inline]
    pub fn insert<T: Default>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        self.count = self.count.saturating_add(1);
        self.least = self.least.min(entry.len);
        let granules = entry.len / GRANULE;
        if granules >= EXACT {
            self.long.insert(blocks, entry);
            return;
        }
        if self.top == NO_NODE {
            self.top = nodes.new_node(NO_NODE, 0);
        }
        let path = Path::to(granules);
        let middle = nodes.descend(self.top, path.top);
        let bottom = nodes.descend(middle, path.middle);
        let span = blocks.span_mut(entry.slot);
        (span.node, span.filed) = (bottom, true);
        let node = nodes.at_mut(bottom);
        match node.child(path.bottom) {
            None => node.set(path.bottom, entry.slot.number()),
            Some(head) => {
                let lowest = tree::insert(blocks, Slot::from_number(head), entry);
                node.set(path.bottom, lowest.number());
            }
        }
    }

    /// Removes a span, which is there.
    #[inline]
    pub fn remove<T: Default>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.least = usize::MAX;
        }
        let granules = entry.len / GRANULE;
        if granules >= EXACT {
            self.long.remove(blocks, entry);
            return;
        }
        let place = granules % WIDTH;
        let span = blocks.span_mut(entry.slot);
        span.filed = false;
        let number = span.node;
        if span.is_alone() {
            nodes.clear(number, place);
            return;
        }
        let node = nodes.at_mut(number);
        let lowest = tree::remove(blocks, Slot::from_number(node.below[place]), entry.slot);
        node.set(place, lowest.number());
    }

    /// The lowest span of exactly `len` bytes.
    #[inline]
    pub fn exact(&self, nodes: &Nodes, len: usize) -> Option<Slot> {
        let granules = len / GRANULE;
        if granules >= EXACT {
            return self.long.exact(len);
        }
        let path = Path::to(granules);
        let middle = nodes.at(self.top).child(path.top)?;
        let bottom = nodes.at(middle).child(path.middle)?;
        nodes.at(bottom).child(path.bottom).map(Slot::from_number)
    }

    /// The smallest span of at least `len` bytes.
    #[inline]
    pub fn smallest(&self, nodes: &Nodes, len: usize) -> Option<Slot> {
        let granules = len.div_ceil(GRANULE);
        if granules < EXACT {
            let found = self.smallest_in_lists(nodes, Path::to(granules));
            if found.is_some() {
                return found;
            }
        }
        self.long.smallest(len).map(|entry| entry.slot)
    }

    #[inline]
    fn smallest_in_lists(&self, nodes: &Nodes, path: Path) -> Option<Slot> {
        let top = nodes.at(self.top);
        let tops = top.bits & from(path.top);
        if tops == 0 {
            return None;
        }
        let mut middle = nodes.at(top.lowest(tops));
        let mut middles = middle.bits;
        if lowest(tops) == path.top {
            middles &= from(path.middle);
            if lowest(middles) == path.middle && middles != 0 {
                let bottom = nodes.at(middle.lowest(middles));
                let bits = bottom.bits & from(path.bottom);
                if bits != 0 {
                    return Some(Slot::from_number(bottom.lowest(bits)));
                }
                middles &= above(path.middle);
            }
            if middles == 0 {
                let tops = tops & above(path.top);
                if tops == 0 {
                    return None;
                }
                middle = nodes.at(top.lowest(tops));
                middles = middle.bits;
            }
        }
        let bottom = nodes.at(middle.lowest(middles));
        Some(Slot::from_number(bottom.lowest(bottom.bits)))
    }

    /// The span behind a span that is there.
    fn after<T: Default>(&self, nodes: &Nodes, blocks: &Blocks<T>, slot: Slot) -> Option<Slot> {
        let entry = Entry::of(blocks, slot);
        if entry.len / GRANULE >= EXACT {
            return self.long.after(entry).map(|entry| entry.slot);
        }
        let next = tree::after(blocks, slot);
        if next.is_none() {
            self.smallest(nodes, entry.len.saturating_add(GRANULE))
        } else {
            Some(next)
        }
    }

    /// The spans of at least `len` bytes in ascending order.
    pub fn at_least<'a, T: Default>(
        &'a self,
        nodes: &'a Nodes,
        blocks: &'a Blocks<T>,
        len: usize,
    ) -> impl Iterator<Item = Entry> + 'a {
        let first = self.smallest(nodes, len);
        std::iter::successors(first, |slot| self.after(nodes, blocks, *slot))
            .take(self.count.saturating_add(1))
            .map(|slot| Entry::of(blocks, slot))
    }

    /// The length of the longest span; 0 when there is none.
    pub fn longest<T: Default>(&self, nodes: &Nodes, blocks: &Blocks<T>) -> usize {
        if let Some(longest) = self.long.longest() {
            return longest;
        }
        let highest = |number: u32| {
            let node = nodes.at(number);
            let place = (WIDTH - 1).checked_sub(node.bits.leading_zeros() as usize)?;
            Some(node.below[place])
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
            hang(blocks, new, head, true);
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
            let span = blocks.span(above);
            let below = if left { span.left } else { span.right };
            if below.is_none() {
                hang(blocks, new, above, left);
                return head;
            }
            above = below;
        }
    }

    /// Hangs a span, which is in no tree, below another, on a side where nothing is yet, and rotates it up until the one above has
    /// a higher priority.
    fn hang<T: Default>(blocks: &mut Blocks<T>, new: Slot, above: Slot, left: bool) {
        let (mut above, mut left) = (above, left);
        let mut below = (Slot::NONE, Slot::NONE);
        while above.priority() <= new.priority() {
            let span = blocks.span_mut(above);
            let top = std::mem::replace(&mut span.parent, new);
            let moved = if left {
                span.left = std::mem::replace(&mut below.1, above);
                span.left
            } else {
                span.right = std::mem::replace(&mut below.0, above);
                span.right
            };
            if !moved.is_none() {
                blocks.span_mut(moved).parent = above;
            }
            if top.is_none() {
                above = top;
                break;
            }
            left = blocks.span(top).left == above;
            above = top;
        }
        if !above.is_none() {
            let span = blocks.span_mut(above);
            if left {
                span.left = new;
            } else {
                span.right = new;
            }
        }
        let span = blocks.span_mut(new);
        (span.left, span.right, span.parent) = (below.0, below.1, above);
    }

    /// Takes a span out of the tree whose lowest span is `head`, and which has others; the lowest one now.
    pub fn remove<T: Default>(blocks: &mut Blocks<T>, head: Slot, slot: Slot) -> Slot {
        let span = *blocks.span(slot);
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
