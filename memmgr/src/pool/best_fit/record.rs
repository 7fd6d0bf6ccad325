//! The record of a block: its number, what it holds in half a cache line, and the links of a span.

use super::{GRANULE, OwnerId};

/// The number of a block record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(u32);

impl Slot {
    /// No block.
    pub const NONE: Self = Self(u32::MAX);

    /// Whether this is no block.
    #[inline]
    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The number.
    #[inline]
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// The number, as a place in a slab.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    /// The slot with a number that [`Slot::number`] gave.
    #[inline]
    pub(super) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The priority of a span in the tree of its length: a number that has nothing to do with its address. No two slots have the
    /// same. (One multiplication would not do: the slots of blocks that were cut one after the other follow each other, and of every
    /// 377th or 610th it makes numbers that nearly ascend.)
    #[inline]
    pub(super) fn priority(self) -> u32 {
        let mixed = self.0.wrapping_mul(0x9e37_79b1);
        (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b)
    }
}

/// What a live block carries. A free span keeps in the same bytes whose it is, and where the index has it.
pub trait Datum: Default {
    /// What a free span keeps.
    fn of_span(owner: OwnerId, node: u32) -> Self;

    /// Whose it is, if it is what a free span keeps.
    fn owner(&self) -> OwnerId;

    /// Where the index has it, if it is what a free span keeps.
    fn node(&self) -> u32;
}

/// The neighbours of a free span in the tree of the spans of its class and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    /// The first address of the span, so that a way through the tree looks at nothing else.
    pub addr: usize,
    /// The span below it with lower addresses.
    pub left: Slot,
    /// The span below it with higher addresses.
    pub right: Slot,
    /// The span above it.
    pub parent: Slot,
}

impl Links {
    /// No other span is in the tree.
    pub const NONE: Self = Self {
        addr: 0,
        left: Slot::NONE,
        right: Slot::NONE,
        parent: Slot::NONE,
    };

    /// Whether no other span is in the tree.
    pub fn are_none(&self) -> bool {
        self.left.is_none() && self.right.is_none() && self.parent.is_none()
    }
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The record is not in use.
    Vacant,
    /// The block is handed out (or, inside an operation, in no index).
    Live,
    /// The block is free.
    Free,
    /// No memory is mapped there (see `gaps`).
    Gap,
}

/// A block. With a datum of eight bytes it fills half a cache line.
///
/// Addresses and lengths are multiples of the granule: their low bits have other meanings.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Block<T> {
    /// The first address; below the granule: the state and two flags.
    head: usize,
    /// The length in bytes; below the granule: how much of it was not asked for.
    size: usize,
    /// The block before it in the segment.
    pub prev: Slot,
    /// The block behind it in the segment. In a vacant record: the next vacant one.
    pub next: Slot,
    /// What it carries.
    datum: T,
}

const _: () = assert!(size_of::<Block<[u32; 2]>>() == 32);

const LOW: usize = GRANULE - 1;
const STATE: usize = 3;
/// The slot is in the list of seams (the seam may be gone meanwhile).
const SEAM: usize = 4;
/// The span has links.
const LINKED: usize = 8;

impl<T: Datum> Block<T> {
    /// What a wrong slot leads to: an empty record with no links.
    pub fn nothing() -> Self {
        Self {
            head: State::Vacant as usize,
            size: 0,
            prev: Slot::NONE,
            next: Slot::NONE,
            datum: T::default(),
        }
    }

    /// The first address.
    #[inline]
    pub fn addr(&self) -> usize {
        self.head & !LOW
    }

    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.size & !LOW
    }

    /// What was asked for, in bytes, if it is live.
    #[inline]
    pub fn requested(&self) -> usize {
        self.len().wrapping_sub(self.size & LOW)
    }

    /// The length is another; all of it was asked for.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        self.size = len & !LOW;
    }

    /// Of its length, which stays, so much was asked for.
    #[inline]
    pub fn set_requested(&mut self, requested: usize) {
        let len = self.len();
        debug_assert!(len.wrapping_sub(requested) <= LOW, "the length is another");
        self.size = len | (len.wrapping_sub(requested) & LOW);
    }

    /// The first address behind the block. Segments do not run past the last address, so it exists.
    #[inline]
    pub fn end(&self) -> usize {
        self.addr().wrapping_add(self.len())
    }

    /// What it is.
    #[inline]
    pub fn state(&self) -> State {
        const ALL: [State; 4] = [State::Vacant, State::Live, State::Free, State::Gap];
        ALL[self.head & STATE]
    }

    /// Whether it is that.
    #[inline]
    pub fn is(&self, state: State) -> bool {
        self.head & STATE == state as usize
    }

    /// It is something else, which carries what it carried, and is not linked.
    #[inline]
    pub fn set(&mut self, state: State) {
        self.head = self.head & !(STATE | LINKED) | state as usize;
    }

    /// The owner, if the block is free.
    #[inline]
    pub fn owner(&self) -> Option<OwnerId> {
        self.is(State::Free).then(|| self.datum.owner())
    }

    /// Whether the block is handed out.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.is(State::Live)
    }

    /// Whether no memory is there.
    #[inline]
    pub fn is_gap(&self) -> bool {
        self.is(State::Gap)
    }

    /// The datum, if the block is live.
    #[inline]
    pub fn data(&self) -> Option<&T> {
        self.is_live().then_some(&self.datum)
    }

    /// A record that was vacant is this block; it stays in the list of seams, if it was there.
    #[inline]
    pub fn begin(&mut self, addr: usize, len: usize, state: State, datum: T) {
        self.head = addr & !LOW | self.head & SEAM | state as usize;
        self.set_len(len);
        self.datum = datum;
    }

    /// The datum, to be changed, if the block is live.
    #[inline]
    pub fn data_mut(&mut self) -> Option<&mut T> {
        self.is_live().then_some(&mut self.datum)
    }

    /// Whether the span has links.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.head & LINKED != 0
    }

    /// The span has links.
    #[inline]
    pub fn set_linked(&mut self) {
        debug_assert!(self.is(State::Free), "the block is not free");
        self.head |= LINKED;
    }

    /// It is live, of another length of which so much was asked for, and carries this.
    #[inline]
    pub fn make_live(&mut self, len: usize, requested: usize, datum: T) {
        self.set(State::Live);
        self.set_len(len);
        self.set_requested(requested);
        self.datum = datum;
    }

    /// It is a free span of this length and owner, alone in its tree.
    #[inline]
    pub fn make_free(&mut self, len: usize, owner: OwnerId) {
        self.set(State::Free);
        self.set_len(len);
        self.datum = T::of_span(owner, 0);
    }

    /// Where in the index the tree of a span hangs; only the lowest span knows that for sure.
    #[inline]
    pub fn node(&self) -> u32 {
        debug_assert!(self.is(State::Free), "the block is not free");
        self.datum.node()
    }

    /// The tree of a span hangs elsewhere in the index.
    #[inline]
    pub fn set_node(&mut self, node: u32) {
        debug_assert!(self.is(State::Free), "the block is not free");
        if self.is(State::Free) {
            self.datum = T::of_span(self.datum.owner(), node);
        }
    }

    /// Whether the slot is in the list of seams (the seam may be gone meanwhile).
    #[inline]
    pub fn seam(&self) -> bool {
        self.head & SEAM != 0
    }

    /// The slot is in the list of seams, or is not.
    #[inline]
    pub fn set_seam(&mut self, seam: bool) {
        self.head = if seam {
            self.head | SEAM
        } else {
            self.head & !SEAM
        };
    }
}
