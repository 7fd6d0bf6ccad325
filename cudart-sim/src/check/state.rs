//! The checker itself: clocks, history, reports and findings, and how each event of the machine changes them.

use super::Check;
use super::blocks::{Blocks, Wrong};
use super::clock::{Order, Who};
use super::finding::{Finding, FindingKind, Op, Role};
use super::history::{Entry, History, Probe};
use super::places::Places;
use super::view::{Snapshot, View};
use crate::trace::Access;
use std::collections::HashMap;
use std::sync::Arc;

/// Findings beyond this are counted only.
const MOST_FINDINGS: usize = 10_000;
/// How many findings are printed.
const MOST_PRINTED: usize = 20;

/// Everything that the checker knows.
#[derive(Default)]
pub(crate) struct Checker {
    pub(super) order: Order,
    pub(super) history: History,
    pub(super) blocks: Blocks,
    pub(super) places: Places,
    /// What each event knew when it was recorded, by handle.
    pub(super) events: HashMap<usize, Snapshot>,
    /// The end of the latest launch of each executable graph, by handle.
    pub(super) launches: HashMap<usize, Snapshot>,
    /// What host functions and kernels that have not begun come after, by stream and number.
    pub(super) starts: HashMap<(u64, u64), Snapshot>,
    pub(super) findings: Findings,
}

/// What was found.
#[derive(Default)]
pub(crate) struct Findings {
    pub(super) list: Vec<Finding>,
    printed: usize,
    pub(super) abort: bool,
}

impl Findings {
    fn add(&mut self, finding: Finding) {
        if self.printed < MOST_PRINTED {
            self.printed += 1;
            eprintln!("cudart-sim: ordering: {finding}");
            if self.printed == MOST_PRINTED {
                eprintln!("cudart-sim: ordering: further findings are not printed");
            }
        }
        if self.abort {
            eprintln!("cudart-sim: ordering: the check is set to abort");
            std::process::abort();
        }
        if self.list.len() < MOST_FINDINGS {
            self.list.push(finding);
        }
    }
}

fn kind(first: Role, second: Role) -> FindingKind {
    match (first, second) {
        (_, Role::Allocate) => FindingKind::ReusedInUse,
        (Role::Allocate, _) => FindingKind::UsedBeforeAllocation,
        (_, Role::Free) => FindingKind::FreedInUse,
        (Role::Free, Role::Access) => FindingKind::UsedAfterFree,
        (Role::Access, Role::Access) => FindingKind::Race,
    }
}

/// The first and the last byte's end of each row.
fn rows(access: &Access) -> impl Iterator<Item = (u64, u64)> + use<> {
    let a = *access;
    let (rows, width) = if a.height > 1 && a.pitch == a.width {
        (1, a.width.saturating_mul(a.height))
    } else {
        (a.height, a.width)
    };
    (0..rows as u64).map(move |row| {
        let start = a.start.saturating_add(row.saturating_mul(a.pitch as u64));
        (start, start.saturating_add(width as u64))
    })
}

impl Checker {
    pub(super) fn new(check: Check) -> Checker {
        let mut checker = Checker::default();
        checker.findings.abort = check == Check::Abort;
        checker
    }

    /// Forgets everything but the findings.
    pub(super) fn restart(&mut self) {
        let findings = std::mem::take(&mut self.findings);
        *self = Checker {
            findings,
            ..Checker::default()
        };
    }

    /// An operation is submitted.
    pub(super) fn submitted(
        &mut self,
        call: &str,
        who: Who,
        number: u64,
        work: &[Access],
        runs: bool,
    ) {
        self.make_room(who.uid);
        self.order.submit(who);
        if !work.is_empty() {
            let Some(tick) = self.order.tick(who.uid) else {
                return;
            };
            let op = Op::new(call, Some(who.uid), number, Role::Access, work.to_vec());
            self.compare(&Arc::new(op), Some(tick), |order| order.view(who.uid));
        }
        if runs && let Some(snapshot) = self.order.snapshot(who.uid) {
            self.starts.insert((who.uid, number), snapshot);
        }
    }

    /// Before a stream gets its clock: the components of vanished streams are looked for.
    pub(super) fn make_room(&mut self, uid: u64) {
        if !self.order.knows_stream(uid) && self.order.wants_sweep() {
            self.history.sweep(&self.order.host_view());
            let used = self.history.components(self.order.width());
            self.order
                .sweep(|c| used.get(c as usize).copied().unwrap_or(false));
        }
    }

    /// Something that is no operation of a stream: what the host touches, or what an allocator reports.
    pub(super) fn host(&mut self, call: &str, role: Role, access: Access) {
        let op = Op::new(call, None, 0, role, vec![access]);
        self.compare(&Arc::new(op), None, |order| order.host_view());
    }

