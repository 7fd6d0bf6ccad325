//! What a process can do to CUDA: exit and fork. After either, nothing here makes a CUDA call any more.

use crate::error::{Error, Result};
use std::sync::{
    Once,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

const RUNNING: u8 = 0;
const EXITING: u8 = 1;
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(RUNNING);
/// Whether CUDA was used: a child forked before that is free to use it.
static USED: AtomicBool = AtomicBool::new(false);
static ATFORK: Once = Once::new();
static ATEXIT: Once = Once::new();

/// Refuses where no CUDA call may be made.
#[inline]
pub(crate) fn gate() -> Result<()> {
    match STATE.load(Ordering::Relaxed) {
        RUNNING => Ok(()),
        FORKED => Err(Error::ForkedChild),
        _ => Err(Error::Unavailable {
            code: None,
            reason: "the process is exiting".into(),
        }),
    }
}

/// Whether drops must leave CUDA alone.
pub(crate) fn is_over() -> bool {
    STATE.load(Ordering::Relaxed) != RUNNING
}

/// Whether this is a forked child, whose locks may be held by threads that it does not have.
pub(crate) fn is_forked() -> bool {
    STATE.load(Ordering::Relaxed) == FORKED
}

/// Installs the fork handler; before the first CUDA call.
pub(crate) fn before_first_call() {
    ATFORK.call_once(|| {
        // SAFETY: the handler is a plain function without captures that stores to an atomic, which is all that a
        // forked child of a threaded program may safely do.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Installs the exit handler; after the first successful CUDA call, so that it runs before the runtime's own.
pub(crate) fn after_first_success() {
    ATEXIT.call_once(|| {
        USED.store(true, Ordering::Relaxed);
        // SAFETY: the handler is a plain function without captures that stores to an atomic; it may run at any point
        // of the process's exit.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn in_child() {
    if USED.load(Ordering::Relaxed) {
        STATE.store(FORKED, Ordering::Relaxed);
    }
}

extern "C" fn at_exit() {
    let _ = STATE.compare_exchange(RUNNING, EXITING, Ordering::Relaxed, Ordering::Relaxed);
}
