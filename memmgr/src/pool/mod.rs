//! Pools: memory that is taken from CUDA in segments and served in blocks.
//!
//! A [`Pool`] joins three things that know nothing of each other: the address-space allocator ([`best_fit`]), the order
//! layer ([`order`]: marks and epochs) and a source of segments ([`segment`]). One lock guards the first two; no CUDA
//! call is made under it. `miss.rs` is what happens when nothing fits, `uses.rs` what copies and guards record.

mod arena;
pub(crate) mod best_fit;
mod config;
mod figures;
mod free;
mod front;
mod hit;
pub(crate) mod host_memory;
mod labels;
mod listing;
mod live;
mod mapped;
mod miss;
pub(crate) mod native;
pub(crate) mod observer;
mod order;
mod peaks;
mod recorded;
mod rest;
pub(crate) mod segment;
mod uses;

pub(crate) use config::PoolConfig;
pub(crate) use figures::LiveRange;
pub(crate) use free::{Announced, FreeOn, Leaving, Who, belongs_to_a_guard};
pub use front::Contention;
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) use front::use_it_in_model;
pub(crate) use labels::Label;
pub(crate) use live::Freed;
pub(crate) use miss::{Busy, Seen, is_refused_by_limit};
pub(crate) use peaks::{FIRST_SCOPE, High};
pub(crate) use recorded::{Span, Use, Users, pending_uses, query_all, record};
pub(crate) use uses::{BlockRange, check_inside};

use crate::{
    error::{Error, Place, Result},
    event::Fence,
    mode::DeviceAllocatorMode,
    source::DeviceSource,
    stream::Handle,
    sync::{Condvar, atomic::AtomicBool, thread::ThreadId},
};
use arena::Arena;
use best_fit::{ClassId, OwnerId, Space, Taken};
use free::{core_of, freed_by, leave_to_graph};
use front::Front;
use hit::Missed;
use live::{Extra, Extras, Live, Place as StreamPlace};
use miss::{Request, Tidied};
use observer::{By, Observed, SegmentChange, Told, What};
use order::{Order, SETTLE_BUDGET};
use peaks::Peaks;
use rest::{Books, Last};
use segment::Source;
use std::{collections::BTreeSet, sync::Arc};

pub(crate) use best_fit::GRANULE;

/// Counters that the space does not keep.
#[derive(Debug, Default)]
struct Counters {
    /// The highest since a peak was asked for anew: `peaks` has what was before.
    peak_in_use: usize,
    peak_reserved: usize,
    peaks: Peaks,
    /// The largest request that was not served at the first look.
    largest_miss: usize,
    /// What was asked for of all live blocks, in bytes; wraps, as what the front's lanes count is added to it.
    asked: usize,
    /// Requests that were served at the first look.
    hits: u64,
    /// Requests that were served later.
    served: u64,
    /// Those of them that needed no new segment.
    reuses: u64,
    waits: u64,
    steals: u64,
    growths: u64,
    moves: u64,
    /// Moves for which memory was mapped.
    remaps: u64,
    /// Segments that went into longer ones.
    joined: u64,
    /// How often a growth was put off until work had finished.
    settled: u64,
    failures: u64,
}

/// What the lock guards.
#[derive(Debug)]
struct State {
    space: Space<Live>,
    /// Where the physical memory lies, if the pool maps it.
    arena: Arena,
    order: Order,
    extras: Extras,
    counters: Counters,
    config: PoolConfig,
    /// How many calls in a row a thread must still be alone before nobody competes for the lock any more; 0: nobody does.
    competed: u32,
    /// The block that was handed out last, which may rest.
    last: Last,
    /// The last request that found nothing.
    missed: Option<Missed>,
    /// Whether the initial size has been reserved.
    prepared: bool,
    /// The thread that is getting a segment.
    growing: Option<ThreadId>,
    /// Segments to be given back as soon as they are idle (after `shutdown`).
    retiring: BTreeSet<usize>,
    /// A block of such a segment was freed, or nothing is live and memory has moved: the next allocating call looks whether
    /// there is something to do.
    release_due: bool,
    /// The last growth failed since the process has no addresses left.
    no_addresses: bool,
    /// When the memory was last in one piece (see `pool/miss/tidy.rs`).
    tidied: Tidied,
}

/// A pool of one place. All methods may be called by any thread.
#[derive(Debug)]
pub(crate) struct Pool {
    source: Source,
    state: Books,
    /// Signalled when `growing` ends.
    grown: Condvar,
    front: Front,
    /// Whether the order layer wants something done: then no call bypasses the books.
    restless: Arc<AtomicBool>,
    observed: Observed,
}

