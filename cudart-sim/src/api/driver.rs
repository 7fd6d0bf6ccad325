//! The functions of the driver that are found by name: virtual memory, a few questions, and what copies need.
//!
//! They answer the numbers of the driver's errors, which are those of the runtime, and leave no last error.

use super::{api, capture::is_capturing, copy::copy, event::record, get, need, put};
use crate::calls::Call;
use crate::device::Device;
use crate::entry::{Needs, enter_driver};
use crate::error::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::runtime::lock;
use crate::sys::{
    self, cudaDriverEntryPointQueryResult as Found, cudaError, cudaEvent_t, cudaMemcpyKind as Kind,
    cudaStream_t, cudaStreamCaptureStatus,
};
use crate::work::Shape;
use crate::{error, fault, runtime, thread, vmm};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

/// Defines functions of the driver, checked against the header's type of each, and the table to find them in.
macro_rules! driver {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) is $pfn:ty, since $version:literal, needs $needs:ident $body:block)*) => {
        $(
            unsafe extern "C" fn $name($($arg: $type),*) -> sys::CUresult {
                enter_driver(Call::$name, Needs::$needs, || -> Answer { $body })
            }
            const _: $pfn = Some($name);
        )*

        /// The function of that name, and since which version there is one.
        fn find(name: &str) -> Option<(*mut c_void, u32)> {
            match name {
                $(stringify!($name) => Some(($name as *mut c_void, $version)),)*
                _ => None,
            }
        }
    };
}

/// A question about a pointer; its type is not among the header's that are bound here.
type PointerGetAttribute = Option<unsafe extern "C" fn(*mut c_void, c_uint, u64) -> sys::CUresult>;

/// The highest number of a pointer's attribute in the header of CUDA 13.0.
const MOST_ATTRIBUTE: c_uint = 21;

/// The same of a context's id.
type CtxGetId = Option<unsafe extern "C" fn(sys::CUcontext, *mut c_ulonglong) -> sys::CUresult>;

/// The same of a device's attribute.
type DeviceGetAttribute = Option<unsafe extern "C" fn(*mut c_int, c_uint, c_int) -> sys::CUresult>;

/// The same of copies, of the record of an event, and of the question for a capture.
type MemcpyHtoDAsync =
    Option<unsafe extern "C" fn(u64, *const c_void, usize, cudaStream_t) -> sys::CUresult>;
type MemcpyDtoHAsync =
    Option<unsafe extern "C" fn(*mut c_void, u64, usize, cudaStream_t) -> sys::CUresult>;
type EventRecord = Option<unsafe extern "C" fn(cudaEvent_t, cudaStream_t) -> sys::CUresult>;
type StreamIsCapturing =
    Option<unsafe extern "C" fn(cudaStream_t, *mut cudaStreamCaptureStatus) -> sys::CUresult>;

/// Whether network adapters can reach memory that the functions here make, as the driver numbers the question.
const MAPPED_MEMORY_RDMA: c_uint = 110;

