//! The records of the blocks: a slab with links to the physical neighbours.
//!
//! A block is known by its [`Slot`], a number that stays the same while the block exists. The neighbours in
//! the segment are linked, so that a free finds them without a search; the chain ends at the ends of the
//! segment, which is what keeps segments apart. What a live block carries and what a free span needs for its
//! index lie in the same bytes: a block is one or the other.

use super::OwnerId;

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

/// What a free span needs to be found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Whose it is.
    pub owner: OwnerId,
    /// In the tree of the spans of its class and length: the span below it with lower addresses.
    pub left: Slot,
    /// The span below it with higher addresses.
    pub right: Slot,
    /// The span above it.
    pub parent: Slot,
    /// Where in the index the tree hangs; only the lowest span knows that for sure.
    pub node: u32,
}

impl Span {
    /// A span of an owner, in no tree.
    #[inline]
    pub fn of(owner: OwnerId) -> Self {
        Self {
            owner,
            left: Slot::NONE,
            right: Slot::NONE,
            parent: Slot::NONE,
            node: 0,
        }
    }

    /// Whether no other span is in its tree.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.left.is_none() && self.right.is_none() && self.parent.is_none()
    }
}

/// What a block is.
#[derive(Debug)]
pub(super) enum Body<T> {
    /// The record is not in use.
    Vacant,
    /// The block is handed out (or, inside an operation, in no index).
    Live(T),
    /// The block is free.
    Free(Span),
    /// No memory is mapped there (see `gaps`).
    Gap,
}

/// A block. It fills one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Block<T> {
    /// The first address.
    pub addr: usize,
    /// The length in bytes.
    pub len: usize,
    /// The block before it in the segment.
    pub prev: Slot,
    /// The block behind it in the segment. In a vacant record: the next vacant one.
    pub next: Slot,
    /// The owner in whose list the slot is (its span may be gone meanwhile); [`Block::UNLISTED`] if it is in none.
    pub listed: u32,
    /// Whether the slot is in the list of seams (the seam may be gone meanwhile).
    pub seam: bool,
    /// What it is.
    pub body: Body<T>,
}

impl<T> Block<T> {
    /// In no owner's list.
    pub const UNLISTED: u32 = u32::MAX;

    /// What a wrong slot leads to: an empty record with no links.
    const NOTHING: Self = Self {
        addr: 0,
        len: 0,
        prev: Slot::NONE,
        next: Slot::NONE,
        listed: Self::UNLISTED,
        seam: false,
        body: Body::Vacant,
    };

    /// The first address behind the block. Segments do not run past the last address, so it exists.
    #[inline]
    pub fn end(&self) -> usize {
        self.addr.wrapping_add(self.len)
    }

    /// The owner, if the block is free.
    #[inline]
    pub fn owner(&self) -> Option<OwnerId> {
        match &self.body {
            Body::Free(span) => Some(span.owner),
            Body::Live(_) | Body::Vacant | Body::Gap => None,
        }
    }

    /// Whether the block is handed out.
    #[inline]
    pub fn is_live(&self) -> bool {
        matches!(self.body, Body::Live(_))
    }
}

/// All block records.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    records: Vec<Block<T>>,
    vacant: Slot,
    vacant_count: usize,
    /// What is read through a wrong slot, and what takes what is written there.
    stray: Block<T>,
    stray_span: Span,
}

impl<T: Default> Blocks<T> {
    /// No blocks.
    pub fn new() -> Self {
        Self {
            records: Vec::new(),
            vacant: Slot::NONE,
            vacant_count: 0,
            stray: Block::NOTHING,
            stray_span: Span::of(OwnerId::IDLE),
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

    /// Looks at all records, vacant ones too, to change them.
    pub fn for_each(&mut self, mut look: impl FnMut(Slot, &mut Block<T>)) {
        for (number, block) in (0..).zip(&mut self.records) {
            look(Slot(number), block);
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
                self.stray = Block::NOTHING;
                &mut self.stray
            }
        }
    }

    /// The datum of a live block.
    #[inline]
    pub fn data(&self, slot: Slot) -> Option<&T> {
        match &self.records.get(slot.0 as usize)?.body {
            Body::Live(data) => Some(data),
            Body::Free(_) | Body::Vacant | Body::Gap => None,
        }
    }

    /// The datum of a live block, to be changed.
    #[inline]
    pub fn data_mut(&mut self, slot: Slot) -> Option<&mut T> {
        match &mut self.records.get_mut(slot.0 as usize)?.body {
            Body::Live(data) => Some(data),
            Body::Free(_) | Body::Vacant | Body::Gap => None,
        }
    }

    /// The owner of a block, if there is a block and it is free.
    #[inline]
    pub fn owner(&self, slot: Slot) -> Option<OwnerId> {
        if slot.is_none() {
            return None;
        }
        self.at(slot).owner()
    }

    /// The span of a free block.
    #[inline]
    pub fn span(&self, slot: Slot) -> &Span {
        match &self.at(slot).body {
            Body::Free(span) => span,
            Body::Live(_) | Body::Vacant | Body::Gap => {
                debug_assert!(false, "the block is not free");
                &self.stray_span
            }
        }
    }

    /// The span of a free block, to be changed.
    #[inline]
    pub fn span_mut(&mut self, slot: Slot) -> &mut Span {
        match self.records.get_mut(slot.0 as usize) {
            Some(Block {
                body: Body::Free(span),
                ..
            }) => span,
            _ => {
                debug_assert!(false, "the block is not free");
                self.stray_span = Span::of(OwnerId::IDLE);
                &mut self.stray_span
            }
        }
    }

    /// Adds a block behind `prev` in its segment (alone if that is none). [`Slot::NONE`] if there is no room.
    #[inline]
    pub fn insert_after(&mut self, prev: Slot, addr: usize, len: usize, body: Body<T>) -> Slot {
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
        (block.addr, block.len, block.prev, block.next) = (addr, len, prev, next);
        block.body = body;
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
        block.body = Body::Vacant;
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
                    self.records.reserve_exact((len / 32).max(64));
                }
                self.records.push(Block::NOTHING);
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