impl Pool {
    /// An empty pool; makes no CUDA call.
    pub fn new(source: Source, config: PoolConfig, observed: Observed) -> Self {
        let state = State {
            space: Space::new(),
            arena: Arena::default(),
            order: Order::new(),
            extras: Extras::default(),
            counters: Counters::default(),
            config,
            competed: 0,
            last: Last::NONE,
            missed: None,
            prepared: false,
            growing: None,
            retiring: BTreeSet::new(),
            release_due: false,
            no_addresses: false,
            tidied: Tidied::default(),
        };
        Self {
            source,
            restless: state.order.restless(),
            state: Books::new(state),
            grown: Condvar::new(),
            front: Front::default(),
            observed,
        }
    }

    /// Whose memory it is.
    pub fn place(&self) -> Place {
        self.source.place()
    }

    /// The family that it is, of a device; `None` for pinned memory.
    fn mode(&self) -> Option<DeviceAllocatorMode> {
        matches!(self.place(), Place::Device(_)).then_some(DeviceAllocatorMode::BestFitPool)
    }

    /// What its segments are made of.
    pub fn source(&self) -> DeviceSource {
        match self.source.mapped() {
            Some(_) => DeviceSource::Virtual,
            None => DeviceSource::Malloc,
        }
    }

    /// A block of at least `size` bytes, at a multiple of the granule (256 B). With a stream, work that is submitted to
    /// it from now on may use the block; without, anybody may at once.
    ///
    /// A hit makes no CUDA call, unless another stream waits for this one's epoch.
    pub fn allocate(&self, size: usize, on: Option<&Handle>, raw: bool) -> Result<usize> {
        match self.hit(size, on, raw) {
            Some(address) => Ok(address),
            None => self.allocate_missed(Request { size, on, raw }),
        }
    }

    /// A request that found nothing at the first look, or the first of all, or one in whose stream others wait for an event.
    #[cold]
    fn allocate_missed(&self, request: Request<'_>) -> Result<usize> {
        self.flush_front();
        let mut state = self.state.lock();
        if state.order.is_awaited(request.on.map(Handle::core)) {
            drop(state);
            self.attend(request.on);
            state = self.state.lock();
        }
        // Several spans side by side may serve it.
        if let Some(address) = state.hit_run(request) {
            return Ok(address);
        }
        drop(state);
        let served = self.allocate_slowly(request);
        let mut state = self.state.lock();
        match served {
            Ok(_) => state.counters.served += 1,
            // It may be made again: who gives it up counts it.
            Err(Error::OutOfMemory(_)) => {}
            Err(_) => state.counters.failures += 1,
        }
        // A size that is refused whatever is free says nothing of fragmentation.
        if matches!(&served, Ok(_) | Err(Error::OutOfMemory(_))) {
            state.counters.largest_miss = state.counters.largest_miss.max(request.size);
        }
        served
    }

    /// Does what others wait for: records the events of epochs in the stream, and drops what streams left that have ended.
    #[cold]
    fn attend(&self, on: Option<&Handle>) {
        let (wanted, crowded) = {
            let mut state = self.state.lock();
            let wanted = on.map(|on| state.order.epochs_to_close(on.core()));
            (wanted.unwrap_or_default(), state.order.is_crowded())
        };
        self.close_epochs(wanted, on);
        if crowded {
            self.poll(false);
        }
    }

    /// Records the events of epochs that have ended, in their own stream.
    fn close_epochs(&self, wanted: Vec<Arc<Fence>>, handle: Option<&Handle>) {
        let Some(handle) = handle.filter(|_| !wanted.is_empty()) else {
            return;
        };
        for epoch in &wanted {
            if let Err(error) = epoch.close_with(handle)
                && !handle.core().was_capturing()
            {
                tracing::warn!(%error, "an epoch could not be closed: it is tried again at its stream's next call");
            }
        }
        let mut state = self.state.lock();
        for epoch in &wanted {
            state.order.enqueue(epoch);
        }
    }

    fn report_segment(&self, base: usize, len: usize, change: SegmentChange) {
        let place = self.place();
        let mapped = self.source.mapped().is_some();
        #[cfg(feature = "nvtx")]
        if matches!(place, Place::Device(_)) {
            crate::spans::may_begin();
            // compute-sanitizer knows each chunk that is mapped as memory of its own, and takes a segment of several for a
            // mistake.
            if !mapped {
                let range = base..base.saturating_add(len);
                self.observed.annotate(range, change);
            }
        }
        #[cfg(feature = "trace-events")]
        {
            let base = format_args!("{base:#x}");
            crate::foreign::log(|| match change {
                SegmentChange::Added => {
                    tracing::debug!(%place, base, bytes = len, "memory was obtained from CUDA");
                }
                SegmentChange::Removed => {
                    tracing::debug!(%place, base, bytes = len, "memory goes back to CUDA, or moves");
                }
            });
        }
        self.observed.tell(&Told {
            place,
            mode: self.mode(),
            address: base,
            size: len,
            by: By::Host,
            stream: None,
            site: None,
            what: What::Segment { change, mapped },
        });
    }

