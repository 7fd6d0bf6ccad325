//! Which block serves a request: the smallest that is large enough.

use crate::common::{
    KIB, MIB, assert_sound, bytes_mut,
    checks::{Kind, OWN_POOLS, without_calls},
    manager, manager_of_segments,
};
use memmgr::{DeviceAllocatorMode, Stream};
use memmgr_tests::Rng;
use std::{collections::BTreeMap, ffi::c_void};

/// How often this thread asked the simulated driver for a segment; on a GPU the pool's own counter says it.
fn segments_asked_for(kind: Kind, manager: &memmgr::MemoryManager) -> u64 {
    #[cfg(feature = "sim")]
    {
        let _ = (kind, manager);
        ["cudaMalloc", "cudaHostAlloc", "cuMemCreate"]
            .map(cudart_sim::thread_calls_of)
            .iter()
            .sum()
    }
    #[cfg(not(feature = "sim"))]
    kind.stats(manager).growths
}

/// Case B06.
#[test]
fn a_block_of_exactly_the_size_serves_the_request() {
    for kind in OWN_POOLS {
        let manager = manager();
        kind.set_pool_limit(&manager, MIB);
        let before = segments_asked_for(kind, &manager);
        let p = kind.allocate(&manager, MIB).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, p).unwrap() };
        let q = kind.allocate(&manager, MIB).unwrap();
        assert_eq!(q, p, "{kind:?}");
        assert_eq!(segments_asked_for(kind, &manager) - before, 1, "{kind:?}");
        let stats = kind.stats(&manager);
        assert_eq!((stats.growths, stats.reserved), (1, MIB), "{kind:?}");
        assert_eq!((stats.free_spans, stats.splits), (0, 0), "{kind:?}");
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, q).unwrap() };
        assert_sound(&manager);
    }
}

/// Case B06: among free blocks of 512, 768 and 1024 KiB, 768 KiB take the second.
#[test]
fn the_smallest_block_that_is_large_enough_is_taken_and_no_other_is_split() {
    const SIZES: [usize; 3] = [512 * KIB, 768 * KIB, 1024 * KIB];
    const WALL: usize = 256;
    for kind in OWN_POOLS {
        // In which order the three lie, and whether they are freed and taken in the order of a stream.
        for (order, streamed) in [
            ([0, 1, 2], false),
            ([2, 1, 0], false),
            ([1, 2, 0], true),
            ([2, 0, 1], true),
        ] {
            if streamed && kind == Kind::Pinned {
                continue;
            }
            let what = format!("{kind:?} {order:?} streamed: {streamed}");
            let manager = manager();
            let stream = Stream::new().unwrap();
            let total = SIZES.iter().sum::<usize>() + 2 * WALL;
            kind.set_pool_size(&manager, total).unwrap();
            kind.set_pool_limit(&manager, total);
            let mut blocks = [std::ptr::null_mut::<c_void>(); 3];
            let mut walls = Vec::new();
            for (place, index) in order.into_iter().enumerate() {
                blocks[index] = kind.allocate_on(&manager, SIZES[index], &stream).unwrap();
                if place < 2 {
                    walls.push(kind.allocate(&manager, WALL).unwrap());
                }
            }
            assert_eq!(kind.stats(&manager).free_spans, 0, "{what}: all is in use");
            for block in [blocks[2], blocks[0], blocks[1]] {
                // SAFETY: nobody uses the block.
                unsafe {
                    if streamed {
                        kind.free_on(&manager, block, &stream).unwrap();
                    } else {
                        kind.free(&manager, block).unwrap();
                    }
                }
            }
            let before = kind.stats(&manager);
            assert_eq!(before.free_spans, 3, "{what}");
            let taken = without_calls("a hit", || {
                kind.allocate_on(&manager, SIZES[1], &stream).unwrap()
            });
            assert_eq!(taken, blocks[1], "{what}");
            let after = kind.stats(&manager);
            assert_eq!(
                (after.free_spans, after.splits),
                (2, before.splits),
                "{what}"
            );
            // 500 KiB, and then the rest of it, come from the smallest again.
            let part = kind.allocate_on(&manager, 500 * KIB, &stream).unwrap();
            assert_eq!(part, blocks[0], "{what}");
            let rest = kind.allocate_on(&manager, 12 * KIB, &stream).unwrap();
            assert_eq!(rest.addr(), part.addr() + 500 * KIB, "{what}");
            let whole = kind.allocate_on(&manager, SIZES[2], &stream).unwrap();
            assert_eq!(whole, blocks[2], "{what}");
            assert_eq!(kind.stats(&manager).free_spans, 0, "{what}");
            assert_eq!(kind.stats(&manager).growths, 1, "{what}");
            assert_sound(&manager);
            for block in [taken, part, rest, whole].into_iter().chain(walls) {
                // SAFETY: nobody uses the block.
                unsafe { kind.free(&manager, block).unwrap() };
            }
            // All of it has become one idle block again, or it could not go back.
            assert_eq!(manager.shutdown().unwrap().released, total, "{what}");
            assert_sound(&manager);
        }
    }
}

