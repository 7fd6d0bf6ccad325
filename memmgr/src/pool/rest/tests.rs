//! A block that rests is free for everybody but its own next request.

use crate::{
    PerThreadStream, Reuse, Stream,
    error::Error,
    pool::{FreeOn, Pool, PoolConfig, front, observer::Observed, segment::Source},
    stream::handle_of,
};
use proptest::prelude::*;

mod programs;

const MIB: usize = 1 << 20;

fn pool() -> Pool {
    let config = PoolConfig {
        initial: 64 * MIB,
        limit: None,
        limit_share: None,
        growth: 0,
        reuse: Reuse::default(),
    };
    Pool::new(Source::malloc(0), config, Observed::default())
}

/// A pool whose memory is the stream's, but for what is idle behind it, and that can rest.
fn pool_of(stream: &Stream) -> Pool {
    let (pool, on) = (pool(), handle_of(stream));
    for _ in 0..2 {
        let block = pool.allocate(4096, Some(on), true).unwrap();
        pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
    }
    pool
}

fn rests(pool: &Pool) -> bool {
    let mut state = pool.state.lock_and_tell().0;
    let state = &mut *state;
    state.last.rests()
}

#[test]
fn the_same_request_gets_the_block_back_and_is_counted() {
    let stream = Stream::new().unwrap();
    let on = handle_of(&stream);
    let pool = pool_of(&stream);
    let first = pool.allocate(4096, Some(on), true).unwrap();
    let before = pool.stats();
    pool.free(first, FreeOn::Stream(on)).unwrap().unwrap();
    // The statistics have looked at the books, so that block did not rest; the next does.
    for size in [4096, 4000, 4096, 3841] {
        assert_eq!(pool.allocate(size, Some(on), false).unwrap(), first);
        pool.free(first, FreeOn::Allocating).unwrap().unwrap();
        assert!(rests(&pool));
    }
    assert_eq!(pool.allocate(3900, Some(on), true).unwrap(), first);
    let after = pool.stats();
    assert_eq!(after.allocations, before.allocations + 5);
    assert_eq!(after.frees, before.frees + 5);
    assert_eq!(after.in_use, before.in_use);
    assert_eq!(after.internal_waste, before.internal_waste + 196);
    assert_eq!(after.live_blocks, before.live_blocks);
}

#[test]
fn a_second_free_is_found_and_the_first_stays() {
    let stream = Stream::new().unwrap();
    let on = handle_of(&stream);
    let pool = pool_of(&stream);
    let block = pool.allocate(4096, Some(on), true).unwrap();
    pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
    assert!(rests(&pool));
    let again = pool.free(block, FreeOn::Stream(on));
    assert!(matches!(again, Err(Error::DoubleFree { ptr }) if ptr == block));
    assert!(!rests(&pool));
    assert_eq!(pool.stats().in_use, 0);
    pool.check().unwrap();
}

#[test]
fn everybody_else_finds_it_given_back() {
    let (stream, other) = (Stream::new().unwrap(), Stream::new().unwrap());
    let (on, of) = (handle_of(&stream), handle_of(&other));
    let pool = pool_of(&stream);
    let rest = || {
        let block = pool.allocate(4096, Some(on), true).unwrap();
        pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
        assert!(rests(&pool));
        block
    };
    let first = rest();
    assert_eq!((pool.stats().in_use, pool.stats().live_blocks), (0, 0));
    rest();
    assert!(pool.live_blocks().is_empty());
    rest();
    // Another length, another stream, none: the block is the first stream's still.
    let longer = pool.allocate(8192, Some(on), true).unwrap();
    assert_eq!(pool.free(longer, FreeOn::Stream(on)).unwrap(), Some(()));
    rest();
    let others = pool.allocate(4096, Some(of), true).unwrap();
    assert_ne!(others, first);
    pool.free(others, FreeOn::Stream(of)).unwrap().unwrap();
    rest();
    let nobodys = pool.allocate(4096, None, true).unwrap();
    assert_ne!(nobodys, first);
    pool.free(nobodys, FreeOn::Recorded).unwrap().unwrap();
    rest();
    stream.synchronize().unwrap();
    other.synchronize().unwrap();
    assert_eq!(pool.trim_to(0).unwrap(), 64 * MIB);
}

#[test]
fn a_block_freed_in_anothers_order_does_not_rest() {
    let (stream, other) = (Stream::new().unwrap(), Stream::new().unwrap());
    let on = handle_of(&stream);
    let pool = pool_of(&stream);
    let block = pool.allocate(4096, Some(on), true).unwrap();
    pool.free(block, FreeOn::Stream(handle_of(&other)))
        .unwrap()
        .unwrap();
    assert!(!rests(&pool));
    let block = pool.allocate(4096, Some(on), true).unwrap();
    pool.free(block, FreeOn::Recorded).unwrap().unwrap();
    assert!(!rests(&pool));
}

/// What a program does to a pool.
#[derive(Debug, Clone)]
enum Step {
    Allocate {
        size: usize,
        on: usize,
    },
    /// Frees the live block that came so many before the last, in the order of its stream or of another.
    Free {
        back: usize,
        on: Option<usize>,
    },
    Synchronize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![Just(4096_usize), Just(4000), 1..20_000_usize];
    let back = prop_oneof![4 => Just(0_usize), 1 => 0..8_usize];
    prop_oneof![
        6 => (size, 0..3_usize).prop_map(|(size, on)| Step::Allocate { size, on: on / 2 }),
        5 => back.clone().prop_map(|back| Step::Free { back, on: None }),
        1 => (back, 0..2_usize).prop_map(|(back, on)| Step::Free { back, on: Some(on) }),
        1 => (0..2_usize).prop_map(Step::Synchronize),
    ]
}

