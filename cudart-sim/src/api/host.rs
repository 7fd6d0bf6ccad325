//! Page-locked host memory.

use super::memory::bytes;
use super::{api, need, put};
use crate::error::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::memory::Pinned;
use crate::runtime::{self, lock};
use crate::sys::{self, cudaError};
use crate::{check, mirror, thread, timing, vmm, worker};
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

const ALLOC_FLAGS: c_uint =
    sys::cudaHostAllocPortable | sys::cudaHostAllocMapped | sys::cudaHostAllocWriteCombined;
const REGISTER_FLAGS: c_uint = sys::cudaHostRegisterPortable
    | sys::cudaHostRegisterMapped
    | sys::cudaHostRegisterIoMemory
    | sys::cudaHostRegisterReadOnly;
const PAGE: usize = 4096;

fn allocate(place: *mut *mut c_void, size: usize, flags: c_uint) -> Answer {
    need(place)?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    if size == 0 {
        return put(place, null_mut());
    }
    let len = size.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
    drop(worker::pass_full_queues(lock()));
    let at = mirror::map_host(len).ok_or(OUT_OF_MEMORY)?;
    let mut rt = lock();
    let region = Pinned {
        len: len as u64,
        flags: flags | sys::cudaHostAllocMapped,
        device: thread::device(),
        registered: false,
    };
    rt.memory.pinned.insert(at as u64, region);
    check::allocated(at as u64, len as u64);
    timing::spend(rt, |t| timing::per_mib(t.host_alloc_per_mib, size));
    put(place, at as *mut c_void)
}

api! {
    fn cudaHostAlloc(pHost: *mut *mut c_void, size: usize, flags: c_uint) needs Context {
        allocate(pHost, size, flags)
    }

    fn cudaMallocHost(ptr: *mut *mut c_void, size: usize) needs Context {
        allocate(ptr, size, 0)
    }

    // Waits for all devices, whose work might use it.
    fn cudaFreeHost(ptr: *mut c_void) needs Context {
        if ptr.is_null() {
            return Ok(());
        }
        let start = ptr as u64;
        let rt = lock();
        rt.memory
            .pinned
            .get(&start)
            .filter(|r| !r.registered)
            .ok_or(INVALID_VALUE)?;
        let mut rt = runtime::synchronize(rt, None);
        let region = rt.memory.pinned.remove(&start).ok_or(INVALID_VALUE)?;
        check::freed("cudaFreeHost", start, region.len);
        mirror::unmap_host(start as usize, region.len as usize);
        timing::spend(rt, |t| timing::per_mib(t.host_alloc_per_mib, region.len as usize));
        Ok(())
    }

    fn cudaHostRegister(ptr: *mut c_void, size: usize, flags: c_uint) needs Context {
        if ptr.is_null() || size == 0 || flags & !REGISTER_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let (start, len) = (ptr as u64, bytes(size)?);
        start.checked_add(len).ok_or(INVALID_VALUE)?;
        let mut rt = lock();
        if rt.devices.iter().any(|d| d.owns(start)) || vmm::reserved(start) {
            return Err(INVALID_VALUE);
        }
        // Memory of `cudaHostAlloc` is no case of "already registered" (measured), nor below of "not registered".
        if rt.memory.pinned_in(start, len).any(|r| !r.registered) {
            return Err(INVALID_VALUE);
        }
        if rt.memory.pinned_in(start, len).next().is_some() {
            return Err(cudaError::cudaErrorHostMemoryAlreadyRegistered);
        }
        let region = Pinned {
            len,
            flags: flags | sys::cudaHostRegisterMapped,
            device: thread::device(),
            registered: true,
        };
        rt.memory.pinned.insert(start, region);
        Ok(())
    }

    fn cudaHostUnregister(ptr: *mut c_void) needs Context {
        let start = ptr as u64;
        let known = |rt: &runtime::Guard| match rt.memory.pinned(start) {
            Some((_, region)) if !region.registered => Err(INVALID_VALUE),
            Some((at, _)) if at == start => Ok(()),
            _ => Err(cudaError::cudaErrorHostMemoryNotRegistered),
        };
        let rt = lock();
        known(&rt)?;
        let mut rt = runtime::synchronize(rt, None);
        known(&rt)?;
        if let Some(region) = rt.memory.pinned.remove(&start) {
            check::freed("cudaHostUnregister", start, region.len);
        }
        Ok(())
    }

    fn cudaHostGetDevicePointer(
        pDevice: *mut *mut c_void,
        pHost: *mut c_void,
        flags: c_uint,
    ) needs Context {
        need(pDevice)?;
        let rt = lock();
        if flags != 0 || rt.memory.pinned(pHost as u64).is_none() {
            return Err(INVALID_VALUE);
        }
        put(pDevice, pHost)
    }

    fn cudaHostGetFlags(pFlags: *mut c_uint, pHost: *mut c_void) needs Context {
        need(pFlags)?;
        let rt = lock();
        let (_, region) = rt.memory.pinned(pHost as u64).ok_or(INVALID_VALUE)?;
        put(pFlags, region.flags)
    }
}
