//! Where chunks are mapped as well, though their memory lies elsewhere.
//!
//! A chunk that moves stays mapped where it was. In the books nothing lies there, so nobody uses those addresses; and the driver maps the
//! same memory at as many addresses as one likes (CUDA programming guide, "Virtual Aliasing Support": what was written at one
//! is seen at the others once the work that wrote it has ended, and idle memory has no work). A chunk that comes back to such a
//! place needs no CUDA call. So a program that repeats itself maps nothing once it has been everywhere.
//!
//! An alias goes when something else is to be mapped over it, when its chunk is given back, and when there are too many.

use super::{Arena, Chunk};
use crate::{
    cuda::virtual_memory::RawChunk,
    pool::best_fit::{Datum, Space},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// So many aliases a chunk there may be, on average.
const EACH: usize = 4;

/// All aliases.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    by_addr: BTreeMap<usize, Chunk>,
    /// Where the memory of a chunk lies that has aliases, and how many those are.
    chunks: BTreeMap<RawChunk, (usize, usize)>,
    /// Where the next one is looked for that goes because there are too many.
    hand: usize,
}

impl Aliases {
    /// The chunk that has an alias which begins at an address, and where its memory lies.
    pub fn at(&self, addr: usize) -> Option<(Chunk, usize)> {
        let chunk = *self.by_addr.get(&addr)?;
        Some((chunk, self.chunks.get(&chunk.raw)?.0))
    }

    /// Those that begin behind an address, and before an end: with where the memory lies.
    pub fn between(&self, addr: usize, end: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let inside = (addr + 1 < end).then(|| self.by_addr.range(addr + 1..end));
        inside.into_iter().flatten().filter_map(|(at, chunk)| {
            let (lies, _) = self.chunks.get(&chunk.raw)?;
            Some((*at, *lies))
        })
    }

    /// How much of a range they cover.
    pub fn cover(&self) -> Cover {
        let mut sum = 0usize;
        let steps = self.by_addr.iter().map(|(at, chunk)| {
            let before = sum;
            sum = sum.saturating_add(chunk.len);
            (*at, before)
        });
        let steps = steps.collect();
        Cover { steps, sum }
    }

