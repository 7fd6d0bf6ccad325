//! Copies and fills by pointer.

use super::{MemoryManager, submit::Touched};
use crate::{
    checker,
    cuda::{self, CopyKind, Rows},
    error::{Error, Result},
    stream::{AsStream, handle_of},
};
use std::ffi::c_void;

impl MemoryManager {
    /// Copies `size` bytes from host to device memory in `stream` (reference: `copyToDeviceAsync`; `cudaMemcpyAsync`).
    /// Returns at once for pinned memory. Both blocks are marked as used by the stream, also when the pointers point
    /// into them.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] if the range leaves a block of the manager, [`Error::UnknownPointer`] for free memory of the
    /// manager's own pools, both before any CUDA call; otherwise what the runtime says (also for memory that was freed in
    /// an async mode, which is the driver's then).
    ///
    /// # Safety
    /// `src` has `size` readable bytes and `dst` `size` bytes of device memory until the copy has run; memory of the
    /// manager is kept until then by itself. Other work that touches them is ordered.
    #[doc(alias = "copyToDeviceAsync")]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_to_device_async(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .copy(dst, src, size, CopyKind::HostToDevice, handle_of(stream))
        }
    }

    /// Copies `size` bytes from device to host memory in `stream` (reference: `copyToHostAsync`; `cudaMemcpyAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`].
    ///
    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`], with the roles exchanged; nobody reads `dst` before the copy has run.
    #[doc(alias = "copyToHostAsync")]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_to_host_async(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .copy(dst, src, size, CopyKind::DeviceToHost, handle_of(stream))
        }
    }

    /// Copies `size` bytes within device memory in `stream`.
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`].
    ///
    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`], with device memory on both sides.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_device_to_device(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .copy(dst, src, size, CopyKind::DeviceToDevice, handle_of(stream))
        }
    }

    /// Copies `height` rows of `width` bytes whose starts are `pitch` bytes apart (`cudaMemcpy2DAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`]; also [`Error::InvalidRange`] if a pitch is below the width.
    ///
    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`], for all rows.
    #[allow(clippy::too_many_arguments)]
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn copy_2d(
        &self,
        dst: *mut c_void,
        dst_pitch: usize,
        src: *const c_void,
        src_pitch: usize,
        width: usize,
        height: usize,
        kind: CopyKind,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        if width == 0 || height == 0 {
            return Ok(());
        }
        let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
        let spans = Touched::by_copy(
            kind,
            (dst, rows_span(dst_pitch, width, height)?),
            (src, rows_span(src_pitch, width, height)?),
        );
        let handle = handle_of(stream);
        self.inner.submit(handle, spans, || {
            let (dst, src) = (
                Rows {
                    start: dst,
                    pitch: dst_pitch,
                },
                Rows {
                    start: src,
                    pitch: src_pitch,
                },
            );
            // SAFETY: as this function demands; the handle is alive.
            unsafe { cuda::memcpy_2d_async(dst, src, width, height, kind, handle.raw())? };
            self.inner
                .traffic
                .add_copy(kind, width.saturating_mul(height));
            Ok(())
        })
    }

    /// Sets `size` bytes of device memory to `value` in `stream` (`cudaMemsetAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_to_device_async`].
    ///
    /// # Safety
    /// `ptr` has `size` bytes of device memory until the operation has run. Other work that touches them is ordered.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn memset(
        &self,
        ptr: *mut c_void,
        value: u8,
        size: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        // SAFETY: as this function demands.
        unsafe {
            self.inner
                .memset(ptr.expose_provenance(), value, size, handle_of(stream))
        }
    }

    /// Sets `height` rows of `width` bytes whose starts are `pitch` bytes apart (`cudaMemset2DAsync`).
    ///
    /// # Errors
    /// As [`MemoryManager::copy_2d`].
    ///
    /// # Safety
    /// As [`MemoryManager::memset`], for all rows.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn memset_2d(
        &self,
        ptr: *mut c_void,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        if width == 0 || height == 0 {
            return Ok(());
        }
        let start = ptr.expose_provenance();
        let spans = [Touched::by_fill(start, rows_span(pitch, width, height)?)];
        let handle = handle_of(stream);
        self.inner.submit(handle, spans, || {
            // SAFETY: as this function demands; the handle is alive.
            unsafe {
                cuda::memset_2d_async(Rows { start, pitch }, value, width, height, handle.raw())?
            };
            self.inner.traffic.add_fill(width.saturating_mul(height));
            Ok(())
        })
    }
}

/// Bytes from the first byte of the first row to the last byte of the last.
pub(crate) fn rows_span(pitch: usize, width: usize, height: usize) -> Result<usize> {
    if pitch < width {
        return Err(Error::range(format!(
            "rows of {width} bytes do not fit a pitch of {pitch} bytes"
        )));
    }
    height
        .checked_sub(1)
        .and_then(|rows| rows.checked_mul(pitch))
        .and_then(|bytes| bytes.checked_add(width))
        .ok_or_else(|| Error::range(format!("{height} rows of pitch {pitch} overflow")))
}
