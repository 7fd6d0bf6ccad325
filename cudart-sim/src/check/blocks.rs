//! What allocators report: segments that they cut into blocks, and which blocks are in use.
//!
//! Inside a segment only blocks that are in use may be touched, and a row of bytes must lie in one of them.

use super::finding::Op;
use std::collections::BTreeMap;
use std::sync::Arc;

struct Block {
    end: u64,
    live: bool,
    /// The report that gave the block its state.
    told: Arc<Op>,
}

/// What was reported.
#[derive(Default)]
pub(crate) struct Blocks {
    segments: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, Block>,
}

/// What is wrong with touching a range.
pub(crate) enum Wrong {
    /// It is not in use since that free.
    Freed(Arc<Op>),
    /// It is not in use, or reaches past the end of a block.
    NotAllocated(Option<Arc<Op>>),
}

impl Blocks {
    fn overlapping(&self, start: u64, end: u64) -> Vec<u64> {
        let mut found = Vec::new();
        if let Some((s, b)) = self.blocks.range(..start).next_back()
            && b.end > start
        {
            found.push(*s);
        }
        if start < end {
            found.extend(self.blocks.range(start..end).map(|(s, _)| *s));
        }
        found
    }

    /// A segment came or went.
    pub(crate) fn segment(&mut self, start: u64, end: u64, added: bool) {
        if start >= end {
            return;
        }
        for s in self.overlapping(start, end) {
            self.blocks.remove(&s);
        }
        let first = self
            .segments
            .range(..start)
            .next_back()
            .filter(|(_, e)| **e > start)
            .map_or(start, |(s, _)| *s);
        let known: Vec<(u64, u64)> = self
            .segments
            .range(first..end)
            .map(|(s, e)| (*s, *e))
            .collect();
        for (s, e) in known {
            self.segments.remove(&s);
            // A part may go or come alone.
            if s < start {
                self.segments.insert(s, start);
            }
            if e > end {
                self.segments.insert(end, e);
            }
        }
        if added {
            self.segments.insert(start, end);
        }
    }

    /// A block came into use. Returns the report of a block in use that it overlaps.
    pub(crate) fn allocate(&mut self, start: u64, end: u64, told: &Arc<Op>) -> Option<Arc<Op>> {
        let mut wrong = None;
        for s in self.overlapping(start, end) {
            if let Some(old) = self.blocks.remove(&s)
                && old.live
            {
                wrong = Some(old.told);
            }
        }
        let block = Block {
            end,
            live: true,
            told: told.clone(),
        };
        self.blocks.insert(start, block);
        wrong
    }

    /// The reports of the blocks in use that a range overlaps.
    pub(crate) fn in_use(&self, start: u64, end: u64) -> Vec<Arc<Op>> {
        self.overlapping(start, end)
            .iter()
            .filter_map(|s| self.blocks.get(s))
            .filter(|block| block.live)
            .map(|block| block.told.clone())
            .collect()
    }

    /// A block is given up.
    pub(crate) fn free(&mut self, start: u64, end: u64, told: &Arc<Op>) {
        for s in self.overlapping(start, end) {
            if let Some(block) = self.blocks.get_mut(&s) {
                block.live = false;
                block.told = told.clone();
            }
        }
    }

    /// What is wrong with touching these bytes.
    pub(crate) fn check(&self, start: u64, end: u64) -> Option<Wrong> {
        let (_, segment_end) = self.segments.range(..end).next_back()?;
        if *segment_end <= start {
            return None;
        }
        let holder = self
            .blocks
            .range(..=start)
            .next_back()
            .map(|(_, b)| b)
            .filter(|b| b.end > start);
        match holder {
            Some(block) if !block.live => Some(Wrong::Freed(block.told.clone())),
            Some(block) if block.end < end => Some(Wrong::NotAllocated(Some(block.told.clone()))),
            Some(_) => None,
            None => Some(Wrong::NotAllocated(None)),
        }
    }
}
