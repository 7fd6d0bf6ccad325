//! Copies and memsets of rectangles in guards: rows of elements whose starts are a *pitch* apart.

use super::{
    DevicePart, Part, PinnedPart, PinnedPartMut,
    copy::{check_fill, overlapping, submit},
    part_of,
};
use crate::{
    CopyKind, Pod, Stream, checker,
    cuda::{self, Rows},
    error::{Error, Result},
    event::Submitted,
    manager::rows_span,
    stream::{Handle, handle_of},
};

/// A rectangle in bytes.
#[derive(Clone, Copy)]
struct Rectangle {
    width: usize,
    height: usize,
}

impl Rectangle {
    fn of<T>(width: usize, height: usize) -> Result<Self> {
        Ok(Self {
            width: in_bytes::<T>(width)?,
            height,
        })
    }

    fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// What lies in the rows, without what is between them.
    fn bytes(self) -> usize {
        self.width.saturating_mul(self.height)
    }

    /// What of a part lies between the first and the last byte of the rows, whose starts are `pitch` elements apart.
    fn within<T>(self, part: Part<'_>, pitch: usize) -> Result<(Part<'_>, Rows)> {
        let pitch = in_bytes::<T>(pitch)?;
        let span = rows_span(pitch, self.width, self.height)?;
        if span > part.bytes {
            return Err(Error::range(format!(
                "{} rows of {} bytes with a pitch of {pitch} bytes leave a part of {} bytes",
                self.height, self.width, part.bytes
            )));
        }
        let rows = Rows {
            start: part.address,
            pitch,
        };
        Ok((part.cut(0, span), rows))
    }

    /// Whether two such rectangles have bytes in common; where their pitches differ, whether they may have.
    fn overlap(self, a: (Part<'_>, Rows), b: (Part<'_>, Rows)) -> bool {
        let ((a, a_rows), (b, b_rows)) = (a, b);
        let apart = a.address >= b.address + b.bytes || b.address >= a.address + a.bytes;
        if apart || a_rows.pitch != b_rows.pitch || a_rows.pitch == 0 {
            return !apart;
        }
        // Side by side: the rows of one lie in the gaps of the other.
        let shift = a.address.abs_diff(b.address) % a_rows.pitch;
        shift < self.width || a_rows.pitch - shift < self.width
    }
}

fn in_bytes<T>(elements: usize) -> Result<usize> {
    elements
        .checked_mul(size_of::<T>())
        .ok_or_else(|| Error::range(format!("a row of {elements} elements overflows")))
}

impl Stream {
    /// Copies `height` rows of `width` elements from pinned to device memory in this stream (`cudaMemcpy2DAsync`). On each
    /// side the rows begin with the first element of the buffer or part, and are that side's pitch apart, in elements.
    ///
    /// ```
    /// # fn main() -> memmgr::Result<()> {
    /// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new()?);
    /// let host = manager.pinned_zeroed::<u8>(16 * 4)?;     // 4 rows of 16
    /// let device = manager.device_zeroed::<u8>(100 * 50, &stream)?;
    /// // To row 10, column 20.
    /// let _ = stream.copy_2d_to_device(&host, 16, &device.slice(10 * 100 + 20..)?, 100, 16, 4)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidRange`] if the rows leave a side or are longer than a pitch, before any CUDA call; otherwise what the
    /// runtime says.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_2d_to_device<T: Pod>(
        &self,
        src: &impl PinnedPart<Element = T>,
        src_pitch: usize,
        dst: &impl DevicePart<Element = T>,
        dst_pitch: usize,
        width: usize,
        height: usize,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let (src, dst) = ((part_of(src), src_pitch), (part_of(dst), dst_pitch));
        let shape = Rectangle::of::<T>(width, height)?;
        copy_2d::<T>(handle_of(self), src, dst, shape, CopyKind::HostToDevice)
    }

    /// Copies `height` rows of `width` elements from device to pinned memory in this stream.
    ///
    /// # Errors
    /// As [`Stream::copy_2d_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_2d_to_host<T: Pod>(
        &self,
        src: &impl DevicePart<Element = T>,
        src_pitch: usize,
        dst: &mut impl PinnedPartMut<Element = T>,
        dst_pitch: usize,
        width: usize,
        height: usize,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let (src, dst) = ((part_of(src), src_pitch), (part_of(dst), dst_pitch));
        let shape = Rectangle::of::<T>(width, height)?;
        copy_2d::<T>(handle_of(self), src, dst, shape, CopyKind::DeviceToHost)
    }

    /// Copies `height` rows of `width` elements within device memory in this stream.
    ///
    /// # Errors
    /// As [`Stream::copy_2d_to_device`]; also [`Error::InvalidRange`] if the rectangles overlap.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_2d_device_to_device<T: Pod>(
        &self,
        src: &impl DevicePart<Element = T>,
        src_pitch: usize,
        dst: &impl DevicePart<Element = T>,
        dst_pitch: usize,
        width: usize,
        height: usize,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let (src, dst) = ((part_of(src), src_pitch), (part_of(dst), dst_pitch));
        let shape = Rectangle::of::<T>(width, height)?;
        copy_2d::<T>(handle_of(self), src, dst, shape, CopyKind::DeviceToDevice)
    }

    /// Sets every byte of `height` rows of `width` elements, whose starts are `pitch` elements apart, to `value` in this
    /// stream (`cudaMemset2DAsync`).
    ///
    /// # Errors
    /// As [`Stream::copy_2d_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn memset_2d<T: Pod>(
        &self,
        dst: &impl DevicePart<Element = T>,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
    ) -> Result<Submitted> {
        let _called = checker::called_here();
        let handle = handle_of(self);
        let shape = Rectangle::of::<T>(width, height)?;
        if shape.is_empty() {
            return Ok(Submitted { event: None });
        }
        let (dst, rows) = shape.within::<T>(part_of(dst), pitch)?;
        check_fill(handle, dst)?;
        let work = || {
            // SAFETY: the rows lie in a live block; it is marked with the operation, so that it stays until that has
            // run, and the stream follows everything else that uses these bytes.
            unsafe { cuda::memset_2d_async(rows, value, shape.width, shape.height, handle.raw())? };
            dst.block.inner.traffic.add_fill(shape.bytes());
            Ok(())
        };
        submit(handle, &[(dst, true)], work)
    }
}

fn copy_2d<T>(
    handle: &Handle,
    (src, src_pitch): (Part<'_>, usize),
    (dst, dst_pitch): (Part<'_>, usize),
    shape: Rectangle,
    kind: CopyKind,
) -> Result<Submitted> {
    if shape.is_empty() {
        return Ok(Submitted { event: None });
    }
    let src = shape.within::<T>(src, src_pitch)?;
    let dst = shape.within::<T>(dst, dst_pitch)?;
    if shape.overlap(src, dst) {
        return Err(overlapping());
    }
    let ((src, from), (dst, to)) = (src, dst);
    let work = || {
        let Rectangle { width, height } = shape;
        // SAFETY: the rows of both sides lie in live blocks; they are marked with the copy, so that they stay until it
        // has run, and the stream follows everything else that uses these bytes.
        unsafe { cuda::memcpy_2d_async(to, from, width, height, kind, handle.raw())? };
        dst.block.inner.traffic.add_copy(kind, shape.bytes());
        Ok(())
    };
    submit(handle, &[(src, false), (dst, true)], work)
}
