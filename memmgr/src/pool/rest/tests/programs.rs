//! Random programs: what a pool answers and counts is what it would if nothing rested, and no memory is handed out twice where
//! threads compete.

use super::{MIB, pool_of};
use crate::{
    Reuse, Stream,
    pool::{FreeOn, Pool, PoolConfig, front, observer::Observed, segment::Source},
    stats::PoolStats,
    stream::handle_of,
};
use proptest::prelude::*;
use std::sync::mpsc;

#[derive(Debug, Clone)]
enum Step {
    /// On one of the streams, or on none.
    Allocate {
        size: usize,
        on: Option<usize>,
    },
    /// The live block that came so many before the last, in the order of its stream, of a stream that is named, or as a guard.
    Free {
        back: usize,
        how: How,
    },
    /// What was freed last, once more.
    FreeAgain,
    Synchronize(usize),
    /// Work begins that does not end before [`Step::Synchronize`]; in a pool that grows where it is, as nothing may wait for it.
    Work(usize),
    /// The stream is dropped, and another comes.
    Replace(usize),
    Trim,
    ResetPeak,
    NoteEpoch(usize),
}

#[derive(Debug, Clone, Copy)]
enum How {
    Own,
    Guard,
    Recorded,
    Other(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        6 => Just(4096_usize),
        2 => Just(4000),
        1 => Just(3840),
        3 => 1..60_000_usize,
        1 => MIB..3 * MIB,
        1 => Just(0)
    ];
    let on = prop_oneof![6 => Just(Some(0)), 2 => Just(Some(1)), 3 => Just(None)];
    let back = prop_oneof![5 => Just(0_usize), 1 => 0..6_usize];
    let how = prop_oneof![
        6 => Just(How::Own),
        4 => Just(How::Guard),
        1 => Just(How::Recorded),
        1 => (0..2_usize).prop_map(How::Other),
    ];
    prop_oneof![
        20 => (size, on).prop_map(|(size, on)| Step::Allocate { size, on }),
        18 => (back, how).prop_map(|(back, how)| Step::Free { back, how }),
        1 => Just(Step::FreeAgain),
        1 => (0..2_usize).prop_map(Step::Synchronize),
        1 => (0..2_usize).prop_map(Step::Work),
        1 => (0..2_usize).prop_map(Step::Replace),
        1 => Just(Step::Trim),
        1 => Just(Step::ResetPeak),
        1 => (0..2_usize).prop_map(Step::NoteEpoch),
    ]
}

/// What the pool answers to each step, with addresses from its first byte, and what it has counted in the end; `look` looks at
/// the books after each step, so that nothing rests.
fn run(steps: &[Step], mapped: bool, look: bool) -> (Vec<String>, PoolStats) {
    let mut streams = [Stream::new().unwrap(), Stream::new().unwrap()];
    let config = PoolConfig {
        initial: 128 << 10,
        // Mapped memory grows where it is; a new segment would lie anywhere.
        limit: (!mapped).then_some(128 << 10),
        limit_share: None,
        growth: 0,
        reuse: Reuse::PreferSpeed,
    };
    let source = if mapped {
        Source::mapped_on(0)
    } else {
        Source::malloc(0)
    };
    let pool = Pool::new(source, config, Observed::default());
    // It stays, so that the pool begins there all the time.
    let base = pool.allocate(256, None, true).unwrap();
    let mut live: Vec<(usize, Option<usize>)> = Vec::new();
    let mut freed = 0;
    // What keeps the work of each stream from ending.
    let mut stalled: [Option<mpsc::Sender<()>>; 2] = [None, None];
    let mut said = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate { size, on } => {
                let handle = on.map(|on| handle_of(&streams[on]));
                let answer = pool.allocate(size, handle, size % 2 == 0);
                said.push(match &answer {
                    Ok(block) => format!("{}", block.wrapping_sub(base)),
                    Err(error) => format!("{:?}", std::mem::discriminant(error)),
                });
                live.extend(answer.ok().map(|block| (block, on)));
            }
            Step::Free { back, how } if back < live.len() => {
                let (block, of) = live.remove(live.len() - 1 - back);
                let on = match (how, of) {
                    (How::Own, Some(of)) => FreeOn::Stream(handle_of(&streams[of])),
                    (How::Other(on), _) => FreeOn::Stream(handle_of(&streams[on])),
                    (How::Guard, _) => FreeOn::Allocating,
                    (How::Recorded, _) | (How::Own, None) => FreeOn::Recorded,
                };
                pool.free(block, on).unwrap().unwrap();
                freed = block;
            }
            Step::Free { .. } => {}
            Step::FreeAgain if live.iter().all(|(block, _)| *block != freed) => {
                said.push(format!("{}", pool.free(freed, FreeOn::Allocating).is_err()));
            }
            Step::FreeAgain => {}
            Step::Synchronize(on) => {
                stalled[on] = None;
                streams[on].synchronize().unwrap();
            }
            Step::Work(on) if mapped && stalled[on].is_none() => {
                let (ends, end) = mpsc::channel();
                stalled[on] = Some(ends);
                streams[on].launch_host(move || _ = end.recv()).unwrap();
            }
            Step::Work(_) => {}
            Step::Replace(on) if stalled[on].is_none() => streams[on] = Stream::new().unwrap(),
            Step::Trim if stalled.iter().any(Option::is_some) => {}
            Step::Replace(_) => {}
            Step::Trim => said.push(format!("{:?}", pool.trim_to(0))),
            Step::ResetPeak => pool.reset_peak(),
            Step::NoteEpoch(on) => {
                // Others want what the stream has freed.
                let ended = (pool.state.lock().order).end_epoch_of(handle_of(&streams[on]).core());
                said.push(format!("{}", ended.len()));
            }
        }
        if look {
            pool.check().unwrap();
        }
    }
    let stats = pool.stats();
    pool.check().unwrap();
    drop(stalled);
    // What stays live would keep its memory for good.
    live.push((base, None));
    empty(&pool, live.into_iter().map(|(block, _)| block));
    (said, stats)
}