/// Case B11.
#[test]
fn a_free_block_that_is_too_small_is_not_given_out() {
    for kind in OWN_POOLS {
        // A pool of one piece would lengthen the free block.
        let manager = manager_of_segments();
        kind.set_pool_size(&manager, 150 * KIB).unwrap();
        let small = kind.allocate(&manager, 150 * KIB).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, small).unwrap() };
        // Both sizes lie between the same powers of two.
        let r = kind.allocate(&manager, 200 * KIB).unwrap();
        assert!(
            r.addr() + 200 * KIB <= small.addr() || small.addr() + 150 * KIB <= r.addr(),
            "{kind:?}: {r:p} lies in the block of 150 KiB at {small:p}"
        );
        assert_eq!(kind.stats(&manager).growths, 2, "{kind:?}");
        let s = kind.allocate(&manager, 120 * KIB).unwrap();
        assert_eq!(s, small, "{kind:?}: the best fit");
        assert_sound(&manager);
        // SAFETY: nobody uses the blocks.
        unsafe {
            kind.free(&manager, r).unwrap();
            kind.free(&manager, s).unwrap();
        }
    }
}

/// Case B11: every block is as long as asked for, its last byte can be written, and nobody else writes it.
#[test]
fn a_hundred_thousand_pinned_blocks_are_as_long_as_asked_and_belong_to_one_owner() {
    let manager = manager();
    let mut rng = Rng(11);
    let mut live: BTreeMap<usize, (usize, u8)> = BTreeMap::new();
    let mut addresses: Vec<usize> = Vec::new();
    let mut rounded = 0;
    let ends = |start: usize, len: usize| {
        // SAFETY: the block is live and has `len` bytes, which nobody else uses.
        let block = unsafe { bytes_mut(std::ptr::with_exposed_provenance_mut(start), len) };
        [0, len - 1].map(|at| &raw mut block[at])
    };
    for step in 0..100_000u32 {
        if addresses.len() < 48 && rng.below(100) < 55 || addresses.is_empty() {
            let size = 1 + rng.below(MIB as u64) as usize;
            let start = manager.allocate_pinned(size).unwrap().expose_provenance();
            let before = live.range(..=start).next_back();
            let after = live.range(start..).next();
            assert!(
                before.is_none_or(|(at, (len, _))| at + len <= start)
                    && after.is_none_or(|(at, _)| start + size <= *at),
                "step {step}: {size} bytes at {start:#x} overlap a live block"
            );
            let tag = step as u8;
            for byte in ends(start, size) {
                // SAFETY: the byte lies in the block.
                unsafe { byte.write(tag) };
            }
            live.insert(start, (size, tag));
            addresses.push(start);
            rounded += size.next_multiple_of(256);
        } else {
            let start = addresses.swap_remove(rng.below(addresses.len() as u64) as usize);
            let (size, tag) = live.remove(&start).unwrap();
            for byte in ends(start, size) {
                // SAFETY: the byte lies in the block.
                let found = unsafe { byte.read() };
                assert_eq!(found, tag, "step {step}: {size} at {start:#x}");
            }
            // SAFETY: nobody uses the block.
            unsafe {
                manager
                    .free_pinned(std::ptr::with_exposed_provenance_mut(start))
                    .unwrap();
            }
            rounded -= size.next_multiple_of(256);
        }
        assert_eq!(manager.stats().pinned.in_use, rounded, "step {step}");
        if step % 1000 == 0 {
            assert_sound(&manager);
        }
    }
    let stats = manager.stats().pinned;
    assert_eq!(stats.live_blocks, live.len());
    assert_eq!(stats.in_use + stats.idle + stats.pending, stats.reserved);
    for start in addresses {
        // SAFETY: nobody uses the block.
        unsafe {
            manager
                .free_pinned(std::ptr::with_exposed_provenance_mut(start))
                .unwrap();
        }
    }
    assert_sound(&manager);
    let stats = manager.stats().pinned;
    assert_eq!((stats.in_use, stats.idle), (0, stats.reserved));
    assert_eq!(
        stats.free_spans, stats.segments,
        "no two neighbours are free"
    );
}

/// The same promise in the order of a stream: what it has freed itself counts like idle memory, smallest first.
#[test]
fn memory_that_the_stream_has_freed_is_judged_together_with_idle_memory() {
    let kind = Kind::Device(DeviceAllocatorMode::BestFitPool);
    let manager = manager();
    let stream = Stream::new().unwrap();
    let total = 3 * 64 * KIB + 512;
    manager.set_device_pool_size(total).unwrap();
    let mut layout = Vec::new();
    for size in [64 * KIB, 256, 48 * KIB, 256, 80 * KIB] {
        layout.push((manager.allocate_device_on(size, &stream).unwrap(), size));
    }
    assert_eq!(kind.stats(&manager).free_spans, 0);
    // SAFETY: nobody uses the blocks.
    unsafe {
        manager.free_device(layout[0].0).unwrap();
        manager.free_device_on(layout[2].0, &stream).unwrap();
        manager.free_device(layout[4].0).unwrap();
    }
    for (size, wanted) in [(48 * KIB, 2), (60 * KIB, 0), (80 * KIB, 4)] {
        let block = without_calls("a hit", || {
            manager.allocate_device_on(size, &stream).unwrap()
        });
        assert_eq!(block, layout[wanted].0, "{size} bytes");
    }
    assert_sound(&manager);
}
