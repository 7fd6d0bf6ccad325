//! Clocks, what is known at one moment, and what an operation, a report or the host comes after.

use std::sync::Arc;

/// Ticks by component.
pub(super) type Clock = Vec<u64>;

pub(super) fn at(clock: &[u64], component: u32) -> u64 {
    clock.get(component as usize).copied().unwrap_or(0)
}

pub(super) fn raise(clock: &mut Clock, component: u32, tick: u64) -> bool {
    let place = component as usize;
    if clock.len() <= place {
        clock.resize(place + 1, 0);
    }
    match clock.get_mut(place) {
        Some(old) if *old < tick => {
            *old = tick;
            true
        }
        _ => false,
    }
}

fn join(clock: &mut Clock, other: &[u64]) -> bool {
    if clock.len() < other.len() {
        clock.resize(other.len(), 0);
    }
    let mut changed = false;
    for (mine, theirs) in clock.iter_mut().zip(other) {
        if *mine < *theirs {
            *mine = *theirs;
            changed = true;
        }
    }
    changed
}

/// What is known at one moment: in a stream, or of several streams together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(super) clock: Arc<Clock>,
    /// The stream it was taken of: component, tick, id.
    pub(super) own: Option<(u32, u64, u64)>,
}

impl Snapshot {
    fn covers(&self, component: u32, tick: u64) -> bool {
        at(&self.clock, component) >= tick
            || self
                .own
                .is_some_and(|(c, t, _)| c == component && t >= tick)
    }

    pub(super) fn join_into(&self, clock: &mut Clock) -> bool {
        let changed = join(clock, &self.clock);
        match self.own {
            Some((component, tick, _)) => raise(clock, component, tick) || changed,
            None => changed,
        }
    }
}

/// What an operation, a report or the host is ordered behind.
pub(crate) struct View<'a> {
    pub(super) stored: Snapshot,
    /// What a default stream's rules would add if this were an operation.
    pub(super) extra: Option<Snapshot>,
    pub(super) host: &'a [u64],
}

impl View<'_> {
    /// Whether it comes after that tick.
    pub(crate) fn covers(&self, component: u32, tick: u64) -> bool {
        self.knows(component, tick)
            || self
                .extra
                .as_ref()
                .is_some_and(|e| e.covers(component, tick))
    }

    /// Whether everything that comes after this comes after that tick too.
    pub(crate) fn knows(&self, component: u32, tick: u64) -> bool {
        self.certain(component, tick) || self.stored.covers(component, tick)
    }

    /// Whether everything that is submitted from now on comes after that tick.
    pub(crate) fn certain(&self, component: u32, tick: u64) -> bool {
        at(self.host, component) >= tick
    }
}
