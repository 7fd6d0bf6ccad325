//! Which physical memory lies where, and what a growth would have to move and to make. No CUDA call is made here.
//!
//! A pool of mapped memory has one or more *ranges* of reserved addresses, each a segment of its space. Physical memory comes in
//! **chunks** that are mapped whole. A chunk that lies wholly inside idle memory can be moved to other addresses; what it leaves
//! is a gap, which later growth fills again: it takes the run of gaps and idle spans of which the least is missing. The last gap of a range is what was
//! never used of it. In a gap it stays mapped (`aliases.rs`), so that it can come back without a CUDA call.
//!
//! The books count in granules, chunks in pages: where a limit cuts into a chunk, the rest of it is mapped, but belongs to the
//! gap behind it. It is the first part of that gap that becomes memory.

mod aliases;
mod asleep;
mod places;
mod plan;
mod stock;
#[cfg(test)]
mod tests;

pub(super) use plan::{Move, Moving, Plan, Planned};

use self::aliases::Aliases;
use super::best_fit::{Datum, Kind, Piece, Slot, Space};
use crate::cuda::virtual_memory::RawChunk;
use std::{collections::BTreeMap, ops::Range};

/// The unit of physical memory, in bytes.
pub(super) const PAGE: usize = 2 << 20;
/// Physical memory that is mapped whole, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub raw: RawChunk,
    /// In bytes.
    pub len: usize,
}

/// Where physical memory lies.
#[derive(Debug, Default)]
pub(super) struct Arena {
    /// By address.
    chunks: BTreeMap<usize, Chunk>,
    /// Chunks that are mapped in gaps, by address (see `asleep.rs`).
    asleep: BTreeMap<usize, Chunk>,
    /// How many bytes those have.
    sleeping: usize,
    /// Where else they are mapped, in gaps.
    aliases: Aliases,
    /// Chunks that are mapped nowhere, since they could not be released.
    spare: Vec<Chunk>,
    /// The longest chunk so far, in bytes.
    longest: usize,
}

impl Arena {
    /// The chunk in which an address lies: where it is mapped, and the end of that.
    fn chunk_at(&self, addr: usize) -> Option<(usize, usize)> {
        let (start, chunk) = self.chunks.range(..=addr).next_back()?;
        let end = start.saturating_add(chunk.len);
        (addr < end).then_some((*start, end))
    }

    /// The end of what is mapped at the front of a gap.
    fn mapped_until(&self, gap: usize) -> usize {
        self.chunk_at(gap).map_or(gap, |(_, end)| end)
    }

    /// How many chunks there are, mapped or spare.
    pub fn chunks(&self) -> usize {
        let mapped = self.chunks.len().saturating_add(self.asleep.len());
        mapped.saturating_add(self.spare.len())
    }

    /// Takes everything out of the books that the plan needs.
    pub fn begin<T: Datum>(&mut self, space: &mut Space<T>, plan: &Plan) {
        for (slot, range) in &plan.hold {
            let done = space.unmap(*slot, range.start, range.len());
            debug_assert!(done, "what a plan holds is idle");
        }
        for start in &plan.lay {
            self.lay(*start);
        }
        for start in plan.wake.iter().chain(&plan.fetch) {
            self.rouse(*start);
        }
        for (at, chunk) in &plan.clear {
            self.aliases.remove(*at, *chunk);
        }
        for one in &plan.moves {
            match one.from {
                Some(from) => drop(self.chunks.remove(&from)),
                None => self.spare.retain(|chunk| *chunk != one.chunk),
            }
        }
    }

    /// The plan has been carried out: `made` are the new chunks.
    pub fn finish<T: Datum>(
        &mut self,
        space: &mut Space<T>,
        plan: &Plan,
        made: impl IntoIterator<Item = (usize, Chunk)>,
    ) {
        for (start, chunk) in made {
            self.longest = self.longest.max(chunk.len);
            self.chunks.insert(start, chunk);
        }
        for one in &plan.moves {
            self.chunks.insert(one.to, one.chunk);
            if let Some(from) = one.from {
                self.aliases.moved(one.chunk, from, one.to);
            }
        }
        if let Some(last) = plan.evicted {
            self.aliases.turn_to(last);
        }
        let done = space.map(plan.target.start, plan.target.len(), plan.held);
        debug_assert!(done, "the target of a plan is a gap");
    }

