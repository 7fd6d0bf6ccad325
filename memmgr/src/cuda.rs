//! The only file that calls the CUDA runtime. Each function is one CUDA call: refused at exit and in a forked child,
//! counted by name, its failure turned into an [`Error`] that leaves nothing behind in `cudaGetLastError`.
//!
//! Functions that take a handle or a pointer are unsafe: the caller vouches that it is alive. `stream.rs`, `event.rs`
//! and the segment sources own what they pass.

use crate::{
    error::{Error, Result},
    process,
};
use cuda_sys as sys;
use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

pub(crate) use sys::{cudaDeviceAttr as DeviceAttr, cudaMemPoolAttr as PoolAttr};

/// A `cudaStream_t`, as a number that threads can share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RawStream(pub usize);

/// A `cudaEvent_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RawEvent(pub usize);

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
        #[cfg_attr(not(feature = "async"), expect(dead_code))]
        pub(crate) enum Call { $($variant),* }
        const NAMES: &[&str] = &[$($name),*];
        static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
    };
}

calls! {
    DriverGetVersion => "cudaDriverGetVersion", RuntimeGetVersion => "cudaRuntimeGetVersion",
    GetDeviceCount => "cudaGetDeviceCount", GetDevice => "cudaGetDevice", SetDevice => "cudaSetDevice",
    DeviceGetAttribute => "cudaDeviceGetAttribute", GetDeviceProperties => "cudaGetDeviceProperties",
    MemGetInfo => "cudaMemGetInfo", DeviceSynchronize => "cudaDeviceSynchronize",
    StreamCreate => "cudaStreamCreateWithPriority", StreamDestroy => "cudaStreamDestroy",
    StreamGetId => "cudaStreamGetId", StreamGetFlags => "cudaStreamGetFlags", StreamGetDevice => "cudaStreamGetDevice",
    StreamQuery => "cudaStreamQuery", StreamSynchronize => "cudaStreamSynchronize",
    StreamIsCapturing => "cudaStreamIsCapturing",
    ThreadExchangeCaptureMode => "cudaThreadExchangeStreamCaptureMode",
    StreamWaitEvent => "cudaStreamWaitEvent", LaunchHostFunc => "cudaLaunchHostFunc",
    EventCreate => "cudaEventCreateWithFlags", EventRecord => "cudaEventRecord", EventQuery => "cudaEventQuery",
    EventSynchronize => "cudaEventSynchronize",
    Malloc => "cudaMalloc", Free => "cudaFree", HostAlloc => "cudaHostAlloc", FreeHost => "cudaFreeHost",
    MallocAsync => "cudaMallocAsync", MallocFromPoolAsync => "cudaMallocFromPoolAsync", FreeAsync => "cudaFreeAsync",
    MemPoolCreate => "cudaMemPoolCreate", MemPoolDestroy => "cudaMemPoolDestroy", MemPoolTrimTo => "cudaMemPoolTrimTo",
    MemPoolGetAttribute => "cudaMemPoolGetAttribute", MemPoolSetAttribute => "cudaMemPoolSetAttribute",
    DeviceGetMemPool => "cudaDeviceGetMemPool",
    MemcpyAsync => "cudaMemcpyAsync", Memcpy2DAsync => "cudaMemcpy2DAsync",
    MemsetAsync => "cudaMemsetAsync", Memset2DAsync => "cudaMemset2DAsync",
}

thread_local! {
    static MINE: Cell<u64> = const { Cell::new(0) };
}

fn count(call: Call) {
    COUNTS[call as usize].fetch_add(1, Ordering::Relaxed);
    // A thread whose locals are gone already (a guard in another thread-local) is simply not counted.
    let _ = MINE.try_with(|mine| mine.set(mine.get().wrapping_add(1)));
}

