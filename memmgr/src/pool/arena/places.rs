//! Where in a run a block could lie, and how much memory is missing there.

use super::{Arena, PAGE, aliases::Cover};
use crate::pool::best_fit::{Kind, Piece, Run};
use std::ops::Range;

/// So many places in a run are compared.
const PLACES: usize = 64;

pub(super) fn page_floor(addr: usize) -> usize {
    addr - addr % PAGE
}

fn page_ceil(addr: usize) -> usize {
    addr.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

/// A part of a gap that is to get memory, and how far it could go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    pub start: usize,
    pub end: usize,
    pub most: usize,
}

/// The gaps of a run, and how much is missing in all of them up to each.
struct Gaps<'a> {
    arena: &'a Arena,
    known: Option<&'a Cover>,
    gaps: Vec<Piece>,
    /// What is missing in all gaps before, in bytes.
    before: Vec<usize>,
}

impl<'a> Gaps<'a> {
    fn of(arena: &'a Arena, run: &Run, known: Option<&'a Cover>) -> Self {
        let mut gaps = Self {
            arena,
            known,
            gaps: (run.iter().filter(|piece| piece.kind == Kind::Gap).copied()).collect(),
            before: Vec::new(),
        };
        let mut sum = 0usize;
        let before = gaps.gaps.iter().map(|gap| {
            let before = sum;
            sum = sum.saturating_add(gaps.missing_in(gap, &(gap.addr..gap.end)));
            before
        });
        gaps.before = before.collect();
        gaps
    }

    /// How much memory is missing in a gap for a block, or, where some is known, to be mapped.
    fn missing_in(&self, gap: &Piece, block: &Range<usize>) -> usize {
        let hole = self.arena.hole(gap, block);
        let there = |known: &Cover| known.bytes(&(hole.start..hole.end));
        (hole.end - hole.start).saturating_sub(self.known.map_or(0, there))
    }

    /// That of all gaps under a block: between the first and the last it is the same for every block.
    fn missing(&self, block: &Range<usize>) -> usize {
        let first = self.gaps.partition_point(|gap| gap.end <= block.start);
        let behind = self.gaps.partition_point(|gap| gap.addr < block.end);
        let Some((last, gap)) = (behind.checked_sub(1))
            .filter(|last| first <= *last)
            .and_then(|last| Some((last, self.gaps.get(last)?)))
        else {
            return 0;
        };
        let missing = self.missing_in(gap, block);
        let Some(gap) = self.gaps.get(first).filter(|_| first < last) else {
            return missing;
        };
        let before = |number: usize| self.before.get(number).copied().unwrap_or(0);
        let between = before(last).saturating_sub(before(first + 1));
        (missing.saturating_add(between)).saturating_add(self.missing_in(gap, block))
    }

    /// An address, or, behind the front of a gap that is mapped, where the gap begins: that stays together.
    fn start_of_front(&self, addr: usize) -> usize {
        let number = self.gaps.partition_point(|gap| gap.addr < addr);
        let gap = number.checked_sub(1).and_then(|last| self.gaps.get(last));
        let gap = gap.filter(|gap| addr < self.arena.mapped_until(gap.addr));
        gap.map_or(addr, |gap| gap.addr)
    }
}

impl Arena {
    /// The part of a gap that a block at `block` touches and that has no memory.
    fn hole(&self, gap: &Piece, block: &Range<usize>) -> Hole {
        let start = page_floor(gap.addr.max(block.start)).max(self.mapped_until(gap.addr));
        // A chunk that sleeps wakes as a whole.
        let start = self.start_of_sleeper(start);
        let end = page_ceil(gap.end.min(block.end)).min(gap.end);
        Hole {
            start,
            end: end.max(start),
            most: if block.end < gap.end { gap.end } else { end },
        }
    }

    /// The holes under a block in a run.
    pub(super) fn holes<'a>(
        &'a self,
        run: &'a Run,
        block: &'a Range<usize>,
    ) -> impl Iterator<Item = Hole> + 'a {
        run.iter()
            .filter(|piece| {
                piece.kind == Kind::Gap && piece.addr < block.end && block.start < piece.end
            })
            .map(|gap| self.hole(gap, block))
    }

    /// The blocks in a run with how much memory is missing under each, or, where some is known, to be mapped, in bytes: the least
    /// first, ties by address.
    pub(super) fn blocks(
        &self,
        run: &Run,
        size: usize,
        known: Option<&Cover>,
    ) -> Vec<(usize, Range<usize>)> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Vec::new();
        };
        let (first, last) = (first.addr, last.end);
        if last.saturating_sub(first) < size {
            return Vec::new();
        }
        let gaps = Gaps::of(self, run, known);
        let ends = run.iter().filter_map(|piece| {
            let start = piece.end.checked_sub(size)?;
            (start >= first).then(|| gaps.start_of_front(start))
        });
        let starts = run.iter().map(|piece| piece.addr);
        let mut blocks: Vec<(usize, Range<usize>)> = starts
            .chain(ends)
            .take(PLACES)
            .filter_map(|start| Some(start..start.checked_add(size)?))
            .filter(|block| block.end <= last)
            .map(|block| (gaps.missing(&block), block))
            .collect();
        blocks.sort_unstable_by_key(|(missing, block)| (*missing, block.start));
        blocks.dedup();
        blocks
    }
}
