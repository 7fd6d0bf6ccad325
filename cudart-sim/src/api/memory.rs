//! Device memory that is allocated at once: `cudaMalloc`, `cudaFree`; what a pointer points at; how much is free.

use super::{api, need, put};
use crate::error::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::memory::{Block, Source};
use crate::runtime::{self, Guard, lock};
use crate::sys::{self, cudaMemoryType as Type};
use crate::{check, thread, timing, vmm, worker};
use std::ffi::c_void;
use std::ptr::null_mut;

api! {
    fn cudaMalloc(devPtr: *mut *mut c_void, size: usize) needs Context {
        need(devPtr)?;
        if size == 0 {
            return put(devPtr, null_mut());
        }
        let ordinal = thread::device();
        let mut rt = worker::pass_full_queues(lock());
        let size = u64::try_from(size).map_err(|_| OUT_OF_MEMORY)?;
        let start = rt.device(ordinal as i32)?.take(size)?;
        let block = Block {
            size,
            source: Source::Malloc,
            device: ordinal,
            host: false,
        };
        rt.memory.blocks.insert(start, block);
        check::allocated(start, size);
        timing::spend(rt, |t| t.malloc);
        put(devPtr, start as *mut c_void)
    }

    // Waits for all work of the device; memory from a pool goes back to it at once instead.
    fn cudaFree(devPtr: *mut c_void) needs Context {
        if devPtr.is_null() {
            return Ok(());
        }
        let start = devPtr as u64;
        let mut rt = lock();
        let block = *rt.memory.blocks.get(&start).ok_or(INVALID_VALUE)?;
        if let Source::Pool(place) = block.source {
            rt.memory.blocks.remove(&start);
            check::freed("cudaFree", start, block.size);
            rt.give_to_pool(place, start, block.size, None);
            return Ok(());
        }
        if let Source::Graph(_) = block.source {
            return Ok(());
        }
        rt = runtime::synchronize(rt, Some(block.device));
        // Somebody else may have freed it meanwhile, and somebody may have it again.
        rt.memory
            .blocks
            .get(&start)
            .filter(|b| b.source == Source::Malloc && b.size == block.size)
            .ok_or(INVALID_VALUE)?;
        rt.memory.blocks.remove(&start);
        check::freed("cudaFree", start, block.size);
        rt.device(block.device as i32)?.give(start, block.size);
        timing::spend(rt, |t| t.malloc);
        runtime::broken(block.device).map_or(Ok(()), Err)
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) needs Context {
        // Either may be null (measured), not both.
        if total.is_null() {
            need(free)?;
        }
        let mut rt = lock();
        let device = rt.device(thread::device() as i32)?;
        if !free.is_null() {
            put(free, device.available() as usize)?;
        }
        if !total.is_null() {
            put(total, device.config.memory)?;
        }
        Ok(())
    }

    fn cudaPointerGetAttributes(
        attributes: *mut sys::cudaPointerAttributes,
        ptr: *const c_void,
    ) needs Context {
        need(attributes)?;
        put(attributes, describe(&lock(), ptr as u64))
    }
}

fn describe(rt: &Guard, address: u64) -> sys::cudaPointerAttributes {
    let pointer = address as *mut c_void;
    let mut found = sys::cudaPointerAttributes {
        type_: Type::cudaMemoryTypeUnregistered,
        device: sys::cudaInvalidDeviceId,
        devicePointer: null_mut(),
        hostPointer: pointer,
        reserved: [0; 8],
    };
    if let Some((_, block)) = rt.memory.block(address) {
        found.device = block.device as i32;
        found.devicePointer = pointer;
        found.type_ = if block.host {
            Type::cudaMemoryTypeHost
        } else {
            found.hostPointer = null_mut();
            Type::cudaMemoryTypeDevice
        };
    } else if let Some((_, region)) = rt.memory.pinned(address) {
        found.type_ = Type::cudaMemoryTypeHost;
        found.device = region.device as i32;
        found.devicePointer = pointer;
    } else if let Some((_, mapping)) = vmm::mapping(address) {
        found.type_ = Type::cudaMemoryTypeDevice;
        found.device = mapping.device as i32;
        // No access, no pointer (measured).
        if mapping.reachable() {
            found.devicePointer = pointer;
        }
        found.hostPointer = null_mut();
    }
    found
}

impl runtime::Runtime {
    /// Gives a block back to its pool; a pool that the user has destroyed goes with its last block.
    pub(crate) fn give_to_pool(
        &mut self,
        place: usize,
        start: u64,
        size: u64,
        freed: Option<crate::engine::Point>,
    ) {
        let Some(entry) = self.pools.get_mut(place) else {
            return;
        };
        let Some(pool) = entry.as_mut() else { return };
        pool.give(start, size, freed);
        self.bury(place);
    }

    /// Ends a pool that is destroyed and empty.
    pub(crate) fn bury(&mut self, place: usize) {
        if let Some(entry) = self.pools.get_mut(place)
            && let Some(pool) = entry.as_mut()
            && pool.destroyed
            && pool.live == 0
            && pool.all_done(&self.engine)
        {
            pool.dissolve(&mut self.devices);
            *entry = None;
        }
    }
}

/// For functions that take a size for granted.
pub(super) fn bytes(size: usize) -> Answer<u64> {
    u64::try_from(size).map_err(|_| INVALID_VALUE)
}
