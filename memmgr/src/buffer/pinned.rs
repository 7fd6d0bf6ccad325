//! [`PinnedBuffer`]: page-locked host memory.

use super::{
    Block, PinnedSlice, PinnedSliceMut, bytes_of, no_neighbours, not_that_long, slices::Elements,
};
use crate::{
    Pod, checker, cuda,
    error::{Refused, Result},
    manager::{Home, MemoryManager},
};
use std::{ffi::c_void, fmt, marker::PhantomData, ops::RangeBounds, sync::Arc};

/// `len` elements of page-locked host memory, given back on drop. A whole block of the manager is 256-byte aligned, a part
/// and adopted memory for `T` only.
///
/// May be dropped on any thread at any time: the memory is not handed out again before its last copy has finished.
pub struct PinnedBuffer<T: Pod> {
    pub(super) block: Block,
    pub(super) len: usize,
    pub(super) elements: PhantomData<fn() -> T>,
}

impl MemoryManager {
    /// A pinned buffer of `len` elements. Its contents are unspecified, though never memory of another process.
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_pinned`]; [`Error::InvalidSize`](crate::Error::InvalidSize) if the bytes overflow.
    #[track_caller]
    pub fn pinned<T: Pod>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        let _called = checker::called_here();
        let bytes = bytes_of::<T>(len)?;
        let address = self.inner.allocate_pinned(bytes, false)?;
        let block = Block {
            inner: self.inner.clone(),
            address,
            bytes,
            home: Home::Pinned,
            whole: None,
        };
        Ok(PinnedBuffer {
            block,
            len,
            elements: PhantomData,
        })
    }

    /// As [`MemoryManager::pinned`], filled with zeros.
    ///
    /// # Errors
    /// As [`MemoryManager::pinned`].
    #[track_caller]
    pub fn pinned_zeroed<T: Pod>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        let _called = checker::called_here();
        let mut buffer = self.pinned::<T>(len)?;
        // Elements without bytes are zero, however many they are.
        if buffer.block.bytes > 0 {
            buffer.as_mut_slice()?.fill(T::zeroed());
        }
        Ok(buffer)
    }
}

impl<T: Pod> PinnedBuffer<T> {
    /// The same buffer, whose block has this name from now on: out-of-memory errors and reports of live blocks show it. A
    /// part names the whole block. Adopted memory, of which nothing is reported, and a buffer without bytes have no name.
    #[must_use]
    pub fn with_name(self, name: impl Into<Arc<str>>) -> Self {
        self.block.name(name.into());
        self
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.block.bytes
    }

    /// The raw pointer, valid as long as the buffer lives; null if it has no bytes. For the host only after
    /// [`PinnedBuffer::as_mut_slice`] has settled.
    pub fn as_ptr(&self) -> *mut c_void {
        cuda::pointer(self.block.part().pointer())
    }

    /// The elements, after waiting on the host for copies that write them.
    ///
    /// # Errors
    /// What the runtime says instead of a proof that the copies have finished; the contents cannot be trusted then.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn as_slice(&self) -> Result<&[T]> {
        let _called = checker::called_here();
        // SAFETY: it is pinned memory, and whoever writes it needs `&mut self`.
        unsafe { self.all().view() }
    }

    /// The elements, after waiting on the host for every copy that touches them.
    ///
    /// # Errors
    /// As [`PinnedBuffer::as_slice`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        let _called = checker::called_here();
        // SAFETY: it is pinned memory, and whoever else uses it needs `self`, which is borrowed exclusively.
        unsafe { self.all().view_mut() }
    }

    fn all(&self) -> Elements<'_, T> {
        Elements::new(self.block.part(), self.len)
    }

    /// A part to be read, by copies and by the host; it borrows the buffer. [`PinnedBuffer::split_at`] makes parts that own
    /// their bytes.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if the range leaves the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<PinnedSlice<'_, T>> {
        let elements = self.all().slice(range)?;
        Ok(PinnedSlice { elements })
    }

    /// A part to be written, by copies and by the host; it borrows the buffer.
    ///
    /// # Errors
    /// As [`PinnedBuffer::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<PinnedSliceMut<'_, T>> {
        let elements = self.all().slice(range)?;
        Ok(PinnedSliceMut { elements })
    }

    /// Two buffers: the first `at` elements, and the rest. The memory goes back when both are gone.
    ///
    /// # Errors
    /// [`Refused`] with the buffer if it has fewer elements.
    pub fn split_at(self, at: usize) -> Result<(Self, Self), Refused<Self>> {
        if at > self.len {
            return Err(not_that_long(at, self.len, self));
        }
        let Self { block, len, .. } = self;
        let (front, back) = block.split(at.saturating_mul(size_of::<T>()));
        let make = |block, len| Self {
            block,
            len,
            elements: PhantomData,
        };
        Ok((make(front, at), make(back, len - at)))
    }

    /// Puts two neighbours of one block together again: `next` begins where this ends.
    ///
    /// # Errors
    /// [`Refused`] with both if they are not.
    pub fn join(self, next: Self) -> Result<Self, Refused<(Self, Self)>> {
        if !self.block.is_followed_by(&next.block) {
            return Err(no_neighbours((self, next)));
        }
        Ok(Self {
            len: self.len + next.len,
            block: self.block.join(next.block),
            elements: PhantomData,
        })
    }
}

impl<T: Pod> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("address", &format_args!("{:#x}", self.block.address))
            .field("len", &self.len)
            .field("bytes", &self.block.bytes)
            .finish()
    }
}
