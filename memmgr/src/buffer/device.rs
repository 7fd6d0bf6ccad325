//! [`DeviceBuffer`]: device memory.

use super::{Block, bytes_of};
use crate::{Pod, Stream, checker, cuda, error::Result, manager::MemoryManager, stream::handle_of};
use std::{ffi::c_void, fmt, marker::PhantomData};

/// `len` elements of device memory, 256-byte aligned, given back on drop.
///
/// May be dropped on any thread, with any device current, which stays current. Work on the stream that it was made for
/// may still use it then; work on other streams must have been submitted through the manager or told to it.
pub struct DeviceBuffer<T: Pod> {
    pub(super) block: Block,
    device: i32,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl MemoryManager {
    /// A device buffer of `len` elements on the stream's device, for work submitted to `stream` from now on. Its contents
    /// are unspecified, though never memory of another process.
    ///
    /// # Errors
    /// As [`MemoryManager::allocate_pinned`]; [`Error::InvalidSize`](crate::Error::InvalidSize) if the bytes overflow.
    #[cfg_attr(feature = "sim", track_caller)]
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
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn device_zeroed<T: Pod>(&self, len: usize, stream: &Stream) -> Result<DeviceBuffer<T>> {
        let _called = checker::called_here();
        let buffer = self.device::<T>(len, stream)?;
        let _ = stream.memset(&buffer, 0)?;
        Ok(buffer)
    }
}

impl<T: Pod> DeviceBuffer<T> {
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
        cuda::pointer(self.block.address)
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
