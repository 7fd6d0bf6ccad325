//! Every exported function that answers a code, called without anything behind its arguments: for the states in which
//! the arguments do not matter.
#![allow(dead_code)]

use super::cuda::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// A function's name, and a call of it.
pub struct Entry {
    pub name: &'static str,
    pub call: Box<dyn Fn() -> u32 + Send + Sync>,
}

/// What answers no code.
pub const NO_CODE: &[&str] = &[
    "cudaGetErrorName",
    "cudaGetErrorString",
    "make_cudaPitchedPtr",
    "make_cudaPos",
    "make_cudaExtent",
];

/// The questions that need no driver and no device.
pub const QUESTIONS: &[&str] = &[
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cudaDriverGetVersion",
    "cudaRuntimeGetVersion",
];

/// All names, from the header and from the table of the simulator.
pub fn names() -> Vec<&'static str> {
    let header = include_str!("../../src/bindings.rs")
        .lines()
        .filter_map(|l| l.strip_prefix("    pub fn "))
        .filter_map(|l| l.split('(').next());
    let table = include_str!("../../src/calls.rs");
    let (_, table) = table.split_once("\ntable! {").expect("there is a table");
    let (table, _) = table.split_once("\n}").expect("it ends");
    let driver = table
        .split_whitespace()
        .filter(|n| n.starts_with("cu") && !n.starts_with("cuda"));
    header.chain(driver).collect()
}

macro_rules! runtime {
    ($($name:ident($($argument:expr),*);)*) => {
        vec![$(Entry {
            name: stringify!($name),
            call: Box::new(|| cuda!($name($($argument),*))),
        }),*]
    };
}

/// The functions are found when the table is made: in some of the states nothing finds them.
macro_rules! driver_functions {
    ($($name:ident as $type:ty, ($($argument:expr),*);)*) => {
        vec![$({
            let at = symbol(stringify!($name), 13000) as usize;
            // SAFETY: the type is the header's for a function of this name.
            let function: $type = unsafe { std::mem::transmute(at) };
            let function = function.expect("the driver has it");
            Entry {
                name: stringify!($name),
                // SAFETY: null pointers are refused.
                call: Box::new(move || unsafe { function($($argument),*) }.0),
            }
        }),*]
    };
}

type DeviceGetAttribute = Option<
    unsafe extern "C" fn(*mut std::ffi::c_int, std::ffi::c_uint, std::ffi::c_int) -> sys::CUresult,
>;
type CtxGetId =
    Option<unsafe extern "C" fn(sys::CUcontext, *mut std::ffi::c_ulonglong) -> sys::CUresult>;
type PointerGetAttribute = Option<unsafe extern "C" fn(*mut c_void, u32, u64) -> sys::CUresult>;

