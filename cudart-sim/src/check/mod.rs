//! The ordering checker: finds accesses to the same memory that nothing orders, whatever the schedule was.
//!
//! Every operation gets its place in the order when it is submitted (`clock.rs`): from stream order, events, the default
//! streams' rules, and from what the host has waited for. Its accesses are compared with earlier ones (`history.rs`) and
//! with what allocators report (`blocks.rs`). Nothing depends on when the device does the work.
//!
//! This file holds what the rest of the machine calls, each a single branch while the check is off, and what programs
//! call is in `told.rs`.

mod blocks;
mod clock;
mod finding;
mod history;
mod places;
mod state;
mod told;
mod view;

pub use finding::{CalledFrom, Finding, FindingKind, Operation, called_here, tag};
pub use told::{
    By, CheckerSize, Moment, check, checker_size, expect_clean, host_read, host_write, is_checking,
    moment, on_allocate, on_free, on_segment, on_share, ordered, report, report_within,
};

pub(crate) use clock::Who;
pub(crate) use finding::called_from;

use crate::engine::Engine;
use crate::stream::{Point, Stream};
use crate::sync::{Mutex, MutexGuard};
use crate::trace::Access;
use crate::work::{Place, Shape, Work};
use finding::{Op, Role};
use state::Checker;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use view::Snapshot;

/// What the ordering checker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    Off,
    /// Keeps findings for [`report`](crate::report), and prints the first of them on stderr.
    Report,
    /// Prints the first finding and aborts the process.
    Abort,
}

const UNSET: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(UNSET);
static CHECKER: Mutex<Option<Checker>> = Mutex::new(None);

/// Taken after the lock of the runtime, or alone.
fn lock() -> MutexGuard<'static, Option<Checker>> {
    CHECKER.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether the check is on.
#[inline]
pub(crate) fn on() -> bool {
    match MODE.load(Relaxed) {
        OFF => false,
        ON => !crate::runtime::forked(),
        _ => from_environment(),
    }
}

#[cold]
fn from_environment() -> bool {
    let mut checker = lock();
    if MODE.load(Relaxed) == UNSET {
        let wanted = from_variable().unwrap_or(Check::Off);
        set(&mut checker, wanted);
    }
    MODE.load(Relaxed) == ON
}

/// What `CUDART_SIM_CHECK` asks for, if it is set and understood.
pub(crate) fn from_variable() -> Option<Check> {
    match std::env::var("CUDART_SIM_CHECK").as_deref() {
        Ok("report") => Some(Check::Report),
        Ok("abort") => Some(Check::Abort),
        Ok("off") => Some(Check::Off),
        Ok("") | Err(_) => None,
        Ok(other) => {
            eprintln!(
                "cudart-sim: CUDART_SIM_CHECK={other} is ignored: it must be report, abort or off"
            );
            None
        }
    }
}

fn set(checker: &mut Option<Checker>, wanted: Check) {
    match (checker.as_mut(), wanted) {
        (_, Check::Off) => *checker = None,
        (Some(known), _) => known.findings.abort = wanted == Check::Abort,
        (None, _) => *checker = Some(Checker::new(wanted)),
    }
    MODE.store(if wanted == Check::Off { OFF } else { ON }, Relaxed);
}

/// Runs `f` with the checker, if the check is on.
#[inline]
fn with<T: Default>(f: impl FnOnce(&mut Checker) -> T) -> T {
    if !on() {
        return T::default();
    }
    lock().as_mut().map(f).unwrap_or_default()
}

fn who(stream: &Stream) -> Who {
    Who {
        uid: stream.uid,
        device: stream.device,
        kind: stream.kind,
    }
}

/// One row of bytes.
fn line(start: u64, len: u64, write: bool) -> Access {
    let width = usize::try_from(len).unwrap_or(usize::MAX);
    Access {
        start,
        width,
        height: 1,
        pitch: width,
        write,
    }
}

/// What the host will know when a wait is over.
#[derive(Default)]
pub(crate) struct Seen(Vec<Snapshot>);

/// An operation is submitted: the one place through which all of them pass.
#[inline]
pub(crate) fn submitted(call: &str, stream: Option<&Stream>, point: Point, work: &Work) {
    if on() {
        with(|c| {
            let Some(stream) = stream else { return };
            let mut accesses = work.accesses();
            // Pageable memory that is copied to a device is read when the call is made (`pageable_source`).
            if let Work::Copy { src, dst, .. } = work
                && matches!(src, Place::Host(_, false))
                && dst.on_device()
            {
                accesses.retain(|a| a.write);
            }
            c.submitted(call, who(stream), point.seq, &accesses, work.may_block());
        });
    }
}

/// Pageable memory is read by a call that copies it to a device.
pub(crate) fn pageable_source(call: &str, start: usize, shape: Shape) {
    with(|c| {
        let place = Place::Host(start, false);
        let access = Access::new(&place, shape, shape.src_pitch, false);
        c.host(call, Role::Access, access);
    });
}

/// A stream's handle is gone.
pub(crate) fn destroyed(uid: u64) {
    with(|c| c.order.retire(uid));
}

/// The streams of a device are gone, and its memory.
pub(crate) fn device_reset(device: u32) {
    with(|c| c.order.retire_device(device));
}

/// The machine is gone.
pub(crate) fn restart() {
    with(Checker::restart);
}

/// An event was recorded: it knows what its stream knows now.
pub(crate) fn recorded(event: usize, uid: u64) {
    with(|c| {
        if let Some(snapshot) = c.order.snapshot(uid) {
            c.events.insert(event, snapshot);
        }
    });
}