/// How often each CUDA function was called through this crate, in this process; functions never called are left out.
pub fn cuda_calls() -> Vec<(&'static str, u64)> {
    NAMES
        .iter()
        .zip(&COUNTS)
        .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect()
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
/// `cudaErrorNotPermitted`: a CUDA call inside a host function.
pub(crate) const NOT_PERMITTED: i32 = 800;

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

/// Makes one CUDA call.
fn call(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<()> {
    process::gate()?;
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

/// Makes a call that answers "not ready" with a code that is no failure.
fn ask(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<bool> {
    process::gate()?;
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

/// As [`get_device`], in one call: the only one that a hit without a stream makes. It fails only where CUDA is not
/// available at all; an error that others had left is not looked at then.
pub(crate) fn get_device_in_one_call() -> Result<i32> {
    process::gate()?;
    process::before_first_call();
    count(Call::GetDevice);
    let mut device = 0;
    // SAFETY: `device` is a place for one int.
    match unsafe { sys::cudaGetDevice(&mut device) }.0 as i32 {
        SUCCESS => Ok(device),
        code => Err(failure(Call::GetDevice, code, SUCCESS)),
    }
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

/// Runs `f` in the capture mode in which what this thread asks ends nobody's capture.
#[cfg(feature = "async")]
pub(crate) fn relaxed<T>(f: impl FnOnce() -> T) -> T {
    /// Puts the thread's former mode back.
    struct Restore(sys::cudaStreamCaptureMode);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = exchange_capture_mode(&mut self.0);
        }
    }
    let mut mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
    let _restore = exchange_capture_mode(&mut mode)
        .is_ok()
        .then(|| Restore(mode));
    f()
}

#[cfg(feature = "async")]
fn exchange_capture_mode(mode: &mut sys::cudaStreamCaptureMode) -> Result<()> {
    // SAFETY: `mode` is a place that holds a mode, and takes the former one.
    call(Call::ThreadExchangeCaptureMode, || unsafe {
        sys::cudaThreadExchangeStreamCaptureMode(mode)
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_synchronize(stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::StreamSynchronize, || unsafe {
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
    call(Call::EventSynchronize, || unsafe {
        sys::cudaEventSynchronize(event.get())
    })
}

// Memory

/// `cudaMalloc` on the current device; the address.
pub(crate) fn malloc(size: usize) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    call(Call::Malloc, || unsafe {
        sys::cudaMalloc(&mut memory, size)
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from [`malloc`] and nobody uses the memory afterwards.
pub(crate) unsafe fn free(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::Free, || unsafe { sys::cudaFree(pointer(address)) })
}

/// Portable page-locked memory.
pub(crate) fn host_alloc(size: usize) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    call(Call::HostAlloc, || unsafe {
        sys::cudaHostAlloc(&mut memory, size, sys::cudaHostAllocPortable)
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from [`host_alloc`] and nobody uses the memory afterwards.
pub(crate) unsafe fn free_host(address: usize) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::FreeHost, || unsafe {
        sys::cudaFreeHost(pointer(address))
    })
}

/// # Safety
/// The stream is alive.
pub(crate) unsafe fn malloc_async(size: usize, stream: RawStream) -> Result<usize> {
    let mut memory = ptr::null_mut();
    // SAFETY: the stream is alive, `memory` is a place for one pointer.
    call(Call::MallocAsync, || unsafe {
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
    call(Call::MallocFromPoolAsync, || unsafe {
        sys::cudaMallocFromPoolAsync(&mut memory, size, pool.get(), stream.get())
    })?;
    Ok(memory.expose_provenance())
}

/// # Safety
/// `address` came from one of the two above, the stream is alive, and no work submitted to other streams, or later to
/// this one, touches the memory.
pub(crate) unsafe fn free_async(address: usize, stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::FreeAsync, || unsafe {
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
    call(Call::MemPoolCreate, || unsafe {
        sys::cudaMemPoolCreate(&mut pool, &properties)
    })?;
    Ok(RawPool(pool.expose_provenance()))
}

/// # Safety
/// The pool came from [`mem_pool_create`] and nobody uses it afterwards.
pub(crate) unsafe fn mem_pool_destroy(pool: RawPool) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::MemPoolDestroy, || unsafe {
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
    call(Call::MemPoolTrimTo, || unsafe {
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
    call(Call::MemPoolGetAttribute, || unsafe {
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
    call(Call::MemPoolSetAttribute, || unsafe {
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
