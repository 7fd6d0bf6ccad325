//! Random lists of actions on the allocator and on the naive model: the same answers, the same blocks at the
//! same addresses, and every invariant after every action.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::oracle::{Oracle, all_blocks};
use crate::pool::best_fit::{
    BlockInfo, BlockState, ClassId, FreeError, GRANULE, Kind, Owner, OwnerId, Piece, Space, round,
};

/// Where the small segments of the tests lie: close together, so that they touch and overlap.
const ORIGIN: usize = 0x10000;

/// What a granule becomes in the test of long spans: 16 MiB.
const LONG: usize = 65_536;

/// The number of owner ids and of classes that the tests use, the idle ones included.
const OWNERS: u32 = 7;
const CLASSES: u32 = 4;

/// An address that an action names.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The start of one of the live blocks.
    Live(usize),
    /// Any address near the segments.
    Anywhere(usize),
}

#[derive(Clone, Debug)]
enum Action {
    AddSegment {
        base: usize,
        len: usize,
    },
    RemoveSegment {
        which: usize,
    },
    /// A segment without memory.
    AddRange {
        base: usize,
        len: usize,
    },
    RemoveRange {
        which: usize,
    },
    /// A part of one of the idle spans, or a little more than that, in granules from its start.
    Unmap {
        which: usize,
        from: usize,
        len: usize,
    },
    /// A part of one of the gaps, and how much of what is held has become it.
    Map {
        which: usize,
        from: usize,
        len: usize,
        held: usize,
    },
    Allocate {
        size: usize,
        align: usize,
        classes: Vec<ClassId>,
    },
    AllocateRanked {
        size: usize,
        align: usize,
        ranks: Vec<Option<u32>>,
    },
    /// From one span, without filing the recent one first.
    TakeSingle {
        size: usize,
        own: ClassId,
    },
    Free {
        place: Place,
        owner: Owner,
    },
    /// Frees with the class that the owner has anyway.
    FreeSound {
        which: usize,
        id: OwnerId,
    },
    Settle {
        id: OwnerId,
        budget: usize,
    },
    Rename {
        from: OwnerId,
        to: Owner,
        budget: usize,
    },
}

fn owner_id() -> impl Strategy<Value = OwnerId> {
    (0..OWNERS).prop_map(OwnerId)
}

fn class_id() -> impl Strategy<Value = ClassId> {
    (0..CLASSES).prop_map(ClassId)
}

fn owner() -> impl Strategy<Value = Owner> {
    (owner_id(), class_id()).prop_map(|(id, class)| Owner::new(id, class))
}

/// The class that an owner has by default.
fn usual_class(id: OwnerId) -> ClassId {
    if id == OwnerId::IDLE {
        ClassId::IDLE
    } else {
        ClassId(1 + id.0 % (CLASSES - 1))
    }
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 1..=12 * GRANULE,
        3 => (1..=40usize).prop_map(|granules| granules * GRANULE),
        1 => prop_oneof![Just(0), Just(usize::MAX), (usize::MAX - 600)..usize::MAX, Just(1 << 63)],
    ]
}

fn align() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => Just(GRANULE),
        4 => (8..=13u32).prop_map(|power| 1 << power),
        1 => prop_oneof![Just(0), Just(1), Just(128), Just(768), Just(1 << 63), Just(usize::MAX)],
    ]
}

fn budget() -> impl Strategy<Value = usize> {
    prop_oneof![0..4usize, Just(usize::MAX)]
}

fn action() -> impl Strategy<Value = Action> {
    let place = prop_oneof![
        4 => any::<usize>().prop_map(Place::Live),
        1 => (0..0x10000usize).prop_map(Place::Anywhere),
    ];
    let ranks = prop::collection::vec(prop::option::weighted(0.8, 0..3u32), OWNERS as usize);
    let classes = prop::collection::vec(class_id(), 0..=CLASSES as usize);
    prop_oneof![
        3 => (0..160usize, 0..48usize, prop::bool::weighted(0.05)).prop_map(|(place, len, odd)| Action::AddSegment {
            base: ORIGIN + place * GRANULE + usize::from(odd),
            len: len * GRANULE,
        }),
        2 => any::<usize>().prop_map(|which| Action::RemoveSegment { which }),
        1 => (0..160usize, 0..48usize).prop_map(|(place, len)| Action::AddRange {
            base: ORIGIN + place * GRANULE,
            len: len * GRANULE,
        }),
        1 => any::<usize>().prop_map(|which| Action::RemoveRange { which }),
        5 => (any::<usize>(), 0..12usize, 0..24usize).prop_map(|(which, from, len)| Action::Unmap { which, from, len }),
        6 => (any::<usize>(), 0..12usize, 0..24usize, any::<usize>())
            .prop_map(|(which, from, len, held)| Action::Map { which, from, len, held }),
        10 => (size(), align(), classes).prop_map(|(size, align, classes)| Action::Allocate { size, align, classes }),
        5 => (size(), align(), ranks).prop_map(|(size, align, ranks)| Action::AllocateRanked { size, align, ranks }),
        20 => (size(), class_id()).prop_map(|(size, own)| Action::TakeSingle { size, own }),
        2 => (place, owner()).prop_map(|(place, owner)| Action::Free { place, owner }),
        10 => (any::<usize>(), owner_id()).prop_map(|(which, id)| Action::FreeSound { which, id }),
        2 => (owner_id(), budget()).prop_map(|(id, budget)| Action::Settle { id, budget }),
        1 => (owner_id(), owner(), budget()).prop_map(|(from, to, budget)| Action::Rename { from, to, budget }),
    ]
}

