//! Whether the devices' contexts are still those that the manager's memory belongs to.
//!
//! `cudaDeviceReset` takes all memory, streams and events of a context away, and later allocations get the same addresses
//! again. A context is known by an id that is never reused (`cuCtxGetId`, CUDA 12); where the driver cannot tell it, a
//! reset is not noticed. Once one is noticed, the manager makes no CUDA call any more.

use crate::{cuda, error::Result, process};
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// More devices than this are not watched.
const MOST: usize = 64;

/// The context of one device that the manager has used: its handle, and its id; 0 before.
struct Context {
    handle: AtomicUsize,
    id: AtomicU64,
}

static CONTEXTS: [Context; MOST] = [const {
    Context {
        handle: AtomicUsize::new(0),
        id: AtomicU64::new(0),
    }
}; MOST];

fn of(device: i32) -> Option<&'static Context> {
    CONTEXTS.get(usize::try_from(device).ok()?)
}

/// Notes the context of a device, which is current and has a context, when something of it is about to be kept.
pub(crate) fn note(device: i32) {
    let Some(context) = of(device).filter(|context| context.id.load(Relaxed) == 0) else {
        return;
    };
    if let Some((handle, id)) = cuda::current_context() {
        context.handle.store(handle, Relaxed);
        let _ = context.id.compare_exchange(0, id, Release, Relaxed);
    }
}

/// Refuses if the device was reset since [`note`]; one call of the driver.
pub(crate) fn check(device: i32) -> Result<()> {
    if let Some(context) = of(device) {
        let id = context.id.load(Acquire);
        if id != 0 {
            match cuda::context_id(context.handle.load(Relaxed)) {
                Ok(now) if now != id => process::device_was_reset(device),
                Err(cuda::CONTEXT_IS_DESTROYED) => process::device_was_reset(device),
                // Another failure (in a host function, for example) tells nothing.
                _ => {}
            }
        }
    }
    process::gate()
}

/// Refuses if any device that is watched was reset.
pub(crate) fn check_all() -> Result<()> {
    for (device, context) in CONTEXTS.iter().enumerate() {
        if context.id.load(Relaxed) != 0
            && let Ok(device) = i32::try_from(device)
        {
            check(device)?;
        }
    }
    process::gate()
}

/// The machine is gone, with all contexts.
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) fn forget() {
    for context in &CONTEXTS {
        context.handle.store(0, Relaxed);
        context.id.store(0, Release);
    }
}

/// The calling thread's current device. Where its context is known, in one call, which is all that a hit without a stream
/// makes.
pub(crate) fn current_device() -> Result<i32> {
    let known = cuda::context_id(0).ok().and_then(|id| {
        let place = CONTEXTS
            .iter()
            .position(|context| context.id.load(Relaxed) == id)?;
        i32::try_from(place).ok()
    });
    match known {
        Some(device) => Ok(device),
        None => {
            let device = cuda::get_device()?;
            check(device)?;
            Ok(device)
        }
    }
}
