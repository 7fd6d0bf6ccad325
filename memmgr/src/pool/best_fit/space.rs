//! The allocator itself: what it keeps, the free of a block, and questions about blocks, spans and figures.

use std::collections::BTreeMap;

use super::blocks::{Blocks, Datum, Slot};
use super::gaps::Gaps;
use super::index::{Entry, Nodes};
use super::live::Table;
use super::owners::Owners;
use super::pages::Starts;
use super::runs::Scratch;
use super::{ClassId, FreeError, LiveInfo, Owner, OwnerId, SpaceStats};

/// A segment. The slot of its first block never changes: a merge keeps the left record, a split as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) len: usize,
    pub(super) first: Slot,
}

/// For how many seams there is room from the beginning.
const SEAMS: usize = 64;

/// The span that is in no list and no index yet (see `steps`), with what a search wants to know of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    /// The record of the span; none if there is no such span.
    pub(super) slot: Slot,
    /// Whose it is.
    pub(super) owner: OwnerId,
    /// Where it would be found.
    pub(super) class: ClassId,
    /// Its first address.
    pub(super) addr: usize,
    /// Its length in bytes; 0 if there is no such span.
    pub(super) len: usize,
    /// Whether the blocks before and behind it may be free spans with which it has no seam noted.
    pub(super) seams: (bool, bool),
}

impl Recent {
    /// There is none.
    pub(super) const NONE: Self = Self {
        slot: Slot::NONE,
        owner: OwnerId::IDLE,
        class: ClassId::IDLE,
        addr: 0,
        len: 0,
        seams: (false, false),
    };

    /// Where the index would have it.
    #[inline]
    pub(super) fn entry(&self) -> Entry {
        let Self {
            slot, addr, len, ..
        } = *self;
        Entry { len, addr, slot }
    }

    /// There is none any more.
    #[inline]
    pub(super) fn clear(&mut self) {
        (self.slot, self.len) = (Slot::NONE, 0);
    }
}

/// Segments and their blocks. Each live block carries a datum of type `T`, which is the default value when
/// the block is handed out. See the module for the model.
#[derive(Debug)]
pub struct Space<T> {
    pub(super) blocks: Blocks<T>,
    pub(super) owners: Owners,
    /// What the indexes of all classes are made of.
    pub(super) nodes: Nodes,
    /// The live blocks by their first address.
    pub(super) live: Table,
    /// The blocks by page, once that is needed.
    pub(super) starts: Starts,
    /// The segments by their base.
    pub(super) segments: BTreeMap<usize, Segment>,
    /// The span that is in no list and no index yet.
    pub(super) recent: Recent,
    /// Grows whenever memory becomes free, or free memory another owner's.
    pub(super) frees: u64,
    /// The spans that have a seam, and slots that had one once.
    pub(super) seams: Vec<Slot>,
    pub(super) scratch: Scratch,
    /// The addresses without memory.
    pub(super) gaps: Gaps,
    /// The bytes of all segments, less the gaps.
    pub(super) reserved: usize,
    pub(super) in_use: usize,
    pub(super) splits: u64,
    pub(super) merges: u64,
}

impl<T: Datum> Default for Space<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Datum> Space<T> {
    /// No segments.
    pub fn new() -> Self {
        Self {
            blocks: Blocks::new(),
            owners: Owners::new(),
            nodes: Nodes::new(),
            live: Table::default(),
            starts: Starts::default(),
            segments: BTreeMap::new(),
            recent: Recent::NONE,
            frees: 0,
            seams: Vec::with_capacity(SEAMS),
            scratch: Scratch::default(),
            gaps: Gaps::default(),
            reserved: 0,
            in_use: 0,
            splits: 0,
            merges: 0,
        }
    }

    /// Gives back the live block at `addr`; it becomes a free span of `owner`.
    ///
    /// A block that was taken for a caller who then could not wait is given back like any other, with an owner
    /// that stands for everything in its [`Taken::owners`], so that no mark is lost.
    #[cfg(test)]
    pub fn free(&mut self, addr: usize, owner: Owner) -> Result<super::Freed<T>, FreeError> {
        let Some(slot) = self.find(addr) else {
            return Err(self.why_not_live(addr));
        };
        let len = self.blocks.at(slot).len();
        let data = self.blocks.data_mut(slot).map(std::mem::take);
        match self.free_at(slot, owner) {
            Ok(()) => Ok(super::Freed {
                len,
                data: data.unwrap_or_default(),
            }),
            Err(error) => {
                if let Some((place, data)) = self.blocks.data_mut(slot).zip(data) {
                    *place = data;
                }
                Err(error)
            }
        }
    }

    /// Gives back a live block whose record is known, and with it the datum; it becomes a free span of `owner`.
    #[inline(always)]
    pub fn free_at(&mut self, slot: Slot, owner: Owner) -> Result<(), FreeError> {
        self.owners.admit(owner)?;
        let block = self.blocks.at(slot);
        let (addr, len) = (block.addr(), block.len());
        if !block.is_live() {
            return Err(FreeError::AlreadyFree);
        }
        self.live.remove(addr, slot);
        self.in_use = self.in_use.wrapping_sub(len);
        self.coalesce(slot, owner);
        Ok(())
    }

    /// The record of the live block that starts at `addr`.
    #[inline]
    pub fn find(&self, addr: usize) -> Option<Slot> {
        self.live.get(&self.blocks, addr)
    }

    /// The datum of a live block whose record is known.
    #[inline]
    pub fn data_at(&self, slot: Slot) -> Option<&T> {
        self.blocks.data(slot)
    }

    /// Length in bytes and datum of a live block whose record is known, to be changed.
    pub fn block_at_mut(&mut self, slot: Slot) -> Option<(usize, &mut T)> {
        let len = self.blocks.at(slot).len();
        Some((len, self.blocks.data_mut(slot)?))
    }

