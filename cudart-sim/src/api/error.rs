//! Errors and versions; the small structures that the header makes inline.

use super::put;
use crate::calls::{Call, same_signatures};
use crate::sys::{self, cudaError_t};
use crate::{counters, error, fault, runtime, thread};
use std::ffi::{c_char, c_int, c_void};

/// The states in which every question has one answer.
fn gone() -> Option<cudaError_t> {
    if runtime::forked() {
        return Some(cudaError_t::cudaErrorInitializationError);
    }
    runtime::unloaded().then_some(cudaError_t::cudaErrorCudartUnloading)
}

/// The code that answers a question about errors, if it is not this thread's last error.
fn fixed(call: Call) -> Option<cudaError_t> {
    if let Some(code) = gone() {
        return Some(code);
    }
    runtime::start();
    if runtime::no_driver() {
        return Some(cudaError_t::cudaErrorInsufficientDriver);
    }
    fault::injected(call, None).or_else(|| runtime::broken(thread::device()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetLastError() -> cudaError_t {
    counters::count(Call::cudaGetLastError);
    fixed(Call::cudaGetLastError)
        .unwrap_or_else(|| cudaError_t(thread::with(|t| t.last_error.replace(0))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaPeekAtLastError() -> cudaError_t {
    counters::count(Call::cudaPeekAtLastError);
    fixed(Call::cudaPeekAtLastError)
        .unwrap_or_else(|| cudaError_t(thread::with(|t| t.last_error.get())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetErrorName(error: cudaError_t) -> *const c_char {
    counters::count(Call::cudaGetErrorName);
    error::name(error).as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetErrorString(error: cudaError_t) -> *const c_char {
    counters::count(Call::cudaGetErrorString);
    error::text(error).as_ptr()
}

/// What both questions about versions have in common: they work without a driver, and in a host function.
fn version(call: Call, place: *mut c_int, version: impl FnOnce() -> i32) -> cudaError_t {
    counters::count(call);
    if let Some(code) = gone() {
        return code;
    }
    runtime::start();
    let refused = fault::injected(call, None);
    let answer = refused.map_or_else(|| put(place, version()), Err);
    answer.map_or_else(
        |code| {
            thread::record_error(code);
            code
        },
        |()| cudaError_t::cudaSuccess,
    )
}

/// 0 is the answer that says that there is no driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDriverGetVersion(driverVersion: *mut c_int) -> cudaError_t {
    version(
        Call::cudaDriverGetVersion,
        driverVersion,
        runtime::driver_version,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaRuntimeGetVersion(runtimeVersion: *mut c_int) -> cudaError_t {
    version(
        Call::cudaRuntimeGetVersion,
        runtimeVersion,
        runtime::runtime_version,
    )
}

// In the headers these are static inline functions. The bindings call wrappers of them, which go by these names.

#[unsafe(export_name = "make_cudaPitchedPtr__extern")]
pub unsafe extern "C" fn make_cudaPitchedPtr(
    d: *mut c_void,
    p: usize,
    xsz: usize,
    ysz: usize,
) -> sys::cudaPitchedPtr {
    counters::count(Call::make_cudaPitchedPtr);
    sys::cudaPitchedPtr {
        ptr: d,
        pitch: p,
        xsize: xsz,
        ysize: ysz,
    }
}

#[unsafe(export_name = "make_cudaPos__extern")]
pub unsafe extern "C" fn make_cudaPos(x: usize, y: usize, z: usize) -> sys::cudaPos {
    counters::count(Call::make_cudaPos);
    sys::cudaPos { x, y, z }
}

#[unsafe(export_name = "make_cudaExtent__extern")]
pub unsafe extern "C" fn make_cudaExtent(w: usize, h: usize, d: usize) -> sys::cudaExtent {
    counters::count(Call::make_cudaExtent);
    sys::cudaExtent {
        width: w,
        height: h,
        depth: d,
    }
}

same_signatures!(
    cudaGetLastError,
    cudaPeekAtLastError,
    cudaGetErrorName,
    cudaGetErrorString,
    cudaDriverGetVersion,
    cudaRuntimeGetVersion,
    make_cudaPitchedPtr,
    make_cudaPos,
    make_cudaExtent,
);
