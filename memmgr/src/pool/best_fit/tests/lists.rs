//! Random programs that are long enough for the lists that change their kind: long spans that are put in order and out of it
//! again, lists of owners that are made anew. What the naive model does is what is right.

use super::Random;
use super::oracle::{Oracle, all_blocks};
use crate::pool::best_fit::{BlockState, ClassId, GRANULE, Kind, Owner, OwnerId, Space};

const BASE: usize = 0x4000_0000_0000;
const MIB: usize = 1 << 20;

/// Three owners of one class, two of another.
const OWNERS: [Owner; 6] = [
    Owner::IDLE,
    Owner::new(OwnerId(1), ClassId(2)),
    Owner::new(OwnerId(2), ClassId(2)),
    Owner::new(OwnerId(3), ClassId(2)),
    Owner::new(OwnerId(4), ClassId(3)),
    Owner::new(OwnerId(5), ClassId(3)),
];

/// The allocator and the naive model, side by side.
struct Both {
    space: Space<u64>,
    oracle: Oracle,
    random: Random,
}

impl Both {
    fn new(seed: u64, segments: &[usize]) -> Self {
        let mut both = Self {
            space: Space::new(),
            oracle: Oracle::default(),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        };
        let mut base = BASE;
        for len in segments {
            both.space.add_segment(base, *len).unwrap();
            both.oracle.add_segment(base, *len).unwrap();
            base += len;
        }
        both
    }

    fn owner(&mut self) -> Owner {
        OWNERS[self.random.below(OWNERS.len())]
    }

    fn take_single(&mut self, size: usize) -> bool {
        let own = OWNERS[self.random.below(OWNERS.len())].class;
        let classes = [ClassId::IDLE, own];
        let taken = self.space.take_single(size, own, |_| 0);
        let fits = taken.is_some();
        if fits {
            let given = self.oracle.allocate(size, GRANULE, &classes);
            assert_eq!(
                taken.map(|taken| (taken.addr, taken.len)),
                given.map(|given| (given.0, given.1))
            );
        } else {
            let longest = self.oracle.blocks().into_iter().filter(|block| {
                matches!(block.state, BlockState::Free(owner) if classes.contains(&owner.class))
            });
            assert!(longest.map(|block| block.len).max().unwrap_or(0) < size);
        }
        fits
    }

    fn allocate(&mut self, size: usize) -> bool {
        let align = GRANULE << self.random.below(3);
        let classes = [ClassId::IDLE, ClassId(2 + self.random.below(2) as u32)];
        let taken = self.space.allocate(size, align, &classes);
        let given = self.oracle.allocate(size, align, &classes);
        let taken = taken.map(|taken| (taken.addr, taken.len, taken.owners.to_vec()));
        assert_eq!(taken, given);
        given.is_some()
    }

    fn allocate_ranked(&mut self, size: usize) -> bool {
        let ranks: Vec<Option<u32>> = OWNERS
            .iter()
            .map(|_| (self.random.below(4) > 0).then(|| self.random.below(3) as u32))
            .collect();
        let rank = |id: OwnerId| ranks[id.0 as usize];
        let taken = self.space.allocate_ranked(size, GRANULE, &mut { rank });
        let given = self.oracle.allocate_ranked(size, GRANULE, rank);
        let taken = taken.map(|taken| (taken.addr, taken.len, taken.owners.to_vec()));
        assert_eq!(taken, given);
        given.is_some()
    }

    fn free(&mut self) {
        let live = self.oracle.live();
        if live.is_empty() {
            return;
        }
        let addr = live[self.random.below(live.len())];
        let owner = self.owner();
        let freed = self.space.free(addr, owner).map(|freed| freed.len);
        assert_eq!(freed, self.oracle.free(addr, owner));
    }

    fn rename(&mut self, to_idle: bool) {
        let from = self.owner();
        let to = if to_idle { Owner::IDLE } else { self.owner() };
        let budget = [1, 2, usize::MAX][self.random.below(3)];
        let done = self.space.rename(from.id, to, budget);
        assert_eq!(done, self.oracle.rename(from.id, to, budget, &self.space));
    }

    /// A part of a gap gets memory, or a part of an idle span loses it.
    fn remap(&mut self) {
        let gaps = self.oracle.in_state(BlockState::Gap);
        if gaps.len() > self.random.below(8) {
            let gap = gaps[self.random.below(gaps.len())];
            let (start, len) = self.part(gap.addr, gap.len);
            let held = self.oracle.held.min(len);
            assert!(self.space.map(start, len, held) && self.oracle.map(start, len, held));
            return;
        }
        let spans: Vec<_> = self.space.idle_spans(0).collect();
        if spans.is_empty() {
            return;
        }
        let span = spans[self.random.below(spans.len())];
        let Kind::Idle(slot) = span.kind else {
            panic!("an idle span is no gap");
        };
        let (start, len) = self.part(span.addr, span.end - span.addr);
        assert!(self.space.unmap(slot, start, len) && self.oracle.unmap(start, len));
    }

    /// A part of a range: start and length.
    fn part(&mut self, addr: usize, len: usize) -> (usize, usize) {
        let granules = len / GRANULE;
        let from = self.random.below(2) * self.random.below(granules);
        let len = match self.random.below(2) {
            0 => granules - from,
            _ => 1 + self.random.below(granules - from),
        };
        (addr + from * GRANULE, len * GRANULE)
    }

    fn check(&self) {
        self.space.check().unwrap();
        assert_eq!(all_blocks(&self.space), self.oracle.blocks());
    }

