//! Which operation comes before which: a clock for every stream, one for the host, and what each of them has seen.
//!
//! A stream counts its *ticks*; its clock says up to which tick of every other stream its next operation is ordered
//! behind. A clock changes only through CUDA calls. Two rules keep this cheap. Everything submitted is ordered behind
//! all that the host knows, so the host's clock is never copied into others: whoever asks looks at it as well. And two
//! states of a stream with the same tick know the same, so that what was joined once is not joined again.

use super::view::{Clock, Snapshot, View, at, raise};
use crate::stream::Kind;
use std::collections::HashMap;
use std::sync::Arc;

/// How many streams may be gone, but remembered, before it is looked whether anything still refers to them.
const MOST_GONE: usize = 64;

/// Which stream, and what its rules are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) uid: u64,
    pub(crate) device: u32,
    pub(crate) kind: Kind,
}

struct Stream {
    who: Who,
    component: u32,
    tick: u64,
    clock: Arc<Clock>,
    /// Which state of the blocking streams it has joined, if it is a legacy stream.
    joined: u64,
}

impl Stream {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            clock: self.clock.clone(),
            own: Some((self.component, self.tick, self.who.uid)),
        }
    }
}

/// What a device's streams know together.
#[derive(Default)]
struct Device {
    all: Arc<Clock>,
    /// The blocking streams, per-thread default streams among them.
    blocking: Arc<Clock>,
    version: u64,
    legacy: Option<u64>,
}

/// All clocks.
#[derive(Default)]
pub(crate) struct Order {
    host: Clock,
    streams: HashMap<u64, Stream>,
    /// Destroyed streams whose component is not free yet.
    gone: HashMap<u64, Stream>,
    most_gone: usize,
    devices: Vec<Device>,
    /// The stream that has each component now.
    owners: Vec<u64>,
    /// Components that can be given out, and the tick after which.
    free: Vec<(u32, u64)>,
}

impl Order {
    /// How many entries a clock has.
    pub(crate) fn width(&self) -> usize {
        self.owners.len()
    }

    fn device(&mut self, ordinal: u32) -> Option<&mut Device> {
        let place = ordinal as usize;
        if place >= crate::config::MAX_DEVICES {
            return None;
        }
        if self.devices.len() <= place {
            self.devices.resize_with(place + 1, Device::default);
        }
        self.devices.get_mut(place)
    }

    /// Whether a new stream would find no free component although streams are gone.
    pub(crate) fn wants_sweep(&mut self) -> bool {
        if !self.free.is_empty() || self.gone.is_empty() {
            return false;
        }
        let host = &self.host;
        let free = &mut self.free;
        self.gone.retain(|_, s| {
            let known = at(host, s.component) >= s.tick;
            if known {
                free.push((s.component, s.tick));
            }
            !known
        });
        self.free.is_empty() && self.gone.len() >= self.most_gone.max(MOST_GONE)
    }

    /// Frees the components of streams that are gone and that no remembered access names.
    pub(crate) fn sweep(&mut self, used: impl Fn(u32) -> bool) {
        let free = &mut self.free;
        self.gone.retain(|_, s| {
            let used = used(s.component);
            if !used {
                free.push((s.component, s.tick));
            }
            used
        });
        self.most_gone = self.gone.len() * 2;
    }

    /// Whether the stream has a clock, also as one that is gone.
    pub(crate) fn knows_stream(&self, uid: u64) -> bool {
        self.streams.contains_key(&uid) || self.gone.contains_key(&uid)
    }

    pub(crate) fn is_gone(&self, uid: u64) -> bool {
        self.gone.contains_key(&uid)
    }

    fn ensure(&mut self, who: Who) {
        if self.streams.contains_key(&who.uid) {
            return;
        }
        // It was in use after all: a stream that outlives the reset of its device.
        if let Some(stream) = self.gone.remove(&who.uid) {
            self.insert(stream);
            return;
        }
        let (component, last) = self.free.pop().unwrap_or_else(|| {
            self.owners.push(0);
            ((self.owners.len() - 1) as u32, 0)
        });
        if let Some(owner) = self.owners.get_mut(component as usize) {
            *owner = who.uid;
        }
        let stream = Stream {
            who,
            component,
            tick: last + 1,
            clock: Arc::default(),
            joined: 0,
        };
        self.insert(stream);
        // What it gives up before it has done anything is waited for with its device, too.
        self.publish(who, component, last + 1);
    }

    /// A stream has reached a tick: its device knows.
    fn publish(&mut self, who: Who, component: u32, tick: u64) {
        if let Some(device) = self.device(who.device) {
            raise(Arc::make_mut(&mut device.all), component, tick);
            if matches!(who.kind, Kind::Blocking | Kind::PerThread) {
                raise(Arc::make_mut(&mut device.blocking), component, tick);
                device.version += 1;
            }
        }
    }

