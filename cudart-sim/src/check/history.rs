//! What was done to each byte: ranges, each with the accesses that later ones have to be compared with.
//!
//! An access is forgotten when a later one takes its place: one that comes after it and conflicts with everything that it
//! conflicts with. What the host knows to be done is forgotten too, for all that is still to come comes after it. The
//! report of an allocation takes nobody's place: it is withdrawn when the block is given up by nobody in particular, and
//! then counts what really touched the memory.

use super::finding::Op;
use super::view::View;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Accesses of one range that were found to race are dropped beyond this.
const MOST_REPORTED: usize = 64;

/// One access that is remembered.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) op: Arc<Op>,
    /// Which of the operation's accesses.
    pub(crate) which: u32,
    pub(crate) write: bool,
    pub(crate) component: u32,
    pub(crate) tick: u64,
    reported: bool,
}

impl Entry {
    pub(crate) fn new(op: &Arc<Op>, which: u32, write: bool, tick: (u32, u64)) -> Entry {
        Entry {
            op: op.clone(),
            which,
            write,
            component: tick.0,
            tick: tick.1,
            reported: false,
        }
    }

    fn same(&self, other: &Entry) -> bool {
        Arc::ptr_eq(&self.op, &other.op) && self.which == other.which
    }
}

struct Cell {
    end: u64,
    entries: Vec<Entry>,
}

impl Cell {
    fn same(&self, other: &Cell) -> bool {
        self.entries.len() == other.entries.len()
            && self
                .entries
                .iter()
                .zip(&other.entries)
                .all(|(a, b)| a.same(b))
    }
}

/// An access that is compared with what is remembered.
pub(crate) struct Probe<'a> {
    pub(crate) view: &'a View<'a>,
    pub(crate) write: bool,
    /// What is remembered of it.
    pub(crate) entry: Option<Entry>,
    /// Whether it may take the place of earlier ones.
    pub(crate) replaces: bool,
}

impl Probe<'_> {
    fn apply(&self, start: u64, cell: &mut Cell, hit: &mut dyn FnMut(&Entry, u64, u64)) {
        let end = cell.end;
        cell.entries.retain_mut(|e| {
            if (self.write || e.write) && !self.view.covers(e.component, e.tick) {
                hit(e, start, end);
                e.reported = true;
            }
            let replaced = self.replaces
                && self.entry.is_some()
                && (self.write || !e.write)
                && self.view.knows(e.component, e.tick);
            !replaced && !self.view.certain(e.component, e.tick)
        });
        if cell.entries.len() > MOST_REPORTED {
            cell.entries.retain(|e| !e.reported);
        }
        cell.entries.extend(self.entry.clone());
    }
}

/// All that is remembered.
#[derive(Default)]
pub(crate) struct History {
    cells: BTreeMap<u64, Cell>,
    next_sweep: usize,
    /// How many ranges and accesses were looked at so far.
    pub(crate) visited: u64,
}

impl History {
    /// How many ranges there are.
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Compares an access with all earlier ones; calls `hit` for each conflict, with the bytes of it.
    pub(crate) fn access(
        &mut self,
        start: u64,
        end: u64,
        probe: &Probe<'_>,
        hit: &mut dyn FnMut(&Entry, u64, u64),
    ) {
        if start >= end {
            return;
        }
        if let Some(cell) = self.cells.get_mut(&start)
            && cell.end == end
        {
            self.visited += 1 + cell.entries.len() as u64;
            probe.apply(start, cell, hit);
            if cell.entries.is_empty() {
                self.cells.remove(&start);
            }
            return;
        }
        self.split(start);
        self.split(end);
        let known: Vec<u64> = self.cells.range(start..end).map(|(s, _)| *s).collect();
        let mut last: Option<(u64, Cell)> = None;
        let mut at = start;
        for s in known {
            let Some(mut cell) = self.cells.remove(&s) else {
                continue;
            };
            self.add_gap(&mut last, at, s, probe);
            at = cell.end;
            self.visited += 1 + cell.entries.len() as u64;
            probe.apply(s, &mut cell, hit);
            self.add(&mut last, s, cell);
        }
        self.add_gap(&mut last, at, end, probe);
        if let Some((s, cell)) = last {
            self.cells.insert(s, cell);
        }
    }

    fn add_gap(&mut self, last: &mut Option<(u64, Cell)>, start: u64, end: u64, probe: &Probe<'_>) {
        if start < end {
            let entries = probe.entry.iter().cloned().collect();
            self.add(last, start, Cell { end, entries });
        }
    }

    /// Puts a range behind the one before it, or makes them one.
    fn add(&mut self, last: &mut Option<(u64, Cell)>, start: u64, cell: Cell) {
        if cell.entries.is_empty() {
            return;
        }
        match last {
            Some((_, before)) if before.end == start && before.same(&cell) => {
                before.end = cell.end;
            }
            _ => {
                if let Some((s, before)) = last.replace((start, cell)) {
                    self.cells.insert(s, before);
                }
            }
        }
    }

    /// Makes `at` a border.
    fn split(&mut self, at: u64) {
        let before = (Bound::Unbounded, Bound::Excluded(at));
        if let Some((_, cell)) = self.cells.range_mut(before).next_back()
            && cell.end > at
        {
            let rest = Cell {
                end: cell.end,
                entries: cell.entries.clone(),
            };
            cell.end = at;
            self.cells.insert(at, rest);
        }
    }

    /// Forgets what was done to a range: it is other memory from now on.
    pub(crate) fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let known: Vec<u64> = self.cells.range(start..end).map(|(s, _)| *s).collect();
        for s in known {
            self.cells.remove(&s);
        }
    }

    /// Forgets one operation in a range.
    pub(crate) fn withdraw(&mut self, start: u64, end: u64, op: &Arc<Op>) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let mut empty = Vec::new();
        for (start, cell) in self.cells.range_mut(start..end) {
            cell.entries.retain(|e| !Arc::ptr_eq(&e.op, op));
            if cell.entries.is_empty() {
                empty.push(*start);
            }
        }
        for start in empty {
            self.cells.remove(&start);
        }
    }

    /// Forgets what the host knows to be done, when there is twice as much as was left the last time.
    pub(crate) fn tidy(&mut self, host: &View<'_>) {
        if self.cells.len() < self.next_sweep.max(4096) {
            return;
        }
        self.sweep(host);
        self.next_sweep = self.cells.len() * 2;
    }

    /// Forgets what the host knows to be done.
    pub(crate) fn sweep(&mut self, host: &View<'_>) {
        let cells = std::mem::take(&mut self.cells);
        let mut last = None;
        for (start, mut cell) in cells {
            self.visited += 1 + cell.entries.len() as u64;
            cell.entries.retain(|e| !host.certain(e.component, e.tick));
            self.add(&mut last, start, cell);
        }
        if let Some((s, cell)) = last {
            self.cells.insert(s, cell);
        }
    }

    /// The streams, by component, that accesses are remembered of.
    pub(crate) fn components(&self, width: usize) -> Vec<bool> {
        let mut used = vec![false; width];
        for entry in self.cells.values().flat_map(|c| &c.entries) {
            if let Some(place) = used.get_mut(entry.component as usize) {
                *place = true;
            }
        }
        used
    }
}
