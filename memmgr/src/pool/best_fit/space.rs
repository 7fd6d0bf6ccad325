//! The allocator itself: segments in and out, allocate, free, and the change of owners.

use std::collections::BTreeMap;

use super::blocks::{Blocks, Datum, Slot};
use super::gaps::Gaps;
use super::index::{Entry, Nodes};
use super::live::Table;
use super::owners::{ClassRecord, Owners};
use super::pages::Starts;
use super::runs::{Found, Request, Scratch, best_run};
use super::{
    ClassId, FreeError, GRANULE, LiveInfo, Owner, OwnerError, OwnerId, RemoveError, SegmentError,
    SegmentInfo, Single, SpaceStats, Taken, is_alignment, round,
};

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
    fn entry(&self) -> Entry {
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

    /// Adds the segment of `len` bytes at `base`, as one idle span.
    pub fn add_segment(&mut self, base: usize, len: usize) -> Result<(), SegmentError> {
        if base == 0 {
            return Err(SegmentError::Null);
        }
        if len == 0 {
            return Err(SegmentError::Empty);
        }
        if !base.is_multiple_of(GRANULE) || !len.is_multiple_of(GRANULE) {
            return Err(SegmentError::Misaligned);
        }
        let end = base.checked_add(len).ok_or(SegmentError::Overflow)?;
        let reserved = self
            .reserved
            .checked_add(len)
            .ok_or(SegmentError::Overflow)?;
        if let Some((&other, segment)) = self.segments.range(..end).next_back()
            && other.saturating_add(segment.len) > base
        {
            return Err(SegmentError::Overlap {
                base: other,
                len: segment.len,
            });
        }
        let first = self.blocks.insert_after(Slot::NONE, base, len);
        if first.is_none() {
            return Err(SegmentError::Full);
        }
        self.segments.insert(base, Segment { len, first });
        self.starts.add_segment(base, len);
        self.starts.add(&self.blocks, first, base);
        self.reserved = reserved;
        self.attach(first, OwnerId::IDLE);
        Ok(())
    }

    /// Removes the segment at `base`, which must be one idle span, and returns its length.
    pub fn remove_segment(&mut self, base: usize) -> Result<usize, RemoveError> {
        let segment = *self.segments.get(&base).ok_or(RemoveError::Unknown)?;
        if !self.is_wholly_idle(segment) {
            return Err(RemoveError::Busy);
        }
        self.detach(segment.first);
        self.blocks.remove(segment.first);
        self.segments.remove(&base);
        self.starts.remove_segment(base);
        self.reserved = self.reserved.saturating_sub(segment.len);
        Ok(segment.len)
    }

    /// The segments by ascending base.
    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> + '_ {
        self.segments
            .iter()
            .map(|(base, segment)| self.segment_info(*base, *segment))
    }

    /// The segment in which an address lies.
    pub fn segment_of(&self, addr: usize) -> Option<SegmentInfo> {
        let (&base, &segment) = self.segments.range(..=addr).next_back()?;
        (addr < base.saturating_add(segment.len)).then(|| self.segment_info(base, segment))
    }

    /// The blocks of the segment at `base` by ascending address; none if no segment starts there.
    #[cfg(test)]
    pub fn blocks_of(&self, base: usize) -> impl Iterator<Item = super::BlockInfo> + '_ {
        let first = self
            .segments
            .get(&base)
            .map_or(Slot::NONE, |segment| segment.first);
        self.blocks.following(first).map(|slot| {
            let block = self.blocks.at(slot);
            let state = match self.blocks.owner(slot) {
                Some(owner) => {
                    super::BlockState::Free(Owner::new(owner, self.owners.class_of(owner)))
                }
                None if block.is_gap() => super::BlockState::Gap,
                None => super::BlockState::Live,
            };
            super::BlockInfo {
                addr: block.addr(),
                len: block.len(),
                state,
            }
        })
    }

    /// Takes a block of `size` bytes (rounded up) from the free spans of these classes: from the smallest span
    /// in which it fits at a multiple of `align`, ties by lowest address; if there is none, from the smallest
    /// run of neighbouring spans, ties by lowest address.
    ///
    /// A search for a run looks at every seam of these classes, so a request that finds nothing is dear where
    /// many small spans of different owners lie side by side (about 10 ns each).
    ///
    /// `None` when nothing fits, for size 0, for a size that cannot be rounded up, and for an alignment that is
    /// not a power of two or is below the granule.
    pub fn allocate(&mut self, size: usize, align: usize, classes: &[ClassId]) -> Option<Taken> {
        let request = self.request(size, align)?;
        let found = match self.best_aligned(request, classes) {
            Some(found) => found,
            None => self.run_of_classes(request, classes)?,
        };
        Some(self.take(found, request.size, size))
    }

    /// Takes a block as [`Space::allocate`] does, at the alignment that every block has, from one span that is idle or of the
    /// class `own`. `datum` makes from that owner what the block carries.
    #[inline]
    pub fn take_single(
        &mut self,
        size: usize,
        own: ClassId,
        datum: impl FnOnce(OwnerId) -> T,
    ) -> Option<Single> {
        let requested = size;
        let size = round(size).filter(|_| self.blocks.has_room(1))?;
        let (span, class) = self.best_at_once(size, own)?;
        let Entry { addr, slot, .. } = span;
        let owner = self.blocks.owner(slot)?;
        let owned = Owner::new(owner, class);
        self.take_front(span, owned, (size, requested), datum(owner));
        self.enter(addr, slot, size);
        Some(Single {
            addr,
            len: size,
            slot,
            owner,
        })
    }

    /// The smallest span of at least `size` bytes that is idle or of the class `own`, and its class; ties by address.
    #[inline]
    fn best_at_once(&self, size: usize, own: ClassId) -> Option<(Entry, ClassId)> {
        let recent = &self.recent;
        let fits = recent.len >= size && (recent.class == own || recent.class == ClassId::IDLE);
        let mut best = (Entry::NONE, own);
        if fits {
            best = (recent.entry(), recent.class);
        }
        if own != ClassId::IDLE {
            self.consider(own, size, &mut best);
        }
        self.consider(ClassId::IDLE, size, &mut best);
        (!best.0.slot.is_none()).then_some(best)
    }

    /// Whether a class has a better span of at least `size` bytes than the best one so far.
    #[inline]
    fn consider(&self, id: ClassId, size: usize, best: &mut (Entry, ClassId)) {
        let Some(ClassRecord { index }) = self.owners.class(id) else {
            return;
        };
        // Many classes have no spans, and most no shorter one.
        if index.least() > best.0.len {
            return;
        }
        // Against a span that fits exactly, only another such at a lower address wins.
        let found = if best.0.len == size {
            index.exact(&self.nodes, size)
        } else {
            index.smallest(&self.nodes, size)
        };
        if let Some(slot) = found {
            let entry = Entry::of(&self.blocks, slot);
            if entry < best.0 {
                *best = (entry, id);
            }
        }
    }

    /// The best span of these classes in which the request fits at its alignment.
    fn best_aligned(&mut self, request: Request, classes: &[ClassId]) -> Option<Found> {
        if request.align == GRANULE {
            return self.best_at_start(request.size, classes);
        }
        self.file_recent();
        let mut best: Option<(Entry, usize)> = None;
        for class in classes.iter().filter_map(|id| self.owners.class(*id)) {
            let found = class
                .index
                .at_least(&self.nodes, &self.blocks, request.size)
                .take_while(|entry| best.is_none_or(|(other, _)| *entry < other))
                .find_map(|entry| Some((entry, request.place(entry.addr, entry.len)?)));
            best = found.or(best);
        }
        best.map(|(entry, start)| Found {
            first: entry.slot,
            start,
        })
    }

    /// As [`Space::best_aligned`], where every span that is long enough will do, and is taken from its start: the recent one need
    /// not be filed.
    fn best_at_start(&self, size: usize, classes: &[ClassId]) -> Option<Found> {
        let recent = &self.recent;
        let none = (Entry::NONE, ClassId::IDLE);
        let mut best = match recent.len >= size && classes.contains(&recent.class) {
            true => (recent.entry(), recent.class),
            false => none,
        };
        for class in classes {
            self.consider(*class, size, &mut best);
        }
        let Entry { addr, slot, .. } = best.0;
        (!slot.is_none()).then_some(Found {
            first: slot,
            start: addr,
        })
    }

    /// Takes a block as [`Space::allocate`] does, but from all free spans for whose owner `rank` gives a number;
    /// `None` keeps the spans of that owner out. Idle spans have rank 0. `rank` is called once for each owner
    /// that has spans.
    ///
    /// Among single spans the lowest rank counts first, then the length, then the address. If no single span
    /// does, a run is taken: the lowest highest rank, then the fewest owners that are not idle, then the
    /// smallest total, then the lowest address.
    ///
    /// This is the slow path of a caller that is ready to wait. It may look at every free span.
    pub fn allocate_ranked(
        &mut self,
        size: usize,
        align: usize,
        rank: &mut dyn FnMut(OwnerId) -> Option<u32>,
    ) -> Option<Taken> {
        let request = self.request(size, align)?;
        self.file_recent();
        let ranks: Vec<Option<u32>> = self
            .owners
            .owners()
            .map(|(slot, owner)| {
                if slot == OwnerId::IDLE {
                    Some(0)
                } else {
                    (owner.spans > 0).then(|| rank(slot)).flatten()
                }
            })
            .collect();
        let usable = |owner: OwnerId| ranks.get(owner.0 as usize).copied().flatten();
        for (number, rank) in (0..).zip(&ranks) {
            if rank.is_some() && !self.has_class_alone(OwnerId(number)) {
                self.make_list(OwnerId(number));
            }
        }
        let mut order: Vec<(u32, OwnerId)> = self
            .owners
            .owners()
            .filter_map(|(slot, _)| Some((usable(slot)?, slot)))
            .collect();
        order.sort_by_key(|(rank, _)| *rank);
        let single = order
            .chunk_by(|left, right| left.0 == right.0)
            .find_map(|equal| {
                let best = equal
                    .iter()
                    .filter_map(|(_, owner)| self.best_of_owner(*owner, request))
                    .min_by_key(|(entry, _)| *entry)?;
                Some(Found {
                    first: best.0.slot,
                    start: best.1,
                })
            });
        let found = match single {
            Some(found) => found,
            None => best_run(
                &mut self.blocks,
                Some(ranks.len()),
                &mut self.seams,
                request,
                usable,
                &mut self.scratch,
            )?,
        };
        Some(self.take(found, request.size, size))
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

    /// Makes up to `budget` spans of an owner idle. True when none is left.
    pub fn settle(&mut self, owner: OwnerId, budget: usize) -> bool {
        owner == OwnerId::IDLE || self.rename(owner, Owner::IDLE, budget) == Ok(true)
    }

    /// Gives up to `budget` spans of the owner `from` to the owner `to`. True when none is left. The idle owner
    /// gives no spans away.
    pub fn rename(&mut self, from: OwnerId, to: Owner, budget: usize) -> Result<bool, OwnerError> {
        if from == OwnerId::IDLE || !to.is_sound() {
            return Err(OwnerError::Idle);
        }
        if self.spans_of(from) == 0 {
            return Ok(true);
        }
        // A rename to itself must name the class that the spans have, and changes nothing.
        self.owners.admit(to)?;
        if to.id == from {
            return Ok(true);
        }
        if budget >= self.spans_of(from) {
            self.rename_all(from, to);
            return Ok(self.spans_of(from) == 0);
        }
        for _ in 0..budget {
            self.file_recent();
            let Some(first) = self.pop_span(from) else {
                break;
            };
            self.detach(first);
            self.coalesce(first, to);
        }
        Ok(self.spans_of(from) == 0)
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

    /// Whether any block of a segment is live.
    pub fn has_live_blocks(&self, segment: SegmentInfo) -> bool {
        self.segments.get(&segment.base).is_some_and(|segment| {
            self.blocks
                .following(segment.first)
                .any(|slot| self.blocks.at(slot).is_live())
        })
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

    /// The request in granules, or nothing if it cannot be met.
    fn request(&self, size: usize, align: usize) -> Option<Request> {
        // An allocation adds two blocks at most: what is left before and behind.
        (is_alignment(align) && self.blocks.has_room(2)).then_some(Request {
            size: round(size)?,
            align,
        })
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

    fn segment_info(&self, base: usize, segment: Segment) -> SegmentInfo {
        SegmentInfo {
            base,
            len: segment.len,
            wholly_idle: self.is_wholly_idle(segment),
        }
    }

    fn is_wholly_idle(&self, segment: Segment) -> bool {
        self.blocks.owner(segment.first) == Some(OwnerId::IDLE)
            && self.blocks.at(segment.first).len() == segment.len
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

    /// Why [`Space::free`] would refuse an address at which no live block starts.
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

    /// The best run of spans of these classes.
    #[cold]
    fn run_of_classes(&mut self, request: Request, classes: &[ClassId]) -> Option<Found> {
        let (members, bytes) = self.owners.of_classes(classes);
        if bytes < request.size {
            return None;
        }
        self.file_recent();
        let owners = &self.owners;
        let usable = |owner: OwnerId| {
            // Nearly always there are few owners.
            let is_member = match 1u64.checked_shl(owner.0) {
                Some(bit) => members & bit != 0,
                None => classes.contains(&owners.class_of(owner)),
            };
            is_member.then_some(0)
        };
        best_run(
            &mut self.blocks,
            None,
            &mut self.seams,
            request,
            usable,
            &mut self.scratch,
        )
    }

    /// Whether all filed spans of an owner's class are its own: then nobody needs its list.
    pub(super) fn has_class_alone(&self, id: OwnerId) -> bool {
        let owner = self.owners.owner(id);
        owner.is_some_and(|owner| {
            let class = self.owners.class(owner.class);
            class.is_some_and(|class| class.index.count() == owner.spans)
        })
    }

    /// The smallest span of an owner in which the request fits, and where.
    fn best_of_owner(&self, id: OwnerId, request: Request) -> Option<(Entry, usize)> {
        let owner = self.owners.owner(id)?;
        let class = self.owners.class(owner.class)?;
        let fit = |entry: Entry| Some((entry, request.place(entry.addr, entry.len)?));
        if self.has_class_alone(id) {
            // The index is in the right order.
            return class
                .index
                .at_least(&self.nodes, &self.blocks, request.size)
                .find_map(fit);
        }
        owner
            .list
            .iter()
            .filter(|slot| self.blocks.owner(**slot) == Some(id))
            .filter_map(|slot| fit(Entry::of(&self.blocks, *slot)))
            .min_by_key(|(entry, _)| *entry)
    }
}
