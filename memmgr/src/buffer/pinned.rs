//! [`PinnedBuffer`]: page-locked host memory.

use super::{Block, bytes_of};
use crate::{
    Pod, checker, cuda,
    error::Result,
    manager::{Home, MemoryManager},
};
use std::{ffi::c_void, fmt, marker::PhantomData, ptr::NonNull, slice};

/// `len` elements of page-locked host memory, 256-byte aligned, given back on drop.
///
/// May be dropped on any thread at any time: the memory is not handed out again before its last copy has finished.
pub struct PinnedBuffer<T: Pod> {
    pub(super) block: Block,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl MemoryManager {
    /// A pinned buffer of `len` elements. Its contents are unspecified, though never memory of another process.
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_pinned`]; [`Error::InvalidSize`](crate::Error::InvalidSize) if the bytes overflow.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn pinned<T: Pod>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        let _called = checker::called_here();
        let bytes = bytes_of::<T>(len)?;
        let address = self.inner.allocate_pinned(bytes, false)?;
        let block = Block {
            inner: self.inner.clone(),
            address,
            bytes,
            home: Home::Pinned,
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
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn pinned_zeroed<T: Pod>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        let _called = checker::called_here();
        let mut buffer = self.pinned::<T>(len)?;
        buffer.as_mut_slice()?.fill(T::zeroed());
        Ok(buffer)
    }
}

impl<T: Pod> PinnedBuffer<T> {
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
        cuda::pointer(self.block.address)
    }

    /// The elements, after waiting on the host for copies that write them.
    ///
    /// # Errors
    /// What the runtime says instead of a proof that the copies have finished; the contents cannot be trusted then.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn as_slice(&self) -> Result<&[T]> {
        let _called = checker::called_here();
        self.block.settle(true)?;
        checker::host_view(self.block.address, self.block.bytes, false);
        // SAFETY: the block has `len` elements, is aligned to 256 bytes, and was zeroed when its segment was made, and
        // every bit pattern is a `T`. No copy writes it: earlier ones have finished, and a later one needs `&mut self`.
        Ok(unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) })
    }

    /// The elements, after waiting on the host for every copy that touches them.
    ///
    /// # Errors
    /// As [`PinnedBuffer::as_slice`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        let _called = checker::called_here();
        self.block.settle(false)?;
        checker::host_view(self.block.address, self.block.bytes, true);
        // SAFETY: as in `as_slice`; no copy reads it either, since a later one needs `&self`.
        Ok(unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) })
    }

    fn start(&self) -> NonNull<T> {
        NonNull::new(self.as_ptr().cast::<T>()).unwrap_or(NonNull::dangling())
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
