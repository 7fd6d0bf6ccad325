//! Memory of a pool of virtual memory that has moved is in one piece again when nothing is live, where that costs little beside
//! the calls that were made. A process of its own: it counts the moves of one device.

mod common;

use memmgr::{Config, DeviceSource, MemoryManager, PoolStats, Stream};
use memmgr_tests::Gate;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::MIB;

/// So many calls must be made for each move.
const CALLS: u64 = 256;

fn stats(manager: &MemoryManager) -> PoolStats {
    manager.stats().device[0].best_fit
}

fn pairs(manager: &MemoryManager, stream: &Stream, calls: u64) {
    for _ in 0..calls {
        drop(manager.device::<u8>(4096, stream).expect("a block"));
    }
}

/// One test at a time: CUDA calls of the process are counted.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A manager whose memory has moved, and of which nothing is live; how many chunks have moved.
fn scattered(stream: &Stream) -> Option<(MemoryManager, u64)> {
    let config = Config::default()
        .device_source(DeviceSource::Virtual)
        .device_growth(2 * MIB);
    let manager = MemoryManager::new(config).expect("a manager");
    if !memmgr::devices().expect("devices")[0].virtual_memory_supported {
        memmgr_tests::skip("tidy", "the device has no virtual memory");
        return None;
    }
    let blocks: Vec<_> = (0..32)
        .map(|_| manager.device::<u8>(2 * MIB, stream).expect("a block"))
        .collect();
    // Every other one goes: sixteen holes, none of which serves what comes then.
    let mut kept = Vec::new();
    for (number, block) in blocks.into_iter().enumerate() {
        if number % 2 == 0 {
            kept.push(block);
        }
    }
    stream.synchronize().expect("no work");
    let large = manager.device::<u8>(24 * MIB, stream).expect("a block");
    let moved = stats(&manager).moves;
    assert!(moved > 0);
    drop((kept, large));
    stream.synchronize().expect("no work");
    Some((manager, moved))
}

#[test]
fn memory_that_has_moved_is_put_together_when_nothing_is_live() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    let Some((manager, moved)) = scattered(&stream) else {
        return;
    };
    // Too few calls so far: it stays as it is.
    pairs(&manager, &stream, 1);
    assert_eq!(stats(&manager).moves, moved);
    let scattered = stats(&manager);
    assert!(scattered.largest_idle < scattered.reserved, "{scattered:?}");

    pairs(&manager, &stream, CALLS * moved);
    stream.synchronize().expect("no work");
    pairs(&manager, &stream, 2);
    let after = stats(&manager);
    assert!(after.moves > moved, "{after:?}");
    assert_eq!(after.reserved, scattered.reserved);
    // One request gets all of it, and nothing moves for that.
    let moved = after.moves;
    stream.synchronize().expect("no work");
    let all = manager
        .device::<u8>(after.reserved, &stream)
        .expect("all of it");
    let last = stats(&manager);
    assert_eq!((last.moves, last.reserved), (moved, after.reserved));
    drop(all);

    // Nothing has moved since, so nothing is to be done.
    pairs(&manager, &stream, 10 * CALLS);
    assert_eq!(stats(&manager).moves, moved);
}

/// Work that holds the memory is asked about once, and not in every call.
#[test]
fn memory_that_work_holds_costs_the_calls_nothing() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    let Some((manager, moved)) = scattered(&stream) else {
        return;
    };
    let gate = Gate::new();
    common::stall(&stream, &gate);
    pairs(&manager, &stream, CALLS * moved + 1);
    let before = manager.stats().total_cuda_calls();
    pairs(&manager, &stream, CALLS);
    assert_eq!(manager.stats().total_cuda_calls(), before);
    assert_eq!(stats(&manager).moves, moved);
    gate.open();
    stream.synchronize().expect("the work ends");
}
