//! The records of the blocks: a slab with links to the physical neighbours.
//!
//! A block is known by its [`Slot`], a number that stays the same while the block exists. The neighbours in
//! the segment are linked, so that a free finds them without a search; the chain ends at the ends of the
//! segment, which is what keeps segments apart. What every operation looks at fills half a cache line; what few do, the
//! links between spans of one length and the lists of owners, lies elsewhere.

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
    const NONE: Self = Self {
        addr: 0,
        left: Slot::NONE,
        right: Slot::NONE,
        parent: Slot::NONE,
    };

    /// Whether no other span is in the tree.
    fn are_none(&self) -> bool {
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

const LOW: usize = GRANULE - 1;
const STATE: usize = 3;
/// The slot is in the list of seams (the seam may be gone meanwhile).
const SEAM: usize = 4;
/// The span has links.
const LINKED: usize = 8;

impl<T: Datum> Block<T> {
    /// What a wrong slot leads to: an empty record with no links.
    fn nothing() -> Self {
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

    #[inline]
    fn is(&self, state: State) -> bool {
        self.head & STATE == state as usize
    }

    #[inline]
    fn set(&mut self, state: State) {
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

    #[inline]
    fn make_live(&mut self, len: usize, requested: usize, datum: T) {
        self.set(State::Live);
        self.size = len & !LOW | (len.wrapping_sub(requested) & LOW);
        self.datum = datum;
    }

    #[inline]
    fn make_free(&mut self, len: usize, owner: OwnerId) {
        self.set(State::Free);
        self.size = len & !LOW;
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

/// All block records.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    records: Vec<Block<T>>,
    /// The links of each record; they mean something in those that are linked.
    links: Vec<Links>,
    /// The owner in whose list each slot is (its span may be gone meanwhile); [`UNLISTED`] if it is in none.
    listed: Vec<u32>,
    vacant: Slot,
    vacant_count: usize,
    /// What is read through a wrong slot, and what takes what is written there.
    stray: Block<T>,
    stray_links: Links,
}

/// In no owner's list.
pub(super) const UNLISTED: u32 = u32::MAX;

impl<T: Datum> Blocks<T> {
    /// No blocks.
    pub fn new() -> Self {
        Self {
            records: Vec::new(),
            links: Vec::new(),
            listed: Vec::new(),
            vacant: Slot::NONE,
            vacant_count: 0,
            stray: Block::nothing(),
            stray_links: Links::NONE,
        }
    }

    /// The number of blocks.
    pub fn count(&self) -> usize {
        self.records.len().saturating_sub(self.vacant_count)
    }

    /// The number of records.
    pub fn slots(&self) -> usize {
        self.records.len()
    }

    /// All records, vacant ones too.
    pub fn records(&self) -> &[Block<T>] {
        &self.records
    }

    /// Looks at all records, vacant ones too, each with the owner in whose list it is, which may be changed.
    pub fn for_each(&mut self, mut look: impl FnMut(Slot, &Block<T>, &mut u32)) {
        let records = self.records.iter().zip(&mut self.listed);
        for (number, (block, listed)) in (0..).zip(records) {
            look(Slot(number), block, listed);
        }
    }

    /// The number of vacant records.
    pub fn vacant_count(&self) -> usize {
        self.vacant_count
    }

    /// The number of vacant records, found by walking their list.
    pub fn walk_vacant(&self) -> usize {
        let mut slot = self.vacant;
        let mut count = 0;
        while !slot.is_none() && count <= self.records.len() {
            count += 1;
            slot = self.at(slot).next;
        }
        count
    }

    /// Whether `more` blocks can be added.
    #[inline]
    pub fn has_room(&self, more: usize) -> bool {
        let never_used = (Slot::NONE.0 as usize).saturating_sub(self.records.len());
        self.vacant_count.saturating_add(never_used) >= more
    }

    /// The block of a slot.
    #[inline]
    pub fn at(&self, slot: Slot) -> &Block<T> {
        match self.records.get(slot.0 as usize) {
            Some(record) => record,
            None => {
                debug_assert!(false, "no block has this slot");
                &self.stray
            }
        }
    }

    /// The block of a slot, to be changed.
    #[inline]
    pub fn at_mut(&mut self, slot: Slot) -> &mut Block<T> {
        match self.records.get_mut(slot.0 as usize) {
            Some(record) => record,
            None => {
                debug_assert!(false, "no block has this slot");
                self.stray = Block::nothing();
                &mut self.stray
            }
        }
    }

    /// The datum of a live block.
    #[inline]
    pub fn data(&self, slot: Slot) -> Option<&T> {
        self.records.get(slot.0 as usize)?.data()
    }

    /// The datum of a live block, to be changed.
    #[inline]
    pub fn data_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let block = self.records.get_mut(slot.0 as usize)?;
        block.is_live().then_some(&mut block.datum)
    }

    /// The owner of a block, if there is a block and it is free.
    #[inline]
    pub fn owner(&self, slot: Slot) -> Option<OwnerId> {
        self.records.get(slot.0 as usize)?.owner()
    }

    /// Whether the block of a slot starts at `addr`.
    #[inline]
    pub fn starts_at(&self, slot: Slot, addr: usize) -> bool {
        let block = self.records.get(slot.0 as usize);
        block.is_some_and(|block| block.addr() == addr)
    }

    /// A block is live, of another length of which so much was asked for, and carries this.
    #[inline]
    pub fn make_live(&mut self, slot: Slot, len: usize, requested: usize, datum: T) {
        self.at_mut(slot).make_live(len, requested, datum);
    }

    /// A block is a free span of this length and owner, alone in its tree.
    #[inline]
    pub fn make_free(&mut self, slot: Slot, len: usize, owner: OwnerId) {
        self.at_mut(slot).make_free(len, owner);
    }

    /// No memory is where a block is.
    pub fn make_gap(&mut self, slot: Slot) {
        self.at_mut(slot).set(State::Gap);
    }

    /// The owner in whose list a slot is; [`UNLISTED`] if it is in none.
    #[inline]
    pub fn listed(&self, slot: Slot) -> u32 {
        self.listed
            .get(slot.0 as usize)
            .copied()
            .unwrap_or(UNLISTED)
    }

    /// The slot is in this owner's list.
    #[inline]
    pub fn set_listed(&mut self, slot: Slot, owner: u32) {
        if let Some(listed) = self.listed.get_mut(slot.0 as usize) {
            *listed = owner;
        }
    }

    /// Whether no other span is in the tree of a span.
    #[inline]
    pub fn is_alone(&self, slot: Slot) -> bool {
        self.at(slot).head & LINKED == 0 || self.links(slot).are_none()
    }

    /// Gives a span links, none yet, if it has not any.
    #[inline]
    pub fn link(&mut self, slot: Slot) {
        let block = self.at_mut(slot);
        if block.head & LINKED == 0 {
            debug_assert!(block.is(State::Free), "the block is not free");
            block.head |= LINKED;
            let addr = block.addr();
            *self.links_mut(slot) = Links {
                addr,
                ..Links::NONE
            };
        }
    }

    /// The links of a span that has some.
    #[inline]
    pub fn links(&self, slot: Slot) -> &Links {
        debug_assert!(self.at(slot).head & LINKED != 0, "the span has no links");
        match self.links.get(slot.0 as usize) {
            Some(links) => links,
            None => {
                debug_assert!(false, "no span has this slot");
                &self.stray_links
            }
        }
    }

    /// The links of a span that has some, to be changed.
    #[inline]
    pub fn links_mut(&mut self, slot: Slot) -> &mut Links {
        debug_assert!(self.at(slot).head & LINKED != 0, "the span has no links");
        match self.links.get_mut(slot.0 as usize) {
            Some(links) => links,
            None => {
                debug_assert!(false, "no span has this slot");
                self.stray_links = Links::NONE;
                &mut self.stray_links
            }
        }
    }

    /// Adds a block behind `prev` in its segment (alone if that is none): a live one that carries the default. [`Slot::NONE`] if there
    /// is no room.
    pub fn insert_after(&mut self, prev: Slot, addr: usize, len: usize) -> Slot {
        self.insert(prev, addr, len, State::Live, T::default())
    }

    /// As [`Blocks::insert_after`], a free span of this owner.
    #[inline]
    pub fn insert_free_after(
        &mut self,
        prev: Slot,
        addr: usize,
        len: usize,
        owner: OwnerId,
    ) -> Slot {
        self.insert(prev, addr, len, State::Free, T::of_span(owner, 0))
    }

    #[inline]
    fn insert(&mut self, prev: Slot, addr: usize, len: usize, state: State, datum: T) -> Slot {
        let next = if prev.is_none() {
            Slot::NONE
        } else {
            self.at(prev).next
        };
        let slot = self.vacant();
        if slot.is_none() {
            return slot;
        }
        let block = self.at_mut(slot);
        block.head = addr & !LOW | block.head & SEAM | state as usize;
        block.size = len & !LOW;
        (block.prev, block.next, block.datum) = (prev, next, datum);
        if !prev.is_none() {
            self.at_mut(prev).next = slot;
        }
        if !next.is_none() {
            self.at_mut(next).prev = slot;
        }
        slot
    }

    /// Removes a block, which is in no index, from its segment. Its neighbours become neighbours.
    #[inline]
    pub fn remove(&mut self, slot: Slot) {
        let vacant = self.vacant;
        let block = self.at_mut(slot);
        let (prev, next) = (block.prev, block.next);
        block.set(State::Vacant);
        block.next = vacant;
        self.vacant = slot;
        self.vacant_count += 1;
        if !prev.is_none() {
            self.at_mut(prev).next = next;
        }
        if !next.is_none() {
            self.at_mut(next).prev = prev;
        }
    }

    /// A vacant record, which is not in the list of those any more. It is still in the lists where it was.
    #[inline]
    fn vacant(&mut self) -> Slot {
        if self.vacant.is_none() {
            return self.push();
        }
        let slot = self.vacant;
        self.vacant = self.at(slot).next;
        self.vacant_count = self.vacant_count.wrapping_sub(1);
        slot
    }

    /// Adds a record. The slab grows by one in 32, so that little of it is unused.
    #[cold]
    fn push(&mut self) -> Slot {
        let len = self.records.len();
        match u32::try_from(len) {
            Ok(number) if number != Slot::NONE.0 => {
                if len == self.records.capacity() {
                    let more = (len / 32).max(64);
                    self.records.reserve_exact(more);
                    self.links.reserve_exact(more);
                    self.listed.reserve_exact(more);
                }
                self.records.push(Block::nothing());
                self.links.push(Links::NONE);
                self.listed.push(UNLISTED);
                Slot(number)
            }
            _ => Slot::NONE,
        }
    }

    /// The block and those behind it in its segment. Ends even if the links are damaged.
    pub fn following(&self, first: Slot) -> impl Iterator<Item = Slot> + '_ {
        let step = |slot: &Slot| {
            let next = self.at(*slot).next;
            (!next.is_none()).then_some(next)
        };
        std::iter::successors((!first.is_none()).then_some(first), step)
            .take(self.records.len() + 1)
    }
}
