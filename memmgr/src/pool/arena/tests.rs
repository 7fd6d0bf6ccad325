//! Random requests, frees, failures and trims: whatever is planned can be done, keeps to the limit, and moves idle memory alone.

mod rig;

use self::rig::Rig;
use super::{Moving, PAGE};
use crate::pool::best_fit::{ClassId, GRANULE, Owner, OwnerId, tests::Random};

const BASE: usize = 0x7f00_0000_0000;
/// What work may still touch, as of a stream.
const PENDING: Owner = Owner::new(OwnerId(5), ClassId(3));

#[test]
fn whatever_is_planned_can_be_done() {
    let (mut free, mut cleared, mut slept, mut refusals) = (0, 0, 0, 0);
    for seed in 1..=48u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let limit = [usize::MAX / 2, 48 * PAGE, 37 * PAGE + 5 * GRANULE][seed as usize % 3];
        let mut rig = Rig::new(1 + seed as usize % 2, 96, limit);
        rig.longest = [1, 2, 4, 3][seed as usize / 6 % 4] * PAGE;
        let mut live: Vec<usize> = Vec::new();
        let (mut grown, mut refused, mut asleep) = (0, 0, 0);
        for _ in 0..400 {
            match random.below(10) {
                0..=4 => {
                    let size = match random.below(3) {
                        0 => 1 + random.below(4096),
                        1 => 1 + random.below(PAGE),
                        _ => 1 + random.below(7 * PAGE),
                    };
                    let size = size.next_multiple_of(GRANULE);
                    let mut taken = rig.space.allocate(size, GRANULE, &[ClassId::IDLE]);
                    if taken.is_none() {
                        rig.moving =
                            [Moving::Highest, Moving::Known, Moving::Nothing][random.below(3)];
                        let fails = (random.below(4) == 0).then(|| random.below(3));
                        if rig.grow(size, fails) {
                            grown += 1;
                            taken = rig.space.allocate(size, GRANULE, &[ClassId::IDLE]);
                            assert!(taken.is_some(), "the growth does not serve the request");
                        } else {
                            refused += 1;
                        }
                    }
                    live.extend(taken.map(|taken| taken.addr));
                }
                5..=7 if !live.is_empty() => {
                    let addr = live.swap_remove(random.below(live.len()));
                    let owner = [Owner::IDLE, PENDING][random.below(2)];
                    rig.space.free(addr, owner).unwrap();
                }
                8 => drop(rig.space.settle(PENDING.id, random.below(3))),
                _ if random.below(6) == 0 => {
                    let most = [usize::MAX, 3 * PAGE, PAGE, 0][random.below(4)];
                    let often = [1, 3, usize::MAX / 2][random.below(3)];
                    // Not with a limit: what comes back whole would be above it.
                    if rig.limit < usize::MAX / 2 {
                        rig.trim(most, || false);
                    } else {
                        rig.trim(most, || random.below(often) == 0);
                    }
                }
                _ if random.below(4) == 0 => {
                    let idle = rig.space.stats().idle;
                    rig.moving = Moving::Home;
                    let fails = (random.below(3) == 0).then(|| random.below(3));
                    if idle > 0 && rig.grow(idle, fails) {
                        rig.check();
                        assert_eq!(rig.space.stats().largest_idle, idle);
                    }
                }
                // Another limit: what the former one cut off a chunk is there.
                _ if random.below(8) == 0 && limit < usize::MAX / 2 => {
                    let more = random.below(7 * PAGE).next_multiple_of(GRANULE);
                    rig.limit = rig.space.reserved().max(24 * PAGE) + more;
                }
                _ if random.below(4) == 0 => {
                    rig.arena.sleep(&mut rig.space);
                    asleep += rig.arena.sleeping();
                }
                _ => {}
            }
            rig.check();
        }
        assert!(grown > 5, "{seed}: {grown}");
        refusals += refused;
        slept += asleep;
        free += rig.free_moves;
        cleared += rig.cleared;
        for addr in live {
            rig.space.free(addr, Owner::IDLE).unwrap();
        }
        rig.space.settle(PENDING.id, usize::MAX);
        rig.trim(usize::MAX, || false);
        assert_eq!(rig.space.reserved(), 0);
        assert!(rig.pages.is_empty());
        for range in 0..1 + seed as usize % 2 {
            assert!(rig.space.remove_range(BASE + range * (1 << 32)));
        }
        rig.space.check().unwrap();
    }
    assert!(
        free > 0 && cleared > 50 && slept > 0 && refusals > 50,
        "{free}, {cleared}, {slept}, {refusals}"
    );
}

/// A chunk that moves stays mapped where it was, and comes back without a mapping.
#[test]
fn what_was_somewhere_comes_back_for_nothing() {
    let mut rig = Rig::new(1, 64, usize::MAX / 2);
    rig.moving = Moving::Known;
    let [a, wall, b, end] = rig.take([1, 1, 2, 1]);
    rig.give([a, b]);
    // The three pages move behind the last block.
    let [large, last] = rig.take([3, 3]);
    assert_eq!((large, rig.made, rig.free_moves), (end + PAGE, 8, 0));
    for at in [a, b, b + PAGE] {
        assert!(rig.pages.contains_key(&at), "{at:#x} is mapped no more");
    }
    rig.check();
    // Where they were before, they are mapped.
    rig.give([large, wall]);
    let [low] = rig.take([4]);
    assert_eq!((low, rig.made, rig.free_moves), (a, 8, 3));
    rig.check();
    // New memory takes the place of what was there.
    let [new] = rig.take([2]);
    assert_eq!((new, rig.made, rig.cleared), (large, 10, 2));
    rig.check();
    rig.give([low, end, new, last]);
    rig.trim(usize::MAX, || false);
    assert!(rig.pages.is_empty(), "{:?}", rig.pages);
}

