//! Memory pools: blocks that are allocated and freed in stream order.
//!
//! A freed block belongs at first to the stream that freed it, which may have it back at once. Others get it when that
//! free has completed, or by being made to wait for it when the device has no more memory (each way is one of the three
//! reuse attributes). Memory goes back to the device, by whole segments, when the host has synchronised with the free
//! and the pool holds more than its release threshold, or is trimmed.

use crate::device::{Device, GRANULE, PAGE, round_up};
use crate::engine::{Engine, Point};
use crate::error::{Answer, OUT_OF_MEMORY};
use crate::heap::Ranges;
use crate::limit::Use;
use crate::mirror::{map_host, unmap_host};
use std::collections::{BTreeMap, BTreeSet};

/// The least that a pool takes from its device, if there is that much.
const SEGMENT: u64 = 32 << 20;

/// How many streams may have freed something before it is asked which of them are gone.
const MOST_PENDING: usize = 32;

/// Where a pool's memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Device(u32),
    Host,
}

/// What one stream has freed and nobody else may have yet. Tags are the numbers of the frees in that stream.
struct Pending {
    slot: u32,
    uid: u64,
    ranges: Ranges,
    newest: u64,
    /// No tag is below this.
    oldest: u64,
}

/// A pool.
pub(crate) struct Pool {
    pub(crate) location: Location,
    pub(crate) threshold: u64,
    pub(crate) max_size: u64,
    pub(crate) follow_events: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal_dependencies: bool,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    /// Destroyed by the user; it goes with its last block.
    pub(crate) destroyed: bool,
    pub(crate) live: u64,
    /// Devices other than its own that may access it.
    pub(crate) access: BTreeMap<u32, u32>,
    segments: BTreeMap<u64, u64>,
    empty: BTreeSet<u64>,
    idle: Ranges,
    pending: Vec<Pending>,
    /// When there are more than these, vanished streams among them are looked for.
    most_pending: usize,
}

impl Pool {
    pub(crate) fn new(location: Location, max_size: u64) -> Pool {
        Pool {
            location,
            threshold: 0,
            max_size,
            follow_events: true,
            opportunistic: true,
            internal_dependencies: true,
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
            destroyed: false,
            live: 0,
            access: BTreeMap::new(),
            segments: BTreeMap::new(),
            empty: BTreeSet::new(),
            idle: Ranges::new(),
            pending: Vec::new(),
            most_pending: MOST_PENDING,
        }
    }

    fn bounds(&self, address: u64) -> (u64, u64) {
        self.segments
            .range(..=address)
            .next_back()
            .map_or((address, address), |(s, l)| (*s, s + l))
    }

    fn add_idle(&mut self, start: u64, len: u64) {
        let bounds = self.bounds(start);
        let (start, len) = self.idle.insert(start, len, 0, bounds);
        if (start, start + len) == bounds {
            self.empty.insert(start);
        }
    }

    fn take_idle(&mut self, len: u64) -> Option<u64> {
        let (start, _) = self.idle.take(len)?;
        self.empty.remove(&start);
        Some(start)
    }

    /// Makes idle what was freed before the points that `known` says are done.
    fn settle(&mut self, known: impl Fn(Point) -> bool) {
        let mut pending = std::mem::take(&mut self.pending);
        for owner in &mut pending {
            let point = |seq| Point {
                slot: owner.slot,
                uid: owner.uid,
                seq,
            };
            // Usually all of it is known or none; else look for the newest free that is.
            let limit = if known(point(owner.newest)) {
                owner.newest
            } else {
                let mut low = owner.oldest.saturating_sub(1);
                let mut high = owner.newest;
                while low + 1 < high {
                    let middle = low + (high - low) / 2;
                    if known(point(middle)) {
                        low = middle;
                    } else {
                        high = middle;
                    }
                }
                low
            };
            if limit >= owner.oldest {
                for (start, len) in owner.ranges.remove_up_to(limit) {
                    self.add_idle(start, len);
                }
                owner.oldest = limit + 1;
            }
        }
        pending.retain(|owner| !owner.ranges.is_empty());
        self.pending = pending;
    }

    /// Takes a block for work of stream `stream` (its slot and uid). Also returns the point for which the stream must
    /// be made to wait first, if there is one.
    pub(crate) fn take(
        &mut self,
        engine: &Engine,
        devices: &mut [Device],
        stream: (u32, u64),
        size: u64,
    ) -> Answer<(u64, Option<Point>)> {
        let len = round_up(size, GRANULE)?;
        let found = self.find(engine, devices, stream, len)?;
        self.used = self.used.saturating_add(len);
        self.used_high = self.used_high.max(self.used);
        self.live += 1;
        Ok(found)
    }

