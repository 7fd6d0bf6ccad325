//! The driver's calls for virtual memory: addresses, physical memory, and what maps one to the other. None of them waits for
//! running work, and all are fine while a stream is captured.
//!
//! They leave nothing in `cudaGetLastError`, so that a failure takes nobody's error away.

use super::{
    call::gate,
    count::{Call, NAMES, count},
    error::{UNLOADING, text},
};
use crate::{
    error::{Error, Result},
    process,
};
use cuda_sys as sys;

/// Physical memory of a device, as the driver numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RawChunk(u64);

#[cfg(test)]
impl RawChunk {
    /// No chunk of the driver's: for books that are kept without one.
    pub fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// Whether the driver has the functions.
pub(crate) fn is_there() -> bool {
    gate(Call::MemCreate).is_ok() && sys::virtual_memory().is_some()
}

/// Whether a device has what an attribute of the driver's says; not so where the driver does not know it.
pub(crate) fn attribute(device: i32, attribute: u32) -> Result<bool> {
    gate(Call::DriverDeviceAttribute)?;
    process::before_first_call();
    count(Call::DriverDeviceAttribute);
    Ok(sys::driver_attribute(device, attribute).is_ok_and(|value| value != 0))
}

fn call<T>(which: Call, f: impl FnOnce(&sys::VirtualMemory) -> Result<T, i32>) -> Result<T> {
    gate(which)?;
    process::before_first_call();
    let functions = sys::virtual_memory().ok_or_else(|| Error::Unsupported {
        reason: "the driver has no functions for virtual memory: update it, or set device_source to malloc".into(),
    })?;
    count(which);
    match f(functions) {
        Ok(value) => {
            process::after_first_success();
            Ok(value)
        }
        Err(code) => Err(failure(which, code)),
    }
}

/// Turns a code of the driver into an error; the numbers are those of the runtime.
#[cold]
fn failure(call: Call, code: i32) -> Error {
    if code == UNLOADING {
        return Error::Unavailable {
            code: Some(code),
            reason: "the CUDA driver is unloading: the process is exiting".into(),
        };
    }
    let raw = sys::cudaError(code.unsigned_abs());
    // SAFETY: both functions accept any code and return a string of static life or null.
    let (name, description) = unsafe {
        (
            text(sys::cudaGetErrorName(raw)),
            text(sys::cudaGetErrorString(raw)),
        )
    };
    Error::Cuda {
        call: NAMES[call as usize],
        code,
        name,
        description,
        also_pending: None,
    }
}

/// Reserves addresses, at a multiple of the unit of physical memory.
pub(crate) fn reserve(len: usize) -> Result<usize> {
    call(Call::MemAddressReserve, |driver| driver.reserve(len))
}

/// # Safety
/// The range came from [`reserve`], nothing is mapped in it, and nobody uses its addresses any more.
pub(crate) unsafe fn free(address: usize, len: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemAddressFree, |driver| unsafe {
        driver.free(address, len)
    })
}

/// Physical memory of a device; with `rdma` a network adapter can reach it.
pub(crate) fn create(device: i32, len: usize, rdma: bool) -> Result<RawChunk> {
    call(Call::MemCreate, |driver| driver.create(device, len, rdma)).map(RawChunk)
}

/// # Safety
/// The chunk came from [`create`], is mapped nowhere, and nobody uses it afterwards.
pub(crate) unsafe fn release(chunk: RawChunk) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemRelease, |driver| unsafe {
        driver.release(chunk.0)
    })
}

/// # Safety
/// The chunk is alive and has `len` bytes.
pub(crate) unsafe fn map(address: usize, len: usize, chunk: RawChunk) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemMap, |driver| unsafe {
        driver.map(address, len, chunk.0)
    })
}

/// # Safety
/// No work touches the memory at these addresses any more.
pub(crate) unsafe fn unmap(address: usize, len: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemUnmap, |driver| unsafe {
        driver.unmap(address, len)
    })
}

/// Lets devices read and write what is mapped in a range.
pub(crate) fn allow(address: usize, len: usize, devices: &[i32]) -> Result<()> {
    call(Call::MemSetAccess, |driver| {
        driver.allow(address, len, devices)
    })
}
