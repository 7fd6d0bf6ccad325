//! A busy stream holds up nobody who does not need its memory.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, stall};
use memmgr::{Config, DeviceAllocatorMode, MemoryManager, Stream};
use memmgr_tests::Gate;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// What 300 ms of somebody else's work must not become.
const SOON: Duration = Duration::from_millis(150);

/// The tests of this file take turns: each measures time while a stream is stalled.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// D03, with room.
#[test]
fn with_room_to_grow_a_request_waits_for_nobody() {
    let _turn = turn();
    let mm = MemoryManager::new(Config::default().device_growth(2 * MIB)).unwrap();
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let x = mm.allocate_device_on(2 * MIB, &a).unwrap();
    let gate = Gate::new();
    // SAFETY: the blocks are ours.
    unsafe {
        mm.free_device_on(x, &a).unwrap();
        stall(&a, &gate);
        let opener = gate.open_after(2 * SOON);
        let begun = Instant::now();
        let y = mm.allocate_device_on(2 * MIB, &b).unwrap();
        mm.memset(y, 1, 2 * MIB, &b).unwrap();
        b.synchronize().unwrap();
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(!a.query().unwrap());
        opener.join().unwrap();
        mm.free_device_on(y, &b).unwrap();
    }
    mm.shutdown().unwrap();
}

/// D03, without room.
#[test]
fn without_room_the_stream_waits_on_the_device_and_the_host_does_not() {
    let _turn = turn();
    let mm = rig::capped(2 * MIB);
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let x = mm.allocate_device_on(2 * MIB, &a).unwrap();
    let gate = Gate::new();
    // SAFETY: the blocks are ours.
    unsafe {
        mm.free_device_on(x, &a).unwrap();
        stall(&a, &gate);
        let opener = gate.open_after(2 * SOON);
        let begun = Instant::now();
        let y = mm.allocate_device_on(2 * MIB, &b).unwrap();
        mm.memset(y, 1, 2 * MIB, &b).unwrap();
        assert!(
            begun.elapsed() < SOON,
            "the host waited {:?}",
            begun.elapsed()
        );
        assert_eq!(y, x);
        assert!(!b.query().unwrap(), "the stream does not wait");
        opener.join().unwrap();
        b.synchronize().unwrap();
        assert!(a.query().unwrap(), "`b` ran before `a`");
        mm.free_device_on(y, &b).unwrap();
    }
    assert_eq!(mm.stats().device[0].best_fit.waits, 1);
    mm.shutdown().unwrap();
}

/// D03: nor does it, because some manager was dropped before.
#[test]
fn growth_does_not_wait_for_running_work_because_a_manager_was_dropped() {
    let _turn = turn();
    {
        let gone = common::manager();
        let block = gone.allocate_device(MIB).unwrap();
        let host = gone.allocate_pinned(MIB).unwrap();
        // SAFETY: nobody uses the blocks.
        unsafe {
            gone.free_device(block).unwrap();
            gone.free_pinned(host).unwrap();
        }
    }
    let mm = MemoryManager::new(Config::default().device_growth(2 * MIB)).unwrap();
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let gate = Gate::new();
    stall(&a, &gate);
    let opener = gate.open_after(2 * SOON);
    let begun = Instant::now();
    let y = mm.allocate_device_on(2 * MIB, &b).unwrap();
    assert!(
        begun.elapsed() < SOON,
        "the growth waited {:?}",
        begun.elapsed()
    );
    opener.join().unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(y, &b).unwrap() };
    mm.shutdown().unwrap();
}

