//! What happens when nothing fits: look for completed work, grow, wait for other streams; giving memory back; the end.
//!
//! Every function here takes the lock for short steps and makes its CUDA calls between them.

mod growth;
mod look;
mod pageable;
mod segments;
mod settle;
mod shutdown;
mod tidy;
mod trim;
mod wait;
mod warm_up;

pub(crate) use pageable::is_refused_by_limit;
pub(super) use tidy::Tidied;
pub(crate) use trim::Seen;
pub(crate) use warm_up::Busy;

use super::{GRANULE, Pool, State, best_fit, observer::SegmentChange, segment};
use crate::{
    biased::Guard,
    config::Reuse,
    context, cuda,
    error::{Error, Place, Result},
    planted::{self, Mistake},
    stream::Handle,
    sync::thread,
};
/// Segments are multiples of this: the page of a device.
const PAGE: usize = 2 << 20;

/// A request: its size in bytes, the stream, and whether a raw pointer is wanted.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub size: usize,
    pub on: Option<&'a Handle>,
    pub raw: bool,
}

/// How an attempt to grow ended.
enum Growth {
    /// The block, out of the new segment (or out of what somebody freed meanwhile).
    Served(usize),
    /// Another thread was growing; search again.
    Elsewhere,
    /// The limit or CUDA refused.
    Refused,
}

impl Pool {
    /// Serves a request that missed, or the first one of all.
    pub(super) fn allocate_slowly(&self, request: Request<'_>) -> Result<usize> {
        let Request { size, on, raw } = request;
        let rounded = best_fit::checked(size)?;
        match self.place() {
            Place::Device(device) => context::check(device)?,
            Place::Pinned => context::check_all()?,
        }
        let above = |limit| Error::LimitExceeded {
            place: self.place(),
            requested: size,
            limit,
        };
        let begun = self.state.lock().begin(rounded);
        let reuse = match begun.map_err(above)? {
            Some(reuse) => reuse,
            None => {
                self.prepare()?;
                let reuse = self.state.lock().reuse(rounded).map_err(above)?;
                self.release_retiring();
                self.tidy();
                reuse
            }
        };
        let mut settled = reuse == Reuse::PreferSpeed;
        // Each turn either serves the request, or waits for another thread's growth.
        loop {
            if let Some(address) = self.look(request) {
                return Ok(address);
            }
            if reuse == Reuse::PreferMemory
                && let Some(address) = self.wait_and_take(size, on, raw)?
            {
                return Ok(address);
            }
            if !std::mem::replace(&mut settled, true) && self.settle_before_growth(rounded) {
                continue;
            }
            match self.grow(request, rounded)? {
                Growth::Served(address) => return Ok(address),
                Growth::Elsewhere => continue,
                Growth::Refused => {}
            }
            return match self.wait_and_take(size, on, raw)? {
                Some(address) => Ok(address),
                None => Err(self.refusal(size)),
            };
        }
    }

    /// Reserves the configured size, as far as the limit allows, once; the bytes.
    fn prepare(&self) -> Result<usize> {
        self.resolve_limit()?;
        let len = {
            let mut state = self.state.lock();
            if state.prepared {
                return Ok(0);
            }
            if let Some(by) = state.growing {
                if by != thread::current().id() {
                    drop(state);
                    self.wait_for_growth();
                }
                return Ok(0);
            }
            let initial = state.config.initial;
            let rounded = initial.checked_next_multiple_of(GRANULE).ok_or_else(|| {
                Error::InvalidSize {
                    reason: format!(
                        "a pool of {initial} bytes cannot be rounded up to the granule of {GRANULE} bytes"
                    ),
                }
            })?;
            let len = rounded.min(state.config.limit.unwrap_or(usize::MAX) / GRANULE * GRANULE);
            if len == 0 {
                state.prepared = true;
                return Ok(0);
            }
            state.growing = Some(thread::current().id());
            len
        };
        let _ticket = Ticket(self);
        let refused = |error| match error {
            Error::Cuda {
                code: cuda::OUT_OF_MEMORY,
                ..
            } => match self.refusal(len) {
                Error::OutOfMemory(mut refusal) => {
                    refusal.initial = true;
                    Error::OutOfMemory(refusal)
                }
                other => other,
            },
            other => other,
        };
        if let Some(mapped) = self.source.mapped() {
            let prepared = |state: &mut State| state.prepared = true;
            return match self.grow_by(mapped, len, growth::Need::at_most(len), prepared) {
                Ok(Some(())) => Ok(len),
                Ok(None) => Err(self.refusal(len)),
                Err(error) => Err(refused(error)),
            };
        }
        let base = self.source.create(len).map_err(refused)?;
        let mut state = self.enter(base, len)?;
        state.prepared = true;
        Ok(len)
    }

