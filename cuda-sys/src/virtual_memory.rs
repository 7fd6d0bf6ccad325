//! The driver's functions for virtual memory, found by name: reserved addresses, physical memory, and what maps one to the
//! other. None of them leaves an error behind in `cudaGetLastError`.

use crate::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocationType,
    compat::{cu_mem_location, driver_entry_point},
    cudaError,
    found::Found,
};
use std::{
    ffi::{CStr, c_int, c_uint, c_ulonglong, c_void},
    mem,
};

/// The version in which these functions came.
const SINCE: c_uint = 10_020;

type Reserve = unsafe extern "C" fn(*mut u64, usize, usize, u64, c_ulonglong) -> c_int;
type Range = unsafe extern "C" fn(u64, usize) -> c_int;
type Create = unsafe extern "C" fn(*mut u64, usize, *const CUmemAllocationProp, u64) -> c_int;
type Release = unsafe extern "C" fn(u64) -> c_int;
type Map = unsafe extern "C" fn(u64, usize, usize, u64, c_ulonglong) -> c_int;
type SetAccess = unsafe extern "C" fn(u64, usize, *const CUmemAccessDesc, usize) -> c_int;

/// The functions, as far as the driver has them all.
#[derive(Debug, Clone, Copy)]
pub struct VirtualMemory {
    reserve: Reserve,
    free: Range,
    create: Create,
    release: Release,
    map: Map,
    unmap: Range,
    set_access: SetAccess,
}

/// The functions; `None` where the driver lacks one of them, or may not be asked for them (in a host function).
pub fn virtual_memory() -> Option<&'static VirtualMemory> {
    static FOUND: Found<VirtualMemory> = Found::new();
    FOUND.get(VirtualMemory::find).ok()
}

/// An attribute of a device by the driver's number (`cuDeviceGetAttribute`), of which the runtime's are a part. The driver is in
/// use already. Leaves no error behind.
///
/// # Errors
/// The driver's code: 1 for an attribute that it does not know, 500 where the function is missing.
pub fn driver_attribute(device: c_int, attribute: c_uint) -> Result<c_int, i32> {
    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_uint, c_int) -> c_int;
    static FUNCTION: Found<GetAttribute> = Found::new();
    let function = FUNCTION.get(|| {
        let address = driver_entry_point(c"cuDeviceGetAttribute", 2000)?;
        // SAFETY: the driver's function of that name and version has this signature; a device is its ordinal.
        Ok(unsafe { mem::transmute::<*mut c_void, GetAttribute>(address) })
    });
    let get = function.map_err(|e| e.0 as i32)?;
    let mut value = 0;
    // SAFETY: the function writes through a pointer to one number, and answers wrong numbers with an error.
    check(unsafe { get(&mut value, attribute, device) })?;
    Ok(value)
}

fn check(code: c_int) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

impl VirtualMemory {
    fn find() -> Result<Self, cudaError> {
        let find = |name: &CStr| driver_entry_point(name, SINCE);
        // SAFETY: the driver's functions of these names and that version have these signatures: device pointers and handles are
        // 64-bit numbers, results 32-bit ones.
        unsafe {
            Ok(Self {
                reserve: mem::transmute::<*mut c_void, Reserve>(find(c"cuMemAddressReserve")?),
                free: mem::transmute::<*mut c_void, Range>(find(c"cuMemAddressFree")?),
                create: mem::transmute::<*mut c_void, Create>(find(c"cuMemCreate")?),
                release: mem::transmute::<*mut c_void, Release>(find(c"cuMemRelease")?),
                map: mem::transmute::<*mut c_void, Map>(find(c"cuMemMap")?),
                unmap: mem::transmute::<*mut c_void, Range>(find(c"cuMemUnmap")?),
                set_access: mem::transmute::<*mut c_void, SetAccess>(find(c"cuMemSetAccess")?),
            })
        }
    }

    /// Reserves addresses (`cuMemAddressReserve`).
    ///
    /// # Errors
    /// The driver's code, here and in all others.
    pub fn reserve(&self, len: usize) -> Result<usize, i32> {
        let mut address = 0;
        // SAFETY: the driver writes through a pointer to one address; wrong numbers are answered with an error.
        check(unsafe { (self.reserve)(&mut address, len, 0, 0, 0) })?;
        Ok(address as usize)
    }

    /// Gives a reservation back, whole (`cuMemAddressFree`).
    ///
    /// # Safety
    /// Nobody uses its addresses any more.
    #[allow(clippy::missing_errors_doc)]
    pub unsafe fn free(&self, address: usize, len: usize) -> Result<(), i32> {
        // SAFETY: as this function demands.
        check(unsafe { (self.free)(address as u64, len) })
    }

    /// Physical memory of a device (`cuMemCreate`), for remote access over the network too if `rdma` says so; its handle.
    #[allow(clippy::missing_errors_doc)]
    pub fn create(&self, device: c_int, len: usize, rdma: bool) -> Result<u64, i32> {
        let mut properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: cu_mem_location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device),
            ..Default::default()
        };
        properties.allocFlags.gpuDirectRDMACapable = u8::from(rdma);
        let mut handle = 0;
        // SAFETY: the driver reads complete properties and writes through a pointer to one handle.
        check(unsafe { (self.create)(&mut handle, len, &properties, 0) })?;
        Ok(handle)
    }

    /// Gives physical memory back (`cuMemRelease`); what maps it keeps it until it is unmapped.
    ///
    /// # Safety
    /// The handle is alive, and nobody uses it afterwards.
    #[allow(clippy::missing_errors_doc)]
    pub unsafe fn release(&self, handle: u64) -> Result<(), i32> {
        // SAFETY: as this function demands.
        check(unsafe { (self.release)(handle) })
    }

    /// Maps all memory of a handle at an address (`cuMemMap`).
    ///
    /// # Safety
    /// The handle is alive and has `len` bytes.
    #[allow(clippy::missing_errors_doc)]
    pub unsafe fn map(&self, address: usize, len: usize, handle: u64) -> Result<(), i32> {
        // SAFETY: as this function demands; addresses that are not reserved, or not free, are answered with an error.
        check(unsafe { (self.map)(address as u64, len, 0, handle, 0) })
    }

    /// Takes whole mappings away (`cuMemUnmap`), without waiting for anything.
    ///
    /// # Safety
    /// No work touches the memory at these addresses any more.
    #[allow(clippy::missing_errors_doc)]
    pub unsafe fn unmap(&self, address: usize, len: usize) -> Result<(), i32> {
        // SAFETY: as this function demands.
        check(unsafe { (self.unmap)(address as u64, len) })
    }

    /// Lets devices read and write a range of mappings (`cuMemSetAccess`).
    #[allow(clippy::missing_errors_doc)]
    pub fn allow(&self, address: usize, len: usize, devices: &[c_int]) -> Result<(), i32> {
        let access = |device: &c_int| CUmemAccessDesc {
            location: cu_mem_location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, *device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let all: Vec<CUmemAccessDesc> = devices.iter().map(access).collect();
        // SAFETY: the driver reads so many descriptions; addresses that are not mapped are answered with an error.
        check(unsafe { (self.set_access)(address as u64, len, all.as_ptr(), all.len()) })
    }
}