    fn insert(&mut self, stream: Stream) {
        let who = stream.who;
        self.streams.insert(who.uid, stream);
        if who.kind == Kind::Legacy
            && let Some(device) = self.device(who.device)
        {
            device.legacy = Some(who.uid);
        }
    }

    /// The stream's handle is gone.
    pub(crate) fn retire(&mut self, uid: u64) {
        if let Some(stream) = self.streams.remove(&uid) {
            self.gone.insert(uid, stream);
        }
    }

    /// The streams of a device are gone, the host having waited for them.
    pub(crate) fn retire_device(&mut self, ordinal: u32) {
        let uids: Vec<u64> = self
            .streams
            .values()
            .filter(|s| s.who.device == ordinal)
            .map(|s| s.who.uid)
            .collect();
        for uid in uids {
            self.retire(uid);
        }
        if let Some(device) = self.device(ordinal) {
            device.legacy = None;
        }
    }

    /// The default streams' rules for an operation that is submitted now.
    pub(crate) fn submit(&mut self, who: Who) {
        self.ensure(who);
        match who.kind {
            Kind::NonBlocking => {}
            Kind::Legacy => {
                let Some(device) = self.devices.get(who.device as usize) else {
                    return;
                };
                let version = device.version;
                if self
                    .streams
                    .get(&who.uid)
                    .is_some_and(|s| s.joined != version)
                {
                    let blocking = Snapshot {
                        clock: device.blocking.clone(),
                        own: None,
                    };
                    self.behind(who.uid, &blocking);
                    if let Some(stream) = self.streams.get_mut(&who.uid) {
                        stream.joined = version;
                    }
                }
            }
            Kind::Blocking | Kind::PerThread => {
                if let Some(legacy) = self.legacy(who.device) {
                    self.behind(who.uid, &legacy);
                }
            }
        }
    }

    fn legacy(&self, device: u32) -> Option<Snapshot> {
        let uid = self.devices.get(device as usize)?.legacy?;
        self.streams.get(&uid).map(Stream::snapshot)
    }

    fn blocking(&self, device: u32) -> Option<Snapshot> {
        let device = self.devices.get(device as usize)?;
        Some(Snapshot {
            clock: device.blocking.clone(),
            own: None,
        })
    }

    /// What a stream submits from now on comes after the snapshot.
    pub(crate) fn behind(&mut self, uid: u64, other: &Snapshot) {
        let Some(stream) = self.streams.get_mut(&uid) else {
            return;
        };
        if let Some((component, tick, owner)) = other.own
            && (owner == uid
                || (self.owners.get(component as usize) == Some(&owner)
                    && at(&stream.clock, component) >= tick))
        {
            return;
        }
        if !other.join_into(Arc::make_mut(&mut stream.clock)) {
            return;
        }
        let who = stream.who;
        if let Some(device) = self.device(who.device) {
            other.join_into(Arc::make_mut(&mut device.all));
            if matches!(who.kind, Kind::Blocking | Kind::PerThread)
                && other.join_into(Arc::make_mut(&mut device.blocking))
            {
                device.version += 1;
            }
        }
        // What was recorded before does not know this.
        self.tick(uid);
    }

    /// The next tick of a stream: component and number.
    pub(crate) fn tick(&mut self, uid: u64) -> Option<(u32, u64)> {
        let stream = self.streams.get_mut(&uid)?;
        stream.tick += 1;
        let (who, component, tick) = (stream.who, stream.component, stream.tick);
        self.publish(who, component, tick);
        Some((component, tick))
    }

    /// Where a stream stands: component and tick, also of one that is gone.
    pub(crate) fn now(&self, uid: u64) -> Option<(u32, u64)> {
        let stream = self.streams.get(&uid).or_else(|| self.gone.get(&uid))?;
        Some((stream.component, stream.tick))
    }

    /// What a stream knows.
    pub(crate) fn snapshot(&self, uid: u64) -> Option<Snapshot> {
        let stream = self.streams.get(&uid).or_else(|| self.gone.get(&uid))?;
        Some(stream.snapshot())
    }

    /// What a synchronisation with a stream waits for.
    pub(crate) fn ends(&self, who: Who) -> Vec<Snapshot> {
        let mut ends: Vec<Snapshot> = self.snapshot(who.uid).into_iter().collect();
        if who.kind == Kind::Legacy {
            ends.extend(self.blocking(who.device));
        }
        ends
    }