driver! {
    fn cuGetErrorName(
        code: sys::CUresult,
        pStr: *mut *const c_char,
    ) is sys::PFN_cuGetErrorName_v6000, since 6000, needs Driver {
        put(pStr, error::driver_name(code.0).map_or(std::ptr::null(), CStr::as_ptr))?;
        error::driver_name(code.0).map(|_| ()).ok_or(INVALID_VALUE)
    }

    // A context is no more than a token here: one a device, never null.
    fn cuCtxGetCurrent(
        pctx: *mut sys::CUcontext,
    ) is sys::PFN_cuCtxGetCurrent_v4000, since 4000, needs Device {
        need(pctx)?;
        let mut rt = lock();
        put(pctx, rt.device(thread::device() as c_int)?.default_pool as sys::CUcontext)
    }

    fn cuCtxGetId(
        ctx: sys::CUcontext,
        ctxId: *mut c_ulonglong,
    ) is CtxGetId, since 12000, needs Device {
        need(ctxId)?;
        let device = if ctx.is_null() {
            thread::device()
        } else {
            let rt = lock();
            let of = rt.devices.iter().position(|d| d.default_pool == ctx as usize);
            of.ok_or(cudaError::cudaErrorDeviceUninitialized)? as u32
        };
        put(ctxId, runtime::context(device)?)
    }

    fn cuCtxGetDevice(
        device: *mut sys::CUdevice_v1,
    ) is sys::PFN_cuCtxGetDevice_v2000, since 2000, needs Device {
        put(device, thread::device() as c_int)
    }

    fn cuDeviceGetAttribute(
        pi: *mut c_int,
        attrib: c_uint,
        dev: c_int,
    ) is DeviceGetAttribute, since 2000, needs Driver {
        need(pi)?;
        let mut rt = lock();
        let device = rt.device(dev)?;
        put(pi, match attrib {
            MAPPED_MEMORY_RDMA => c_int::from(device.config.virtual_memory),
            _ => super::device::attribute(device, sys::cudaDeviceAttr(attrib))?,
        })
    }

    fn cuMemGetAddressRange(
        pbase: *mut sys::CUdeviceptr_v2,
        psize: *mut usize,
        dptr: sys::CUdeviceptr_v2,
    ) is sys::PFN_cuMemGetAddressRange_v3020, since 3020, needs Context {
        // Mapped memory that the device may not reach has no range yet (measured).
        let reachable = vmm::mapping(dptr).is_none_or(|(_, mapping)| mapping.reachable());
        let (start, len) = range(dptr)
            .filter(|_| reachable)
            .ok_or(cudaError::cudaErrorSymbolNotFound)?;
        if !pbase.is_null() {
            put(pbase, start)?;
        }
        if !psize.is_null() {
            put(psize, len as usize)?;
        }
        Ok(())
    }

    fn cuMemAddressReserve(
        ptr: *mut sys::CUdeviceptr_v2,
        size: usize,
        alignment: usize,
        addr: sys::CUdeviceptr_v2,
        flags: c_ulonglong,
    ) is sys::PFN_cuMemAddressReserve_v10020, since 10020, needs Context {
        need(ptr)?;
        some_device()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // Before what is reserved here leaves it none. Where it gets none, memory is refused when it is asked for.
        if let Ok(device) = lock().device(thread::device() as i32) {
            let _ = device.reserve();
        }
        put(ptr, vmm::reserve(size as u64, alignment as u64, addr)?)
    }

    fn cuMemAddressFree(
        ptr: sys::CUdeviceptr_v2,
        size: usize,
    ) is sys::PFN_cuMemAddressFree_v10020, since 10020, needs Context {
        some_device()?;
        let _rt = lock();
        vmm::free(ptr, size as u64)
    }

    fn cuMemCreate(
        handle: *mut sys::CUmemGenericAllocationHandle_v1,
        size: usize,
        prop: *const sys::CUmemAllocationProp_v1,
        flags: c_ulonglong,
    ) is sys::PFN_cuMemCreate_v10020, since 10020, needs Context {
        need(handle)?;
        let device = location(&get(prop)?)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(handle, lock().create_physical(device, size as u64)? as u64)
    }

    fn cuMemRelease(
        handle: sys::CUmemGenericAllocationHandle_v1,
    ) is sys::PFN_cuMemRelease_v10020, since 10020, needs Context {
        some_device()?;
        lock().release_physical(handle as usize)
    }

    fn cuMemMap(
        ptr: sys::CUdeviceptr_v2,
        size: usize,
        offset: usize,
        handle: sys::CUmemGenericAllocationHandle_v1,
        flags: c_ulonglong,
    ) is sys::PFN_cuMemMap_v10020, since 10020, needs Context {
        some_device()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        lock().map_physical(ptr, size as u64, offset as u64, handle as usize)
    }

    fn cuMemUnmap(
        ptr: sys::CUdeviceptr_v2,
        size: usize,
    ) is sys::PFN_cuMemUnmap_v10020, since 10020, needs Context {
        some_device()?;
        lock().unmap_physical(ptr, size as u64)
    }

    fn cuMemSetAccess(
        ptr: sys::CUdeviceptr_v2,
        size: usize,
        desc: *const sys::CUmemAccessDesc_v1,
        count: usize,
    ) is sys::PFN_cuMemSetAccess_v10020, since 10020, needs Context {
        some_device()?;
        if count == 0 || count > crate::config::MAX_DEVICES {
            return Err(INVALID_VALUE);
        }
        let mut rt = lock();
        let mut rights = Vec::new();
        for at in 0..count {
            let entry = get(desc.wrapping_add(at))?;
            let device = on_device(entry.location).map_err(|_| INVALID_VALUE)?;
            supports(rt.device(device)?)?;
            if !matches!(entry.flags.0, 0 | vmm::READ | vmm::READ_WRITE) {
                return Err(INVALID_VALUE);
            }
            rights.push((device as u32, entry.flags.0));
        }
        vmm::set_access(ptr, size as u64, &rights)
    }

    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        prop: *const sys::CUmemAllocationProp_v1,
        option: sys::CUmemAllocationGranularity_flags,
    ) is sys::PFN_cuMemGetAllocationGranularity_v10020, since 10020, needs Context {
        need(granularity)?;
        let device = location(&get(prop)?)?;
        supports(lock().device(device)?)?;
        if option.0 > 1 {
            return Err(INVALID_VALUE);
        }
        put(granularity, vmm::GRANULARITY as usize)
    }

    fn cuMemRetainAllocationHandle(
        handle: *mut sys::CUmemGenericAllocationHandle_v1,
        addr: *mut c_void,
    ) is sys::PFN_cuMemRetainAllocationHandle_v11000, since 11000, needs Context {
        need(handle)?;
        some_device()?;
        put(handle, lock().retain_physical(addr as u64)? as u64)
    }

    fn cuPointerGetAttribute(
        data: *mut c_void,
        attribute: c_uint,
        ptr: u64,
    ) is PointerGetAttribute, since 4000, needs Context {
        attribute_of(data, attribute, ptr)
    }

    fn cuMemcpyHtoDAsync(
        dstDevice: sys::CUdeviceptr_v2,
        srcHost: *const c_void,
        ByteCount: usize,
        hStream: cudaStream_t,
    ) is MemcpyHtoDAsync, since 2000, needs Context {
        beside(Call::cudaMemcpyAsync, hStream)?;
        let line = Shape::line(ByteCount);
        copy("cuMemcpyHtoDAsync", dstDevice as *const c_void, srcHost, line, Kind::cudaMemcpyHostToDevice, Some(hStream))
    }

    fn cuMemcpyDtoHAsync(
        dstHost: *mut c_void,
        srcDevice: sys::CUdeviceptr_v2,
        ByteCount: usize,
        hStream: cudaStream_t,
    ) is MemcpyDtoHAsync, since 2000, needs Context {
        beside(Call::cudaMemcpyAsync, hStream)?;
        let line = Shape::line(ByteCount);
        copy("cuMemcpyDtoHAsync", dstHost, srcDevice as *const c_void, line, Kind::cudaMemcpyDeviceToHost, Some(hStream))
    }

    fn cuEventRecord(
        hEvent: cudaEvent_t,
        hStream: cudaStream_t,
    ) is EventRecord, since 2000, needs Context {
        beside(Call::cudaEventRecord, hStream)?;
        record("cuEventRecord", hEvent, hStream)
    }

    fn cuStreamIsCapturing(
        hStream: cudaStream_t,
        captureStatus: *mut cudaStreamCaptureStatus,
    ) is StreamIsCapturing, since 10000, needs Context {
        beside(Call::cudaStreamIsCapturing, hStream)?;
        is_capturing("cuStreamIsCapturing", hStream, captureStatus)
    }
}

