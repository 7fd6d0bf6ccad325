//! Who is told of blocks and segments: logs, tools, and the ordering checker of the simulated runtime.

use crate::{
    checker,
    error::{Error, Place, Result},
    foreign,
    sync::OnceLock,
};
use std::{fmt, ops::Range, sync::Arc};

/// In whose order a block changes hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// The host, in real time.
    Host,
    /// The stream with this id (the driver's), in the order of its work.
    Stream(u64),
    /// Nobody, for a free alone: the block is given up, and work that was submitted before, in any stream, may still use
    /// it. Whoever gets the memory next is ordered behind that.
    Nobody,
}

/// Whether a segment comes or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentChange {
    /// It was obtained from CUDA.
    Added,
    /// It is about to be given back.
    Removed,
}

/// Gets a report of every block. Called on the thread that makes the call, without any lock held: a report may call the
/// manager. A panic in it is caught.
pub trait Observer: Send + Sync {
    /// A block was handed out: it may be used from here on in the order of `by`. Addresses in bytes.
    fn on_allocate(&self, place: Place, range: Range<usize>, by: By) {
        let _ = (place, range, by);
    }

    /// A block is about to be taken back: work in the order of `by` that was submitted before may still use it.
    fn on_free(&self, place: Place, range: Range<usize>, by: By) {
        let _ = (place, range, by);
    }

    /// A segment was added or is about to be removed.
    fn on_segment(&self, place: Place, range: Range<usize>, change: SegmentChange) {
        let _ = (place, range, change);
    }
}

/// The observer of a manager, shared with its pools; one branch when there is none.
#[derive(Clone, Default)]
pub(crate) struct Observed(Arc<OnceLock<Arc<dyn Observer>>>);

impl Observed {
    /// Sets the observer; once.
    pub fn set(&self, observer: Arc<dyn Observer>) -> Result<()> {
        self.0.set(observer).map_err(|_| Error::Unsupported {
            reason: "a second observer: one that forwards to several can be set".into(),
        })
    }

    /// Whether anybody listens.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.get().is_some() || checker::is_on()
    }

    /// Makes a report; no lock is held.
    #[inline]
    pub fn tell(&self, report: impl Fn(&dyn Observer)) {
        if let Some(checker) = checker::listener() {
            report(checker);
        }
        if let Some(observer) = self.0.get() {
            foreign::report("an observer", || report(observer.as_ref()));
        }
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() {
            "observed"
        } else {
            "not observed"
        })
    }
}
