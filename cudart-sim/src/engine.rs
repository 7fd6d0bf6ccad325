//! The scheduler: streams as queues of operations, and the points in them that others wait for.
//!
//! Operations of a stream complete in order, so a number tells how far a stream is, and a [`Point`] (stream, number) is
//! all that an event, a dependency or a free has to remember. An operation starts when its predecessor in the stream
//! and all points it depends on are done, and when the schedule allows it. Everything here runs under the one lock of
//! the runtime; the work itself runs outside it (`worker.rs`).

use crate::check;
use crate::config::{Schedule, TimeModel};
pub(crate) use crate::stream::{Kind, Point};
use crate::stream::{Op, State, Stream};
use crate::sync::Instant;
use crate::trace;
use crate::work::Work;
use std::collections::VecDeque;
use std::time::Duration;

/// All streams, and what is ready to run.
pub(crate) struct Engine {
    slots: Vec<Stream>,
    free: Vec<u32>,
    next_uid: u64,
    legacy: Vec<Option<u32>>,
    busy: Vec<Vec<u32>>,
    pub(crate) ready: VecDeque<u32>,
    /// How many of the ready heads may block until another one runs, and how many such are running.
    pub(crate) ready_blocking: usize,
    pub(crate) running_blocking: usize,
    pokes: Vec<u32>,
    notify: bool,
    pub(crate) workers: usize,
    pub(crate) starting: usize,
    pub(crate) idle: usize,
    pub(crate) notified: usize,
    /// Something is ready for which no thread could be had.
    pub(crate) short_of_threads: bool,
    pub(crate) host_waiters: usize,
    pub(crate) blocked_on_full: usize,
    pub(crate) watchdog: bool,
    pub(crate) schedule: Schedule,
    pub(crate) patience: Duration,
    pub(crate) random_delay: Duration,
    pub(crate) depth: usize,
    pub(crate) time: Option<TimeModel>,
    random: u64,
}

impl Engine {
    pub(crate) const fn new() -> Engine {
        Engine {
            slots: Vec::new(),
            free: Vec::new(),
            next_uid: 7,
            legacy: Vec::new(),
            busy: Vec::new(),
            ready: VecDeque::new(),
            ready_blocking: 0,
            running_blocking: 0,
            pokes: Vec::new(),
            notify: false,
            workers: 0,
            starting: 0,
            idle: 0,
            notified: 0,
            short_of_threads: false,
            host_waiters: 0,
            blocked_on_full: 0,
            watchdog: false,
            schedule: Schedule::Eager,
            patience: Duration::from_secs(1),
            random_delay: Duration::ZERO,
            depth: 1021,
            time: None,
            random: 1,
        }
    }

    /// Forgets all streams (none of which may be busy) and makes room for these devices. Ids go on.
    pub(crate) fn restart(&mut self, devices: usize) {
        self.slots.clear();
        self.free.clear();
        self.legacy = vec![None; devices];
        self.busy = vec![Vec::new(); devices];
        self.ready.clear();
        self.ready_blocking = 0;
        self.pokes.clear();
    }

    pub(crate) fn set_schedule(&mut self, schedule: Schedule) {
        self.schedule = schedule;
        if let Schedule::Random(seed) = schedule {
            self.random = seed | 1;
        }
        self.pokes.extend(self.busy.iter().flatten());
        self.settle();
    }

    fn live(&mut self, slot: u32) -> Option<&mut Stream> {
        self.slots.get_mut(slot as usize)
    }

    /// The stream in a slot.
    pub(crate) fn stream(&self, slot: u32) -> Option<&Stream> {
        self.slots.get(slot as usize)
    }

    /// The stream with that id.
    pub(crate) fn with_id(&self, uid: u64) -> Option<&Stream> {
        self.slots.iter().find(|s| uid != 0 && s.uid == uid)
    }

    pub(crate) fn create(&mut self, device: u32, kind: Kind, priority: i32) -> u32 {
        let uid = self.next_uid;
        self.next_uid += 1;
        let stream = Stream::new(uid, device, kind, priority);
        if let Some(slot) = self.free.pop()
            && let Some(place) = self.live(slot)
        {
            *place = stream;
            return slot;
        }
        self.slots.push(stream);
        (self.slots.len() - 1) as u32
    }

