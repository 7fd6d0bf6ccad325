//! The driver's functions that do what some of the runtime's do to a stream, for less time, found by name. None of them leaves an
//! error behind in `cudaGetLastError`.

use crate::{
    compat::driver_entry_point, cudaError, cudaEvent_t, cudaStream_t, cudaStreamCaptureStatus,
    found::Found,
};
use std::{
    ffi::{CStr, c_int, c_uint, c_void},
    mem,
};

/// The version in which the last of these functions came.
const SINCE: c_uint = 10_000;

type ToDevice = unsafe extern "C" fn(u64, *const c_void, usize, cudaStream_t) -> c_int;
type ToHost = unsafe extern "C" fn(*mut c_void, u64, usize, cudaStream_t) -> c_int;
type Record = unsafe extern "C" fn(cudaEvent_t, cudaStream_t) -> c_int;
type IsCapturing = unsafe extern "C" fn(cudaStream_t, *mut cudaStreamCaptureStatus) -> c_int;

/// The functions. Each answers whether it has done it; if not, nothing has happened, and the function of the runtime tells why.
///
/// They take streams that were created, not the default streams: which of those a handle means is the runtime's business.
#[derive(Debug, Clone, Copy)]
pub struct StreamCalls {
    to_device: ToDevice,
    to_host: ToHost,
    record: Record,
    is_capturing: IsCapturing,
}

/// The functions; `None` where the driver lacks one of them, or may not be asked for them (in a host function).
#[inline]
pub fn stream_calls() -> Option<&'static StreamCalls> {
    static FOUND: Found<StreamCalls> = Found::new();
    FOUND.get(StreamCalls::find).ok()
}

impl StreamCalls {
    fn find() -> Result<Self, cudaError> {
        let find = |name: &CStr| driver_entry_point(name, SINCE);
        // SAFETY: the driver's functions of these names and that version have these signatures: device pointers are 64-bit
        // numbers, results 32-bit ones; streams, events and the status of a capture are the runtime's.
        unsafe {
            Ok(Self {
                to_device: mem::transmute::<*mut c_void, ToDevice>(find(c"cuMemcpyHtoDAsync")?),
                to_host: mem::transmute::<*mut c_void, ToHost>(find(c"cuMemcpyDtoHAsync")?),
                record: mem::transmute::<*mut c_void, Record>(find(c"cuEventRecord")?),
                is_capturing: mem::transmute::<*mut c_void, IsCapturing>(find(
                    c"cuStreamIsCapturing",
                )?),
            })
        }
    }

    /// Copies `len` bytes to device memory (`cuMemcpyHtoDAsync`).
    ///
    /// # Safety
    /// As that of `cudaMemcpyAsync`: both ranges are alive until the copy has run, and so is the stream.
    #[inline]
    pub unsafe fn to_device(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        len: usize,
        stream: cudaStream_t,
    ) -> bool {
        // SAFETY: as this function demands.
        unsafe { (self.to_device)(dst.expose_provenance() as u64, src, len, stream) == 0 }
    }

    /// Copies `len` bytes from device memory (`cuMemcpyDtoHAsync`).
    ///
    /// # Safety
    /// As [`StreamCalls::to_device`].
    #[inline]
    pub unsafe fn to_host(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        len: usize,
        stream: cudaStream_t,
    ) -> bool {
        // SAFETY: as this function demands.
        unsafe { (self.to_host)(dst, src.expose_provenance() as u64, len, stream) == 0 }
    }

    /// Records an event (`cuEventRecord`).
    ///
    /// # Safety
    /// Event and stream are alive.
    #[inline]
    pub unsafe fn record(&self, event: cudaEvent_t, stream: cudaStream_t) -> bool {
        // SAFETY: as this function demands.
        unsafe { (self.record)(event, stream) == 0 }
    }

    /// What a stream is doing (`cuStreamIsCapturing`), if the driver tells.
    ///
    /// # Safety
    /// The stream is alive.
    #[inline]
    pub unsafe fn capture_status(&self, stream: cudaStream_t) -> Option<cudaStreamCaptureStatus> {
        let mut status = cudaStreamCaptureStatus::cudaStreamCaptureStatusNone;
        // SAFETY: as this function demands; the driver writes through a pointer to one status.
        let code = unsafe { (self.is_capturing)(stream, &mut status) };
        (code == 0).then_some(status)
    }
}