/// The table.
pub fn every() -> Vec<Entry> {
    const KIND: sys::cudaMemcpyKind = H2D;
    let mut all = runtime! {
        cudaDeviceReset();
        cudaDeviceSynchronize();
        cudaDeviceGetStreamPriorityRange(null_mut(), null_mut());
        cudaIpcGetMemHandle(null_mut(), null_mut());
        cudaGetLastError();
        cudaPeekAtLastError();
        cudaGetDeviceCount(null_mut());
        cudaGetDeviceProperties(null_mut(), 0);
        cudaDeviceGetAttribute(null_mut(), sys::cudaDeviceAttr(1), 0);
        cudaDeviceGetDefaultMemPool(null_mut(), 0);
        cudaDeviceSetMemPool(0, null_mut());
        cudaDeviceGetMemPool(null_mut(), 0);
        cudaInitDevice(0, 0, 0);
        cudaSetDevice(0);
        cudaGetDevice(null_mut());
        cudaStreamCreate(null_mut());
        cudaStreamCreateWithFlags(null_mut(), 0);
        cudaStreamCreateWithPriority(null_mut(), 0, 0);
        cudaStreamGetPriority(null_mut(), null_mut());
        cudaStreamGetFlags(null_mut(), null_mut());
        cudaStreamGetId(null_mut(), null_mut());
        cudaStreamGetDevice(null_mut(), null_mut());
        cudaStreamDestroy(null_mut());
        cudaStreamWaitEvent(null_mut(), null_mut(), 0);
        cudaStreamSynchronize(null_mut());
        cudaStreamQuery(null_mut());
        cudaStreamBeginCapture(null_mut(), sys::cudaStreamCaptureMode(0));
        cudaThreadExchangeStreamCaptureMode(null_mut());
        cudaStreamEndCapture(null_mut(), null_mut());
        cudaStreamIsCapturing(null_mut(), null_mut());
        cudaStreamGetCaptureInfo(null_mut(), null_mut(), null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
        cudaUserObjectCreate(null_mut(), null_mut(), None, 0, 0);
        cudaUserObjectRelease(null_mut(), 0);
        cudaGraphRetainUserObject(null_mut(), null_mut(), 0, 0);
        cudaEventCreate(null_mut());
        cudaEventCreateWithFlags(null_mut(), 0);
        cudaEventRecord(null_mut(), null_mut());
        cudaEventQuery(null_mut());
        cudaEventSynchronize(null_mut());
        cudaEventDestroy(null_mut());
        cudaEventElapsedTime(null_mut(), null_mut(), null_mut());
        cudaLaunchHostFunc(null_mut(), None, null_mut());
        cudaMalloc(null_mut(), 16);
        cudaMallocHost(null_mut(), 16);
        cudaFree(null_mut());
        cudaFreeHost(null_mut());
        cudaHostAlloc(null_mut(), 16, 0);
        cudaHostRegister(null_mut(), 16, 0);
        cudaHostUnregister(null_mut());
        cudaHostGetDevicePointer(null_mut(), null_mut(), 0);
        cudaHostGetFlags(null_mut(), null_mut());
        cudaMemGetInfo(null_mut(), null_mut());
        cudaMemcpy(null_mut(), null(), 0, KIND);
        cudaMemcpy2D(null_mut(), 0, null(), 0, 0, 0, KIND);
        cudaMemcpyAsync(null_mut(), null(), 0, KIND, null_mut());
        cudaMemcpyPeerAsync(null_mut(), 0, null(), 0, 0, null_mut());
        cudaMemcpy2DAsync(null_mut(), 0, null(), 0, 0, 0, KIND, null_mut());
        cudaMemset(null_mut(), 0, 0);
        cudaMemsetAsync(null_mut(), 0, 0, null_mut());
        cudaMemset2DAsync(null_mut(), 0, 0, 0, 0, null_mut());
        cudaMallocAsync(null_mut(), 16, null_mut());
        cudaFreeAsync(null_mut(), null_mut());
        cudaMemPoolTrimTo(null_mut(), 0);
        cudaMemPoolSetAttribute(null_mut(), sys::cudaMemPoolAttr(1), null_mut());
        cudaMemPoolGetAttribute(null_mut(), sys::cudaMemPoolAttr(1), null_mut());
        cudaMemPoolSetAccess(null_mut(), null(), 0);
        cudaMemPoolGetAccess(null_mut(), null_mut(), null_mut());
        cudaMemPoolCreate(null_mut(), null());
        cudaMemPoolDestroy(null_mut());
        cudaMallocFromPoolAsync(null_mut(), 16, null_mut(), null_mut());
        cudaPointerGetAttributes(null_mut(), null());
        cudaDeviceCanAccessPeer(null_mut(), 0, 0);
        cudaDeviceEnablePeerAccess(0, 0);
        cudaDeviceDisablePeerAccess(0);
        cudaDriverGetVersion(null_mut());
        cudaRuntimeGetVersion(null_mut());
        cudaGraphInstantiate(null_mut(), null_mut(), 0);
        cudaGraphLaunch(null_mut(), null_mut());
        cudaGraphExecDestroy(null_mut());
        cudaGraphDestroy(null_mut());
        cudaGetDriverEntryPoint(null(), null_mut(), 0, null_mut());
        cudaGetDriverEntryPointByVersion(null(), null_mut(), 12000, 0, null_mut());
    };
    all.extend(driver_functions! {
        cuGetErrorName as sys::PFN_cuGetErrorName_v6000, (sys::CUresult(0), null_mut());
        cuCtxGetCurrent as sys::PFN_cuCtxGetCurrent_v4000, (null_mut());
        cuCtxGetId as CtxGetId, (null_mut(), null_mut());
        cuCtxGetDevice as sys::PFN_cuCtxGetDevice_v2000, (null_mut());
        cuDeviceGetAttribute as DeviceGetAttribute, (null_mut(), 0, 0);
        cuMemGetAddressRange as sys::PFN_cuMemGetAddressRange_v3020, (null_mut(), null_mut(), 0);
        cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (null_mut(), 0, 0, 0, 0);
        cuMemAddressFree as sys::PFN_cuMemAddressFree_v10020, (0, 0);
        cuMemCreate as sys::PFN_cuMemCreate_v10020, (null_mut(), 0, null(), 0);
        cuMemRelease as sys::PFN_cuMemRelease_v10020, (0);
        cuMemMap as sys::PFN_cuMemMap_v10020, (0, 0, 0, 0, 0);
        cuMemUnmap as sys::PFN_cuMemUnmap_v10020, (0, 0);
        cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (0, 0, null(), 0);
        cuMemGetAllocationGranularity as sys::PFN_cuMemGetAllocationGranularity_v10020,
            (null_mut(), null(), sys::CUmemAllocationGranularity_flags(0));
        cuMemRetainAllocationHandle as sys::PFN_cuMemRetainAllocationHandle_v11000, (null_mut(), null_mut());
        cuPointerGetAttribute as PointerGetAttribute, (null_mut(), 2, 0);
        cuMemcpyHtoDAsync as MemcpyHtoDAsync, (0, null(), 16, null_mut());
        cuMemcpyDtoHAsync as MemcpyDtoHAsync, (null_mut(), 0, 16, null_mut());
        cuEventRecord as EventRecord, (null_mut(), null_mut());
        cuStreamIsCapturing as StreamIsCapturing, (null_mut(), null_mut());
    });
    let listed: Vec<&str> = all.iter().map(|e| e.name).collect();
    for name in names() {
        let expected = usize::from(!NO_CODE.contains(&name));
        let found = listed.iter().filter(|n| **n == name).count();
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(listed.len() + NO_CODE.len(), names().len());
    all
}
