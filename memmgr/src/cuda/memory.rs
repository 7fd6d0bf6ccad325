//! Memory of devices and page-locked memory of the host.

use super::{call::call_relaxed, count::Call, pointer};
use crate::error::Result;
use cuda_sys as sys;
use std::ptr;

/// `cudaMalloc` on the current device; the address.
pub(crate) fn malloc(size: usize) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    call_relaxed(Call::Malloc, || unsafe {
        sys::cudaMalloc(&mut memory, size)
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from [`malloc`] and nobody uses the memory afterwards.
pub(crate) unsafe fn free(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::Free, || unsafe { sys::cudaFree(pointer(address)) })
}

/// Portable page-locked memory.
pub(crate) fn host_alloc(size: usize) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    call_relaxed(Call::HostAlloc, || unsafe {
        sys::cudaHostAlloc(&mut memory, size, sys::cudaHostAllocPortable)
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from [`host_alloc`] and nobody uses the memory afterwards.
pub(crate) unsafe fn free_host(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::FreeHost, || unsafe {
        sys::cudaFreeHost(pointer(address))
    })
}

/// Page-locks memory that the host has, for every device.
///
/// # Safety
/// `address` has `size` bytes of host memory, which stay until they are unregistered.
pub(crate) unsafe fn host_register(address: usize, size: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::HostRegister, || unsafe {
        sys::cudaHostRegister(pointer(address), size, sys::cudaHostRegisterPortable)
    })
}

/// Waits for the whole device.
///
/// # Safety
/// `address` was registered with [`host_register`], and no work submitted later counts on its being page-locked.
pub(crate) unsafe fn host_unregister(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::HostUnregister, || unsafe {
        sys::cudaHostUnregister(pointer(address))
    })
}
