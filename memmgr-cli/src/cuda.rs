//! The few calls to the CUDA runtime that this program makes itself, beside the demo's plain ones: what
//! they need is not a memory manager's business.

use std::ffi::{CStr, c_void};
use std::ptr;

use cuda_sys as sys;
use memmgr::Stream;

use crate::error::{Failure, Result};
use crate::table::people;

/// Turns a status into a result that names the call.
pub fn check(call: &str, status: sys::cudaError_t) -> Result<()> {
    if status == sys::cudaError::cudaSuccess {
        return Ok(());
    }
    // SAFETY: both functions take any value and return a string constant of the runtime.
    let (name, text) = unsafe {
        (
            CStr::from_ptr(sys::cudaGetErrorName(status)).to_string_lossy(),
            CStr::from_ptr(sys::cudaGetErrorString(status)).to_string_lossy(),
        )
    };
    Err(Failure::message(format!("{call} failed: {name}, {text}")))
}

/// [`check`] for a call that asks for `bytes` of memory: where there are none, the failure says how many
/// were wanted.
pub fn check_memory(call: &str, bytes: usize, status: sys::cudaError_t) -> Result<()> {
    let result = check(call, status);
    if status != sys::cudaError::cudaErrorMemoryAllocation {
        return result;
    }
    // The error was just reported, so it need not stay the thread's last one.
    // SAFETY: takes nothing and returns a number.
    let _ = unsafe { sys::cudaGetLastError() };
    let wanted = bytes as u64;
    result.map_err(|failure| Failure::OutOfMemory {
        wanted,
        text: format!("{} were asked for, but {failure}", people(wanted)),
    })
}

/// The memory of the current device in bytes: what is free, and all of it.
pub fn device_memory() -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are valid places for a number.
    check("cudaMemGetInfo", unsafe {
        sys::cudaMemGetInfo(&raw mut free, &raw mut total)
    })?;
    Ok((free as u64, total as u64))
}

/// How many devices there are. Unlike asking for their properties, this makes no context on them.
pub fn device_count() -> Result<usize> {
    let mut count = 0;
    // SAFETY: `count` is a valid place for the number.
    check("cudaGetDeviceCount", unsafe {
        sys::cudaGetDeviceCount(&raw mut count)
    })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Makes a device current for this thread.
pub fn select_device(ordinal: i32) -> Result<()> {
    // SAFETY: takes a number and checks it.
    check("cudaSetDevice", unsafe { sys::cudaSetDevice(ordinal) })
}

/// Starts the device's memory pool anew: gives back what it keeps, and counts its peaks from here.
///
/// The pool is shared by the whole process, so that a mode which uses it would otherwise report what
/// an earlier one left.
pub fn reset_current_pool(ordinal: i32) -> Result<()> {
    let mut pool = ptr::null_mut();
    // SAFETY: `pool` is a valid place for the handle.
    check("cudaDeviceGetMemPool", unsafe {
        sys::cudaDeviceGetMemPool(&raw mut pool, ordinal)
    })?;
    // SAFETY: the handle is the one just returned; the device's pool is never destroyed here.
    check("cudaMemPoolTrimTo", unsafe {
        sys::cudaMemPoolTrimTo(pool, 0)
    })?;
    for attribute in [
        sys::cudaMemPoolAttr::cudaMemPoolAttrReservedMemHigh,
        sys::cudaMemPoolAttr::cudaMemPoolAttrUsedMemHigh,
    ] {
        let mut zero = 0_u64;
        // SAFETY: both attributes are 64-bit numbers that may be set to zero.
        check("cudaMemPoolSetAttribute", unsafe {
            sys::cudaMemPoolSetAttribute(pool, attribute, (&raw mut zero).cast::<c_void>())
        })?;
    }
    Ok(())
}

/// Memory of the current device that is never freed.
pub fn allocate(bytes: usize) -> Result<*mut c_void> {
    let mut pointer = ptr::null_mut();
    // SAFETY: `pointer` is a valid place for the address.
    check_memory("cudaMalloc", bytes, unsafe {
        sys::cudaMalloc(&raw mut pointer, bytes)
    })?;
    Ok(pointer)
}

/// Fills memory in a stream.
///
/// # Safety
/// There are so many bytes of device memory until the fill has run, and nobody relies on what they hold.
pub unsafe fn fill(pointer: *mut c_void, bytes: usize, stream: &Stream) -> Result<()> {
    // SAFETY: as this function demands; the stream is alive.
    let status = unsafe { sys::cudaMemsetAsync(pointer, 1, bytes, stream.as_raw().cast()) };
    check("cudaMemsetAsync", status)
}
