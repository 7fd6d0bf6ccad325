//! A pool without CUDA: what is mapped where is written down page by page.

use super::BASE;
use crate::{
    cuda::virtual_memory::RawChunk,
    pool::{
        arena::{Arena, Chunk, Idles, Moving, PAGE, Planned, plan::LONGEST},
        best_fit::{ClassId, GRANULE, Owner, Space},
    },
};
use std::{collections::BTreeMap, ops::Range};

/// The pool.
pub struct Rig {
    pub space: Space<u64>,
    pub arena: Arena,
    pub limit: usize,
    pub moving: Moving,
    /// No chunk that is made is longer.
    pub longest: usize,
    pub made: u64,
    /// Moves to where the chunk was mapped already.
    pub free_moves: u64,
    /// Aliases that went for others.
    pub cleared: usize,
    /// Page → chunk.
    pub pages: BTreeMap<usize, RawChunk>,
}

impl Rig {
    pub fn new(ranges: usize, pages: usize, limit: usize) -> Self {
        let mut space = Space::new();
        for range in 0..ranges {
            let base = BASE + range * (1 << 32);
            space.add_range(base, pages * PAGE).unwrap();
        }
        Self {
            space,
            arena: Arena::default(),
            limit,
            moving: Moving::Highest,
            longest: PAGE,
            made: 0,
            free_moves: 0,
            cleared: 0,
            pages: BTreeMap::new(),
        }
    }

    pub fn map(&mut self, at: usize, chunk: Chunk) {
        for page in (at..at + chunk.len).step_by(PAGE) {
            let before = self.pages.insert(page, chunk.raw);
            assert_eq!(before, None, "{page:#x} is mapped already");
        }
    }

    pub fn unmap(&mut self, at: usize, chunk: Chunk) {
        for page in (at..at + chunk.len).step_by(PAGE) {
            assert_eq!(self.pages.remove(&page), Some(chunk.raw), "{page:#x}");
        }
    }

    /// Every block lies in memory that is mapped, and so does every pending span.
    pub fn check(&self) {
        self.space.check().unwrap();
        self.arena.check(&self.space).unwrap();
        for part in self.space.mapped_parts() {
            for page in (part.start - part.start % PAGE..part.end).step_by(PAGE) {
                assert!(self.pages.contains_key(&page), "{page:#x}");
            }
        }
        assert!(self.space.reserved() <= self.limit);
    }

    /// Makes room for a block; `fails`: that does not work, after so many aliases are gone.
    pub fn grow(&mut self, size: usize, fails: Option<usize>) -> bool {
        let room = match self.moving {
            Moving::Home => 0,
            _ => self.limit - self.space.reserved(),
        };
        self.check_blocks(size);
        let Planned::Plan(mut plan) =
            self.arena
                .plan(&mut self.space, size, room, self.moving, |_| false)
        else {
            return false;
        };
        self.lengthen(&mut plan.make);
        let before = self.space.stats();
        self.arena.begin(&mut self.space, &plan);
        self.check_held(before.reserved, before.idle);
        assert!(plan.target.len() >= size);
        if let Some(cleared) = fails {
            let cleared = cleared.min(plan.clear.len());
            for (at, chunk) in &plan.clear[..cleared] {
                self.unmap(*at, *chunk);
            }
            self.arena.undo(&mut self.space, &plan, cleared);
            self.check_held(before.reserved, before.idle);
            return false;
        }
        for (at, chunk) in &plan.clear {
            self.unmap(*at, *chunk);
        }
        self.cleared += plan.clear.len();
        let made: Vec<(usize, Chunk)> = plan
            .make
            .iter()
            .map(|place| {
                self.made += 1;
                let raw = RawChunk::numbered(self.made);
                let len = place.len();
                (place.start, Chunk { raw, len })
            })
            .collect();
        for one in &plan.moves {
            if one.is_mapped {
                self.free_moves += 1;
                assert_eq!(self.pages.get(&one.to), Some(&one.chunk.raw));
            } else {
                self.map(one.to, one.chunk);
            }
        }
        for (at, chunk) in &made {
            self.map(*at, *chunk);
        }
        self.arena.finish(&mut self.space, &plan, made);
        true
    }

