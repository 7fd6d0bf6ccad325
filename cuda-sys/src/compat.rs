//! What differs between versions of CUDA, behind functions that are the same on all of them, and two stream handles that
//! bindgen cannot see.
//!
//! What a version has is read from its headers when the crate is built, never concluded from its number.

use crate::{
    CUmemLocation, CUmemLocationType, cudaDriverEntryPointQueryResult, cudaError,
    cudaGetDriverEntryPointFlags, cudaGraph_t, cudaMemAllocationHandleType, cudaMemAllocationType,
    cudaMemLocation, cudaMemLocationType, cudaMemPoolProps, cudaStream_t, cudaStreamCaptureStatus,
    found::Found,
};
use std::{
    ffi::{CStr, c_int, c_uint, c_ulonglong, c_void},
    mem, ptr,
};

/// The legacy default stream, `cudaStreamLegacy` of the header (a cast macro there, which bindgen drops).
#[allow(non_upper_case_globals)]
pub const cudaStreamLegacy: cudaStream_t = ptr::without_provenance_mut(1);

/// The calling thread's default stream, `cudaStreamPerThread` of the header (a cast macro there, which bindgen drops).
#[allow(non_upper_case_globals)]
pub const cudaStreamPerThread: cudaStream_t = ptr::without_provenance_mut(2);

/// Whether the headers declare `cudaStreamGetDevice`; [`stream_get_device`] works either way.
pub const HAS_STREAM_GET_DEVICE: bool = cfg!(cuda_has_stream_get_device);

/// Whether the headers declare `cudaGetDriverEntryPointByVersion`; [`driver_entry_point`] works either way.
pub const HAS_ENTRY_POINT_BY_VERSION: bool = cfg!(cuda_has_entry_point_by_version);

/// Whether a memory pool can be given a maximum size; [`mem_pool_props`] leaves it out where not.
pub const HAS_MEM_POOL_MAX_SIZE: bool = cfg!(cuda_has_mem_pool_max_size);

// `cudaMemLocation` and `CUmemLocation` are two ints, type and id, in every version; newer headers put the id into an anonymous
// union, which changes its Rust name and nothing else.
const _: () =
    assert!(size_of::<cudaMemLocation>() == 8 && mem::offset_of!(cudaMemLocation, type_) == 0);
const _: () =
    assert!(size_of::<CUmemLocation>() == 8 && mem::offset_of!(CUmemLocation, type_) == 0);

/// A place of memory for the runtime's functions: a kind, and the device (or NUMA node) number.
pub const fn mem_location(kind: cudaMemLocationType, id: c_int) -> cudaMemLocation {
    // SAFETY: the struct is the enumeration's 4 bytes and then the 4 bytes of the id (asserted above); any id is valid.
    unsafe { mem::transmute::<(u32, c_int), cudaMemLocation>((kind.0, id)) }
}

/// A place of memory for the driver's functions: a kind, and the device (or NUMA node) number.
pub const fn cu_mem_location(kind: CUmemLocationType, id: c_int) -> CUmemLocation {
    // SAFETY: as in `mem_location`; the driver's struct has the same layout (asserted above).
    unsafe { mem::transmute::<[u32; 2], CUmemLocation>([kind.0, id as u32]) }
}

/// The device (or NUMA node) number of a place, whatever the header calls its field.
pub const fn mem_location_id(location: cudaMemLocation) -> c_int {
    // SAFETY: two ints without padding (asserted above).
    unsafe { mem::transmute::<cudaMemLocation, [c_int; 2]>(location)[1] }
}

/// Properties of a memory pool of pinned memory on one device, with everything else zero, as the runtime demands.
///
/// `max_size` is in bytes, 0 for the system's default; it is dropped where [`HAS_MEM_POOL_MAX_SIZE`] is false.
pub fn mem_pool_props(
    device: c_int,
    handle_types: cudaMemAllocationHandleType,
    max_size: usize,
) -> cudaMemPoolProps {
    let mut props = cudaMemPoolProps {
        allocType: cudaMemAllocationType::cudaMemAllocationTypePinned,
        handleTypes: handle_types,
        location: mem_location(cudaMemLocationType::cudaMemLocationTypeDevice, device),
        ..Default::default()
    };
    set_max_size(&mut props, max_size);
    props
}

#[cfg(cuda_has_mem_pool_max_size)]
fn set_max_size(props: &mut cudaMemPoolProps, max_size: usize) {
    props.maxSize = max_size;
}

#[cfg(not(cuda_has_mem_pool_max_size))]
fn set_max_size(_: &mut cudaMemPoolProps, _: usize) {}

