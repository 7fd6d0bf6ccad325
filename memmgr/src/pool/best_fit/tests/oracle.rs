//! A naive model of the allocator: ranges in vectors, linear scans, every candidate tried.
//!
//! It shares no code with the allocator apart from the public types, so that an error would have to be made
//! twice to go unnoticed.

use std::collections::{BTreeMap, BTreeSet};

use crate::pool::best_fit::{
    BlockInfo, BlockState, ClassId, Datum, FreeError, Owner, OwnerError, OwnerId, RemoveError,
    SegmentError, Space,
};

/// A segment of the model.
#[derive(Clone, Debug)]
pub struct Range {
    base: usize,
    len: usize,
    blocks: Vec<BlockInfo>,
}

/// The model.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    ranges: Vec<Range>,
    /// Bytes that were unmapped and not mapped again.
    pub held: usize,
}

/// What an allocation of the model gives: address, length, owners under it.
pub type Given = (usize, usize, Vec<OwnerId>);

impl Oracle {
    /// All blocks by ascending address.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.ranges
            .iter()
            .flat_map(|range| range.blocks.clone())
            .collect()
    }

    /// The bases of all segments.
    pub fn bases(&self) -> Vec<usize> {
        self.ranges.iter().map(|range| range.base).collect()
    }

    /// The addresses of the live blocks.
    pub fn live(&self) -> Vec<usize> {
        let live = |block: &BlockInfo| block.state == BlockState::Live;
        self.blocks()
            .iter()
            .filter(|block| live(block))
            .map(|block| block.addr)
            .collect()
    }

    /// The spans of an owner.
    pub fn spans_of(&self, id: OwnerId) -> Vec<BlockInfo> {
        let owned =
            |block: &BlockInfo| matches!(block.state, BlockState::Free(owner) if owner.id == id);
        self.blocks().into_iter().filter(owned).collect()
    }

    /// The class of an owner, if it has spans.
    pub fn class_of(&self, id: OwnerId) -> Option<ClassId> {
        self.spans_of(id)
            .first()
            .and_then(|block| match block.state {
                BlockState::Free(owner) => Some(owner.class),
                BlockState::Live | BlockState::Gap => None,
            })
    }

    /// The idle spans, or the gaps.
    pub fn in_state(&self, state: BlockState) -> Vec<BlockInfo> {
        let blocks = self.blocks();
        blocks.into_iter().filter(|b| b.state == state).collect()
    }

    pub fn add_range(&mut self, base: usize, len: usize) -> Result<(), SegmentError> {
        self.add_segment(base, len)?;
        self.turn(base, len, BlockState::Free(Owner::IDLE), BlockState::Gap);
        Ok(())
    }

    pub fn remove_range(&mut self, base: usize) -> bool {
        let empty = |range: &Range| {
            range.base == base && range.blocks.iter().all(|b| b.state == BlockState::Gap)
        };
        let before = self.ranges.len();
        self.ranges.retain(|range| !empty(range));
        self.ranges.len() < before
    }

    pub fn unmap(&mut self, start: usize, len: usize) -> bool {
        let done = self.turn(start, len, BlockState::Free(Owner::IDLE), BlockState::Gap);
        self.held += if done { len } else { 0 };
        done
    }

    pub fn map(&mut self, start: usize, len: usize, held: usize) -> bool {
        let done = self.turn(start, len, BlockState::Gap, BlockState::Free(Owner::IDLE));
        self.held -= if done { held } else { 0 };
        done
    }

    /// Gives a part of one block another state.
    fn turn(&mut self, start: usize, len: usize, from: BlockState, to: BlockState) -> bool {
        let end = start as u128 + len as u128;
        for range in &mut self.ranges {
            let inside = |b: &BlockInfo| {
                b.state == from && b.addr <= start && end <= (b.addr + b.len) as u128 && len > 0
            };
            let Some(place) = range.blocks.iter().position(inside) else {
                continue;
            };
            let old = range.blocks[place];
            let parts = [
                (old.addr, start - old.addr, from),
                (start, len, to),
                (start + len, old.addr + old.len - start - len, from),
            ];
            let parts = parts.map(|(addr, len, state)| BlockInfo { addr, len, state });
            range
                .blocks
                .splice(place..=place, parts.into_iter().filter(|b| b.len > 0));
            self.merge();
            return true;
        }
        false
    }

    pub fn add_segment(&mut self, base: usize, len: usize) -> Result<(), SegmentError> {
        if base == 0 {
            return Err(SegmentError::Null);
        }
        if len == 0 {
            return Err(SegmentError::Empty);
        }
        if !base.is_multiple_of(256) || !len.is_multiple_of(256) {
            return Err(SegmentError::Misaligned);
        }
        let end = base as u128 + len as u128;
        if end > usize::MAX as u128 {
            return Err(SegmentError::Overflow);
        }
        // The one with the highest base is named.
        for range in self.ranges.iter().rev() {
            if range.base < base + len && base < range.base + range.len {
                return Err(SegmentError::Overlap {
                    base: range.base,
                    len: range.len,
                });
            }
        }
        let block = BlockInfo {
            addr: base,
            len,
            state: BlockState::Free(Owner::IDLE),
        };
        self.ranges.push(Range {
            base,
            len,
            blocks: vec![block],
        });
        self.ranges.sort_by_key(|range| range.base);
        Ok(())
    }

    pub fn remove_segment(&mut self, base: usize) -> Result<usize, RemoveError> {
        let Some(place) = self.ranges.iter().position(|range| range.base == base) else {
            return Err(RemoveError::Unknown);
        };
        let range = &self.ranges[place];
        if range.blocks.len() != 1 || range.blocks[0].state != BlockState::Free(Owner::IDLE) {
            return Err(RemoveError::Busy);
        }
        Ok(self.ranges.remove(place).len)
    }

    pub fn allocate(&mut self, size: usize, align: usize, classes: &[ClassId]) -> Option<Given> {
        let rank = |owner: Owner| classes.contains(&owner.class).then_some(0);
        self.allocate_best(size, align, rank, false)
    }

    pub fn allocate_ranked(
        &mut self,
        size: usize,
        align: usize,
        rank: impl Fn(OwnerId) -> Option<u32>,
    ) -> Option<Given> {
        let rank = |owner: Owner| {
            if owner.id.0 == 0 {
                Some(0)
            } else {
                rank(owner.id)
            }
        };
        self.allocate_best(size, align, rank, true)
    }

    /// Tries every stretch of neighbouring usable spans, single spans first.
    fn allocate_best(
        &mut self,
        size: usize,
        align: usize,
        rank: impl Fn(Owner) -> Option<u32>,
        ranked: bool,
    ) -> Option<Given> {
        if size == 0 || align < 256 || !align.is_power_of_two() || size > usize::MAX - 255 {
            return None;
        }
        let size = size.div_ceil(256) * 256;
        let mut singles = Vec::new();
        let mut runs = Vec::new();
        for (at, range) in self.ranges.iter().enumerate() {
            for first in 0..range.blocks.len() {
                let mut highest = 0;
                let mut owners = BTreeSet::new();
                for last in first..range.blocks.len() {
                    let BlockState::Free(owner) = range.blocks[last].state else {
                        break;
                    };
                    let Some(rank) = rank(owner) else { break };
                    highest = highest.max(rank);
                    if owner.id.0 != 0 {
                        owners.insert(owner.id);
                    }
                    let addr = range.blocks[first].addr;
                    let end = range.blocks[last].addr + range.blocks[last].len;
                    let start = (addr as u128).div_ceil(align as u128) * align as u128;
                    if start + size as u128 > end as u128 {
                        continue;
                    }
                    let count = if ranked { owners.len() } else { 0 };
                    let found = (at, first, last, start as usize);
                    if first == last {
                        singles.push(((highest, 0, end - addr, addr), found));
                    } else {
                        runs.push(((highest, count, end - addr, addr), found));
                    }
                }
            }
        }
        let (_, (at, first, last, start)) = singles
            .into_iter()
            .min()
            .or_else(|| runs.into_iter().min())?;
        let end = start + size;
        let blocks = &mut self.ranges[at].blocks;
        let old: Vec<BlockInfo> = blocks[first..=last].to_vec();
        let mut new = Vec::new();
        let mut owners = BTreeSet::new();
        for block in &old {
            let BlockState::Free(owner) = block.state else {
                unreachable!()
            };
            if block.addr < start {
                let len = start.min(block.addr + block.len) - block.addr;
                new.push(BlockInfo { len, ..*block });
            }
            if block.addr < end && block.addr + block.len > start && owner.id.0 != 0 {
                owners.insert(owner.id);
            }
        }
        new.push(BlockInfo {
            addr: start,
            len: size,
            state: BlockState::Live,
        });
        for block in &old {
            if block.addr + block.len > end {
                let addr = end.max(block.addr);
                new.push(BlockInfo {
                    addr,
                    len: block.addr + block.len - addr,
                    ..*block
                });
            }
        }
        blocks.splice(first..=last, new);
        Some((start, size, owners.into_iter().collect()))
    }

    fn refuse(&self, owner: Owner) -> Option<OwnerError> {
        if (owner.id.0 == 0) != (owner.class.0 == 0) {
            return Some(OwnerError::Idle);
        }
        let known = self.class_of(owner.id)?;
        (known != owner.class).then_some(OwnerError::Class { known })
    }

    pub fn free(&mut self, addr: usize, owner: Owner) -> Result<usize, FreeError> {
        let refused = self.refuse(owner);
        for range in &mut self.ranges {
            if addr < range.base || addr >= range.base + range.len {
                continue;
            }
            for block in &mut range.blocks {
                if addr < block.addr || addr >= block.addr + block.len {
                    continue;
                }
                if block.state != BlockState::Live {
                    return Err(FreeError::AlreadyFree);
                }
                if block.addr != addr {
                    return Err(FreeError::Interior {
                        start: block.addr,
                        len: block.len,
                    });
                }
                if let Some(refused) = refused {
                    return Err(refused.into());
                }
                block.state = BlockState::Free(owner);
                let len = block.len;
                self.merge();
                return Ok(len);
            }
        }
        Err(FreeError::Foreign)
    }

    /// Merges neighbours of equal owners everywhere.
    fn merge(&mut self) {
        for range in &mut self.ranges {
            range.blocks.dedup_by(|right, left| {
                let equal = left.state == right.state && left.state != BlockState::Live;
                if equal {
                    left.len += right.len;
                }
                equal
            });
        }
    }

    /// Gives spans of `from` to `to`: all of them, or the `budget` that `space` has chosen. Says whether none
    /// is left.
    pub fn rename<T: Datum>(
        &mut self,
        from: OwnerId,
        to: Owner,
        budget: usize,
        space: &Space<T>,
    ) -> Result<bool, OwnerError> {
        if from.0 == 0 || (to.id.0 == 0) != (to.class.0 == 0) {
            return Err(OwnerError::Idle);
        }
        let spans = self.spans_of(from);
        if spans.is_empty() {
            return Ok(true);
        }
        if let Some(refused) = self.refuse(to) {
            return Err(refused);
        }
        if from == to.id {
            return Ok(true);
        }
        let kept: BTreeMap<usize, usize> = if budget >= spans.len() {
            BTreeMap::new()
        } else {
            let owned = |block: &BlockInfo| matches!(block.state, BlockState::Free(owner) if owner.id == from);
            all_blocks(space)
                .iter()
                .filter(|block| owned(block))
                .map(|block| (block.addr, block.len))
                .collect()
        };
        let mut moved = 0;
        for range in &mut self.ranges {
            for block in &mut range.blocks {
                if let BlockState::Free(owner) = block.state
                    && owner.id == from
                    && kept.get(&block.addr) != Some(&block.len)
                {
                    block.state = BlockState::Free(to);
                    moved += 1;
                }
            }
        }
        assert_eq!(
            moved,
            budget.min(spans.len()),
            "the budget is used up, and not exceeded"
        );
        self.merge();
        Ok(moved == spans.len())
    }
}

/// All blocks of the allocator by ascending address.
pub fn all_blocks<T: Datum>(space: &Space<T>) -> Vec<BlockInfo> {
    space
        .segments()
        .flat_map(|segment| space.blocks_of(segment.base))
        .collect()
}
