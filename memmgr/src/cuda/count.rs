//! The CUDA functions that this crate calls, and how often it has called each.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

macro_rules! calls {
    ($($variant:ident => $name:literal),* $(,)?) => {
        /// The CUDA functions that this crate calls.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Call { $($variant),* }
        pub(super) const NAMES: &[&str] = &[$($name),*];
        static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
    };
}

calls! {
    DriverGetVersion => "cudaDriverGetVersion", RuntimeGetVersion => "cudaRuntimeGetVersion",
    GetDeviceCount => "cudaGetDeviceCount", GetDevice => "cudaGetDevice", CtxGetId => "cuCtxGetId", CtxGetCurrent => "cuCtxGetCurrent", SetDevice => "cudaSetDevice",
    DeviceGetAttribute => "cudaDeviceGetAttribute", GetDeviceProperties => "cudaGetDeviceProperties",
    MemGetInfo => "cudaMemGetInfo", DeviceSynchronize => "cudaDeviceSynchronize",
    StreamCreate => "cudaStreamCreateWithPriority", StreamDestroy => "cudaStreamDestroy",
    StreamGetId => "cudaStreamGetId", StreamGetFlags => "cudaStreamGetFlags", StreamGetDevice => "cudaStreamGetDevice",
    StreamQuery => "cudaStreamQuery", StreamSynchronize => "cudaStreamSynchronize",
    StreamIsCapturing => "cudaStreamIsCapturing", StreamGetCaptureInfo => "cudaStreamGetCaptureInfo",
    StreamBeginCapture => "cudaStreamBeginCapture", StreamEndCapture => "cudaStreamEndCapture",
    ThreadExchangeCaptureMode => "cudaThreadExchangeStreamCaptureMode",
    GraphInstantiate => "cudaGraphInstantiate", GraphLaunch => "cudaGraphLaunch",
    GraphExecDestroy => "cudaGraphExecDestroy", GraphDestroy => "cudaGraphDestroy",
    UserObjectCreate => "cudaUserObjectCreate", UserObjectRelease => "cudaUserObjectRelease",
    GraphRetainUserObject => "cudaGraphRetainUserObject",
    StreamWaitEvent => "cudaStreamWaitEvent", LaunchHostFunc => "cudaLaunchHostFunc",
    EventCreate => "cudaEventCreateWithFlags", EventRecord => "cudaEventRecord", EventQuery => "cudaEventQuery",
    EventSynchronize => "cudaEventSynchronize",
    Malloc => "cudaMalloc", Free => "cudaFree", HostAlloc => "cudaHostAlloc", FreeHost => "cudaFreeHost",
    HostRegister => "cudaHostRegister", HostUnregister => "cudaHostUnregister",
    MallocAsync => "cudaMallocAsync", MallocFromPoolAsync => "cudaMallocFromPoolAsync", FreeAsync => "cudaFreeAsync",
    MemPoolCreate => "cudaMemPoolCreate", MemPoolDestroy => "cudaMemPoolDestroy", MemPoolTrimTo => "cudaMemPoolTrimTo",
    MemPoolGetAttribute => "cudaMemPoolGetAttribute", MemPoolSetAttribute => "cudaMemPoolSetAttribute",
    DeviceGetMemPool => "cudaDeviceGetMemPool",
    MemcpyAsync => "cudaMemcpyAsync", Memcpy2DAsync => "cudaMemcpy2DAsync",
    MemsetAsync => "cudaMemsetAsync", Memset2DAsync => "cudaMemset2DAsync",
    DeviceCanAccessPeer => "cudaDeviceCanAccessPeer", DriverDeviceAttribute => "cuDeviceGetAttribute", MemAddressReserve => "cuMemAddressReserve", MemAddressFree => "cuMemAddressFree", MemCreate => "cuMemCreate",
    MemRelease => "cuMemRelease", MemMap => "cuMemMap", MemUnmap => "cuMemUnmap", MemSetAccess => "cuMemSetAccess",
}

crate::sync::thread_local! {
    static MINE: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count(call: Call) {
    COUNTS[call as usize].fetch_add(1, Ordering::Relaxed);
    // A thread whose locals are gone already (a guard in another thread-local) is simply not counted.
    let _ = MINE.try_with(|mine| mine.set(mine.get().wrapping_add(1)));
}

/// How often each CUDA function was called through this crate, in this process; functions never called are left out.
pub fn cuda_calls() -> Vec<(&'static str, u64)> {
    let mut calls = Vec::with_capacity(NAMES.len());
    let counts = NAMES.iter().zip(&COUNTS);
    calls.extend(
        counts
            .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0),
    );
    calls
}

/// How many CUDA calls this crate has made on the calling thread.
pub fn cuda_calls_on_this_thread() -> u64 {
    MINE.try_with(Cell::get).unwrap_or(0)
}