fn pick(from: &[usize], which: usize) -> usize {
    if from.is_empty() {
        ORIGIN
    } else {
        from[which % from.len()]
    }
}

/// Applies one action to both and compares what they answer.
fn apply(space: &mut Space<u64>, oracle: &mut Oracle, action: &Action, stamp: u64) {
    match action {
        Action::AddSegment { base, len } => {
            assert_eq!(
                space.add_segment(*base, *len),
                oracle.add_segment(*base, *len)
            );
        }
        Action::RemoveSegment { which } => {
            let base = pick(&oracle.bases(), *which);
            assert_eq!(space.remove_segment(base), oracle.remove_segment(base));
        }
        Action::AddRange { base, len } => {
            assert_eq!(space.add_range(*base, *len), oracle.add_range(*base, *len));
        }
        Action::RemoveRange { which } => {
            let base = pick(&oracle.bases(), *which);
            assert_eq!(space.remove_range(base), oracle.remove_range(base));
        }
        Action::Unmap { which, from, len } => {
            let spans = oracle.in_state(BlockState::Free(Owner::IDLE));
            let found: Vec<_> = space.idle_spans(0).collect();
            assert_eq!(
                found
                    .iter()
                    .map(|span| (span.end - span.addr, span.addr))
                    .collect::<Vec<_>>(),
                {
                    let mut spans: Vec<_> =
                        spans.iter().map(|span| (span.len, span.addr)).collect();
                    spans.sort_unstable();
                    spans
                }
            );
            if found.is_empty() {
                return;
            }
            let span = found[which % found.len()];
            let Kind::Idle(slot) = span.kind else {
                panic!("an idle span is no gap");
            };
            let (start, len) = (span.addr + from * GRANULE, len * GRANULE);
            let fits = start + len <= span.end;
            let done = space.unmap(slot, start, len);
            assert_eq!(done, fits && oracle.unmap(start, len));
        }
        Action::Map {
            which,
            from,
            len,
            held,
        } => {
            let gaps = oracle.in_state(BlockState::Gap);
            if gaps.is_empty() {
                return;
            }
            let gap = gaps[which % gaps.len()];
            assert_eq!(space.gap_at(gap.addr), Some(gap.addr + gap.len));
            let (start, len) = (gap.addr + from * GRANULE, len * GRANULE);
            let held = held % (oracle.held.min(len) + 1);
            let done = space.map(start, len, held);
            assert_eq!(done, oracle.map(start, len, held));
        }
        Action::Allocate {
            size,
            align,
            classes,
        } => {
            let taken = space.allocate(*size, *align, classes);
            let expected = oracle.allocate(*size, *align, classes);
            assert_eq!(
                taken
                    .as_ref()
                    .map(|taken| (taken.addr, taken.len, taken.owners.to_vec())),
                expected
            );
            if let Some(taken) = taken {
                let data = space.data_mut(taken.addr).expect("the block is live");
                assert_eq!(
                    std::mem::replace(data, stamp),
                    0,
                    "a new block carries the default"
                );
            }
        }
        Action::AllocateRanked { size, align, ranks } => {
            let rank = |id: OwnerId| ranks.get(id.0 as usize).copied().flatten();
            let taken = space.allocate_ranked(*size, *align, &mut { rank });
            let expected = oracle.allocate_ranked(*size, *align, rank);
            assert_eq!(
                taken.map(|taken| (taken.addr, taken.len, taken.owners.to_vec())),
                expected
            );
        }
        Action::TakeSingle { size, own } => {
            let classes = [ClassId::IDLE, *own];
            let fits = oracle.blocks().into_iter().any(|block| {
                matches!(block.state, BlockState::Free(owner) if classes.contains(&owner.class))
                    && round(*size).is_some_and(|size| size <= block.len)
            });
            let expected = fits.then(|| oracle.allocate(*size, GRANULE, &classes));
            let taken = space.take_single(*size, *own, |_| stamp);
            assert_eq!(
                taken.map(|taken| (taken.addr, (taken.owner.0 != 0).then_some(taken.owner))),
                expected.map(|taken| {
                    let (addr, _, owners) = taken.expect("a span fits");
                    (addr, owners.first().copied())
                })
            );
        }
        Action::Free { place, owner } => {
            let addr = match place {
                Place::Live(which) => pick(&oracle.live(), *which),
                Place::Anywhere(offset) => ORIGIN - GRANULE + offset,
            };
            free(space, oracle, addr, *owner);
        }
        Action::FreeSound { which, id } => {
            let addr = pick(&oracle.live(), *which);
            let class = oracle.class_of(*id).unwrap_or_else(|| usual_class(*id));
            free(space, oracle, addr, Owner::new(*id, class));
        }
        Action::Settle { id, budget } => {
            let done = space.settle(*id, *budget);
            if id.0 != 0 {
                assert_eq!(Ok(done), oracle.rename(*id, Owner::IDLE, *budget, space));
            }
        }
        Action::Rename { from, to, budget } => {
            let done = space.rename(*from, *to, *budget);
            assert_eq!(done, oracle.rename(*from, *to, *budget, space));
        }
    }
}

