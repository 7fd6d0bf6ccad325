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
fn a_block_that_was_handed_out_last_does_not_rest_while_it_is_in_the_front() {
    let (manager, stream) = contended();
    // What was freed is the stream's own memory, of which blocks rest.
    for by_another in [false, true] {
        use_it();
        let block = manager.allocate_device_on(4096, &stream).unwrap();
        free(&manager, block, &stream).unwrap();
        let again = || free(&manager, block, &stream);
        let second = if by_another {
            std::thread::scope(|scope| {
                let address = block.expose_provenance();
                let (manager, stream) = (&manager, &stream);
                let again = move || {
                    let block = std::ptr::with_exposed_provenance_mut(address);
                    free(manager, block, stream)
                };
                scope.spawn(again).join().unwrap()
            })
        } else {
            again()
        };
        assert!(matches!(second, Err(Error::DoubleFree { .. })));
        let (one, other) = (
            manager.allocate_device_on(4096, &stream).unwrap(),
            manager.allocate_device_on(4096, &stream).unwrap(),
        );
        assert_ne!(one, other);
        for block in [one, other] {
            free(&manager, block, &stream).unwrap();
        }
        manager.check().unwrap();
    }
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

/// Does some work in a thread whose lane is not that of the calling one.
fn in_another_lane(work: &(impl Fn() + Sync)) {
    fn below(lanes: u32, mine: u32, work: &(impl Fn() + Sync)) {
        std::thread::scope(|scope| {
            // One with this lane keeps its number until another has done the work.
            scope.spawn(|| match thread::number() % lanes == mine {
                true => below(lanes, mine, work),
                false => work(),
            });
        });
    }
    let lanes = Parts::new().lanes.len() as u32;
    below(lanes, thread::number() % lanes, work);
}

/// Another thread takes the lock; or the calling one would soon have its bias, and leave the front.
fn let_another_in(manager: &MemoryManager, address: usize) {
    let look = || {
        let block = std::ptr::with_exposed_provenance(address);
        manager.device_segment(block).is_some()
    };
    assert!(std::thread::scope(|scope| {
        scope.spawn(look).join().unwrap()
    }));
}

#[test]
fn what_gathers_in_the_bins_of_another_thread_is_taken_over_at_once() {
    let (manager, stream) = contended();
    let allocate = |count: usize, size| -> Vec<usize> {
        let one = |_| {
            use_it();
            manager
                .allocate_device_on(size, &stream)
                .unwrap()
                .expose_provenance()
        };
        (0..count).map(one).collect()
    };
    let give = |blocks: &[usize]| {
        in_another_lane(&|| {
            for address in blocks {
                use_it();
                let block = std::ptr::with_exposed_provenance_mut(*address);
                free(&manager, block, &stream).unwrap();
            }
        });
    };
    let surplus = books::SURPLUS as usize;
    // So few the other thread may need itself.
    let few = allocate(surplus - 1, 4096);
    give(&few);
    let own = allocate(surplus - 1, 4096);
    assert!(own.iter().all(|block| !few.contains(block)));
    let_another_in(&manager, own[0]);
    let many = allocate(surplus + 4, 8192);
    give(&many);
    let before = manager.contention(0).unwrap();
    assert_eq!((before.fetched, before.refused), (0, 0));
    // A thread that has looked for nothing often does not look every time.
    let mut others = Vec::new();
    let first = loop {
        let block = allocate(1, 8192);
        if manager.contention(0).unwrap().fetched == 1 {
            break block;
        }
        others.extend(block);
        assert!(others.len() < 8, "it has not looked");
    };
    let mut again = [first, allocate(surplus + 3, 8192)].concat();
    let after = manager.contention(0).unwrap();
    let missed = after.missed - before.missed;
    assert_eq!((missed, after.fetched), (1 + others.len() as u64, 1));
    assert_eq!(after.from_front - before.from_front, again.len() as u64);
    again.sort_unstable();
    let mut many = many;
    many.sort_unstable();
    assert_eq!(again, many);
    let figures = manager.stats().device[0].best_fit;
    assert_eq!(figures.live_blocks, 2 * surplus + 3 + others.len());
    manager.check().unwrap();
    give(&own);
    give(&again);
    give(&others);
    assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
}

#[test]
fn a_bin_that_is_full_gives_half_of_its_blocks_back() {
    let (manager, stream) = contended();
    let depth = bins::DEPTH as usize;
    let blocks: Vec<_> = (0..=depth)
        .map(|_| {
            use_it();
            let block = manager.allocate_device_on(4096, &stream).unwrap();
            let address = block.expose_provenance();
            // Another thread takes the lock, or this one would soon have its bias, and leave the front.
            let look = || {
                let block = std::ptr::with_exposed_provenance(address);
                manager.device_segment(block).is_some()
            };
            assert!(std::thread::scope(|scope| scope
                .spawn(look)
                .join()
                .unwrap()));
            block
        })
        .collect();
    let locked = || manager.contention(0).unwrap().locked;
    for (number, block) in blocks.iter().enumerate() {
        use_it();
        let before = locked();
        free(&manager, *block, &stream).unwrap();
        assert_eq!(locked() > before, number == depth, "block {number}");
    }
    let held = manager.contention(0).unwrap().from_front;
    for _ in 0..depth / 2 {
        use_it();
        manager.allocate_device_on(4096, &stream).unwrap();
    }
    let after = manager.contention(0).unwrap();
    assert_eq!(after.from_front - held, depth as u64 / 2);
    manager.check().unwrap();
}

#[test]
fn a_guards_block_is_not_put_into_a_bin_by_its_pointer() {
    let (manager, stream) = contended();
    use_it();
    let guard = manager.device::<u8>(4096, &stream).unwrap();
    let address = guard.as_ptr();
    drop(guard);
    // From the bin, into which the guard has put it.
    let raw = manager.allocate_device_on(4096, &stream).unwrap();
    assert_eq!(raw, address);
    free(&manager, raw, &stream).unwrap();
    let guard = manager.device::<u8>(4096, &stream).unwrap();
    assert_eq!(guard.as_ptr(), address);
    let refused = free(&manager, address, &stream).unwrap_err();
    assert!(
        refused.to_string().contains("belongs to a guard"),
        "{refused}"
    );
    drop(guard);
    assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
    manager.check().unwrap();
}
