//! Errors and versions; the small structures that the header makes inline.

use super::put;
use crate::calls::{Call, same_signatures};
use crate::sys::{self, cudaError_t};
use crate::{counters, error, runtime, thread};
use std::ffi::{c_char, c_int, c_void};

/// The state in which every question about errors has one answer.
fn fixed() -> Option<cudaError_t> {
    if runtime::forked() {
        return Some(cudaError_t::cudaErrorInitializationError);
    }
    if runtime::unloaded() {
        return Some(cudaError_t::cudaErrorCudartUnloading);
    }
    runtime::start();
    if runtime::no_driver() {
        return Some(cudaError_t::cudaErrorInsufficientDriver);
    }
    runtime::broken(thread::device())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetLastError() -> cudaError_t {
    counters::count(Call::cudaGetLastError);
    fixed().unwrap_or_else(|| cudaError_t(thread::with(|t| t.last_error.replace(0))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaPeekAtLastError() -> cudaError_t {
    counters::count(Call::cudaPeekAtLastError);
    fixed().unwrap_or_else(|| cudaError_t(thread::with(|t| t.last_error.get())))
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

/// Works without a driver too: 0 is the answer that says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDriverGetVersion(driverVersion: *mut c_int) -> cudaError_t {
    counters::count(Call::cudaDriverGetVersion);
    runtime::start();
    let version = if runtime::no_driver() { 0 } else { 13000 };
    put(driverVersion, version).map_or_else(|e| e, |()| cudaError_t::cudaSuccess)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaRuntimeGetVersion(runtimeVersion: *mut c_int) -> cudaError_t {
    counters::count(Call::cudaRuntimeGetVersion);
    put(runtimeVersion, 13000).map_or_else(|e| e, |()| cudaError_t::cudaSuccess)
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