    /// How many lengths the class has in no order, in lists and in order that has most of them.
    fn most_lengths(&self) -> [usize; 3] {
        let classes = self.space.owners.classes();
        let lengths = classes.map(|(_, class)| class.index.lengths());
        lengths.fold([0; 3], |most, lengths| {
            std::array::from_fn(|way| most[way].max(lengths[way]))
        })
    }
}

/// Spans of few and of many lengths in turn, below `most` bytes and with half of them of `common` bytes, beside the oracle: which
/// ways of keeping lengths were in use, and how often one that had been was not any more.
fn many_lengths_and_few(seed: u64, common: usize, most: usize) -> ([bool; 3], usize) {
    let mut both = Both::new(seed, &[300 * most, 200 * most]);
    let (mut used, mut left) = ([false; 3], 0);
    let mut before = [0; 3];
    let mut look = |both: &Both| {
        let now = both.most_lengths();
        left += (1..3)
            .filter(|way| before[*way] > 0 && now[*way] == 0)
            .count();
        used = std::array::from_fn(|way| used[way] || now[way] > 0);
        before = now;
    };
    for _ in 0..4 {
        // Nearly all of it in blocks, then nearly nothing.
        let (mut refused, mut turn) = (0, 0);
        while refused < 8 {
            let size = match both.random.below(4) {
                0 | 1 => common,
                2 => common + GRANULE,
                _ => GRANULE * (1 + both.random.below(most / GRANULE)),
            };
            let fits = if both.random.below(4) == 0 {
                both.allocate(size)
            } else {
                both.take_single(size)
            };
            if both.random.below(40) == 0 {
                both.remap();
            }
            if !fits {
                refused += 1;
                both.rename(true);
            }
            look(&both);
            turn += 1;
            if turn % 16 == 0 {
                both.check();
            }
        }
        while both.oracle.live().len() > 8 {
            both.free();
            if both.random.below(8) == 0 {
                both.take_single(common);
            }
            match both.random.below(60) {
                0 => drop(both.allocate_ranked(common * 3 / 2)),
                1 | 2 => both.remap(),
                _ => {}
            }
            look(&both);
            turn += 1;
            if turn % 16 == 0 {
                both.check();
            }
        }
        for owner in OWNERS {
            let done = both.space.rename(owner.id, Owner::IDLE, usize::MAX);
            let given = (both.oracle).rename(owner.id, Owner::IDLE, usize::MAX, &both.space);
            assert_eq!(done, given);
            both.check();
        }
        // The next operation files what is still in no index.
        both.allocate(common);
        look(&both);
        both.check();
    }
    (used, left)
}

#[test]
fn spans_are_found_however_many_lengths_they_have() {
    for seed in 1..=2 {
        let (used, left) = many_lengths_and_few(seed, 64 * MIB, 128 * MIB);
        assert!(
            used.iter().all(|used| *used) && left > 2,
            "{used:?}, {left}"
        );
        let (used, left) = many_lengths_and_few(seed, MIB, 2 * MIB);
        assert!(used[0] && used[1] && left > 1, "{used:?}, {left}");
    }
}

/// Spans of few lengths and of many, alone in their length or not, between neighbours that join them or not: which of that there
/// was is told by how many pieces became one.
#[test]
fn all_spans_of_an_owner_change_hands_at_once() {
    let mut joined = [0; 3];
    for (lengths, joined) in [2, 20, 200].into_iter().zip(&mut joined) {
        let mut both = Both::new(lengths as u64, &[2048 * GRANULE, 1024 * GRANULE]);
        for turn in 0..3000 {
            let size = GRANULE * (1 + both.random.below(lengths));
            match both.random.below(100) {
                0..=39 => drop(both.take_single(size)),
                40..=44 => drop(both.allocate(2 * size)),
                45..=93 => both.free(),
                step => {
                    let from = both.owner();
                    let to = if step < 98 { Owner::IDLE } else { both.owner() };
                    let before = both.space.stats().merges;
                    let done = both.space.rename(from.id, to, usize::MAX);
                    let given = (both.oracle).rename(from.id, to, usize::MAX, &both.space);
                    assert_eq!(done, given);
                    *joined += both.space.stats().merges - before;
                    both.check();
                }
            }
            if turn % 16 == 0 {
                both.check();
            }
        }
    }
    assert!(joined.iter().all(|joined| *joined > 50), "{joined:?}");
}

#[test]
fn lists_of_owners_are_made_when_they_are_wanted() {
    let mut made = 0;
    for seed in 1..=4 {
        let mut both = Both::new(seed, &[192 * GRANULE, 64 * GRANULE]);
        for turn in 0..4000 {
            let size = GRANULE * (1 + both.random.below(4));
            match both.random.below(100) {
                0..=49 => drop(both.take_single(size)),
                50..=53 => drop(both.allocate(2 * size)),
                _ => both.free(),
            }
            // Now and then, so that many spans are entered before a list is wanted.
            if turn % 400 == 399 {
                let implied = |both: &Both| {
                    let owners = both.space.owners.owners();
                    owners.filter(|(_, owner)| owner.implied).count()
                };
                let before = implied(&both);
                both.check();
                for _ in 0..4 {
                    let size = GRANULE * (4 + both.random.below(8));
                    match both.random.below(4) {
                        0 => drop(both.allocate_ranked(size)),
                        step => both.rename(step == 1),
                    }
                    both.check();
                }
                made += before.saturating_sub(implied(&both));
            } else if turn % 20 == 0 {
                both.check();
            }
        }
    }
    assert!(made > 20, "only {made} lists were made anew");
}
