//! What a pool says of itself: statistics, peaks, live blocks, why it has no memory; and whether its books are sound.

use super::{
    Pool, State,
    best_fit::LiveInfo,
    labels::Label,
    live::{Extras, Live},
    peaks::High,
    segment::Capacity,
};
use crate::{
    error::{Error, Place, Result},
    out_of_memory::{Holders, OutOfMemory},
    stats::{PoolFragmentation, PoolStats},
};

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

impl Pool {
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

    /// A scope has ended.
    pub fn end_peak(&self, scope: u64) {
        let mut state = self.state.lock();
        let watermark = state.watermark();
        state.counters.peaks.end(scope, watermark);
    }

    /// A request for which there was no memory is not made again.
    pub fn count_failure(&self) {
        let counters = &mut self.state.lock().counters;
        counters.failures = counters.failures.wrapping_add(1);
    }

    /// What was asked for of a live block, in bytes.
    pub(super) fn requested(&self, extras: &Extras, live: &LiveInfo<'_, Live>) -> usize {
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

    /// The figures that explain a refusal.
    pub(super) fn out_of_memory(
        &self,
        place: Place,
        requested: usize,
        capacity: Capacity,
    ) -> Error {
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