    /// The plan has failed, and everything is as before, but that the first `cleared` of the aliases that it cleared are gone.
    pub fn undo<T: Datum>(&mut self, space: &mut Space<T>, plan: &Plan, cleared: usize) {
        for one in &plan.moves {
            match one.from {
                Some(from) => drop(self.chunks.insert(from, one.chunk)),
                None => self.spare.push(one.chunk),
            }
        }
        for start in &plan.lay {
            self.rouse(*start);
        }
        for start in plan.wake.iter().chain(&plan.fetch) {
            self.lay(*start);
        }
        self.put_aliases_back(plan.clear.iter().skip(cleared).copied());
        for (_, range) in &plan.hold {
            let done = space.map(range.start, range.len(), range.len());
            debug_assert!(done, "what a plan held is a gap");
        }
    }

    /// Aliases that had left the books are there still. Looks at all chunks.
    fn put_aliases_back(&mut self, aliases: impl IntoIterator<Item = (usize, Chunk)>) {
        let mut aliases = aliases.into_iter().peekable();
        if aliases.peek().is_none() {
            return;
        }
        let lies: BTreeMap<RawChunk, usize> = (self.chunks.iter().chain(&self.asleep))
            .map(|(start, chunk)| (chunk.raw, *start))
            .collect();
        for (at, chunk) in aliases {
            if let Some(lies) = lies.get(&chunk.raw) {
                self.aliases.add(at, chunk, *lies);
            }
        }
    }

    /// Takes chunks that nothing uses out of the books, until that makes `most` bytes: those that are mapped nowhere, and then, from
    /// the highest address down, those of the ranges for which `wanted` says so.
    pub fn take_idle<T: Datum>(
        &mut self,
        space: &mut Space<T>,
        most: usize,
        wanted: impl Fn(usize) -> bool,
    ) -> Idles {
        self.wake(space);
        let mut taken = Idles::default();
        let mut sum = 0usize;
        while sum < most
            && let Some(chunk) = self.spare.pop()
        {
            sum = sum.saturating_add(chunk.len);
            taken.unmapped.push((chunk, chunk.len));
        }
        let spans: Vec<Piece> = space.idle_spans(super::GRANULE).collect();
        let mut found: Vec<(Slot, Taken)> = Vec::new();
        for span in spans {
            let Kind::Idle(slot) = span.kind else {
                continue;
            };
            let segment = space.segment_of(span.addr);
            if !segment.is_some_and(|segment| wanted(segment.base)) {
                continue;
            }
            // What is mapped behind the span is unused if there is a gap.
            let end = match space.gap_at(span.end) {
                Some(_) => self.mapped_until(span.end),
                None => span.end,
            };
            let inside = self.chunks.range(span.addr..span.end);
            found.extend(
                inside
                    .filter(|(start, chunk)| start.saturating_add(chunk.len) <= end)
                    .map(|(start, chunk)| {
                        let len = chunk.len.min(span.end - start);
                        let (start, chunk) = (*start, *chunk);
                        (slot, Taken { start, chunk, len })
                    }),
            );
        }
        found.sort_unstable_by_key(|(_, taken)| std::cmp::Reverse(taken.start));
        for (slot, one) in found {
            if sum >= most {
                break;
            }
            if space.unmap(slot, one.start, one.len) {
                self.chunks.remove(&one.start);
                sum = sum.saturating_add(one.len);
                taken.mapped.push(one);
            }
        }
        taken.aliases = self.aliases.take(taken.mapped.iter().map(|one| one.chunk));
        taken
    }

    /// Takes the aliases out that lie in ranges of which nothing has memory.
    pub fn take_aliases_of_empty<T: Datum>(&mut self, space: &Space<T>) -> Vec<(usize, Chunk)> {
        let ranges: Vec<Range<usize>> = (space.segments())
            .map(|segment| segment.base..segment.base.saturating_add(segment.len))
            .filter(|range| space.gap_at(range.start) == Some(range.end))
            .collect();
        if ranges.is_empty() {
            return Vec::new();
        }
        self.aliases
            .take_where(|at, _| ranges.iter().any(|range| range.contains(&at)))
    }

