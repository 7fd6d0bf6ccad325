//! What goes on beside a growth: hits, other requests, captures, a queue that is full.

use crate::{
    common::{KIB, MIB, assert_sound, stall},
    rig, stats, turn, virtual_memory,
};
use memmgr::{Config, DeviceSource, MemoryManager, Observer, Place, SegmentChange, Stream};
use memmgr_tests::Gate;
use std::{
    ops::Range,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// What 300 ms of somebody else's work must not become.
const SOON: Duration = Duration::from_millis(150);

/// Is stopped at the first segment of so many bytes that is added, until the gate opens.
struct Stop {
    bytes: usize,
    begun: Gate,
    gate: Gate,
    added: AtomicUsize,
}

impl Observer for Stop {
    fn on_segment(&self, _: Place, range: Range<usize>, change: SegmentChange) {
        if change == SegmentChange::Added && range.len() == self.bytes {
            self.added.fetch_add(1, SeqCst);
            self.begun.open();
            self.gate.pass();
        }
    }
}

/// Case B40 (a), for both sources.
#[test]
fn a_growth_holds_up_no_hit_and_is_made_once() {
    let _turn = turn();
    for source in [DeviceSource::Malloc, DeviceSource::Auto] {
        let config = Config::default()
            .device_source(source)
            .device_growth(2 * MIB);
        let manager = MemoryManager::new(config).unwrap();
        let stop = Arc::new(Stop {
            bytes: 4 * MIB,
            begun: Gate::new(),
            gate: Gate::new(),
            added: AtomicUsize::new(0),
        });
        manager.set_observer(stop.clone()).unwrap();
        // A block that stays keeps the first segment apart from what comes.
        let (cached, _stays) = (
            manager.allocate_device(256).unwrap(),
            manager.allocate_device(2 * MIB - 256).unwrap(),
        );
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(cached).unwrap() };
        let growths = stats(&manager).growths;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| manager.allocate_device(2 * MIB + 256).unwrap().addr());
            stop.begun.pass();
            let second = scope.spawn(|| manager.allocate_device(MIB).unwrap().addr());
            let begun = Instant::now();
            let hit = manager.allocate_device(256).unwrap();
            assert!(begun.elapsed() < SOON, "{source}: {:?}", begun.elapsed());
            // SAFETY: nobody uses the block.
            unsafe { manager.free_device(hit).unwrap() };
            // The books can be looked at meanwhile.
            assert_sound(&manager);
            stop.gate.open();
            assert_ne!(first.join().unwrap(), second.join().unwrap());
        });
        assert_eq!(stats(&manager).growths, growths + 1, "{source}");
        assert_eq!(stop.added.load(SeqCst), 1, "{source}");
        assert_sound(&manager);
    }
}

#[test]
fn eight_threads_that_miss_together_grow_once() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    for round in 1..=20 {
        let barrier = Barrier::new(8);
        let mut addresses: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        manager.allocate_device(256 * KIB).unwrap().addr()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        addresses.sort_unstable();
        assert!(
            addresses
                .windows(2)
                .all(|pair| pair[0] + 256 * KIB <= pair[1])
        );
        let now = stats(&manager);
        assert_eq!(
            (now.growths, now.reserved),
            (round, round as usize * 2 * MIB),
            "{now:?}"
        );
        assert_sound(&manager);
    }
}

/// Growth in a capture, on the capturing thread and by the captured stream, leaves the capture alive.
#[test]
#[cfg(feature = "sim")]
fn a_pool_grows_while_a_stream_is_captured() {
    use crate::capturing;
    use memmgr::CaptureMode;
    let _turn = turn();
    for mode in [
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ] {
        for warm in [false, true] {
            let manager = virtual_memory(Config::default()).unwrap();
            if warm {
                let block = manager.allocate_device(MIB).unwrap();
                // SAFETY: nobody uses the block.
                unsafe { manager.free_device(block).unwrap() };
            }
            let stream = Stream::new().unwrap();
            let mallocs = cudart_sim::thread_calls_of("cudaMalloc");
            capturing::begin(&stream, mode);
            let mine = manager.allocate_device_on(4 * MIB, &stream).unwrap();
            let other = manager.allocate_device(8 * MIB).unwrap();
            manager.trim().unwrap();
            assert_eq!(
                capturing::status(stream.as_raw().cast()),
                1,
                "{mode:?}, {warm}"
            );
            let (code, graph) = capturing::end(stream.as_raw().cast());
            assert_eq!(code, 0);
            capturing::destroy(graph);
            assert_eq!(cudart_sim::thread_calls_of("cudaMalloc"), mallocs);
            // SAFETY: nobody uses the blocks.
            unsafe {
                manager.free_device(mine).unwrap();
                manager.free_device(other).unwrap();
            }
        }
    }
}

/// A queue that takes no more holds up no growth. With `cudaMalloc` it does, so that this test can fail.
#[test]
fn a_full_queue_stops_no_growth() {
    memmgr_tests::sim_only!("the length of a queue is known");
    let _turn = turn();
    for source in [DeviceSource::Virtual, DeviceSource::Malloc] {
        let config = Config::default()
            .device_source(source)
            .device_growth(2 * MIB);
        let manager = MemoryManager::new(config).unwrap();
        let stream = Stream::new().unwrap();
        let block = manager.allocate_device(4 * KIB).unwrap();
        let gate = Gate::new();
        let mut grown = std::ptr::null_mut();
        stall(&stream, &gate);
        std::thread::scope(|scope| {
            let opener = gate.open_after(3 * SOON);
            let filler = (stream.clone(), block.addr());
            scope.spawn(move || {
                let (stream, block) = filler;
                let block = std::ptr::with_exposed_provenance_mut(block);
                for _ in 0..1100 {
                    // SAFETY: the block stays until the stream is idle.
                    unsafe { rig::kernel_fill(block, 1, 16, &stream) };
                }
            });
            // By now it waits in the full queue.
            std::thread::sleep(SOON);
            let begun = Instant::now();
            grown = manager.allocate_device(4 * MIB).unwrap();
            let (took, is_fast) = (begun.elapsed(), source == DeviceSource::Virtual);
            assert_eq!(took < SOON, is_fast, "{source}: {took:?}");
            opener.join().unwrap();
        });
        stream.synchronize().unwrap();
        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device(grown).unwrap();
            manager.free_device(block).unwrap();
        }
    }
}

/// The places where the memory of a block was once are taken by others while work runs in the block.
#[test]
fn places_of_a_block_go_while_work_runs_in_it() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let stream = Stream::new().unwrap();
    let [front, wall] = [4, 2].map(|size| manager.allocate_device(size * MIB).unwrap());
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device(front).unwrap() };
    let moved = manager.allocate_device(8 * MIB).unwrap();
    assert_eq!(stats(&manager).moves, 2);
    let gate = Gate::new();
    stall(&stream, &gate);
    // SAFETY: the block has so many bytes, and lives until the stream is idle.
    unsafe { manager.memset(moved, 7, 8 * MIB, &stream).unwrap() };
    // Its chunks are mapped at the front as well, where new ones come.
    assert_eq!(manager.allocate_device(4 * MIB).unwrap(), front);
    // SAFETY: as before.
    unsafe { manager.memset(moved, 8, 8 * MIB, &stream).unwrap() };
    gate.open();
    stream.synchronize().unwrap();
    // SAFETY: as before.
    let found = unsafe { crate::rig::read_back(&manager, moved, 8 * MIB, &stream) };
    assert!(found.iter().all(|byte| *byte == 8));
    assert_sound(&manager);
    for block in [front, wall, moved] {
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(block).unwrap() };
    }
}
