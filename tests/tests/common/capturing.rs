//! Captures in raw calls.
#![allow(dead_code)]

use memmgr::{CaptureMode, Stream};
use std::ptr::null_mut;

/// What `cudaStreamIsCapturing` says: 0 for no capture, 1 for an active one, 2 for one that is dead.
pub fn status(raw: *mut std::ffi::c_void) -> u32 {
    let mut status = cuda_sys::cudaStreamCaptureStatus(9);
    // SAFETY: the stream is alive, `status` is a place for one status.
    let code = unsafe { cuda_sys::cudaStreamIsCapturing(raw.cast(), &mut status) };
    assert_eq!(code.0, 0, "cudaStreamIsCapturing");
    status.0
}

/// Begins a capture by other means than the manager's.
pub fn begin(stream: &Stream, mode: CaptureMode) {
    let mode = match mode {
        CaptureMode::Global => cuda_sys::cudaStreamCaptureMode::cudaStreamCaptureModeGlobal,
        CaptureMode::ThreadLocal => {
            cuda_sys::cudaStreamCaptureMode::cudaStreamCaptureModeThreadLocal
        }
        CaptureMode::Relaxed => cuda_sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed,
    };
    // SAFETY: the stream is alive.
    let code = unsafe { cuda_sys::cudaStreamBeginCapture(stream.as_raw().cast(), mode) };
    assert_eq!(code.0, 0, "cudaStreamBeginCapture");
}

/// Ends a capture: the answer, and the graph.
pub fn end(raw: *mut std::ffi::c_void) -> (u32, cuda_sys::cudaGraph_t) {
    let mut graph = null_mut();
    // SAFETY: the stream is alive, `graph` is a place for one handle.
    let code = unsafe { cuda_sys::cudaStreamEndCapture(raw.cast(), &mut graph) };
    // SAFETY: the function has no preconditions.
    unsafe { cuda_sys::cudaGetLastError() };
    (code.0, graph)
}

/// Forgets what was captured.
pub fn destroy(graph: cuda_sys::cudaGraph_t) {
    if !graph.is_null() {
        // SAFETY: the graph is alive and nobody uses it afterwards.
        assert_eq!(unsafe { cuda_sys::cudaGraphDestroy(graph) }.0, 0);
    }
}
