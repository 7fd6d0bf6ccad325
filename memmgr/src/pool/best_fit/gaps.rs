//! Addresses without memory, inside a segment.
//!
//! A segment may be a range of addresses of which only parts have memory. The rest are **gaps**: blocks with physical
//! neighbours that are neither live nor free, so that no search finds them, and which spans never merge over. Two gaps are
//! never neighbours. The space knows nothing of how memory is mapped: its owner takes idle memory out of the books
//! ([`Space::unmap`]), which leaves a gap, and enters what it has mapped ([`Space::map`]), which becomes idle.
//!
//! Between the two the memory is **held**: it counts as reserved and as idle, but is nowhere. So the figures do not change while
//! memory moves, and say how much there is even if it could not be mapped anywhere.

use std::{collections::BTreeMap, ops::Range};

use super::blocks::{Datum, Slot, State};
use super::check::ensure;
use super::index::Entry;
use super::space::Space;
use super::{ClassId, Owner, OwnerId, SegmentError};

/// All gaps of a space.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// By their first address.
    by_addr: BTreeMap<usize, Slot>,
    bytes: usize,
    held: usize,
    /// How many more blocks there are by what happened to gaps.
    blocks: isize,
}

impl Gaps {
    /// The bytes that are held.
    #[inline]
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.by_addr.len()
    }
}

/// A block of a run: addresses that could become one idle span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first address.
    pub addr: usize,
    /// The first address behind it.
    pub end: usize,
    /// Which of the two it is.
    pub kind: Kind,
}

/// What a piece of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An idle span, and its record.
    Idle(Slot),
    /// Addresses without memory.
    Gap,
}

/// Gaps and idle spans side by side, as many as there are, by ascending address.
pub type Run = Vec<Piece>;

impl<T: Datum> Space<T> {
    /// Adds a segment of which nothing has memory.
    pub fn add_range(&mut self, base: usize, len: usize) -> Result<(), SegmentError> {
        self.add_segment(base, len)?;
        let first = self
            .segments
            .get(&base)
            .map_or(Slot::NONE, |segment| segment.first);
        self.make_gap(first, base, len);
        Ok(())
    }

    /// Removes a segment of which nothing has memory. False if it is not such a one.
    pub fn remove_range(&mut self, base: usize) -> bool {
        let Some(segment) = self.segments.get(&base).copied() else {
            return false;
        };
        let block = self.blocks.at(segment.first);
        if !block.is_gap() || block.len() != segment.len {
            return false;
        }
        self.gaps.by_addr.remove(&base);
        self.gaps.bytes = self.gaps.bytes.saturating_sub(segment.len);
        self.blocks.remove(segment.first);
        self.segments.remove(&base);
        self.starts.remove_segment(base);
        true
    }

    /// Takes `len` bytes at `start` out of the books, which are part of the idle span `slot`: they become a gap, and are held.
    /// False, and nothing has changed, if they are not. What lies before them keeps the slot: of several ranges of one span
    /// the last one goes first.
    pub fn unmap(&mut self, slot: Slot, start: usize, len: usize) -> bool {
        self.file_recent();
        let fits = self.blocks.owner(slot) == Some(OwnerId::IDLE) && {
            let block = self.blocks.at(slot);
            let end = start.checked_add(len);
            block.addr() <= start && end.is_some_and(|end| end <= block.end())
        };
        if !fits || len == 0 || !self.blocks.has_room(2) {
            return false;
        }
        self.make_gap(slot, start, len);
        self.gaps.held = self.gaps.held.saturating_add(len);
        true
    }

    /// Enters `len` bytes at `start`, which are part of one gap: they become idle. `held` bytes of what is held are what has
    /// been mapped there. False, and nothing has changed, if they are not part of a gap.
    pub fn map(&mut self, start: usize, len: usize, held: usize) -> bool {
        let Some((&addr, &slot)) = self.gaps.by_addr.range(..=start).next_back() else {
            return false;
        };
        let gap_end = self.blocks.at(slot).end();
        let Some(end) = start.checked_add(len).filter(|end| *end <= gap_end) else {
            return false;
        };
        if len == 0 || !self.blocks.has_room(2) {
            return false;
        }
        let counted = self.counted();
        let mut mapped = slot;
        if start > addr {
            mapped = self.split(slot, start);
        } else {
            self.gaps.by_addr.remove(&addr);
        }
        if end < gap_end {
            let rest = self.split(mapped, end);
            self.blocks.at_mut(rest).set(State::Gap);
            self.gaps.by_addr.insert(end, rest);
        }
        self.gaps.bytes = self.gaps.bytes.saturating_sub(len);
        self.gaps.held = self.gaps.held.saturating_sub(held);
        self.reserved = self.reserved.saturating_add(len);
        // Whatever was free becomes filed, and this the recent span.
        self.coalesce(mapped, Owner::IDLE);
        self.uncount(counted);
        true
    }

    /// There is more that is held.
    pub fn add_held(&mut self, len: usize) {
        self.gaps.held = self.gaps.held.saturating_add(len);
    }

    /// Memory that was held has gone.
    pub fn drop_held(&mut self, len: usize) {
        self.gaps.held = self.gaps.held.saturating_sub(len);
    }

