//! Guards: buffers that own a block and give it back when they are dropped.
//!
//! # Order
//!
//! A guard knows which work touches it, and which part of it. Copies borrow their buffers for the call only and return at
//! once; that is sound because every way to look at the memory, to use it on another stream, or to give it back settles
//! first:
//!
//! - [`PinnedBuffer::as_slice`] waits for copies that write what is looked at, [`PinnedBuffer::as_mut_slice`] for all
//!   that touch it.
//! - A copy or memset on one stream makes that stream wait for uses of the same bytes on other streams, and for whatever
//!   the memory was freed behind.
//! - A dropped buffer is not handed out again before all its uses have finished.
//!
//! # Transfers
//!
//! A [`Transfer`] is a copy that owns its buffers until it has finished, so that they can be handed away with it. It is
//! waited for (`wait`), asked (`is_done`), or, with the feature `async`, awaited. To drop it drops its buffers, and to
//! forget it forgets them: the copy runs in any case, and the memory is not handed out before it has finished.
//!
//! # `async`
//!
//! `transfer.await`, `submitted.await` and `event.await` work with any executor: the crate knows wakers only. Wakers are
//! called on a thread of the manager's, never in a host function, with any device current. The thread is started by the
//! first future that has to wait, sleeps while nothing has completed, and ends a second after the last. Every await ends:
//! with the error if the context breaks, if the process exits, or in a forked child. A future may be dropped or forgotten
//! at any time; whoever forgets one keeps its waker and its buffers for good.
//!
//! # What safe code cannot do
//!
//! - See memory that a copy writes, or write memory that a copy reads: views settle, and borrow their buffer.
//! - Free memory under a copy: a buffer's block knows its copies, whatever becomes of the buffer, on whatever thread, also
//!   in a host function. A buffer that is leaked or forgotten keeps its block.
//! - Lose a copy to a panic: between the submission and the mark nothing runs that is not the manager's.
//! - Trust contents without a proof: a view answers the error of the runtime instead, and the block is never handed out
//!   again.
//!
//! A host function owns the buffers that it uses. It may look at one whose copies are known to be done, and is answered
//! with the runtime's refusal otherwise, since nobody may wait in a host function. Two threads that submit work which
//! writes the same device buffer on different streams *at the same moment* are not ordered by the manager: the bytes are
//! those of either.
//!
//! # Threads
//!
//! All guards are `Send` and `Sync`, whatever their elements: a [`Pod`](crate::Pod) type is made of its bytes alone, which
//! anybody may copy to another thread and make such a value from there, and it has no interior mutability.
//!
//! # Other work
//!
//! Kernels that are launched by other means run on the stream that the buffer was made for, or are told to the manager
//! with [`MemoryManager::record_use`](crate::MemoryManager::record_use), which counts as a use of the whole block.
//!
//! # Parts
//!
//! Whatever takes a whole buffer takes a part of one ([`DevicePart`], [`PinnedPart`], [`PinnedPartMut`]). Parts come
//! borrowed, from `slice` and `slice_mut`, or own their bytes, from the consuming `split_at`; `join` puts neighbours
//! together again. The block goes back when the last of its owning parts is dropped, whichever that is and on whatever
//! thread. A use of one part is waited for only by those who touch the same bytes; a rectangle counts from its first to its
//! last byte, what lies between its rows included. (A block with more than 64 uses in flight is less exact: its older uses
//! are joined.)
//!
//! A range that leaves its part is [`Error::InvalidRange`]. An empty part, and a part of elements without a size, is as
//! good as any other: operations on it do nothing, and an owning one keeps its block.

mod adopt;
mod copy;
mod device;
mod operand;
mod pinned;
mod rows;
mod slices;
mod transfer;

pub(crate) use copy::operate;
pub use device::DeviceBuffer;
pub(crate) use operand::part_of;
pub use operand::{DevicePart, PinnedPart, PinnedPartMut};
pub use pinned::PinnedBuffer;
pub use slices::{DeviceSlice, DeviceSliceMut, PinnedSlice, PinnedSliceMut};
pub use transfer::{Transfer, TransferError, TransferResult};

use crate::{
    capture::{self, Keeper},
    checker,
    error::{Error, Refused, Result},
    event::Fence,
    manager::{Home, Inner},
    planted::{self, Mistake},
    pool::{BlockRange, GRANULE, Span},
    stream::Handle,
};
use std::{
    ops::{Bound, Range, RangeBounds},
    sync::Arc,
};

/// The block of a guard, or an owning part of one; the block is freed when the last part is dropped.
pub(crate) struct Block {
    pub inner: Arc<Inner>,
    /// 0 for an empty buffer.
    pub address: usize,
    pub bytes: usize,
    pub home: Home,
    /// What this is a part of, if it was ever split.
    pub whole: Option<Arc<Whole>>,
}

/// A block that was split; freed when its last part is gone.
pub(crate) struct Whole {
    inner: Arc<Inner>,
    address: usize,
    bytes: usize,
    home: Home,
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.inner.free_guard(self.address, self.home);
    }
}

