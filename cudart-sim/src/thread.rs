//! What each host thread has of its own: current device, last error, counters, capture mode, default streams.

use crate::calls::{COUNT, Call};
use crate::runtime;
use crate::sys::cudaError;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The plain part. It has no destructor, so that calls made while a thread ends still find it.
pub(crate) struct Thread {
    epoch: Cell<u64>,
    pub(crate) device: Cell<u32>,
    pub(crate) last_error: Cell<u32>,
    in_host_function: Cell<bool>,
    pub(crate) capture_mode: Cell<u32>,
    id: Cell<u64>,
    pub(crate) total_calls: Cell<u64>,
    pub(crate) calls: [Cell<u64>; COUNT],
}

crate::sync::thread_local! {
    static THREAD: Thread = const {
        Thread {
            epoch: Cell::new(0),
            device: Cell::new(0),
            last_error: Cell::new(0),
            in_host_function: Cell::new(false),
            capture_mode: Cell::new(0),
            id: Cell::new(0),
            total_calls: Cell::new(0),
            calls: [const { Cell::new(0) }; COUNT],
        }
    };
    static DEFAULT_STREAMS: RefCell<DefaultStreams> = const { RefCell::new(DefaultStreams(Vec::new())) };
}

/// This thread's `cudaStreamPerThread`, one a device: (device, epoch, slot, uid).
struct DefaultStreams(Vec<(u32, u64, u32, u64)>);

impl Drop for DefaultStreams {
    fn drop(&mut self) {
        if self.0.is_empty() || runtime::forked() {
            return;
        }
        let mut rt = runtime::lock();
        for (_, _, slot, uid) in self.0.drain(..) {
            rt.retire_stream(slot, uid);
        }
    }
}

/// Runs `f` with the calling thread's state.
pub(crate) fn with<T>(f: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(|t| {
        let epoch = runtime::epoch();
        if t.epoch.get() != epoch {
            t.epoch.set(epoch);
            t.device.set(0);
            t.last_error.set(0);
            t.capture_mode.set(0);
        }
        f(t)
    })
}

/// A number that no other thread ever has.
pub(crate) fn id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    with(|t| {
        if t.id.get() == 0 {
            t.id.set(NEXT.fetch_add(1, Relaxed));
        }
        t.id.get()
    })
}

/// The calling thread's current device.
pub(crate) fn device() -> u32 {
    with(|t| t.device.get())
}

/// Whether this thread is inside a host function, or what stands for a kernel.
pub(crate) fn in_host_function() -> bool {
    with(|t| t.in_host_function.get())
}

/// Runs a host function. Errors in it are its own: whatever thread runs it finds its last error as it was.
pub(crate) fn as_host_function(f: impl FnOnce()) {
    let before = with(|t| {
        t.in_host_function.set(true);
        t.last_error.replace(0)
    });
    f();
    with(|t| {
        t.in_host_function.set(false);
        t.last_error.set(before);
    });
}

/// Leaves an error for `cudaGetLastError`.
pub(crate) fn record_error(code: cudaError) {
    with(|t| t.last_error.set(code.0));
}

/// Counts a call of this thread.
pub(crate) fn count(call: Call) {
    with(|t| {
        t.total_calls.set(t.total_calls.get() + 1);
        if let Some(n) = t.calls.get(call as usize) {
            n.set(n.get() + 1);
        }
    });
}

/// The per-thread default stream on a device, if this thread has one already.
pub(crate) fn default_stream(device: u32) -> Option<(u32, u64)> {
    let epoch = runtime::epoch();
    DEFAULT_STREAMS
        .try_with(|streams| {
            let streams = streams.try_borrow().ok()?;
            let found = streams
                .0
                .iter()
                .find(|(d, e, ..)| *d == device && *e == epoch)?;
            Some((found.2, found.3))
        })
        .ok()
        .flatten()
}

/// Remembers the per-thread default stream of a device.
pub(crate) fn set_default_stream(device: u32, slot: u32, uid: u64) {
    let epoch = runtime::epoch();
    let _ = DEFAULT_STREAMS.try_with(|streams| {
        if let Ok(mut streams) = streams.try_borrow_mut() {
            streams.0.retain(|(_, e, ..)| *e == epoch);
            streams.0.push((device, epoch, slot, uid));
        }
    });
}