    /// The legacy default stream of a device.
    pub(crate) fn legacy(&mut self, device: u32) -> u32 {
        match self.legacy.get(device as usize) {
            Some(Some(slot)) => *slot,
            _ => {
                let slot = self.create(device, Kind::Legacy, 0);
                if let Some(place) = self.legacy.get_mut(device as usize) {
                    *place = Some(slot);
                }
                slot
            }
        }
    }

    /// The stream goes when its work is done.
    pub(crate) fn destroy(&mut self, slot: u32, uid: u64) {
        let Some(stream) = self.live(slot).filter(|s| s.uid == uid) else {
            return;
        };
        stream.destroyed = true;
        check::destroyed(uid);
        if stream.queue.is_empty() {
            self.vacate(slot);
        }
    }

    fn vacate(&mut self, slot: u32) {
        if let Some(stream) = self.live(slot) {
            stream.uid = 0;
            self.free.push(slot);
        }
    }

    pub(crate) fn done(&self, point: Point) -> bool {
        self.stream(point.slot)
            .is_none_or(|s| s.uid != point.uid || s.completed >= point.seq)
    }

    /// Where a stream stands: done when all that is submitted now is done.
    pub(crate) fn last(&self, slot: u32) -> Point {
        let (uid, seq) = self.stream(slot).map_or((0, 0), |s| (s.uid, s.submitted()));
        Point { slot, uid, seq }
    }

    /// The ends of all busy streams of a device.
    pub(crate) fn ends(&self, device: u32) -> Vec<Point> {
        let busy = self.busy.get(device as usize);
        busy.into_iter().flatten().map(|s| self.last(*s)).collect()
    }

    /// What must be done before a synchronisation with a stream returns.
    pub(crate) fn ends_before(&self, slot: u32) -> Vec<Point> {
        let mut points = vec![self.last(slot)];
        if let Some(stream) = self.stream(slot)
            && stream.kind == Kind::Legacy
        {
            let busy = self.busy.get(stream.device as usize);
            points.extend(self.blocking(busy.into_iter().flatten()));
        }
        points
    }

