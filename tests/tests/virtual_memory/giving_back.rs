//! What trims, shutdowns and managers that go give back.

use crate::{
    common::{MIB, assert_sound},
    stamped::Stamped,
    stats, turn, virtual_memory,
};
use memmgr::Config;

/// Idle chunks go back, not whole ranges alone; the addresses stay usable.
#[test]
fn trim_gives_idle_chunks_back() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    #[cfg(feature = "sim")]
    let before = cudart_sim::memory_info(0).unwrap();
    assert_eq!(stamped.trim(), 6 * MIB);
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.idle, now.segments), (10 * MIB, 0, 1));
    #[cfg(feature = "sim")]
    {
        let after = cudart_sim::memory_info(0).unwrap();
        assert_eq!(after.free, before.free + 6 * MIB as u64);
        assert_eq!(after.physical.0, before.physical.0 - 3);
    }
    stamped.verify();
    stamped.add(2 * MIB).unwrap();
    stamped.verify();
    for number in [0, 2, 4, 6, 7, 8] {
        stamped.free(number);
    }
    assert_eq!(stamped.trim(), 12 * MIB);
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.segments, now.free_spans), (0, 0, 0));
    assert_sound(&stamped.manager);
    stamped.add(5 * MIB).unwrap();
    stamped.verify();
}

/// What a manager leaves goes with the next call that may wait, of any manager: chunks and addresses.
#[test]
fn a_dropped_manager_leaves_nothing_behind() {
    memmgr_tests::sim_only!("it counts what the device has given");
    #[cfg(feature = "sim")]
    {
        use crate::common::stall;
        use memmgr::Stream;
        use memmgr_tests::Gate;
        use std::time::Duration;
        let _turn = turn();
        let other = virtual_memory(Config::default()).unwrap();
        other.trim().unwrap();
        let before = cudart_sim::memory_info(0).unwrap();
        let freed = cudart_sim::calls("cuMemAddressFree");
        drop(Stamped::with_holes(
            virtual_memory(Config::default()).unwrap(),
        ));
        other.trim().unwrap();
        // Raw blocks that are live keep their chunks and their addresses.
        let left = cudart_sim::memory_info(0).unwrap();
        assert_eq!(left.physical.1, before.physical.1 + 10 * MIB as u64);
        assert_eq!(cudart_sim::calls("cuMemAddressFree"), freed);
        let manager = virtual_memory(Config::default()).unwrap();
        let stream = Stream::new().unwrap();
        let gate = Gate::new();
        let guard = manager.device::<u8>(3 * MIB, &stream).unwrap();
        stall(&stream, &gate);
        let _ = stream.memset(&guard, 1).unwrap();
        let opener = gate.open_after(Duration::from_millis(30));
        drop(guard);
        drop(manager);
        other.trim().unwrap();
        opener.join().unwrap();
        assert_eq!(cudart_sim::memory_info(0).unwrap(), left);
        assert_eq!(cudart_sim::calls("cuMemAddressFree"), freed + 1);
    }
}

/// Places where chunks were once go with the manager, those of a block that stays too.
#[test]
fn a_dropped_manager_leaves_no_place_behind() {
    memmgr_tests::sim_only!("it counts what the device has given");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let other = virtual_memory(Config::default()).unwrap();
        other.trim().unwrap();
        for stays in [true, false] {
            let before = cudart_sim::memory_info(0).unwrap().physical;
            let freed = cudart_sim::calls("cuMemAddressFree");
            let unmapped = cudart_sim::calls("cuMemUnmap");
            let manager = virtual_memory(Config::default()).unwrap();
            let [front, wall] = [4, 2].map(|size| manager.allocate_device(size * MIB).unwrap());
            // SAFETY: nobody uses the blocks.
            let free = |block| unsafe { manager.free_device(block).unwrap() };
            free(front);
            // Two chunks of it are mapped at the front as well.
            let moved = manager.allocate_device(8 * MIB).unwrap();
            assert_eq!(stats(&manager).moves, 2);
            free(wall);
            if !stays {
                free(moved);
            }
            drop(manager);
            other.trim().unwrap();
            let left = cudart_sim::memory_info(0).unwrap().physical;
            let kept = if stays { 8 * MIB as u64 } else { 0 };
            assert_eq!(left.1, before.1 + kept);
            let gone = cudart_sim::calls("cuMemUnmap") - unmapped;
            // The places, the wall's chunk, and those of the block if it goes.
            assert_eq!(gone, if stays { 3 } else { 7 });
            let ranges = cudart_sim::calls("cuMemAddressFree") - freed;
            assert_eq!(ranges, u64::from(!stays));
        }
    }
}

/// After a shutdown what is live stays, what comes has other addresses, and the rest follows.
#[test]
fn a_shutdown_keeps_what_is_live_until_it_is_freed() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    let report = stamped.manager.shutdown().unwrap();
    assert_eq!((report.released, report.live.len()), (6 * MIB, 5));
    let new = stamped.add(3 * MIB).unwrap();
    stamped.verify();
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.segments), (14 * MIB, 2), "{now:?}");
    for number in [0, 2, 4, 6, 7] {
        stamped.free(number);
    }
    // The next call that may wait.
    stamped.add(MIB + 256).unwrap();
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.segments), (6 * MIB, 1), "{now:?}");
    assert!(
        stamped
            .blocks
            .iter()
            .flatten()
            .any(|(block, _)| *block == new)
    );
    stamped.verify();
}