/// The address of a driver function with the signature that it had in version `version` (12000 for 12.0), by
/// `cudaGetDriverEntryPointByVersion`, or by `cudaGetDriverEntryPoint` where the headers have only that: then the signature is
/// that of the headers' version.
///
/// # Errors
///
/// What the runtime returned; `cudaErrorSymbolNotFound` when the driver does not have the function, or only a newer one.
pub fn driver_entry_point(name: &CStr, version: c_uint) -> Result<*mut c_void, cudaError> {
    let mut address: *mut c_void = ptr::null_mut();
    let mut answer = cudaDriverEntryPointQueryResult::cudaDriverEntryPointSymbolNotFound;
    let flags = c_ulonglong::from(cudaGetDriverEntryPointFlags::cudaEnableDefault.0);
    #[cfg(cuda_has_entry_point_by_version)]
    // SAFETY: the name ends with a zero byte, and the call writes through pointers to one pointer and one enumeration.
    let error = unsafe {
        crate::cudaGetDriverEntryPointByVersion(
            name.as_ptr(),
            &mut address,
            version,
            flags,
            &mut answer,
        )
    };
    #[cfg(not(cuda_has_entry_point_by_version))]
    // SAFETY: as above.
    let error = unsafe {
        let _ = version;
        crate::cudaGetDriverEntryPoint(name.as_ptr(), &mut address, flags, &mut answer)
    };
    if error != cudaError::cudaSuccess {
        return Err(error);
    }
    if answer != cudaDriverEntryPointQueryResult::cudaDriverEntryPointSuccess || address.is_null() {
        return Err(cudaError::cudaErrorSymbolNotFound);
    }
    Ok(address)
}

/// The id of a context, which is never given to another one (`cuCtxGetId`); of the current one if the handle is 0.
///
/// Leaves no error behind.
///
/// # Errors
///
/// The driver's code: 201 if there is no such context, 709 if it was destroyed (by `cudaDeviceReset`, for example); 500 with a
/// driver from before 12.0, which cannot tell; 800 where the first question of the process comes from a host function.
pub fn context_id(context: usize) -> Result<u64, i32> {
    type GetId = unsafe extern "C" fn(*mut c_void, *mut c_ulonglong) -> c_int;
    static FUNCTION: Found<GetId> = Found::new();
    let function = FUNCTION.get(|| {
        let address = driver_entry_point(c"cuCtxGetId", 12000)?;
        // SAFETY: the driver's function of that name and version has this signature.
        Ok(unsafe { mem::transmute::<*mut c_void, GetId>(address) })
    });
    let get_id = function.map_err(|e| e.0 as i32)?;
    let mut id = 0;
    // SAFETY: the driver answers a handle that names no context with an error, and writes through a pointer to one number.
    let error = unsafe { get_id(ptr::with_exposed_provenance_mut(context), &mut id) };
    if error == 0 { Ok(id) } else { Err(error) }
}

/// The handle of the context that is current on this thread; `None` if there is none. Leaves no error behind.
pub fn current_context() -> Option<usize> {
    type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
    static FUNCTION: Found<GetCurrent> = Found::new();
    let function = FUNCTION.get(|| {
        let address = driver_entry_point(c"cuCtxGetCurrent", 4000)?;
        // SAFETY: the driver's function of that name and version has this signature.
        Ok(unsafe { mem::transmute::<*mut c_void, GetCurrent>(address) })
    });
    let get_current = function.ok()?;
    let mut context = ptr::null_mut();
    // SAFETY: the function writes through a pointer to one pointer.
    let error = unsafe { get_current(&mut context) };
    (error == 0 && !context.is_null()).then(|| context.expose_provenance())
}

/// The device that a stream belongs to.
///
/// By `cudaStreamGetDevice`; where the headers lack it (before 12.8) by the driver: the context of the stream is made current
/// for one question, and the caller's is current again afterwards.
///
/// # Errors
///
/// What the runtime or the driver returned.
///
/// # Safety
///
/// `stream` is a live stream or one of the default streams: the runtime crashes on a destroyed handle.
#[cfg(cuda_has_stream_get_device)]
pub unsafe fn stream_get_device(stream: cudaStream_t) -> Result<c_int, cudaError> {
    let mut device = 0;
    // SAFETY: the caller vouches for the stream; the call writes one int through a pointer to one int.
    let error = unsafe { crate::cudaStreamGetDevice(stream, &mut device) };
    if error == cudaError::cudaSuccess {
        Ok(device)
    } else {
        Err(error)
    }
}

/// The device that a stream belongs to, asked from the driver, since these headers lack `cudaStreamGetDevice`: the context of
/// the stream is made current for one question, and the caller's is current again afterwards.
///
/// # Errors
///
/// What the runtime or the driver returned.
///
/// # Safety
///
/// `stream` is a live stream or one of the default streams: the runtime crashes on a destroyed handle.
#[cfg(not(cuda_has_stream_get_device))]
pub unsafe fn stream_get_device(stream: cudaStream_t) -> Result<c_int, cudaError> {
    // SAFETY: the caller vouches for the stream.
    unsafe { by_driver::stream_get_device(stream) }
}

