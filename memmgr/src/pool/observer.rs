//! Who is told of blocks and segments: logs, tools, and the ordering checker of the simulated runtime.

use crate::{
    checker,
    config::Config,
    error::{Error, Place, Result},
    events::Sinks,
    foreign,
    mode::DeviceAllocatorMode,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};
use std::{fmt, ops::Range, panic::Location, sync::Arc};

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
/// manager. What it allocates and frees itself meanwhile, on its thread, of that manager, is not reported to the observer;
/// [`Config::log_file`] and [`Config::event_ring`] have it. So of a block that a report allocates and something else frees,
/// the free alone is reported. A panic in a report is caught.
pub trait Observer: Send + Sync {
    /// A block was handed out: it may be used from here on in the order of `by`. Addresses in bytes.
    fn on_allocate(&self, place: Place, range: Range<usize>, by: By) {
        let _ = (place, range, by);
    }

    /// A block is about to be taken back: work in the order of `by` that was submitted before may still use it.
    fn on_free(&self, place: Place, range: Range<usize>, by: By) {
        let _ = (place, range, by);
    }

    /// A request for `size` bytes was refused: there was no memory, a limit, or CUDA failed. `by` is who asked.
    fn on_failure(&self, place: Place, size: usize, by: By, error: &Error) {
        let _ = (place, size, by, error);
    }

    /// A segment was added or is about to be removed.
    fn on_segment(&self, place: Place, range: Range<usize>, change: SegmentChange) {
        let _ = (place, range, change);
    }
}

/// A report, as the manager makes it. Sizes are bytes.
pub(crate) struct Told<'a> {
    pub place: Place,
    /// Which family serves it; `None` for pinned memory.
    pub mode: Option<DeviceAllocatorMode>,
    pub address: usize,
    /// What was asked for; of a segment its length.
    pub size: usize,
    pub by: By,
    /// The stream that the caller named, or that the block was allocated on where a guard frees it.
    pub stream: Option<u64>,
    /// Where the program asked, if that is kept.
    pub site: Option<&'static Location<'static>>,
    pub what: What<'a>,
}

/// What is reported.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    Allocate,
    Free,
    Failure(&'a Error),
    Segment {
        change: SegmentChange,
        /// Whether it is a mapped part of a range of addresses.
        mapped: bool,
    },
}

impl Told<'_> {
    fn to(&self, observer: &dyn Observer) {
        let range = self.address..self.address.saturating_add(self.size);
        match self.what {
            What::Allocate => observer.on_allocate(self.place, range, self.by),
            What::Free => observer.on_free(self.place, range, self.by),
            What::Failure(error) => observer.on_failure(self.place, self.size, self.by, error),
            What::Segment { change, .. } => observer.on_segment(self.place, range, change),
        }
    }
}

/// Who listens to a manager, shared with its pools; one branch when there is nobody.
#[derive(Clone, Default)]
pub(crate) struct Observed(Arc<Listeners>);

#[derive(Default)]
struct Listeners {
    /// Whether there is an observer, or anything records.
    any: AtomicBool,
    observer: OnceLock<Arc<dyn Observer>>,
    sinks: Sinks,
}

impl Observed {
    /// With what the settings ask for.
    pub fn new(config: &Config) -> Self {
        let sinks = Sinks::new(config);
        Self(Arc::new(Listeners {
            any: AtomicBool::new(sinks.any()),
            observer: OnceLock::new(),
            sinks,
        }))
    }

    /// Sets the observer; once.
    pub fn set(&self, observer: Arc<dyn Observer>) -> Result<()> {
        let set = self.0.observer.set(observer);
        set.map_err(|_| Error::Unsupported {
            reason: "a second observer: one that forwards to several can be set".into(),
        })?;
        self.0.any.store(true, Ordering::Release);
        Ok(())
    }

    /// What records by itself.
    pub fn sinks(&self) -> &Sinks {
        &self.0.sinks
    }

    /// Whether anybody listens.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.any.load(Ordering::Acquire) || checker::is_on()
    }

    /// Whether segments are to be told of: a tool must hear of the first one to say whether it wants to.
    pub fn wants_segments(&self) -> bool {
        cfg!(feature = "nvtx") || self.is_set()
    }

    /// Tells a tool of memory of a device pool that comes or goes.
    #[cfg(feature = "nvtx")]
    pub fn annotate(&self, range: Range<usize>, change: SegmentChange) {
        let added = change == SegmentChange::Added;
        if self.0.sinks.annotate(range, added) {
            self.0.any.store(true, Ordering::Release);
        }
    }

    /// Makes a report; no lock is held.
    #[inline]
    pub fn tell(&self, told: &Told<'_>) {
        if let Some(checker) = checker::listener() {
            told.to(checker);
        }
        if self.0.any.load(Ordering::Acquire) {
            self.tell_listeners(told);
        }
    }

    #[cold]
    fn tell_listeners(&self, told: &Told<'_>) {
        if let Some(observer) = self.0.observer.get()
            && let Some(_entered) = foreign::enter(Arc::as_ptr(&self.0).addr())
        {
            foreign::report("an observer", || told.to(observer.as_ref()));
        }
        self.0.sinks.tell(told);
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.observer.get().is_some() {
            "observed"
        } else {
            "not observed"
        })
    }
}