    /// Those that overlap a range.
    pub fn over(&self, range: &Range<usize>) -> impl Iterator<Item = (usize, Chunk)> + '_ {
        let end = |(at, chunk): &(&usize, &Chunk)| at.saturating_add(chunk.len);
        let before = self.by_addr.range(..range.start).next_back();
        let start = range.start;
        (before.into_iter().filter(move |alias| end(alias) > start))
            .chain(self.by_addr.range(range.clone()))
            .map(|(at, chunk)| (*at, *chunk))
    }

    /// A chunk has moved: it stays mapped where it was.
    pub fn moved(&mut self, chunk: Chunk, from: usize, to: usize) {
        self.remove(to, chunk);
        self.add(from, chunk, to);
    }

    /// A chunk, whose memory lies at `lies`, is mapped at `addr` as well.
    pub fn add(&mut self, addr: usize, chunk: Chunk, lies: usize) {
        if self.by_addr.insert(addr, chunk).is_none() {
            let known = self.chunks.entry(chunk.raw).or_default();
            *known = (lies, known.1.saturating_add(1));
        }
    }

    /// It is not mapped there any more, or its memory lies there again.
    pub fn remove(&mut self, addr: usize, chunk: Chunk) {
        if self.by_addr.get(&addr) != Some(&chunk) {
            return;
        }
        self.by_addr.remove(&addr);
        if let Some((_, count)) = self.chunks.get_mut(&chunk.raw) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.chunks.remove(&chunk.raw);
            }
        }
    }

    /// Takes those of some chunks out, by chunk.
    pub fn take(&mut self, chunks: impl Iterator<Item = Chunk>) -> Vec<(usize, Chunk)> {
        let gone: BTreeSet<RawChunk> = chunks
            .map(|chunk| chunk.raw)
            .filter(|raw| self.chunks.contains_key(raw))
            .collect();
        if gone.is_empty() {
            return Vec::new();
        }
        self.take_where(|_, chunk| gone.contains(&chunk.raw))
    }

    /// Takes those out of which that is true.
    pub fn take_where(&mut self, wanted: impl Fn(usize, &Chunk) -> bool) -> Vec<(usize, Chunk)> {
        let taken: Vec<(usize, Chunk)> = (self.by_addr.iter())
            .filter(|(at, chunk)| wanted(**at, chunk))
            .map(|(at, chunk)| (*at, *chunk))
            .collect();
        for (at, chunk) in &taken {
            self.remove(*at, *chunk);
        }
        taken
    }

    /// Those that are to go so that `more` may come where there are `chunks`; none for which `stays` says so.
    pub fn too_many(
        &self,
        more: usize,
        chunks: usize,
        stays: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Chunk)> {
        let most = chunks.saturating_mul(EACH);
        let excess = self.by_addr.len().saturating_add(more).saturating_sub(most);
        if excess == 0 {
            return Vec::new();
        }
        (self.by_addr.range(self.hand..))
            .chain(self.by_addr.range(..self.hand))
            .filter(|(at, _)| !stays(**at))
            .take(excess)
            .map(|(at, chunk)| (*at, *chunk))
            .collect()
    }

    /// From here on it looks for the next one that goes.
    pub fn turn_to(&mut self, addr: usize) {
        self.hand = addr.saturating_add(1);
    }

    /// What the books of chunks say of aliases: none lies over another or over what `is_used` says, and the memory of each lies where
    /// `lies` says.
    pub fn check(
        &self,
        is_used: impl Fn(&Range<usize>) -> bool,
        lies: impl Fn(usize) -> Option<Chunk>,
    ) -> Result<(), String> {
        let mut behind = 0;
        let mut counts: BTreeMap<RawChunk, usize> = BTreeMap::new();
        for (at, chunk) in &self.by_addr {
            let range = *at..at.saturating_add(chunk.len);
            if range.start < behind || is_used(&range) {
                return Err(format!("the alias at {at:#x} is in use"));
            }
            behind = range.end;
            let place = self.chunks.get(&chunk.raw).map(|(place, _)| *place);
            if place.and_then(&lies) != Some(*chunk) {
                return Err(format!("the memory of the alias at {at:#x} lies elsewhere"));
            }
            *counts.entry(chunk.raw).or_default() += 1;
        }
        let known = self.chunks.iter().map(|(raw, (_, count))| (*raw, *count));
        if !known.eq(counts) {
            return Err("the aliases of a chunk are miscounted".into());
        }
        Ok(())
    }
}

/// What aliases cover.
pub(super) struct Cover {
    /// Where each begins, and how many bytes all before it have.
    steps: Vec<(usize, usize)>,
    /// How many bytes all have.
    sum: usize,
}

impl Cover {
    /// The bytes of those that begin in a range.
    pub fn bytes(&self, range: &Range<usize>) -> usize {
        let until = |addr: usize| {
            let number = self.steps.partition_point(|(at, _)| *at < addr);
            self.steps
                .get(number)
                .map_or(self.sum, |(_, before)| *before)
        };
        until(range.end).saturating_sub(until(range.start))
    }
}

impl Arena {
    /// What the books of the space and of the chunks say of aliases.
    pub(super) fn check_aliases<T: Datum>(
        &self,
        space: &Space<T>,
        parts: &[Range<usize>],
    ) -> Result<(), String> {
        let mapped: BTreeMap<usize, Chunk> = (self.chunks.iter().chain(&self.asleep))
            .map(|(at, chunk)| (*at, *chunk))
            .collect();
        let is_used = |range: &Range<usize>| {
            let before = mapped.range(..range.end).next_back();
            before.is_some_and(|(at, chunk)| at.saturating_add(chunk.len) > range.start)
                || parts
                    .iter()
                    .any(|part| part.start < range.end && range.start < part.end)
                || space.segment_of(range.start).is_none()
        };
        self.aliases
            .check(is_used, |place| mapped.get(&place).copied())
    }
}
