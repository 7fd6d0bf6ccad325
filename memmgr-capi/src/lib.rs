//! `libmemmgr`: the memory manager behind a C interface (`include/memmgr.h`), for C, C++ (`include/memmgr.hpp`), PyTorch and
//! CuPy.
//!
//! Every function returns a [`memmgr_status`] and never unwinds; what went wrong is said by `memmgr_last_error`, of the calling
//! thread. Nothing is printed. All functions may be called from any thread, on any current device, which stays what it is.

#![deny(missing_docs)]
#![allow(non_camel_case_types)]

mod cupy;
#[cfg(feature = "sim")]
mod faults;
mod figures;
mod hooks;
mod memory;
mod settings;
mod snapshot;
mod status;
mod streams;
mod torch;
mod transfer;

pub use status::memmgr_status;

use std::ffi::c_char;

/// A CUDA stream: `cudaStream_t`, or `CUstream`, which is the same pointer.
#[repr(C)]
pub struct CUstream_st {
    _private: [u8; 0],
}

/// The version of the library, for example "0.3.0".
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What executes CUDA calls: "gpu", or "simulated" in a library that was built for machines without a GPU.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_backend() -> *const c_char {
    match manager::backend() {
        manager::Backend::Gpu => c"gpu".as_ptr(),
        manager::Backend::Simulated => c"simulated".as_ptr(),
    }
}
