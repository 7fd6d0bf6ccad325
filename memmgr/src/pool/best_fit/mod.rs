//! Best fit over address ranges: the bookkeeping of a pool.
//!
//! This module knows addresses and lengths only. It makes no CUDA call, touches no memory, takes no lock
//! and contains no unsafe code. Whoever owns a [`Space`] adds and removes *segments* (ranges that came
//! from the driver) and asks for *blocks* inside them.
//!
//! # The model
//!
//! - All addresses and lengths are multiples of the [`GRANULE`].
//! - A **segment** is a range of addresses. Segments are disjoint. Two segments may touch; nothing is ever
//!   merged across their boundary, because each goes back to the driver on its own.
//! - A segment is tiled, without gap or overlap, by **blocks**. A block is *live* (handed out) or *free*.
//!   A free block is called a **span**. A third state, *unmapped*, is a **gap**: addresses without memory, which
//!   no search finds (see `gaps`).
//! - A free span has an [`Owner`]. Its [`OwnerId`] says who must have finished before others may write
//!   there: idle (nobody), or a set of marks that the order layer keeps. Its [`ClassId`] says in which
//!   index the span is found, that is, who may use it at once. All spans of one owner id have one class.
//! - Neighbouring free spans of one segment merge at once when their owner ids are equal, and only then.
//!   A free span whose successor is free as well (with another owner, then) has a **seam** at its end.
//! - [`Space::allocate`] is exact best fit: the smallest span of the wanted classes that satisfies size and
//!   alignment, ties by lowest address; if there is none, the smallest *run* of neighbouring spans. What is
//!   not needed before and behind the block stays free, with the owner that it had.
//! - [`Taken::owners`] names the owners of the part taken, and of nothing else: those must be waited for.
//!
//! # Cost
//!
//! An allocation from one span, a free, and the settling of one span take the same number of steps however many
//! blocks there are, as long as few free spans have the same length; among k spans of one length, those that lie
//! between others cost O(log k), the lowest one does not. (A search looks at all lengths while they are no more than 48;
//! lengths of 64 MiB and more are sorted when they are more than that.)
//! An alignment above the granule may scan spans whose length is below size + alignment. A search for runs
//! looks at the seams only; without seams it costs nothing. The first question for an address inside a block
//! looks at all blocks once; from then on blocks are found by page.
//!
//! # Arithmetic
//!
//! [`Space::add_segment`] refuses what runs past the last address, and more than `usize::MAX` bytes in all. Every other length is of a
//! part of a segment, sums are over parts that are disjoint, and counts are of records: none can overflow, so the steps that every
//! call takes add and subtract without a look.
//!
//! # Contradictions
//!
//! No input makes this module panic. An internal contradiction is a `debug_assert!`, and harmless in a
//! release build. [`Space::check`] verifies the whole structure.

#![forbid(unsafe_code)]

mod blocks;
mod check;
mod gaps;
mod index;
mod lists;
mod live;
mod owners;
mod pages;
mod record;
mod renames;
mod runs;
mod search;
mod segments;
mod space;
mod steps;
#[cfg(test)]
pub(super) mod tests;
mod walk;
mod waste;

use std::fmt;

pub use blocks::{Datum, Slot};
pub use gaps::{Kind, Piece, Run};
pub use space::Space;
pub use walk::Seen;

/// The unit of all addresses and lengths, in bytes.
pub const GRANULE: usize = 256;

/// Rounds a size in bytes up to the granule. `None` for size 0 and for a size that cannot be rounded up.
#[inline]
pub fn round(size: usize) -> Option<usize> {
    if size == 0 {
        return None;
    }
    align_up(size, GRANULE)
}

/// As [`round`], with an error that names the size; sizes above `isize::MAX` are refused, as pointers cannot span them.
pub fn checked(size: usize) -> Result<usize, crate::Error> {
    round(size)
        .filter(|rounded| isize::try_from(*rounded).is_ok())
        .ok_or_else(|| crate::Error::InvalidSize {
            reason: format!(
                "{size} bytes, rounded up to the granule of {GRANULE} bytes, are more than an address range can have"
            ),
        })
}

