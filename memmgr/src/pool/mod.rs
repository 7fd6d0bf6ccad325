//! Pools: memory that is taken from CUDA in segments and served in blocks.
//!
//! A [`Pool`] joins three things that know nothing of each other: the address-space allocator ([`best_fit`]), the order
//! layer ([`order`]: marks and epochs) and a source of segments ([`segment`]). One lock guards the first two; no CUDA
//! call is made under it. `miss.rs` is what happens when nothing fits, `uses.rs` what copies and guards record.

mod arena;
pub(crate) mod best_fit;
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
    config::Reuse,
    error::{Error, Place, Result},
    event::Fence,
    mode::DeviceAllocatorMode,
    out_of_memory::{Holders, OutOfMemory},
    source::DeviceSource,
    stats::{PoolFragmentation, PoolStats},
    stream::{Handle, StreamCore},
    sync::{Condvar, atomic::AtomicBool, thread::ThreadId},
};
use arena::Arena;
use best_fit::{ClassId, FreeError, LiveInfo, OwnerId, Slot, Space, Taken};
use front::Front;
use hit::Missed;
use live::{Extra, Extras, Live, Place as StreamPlace};
use miss::{Request, Tidied};
use observer::{By, Observed, SegmentChange, Told, What};
use order::{Order, SETTLE_BUDGET};
use peaks::Peaks;
use rest::{Books, Last};
use segment::{Capacity, Source};
use std::{collections::BTreeSet, sync::Arc};

pub(crate) use best_fit::GRANULE;

/// Settings of one pool, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolConfig {
    pub initial: usize,
    pub limit: Option<usize>,
    /// A limit that is a share of all memory of the place, until that is known.
    pub limit_share: Option<f64>,
    pub growth: usize,
    pub reuse: Reuse,
}

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

/// A live block: its start, what was asked for in bytes, and whether it was handed out as a raw pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveRange {
    pub start: usize,
    pub len: usize,
    pub raw: bool,
    /// Whether it was freed, and only a captured graph keeps it.
    pub kept: bool,
    /// CUDA's id of the stream that it was allocated on.
    pub stream: Option<u64>,
    pub label: Label,
}

