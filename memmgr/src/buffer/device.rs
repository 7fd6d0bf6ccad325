//! [`DeviceBuffer`]: device memory.

use super::{
    Block, DeviceSlice, DeviceSliceMut, bytes_of, no_neighbours, not_that_long, slices::Elements,
};
use crate::{
    Pod, Stream, checker, cuda,
    error::{Refused, Result},
    manager::MemoryManager,
    stream::handle_of,
};
use std::{ffi::c_void, fmt, marker::PhantomData, ops::RangeBounds, sync::Arc};

/// `len` elements of device memory, given back on drop. A whole block of the manager is 256-byte aligned, a part and
/// adopted memory for `T` only.
///
/// May be dropped on any thread, with any device current, which stays current. Work on the stream that it was made for
/// may still use it then; work on other streams must have been submitted through the manager or told to it.
pub struct DeviceBuffer<T: Pod> {
    pub(super) block: Block,
    pub(super) device: i32,
    pub(super) len: usize,
    pub(super) elements: PhantomData<fn() -> T>,
}

impl MemoryManager {
    /// A device buffer of `len` elements on the stream's device, for work submitted to `stream` from now on. Its contents
    /// are unspecified, though never memory of another process.
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_pinned`]; [`Error::InvalidSize`](crate::Error::InvalidSize) if the bytes overflow.
    #[track_caller]
    pub fn device<T: Pod>(&self, len: usize, stream: &Stream) -> Result<DeviceBuffer<T>> {
        let _called = checker::called_here();
        let bytes = bytes_of::<T>(len)?;
        let device = stream.device();
        let (address, home) =
            self.inner
                .allocate_device(device, bytes, Some(handle_of(stream)), false)?;
        let block = Block {
            inner: self.inner.clone(),
            address,
            bytes,
            home,
            whole: None,
        };
        Ok(DeviceBuffer {
            block,
            device,
            len,
            elements: PhantomData,
        })
    }

    /// As [`MemoryManager::device`], filled with zero bytes in `stream`.
    ///
    /// # Errors
    /// As [`MemoryManager::device`].
    #[track_caller]
    pub fn device_zeroed<T: Pod>(&self, len: usize, stream: &Stream) -> Result<DeviceBuffer<T>> {
        let _called = checker::called_here();
        let buffer = self.device::<T>(len, stream)?;
        let _ = stream.memset(&buffer, 0)?;
        Ok(buffer)
    }
}

impl<T: Pod> DeviceBuffer<T> {
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

    /// The ordinal of its device.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// The device pointer for kernels, valid as long as the buffer lives; null if it has no bytes. The host cannot read
    /// it.
    pub fn as_ptr(&self) -> *mut c_void {
        cuda::pointer(self.block.part().pointer())
    }

    /// A part, for copies and memsets; it borrows the buffer. [`DeviceBuffer::split_at`] makes parts that own their bytes.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if the range leaves the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        let elements = Elements::new(self.block.part(), self.len).slice(range)?;
        Ok(DeviceSlice { elements })
    }

    /// As [`DeviceBuffer::slice`]; nobody else can submit an operation on the buffer meanwhile.
    ///
    /// # Errors
    /// As [`DeviceBuffer::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        let elements = Elements::new(self.block.part(), self.len).slice(range)?;
        Ok(DeviceSliceMut { elements })
    }

    /// Two buffers: the first `at` elements, and the rest. The memory goes back when both are gone.
    ///
    /// # Errors
    /// [`Refused`] with the buffer if it has fewer elements.
    pub fn split_at(self, at: usize) -> Result<(Self, Self), Refused<Self>> {
        if at > self.len {
            return Err(not_that_long(at, self.len, self));
        }
        let Self {
            block, device, len, ..
        } = self;
        let (front, back) = block.split(at.saturating_mul(size_of::<T>()));
        let make = |block, len| Self {
            block,
            device,
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
            device: self.device,
            block: self.block.join(next.block),
            elements: PhantomData,
        })
    }
}

impl<T: Pod> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.block.address))
            .field("device", &self.device)
            .field("len", &self.len)
            .field("bytes", &self.block.bytes)
            .finish()
    }
}