/// D03: nor, because an earlier `shutdown` left a segment with a live block.
#[test]
fn a_request_after_shutdown_does_not_wait_for_running_work() {
    let _turn = turn();
    let mm = MemoryManager::new(Config::default().device_growth(2 * MIB)).unwrap();
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let kept = mm.allocate_device(2 * MIB).unwrap();
    assert_eq!(mm.shutdown().unwrap().live.len(), 1);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(kept).unwrap() };
    let gate = Gate::new();
    stall(&a, &gate);
    let opener = gate.open_after(2 * SOON);
    let begun = Instant::now();
    let y = mm.allocate_device_on(MIB, &b).unwrap();
    assert!(
        begun.elapsed() < SOON,
        "the request waited {:?}",
        begun.elapsed()
    );
    opener.join().unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(y, &b).unwrap() };
    mm.shutdown().unwrap();
}

/// Frees and drops wait for nothing, in any mode.
#[test]
fn frees_and_drops_do_not_wait_for_running_work() {
    let _turn = turn();
    for mode in rig::modes() {
        let mm = common::manager_in(*mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        let raw: Vec<_> = (0..4)
            .map(|_| mm.allocate_device_on(MIB, &a).unwrap())
            .collect();
        let guard = mm.device::<u8>(MIB, &a).unwrap();
        let used = mm.device::<u8>(MIB, &a).unwrap();
        let host = mm.pinned::<u8>(MIB).unwrap();
        let _ = b.copy_to_device(&host, &used).unwrap();
        let gate = Gate::new();
        stall(&a, &gate);
        stall(&b, &gate);
        let _ = b.copy_to_device(&host, &used).unwrap();
        let opener = gate.open_after(2 * SOON);
        let begun = Instant::now();
        // SAFETY: nobody uses the blocks; the streams order what is left.
        unsafe {
            mm.free_device(raw[0]).unwrap();
            mm.free_device_on(raw[1], &a).unwrap();
            mm.free_device_on(raw[2], &b).unwrap();
            mm.free_device(raw[3]).unwrap();
        }
        drop((guard, used, host));
        assert!(begun.elapsed() < SOON, "{mode}: {:?}", begun.elapsed());
        let streams = (a.clone(), b.clone());
        drop((a, b));
        drop(streams);
        assert!(
            begun.elapsed() < SOON,
            "{mode}: the streams' drop took {:?}",
            begun.elapsed()
        );
        opener.join().unwrap();
        assert_eq!(mm.stats().drop_failures, 0);
        mm.shutdown().unwrap();
    }
}

/// D02: a stream that takes no more work, behind a host function that drops guards, while others allocate, free and grow.
#[test]
fn a_full_queue_and_drops_in_a_host_function_hold_up_nobody_who_is_served_by_the_pool() {
    let _turn = turn();
    for mode in rig::modes() {
        let mm = Arc::new(
            MemoryManager::new(Config::default().mode(*mode).device_growth(2 * MIB)).unwrap(),
        );
        let pool = *mode == DeviceAllocatorMode::BestFitPool;
        let (full, other) = (Stream::new().unwrap(), Stream::new().unwrap());
        let target = mm.device::<u8>(MIB, &full).unwrap();
        let (pinned, device) = (
            mm.pinned::<u8>(KIB).unwrap(),
            mm.device::<u8>(KIB, &full).unwrap(),
        );
        // What the other stream is served with.
        drop(mm.device::<u8>(MIB / 4, &other).unwrap());
        other.synchronize().unwrap();
        full.synchronize().unwrap();
        let gate = Gate::new();
        let calls = Arc::new(AtomicU64::new(u64::MAX));
        {
            let (gate, calls) = (gate.clone(), calls.clone());
            full.launch_host(move || {
                gate.pass();
                let before = memmgr::cuda_calls_on_this_thread();
                drop((pinned, device));
                calls.store(memmgr::cuda_calls_on_this_thread() - before, SeqCst);
            })
            .unwrap();
        }
        std::thread::scope(|scope| {
            // Beyond 1,021 the caller waits for the stall.
            let fills = scope.spawn(|| {
                for i in 0..1_100_u32 {
                    // SAFETY: the guard outlives the work, which is waited for below.
                    unsafe { rig::kernel_fill(target.as_ptr(), i as u8, KIB, &full) };
                }
            });
            std::thread::sleep(SOON / 3);
            // Growth may have to wait for room in the queue: on a thread of its own.
            let growth = scope.spawn(|| {
                drop(mm.device::<u8>(16 * MIB, &other).unwrap());
            });
            let opener = gate.open_after(4 * SOON);
            let begun = Instant::now();
            if pool {
                for _ in 0..1_000 {
                    drop(mm.device::<u8>(MIB / 4, &other).unwrap());
                }
            }
            assert!(begun.elapsed() < 2 * SOON, "{mode}: {:?}", begun.elapsed());
            opener.join().unwrap();
            fills.join().unwrap();
            growth.join().unwrap();
        });
        full.synchronize().unwrap();
        assert_eq!(
            calls.load(SeqCst),
            0,
            "{mode}: CUDA calls in the host function"
        );
        drop(target);
        full.synchronize().unwrap();
        other.synchronize().unwrap();
        // The next call does what the host function could not.
        drop(mm.device::<u8>(KIB, &other).unwrap());
        let stats = mm.stats();
        assert_eq!((stats.in_use(), stats.drop_failures), (0, 0), "{mode}");
        mm.check().unwrap();
        mm.shutdown().unwrap();
    }
}

/// D04: a view of pinned memory waits for its copy, and for nothing that came later in the stream.
#[test]
fn a_view_does_not_wait_for_what_follows_its_copy() {
    let _turn = turn();
    let mm = common::manager();
    let s = Stream::new().unwrap();
    let device = mm.device::<u8>(MIB, &s).unwrap();
    let mut host = mm.pinned::<u8>(MIB).unwrap();
    host.as_mut_slice().unwrap().fill(0x11);
    s.synchronize().unwrap();
    let gate = Gate::new();
    let _ = s.copy_to_device(&host, &device).unwrap();
    stall(&s, &gate);
    let opener = gate.open_after(2 * SOON);
    let begun = Instant::now();
    host.as_mut_slice().unwrap().fill(0x22);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(!s.query().unwrap(), "the later work is over already");
    opener.join().unwrap();
    s.synchronize().unwrap();
    // SAFETY: the block has that many bytes.
    let contents = unsafe { rig::read_back(&mm, device.as_ptr(), MIB, &s) };
    rig::assert_all(&contents, 0x11, "what was copied before the refill");
}

/// D04, for parts: what is stuck are copies of the other half.
#[test]
fn a_view_of_one_half_does_not_wait_for_copies_of_the_other() {
    let _turn = turn();
    let mm = common::manager();
    let s = Stream::new().unwrap();
    let device = mm.device_zeroed::<u8>(2 * MIB, &s).unwrap();
    let mut host = mm.pinned_zeroed::<u8>(2 * MIB).unwrap();
    host.as_mut_slice().unwrap().fill(1);
    s.synchronize().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let reads = s
        .copy_to_device(&host.slice(MIB..).unwrap(), &device.slice(..MIB).unwrap())
        .unwrap();
    let writes = s
        .copy_to_host(
            &device.slice(MIB..).unwrap(),
            &mut host.slice_mut(MIB..).unwrap(),
        )
        .unwrap();
    let mut front = host.slice_mut(..MIB).unwrap();
    front.as_mut_slice().unwrap().fill(2);
    let front = host.slice(..MIB).unwrap();
    rig::assert_all(front.as_slice().unwrap(), 2, "the first half");
    assert!(!reads.is_done().unwrap() && !writes.is_done().unwrap());
    // One byte more, and it waits.
    let opener = gate.open_after(Duration::from_millis(50));
    let more = host.slice(..MIB + 1).unwrap();
    assert_eq!(more.as_slice().unwrap()[MIB - 1..], [2, 0]);
    assert!(writes.is_done().unwrap());
    opener.join().unwrap();
    drop((host, device));
    mm.shutdown().unwrap();
}
