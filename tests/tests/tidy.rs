//! Memory of a pool of virtual memory that has moved is in one piece again when nothing is live, or serves as in the beginning, where
//! that costs little beside the calls that were made. A process of its own: it counts the moves of one device.

mod common;

use memmgr::{Config, DeviceSource, MemoryManager, PoolStats, Stream};
use memmgr_tests::Gate;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::MIB;

/// So many calls must be made for each move; in a pool whose chunks are of one page, half as many.
const CALLS: u64 = 256;
/// A page of a device.
const PAGE: usize = 2 * MIB;

fn stats(manager: &MemoryManager) -> PoolStats {
    manager.stats().device[0].best_fit
}

fn pairs(manager: &MemoryManager, stream: &Stream, calls: u64) {
    for _ in 0..calls {
        drop(manager.device::<u8>(4096, stream).expect("a block"));
    }
}

/// One test at a time: CUDA calls of the process are counted.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool that begins with so many bytes.
fn pool(initial: usize) -> Option<MemoryManager> {
    let config = Config::default()
        .device_source(DeviceSource::Virtual)
        .device_pool_size(initial)
        .device_growth(PAGE);
    let manager = MemoryManager::new(config).expect("a manager");
    if !memmgr::devices().expect("devices")[0].virtual_memory_supported {
        memmgr_tests::skip("tidy", "the device has no virtual memory");
        return None;
    }
    Some(manager)
}

/// 32 blocks, of which every other one goes, and one of twelve times their length, for which memory moves; where they were.
/// Nothing is live afterwards.
fn round(manager: &MemoryManager, stream: &Stream, len: usize) -> Vec<usize> {
    let blocks: Vec<_> = (0..32)
        .map(|_| manager.device::<u8>(len, stream).expect("a block"))
        .collect();
    let mut places: Vec<usize> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
    // Sixteen holes, none of which serves what comes then.
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        match number % 2 {
            0 => kept.push(block),
            _ => gone.push(block),
        }
    }
    drop(gone);
    stream.synchronize().expect("no work");
    let large = manager.device::<u8>(12 * len, stream).expect("a block");
    places.push(large.as_ptr().addr());
    drop((kept, large));
    stream.synchronize().expect("no work");
    places
}

/// A manager whose memory has moved after a round, and of which nothing is live; how many chunks have moved. The pool begins
/// with so many bytes.
fn scattered(stream: &Stream, initial: usize, len: usize) -> Option<(MemoryManager, u64)> {
    let manager = pool(initial)?;
    round(&manager, stream, len);
    let moved = stats(&manager).moves;
    assert!(moved > 0);
    Some((manager, moved))
}

#[test]
fn memory_that_has_moved_is_put_together_when_nothing_is_live() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    // A chunk is at most 1/1024 of the pool: here it has two pages.
    let Some((manager, moved)) = scattered(&stream, 4096 * MIB, 128 * MIB) else {
        return;
    };
    // Too few calls so far: it stays as it is.
    pairs(&manager, &stream, 1);
    assert_eq!(stats(&manager).moves, moved);
    let scattered = stats(&manager);
    assert!(scattered.largest_idle < scattered.reserved, "{scattered:?}");

    pairs(&manager, &stream, CALLS * moved);
    stream.synchronize().expect("no work");
    pairs(&manager, &stream, 2);
    let after = stats(&manager);
    assert!(after.moves > moved, "{after:?}");
    assert_eq!(after.reserved, scattered.reserved);
    // One request gets all of it, and nothing moves for that.
    let moved = after.moves;
    stream.synchronize().expect("no work");
    let all = manager
        .device::<u8>(after.reserved, &stream)
        .expect("all of it");
    let last = stats(&manager);
    assert_eq!((last.moves, last.reserved), (moved, after.reserved));
    drop(all);

    // Nothing has moved since, so nothing is to be done.
    pairs(&manager, &stream, 10 * CALLS);
    assert_eq!(stats(&manager).moves, moved);
}

/// A program that is served as the memory lies finds it so the next time, however many calls were made.
#[test]
fn memory_that_serves_as_it_lies_stays_there() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    let Some((manager, moved)) = scattered(&stream, 4096 * MIB, 128 * MIB) else {
        return;
    };
    let served = |calls: usize| {
        let blocks: Vec<_> = (0..calls)
            .map(|_| manager.device::<u8>(MIB, &stream).expect("a block"))
            .collect();
        drop(blocks);
        stream.synchronize().expect("no work");
    };
    // As many calls as those for which it moved.
    served(33);
    pairs(&manager, &stream, 2 * CALLS * moved);
    stream.synchronize().expect("no work");
    pairs(&manager, &stream, 2);
    assert_eq!(stats(&manager).moves, moved);

    // Until it has to move again.
    round(&manager, &stream, 128 * MIB);
    let again = stats(&manager).moves;
    assert!(again > moved);
    // Fewer calls than those say nothing of them.
    served(32);
    pairs(&manager, &stream, CALLS * again);
    stream.synchronize().expect("no work");
    pairs(&manager, &stream, 2);
    assert!(stats(&manager).moves > again);
    manager.check().expect("the books are sound");
}

