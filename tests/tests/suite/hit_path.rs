//! A request that the free list serves makes no CUDA call, and neither does its free.

use crate::common::{KIB, MIB, assert_sound, config, manager, manager_of};
use crate::rig;
use memmgr::Stream;
use memmgr_tests::Rng;

const PAIRS: usize = 10_000;

#[test]
fn ten_thousand_pairs_on_one_stream_make_no_cuda_call() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let warm = mm.allocate_device_on(MIB, &stream).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(warm, &stream).unwrap() };
    let ((), calls) = rig::calls_of(|| {
        for i in 0..PAIRS {
            let block = mm.allocate_device_on(1 + (i * 977) % MIB, &stream).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &stream).unwrap() };
        }
    });
    assert_eq!(calls, 0);
    let stats = mm.stats().device[0].best_fit;
    assert_eq!((stats.growths, stats.waits, stats.in_use), (1, 0, 0));
    mm.shutdown().unwrap();
}

#[test]
fn ten_thousand_pairs_on_sixteen_streams_in_turn_make_no_cuda_call() {
    let mm = manager();
    let streams: Vec<Stream> = (0..16).map(|_| Stream::new().unwrap()).collect();
    let mut live = Vec::new();
    let round = |live: &mut Vec<(usize, *mut std::ffi::c_void)>, rng: &mut Rng| {
        // Up to four blocks a stream at a time, freed in random order on the stream that has them.
        if live.len() >= 64 || (!live.is_empty() && rng.below(2) == 0) {
            let at = rng.below(live.len() as u64) as usize;
            let (stream, block) = live.swap_remove(at);
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &streams[stream]).unwrap() };
        } else {
            let stream = rng.below(16) as usize;
            let block = mm.allocate_device_on(64 * KIB, &streams[stream]).unwrap();
            live.push((stream, block));
        }
    };
    // One segment is far more than 64 blocks need.
    let mut rng = Rng(16);
    for _ in 0..256 {
        round(&mut live, &mut rng);
    }
    let ((), calls) = rig::calls_of(|| {
        for _ in 0..2 * PAIRS {
            round(&mut live, &mut rng);
        }
    });
    let stats = mm.stats().device[0].best_fit;
    assert_eq!(calls, 0, "{stats:?}");
    for (stream, block) in live {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &streams[stream]).unwrap() };
    }
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn sixteen_streams_that_keep_their_own_blocks_make_no_cuda_call() {
    let mm = manager();
    let streams: Vec<Stream> = (0..16).map(|_| Stream::new().unwrap()).collect();
    let pair = |stream: &Stream| {
        let block = mm.allocate_device_on(MIB, stream).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, stream).unwrap() };
    };
    streams.iter().for_each(pair);
    let ((), calls) = rig::calls_of(|| {
        for i in 0..PAIRS {
            pair(&streams[i % 16]);
        }
    });
    assert_eq!(calls, 0, "{:?}", mm.stats().device[0].best_fit);
    mm.shutdown().unwrap();
}

#[test]
fn guards_make_no_cuda_call_either() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    drop(mm.device::<u8>(MIB, &stream).unwrap());
    drop(mm.pinned::<u8>(MIB).unwrap());
    let ((), calls) = rig::calls_of(|| {
        for _ in 0..PAIRS {
            drop(mm.device::<u8>(MIB, &stream).unwrap());
            let mut host = mm.pinned::<u8>(KIB).unwrap();
            host.as_mut_slice().unwrap()[0] = 1;
        }
    });
    assert_eq!(calls, 0);
    mm.shutdown().unwrap();
}

#[test]
fn without_a_stream_an_allocation_asks_for_the_device_and_a_free_asks_nothing() {
    let mm = manager();
    let warm = mm.allocate_device(MIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(warm).unwrap() };
    for _ in 0..PAIRS {
        let (block, calls) = rig::calls_of(|| mm.allocate_device(MIB).unwrap());
        assert!(calls <= 1, "{calls}");
        // SAFETY: nobody uses the block.
        let ((), calls) = rig::calls_of(|| unsafe { mm.free_device(block).unwrap() });
        assert_eq!(calls, 0);
        let (block, calls) = rig::calls_of(|| mm.allocate_device_at(0, MIB).unwrap());
        assert_eq!(calls, 0, "the device was named");
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(block).unwrap() };
    }
    mm.shutdown().unwrap();
}

