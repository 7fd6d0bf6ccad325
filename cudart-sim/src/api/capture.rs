//! Capture and graphs: what a stream is told to record, and the running of it.

use super::{api, get, need, put};
use crate::capture::Status;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::graph::{Exec, Object, Owned};
use crate::runtime::lock;
use crate::sys::{
    cudaError, cudaGraph_t, cudaGraphEdgeData, cudaGraphExec_t, cudaGraphNode_t, cudaHostFn_t,
    cudaStream_t, cudaStreamCaptureMode as Mode, cudaStreamCaptureStatus, cudaUserObject_t,
};
use crate::work::Work;
use crate::{check, thread, worker};
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// The one flag of a user object, which it must have, and the one of a graph that takes references over.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
const MOVE: c_uint = 1;

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

pub(super) fn is_capturing(
    call: &str,
    stream: cudaStream_t,
    status: *mut cudaStreamCaptureStatus,
) -> Answer {
    need(status)?;
    let mut rt = lock();
    let slot = rt.stream(stream as usize, call)?;
    // The one question about it that kills nothing.
    if rt.implicit(slot) {
        return Err(cudaError::cudaErrorStreamCaptureImplicit);
    }
    let found = match rt.capture_status(slot) {
        Status::None => cudaStreamCaptureStatus::cudaStreamCaptureStatusNone,
        Status::Active => cudaStreamCaptureStatus::cudaStreamCaptureStatusActive,
        Status::Dead => cudaStreamCaptureStatus::cudaStreamCaptureStatusInvalidated,
    };
    put(status, found)
}

api! {
    fn cudaStreamIsCapturing(
        stream: cudaStream_t,
        pCaptureStatus: *mut cudaStreamCaptureStatus,
    ) needs Context {
        is_capturing("cudaStreamIsCapturing", stream, pCaptureStatus)
    }

    fn cudaStreamGetCaptureInfo(
        stream: cudaStream_t,
        captureStatus_out: *mut cudaStreamCaptureStatus,
        id_out: *mut c_ulonglong,
        graph_out: *mut cudaGraph_t,
        dependencies_out: *mut *const cudaGraphNode_t,
        edgeData_out: *mut *const cudaGraphEdgeData,
        numDependencies_out: *mut usize,
    ) needs Context {
        need(captureStatus_out)?;
        if !dependencies_out.is_null() || !edgeData_out.is_null() || !numDependencies_out.is_null() {
            eprintln!("cudart-sim: cudaStreamGetCaptureInfo knows no nodes; pass null for them");
            return Err(NOT_SUPPORTED);
        }
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaStreamGetCaptureInfo")?;
        if rt.implicit(slot) {
            return Err(cudaError::cudaErrorStreamCaptureImplicit);
        }
        let info = rt.capture_info(slot)?;
        if let Some((id, graph)) = info {
            if !id_out.is_null() {
                put(id_out, id)?;
            }
            if !graph_out.is_null() {
                put(graph_out, graph as cudaGraph_t)?;
            }
        }
        put(captureStatus_out, match rt.capture_status(slot) {
            Status::None => cudaStreamCaptureStatus::cudaStreamCaptureStatusNone,
            Status::Active => cudaStreamCaptureStatus::cudaStreamCaptureStatusActive,
            Status::Dead => cudaStreamCaptureStatus::cudaStreamCaptureStatusInvalidated,
        })
    }

    fn cudaUserObjectCreate(
        object_out: *mut cudaUserObject_t,
        ptr: *mut c_void,
        destroy: cudaHostFn_t,
        initialRefcount: c_uint,
        flags: c_uint,
    ) needs Driver {
        need(object_out)?;
        let destroy = destroy.ok_or(INVALID_VALUE)?;
        if flags != NO_DESTRUCTOR_SYNC || initialRefcount == 0 || initialRefcount > i32::MAX as u32 {
            return Err(INVALID_VALUE);
        }
        let object = Arc::new(Object::new(destroy, ptr as usize));
        let owned = Owned { object, references: initialRefcount };
        let handle = lock().graphs.objects.insert(owned)?;
        put(object_out, handle as cudaUserObject_t)
    }

    fn cudaUserObjectRelease(object: cudaUserObject_t, count: c_uint) needs Driver {
        release(&mut lock(), "cudaUserObjectRelease", object as usize, count)
    }

    fn cudaGraphRetainUserObject(
        graph: cudaGraph_t,
        object: cudaUserObject_t,
        count: c_uint,
        flags: c_uint,
    ) needs Driver {
        if flags & !MOVE != 0 || count == 0 || count > i32::MAX as u32 {
            return Err(INVALID_VALUE);
        }
        let mut rt = lock();
        let call = "cudaGraphRetainUserObject";
        let known = rt.graphs.objects.get(object as usize).map(|owned| owned.object.clone());
        let kept = known.ok_or_else(|| unknown(call, "user object", object as usize))?;
        let body = rt.graphs.graphs.get(graph as usize).cloned();
        let body = body.ok_or_else(|| unknown(call, "graph", graph as usize))?;
        if flags & MOVE != 0 {
            release(&mut rt, call, object as usize, count)?;
        }
        if let Some(kept) = rt.capture_keep(graph as usize, vec![kept]) {
            body.keep(kept);
        }
        Ok(())
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
        let (body, handle) = rt.capture_end(slot)?;
        let body = Arc::new(body);
        if let Some(handle) = handle
            && let Some(known) = rt.graphs.graphs.get_mut(handle)
        {
            *known = body;
            return put(pGraph, handle as cudaGraph_t);
        }
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
        if rt.is_captured_into(graph as usize) {
            eprintln!("cudart-sim: a graph cannot be instantiated while it is captured into");
            return Err(NOT_SUPPORTED);
        }
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
        let body = exec_body(&rt, graphExec as usize);
        let (mut rt, point) = worker::submit(rt, "cudaGraphLaunch", slot, work, after)?;
        if let Some(exec) = rt.graphs.execs.get_mut(graphExec as usize)
            && !captured
        {
            exec.last = Some(point);
            if let Some(body) = body {
                body.launched(point.uid);
            }
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
        if rt.is_captured_into(graph as usize) {
            return Err(INVALID_VALUE);
        }
        let Some(body) = rt.graphs.graphs.remove(graph as usize) else {
            return Err(unknown("cudaGraphDestroy", "graph", graph as usize));
        };
        rt.graphs.retire(body);
        rt.bury_graphs();
        Ok(())
    }
}

fn exec_body(rt: &crate::runtime::Guard, exec: usize) -> Option<Arc<crate::graph::Body>> {
    rt.graphs.execs.get(exec).map(|exec| exec.body.clone())
}

/// The program gives references to a user object back.
fn release(rt: &mut crate::runtime::Guard, call: &str, object: usize, count: c_uint) -> Answer {
    let Some(owned) = rt.graphs.objects.get_mut(object) else {
        return Err(unknown(call, "user object", object));
    };
    if count == 0 || count > owned.references {
        return Err(INVALID_VALUE);
    }
    owned.references -= count;
    if owned.references == 0 {
        rt.graphs.objects.remove(object);
    }
    Ok(())
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
