//! Copies and fills.

use super::{RawStream, call::call, count::Call, pointer, quick::by_driver};
use crate::error::Result;
use cuda_sys as sys;

/// Direction of a copy (`cudaMemcpyKind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyKind {
    /// From host to device memory.
    HostToDevice,
    /// From device to host memory.
    DeviceToHost,
    /// Within the memory of one device or between devices.
    DeviceToDevice,
}

impl CopyKind {
    fn get(self) -> sys::cudaMemcpyKind {
        match self {
            CopyKind::HostToDevice => sys::cudaMemcpyKind::cudaMemcpyHostToDevice,
            CopyKind::DeviceToHost => sys::cudaMemcpyKind::cudaMemcpyDeviceToHost,
            CopyKind::DeviceToDevice => sys::cudaMemcpyKind::cudaMemcpyDeviceToDevice,
        }
    }
}

/// # Safety
/// Both ranges stay valid until the copy has run; the stream is alive.
pub(crate) unsafe fn memcpy_async(
    dst: usize,
    src: usize,
    size: usize,
    kind: CopyKind,
    stream: RawStream,
) -> Result<()> {
    let (dst, src) = (pointer(dst), pointer(src));
    // SAFETY: as this function demands.
    let copied = by_driver(Call::MemcpyAsync, stream, |driver| unsafe {
        match kind {
            CopyKind::HostToDevice => driver.to_device(dst, src, size, stream.get()),
            CopyKind::DeviceToHost => driver.to_host(dst, src, size, stream.get()),
            CopyKind::DeviceToDevice => false,
        }
        .then_some(())
    });
    if copied.is_some() {
        return Ok(());
    }
    // SAFETY: as this function demands.
    call(Call::MemcpyAsync, || unsafe {
        sys::cudaMemcpyAsync(dst, src, size, kind.get(), stream.get())
    })
}

/// Where the rows of a 2-D operation lie: start and distance of rows in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub start: usize,
    pub pitch: usize,
}

/// # Safety
/// All rows of both sides stay valid until the copy has run; the stream is alive.
pub(crate) unsafe fn memcpy_2d_async(
    dst: Rows,
    src: Rows,
    width: usize,
    height: usize,
    kind: CopyKind,
    stream: RawStream,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::Memcpy2DAsync, || unsafe {
        sys::cudaMemcpy2DAsync(
            pointer(dst.start),
            dst.pitch,
            pointer(src.start),
            src.pitch,
            width,
            height,
            kind.get(),
            stream.get(),
        )
    })
}

/// # Safety
/// The range stays valid until the operation has run; the stream is alive.
pub(crate) unsafe fn memset_async(
    dst: usize,
    value: u8,
    size: usize,
    stream: RawStream,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemsetAsync, || unsafe {
        sys::cudaMemsetAsync(pointer(dst), value.into(), size, stream.get())
    })
}

/// # Safety
/// All rows stay valid until the operation has run; the stream is alive.
pub(crate) unsafe fn memset_2d_async(
    dst: Rows,
    value: u8,
    width: usize,
    height: usize,
    stream: RawStream,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::Memset2DAsync, || unsafe {
        sys::cudaMemset2DAsync(
            pointer(dst.start),
            dst.pitch,
            value.into(),
            width,
            height,
            stream.get(),
        )
    })
}