impl Block {
    /// All of it.
    pub fn part(&self) -> Part<'_> {
        Part {
            block: self,
            address: self.address,
            bytes: self.bytes,
        }
    }

    /// Gives the whole block a name, unless it is adopted memory or has no bytes.
    fn name(&self, name: Arc<str>) {
        let _ = self.inner.name(self.home, self.part().range().start, name);
    }

    /// The first `at` bytes and the rest.
    fn split(mut self, at: usize) -> (Self, Self) {
        let whole = self.whole.take().unwrap_or_else(|| {
            Arc::new(Whole {
                inner: self.inner.clone(),
                address: self.address,
                bytes: self.bytes,
                home: self.home,
            })
        });
        let at = at.min(self.bytes);
        let back = Self {
            inner: self.inner.clone(),
            address: self.address + at,
            bytes: self.bytes - at,
            home: self.home,
            whole: Some(whole.clone()),
        };
        self.bytes = at;
        self.whole = Some(whole);
        (self, back)
    }

    /// Whether `other` begins where this ends, in the same block.
    fn is_followed_by(&self, other: &Self) -> bool {
        match (&self.whole, &other.whole) {
            (Some(mine), Some(others)) => {
                Arc::ptr_eq(mine, others) && self.address + self.bytes == other.address
            }
            _ => false,
        }
    }

    /// Puts a part together with the one behind it.
    fn join(mut self, next: Self) -> Self {
        self.bytes += next.bytes;
        self
    }

    /// Whether this is all of its block.
    fn is_all(&self) -> bool {
        self.whole.as_ref().is_none_or(|whole| {
            (whole.address, whole.bytes) == (self.address, self.bytes)
                && Arc::strong_count(whole) == 1
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _called = checker::called_here();
        match self.whole.take() {
            None => self.inner.free_guard(self.address, self.home),
            Some(whole) => {
                if planted::is_made(Mistake::PartsTakeTheBlockAlong) {
                    self.inner.free_guard(whole.address, whole.home);
                }
                drop(whole);
            }
        }
    }
}

/// Some bytes of a guard.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub block: &'a Block,
    pub address: usize,
    pub bytes: usize,
}

impl<'a> Part<'a> {
    fn range(self) -> BlockRange {
        let whole = self.block.whole.as_ref();
        BlockRange {
            start: whole.map_or(self.block.address, |whole| whole.address),
            span: Span::new(self.address, self.bytes),
        }
    }

    /// `bytes` bytes from byte `at` on; what is not there is left out.
    fn cut(self, at: usize, bytes: usize) -> Self {
        let at = at.min(self.bytes);
        Self {
            address: self.address + at,
            bytes: bytes.min(self.bytes - at),
            ..self
        }
    }

    /// The address for kernels and the host: 0 if there are no bytes.
    fn pointer(self) -> usize {
        if self.bytes == 0 { 0 } else { self.address }
    }

    /// Waits on the host for uses of these bytes: all, or those that write them.
    fn settle(self, only_writes: bool) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let Block { inner, home, .. } = self.block;
        inner.settle(*home, self.range(), only_writes)
    }

    /// Makes a stream wait for everything that its next operation on these bytes must follow.
    fn order_before_use(self, handle: &Handle, writes: bool) -> Result<()> {
        let Block { inner, home, .. } = self.block;
        inner.order_before_use(*home, self.range(), handle, writes)
    }

    /// Whether a graph may use these bytes: it keeps blocks of the manager, and cannot keep the memory of others.
    fn can_be_captured(self) -> Result<()> {
        if self.block.home == Home::Adopted {
            return Err(capture::refusal(
                "an operation on adopted memory",
                "copy it to a buffer of the manager before the capture",
            ));
        }
        Ok(())
    }

    /// Has a graph keep the block.
    fn keep(self, keeper: &Keeper, writes: bool) {
        let Block { inner, home, .. } = self.block;
        keeper.keep(inner, *home, self.range(), writes);
    }

    /// Marks these bytes with an operation.
    fn add_use(self, fence: &Arc<Fence>, writes: bool) {
        let Block { inner, home, .. } = self.block;
        inner.add_use(*home, self.range(), fence, writes);
    }
}

/// The bytes of `len` elements.
pub(crate) fn bytes_of<T>(len: usize) -> Result<usize> {
    if align_of::<T>() > GRANULE {
        return Err(Error::InvalidAlignment {
            alignment: align_of::<T>(),
            max: GRANULE,
        });
    }
    len.checked_mul(size_of::<T>())
        .ok_or_else(|| Error::InvalidSize {
            reason: format!("{len} elements of {} bytes overflow", size_of::<T>()),
        })
}

/// The elements that a range means, checked against how many there are.
fn elements(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>> {
    let refuse = || {
        // As it is written: `7..3`, `2..=9`.
        let from = match range.start_bound() {
            Bound::Included(from) => from.to_string(),
            Bound::Excluded(before) => format!("{before} (excluded)"),
            Bound::Unbounded => String::new(),
        };
        let to = match range.end_bound() {
            Bound::Included(last) => format!("={last}"),
            Bound::Excluded(to) => to.to_string(),
            Bound::Unbounded => String::new(),
        };
        Error::range(format!(
            "elements {from}..{to} of a buffer or part of {len}"
        ))
    };
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.checked_add(1).ok_or_else(refuse)?,
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1).ok_or_else(refuse)?,
        Bound::Excluded(to) => *to,
        Bound::Unbounded => len,
    };
    if from > to || to > len {
        return Err(refuse());
    }
    Ok(from..to)
}

/// The error of a split behind the end.
fn not_that_long<B>(at: usize, len: usize, buffer: B) -> Refused<B> {
    let error = Error::range(format!("a split at {at} of a buffer of {len} elements"));
    Refused::new(error, buffer)
}

/// The error of a join of what was never together.
fn no_neighbours<B>(buffers: B) -> Refused<B> {
    let error = Error::range("a join of two buffers that are not neighbours of one block");
    Refused::new(error, buffers)
}