/// What a stream is being captured into: the status, and, while that is active, the capture's number and its graph (zero and
/// null otherwise). The graph stays the capture's; all but destroying it and removing nodes is allowed.
///
/// By `cudaStreamGetCaptureInfo`, whose parameters differ between versions.
///
/// # Errors
///
/// What the runtime returned.
///
/// # Safety
///
/// `stream` is a live stream or one of the default streams: the runtime crashes on a destroyed handle.
pub unsafe fn stream_capture_info(
    stream: cudaStream_t,
) -> Result<(cudaStreamCaptureStatus, c_ulonglong, cudaGraph_t), cudaError> {
    let mut status = cudaStreamCaptureStatus::cudaStreamCaptureStatusNone;
    let (mut id, mut graph) = (0, ptr::null_mut());
    // SAFETY: the caller vouches for the stream; each pointer is to one value of its type, or null, which stands for what
    // nobody wants to know.
    let error = unsafe {
        crate::cudaStreamGetCaptureInfo(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            ptr::null_mut(),
            #[cfg(cuda_has_capture_edges)]
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    if error == cudaError::cudaSuccess {
        Ok((status, id, graph))
    } else {
        Err(error)
    }
}

/// The way without `cudaStreamGetDevice`. Compiled everywhere, so that it cannot rot on a version that nobody here has.
#[cfg_attr(cuda_has_stream_get_device, allow(dead_code))]
mod by_driver {
    use super::{c_int, c_void, cudaError, cudaStream_t, driver_entry_point, mem, ptr};
    use crate::CUresult;

    type StreamGetCtx = unsafe extern "C" fn(cudaStream_t, *mut *mut c_void) -> CUresult;
    type CtxPush = unsafe extern "C" fn(*mut c_void) -> CUresult;
    type CtxPop = unsafe extern "C" fn(*mut *mut c_void) -> CUresult;
    type CtxGetDevice = unsafe extern "C" fn(*mut c_int) -> CUresult;

    /// # Safety
    ///
    /// `stream` is live.
    pub unsafe fn stream_get_device(stream: cudaStream_t) -> Result<c_int, cudaError> {
        let get_ctx = driver_entry_point(c"cuStreamGetCtx", 9020)?;
        let push = driver_entry_point(c"cuCtxPushCurrent", 4000)?;
        let pop = driver_entry_point(c"cuCtxPopCurrent", 4000)?;
        let get_device = driver_entry_point(c"cuCtxGetDevice", 2000)?;
        // SAFETY: these are the driver's documented signatures, of the versions asked for, unchanged since; each call writes
        // one value through a pointer to one; the push is undone before returning.
        unsafe {
            let mut context = ptr::null_mut();
            check(mem::transmute::<*mut c_void, StreamGetCtx>(get_ctx)(
                stream,
                &mut context,
            ))?;
            check(mem::transmute::<*mut c_void, CtxPush>(push)(context))?;
            let mut device = 0;
            let answer = check(mem::transmute::<*mut c_void, CtxGetDevice>(get_device)(
                &mut device,
            ));
            let mut popped = ptr::null_mut();
            check(mem::transmute::<*mut c_void, CtxPop>(pop)(&mut popped))?;
            answer.map(|()| device)
        }
    }

    /// The runtime's error numbers are the driver's for everything that these calls return.
    fn check(result: CUresult) -> Result<(), cudaError> {
        if result == CUresult::CUDA_SUCCESS {
            Ok(())
        } else {
            Err(cudaError(result.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_streams_are_the_handles_of_the_header() {
        assert_eq!(cudaStreamLegacy.addr(), 1);
        assert_eq!(cudaStreamPerThread.addr(), 2);
    }

    #[test]
    fn a_location_holds_its_kind_and_number_on_every_version() {
        let place = mem_location(cudaMemLocationType::cudaMemLocationTypeDevice, 7);
        assert_eq!(place.type_, cudaMemLocationType::cudaMemLocationTypeDevice);
        assert_eq!(mem_location_id(place), 7);
        assert_eq!(
            mem_location_id(mem_location(
                cudaMemLocationType::cudaMemLocationTypeInvalid,
                -1
            )),
            -1
        );
        let place = cu_mem_location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 5);
        assert_eq!(place.type_, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE);
        // SAFETY: two ints without padding, asserted beside the helper.
        let ints = unsafe { mem::transmute::<CUmemLocation, [c_int; 2]>(place) };
        assert_eq!(ints[1], 5);
    }

    #[test]
    fn pool_properties_are_zero_but_for_what_was_asked() {
        let none = cudaMemAllocationHandleType::cudaMemHandleTypeNone;
        let props = mem_pool_props(3, none, 0);
        assert_eq!(
            props.allocType,
            cudaMemAllocationType::cudaMemAllocationTypePinned
        );
        assert_eq!(mem_location_id(props.location), 3);
        // SAFETY: the fields fill the struct, without padding.
        let bytes = unsafe {
            mem::transmute::<cudaMemPoolProps, [u8; size_of::<cudaMemPoolProps>()]>(props)
        };
        // allocType 4, handleTypes 4, location 8, and the security attributes pointer, which must be null.
        assert!(bytes[16..].iter().all(|b| *b == 0), "{bytes:?}");
        let limited = mem_pool_props(3, none, 1 << 20);
        // SAFETY: as above.
        let bytes = unsafe {
            mem::transmute::<cudaMemPoolProps, [u8; size_of::<cudaMemPoolProps>()]>(limited)
        };
        assert_eq!(bytes[16..].iter().any(|b| *b != 0), HAS_MEM_POOL_MAX_SIZE);
    }
}
