//! Growing ahead of need: until so much of a pool is idle, one segment at a time.

use super::{PAGE, Ticket, growth_inside_a_growth};
use crate::{
    context, cuda,
    error::{Error, Result},
    pool::{
        GRANULE, Pool,
        segment::{self, Warm, Warmed},
    },
    process,
    sync::{
        Condvar, Mutex, lock,
        thread::{self, ThreadId},
    },
};
use std::{
    sync::{Once, PoisonError},
    time::{Duration, Instant},
};

impl Pool {
    /// What is idle, in bytes.
    pub fn idle(&self) -> usize {
        self.state.lock().space.stats().idle
    }

    /// Grows until so many bytes are idle; how many were reserved for that.
    pub fn reserve_ahead(&self, idle: usize) -> Result<usize> {
        context::check_all()?;
        let limit = self.state.lock().config.limit;
        if let Some(limit) = limit.filter(|limit| idle > *limit) {
            return Err(Error::LimitExceeded {
                place: self.place(),
                requested: idle,
                limit,
            });
        }
        let mut reserved = self.prepare()?;
        self.release_retiring();
        segment::release_idle_orphans();
        let warm = Warm { idle, ahead: None };
        while let Warmed::Grown(len) = self.warm(&warm)? {
            reserved = reserved.saturating_add(len);
        }
        Ok(reserved)
    }

    /// One step: looks for what has become idle, and grows by one segment if that is not enough.
    pub fn warm(&self, warm: &Warm<'_>) -> Result<Warmed> {
        let mut looked = false;
        let (len, least) = loop {
            let mut state = self.state.lock();
            if let Some(by) = state.growing {
                if by == thread::current().id() {
                    return Err(growth_inside_a_growth());
                }
                drop(state);
                self.wait_for_growth();
                continue;
            }
            if warm
                .ahead
                .is_some_and(|goes_on| !goes_on() || !state.prepared)
            {
                return Ok(Warmed::Stopped);
            }
            let missing = warm.idle.saturating_sub(state.space.stats().idle);
            if missing == 0 {
                return Ok(Warmed::Enough);
            }
            if !std::mem::replace(&mut looked, true) {
                drop(state);
                context::check_all()?;
                self.poll(true);
                continue;
            }
            let room = state.config.limit.map_or(usize::MAX, |limit| {
                limit.saturating_sub(state.space.reserved())
            });
            let step = state.config.growth.max(GRANULE);
            let (most, least) = match warm.ahead {
                Some(_) => (step, missing.min(step)),
                None => (missing.max(step), missing),
            };
            let whole = |len: usize| {
                let pages = len.checked_next_multiple_of(PAGE).unwrap_or(len).min(room);
                pages - pages % GRANULE
            };
            if room < GRANULE {
                drop(state);
                return Err(self.refusal(missing));
            }
            state.growing = Some(thread::current().id());
            break (whole(most), whole(least));
        };
        let _ticket = Ticket(self);
        self.create_ahead(len, least, warm.ahead.is_some())
    }

    /// Makes the segment; the shorter one if CUDA refuses the longer. This thread grows the pool.
    fn create_ahead(&self, len: usize, least: usize, on_own_thread: bool) -> Result<Warmed> {
        let total = self.source.capacity()?.total;
        for len in [Some(len), (least < len).then_some(least)]
            .into_iter()
            .flatten()
        {
            if len > total {
                continue;
            }
            // The process may exit at any moment, which takes the memory away from under a thread that nobody waits for.
            let busy = if on_own_thread {
                let Some(busy) = Busy::enter() else {
                    return Ok(Warmed::Stopped);
                };
                Some(busy)
            } else {
                None
            };
            let made = self.source.create(len);
            drop(busy);
            match made {
                Ok(base) => return self.enter(base, len).map(|_| Warmed::Grown(len)),
                Err(Error::Cuda {
                    code: cuda::OUT_OF_MEMORY,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(self.refusal(least))
    }

    /// Waits while this thread grows the pool, unless it is the calling one.
    pub fn wait_for_growth_by(&self, by: ThreadId) {
        let mut state = self.state.lock_to_wait();
        while by != thread::current().id() && state.growing == Some(by) {
            state = self.state.wait(state, &self.grown);
        }
    }
}

/// How long the exit of the process waits for segments that are on their way.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who makes and zeroes segments that nobody waits for.
struct Makers {
    busy: usize,
    /// The process exits.
    closed: bool,
}

static MAKERS: Mutex<Makers> = Mutex::new(Makers {
    busy: 0,
    closed: false,
});
static QUIET: Condvar = Condvar::new();
static ATEXIT: Once = Once::new();

/// As long as this lives the process does not exit, for a while.
pub(crate) struct Busy;

impl Busy {
    /// `None`: it exits.
    pub fn enter() -> Option<Self> {
        // The runtime is in use, so that its own handlers run after this one.
        ATEXIT.call_once(|| {
            // SAFETY: the handler is a plain function without captures that uses statics alone.
            unsafe { libc::atexit(at_exit) };
        });
        let mut makers = lock(&MAKERS);
        if makers.closed {
            return None;
        }
        makers.busy = makers.busy.saturating_add(1);
        Some(Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut makers = lock(&MAKERS);
        makers.busy = makers.busy.saturating_sub(1);
        QUIET.notify_all();
    }
}

extern "C" fn at_exit() {
    // The child's copy of the lock may be held by a thread that it does not have.
    if process::is_forked() {
        return;
    }
    let end = Instant::now() + PATIENCE;
    let mut makers = lock(&MAKERS);
    makers.closed = true;
    while makers.busy > 0 {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        makers = QUIET
            .wait_timeout(makers, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}
