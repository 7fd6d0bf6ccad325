//! What a process can do to CUDA: exit, fork, and reset a device. After any of them, nothing here makes a CUDA call any
//! more. And what it runs on.

use crate::{
    error::{Error, Result},
    foreign,
};
use std::sync::{
    Once,
    atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering},
};

const RUNNING: u8 = 0;
const EXITING: u8 = 1;
const FORKED: u8 = 2;
const RESET: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(RUNNING);
/// Whether CUDA was used: a child forked before that is free to use it.
static USED: AtomicBool = AtomicBool::new(false);
static RESET_DEVICE: AtomicI32 = AtomicI32::new(0);
static ATFORK: Once = Once::new();
static ATEXIT: Once = Once::new();

/// Refuses where no CUDA call may be made.
#[inline]
pub(crate) fn gate() -> Result<()> {
    match STATE.load(Ordering::Relaxed) {
        RUNNING => Ok(()),
        state => Err(refusal(state)),
    }
}

#[cold]
fn refusal(state: u8) -> Error {
    match state {
        FORKED => Error::ForkedChild,
        RESET => Error::Unavailable {
            code: None,
            reason: format!(
                "device {} was reset (cudaDeviceReset), and the memory of this process's managers went with it; shut them down before a reset, and go on in a new process",
                RESET_DEVICE.load(Ordering::Relaxed)
            ),
        },
        _ => Error::Unavailable {
            code: None,
            reason: "the process is exiting".into(),
        },
    }
}

/// Whether CUDA calls may be made.
#[inline]
pub(crate) fn is_running() -> bool {
    STATE.load(Ordering::Relaxed) == RUNNING
}

/// Whether drops must leave CUDA alone.
pub(crate) fn is_over() -> bool {
    STATE.load(Ordering::Relaxed) != RUNNING
}

/// Whether this is a forked child, whose locks may be held by threads that it does not have.
pub(crate) fn is_forked() -> bool {
    STATE.load(Ordering::Relaxed) == FORKED
}

/// Whether no work that was submitted can still touch this process's memory: it is a forked child, or the device was reset.
pub(crate) fn has_lost_its_context() -> bool {
    matches!(STATE.load(Ordering::Relaxed), FORKED | RESET)
}

/// How many processors the machine has, whichever of them the calling thread may run on.
pub(crate) fn processors() -> usize {
    // SAFETY: the call takes a number and touches no memory of the caller's.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).map_or(1, |online| online.max(1))
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

/// A device was reset under the managers: what they hold is gone, and its addresses may be somebody else's.
pub(crate) fn device_was_reset(device: i32) {
    RESET_DEVICE.store(device, Ordering::Relaxed);
    if STATE
        .compare_exchange(RUNNING, RESET, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        // Whoever notices may be in a drop, or in the middle of a proof.
        foreign::log(|| tracing::error!(device, "the device was reset under its memory manager"));
    }
}

extern "C" fn in_child() {
    if USED.load(Ordering::Relaxed) {
        STATE.store(FORKED, Ordering::Relaxed);
    }
}

extern "C" fn at_exit() {
    let _ = STATE.compare_exchange(RUNNING, EXITING, Ordering::Relaxed, Ordering::Relaxed);
}