    /// Whether the address lies in one of the pool's segments.
    pub fn contains(&self, address: usize) -> bool {
        self.state.lock().space.segment_of(address).is_some()
    }

    /// Whether memory stays pending because a stream that it was freed on is being captured.
    pub fn waits_for_a_capture(&self) -> bool {
        self.state
            .lock()
            .order
            .any_mark(|mark| !mark.is_closed() && mark.core().was_capturing())
    }

    /// Whether the pool's first allocation has been made, so that its size cannot be set any more.
    pub fn is_initialized(&self) -> bool {
        self.state.lock().prepared
    }
}

impl State {
    /// The best fit among idle memory and what the stream itself has freed.
    fn take_usable(&mut self, size: usize, place: Option<StreamPlace>, raw: bool) -> Option<usize> {
        let own = place.and_then(|place| self.order.class_of(place));
        let classes = [ClassId::IDLE, own.unwrap_or(ClassId::IDLE)];
        let taken = self.space.allocate(size, GRANULE, &classes)?;
        Some(self.hand_out(taken, size, place, raw))
    }

    /// As [`State::take_usable`], for the stream of a handle.
    fn take_usable_on(&mut self, request: Request<'_>) -> Option<usize> {
        let place = request.on.map(|on| self.order.place(on.core()));
        self.take_usable(request.size, place, request.raw)
    }

    /// Enters a block that was just taken.
    fn hand_out(
        &mut self,
        taken: Taken,
        requested: usize,
        place: Option<StreamPlace>,
        raw: bool,
    ) -> usize {
        debug_assert!(taken.len >= requested, "a block is as long as asked");
        self.counters.asked = self.counters.asked.wrapping_add(requested);
        if let Some(place) = place {
            self.order.name(place);
        }
        let (first, more) = match &*taken.owners {
            [] => (OwnerId::IDLE, &[][..]),
            [first, more @ ..] => (*first, more),
        };
        if first != OwnerId::IDLE {
            self.order.hold(first);
        }
        if let Some(live) = self.space.data_at_mut(taken.slot) {
            *live = Live::new(place, first, raw);
            if !more.is_empty()
                && let Some(extra) = self.extras.make(live)
            {
                extra.inherited.extend_from_slice(more);
                for id in more {
                    self.order.hold(*id);
                }
            }
        }
        self.counters.peak_in_use = self.counters.peak_in_use.max(self.space.in_use());
        taken.addr
    }

    /// The marks of the memory of a live block have been waited for.
    fn disinherit(&mut self, address: usize) {
        let Some(live) = self.space.data_mut(address) else {
            return;
        };
        for id in self.extras.disinherit(live) {
            self.order.release(id, &self.space);
        }
    }

    /// What is kept of the live block that starts at `address`, if it is more than of every block.
    fn extra(&self, address: usize) -> Option<&Extra> {
        Some(self.extras.of(self.space.live(address)?.data))
    }

    /// As [`State::extra`], to be changed.
    fn make_extra(&mut self, address: usize) -> Option<&mut Extra> {
        self.extras.make(self.space.data_mut(address)?)
    }

    /// Whether the address lies in a segment that is to be given back and has no live block any more.
    fn is_retiring(&self, address: usize) -> bool {
        self.space.segment_of(address).is_some_and(|segment| {
            self.retiring.contains(&segment.base) && !self.space.has_live_blocks(segment)
        })
    }

    /// Whether a segment that is to be given back has no live block.
    fn has_empty_retiring(&self) -> bool {
        self.retiring.iter().any(|base| {
            self.space
                .segment_of(*base)
                .is_some_and(|segment| !self.space.has_live_blocks(segment))
        })
    }

    /// Notes what completed and makes memory idle.
    fn complete(&mut self, fences: &[Arc<Fence>], all: bool) {
        let Self { order, space, .. } = self;
        let budget = if all {
            usize::MAX
        } else if order.is_crowded() {
            // As many streams have come since the last time: what they left goes at the pace at which they come.
            order.streams().saturating_mul(2).max(SETTLE_BUDGET)
        } else {
            SETTLE_BUDGET
        };
        order.complete(fences, space, budget);
    }
}
