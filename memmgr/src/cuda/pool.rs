//! Stream-ordered memory, and the driver's memory pools.

use super::{
    PoolAttr, RawPool, RawStream,
    call::{call, call_relaxed},
    count::Call,
    pointer,
};
use crate::error::Result;
use cuda_sys as sys;
use std::ptr;

/// # Safety
/// The stream is alive.
pub(crate) unsafe fn malloc_async(size: usize, stream: RawStream) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: the stream is alive, `memory` is a place for one pointer.
    call_relaxed(Call::MallocAsync, || unsafe {
        sys::cudaMallocAsync(&mut memory, size, stream.get())
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// Pool and stream are alive.
pub(crate) unsafe fn malloc_from_pool_async(
    size: usize,
    pool: RawPool,
    stream: RawStream,
) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: pool and stream are alive, `memory` is a place for one pointer.
    call_relaxed(Call::MallocFromPoolAsync, || unsafe {
        sys::cudaMallocFromPoolAsync(&mut memory, size, pool.get(), stream.get())
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from one of the two above, the stream is alive, and no work submitted to other streams, or later to
/// this one, touches the memory.
pub(crate) unsafe fn free_async(address: usize, stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::FreeAsync, || unsafe {
        sys::cudaFreeAsync(pointer(address), stream.get())
    })
}

/// A memory pool of the device, with default properties.
pub(crate) fn mem_pool_create(device: i32) -> Result<RawPool> {
    // SAFETY: cudaMemPoolProps is plain numbers and pointers: all zero is valid, and the reserved bytes must be zero.
    let mut properties: sys::cudaMemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::cudaMemAllocationType::cudaMemAllocationTypePinned;
    properties.location =
        sys::mem_location(sys::cudaMemLocationType::cudaMemLocationTypeDevice, device);
    let mut pool = ptr::null_mut();
    // SAFETY: `pool` is a place for one handle, the properties are complete.
    call_relaxed(Call::MemPoolCreate, || unsafe {
        sys::cudaMemPoolCreate(&mut pool, &properties)
    })?;
    Ok(RawPool(pool.expose_provenance()))
}

/// # Safety
/// The pool came from [`mem_pool_create`] and nobody uses it afterwards.
pub(crate) unsafe fn mem_pool_destroy(pool: RawPool) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::MemPoolDestroy, || unsafe {
        sys::cudaMemPoolDestroy(pool.get())
    })
}

/// The device's current memory pool.
pub(crate) fn device_mem_pool(device: i32) -> Result<RawPool> {
    let mut pool = ptr::null_mut();
    // SAFETY: `pool` is a place for one handle.
    call(Call::DeviceGetMemPool, || unsafe {
        sys::cudaDeviceGetMemPool(&mut pool, device)
    })?;
    Ok(RawPool(pool.expose_provenance()))
}

/// # Safety
/// The pool is alive.
pub(crate) unsafe fn mem_pool_trim(pool: RawPool, keep: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::MemPoolTrimTo, || unsafe {
        sys::cudaMemPoolTrimTo(pool.get(), keep)
    })
}

/// One of the 64-bit attributes.
///
/// # Safety
/// The pool is alive.
pub(crate) unsafe fn mem_pool_get(pool: RawPool, attribute: PoolAttr) -> Result<u64> {
    let mut value = 0u64;
    // SAFETY: the pool is alive; the attributes asked for here are 64 bits wide.
    call_relaxed(Call::MemPoolGetAttribute, || unsafe {
        sys::cudaMemPoolGetAttribute(pool.get(), attribute, (&raw mut value).cast())
    })?;
    Ok(value)
}

/// Sets one of the 64-bit attributes.
///
/// # Safety
/// The pool is alive.
pub(crate) unsafe fn mem_pool_set(
    pool: RawPool,
    attribute: PoolAttr,
    mut value: u64,
) -> Result<()> {
    // SAFETY: the pool is alive; the attributes set here are 64 bits wide.
    call_relaxed(Call::MemPoolSetAttribute, || unsafe {
        sys::cudaMemPoolSetAttribute(pool.get(), attribute, (&raw mut value).cast())
    })
}
