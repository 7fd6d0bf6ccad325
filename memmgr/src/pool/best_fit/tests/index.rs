//! The index alone, beside sets that are in order: few and many lengths, short and long ones, alone and many times, of classes that
//! share their nodes and hand their spans to each other.

use std::collections::BTreeSet;

use super::Random;
use crate::pool::best_fit::{
    GRANULE, OwnerId, Slot,
    blocks::Blocks,
    index::{Entry, Index, Nodes},
};

/// From here on spans are long: 64 MiB.
const LONG: usize = 64 << 20;
/// The longest span that an index may see.
const LONGEST: usize = usize::MAX & !(GRANULE - 1);
/// How many lengths may lie in no order, and from how many down they go back there.
const MOST: usize = 48;
const FEW: usize = 16;

/// Which of the three ways of keeping lengths are in use: in no order, in lists, in order.
type Ways = [bool; 3];

/// Some indexes, and what they should have.
struct Rig {
    nodes: Nodes,
    blocks: Blocks<u64>,
    indexes: Vec<Index>,
    spans: Vec<BTreeSet<Entry>>,
    used: BTreeSet<usize>,
    random: Random,
}

impl Rig {
    fn new(seed: u64, classes: usize) -> Self {
        Self {
            nodes: Nodes::new(),
            blocks: Blocks::new(),
            indexes: (0..classes).map(|_| Index::new()).collect(),
            spans: vec![BTreeSet::new(); classes],
            used: BTreeSet::new(),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        }
    }

    /// A new span of a class.
    fn insert(&mut self, class: usize, len: usize) {
        let mut addr = GRANULE;
        while !self.used.insert(addr) {
            addr = GRANULE * (1 + self.random.below(1 << 20));
        }
        let slot = self.blocks.insert_after(Slot::NONE, addr, len);
        self.blocks.at_mut(slot).make_free(len, OwnerId::IDLE);
        self.file(class, Entry { len, addr, slot });
    }

    fn file(&mut self, class: usize, entry: Entry) {
        self.indexes[class].insert(&mut self.nodes, &mut self.blocks, entry);
        self.spans[class].insert(entry);
    }

    /// Takes a span out of its class.
    fn unfile(&mut self, class: usize, entry: Entry) {
        self.indexes[class].remove(&mut self.nodes, &mut self.blocks, entry);
        self.spans[class].remove(&entry);
    }

    fn remove(&mut self, class: usize, entry: Entry) {
        self.unfile(class, entry);
        self.blocks.remove(entry.slot);
        self.used.remove(&entry.addr);
    }

    /// A span becomes another class's, perhaps of another length.
    fn hand_over(&mut self, from: usize, to: usize, entry: Entry, len: usize) {
        self.unfile(from, entry);
        self.blocks.at_mut(entry.slot).make_free(len, OwnerId::IDLE);
        self.file(to, Entry { len, ..entry });
    }

    /// Any span of a class: mostly the lowest one of its length.
    fn any(&mut self, class: usize) -> Option<Entry> {
        let spans = &self.spans[class];
        if spans.is_empty() {
            return None;
        }
        let any = *spans.iter().nth(self.random.below(spans.len()))?;
        if self.random.below(3) == 0 {
            return Some(any);
        }
        self.first(class, any.len)
    }

    /// The first span of at least `len` bytes.
    fn first(&self, class: usize, len: usize) -> Option<Entry> {
        let (addr, slot) = (0, Slot::from_number(0));
        let least = Entry { len, addr, slot };
        self.spans[class].range(least..).next().copied()
    }

    /// Asks for spans around this length.
    fn probe(&self, class: usize, len: usize) {
        let (index, nodes) = (&self.indexes[class], &self.nodes);
        let around = [
            len.saturating_sub(GRANULE),
            len,
            len.saturating_add(GRANULE),
        ];
        for len in around {
            if len == 0 || len % GRANULE != 0 {
                continue;
            }
            let first = self.first(class, len);
            assert_eq!(index.smallest(nodes, len), first.map(|entry| entry.slot));
            let exact = first.filter(|entry| entry.len == len);
            assert_eq!(index.exact(nodes, len), exact.map(|entry| entry.slot));
        }
    }

    fn check(&self, class: usize) {
        let (index, spans) = (&self.indexes[class], &self.spans[class]);
        index.check(&self.blocks).unwrap();
        assert_eq!(index.count(), spans.len());
        let longest = spans.last().map_or(0, |entry| entry.len);
        assert_eq!(index.longest(&self.nodes, &self.blocks), longest);
        let shortest = spans.first().map_or(usize::MAX, |entry| entry.len);
        assert!(index.least() <= shortest && (index.least() == usize::MAX) == spans.is_empty());
        let all = index.at_least(&self.nodes, &self.blocks, 0);
        assert!(all.eq(spans.iter().copied()));
        for len in [GRANULE, LONG, LONGEST] {
            self.probe(class, len);
        }
    }

    fn lengths(&self, class: usize) -> [usize; 3] {
        let [flat, lists, sorted] = self.indexes[class].lengths();
        let mut lens: Vec<usize> = self.spans[class].iter().map(|entry| entry.len).collect();
        lens.dedup();
        assert_eq!(flat + lists + sorted, lens.len());
        assert!(flat <= MOST, "{flat} lengths lie in no order");
        [flat, lists, sorted]
    }

