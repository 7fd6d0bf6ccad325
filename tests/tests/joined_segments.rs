//! Idle segments of `cudaMalloc` become a longer one where a pool would grow, and nobody waits for that. A process of its own:
//! segments join only while no stream of the process has work.

mod common;

use common::{MIB, assert_sound, stall};
use memmgr::{
    Config, DeviceSource, MemoryManager, Observer, Place, PoolStats, Reuse, SegmentChange, Stream,
};
use memmgr_tests::Gate;
use std::{
    ffi::c_void,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// One test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> Config {
    (Config::default().device_source(DeviceSource::Malloc)).device_growth(2 * MIB)
}

fn stats(manager: &MemoryManager) -> PoolStats {
    manager.stats().device[0].best_fit
}

/// So many blocks of 8 MiB, each in a segment of its own.
fn blocks(manager: &MemoryManager, stream: &Stream, count: usize) -> Vec<*mut c_void> {
    (0..count)
        .map(|_| manager.allocate_device_on(8 * MIB, stream).unwrap())
        .collect()
}

fn free(manager: &MemoryManager, stream: &Stream, blocks: &[*mut c_void]) {
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(*block, stream).unwrap() };
    }
}

/// What an observer was told of segments.
#[derive(Default)]
struct Told(Mutex<Vec<(usize, SegmentChange)>>);

impl Observer for Told {
    fn on_segment(&self, _: Place, range: Range<usize>, change: SegmentChange) {
        self.0.lock().unwrap().push((range.len(), change));
    }
}

#[test]
fn idle_segments_become_one_that_serves_a_longer_request() {
    let _turn = turn();
    let manager = MemoryManager::new(config()).unwrap();
    let stream = Stream::new().unwrap();
    let all = blocks(&manager, &stream, 4);
    assert_eq!(stats(&manager).segments, 4);
    free(&manager, &stream, &all[..3]);
    stream.synchronize().unwrap();
    let told = Arc::new(Told::default());
    manager.set_observer(told.clone()).unwrap();

    // What was idle is enough; the segment with the live block stays.
    let long = manager.allocate_device_on(20 * MIB, &stream).unwrap();
    assert_sound(&manager);
    let now = stats(&manager);
    assert_eq!((now.reserved, now.peak_reserved), (32 * MIB, 32 * MIB));
    assert_eq!((now.segments, now.growths, now.moves), (2, 5, 3));
    let removed = [(8 * MIB, SegmentChange::Removed); 3];
    let expected = [&removed[..], &[(24 * MIB, SegmentChange::Added)]].concat();
    assert_eq!(*told.0.lock().unwrap(), expected);

    // What is idle is not enough: the rest comes on top.
    free(&manager, &stream, &[all[3], long]);
    let longer = manager.allocate_device_on(40 * MIB, &stream).unwrap();
    let now = stats(&manager);
    assert_eq!((now.reserved, now.peak_reserved), (40 * MIB, 40 * MIB));
    assert_eq!((now.segments, now.moves), (1, 5));
    free(&manager, &stream, &[longer]);
    stream.synchronize().unwrap();
    assert_eq!(manager.trim().unwrap(), 40 * MIB);
}

/// What a pool reserves that asks for 24 MiB while 24 MiB in three segments wait for work of 100 ms, and whether it waited.
fn behind_work(reuse: Reuse) -> (usize, bool) {
    let manager = MemoryManager::new(config().reuse(reuse)).unwrap();
    let stream = Stream::new().unwrap();
    let all = blocks(&manager, &stream, 3);
    let gate = Gate::new();
    stall(&stream, &gate);
    free(&manager, &stream, &all);
    let opener = gate.open_after(Duration::from_millis(100));
    let long = manager.allocate_device_on(24 * MIB, &stream).unwrap();
    let waited = stream.query().unwrap();
    opener.join().unwrap();
    assert_sound(&manager);
    free(&manager, &stream, &[long]);
    stream.synchronize().unwrap();
    let reserved = stats(&manager).reserved;
    manager.shutdown().unwrap();
    (reserved, waited)
}

#[test]
fn only_a_pool_that_prefers_memory_waits_for_segments_to_join() {
    let _turn = turn();
    assert_eq!(behind_work(Reuse::PreferSpeed), (48 * MIB, false));
    assert_eq!(behind_work(Reuse::PreferMemory), (24 * MIB, true));
}

/// `cudaFree` would wait for whatever runs.
#[test]
fn work_of_another_stream_keeps_segments_apart() {
    let _turn = turn();
    let manager = MemoryManager::new(config()).unwrap();
    let (stream, busy) = (Stream::new().unwrap(), Stream::new().unwrap());
    let all = blocks(&manager, &stream, 3);
    free(&manager, &stream, &all);
    stream.synchronize().unwrap();
    let gate = Gate::new();
    stall(&busy, &gate);
    let long = manager.allocate_device_on(24 * MIB, &stream).unwrap();
    assert!(!busy.query().unwrap());
    assert_eq!(stats(&manager).reserved, 48 * MIB);
    gate.open();
    busy.synchronize().unwrap();
    free(&manager, &stream, &[long]);
    manager.shutdown().unwrap();
}

#[test]
fn a_limit_counts_what_goes_back_and_is_never_exceeded() {
    let _turn = turn();
    let limited = config().device_pool_limit(Some(32 * MIB));
    let manager = MemoryManager::new(limited).unwrap();
    let stream = Stream::new().unwrap();
    let all = blocks(&manager, &stream, 4);
    free(&manager, &stream, &all);
    let long = manager.allocate_device_on(31 * MIB, &stream).unwrap();
    let now = stats(&manager);
    assert_eq!((now.reserved, now.peak_reserved), (32 * MIB, 32 * MIB));
    free(&manager, &stream, &[long]);

    // What could not be served even so takes nothing apart.
    let moves = stats(&manager).moves;
    let kept = manager.allocate_device_on(8 * MIB, &stream).unwrap();
    manager.allocate_device_on(30 * MIB, &stream).unwrap_err();
    assert_eq!(stats(&manager).moves, moves);
    free(&manager, &stream, &[kept]);
    manager.shutdown().unwrap();
}

