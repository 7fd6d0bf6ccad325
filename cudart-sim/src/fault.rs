//! Fault injection: makes the next calls of a function fail with a chosen code, without doing anything.

use crate::calls::Call;
use crate::sys::cudaError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

struct Rule {
    call: Call,
    code: cudaError,
    thread: ThreadId,
    any_thread: AtomicBool,
    skip: AtomicU64,
    left: AtomicU64,
    fired: AtomicU64,
}

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static RULES: Mutex<Vec<Arc<Rule>>> = Mutex::new(Vec::new());

fn rules() -> MutexGuard<'static, Vec<Arc<Rule>>> {
    RULES.lock().unwrap_or_else(|e| e.into_inner())
}

/// The code with which this call is to fail, if a fault is set for it.
pub(crate) fn injected(call: Call) -> Option<cudaError> {
    if ACTIVE.load(Relaxed) == 0 {
        return None;
    }
    let me = std::thread::current().id();
    for rule in rules().iter() {
        if rule.call != call || !(rule.any_thread.load(Relaxed) || rule.thread == me) {
            continue;
        }
        // The lock is held: these need not be one atomic step.
        if rule.skip.load(Relaxed) > 0 {
            rule.skip.fetch_sub(1, Relaxed);
        } else if rule.left.load(Relaxed) > 0 {
            rule.left.fetch_sub(1, Relaxed);
            rule.fired.fetch_add(1, Relaxed);
            return Some(rule.code);
        }
    }
    None
}

/// A fault that is set. Dropping it removes it.
#[must_use = "the fault is removed when this is dropped"]
pub struct Fault(Arc<Rule>);

/// Makes the function of this name answer `code` instead of doing its work: the next call that this thread makes,
/// unless [`after`](Fault::after), [`times`](Fault::times) or [`any_thread`](Fault::any_thread) say otherwise.
/// A failed call leaves its code as the last error, as every failed call does.
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
/// If no function of that name is exported.
pub fn fail(name: &str, code: cudaError) -> Fault {
    let Some(call) = Call::find(name) else {
        panic!("cudart-sim: there is no function {name}");
    };
    let rule = Arc::new(Rule {
        call,
        code,
        thread: std::thread::current().id(),
        any_thread: AtomicBool::new(false),
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