    /// A report in the clock of a stream. An allocation is a new point in it; a free is where the stream stands.
    pub(super) fn report(&mut self, op: &Arc<Op>, who: Who) {
        // A stream that is gone keeps its clock as long as it is asked about.
        if !self.order.is_gone(who.uid) {
            self.make_room(who.uid);
            self.order.register(who);
        }
        let tick = match op.role {
            Role::Free => self.order.now(who.uid),
            // A stream that is gone has no new points.
            _ => self.order.tick(who.uid).or_else(|| self.order.now(who.uid)),
        };
        self.compare(op, tick, |order| order.view_of_next(who));
    }

    /// Compares an operation with what is remembered, and remembers it if it has a tick.
    pub(super) fn compare(
        &mut self,
        op: &Arc<Op>,
        tick: Option<(u32, u64)>,
        view: impl for<'v> Fn(&'v Order) -> View<'v>,
    ) {
        let Checker {
            order,
            history,
            blocks,
            places,
            findings,
            ..
        } = self;
        let view = view(order);
        // The operations that this one was found to conflict with.
        let mut told: Vec<*const Op> = Vec::new();
        for (which, access) in op.accesses.iter().enumerate() {
            let probe = Probe {
                view: &view,
                write: access.write,
                entry: tick.map(|t| Entry::new(op, which as u32, access.write, t)),
                replaces: op.role != Role::Allocate,
            };
            let mut wrong = false;
            for (start, end) in rows(access) {
                if op.role == Role::Access
                    && let Some(found) = blocks.check(start, end)
                {
                    if !wrong {
                        findings.add(misuse(found, op, which, start, end));
                    }
                    wrong = true;
                    continue;
                }
                places.pieces(start, end, &mut |address, key, len| {
                    let mut hit = |entry: &Entry, lo: u64, hi: u64| {
                        if told.contains(&Arc::as_ptr(&entry.op)) {
                            return;
                        }
                        told.push(Arc::as_ptr(&entry.op));
                        findings.add(Finding {
                            kind: kind(entry.op.role, op.role),
                            first: Some(entry.op.show(entry.which as usize)),
                            second: op.show(which),
                            address: address.saturating_add(lo.saturating_sub(key)),
                            len: hi.saturating_sub(lo),
                        });
                    };
                    history.access(key, key.saturating_add(len), &probe, &mut hit);
                });
            }
        }
        history.tidy(&order.host_view());
    }

    /// The memory at these addresses is other memory from now on.
    pub(super) fn forget(&mut self, start: u64, len: u64) {
        let history = &mut self.history;
        self.places
            .pieces(start, start.saturating_add(len), &mut |_, key, len| {
                history.clear(key, key.saturating_add(len));
            });
    }

    /// Of the blocks in a range, it counts no longer that they were allocated in the order of some stream.
    pub(super) fn give_up(&mut self, start: u64, end: u64) {
        let Checker {
            history,
            blocks,
            places,
            ..
        } = self;
        for told in blocks.in_use(start, end) {
            places.pieces(start, end, &mut |_, key, len| {
                history.withdraw(key, key.saturating_add(len), &told);
            });
        }
    }

    /// A block overlaps one that is in use.
    pub(super) fn overlap(&mut self, old: &Op, new: &Op, access: Access) {
        self.findings.add(Finding {
            kind: FindingKind::Overlap,
            first: Some(old.show(0)),
            second: new.show(0),
            address: access.start,
            len: access.width as u64,
        });
    }
}

fn misuse(wrong: Wrong, op: &Op, which: usize, start: u64, end: u64) -> Finding {
    let (kind, first) = match wrong {
        Wrong::Freed(told) => (FindingKind::UsedAfterFree, Some(told)),
        Wrong::NotAllocated(told) => (FindingKind::NotAllocated, told),
    };
    Finding {
        kind,
        first: first.map(|op| op.show(0)),
        second: op.show(which),
        address: start,
        len: end - start,
    }
}

#[cfg(test)]
mod tests {
    use super::super::line;
    use super::*;
    use crate::stream::Kind;

    fn stream(uid: u64) -> Who {
        Who {
            uid,
            device: 0,
            kind: Kind::NonBlocking,
        }
    }

    #[test]
    fn memory_that_moves_to_another_address_stays_the_same_memory() {
        let mut c = Checker::new(Check::Report);
        c.places.map(0x1000, 0x1000, 7, 0);
        c.submitted("write", stream(1), 1, &[line(0x1100, 16, true)], false);
        // Unmapped while it is written.
        c.host("unmap", Role::Free, line(0x1000, 0x1000, true));
        c.places.unmap(0x1000, 0x1000);
        c.places.map(0x5000, 0x1000, 7, 0);
        c.places.map(0x1000, 0x1000, 8, 0);
        c.submitted(
            "other memory",
            stream(2),
            1,
            &[line(0x1100, 16, true)],
            false,
        );
        c.submitted(
            "same memory",
            stream(3),
            1,
            &[line(0x510f, 16, false)],
            false,
        );
        let found: Vec<_> = c
            .findings
            .list
            .iter()
            .map(|f| (f.kind, f.address, f.len))
            .collect();
        assert_eq!(
            found,
            [
                (FindingKind::FreedInUse, 0x1100, 16),
                (FindingKind::Race, 0x510f, 1)
            ]
        );
    }
}