    fn blocking<'a>(&'a self, slots: impl Iterator<Item = &'a u32>) -> impl Iterator<Item = Point> {
        slots
            .filter(|slot| {
                self.stream(**slot)
                    .is_some_and(|s| matches!(s.kind, Kind::Blocking | Kind::PerThread))
            })
            .map(|slot| self.last(*slot))
    }

    /// Whether the stream takes no more work for now.
    pub(crate) fn full(&self, slot: u32) -> bool {
        self.stream(slot)
            .is_some_and(|s| s.queue.len() > self.depth)
    }

    /// The one place through which every operation passes, with the call that made it.
    pub(crate) fn submit(
        &mut self,
        call: &str,
        slot: u32,
        work: Work,
        mut after: Vec<Point>,
    ) -> Point {
        self.add_default_stream_order(slot, &mut after);
        let last = self.last(slot);
        let point = Point {
            seq: last.seq + 1,
            ..last
        };
        trace::submitted(call, point, &work, &after);
        check::submitted(call, self.stream(slot), point, &work);
        after.retain(|p| !self.done(*p));
        let lazy = self.schedule == Schedule::Lazy;
        let inline = self.inline(&work) && !lazy;
        let Some(stream) = self.live(slot) else {
            return point;
        };
        if inline && after.is_empty() && stream.queue.is_empty() {
            stream.completed = point.seq;
            work.run();
            return point;
        }
        stream.queue.push_back(Op {
            work: Some(work),
            after,
            since: lazy.then(Instant::now),
        });
        if stream.queue.len() == 1 {
            let device = stream.device as usize;
            if let Some(busy) = self.busy.get_mut(device) {
                let at = busy.len();
                busy.push(slot);
                if let Some(stream) = self.live(slot) {
                    stream.busy_at = at;
                }
            }
            self.pokes.push(slot);
            self.settle();
        }
        point
    }

    /// Work in the legacy stream follows all blocking streams of its device, and they follow it.
    fn add_default_stream_order(&mut self, slot: u32, after: &mut Vec<Point>) {
        let Some((device, kind)) = self.stream(slot).map(|s| (s.device, s.kind)) else {
            return;
        };
        match kind {
            Kind::NonBlocking => {}
            Kind::Legacy => {
                let busy = self.busy.get(device as usize);
                after.extend(self.blocking(busy.into_iter().flatten()));
            }
            Kind::Blocking | Kind::PerThread => {
                if let Some(Some(legacy)) = self.legacy.get(device as usize) {
                    after.push(self.last(*legacy));
                }
            }
        }
    }

    fn inline(&self, work: &Work) -> bool {
        match self.schedule {
            Schedule::Random(_) => false,
            _ if self.time.is_some() => work.is_marker(),
            Schedule::Eager => work.is_small(),
            Schedule::Lazy => work.is_marker(),
        }
    }

    /// Somebody asks for these points: whatever they need may run.
    pub(crate) fn demand(&mut self, points: &[Point]) {
        if self.schedule != Schedule::Lazy {
            return;
        }
        let mut todo = points.to_vec();
        while let Some(point) = todo.pop() {
            let Some(stream) = self.live(point.slot).filter(|s| s.uid == point.uid) else {
                continue;
            };
            let (from, to) = (stream.demanded.max(stream.completed), point.seq);
            if to <= from {
                continue;
            }
            stream.demanded = to;
            let skip = (from - stream.completed) as usize;
            let count = (to - from) as usize;
            for op in stream.queue.iter().skip(skip).take(count) {
                todo.extend_from_slice(&op.after);
            }
            self.pokes.push(point.slot);
        }
        self.settle();
    }

    /// Under the lazy schedule: runs what has lain too long. Returns whether there is anything to watch.
    pub(crate) fn lose_patience(&mut self) -> bool {
        if self.schedule != Schedule::Lazy {
            return false;
        }
        let patience = self.patience;
        let old: Vec<Point> = self
            .busy
            .iter()
            .flatten()
            .filter(|slot| {
                let head = self.stream(**slot).and_then(|s| s.queue.front());
                head.and_then(|op| op.since)
                    .is_some_and(|t| t.elapsed() >= patience)
            })
            .map(|slot| self.last(*slot))
            .collect();
        self.demand(&old);
        self.busy.iter().any(|b| !b.is_empty())
    }

    /// Starts whatever can start.
    pub(crate) fn settle(&mut self) {
        while let Some(slot) = self.pokes.pop() {
            self.advance(slot);
        }
    }

    fn advance(&mut self, slot: u32) {
        loop {
            let Some(stream) = self.stream(slot) else {
                return;
            };
            if stream.state != State::Idle {
                return;
            }
            let Some(head) = stream.queue.front() else {
                return;
            };
            let pending = head.after.iter().rev().find(|p| !self.done(**p)).copied();
            if let Some(point) = pending {
                if stream.waiting_on != Some(point) {
                    if let Some(stream) = self.live(slot) {
                        stream.waiting_on = Some(point);
                    }
                    if let Some(other) = self.live(point.slot) {
                        other.waiters.push((point.seq, slot));
                    }
                }
                return;
            }
            if self.schedule == Schedule::Lazy && stream.demanded <= stream.completed {
                return;
            }
            if head.work.as_ref().is_some_and(|w| self.inline(w)) {
                let broken = crate::runtime::broken(stream.device).is_some();
                if let Some(work) = self.begin(slot)
                    && !broken
                {
                    work.run();
                }
                self.finish(slot);
                continue;
            }
            let blocking = head.work.as_ref().is_some_and(Work::may_block);
            if let Some(stream) = self.live(slot) {
                stream.state = State::Ready;
                self.ready.push_back(slot);
                self.ready_blocking += usize::from(blocking);
            }
            return;
        }
    }

    /// Takes the head's work to run it.
    pub(crate) fn begin(&mut self, slot: u32) -> Option<Work> {
        let stream = self.live(slot)?;
        stream.state = State::Running;
        stream.queue.front_mut()?.work.take()
    }

    /// The head is done. Call `settle` afterwards.
    pub(crate) fn finish(&mut self, slot: u32) {
        let Some(stream) = self.slots.get_mut(slot as usize) else {
            return;
        };
        stream.state = State::Idle;
        stream.waiting_on = None;
        if stream.queue.pop_front().is_none() {
            return;
        }
        stream.completed += 1;
        let completed = stream.completed;
        if completed >= stream.host_wait {
            stream.host_wait = u64::MAX;
            self.notify = true;
        }
        let pokes = &mut self.pokes;
        stream.waiters.retain(|(seq, waiter)| {
            let reached = *seq <= completed;
            if reached {
                pokes.push(*waiter);
            }
            !reached
        });
        if stream.queue.is_empty() {
            let (device, at, destroyed) =
                (stream.device as usize, stream.busy_at, stream.destroyed);
            stream.busy_at = usize::MAX;
            if let Some(busy) = self.busy.get_mut(device)
                && busy.get(at) == Some(&slot)
            {
                busy.swap_remove(at);
                if let Some(&moved) = busy.get(at)
                    && let Some(moved) = self.slots.get_mut(moved as usize)
                {
                    moved.busy_at = at;
                }
            }
            if destroyed {
                self.vacate(slot);
            }
        } else {
            self.pokes.push(slot);
        }
    }

    /// Whether a host thread that waits should look again; asks once.
    pub(crate) fn take_notify(&mut self) -> bool {
        std::mem::take(&mut self.notify) && self.host_waiters > 0
    }

    /// A host thread is going to wait for these.
    pub(crate) fn watch(&mut self, points: &[Point]) {
        for point in points {
            if let Some(s) = self.live(point.slot).filter(|s| s.uid == point.uid)
                && s.completed < point.seq
            {
                s.host_wait = s.host_wait.min(point.seq);
            }
        }
    }

    /// A host thread is going to wait for room in a full stream.
    pub(crate) fn watch_room(&mut self, slot: u32) -> Option<Point> {
        let depth = self.depth as u64;
        let s = self.live(slot)?;
        Some(Point {
            slot,
            uid: s.uid,
            seq: s.submitted().saturating_sub(depth),
        })
    }

    /// The host knows now that this point is done.
    pub(crate) fn observe(&mut self, point: Point) {
        if let Some(s) = self.live(point.slot).filter(|s| s.uid == point.uid) {
            s.observed = s.observed.max(point.seq);
        }
    }

    /// The host knows now that everything completed is done: after a synchronisation with one device, or with all.
    pub(crate) fn observe_idle(&mut self, device: Option<u32>) {
        for stream in &mut self.slots {
            if device.is_none_or(|d| d == stream.device) {
                stream.observed = stream.completed;
            }
        }
    }

    /// Up to which of its operations the stream `uid` was waited for by the stream in `slot`.
    pub(crate) fn followed(&self, slot: u32, uid: u64) -> Option<u64> {
        let followed = &self.stream(slot)?.followed;
        followed
            .iter()
            .find(|(u, _)| *u == uid)
            .map(|(_, seq)| *seq)
    }

    /// The stream in `slot` was told to wait for this point. The latest few streams are remembered.
    pub(crate) fn follow(&mut self, slot: u32, point: Point) {
        if let Some(stream) = self.live(slot) {
            let old = stream.followed.iter().position(|(u, _)| *u == point.uid);
            let seq = old.map_or(0, |at| stream.followed.remove(at).1);
            if stream.followed.len() >= 16 {
                stream.followed.remove(0);
            }
            stream.followed.push((point.uid, seq.max(point.seq)));
        }
    }

    /// Whether the host knows that this point is done. What a vanished stream did counts as known.
    pub(crate) fn observed(&self, point: Point) -> bool {
        self.stream(point.slot)
            .is_none_or(|s| s.uid != point.uid || s.observed >= point.seq)
    }

    /// How long the next operation is held back.
    pub(crate) fn delay(&mut self) -> Duration {
        let Schedule::Random(_) = self.schedule else {
            return Duration::ZERO;
        };
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let most = self.random_delay.as_micros().max(1);
        Duration::from_micros((u128::from(self.random) % most) as u64)
    }
}