/// Chunks of one page stay where they are, and serve the same program in the same way as the first time.
#[test]
fn a_small_pool_begins_anew_when_nothing_is_live() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    let Some(manager) = pool(0) else {
        return;
    };
    let first = round(&manager, &stream, PAGE);
    let before = stats(&manager);
    assert!(before.moves > 0);
    pairs(&manager, &stream, CALLS / 2 * before.moves);
    stream.synchronize().expect("no work");
    // Nothing moves for that.
    let now = stats(&manager);
    assert_eq!((now.moves, now.growths), (before.moves, before.growths));
    assert_eq!(
        (now.idle + now.pending, now.reserved),
        (before.reserved, before.reserved)
    );
    manager.check().expect("the books are sound");

    // A trim that has nothing to give back changes nothing of that.
    assert_eq!(manager.trim_to(before.reserved).expect("a trim"), 0);
    assert_eq!(round(&manager, &stream, PAGE), first);
    let now = stats(&manager);
    assert_eq!(
        (now.growths, now.reserved),
        (before.growths, before.reserved)
    );
    manager.check().expect("the books are sound");
    // What sleeps goes back like everything else.
    pairs(&manager, &stream, CALLS / 2 * now.moves);
    stream.synchronize().expect("no work");
    assert_eq!(manager.trim().expect("a trim"), before.reserved);
    assert_eq!(stats(&manager).reserved, 0);
}

/// In the end all memory is mapped where a program that repeats itself has it, in large pools and in small ones.
#[test]
fn a_program_that_repeats_itself_maps_nothing_in_the_end() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    for (initial, len) in [(0, PAGE), (4096 * MIB, 128 * MIB)] {
        let Some(manager) = pool(initial) else {
            return;
        };
        let mut last = 0;
        for again in 0..12 {
            round(&manager, &stream, len);
            let now = stats(&manager);
            if again == 0 {
                assert!(now.remaps > 0, "{now:?}");
            } else {
                assert!(now.moves > last, "memory has to move each time: {now:?}");
            }
            last = now.moves;
            // A small pool begins anew after more calls than a large one.
            let calls = if initial == 0 {
                CALLS * now.moves
            } else {
                CALLS
            };
            pairs(&manager, &stream, calls);
            stream.synchronize().expect("no work");
        }
        let before = stats(&manager);
        let places = round(&manager, &stream, len);
        pairs(&manager, &stream, CALLS);
        stream.synchronize().expect("no work");
        assert_eq!(round(&manager, &stream, len), places);
        let after = stats(&manager);
        assert!(after.moves > before.moves, "{after:?}");
        assert_eq!(
            (after.remaps, after.reserved),
            (before.remaps, before.reserved)
        );
        manager.check().expect("the books are sound");
        let all = manager.trim().expect("a trim");
        assert_eq!((all, stats(&manager).reserved), (before.reserved, 0));
    }
}

/// Work that holds the memory is asked about once, and not in every call.
#[test]
fn memory_that_work_holds_costs_the_calls_nothing() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    let Some((manager, moved)) = scattered(&stream, 0, PAGE) else {
        return;
    };
    let gate = Gate::new();
    common::stall(&stream, &gate);
    pairs(&manager, &stream, CALLS * moved + 1);
    let before = manager.stats().total_cuda_calls();
    pairs(&manager, &stream, CALLS);
    assert_eq!(manager.stats().total_cuda_calls(), before);
    assert_eq!(stats(&manager).moves, moved);
    gate.open();
    stream.synchronize().expect("the work ends");
}

/// However little has moved, all chunks are looked at: a large pool of pages begins anew after a quarter as many calls as it has.
#[test]
fn many_chunks_are_not_looked_at_often() {
    let _turn = turn();
    let stream = Stream::new().expect("a stream");
    let pages = 1996;
    let Some(manager) = pool(pages * PAGE) else {
        return;
    };
    let block = |pages: usize| {
        manager
            .device::<u8>(pages * PAGE, &stream)
            .expect("a block")
    };
    let [large, hole, wall] = [pages - 6, 1, 1].map(block);
    let first = large.as_ptr().addr();
    drop(hole);
    stream.synchronize().expect("no work");
    // Four pages are left at the end, where the hole's chunk comes.
    let last = block(5);
    let now = stats(&manager);
    assert_eq!((now.moves, now.reserved), (1, pages * PAGE), "{now:?}");
    drop((large, wall, last));
    stream.synchronize().expect("no work");
    // Where nothing sleeps, the shorter of the two spans serves.
    pairs(&manager, &stream, CALLS);
    stream.synchronize().expect("no work");
    assert_ne!(block(1).as_ptr().addr(), first);
    pairs(&manager, &stream, pages as u64 / 4);
    stream.synchronize().expect("no work");
    drop(block(1));
    assert_eq!(block(1).as_ptr().addr(), first);
    manager.check().expect("the books are sound");
}