fn free(space: &mut Space<u64>, oracle: &mut Oracle, addr: usize, owner: Owner) {
    let data = space.live(addr).map(|block| *block.data);
    let freed = space.free(addr, owner);
    assert_eq!(
        freed
            .as_ref()
            .map(|freed| freed.len)
            .map_err(|error| *error),
        oracle.free(addr, owner)
    );
    if let Ok(freed) = freed {
        assert_eq!(Some(freed.data), data, "the datum comes back");
        assert_eq!(space.free(addr, owner), Err(FreeError::AlreadyFree));
    }
}

/// The runs are all stretches of idle spans and gaps that have a gap.
fn compare_runs(space: &Space<u64>, blocks: &[BlockInfo], bases: &[usize]) {
    let open =
        |block: &BlockInfo| matches!(block.state, BlockState::Gap | BlockState::Free(Owner::IDLE));
    let together = |left: &BlockInfo, right: &BlockInfo| {
        open(left) && open(right) && !bases.contains(&right.addr)
    };
    let expected: Vec<Vec<(usize, usize, bool)>> = blocks
        .chunk_by(together)
        .filter(|run| run.iter().any(|block| block.state == BlockState::Gap))
        .map(|run| {
            let piece = |b: &BlockInfo| (b.addr, b.addr + b.len, b.state == BlockState::Gap);
            run.iter().map(piece).collect()
        })
        .collect();
    let runs: Vec<Vec<(usize, usize, bool)>> = space
        .runs()
        .map(|run| {
            let piece = |p: &Piece| (p.addr, p.end, p.kind == Kind::Gap);
            run.iter().map(piece).collect()
        })
        .collect();
    assert_eq!(runs, expected);
}

