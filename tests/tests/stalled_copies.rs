//! Pinned memory while a stream is stuck: who waits for it, and what it costs. In a process of its own, one test after the
//! other: calls of other tests that wait for the whole device would wait for the stuck stream, too.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{MIB, assert_sound, manager, stall};
use memmgr::{Config, MemoryManager, Stream};
use memmgr_tests::Gate;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// B22: a view waits for the copies that matter to it, and for no others.
#[test]
fn a_view_of_pinned_memory_waits_for_its_copies() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut h = mm.pinned::<u8>(MIB).unwrap();
    let d = mm.device_zeroed::<u8>(MIB, &s).unwrap();
    h.as_mut_slice().unwrap().fill(0x31);
    s.synchronize().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let _ = s.copy_to_device(&h, &d).unwrap();
    // Reading while a copy reads is harmless, and does not wait.
    rig::assert_all(h.as_slice().unwrap(), 0x31, "the source");
    assert!(!s.query().unwrap());
    let opener = gate.open_after(Duration::from_millis(50));
    // Writing waits.
    h.as_mut_slice().unwrap().fill(0x32);
    assert!(s.query().unwrap());
    opener.join().unwrap();
    let mut back = mm.pinned::<u8>(MIB).unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let submitted = s.copy_to_host(&d, &mut back).unwrap();
    assert!(!submitted.is_done().unwrap());
    let opener = gate.open_after(Duration::from_millis(50));
    rig::assert_all(
        back.as_slice().unwrap(),
        0x31,
        "what was copied before the change",
    );
    assert!(submitted.is_done().unwrap());
    opener.join().unwrap();
    drop((h, back, d));
    mm.shutdown().unwrap();
}

/// What the pinned pool may hold beyond the blocks that copies in flight need: one growth.
const GROWTH: usize = 2 * MIB;
/// A stream takes this many operations behind the running one, and then its caller waits.
const QUEUE: usize = 1021;

/// One round of a program that never waits: pinned memory, a copy from it, and the free.
fn upload(mm: &MemoryManager, on_device: &memmgr::DeviceBuffer<u8>, s: &Stream, guard: bool) {
    let len = on_device.len();
    if guard {
        let host = mm.pinned::<u8>(len).unwrap();
        let _ = s.copy_to_device(&host, on_device).unwrap();
        return;
    }
    let host = mm.allocate_pinned(len).unwrap();
    // SAFETY: both blocks have that many bytes, and the copy is the manager's.
    unsafe {
        mm.copy_to_device_async(on_device.as_ptr(), host, len, s)
            .unwrap();
        mm.free_pinned(host).unwrap();
    }
}

/// B22: the bound of docs/design.md: the blocks of the copies in flight, of which a stream takes no more than its queue
/// holds, and one growth.
#[test]
fn ten_thousand_uploads_without_a_synchronisation_stay_within_what_is_in_flight() {
    let _turn = turn();
    const LEN: usize = 16 << 10;
    for (streams, guard) in [(1, false), (3, true)] {
        for stalled in [false, true] {
            let mm = MemoryManager::new(Config::default().pinned_growth(GROWTH)).unwrap();
            let lanes: Vec<Stream> = (0..streams).map(|_| Stream::new().unwrap()).collect();
            let targets: Vec<_> = lanes
                .iter()
                .map(|s| mm.device::<u8>(LEN, s).unwrap())
                .collect();
            let gate = Gate::new();
            if stalled {
                // The others go on, and reuse what they have.
                stall(&lanes[0], &gate);
            }
            let opener = stalled.then(|| gate.open_after(Duration::from_millis(100)));
            for i in 0..10_000 {
                let at = i % streams;
                upload(&mm, &targets[at], &lanes[at], guard);
            }
            let peak = mm.stats().pinned.peak_reserved;
            // The running one, those behind it, and the one that is being submitted.
            let bound = streams * (QUEUE + 2) * LEN + GROWTH;
            assert!(
                peak <= bound,
                "{streams} streams, guard {guard}, stalled {stalled}: {peak} bytes, more than {bound}"
            );
            if let Some(opener) = opener {
                opener.join().unwrap();
            }
            drop(targets);
            assert_sound(&mm);
            mm.shutdown().unwrap();
        }
    }
}

/// Behind a stalled stream memory grows with the copies in flight, and with nothing else; then it is used again.
#[test]
fn pinned_memory_behind_a_stalled_stream_is_that_of_its_copies_and_serves_the_next_ones() {
    let _turn = turn();
    const LEN: usize = 64 << 10;
    const COPIES: usize = 300;
    for guard in [false, true] {
        let mm = MemoryManager::new(Config::default().pinned_growth(GROWTH)).unwrap();
        let s = Stream::new().unwrap();
        let on_device = mm.device::<u8>(LEN, &s).unwrap();
        let gate = Gate::new();
        stall(&s, &gate);
        for _ in 0..COPIES {
            upload(&mm, &on_device, &s, guard);
        }
        let held = mm.stats().pinned.reserved;
        assert!(
            (COPIES * LEN..=COPIES * LEN + GROWTH).contains(&held),
            "guard {guard}: {held} bytes for {COPIES} copies of {LEN}"
        );
        gate.open();
        s.synchronize().unwrap();
        for _ in 0..COPIES {
            upload(&mm, &on_device, &s, guard);
        }
        assert_eq!(mm.stats().pinned.reserved, held, "guard {guard}");
        s.synchronize().unwrap();
        drop(on_device);
        mm.shutdown().unwrap();
    }
}
