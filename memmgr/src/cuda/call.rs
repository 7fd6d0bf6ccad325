//! How a call is made: refused where none may be, counted, its failure turned into an error, and relaxed where the runtime takes it
//! for unsafe while a stream is captured.

use super::{
    CaptureMode,
    count::{Call, NAMES, count},
    error::{NOT_PERMITTED, NOT_READY, SUCCESS, failure},
};
use crate::{
    error::{Error, Result},
    process,
    sync::mark,
};
use cuda_sys as sys;
use std::cell::Cell;

crate::sync::thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function of this crate's: CUDA permits no call in it, so none is tried.
pub(crate) fn as_host_function<T>(f: impl FnOnce() -> T) -> T {
    let _ = IN_HOST_FUNCTION.try_with(|inside| inside.set(true));
    let value = f();
    let _ = IN_HOST_FUNCTION.try_with(|inside| inside.set(false));
    value
}

/// Refuses where no call may be made; in a host function with what CUDA would answer.
#[inline]
pub(super) fn gate(which: Call) -> Result<()> {
    mark();
    process::gate()?;
    if IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false) {
        return Err(not_permitted(which));
    }
    Ok(())
}

#[cold]
fn not_permitted(which: Call) -> Error {
    Error::Cuda {
        call: NAMES[which as usize],
        code: NOT_PERMITTED,
        name: "cudaErrorNotPermitted".to_owned(),
        description: "operation not permitted (in a host function)".to_owned(),
        also_pending: None,
    }
}

/// Makes one CUDA call.
pub(super) fn call(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<()> {
    gate(which)?;
    process::before_first_call();
    // SAFETY: the function has no preconditions.
    let pending = unsafe { sys::cudaPeekAtLastError() }.0 as i32;
    count(which);
    match f().0 as i32 {
        SUCCESS => {
            process::after_first_success();
            Ok(())
        }
        code => Err(failure(which, code, pending)),
    }
}

/// As [`call`], for what the runtime takes for unsafe while a stream is captured: see [`relaxed`].
pub(super) fn call_relaxed(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<()> {
    relaxed(|| call(which, f))
}

crate::sync::thread_local! {
    /// How many [`relaxed`] are running on this thread.
    static RELAXED: Cell<u32> = const { Cell::new(0) };
}

fn exchange_capture_mode(mode: CaptureMode) -> Result<CaptureMode> {
    let mut exchanged = mode;
    // SAFETY: `exchanged` is a place for one mode, and holds one.
    call(Call::ThreadExchangeCaptureMode, || unsafe {
        sys::cudaThreadExchangeStreamCaptureMode(&mut exchanged)
    })?;
    Ok(exchanged)
}

/// Runs `f` with the thread's capture mode relaxed, so that calls like `cudaMalloc` and `cudaEventQuery` end nobody's
/// capture, and restores the mode, whatever `f` did. There is no cheaper way: a capture of other code cannot be seen
/// before such a call has ended it. Calls inside one another exchange the mode once.
pub(crate) fn relaxed<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Restores the mode, if it was another one.
    struct Restore(CaptureMode);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = RELAXED.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
            if self.0 != CaptureMode::cudaStreamCaptureModeRelaxed {
                // A failure means that the context is gone or the process is ending: there is nothing left to capture.
                let _ = exchange_capture_mode(self.0);
            }
        }
    }
    if RELAXED.try_with(Cell::get).is_ok_and(|depth| depth > 0) {
        return f();
    }
    let former = exchange_capture_mode(CaptureMode::cudaStreamCaptureModeRelaxed)?;
    let _ = RELAXED.try_with(|depth| depth.set(depth.get() + 1));
    let _restore = Restore(former);
    f()
}

/// Makes a call that answers "not ready" with a code that is no failure.
pub(super) fn ask(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<bool> {
    relaxed(|| ask_now(which, f))
}

fn ask_now(which: Call, f: impl FnOnce() -> sys::cudaError_t) -> Result<bool> {
    gate(which)?;
    // SAFETY: the function has no preconditions.
    let pending = unsafe { sys::cudaPeekAtLastError() }.0 as i32;
    count(which);
    match f().0 as i32 {
        SUCCESS => Ok(true),
        NOT_READY => Ok(false),
        code => Err(failure(which, code, pending)),
    }
}
