//! Every exported function, given what it must refuse: the answer for each, and never a crash. A row names the function,
//! what is wrong with the call, and the code.
//!
//! The codes are what an H200 answered to the same calls, except where a row says otherwise. `OWN`: the real runtime
//! crashes or hangs, or the handle was destroyed, which it may take; also `cuCtxGetId` and `cuDeviceGetAttribute`, which were not measured.
//! `STRICTER`: it answers 0 (docs/simulator.md lists these).

mod common;
use common::machine;
mod cuda;
use cuda::*;
#[path = "common/every.rs"]
mod every;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const MAX: usize = usize::MAX;
const POOL_LIMIT: sys::cudaMemPoolAttr = sys::cudaMemPoolAttr::cudaMemPoolAttrReleaseThreshold;
const NO_KIND: sys::cudaMemcpyKind = sys::cudaMemcpyKind(77);
const D2D_OR_HOST: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDefault;

/// What the calls are given.
struct Given {
    s: sys::cudaStream_t,
    dead_s: sys::cudaStream_t,
    e: sys::cudaEvent_t,
    dead_e: sys::cudaEvent_t,
    /// Recorded, but measures no time.
    timeless: sys::cudaEvent_t,
    pool: sys::cudaMemPool_t,
    dead_pool: sys::cudaMemPool_t,
    graph: sys::cudaGraph_t,
    dead_graph: sys::cudaGraph_t,
    exec: sys::cudaGraphExec_t,
    dead_exec: sys::cudaGraphExec_t,
    /// 1 MiB each.
    d: *mut c_void,
    h: *mut c_void,
    q: *mut c_void,
    freed: *mut c_void,
    /// 4 KiB that no CUDA function made.
    foreign: *mut c_void,
    /// A chunk that is mapped, and one that is reserved alone.
    mapped: u64,
    hole: u64,
    physical: u64,
    dead_physical: u64,
}

/// An address that is neither memory nor handle.
fn nothing<T>() -> *mut T {
    0x66 as *mut T
}

fn device_pool() -> sys::cudaMemPoolProps {
    let mut props = sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        ..Default::default()
    };
    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeDevice;
    props
}

