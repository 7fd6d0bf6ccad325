//! Promises of the pools that a review of their books tried to break: marks of streams that have ended, addresses inside pinned
//! blocks, and what `check` says.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, stall};
use memmgr::{Config, MemoryManager, Stream};
use memmgr_tests::Gate;
use std::time::Duration;

/// A manager with a pool of 2 MiB, which cannot grow.
fn tight() -> MemoryManager {
    MemoryManager::new(
        Config::default()
            .device_pool_size(2 * MIB)
            .device_pool_limit(Some(2 * MIB)),
    )
    .unwrap()
}

/// A block is freed in the order of another stream after its own has ended: the open epoch of the stream that ended goes on
/// with a number of its own, and what joins it is waited for.
#[test]
fn the_epoch_of_an_ended_stream_outlives_its_own_memory() {
    let mm = &tight();
    let gate = Gate::new();
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    // SAFETY: the blocks are ours, and what uses them is in the streams named.
    unsafe {
        let first = mm.allocate_device_on(64 * KIB, &a).unwrap();
        let rest = mm
            .allocate_device_on(2 * MIB - 64 * KIB - 512 * KIB, &a)
            .unwrap();
        mm.free_device_on(first, &a).unwrap();
        // The same memory again: it carries the epoch, which has no other now.
        let again = mm.allocate_device_on(64 * KIB, &a).unwrap();
        assert_eq!(first, again);
        let guard = mm.device::<u8>(512 * KIB, &a).unwrap();
        stall(&a, &gate);
        mm.memset(guard.as_ptr(), 1, 512 * KIB, &a).unwrap();
        let event = a.record().unwrap();
        drop(a);
        mm.free_device_on(again, &b).unwrap();
        assert_sound(mm);
        drop(guard);
        assert_sound(mm);
        let opener = gate.open_after(Duration::from_millis(50));
        let taken = mm.allocate_device(512 * KIB).unwrap();
        assert!(event.is_done().unwrap(), "the memory is still written");
        opener.join().unwrap();
        mm.free_device(taken).unwrap();
        mm.free_device(rest).unwrap();
    }
    assert_sound(mm);
    mm.trim().unwrap();
    let pool = mm.stats().device[0].best_fit;
    assert_eq!((pool.in_use, pool.pending, pool.reserved), (0, 0, 0));
    assert_eq!((pool.allocations, pool.frees), (5, 5));
}
