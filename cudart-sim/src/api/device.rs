//! Devices: which there are, which is current, what they can do, waiting for all their work.

use super::{api, need, put};
use crate::calls::POOLS_SINCE;
use crate::device::Device;
use crate::error::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::mirror;
use crate::pool::{Location, Pool};
use crate::runtime::{self, lock};
use crate::sys::{self, cudaDeviceAttr as Attr, cudaError};
use crate::thread;
use std::ffi::{c_int, c_uint};

/// The name of every simulated device.
pub(crate) const NAME: &str = "Simulated CUDA device";

/// Stream priorities, as on the machine that the facts come from.
pub(crate) const PRIORITIES: std::ops::RangeInclusive<c_int> = -5..=0;

fn known(device: c_int) -> Answer<u32> {
    u32::try_from(device)
        .ok()
        .filter(|d| (*d as usize) < runtime::device_count())
        .ok_or(INVALID_DEVICE)
}

pub(super) fn attribute(device: &Device, attr: Attr) -> Answer<c_int> {
    Ok(match attr {
        Attr::cudaDevAttrMaxThreadsPerBlock => 1024,
        Attr::cudaDevAttrMaxBlockDimX | Attr::cudaDevAttrMaxBlockDimY => 1024,
        Attr::cudaDevAttrMaxBlockDimZ => 64,
        Attr::cudaDevAttrMaxGridDimX => c_int::MAX,
        Attr::cudaDevAttrMaxGridDimY | Attr::cudaDevAttrMaxGridDimZ => 65535,
        Attr::cudaDevAttrWarpSize => 32,
        Attr::cudaDevAttrMaxPitch => c_int::MAX,
        Attr::cudaDevAttrTextureAlignment => 512,
        Attr::cudaDevAttrTexturePitchAlignment => 32,
        Attr::cudaDevAttrMultiProcessorCount => 132,
        Attr::cudaDevAttrMaxThreadsPerMultiProcessor => 2048,
        Attr::cudaDevAttrIntegrated | Attr::cudaDevAttrKernelExecTimeout => 0,
        Attr::cudaDevAttrCanMapHostMemory | Attr::cudaDevAttrGpuOverlap => 1,
        Attr::cudaDevAttrComputeMode => 0,
        Attr::cudaDevAttrConcurrentKernels | Attr::cudaDevAttrEccEnabled => 1,
        Attr::cudaDevAttrPciBusId | Attr::cudaDevAttrPciDeviceId | Attr::cudaDevAttrPciDomainId => {
            0
        }
        Attr::cudaDevAttrAsyncEngineCount => 2,
        Attr::cudaDevAttrUnifiedAddressing => 1,
        Attr::cudaDevAttrComputeCapabilityMajor => 9,
        Attr::cudaDevAttrComputeCapabilityMinor => 0,
        Attr::cudaDevAttrStreamPrioritiesSupported => 1,
        Attr::cudaDevAttrManagedMemory | Attr::cudaDevAttrConcurrentManagedAccess => 0,
        Attr::cudaDevAttrPageableMemoryAccess
        | Attr::cudaDevAttrPageableMemoryAccessUsesHostPageTables
        | Attr::cudaDevAttrDirectManagedMemAccessFromHost => 0,
        Attr::cudaDevAttrComputePreemptionSupported => 1,
        Attr::cudaDevAttrCanUseHostPointerForRegisteredMem => 1,
        Attr::cudaDevAttrHostRegisterSupported => 1,
        // A driver from before them does not know the question.
        Attr::cudaDevAttrMemoryPoolsSupported
        | Attr::cudaDevAttrHostMemoryPoolsSupported
        | Attr::cudaDevAttrMemoryPoolSupportedHandleTypes
            if runtime::driver_version() < POOLS_SINCE =>
        {
            return Err(INVALID_VALUE);
        }
        Attr::cudaDevAttrMemoryPoolsSupported | Attr::cudaDevAttrHostMemoryPoolsSupported => {
            c_int::from(device.config.memory_pools)
        }
        Attr::cudaDevAttrHostNumaMemoryPoolsSupported
        | Attr::cudaDevAttrMemoryPoolSupportedHandleTypes
        | Attr::cudaDevAttrGPUDirectRDMASupported
        | Attr::cudaDevAttrIpcEventSupport => 0,
        // VirtualMemoryManagementSupported, which only the driver's table names.
        Attr(102) => c_int::from(device.config.virtual_memory),
        _ => return Err(INVALID_VALUE),
    })
}