    /// Whether an alias lies in a range.
    pub fn has_alias_in(&self, base: usize, len: usize) -> bool {
        let range = base..base.saturating_add(len);
        self.aliases.over(&range).next().is_some()
    }

    /// Of what [`Arena::take_idle`] has taken, `gone` bytes are gone, and the rest comes back.
    pub fn put_back<T: Datum>(&mut self, space: &mut Space<T>, rest: Idles, gone: usize) {
        space.drop_held(gone);
        for Taken { start, chunk, len } in rest.mapped {
            self.chunks.insert(start, chunk);
            let done = space.map(start, len, len);
            debug_assert!(done, "what was taken is a gap");
        }
        self.put_aliases_back(rest.aliases);
        for (chunk, len) in rest.unmapped {
            // All of a spare chunk is held.
            space.add_held(chunk.len - len.min(chunk.len));
            self.spare.push(chunk);
        }
    }

    /// The spare chunks, of which the books count everything.
    fn take_spare(&mut self) -> Vec<(Chunk, usize)> {
        let spare = self.spare.drain(..);
        spare.map(|chunk| (chunk, chunk.len)).collect()
    }

    /// The chunks in which no live block lies; nobody uses the books afterwards.
    pub fn take_unused<T: Datum>(&mut self, space: &Space<T>) -> Idles {
        let mut live = space
            .live_blocks()
            .map(|block| block.addr..block.addr + block.len)
            .peekable();
        let (mut unused, mut kept) = (Vec::new(), BTreeMap::new());
        self.chunks.append(&mut self.asleep);
        self.sleeping = 0;
        for (start, chunk) in std::mem::take(&mut self.chunks) {
            let end = start.saturating_add(chunk.len);
            while live.peek().is_some_and(|block| block.end <= start) {
                live.next();
            }
            if live.peek().is_some_and(|block| block.start < end) {
                kept.insert(start, chunk);
            } else {
                let len = chunk.len;
                unused.push(Taken { start, chunk, len });
            }
        }
        self.chunks = kept;
        Idles {
            // Those of the chunks that stay as well: nobody moves anything any more.
            aliases: self.aliases.take_where(|_, _| true),
            mapped: unused,
            unmapped: self.take_spare(),
        }
    }

    /// What the books of the space and of the chunks say of each other.
    pub fn check<T: Datum>(&self, space: &Space<T>) -> Result<(), String> {
        let mut behind = 0;
        for (start, chunk) in &self.chunks {
            if *start < behind || !start.is_multiple_of(PAGE) || !chunk.len.is_multiple_of(PAGE) {
                return Err(format!(
                    "the chunk of {} bytes at {start:#x} is misplaced",
                    chunk.len
                ));
            }
            if space.segment_of(*start).is_none() {
                return Err(format!("the chunk at {start:#x} lies in no range"));
            }
            behind = start.saturating_add(chunk.len);
        }
        let parts = space.mapped_parts();
        self.check_asleep(space, &parts)?;
        self.check_aliases(space, &parts)?;
        parts.into_iter().try_for_each(|part| {
            let mut at = part.start;
            while at < part.end {
                match self.chunk_at(at) {
                    Some((_, end)) => at = end,
                    None => return Err(format!("no memory is mapped at {at:#x}, which is no gap")),
                }
            }
            Ok(())
        })
    }
}

/// Chunks that nothing uses, out of the books.
#[derive(Debug, Default)]
pub(super) struct Idles {
    /// Where some chunks are mapped as well.
    pub aliases: Vec<(usize, Chunk)>,
    pub mapped: Vec<Taken>,
    /// With how much of each the books count, in bytes.
    pub unmapped: Vec<(Chunk, usize)>,
}

/// A mapped chunk that is out of the books.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    /// Where it is mapped.
    pub start: usize,
    pub chunk: Chunk,
    /// So much of it was counted, in bytes.
    pub len: usize,
}
