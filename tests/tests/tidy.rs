//! Memory of a pool of virtual memory that has moved is in one piece again when nothing is live, where that costs little beside
//! the calls that were made. A process of its own: it counts the moves of one device.

use memmgr::{Config, DeviceSource, MemoryManager, PoolStats, Stream};

const MIB: usize = 1 << 20;
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

#[test]
fn memory_that_has_moved_is_put_together_when_nothing_is_live() {
    let config = Config::default()
        .device_source(DeviceSource::Virtual)
        .device_growth(2 * MIB);
    let manager = MemoryManager::new(config).expect("a manager");
    if !memmgr::devices().expect("devices")[0].virtual_memory_supported {
        memmgr_tests::skip("tidy", "the device has no virtual memory");
        return;
    }
    let stream = Stream::new().expect("a stream");
    let blocks: Vec<_> = (0..32)
        .map(|_| manager.device::<u8>(2 * MIB, &stream).expect("a block"))
        .collect();
    // Every other one goes: sixteen holes, none of which serves what comes then.
    let mut kept = Vec::new();
    for (number, block) in blocks.into_iter().enumerate() {
        if number % 2 == 0 {
            kept.push(block);
        }
    }
    stream.synchronize().expect("no work");
    let large = manager.device::<u8>(24 * MIB, &stream).expect("a block");
    let moved = stats(&manager).moves;
    assert!(moved > 0);
    drop((kept, large));
    stream.synchronize().expect("no work");

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