/// What is much shorter than the new segment stays, unless the limit leaves no choice.
#[test]
fn short_segments_stay_out_of_a_long_one() {
    let _turn = turn();
    for (limit, reserved, joined) in [(None, 66 * MIB, 1), (Some(64 * MIB), 64 * MIB, 2)] {
        let manager = MemoryManager::new(config().device_pool_limit(limit)).unwrap();
        let stream = Stream::new().unwrap();
        let all =
            [16 * MIB, 2 * MIB].map(|size| manager.allocate_device_on(size, &stream).unwrap());
        assert_eq!(stats(&manager).segments, 2);
        free(&manager, &stream, &all);
        let long = manager.allocate_device_on(64 * MIB, &stream).unwrap();
        assert_sound(&manager);
        let now = stats(&manager);
        assert_eq!((now.reserved, now.peak_reserved), (reserved, reserved));
        assert_eq!(now.moves, joined);
        free(&manager, &stream, &[long]);
        manager.shutdown().unwrap();
    }
}

#[test]
fn a_segment_has_room_for_a_whole_number_of_the_blocks_it_is_made_for() {
    let _turn = turn();
    let growing = || config().device_growth(32 * MIB);
    // The size of a block, how many go into a segment, and how long that is: of 11 MiB three, in whole pages. What is not longer
    // than a page leaves little behind the last; what is longer than the least gets its own length.
    for (size, count, len) in [
        (11 * MIB, 3, 34 * MIB),
        (20 * MIB, 2, 40 * MIB),
        (2 * MIB - 256, 16, 32 * MIB),
        (33 * MIB, 1, 34 * MIB),
    ] {
        let manager = MemoryManager::new(growing()).unwrap();
        let stream = Stream::new().unwrap();
        let mut blocks = Vec::new();
        for _ in 0..count {
            blocks.push(manager.allocate_device_on(size, &stream).unwrap());
            assert_eq!(
                (stats(&manager).reserved, stats(&manager).segments),
                (len, 1)
            );
        }
        blocks.push(manager.allocate_device_on(size, &stream).unwrap());
        assert_eq!(stats(&manager).segments, 2, "{size}");
        free(&manager, &stream, &blocks);
        manager.shutdown().unwrap();
    }

    // The limit leaves less.
    let limited = growing().device_pool_limit(Some(33 * MIB));
    let manager = MemoryManager::new(limited).unwrap();
    let stream = Stream::new().unwrap();
    let block = manager.allocate_device_on(20 * MIB, &stream).unwrap();
    assert_eq!(stats(&manager).reserved, 33 * MIB);
    free(&manager, &stream, &[block]);
    manager.shutdown().unwrap();
}

/// Pinned segments do not join, and are as long as is configured.
#[test]
fn pinned_segments_are_no_longer_than_configured() {
    let _turn = turn();
    let manager = MemoryManager::new(config().pinned_growth(32 * MIB)).unwrap();
    let block = manager.allocate_pinned(20 * MIB).unwrap();
    assert_eq!(manager.stats().pinned.reserved, 32 * MIB);
    // SAFETY: nobody uses the block.
    unsafe { manager.free_pinned(block).unwrap() };
    manager.shutdown().unwrap();
}

/// The configured size is reserved first, and is not less when it has gone into a longer segment.
#[test]
fn the_configured_size_stays() {
    let _turn = turn();
    let manager = MemoryManager::new(config().device_pool_size(16 * MIB)).unwrap();
    let stream = Stream::new().unwrap();
    let first = manager.allocate_device_on(MIB, &stream).unwrap();
    assert_eq!(stats(&manager).reserved, 16 * MIB);
    free(&manager, &stream, &[first]);
    let long = manager.allocate_device_on(18 * MIB, &stream).unwrap();
    let now = stats(&manager);
    assert_eq!((now.reserved, now.segments), (18 * MIB, 1));
    free(&manager, &stream, &[long]);
    manager.shutdown().unwrap();
}

/// CUDA refuses the longer segment once the short ones have gone: the pool makes what the request needs, or says so.
#[test]
fn a_refused_segment_backs_off_to_the_request() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let out_of_memory = cuda_sys::cudaError::cudaErrorMemoryAllocation;
        let manager = MemoryManager::new(config()).unwrap();
        let stream = Stream::new().unwrap();
        let all = blocks(&manager, &stream, 4);
        free(&manager, &stream, &all);
        let fault = cudart_sim::fail("cudaMalloc", out_of_memory).times(1);
        let long = manager.allocate_device_on(18 * MIB, &stream).unwrap();
        assert_eq!(fault.fired(), 1);
        drop(fault);
        assert_sound(&manager);
        let now = stats(&manager);
        assert_eq!((now.reserved, now.segments), (18 * MIB, 1));

        // `cudaFree` fails: the others join.
        let more = blocks(&manager, &stream, 3);
        free(&manager, &stream, &more);
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        let fault = cudart_sim::fail("cudaFree", unknown).times(1);
        let next = manager.allocate_device_on(12 * MIB, &stream).unwrap();
        assert_eq!(fault.fired(), 1);
        drop(fault);
        assert_sound(&manager);
        assert_eq!(stats(&manager).reserved, 34 * MIB);
        free(&manager, &stream, &[long, next]);
        manager.shutdown().unwrap();
    }
}
