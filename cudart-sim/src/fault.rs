//! Fault injection: makes the next calls of a function fail with a chosen code, without doing anything.

use crate::calls::Call;
use crate::sys::cudaError;
use crate::{runtime, thread};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

struct Rule {
    call: Call,
    code: cudaError,
    thread: ThreadId,
    any_thread: AtomicBool,
    /// One more than the device; 0: any.
    device: AtomicU64,
    skip: AtomicU64,
    left: AtomicU64,
    fired: AtomicU64,
}

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static RULES: Mutex<Vec<Arc<Rule>>> = Mutex::new(Vec::new());

fn rules() -> MutexGuard<'static, Vec<Arc<Rule>>> {
    RULES.lock().unwrap_or_else(|e| e.into_inner())
}

/// The device that a call is for: that of the stream it is given, if it is given one that lives, else the current one.
fn device_of(stream: Option<usize>) -> u64 {
    // Handles up to 2 are the default streams of the current device.
    let named = stream.filter(|s| *s > 2).and_then(|handle| {
        let rt = runtime::lock();
        let (slot, _) = rt.streams.get(handle)?;
        rt.engine.stream(*slot).map(|s| s.device)
    });
    u64::from(named.unwrap_or_else(thread::device))
}

/// The code with which this call is to fail, if a fault is set for it; `stream`: the one that it is given.
pub(crate) fn injected(call: Call, stream: Option<usize>) -> Option<cudaError> {
    find(call, stream, true)
}

/// As [`injected`], for a function of the driver that does the same as this one of the runtime. The fault is not used up: who is
/// refused by the driver asks the runtime, and meets it there.
pub(crate) fn injected_beside(call: Call, stream: usize) -> Option<cudaError> {
    find(call, Some(stream), false)
}

fn find(call: Call, stream: Option<usize>, uses_up: bool) -> Option<cudaError> {
    if ACTIVE.load(Relaxed) == 0 {
        return None;
    }
    let device = device_of(stream);
    let me = std::thread::current().id();
    for rule in rules().iter() {
        let chosen = rule.device.load(Relaxed);
        if rule.call != call
            || !(rule.any_thread.load(Relaxed) || rule.thread == me)
            || !(chosen == 0 || chosen == device + 1)
        {
            continue;
        }
        // The lock is held: these need not be one atomic step.
        if rule.skip.load(Relaxed) > 0 {
            rule.skip.fetch_sub(1, Relaxed);
        } else if rule.left.load(Relaxed) > 0 {
            if uses_up {
                rule.left.fetch_sub(1, Relaxed);
                rule.fired.fetch_add(1, Relaxed);
            }
            return Some(rule.code);
        }
    }
    None
}

/// A fault that is set. Dropping it removes it.
#[must_use = "the fault is removed when this is dropped"]
pub struct Fault(Arc<Rule>);

/// Makes the function of this name answer `code` instead of doing its work: the next call that this thread makes,
/// unless [`after`](Fault::after), [`times`](Fault::times), [`any_thread`](Fault::any_thread) or
/// [`on_device`](Fault::on_device) say otherwise. A failed call leaves its code as the last error, as every failed call does.
///
/// The driver's functions that do the same as `cudaMemcpyAsync`, `cudaEventRecord` and `cudaStreamIsCapturing` fail with them, and
/// count as their calls where some are let pass; but only a call of the runtime's uses the fault up.
///
/// ```
/// use cudart_sim::sys;
/// let fault = cudart_sim::fail("cudaMalloc", sys::cudaError::cudaErrorMemoryAllocation);
/// let mut p = std::ptr::null_mut();
/// // SAFETY: `p` is a valid place for a pointer.
/// assert_eq!(unsafe { sys::cudaMalloc(&mut p, 256) }.0, 2);
/// assert_eq!(fault.fired(), 1);
/// ```
///
/// # Panics
/// If no function of that name is exported, or if it answers no code (`cudaGetErrorName`, `make_cudaPos` …).
pub fn fail(name: &str, code: cudaError) -> Fault {
    let Some(call) = Call::find(name) else {
        panic!("cudart-sim: there is no function {name}");
    };
    if call.answers_no_code() {
        panic!("cudart-sim: {name} answers no code that it could fail with");
    }
    let rule = Arc::new(Rule {
        call,
        code,
        thread: std::thread::current().id(),
        any_thread: AtomicBool::new(false),
        device: AtomicU64::new(0),
        skip: AtomicU64::new(0),
        left: AtomicU64::new(1),
        fired: AtomicU64::new(0),
    });
    rules().push(rule.clone());
    ACTIVE.fetch_add(1, Relaxed);
    Fault(rule)
}

impl Fault {
    /// Lets this many calls pass first.
    pub fn after(self, calls: u64) -> Self {
        self.0.skip.store(calls, Relaxed);
        self
    }

    /// Fails this many calls.
    pub fn times(self, calls: u64) -> Self {
        self.0.left.store(calls, Relaxed);
        self
    }

    /// Fails calls of every thread, not of this one only.
    pub fn any_thread(self) -> Self {
        self.0.any_thread.store(true, Relaxed);
        self
    }

    /// Fails calls for this device alone; others are not counted. A call is for the device of the stream that it is
    /// given, and without one for the current device of its thread.
    pub fn on_device(self, device: u32) -> Self {
        self.0.device.store(u64::from(device) + 1, Relaxed);
        self
    }

    /// How many calls it has made fail.
    pub fn fired(&self) -> u64 {
        self.0.fired.load(Relaxed)
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        rules().retain(|r| !Arc::ptr_eq(r, &self.0));
        ACTIVE.fetch_sub(1, Relaxed);
    }
}