fn empty(pool: &Pool, live: impl Iterator<Item = usize>) {
    for block in live {
        pool.free(block, FreeOn::Recorded).unwrap().unwrap();
    }
    pool.wait_for_pending().unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!(pool.stats().reserved, 0);
}

/// What differs, as a block that rests is neither joined nor divided.
fn without_cuts(stats: PoolStats) -> PoolStats {
    PoolStats {
        splits: 0,
        merges: 0,
        ..stats
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 80,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_pool_answers_and_counts_as_if_nothing_rested(
        steps in proptest::collection::vec(step(), 1..120),
        mapped in proptest::bool::ANY,
    ) {
        let (said, stats) = run(&steps, mapped, false);
        let (expected, counted) = run(&steps, mapped, true);
        prop_assert_eq!(said, expected);
        prop_assert_eq!(without_cuts(stats), without_cuts(counted));
    }

    /// One thread that works with the front at times, and not at others, as threads do that have met and part again.
    #[test]
    fn no_memory_is_handed_out_twice_while_threads_come_and_go(
        steps in proptest::collection::vec((0..8_usize, 0..4_usize, proptest::bool::ANY), 1..200),
    ) {
        let stream = Stream::new().unwrap();
        let (pool, on) = (pool_of(&stream), handle_of(&stream));
        pool.state.lock().competed = u32::MAX;
        let mut live: Vec<(usize, usize)> = Vec::new();
        for (what, which, competes) in steps {
            // Who does not compete is another thread each time.
            let call = |call: &(dyn Fn() -> Option<usize> + Sync)| {
                if competes {
                    front::use_it();
                    call()
                } else {
                    std::thread::scope(|scope| scope.spawn(call).join().unwrap())
                }
            };
            if what < 4 {
                let size = [256, 256, 512, 1024][which];
                let block = call(&|| Some(pool.allocate(size, Some(on), true).unwrap())).unwrap();
                for (start, len) in &live {
                    prop_assert!(block + size <= *start || start + len <= block);
                }
                live.push((block, size));
            } else if let Some((block, _)) = live.len().checked_sub(1 + which).map(|at| live.remove(at)) {
                call(&|| {
                    pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
                    None
                });
                if what == 7 {
                    let again = call(&|| pool.free(block, FreeOn::Stream(on)).is_err().then_some(0));
                    prop_assert_eq!(again, Some(0));
                }
            }
        }
        let stats = pool.stats();
        prop_assert_eq!(stats.live_blocks, live.len());
        prop_assert_eq!(stats.in_use, live.iter().map(|(_, len)| len).sum::<usize>());
        prop_assert_eq!(pool.check(), Ok(()));
        empty(&pool, live.into_iter().map(|(block, _)| block));
    }
}
