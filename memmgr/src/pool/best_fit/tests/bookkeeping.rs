//! Books that are kept lazily: pages, the lists of owners and seams, the table of live blocks.

use super::Random;
use crate::pool::best_fit::{ClassId, GRANULE, Owner, OwnerId, Space};

const IDLE: &[ClassId] = &[ClassId::IDLE];
const A: Owner = Owner::new(OwnerId(1), ClassId(2));
const B: Owner = Owner::new(OwnerId(2), ClassId(3));
const KIB: usize = 1 << 10;

/// Pinned memory starts at a page of the host, not at a multiple of the length of the pages that are kept here.
#[test]
fn blocks_are_found_by_any_address_wherever_their_segment_starts() {
    for shift in [0, GRANULE, 4 * KIB, 36 * KIB, 64 * KIB - GRANULE] {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut space = Space::<u64>::new();
        for base in [0x1000_0000 + shift, 0x2000_0000 + shift] {
            space.add_segment(base, 1 << 20).unwrap();
        }
        assert!(space.live_containing(0x1000_0000 + shift + 1).is_none());
        let mut live = Vec::new();
        for _ in 0..4000 {
            if live.is_empty() || random.below(2) == 0 {
                let size = (1 + random.below(40)) * GRANULE;
                live.extend(space.allocate(size, GRANULE, IDLE).map(|taken| taken.addr));
            } else {
                let addr = live.swap_remove(random.below(live.len()));
                space.free(addr, Owner::IDLE).unwrap();
            }
            space.check().unwrap();
        }
    }
}

/// Two owners take turns on one block: the lists keep a little of what was there, and that is sound.
#[test]
fn a_block_that_changes_its_owner_for_ever_leaves_sound_books() {
    let mut space = Space::<u64>::new();
    space.add_segment(0x1000_0000, 8 * KIB).unwrap();
    let classes = [ClassId::IDLE, A.class, B.class];
    for turn in 0..1000 {
        let owner = if turn % 2 == 0 { A } else { B };
        let block = space.allocate(KIB, GRANULE, &classes).unwrap().addr;
        let other = space.allocate(KIB, GRANULE, &classes).unwrap().addr;
        space.free(block, owner).unwrap();
        space.free(other, Owner::IDLE).unwrap();
        space.check().unwrap();
    }
}

/// Lists of owners and seams do not grow with the number of operations.
#[test]
fn the_lists_stay_as_short_as_the_blocks_are_few() {
    let mut random = Random(7);
    let mut space = Space::<u64>::new();
    space.add_segment(0x1000_0000, 64 * KIB).unwrap();
    let owners: Vec<Owner> = (1..20)
        .map(|number| Owner::new(OwnerId(number), ClassId(2 + number % 3)))
        .collect();
    let classes = [ClassId::IDLE, ClassId(2), ClassId(3), ClassId(4)];
    let mut live = Vec::new();
    for turn in 0..300_000 {
        if live.is_empty() || random.below(2) == 0 {
            let size = (1 + random.below(8)) * GRANULE;
            let taken = space.allocate(size, GRANULE, &classes);
            live.extend(taken.map(|taken| taken.addr));
        } else {
            let addr = live.swap_remove(random.below(live.len()));
            let owner = owners[random.below(owners.len())];
            space.free(addr, owner).unwrap();
        }
        if turn % 100 == 0 {
            space.settle(owners[random.below(owners.len())].id, 3);
            space.check().unwrap();
        }
    }
    let slots = space.blocks.slots();
    assert!(slots <= 512, "{slots} records for 256 granules");
    assert!(space.seams.len() <= slots);
    for (id, owner) in space.owners.owners() {
        assert!(
            owner.list.len() <= 2 * slots + 65,
            "{id:?}: {}",
            owner.list.len()
        );
    }
}

/// The table of live blocks keeps 40 bits of an address: blocks that agree in those are told apart.
#[test]
fn blocks_at_the_same_place_of_different_tebibytes_are_told_apart() {
    let mut space = Space::<u64>::new();
    let bases: Vec<usize> = (1..6).map(|tebibyte| (tebibyte << 40) + 0x1_0000).collect();
    for base in &bases {
        space.add_segment(*base, 64 * KIB).unwrap();
    }
    let mut live = Vec::new();
    while let Some(taken) = space.allocate(KIB, GRANULE, IDLE) {
        live.push(taken.addr);
        *space.data_mut(taken.addr).unwrap() = (taken.addr >> 10) as u64;
    }
    assert_eq!(live.len(), 5 * 64);
    space.check().unwrap();
    let mut random = Random(11);
    while !live.is_empty() {
        let addr = live.swap_remove(random.below(live.len()));
        let freed = space.free(addr, Owner::IDLE).unwrap();
        assert_eq!(freed.data, (addr >> 10) as u64);
        assert!(space.free(addr, Owner::IDLE).is_err());
        space.check().unwrap();
    }
}