/// The lowest multiple of `align` that is not below `value`. `align` is a power of two.
#[inline]
fn align_up(value: usize, align: usize) -> Option<usize> {
    let mask = align.checked_sub(1)?;
    Some(value.checked_add(mask)? & !mask)
}

/// Whether an alignment can be asked for: a power of two, at least the granule.
fn is_alignment(align: usize) -> bool {
    align.is_power_of_two() && align >= GRANULE
}

/// Who must have finished before others may use a free span. The numbers are the order layer's, which
/// recycles them: a small record is kept for each number up to the largest that was ever used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OwnerId(pub u32);

impl OwnerId {
    /// Nobody: the span is idle.
    pub const IDLE: Self = Self(0);
}

/// In which index a free span is found. The numbers are the order layer's, which recycles them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId(pub u32);

impl ClassId {
    /// The class of the idle spans, and of no others.
    pub const IDLE: Self = Self(0);
}

/// The owner of a free span, with the class that all spans of this owner have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Who must have finished.
    pub id: OwnerId,
    /// Where the span is found.
    pub class: ClassId,
}

impl Owner {
    /// No owner: anybody may use the span at once.
    pub const IDLE: Self = Self {
        id: OwnerId::IDLE,
        class: ClassId::IDLE,
    };

    /// An owner with this id and class.
    pub const fn new(id: OwnerId, class: ClassId) -> Self {
        Self { id, class }
    }

    /// Whether id and class agree on being idle.
    fn is_sound(self) -> bool {
        (self.id == OwnerId::IDLE) == (self.class == ClassId::IDLE)
    }
}

/// A short list of distinct owner ids in ascending order, without [`OwnerId::IDLE`]. Reads as a slice.
#[derive(Clone, Default)]
pub struct OwnerList {
    /// The only id; idle if there is none, or if there are several.
    one: OwnerId,
    /// All ids, once there are several.
    #[allow(clippy::box_collection)]
    more: Option<Box<Vec<OwnerId>>>,
}

impl Default for OwnerId {
    fn default() -> Self {
        Self::IDLE
    }
}

impl OwnerList {
    /// The list of one id, or of none if that is idle.
    #[inline]
    fn of(id: OwnerId) -> Self {
        Self {
            one: id,
            more: None,
        }
    }

    /// Adds an id, unless it is idle. The order is right only after [`OwnerList::finish`].
    fn add(&mut self, id: OwnerId) {
        if id == OwnerId::IDLE || id == self.one {
            return;
        }
        match &mut self.more {
            Some(more) => more.push(id),
            None if self.one == OwnerId::IDLE => self.one = id,
            None => self.more = Some(Box::new(vec![std::mem::take(&mut self.one), id])),
        }
    }

    /// Puts the ids in order and drops repetitions.
    fn finish(mut self) -> Self {
        if let Some(more) = &mut self.more {
            more.sort_unstable();
            more.dedup();
        }
        self
    }
}

impl std::ops::Deref for OwnerList {
    type Target = [OwnerId];

    #[inline]
    fn deref(&self) -> &[OwnerId] {
        match &self.more {
            Some(more) => more,
            None if self.one == OwnerId::IDLE => &[],
            None => std::slice::from_ref(&self.one),
        }
    }
}

impl fmt::Debug for OwnerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A block that was just handed out.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The first address.
    pub addr: usize,
    /// The length in bytes: the size asked for, rounded up to the granule.
    pub len: usize,
    /// The record of the block, valid as long as the block is live.
    pub slot: Slot,
    /// The owners that spans under this block had, idle left out: who must be waited for.
    pub owners: OwnerList,
}

/// A block that was just handed out of one span.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// The first address.
    pub addr: usize,
    /// The length in bytes: the size asked for, rounded up to the granule.
    pub len: usize,
    /// The record of the block, valid as long as the block is live.
    pub slot: Slot,
    /// The owner that the span had.
    pub owner: OwnerId,
}

