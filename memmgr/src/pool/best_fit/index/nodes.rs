//! Lists of exactly one length each, one for every multiple of the granule below 64 MiB.
//!
//! Which lists have spans is kept in bits, 64 to a node, three nodes deep, so that the next longer list is found by looking at
//! three words; nodes exist only where there are spans.

use super::{Entry, tree};
use crate::pool::best_fit::{
    GRANULE,
    blocks::{Blocks, Datum, Slot},
};

/// How many bits, and slots, a node has.
const WIDTH: usize = 64;
/// Spans of at least this many bytes (64 MiB) are too long for these lists.
pub(super) const LONG: usize = WIDTH * WIDTH * WIDTH * GRANULE;
/// No node.
const NO_NODE: u32 = u32::MAX;

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
pub(in crate::pool::best_fit) struct Nodes {
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
    /// To the lists of a length in granules, of a span below [`LONG`].
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

    /// Whether spans lie in a node, if anything does, and not nodes.
    fn is_bottom(&self, number: u32) -> bool {
        let above = self.at(number).above;
        above != NO_NODE && self.at(above).above != NO_NODE
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

/// The lists of one class.
#[derive(Debug)]
pub(super) struct Lists {
    top: u32,
    /// How many lists have spans.
    lengths: usize,
}

impl Lists {
    /// No spans.
    pub const fn new() -> Self {
        Self {
            top: NO_NODE,
            lengths: 0,
        }
    }

    /// How many lengths the spans have.
    #[inline]
    pub fn lengths(&self) -> usize {
        self.lengths
    }

    /// Adds a span of less than [`LONG`] bytes, or all of a length that none has here: then it is the lowest.
    #[inline(always)]
    pub fn insert<T: Datum>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        let path = Path::to(entry.len / GRANULE);
        let bottom = self.bottom(nodes, path);
        blocks.at_mut(entry.slot).set_node(bottom);
        let node = nodes.at_mut(bottom);
        match node.child(path.bottom) {
            None => {
                node.set(path.bottom, entry.slot.number());
                self.lengths += 1;
            }
            Some(head) => {
                let lowest = tree::insert(blocks, Slot::from_number(head), entry);
                node.set(path.bottom, lowest.number());
            }
        }
    }

    /// Takes out all spans of the smallest length; the lowest of them.
    pub fn release<T: Datum>(&mut self, nodes: &mut Nodes, blocks: &Blocks<T>) -> Option<Slot> {
        let head = self.smallest(nodes, GRANULE)?;
        let block = blocks.at(head);
        nodes.clear(block.node(), block.len() / GRANULE % WIDTH);
        self.lengths -= 1;
        Some(head)
    }

    /// The node of the lists around a length, made if there is none.
    #[inline]
    fn bottom(&mut self, nodes: &mut Nodes, path: Path) -> u32 {
        if self.top == NO_NODE {
            self.top = nodes.new_node(NO_NODE, 0);
        }
        let middle = nodes.descend(self.top, path.top);
        nodes.descend(middle, path.middle)
    }

    /// Removes a span, which is there.
    #[inline]
    pub fn remove<T: Datum>(&mut self, nodes: &mut Nodes, blocks: &mut Blocks<T>, entry: Entry) {
        let place = entry.len / GRANULE % WIDTH;
        // Of the spans of one length only the lowest knows its node for sure.
        let number = blocks.at(entry.slot).node();
        if blocks.is_alone(entry.slot) {
            nodes.clear(number, place);
            self.lengths = self.lengths.wrapping_sub(1);
            return;
        }
        let is_lowest =
            nodes.is_bottom(number) && nodes.at(number).child(place) == Some(entry.slot.number());
        if let Some(lowest) = tree::remove(blocks, entry.slot, is_lowest) {
            blocks.at_mut(lowest).set_node(number);
            nodes.at_mut(number).set(place, lowest.number());
        }
    }

    /// The lowest span of exactly `len` bytes, which are less than [`LONG`].
    #[inline]
    pub fn exact(&self, nodes: &Nodes, len: usize) -> Option<Slot> {
        let path = Path::to(len / GRANULE);
        let middle = nodes.at(self.top).child(path.top)?;
        let bottom = nodes.at(middle).child(path.middle)?;
        nodes.at(bottom).child(path.bottom).map(Slot::from_number)
    }

    /// The lowest span of the smallest length that is at least `len`, which is below [`LONG`].
    #[inline]
    pub fn smallest(&self, nodes: &Nodes, len: usize) -> Option<Slot> {
        let path = Path::to(len / GRANULE);
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

    /// The lowest of the longest spans.
    pub fn longest(&self, nodes: &Nodes) -> Option<Slot> {
        let highest = |number: u32| {
            let node = nodes.at(number);
            let place = (WIDTH - 1).checked_sub(node.bits.leading_zeros() as usize)?;
            Some(node.below[place])
        };
        highest(self.top)
            .and_then(highest)
            .and_then(highest)
            .map(Slot::from_number)
    }
}