/// Compares everything that can be seen of both.
fn compare(space: &mut Space<u64>, oracle: &Oracle) {
    if let Err(text) = space.check() {
        panic!("{text}\n{:#?}", all_blocks(space));
    }
    let blocks = oracle.blocks();
    assert_eq!(all_blocks(space), blocks);
    compare_runs(space, &blocks, &oracle.bases());
    let sum = |wanted: &dyn Fn(BlockState) -> bool| -> usize {
        blocks
            .iter()
            .filter(|block| wanted(block.state))
            .map(|block| block.len)
            .sum()
    };
    let idle = |state| state == BlockState::Free(Owner::IDLE);
    let stats = space.stats();
    let held = oracle.held;
    assert_eq!(
        stats.reserved,
        sum(&|state| state != BlockState::Gap) + held
    );
    assert_eq!(stats.in_use, sum(&|state| state == BlockState::Live));
    assert_eq!(stats.idle, sum(&idle) + held);
    assert_eq!(
        stats.largest_idle,
        blocks
            .iter()
            .filter(|block| idle(block.state))
            .map(|block| block.len)
            .max()
            .unwrap_or(0)
    );
    for id in (0..OWNERS).map(OwnerId) {
        let spans = oracle.spans_of(id);
        assert_eq!(space.spans_of(id), spans.len());
        assert_eq!(
            space.bytes_of(id),
            spans.iter().map(|span| span.len).sum::<usize>()
        );
        assert_eq!(space.class_of(id), oracle.class_of(id));
    }
    for segment in space.segments() {
        let single = space.blocks_of(segment.base).count() == 1;
        assert_eq!(
            segment.wholly_idle,
            single && space.blocks_of(segment.base).all(|block| idle(block.state))
        );
    }
    for addr in (ORIGIN - 64..ORIGIN + 210 * GRANULE).step_by(GRANULE / 2) {
        let inside = blocks
            .iter()
            .find(|block| block.addr <= addr && addr < block.addr + block.len);
        assert_eq!(space.segment_of(addr).is_some(), inside.is_some());
        let live = inside.filter(|block| block.state == BlockState::Live);
        assert_eq!(
            space.live_containing(addr).map(|found| found.addr),
            live.map(|block| block.addr)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_allocator_does_what_the_naive_model_does(actions in prop::collection::vec(action(), 1..120)) {
        let mut space = Space::new();
        let mut oracle = Oracle::default();
        apply(&mut space, &mut oracle, &Action::AddSegment { base: ORIGIN, len: 48 * GRANULE }, 0);
        apply(&mut space, &mut oracle, &Action::AddSegment { base: ORIGIN + 48 * GRANULE, len: 32 * GRANULE }, 0);
        for (stamp, action) in (1..).zip(&actions) {
            apply(&mut space, &mut oracle, action, stamp);
            compare(&mut space, &oracle);
        }
    }

    /// The same with sizes around 64 MiB, where the index goes over from lists of one length to a sorted list.
    #[test]
    fn long_spans_are_found_as_the_naive_model_finds_them(actions in prop::collection::vec(action(), 1..80)) {
        let mut space = Space::new();
        let mut oracle = Oracle::default();
        apply(&mut space, &mut oracle, &Action::AddSegment { base: ORIGIN, len: 48 * GRANULE * LONG }, 0);
        for (stamp, action) in (1..).zip(&actions) {
            let action = match action.clone() {
                Action::Allocate { size, align, classes } => Action::Allocate { size: size.saturating_mul(LONG / 4), align, classes },
                Action::AllocateRanked { size, align, ranks } => Action::AllocateRanked { size: size.saturating_mul(LONG / 4), align, ranks },
                Action::TakeSingle { size, own } => Action::TakeSingle { size: size.saturating_mul(LONG / 4), own },
                Action::AddSegment { base, len } => Action::AddSegment { base: base.saturating_mul(LONG), len: len * LONG },
                Action::AddRange { base, len } => Action::AddRange { base: base.saturating_mul(LONG), len: len * LONG },
                Action::Unmap { which, from, len } => Action::Unmap { which, from: from * LONG / 4, len: len * LONG / 4 },
                Action::Map { which, from, len, held } => Action::Map { which, from: from * LONG / 4, len: len * LONG / 4, held },
                other => other,
            };
            apply(&mut space, &mut oracle, &action, stamp);
            compare(&mut space, &oracle);
        }
    }

    /// Segments that are mostly free, in small spans of many owners, so that nearly every request needs a run
    /// and has several to choose from.
    #[test]
    fn runs_are_chosen_as_the_naive_model_chooses_them(
        pieces in prop::collection::vec((1..=3usize, prop::option::weighted(0.85, owner_id())), 8..64),
        requests in prop::collection::vec(run_request(), 1..6),
    ) {
        let mut space = Space::new();
        let mut oracle = Oracle::default();
        let half = pieces.len() / 2;
        let mut base = ORIGIN;
        for part in [&pieces[..half], &pieces[half..]] {
            let len = part.iter().map(|(granules, _)| granules * GRANULE).sum();
            apply(&mut space, &mut oracle, &Action::AddSegment { base, len }, 0);
            base += len;
        }
        for (granules, _) in &pieces {
            let action = Action::Allocate { size: granules * GRANULE, align: GRANULE, classes: vec![ClassId::IDLE] };
            apply(&mut space, &mut oracle, &action, 1);
        }
        for (addr, (_, id)) in oracle.live().into_iter().zip(&pieces) {
            if let Some(id) = id {
                free(&mut space, &mut oracle, addr, Owner::new(*id, usual_class(*id)));
            }
        }
        compare(&mut space, &oracle);
        for request in &requests {
            apply(&mut space, &mut oracle, request, 2);
            compare(&mut space, &oracle);
        }
    }
}

/// A request for more than most single spans hold.
fn run_request() -> impl Strategy<Value = Action> {
    let size = || (2..=14usize).prop_map(|granules| granules * GRANULE);
    let align = || prop_oneof![3 => Just(GRANULE), 2 => (9..=11u32).prop_map(|power| 1 << power)];
    let ranks = prop::collection::vec(prop::option::weighted(0.95, 0..5u32), OWNERS as usize);
    let classes = prop::collection::vec(class_id(), 1..=CLASSES as usize);
    prop_oneof![
        (size(), align(), classes).prop_map(|(size, align, classes)| Action::Allocate {
            size,
            align,
            classes
        }),
        (size(), align(), ranks).prop_map(|(size, align, ranks)| Action::AllocateRanked {
            size,
            align,
            ranks
        }),
    ]
}

/// How many lists to try: `PROPTEST_CASES`, or a number that takes a few seconds.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(256)
}