/// Where the blocks of a program lie, from the first byte of the pool; `look` looks at the books after each step.
fn run(steps: &[Step], look: bool) -> Vec<usize> {
    let streams = [Stream::new().unwrap(), Stream::new().unwrap()];
    let pool = pool();
    let mut live: Vec<(usize, usize)> = Vec::new();
    let (mut places, mut base) = (Vec::new(), None);
    for step in steps {
        match *step {
            Step::Allocate { size, on } => {
                let on_it = handle_of(&streams[on]);
                let block = pool.allocate(size, Some(on_it), true).unwrap();
                let base = *base.get_or_insert(block);
                places.push(block.wrapping_sub(base));
                live.push((block, on));
            }
            Step::Free { back, on } if back < live.len() => {
                let (block, of) = live.remove(live.len() - 1 - back);
                let on = handle_of(&streams[on.unwrap_or(of)]);
                pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
            }
            Step::Free { .. } => {}
            Step::Synchronize(on) => streams[on].synchronize().unwrap(),
        }
        if look {
            pool.check().unwrap();
        }
    }
    let stats = pool.stats();
    places.extend([stats.in_use, stats.pending, stats.idle, stats.live_blocks]);
    for (block, on) in live {
        let on = handle_of(&streams[on]);
        pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
    }
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    assert_eq!(pool.trim_to(0).unwrap(), stats.reserved);
    places
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn blocks_lie_where_they_would_if_none_rested(steps in proptest::collection::vec(step(), 1..60)) {
        prop_assert_eq!(run(&steps, false), run(&steps, true));
    }
}

/// Only its own thread can record on it, so each of its frees has an event of its own.
#[test]
fn a_block_of_a_threads_own_stream_does_not_rest() {
    let stream = PerThreadStream::new().unwrap();
    let (pool, on) = (pool(), handle_of(&stream));
    for how in [FreeOn::Stream(on), FreeOn::Allocating] {
        for _ in 0..3 {
            let block = pool.allocate(4096, Some(on), true).unwrap();
            pool.free(block, how).unwrap().unwrap();
            assert!(!rests(&pool));
        }
    }
    assert_eq!(pool.stats().in_use, 0);
    pool.check().unwrap();
}

/// A pool with a stream whose next block comes from the books and is in the front.
fn fronted(stream: &Stream) -> (Pool, usize) {
    let (pool, on) = (pool_of(stream), handle_of(stream));
    pool.state.lock().competed = u32::MAX;
    front::use_it();
    let block = pool.allocate(256, Some(on), true).unwrap();
    (pool, block)
}

#[test]
fn a_block_in_the_front_does_not_rest() {
    let stream = Stream::new().unwrap();
    let on = handle_of(&stream);
    let (pool, block) = fronted(&stream);
    // By a thread that has not met others yet.
    let free = || pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
    std::thread::scope(|scope| scope.spawn(free).join().unwrap());
    assert!(!rests(&pool));
    assert_eq!(pool.stats().in_use, 0);
    pool.check().unwrap();
}

#[test]
fn a_block_in_a_bin_is_not_freed_again_and_handed_out_once() {
    let stream = Stream::new().unwrap();
    let on = handle_of(&stream);
    let (pool, block) = fronted(&stream);
    pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
    let again = pool.free(block, FreeOn::Stream(on));
    assert!(matches!(again, Err(Error::DoubleFree { ptr }) if ptr == block));
    let first = pool.allocate(256, Some(on), true).unwrap();
    let second = || pool.allocate(256, Some(on), true).unwrap();
    let second = std::thread::scope(|scope| scope.spawn(second).join().unwrap());
    assert_ne!(first, second);
    assert_eq!(pool.stats().in_use, 512);
    pool.check().unwrap();
}

/// Memory that has moved begins anew once nothing is live, also where what was live last would rest.
#[test]
fn a_pool_begins_anew_though_its_last_block_would_rest() {
    let stream = Stream::new().unwrap();
    let on = handle_of(&stream);
    let config = PoolConfig {
        initial: 0,
        limit: None,
        limit_share: None,
        growth: 2 * MIB,
        reuse: Reuse::default(),
    };
    let pool = Pool::new(Source::mapped_on(0), config, Observed::default());
    let allocate = |size| pool.allocate(size, Some(on), true).unwrap();
    let free = |block| pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
    let blocks: Vec<usize> = (0..8).map(|_| allocate(2 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|block| free(*block));
    stream.synchronize().unwrap();
    let large = allocate(6 * MIB);
    blocks
        .iter()
        .skip(1)
        .step_by(2)
        .for_each(|block| free(*block));
    free(large);
    let moved = pool.stats().moves;
    assert!(moved > 0);
    for _ in 0..256 * moved + 2 {
        free(allocate(4096));
    }
    let after = pool.stats();
    // All of it sleeps but the page that the last block was in.
    let awake = after.largest_idle + after.pending;
    assert_eq!((awake, after.reserved), (2 * MIB, 16 * MIB), "{after:?}");
    pool.check().unwrap();
}
