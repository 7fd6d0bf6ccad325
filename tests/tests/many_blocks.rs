//! Tens of thousands of live blocks, freed in any order, leave whole segments.

mod common;

use common::{assert_sound, manager};
use memmgr::Stream;
use memmgr_tests::Rng;
use std::ffi::c_void;

const BLOCKS: usize = 65_536;

fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

#[test]
fn device_blocks_freed_in_random_order_leave_one_idle_span_a_segment() {
    let mm = manager();
    let streams: Vec<Stream> = (0..4).map(|_| Stream::new().unwrap()).collect();
    let mut rng = Rng(65_536);
    let mut blocks: Vec<(*mut c_void, usize)> = (0..BLOCKS)
        .map(|i| {
            let size = 1 + rng.below(4096) as usize;
            (mm.allocate_device_on(size, &streams[i % 4]).unwrap(), i % 4)
        })
        .collect();
    let stats = mm.stats().device[0].best_fit;
    assert_eq!(stats.live_blocks, BLOCKS);
    assert_sound(&mm);
    shuffle(&mut blocks, &mut rng);
    for (i, (block, stream)) in blocks.iter().enumerate() {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(*block, &streams[*stream]).unwrap() };
        if i % 4096 == 0 {
            assert_sound(&mm);
        }
    }
    let stats = mm.stats().device[0].best_fit;
    assert_eq!((stats.live_blocks, stats.in_use), (0, 0));
    assert_eq!(stats.idle + stats.pending, stats.reserved);
    // A double free is told, and changes nothing.
    // SAFETY: the block is free, which is refused.
    assert!(unsafe { mm.free_device(blocks[7].0) }.is_err());
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    drop(streams);
    // One request that only the whole of a segment can serve looks for what has completed.
    let largest = mm.allocate_device(stats.reserved).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(largest).unwrap() };
    let stats = mm.stats().device[0].best_fit;
    assert_eq!(stats.pending, 0, "{stats:?}");
    assert_eq!(stats.free_spans, stats.segments, "{stats:?}");
    assert_eq!(stats.idle, stats.reserved);
    assert_sound(&mm);
    mm.shutdown().unwrap();
    let stats = mm.stats().device[0].best_fit;
    assert_eq!(
        (stats.reserved, stats.segments, stats.free_spans),
        (0, 0, 0)
    );
    assert_sound(&mm);
}

#[test]
fn pinned_blocks_freed_in_random_order_leave_one_idle_span_a_segment() {
    let mm = manager();
    let mut rng = Rng(4);
    let mut blocks: Vec<*mut c_void> = (0..BLOCKS)
        .map(|_| mm.allocate_pinned(1 + rng.below(2048) as usize).unwrap())
        .collect();
    assert_eq!(mm.stats().pinned.live_blocks, BLOCKS);
    shuffle(&mut blocks, &mut rng);
    for (i, block) in blocks.iter().enumerate() {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_pinned(*block).unwrap() };
        if i % 4096 == 0 {
            assert_sound(&mm);
        }
    }
    let stats = mm.stats().pinned;
    assert_eq!((stats.live_blocks, stats.in_use, stats.pending), (0, 0, 0));
    assert_eq!(stats.free_spans, stats.segments);
    assert_eq!(stats.idle, stats.reserved);
    mm.shutdown().unwrap();
    assert_eq!(mm.stats().pinned.reserved, 0);
    assert_sound(&mm);
}