    /// What was asked for of a live block whose record is known, in bytes.
    #[inline]
    pub fn requested_at(&self, slot: Slot) -> usize {
        self.blocks.at(slot).requested()
    }

    /// Of a live block whose record is known so much was asked for: more than a granule below its length.
    #[inline]
    pub fn set_requested(&mut self, slot: Slot, requested: usize) {
        self.blocks.at_mut(slot).set_requested(requested);
    }

    /// The datum of a live block whose record is known, to be changed.
    #[inline]
    pub fn data_at_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.blocks.data_mut(slot)
    }

    /// The number of spans that an owner has.
    #[inline]
    pub fn spans_of(&self, owner: OwnerId) -> usize {
        self.owners.spans_of(owner)
    }

    /// All owners that have spans.
    pub fn owners_with_spans(&self) -> impl Iterator<Item = OwnerId> {
        let owners = self.owners.owners();
        owners.filter_map(|(id, owner)| (owner.spans > 0).then_some(id))
    }

    /// The bytes of the spans that an owner has.
    pub fn bytes_of(&self, owner: OwnerId) -> usize {
        self.owners.owner(owner).map_or(0, |owner| owner.bytes)
    }

    /// The class of the spans that an owner has; none if it has no spans.
    pub fn class_of(&self, owner: OwnerId) -> Option<ClassId> {
        let owner = self.owners.owner(owner)?;
        (owner.spans > 0).then_some(owner.class)
    }

    /// A number that grows whenever memory becomes free, or free memory another owner's: a request that found nothing finds
    /// nothing as long as it stays.
    #[inline]
    pub fn frees(&self) -> u64 {
        self.frees
    }

    /// The bytes of all live blocks.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// The bytes of all segments that have memory, and what is held.
    pub fn reserved(&self) -> usize {
        self.reserved.saturating_add(self.gaps.held())
    }

    /// The bytes that are free but not idle.
    pub fn pending_bytes(&self) -> usize {
        self.reserved
            .saturating_sub(self.in_use)
            .saturating_sub(self.bytes_of(OwnerId::IDLE))
    }

    /// The live block that starts at `addr`.
    pub fn live(&self, addr: usize) -> Option<LiveInfo<'_, T>> {
        self.live_info(self.find(addr)?)
    }

    /// The live block whose record is known.
    #[inline]
    pub fn live_at(&self, slot: Slot) -> Option<LiveInfo<'_, T>> {
        self.live_info(slot)
    }

    /// The live block in which `addr` lies.
    pub fn live_containing(&mut self, addr: usize) -> Option<LiveInfo<'_, T>> {
        let slot = self.find_containing(addr)?;
        self.live_info(slot)
    }

    /// The record of the live block in which `addr` lies. From the first time on that this is asked for an address inside a
    /// block, the blocks of each page are kept.
    pub fn find_containing(&mut self, addr: usize) -> Option<Slot> {
        if let Some(slot) = self.find(addr) {
            return Some(slot);
        }
        self.segment_of(addr)?;
        if !self.starts.are_kept() {
            self.keep_starts();
        }
        let slot = self.starts.find(&self.blocks, addr)?;
        self.blocks.at(slot).is_live().then_some(slot)
    }

    fn keep_starts(&mut self) {
        self.starts.keep();
        for (&base, segment) in &self.segments {
            self.starts.add_segment(base, segment.len);
            for slot in self.blocks.following(segment.first) {
                self.starts
                    .add(&self.blocks, slot, self.blocks.at(slot).addr());
            }
        }
    }

    /// The live blocks by ascending address.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveInfo<'_, T>> {
        self.segments
            .values()
            .flat_map(|segment| self.blocks.following(segment.first))
            .filter_map(|slot| self.live_info(slot))
    }

    /// The datum of the live block that starts at `addr`, to be changed.
    pub fn data_mut(&mut self, addr: usize) -> Option<&mut T> {
        self.blocks.data_mut(self.find(addr)?)
    }

    /// The figures.
    pub fn stats(&self) -> SpaceStats {
        SpaceStats {
            reserved: self.reserved(),
            in_use: self.in_use,
            idle: self
                .bytes_of(OwnerId::IDLE)
                .saturating_add(self.gaps.held()),
            pending: self.pending_bytes(),
            largest_idle: self.largest_idle(),
            segments: self.segments.len(),
            live_blocks: self.live.len(),
            free_spans: (self.blocks.count().saturating_sub(self.live.len()))
                .saturating_sub(self.gaps.count()),
            splits: self.splits,
            merges: self.merges,
        }
    }

    fn largest_idle(&self) -> usize {
        let filed = self
            .owners
            .class(ClassId::IDLE)
            .map_or(0, |class| class.index.longest(&self.nodes, &self.blocks));
        if self.recent.class == ClassId::IDLE {
            self.recent.len.max(filed)
        } else {
            filed
        }
    }

    #[inline]
    fn live_info(&self, slot: Slot) -> Option<LiveInfo<'_, T>> {
        let block = self.blocks.at(slot);
        Some(LiveInfo {
            addr: block.addr(),
            len: block.len(),
            requested: block.requested(),
            data: self.blocks.data(slot)?,
        })
    }

    /// Why a free refuses an address at which no live block starts.
    #[cold]
    pub fn why_not_live(&mut self, addr: usize) -> FreeError {
        if let Some(block) = self.live_containing(addr) {
            return FreeError::Interior {
                start: block.addr,
                len: block.len,
            };
        }
        match self.segment_of(addr) {
            Some(_) => FreeError::AlreadyFree,
            None => FreeError::Foreign,
        }
    }
}