/// The device on which memory is to be made.
fn location(prop: &sys::CUmemAllocationProp_v1) -> Answer<c_int> {
    if prop.type_ != sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED
        || prop.allocFlags.reserved.iter().any(|b| *b != 0)
    {
        return Err(INVALID_VALUE);
    }
    // Memory that can be exported to other processes is not simulated.
    if prop.requestedHandleTypes != sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE {
        return Err(NOT_SUPPORTED);
    }
    on_device(prop.location)
}

fn on_device(location: sys::CUmemLocation) -> Answer<c_int> {
    if location.type_ != sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(INVALID_VALUE);
    }
    let known = usize::try_from(location.id).is_ok_and(|d| d < runtime::device_count());
    known.then_some(location.id).ok_or(INVALID_DEVICE)
}

fn supports(device: &Device) -> Answer {
    match device.config.virtual_memory {
        true => Ok(()),
        false => Err(NOT_SUPPORTED),
    }
}

/// Addresses belong to no device: one that supports virtual memory is enough.
fn some_device() -> Answer {
    let rt = lock();
    let any = rt.devices.iter().any(|d| d.config.virtual_memory);
    any.then_some(()).ok_or(NOT_SUPPORTED)
}

/// Fails where a fault is set for the function of the runtime that does the same.
fn beside(call: Call, stream: cudaStream_t) -> Answer {
    fault::injected_beside(call, stream as usize).map_or(Ok(()), Err)
}

