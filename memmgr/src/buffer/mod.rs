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
//! Kernels that are launched by other means run on the stream that the buffer was made for, or are told to the manager
//! with [`MemoryManager::record_use`](crate::MemoryManager::record_use).

mod copy;
mod device;
mod pinned;

pub use device::DeviceBuffer;
pub use pinned::PinnedBuffer;

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
