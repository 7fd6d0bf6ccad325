//! Capture, graphs, sharing between processes: not simulated yet, and said so.

use super::{api, get, put};
use crate::calls::Call;
use crate::entry::not_simulated;
use crate::error::INVALID_VALUE;
use crate::runtime::lock;
use crate::sys::{self, cudaStream_t, cudaStreamCaptureMode, cudaStreamCaptureStatus};
use crate::thread;
use std::ffi::{c_ulonglong, c_void};

api! {
    fn cudaStreamIsCapturing(
        stream: cudaStream_t,
        pCaptureStatus: *mut cudaStreamCaptureStatus,
    ) needs Context {
        lock().stream(stream as usize, "cudaStreamIsCapturing")?;
        put(pCaptureStatus, cudaStreamCaptureStatus::cudaStreamCaptureStatusNone)
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: *mut cudaStreamCaptureMode) needs Driver {
        let new = get(mode)?;
        if new.0 > cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed.0 {
            return Err(INVALID_VALUE);
        }
        let old = thread::with(|t| t.capture_mode.replace(new.0));
        put(mode, cudaStreamCaptureMode(old))
    }

    fn cudaStreamBeginCapture(_stream: cudaStream_t, _mode: cudaStreamCaptureMode) needs Context {
        not_simulated(Call::cudaStreamBeginCapture)
    }

    fn cudaStreamEndCapture(_stream: cudaStream_t, _pGraph: *mut sys::cudaGraph_t) needs Context {
        not_simulated(Call::cudaStreamEndCapture)
    }

    fn cudaGraphInstantiate(
        _pGraphExec: *mut sys::cudaGraphExec_t,
        _graph: sys::cudaGraph_t,
        _flags: c_ulonglong,
    ) needs Context {
        not_simulated(Call::cudaGraphInstantiate)
    }

    fn cudaGraphLaunch(_graphExec: sys::cudaGraphExec_t, _stream: cudaStream_t) needs Context {
        not_simulated(Call::cudaGraphLaunch)
    }

    fn cudaGraphExecDestroy(_graphExec: sys::cudaGraphExec_t) needs Context {
        not_simulated(Call::cudaGraphExecDestroy)
    }

    fn cudaGraphDestroy(_graph: sys::cudaGraph_t) needs Context {
        not_simulated(Call::cudaGraphDestroy)
    }

    fn cudaIpcGetMemHandle(
        _handle: *mut sys::cudaIpcMemHandle_t,
        _devPtr: *mut c_void,
    ) needs Context {
        not_simulated(Call::cudaIpcGetMemHandle)
    }
}