    /// Some lengths: how many, and how many of them are long, as it happens.
    fn choose_lengths(&mut self) -> Vec<usize> {
        let long = [0, 1, 50, 99, 100][self.random.below(5)];
        let kinds = [1, 4, 20, 60, 150][self.random.below(5)];
        let far = [1 << 10, LONG / GRANULE, 1 << 40, LONGEST / GRANULE];
        let far = far[self.random.below(4)];
        (0..kinds)
            .map(|_| {
                let granules = self.random.below(far);
                if self.random.below(100) < long {
                    (granules * GRANULE).max(LONG)
                } else {
                    GRANULE * (1 + granules % (LONG / GRANULE - 1))
                }
            })
            .collect()
    }
}

#[test]
fn an_index_finds_what_a_set_in_order_finds() {
    let mut changes: BTreeSet<(Ways, Ways)> = BTreeSet::new();
    for seed in 1..=12 {
        let mut rig = Rig::new(seed, 3);
        let mut ways = [[false; 3]; 3];
        for _ in 0..30 {
            let lens = rig.choose_lengths();
            let (class, grows) = (rig.random.below(3), rig.random.below(3) > 0);
            for turn in 0..200 {
                let len = lens[rig.random.below(lens.len())];
                let other = rig.random.below(3);
                match (rig.random.below(8), rig.any(class)) {
                    (0, Some(entry)) => rig.hand_over(class, other, entry, len),
                    (1, Some(entry)) => rig.remove(class, entry),
                    (2..=6, Some(entry)) if !grows => rig.remove(class, entry),
                    _ => rig.insert(class, len),
                }
                for class in [class, other] {
                    rig.probe(class, len);
                    let now = rig.lengths(class).map(|lengths| lengths > 0);
                    changes.insert((ways[class], now));
                    ways[class] = now;
                    if turn % 8 == 0 {
                        rig.check(class);
                    }
                }
            }
        }
        for class in 0..3 {
            while let Some(entry) = rig.any(class) {
                rig.remove(class, entry);
                rig.probe(class, entry.len);
            }
            rig.check(class);
        }
    }
    // In no order and in lists, in lists, in lists and in order, in order: each comes and goes.
    let (yes, no) = (true, false);
    for ways in [[yes, yes, no], [no, yes, no], [no, yes, yes], [no, no, yes]] {
        let came = changes
            .iter()
            .any(|(from, to)| *from != ways && *to == ways);
        let went = changes
            .iter()
            .any(|(from, to)| *from == ways && *to != ways);
        assert!(came && went, "{ways:?}: {changes:?}");
    }
}

/// The lengths change their place at the same numbers whatever they are, so that none goes back and forth.
#[test]
fn lengths_are_put_in_order_at_one_number_and_out_of_it_at_a_much_smaller_one() {
    let short = |number| GRANULE * (1 + number);
    let long = |number| LONG + GRANULE * number;
    let mut rig = Rig::new(1, 1);
    // Each length twice: how many spans there are does not matter.
    let mut twice = |lens: Vec<usize>, lengths| {
        for len in lens {
            rig.insert(0, len);
            rig.insert(0, len);
        }
        rig.check(0);
        assert_eq!(rig.lengths(0), lengths);
    };
    twice((0..MOST - 1).map(short).collect(), [MOST - 1, 0, 0]);
    twice(vec![long(0)], [MOST, 0, 0]);
    twice(vec![long(1)], [2, MOST - 1, 0]);
    twice((2..MOST).map(long).collect(), [MOST, MOST - 1, 0]);
    twice(vec![long(MOST)], [0, MOST - 1, MOST + 1]);
    let mut none = |lens: Vec<usize>, lengths| {
        for len in lens {
            for _ in 0..2 {
                let entry = rig.first(0, len).unwrap();
                assert_eq!(entry.len, len);
                rig.remove(0, entry);
            }
        }
        rig.check(0);
        assert_eq!(rig.lengths(0), lengths);
    };
    none((FEW + 1..=MOST).map(long).collect(), [0, MOST - 1, FEW + 1]);
    none(vec![long(0)], [FEW, MOST - 1, 0]);
    none((1..MOST - 1).map(short).collect(), [FEW, 1, 0]);
    none(vec![long(1), short(0)], [FEW - 1, 0, 0]);
}

#[test]
fn priorities_of_slots_at_equal_distances_have_no_order() {
    // Each distance between slots, and the longest stretch in which their priorities rise or fall all the way.
    let longest = (1..5000).map(|distance| {
        let slots = (0..400).map(|turn| Slot::from_number(turn * distance));
        let priorities: Vec<u32> = slots.map(Slot::priority).collect();
        let rises = |pair: &[u32]| pair[0] < pair[1];
        let pairs: Vec<&[u32]> = priorities.windows(2).collect();
        let stretches = pairs.chunk_by(|left, right| rises(left) == rises(right));
        (stretches.map(<[_]>::len).max(), distance)
    });
    let (longest, distance) = longest.max().unwrap();
    assert!(
        longest < Some(16),
        "{longest:?} in a row at a distance of {distance}"
    );
}