    /// What a synchronisation with a device, or with all of them, waits for.
    pub(crate) fn device_ends(&self, ordinal: Option<u32>) -> Vec<Snapshot> {
        self.devices
            .iter()
            .enumerate()
            .filter(|(place, _)| ordinal.is_none_or(|o| o as usize == *place))
            .map(|(_, device)| Snapshot {
                clock: device.all.clone(),
                own: None,
            })
            .collect()
    }

    /// What the host knows.
    pub(crate) fn host_snapshot(&self) -> Snapshot {
        Snapshot {
            clock: Arc::new(self.host.clone()),
            own: None,
        }
    }

    /// The host knows now that all this is done.
    pub(crate) fn host_behind(&mut self, seen: &[Snapshot]) {
        for snapshot in seen {
            snapshot.join_into(&mut self.host);
        }
    }

    /// What an operation that was just submitted comes after.
    pub(crate) fn view(&self, uid: u64) -> View<'_> {
        View {
            stored: self.snapshot(uid).unwrap_or_default(),
            extra: None,
            host: &self.host,
        }
    }

    /// What an operation would come after if it were submitted now. That it could be is no order for others.
    pub(crate) fn view_of_next(&self, who: Who) -> View<'_> {
        let extra = match who.kind {
            Kind::NonBlocking => None,
            Kind::Legacy => self.blocking(who.device),
            Kind::Blocking | Kind::PerThread => self.legacy(who.device),
        };
        View {
            extra,
            ..self.view(who.uid)
        }
    }

    /// What the host comes after.
    pub(crate) fn host_view(&self) -> View<'_> {
        View {
            stored: Snapshot::default(),
            extra: None,
            host: &self.host,
        }
    }

    /// The rules of a stream, also of one that is gone.
    pub(crate) fn who(&self, uid: u64) -> Option<Who> {
        let stream = self.streams.get(&uid).or_else(|| self.gone.get(&uid))?;
        Some(stream.who)
    }

    /// Makes sure that a stream has a clock.
    pub(crate) fn register(&mut self, who: Who) {
        if !self.gone.contains_key(&who.uid) {
            self.ensure(who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(uid: u64, kind: Kind) -> Who {
        Who {
            uid,
            device: 0,
            kind,
        }
    }

    fn operate(order: &mut Order, who: Who) -> (u32, u64) {
        order.submit(who);
        order.tick(who.uid).unwrap()
    }

    #[test]
    fn a_snapshot_covers_what_came_before_it_and_nothing_later() {
        let mut order = Order::default();
        let (a, b) = (who(1, Kind::NonBlocking), who(2, Kind::NonBlocking));
        let first = operate(&mut order, a);
        let event = order.snapshot(1).unwrap();
        let second = operate(&mut order, a);
        operate(&mut order, b);
        order.behind(2, &event);
        let view = order.view(2);
        assert!(view.covers(first.0, first.1));
        assert!(!view.covers(second.0, second.1));
    }

    #[test]
    fn the_legacy_stream_is_a_barrier_for_blocking_streams_only() {
        let mut order = Order::default();
        let (a, b) = (who(1, Kind::Blocking), who(2, Kind::PerThread));
        let (free, legacy) = (who(3, Kind::NonBlocking), who(4, Kind::Legacy));
        let on_a = operate(&mut order, a);
        let on_free = operate(&mut order, free);
        order.submit(b);
        assert!(!order.view(2).covers(on_a.0, on_a.1));
        order.submit(legacy);
        order.submit(b);
        assert!(order.view(2).covers(on_a.0, on_a.1));
        assert!(!order.view(2).covers(on_free.0, on_free.1));
    }

    #[test]
    fn a_component_is_given_out_again_when_the_host_knows_its_end() {
        let mut order = Order::default();
        for uid in 1..=1000 {
            let stream = who(uid, Kind::NonBlocking);
            assert!(!order.wants_sweep());
            operate(&mut order, stream);
            order.host_behind(&order.ends(stream));
            order.retire(uid);
        }
        assert_eq!(order.width(), 1);
    }

    #[test]
    fn an_event_of_a_vanished_stream_says_nothing_about_its_successor() {
        let mut order = Order::default();
        let (old, x, y) = (
            who(1, Kind::NonBlocking),
            who(2, Kind::NonBlocking),
            who(3, Kind::NonBlocking),
        );
        let on_x = operate(&mut order, x);
        order.submit(old);
        order.behind(1, &order.snapshot(2).unwrap());
        let event = order.snapshot(1).unwrap();
        order.retire(1);
        order.sweep(|_| false);
        let new = who(4, Kind::NonBlocking);
        operate(&mut order, new);
        order.submit(y);
        order.behind(3, &order.snapshot(4).unwrap());
        assert!(!order.view(3).covers(on_x.0, on_x.1));
        order.behind(3, &event);
        assert!(order.view(3).covers(on_x.0, on_x.1));
    }
}