/// There are at most four aliases a chunk.
#[test]
fn the_oldest_places_are_forgotten() {
    let mut rig = Rig::new(1, 256, usize::MAX / 2);
    let mut walls = Vec::new();
    for _ in 0..20 {
        let [one, wall] = rig.take([1, 1]);
        rig.give([one]);
        walls.push(wall);
        rig.check();
        // Two pages: the idle one moves each time.
        let [two] = rig.take([2]);
        rig.give([two]);
        rig.check();
        let pages = rig.pages.len();
        assert!(pages <= 5 * rig.arena.chunks(), "{pages}");
    }
    for wall in walls {
        rig.give([wall]);
    }
    rig.trim(usize::MAX, || false);
    assert!(rig.pages.is_empty());
}

/// A pool that plainly grows is one piece, and its idle end is a part of the next growth.
#[test]
fn a_growth_continues_the_idle_end() {
    let mut rig = Rig::new(1, 64, usize::MAX / 2);
    assert!(rig.grow(PAGE / 2, None));
    let first = rig
        .space
        .allocate(PAGE / 2, GRANULE, &[ClassId::IDLE])
        .unwrap();
    assert!(rig.grow(3 * PAGE / 2, None));
    assert_eq!(rig.space.reserved(), 2 * PAGE);
    let second = rig
        .space
        .allocate(3 * PAGE / 2, GRANULE, &[ClassId::IDLE])
        .unwrap();
    assert_eq!(second.addr, first.addr + PAGE / 2);
}

/// A part of a chunk that a limit keeps back is the first to be used once there is room.
#[test]
fn what_a_limit_cuts_off_a_chunk_is_used_first() {
    let mut rig = Rig::new(1, 64, PAGE / 4);
    assert!(rig.grow(PAGE / 4, None));
    assert_eq!((rig.space.reserved(), rig.made), (PAGE / 4, 1));
    assert!(!rig.grow(PAGE / 2, None));
    rig.limit = PAGE;
    assert!(rig.grow(PAGE / 2, None));
    assert_eq!((rig.space.reserved(), rig.made), (PAGE, 1));
    rig.check();
}

/// Memory is made only if no idle chunk is left.
#[test]
fn idle_chunks_come_before_new_ones() {
    let mut rig = Rig::new(1, 64, usize::MAX / 2);
    let mut blocks = Vec::new();
    for _ in 0..8 {
        assert!(rig.grow(PAGE, None));
        blocks.push(
            rig.space
                .allocate(PAGE, GRANULE, &[ClassId::IDLE])
                .unwrap()
                .addr,
        );
    }
    for at in [1, 3, 5] {
        rig.space.free(blocks[at], Owner::IDLE).unwrap();
    }
    rig.space.free(blocks[7], PENDING).unwrap();
    assert!(rig.grow(4 * PAGE, None));
    assert_eq!((rig.made, rig.space.reserved()), (9, 9 * PAGE));
    assert_eq!(rig.space.bytes_of(PENDING.id), PAGE);
    rig.check();
}

/// Chunks that sleep where a growth goes serve it without a move, and as much idle memory sleeps in their place.
#[test]
fn what_sleeps_serves_in_place_of_what_would_move() {
    let mut rig = Rig::new(1, 64, usize::MAX / 2);
    assert!(rig.grow(8 * PAGE, None));
    rig.arena.sleep(&mut rig.space);
    assert_eq!(
        (rig.arena.sleeping(), rig.space.reserved()),
        (8 * PAGE, 8 * PAGE)
    );
    let mut take = |pages: usize| {
        let taken = rig.space.allocate(pages * PAGE, GRANULE, &[ClassId::IDLE]);
        if let Some(taken) = taken {
            return taken.addr;
        }
        assert!(rig.grow(pages * PAGE, None));
        rig.check();
        let taken = rig.space.allocate(pages * PAGE, GRANULE, &[ClassId::IDLE]);
        taken.unwrap().addr
    };
    let [first, second] = [take(2), take(2)];
    assert_eq!((first, second), (BASE, BASE + 2 * PAGE));
    rig.space.free(first, Owner::IDLE).unwrap();
    // Two pages sleep at the front from now on, as if they had moved behind the second block.
    assert!(rig.grow(3 * PAGE, None));
    let third = rig.space.allocate(3 * PAGE, GRANULE, &[ClassId::IDLE]);
    assert_eq!(third.unwrap().addr, BASE + 4 * PAGE);
    assert_eq!((rig.arena.sleeping(), rig.made), (3 * PAGE, 8));
    rig.check();
    // They move once what is needed lies elsewhere, and nothing is made.
    assert!(rig.grow(3 * PAGE, None));
    assert_eq!((rig.arena.sleeping(), rig.made), (0, 8));
    rig.check();
    rig.trim(usize::MAX, || false);
}
