//! Memory that streams have freed goes back, or is used otherwise, once their work is done.

use crate::common::{MIB, assert_sound, manager, stall};
use memmgr::Stream;
use memmgr_tests::Gate;
use std::time::Duration;

/// The stream is alive and idle: nothing can touch the memory any more.
#[test]
fn trim_gives_back_what_a_synchronised_stream_has_freed() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    let p = manager.allocate_device_on(MIB, &stream).unwrap();
    // SAFETY: the stream orders the work; nobody uses the block after its free.
    unsafe {
        manager.memset(p, 1, MIB, &stream).unwrap();
        manager.free_device_on(p, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    let reserved = manager.stats().device[0].best_fit.reserved;
    assert_eq!(
        manager.trim().unwrap(),
        reserved,
        "{:?}",
        manager.stats().device
    );
    let stats = manager.stats().device[0].best_fit;
    assert_eq!((stats.reserved, stats.pending, stats.segments), (0, 0, 0));
    assert_sound(&manager);
}

/// As above, through guards.
#[test]
fn trim_gives_back_what_guards_have_left_on_a_synchronised_stream() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    let host = manager.pinned_zeroed::<u8>(MIB).unwrap();
    let device = manager.device::<u8>(MIB, &stream).unwrap();
    let _ = stream.copy_to_device(&host, &device).unwrap();
    drop((host, device));
    stream.synchronize().unwrap();
    manager.trim().unwrap();
    let stats = manager.stats();
    assert_eq!(
        (stats.pinned.reserved, stats.device[0].best_fit.reserved),
        (0, 0)
    );
    assert_sound(&manager);
}

/// Two free segments are of no use to a request that is larger than either; they make room for one that is.
#[test]
fn segments_freed_on_a_synchronised_stream_make_room_for_a_larger_request() {
    for on_other_stream in [false, true] {
        let manager = manager();
        manager.set_device_pool_size(2 * MIB).unwrap();
        manager.set_device_pool_limit(Some(4 * MIB));
        let stream = Stream::new().unwrap();
        let other = Stream::new().unwrap();
        let blocks = [2 * MIB; 2].map(|size| manager.allocate_device_on(size, &stream).unwrap());
        for block in blocks {
            // SAFETY: nobody uses the block.
            unsafe { manager.free_device_on(block, &stream).unwrap() };
        }
        stream.synchronize().unwrap();
        let large = if on_other_stream {
            manager.allocate_device_on(3 * MIB, &other)
        } else {
            manager.allocate_device(3 * MIB)
        };
        match large {
            // SAFETY: nobody uses the block.
            Ok(ptr) => unsafe { manager.free_device(ptr).unwrap() },
            Err(error) => panic!("on a stream: {on_other_stream}: {error}"),
        }
        assert!(manager.stats().device[0].best_fit.peak_reserved <= 4 * MIB);
        assert_sound(&manager);
    }
}

/// As above, for a stream whose own memory it was.
#[test]
fn a_stream_can_have_a_larger_block_than_those_that_it_has_freed() {
    let manager = manager();
    manager.set_device_pool_size(2 * MIB).unwrap();
    manager.set_device_pool_limit(Some(4 * MIB));
    let stream = Stream::new().unwrap();
    for _ in 0..3 {
        let blocks = [2 * MIB; 2].map(|size| manager.allocate_device_on(size, &stream).unwrap());
        for block in blocks {
            // SAFETY: nobody uses the block.
            unsafe { manager.free_device_on(block, &stream).unwrap() };
        }
        stream.synchronize().unwrap();
        let large = manager.allocate_device_on(3 * MIB, &stream).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(large, &stream).unwrap() };
        stream.synchronize().unwrap();
    }
    assert_sound(&manager);
}

/// While the work is still running, the request waits for it rather than fail.
#[test]
fn segments_freed_behind_running_work_make_room_when_it_has_finished() {
    let manager = manager();
    manager.set_device_pool_size(2 * MIB).unwrap();
    manager.set_device_pool_limit(Some(4 * MIB));
    let stream = Stream::new().unwrap();
    let blocks = [2 * MIB; 2].map(|size| manager.allocate_device_on(size, &stream).unwrap());
    let gate = Gate::new();
    stall(&stream, &gate);
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(block, &stream).unwrap() };
    }
    let opener = gate.open_after(Duration::from_millis(50));
    let large = manager.allocate_device(3 * MIB);
    let finished = stream.query().unwrap();
    opener.join().unwrap();
    let large = large.unwrap();
    assert!(finished, "the memory was taken from work that was running");
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device(large).unwrap() };
    assert_sound(&manager);
}
