//! The records of the blocks: a slab with links to the physical neighbours, and two kinds of chains.
//!
//! A block is known by its [`Slot`], a number that stays the same while the block exists. The neighbours in
//! the segment are linked, so that a free finds them without a search; the chain ends at the ends of the
//! segment, which is what keeps segments apart. Besides, a free span hangs in the chain of its owner, and, if
//! it has a seam, in the chain of the seams of its class.

use super::owners::{ClassSlot, OwnerSlot};

/// The number of a block record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Slot(u32);

impl Slot {
    /// No block.
    pub const NONE: Self = Self(u32::MAX);

    /// Whether this is no block.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The record is not in use.
    Vacant,
    /// The block is handed out (or, inside an operation, in no index).
    Live,
    /// The block is a free span of this owner.
    Free(OwnerSlot),
}

/// The links of a block in one chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Links {
    prev: Slot,
    next: Slot,
}

impl Links {
    const NONE: Self = Self {
        prev: Slot::NONE,
        next: Slot::NONE,
    };
}

/// Which of the two chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Chain {
    /// The spans of one owner.
    Owner,
    /// The spans of one class that have a seam.
    Seam,
}

/// A block, without the datum that it carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// The first address.
    pub addr: usize,
    /// The length in bytes.
    pub len: usize,
    /// The block before it in the segment.
    pub prev: Slot,
    /// The block behind it in the segment. In a vacant record: the next vacant one.
    pub next: Slot,
    /// What it is.
    pub state: State,
    /// The class in whose chain of seams the block hangs.
    pub seam: Option<ClassSlot>,
    owner_links: Links,
    seam_links: Links,
}

impl Block {
    /// What a wrong slot leads to: an empty record with no links.
    const NOTHING: Self = Self {
        addr: 0,
        len: 0,
        prev: Slot::NONE,
        next: Slot::NONE,
        state: State::Vacant,
        seam: None,
        owner_links: Links::NONE,
        seam_links: Links::NONE,
    };

    /// The first address behind the block. Segments do not run past the last address, so it exists.
    pub fn end(&self) -> usize {
        self.addr.saturating_add(self.len)
    }

    fn links(&self, chain: Chain) -> Links {
        match chain {
            Chain::Owner => self.owner_links,
            Chain::Seam => self.seam_links,
        }
    }

    fn links_mut(&mut self, chain: Chain) -> &mut Links {
        match chain {
            Chain::Owner => &mut self.owner_links,
            Chain::Seam => &mut self.seam_links,
        }
    }
}

static NOTHING: Block = Block::NOTHING;

#[derive(Debug)]
struct Record<T> {
    block: Block,
    data: T,
}

/// All block records.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    records: Vec<Record<T>>,
    vacant: Slot,
    vacant_count: usize,
    /// Takes what is written through a wrong slot.
    stray: Block,
}

impl<T: Default> Blocks<T> {
    /// No blocks.
    pub const fn new() -> Self {
        Self {
            records: Vec::new(),
            vacant: Slot::NONE,
            vacant_count: 0,
            stray: Block::NOTHING,
        }
    }

    /// The number of blocks.
    pub fn count(&self) -> usize {
        self.records.len().saturating_sub(self.vacant_count)
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
    pub fn has_room(&self, more: usize) -> bool {
        let never_used = (Slot::NONE.0 as usize).saturating_sub(self.records.len());
        self.vacant_count.saturating_add(never_used) >= more
    }

    /// The block of a slot.
    pub fn at(&self, slot: Slot) -> &Block {
        match self.records.get(slot.0 as usize) {
            Some(record) => &record.block,
            None => {
                debug_assert!(false, "no block has this slot");
                &NOTHING
            }
        }
    }

    /// The block of a slot, to be changed.
    pub fn at_mut(&mut self, slot: Slot) -> &mut Block {
        match self.records.get_mut(slot.0 as usize) {
            Some(record) => &mut record.block,
            None => {
                debug_assert!(false, "no block has this slot");
                self.stray = Block::NOTHING;
                &mut self.stray
            }
        }
    }

    /// The datum of a block.
    pub fn data(&self, slot: Slot) -> Option<&T> {
        self.records.get(slot.0 as usize).map(|record| &record.data)
    }

    /// The datum of a block, to be changed.
    pub fn data_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.records
            .get_mut(slot.0 as usize)
            .map(|record| &mut record.data)
    }