api! {
    fn cudaGetDeviceCount(count: *mut c_int) needs Driver {
        put(count, runtime::device_count() as c_int)?;
        if runtime::device_count() == 0 {
            return Err(cudaError::cudaErrorNoDevice);
        }
        Ok(())
    }

    fn cudaSetDevice(device: c_int) needs Device {
        let device = known(device)?;
        thread::with(|t| t.device.set(device));
        runtime::make_context(device);
        Ok(())
    }

    fn cudaGetDevice(device: *mut c_int) needs Device {
        put(device, thread::device() as c_int)
    }

    // Unknown flags are accepted (measured).
    fn cudaInitDevice(device: c_int, _deviceFlags: c_uint, _flags: c_uint) needs Device {
        known(device).map(|_| ())
    }

    fn cudaDeviceGetAttribute(value: *mut c_int, attr: Attr, device: c_int) needs Device {
        need(value)?;
        let mut rt = lock();
        put(value, attribute(rt.device(device)?, attr)?)
    }

    fn cudaGetDeviceProperties(prop: *mut sys::cudaDeviceProp, device: c_int) needs Device {
        need(prop)?;
        let mut rt = lock();
        put(prop, properties(rt.device(device)?)?)
    }

    fn cudaDeviceGetStreamPriorityRange(
        leastPriority: *mut c_int,
        greatestPriority: *mut c_int,
    ) needs Context {
        // Each of the two may be null.
        if !leastPriority.is_null() {
            put(leastPriority, *PRIORITIES.end())?;
        }
        if !greatestPriority.is_null() {
            put(greatestPriority, *PRIORITIES.start())?;
        }
        Ok(())
    }

    fn cudaDeviceSynchronize() needs Context {
        let device = thread::device();
        drop(runtime::synchronize(lock(), Some(device)));
        runtime::broken(device).map_or(Ok(()), Err)
    }

    fn cudaDeviceReset() needs Device {
        let device = thread::device();
        let mut rt = runtime::synchronize(lock(), Some(device));
        rt.reset_device(device);
        runtime::destroy_context(device);
        Ok(())
    }

    fn cudaDeviceCanAccessPeer(
        canAccessPeer: *mut c_int,
        device: c_int,
        peerDevice: c_int,
    ) needs Device {
        let (a, b) = (known(device)?, known(peerDevice)?);
        put(canAccessPeer, c_int::from(a != b))
    }

    fn cudaDeviceEnablePeerAccess(peerDevice: c_int, flags: c_uint) needs Context {
        let peer = known(peerDevice)?;
        let device = thread::device();
        if peer == device {
            return Err(cudaError::cudaErrorPeerAccessUnsupported);
        }
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut rt = lock();
        let peers = &mut rt.device(device as c_int)?.peers;
        if peers.contains(&peer) {
            return Err(cudaError::cudaErrorPeerAccessAlreadyEnabled);
        }
        peers.push(peer);
        Ok(())
    }

    fn cudaDeviceDisablePeerAccess(peerDevice: c_int) needs Context {
        let peer = known(peerDevice)?;
        let mut rt = lock();
        let peers = &mut rt.device(thread::device() as c_int)?.peers;
        let at = peers
            .iter()
            .position(|p| *p == peer)
            .ok_or(cudaError::cudaErrorPeerAccessNotEnabled)?;
        peers.swap_remove(at);
        Ok(())
    }
}

fn properties(device: &Device) -> Answer<sys::cudaDeviceProp> {
    let number = |attr| attribute(device, attr).unwrap_or(0);
    let mut p = sys::cudaDeviceProp::default();
    for (to, from) in p.name.iter_mut().zip(NAME.bytes()) {
        *to = from as std::ffi::c_char;
    }
    p.totalGlobalMem = device.config.memory;
    p.warpSize = 32;
    p.memPitch = c_int::MAX as usize;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim = [1024, 1024, 64];
    p.maxGridSize = [c_int::MAX, 65535, 65535];
    p.major = number(Attr::cudaDevAttrComputeCapabilityMajor);
    p.minor = number(Attr::cudaDevAttrComputeCapabilityMinor);
    p.textureAlignment = 512;
    p.texturePitchAlignment = 32;
    p.multiProcessorCount = number(Attr::cudaDevAttrMultiProcessorCount);
    p.canMapHostMemory = 1;
    p.concurrentKernels = 1;
    p.ECCEnabled = 1;
    p.asyncEngineCount = number(Attr::cudaDevAttrAsyncEngineCount);
    p.unifiedAddressing = 1;
    p.maxThreadsPerMultiProcessor = 2048;
    p.streamPrioritiesSupported = 1;
    p.computePreemptionSupported = 1;
    p.canUseHostPointerForRegisteredMem = 1;
    p.hostRegisterSupported = 1;
    p.memoryPoolsSupported = number(Attr::cudaDevAttrMemoryPoolsSupported);
    Ok(p)
}

impl runtime::Runtime {
    /// Frees what a device holds, the page-locked memory that was made while it was current too, and forgets its streams
    /// and events. Its work is done.
    fn reset_device(&mut self, ordinal: u32) {
        self.memory.pinned.retain(|start, region| {
            let goes = region.device == ordinal;
            if goes {
                crate::check::gone(*start, region.len);
            }
            if goes && !region.registered {
                mirror::unmap_host(*start as usize, region.len as usize);
            }
            !goes
        });
        self.memory.blocks.retain(|start, b| {
            let stays = b.host || b.device != ordinal;
            if !stays {
                crate::check::gone(*start, b.size);
            }
            stays
        });
        let Some(old) = self.devices.get(ordinal as usize) else {
            return;
        };
        let (config, default_pool) = (old.config.clone(), old.default_pool);
        let limits = old.limits.of_an_empty_device();
        let fresh = self.config.as_ref().and_then(|c| c.fresh);
        let default_place = self.pool_handles.get(default_pool).copied();
        for (place, entry) in self.pools.iter_mut().enumerate() {
            let Some(pool) = entry.as_mut() else { continue };
            if pool.location != Location::Device(ordinal) {
                continue;
            }
            pool.dissolve(&mut self.devices);
            *entry = None;
            if Some(place) == default_place {
                *entry = Some(Pool::new(Location::Device(ordinal), 0));
            }
        }
        if let Some(device) = self.devices.get_mut(ordinal as usize) {
            *device = Device::new(config, fresh);
            device.limits = limits;
            device.default_pool = default_pool;
            device.current_pool = default_pool;
        }
        let engine = &self.engine;
        self.streams
            .retain(|(slot, _)| engine.stream(*slot).is_some_and(|s| s.device != ordinal));
        self.events.retain(|e| e.device != ordinal);
        self.forget_physical(Some(ordinal));
        crate::check::device_reset(ordinal);
        runtime::set_broken(ordinal, 0);
    }
}
