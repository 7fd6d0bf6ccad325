//! What the allocator promises, one test a promise.

use super::{Random, oracle::all_blocks};
use crate::pool::best_fit::{
    BlockState, ClassId, FreeError, GRANULE, Owner, OwnerError, OwnerId, RemoveError, SegmentError,
    Space, Taken, round,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const BASE: usize = 0x7f00_0000_0000;

const IDLE: &[ClassId] = &[ClassId::IDLE];
/// Two classes, as of two streams, and two owners of the first.
const A: Owner = Owner::new(OwnerId(11), ClassId(1));
const A2: Owner = Owner::new(OwnerId(12), ClassId(1));
const B: Owner = Owner::new(OwnerId(21), ClassId(2));

fn space(len: usize) -> Space<u64> {
    let mut space = Space::new();
    space.add_segment(BASE, len).expect("the segment is sound");
    space
}

fn allocate(space: &mut Space<u64>, size: usize) -> usize {
    let taken = space.allocate(size, GRANULE, IDLE).expect("there is room");
    space.check().expect("all invariants hold");
    taken.addr
}

fn free(space: &mut Space<u64>, addr: usize, owner: Owner) {
    space.free(addr, owner).expect("the block is live");
    space.check().expect("all invariants hold");
}

/// A space whose segment is cut into live blocks of these sizes, without rest.
fn cut(sizes: &[usize]) -> (Space<u64>, Vec<usize>) {
    let mut space = space(sizes.iter().sum());
    let addrs = sizes
        .iter()
        .map(|size| allocate(&mut space, *size))
        .collect();
    (space, addrs)
}

// Sizes and alignments.

#[test]
fn a_size_near_the_largest_number_is_refused_and_changes_nothing() {
    let mut space = space(MIB);
    let warm = allocate(&mut space, 4096);
    free(&mut space, warm, Owner::IDLE);
    let before = (space.stats(), all_blocks(&space));
    for size in [
        usize::MAX,
        usize::MAX - 1,
        usize::MAX - 254,
        usize::MAX - 255,
        usize::MAX - 256,
        usize::MAX - 510,
        usize::MAX - 511,
        1 << 63,
        (1 << 63) + 1,
        (1 << 63) - 1,
    ] {
        for align in [GRANULE, 4096, 1 << 63] {
            assert!(space.allocate(size, align, IDLE).is_none());
            assert!(
                space
                    .allocate_ranked(size, align, &mut |_| Some(1))
                    .is_none()
            );
        }
    }
    assert_eq!((space.stats(), all_blocks(&space)), before);
    let (a, b) = (allocate(&mut space, 256), allocate(&mut space, 256));
    assert!(a + 256 <= b || b + 256 <= a);
}

#[test]
fn a_size_is_rounded_up_to_the_granule_or_refused() {
    assert_eq!(round(0), None);
    assert_eq!(round(1), Some(256));
    assert_eq!(round(256), Some(256));
    assert_eq!(round(257), Some(512));
    assert_eq!(round(usize::MAX - 255), Some(usize::MAX - 255));
    assert_eq!(round(usize::MAX - 254), None);
    assert_eq!(round(usize::MAX), None);
}

#[test]
fn size_zero_and_unusable_alignments_are_refused() {
    let mut space = space(MIB);
    assert!(space.allocate(0, GRANULE, IDLE).is_none());
    for align in [0, 1, 128, 384, 257, usize::MAX] {
        assert!(space.allocate(256, align, IDLE).is_none(), "{align}");
        assert!(
            space.allocate_ranked(256, align, &mut |_| None).is_none(),
            "{align}"
        );
    }
    assert_eq!(space.stats().live_blocks, 0);
}

#[test]
fn an_alignment_holds_in_new_and_in_reused_spans() {
    let mut space = Space::<u64>::new();
    space.add_segment(BASE + 256, 16 * MIB).unwrap();
    allocate(&mut space, 256);
    let classes = [ClassId::IDLE, A.class];
    for _ in 0..3 {
        let mut odd = Vec::new();
        for power in 0..=21 {
            let align = (1usize << power).max(GRANULE);
            let taken = space.allocate(100, align, &classes).expect("there is room");
            assert_eq!(taken.addr % align, 0);
            assert!(BASE + 256 <= taken.addr && taken.addr + taken.len <= BASE + 256 + 16 * MIB);
            space.check().unwrap();
            if power % 2 == 1 {
                odd.push(taken.addr);
            }
        }
        for addr in odd {
            free(&mut space, addr, A);
        }
    }
    let mut fresh = space_at(BASE + 256, 4 * MIB);
    let taken = fresh.allocate(4096, 2 * MIB, IDLE).unwrap();
    assert_eq!(taken.addr, BASE + 2 * MIB);
    assert!(
        fresh.allocate(4 * MIB, 2 * MIB, IDLE).is_none(),
        "the padding does not leave the segment"
    );
    fresh.check().unwrap();
}

fn space_at(base: usize, len: usize) -> Space<u64> {
    let mut space = Space::new();
    space.add_segment(base, len).expect("the segment is sound");
    space
}

#[test]
fn the_smallest_span_is_judged_with_its_padding() {
    // Free: 4 KiB at an address that is no multiple of 4 KiB, and 8 KiB that holds such a multiple.
    let (mut space, addrs) = cut(&[256, 4096, 256, 8192, 256]);
    free(&mut space, addrs[1], Owner::IDLE);
    free(&mut space, addrs[3], Owner::IDLE);
    let taken = space.allocate(4096, 4096, IDLE).unwrap();
    assert_eq!(taken.addr, BASE + 8192);
    assert_eq!(space.allocate(4096, GRANULE, IDLE).unwrap().addr, addrs[1]);
    space.check().unwrap();
}

// Which span.

#[test]
fn an_exact_fit_is_taken_whole() {
    let mut space = space(MIB);
    let p = allocate(&mut space, MIB);
    free(&mut space, p, Owner::IDLE);
    assert_eq!(allocate(&mut space, MIB), p);

    let (mut space, addrs) = cut(&[512 * KIB, 256, 1024 * KIB, 256, 768 * KIB, 256]);
    for block in [0, 2, 4] {
        free(&mut space, addrs[block], Owner::IDLE);
    }
    let splits = space.stats().splits;
    assert_eq!(allocate(&mut space, 768 * KIB), addrs[4]);
    assert_eq!(space.stats().splits, splits, "nothing is divided");
}

#[test]
fn ties_go_to_the_lowest_address_over_all_classes() {
    let (mut space, addrs) = cut(&[256, 1024, 256, 1024, 256, 1024, 256]);
    free(&mut space, addrs[5], Owner::IDLE);
    free(&mut space, addrs[3], A);
    free(&mut space, addrs[1], B);
    let classes = [B.class, ClassId::IDLE, A.class];
    let order: Vec<usize> = (0..3)
        .map(|_| space.allocate(1024, GRANULE, &classes).unwrap().addr)
        .collect();
    assert_eq!(order, [addrs[1], addrs[3], addrs[5]]);
}

#[test]
fn a_span_is_compared_by_length_and_not_by_size_class() {
    let (mut space, addrs) = cut(&[150 * KIB, 256]);
    free(&mut space, addrs[0], Owner::IDLE);
    assert!(space.allocate(200 * KIB, GRANULE, IDLE).is_none());
    let small = space.allocate(120 * KIB, GRANULE, IDLE).unwrap();
    assert_eq!((small.addr, small.len), (addrs[0], 120 * KIB));
}

#[test]
fn only_the_classes_asked_for_are_used() {
    let (mut space, addrs) = cut(&[1024, 256, 1024, 256]);
    free(&mut space, addrs[0], A);
    free(&mut space, addrs[2], B);
    assert!(space.allocate(256, GRANULE, &[]).is_none());
    assert!(space.allocate(256, GRANULE, IDLE).is_none());
    assert!(space.allocate(256, GRANULE, &[ClassId(99)]).is_none());
    let taken = space
        .allocate(256, GRANULE, &[ClassId::IDLE, B.class])
        .unwrap();
    assert_eq!((taken.addr, &taken.owners[..]), (addrs[2], &[B.id][..]));
}

#[test]
fn what_remains_keeps_its_owner() {
    let (mut space, addrs) = cut(&[256, 3 * 4096, 256]);
    free(&mut space, addrs[1], A);
    let taken = space.allocate(4096, 4096, &[A.class]).unwrap();
    assert_eq!(taken.addr, BASE + 4096);
    assert_eq!(
        space.spans_of(A.id),
        2,
        "one span before the block, one behind it"
    );
    assert_eq!(space.bytes_of(A.id), 2 * 4096);
    assert_eq!(space.pending_bytes(), 2 * 4096);
    space.check().unwrap();
}

// Runs.

#[test]
fn a_run_serves_what_no_single_span_can_and_names_its_owners() {
    let (mut space, addrs) = cut(&[1024, 1024, 1024, 1024, 256]);
    free(&mut space, addrs[0], A);
    free(&mut space, addrs[1], Owner::IDLE);
    free(&mut space, addrs[2], A2);
    free(&mut space, addrs[3], B);
    let classes = [ClassId::IDLE, A.class];
    assert!(
        space.allocate(4096, GRANULE, &classes).is_none(),
        "the last part belongs to another class"
    );
    let taken = space.allocate(2048 + 256, GRANULE, &classes).unwrap();
    assert_eq!((taken.addr, taken.len), (addrs[0], 2048 + 256));
    assert_eq!(&taken.owners[..], &[A.id, A2.id]);
    assert_eq!(
        space.bytes_of(A2.id),
        1024 - 256,
        "the rest of the last span keeps its owner"
    );
    space.check().unwrap();
    // Given back with one owner for everything, it takes the marks of both along.
    free(&mut space, taken.addr, Owner::new(OwnerId(99), ClassId(9)));
    assert_eq!(space.bytes_of(OwnerId(99)), 2048 + 256);
}

#[test]
fn owners_whose_spans_are_not_touched_are_not_named() {
    let (mut space, addrs) = cut(&[512, 4096, 512, 256]);
    free(&mut space, addrs[0], A);
    free(&mut space, addrs[1], Owner::IDLE);
    free(&mut space, addrs[2], B);
    let taken = space
        .allocate(4096, GRANULE, &[ClassId::IDLE, A.class, B.class])
        .unwrap();
    assert_eq!((taken.addr, taken.owners.len()), (addrs[1], 0));
}

#[test]
fn a_run_with_many_owners_names_each_once_in_order() {
    let sizes = vec![256; 40];
    let (mut space, addrs) = cut(&sizes);
    for (place, addr) in addrs.iter().enumerate() {
        let id = 1 + (39 - place as u32) % 10;
        free(&mut space, *addr, Owner::new(OwnerId(id), ClassId(1)));
    }
    let taken = space.allocate(40 * 256, GRANULE, &[ClassId(1)]).unwrap();
    assert_eq!(
        taken.owners.to_vec(),
        (1..=10).map(OwnerId).collect::<Vec<_>>()
    );
    assert_eq!(space.stats().free_spans, 0);
    space.check().unwrap();
}

#[test]
fn a_waiting_request_prefers_low_ranks_then_few_owners() {
    let classes = [ClassId(7), ClassId(8), ClassId(9)];
    let owner = |id: u32| Owner::new(OwnerId(id), classes[id as usize % 3]);
    let rank = |id: OwnerId| (id.0 < 100).then_some(id.0 / 10);
    // Single spans: the low rank wins over the better fit, and no rank is no choice.
    let (mut space, addrs) = cut(&[1024, 256, 2048, 256, 1024, 256]);
    free(&mut space, addrs[0], owner(20));
    free(&mut space, addrs[2], owner(10));
    free(&mut space, addrs[4], owner(100));
    let mut asked = Vec::new();
    let taken = space
        .allocate_ranked(1024, GRANULE, &mut |id| {
            asked.push(id.0);
            rank(id)
        })
        .unwrap();
    asked.sort_unstable();
    assert_eq!(
        asked,
        [10, 20, 100],
        "each owner is asked about once, the idle one never"
    );
    assert_eq!(
        (taken.addr, &taken.owners[..]),
        (addrs[2], &[OwnerId(10)][..])
    );
    // Runs: of equal rank, the one with fewer owners wins, though it is longer; idle spans are no owners.
    let (mut space, addrs) = cut(&[512, 512, 512, 256, 1024, 1024, 256]);
    for (block, id) in [(0, 21), (1, 22), (2, 23), (4, 24)] {
        free(&mut space, addrs[block], owner(id));
    }
    free(&mut space, addrs[5], Owner::IDLE);
    let taken = space.allocate_ranked(1536, GRANULE, &mut { rank }).unwrap();
    assert_eq!(
        (taken.addr, &taken.owners[..]),
        (addrs[4], &[OwnerId(24)][..])
    );
    space.check().unwrap();
}

// Segments.

#[test]
fn touching_segments_are_never_merged() {
    let mut space = Space::<u64>::new();
    space.add_segment(BASE, MIB).unwrap();
    space.add_segment(BASE + MIB, MIB).unwrap();
    let blocks: Vec<usize> = (0..8).map(|_| allocate(&mut space, 256 * KIB)).collect();
    for block in [2, 5, 3, 8, 1, 7, 4, 6] {
        free(&mut space, blocks[block - 1], Owner::IDLE);
    }
    let stats = space.stats();
    assert_eq!((stats.free_spans, stats.largest_idle), (2, MIB));
    assert!(
        space.allocate(MIB + 512 * KIB, GRANULE, IDLE).is_none(),
        "no block lies in two segments"
    );
    let all = &mut |_| Some(0);
    assert!(
        space
            .allocate_ranked(MIB + 512 * KIB, GRANULE, all)
            .is_none()
    );
    space.add_segment(BASE + 2 * MIB, 2 * MIB).unwrap();
    let third = allocate(&mut space, MIB + 512 * KIB);
    assert_eq!(third, BASE + 2 * MIB);
    assert_eq!(space.remove_segment(third), Err(RemoveError::Busy));
    free(&mut space, third, Owner::IDLE);
    let pairs: Vec<_> = space
        .segments()
        .map(|segment| (segment.base, segment.len, segment.wholly_idle))
        .collect();
    assert_eq!(
        pairs,
        [
            (BASE, MIB, true),
            (BASE + MIB, MIB, true),
            (BASE + 2 * MIB, 2 * MIB, true)
        ]
    );
    for (base, len, _) in pairs {
        assert_eq!(space.remove_segment(base), Ok(len));
        assert_eq!(space.remove_segment(base), Err(RemoveError::Unknown));
        space.check().unwrap();
    }
    assert_eq!(space.stats().reserved, 0);
}

#[test]
fn a_run_does_not_cross_into_a_touching_segment() {
    let mut space = Space::<u64>::new();
    space.add_segment(BASE, 1024).unwrap();
    space.add_segment(BASE + 1024, 1024).unwrap();
    let first = allocate(&mut space, 1024);
    free(&mut space, first, A);
    assert!(
        space
            .allocate(2048, GRANULE, &[ClassId::IDLE, A.class])
            .is_none()
    );
    assert!(space.settle(A.id, 1));
    assert_eq!(space.stats().free_spans, 2);
}

#[test]
fn a_segment_that_is_there_already_is_refused() {
    let mut space = space(MIB);
    let overlap = Err(SegmentError::Overlap {
        base: BASE,
        len: MIB,
    });
    assert_eq!(space.add_segment(BASE, MIB), overlap, "the same base twice");
    assert_eq!(space.add_segment(BASE + 256, 256), overlap);
    assert_eq!(space.add_segment(BASE - 256, 512), overlap);
    assert_eq!(space.add_segment(BASE - 256, 2 * MIB), overlap);
    assert_eq!(space.add_segment(0, MIB), Err(SegmentError::Null));
    assert_eq!(
        space.add_segment(BASE + 2 * MIB, 0),
        Err(SegmentError::Empty)
    );
    assert_eq!(
        space.add_segment(BASE + 2 * MIB, 100),
        Err(SegmentError::Misaligned)
    );
    assert_eq!(
        space.add_segment(BASE + 2 * MIB + 8, 256),
        Err(SegmentError::Misaligned)
    );
    assert_eq!(
        space.add_segment(usize::MAX - 255, 256),
        Err(SegmentError::Overflow)
    );
    assert_eq!(
        space.add_segment(usize::MAX - 255, 512),
        Err(SegmentError::Overflow)
    );
    assert_eq!(space.stats().segments, 1);
    space.check().unwrap();
    assert_eq!(
        space.add_segment(usize::MAX - 511, 256),
        Ok(()),
        "the last granule but one can be used"
    );
    let last = space.allocate(256, GRANULE, IDLE).unwrap();
    assert_eq!(last.addr, usize::MAX - 511);
    space.check().unwrap();
}

#[test]
fn a_segment_with_a_pending_span_stays() {
    let mut space = space(1024);
    let block = allocate(&mut space, 1024);
    free(&mut space, block, A);
    assert_eq!(space.remove_segment(BASE), Err(RemoveError::Busy));
    assert_eq!(
        space
            .segment_of(BASE + 1023)
            .map(|segment| segment.wholly_idle),
        Some(false)
    );
    assert!(space.settle(A.id, 1));
    assert_eq!(space.remove_segment(BASE), Ok(1024));
    assert!(space.segment_of(BASE).is_none());
}

// Frees.

#[test]
fn a_second_a_foreign_and_an_interior_free_are_errors_that_change_nothing() {
    let mut space = space(MIB);
    let p = allocate(&mut space, 512);
    let q = allocate(&mut space, 512);
    free(&mut space, p, A);
    let before = (space.stats(), all_blocks(&space));
    for owner in [A, B, Owner::IDLE, Owner::new(OwnerId(3), ClassId::IDLE)] {
        assert_eq!(space.free(p, owner), Err(FreeError::AlreadyFree));
        assert_eq!(space.free(p + 256, owner), Err(FreeError::AlreadyFree));
        assert_eq!(
            space.free(BASE + MIB - 1, owner),
            Err(FreeError::AlreadyFree),
            "never handed out"
        );
        assert_eq!(
            space.free(q + 256, owner),
            Err(FreeError::Interior { start: q, len: 512 })
        );
        assert_eq!(
            space.free(q + 1, owner),
            Err(FreeError::Interior { start: q, len: 512 })
        );
        for foreign in [0, 0x64, BASE - 1, BASE + MIB, usize::MAX] {
            assert_eq!(space.free(foreign, owner), Err(FreeError::Foreign));
        }
    }
    assert_eq!((space.stats(), all_blocks(&space)), before);
    assert_eq!(space.allocate(512, GRANULE, &[A.class]).unwrap().addr, p);
    assert!(
        space.allocate(512, GRANULE, &[A.class]).is_none(),
        "it is there once"
    );
}

#[test]
fn an_owner_with_two_classes_is_refused() {
    let mut space = space(MIB);
    let (p, q) = (allocate(&mut space, 512), allocate(&mut space, 512));
    let half = Owner::new(A.id, ClassId::IDLE);
    assert_eq!(space.free(p, half), Err(FreeError::Owner(OwnerError::Idle)));
    assert_eq!(
        space.free(p, Owner::new(OwnerId::IDLE, A.class)),
        Err(FreeError::Owner(OwnerError::Idle))
    );
    free(&mut space, p, A);
    let other = Owner::new(A.id, B.class);
    assert_eq!(
        space.free(q, other),
        Err(FreeError::Owner(OwnerError::Class { known: A.class }))
    );
    assert!(space.live(q).is_some());
    assert!(space.settle(A.id, 1));
    assert_eq!(space.class_of(A.id), None);
    free(&mut space, q, other);
    assert_eq!(
        space.class_of(A.id),
        Some(B.class),
        "without spans, an id can come back in another class"
    );
}

#[test]
fn a_hundred_blocks_can_be_freed_in_any_order() {
    let mut random = Random(7);
    let (mut space, mut addrs) = cut(&vec![768; 100]);
    random.shuffle(&mut addrs);
    for addr in addrs {
        free(&mut space, addr, Owner::IDLE);
    }
    assert_eq!(
        (space.stats().free_spans, space.stats().largest_idle),
        (1, 76_800)
    );
}

#[test]
fn a_block_carries_a_datum_from_allocation_to_free() {
    let mut space = space(MIB);
    let p = allocate(&mut space, 700);
    assert_eq!(
        space
            .live(p)
            .map(|block| (block.addr, block.len, *block.data)),
        Some((p, 768, 0))
    );
    *space.data_mut(p).unwrap() = 5;
    assert_eq!(
        space.live_containing(p + 767).map(|block| *block.data),
        Some(5)
    );
    assert!(space.live_containing(p + 768).is_none());
    assert!(space.live(p + 256).is_none() && space.data_mut(p + 256).is_none());
    assert_eq!(
        space.free(p, A).map(|freed| (freed.len, freed.data)),
        Ok((768, 5))
    );
    let again = space.allocate(700, GRANULE, &[A.class]).unwrap();
    assert_eq!(
        (again.addr, space.live(p).map(|block| *block.data)),
        (p, Some(0)),
        "the next block begins anew"
    );
}

// Owners.

#[test]
fn only_spans_of_one_owner_merge() {
    let (mut space, addrs) = cut(&[256, 256, 256, 256]);
    free(&mut space, addrs[0], A);
    free(&mut space, addrs[1], A2);
    assert_eq!(space.stats().free_spans, 2, "one class, but two owners");
    free(&mut space, addrs[3], A2);
    free(&mut space, addrs[2], A2);
    assert_eq!((space.stats().free_spans, space.bytes_of(A2.id)), (2, 768));
}

#[test]
fn settling_keeps_to_its_budget_and_leaves_no_neighbours_apart() {
    let (mut space, addrs) = cut(&[256; 9]);
    for (place, addr) in addrs.iter().enumerate() {
        free(&mut space, *addr, if place % 2 == 0 { A } else { B });
    }
    assert_eq!((space.spans_of(A.id), space.spans_of(B.id)), (5, 4));
    assert!(!space.settle(A.id, 0));
    assert!(!space.settle(A.id, 3));
    assert_eq!(space.spans_of(A.id), 2);
    space.check().unwrap();
    assert!(space.settle(A.id, 2), "nothing is left");
    assert!(space.settle(A.id, 2), "nothing was left before");
    assert!(space.settle(B.id, usize::MAX));
    assert!(
        space.settle(OwnerId(1234), 1),
        "an owner that never was has nothing to settle"
    );
    assert_eq!(
        (
            space.stats().free_spans,
            space.stats().idle,
            space.pending_bytes()
        ),
        (1, 9 * 256, 0)
    );
    space.check().unwrap();
}

#[test]
fn spans_can_go_from_owner_to_owner_and_from_class_to_class() {
    let (mut space, addrs) = cut(&[256; 4]);
    free(&mut space, addrs[0], A);
    free(&mut space, addrs[1], B);
    free(&mut space, addrs[2], A);
    assert_eq!(space.rename(A.id, B, 1), Ok(false));
    assert_eq!(space.rename(A.id, B, 1), Ok(true));
    assert_eq!(
        (
            space.spans_of(A.id),
            space.spans_of(B.id),
            space.bytes_of(B.id)
        ),
        (0, 1, 768),
        "merged"
    );
    assert_eq!(
        space.rename(B.id, B, 1),
        Ok(true),
        "to itself: nothing to do"
    );
    assert_eq!(
        space.rename(B.id, Owner::new(B.id, A.class), 1),
        Err(OwnerError::Class { known: B.class })
    );
    assert_eq!(space.rename(OwnerId::IDLE, A, 1), Err(OwnerError::Idle));
    space.check().unwrap();
}

// Many blocks.

#[test]
fn sixty_five_thousand_blocks_freed_in_random_order_become_one_span() {
    const COUNT: usize = 65_536;
    let mut random = Random(1);
    for owner in [Owner::IDLE, A] {
        let mut space = space(COUNT * 1024);
        let mut addrs: Vec<usize> = (0..COUNT)
            .map(|_| space.allocate(1024, GRANULE, IDLE).unwrap().addr)
            .collect();
        random.shuffle(&mut addrs);
        let mut spent = std::time::Duration::ZERO;
        for part in addrs.chunks(COUNT / 8) {
            let begin = std::time::Instant::now();
            for addr in part {
                space.free(*addr, owner).unwrap();
            }
            spent += begin.elapsed();
            space.check().unwrap();
        }
        println!("{COUNT} frees: {spent:?}");
        assert!(space.settle(owner.id, 1));
        let stats = space.stats();
        assert_eq!(
            (stats.free_spans, stats.largest_idle, stats.live_blocks),
            (1, COUNT * 1024, 0)
        );
    }
}

#[test]
fn a_run_is_found_among_sixty_five_thousand_spans_of_alternating_owners() {
    const COUNT: usize = 65_536;
    let mut space = space(COUNT * 256);
    let addrs: Vec<usize> = (0..COUNT)
        .map(|_| space.allocate(256, GRANULE, IDLE).unwrap().addr)
        .collect();
    for (place, addr) in addrs.iter().enumerate() {
        space
            .free(*addr, if place % 2 == 0 { A } else { B })
            .unwrap();
    }
    space.check().unwrap();
    let begin = std::time::Instant::now();
    let classes = [A.class, B.class];
    assert!(space.allocate(COUNT * 256 + 1, GRANULE, &classes).is_none());
    assert!(space.allocate(512, GRANULE, &classes[..1]).is_none());
    let taken = space.allocate(COUNT / 2 * 256, GRANULE, &classes).unwrap();
    assert_eq!((taken.addr, taken.owners.len()), (BASE, 2));
    let ranked = space
        .allocate_ranked(COUNT / 4 * 256, 4096, &mut |id| Some(id.0))
        .unwrap();
    assert_eq!(ranked.addr, BASE + COUNT / 2 * 256);
    println!("four searches among {COUNT} spans: {:?}", begin.elapsed());
    space.check().unwrap();
    assert!(space.settle(A.id, usize::MAX) & space.settle(B.id, usize::MAX));
    space.check().unwrap();
}

#[test]
fn blocks_are_as_long_as_asked_and_disjoint_through_a_hundred_thousand_operations() {
    let mut random = Random(3);
    let mut space = space(48 * MIB);
    let mut live: Vec<Taken> = Vec::new();
    let owners = [Owner::IDLE, A, A2, B];
    for step in 0..100_000 {
        let size = 1 + random.below(MIB);
        let classes = [ClassId::IDLE, ClassId(1 + random.below(2) as u32)];
        if random.below(2) == 0 {
            if let Some(taken) = space.allocate(size, GRANULE << random.below(6), &classes) {
                assert!(
                    taken.len >= size
                        && space
                            .live(taken.addr)
                            .is_some_and(|block| block.len == taken.len)
                );
                live.push(taken);
            }
        } else if !live.is_empty() {
            let block = live.swap_remove(random.below(live.len()));
            let freed = space.free(block.addr, owners[random.below(4)]).unwrap();
            assert_eq!(freed.len, block.len);
        }
        if step % 8 == 0 {
            space.settle(owners[random.below(4)].id, usize::MAX);
        }
        if step % 1000 == 0 {
            space.check().unwrap();
        }
    }
    for block in live {
        space.free(block.addr, Owner::IDLE).unwrap();
    }
    for owner in owners {
        assert!(space.settle(owner.id, usize::MAX));
    }
    assert_eq!(all_blocks(&space).len(), 1);
    assert_eq!(all_blocks(&space)[0].state, BlockState::Free(Owner::IDLE));
    space.check().unwrap();
}