    /// The owner of a block, if there is a block and it is free.
    pub fn owner(&self, slot: Slot) -> Option<OwnerSlot> {
        if slot.is_none() {
            return None;
        }
        match self.at(slot).state {
            State::Free(owner) => Some(owner),
            State::Live | State::Vacant => None,
        }
    }

    /// Adds a block, in no chain yet, behind `prev` in its segment (alone if that is none). [`Slot::NONE`] if
    /// there is no room.
    pub fn insert_after(&mut self, prev: Slot, addr: usize, len: usize) -> Slot {
        let next = if prev.is_none() {
            Slot::NONE
        } else {
            self.at(prev).next
        };
        let block = Block {
            addr,
            len,
            prev,
            next,
            state: State::Live,
            ..Block::NOTHING
        };
        let slot = self.fill(block);
        if slot.is_none() {
            return slot;
        }
        if !prev.is_none() {
            self.at_mut(prev).next = slot;
        }
        if !next.is_none() {
            self.at_mut(next).prev = slot;
        }
        slot
    }

    /// Removes a block, which is in no chain, from its segment. Its neighbours become neighbours. Its datum is
    /// the default already: a free takes the datum out.
    pub fn remove(&mut self, slot: Slot) {
        let block = *self.at(slot);
        debug_assert!(block.state == State::Live && block.seam.is_none());
        if !block.prev.is_none() {
            self.at_mut(block.prev).next = block.next;
        }
        if !block.next.is_none() {
            self.at_mut(block.next).prev = block.prev;
        }
        if let Some(record) = self.records.get_mut(slot.0 as usize) {
            record.block = Block {
                next: self.vacant,
                ..Block::NOTHING
            };
            self.vacant = slot;
            self.vacant_count += 1;
        }
    }

    fn fill(&mut self, block: Block) -> Slot {
        if !self.vacant.is_none() {
            let slot = self.vacant;
            let free = self.at_mut(slot);
            let next = free.next;
            *free = block;
            self.vacant = next;
            self.vacant_count = self.vacant_count.saturating_sub(1);
            return slot;
        }
        match u32::try_from(self.records.len()) {
            Ok(number) if number != Slot::NONE.0 => {
                self.records.push(Record {
                    block,
                    data: T::default(),
                });
                Slot(number)
            }
            _ => Slot::NONE,
        }
    }

    /// Puts a block at the head of a chain.
    pub fn link(&mut self, chain: Chain, head: &mut Slot, slot: Slot) {
        *self.at_mut(slot).links_mut(chain) = Links {
            prev: Slot::NONE,
            next: *head,
        };
        if !head.is_none() {
            self.at_mut(*head).links_mut(chain).prev = slot;
        }
        *head = slot;
    }

    /// Takes a block out of a chain.
    pub fn unlink(&mut self, chain: Chain, head: &mut Slot, slot: Slot) {
        let links = std::mem::replace(self.at_mut(slot).links_mut(chain), Links::NONE);
        if links.prev.is_none() {
            debug_assert!(*head == slot, "a block is not in the chain that it leaves");
            *head = links.next;
        } else {
            self.at_mut(links.prev).links_mut(chain).next = links.next;
        }
        if !links.next.is_none() {
            self.at_mut(links.next).links_mut(chain).prev = links.prev;
        }
    }

    /// The blocks of a chain. Ends even if the chain is damaged.
    pub fn chain(&self, chain: Chain, head: Slot) -> impl Iterator<Item = Slot> + '_ {
        let step = move |slot: &Slot| {
            let next = self.at(*slot).links(chain).next;
            (!next.is_none()).then_some(next)
        };
        std::iter::successors((!head.is_none()).then_some(head), step).take(self.records.len() + 1)
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
