//! The records of the blocks: a slab with links to the physical neighbours.
//!
//! A block is known by its [`Slot`], a number that stays the same while the block exists. The neighbours in
//! the segment are linked, so that a free finds them without a search; the chain ends at the ends of the
//! segment, which is what keeps segments apart. What every operation looks at fills half a cache line; what few do, the
//! links between spans of one length and the lists of owners, lies elsewhere.

use super::OwnerId;
pub(super) use super::record::{Block, Links, State};
pub use super::record::{Datum, Slot};

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
            look(Slot::from_number(number), block, listed);
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
        let never_used = (Slot::NONE.index()).saturating_sub(self.records.len());
        self.vacant_count.saturating_add(never_used) >= more
    }

    /// The block of a slot.
    #[inline]
    pub fn at(&self, slot: Slot) -> &Block<T> {
        match self.records.get(slot.index()) {
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
        match self.records.get_mut(slot.index()) {
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
        self.records.get(slot.index())?.data()
    }

    /// The datum of a live block, to be changed.
    #[inline]
    pub fn data_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.records.get_mut(slot.index())?.data_mut()
    }

    /// The owner of a block, if there is a block and it is free.
    #[inline]
    pub fn owner(&self, slot: Slot) -> Option<OwnerId> {
        self.records.get(slot.index())?.owner()
    }

    /// Whether the block of a slot starts at `addr`.
    #[inline]
    pub fn starts_at(&self, slot: Slot, addr: usize) -> bool {
        let block = self.records.get(slot.index());
        block.is_some_and(|block| block.addr() == addr)
    }

    /// The owner in whose list a slot is; [`UNLISTED`] if it is in none.
    #[inline]
    pub fn listed(&self, slot: Slot) -> u32 {
        self.listed.get(slot.index()).copied().unwrap_or(UNLISTED)
    }

    /// The slot is in this owner's list.
    #[inline]
    pub fn set_listed(&mut self, slot: Slot, owner: u32) {
        if let Some(listed) = self.listed.get_mut(slot.index()) {
            *listed = owner;
        }
    }

    /// Whether no other span is in the tree of a span.
    #[inline]
    pub fn is_alone(&self, slot: Slot) -> bool {
        !self.at(slot).is_linked() || self.links(slot).are_none()
    }

    /// Gives a span links, none yet, if it has not any.
    #[inline]
    pub fn link(&mut self, slot: Slot) {
        let block = self.at_mut(slot);
        if !block.is_linked() {
            block.set_linked();
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
        debug_assert!(self.at(slot).is_linked(), "the span has no links");
        match self.links.get(slot.index()) {
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
        debug_assert!(self.at(slot).is_linked(), "the span has no links");
        match self.links.get_mut(slot.index()) {
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
        block.begin(addr, len, state, datum);
        (block.prev, block.next) = (prev, next);
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
            Ok(number) if number != Slot::NONE.number() => {
                if len == self.records.capacity() {
                    let more = (len / 32).max(64);
                    self.records.reserve_exact(more);
                    self.links.reserve_exact(more);
                    self.listed.reserve_exact(more);
                }
                self.records.push(Block::nothing());
                self.links.push(Links::NONE);
                self.listed.push(UNLISTED);
                Slot::from_number(number)
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
