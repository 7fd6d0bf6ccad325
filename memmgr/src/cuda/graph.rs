//! Captures, and the graphs that they make.

use super::{
    CaptureMode, RawExec, RawGraph, RawStream,
    call::{call, call_relaxed},
    count::Call,
    quick::by_driver,
};
use crate::error::{Error, Result};
use cuda_sys as sys;
use std::{ffi::c_void, ptr};

/// Whether the stream is being captured into a graph.
///
/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_is_capturing(stream: RawStream) -> Result<bool> {
    let none = sys::cudaStreamCaptureStatus::cudaStreamCaptureStatusNone;
    // SAFETY: the handle is alive.
    let asked = by_driver(Call::StreamIsCapturing, stream, |driver| unsafe {
        driver.capture_status(stream.get())
    });
    if let Some(status) = asked {
        return Ok(status != none);
    }
    let mut status = none;
    // SAFETY: the handle is alive, `status` is a place for one status.
    call(Call::StreamIsCapturing, || unsafe {
        sys::cudaStreamIsCapturing(stream.get(), &mut status)
    })?;
    Ok(status != none)
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
