//! The front in a pool and in a manager, by one thread: what goes in comes back, is counted, and is found when it is freed twice.

use super::*;
use crate::{
    Config, Error, MemoryManager, Reuse, Stream,
    pool::{PoolConfig, observer::Observed, segment::Source},
    stream::handle_of,
};

const MIB: usize = 1 << 20;

fn manager() -> MemoryManager {
    let config = Config {
        device_pool_size: 1024 * MIB,
        ..Config::default()
    };
    MemoryManager::new(config).unwrap()
}

/// A manager whose pool has a front, and a stream.
fn contended() -> (MemoryManager, Stream) {
    let (manager, stream) = (manager(), Stream::new().unwrap());
    let first = manager.allocate_device_on(1, &stream).unwrap();
    // SAFETY: the block is live, and nobody uses it.
    unsafe { manager.free_device_on(first, &stream) }.unwrap();
    use_it();
    (manager, stream)
}

fn free(
    manager: &MemoryManager,
    block: *mut std::ffi::c_void,
    stream: &Stream,
) -> Result<(), Error> {
    // SAFETY: nobody uses the memory; whether the block is live is what the manager is asked.
    unsafe { manager.free_device_on(block, stream) }
}

#[test]
fn a_block_comes_back_from_the_bin_and_is_counted() {
    let (manager, stream) = contended();
    let before = manager.stats().device[0].best_fit;
    let first = manager.allocate_device_on(4096, &stream).unwrap();
    for _ in 0..100 {
        free(&manager, first, &stream).unwrap();
        assert_eq!(manager.allocate_device_on(4000, &stream).unwrap(), first);
    }
    let live = manager.stats().device[0].best_fit;
    assert_eq!(live.in_use - before.in_use, 4096);
    assert_eq!(live.internal_waste - before.internal_waste, 96);
    assert_eq!(live.allocations - before.allocations, 101);
    assert_eq!(live.frees - before.frees, 100);
    assert_eq!(live.live_blocks - before.live_blocks, 1);
    free(&manager, first, &stream).unwrap();
    let after = manager.stats().device[0].best_fit;
    assert_eq!(
        (after.in_use, after.live_blocks),
        (before.in_use, before.live_blocks)
    );
    assert_eq!(
        (after.allocations, after.frees),
        (live.allocations, live.frees + 1)
    );
}

#[test]
fn a_second_free_is_found_while_the_block_is_in_a_bin() {
    let (manager, stream) = contended();
    let block = manager.allocate_device_on(4096, &stream).unwrap();
    free(&manager, block, &stream).unwrap();
    assert!(matches!(
        free(&manager, block, &stream),
        Err(Error::DoubleFree { .. })
    ));
    let inside = block.wrapping_byte_add(256);
    assert!(free(&manager, inside, &stream).is_err());
    let again = manager.allocate_device_on(4096, &stream).unwrap();
    free(&manager, again, &stream).unwrap();
    assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
}

#[test]
fn another_stream_or_none_or_a_recorded_use_takes_a_block_out_of_the_front() {
    let (manager, stream) = contended();
    let other = Stream::new().unwrap();
    let host = manager.allocate_pinned(4096).unwrap();
    for way in 0..3 {
        use_it();
        let block = manager.allocate_device_on(4096, &stream).unwrap();
        match way {
            0 => free(&manager, block, &other).unwrap(),
            // SAFETY: the block is live, and nobody uses it.
            1 => unsafe { manager.free_device(block) }.unwrap(),
            _ => {
                // SAFETY: both have 4096 bytes until the copy has run.
                unsafe { manager.copy_to_host_async(host, block, 4096, &stream) }.unwrap();
                free(&manager, block, &stream).unwrap();
            }
        }
        let number = way + 1;
        assert!(
            matches!(
                free(&manager, block, &stream),
                Err(Error::DoubleFree { .. })
            ),
            "way {number}"
        );
    }
    stream.synchronize().unwrap();
    assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
}

#[test]
fn a_name_takes_a_block_out_of_the_front_and_goes_with_it() {
    let (manager, stream) = contended();
    let name = || manager.live_blocks().pop().and_then(|block| block.name);
    for named in ["first", "second"] {
        use_it();
        let block = manager.allocate_device_on(4096, &stream).unwrap();
        free(&manager, block, &stream).unwrap();
        assert_eq!(manager.allocate_device_on(4096, &stream).unwrap(), block);
        assert_eq!(name(), None);
        manager.name_block(block, named).unwrap();
        assert_eq!(name().as_deref(), Some(named));
        free(&manager, block, &stream).unwrap();
        assert!(manager.live_blocks().is_empty());
    }
    manager.check().unwrap();
}

#[test]
fn ranges_are_checked_against_what_was_asked_for_last() {
    let (manager, stream) = contended();
    let first = manager.allocate_device_on(4096, &stream).unwrap();
    free(&manager, first, &stream).unwrap();
    let block = manager.allocate_device_on(3900, &stream).unwrap();
    assert_eq!(block, first);
    // SAFETY: refused, as 4096 bytes run past the end of what was asked for.
    assert!(unsafe { manager.memset(block, 1, 4096, &stream) }.is_err());
    // SAFETY: the block has 3900 bytes.
    unsafe { manager.memset(block, 1, 3900, &stream) }.unwrap();
    free(&manager, block, &stream).unwrap();
}

#[test]
fn what_the_bins_hold_is_bounded_and_given_back_before_the_pool_grows() {
    let stream = Stream::new().unwrap();
    let on = handle_of(&stream);
    let reserved = 256 * MIB;
    let config = PoolConfig {
        initial: reserved,
        limit: None,
        limit_share: None,
        growth: 0,
        reuse: Reuse::default(),
    };
    let pool = Pool::new(Source::malloc(0), config, Observed::default());
    let allocate = |size| {
        use_it();
        pool.allocate(size, Some(on), true).unwrap()
    };
    let free = |block| {
        use_it();
        pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
    };
    // This thread alone would soon have the lock's bias, and leave the front.
    pool.state.lock().competed = u32::MAX;
    free(allocate(64 << 10));
    let blocks: Vec<usize> = (0..reserved / (64 << 10))
        .map(|_| allocate(64 << 10))
        .collect();
    blocks.into_iter().for_each(free);
    let held: usize = (pool.front.parts.get().unwrap().lanes.iter())
        .map(|lane| lane.held.bytes())
        .sum();
    assert!(held > 0 && held <= reserved / SHARE, "{held} of {reserved}");
    // All of it in one block: nothing may be missing.
    free(allocate(reserved));
    let stats = pool.stats();
    assert_eq!(
        (stats.reserved, stats.growths, stats.in_use),
        (reserved, 1, 0)
    );
    pool.check().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(pool.trim_to(0).unwrap(), reserved);
}

#[test]
fn after_a_shutdown_nothing_stays_in_the_front() {
    let (manager, stream) = contended();
    let kept = manager.allocate_device_on(4096, &stream).unwrap();
    let freed = manager.allocate_device_on(8192, &stream).unwrap();
    free(&manager, freed, &stream).unwrap();
    let report = manager.shutdown().unwrap();
    assert_eq!(report.live.len(), 1);
    assert_eq!(report.live[0].size, 4096);
    use_it();
    free(&manager, kept, &stream).unwrap();
    stream.synchronize().unwrap();
    manager.trim().unwrap();
    assert_eq!(manager.stats().device[0].best_fit.reserved, 0);
}
