//! The runtime's codes, and the errors that they become.

use super::count::{Call, NAMES};
use crate::error::Error;
use cuda_sys as sys;
use std::ffi::{CStr, c_char};

pub(super) const SUCCESS: i32 = 0;
/// `cudaErrorMemoryAllocation`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(super) const UNLOADING: i32 = 4;
const STUB_LIBRARY: i32 = 34;
const NO_DRIVER: i32 = 35;
const NO_DEVICE: i32 = 100;
/// `cudaErrorInvalidDevice`.
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(super) const NOT_READY: i32 = 600;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
pub(crate) const CONTEXT_IS_DESTROYED: i32 = 709;
/// `cudaErrorNotPermitted`: a CUDA call inside a host function.
pub(crate) const NOT_PERMITTED: i32 = 800;
/// `cudaErrorStreamCaptureImplicit`: the legacy stream while a blocking stream is captured.
pub(crate) const CAPTURE_IMPLICIT: i32 = 906;

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

pub(super) fn text(message: *const c_char) -> String {
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
pub(super) fn failure(call: Call, code: i32, pending: i32) -> Error {
    // SAFETY: the function has no preconditions.
    unsafe { sys::cudaGetLastError() };
    let simulated = cfg!(feature = "sim");
    let reason = match code {
        NO_DRIVER if simulated => {
            "the simulated machine (feature `sim`) has no driver, or one that is too old: see CUDART_SIM_DRIVER and CUDART_SIM_DRIVER_VERSION"
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
    let (name, mut description) = unsafe {
        (
            text(sys::cudaGetErrorName(raw)),
            text(sys::cudaGetErrorString(raw)),
        )
    };
    // CUDA does not say what is not permitted, or where.
    if code == NOT_PERMITTED && !description.contains("host function") {
        description.push_str(
            " (CUDA permits no call in a host function: do this before it, or after it has returned)",
        );
    }
    let also_pending = (pending != SUCCESS).then_some(pending);
    Error::Cuda {
        call: NAMES[call as usize],
        code,
        name,
        description,
        also_pending,
    }
}