/// A block that was just given back.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freed<T> {
    /// The length of the block in bytes.
    pub len: usize,
    /// The datum that the block carried.
    pub data: T,
}

/// A live block.
#[derive(Debug)]
pub struct LiveInfo<'a, T> {
    /// The first address.
    pub addr: usize,
    /// The length in bytes, a multiple of the granule.
    pub len: usize,
    /// What was asked for, in bytes.
    pub requested: usize,
    /// The datum that the block carries.
    pub data: &'a T,
}

/// A segment, as a report sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// The first address.
    pub base: usize,
    /// The length in bytes.
    pub len: usize,
    /// Whether one idle span fills it, so that it could be removed.
    pub wholly_idle: bool,
}

/// What a block is, as a report sees it.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Handed out.
    Live,
    /// Free, with this owner.
    Free(Owner),
    /// No memory is mapped there.
    Gap,
}

/// A block of a segment, as a report sees it.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo {
    /// The first address.
    pub addr: usize,
    /// The length in bytes.
    pub len: usize,
    /// Live, free or unmapped.
    pub state: BlockState,
}

/// The figures of a [`Space`]; lengths in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceStats {
    /// The memory of all segments together, and what is held (see `gaps`).
    pub reserved: usize,
    /// All live blocks together (their lengths are rounded up to the granule).
    pub in_use: usize,
    /// All idle spans together, and what is held.
    pub idle: usize,
    /// All free spans that have an owner, together.
    pub pending: usize,
    /// The longest idle span.
    pub largest_idle: usize,
    /// The number of segments.
    pub segments: usize,
    /// The number of live blocks.
    pub live_blocks: usize,
    /// The number of free spans, whoever owns them.
    pub free_spans: usize,
    /// How often a block was divided in two since the beginning.
    pub splits: u64,
    /// How often two blocks became one since the beginning.
    pub merges: u64,
}

/// Why a segment was not added. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentError {
    /// The segment starts at address 0.
    #[error("a segment cannot start at address 0")]
    Null,
    /// The segment has no bytes.
    #[error("the segment is empty")]
    Empty,
    /// Base or length is not a multiple of the granule.
    #[error("base or length of the segment is not a multiple of {GRANULE} bytes")]
    Misaligned,
    /// The segment runs past the last address, or all segments together hold more than `usize::MAX` bytes.
    #[error("the segment runs past the end of the address range")]
    Overflow,
    /// The segment has addresses in common with one that is there already.
    #[error("the segment overlaps the one of {len} bytes at {base:#x}")]
    Overlap {
        /// The base of the segment that is there.
        base: usize,
        /// The length of the segment that is there.
        len: usize,
    },
    /// The bookkeeping cannot hold another block.
    #[error("no more blocks can be recorded")]
    Full,
}

/// Why a segment was not removed. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RemoveError {
    /// No segment starts at this address.
    #[error("no segment starts there")]
    Unknown,
    /// The segment is not one single idle span.
    #[error("the segment is in use, or not everything in it is idle")]
    Busy,
}

/// Why a block was not freed. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreeError {
    /// The address lies in a free span: it was freed already, or never handed out.
    #[error("the address is free already")]
    AlreadyFree,
    /// The address lies inside a live block, not at its start.
    #[error("the address lies inside the block of {len} bytes at {start:#x}")]
    Interior {
        /// The start of the live block.
        start: usize,
        /// The length of the live block.
        len: usize,
    },
    /// The address lies in no segment.
    #[error("the address belongs to no segment")]
    Foreign,
    /// The owner cannot be used.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// Why an owner cannot be used as asked. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OwnerError {
    /// Only the idle owner has the idle class.
    #[error("an owner is idle in its id and in its class, or in neither")]
    Idle,
    /// The table of owners or of classes would be too long.
    #[error("ids of owners and classes are at most {most}")]
    Large {
        /// The largest id.
        most: u32,
    },
    /// The spans of this owner have another class.
    #[error("the spans of this owner have class {}", .known.0)]
    Class {
        /// The class that they have.
        known: ClassId,
    },
}
