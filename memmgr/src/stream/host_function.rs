//! Host functions of the caller's: each runs once at most, however often the runtime calls.

use super::Handle;
use crate::{
    cuda,
    error::Result,
    foreign,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        lock,
    },
};
use std::{collections::BTreeMap, ffi::c_void, ptr::without_provenance_mut};

type Job = Box<dyn FnOnce() + Send>;

/// The functions that have not begun, by number. Another thread may begin to capture a stream at any moment: what slips
/// into its graph is called at every launch, and finds nothing here from the second call on.
static JOBS: Mutex<BTreeMap<usize, Job>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Called by the runtime with the number of a function.
unsafe extern "C" fn run(number: *mut c_void) {
    let job = lock(&JOBS).remove(&number.addr());
    if let Some(job) = job {
        cuda::as_host_function(|| foreign::report("a host function", job));
    }
}

/// Enters the function and has the runtime call it behind what is in the stream.
pub(super) fn launch(handle: &Handle, job: Job) -> Result<()> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&JOBS).insert(number, job);
    // SAFETY: the handle is alive; `run` reads its argument as a number, and may be called on any thread, any number of
    // times. It makes no CUDA call.
    let launched = handle.with_device(|| unsafe {
        cuda::launch_host_func(handle.raw(), run, without_provenance_mut(number))
    });
    if launched.is_err() {
        let refused = lock(&JOBS).remove(&number);
        drop(refused);
    }
    launched
}
