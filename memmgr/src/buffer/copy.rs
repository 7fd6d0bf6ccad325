//! Copies between guards: they borrow, return at once, and mark what they touch.

use super::{DevicePart, Part, PinnedPart, PinnedPartMut, part_of};
use crate::{
    CopyKind, Pod, Stream, capture, checker, cuda,
    error::{Error, Place, Result},
    event::{Event, Fence, Submitted},
    process, spans,
    stream::{Handle, handle_of},
};
use std::sync::Arc;

impl Stream {
    /// Copies pinned memory to device memory of the same length in this stream: whole buffers or parts. The source may be
    /// dropped at once, and read; writing it waits for the copy.
    ///
    /// ```
    /// # fn main() -> memmgr::Result<()> {
    /// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new()?);
    /// let mut host = manager.pinned_zeroed::<u32>(100)?;
    /// let device = manager.device::<u32>(100, &stream)?;
    /// let _ = stream.copy_to_device(&host, &device)?;
    /// let _ = stream.copy_to_device(&host.slice(..10)?, &device.slice(90..)?)?;
    /// let _ = stream.copy_to_host(&device.slice(50..)?, &mut host.slice_mut(..50)?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidRange`] if the lengths differ, before any CUDA call; otherwise what the runtime says.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_to_device<T: Pod>(
        &self,
        src: &impl PinnedPart<Element = T>,
        dst: &impl DevicePart<Element = T>,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let (src, dst) = (part_of(src), part_of(dst));
        copy(handle_of(self), src, dst, CopyKind::HostToDevice)
    }

    /// Copies device memory to pinned memory of the same length in this stream: whole buffers or parts. Reading the
    /// destination waits for the copy.
    ///
    /// # Errors
    /// As [`Stream::copy_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_to_host<T: Pod>(
        &self,
        src: &impl DevicePart<Element = T>,
        dst: &mut impl PinnedPartMut<Element = T>,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let (src, dst) = (part_of(src), part_of(dst));
        copy(handle_of(self), src, dst, CopyKind::DeviceToHost)
    }

    /// Copies device memory to other device memory of the same length in this stream: whole buffers or parts.
    ///
    /// # Errors
    /// As [`Stream::copy_to_device`]; also [`Error::InvalidRange`] if the two overlap.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_device_to_device<T: Pod>(
        &self,
        src: &impl DevicePart<Element = T>,
        dst: &impl DevicePart<Element = T>,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let (src, dst) = (part_of(src), part_of(dst));
        if src.address < dst.address + dst.bytes && dst.address < src.address + src.bytes {
            return Err(overlapping());
        }
        copy(handle_of(self), src, dst, CopyKind::DeviceToDevice)
    }

    /// Sets every byte of a device buffer, or of a part, to `value` in this stream.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] if the buffer belongs to another device than the stream: the devices need not reach each
    /// other's memory, and a fill, unlike a copy, is work of the stream's device. Otherwise what the runtime says.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn memset<T: Pod>(
        &self,
        dst: &impl DevicePart<Element = T>,
        value: u8,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let (handle, dst) = (handle_of(self), part_of(dst));
        if dst.bytes == 0 {
            return Ok(Submitted { event: None });
        }
        check_fill(handle, dst)?;
        let work = || {
            // SAFETY: the block is live; it is marked with the operation, so that it stays until that has run, and the
            // stream follows everything else that uses these bytes.
            unsafe { cuda::memset_async(dst.address, value, dst.bytes, handle.raw())? };
            dst.block.inner.traffic.add_fill(dst.bytes);
            Ok(())
        };
        submit(handle, &[(dst, true)], work)
    }
}

pub(super) fn overlapping() -> Error {
    Error::range("a copy between parts that overlap")
}

fn copy(handle: &Handle, src: Part<'_>, dst: Part<'_>, kind: CopyKind) -> Result<Submitted> {
    if src.bytes != dst.bytes {
        return Err(Error::range(format!(
            "a copy from a buffer of {} bytes to one of {} bytes",
            src.bytes, dst.bytes
        )));
    }
    if src.bytes == 0 {
        return Ok(Submitted { event: None });
    }
    let work = || {
        // SAFETY: both parts are live and as long as the copy; they are marked with it, so that they stay until it has
        // run, and the stream follows everything else that uses these bytes.
        unsafe { cuda::memcpy_async(dst.address, src.address, src.bytes, kind, handle.raw())? };
        dst.block.inner.traffic.add_copy(kind, dst.bytes);
        Ok(())
    };
    submit(handle, &[(src, false), (dst, true)], work)
}

/// Submits work that touches parts, some of them to write.
pub(super) fn submit(
    handle: &Handle,
    touched: &[(Part<'_>, bool)],
    work: impl FnOnce() -> Result<()>,
) -> Result<Submitted> {
    let (fence, submitted) = operate(handle, touched, work)?;
    submitted?;
    Ok(Submitted {
        event: fence.map(|fence| Event { fence }),
    })
}

/// Has the stream follow all other uses of the parts, submits, and marks the parts, also when the submission failed. An
/// error: nothing was submitted. Otherwise the fence behind the work, and what came of it.
///
/// What is captured has no fence: it is ordered when its graph is launched, and its blocks are the graph's.
pub(crate) fn operate(
    handle: &Handle,
    touched: &[(Part<'_>, bool)],
    work: impl FnOnce() -> Result<()>,
) -> Result<(Option<Arc<Fence>>, Result<()>)> {
    process::gate()?;
    let bytes = touched.last().map_or(0, |(part, _)| part.bytes);
    let _span = spans::copy(Place::Device(handle.device()), bytes);
    let _steady = handle.core().steady()?;
    if let Some(keeper) = capture::keeper(handle)? {
        for (part, _) in touched {
            part.can_be_captured()?;
        }
        for (part, writes) in touched {
            part.keep(&keeper, *writes);
        }
        return Ok((None, on_device_of(handle, touched, work)));
    }
    for (part, writes) in touched {
        part.order_before_use(handle, *writes)?;
    }
    let submitted = on_device_of(handle, touched, work);
    let (fence, recorded) = Fence::after_work(handle);
    for (part, writes) in touched {
        part.add_use(&fence, *writes);
    }
    Ok((Some(fence), submitted.and(recorded)))
}

/// Runs `work` with the device current that it wants.
fn on_device_of(
    handle: &Handle,
    touched: &[(Part<'_>, bool)],
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match touched {
        [(first, _), ..] => {
            let homes = touched.iter().map(|(part, _)| part.block.home);
            first.block.inner.on_device_of(handle, homes, work)
        }
        [] => work(),
    }
}

/// Refuses a fill of memory of another device than the stream's.
pub(super) fn check_fill(handle: &Handle, dst: Part<'_>) -> Result<()> {
    let device = dst.block.home.device().unwrap_or(handle.device());
    if device == handle.device() {
        return Ok(());
    }
    Err(Error::WrongDevice {
        reason: format!(
            "a fill of memory of device {device} in a stream of device {}",
            handle.device()
        ),
    })
}
