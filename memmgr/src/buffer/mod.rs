//! Guards: buffers that own a block and give it back when they are dropped.
//!
//! # Order
//!
//! A guard knows which work touches it. Copies borrow their buffers for the call only and return at once; that is sound
//! because every way to look at the memory, to use it on another stream, or to give it back settles first:
//!
//! - [`PinnedBuffer::as_slice`] waits for copies that write the buffer, [`PinnedBuffer::as_mut_slice`] for all of them.
//! - A copy or memset on one stream makes that stream wait for uses on other streams.
//! - A dropped buffer is not handed out again before its uses have finished.
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
//! with [`MemoryManager::record_use`](crate::MemoryManager::record_use).

mod copy;
mod device;
mod pinned;
mod transfer;

pub use device::DeviceBuffer;
pub use pinned::PinnedBuffer;
pub use transfer::{Transfer, TransferError, TransferResult};

use crate::{
    checker,
    error::{Error, Result},
    manager::{Home, Inner},
    pool::{BlockRange, GRANULE},
    stream::Handle,
};
use std::sync::Arc;

/// The block of a guard; freed on drop.
pub(crate) struct Block {
    pub inner: Arc<Inner>,
    /// 0 for an empty buffer.
    pub address: usize,
    pub bytes: usize,
    pub home: Home,
}

impl Block {
    fn range(&self) -> BlockRange {
        BlockRange {
            start: self.address,
        }
    }

    /// Waits on the host for copies that touch the block: all, or those that write it.
    fn settle(&self, only_writes: bool) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        self.inner.settle(self.home, self.range(), only_writes)
    }

    /// Makes a stream wait for everything that its next operation on the block must follow.
    fn order_before_use(&self, handle: &Handle, writes: bool) -> Result<()> {
        self.inner
            .order_before_use(self.home, self.range(), handle, writes)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _called = checker::called_here();
        self.inner.free_guard(self.address, self.home);
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
