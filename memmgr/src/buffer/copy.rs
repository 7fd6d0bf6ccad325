//! Copies between guards: they borrow, return at once, and mark what they touch.

use super::{Block, DeviceBuffer, PinnedBuffer};
use crate::{
    CopyKind, Pod, Stream, checker, cuda,
    error::{Error, Result},
    event::{Event, Fence, Submitted},
    stream::{Handle, handle_of},
};

impl Stream {
    /// Copies a pinned buffer to a device buffer of the same length in this stream. The source may be dropped at once,
    /// and read; writing it waits for the copy.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] if the lengths differ, before any CUDA call; otherwise what the runtime says.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_to_device<T: Pod>(
        &self,
        src: &PinnedBuffer<T>,
        dst: &DeviceBuffer<T>,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        copy(
            handle_of(self),
            &src.block,
            &dst.block,
            CopyKind::HostToDevice,
        )
    }

    /// Copies a device buffer to a pinned buffer of the same length in this stream. Reading the destination waits for
    /// the copy.
    ///
    /// # Errors
    /// As [`Stream::copy_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_to_host<T: Pod>(
        &self,
        src: &DeviceBuffer<T>,
        dst: &mut PinnedBuffer<T>,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        copy(
            handle_of(self),
            &src.block,
            &dst.block,
            CopyKind::DeviceToHost,
        )
    }

    /// Copies a device buffer to another of the same length in this stream.
    ///
    /// # Errors
    /// As [`Stream::copy_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_device_to_device<T: Pod>(
        &self,
        src: &DeviceBuffer<T>,
        dst: &DeviceBuffer<T>,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        copy(
            handle_of(self),
            &src.block,
            &dst.block,
            CopyKind::DeviceToDevice,
        )
    }

    /// Sets every byte of a device buffer to `value` in this stream.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] if the buffer belongs to another device than the stream: the devices need not reach each
    /// other's memory, and a fill, unlike a copy, is work of the stream's device. Otherwise what the runtime says.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn memset<T: Pod>(&self, dst: &DeviceBuffer<T>, value: u8) -> Result<Submitted> {
        let _called = checker::called_here();
        let (handle, block) = (handle_of(self), &dst.block);
        if block.bytes == 0 {
            return Ok(Submitted { event: None });
        }
        if dst.device() != handle.device() {
            return Err(Error::WrongDevice {
                reason: format!(
                    "a fill of memory of device {} in a stream of device {}",
                    dst.device(),
                    handle.device()
                ),
            });
        }
        block.order_before_use(handle, true)?;
        // SAFETY: the block is live; it is marked with the operation, so that it stays until that has run, and the stream
        // follows everything else that uses it.
        let fence = unsafe {
            block
                .inner
                .memset(block.address, value, block.bytes, handle)?
        };
        Ok(Submitted {
            event: fence.map(|fence| Event { fence }),
        })
    }
}

fn copy(handle: &Handle, src: &Block, dst: &Block, kind: CopyKind) -> Result<Submitted> {
    if src.bytes != dst.bytes {
        return Err(Error::range(format!(
            "a copy from a buffer of {} bytes to one of {} bytes",
            src.bytes, dst.bytes
        )));
    }
    if src.bytes == 0 {
        return Ok(Submitted { event: None });
    }
    crate::process::gate()?;
    src.order_before_use(handle, false)?;
    dst.order_before_use(handle, true)?;
    let submitted = handle.with_device(|| {
        // SAFETY: both blocks are live and as long as the copy; they are marked with it, so that they stay until it has
        // run, and the stream follows everything else that uses them.
        unsafe { cuda::memcpy_async(dst.address, src.address, src.bytes, kind, handle.raw()) }
    });
    let (fence, recorded) = Fence::after_work(handle);
    src.inner.add_use(src.home, src.range(), &fence, false);
    dst.inner.add_use(dst.home, dst.range(), &fence, true);
    submitted.and(recorded)?;
    Ok(Submitted {
        event: Some(Event { fence }),
    })
}
