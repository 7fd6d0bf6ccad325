//! What a manager records by itself: a log file ([`Config::log_file`](crate::Config::log_file)), and the last events in memory
//! ([`Config::event_ring`](crate::Config::event_ring)).
//!
//! Off by default. While anything records, every request and free takes the long way, which makes the report; it is made
//! without any lock of a pool.

mod log;
#[cfg(feature = "nvtx")]
mod nvtx;
mod ring;
#[cfg(feature = "trace-events")]
mod trace;

use crate::{
    config::Config,
    error::{Error, Place, Result},
    mode::DeviceAllocatorMode,
    pool::{
        best_fit,
        observer::{SegmentChange, Told, What},
    },
};
use std::{
    cell::Cell,
    panic::Location,
    time::{SystemTime, UNIX_EPOCH},
};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Allocate,
    /// A block was taken back.
    Free,
    /// A request was refused.
    Failure {
        /// Whether there was no memory for it, in the pool or within its limit.
        out_of_memory: bool,
    },
    /// Memory was obtained from CUDA.
    SegmentAdded,
    /// Memory is given back to CUDA, or moves: then it is added elsewhere.
    SegmentRemoved,
}

/// One event of a manager. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Microseconds since the beginning of 1970, UTC.
    pub time_us: u64,
    /// The thread, as the operating system numbers it.
    pub thread: u64,
    /// What happened.
    pub action: Action,
    /// Whose memory it is.
    pub place: Place,
    /// Which family serves it; `None` for pinned memory.
    pub mode: Option<DeviceAllocatorMode>,
    /// The block or segment; 0 for a failure.
    pub address: usize,
    /// What was asked for; of a segment its length.
    pub requested: usize,
    /// What the block takes: what was asked for, rounded up to the granule in a pool of the manager's own. 0 for a failure.
    pub size: usize,
    /// The stream in whose order it happened (the driver's id); `None` without one.
    pub stream: Option<u64>,
    /// Whether a segment is a mapped part of a range of addresses.
    pub mapped: bool,
    /// Where the program asked for the block, if [`Config::call_sites`] is set.
    pub call_site: Option<&'static Location<'static>>,
    /// What the device had left when there was no memory for a request, in bytes, if CUDA said so.
    pub device_free: Option<usize>,
}

impl Event {
    fn new(told: &Told<'_>) -> Self {
        let (action, mapped) = match told.what {
            What::Allocate => (Action::Allocate, false),
            What::Free => (Action::Free, false),
            What::Failure(error) => {
                let out_of_memory =
                    error.is_out_of_memory() || matches!(error, Error::LimitExceeded { .. });
                (Action::Failure { out_of_memory }, false)
            }
            What::Segment { change, mapped } => match change {
                SegmentChange::Added => (Action::SegmentAdded, mapped),
                SegmentChange::Removed => (Action::SegmentRemoved, mapped),
            },
        };
        let own = matches!(told.mode, None | Some(DeviceAllocatorMode::BestFitPool));
        let size = match action {
            Action::Failure { .. } => 0,
            Action::Allocate | Action::Free if own => {
                best_fit::round(told.size).unwrap_or(told.size)
            }
            _ => told.size,
        };
        let device_free = match told.what {
            What::Failure(Error::OutOfMemory(refusal)) => refusal.device_free,
            _ => None,
        };
        Self {
            device_free,
            call_site: told.site,
            time_us: now(),
            thread: thread_id(),
            action,
            place: told.place,
            mode: told.mode,
            address: told.address,
            requested: told.size,
            size,
            stream: told.stream,
            mapped,
        }
    }
}

/// Microseconds since the beginning of 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

/// The calling thread, as the operating system numbers it.
fn thread_id() -> u64 {
    thread_local! {
        static ID: Cell<u64> = const { Cell::new(0) };
    }
    let ask = || {
        // SAFETY: the call has no arguments and cannot fail.
        let id = unsafe { libc::syscall(libc::SYS_gettid) };
        u64::try_from(id).unwrap_or(0)
    };
    // A thread that is ending has no locals any more.
    ID.try_with(|id| {
        if id.get() == 0 {
            id.set(ask());
        }
        id.get()
    })
    .unwrap_or_else(|_| ask())
}

/// Who records. Told of everything after the observer.
#[derive(Default)]
pub(crate) struct Sinks {
    log: Option<log::Logs>,
    ring: Option<ring::Ring>,
    #[cfg(feature = "trace-events")]
    traces: bool,
    #[cfg(feature = "nvtx")]
    annotations: nvtx::Annotations,
}

impl Sinks {
    /// What the settings ask for; makes no file yet.
    pub fn new(config: &Config) -> Self {
        Self {
            log: config.log_file.clone().map(log::Logs::new),
            ring: (config.event_ring > 0).then(|| ring::Ring::new(config.event_ring)),
            #[cfg(feature = "trace-events")]
            traces: trace::is_wanted(),
            #[cfg(feature = "nvtx")]
            annotations: nvtx::Annotations::default(),
        }
    }

    /// Whether anybody records.
    pub fn any(&self) -> bool {
        #[cfg(feature = "trace-events")]
        if self.traces {
            return true;
        }
        self.log.is_some() || self.ring.is_some()
    }

    /// Memory of a device pool comes or goes; whether a tool wants to hear of blocks.
    #[cfg(feature = "nvtx")]
    pub fn annotate(&self, range: std::ops::Range<usize>, added: bool) -> bool {
        if added {
            return self.annotations.add_segment(range);
        }
        self.annotations.remove_segment(range);
        false
    }

    /// Records.
    pub fn tell(&self, told: &Told<'_>) {
        #[cfg(feature = "nvtx")]
        if told.mode == Some(DeviceAllocatorMode::BestFitPool) {
            match told.what {
                What::Allocate => self.annotations.add_block(told.address, told.size),
                What::Free => self.annotations.remove_block(told.address),
                What::Failure(_) | What::Segment { .. } => {}
            }
        }
        if !self.any() {
            return;
        }
        let event = Event::new(told);
        if let Some(log) = &self.log {
            log.add(&event);
        }
        #[cfg(feature = "trace-events")]
        if self.traces
            && let Some(_entered) = crate::foreign::enter(std::ptr::from_ref(&self.traces).addr())
        {
            trace::add(&event);
        }
        if let Some(ring) = &self.ring {
            ring.add(event);
        }
    }

    /// Writes out what is buffered.
    pub fn flush(&self) -> Result<()> {
        self.log.as_ref().map_or(Ok(()), log::Logs::flush)
    }

    /// The last events, from the oldest on.
    pub fn events(&self) -> Vec<Event> {
        self.ring.as_ref().map_or_else(Vec::new, ring::Ring::events)
    }

    /// How many events there have been that the ring has seen.
    pub fn count(&self) -> u64 {
        self.ring.as_ref().map_or(0, ring::Ring::count)
    }
}
