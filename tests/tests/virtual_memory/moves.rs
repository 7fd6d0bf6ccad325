//! Idle memory that moves to where it is needed, and what stays.

use crate::{
    common::{KIB, MIB, assert_sound, stall},
    stamped::Stamped,
    stats, turn, virtual_memory,
};
use memmgr::{Config, Error, Stream};
use memmgr_tests::{Gate, Rng};

#[test]
fn idle_memory_moves_to_a_request_and_nothing_live_notices() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    let holes: Vec<usize> = [0, 2, 4]
        .map(|n| stamped.blocks[n].unwrap().0.addr() + 2 * MIB)
        .into();
    let before = stats(&stamped.manager);
    let large = stamped.add(6 * MIB).unwrap();
    let after = stats(&stamped.manager);
    assert_eq!(
        (after.moves, after.growths),
        (3, before.growths),
        "{after:?}"
    );
    assert_eq!(after.reserved, before.reserved);
    assert_eq!(after.idle, 0);
    assert!(large.addr() > stamped.blocks[7].unwrap().0.addr());
    stamped.verify();

    // What was left behind serves the next growth, the lowest first.
    let next = stamped.add(2 * MIB).unwrap();
    assert_eq!(next.addr(), holes[0]);
    let grown = stats(&stamped.manager);
    assert_eq!(grown.reserved, before.reserved + 2 * MIB);
    stamped.verify();
    // The address of a block that has moved away is free, and belongs to the pool.
    // SAFETY: the call is refused.
    let refused = unsafe {
        stamped
            .manager
            .free_device(std::ptr::with_exposed_provenance_mut(holes[1]))
    };
    assert!(
        matches!(refused, Err(Error::DoubleFree { .. })),
        "{refused:?}"
    );
}

/// Only what is missing is made.
#[test]
fn a_growth_takes_what_is_idle_and_makes_the_rest() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    let before = stats(&stamped.manager);
    stamped.add(9 * MIB).unwrap();
    let after = stats(&stamped.manager);
    assert_eq!(after.reserved, before.reserved + 4 * MIB, "{after:?}");
    assert_eq!((after.moves, after.growths), (3, before.growths + 1));
    stamped.verify();
}

/// What work in a stream may still touch stays where it is.
#[test]
fn memory_that_work_may_touch_does_not_move() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let blocks = [(); 3].map(|()| manager.allocate_device_on(2 * MIB, &a).unwrap());
    let gate = Gate::new();
    stall(&a, &gate);
    // SAFETY: the stream orders the work; nobody uses the blocks afterwards.
    unsafe {
        manager.memset(blocks[0], 1, 2 * MIB, &a).unwrap();
        manager.free_device_on(blocks[0], &a).unwrap();
        manager.memset(blocks[2], 1, 2 * MIB, &a).unwrap();
        manager.free_device_on(blocks[2], &a).unwrap();
    }
    for stream in [&a, &b] {
        let large = manager.allocate_device_on(4 * MIB, stream).unwrap();
        assert_eq!(stats(&manager).moves, 0);
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(large, &b).unwrap() };
    }
    gate.open();
    a.synchronize().unwrap();
    assert_sound(&manager);
}

/// The request's own stream is asked: what it has freed moves once it is idle.
#[test]
fn what_an_idle_stream_has_freed_itself_moves() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let stream = Stream::new().unwrap();
    let blocks = [(); 3].map(|()| manager.allocate_device_on(2 * MIB, &stream).unwrap());
    // SAFETY: nobody uses the blocks afterwards.
    unsafe {
        manager.free_device_on(blocks[0], &stream).unwrap();
        manager.free_device_on(blocks[2], &stream).unwrap();
    }
    stream.synchronize().unwrap();
    let large = manager.allocate_device_on(4 * MIB, &stream).unwrap();
    let now = stats(&manager);
    assert_eq!((now.reserved, now.moves), (6 * MIB, 1), "{now:?}");
    // SAFETY: nobody uses the blocks.
    unsafe {
        manager.free_device(large).unwrap();
        manager.free_device(blocks[1]).unwrap();
    }
}

/// Sizes of all kinds, at random, with every byte looked at.
#[test]
fn blocks_keep_their_bytes_while_memory_moves_around_them() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default().device_pool_limit(Some(64 * MIB))) else {
        return;
    };
    let mut stamped = Stamped::new(manager);
    let mut rng = Rng(15);
    for step in 0..250 {
        let size = match rng.below(4) {
            0 => 1 + rng.index(4 * KIB),
            1 => 1 + rng.index(MIB),
            _ => 1 + rng.index(9 * MIB),
        };
        match stamped.add(size) {
            Ok(block) => assert!(block.addr().is_multiple_of(256)),
            Err(error) => assert!(error.is_out_of_memory(), "{error}"),
        }
        let live: Vec<usize> = (0..stamped.blocks.len())
            .filter(|n| stamped.blocks[*n].is_some())
            .collect();
        if live.len() > 8 {
            stamped.free(live[rng.index(live.len())]);
        }
        if step % 10 == 0 {
            stamped.verify();
        }
        if step % 60 == 59 {
            stamped.manager.trim().unwrap();
        }
        assert!(stats(&stamped.manager).reserved <= 64 * MIB);
    }
    let now = stats(&stamped.manager);
    assert!(now.moves > 10, "{now:?}");
    stamped.verify();
}

/// Case B15.
#[test]
fn idle_memory_makes_room_under_the_limit() {
    let _turn = turn();
    let config = || {
        Config::default()
            .device_pool_size(256 * KIB)
            .device_pool_limit(Some(MIB))
    };
    for small in [false, true] {
        let Some(manager) = virtual_memory(config()) else {
            return;
        };
        let first = manager.allocate_device(256).unwrap();
        if small {
            assert!(manager.allocate_device(MIB).unwrap_err().is_out_of_memory());
            manager.allocate_device(MIB - 256 * KIB).unwrap();
        } else {
            // SAFETY: nobody uses the block.
            unsafe { manager.free_device(first).unwrap() };
            manager.allocate_device(MIB).unwrap();
        }
        let now = stats(&manager);
        assert!(now.peak_reserved <= MIB, "{now:?}");
        assert_sound(&manager);
    }
    // The same in chunks: what is idle moves, so that the limit is kept to at every moment.
    let Some(manager) = virtual_memory(Config::default().device_pool_limit(Some(16 * MIB))) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    stamped.add(6 * MIB).unwrap();
    assert!(stamped.add(1).unwrap_err().is_out_of_memory());
    assert_eq!(stats(&stamped.manager).peak_reserved, 16 * MIB);
    stamped.verify();
}
