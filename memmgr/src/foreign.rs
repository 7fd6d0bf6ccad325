//! Calls of code that is not the manager's (hooks, observers, deleters, host functions, wakers, who listens to the log):
//! whatever it throws stays here.

use std::{
    mem::forget,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Runs `f`; `None` if it panics. What was thrown may throw once more when it is dropped; that is leaked.
pub(crate) fn run<T>(f: impl FnOnce() -> T) -> Option<T> {
    let thrown = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => return Some(value),
        Err(thrown) => thrown,
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        forget(again);
    }
    None
}

/// As [`run`]; a panic is told to the log.
pub(crate) fn report<T>(what: &str, f: impl FnOnce() -> T) -> Option<T> {
    let value = run(f);
    if value.is_none() {
        log(|| tracing::error!("{what} panicked"));
    }
    value
}

/// Writes to the log where no panic of a listener may get out: in drops, and on the way to a proof.
pub(crate) fn log(f: impl FnOnce()) {
    let _ = run(f);
}
