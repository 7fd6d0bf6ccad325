//! Promises of the pools that a review of their books tried to break: marks of streams that have ended, addresses inside pinned
//! blocks, and what `check` says.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, stall};
use memmgr::{Config, DeviceSource, MemoryManager, Stream};
use memmgr_tests::{Gate, Rng};
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

/// In a quiet moment every figure is exact, whichever way the requests and frees took.
#[test]
fn every_figure_is_exact_in_a_quiet_moment() {
    // (A gap is a block, too, but no figure of its own.)
    let config = Config::default()
        .device_source(DeviceSource::Malloc)
        .device_pool_size(2 * MIB)
        .device_pool_limit(Some(2 * MIB));
    let mm = &MemoryManager::new(config).unwrap();
    let streams: Vec<Stream> = (0..3).map(|_| Stream::new().unwrap()).collect();
    let mut random = Rng(0x5eed);
    let (mut live, mut in_use, mut peak) = (Vec::new(), 0, 0);
    let (mut allocations, mut frees, mut failures) = (0, 0, 0);
    for turn in 0..20_000 {
        let on = &streams[random.index(streams.len())];
        if live.is_empty() || random.index(9) < 5 {
            let size = 256 * (1 + random.index(200));
            let block = match random.index(4) {
                0 => mm.allocate_device(size),
                _ => mm.allocate_device_on(size, on),
            };
            match block {
                Ok(block) => {
                    live.push((block, size));
                    allocations += 1;
                    in_use += size;
                    peak = peak.max(in_use);
                }
                Err(_) => failures += 1,
            }
        } else {
            let (block, size) = live.swap_remove(random.index(live.len()));
            // SAFETY: the block is ours, and nothing uses it.
            unsafe {
                match random.index(4) {
                    0 => mm.free_device(block).unwrap(),
                    _ => mm.free_device_on(block, on).unwrap(),
                }
                assert!(mm.free_device(block).is_err(), "a second free");
                assert!(mm.free_device_on(block, on).is_err(), "a second free");
            }
            frees += 1;
            in_use -= size;
        }
        if turn % 50 == 0 {
            assert_sound(mm);
        }
        let pool = mm.stats().device[0].best_fit;
        assert_eq!(
            (pool.allocations, pool.frees, pool.failures),
            (allocations, frees, failures)
        );
        assert_eq!((pool.in_use, pool.peak_in_use), (in_use, peak));
        assert_eq!(pool.live_blocks, live.len());
        assert_eq!(pool.idle + pool.pending + pool.in_use, pool.reserved);
        // The only growth is the first; all else was there already.
        assert_eq!((pool.growths, pool.reuses), (1, allocations));
        let blocks = (pool.live_blocks + pool.free_spans) as u64;
        assert_eq!(blocks + pool.merges, pool.splits + pool.segments as u64);
    }
    assert!(failures > 0 && frees > 5000, "{failures}, {frees}");
    for (block, _) in live {
        // SAFETY: as above.
        unsafe { mm.free_device(block) }.unwrap();
    }
    mm.trim().unwrap();
    assert_eq!(mm.stats().device[0].best_fit.reserved, 0);
    assert_sound(mm);
}

/// Copies name any address inside a pinned block, wherever CUDA puts pinned memory.
#[test]
fn parts_of_pinned_blocks_are_found_while_others_come_and_go() {
    let mm = &MemoryManager::new(Config::default()).unwrap();
    let s = Stream::new().unwrap();
    let device = mm.allocate_device_on(MIB, &s).unwrap();
    let mut random = Rng(3);
    let mut live = Vec::new();
    for turn in 0..4000 {
        if live.is_empty() || random.index(2) == 0 {
            let size = 256 * (1 + random.index(300));
            live.push((mm.allocate_pinned(size).unwrap(), size));
        } else {
            let (block, _) = live.swap_remove(random.index(live.len()));
            // SAFETY: the block is ours; copies of it were recorded.
            unsafe { mm.free_pinned(block) }.unwrap();
        }
        let Some(&(block, size)) = live.get(turn % live.len().max(1)) else {
            continue;
        };
        let offset = random.index(size);
        // SAFETY: the byte lies in the block, and the device's block is ours.
        unsafe {
            mm.copy_to_host_async(block.byte_add(offset).cast(), device, size - offset, &s)
                .unwrap();
        }
    }
    s.synchronize().unwrap();
    // SAFETY: nothing uses the blocks any more.
    unsafe {
        mm.free_device(device).unwrap();
        for (block, _) in live {
            mm.free_pinned(block).unwrap();
        }
    }
    assert_sound(mm);
}

/// Streams come and go while their blocks live on, are passed on, and are freed in the order of others: places are used again,
/// and nothing is taken for what was there before.
#[test]
fn places_of_streams_that_ended_are_used_again_and_nothing_is_mixed_up() {
    let mm = &MemoryManager::new(
        Config::default()
            .device_pool_size(16 * MIB)
            .device_pool_limit(Some(16 * MIB)),
    )
    .unwrap();
    let steady = Stream::new().unwrap();
    let mut random = Rng(0xfeed);
    let mut guards = std::collections::VecDeque::new();
    let mut raws = Vec::new();
    for turn in 0..300u32 {
        let stream = Stream::new().unwrap();
        for _ in 0..1 + random.index(3) {
            let guard = mm.device::<u8>(KIB * (1 + random.index(16)), &stream);
            guards.push_back(guard.unwrap());
            let raw = mm.allocate_device_on(KIB * (1 + random.index(16)), &stream);
            let raw = raw.unwrap();
            // SAFETY: the block is ours, and so long; the manager records the use.
            unsafe { mm.memset(raw, turn as u8, KIB, &stream) }.unwrap();
            raws.push(raw);
        }
        for _ in 0..random.index(4).min(raws.len()) {
            let block = raws.swap_remove(random.index(raws.len()));
            // SAFETY: the block is ours; what used it was recorded.
            unsafe {
                match random.index(3) {
                    0 => mm.free_device(block).unwrap(),
                    1 => mm.free_device_on(block, &stream).unwrap(),
                    _ => mm.free_device_on(block, &steady).unwrap(),
                }
            }
        }
        drop(stream);
        while guards.len() > 60 {
            drop(guards.pop_front());
        }
        if turn % 25 == 0 {
            assert_sound(mm);
        }
    }
    drop(guards);
    for block in raws {
        // SAFETY: as above.
        unsafe { mm.free_device(block) }.unwrap();
    }
    assert_sound(mm);
    drop(steady);
    mm.shutdown().unwrap();
    let pool = mm.stats().device[0].best_fit;
    assert_eq!((pool.in_use, pool.pending, pool.reserved), (0, 0, 0));
}