/// An event is gone.
pub(crate) fn event_destroyed(event: usize) {
    with(|c| {
        c.events.remove(&event);
    });
}

/// What an event knows.
pub(crate) fn event(event: usize) -> Seen {
    with(|c| Seen(c.events.get(&event).cloned().into_iter().collect()))
}

/// A stream was told to wait for what an event knew when the call was made.
pub(crate) fn waited(uid: u64, seen: &Seen) {
    if !seen.0.is_empty() {
        with(|c| {
            for snapshot in &seen.0 {
                c.order.behind(uid, snapshot);
            }
        });
    }
}

/// An executable graph is about to be launched in a stream: the launch comes after the one before.
pub(crate) fn launches(exec: usize, stream: Option<&Stream>) {
    with(|c| {
        if let (Some(stream), Some(last)) = (stream, c.launches.get(&exec)) {
            let (who, last) = (who(stream), last.clone());
            c.make_room(who.uid);
            c.order.register(who);
            c.order.behind(who.uid, &last);
        }
    });
}

/// An executable graph was launched in a stream.
pub(crate) fn launched(exec: usize, uid: u64) {
    with(|c| {
        if let Some(snapshot) = c.order.snapshot(uid) {
            c.launches.insert(exec, snapshot);
        }
    });
}

/// An executable graph is gone.
pub(crate) fn exec_destroyed(exec: usize) {
    with(|c| {
        c.launches.remove(&exec);
    });
}

/// What a synchronisation with a stream makes known to the host.
pub(crate) fn stream(engine: &Engine, slot: u32) -> Seen {
    with(|c| {
        let ends = engine.stream(slot).map(|s| c.order.ends(who(s)));
        Seen(ends.unwrap_or_default())
    })
}

/// What the end of the operation that was just submitted to a stream makes known to the host.
pub(crate) fn operation(uid: u64) -> Seen {
    with(|c| Seen(c.order.snapshot(uid).into_iter().collect()))
}

/// What a synchronisation with a device, or with all, makes known to the host.
pub(crate) fn device(device: Option<u32>) -> Seen {
    with(|c| Seen(c.order.device_ends(device)))
}

/// The wait is over.
pub(crate) fn host_behind(seen: &Seen) {
    if !seen.0.is_empty() {
        with(|c| c.order.host_behind(&seen.0));
    }
}

/// Memory was allocated for everybody.
pub(crate) fn allocated(start: u64, len: u64) {
    with(|c| c.forget(start, len));
}

/// Memory was allocated in the order of a stream.
pub(crate) fn allocated_on(call: &str, engine: &Engine, slot: u32, start: u64, len: u64) {
    with(|c| {
        let Some(stream) = engine.stream(slot) else {
            return;
        };
        c.forget(start, len);
        let accesses = vec![line(start, len, true)];
        let op = Op::new(call, Some(stream.uid), 0, Role::Allocate, accesses);
        c.report(&Arc::new(op), who(stream));
    });
}

/// Memory is freed by the host.
pub(crate) fn freed(call: &str, start: u64, len: u64) {
    with(|c| {
        c.host(call, Role::Free, line(start, len, true));
        c.forget(start, len);
        c.blocks.segment(start, start.saturating_add(len), false);
    });
}

/// Memory is freed in the order of a stream, by an operation that was just submitted.
pub(crate) fn freed_on(call: &str, point: Point, start: u64, len: u64) {
    with(|c| {
        let accesses = vec![line(start, len, true)];
        let op = Op::new(call, Some(point.uid), point.seq, Role::Free, accesses);
        c.compare(&Arc::new(op), None, |order| order.view(point.uid));
        c.forget(start, len);
        c.blocks.segment(start, start.saturating_add(len), false);
    });
}

/// These addresses belong to nobody any more, and their memory to nothing that could touch it.
pub(crate) fn gone(start: u64, len: u64) {
    with(|c| {
        c.forget(start, len);
        c.blocks.segment(start, start.saturating_add(len), false);
    });
}

/// Physical memory (its number, and an offset in it) is mapped at an address.
pub(crate) fn mapped(start: u64, len: u64, number: u64, offset: u64) {
    with(|c| c.places.map(start, len, number, offset));
}

/// Physical memory is unmapped: the host takes it away, unless it is mapped elsewhere too. (Work that reaches this address
/// afterwards breaks the context.)
pub(crate) fn unmapped(call: &str, start: u64, len: u64) {
    with(|c| {
        if !c.places.is_elsewhere(start) {
            c.host(call, Role::Free, line(start, len, true));
        }
        c.places.unmap(start, len);
    });
}

/// A mapping is gone with its device.
pub(crate) fn mapping_gone(start: u64, len: u64) {
    with(|c| c.places.unmap(start, len));
}

/// Physical memory is gone.
pub(crate) fn physical_gone(number: u64) {
    let (first, last) = places::Places::keys(number);
    with(|c| c.history.clear(first, last));
}

crate::sync::thread_local! {
    /// What the host function or the kernel that this thread runs comes after.
    static RUNNING: RefCell<Option<Snapshot>> = const { RefCell::new(None) };
}

/// As long as this lives, the thread runs a host function or a kernel.
pub(crate) struct Running(bool);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0 {
            let _ = RUNNING.try_with(|r| r.replace(None));
        }
    }
}

/// The head of a stream begins; `runs`: it is a host function or a kernel.
pub(crate) fn begin(stream: Option<&Stream>, runs: bool) -> Running {
    if !runs || !on() {
        return Running(false);
    }
    let start = with(|c| {
        let stream = stream?;
        c.starts.remove(&(stream.uid, stream.completed + 1))
    });
    let _ = RUNNING.try_with(|r| r.replace(start));
    Running(true)
}
