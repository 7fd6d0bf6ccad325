//! The threads that run the work of streams, and the ways in which a host thread waits for it.
//!
//! A stream that can run something gets a thread of its own as long as it has work: from those that are idle, or a new
//! one. Threads that find nothing for a while end, so that many short-lived streams leave nothing behind.

use crate::check;
use crate::config::Schedule;
use crate::engine::Point;
use crate::error::{Answer, INVALID_HANDLE, NOT_READY};
use crate::runtime::{self, Guard};
use crate::sync::{self, Condvar};
use crate::work::{Work, now};
use std::time::Duration;

static WORK: Condvar = Condvar::new();
static DONE: Condvar = Condvar::new();

/// How many copies and fills run at a time.
const MOST_PLAIN: usize = 8;

/// How long a thread without work stays.
const LINGER: Duration = Duration::from_millis(500);

/// Gets threads for what is ready, and wakes the host threads whose points are done. Call after anything that may have
/// started or completed work. `here`: how many ready streams the calling thread is going to serve itself.
pub(crate) fn wake(rt: &mut Guard, here: usize) {
    let engine = &mut rt.engine;
    if engine.take_notify() {
        DONE.notify_all();
    }
    // Whatever may block gets a thread at once; of the rest, which always ends, a few run at a time.
    let plain = engine.ready.len().saturating_sub(engine.ready_blocking);
    let busy = engine
        .workers
        .saturating_sub(engine.idle + engine.starting + engine.running_blocking + here);
    let needed =
        (engine.ready_blocking + plain.min(MOST_PLAIN.saturating_sub(busy))).saturating_sub(here);
    engine.short_of_threads = false;
    while engine.starting + engine.notified < needed {
        if engine.idle > engine.notified {
            engine.notified += 1;
            WORK.notify_one();
        } else if sync::spawn("cudart-sim worker", run) {
            engine.starting += 1;
            engine.workers += 1;
        } else {
            // The threads that there are, or whoever waits, will take it.
            engine.short_of_threads = true;
            if engine.host_waiters > 0 {
                DONE.notify_all();
            }
            break;
        }
    }
}

fn run() {
    let mut rt = runtime::lock();
    rt.engine.starting = rt.engine.starting.saturating_sub(1);
    loop {
        while !rt.engine.ready.is_empty() {
            rt = run_one(rt);
        }
        rt.engine.idle += 1;
        let (next, timed_out) = WORK
            .wait_timeout(rt, LINGER)
            .unwrap_or_else(|e| e.into_inner());
        rt = next;
        rt.engine.idle = rt.engine.idle.saturating_sub(1);
        rt.engine.notified = rt.engine.notified.saturating_sub(1);
        if timed_out.timed_out() && rt.engine.ready.is_empty() {
            rt.engine.workers = rt.engine.workers.saturating_sub(1);
            return;
        }
    }
}

/// Runs the head of one ready stream.
fn run_one(mut rt: Guard) -> Guard {
    let Some(slot) = rt.engine.ready.pop_front() else {
        return rt;
    };
    if let Some(work) = rt.engine.begin(slot) {
        let blocking = usize::from(work.may_block());
        rt.engine.ready_blocking = rt.engine.ready_blocking.saturating_sub(blocking);
        rt.engine.running_blocking += blocking;
        let delay = rt.engine.delay();
        let until = modelled_end(&mut rt, slot, &work);
        let broken = rt
            .engine
            .stream(slot)
            .is_some_and(|s| runtime::broken(s.device).is_some());
        let running = check::begin(rt.engine.stream(slot), work.may_block());
        drop(rt);
        if !delay.is_zero() {
            sync::sleep(delay);
        }
        if !broken {
            work.run();
        }
        drop(running);
        if let Some(rest) = until.and_then(|t| t.checked_sub(now())) {
            sync::sleep(Duration::from_nanos(rest));
        }
        rt = runtime::lock();
        rt.engine.running_blocking = rt.engine.running_blocking.saturating_sub(blocking);
    }
    rt.engine.finish(slot);
    rt.engine.settle();
    wake(&mut rt, 1);
    rt
}