    /// Makes a part of a block, idle or a new segment, a gap.
    fn make_gap(&mut self, slot: Slot, start: usize, len: usize) {
        let block = self.blocks.at(slot);
        let (addr, behind) = (block.addr(), block.end());
        let end = start.saturating_add(len);
        let counted = self.counted();
        self.detach(slot);
        let mut gap = slot;
        if start > addr {
            gap = self.split(slot, start);
            self.attach(slot, OwnerId::IDLE);
        }
        if end < behind {
            let rest = self.split(gap, end);
            self.attach(rest, OwnerId::IDLE);
        }
        self.reserved = self.reserved.saturating_sub(len);
        self.gaps.bytes = self.gaps.bytes.saturating_add(len);
        let (prev, next) = (self.blocks.at(gap).prev, self.blocks.at(gap).next);
        if self.is_gap(next) {
            self.gaps.by_addr.remove(&end);
            self.join(gap, next);
        }
        if self.is_gap(prev) {
            self.join(prev, gap);
        } else {
            self.blocks.at_mut(gap).set(State::Gap);
            self.gaps.by_addr.insert(start, gap);
        }
        self.uncount(counted);
    }

    /// How often blocks were divided, and joined.
    fn counted(&self) -> (u64, u64) {
        (self.splits, self.merges)
    }

    /// What was divided and joined since then is no figure of the allocator's.
    fn uncount(&mut self, (splits, merges): (u64, u64)) {
        let divided = self.splits.saturating_sub(splits) as isize;
        let joined = self.merges.saturating_sub(merges) as isize;
        self.gaps.blocks = self.gaps.blocks.saturating_add(divided - joined);
        (self.splits, self.merges) = (splits, merges);
    }

    /// How many more blocks there are by what happened to gaps.
    pub(super) fn blocks_by_gaps(&self) -> isize {
        self.gaps.blocks
    }

    fn is_gap(&self, slot: Slot) -> bool {
        !slot.is_none() && self.blocks.at(slot).is_gap()
    }

    /// The idle spans of at least `len` bytes, by ascending length.
    pub fn idle_spans(&mut self, len: usize) -> impl Iterator<Item = Piece> + '_ {
        self.file_recent();
        let space: &Self = self;
        let class = space.owners.class(ClassId::IDLE);
        class
            .into_iter()
            .flat_map(move |class| class.index.at_least(&space.nodes, &space.blocks, len))
            .map(|Entry { addr, len, slot }| Piece {
                addr,
                end: addr.saturating_add(len),
                kind: Kind::Idle(slot),
            })
    }

    /// The gap that begins at an address: the first one behind it.
    pub fn gap_at(&self, addr: usize) -> Option<usize> {
        let slot = *self.gaps.by_addr.get(&addr)?;
        Some(self.blocks.at(slot).end())
    }

    /// What is no gap, by ascending address: each part as long as it can be.
    pub fn mapped_parts(&self) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        for segment in self.segments.values() {
            let mut part: Option<Range<usize>> = None;
            for slot in self.blocks.following(segment.first) {
                let block = self.blocks.at(slot);
                if self.is_gap(slot) {
                    parts.extend(part.take());
                } else {
                    let start = part.map_or(block.addr(), |part| part.start);
                    part = Some(start..block.end());
                }
            }
            parts.extend(part);
        }
        parts
    }

    /// The runs that have a gap, by ascending address.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let mut behind = 0;
        self.gaps.by_addr.iter().filter_map(move |(addr, slot)| {
            if *addr < behind {
                return None;
            }
            let first = self.blocks.at(*slot).prev;
            let first = if self.blocks.owner(first) == Some(OwnerId::IDLE) {
                first
            } else {
                *slot
            };
            let run: Run = self
                .blocks
                .following(first)
                .map_while(|slot| {
                    let block = self.blocks.at(slot);
                    let kind = match block.owner() {
                        Some(OwnerId::IDLE) => Kind::Idle(slot),
                        None if block.is_gap() => Kind::Gap,
                        _ => return None,
                    };
                    Some(Piece {
                        addr: block.addr(),
                        end: block.end(),
                        kind,
                    })
                })
                .collect();
            behind = run.last().map_or(behind, |last| last.end);
            Some(run)
        })
    }

    /// What the invariants say of a gap: the books know it, and the block before it is none.
    pub(super) fn check_gap(&self, prev: Slot, slot: Slot) -> Result<(), String> {
        let addr = self.blocks.at(slot).addr();
        ensure!(
            self.gaps.by_addr.get(&addr) == Some(&slot),
            "the gap at {addr:#x} is not known as one"
        );
        ensure!(
            !self.is_gap(prev),
            "the gap at {addr:#x} follows another one"
        );
        ensure!(
            self.find(addr).is_none(),
            "the gap at {addr:#x} is known as live"
        );
        Ok(())
    }

    /// Whether the books know so many gaps with so many bytes.
    pub(super) fn check_gaps(&self, walked: (usize, usize)) -> Result<(), String> {
        let known = (self.gaps.by_addr.len(), self.gaps.bytes);
        ensure!(
            known == walked,
            "{walked:?} gaps and bytes of gaps are in segments, the books say {known:?}"
        );
        Ok(())
    }
}