/// In whose order a block is freed.
#[derive(Clone, Copy)]
pub(crate) enum FreeOn<'a> {
    /// Only recorded uses touch it.
    Recorded,
    /// Work that is in this stream already may touch it.
    Stream(&'a Handle),
    /// Work that is in this stream already may touch it; no handle is at hand.
    Core(&'a Arc<StreamCore>),
    /// Work that is in the stream it was allocated on, if it was on one, may touch it (guards, and they alone).
    Allocating,
}

impl FreeOn<'_> {
    /// Whether a block, handed out as a raw pointer or not, can be freed so on the short way: in the order that a caller names,
    /// raw ones alone.
    #[inline(always)]
    pub fn may_free(self, raw: bool) -> bool {
        raw || matches!(self, FreeOn::Allocating)
    }
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

    /// Takes a block back. Makes no CUDA call, unless another stream waits for this one's epoch, or the stream is a
    /// per-thread one.
    ///
    /// `None`: the address belongs to no segment of this pool.
    pub fn free(&self, address: usize, on: FreeOn<'_>) -> Result<Option<()>> {
        self.free_as(address, on, Who::Keeper)
    }

    /// As [`Pool::free`], if `who` may free the block.
    pub fn free_as(&self, address: usize, on: FreeOn<'_>, who: Who) -> Result<Option<()>> {
        if self.free_plain(address, on) {
            return Ok(Some(()));
        }
        self.free_marked(address, on, who)
    }

    #[cold]
    fn free_marked(&self, address: usize, on: FreeOn<'_>, who: Who) -> Result<Option<()>> {
        let single = {
            let mut state = self.lock_block(address);
            let Some(slot) = state.space.find(address) else {
                return match state.space.why_not_live(address) {
                    FreeError::Foreign => Ok(None),
                    error => Err(free_error(address, error)),
                };
            };
            if let Some(live) = state.space.data_at(slot)
                && !who.may_free(live.raw())
                && state.extras.of(live).freed.is_none()
            {
                return Err(belongs_to_a_guard(address));
            }
            let Some(single) = state.free_with_marks(slot, address, on)? else {
                return Ok(Some(()));
            };
            if !state.retiring.is_empty() {
                state.release_due |= state.is_retiring(address);
            }
            single
        };
        self.finish_free(single, on);
        Ok(Some(()))
    }

    /// Records the events that a free is asked for.
    fn finish_free(&self, single: Option<Arc<Fence>>, on: FreeOn<'_>) {
        let handle = match on {
            FreeOn::Stream(handle) => Some(handle),
            _ => None,
        };
        if let Some(fence) = single {
            // What cannot be recorded now is tried again at the stream's next call.
            match handle {
                Some(handle) => drop(fence.record_begun(handle)),
                None => fence.leave_open(),
            }
            self.state.lock().order.enqueue(&fence);
        }
        if let Some(handle) = handle {
            let wanted = self.state.lock().order.epochs_to_close(handle.core());
            self.close_epochs(wanted, Some(handle));
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

    /// Sets the size that is reserved at the first allocation.
    pub fn set_initial(&self, bytes: usize, what: &'static str) -> Result<()> {
        let mut state = self.state.lock();
        if state.prepared {
            return Err(Error::AlreadyInitialized {
                what,
                in_force: state.config.initial,
            });
        }
        if let Some(limit) = state.config.limit.filter(|limit| bytes > *limit) {
            return Err(Error::LimitExceeded {
                place: self.place(),
                requested: bytes,
                limit,
            });
        }
        state.config.initial = bytes;
        Ok(())
    }

    /// Sets the most that the pool may hold; what it holds beyond stays.
    pub fn set_limit(&self, bytes: Option<usize>) {
        let config = &mut self.state.lock().config;
        (config.limit, config.limit_share) = (bytes, None);
    }

    /// As [`Pool::set_limit`], as a share of the place's memory, which the next request that misses turns into bytes.
    pub fn set_limit_share(&self, share: f64) {
        let config = &mut self.state.lock().config;
        (config.limit, config.limit_share) = (None, Some(share));
    }

    /// The figures. Looks at no block, but for what threads that compete hold back.
    pub fn stats(&self) -> PoolStats {
        self.flush_front();
        let state = self.state.lock();
        let (space, counters) = (state.space.stats(), &state.counters);
        let front = self.front.counted();
        let asked = counters.asked.wrapping_add(front.asked);
        let hits = counters.hits.wrapping_add(front.handed_out);
        let allocations = hits.saturating_add(counters.served);
        let peak = counters.peaks.since_reset(state.watermark());
        PoolStats {
            in_use: space.in_use,
            reserved: space.reserved,
            idle: space.idle,
            pending: space.pending,
            largest_idle: space.largest_idle,
            internal_waste: space.in_use.saturating_sub(asked),
            largest_miss: counters.largest_miss,
            peak_in_use: peak.in_use,
            peak_reserved: peak.reserved,
            allocations,
            // Each block that was handed out is live or was freed.
            frees: allocations.saturating_sub(space.live_blocks as u64),
            reuses: hits.saturating_add(counters.reuses),
            waits: counters.waits,
            steals: counters.steals,
            growths: counters.growths,
            moves: counters.moves.saturating_add(counters.joined),
            remaps: counters.remaps,
            failures: counters.failures,
            splits: space.splits,
            merges: space.merges,
            live_blocks: space.live_blocks,
            free_spans: space.free_spans,
            segments: space.segments,
        }
    }

    /// What of the idle memory lies in spans shorter than the largest miss. Looks at every block.
    pub fn fragmentation(&self) -> PoolFragmentation {
        self.flush_front();
        let state = self.state.lock();
        let largest_miss = state.counters.largest_miss;
        let stats = state.space.stats();
        PoolFragmentation {
            external_waste: state.space.idle_below(largest_miss),
            largest_miss,
            idle: stats.idle,
            largest_idle: stats.largest_idle,
        }
    }

    /// Sets the peaks to what is the case now.
    pub fn reset_peak(&self) {
        self.flush_front();
        let mut state = self.state.lock();
        let watermark = state.watermark();
        state.counters.peaks.reset(watermark);
        state.restart_watermark();
        state.counters.largest_miss = 0;
    }

    /// A scope begins to watch the peaks; what is the case now.
    pub fn begin_peak(&self, scope: u64) -> High {
        self.flush_front();
        let mut state = self.state.lock();
        let watermark = state.watermark();
        state.counters.peaks.begin(scope, watermark);
        state.restart_watermark()
    }

    /// The peaks since a scope began.
    pub fn peak_since(&self, scope: u64) -> High {
        let state = self.state.lock();
        state.counters.peaks.since(scope, state.watermark())
    }

    /// A request for which there was no memory is not made again.
    pub fn count_failure(&self) {
        let counters = &mut self.state.lock().counters;
        counters.failures = counters.failures.wrapping_add(1);
    }

    /// A scope has ended.
    pub fn end_peak(&self, scope: u64) {
        let mut state = self.state.lock();
        let watermark = state.watermark();
        state.counters.peaks.end(scope, watermark);
    }

    /// What was asked for of a live block, in bytes.
    fn requested(&self, extras: &Extras, live: &LiveInfo<'_, Live>) -> usize {
        let fronted = extras
            .front(live.data)
            .and_then(|number| self.front.look(number));
        fronted.map_or(live.requested, |fronted| fronted.requested)
    }

    /// Every live block.
    pub fn live_blocks(&self) -> Vec<LiveRange> {
        self.flush_front();
        let state = self.state.lock();
        state
            .space
            .live_blocks()
            .filter_map(|live| {
                let number = state.extras.front(live.data);
                let fronted = number.and_then(|number| self.front.look(number));
                if fronted.is_some_and(|fronted| fronted.in_bin) {
                    return None;
                }
                Some(LiveRange {
                    start: live.addr,
                    len: fronted.map_or(live.requested, |fronted| fronted.requested),
                    raw: fronted.map_or(live.data.raw(), |fronted| fronted.raw),
                    kept: state.extras.of(live.data).freed.is_some(),
                    stream: state.order.core(live.data.stream()).map(|core| core.id()),
                    label: Label::of(state.extras.of(live.data).label.as_deref()),
                })
            })
            .collect()
    }

    /// What a report says of the free of the live block that starts at `address`; or leaves it to the captured graph that
    /// uses the block. That is one step: the graph may go at any moment.
    pub fn announce_free(&self, address: usize, on: FreeOn<'_>, who: Who) -> Option<Announced> {
        let mut guard = self.lock_block(address);
        let State {
            space,
            order,
            extras,
            ..
        } = &mut *guard;
        let LiveInfo {
            data: live,
            requested,
            ..
        } = space.live(address)?;
        if !who.may_free(live.raw()) && extras.of(live).freed.is_none() {
            return Some(Announced::Refused(belongs_to_a_guard(address)));
        }
        let stream = order.core(live.stream());
        if let Some(extra) = extras.of_mut(live)
            && extra.held > 0
        {
            return leave_to_graph(&mut extra.freed, on, stream);
        }
        let inherited = !extras.inherited(live).all(|id| order.is_complete(id));
        let by = freed_by(on, stream, &extras.of(live).uses, inherited);
        Some(Announced::Now(Leaving {
            size: requested,
            by,
            stream: core_of(on, stream).map(|core| core.id()),
            mode: self.mode(),
        }))
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

    /// Walks everything and verifies it.
    pub fn check(&self) -> Result<(), String> {
        self.flush_front();
        let state = self.state.lock();
        state.space.check()?;
        self.check_asked(&state)?;
        if self.source.mapped().is_some() {
            state.arena.check(&state.space)?;
        }
        state.order.check(&state.space, &state.extras)
    }

    /// Whether what was asked for of all live blocks is counted right. What the front hands out meanwhile changes both.
    fn check_asked(&self, state: &State) -> Result<(), String> {
        let counted = || {
            state
                .counters
                .asked
                .wrapping_add(self.front.counted().asked)
        };
        let before = counted();
        let blocks = state.space.live_blocks();
        let walked = blocks.fold(0, |sum, live| {
            self.requested(&state.extras, &live).wrapping_add(sum)
        });
        let after = counted();
        if before == after && walked != after {
            return Err(format!(
                "{walked} bytes were asked for of the live blocks, {after} are counted"
            ));
        }
        Ok(())
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

    /// The highest since [`State::restart_watermark`].
    fn watermark(&self) -> High {
        High {
            in_use: self.counters.peak_in_use,
            reserved: self.counters.peak_reserved,
        }
    }

    /// Lets the watermark start again at what is the case now.
    fn restart_watermark(&mut self) -> High {
        let now = High {
            in_use: self.space.in_use(),
            reserved: self.space.reserved(),
        };
        self.counters.peak_in_use = now.in_use;
        self.counters.peak_reserved = now.reserved;
        now
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

    /// Frees any block; `None` if it was left to a captured graph, otherwise a fence to be recorded at once, if there is one.
    #[allow(clippy::type_complexity)]
    fn free_with_marks(
        &mut self,
        slot: Slot,
        address: usize,
        on: FreeOn<'_>,
    ) -> Result<Option<Option<Arc<Fence>>>> {
        let Self {
            space,
            order,
            extras,
            ..
        } = self;
        let Some(live) = space.data_at_mut(slot) else {
            return Err(Error::DoubleFree { ptr: address });
        };
        let stream = order.core(live.stream());
        if let Some(extra) = extras.of_mut(live)
            && extra.held > 0
        {
            if extra.freed.is_some() {
                return Err(Error::DoubleFree { ptr: address });
            }
            extra.freed = Some(Freed::new(on, stream));
            return Ok(None);
        }
        let core = match on {
            FreeOn::Recorded => None,
            FreeOn::Stream(handle) => Some(handle.core().clone()),
            FreeOn::Core(core) => Some(core.clone()),
            FreeOn::Allocating => stream.cloned(),
        };
        let live = *live;
        let requested = space.requested_at(slot);
        let (owner, single) = order.owner_for_free(&live, extras, core.as_ref());
        if let Err(error) = space.free_at(slot, owner) {
            return Err(free_error(address, error));
        }
        self.forget(&live, requested);
        self.note_empty();
        Ok(Some(single))
    }

    /// A block that carried this, and of which so much was asked for, is gone.
    fn forget(&mut self, live: &Live, requested: usize) {
        self.counters.asked = self.counters.asked.wrapping_sub(requested);
        if let Some(place) = live.stream() {
            self.order.unname(place);
        }
        for id in self.extras.inherited(live) {
            self.order.release(id, &self.space);
        }
        self.extras.forget(live);
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

    /// The figures that explain a refusal.
    fn out_of_memory(&self, place: Place, requested: usize, capacity: Capacity) -> Error {
        let stats = self.space.stats();
        Error::OutOfMemory(Box::new(OutOfMemory {
            place,
            requested,
            in_use: stats.in_use,
            reserved: stats.reserved,
            idle: stats.idle,
            pending: stats.pending,
            largest_idle: Some(stats.largest_idle),
            free_pieces: stats.free_spans,
            initial: false,
            // Asked of the last refusal alone.
            idle_of_others: 0,
            no_addresses: self.no_addresses,
            device_free: capacity.free,
            limit: self.config.limit,
            capacity: capacity.total,
            // Looking at every block is worth it for the last refusal alone.
            holders: Holders::default(),
        }))
    }
}

/// What becomes of a free that is about to be made.
pub(crate) enum Announced {
    /// It is to be made after this report.
    Now(Leaving),
    /// It has been left to a captured graph that uses the block: nothing is free yet, and nothing is to be reported.
    Left,
    /// It will not be made.
    Refused(Error),
}

/// Who frees a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Somebody with its pointer, which may be that of a guard's block.
    Pointer,
    /// The guard that it belongs to, or who kept it for one that is gone.
    Keeper,
}

impl Who {
    /// Whether the block may be freed so: one that was handed out as a raw pointer, or one of a guard.
    #[inline(always)]
    pub fn may_free(self, raw: bool) -> bool {
        raw || self == Who::Keeper
    }
}

/// A guard's block is freed by its pointer.
pub(crate) fn belongs_to_a_guard(address: usize) -> Error {
    Error::unknown(
        address,
        "the block there belongs to a guard, which frees it when it is dropped: drop it",
    )
}

/// What is said of a block that is about to be freed.
pub(crate) struct Leaving {
    /// What was asked for, in bytes.
    pub size: usize,
    pub by: By,
    /// The stream that was named, by id.
    pub stream: Option<u64>,
    /// Which family made it; `None` for pinned memory.
    pub mode: Option<DeviceAllocatorMode>,
}

/// The stream that a free names.
fn core_of<'a>(
    on: FreeOn<'a>,
    allocated_on: Option<&'a Arc<StreamCore>>,
) -> Option<&'a Arc<StreamCore>> {
    match on {
        FreeOn::Recorded => None,
        FreeOn::Stream(handle) => Some(handle.core()),
        FreeOn::Core(core) => Some(core),
        FreeOn::Allocating => allocated_on,
    }
}

/// Leaves a free to the graph that uses the block, unless that has been done before.
fn leave_to_graph(
    freed: &mut Option<Freed>,
    on: FreeOn<'_>,
    allocated_on: Option<&Arc<StreamCore>>,
) -> Option<Announced> {
    if freed.is_some() {
        return None;
    }
    *freed = Some(Freed::new(on, allocated_on));
    Some(Announced::Left)
}

/// In whose order a block can be said to be freed: the one that everything which may touch it precedes, if there is one.
fn freed_by(
    on: FreeOn<'_>,
    allocated_on: Option<&Arc<StreamCore>>,
    uses: &[Use],
    inherited: bool,
) -> By {
    let core = core_of(on, allocated_on);
    let pending = uses.iter().any(|used| {
        !used.fence.is_done() && !core.is_some_and(|core| core.is_same(used.fence.core()))
    });
    let follows = match (core, allocated_on) {
        (Some(core), Some(stream)) => core.is_same(stream),
        (_, None) => !inherited,
        (None, Some(_)) => false,
    };
    if pending || !follows {
        return By::Nobody;
    }
    core.map_or(By::Host, |core| By::Stream(core.id()))
}

fn free_error(address: usize, error: FreeError) -> Error {
    match error {
        // Blocks start at multiples of the granule.
        FreeError::AlreadyFree if !address.is_multiple_of(GRANULE) => Error::unknown(
            address,
            "no block starts there: it lies in free memory of the pool",
        ),
        FreeError::AlreadyFree => Error::DoubleFree { ptr: address },
        FreeError::Interior { start, len } => Error::unknown(
            address,
            format!("it lies inside the live block of {len} bytes at {start:#x}; free its start"),
        ),
        FreeError::Foreign => Error::unknown(address, "it belongs to no segment of this pool"),
        FreeError::Owner(error) => Error::unknown(address, error.to_string()),
    }
}
