//! What programs tell the checker, and what they ask it.

use super::clock::Who;
use super::finding::{Finding, Op, Role, called_from};
use super::view::Snapshot;
use super::{Check, RUNNING, line, lock, on, set, who, with};
use crate::sys::cudaStream_t;
use crate::{runtime, thread};
use std::ffi::c_void;
use std::panic::Location;
use std::sync::Arc;

/// Turns the ordering checker on or off, from now on. Turning it off forgets everything, the findings too.
///
/// `CUDART_SIM_CHECK=off|report|abort` says how a process begins; without it the check is off.
pub fn check(wanted: Check) {
    if !runtime::forked() {
        set(&mut lock(), wanted);
    }
}

/// Whether the ordering checker is on.
pub fn is_checking() -> bool {
    on()
}

/// Takes the findings since the last time, in the order in which they were made.
pub fn report() -> Vec<Finding> {
    with(|c| std::mem::take(&mut c.findings.list))
}

/// Takes the findings about bytes in a range, and leaves the others.
pub fn report_within(start: *const c_void, len: usize) -> Vec<Finding> {
    let (start, end) = (start as u64, (start as u64).saturating_add(len as u64));
    with(|c| {
        let all = std::mem::take(&mut c.findings.list);
        let (inside, outside) = all
            .into_iter()
            .partition(|f| f.address < end && f.address.saturating_add(f.len) > start);
        c.findings.list = outside;
        inside
    })
}

/// For the end of a test: takes the findings.
///
/// # Panics
/// If there are any, with all of them.
#[track_caller]
pub fn expect_clean() {
    let found = report();
    if !found.is_empty() {
        let text: Vec<String> = found.iter().map(Finding::to_string).collect();
        panic!("{} ordering findings:\n{}", found.len(), text.join("\n"));
    }
}

/// How much the checker remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckerSize {
    /// Ranges of memory.
    pub ranges: usize,
    /// Entries of a clock.
    pub clocks: usize,
    /// Ranges and accesses that were looked at since the machine began: what all comparisons have cost.
    pub visited: u64,
}

/// How much the checker remembers now; nothing while it is off.
pub fn checker_size() -> CheckerSize {
    with(|c| CheckerSize {
        ranges: c.history.len(),
        clocks: c.order.width(),
        visited: c.history.visited,
    })
}

/// In whose order an allocator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The host: ordered behind what it has waited for.
    Host,
    /// A stream: what it is given from now on comes after.
    Stream(cudaStream_t),
    /// A stream by its id (`cudaStreamGetId`), also one that is destroyed: then it means the stream's end. One that was
    /// destroyed long ago may be forgotten; then it is as [`By::Nobody`].
    StreamId(u64),
    /// Nobody, for a free: the block is given up, but work that was submitted before may still use it, in any stream. The
    /// allocator has to order the next use behind all of it, though not behind a stream that the block was allocated for
    /// and that never used it. (An allocation by nobody is one by the host.)
    Nobody,
}

enum Resolved {
    Host,
    Stream(Who),
    Nobody,
}

fn resolve(by: By) -> Resolved {
    match by {
        By::Host => Resolved::Host,
        By::Nobody => Resolved::Nobody,
        By::Stream(handle) => {
            if runtime::forked() {
                return Resolved::Host;
            }
            runtime::start();
            let mut rt = runtime::lock();
            if matches!(handle as usize, 0..=2) && runtime::device_count() == 0 {
                return Resolved::Host;
            }
            match rt.stream(handle as usize, "a report of an allocator") {
                Ok(slot) => rt
                    .engine
                    .stream(slot)
                    .map_or(Resolved::Host, |s| Resolved::Stream(who(s))),
                Err(_) => Resolved::Host,
            }
        }
        By::StreamId(uid) => {
            let known = with(|c| c.order.who(uid));
            // One that is gone and forgotten: what it waited for is forgotten too.
            let live = |uid| {
                let rt = runtime::lock();
                let stream = rt.engine.with_id(uid);
                stream.filter(|s| !s.destroyed).map(who)
            };
            let found = known.or_else(|| live(uid));
            found.map_or(Resolved::Nobody, Resolved::Stream)
        }
    }
}

fn stream_of(by: &Resolved) -> Option<u64> {
    match by {
        Resolved::Stream(who) => Some(who.uid),
        _ => None,
    }
}

