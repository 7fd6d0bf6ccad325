//! What every C function does first and last: counting, the states in which nothing works, faults, the last error.

use crate::calls::Call;
use crate::error::{Answer, NOT_PERMITTED, NOT_READY};
use crate::sys::{CUresult, cudaError, cudaStream_t};
use crate::{capture, counters, fault, runtime, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a call needs before it can do anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// A driver.
    Driver,
    /// A device.
    Device,
    /// A device whose context is not broken.
    Context,
}

/// An argument of a C function: whether it is a stream. The method of the type that is one goes before the trait's.
pub(crate) struct Argument<T>(pub(crate) T);

impl Argument<cudaStream_t> {
    pub(crate) fn stream(&self) -> Option<usize> {
        Some(self.0 as usize)
    }
}

/// What all other arguments are.
pub(crate) trait NoStream {
    fn stream(&self) -> Option<usize> {
        None
    }
}

impl<T> NoStream for Argument<T> {}

/// What a host function may ask, besides the questions about errors and versions (measured, all of them).
const IN_HOST_FUNCTIONS: [Call; 4] = [
    Call::cudaGetDeviceCount,
    Call::cudaEventQuery,
    Call::cuEventRecord,
    Call::cuStreamIsCapturing,
];

/// Runs the body of a C function. A failure becomes this thread's last error, except "not ready", which is none.
/// `stream`: the first one among its arguments. A panic inside (a defect of the simulator) is caught and answered with `cudaErrorUnknown`.
pub(crate) fn enter(
    call: Call,
    stream: Option<usize>,
    needs: Needs,
    body: impl FnOnce() -> Answer,
) -> cudaError {
    counters::count(call);
    run(Some((call, stream)), needs, body)
}

/// As [`enter`], for what is no C function: not counted, and no fault can be set for it.
pub(crate) fn enter_named(needs: Needs, body: impl FnOnce() -> Answer) -> cudaError {
    run(None, needs, body)
}

/// As [`enter`], for a function of the driver: its failures leave no last error.
pub(crate) fn enter_driver(call: Call, needs: Needs, body: impl FnOnce() -> Answer) -> CUresult {
    counters::count(call);
    let answer = gate(Some(call)).and_then(|()| answer(Some((call, None)), needs, body));
    CUresult(answer.map_or_else(|code| code.0, |()| 0))
}

/// A function, and the stream that it is given.
type Called = (Call, Option<usize>);

fn run(call: Option<Called>, needs: Needs, body: impl FnOnce() -> Answer) -> cudaError {
    if let Err(code) = gate(call.map(|(call, _)| call)) {
        // It is the last error of the host function's thread (measured).
        if code == NOT_PERMITTED {
            thread::record_error(code);
        }
        return code;
    }
    match answer(call, needs, body) {
        Ok(()) => cudaError::cudaSuccess,
        Err(code) => {
            if code != NOT_READY && code != cudaError::cudaSuccess {
                thread::record_error(code);
            }
            code
        }
    }
}

fn answer(call: Option<Called>, needs: Needs, body: impl FnOnce() -> Answer) -> Answer {
    match call.and_then(|(call, stream)| fault::injected(call, stream)) {
        Some(code) => Err(code),
        None => catch_unwind(AssertUnwindSafe(|| {
            usable(needs)?;
            if let Some((call, _)) = call {
                if call.since() > runtime::driver_version() {
                    return Err(cudaError::cudaErrorCallRequiresNewerDriver);
                }
                capture::gate(call)?;
            }
            body()
        }))
        .unwrap_or(Err(cudaError::cudaErrorUnknown)),
    }
}

/// The states in which calls are refused, whatever the machine: without leaving an error behind, but for host functions.
fn gate(call: Option<Call>) -> Answer {
    if runtime::forked() {
        return Err(cudaError::cudaErrorInitializationError);
    }
    if runtime::unloaded() {
        return Err(cudaError::cudaErrorCudartUnloading);
    }
    runtime::start();
    if runtime::no_driver() {
        return Err(cudaError::cudaErrorInsufficientDriver);
    }
    let permitted = call.is_some_and(|call| IN_HOST_FUNCTIONS.contains(&call));
    if !permitted && thread::in_host_function() {
        return Err(NOT_PERMITTED);
    }
    Ok(())
}

fn usable(needs: Needs) -> Answer {
    if needs != Needs::Driver && runtime::device_count() == 0 {
        return Err(cudaError::cudaErrorNoDevice);
    }
    if needs == Needs::Context
        && let Some(code) = runtime::broken(thread::device())
    {
        return Err(code);
    }
    if needs == Needs::Context {
        runtime::make_context(thread::device());
    }
    Ok(())
}