    fn find(
        &mut self,
        engine: &Engine,
        devices: &mut [Device],
        stream: (u32, u64),
        len: u64,
    ) -> Answer<(u64, Option<Point>)> {
        if self.pending.len() > self.most_pending {
            self.settle(|point| engine.observed(point));
            self.most_pending = (2 * self.pending.len()).max(MOST_PENDING);
        }
        for owner in &mut self.pending {
            if (owner.slot, owner.uid) == stream
                && let Some((start, _)) = owner.ranges.take(len)
            {
                return Ok((start, None));
            }
        }
        if let Some(start) = self.take_idle(len) {
            return Ok((start, None));
        }
        if self.opportunistic {
            for owner in &mut self.pending {
                let (slot, uid) = (owner.slot, owner.uid);
                let done = |seq| engine.done(Point { slot, uid, seq });
                if let Some(start) = owner.ranges.take_if(len, done) {
                    return Ok((start, None));
                }
            }
        }
        if self.follow_events {
            for owner in &mut self.pending {
                if let Some(seq) = engine.followed(stream.0, owner.uid)
                    && owner.newest <= seq
                    && let Some((start, _)) = owner.ranges.take(len)
                {
                    return Ok((start, None));
                }
            }
        }
        if !self.pending.is_empty() {
            // What the host knows to be free is anybody's, and merges with its neighbours.
            self.settle(|point| engine.observed(point));
            if let Some(start) = self.take_idle(len) {
                return Ok((start, None));
            }
        }
        for attempt in 0..2 {
            // What lies idle in pieces that are too small makes room for a piece that is not.
            if attempt > 0 {
                self.trim(engine, devices, 0);
            }
            if self.grow(devices, len).is_ok()
                && let Some(start) = self.take_idle(len)
            {
                return Ok((start, None));
            }
        }
        if self.internal_dependencies {
            let best = self
                .pending
                .iter_mut()
                .filter_map(|owner| Some((owner.ranges.fit(len)?, owner)))
                .min_by_key(|(size, _)| *size);
            if let Some((_, owner)) = best
                && let Some((start, seq)) = owner.ranges.take(len)
            {
                let point = Point {
                    slot: owner.slot,
                    uid: owner.uid,
                    seq,
                };
                return Ok((start, Some(point)));
            }
        }
        Err(OUT_OF_MEMORY)
    }

    fn grow(&mut self, devices: &mut [Device], len: u64) -> Answer {
        let exact = round_up(len, PAGE)?;
        for size in [exact.max(SEGMENT), exact] {
            let after = self.reserved.checked_add(size).ok_or(OUT_OF_MEMORY)?;
            if self.max_size != 0 && after > round_up(self.max_size, PAGE)? {
                continue;
            }
            let start = match self.location {
                Location::Device(d) => devices
                    .get_mut(d as usize)
                    .ok_or(OUT_OF_MEMORY)
                    .and_then(|d| d.take_pages(size, Use::Pools)),
                Location::Host => usize::try_from(size)
                    .ok()
                    .and_then(map_host)
                    .map(|a| a as u64)
                    .ok_or(OUT_OF_MEMORY),
            };
            if let Ok(start) = start {
                self.segments.insert(start, size);
                self.reserved = after;
                self.reserved_high = self.reserved_high.max(after);
                self.add_idle(start, size);
                return Ok(());
            }
        }
        Err(OUT_OF_MEMORY)
    }

    /// Takes a block back. With a point: freed in stream order there; without: the caller says that nobody uses it. A
    /// block without a point (`cudaFree`) goes on counting as used, as on a GPU.
    pub(crate) fn give(&mut self, start: u64, size: u64, freed: Option<Point>) {
        let Ok(len) = round_up(size, GRANULE) else {
            return;
        };
        self.live = self.live.saturating_sub(1);
        let Some(point) = freed else {
            self.add_idle(start, len);
            return;
        };
        self.used = self.used.saturating_sub(len);
        let bounds = self.bounds(start);
        let place = self
            .pending
            .iter()
            .position(|o| (o.slot, o.uid) == (point.slot, point.uid));
        let owner = match place.and_then(|at| self.pending.get_mut(at)) {
            Some(owner) => owner,
            None => {
                self.pending.push(Pending {
                    slot: point.slot,
                    uid: point.uid,
                    ranges: Ranges::new(),
                    newest: 0,
                    oldest: u64::MAX,
                });
                match self.pending.last_mut() {
                    Some(owner) => owner,
                    None => return,
                }
            }
        };
        owner.newest = owner.newest.max(point.seq);
        owner.oldest = owner.oldest.min(point.seq);
        owner.ranges.insert(start, len, point.seq, bounds);
    }

    /// Gives whole segments back until no more than `keep` bytes are held, as far as the host knows them to be free.
    pub(crate) fn trim(&mut self, engine: &Engine, devices: &mut [Device], keep: u64) {
        if self.reserved <= keep {
            return;
        }
        if !self.pending.is_empty() {
            self.settle(|point| engine.observed(point));
        }
        while self.reserved > keep {
            let Some(start) = self.empty.pop_last() else {
                return;
            };
            self.idle.remove(start);
            let Some(len) = self.segments.remove(&start) else {
                continue;
            };
            self.reserved = self.reserved.saturating_sub(len);
            self.release(devices, start, len);
        }
    }

    fn release(&self, devices: &mut [Device], start: u64, len: u64) {
        match self.location {
            Location::Device(d) => {
                if let Some(device) = devices.get_mut(d as usize) {
                    device.give_pages(start, len, Use::Pools);
                }
            }
            Location::Host => unmap_host(start as usize, len as usize),
        }
    }

    /// Whether all frees have completed.
    pub(crate) fn all_done(&self, engine: &Engine) -> bool {
        self.pending.iter().all(|owner| {
            engine.done(Point {
                slot: owner.slot,
                uid: owner.uid,
                seq: owner.newest,
            })
        })
    }

    /// Gives everything back, live blocks included: the pool's end.
    pub(crate) fn dissolve(&mut self, devices: &mut [Device]) {
        for (start, len) in std::mem::take(&mut self.segments) {
            self.release(devices, start, len);
        }
        self.reserved = 0;
        self.pending.clear();
        self.empty.clear();
        self.idle = Ranges::new();
    }
}