/// When the modelled machine is done with it. Copies over the bus queue up for it, each direction for itself.
fn modelled_end(rt: &mut Guard, slot: u32, work: &Work) -> Option<u64> {
    let cost = work.cost(rt.engine.time.as_ref()?);
    let cost = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
    let device = rt.engine.stream(slot)?.device;
    let start = match work.direction() {
        Some(direction) => rt
            .bus(device, direction)
            .map_or(now(), |free| free.max(now())),
        None => now(),
    };
    let end = start.saturating_add(cost);
    if let Some(direction) = work.direction() {
        rt.set_bus(device, direction, end);
    }
    Some(end)
}

/// Waits until all these points are done, and lets them run if they wait to be asked for. The host knows then that they
/// are done, which is when pools give memory back.
pub(crate) fn wait(rt: Guard, points: &[Point]) -> Guard {
    let mut rt = wait_quietly(rt, points);
    rt.observe(points);
    rt
}

/// As [`wait`], without the effects that a synchronisation has on pools.
fn wait_quietly(mut rt: Guard, points: &[Point]) -> Guard {
    rt.engine.demand(points);
    wake(&mut rt, 0);
    let mut served = false;
    while points.iter().any(|p| !rt.engine.done(*p)) {
        // Whoever has run one counts as the thread for the next.
        if (rt.engine.short_of_threads || served) && !rt.engine.ready.is_empty() {
            rt = run_one(rt);
            served = true;
            continue;
        }
        rt.engine.watch(points);
        rt.engine.host_waiters += 1;
        rt = DONE.wait(rt).unwrap_or_else(|e| e.into_inner());
        rt.engine.host_waiters = rt.engine.host_waiters.saturating_sub(1);
    }
    if served {
        wake(&mut rt, 0);
    }
    rt
}

/// Asks whether these points are done. Work that waits to be asked for may run from now on; the answer is the state
/// before that.
pub(crate) fn query(mut rt: Guard, points: &[Point]) -> Answer {
    if points.iter().all(|p| rt.engine.done(*p)) {
        // To pools, what the host was told by a query is not seen (measured for events).
        return Ok(());
    }
    rt.engine.demand(points);
    wake(&mut rt, 0);
    Err(NOT_READY)
}

/// Submits an operation; waits for room first if the stream's queue is full. A stream that captures records it.
pub(crate) fn submit(
    mut rt: Guard,
    call: &str,
    slot: u32,
    work: Work,
    after: Vec<Point>,
) -> Answer<(Guard, Point)> {
    let Some(work) = rt.capture_work(call, slot, work)? else {
        let point = rt.engine.last(slot);
        return Ok((rt, point));
    };
    if rt.engine.full(slot) {
        rt.engine.blocked_on_full += 1;
        let uid = rt.engine.stream(slot).map(|s| s.uid);
        // Nobody who is stuck here can ask for anything, so all of it may run.
        let all = rt.engine.last(slot);
        rt.engine.demand(&[all]);
        while rt.engine.full(slot) && rt.engine.stream(slot).map(|s| s.uid) == uid {
            let Some(room) = rt.engine.watch_room(slot) else {
                break;
            };
            rt = wait_quietly(rt, &[room]);
        }
        rt.engine.blocked_on_full = rt.engine.blocked_on_full.saturating_sub(1);
        if rt.engine.blocked_on_full == 0 {
            DONE.notify_all();
        }
        if rt.engine.stream(slot).map(|s| s.uid) != uid {
            return Err(INVALID_HANDLE);
        }
    }
    let point = rt.engine.submit(call, slot, work, after);
    wake(&mut rt, 0);
    if rt.engine.schedule == Schedule::Lazy && !rt.engine.watchdog {
        rt.engine.watchdog = sync::spawn("cudart-sim patience", watch);
    }
    Ok((rt, point))
}

/// Calls that the real runtime holds up while some thread is stuck on a full stream wait here.
pub(crate) fn pass_full_queues(mut rt: Guard) -> Guard {
    while rt.engine.blocked_on_full > 0 {
        rt.engine.host_waiters += 1;
        rt = DONE.wait(rt).unwrap_or_else(|e| e.into_inner());
        rt.engine.host_waiters = rt.engine.host_waiters.saturating_sub(1);
    }
    rt
}

/// The lazy schedule's clock.
fn watch() {
    loop {
        let mut rt = runtime::lock();
        let more = rt.engine.lose_patience();
        wake(&mut rt, 0);
        if !more {
            rt.engine.watchdog = false;
            return;
        }
        let pause =
            (rt.engine.patience / 4).clamp(Duration::from_millis(2), Duration::from_millis(250));
        drop(rt);
        sync::pause(pause);
    }
}