    /// What is missing under blocks, counted hole by hole.
    fn check_blocks(&self, size: usize) {
        let cover = self.arena.aliases.cover();
        for known in [None, Some(&cover)] {
            for run in self.space.runs() {
                for (missing, block) in self.arena.blocks(&run, size, known) {
                    let holes = self.arena.holes(&run, &block).map(|hole| {
                        let there = known.map_or(0, |known| known.bytes(&(hole.start..hole.end)));
                        (hole.end - hole.start).saturating_sub(there)
                    });
                    assert_eq!(missing, holes.sum::<usize>(), "{block:x?} in {run:x?}");
                }
            }
        }
    }

    /// New chunks of several lengths, as large pools have.
    pub fn lengthen(&mut self, make: &mut Vec<Range<usize>>) {
        let mut longer: Vec<Range<usize>> = Vec::new();
        for place in make.drain(..) {
            match longer.last_mut() {
                Some(last) if last.end == place.start && last.len() < self.longest => {
                    last.end = place.end;
                }
                _ => longer.push(place),
            }
        }
        *make = longer;
    }

    /// What is held counts as reserved and idle.
    pub fn check_held(&self, reserved: usize, idle: usize) {
        self.space.check().unwrap();
        let now = self.space.stats();
        assert_eq!((now.reserved, now.idle), (reserved, idle));
    }

    /// Gives back so many bytes, or what there is; of the calls for that, those fail for which `fails` says so, and what they were for
    /// stays.
    pub fn trim(&mut self, most: usize, mut fails: impl FnMut() -> bool) {
        let before = self.space.stats();
        let idles = self.arena.take_idle(&mut self.space, most, |_| true);
        let (mut gone, mut rest) = (0, Idles::default());
        let mut failed = false;
        for (at, chunk) in idles.aliases {
            if fails() {
                rest.aliases.push((at, chunk));
            } else {
                self.unmap(at, chunk);
            }
        }
        for taken in idles.mapped {
            let is_stuck = rest.aliases.iter().any(|(_, chunk)| *chunk == taken.chunk);
            if is_stuck || fails() {
                rest.mapped.push(taken);
                continue;
            }
            self.unmap(taken.start, taken.chunk);
            if fails() {
                rest.unmapped.push((taken.chunk, taken.len));
            } else {
                gone += taken.len;
            }
        }
        for (chunk, len) in idles.unmapped {
            if fails() {
                rest.unmapped.push((chunk, len));
            } else {
                gone += len;
            }
        }
        failed |= !(rest.mapped.is_empty() && rest.unmapped.is_empty());
        // All of a spare chunk counts.
        let more: usize = (rest.unmapped.iter())
            .map(|(chunk, len)| chunk.len - len)
            .sum();
        self.arena.put_back(&mut self.space, rest, gone);
        let now = self.space.stats();
        assert_eq!(before.reserved + more - now.reserved, gone);
        assert_eq!(before.idle + more - now.idle, gone);
        assert!(gone < most.saturating_add(self.longest_chunk().max(LONGEST)));
        // What is left of idle memory shares its chunks with blocks.
        assert!(failed || gone >= most || now.largest_idle < 2 * PAGE.max(self.longest_chunk()));
    }

    /// Takes blocks of so many pages, for which the pool grows where it must; where they are.
    pub fn take<const N: usize>(&mut self, pages: [usize; N]) -> [usize; N] {
        pages.map(|pages| {
            let size = pages * PAGE;
            if let Some(taken) = self.space.allocate(size, GRANULE, &[ClassId::IDLE]) {
                return taken.addr;
            }
            assert!(self.grow(size, None));
            let taken = self.space.allocate(size, GRANULE, &[ClassId::IDLE]);
            taken.unwrap().addr
        })
    }

    pub fn give<const N: usize>(&mut self, blocks: [usize; N]) {
        for block in blocks {
            self.space.free(block, Owner::IDLE).unwrap();
        }
    }

    pub fn longest_chunk(&self) -> usize {
        self.arena
            .chunks
            .values()
            .map(|chunk| chunk.len)
            .max()
            .unwrap_or(0)
    }
}