/// The allocation, the page-locked region or the mapped chunk that holds an address.
fn range(address: u64) -> Option<(u64, u64)> {
    let rt = lock();
    let block = rt.memory.block(address).map(|(s, b)| (s, b.size));
    let pinned = || rt.memory.pinned(address).map(|(s, r)| (s, r.len));
    let mapped = || vmm::mapping(address).map(|(s, m)| (s, m.len));
    block.or_else(pinned).or_else(mapped)
}

fn attribute_of(data: *mut c_void, attribute: c_uint, address: u64) -> Answer {
    use crate::memory::Source;
    need(data)?;
    let found = range(address).ok_or(INVALID_VALUE)?;
    // Of mapped memory all that is reserved with it, where `cuMemGetAddressRange` tells the mapping (measured).
    let (start, len) = vmm::reservation(address).unwrap_or(found);
    let rt = lock();
    let (device, host, legacy) = match (rt.memory.block(address), rt.memory.pinned(address)) {
        (Some((_, b)), _) => (b.device, b.host, b.source == Source::Malloc),
        (_, Some((_, r))) => (r.device, true, false),
        _ => (
            vmm::mapping(address).map_or(0, |(_, m)| m.device),
            false,
            false,
        ),
    };
    let number = |n: u64| put(data.cast::<u64>(), n);
    let word = |n: u32| put(data.cast::<u32>(), n);
    match attribute {
        // The numbers are those of the driver's header: memory type, device pointer, is managed, device, can be
        // shared the old way, start and size of the allocation, is mapped.
        2 => word(if host { 1 } else { 2 }),
        3 => number(address),
        8 => word(0),
        9 => word(device),
        10 => word(u32::from(legacy)),
        11 => number(start),
        12 => put(data.cast::<usize>(), len as usize),
        13 => word(1),
        1..=MOST_ATTRIBUTE => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

api! {
    fn cudaGetDriverEntryPoint(
        symbol: *const c_char,
        funcPtr: *mut *mut c_void,
        _flags: c_ulonglong,
        driverStatus: *mut Found,
    ) needs Driver {
        let version = u32::try_from(runtime::runtime_version()).unwrap_or(0);
        entry_point(symbol, funcPtr, version, driverStatus)
    }

    fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char,
        funcPtr: *mut *mut c_void,
        cudaVersion: c_uint,
        _flags: c_ulonglong,
        driverStatus: *mut Found,
    ) needs Driver {
        entry_point(symbol, funcPtr, cudaVersion, driverStatus)
    }
}

fn entry_point(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_uint,
    status: *mut Found,
) -> Answer {
    if symbol.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and a C string by the contract of the function.
    let name = unsafe { CStr::from_ptr(symbol) };
    let (found, answer) = match name.to_str().ok().and_then(find) {
        // A driver that is older than the function lacks it.
        Some((_, since)) if i64::from(since) > i64::from(runtime::driver_version()) => (
            std::ptr::null_mut(),
            Found::cudaDriverEntryPointSymbolNotFound,
        ),
        Some((at, since)) if since <= version => (at, Found::cudaDriverEntryPointSuccess),
        Some(_) => (
            std::ptr::null_mut(),
            Found::cudaDriverEntryPointVersionNotSufficent,
        ),
        None => (
            std::ptr::null_mut(),
            Found::cudaDriverEntryPointSymbolNotFound,
        ),
    };
    put(function, found)?;
    // What is not found is no error, even if nobody asks for the status (measured).
    if !status.is_null() {
        put(status, answer)?;
    }
    Ok(())
}
