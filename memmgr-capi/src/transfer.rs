//! Asynchronous copies and fills.

use std::ffi::c_void;

use manager::MemoryManager;

use crate::{
    CUstream_st,
    status::{Failure, call, memmgr_status},
    streams::{self, Known, memmgr_stream_t, on_stream},
};

/// What a copy is.
#[derive(Clone, Copy)]
enum Direction {
    ToDevice,
    ToHost,
    OnDevice,
}

/// # Safety
/// As the copies of the manager demand.
unsafe fn copy(
    direction: Direction,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    known: Result<Known, Failure>,
) -> Result<(), Failure> {
    let mm = MemoryManager::instance();
    // SAFETY: as this function demands.
    on_stream!(known?, stream => unsafe {
        match direction {
            Direction::ToDevice => mm.copy_to_device_async(dst, src, size, stream),
            Direction::ToHost => mm.copy_to_host_async(dst, src, size, stream),
            Direction::OnDevice => mm.copy_device_to_device(dst, src, size, stream),
        }
    })?;
    Ok(())
}

/// Copies `size` bytes from host to device memory in a raw stream. Returns at once for pinned memory.
///
/// The bytes are there until the copy has run; memory of the manager is kept until then by itself, also when it is freed before.
/// A null stream is the default stream of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_copy_to_device_async(
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    stream: *mut CUstream_st,
) -> memmgr_status {
    // SAFETY: the ranges and the stream are what the caller says.
    call(|| unsafe { copy(Direction::ToDevice, dst, src, size, streams::raw(stream)) })
}

/// As `memmgr_copy_to_device_async`, in a registered stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_copy_to_device_async_registered(
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    stream: memmgr_stream_t,
) -> memmgr_status {
    // SAFETY: the ranges are what the caller says, and nobody releases the handle during the call.
    call(|| unsafe {
        copy(
            Direction::ToDevice,
            dst,
            src,
            size,
            streams::registered(stream),
        )
    })
}

/// Copies `size` bytes from device to host memory in a raw stream. Returns at once for pinned memory.
///
/// The bytes are there until the copy has run; memory of the manager is kept until then by itself, also when it is freed before.
/// A null stream is the default stream of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_copy_to_host_async(
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    stream: *mut CUstream_st,
) -> memmgr_status {
    // SAFETY: the ranges and the stream are what the caller says.
    call(|| unsafe { copy(Direction::ToHost, dst, src, size, streams::raw(stream)) })
}

/// As `memmgr_copy_to_host_async`, in a registered stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_copy_to_host_async_registered(
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    stream: memmgr_stream_t,
) -> memmgr_status {
    // SAFETY: the ranges are what the caller says, and nobody releases the handle during the call.
    call(|| unsafe {
        copy(
            Direction::ToHost,
            dst,
            src,
            size,
            streams::registered(stream),
        )
    })
}

/// Copies `size` bytes within device memory in a raw stream.
///
/// The bytes are there until the copy has run; memory of the manager is kept until then by itself, also when it is freed before.
/// A null stream is the default stream of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_copy_on_device_async(
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    stream: *mut CUstream_st,
) -> memmgr_status {
    // SAFETY: the ranges and the stream are what the caller says.
    call(|| unsafe { copy(Direction::OnDevice, dst, src, size, streams::raw(stream)) })
}

/// As `memmgr_copy_on_device_async`, in a registered stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_copy_on_device_async_registered(
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    stream: memmgr_stream_t,
) -> memmgr_status {
    // SAFETY: the ranges are what the caller says, and nobody releases the handle during the call.
    call(|| unsafe {
        copy(
            Direction::OnDevice,
            dst,
            src,
            size,
            streams::registered(stream),
        )
    })
}

/// Sets `size` bytes of device memory to the low byte of `value` in a raw stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_memset_async(
    ptr: *mut c_void,
    value: i32,
    size: usize,
    stream: *mut CUstream_st,
) -> memmgr_status {
    call(|| {
        // SAFETY: the stream is alive during the call, says the caller.
        let known = unsafe { streams::raw(stream)? };
        let value = value as u8;
        // SAFETY: the range is what the caller says.
        on_stream!(known, stream => unsafe {
            MemoryManager::instance().memset(ptr, value, size, stream)
        })?;
        Ok(())
    })
}
