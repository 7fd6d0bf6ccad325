//! Capture and graphs: what a stream is told to record, and the running of it.

use super::{api, get, need, put};
use crate::capture::Status;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::graph::Exec;
use crate::runtime::lock;
use crate::sys::{
    cudaError, cudaGraph_t, cudaGraphExec_t, cudaStream_t, cudaStreamCaptureMode as Mode,
    cudaStreamCaptureStatus,
};
use crate::work::Work;
use crate::{check, thread, worker};
use std::ffi::c_ulonglong;
use std::ptr::null_mut;
use std::sync::Arc;

/// Flags of an instantiation: free on launch, upload, launch from a device, priorities of nodes.
const FLAGS: c_ulonglong = 15;
const FROM_DEVICE: c_ulonglong = 4;

fn unknown(call: &str, what: &str, handle: usize) -> cudaError {
    eprintln!(
        "cudart-sim: {call} was given the {what} {handle:#x}, which was destroyed or never existed; \
         the real runtime may crash on that"
    );
    INVALID_VALUE
}

api! {
    fn cudaStreamIsCapturing(
        stream: cudaStream_t,
        pCaptureStatus: *mut cudaStreamCaptureStatus,
    ) needs Context {
        need(pCaptureStatus)?;
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaStreamIsCapturing")?;
        // The one question about it that kills nothing.
        if rt.implicit(slot) {
            return Err(cudaError::cudaErrorStreamCaptureImplicit);
        }
        put(pCaptureStatus, match rt.capture_status(slot) {
            Status::None => cudaStreamCaptureStatus::cudaStreamCaptureStatusNone,
            Status::Active => cudaStreamCaptureStatus::cudaStreamCaptureStatusActive,
            Status::Dead => cudaStreamCaptureStatus::cudaStreamCaptureStatusInvalidated,
        })
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: *mut Mode) needs Driver {
        // Modes that do not exist are accepted (measured); they forbid as thread-local does.
        let new = get(mode)?;
        let old = thread::with(|t| t.capture_mode.replace(new.0));
        put(mode, Mode(old))
    }

    fn cudaStreamBeginCapture(stream: cudaStream_t, mode: Mode) needs Context {
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaStreamBeginCapture")?;
        rt.capture_begin(slot, mode.0)
    }

    fn cudaStreamEndCapture(stream: cudaStream_t, pGraph: *mut cudaGraph_t) needs Context {
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaStreamEndCapture")?;
        if rt.capture_status(slot) != Status::None {
            need(pGraph)?;
        }
        if !pGraph.is_null() {
            put(pGraph, null_mut())?;
        }
        let body = Arc::new(rt.capture_end(slot)?);
        let kept = body.clone();
        match rt.graphs.graphs.insert(body) {
            Ok(handle) => put(pGraph, handle as cudaGraph_t),
            Err(code) => {
                rt.free_graph_blocks(kept.id, &kept.blocks);
                Err(code)
            }
        }
    }

    fn cudaGraphInstantiate(
        pGraphExec: *mut cudaGraphExec_t,
        graph: cudaGraph_t,
        flags: c_ulonglong,
    ) needs Context {
        need(pGraphExec)?;
        if flags & !FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        if flags & FROM_DEVICE != 0 {
            return Err(NOT_SUPPORTED);
        }
        let mut rt = lock();
        let known = rt.graphs.graphs.get(graph as usize).cloned();
        let body = known.ok_or_else(|| unknown("cudaGraphInstantiate", "graph", graph as usize))?;
        let handle = rt.graphs.execs.insert(Exec { body, last: None })?;
        put(pGraphExec, handle as cudaGraphExec_t)
    }

    fn cudaGraphLaunch(graphExec: cudaGraphExec_t, stream: cudaStream_t) needs Context {
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaGraphLaunch")?;
        let Some(exec) = rt.graphs.execs.get(graphExec as usize) else {
            return Err(unknown("cudaGraphLaunch", "executable graph", graphExec as usize));
        };
        let after = exec.last.into_iter().collect();
        let work = Work::Graph(exec.body.clone());
        rt.forbid_implicit(slot)?;
        let captured = rt.capture_status(slot) != Status::None;
        if !captured {
            check::launches(graphExec as usize, rt.engine.stream(slot));
        }
        let (mut rt, point) = worker::submit(rt, "cudaGraphLaunch", slot, work, after)?;
        if let Some(exec) = rt.graphs.execs.get_mut(graphExec as usize)
            && !captured
        {
            exec.last = Some(point);
            check::launched(graphExec as usize, point.uid);
        }
        Ok(())
    }

    // What has been launched runs to its end.
    fn cudaGraphExecDestroy(graphExec: cudaGraphExec_t) needs Context {
        let mut rt = lock();
        let Some(exec) = rt.graphs.execs.remove(graphExec as usize) else {
            return Err(unknown("cudaGraphExecDestroy", "executable graph", graphExec as usize));
        };
        check::exec_destroyed(graphExec as usize);
        rt.graphs.retire(exec.body);
        rt.bury_graphs();
        Ok(())
    }

    fn cudaGraphDestroy(graph: cudaGraph_t) needs Context {
        let mut rt = lock();
        let Some(body) = rt.graphs.graphs.remove(graph as usize) else {
            return Err(unknown("cudaGraphDestroy", "graph", graph as usize));
        };
        rt.graphs.retire(body);
        rt.bury_graphs();
        Ok(())
    }
}

/// Memory for the work of a stream: when it captures, from the graph. `None`: it does not capture.
pub(super) fn allocation(
    rt: &mut crate::runtime::Guard,
    slot: u32,
    size: usize,
) -> Answer<Option<u64>> {
    if rt.capture_status(slot) == Status::None {
        rt.forbid_unsafe()?;
        return Ok(None);
    }
    let size = u64::try_from(size).map_err(|_| INVALID_VALUE)?;
    rt.capture_allocation(slot, size)
}