#[test]
fn pinned_pairs_make_no_cuda_call() {
    let mm = manager();
    let warm = mm.allocate_pinned(MIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(warm).unwrap() };
    let ((), calls) = rig::calls_of(|| {
        for i in 0..PAIRS {
            let block = mm.allocate_pinned(1 + (i * 977) % MIB).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { mm.free_pinned(block).unwrap() };
        }
    });
    assert_eq!(calls, 0);
    mm.shutdown().unwrap();
}

#[test]
fn looking_at_the_figures_makes_no_cuda_call() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let block = mm.allocate_device_on(MIB, &stream).unwrap();
    let ((), calls) = rig::calls_of(|| {
        for _ in 0..100 {
            let _ = mm.stats();
            mm.check().unwrap();
            mm.reset_peak();
            let _ = mm.take_error();
            let _ = (stream.id(), stream.device(), stream.clone());
        }
    });
    assert_eq!(calls, 0);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(block, &stream).unwrap() };
    mm.shutdown().unwrap();
}

/// After a `shutdown` with live blocks the pool is as quick as before once it has grown again.
#[test]
fn a_block_that_outlives_a_shutdown_does_not_make_every_later_request_slow() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let kept = mm.allocate_device_on(MIB, &stream).unwrap();
    mm.shutdown().unwrap();
    let warm = mm.allocate_device_on(MIB, &stream).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(warm, &stream).unwrap() };
    let ((), calls) = rig::calls_of(|| {
        for _ in 0..1000 {
            let block = mm.allocate_device_on(MIB, &stream).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &stream).unwrap() };
        }
    });
    assert_eq!(calls, 0);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(kept, &stream).unwrap() };
    mm.shutdown().unwrap();
    assert_eq!(mm.stats().device[0].best_fit.reserved, 0);
}

/// What others have freed is nobody's once they are idle: each of them is asked two questions, and the thread's capture mode changes
/// once for all of them.
#[test]
fn a_request_that_needs_what_idle_streams_have_freed_asks_each_of_them_once() {
    let mm = manager_of(config(), 24 * MIB);
    let streams: Vec<Stream> = (0..4).map(|_| Stream::new().unwrap()).collect();
    let fill = || {
        let taken = |stream| mm.allocate_device_on(4 * MIB, stream).unwrap();
        let pair = |stream| [taken(stream), taken(stream)];
        let filled: Vec<_> = streams.iter().take(3).map(pair).collect();
        for (blocks, stream) in filled.iter().zip(&streams) {
            for block in blocks {
                // SAFETY: nobody uses the block.
                unsafe { mm.free_device_on(*block, stream).unwrap() };
            }
        }
    };
    for _ in 0..3 {
        fill();
        let before = memmgr::cuda_calls_on_this_thread();
        // The streams' neighbours in one piece, which none of them has alone.
        let block = mm.allocate_device_on(24 * MIB, &streams[3]).unwrap();
        let calls = memmgr::cuda_calls_on_this_thread() - before;
        // The context, the mode there and back, and whether each stream is captured and idle.
        assert!(calls <= 1 + 2 + 3 * 2, "{calls} calls");
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &streams[3]).unwrap() };
    }
    let stats = mm.stats().device[0].best_fit;
    assert_eq!((stats.waits, stats.steals, stats.in_use), (0, 0, 0));
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

/// Whoever has only the raw handle asks whether it is captured and what its id is, as long as somebody else has a handle of it.
#[test]
fn a_raw_handle_of_a_stream_that_is_known_costs_two_queries_a_call() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let pair = || {
        // SAFETY: the stream outlives the handle.
        let borrowed = unsafe { Stream::borrow_raw(stream.as_raw()) }.unwrap();
        assert_eq!(borrowed.id(), stream.id());
        let block = mm.allocate_device_on(64 * KIB, &borrowed).unwrap();
        drop(borrowed);
        // SAFETY: the stream outlives the handle.
        let borrowed = unsafe { Stream::borrow_raw(stream.as_raw()) }.unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &borrowed).unwrap() };
    };
    pair();
    // Without the looks at the last error that go with them, which the simulated runtime counts too.
    let before = memmgr::cuda_calls_on_this_thread();
    (0..100).for_each(|_| pair());
    assert_eq!(memmgr::cuda_calls_on_this_thread() - before, 100 * 2 * 2);
    drop(stream);
    mm.shutdown().unwrap();
}
