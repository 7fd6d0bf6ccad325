//! What happens when nothing fits: look for completed work, grow, wait for other streams; giving memory back; shutdown.
//!
//! Every function here takes the lock for short steps and makes its CUDA calls between them.

mod growth;
mod pageable;
mod segments;
mod settle;
mod tidy;
mod trim;
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
    event::Fence,
    planted::{self, Mistake},
    spans,
    stream::Handle,
    sync::thread,
};
use std::sync::Arc;

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

    /// Asks about closed epochs and recorded uses, and searches again.
    fn look(&self, request: Request<'_>) -> Option<usize> {
        crate::stream::finish_retirements();
        let ended = {
            let mut state = self.state.lock();
            let mut found = state.take_if_changed(request);
            // First what is cheap; then everything: before growing, nothing that is free may be overlooked.
            for all in [false, true] {
                if found.is_some() || !state.order.has_candidates() {
                    break;
                }
                drop(state);
                self.poll(all);
                state = self.state.lock();
                found = state.take_if_changed(request);
            }
            if found.is_some() {
                return found;
            }
            state.order.sweep();
            (state.order).end_epochs(request.on.map(|on| on.core().uid))
        };
        let done = idle_of(ended);
        let mut state = self.state.lock();
        if !done.is_empty() {
            state.complete(&done, true);
        }
        state.take_if_changed(request)
    }

    /// Ends the open epochs of all other streams. Those whose stream turns out to be idle are complete at once; the rest
    /// get their event at their stream's next call.
    fn end_epochs(&self, on: Option<&Handle>) {
        let ended = self
            .state
            .lock()
            .order
            .end_epochs(on.map(|on| on.core().uid));
        self.complete_ended(ended);
    }

    /// What the request's own stream has freed can move, or join, only once that is idle.
    fn complete_own(&self, request: Request<'_>) {
        if let Some(on) = request.on.filter(|on| on.core().is_idle()) {
            let ended = self.state.lock().order.end_epoch_of(on.core());
            self.complete_ended(ended);
        }
    }

    /// Of epochs that have ended, those whose stream turns out to be idle are complete.
    fn complete_ended(&self, ended: Vec<Arc<Fence>>) {
        let done = idle_of(ended);
        if !done.is_empty() {
            self.state.lock().complete(&done, true);
        }
    }

    /// Queries fences and makes what has completed idle: a bounded part, or all of it.
    pub(super) fn poll(&self, all: bool) {
        crate::stream::finish_retirements();
        let candidates = self.state.lock().order.candidates(all);
        let mut done: Vec<Arc<Fence>> = Vec::new();
        let count = candidates.iter().map(Vec::len).sum();
        ask_at_once(count, || {
            for queue in candidates {
                for fence in queue {
                    match fence.query() {
                        Ok(true) => done.push(fence),
                        // Work of one stream completes in order.
                        Ok(false) => break,
                        // Without an answer there is no proof: the memory stays pending.
                        Err(error) => {
                            tracing::debug!(%error, "an event could not be queried");
                            break;
                        }
                    }
                }
            }
        });
        let mut state = self.state.lock();
        state.complete(&done, all);
        if all || state.order.is_crowded() {
            state.order.sweep();
        }
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

    /// Takes memory that other streams have freed, and waits for their marks: on the device for a request with a
    /// stream, on the host otherwise. Memory whose marks turn out to be lost is left alone.
    fn wait_and_take(&self, size: usize, on: Option<&Handle>, raw: bool) -> Result<Option<usize>> {
        // A stream that is being captured cannot wait for what is outside of the capture: the host does.
        let waits = match on {
            Some(handle) if !handle.is_capturing()? => Some(handle),
            _ => None,
        };
        loop {
            let core = on.map(Handle::core);
            let (address, marks, stolen) = {
                let mut guard = self.state.lock();
                let State { space, order, .. } = &mut *guard;
                let Some(taken) =
                    space.allocate_ranked(size, GRANULE, &mut |id| order.rank(id, core))
                else {
                    return Ok(None);
                };
                let marks = order.marks_of(taken.owners.iter().copied(), core);
                let stolen = order.has_marks_of_others(&taken.owners, core);
                let place = core.map(|core| order.place(core));
                let address = guard.hand_out(taken, size, place, raw);
                (address, marks, stolen)
            };
            let _span = (!marks.is_empty()).then(|| spans::wait(self.place(), size));
            #[cfg(feature = "trace-events")]
            if !marks.is_empty() {
                let (place, streams) = (self.place(), marks.len());
                tracing::debug!(%place, bytes = size, streams, "a request waits for other streams");
            }
            let waited = marks.iter().try_for_each(|mark| match waits {
                _ if planted::is_made(Mistake::RequestsDoNotWait) => Ok(()),
                Some(handle) => mark.wait_on_stream(handle),
                None => mark.wait_on_host(),
            });
            let mut guard = self.state.lock();
            let state = &mut *guard;
            for mark in &marks {
                state.order.enqueue(mark);
            }
            match waited {
                Ok(()) => {
                    if on.is_none() {
                        state.disinherit(address);
                        state.complete(&marks, false);
                    }
                    state.counters.reuses += 1;
                    state.counters.waits += u64::from(!marks.is_empty());
                    state.counters.steals += u64::from(stolen);
                    return Ok(Some(address));
                }
                Err(error) => {
                    state.give_back(address);
                    drop(guard);
                    // A stream that lost its marks is somebody else's trouble: try what remains.
                    if !marks.iter().any(|mark| mark.is_lost()) {
                        return Err(error);
                    }
                    tracing::debug!(%error, "marks without a proof: their memory is left alone");
                }
            }
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

    /// Gives segments back that `shutdown` could not, unless CUDA would make this call wait for running work.
    fn release_retiring(&self) {
        {
            let mut state = self.state.lock();
            state.release_due = false;
            if !state.has_empty_retiring() {
                return;
            }
        }
        if !crate::stream::all_idle() {
            return;
        }
        self.poll(true);
        self.end_epochs(None);
        let released = self.release_segments(|state, base| state.retiring.contains(&base));
        if let Err(error) = released {
            tracing::warn!(%error, "a segment could not be given back");
        }
    }

    fn release_segments(&self, mut wanted: impl FnMut(&State, usize) -> bool) -> Result<usize> {
        if let Some(mapped) = self.source.mapped() {
            return self.release_chunks(mapped, usize::MAX, wanted);
        }
        let segments = {
            let mut state = self.state.lock();
            self.take_segments(&mut state, &mut wanted)
        };
        let mut released = 0;
        let mut first_error = Ok(());
        for (base, len) in segments {
            match self.destroy_segment(base, len) {
                Ok(()) => released += len,
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        first_error.map(|()| released)
    }

    /// Waits on the host for everything that the pool's free memory waits for, and makes it idle.
    pub fn wait_for_pending(&self) -> Result<()> {
        self.flush_front();
        crate::stream::finish_retirements();
        let marks = self.state.lock().order.all_marks();
        let mut waited = Ok(());
        for mark in &marks {
            // A capture that kept everybody from the stream may be over.
            if mark.core().was_capturing() {
                let _ = mark.waits_for_a_capture();
            }
            if !mark.is_lost() {
                waited = waited.and(mark.wait_on_host());
            }
        }
        let mut state = self.state.lock();
        state.note_waited(marks);
        state.order.sweep();
        waited
    }

    /// Waits for everything that the pool's memory waits for, gives back what is idle, and lets the configuration be
    /// changed again. Segments with live blocks follow when those are freed. The bytes given back.
    pub fn shutdown(&self) -> Result<usize> {
        let waited = self.wait_for_pending();
        let released = self.release_segments(|_, _| true)?;
        let mut state = self.state.lock();
        state.release_due = false;
        state.retiring = state.space.segments().map(|segment| segment.base).collect();
        state.prepared = false;
        // What is freed from now on is to be noticed.
        state.recall_all(&self.front);
        drop(state);
        self.flush_front();
        waited.map(|()| released)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if crate::process::is_over() {
            return;
        }
        self.flush_front();
        // CUDA's free functions wait for the whole device, which a drop must not: the next slow call of any manager
        // gives the segments back.
        let state = self.state.get_mut();
        if let segment::Source::Virtual(_) = self.source {
            // Chunks with raw blocks that are still live stay for good, and so do their addresses.
            let State { space, arena, .. } = &mut *state;
            let unused = arena.take_unused(space);
            let ranges = space
                .segments()
                .filter(|segment| !space.has_live_blocks(*segment))
                .map(|segment| (segment.base, segment.len))
                .collect();
            segment::orphan(segment::Orphans {
                source: std::mem::replace(&mut self.source, segment::Source::Pinned),
                bases: Vec::new(),
                chunks: unused,
                ranges,
                marks: state.order.all_marks(),
            });
            return;
        }
        // No guard is left, since a guard holds the manager. Raw blocks may be: their segments stay for good.
        let bases: Vec<usize> = state
            .space
            .segments()
            .filter(|segment| !state.space.has_live_blocks(*segment))
            .map(|segment| segment.base)
            .collect();
        if !bases.is_empty() {
            segment::orphan(segment::Orphans {
                source: std::mem::replace(&mut self.source, segment::Source::Pinned),
                bases,
                chunks: Default::default(),
                ranges: Vec::new(),
                marks: state.order.all_marks(),
            });
        }
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

    /// Searches at once, if the pool is ready for that.
    pub(super) fn hit_run(&mut self, request: Request<'_>) -> Option<usize> {
        if !self.prepared || self.release_due {
            return None;
        }
        let found = self.take_if_changed(request)?;
        self.counters.served += 1;
        Some(found)
    }

    /// Searches, unless the request has just found nothing.
    fn take_if_changed(&mut self, request: Request<'_>) -> Option<usize> {
        let place = request.on.map(|on| self.order.place(on.core()));
        if self.has_missed(request.size, place) {
            return None;
        }
        let found = self.take_usable(request.size, place, request.raw);
        match found {
            Some(_) => self.counters.reuses += 1,
            None => self.note_miss(request.size, place),
        }
        found
    }

    fn publish(&mut self, base: usize, len: usize) -> Result<()> {
        self.space.add_segment(base, len).map_err(|error| Error::Unsupported {
            reason: format!("CUDA returned a segment of {len} bytes at {base:#x} that cannot be used: {error}"),
        })?;
        self.counters.growths += 1;
        self.counters.peak_reserved = self.counters.peak_reserved.max(self.space.reserved());
        Ok(())
    }

    /// The host has waited for these marks: what is complete makes memory idle; what cannot be recorded now, as on a stream that is
    /// being captured, is recorded at its stream's next call. Whether any is complete.
    fn note_waited(&mut self, marks: Vec<Arc<Fence>>) -> bool {
        let (done, left): (Vec<Arc<Fence>>, Vec<Arc<Fence>>) =
            marks.into_iter().partition(|mark| mark.is_done());
        for mark in &left {
            self.order.enqueue(mark);
        }
        self.complete(&done, true);
        !done.is_empty()
    }

    /// Undoes a take whose wait failed: the marks of the memory stay.
    fn give_back(&mut self, address: usize) {
        let Some(slot) = self.space.find(address) else {
            return;
        };
        let Some(live) = self.space.data_at(slot).copied() else {
            return;
        };
        let requested = self.space.requested_at(slot);
        // The stream did not come to follow the marks: they must all stay.
        let (owner, _) = self
            .order
            .owner_for_free(&live.on_no_stream(), &self.extras, None);
        let _ = self.space.free_at(slot, owner);
        self.forget(&live, requested);
    }
}

/// Asks so many questions, which are about work that is going on: with one change of the thread's capture mode, where each would
/// change it for itself. Where that is refused there are no answers.
fn ask_at_once(count: usize, ask: impl FnOnce()) {
    if count < 2 {
        ask();
        return;
    }
    let asked = cuda::relaxed(|| {
        ask();
        Ok(())
    });
    if let Err(error) = asked {
        tracing::debug!(%error, "nothing could be asked");
    }
}

/// Those of the epochs, which have ended, whose stream turns out to be idle: they are complete. Epochs of one stream lie side by
/// side.
fn idle_of(mut ended: Vec<Arc<Fence>>) -> Vec<Arc<Fence>> {
    let streams = ended.chunk_by(|one, other| one.core().uid == other.core().uid);
    let mut done = Vec::new();
    ask_at_once(streams.count(), || {
        let mut asked: Option<(u64, bool)> = None;
        ended.retain(|fence| {
            let uid = fence.core().uid;
            let is_idle = match asked {
                Some((known, is_idle)) if known == uid => is_idle,
                _ => fence.core().is_idle(),
            };
            asked = Some((uid, is_idle));
            let is_done = is_idle || planted::is_made(Mistake::EpochsEndUnproven);
            if is_done {
                fence.mark_done();
            }
            is_done
        });
        done = std::mem::take(&mut ended);
    });
    done
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