fn given(foreign: &mut Vec<u8>) -> Given {
    let (s, dead_s, e, dead_e, timeless) = (stream(), stream(), event(), event(), event());
    assert_eq!(cuda!(cudaStreamDestroy(dead_s)), 0);
    assert_eq!(cuda!(cudaEventDestroy(dead_e)), 0);
    assert_eq!(cuda!(cudaEventRecord(timeless, s)), 0);
    let props = device_pool();
    let (mut pool, mut dead_pool) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 0);
    assert_eq!(cuda!(cudaMemPoolCreate(&mut dead_pool, &props)), 0);
    assert_eq!(cuda!(cudaMemPoolDestroy(dead_pool)), 0);
    let capture = || {
        let mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        assert_eq!(cuda!(cudaStreamBeginCapture(s, mode)), 0);
        assert_eq!(cuda!(cudaStreamEndCapture(s, &mut graph)), 0);
        assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
        (graph, exec)
    };
    let (graph, exec) = capture();
    let (dead_graph, dead_exec) = capture();
    assert_eq!(cuda!(cudaGraphExecDestroy(dead_exec)), 0);
    assert_eq!(cuda!(cudaGraphDestroy(dead_graph)), 0);
    let (mut h, mut q) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaHostAlloc(&mut h, MIB, 0)), 0);
    assert_eq!(cuda!(cudaMallocAsync(&mut q, MIB, s)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    let (d, freed) = (malloc(MIB), malloc(4 * MIB));
    assert_eq!(cuda!(cudaFree(freed)), 0);
    *foreign = vec![0; 4096];
    let (mapped, hole, physical, dead_physical) = (
        reserve(2 * CHUNK),
        reserve(CHUNK),
        create(CHUNK),
        create(CHUNK),
    );
    assert_eq!(map(mapped, CHUNK, 0, physical), 0);
    assert_eq!(access(mapped, CHUNK, 3), 0);
    assert_eq!(release(dead_physical), 0);
    Given {
        s,
        dead_s,
        e,
        dead_e,
        timeless,
        pool,
        dead_pool,
        graph,
        dead_graph,
        exec,
        dead_exec,
        d,
        h,
        q,
        freed,
        foreign: foreign.as_mut_ptr().cast(),
        mapped,
        hole,
        physical,
        dead_physical,
    }
}

/// A call, and the code that it must answer.
struct Row {
    name: &'static str,
    call: &'static str,
    answer: u32,
    code: u32,
    /// `OWN`, `STRICTER`, or nothing: measured.
    from: &'static str,
}

macro_rules! rows {
    ($($($from:ident)? $code:literal: $name:ident($($argument:expr),* $(,)?);)*) => {
        vec![$(Row {
            name: stringify!($name),
            call: stringify!(($($argument),*)),
            answer: cuda!($name($($argument),*)),
            code: $code,
            from: concat!($(stringify!($from))?),
        }),*]
    };
}

macro_rules! driver_rows {
    ($($($from:ident)? $code:literal: $name:ident as $type:ty, ($($argument:expr),* $(,)?);)*) => {
        vec![$({
            let at = symbol(stringify!($name), 13000);
            // SAFETY: the type is the header's for a function of this name.
            let function: $type = unsafe { std::mem::transmute(at) };
            let function = function.expect("the driver has it");
            Row {
                name: stringify!($name),
                call: stringify!(($($argument),*)),
                // SAFETY: pointers are valid, or the call has to refuse them.
                answer: unsafe { function($($argument),*) }.0,
                code: $code,
                from: concat!($(stringify!($from))?),
            }
        }),*]
    };
}

/// Rows are made in order, each by calling the function.
fn streams_and_events(g: &Given) -> Vec<Row> {
    let mut n = 0;
    let mut word = 0u32;
    let mut id = 0u64;
    let mut ms = 0f32;
    let mut status = sys::cudaStreamCaptureStatus(0);
    let mut mode = sys::cudaStreamCaptureMode(3);
    let mut s = null_mut();
    let mut e = null_mut();
    extern "C" fn function(_: *mut c_void) {}
    rows! {
        1: cudaStreamCreate(null_mut());
        1: cudaStreamCreateWithFlags(null_mut(), 0);
        1: cudaStreamCreateWithFlags(&mut s, 2);
        1: cudaStreamCreateWithFlags(&mut s, u32::MAX);
        1: cudaStreamCreateWithPriority(null_mut(), 0, 0);
        1: cudaStreamCreateWithPriority(&mut s, 8, 0);
        400: cudaStreamDestroy(null_mut());
        400: cudaStreamDestroy(1 as sys::cudaStream_t);
        400: cudaStreamDestroy(2 as sys::cudaStream_t);
        OWN 400: cudaStreamDestroy(g.dead_s);
        OWN 400: cudaStreamDestroy(nothing());
        709: cudaStreamDestroy(g.e.cast());
        1: cudaStreamGetPriority(g.s, null_mut());
        OWN 400: cudaStreamGetPriority(g.dead_s, &mut n);
        1: cudaStreamGetFlags(g.s, null_mut());
        OWN 400: cudaStreamGetFlags(g.dead_s, &mut word);
        1: cudaStreamGetId(g.s, null_mut());
        OWN 400: cudaStreamGetId(g.dead_s, &mut id);
        OWN 1: cudaStreamGetDevice(g.s, null_mut());
        OWN 400: cudaStreamGetDevice(g.dead_s, &mut n);
        400: cudaStreamWaitEvent(g.s, null_mut(), 0);
        OWN 400: cudaStreamWaitEvent(g.s, g.dead_e, 0);
        OWN 400: cudaStreamWaitEvent(g.dead_s, g.e, 0);
        709: cudaStreamWaitEvent(g.s, g.s.cast(), 0);
        1: cudaStreamWaitEvent(g.s, g.e, 2);
        OWN 400: cudaStreamSynchronize(g.dead_s);
        OWN 400: cudaStreamSynchronize(nothing());
        OWN 400: cudaStreamQuery(g.dead_s);
        400: cudaStreamQuery(usize::MAX as sys::cudaStream_t);
        1: cudaStreamBeginCapture(g.s, sys::cudaStreamCaptureMode(3));
        900: cudaStreamBeginCapture(null_mut(), sys::cudaStreamCaptureMode(0));
        OWN 400: cudaStreamBeginCapture(g.dead_s, sys::cudaStreamCaptureMode(0));
        OWN 1: cudaThreadExchangeStreamCaptureMode(null_mut());
        0: cudaThreadExchangeStreamCaptureMode(&mut mode);
        401: cudaStreamEndCapture(g.s, null_mut());
        401: cudaStreamEndCapture(g.s, (&raw mut s).cast());
        OWN 400: cudaStreamEndCapture(g.dead_s, (&raw mut s).cast());
        1: cudaStreamIsCapturing(g.s, null_mut());
        OWN 400: cudaStreamIsCapturing(g.dead_s, &mut status);
        1: cudaLaunchHostFunc(g.s, None, null_mut());
        OWN 400: cudaLaunchHostFunc(g.dead_s, Some(function), null_mut());
        1: cudaEventCreate(null_mut());
        1: cudaEventCreateWithFlags(null_mut(), 0);
        1: cudaEventCreateWithFlags(&mut e, 8);
        1: cudaEventCreateWithFlags(&mut e, sys::cudaEventInterprocess);
        400: cudaEventRecord(null_mut(), g.s);
        OWN 400: cudaEventRecord(g.dead_e, g.s);
        OWN 400: cudaEventRecord(nothing(), g.s);
        OWN 400: cudaEventRecord(g.e, g.dead_s);
        400: cudaEventQuery(null_mut());
        OWN 400: cudaEventQuery(g.dead_e);
        709: cudaEventQuery(g.s.cast());
        400: cudaEventSynchronize(null_mut());
        OWN 400: cudaEventSynchronize(g.dead_e);
        400: cudaEventDestroy(null_mut());
        OWN 400: cudaEventDestroy(g.dead_e);
        1: cudaEventElapsedTime(null_mut(), g.timeless, g.timeless);
        400: cudaEventElapsedTime(&mut ms, g.timeless, g.timeless);
        400: cudaEventElapsedTime(&mut ms, null_mut(), g.e);
        400: cudaEventElapsedTime(&mut ms, g.e, g.dead_e);
        400: cudaEventElapsedTime(&mut ms, g.e, g.e);
    }
}

fn devices(g: &Given) -> Vec<Row> {
    let mut n = 0;
    let mut pool = null_mut();
    let mut properties = sys::cudaDeviceProp::default();
    let attribute = sys::cudaDeviceAttr(1);
    let mut at = null_mut();
    let name = c"cuMemCreate".as_ptr();
    rows! {
        1: cudaGetDeviceCount(null_mut());
        1: cudaGetDeviceProperties(null_mut(), 0);
        101: cudaGetDeviceProperties(&mut properties, 7);
        101: cudaGetDeviceProperties(&mut properties, -1);
        1: cudaDeviceGetAttribute(null_mut(), attribute, 0);
        1: cudaDeviceGetAttribute(&mut n, sys::cudaDeviceAttr(0), 0);
        1: cudaDeviceGetAttribute(&mut n, sys::cudaDeviceAttr(u32::MAX), 0);
        101: cudaDeviceGetAttribute(&mut n, attribute, 7);
        101: cudaDeviceGetAttribute(&mut n, attribute, i32::MIN);
        1: cudaDeviceGetDefaultMemPool(null_mut(), 0);
        101: cudaDeviceGetDefaultMemPool(&mut pool, 7);
        1: cudaDeviceGetMemPool(null_mut(), 0);
        1: cudaDeviceGetMemPool(&mut pool, -1);
        1: cudaDeviceSetMemPool(0, null_mut());
        OWN 1: cudaDeviceSetMemPool(0, g.dead_pool);
        1: cudaDeviceSetMemPool(7, g.pool);
        101: cudaInitDevice(7, 0, 0);
        0: cudaInitDevice(0, 0, 2);
        101: cudaSetDevice(7);
        101: cudaSetDevice(-1);
        101: cudaSetDevice(i32::MIN);
        1: cudaGetDevice(null_mut());
        1: cudaDeviceCanAccessPeer(null_mut(), 0, 0);
        101: cudaDeviceCanAccessPeer(&mut n, 0, 7);
        101: cudaDeviceCanAccessPeer(&mut n, -1, 0);
        217: cudaDeviceEnablePeerAccess(0, 0);
        101: cudaDeviceEnablePeerAccess(7, 0);
        1: cudaDeviceEnablePeerAccess(1, 1);
        705: cudaDeviceDisablePeerAccess(1);
        101: cudaDeviceDisablePeerAccess(-1);
        1: cudaDriverGetVersion(null_mut());
        1: cudaRuntimeGetVersion(null_mut());
        OWN 1: cudaGetDriverEntryPoint(null(), &mut at, 0, null_mut());
        OWN 1: cudaGetDriverEntryPoint(name, null_mut(), 0, null_mut());
        0: cudaGetDriverEntryPoint(c"cuNothing".as_ptr(), &mut at, 0, null_mut());
        0: cudaGetDriverEntryPoint(c"".as_ptr(), &mut at, 0, null_mut());
        0: cudaGetDriverEntryPoint(c"\xff\xfe".as_ptr(), &mut at, 0, null_mut());
        OWN 1: cudaGetDriverEntryPointByVersion(null(), &mut at, 13000, 0, null_mut());
        OWN 1: cudaGetDriverEntryPointByVersion(name, null_mut(), 13000, 0, null_mut());
        0: cudaGetDriverEntryPointByVersion(name, &mut at, 1, 0, null_mut());
    }
}

fn allocations(g: &Given) -> Vec<Row> {
    let mut p = null_mut();
    let mut word = 0u32;
    let mut handle = sys::cudaIpcMemHandle_t::default();
    let (mut free, mut total) = (0, 0);
    let inside = |p: *mut c_void| p.wrapping_byte_add(512);
    let before_the_end = (MAX - 4095) as *mut c_void;
    rows! {
        1: cudaMalloc(null_mut(), 16);
        2: cudaMalloc(&mut p, MAX);
        2: cudaMalloc(&mut p, MAX - 511);
        2: cudaMalloc(&mut p, 1 << 63);
        1: cudaMallocHost(null_mut(), 16);
        2: cudaMallocHost(&mut p, MAX);
        1: cudaHostAlloc(null_mut(), 16, 0);
        2: cudaHostAlloc(&mut p, MAX, 0);
        2: cudaHostAlloc(&mut p, MAX - 8191, 0);
        2: cudaHostAlloc(&mut p, 1 << 60, 0);
        1: cudaHostAlloc(&mut p, 16, 8);
        1: cudaFree(nothing());
        1: cudaFree(inside(g.d));
        1: cudaFree(inside(g.q));
        1: cudaFree(g.h);
        1: cudaFree(g.freed);
        1: cudaFree(g.foreign);
        1: cudaFree(g.mapped as *mut c_void);
        1: cudaFree(MAX as *mut c_void);
        1: cudaFreeHost(g.d);
        1: cudaFreeHost(g.q);
        1: cudaFreeHost(inside(g.h));
        1: cudaFreeHost(g.foreign);
        1: cudaFreeHost(nothing());
        1: cudaHostRegister(null_mut(), 16, 0);
        1: cudaHostRegister(g.foreign, 0, 0);
        1: cudaHostRegister(g.foreign, 16, u32::MAX);
        1: cudaHostRegister(g.foreign, MAX, 0);
        1: cudaHostRegister(before_the_end, 8192, 0);
        1: cudaHostRegister(g.d, 16, 0);
        1: cudaHostRegister(g.mapped as *mut c_void, 16, 0);
        1: cudaHostRegister(inside(g.h), 16, 0);
        1: cudaHostRegister(g.h.wrapping_byte_sub(16), 32, 0);
        1: cudaHostUnregister(g.h);
        713: cudaHostUnregister(g.foreign);
        713: cudaHostUnregister(nothing());
        1: cudaHostGetDevicePointer(null_mut(), g.h, 0);
        1: cudaHostGetDevicePointer(&mut p, g.h, 1);
        1: cudaHostGetDevicePointer(&mut p, g.foreign, 0);
        1: cudaHostGetDevicePointer(&mut p, null_mut(), 0);
        1: cudaHostGetFlags(null_mut(), g.h);
        1: cudaHostGetFlags(&mut word, g.d);
        1: cudaHostGetFlags(&mut word, null_mut());
        0: cudaMemGetInfo(null_mut(), &mut total);
        0: cudaMemGetInfo(&mut free, null_mut());
        1: cudaPointerGetAttributes(null_mut(), g.d);
        OWN 1: cudaIpcGetMemHandle(null_mut(), g.d);
        1: cudaIpcGetMemHandle(&mut handle, g.freed);
        1: cudaIpcGetMemHandle(&mut handle, null_mut());
        1: cudaIpcGetMemHandle(&mut handle, g.foreign);
    }
}

fn copies(g: &Given) -> Vec<Row> {
    let end = |p: *mut c_void| p.wrapping_byte_add(MIB);
    let s = g.s;
    rows! {
        21: cudaMemcpy(g.d, g.h, 16, NO_KIND);
        1: cudaMemcpy(g.d, g.h, MIB + 1, H2D);
        1: cudaMemcpy(g.d, g.d, MAX, D2D);
        1: cudaMemcpy(g.d, null(), 16, H2D);
        1: cudaMemcpy(null_mut(), g.d, 16, D2H);
        1: cudaMemcpy(g.foreign, g.d, 16, H2D);
        STRICTER 1: cudaMemcpy(g.foreign, g.freed, 16, D2H);
        STRICTER 1: cudaMemcpy(g.freed, g.foreign, 16, H2D);
        STRICTER 1: cudaMemcpy(g.freed, g.foreign, 16, D2D_OR_HOST);
        STRICTER 1: cudaMemcpy(g.foreign, g.freed, 16, D2D_OR_HOST);
        1: cudaMemcpy(g.hole as *mut c_void, g.d, 16, D2D);
        21: cudaMemcpyAsync(g.d, g.h, 16, NO_KIND, s);
        OWN 400: cudaMemcpyAsync(g.d, g.h, 16, H2D, g.dead_s);
        OWN 400: cudaMemcpyAsync(g.d, g.h, 16, H2D, nothing());
        1: cudaMemcpyAsync(end(g.d), g.h, 1, H2D, s);
        1: cudaMemcpyAsync(g.h, g.q, MIB + 1, D2H, s);
        1: cudaMemcpyAsync(g.h, g.q, MAX, D2H, s);
        1: cudaMemcpyAsync(null_mut(), null(), 16, D2D, s);
        1: cudaMemcpyAsync(g.d, MAX as *const c_void, 16, D2D, s);
        21: cudaMemcpy2D(g.d, 16, g.h, 16, 16, 2, NO_KIND);
        12: cudaMemcpy2D(g.d, 15, g.h, 16, 16, 2, H2D);
        12: cudaMemcpy2D(g.d, 16, g.h, 15, 16, 2, H2D);
        STRICTER 1: cudaMemcpy2D(g.d, MAX, g.d, MAX, 16, 3, D2D);
        1: cudaMemcpy2D(g.d, 1 << 40, g.d, 16, 16, 2, D2D);
        1: cudaMemcpy2D(null_mut(), 16, g.d, 16, 16, 2, D2H);
        OWN 400: cudaMemcpy2DAsync(g.d, 16, g.h, 16, 16, 2, H2D, g.dead_s);
        12: cudaMemcpy2DAsync(g.d, 0, g.h, 16, 16, 2, H2D, s);
        OWN 1: cudaMemcpy2DAsync(g.d, MAX, g.d, MAX, MAX, MAX, D2D, s);
        1: cudaMemcpy2DAsync(g.d, MIB, g.d, MIB, 16, 2, D2D, s);
        101: cudaMemcpyPeerAsync(g.d, 7, g.d, 0, 16, s);
        101: cudaMemcpyPeerAsync(g.d, 0, g.d, -1, 16, s);
        0: cudaMemcpyPeerAsync(g.d, 1, g.d, 0, 16, s);
        1: cudaMemcpyPeerAsync(g.d, 0, g.foreign, 0, 16, s);
        1: cudaMemcpyPeerAsync(g.d, 0, g.d, 0, MAX, s);
        1: cudaMemcpyPeerAsync(null_mut(), 0, g.d, 0, 16, s);
        OWN 400: cudaMemcpyPeerAsync(g.d, 0, g.d, 0, 16, g.dead_s);
        1: cudaMemset(null_mut(), 0, 16);
        1: cudaMemset(g.d, 0, MIB + 1);
        STRICTER 1: cudaMemset(g.d, 0, MAX);
        STRICTER 1: cudaMemset(g.freed, 0, 16);
        1: cudaMemset(g.foreign, 0, 16);
        1: cudaMemset(g.hole as *mut c_void, 0, 16);
        1: cudaMemset(g.mapped as *mut c_void, 0, CHUNK + 1);
        OWN 400: cudaMemsetAsync(g.d, 0, 16, g.dead_s);
        1: cudaMemsetAsync(g.q, 0, MIB + 1, s);
        STRICTER 1: cudaMemsetAsync(g.q, 0, MAX, s);
        1: cudaMemsetAsync(null_mut(), 0, 1, s);
        1: cudaMemsetAsync(nothing(), 0, 1, s);
        1: cudaMemset2DAsync(g.d, 15, 0, 16, 2, s);
        0: cudaMemset2DAsync(g.d, 15, 0, 16, 1, s);
        STRICTER 1: cudaMemset2DAsync(g.d, MAX, 0, 16, 3, s);
        STRICTER 1: cudaMemset2DAsync(g.d, MAX, 0, MAX, MAX, s);
        1: cudaMemset2DAsync(null_mut(), 16, 0, 16, 2, s);
        OWN 400: cudaMemset2DAsync(g.d, 16, 0, 16, 2, g.dead_s);
    }
}

fn pools(g: &Given) -> Vec<Row> {
    let (mut p, mut pool) = (null_mut(), null_mut());
    let mut n = 1u64;
    let value: *mut c_void = (&raw mut n).cast();
    let mut flags = sys::cudaMemAccessFlags(0);
    let mut place = device_pool().location;
    let mut far = device_pool().location;
    far.id = 7;
    let far_entry = sys::cudaMemAccessDesc {
        location: far,
        flags: sys::cudaMemAccessFlags(3),
    };
    let own_entry = sys::cudaMemAccessDesc {
        location: place,
        flags: sys::cudaMemAccessFlags(0),
    };
    let mut dirty = device_pool();
    dirty.reserved[5] = 1;
    let mut elsewhere = device_pool();
    elsewhere.location.id = 77;
    let unset = sys::cudaMemPoolProps::default();
    let mut default = null_mut();
    assert_eq!(cuda!(cudaDeviceGetDefaultMemPool(&mut default, 0)), 0);
    let s = g.s;
    rows! {
        1: cudaMallocAsync(null_mut(), 16, s);
        OWN 400: cudaMallocAsync(&mut p, 16, g.dead_s);
        2: cudaMallocAsync(&mut p, MAX, s);
        2: cudaMallocAsync(&mut p, 1 << 50, s);
        1: cudaMallocFromPoolAsync(null_mut(), 16, g.pool, s);
        1: cudaMallocFromPoolAsync(&mut p, 16, null_mut(), s);
        1: cudaMallocFromPoolAsync(&mut p, 16, g.dead_pool, s);
        1: cudaMallocFromPoolAsync(&mut p, 16, g.s.cast(), s);
        OWN 400: cudaMallocFromPoolAsync(&mut p, 16, g.pool, g.dead_s);
        2: cudaMallocFromPoolAsync(&mut p, MAX - 511, g.pool, s);
        OWN 400: cudaFreeAsync(g.q, g.dead_s);
        1: cudaFreeAsync(g.q.wrapping_byte_add(512), s);
        1: cudaFreeAsync(g.freed, s);
        1: cudaFreeAsync(g.h, s);
        1: cudaFreeAsync(g.foreign, s);
        1: cudaFreeAsync(nothing(), s);
        1: cudaFreeAsync(g.mapped as *mut c_void, s);
        1: cudaMemPoolTrimTo(null_mut(), 0);
        1: cudaMemPoolTrimTo(g.dead_pool, MAX);
        0: cudaMemPoolTrimTo(g.pool, MAX);
        1: cudaMemPoolSetAttribute(null_mut(), POOL_LIMIT, value);
        1: cudaMemPoolSetAttribute(g.dead_pool, POOL_LIMIT, value);
        OWN 1: cudaMemPoolSetAttribute(g.pool, POOL_LIMIT, null_mut());
        1: cudaMemPoolSetAttribute(g.pool, sys::cudaMemPoolAttr(99), value);
        1: cudaMemPoolSetAttribute(g.pool, sys::cudaMemPoolAttr::cudaMemPoolAttrUsedMemHigh, value);
        1: cudaMemPoolSetAttribute(g.pool, sys::cudaMemPoolAttr::cudaMemPoolAttrUsedMemCurrent, value);
        1: cudaMemPoolGetAttribute(null_mut(), POOL_LIMIT, value);
        1: cudaMemPoolGetAttribute(g.dead_pool, POOL_LIMIT, value);
        1: cudaMemPoolGetAttribute(g.pool, POOL_LIMIT, null_mut());
        1: cudaMemPoolGetAttribute(g.pool, sys::cudaMemPoolAttr(0), value);
        1: cudaMemPoolSetAccess(null_mut(), &own_entry, 1);
        OWN 1: cudaMemPoolSetAccess(g.dead_pool, &own_entry, 1);
        OWN 1: cudaMemPoolSetAccess(g.pool, null(), 1);
        101: cudaMemPoolSetAccess(g.pool, &own_entry, 1);
        101: cudaMemPoolSetAccess(g.pool, &far_entry, 1);
        2: cudaMemPoolSetAccess(g.pool, &own_entry, MAX);
        OWN 1: cudaMemPoolGetAccess(null_mut(), g.pool, &mut place);
        1: cudaMemPoolGetAccess(&mut flags, null_mut(), &mut place);
        OWN 1: cudaMemPoolGetAccess(&mut flags, g.dead_pool, &mut place);
        1: cudaMemPoolGetAccess(&mut flags, g.pool, null_mut());
        1: cudaMemPoolGetAccess(&mut flags, g.pool, &mut far);
        1: cudaMemPoolCreate(null_mut(), &dirty);
        1: cudaMemPoolCreate(&mut pool, null());
        1: cudaMemPoolCreate(&mut pool, &dirty);
        1: cudaMemPoolCreate(&mut pool, &elsewhere);
        1: cudaMemPoolCreate(&mut pool, &unset);
        1: cudaMemPoolDestroy(null_mut());
        1: cudaMemPoolDestroy(g.dead_pool);
        1: cudaMemPoolDestroy(default);
        OWN 1: cudaMemPoolDestroy(nothing());
    }
}

fn graphs(g: &Given) -> Vec<Row> {
    extern "C" fn function(_: *mut c_void) {}
    let (mut other, mut object) = (null_mut(), null_mut());
    rows! {
        1: cudaGraphInstantiate(null_mut(), g.graph, 0);
        1: cudaGraphInstantiate(&mut other, null_mut(), 0);
        1: cudaGraphInstantiate(&mut other, g.dead_graph, 0);
        1: cudaGraphInstantiate(&mut other, g.exec.cast(), 0);
        1: cudaGraphInstantiate(&mut other, g.graph, 1 << 20);
        1: cudaGraphLaunch(null_mut(), g.s);
        1: cudaGraphLaunch(g.dead_exec, g.s);
        1: cudaGraphLaunch(g.graph.cast(), g.s);
        OWN 400: cudaGraphLaunch(g.exec, g.dead_s);
        1: cudaGraphExecDestroy(null_mut());
        1: cudaGraphExecDestroy(g.dead_exec);
        OWN 1: cudaGraphExecDestroy(nothing());
        1: cudaGraphDestroy(null_mut());
        1: cudaGraphDestroy(g.dead_graph);
        OWN 1: cudaGraphDestroy(nothing());
        OWN 1: cudaStreamGetCaptureInfo(g.s, null_mut(), null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
        OWN 1: cudaUserObjectCreate(null_mut(), null_mut(), Some(function), 1, 1);
        OWN 1: cudaUserObjectCreate(&mut object, null_mut(), None, 1, 1);
        OWN 1: cudaUserObjectCreate(&mut object, null_mut(), Some(function), 0, 1);
        OWN 1: cudaUserObjectCreate(&mut object, null_mut(), Some(function), 1, 0);
        OWN 1: cudaUserObjectRelease(null_mut(), 1);
        OWN 1: cudaGraphRetainUserObject(g.graph, null_mut(), 1, 0);
        OWN 1: cudaGraphRetainUserObject(null_mut(), null_mut(), 1, 0);
    }
}

type CtxGetId =
    Option<unsafe extern "C" fn(sys::CUcontext, *mut std::ffi::c_ulonglong) -> sys::CUresult>;
type DeviceGetAttribute = Option<unsafe extern "C" fn(*mut i32, u32, i32) -> sys::CUresult>;
type PointerGetAttribute = Option<unsafe extern "C" fn(*mut c_void, u32, u64) -> sys::CUresult>;

fn driver(g: &Given) -> Vec<Row> {
    let mut status = sys::cudaStreamCaptureStatus(0);
    let (mut at, mut handle, mut id) = (0, 0, 0);
    let (mut base, mut size) = (0, 0);
    let mut name = null();
    let mut word = 0u64;
    let data: *mut c_void = (&raw mut word).cast();
    let here = on_device_0();
    let mut elsewhere = on_device_0();
    elsewhere.location.id = 7;
    let nowhere = sys::CUmemAllocationProp::default();
    let may = |id, flags| sys::CUmemAccessDesc {
        location: sys::CUmemLocation { id, ..location() },
        flags: sys::CUmemAccess_flags(flags),
    };
    let (read_write, strange, far) = (may(0, 3), may(0, 9), may(7, 3));
    let chunk = CHUNK as u64;
    let mut attribute = 0;
    let recommended = sys::CUmemAllocationGranularity_flags(1);
    let no_option = sys::CUmemAllocationGranularity_flags(9);
    driver_rows! {
        OWN 1: cuGetErrorName as sys::PFN_cuGetErrorName_v6000, (sys::CUresult(0), null_mut());
        1: cuGetErrorName as sys::PFN_cuGetErrorName_v6000, (sys::CUresult(123_456), &mut name);
        1: cuCtxGetCurrent as sys::PFN_cuCtxGetCurrent_v4000, (null_mut());
        OWN 1: cuCtxGetId as CtxGetId, (null_mut(), null_mut());
        OWN 201: cuCtxGetId as CtxGetId, (g.foreign.cast(), &mut id);
        1: cuCtxGetDevice as sys::PFN_cuCtxGetDevice_v2000, (null_mut());
        OWN 1: cuDeviceGetAttribute as DeviceGetAttribute, (null_mut(), 1, 0);
        OWN 1: cuDeviceGetAttribute as DeviceGetAttribute, (&mut attribute, 123_456, 0);
        OWN 101: cuDeviceGetAttribute as DeviceGetAttribute, (&mut attribute, 1, 7);
        500: cuMemGetAddressRange as sys::PFN_cuMemGetAddressRange_v3020, (&mut base, &mut size, 0);
        500: cuMemGetAddressRange as sys::PFN_cuMemGetAddressRange_v3020, (&mut base, &mut size, g.foreign as u64);
        500: cuMemGetAddressRange as sys::PFN_cuMemGetAddressRange_v3020, (&mut base, &mut size, u64::MAX);
        1: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (null_mut(), CHUNK, 0, 0, 0);
        1: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (&mut at, 0, 0, 0, 0);
        1: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (&mut at, CHUNK - 1, 0, 0, 0);
        1: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (&mut at, MAX, 0, 0, 0);
        1: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (&mut at, CHUNK, 3, 0, 0);
        1: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (&mut at, CHUNK, 1 << 63, 0, 0);
        2: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (&mut at, MAX - (CHUNK - 1), 0, 0, 0);
        1: cuMemAddressReserve as sys::PFN_cuMemAddressReserve_v10020, (&mut at, CHUNK, 0, 0, 1);
        1: cuMemAddressFree as sys::PFN_cuMemAddressFree_v10020, (0, CHUNK);
        1: cuMemAddressFree as sys::PFN_cuMemAddressFree_v10020, (g.hole, CHUNK - 1);
        1: cuMemAddressFree as sys::PFN_cuMemAddressFree_v10020, (g.hole, MAX);
        1: cuMemAddressFree as sys::PFN_cuMemAddressFree_v10020, (g.mapped, 2 * CHUNK);
        1: cuMemCreate as sys::PFN_cuMemCreate_v10020, (null_mut(), CHUNK, &here, 0);
        1: cuMemCreate as sys::PFN_cuMemCreate_v10020, (&mut handle, CHUNK, null(), 0);
        1: cuMemCreate as sys::PFN_cuMemCreate_v10020, (&mut handle, 0, &here, 0);
        1: cuMemCreate as sys::PFN_cuMemCreate_v10020, (&mut handle, MAX, &here, 0);
        2: cuMemCreate as sys::PFN_cuMemCreate_v10020, (&mut handle, MAX - (CHUNK - 1), &here, 0);
        1: cuMemCreate as sys::PFN_cuMemCreate_v10020, (&mut handle, CHUNK, &nowhere, 0);
        101: cuMemCreate as sys::PFN_cuMemCreate_v10020, (&mut handle, CHUNK, &elsewhere, 0);
        1: cuMemCreate as sys::PFN_cuMemCreate_v10020, (&mut handle, CHUNK, &here, 1);
        1: cuMemRelease as sys::PFN_cuMemRelease_v10020, (0);
        1: cuMemRelease as sys::PFN_cuMemRelease_v10020, (g.dead_physical);
        OWN 1: cuMemRelease as sys::PFN_cuMemRelease_v10020, (u64::MAX);
        1: cuMemMap as sys::PFN_cuMemMap_v10020, (g.hole, CHUNK, 0, 0, 0);
        OWN 1: cuMemMap as sys::PFN_cuMemMap_v10020, (g.hole, CHUNK, 0, g.dead_physical, 0);
        1: cuMemMap as sys::PFN_cuMemMap_v10020, (0, CHUNK, 0, g.physical, 0);
        801: cuMemMap as sys::PFN_cuMemMap_v10020, (g.hole, MAX, 0, g.physical, 0);
        801: cuMemMap as sys::PFN_cuMemMap_v10020, (g.hole, CHUNK, MAX, g.physical, 0);
        1: cuMemMap as sys::PFN_cuMemMap_v10020, (g.hole, CHUNK, 0, g.physical, 1);
        1: cuMemMap as sys::PFN_cuMemMap_v10020, (g.mapped, CHUNK, 0, g.physical, 0);
        1: cuMemUnmap as sys::PFN_cuMemUnmap_v10020, (0, CHUNK);
        1: cuMemUnmap as sys::PFN_cuMemUnmap_v10020, (g.mapped, CHUNK - 1);
        STRICTER 1: cuMemUnmap as sys::PFN_cuMemUnmap_v10020, (g.mapped, MAX);
        1: cuMemUnmap as sys::PFN_cuMemUnmap_v10020, (g.mapped + 4096, CHUNK);
        1: cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (g.mapped, CHUNK, null(), 1);
        1: cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (g.mapped, CHUNK, &read_write, 0);
        1: cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (g.mapped, CHUNK, &read_write, MAX);
        1: cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (g.mapped, CHUNK, &strange, 1);
        1: cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (g.mapped, CHUNK, &far, 1);
        1: cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (g.hole, CHUNK, &read_write, 1);
        1: cuMemSetAccess as sys::PFN_cuMemSetAccess_v10020, (g.mapped + chunk, MAX, &read_write, 1);
        1: cuMemGetAllocationGranularity as sys::PFN_cuMemGetAllocationGranularity_v10020, (null_mut(), &here, recommended);
        1: cuMemGetAllocationGranularity as sys::PFN_cuMemGetAllocationGranularity_v10020, (&mut size, null(), recommended);
        1: cuMemGetAllocationGranularity as sys::PFN_cuMemGetAllocationGranularity_v10020, (&mut size, &here, no_option);
        1: cuMemRetainAllocationHandle as sys::PFN_cuMemRetainAllocationHandle_v11000, (null_mut(), g.mapped as *mut c_void);
        1: cuMemRetainAllocationHandle as sys::PFN_cuMemRetainAllocationHandle_v11000, (&mut handle, g.hole as *mut c_void);
        1: cuMemRetainAllocationHandle as sys::PFN_cuMemRetainAllocationHandle_v11000, (&mut handle, g.d);
        1: cuMemRetainAllocationHandle as sys::PFN_cuMemRetainAllocationHandle_v11000, (&mut handle, null_mut());
        1: cuPointerGetAttribute as PointerGetAttribute, (null_mut(), 2, g.d as u64);
        1: cuPointerGetAttribute as PointerGetAttribute, (data, 2, 0);
        1: cuPointerGetAttribute as PointerGetAttribute, (data, 2, g.foreign as u64);
        1: cuPointerGetAttribute as PointerGetAttribute, (data, 9999, g.d as u64);
        1: cuMemcpyHtoDAsync as MemcpyHtoDAsync, (0, g.h, MIB, g.s);
        1: cuMemcpyHtoDAsync as MemcpyHtoDAsync, (g.d as u64, g.h, MIB + 1, g.s);
        1: cuMemcpyHtoDAsync as MemcpyHtoDAsync, (g.foreign as u64, g.h, 4096, g.s);
        OWN 400: cuMemcpyHtoDAsync as MemcpyHtoDAsync, (g.d as u64, g.h, MIB, g.dead_s);
        1: cuMemcpyDtoHAsync as MemcpyDtoHAsync, (g.h, g.d as u64 + 1, MIB, g.s);
        1: cuMemcpyDtoHAsync as MemcpyDtoHAsync, (g.h, g.foreign as u64, 4096, g.s);
        OWN 400: cuMemcpyDtoHAsync as MemcpyDtoHAsync, (g.h, g.d as u64, MIB, g.dead_s);
        400: cuEventRecord as EventRecord, (null_mut(), g.s);
        OWN 400: cuEventRecord as EventRecord, (g.dead_e, g.s);
        OWN 400: cuEventRecord as EventRecord, (g.e, g.dead_s);
        OWN 1: cuStreamIsCapturing as StreamIsCapturing, (g.s, null_mut());
        OWN 400: cuStreamIsCapturing as StreamIsCapturing, (g.dead_s, &mut status);
    }
}

/// What takes no arguments, or none that could be wrong.
const NOTHING_TO_REFUSE: &[&str] = &[
    "cudaDeviceReset",
    "cudaDeviceSynchronize",
    // Either place may be null.
    "cudaDeviceGetStreamPriorityRange",
    "cudaGetLastError",
    "cudaPeekAtLastError",
];

#[test]
fn every_function_refuses_what_is_wrong_and_leaves_everything_as_it_was() {
    let _turn = machine();
    cudart_sim::configure(cudart_sim::Config::devices(2, 1 << 30)).unwrap();
    let mut foreign = Vec::new();
    let g = given(&mut foreign);
    let before = [0, 1].map(|d| cudart_sim::memory_info(d).unwrap());
    let mut seen = BTreeSet::new();
    let (mut wrong, mut counted) = (Vec::new(), [0; 3]);
    let tables = [
        streams_and_events,
        devices,
        allocations,
        copies,
        pools,
        graphs,
        driver,
    ];
    for table in tables {
        for row in table(&g) {
            seen.insert(row.name);
            assert!(["", "OWN", "STRICTER"].contains(&row.from), "{}", row.from);
            counted[usize::from(!row.from.is_empty()) + usize::from(row.from == "STRICTER")] += 1;
            if row.answer != row.code {
                wrong.push(format!(
                    "{}{} answers {}, not {}",
                    row.name, row.call, row.answer, row.code
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // As docs/simulator.md counts them: measured, own, stricter.
    assert_eq!(counted, [273, 70, 11]);
    for name in every::names() {
        let excused = NOTHING_TO_REFUSE.contains(&name) || every::NO_CODE.contains(&name);
        assert_eq!(seen.contains(name), !excused, "{name}");
    }
    // Nothing was taken, and what was there still works.
    assert_eq!([0, 1].map(|d| cudart_sim::memory_info(d).unwrap()), before);
    assert_eq!(cuda!(cudaMemcpyAsync(g.d, g.h, MIB, H2D, g.s)), 0);
    assert_eq!(
        cuda!(cudaMemsetAsync(g.mapped as *mut c_void, 1, CHUNK, g.s)),
        0
    );
    assert_eq!(cuda!(cudaEventRecord(g.e, g.s)), 0);
    assert_eq!(cuda!(cudaEventSynchronize(g.e)), 0);
    assert_eq!(cuda!(cudaFreeAsync(g.q, g.s)), 0);
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    assert!(foreign.iter().all(|b| *b == 0));
}

#[test]
fn functions_that_answer_no_code_answer_whatever_they_are_asked() {
    let _turn = turn();
    for code in [0, 1, 999, 4242, u32::MAX] {
        // SAFETY: they take any number and answer a C string of static life.
        let [name, text] = unsafe {
            [
                std::ffi::CStr::from_ptr(sys::cudaGetErrorName(sys::cudaError(code))),
                std::ffi::CStr::from_ptr(sys::cudaGetErrorString(sys::cudaError(code))),
            ]
        };
        assert!(!name.is_empty() && !text.is_empty(), "{code}");
    }
    // SAFETY: they make structures of their arguments and look at nothing.
    let (p, q, e) = unsafe {
        (
            sys::make_cudaPitchedPtr(nothing(), MAX, 1, 2),
            sys::make_cudaPos(MAX, 0, 1),
            sys::make_cudaExtent(1, MAX, 0),
        )
    };
    assert_eq!((p.ptr, p.pitch, p.xsize, p.ysize), (nothing(), MAX, 1, 2));
    assert_eq!((q.x, q.y, q.z), (MAX, 0, 1));
    assert_eq!((e.width, e.height, e.depth), (1, MAX, 0));
}
