//! The calls of CUDA: no other file makes any. Each function is one CUDA call (or, where the driver's
//! function fails that does the same for less, a second one that tells why): refused at exit and in a forked child, counted by
//! name, its failure turned into an [`Error`](crate::Error) that leaves nothing behind in `cudaGetLastError`.
//!
//! Functions that take a handle or a pointer are unsafe: the caller vouches that it is alive. The crate's modules `stream`,
//! `event_cache` and those of the segments own what they pass.

mod call;
mod copy;
mod count;
mod device;
mod error;
mod graph;
mod memory;
mod pool;
mod quick;
mod stream;
pub(crate) mod virtual_memory;

pub use copy::CopyKind;
pub use count::{cuda_calls, cuda_calls_on_this_thread};

pub(crate) use call::{as_host_function, relaxed};
pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use error::{
    CAPTURE_IMPLICIT, CONTEXT_IS_DESTROYED, INVALID_DEVICE, NOT_PERMITTED, OUT_OF_MEMORY,
    ends_context,
};
pub(crate) use graph::*;
pub(crate) use memory::*;
pub(crate) use pool::*;
pub(crate) use stream::*;
pub(crate) use sys::{
    cudaDeviceAttr as DeviceAttr, cudaMemPoolAttr as PoolAttr, cudaStreamCaptureMode as CaptureMode,
};

use cuda_sys as sys;
use std::{ffi::c_void, ptr};

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