/// An allocator hands out a block: whoever uses it has to be ordered behind this, and this behind all earlier use.
/// Counts as a write of the whole range in the order of `by`. Order is never taken from reports.
#[track_caller]
pub fn on_allocate(ptr: *const c_void, len: usize, by: By) {
    if !on() || len == 0 {
        return;
    }
    let site = Location::caller();
    let by = resolve(by);
    let access = line(ptr as u64, len as u64, true);
    let op = called_from(site, || {
        Arc::new(Op::new(
            "allocate",
            stream_of(&by),
            0,
            Role::Allocate,
            vec![access],
        ))
    });
    with(|c| {
        let end = access.start.saturating_add(len as u64);
        if let Some(old) = c.blocks.allocate(access.start, end, &op) {
            c.overlap(&old, &op, access);
        }
        match by {
            Resolved::Stream(who) => c.report(&op, who),
            _ => c.compare(&op, None, |order| order.host_view()),
        }
    });
}

/// An allocator takes a block back. Inside a reported segment nothing may touch it any more.
/// By the host or a stream it counts as a write of the whole range in that order; by [`By::Nobody`], and by the host
/// from inside a host function, it does not.
#[track_caller]
pub fn on_free(ptr: *const c_void, len: usize, by: By) {
    if !on() || len == 0 {
        return;
    }
    let site = Location::caller();
    let by = match resolve(by) {
        // A host function is not where the host is: it knows less, and more.
        Resolved::Host if thread::in_host_function() => Resolved::Nobody,
        by => by,
    };
    let access = line(ptr as u64, len as u64, true);
    let op = called_from(site, || {
        Arc::new(Op::new("free", stream_of(&by), 0, Role::Free, vec![access]))
    });
    with(|c| {
        let end = access.start.saturating_add(len as u64);
        match by {
            Resolved::Stream(who) => c.report(&op, who),
            Resolved::Host => c.compare(&op, None, |order| order.host_view()),
            Resolved::Nobody => c.give_up(access.start, end),
        }
        c.blocks.free(access.start, end, &op);
    });
}

/// An allocator lets any stream use a block that it handed out in the order of one stream: the allocation counts no longer,
/// what touched the memory does.
pub fn on_share(ptr: *const c_void, len: usize) {
    let (start, end) = (ptr as u64, (ptr as u64).saturating_add(len as u64));
    with(|c| c.give_up(start, end));
}

/// An allocator has a new segment, or gives one up. Inside a segment only blocks that are in use may be touched.
pub fn on_segment(ptr: *const c_void, len: usize, added: bool) {
    let (start, end) = (ptr as u64, (ptr as u64).saturating_add(len as u64));
    with(|c| c.blocks.segment(start, end, added));
}

/// The host reads memory now. Says so to the checker; reads nothing itself. Ignored in a host function: its accesses
/// are declared when it is launched ([`launch_host`](crate::launch_host)).
#[track_caller]
pub fn host_read(ptr: *const c_void, len: usize) {
    touched("host_read", ptr, len, false, Location::caller());
}

/// The host writes memory now. Says so to the checker; writes nothing itself. Ignored in a host function, as above.
#[track_caller]
pub fn host_write(ptr: *const c_void, len: usize) {
    touched("host_write", ptr, len, true, Location::caller());
}

fn touched(
    call: &str,
    ptr: *const c_void,
    len: usize,
    write: bool,
    site: &'static Location<'static>,
) {
    if on() && !thread::in_host_function() {
        let access = line(ptr as u64, len as u64, write);
        called_from(site, || with(|c| c.host(call, Role::Access, access)));
    }
}

/// A moment, and all that came before it; see [`moment`].
#[derive(Clone, Debug, Default)]
pub struct Moment(Snapshot);

/// This moment. In a host function or a simulated kernel: the function itself and what its stream had been given before
/// it; elsewhere: what the host knows to be done.
pub fn moment() -> Moment {
    if !on() {
        return Moment::default();
    }
    let running = RUNNING.try_with(|r| r.borrow().clone()).ok().flatten();
    Moment(running.unwrap_or_else(|| with(|c| c.order.host_snapshot())))
}

/// Tells of an order that the program makes by other means, such as a flag that a host function sets and the host
/// reads: what came before the moment `a` comes before what `b` (the host, or a stream) does from now on.
pub fn ordered(a: &Moment, b: By) {
    if !on() {
        return;
    }
    match resolve(b) {
        Resolved::Stream(who) => with(|c| {
            c.order.register(who);
            c.order.behind(who.uid, &a.0);
        }),
        Resolved::Host => with(|c| c.order.host_behind(std::slice::from_ref(&a.0))),
        Resolved::Nobody => {}
    }
}
