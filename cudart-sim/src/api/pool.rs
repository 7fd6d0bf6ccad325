//! Stream-ordered memory: pools and their attributes, `cudaMallocAsync` and `cudaFreeAsync`.

use super::capture::allocation;
use super::memory::bytes;
use super::{api, get, need, put};
use crate::capture::Status;
use crate::error::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::memory::{Block, Source};
use crate::pool::{Location, Pool};
use crate::runtime::{Guard, lock};
use crate::sys::{self, cudaMemPool_t, cudaMemPoolAttr as Attr, cudaStream_t};
use crate::work::Work;
use crate::{check, runtime, worker};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Takes a block from a pool (0: the current one of the stream's device) for work of a stream.
fn allocate(mut rt: Guard, place: *mut *mut c_void, size: usize, pool: usize, slot: u32) -> Answer {
    let (ordinal, uid) = rt.engine.stream(slot).map_or((0, 0), |s| (s.device, s.uid));
    let device = rt.device(ordinal as c_int)?;
    if !device.config.memory_pools {
        return Err(NOT_SUPPORTED);
    }
    let pool = if pool == 0 { device.current_pool } else { pool };
    let index = *rt.pool_handles.get(pool).ok_or(INVALID_VALUE)?;
    if size == 0 {
        return put(place, null_mut());
    }
    let size = bytes(size)?;
    let runtime::Runtime {
        pools,
        engine,
        devices,
        ..
    } = &mut *rt;
    let pool = pools
        .get_mut(index)
        .and_then(|p| p.as_mut())
        .ok_or(INVALID_VALUE)?;
    let (start, after) = pool.take(engine, devices, (slot, uid), size)?;
    let (device, host) = match pool.location {
        Location::Device(d) => (d, false),
        Location::Host => (ordinal, true),
    };
    let block = Block {
        size,
        source: Source::Pool(index),
        device,
        host,
    };
    rt.memory.blocks.insert(start, block);
    check::allocated_on("cudaMallocAsync", &rt.engine, slot, start, size);
    put(place, start as *mut c_void)?;
    if let Some(point) = after {
        drop(worker::submit(
            rt,
            "cudaMallocAsync",
            slot,
            Work::Marker,
            vec![point],
        )?);
    }
    Ok(())
}

api! {
    fn cudaMallocAsync(
        devPtr: *mut *mut c_void,
        size: usize,
        hStream: cudaStream_t,
    ) needs Context {
        need(devPtr)?;
        let mut rt = lock();
        let slot = rt.stream(hStream as usize, "cudaMallocAsync")?;
        if let Some(start) = allocation(&mut rt, slot, size)? {
            return put(devPtr, start as *mut c_void);
        }
        allocate(rt, devPtr, size, 0, slot)
    }

    fn cudaMallocFromPoolAsync(
        ptr: *mut *mut c_void,
        size: usize,
        memPool: cudaMemPool_t,
        stream: cudaStream_t,
    ) needs Context {
        need(ptr)?;
        if memPool.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaMallocFromPoolAsync")?;
        if let Some(start) = allocation(&mut rt, slot, size)? {
            return put(ptr, start as *mut c_void);
        }
        allocate(rt, ptr, size, memPool as usize, slot)
    }

    fn cudaFreeAsync(devPtr: *mut c_void, hStream: cudaStream_t) needs Context {
        let mut rt = lock();
        let slot = rt.stream(hStream as usize, "cudaFreeAsync")?;
        if devPtr.is_null() {
            return Ok(());
        }
        if rt.capture_status(slot) == Status::None {
            rt.forbid_unsafe()?;
        }
        let start = devPtr as u64;
        let block = *rt.memory.blocks.get(&start).ok_or(INVALID_VALUE)?;
        // Memory of a graph is freed in a place of the stream's order, in a graph or outside; the graph keeps it.
        if let Source::Graph(_) = block.source {
            drop(worker::submit(rt, "cudaFreeAsync", slot, Work::Marker, Vec::new())?);
            return Ok(());
        }
        let Source::Pool(place) = block.source else {
            return Err(INVALID_VALUE);
        };
        // A capture frees what graphs have allocated, and nothing else.
        if rt.capture_status(slot) != Status::None {
            return Err(INVALID_VALUE);
        }
        rt.memory.blocks.remove(&start);
        let (mut rt, point) = match worker::submit(rt, "cudaFreeAsync", slot, Work::Marker, Vec::new()) {
            Ok(submitted) => submitted,
            // The stream went while this call waited for room in it: the block is still the caller's.
            Err(code) => {
                lock().memory.blocks.insert(start, block);
                return Err(code);
            }
        };
        check::freed_on("cudaFreeAsync", point, start, block.size);
        rt.give_to_pool(place, start, block.size, Some(point));
        Ok(())
    }

    fn cudaDeviceGetDefaultMemPool(memPool: *mut cudaMemPool_t, device: c_int) needs Device {
        need(memPool)?;
        let mut rt = lock();
        let device = rt.device(device)?;
        if !device.config.memory_pools {
            return Err(NOT_SUPPORTED);
        }
        put(memPool, device.default_pool as cudaMemPool_t)
    }

    // This one and the next call an unknown device an invalid value, unlike the one above (measured).
    fn cudaDeviceGetMemPool(memPool: *mut cudaMemPool_t, device: c_int) needs Device {
        need(memPool)?;
        let mut rt = lock();
        let device = rt.device(device).map_err(|_| INVALID_VALUE)?;
        if !device.config.memory_pools {
            return Err(NOT_SUPPORTED);
        }
        put(memPool, device.current_pool as cudaMemPool_t)
    }

    fn cudaDeviceSetMemPool(device: c_int, memPool: cudaMemPool_t) needs Device {
        let mut rt = lock();
        rt.device(device).map_err(|_| INVALID_VALUE)?;
        let location = rt.pool(memPool as usize)?.location;
        if location != Location::Device(device as u32) {
            return Err(INVALID_VALUE);
        }
        rt.device(device)?.current_pool = memPool as usize;
        Ok(())
    }

    fn cudaMemPoolCreate(
        memPool: *mut cudaMemPool_t,
        poolProps: *const sys::cudaMemPoolProps,
    ) needs Context {
        need(memPool)?;
        let props = get(poolProps)?;
        let mut rt = lock();
        let location = location(&mut rt, &props)?;
        let place = rt.pools.iter().position(|p| p.is_none()).unwrap_or(rt.pools.len());
        let handle = rt.pool_handles.insert(place)?;
        let pool = Some(Pool::new(location, bytes(props.maxSize)?));
        match rt.pools.get_mut(place) {
            Some(entry) => *entry = pool,
            None => rt.pools.push(pool),
        }
        put(memPool, handle as cudaMemPool_t)
    }

    // Blocks that are still in use stay usable; the pool goes with the last of them.
    fn cudaMemPoolDestroy(memPool: cudaMemPool_t) needs Context {
        let handle = memPool as usize;
        let mut rt = lock();
        rt.pool(handle)?;
        if rt.devices.iter().any(|d| d.default_pool == handle) {
            return Err(INVALID_VALUE);
        }
        let place = rt.pool_handles.remove(handle).ok_or(INVALID_VALUE)?;
        for device in &mut rt.devices {
            if device.current_pool == handle {
                device.current_pool = device.default_pool;
            }
        }
        if let Some(pool) = rt.pools.get_mut(place).and_then(|p| p.as_mut()) {
            pool.destroyed = true;
            pool.threshold = 0;
        }
        rt.bury(place);
        Ok(())
    }

    fn cudaMemPoolTrimTo(memPool: cudaMemPool_t, minBytesToKeep: usize) needs Context {
        let keep = bytes(minBytesToKeep)?;
        let mut rt = lock();
        let place = *rt.pool_handles.get(memPool as usize).ok_or(INVALID_VALUE)?;
        let runtime::Runtime { pools, engine, devices, .. } = &mut *rt;
        let pool = pools.get_mut(place).and_then(|p| p.as_mut()).ok_or(INVALID_VALUE)?;
        pool.trim(engine, devices, keep);
        Ok(())
    }

    fn cudaMemPoolGetAttribute(
        memPool: cudaMemPool_t,
        attr: Attr,
        value: *mut c_void,
    ) needs Context {
        let mut rt = lock();
        let pool = rt.pool(memPool as usize)?;
        let flag = |b: bool| put(value.cast::<c_int>(), c_int::from(b));
        let number = |n: u64| put(value.cast::<u64>(), n);
        match attr {
            Attr::cudaMemPoolReuseFollowEventDependencies => flag(pool.follow_events),
            Attr::cudaMemPoolReuseAllowOpportunistic => flag(pool.opportunistic),
            Attr::cudaMemPoolReuseAllowInternalDependencies => flag(pool.internal_dependencies),
            Attr::cudaMemPoolAttrReleaseThreshold => number(pool.threshold),
            Attr::cudaMemPoolAttrReservedMemCurrent => number(pool.reserved),
            Attr::cudaMemPoolAttrReservedMemHigh => number(pool.reserved_high),
            Attr::cudaMemPoolAttrUsedMemCurrent => number(pool.used),
            Attr::cudaMemPoolAttrUsedMemHigh => number(pool.used_high),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cudaMemPoolSetAttribute(
        memPool: cudaMemPool_t,
        attr: Attr,
        value: *mut c_void,
    ) needs Context {
        let mut rt = lock();
        let pool = rt.pool(memPool as usize)?;
        let flag = || get(value.cast::<c_int>()).map(|v| v != 0);
        let number = || get(value.cast::<u64>());
        let zero = || match number()? {
            0 => Ok(()),
            _ => Err(INVALID_VALUE),
        };
        match attr {
            Attr::cudaMemPoolReuseFollowEventDependencies => pool.follow_events = flag()?,
            Attr::cudaMemPoolReuseAllowOpportunistic => pool.opportunistic = flag()?,
            Attr::cudaMemPoolReuseAllowInternalDependencies => {
                pool.internal_dependencies = flag()?;
            }
            Attr::cudaMemPoolAttrReleaseThreshold => pool.threshold = number()?,
            Attr::cudaMemPoolAttrReservedMemHigh => {
                zero()?;
                pool.reserved_high = pool.reserved;
            }
            Attr::cudaMemPoolAttrUsedMemHigh => {
                zero()?;
                pool.used_high = pool.used;
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cudaMemPoolSetAccess(
        memPool: cudaMemPool_t,
        descList: *const sys::cudaMemAccessDesc,
        count: usize,
    ) needs Context {
        let mut rt = lock();
        let location = rt.pool(memPool as usize)?.location;
        if count > crate::config::MAX_DEVICES {
            return Err(OUT_OF_MEMORY);
        }
        for at in 0..count {
            let entry = get(descList.wrapping_add(at))?;
            if entry.location.type_ != sys::cudaMemLocationType::cudaMemLocationTypeDevice {
                return Err(INVALID_VALUE);
            }
            rt.device(entry.location.id)?;
            let id = entry.location.id as u32;
            // A device's access to its own memory cannot be taken away (the code is measured).
            if location == Location::Device(id) && entry.flags.0 != 3 {
                return Err(INVALID_DEVICE);
            }
            if !matches!(entry.flags.0, 0 | 1 | 3) {
                return Err(INVALID_VALUE);
            }
            rt.pool(memPool as usize)?.access.insert(id, entry.flags.0);
        }
        Ok(())
    }

    fn cudaMemPoolGetAccess(
        flags: *mut sys::cudaMemAccessFlags,
        memPool: cudaMemPool_t,
        location: *mut sys::cudaMemLocation,
    ) needs Context {
        let asked = get(location)?;
        let mut rt = lock();
        rt.device(asked.id).map_err(|_| INVALID_VALUE)?;
        let id = asked.id as u32;
        let pool = rt.pool(memPool as usize)?;
        let own = pool.location == Location::Device(id);
        let granted = pool.access.get(&id).copied().unwrap_or(0);
        put(flags, sys::cudaMemAccessFlags(if own { 3 } else { granted }))
    }
}

fn location(rt: &mut Guard, props: &sys::cudaMemPoolProps) -> Answer<Location> {
    use sys::cudaMemLocationType as Type;
    if props.allocType != sys::cudaMemAllocationType::cudaMemAllocationTypePinned
        || props.reserved.iter().any(|b| *b != 0)
        || props.usage != 0
    {
        return Err(INVALID_VALUE);
    }
    // Pools that can be exported to other processes are not simulated.
    if props.handleTypes != sys::cudaMemAllocationHandleType::cudaMemHandleTypeNone {
        return Err(NOT_SUPPORTED);
    }
    match props.location.type_ {
        Type::cudaMemLocationTypeDevice => {
            let device = rt.device(props.location.id).map_err(|_| INVALID_VALUE)?;
            if !device.config.memory_pools {
                return Err(NOT_SUPPORTED);
            }
            Ok(Location::Device(props.location.id as u32))
        }
        Type::cudaMemLocationTypeHost => Ok(Location::Host),
        _ => Err(INVALID_VALUE),
    }
}