    /// Turns a limit that is a share of the place's memory into bytes, once.
    fn resolve_limit(&self) -> Result<()> {
        if self.state.lock().config.limit_share.is_none() {
            return Ok(());
        }
        let total = self.source.capacity()?.total;
        let config = &mut self.state.lock().config;
        if let Some(share) = config.limit_share.take() {
            let limit = (total as f64 * share) as usize;
            config.limit = Some(config.limit.map_or(limit, |set| set.min(limit)));
        }
        Ok(())
    }

    /// The lock of a pool that nobody lets grow and that still lacks what is requested; otherwise how the growth ends without
    /// this thread.
    fn lock_to_grow(
        &self,
        request: Request<'_>,
    ) -> Result<std::result::Result<Guard<'_, State>, Growth>> {
        let mut state = self.state.lock();
        if let Some(by) = state.growing {
            if by == thread::current().id() {
                return Err(growth_inside_a_growth());
            }
            drop(state);
            self.wait_for_growth();
            return Ok(Err(Growth::Elsewhere));
        }
        Ok(match state.take_if_changed(request) {
            Some(address) => Err(Growth::Served(address)),
            None => Ok(state),
        })
    }

    /// Gets a segment for the request. One thread at a time: the others wait, and search again first.
    fn grow(&self, request: Request<'_>, rounded: usize) -> Result<Growth> {
        if let Some(mapped) = self.source.mapped() {
            return self.grow_mapped(mapped, request, rounded);
        }
        self.grow_by_segment(request, rounded)
    }

    /// Puts a new segment into the books, after telling the observer.
    fn enter(&self, base: usize, len: usize) -> Result<Guard<'_, State>> {
        // One thread at a time gets here, so that a segment that can be entered now still can after the report.
        if self.state.lock().space.segment_of(base).is_none() {
            self.report_segment(base, len, SegmentChange::Added);
        }
        let mut state = self.state.lock();
        state.publish(base, len)?;
        Ok(state)
    }

    /// Waits until no thread gets a segment. No lock may be held.
    fn wait_for_growth(&self) {
        let mut state = self.state.lock_to_wait();
        while state.growing.is_some() {
            state = self.state.wait(state, &self.grown);
        }
    }

    /// The error for a request that nothing can serve.
    fn refusal(&self, size: usize) -> Error {
        let capacity = self.source.capacity().unwrap_or(segment::Capacity {
            total: usize::MAX,
            free: None,
        });
        self.state
            .lock()
            .out_of_memory(self.place(), size, capacity)
    }
}

impl State {
    /// What the limit leaves, in bytes.
    fn room(&self) -> usize {
        let limit = self.config.limit.unwrap_or(usize::MAX);
        limit.saturating_sub(self.space.reserved())
    }

    /// How others' memory may be used for a request that missed, or the limit that rules it out; `None` if something is to be done
    /// first, as it seldom is.
    fn begin(&mut self, rounded: usize) -> std::result::Result<Option<Reuse>, usize> {
        let is_ready = self.prepared
            && self.config.limit_share.is_none()
            && !self.has_empty_retiring()
            && !self.is_worth_tidying();
        if !is_ready {
            return Ok(None);
        }
        let reuse = self.reuse(rounded)?;
        self.release_due = false;
        Ok(Some(reuse))
    }

    /// How others' memory may be used for a request, or the limit that rules it out.
    fn reuse(&self, rounded: usize) -> std::result::Result<Reuse, usize> {
        match self.config.limit.filter(|limit| rounded > *limit) {
            Some(limit) => Err(limit),
            None => Ok(self.config.reuse),
        }
    }

    fn publish(&mut self, base: usize, len: usize) -> Result<()> {
        self.space.add_segment(base, len).map_err(|error| Error::Unsupported {
            reason: format!("CUDA returned a segment of {len} bytes at {base:#x} that cannot be used: {error}"),
        })?;
        self.counters.growths += 1;
        self.counters.peak_reserved = self.counters.peak_reserved.max(self.space.reserved());
        Ok(())
    }
}

/// The error for a call of an observer's that would wait for itself.
fn growth_inside_a_growth() -> Error {
    Error::Unsupported {
        reason:
            "an allocation that makes a pool grow, inside the report of a segment by which it grows"
                .into(),
    }
}

/// Ends the growth that it stands for, whatever happens.
struct Ticket<'a>(&'a Pool);

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.0.state.lock().growing = None;
        if !planted::is_made(Mistake::GrowthWakesNobody) {
            self.0.grown.notify_all();
        }
    }
}
