//! The manager under the model checker of the simulated runtime (`--cfg shuttle` alone): what tests see of its inner parts,
//! what outlives a run, and mistakes that are made on all threads.

use crate::{
    capture, context, cuda,
    error::Result,
    event::{self, Fence},
    event_cache,
    planted::Mistake,
    pool::{self, segment},
    process,
    stream::{self, Stream, handle_of},
};
use std::sync::{Arc, Mutex, PoisonError};

static MADE: Mutex<Option<Mistake>> = Mutex::new(None);

/// The beginning of a run: makes a mistake on all threads from now on, or none.
pub fn begin(mistake: Option<Mistake>) {
    // What is looked up once in a process is looked up now, since the lock of that is none of the checker's.
    let _ = cuda::context_id(0);
    *MADE.lock().unwrap_or_else(PoisonError::into_inner) = mistake;
}

pub(crate) fn is_planted(mistake: Mistake) -> bool {
    *MADE.lock().unwrap_or_else(PoisonError::into_inner) == Some(mistake)
}

/// The calling thread works with the fronts of pools from now on, as if it had found their locks taken.
pub fn use_front() {
    pool::use_it_in_model();
}

/// A fence that has not been recorded yet, as a pool has for what a stream freed.
#[derive(Clone)]
pub struct OpenFence(Arc<Fence>);

impl OpenFence {
    /// A point in the order of this stream.
    pub fn new(stream: &Stream) -> Self {
        Self(Fence::open(handle_of(stream).core().clone()))
    }

    /// Sees to it that it is recorded.
    pub fn close(&self) -> Result<()> {
        self.0.close()
    }

    /// As a pool that ends an epoch: whether its stream turned out to be idle.
    pub fn find_idle(&self) -> bool {
        let idle = self.0.core().is_idle();
        if idle {
            self.0.mark_done();
        }
        idle
    }

    /// Asks the runtime.
    pub fn query(&self) -> Result<bool> {
        self.0.query()
    }

    /// Waits on the host.
    pub fn wait_on_host(&self) -> Result<()> {
        self.0.wait_on_host()
    }

    /// Makes a stream wait.
    pub fn wait_on_stream(&self, stream: &Stream) -> Result<()> {
        self.0.wait_on_stream(handle_of(stream))
    }
}

/// The end of a run, in which all streams and managers have gone: does what is left to later calls, and forgets the machine.
/// What is still there then should not be.
pub fn end() -> Vec<String> {
    stream::finish_retirements();
    segment::release_orphans();
    stream::finish_retirements();
    let mut left = Vec::new();
    let mut note = |what: &str, count: usize| {
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    };
    // So that runs are alike, numbers included: they decide the order in some tables.
    event::forget();
    let (known, deferred) = stream::forget();
    note("streams without a handle are known", known);
    note("streams have not been ended", deferred);
    note("captures and graphs are left", capture::leftovers());
    note(
        "lists of segments are left",
        usize::from(segment::has_orphans()),
    );
    note("CUDA events were cached twice", event_cache::forget());
    note("devices were reset", usize::from(process::gate().is_err()));
    context::forget();
    left
}
