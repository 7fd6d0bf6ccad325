//! The only file that calls CUDA. Each function is one CUDA call: refused at exit and in a forked child,
//! counted by name, its failure turned into an [`Error`] that leaves nothing behind in `cudaGetLastError`.
//!
//! Functions that take a handle or a pointer are unsafe: the caller vouches that it is alive. `stream.rs`, `event.rs`
//! and the segment sources own what they pass. `cuda/virtual_memory.rs` has the driver's calls for virtual memory.

pub(crate) mod virtual_memory;

use crate::{
    error::{Error, Result},
    process,
    sync::mark,
};
use cuda_sys as sys;
use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

pub(crate) use sys::{
    cudaDeviceAttr as DeviceAttr, cudaMemPoolAttr as PoolAttr, cudaStreamCaptureMode as CaptureMode,
};

/// A `cudaStream_t`, as a number that threads can share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RawStream(pub usize);

/// A `cudaEvent_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RawEvent(pub usize);

/// A `cudaGraph_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RawGraph(pub usize);

/// A `cudaGraphExec_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RawExec(pub usize);

/// A `cudaMemPool_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RawPool(pub usize);

impl RawStream {
    fn get(self) -> sys::cudaStream_t {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl RawEvent {
    fn get(self) -> sys::cudaEvent_t {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl RawGraph {
    fn get(self) -> sys::cudaGraph_t {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl RawExec {
    fn get(self) -> sys::cudaGraphExec_t {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl RawPool {
    fn get(self) -> sys::cudaMemPool_t {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// An address as the pointer that CUDA wants.
pub(crate) fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

macro_rules! calls {
    ($($variant:ident => $name:literal),* $(,)?) => {
        /// The CUDA functions that this crate calls.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Call { $($variant),* }
        const NAMES: &[&str] = &[$($name),*];
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

fn count(call: Call) {
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

const SUCCESS: i32 = 0;
/// `cudaErrorMemoryAllocation`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
const UNLOADING: i32 = 4;
const STUB_LIBRARY: i32 = 34;
const NO_DRIVER: i32 = 35;
const NO_DEVICE: i32 = 100;
/// `cudaErrorInvalidDevice`.
pub(crate) const INVALID_DEVICE: i32 = 101;
const NOT_READY: i32 = 600;
/// `cudaErrorStreamCaptureImplicit`: the legacy stream while a blocking stream is captured.
pub(crate) const CAPTURE_IMPLICIT: i32 = 906;
/// `cudaErrorNotPermitted`: a CUDA call inside a host function.
pub(crate) const NOT_PERMITTED: i32 = 800;

/// Errors after which the context is gone: none of its work runs any more.
const CONTEXT_IS_GONE: &[i32] = &[
    214, // cudaErrorECCUncorrectable
    220, // cudaErrorNvlinkUncorrectable
    700, // cudaErrorIllegalAddress
    702, // cudaErrorLaunchTimeout
    709, // cudaErrorContextIsDestroyed
    710, // cudaErrorAssert
    714, // cudaErrorHardwareStackError
    715, // cudaErrorIllegalInstruction
    716, // cudaErrorMisalignedAddress
    717, // cudaErrorInvalidAddressSpace
    718, // cudaErrorInvalidPc
    719, // cudaErrorLaunchFailure
];

/// Whether the error says that the context is gone.
pub(crate) fn ends_context(code: i32) -> bool {
    CONTEXT_IS_GONE.contains(&code)
}

fn text(message: *const c_char) -> String {
    if message.is_null() {
        return String::new();
    }
    // SAFETY: the runtime returns a null-terminated string of static life for every code.
    unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned()
}

/// Turns a code into an error and takes it out of `cudaGetLastError`, where it would surface in somebody else's check.
#[cold]
fn failure(call: Call, code: i32, pending: i32) -> Error {
    // SAFETY: the function has no preconditions.
    unsafe { sys::cudaGetLastError() };
    let simulated = cfg!(feature = "sim");
    let reason = match code {
        NO_DRIVER if simulated => {
            "the simulated machine (feature `sim`) has no driver: CUDART_SIM_DRIVER=none says so"
        }
        NO_DEVICE if simulated => {
            "the simulated machine (feature `sim`) has no device: see CUDART_SIM_DEVICES"
        }
        NO_DRIVER => {
            "no NVIDIA driver was found, or it is older than the CUDA runtime. Install a driver, or build with the feature `sim` to run on the simulated runtime"
        }
        STUB_LIBRARY => {
            "the process loaded a stub of the driver library; put the real libcuda.so.1 first on the library path"
        }
        NO_DEVICE => {
            "no CUDA device was found. Check nvidia-smi and CUDA_VISIBLE_DEVICES, or build with the feature `sim` to run on the simulated runtime"
        }
        UNLOADING => "the CUDA runtime is unloading: the process is exiting",
        _ => "",
    };
    if !reason.is_empty() {
        return Error::Unavailable {
            code: Some(code),
            reason: reason.to_owned(),
        };
    }
    let raw = sys::cudaError(code.unsigned_abs());
    // SAFETY: both functions accept any code and return a string of static life or null.
    let (name, description) = unsafe {
        (
            text(sys::cudaGetErrorName(raw)),
            text(sys::cudaGetErrorString(raw)),
        )
    };
    let also_pending = (pending != SUCCESS).then_some(pending);
    Error::Cuda {
        call: NAMES[call as usize],
        code,
        name,
        description,
        also_pending,
    }
}

crate::sync::thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function of this crate's: CUDA permits no call in it, so none is tried.
pub(crate) fn as_host_function<T>(f: impl FnOnce() -> T) -> T {
    let _ = IN_HOST_FUNCTION.try_with(|inside| inside.set(true));
    let value = f();
    let _ = IN_HOST_FUNCTION.try_with(|inside| inside.set(false));
    value
}

/// Refuses where no call may be made; in a host function with what CUDA would answer.
fn gate(which: Call) -> Result<()> {
    mark();
    process::gate()?;
    if IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false) {
        return Err(Error::Cuda {
            call: NAMES[which as usize],
            code: NOT_PERMITTED,
            name: "cudaErrorNotPermitted".to_owned(),
            description: "operation not permitted (in a host function)".to_owned(),
            also_pending: None,
        });
    }
    Ok(())
}

/// Makes one CUDA call.
fn call(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<()> {
    gate(which)?;
    process::before_first_call();
    // SAFETY: the function has no preconditions.
    let pending = unsafe { sys::cudaPeekAtLastError() }.0 as i32;
    count(which);
    match f().0 as i32 {
        SUCCESS => {
            process::after_first_success();
            Ok(())
        }
        code => Err(failure(which, code, pending)),
    }
}

/// As [`call`], for what the runtime takes for unsafe while a stream is captured: see [`relaxed`].
fn call_relaxed(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<()> {
    relaxed(|| call(which, f))
}

crate::sync::thread_local! {
    /// How many [`relaxed`] are running on this thread.
    static RELAXED: Cell<u32> = const { Cell::new(0) };
}

fn exchange_capture_mode(mode: CaptureMode) -> Result<CaptureMode> {
    let mut exchanged = mode;
    // SAFETY: `exchanged` is a place for one mode, and holds one.
    call(Call::ThreadExchangeCaptureMode, || unsafe {
        sys::cudaThreadExchangeStreamCaptureMode(&mut exchanged)
    })?;
    Ok(exchanged)
}

/// Runs `f` with the thread's capture mode relaxed, so that calls like `cudaMalloc` and `cudaEventQuery` end nobody's
/// capture, and restores the mode, whatever `f` did. There is no cheaper way: a capture of other code cannot be seen
/// before such a call has ended it. Calls inside one another exchange the mode once.
pub(crate) fn relaxed<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Restores the mode, if it was another one.
    struct Restore(CaptureMode);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = RELAXED.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
            if self.0 != CaptureMode::cudaStreamCaptureModeRelaxed {
                // A failure means that the context is gone or the process is ending: there is nothing left to capture.
                let _ = exchange_capture_mode(self.0);
            }
        }
    }
    if RELAXED.try_with(Cell::get).is_ok_and(|depth| depth > 0) {
        return f();
    }
    let former = exchange_capture_mode(CaptureMode::cudaStreamCaptureModeRelaxed)?;
    let _ = RELAXED.try_with(|depth| depth.set(depth.get() + 1));
    let _restore = Restore(former);
    f()
}

/// Makes a call that answers "not ready" with a code that is no failure.
fn ask(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<bool> {
    relaxed(|| ask_now(which, f))
}

fn ask_now(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<bool> {
    gate(which)?;
    // SAFETY: the function has no preconditions.
    let pending = unsafe { sys::cudaPeekAtLastError() }.0 as i32;
    count(which);
    match f().0 as i32 {
        SUCCESS => Ok(true),
        NOT_READY => Ok(false),
        code => Err(failure(which, code, pending)),
    }
}

// Devices and versions

pub(crate) fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: `version` is a place for one int.
    call(Call::DriverGetVersion, || unsafe {
        sys::cudaDriverGetVersion(&mut version)
    })?;
    Ok(version)
}

pub(crate) fn runtime_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: `version` is a place for one int.
    call(Call::RuntimeGetVersion, || unsafe {
        sys::cudaRuntimeGetVersion(&mut version)
    })?;
    Ok(version)
}

pub(crate) fn device_count() -> Result<i32> {
    let mut count = 0;
    // SAFETY: `count` is a place for one int.
    call(Call::GetDeviceCount, || unsafe {
        sys::cudaGetDeviceCount(&mut count)
    })?;
    Ok(count)
}

/// The calling thread's current device.
pub(crate) fn get_device() -> Result<i32> {
    let mut device = 0;
    // SAFETY: `device` is a place for one int.
    call(Call::GetDevice, || unsafe {
        sys::cudaGetDevice(&mut device)
    })?;
    Ok(device)
}

/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
pub(crate) const CONTEXT_IS_DESTROYED: i32 = 709;

/// The id of a context, of the current one if the handle is 0, or the driver's code. Leaves no error behind.
pub(crate) fn context_id(context: usize) -> Result<u64, i32> {
    gate(Call::CtxGetId).map_err(|_| NOT_PERMITTED)?;
    process::before_first_call();
    count(Call::CtxGetId);
    sys::context_id(context)
}

/// The current context: its handle and its id.
pub(crate) fn current_context() -> Option<(usize, u64)> {
    gate(Call::CtxGetCurrent).ok()?;
    process::before_first_call();
    count(Call::CtxGetCurrent);
    let handle = sys::current_context()?;
    Some((handle, context_id(handle).ok()?))
}

pub(crate) fn set_device(device: i32) -> Result<()> {
    // SAFETY: any ordinal may be passed; a wrong one is answered with an error.
    call(Call::SetDevice, || unsafe { sys::cudaSetDevice(device) })
}

pub(crate) fn device_attribute(attribute: DeviceAttr, device: i32) -> Result<i32> {
    let mut value = 0;
    // SAFETY: `value` is a place for one int.
    call(Call::DeviceGetAttribute, || unsafe {
        sys::cudaDeviceGetAttribute(&mut value, attribute, device)
    })?;
    Ok(value)
}

/// Whether a device can be given access to another one's memory.
pub(crate) fn can_access_peer(device: i32, peer: i32) -> Result<bool> {
    let mut can = 0;
    // SAFETY: `can` is a place for one int.
    call(Call::DeviceCanAccessPeer, || unsafe {
        sys::cudaDeviceCanAccessPeer(&mut can, device, peer)
    })?;
    Ok(can != 0)
}

/// The device's name.
pub(crate) fn device_name(device: i32) -> Result<String> {
    let mut properties = Box::<sys::cudaDeviceProp>::new_uninit();
    // SAFETY: `properties` is a place for one cudaDeviceProp of the headers that the bindings were made from.
    call(Call::GetDeviceProperties, || unsafe {
        sys::cudaGetDeviceProperties(properties.as_mut_ptr(), device)
    })?;
    // SAFETY: the call succeeded and filled the structure; all its fields are plain numbers.
    let properties = unsafe { properties.assume_init() };
    let name: Vec<u8> = properties
        .name
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Free and total memory of the current device, in bytes.
pub(crate) fn mem_get_info() -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are places for one size.
    call(Call::MemGetInfo, || unsafe {
        sys::cudaMemGetInfo(&mut free, &mut total)
    })?;
    Ok((free, total))
}

/// Waits for everything that was submitted to the current device. By `cudaFree`, which waits as
/// `cudaDeviceSynchronize` does and, on a relaxed thread, leaves captures alone; by the latter only where no memory is left.
pub(crate) fn wait_for_device() -> Result<()> {
    match malloc(1) {
        // SAFETY: the block was just made and nobody knows it.
        Ok(address) => unsafe { free(address) },
        Err(Error::Cuda {
            code: OUT_OF_MEMORY,
            ..
        }) => device_synchronize(),
        Err(error) => Err(error),
    }
}

/// Waits for everything that was submitted to the current device, as promised; ends every capture.
pub(crate) fn device_synchronize() -> Result<()> {
    // SAFETY: the function has no preconditions.
    call(Call::DeviceSynchronize, || unsafe {
        sys::cudaDeviceSynchronize()
    })
}

// Streams

/// A new stream on the current device.
pub(crate) fn stream_create(flags: u32, priority: i32) -> Result<RawStream> {
    let mut stream = ptr::null_mut();
    // SAFETY: `stream` is a place for one handle.
    call(Call::StreamCreate, || unsafe {
        sys::cudaStreamCreateWithPriority(&mut stream, flags, priority)
    })?;
    Ok(RawStream(stream.expose_provenance()))
}

/// # Safety
/// The handle is alive and nobody uses it afterwards.
pub(crate) unsafe fn stream_destroy(stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::StreamDestroy, || unsafe {
        sys::cudaStreamDestroy(stream.get())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_id(stream: RawStream) -> Result<u64> {
    let mut id = 0;
    // SAFETY: the handle is alive, `id` is a place for one number.
    call(Call::StreamGetId, || unsafe {
        sys::cudaStreamGetId(stream.get(), &mut id)
    })?;
    Ok(id)
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_flags(stream: RawStream) -> Result<u32> {
    let mut flags = 0;
    // SAFETY: the handle is alive, `flags` is a place for one number.
    call(Call::StreamGetFlags, || unsafe {
        sys::cudaStreamGetFlags(stream.get(), &mut flags)
    })?;
    Ok(flags)
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_device(stream: RawStream) -> Result<i32> {
    let mut device = 0;
    // SAFETY: the handle is alive, `device` is a place for one number.
    call(Call::StreamGetDevice, || unsafe {
        sys::cudaStreamGetDevice(stream.get(), &mut device)
    })?;
    Ok(device)
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_query(stream: RawStream) -> Result<bool> {
    // SAFETY: as this function demands.
    ask(Call::StreamQuery, || unsafe {
        sys::cudaStreamQuery(stream.get())
    })
}

/// Whether the stream is being captured into a graph.
///
/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_is_capturing(stream: RawStream) -> Result<bool> {
    let mut status = sys::cudaStreamCaptureStatus::cudaStreamCaptureStatusNone;
    // SAFETY: the handle is alive, `status` is a place for one status.
    call(Call::StreamIsCapturing, || unsafe {
        sys::cudaStreamIsCapturing(stream.get(), &mut status)
    })?;
    Ok(status != sys::cudaStreamCaptureStatus::cudaStreamCaptureStatusNone)
}

/// The number of the capture that a stream is in, and its graph; `None` for no capture or an invalidated one.
///
/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_capture_info(stream: RawStream) -> Result<Option<(u64, RawGraph)>> {
    let mut info = None;
    call(Call::StreamGetCaptureInfo, || {
        // SAFETY: the handle is alive.
        match unsafe { sys::stream_capture_info(stream.get()) } {
            Ok((status, id, graph)) => {
                let active = status == sys::cudaStreamCaptureStatus::cudaStreamCaptureStatusActive;
                info = active.then(|| (id, RawGraph(graph.expose_provenance())));
                sys::cudaError::cudaSuccess
            }
            Err(code) => code,
        }
    })?;
    Ok(info)
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_begin_capture(stream: RawStream, mode: CaptureMode) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::StreamBeginCapture, || unsafe {
        sys::cudaStreamBeginCapture(stream.get(), mode)
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_end_capture(stream: RawStream) -> Result<RawGraph> {
    let mut graph = ptr::null_mut();
    // SAFETY: as this function demands; `graph` is a place for one handle.
    call(Call::StreamEndCapture, || unsafe {
        sys::cudaStreamEndCapture(stream.get(), &mut graph)
    })?;
    Ok(RawGraph(graph.expose_provenance()))
}

/// # Safety
/// The graph is alive.
pub(crate) unsafe fn graph_instantiate(graph: RawGraph) -> Result<RawExec> {
    let mut exec = ptr::null_mut();
    // SAFETY: as this function demands; `exec` is a place for one handle.
    call_relaxed(Call::GraphInstantiate, || unsafe {
        sys::cudaGraphInstantiate(&mut exec, graph.get(), 0)
    })?;
    Ok(RawExec(exec.expose_provenance()))
}

/// # Safety
/// Both handles are alive, nobody else uses `exec` now, and the memory that the graph uses stays until it has run.
pub(crate) unsafe fn graph_launch(exec: RawExec, stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::GraphLaunch, || unsafe {
        sys::cudaGraphLaunch(exec.get(), stream.get())
    })
}

/// # Safety
/// The handle is alive and nobody uses it afterwards.
pub(crate) unsafe fn graph_exec_destroy(exec: RawExec) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::GraphExecDestroy, || unsafe {
        sys::cudaGraphExecDestroy(exec.get())
    })
}

/// # Safety
/// The handle is alive and nobody uses it afterwards.
pub(crate) unsafe fn graph_destroy(graph: RawGraph) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::GraphDestroy, || unsafe {
        sys::cudaGraphDestroy(graph.get())
    })
}

/// `cudaUserObjectNoDestructorSync`, which every user object must have.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `cudaGraphUserObjectMove`: the graph takes the caller's reference.
const USER_OBJECT_MOVE: u32 = 1;

/// Has `gone` called with `data` once nothing can run the graph any more; at once if the graph refuses. Where this fails
/// with `false`, `gone` is never called.
///
/// # Safety
/// The graph is alive; `gone` may be called once with `data`, on any thread, and makes no CUDA call.
pub(crate) unsafe fn graph_on_gone(
    graph: RawGraph,
    gone: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> Result<(), (Error, bool)> {
    let mut object = ptr::null_mut();
    // SAFETY: as this function demands; `object` is a place for one handle.
    call(Call::UserObjectCreate, || unsafe {
        sys::cudaUserObjectCreate(&mut object, data, Some(gone), 1, NO_DESTRUCTOR_SYNC)
    })
    .map_err(|error| (error, false))?;
    // SAFETY: graph and object are alive, and the one reference is ours to give.
    let kept = call(Call::GraphRetainUserObject, || unsafe {
        sys::cudaGraphRetainUserObject(graph.get(), object, 1, USER_OBJECT_MOVE)
    });
    kept.map_err(|error| {
        // SAFETY: the graph did not take the reference, which is still ours.
        let released = call(Call::UserObjectRelease, || unsafe {
            sys::cudaUserObjectRelease(object, 1)
        });
        (error, released.is_ok())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_synchronize(stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::StreamSynchronize, || unsafe {
        sys::cudaStreamSynchronize(stream.get())
    })
}

/// # Safety
/// Both handles are alive.
pub(crate) unsafe fn stream_wait_event(stream: RawStream, event: RawEvent) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::StreamWaitEvent, || unsafe {
        sys::cudaStreamWaitEvent(stream.get(), event.get(), 0)
    })
}

/// # Safety
/// The handle is alive; `function` may be called once with `data`, on another thread, and makes no CUDA call.
pub(crate) unsafe fn launch_host_func(
    stream: RawStream,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::LaunchHostFunc, || unsafe {
        sys::cudaLaunchHostFunc(stream.get(), Some(function), data)
    })
}

// Events

/// A new event of the current device, without timing.
pub(crate) fn event_create() -> Result<RawEvent> {
    let mut event = ptr::null_mut();
    // SAFETY: `event` is a place for one handle.
    call(Call::EventCreate, || unsafe {
        sys::cudaEventCreateWithFlags(&mut event, sys::cudaEventDisableTiming)
    })?;
    Ok(RawEvent(event.expose_provenance()))
}

/// # Safety
/// Both handles are alive and of one device.
pub(crate) unsafe fn event_record(event: RawEvent, stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::EventRecord, || unsafe {
        sys::cudaEventRecord(event.get(), stream.get())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn event_query(event: RawEvent) -> Result<bool> {
    // SAFETY: as this function demands.
    ask(Call::EventQuery, || unsafe {
        sys::cudaEventQuery(event.get())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn event_synchronize(event: RawEvent) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::EventSynchronize, || unsafe {
        sys::cudaEventSynchronize(event.get())
    })
}

// Memory

/// `cudaMalloc` on the current device; the address.
pub(crate) fn malloc(size: usize) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    call_relaxed(Call::Malloc, || unsafe {
        sys::cudaMalloc(&mut memory, size)
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from [`malloc`] and nobody uses the memory afterwards.
pub(crate) unsafe fn free(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::Free, || unsafe { sys::cudaFree(pointer(address)) })
}

/// Portable page-locked memory.
pub(crate) fn host_alloc(size: usize) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    call_relaxed(Call::HostAlloc, || unsafe {
        sys::cudaHostAlloc(&mut memory, size, sys::cudaHostAllocPortable)
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from [`host_alloc`] and nobody uses the memory afterwards.
pub(crate) unsafe fn free_host(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::FreeHost, || unsafe {
        sys::cudaFreeHost(pointer(address))
    })
}

/// Page-locks memory that the host has, for every device.
///
/// # Safety
/// `address` has `size` bytes of host memory, which stay until they are unregistered.
pub(crate) unsafe fn host_register(address: usize, size: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::HostRegister, || unsafe {
        sys::cudaHostRegister(pointer(address), size, sys::cudaHostRegisterPortable)
    })
}

/// Waits for the whole device.
///
/// # Safety
/// `address` was registered with [`host_register`], and no work submitted later counts on its being page-locked.
pub(crate) unsafe fn host_unregister(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::HostUnregister, || unsafe {
        sys::cudaHostUnregister(pointer(address))
    })
}

/// # Safety
/// The stream is alive.
pub(crate) unsafe fn malloc_async(size: usize, stream: RawStream) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: the stream is alive, `memory` is a place for one pointer.
    call_relaxed(Call::MallocAsync, || unsafe {
        sys::cudaMallocAsync(&mut memory, size, stream.get())
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// Pool and stream are alive.
pub(crate) unsafe fn malloc_from_pool_async(
    size: usize,
    pool: RawPool,
    stream: RawStream,
) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: pool and stream are alive, `memory` is a place for one pointer.
    call_relaxed(Call::MallocFromPoolAsync, || unsafe {
        sys::cudaMallocFromPoolAsync(&mut memory, size, pool.get(), stream.get())
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from one of the two above, the stream is alive, and no work submitted to other streams, or later to
/// this one, touches the memory.
pub(crate) unsafe fn free_async(address: usize, stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::FreeAsync, || unsafe {
        sys::cudaFreeAsync(pointer(address), stream.get())
    })
}

/// A memory pool of the device, with default properties.
pub(crate) fn mem_pool_create(device: i32) -> Result<RawPool> {
    // SAFETY: cudaMemPoolProps is plain numbers and pointers: all zero is valid, and the reserved bytes must be zero.
    let mut properties: sys::cudaMemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::cudaMemAllocationType::cudaMemAllocationTypePinned;
    properties.location =
        sys::mem_location(sys::cudaMemLocationType::cudaMemLocationTypeDevice, device);
    let mut pool = ptr::null_mut();
    // SAFETY: `pool` is a place for one handle, the properties are complete.
    call_relaxed(Call::MemPoolCreate, || unsafe {
        sys::cudaMemPoolCreate(&mut pool, &properties)
    })?;
    Ok(RawPool(pool.expose_provenance()))
}

/// # Safety
/// The pool came from [`mem_pool_create`] and nobody uses it afterwards.
pub(crate) unsafe fn mem_pool_destroy(pool: RawPool) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::MemPoolDestroy, || unsafe {
        sys::cudaMemPoolDestroy(pool.get())
    })
}

/// The device's current memory pool.
pub(crate) fn device_mem_pool(device: i32) -> Result<RawPool> {
    let mut pool = ptr::null_mut();
    // SAFETY: `pool` is a place for one handle.
    call(Call::DeviceGetMemPool, || unsafe {
        sys::cudaDeviceGetMemPool(&mut pool, device)
    })?;
    Ok(RawPool(pool.expose_provenance()))
}

/// # Safety
/// The pool is alive.
pub(crate) unsafe fn mem_pool_trim(pool: RawPool, keep: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::MemPoolTrimTo, || unsafe {
        sys::cudaMemPoolTrimTo(pool.get(), keep)
    })
}

/// One of the 64-bit attributes.
///
/// # Safety
/// The pool is alive.
pub(crate) unsafe fn mem_pool_get(pool: RawPool, attribute: PoolAttr) -> Result<u64> {
    let mut value = 0u64;
    // SAFETY: the pool is alive; the attributes asked for here are 64 bits wide.
    call_relaxed(Call::MemPoolGetAttribute, || unsafe {
        sys::cudaMemPoolGetAttribute(pool.get(), attribute, (&raw mut value).cast())
    })?;
    Ok(value)
}

/// Sets one of the 64-bit attributes.
///
/// # Safety
/// The pool is alive.
pub(crate) unsafe fn mem_pool_set(
    pool: RawPool,
    attribute: PoolAttr,
    mut value: u64,
) -> Result<()> {
    // SAFETY: the pool is alive; the attributes set here are 64 bits wide.
    call_relaxed(Call::MemPoolSetAttribute, || unsafe {
        sys::cudaMemPoolSetAttribute(pool.get(), attribute, (&raw mut value).cast())
    })
}

/// Direction of a copy (`cudaMemcpyKind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyKind {
    /// From host to device memory.
    HostToDevice,
    /// From device to host memory.
    DeviceToHost,
    /// Within the memory of one device or between devices.
    DeviceToDevice,
}

impl CopyKind {
    fn get(self) -> sys::cudaMemcpyKind {
        match self {
            CopyKind::HostToDevice => sys::cudaMemcpyKind::cudaMemcpyHostToDevice,
            CopyKind::DeviceToHost => sys::cudaMemcpyKind::cudaMemcpyDeviceToHost,
            CopyKind::DeviceToDevice => sys::cudaMemcpyKind::cudaMemcpyDeviceToDevice,
        }
    }
}

/// # Safety
/// Both ranges stay valid until the copy has run; the stream is alive.
pub(crate) unsafe fn memcpy_async(
    dst: usize,
    src: usize,
    size: usize,
    kind: CopyKind,
    stream: RawStream,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemcpyAsync, || unsafe {
        sys::cudaMemcpyAsync(pointer(dst), pointer(src), size, kind.get(), stream.get())
    })
}

/// Where the rows of a 2-D operation lie: start and distance of rows in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub start: usize,
    pub pitch: usize,
}

/// # Safety
/// All rows of both sides stay valid until the copy has run; the stream is alive.
pub(crate) unsafe fn memcpy_2d_async(
    dst: Rows,
    src: Rows,
    width: usize,
    height: usize,
    kind: CopyKind,
    stream: RawStream,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::Memcpy2DAsync, || unsafe {
        sys::cudaMemcpy2DAsync(
            pointer(dst.start),
            dst.pitch,
            pointer(src.start),
            src.pitch,
            width,
            height,
            kind.get(),
            stream.get(),
        )
    })
}

/// # Safety
/// The range stays valid until the operation has run; the stream is alive.
pub(crate) unsafe fn memset_async(
    dst: usize,
    value: u8,
    size: usize,
    stream: RawStream,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemsetAsync, || unsafe {
        sys::cudaMemsetAsync(pointer(dst), value.into(), size, stream.get())
    })
}

/// # Safety
/// All rows stay valid until the operation has run; the stream is alive.
pub(crate) unsafe fn memset_2d_async(
    dst: Rows,
    value: u8,
    width: usize,
    height: usize,
    stream: RawStream,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::Memset2DAsync, || unsafe {
        sys::cudaMemset2DAsync(
            pointer(dst.start),
            dst.pitch,
            value.into(),
            width,
            height,
            stream.get(),
        )
    })
}
