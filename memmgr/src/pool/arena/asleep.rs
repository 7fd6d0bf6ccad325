//! Chunks that stay mapped where they are, in gaps: held, until a growth gets to them.
//!
//! A pool that grows from nothing packs its blocks: what is idle moves to the end before anything is made there. With all of
//! its memory idle from the beginning it would leave holes instead, and in the end need more. So when nothing is live the
//! chunks can be laid to sleep, and the pool grows over them as it did the first time: a chunk that is asleep where a growth
//! goes serves in place of an idle one that would move there, which sleeps from then on.

use super::{
    Arena, Chunk, PAGE,
    stock::{Idle, Stock},
};
use crate::pool::best_fit::{Datum, Kind, Piece, Slot, Space};
use std::ops::Range;

/// The chunks that sleep outside of a block, and those that are laid to sleep for a plan. They are many, and mostly none is wanted
/// but those that are there already.
pub(super) struct Sleepers<'a> {
    /// Where they are looked for, if they may move.
    from: Option<(&'a Arena, &'a Range<usize>)>,
    found: Option<Stock>,
    laid: Vec<Idle>,
    /// So much idle memory is still to sleep in place of what woke, in bytes.
    owed: usize,
    /// No alias up to here, behind what has been filled, is of one that sleeps.
    looked: usize,
}

impl<'a> Sleepers<'a> {
    /// None has been looked for.
    pub fn new(from: Option<(&'a Arena, &'a Range<usize>)>) -> Self {
        Self {
            from,
            found: None,
            laid: Vec::new(),
            owed: 0,
            looked: 0,
        }
    }

    /// A chunk of so many bytes has woken, or will be fetched, for what idle memory would have moved for: as much of that sleeps in its place.
    pub fn lay_for(&mut self, len: usize, idle: &mut Stock) {
        self.owed = self.owed.saturating_add(len);
        while let Some(idle) = idle.idle_at_most(self.owed) {
            self.owed = self.owed.saturating_sub(idle.chunk.len);
            match &mut self.found {
                Some(stock) => stock.put(idle),
                None => self.laid.push(idle),
            }
        }
    }

    fn found(&mut self) -> Option<&mut Stock> {
        let (arena, block) = self.from?;
        let laid = &mut self.laid;
        Some(self.found.get_or_insert_with(|| {
            let asleep = arena.asleep.iter().map(|(start, chunk)| Idle {
                chunk: *chunk,
                from: Some(*start),
                span: None,
            });
            let mut stock = Stock::of(asleep.filter(|idle| idle.is_apart(block)));
            laid.drain(..).for_each(|idle| stock.put(idle));
            stock
        }))
    }

    /// The one that sleeps at an address.
    pub fn at(&mut self, place: usize) -> Option<Idle> {
        let (arena, _) = self.from?;
        arena.asleep.contains_key(&place).then_some(())?;
        self.found()?.at(place)
    }

    /// One for `to`: the longest of at most `left` bytes, or the shortest that is longer, but at most `most`. It leaves the places
    /// behind it to those that were there once. It is asked by ascending address.
    pub fn take(&mut self, to: usize, left: usize, most: usize) -> Option<Idle> {
        let (arena, _) = self.from?;
        // Those of a long hole are looked at once, not for each of its chunks.
        let (from, end) = (to.max(self.looked), to.saturating_add(left));
        let stock = self.found()?;
        let mut behind = arena.aliases.between(from, end);
        let next = behind.find(|(_, lies)| stock.has(*lies));
        let place = next.map_or(end, |(at, _)| at);
        let left = place - to;
        self.looked = from.max(place.saturating_sub(1));
        let stock = self.found()?;
        stock.at_most(left).or_else(|| stock.longer(left, most))
    }

    /// Those that are laid to sleep in the end.
    pub fn into_laid(self) -> Vec<Idle> {
        let found = self.found.into_iter().flat_map(Stock::into_laid);
        self.laid.into_iter().chain(found).collect()
    }
}

impl Arena {
    /// The chunks that lie wholly inside idle spans, by address.
    pub(super) fn idle_chunks<T: Datum>(&self, space: &mut Space<T>) -> Vec<(usize, Chunk, Slot)> {
        // Spans are few where chunks are many.
        let mut spans: Vec<Piece> = space.idle_spans(PAGE).collect();
        spans.sort_unstable_by_key(|span| span.addr);
        let mut found: Vec<(usize, Chunk, Slot)> = Vec::new();
        for span in spans {
            let Kind::Idle(slot) = span.kind else {
                continue;
            };
            let inside = self.chunks.range(span.addr..span.end);
            found.extend(
                inside
                    .filter(|(start, chunk)| start.saturating_add(chunk.len) <= span.end)
                    .map(|(start, chunk)| (*start, *chunk, slot)),
            );
        }
        found
    }

    /// Takes all idle chunks out of the books, and leaves them where they are.
    pub fn sleep<T: Datum>(&mut self, space: &mut Space<T>) {
        // The last of a span goes first.
        for (start, chunk, slot) in self.idle_chunks(space).into_iter().rev() {
            if space.unmap(slot, start, chunk.len) {
                self.lay(start);
            }
        }
    }

    /// A chunk that has left the books sleeps.
    pub(super) fn lay(&mut self, start: usize) {
        if let Some(chunk) = self.chunks.remove(&start) {
            self.sleeping = self.sleeping.saturating_add(chunk.len);
            self.asleep.insert(start, chunk);
        }
    }

    /// A chunk that slept is to go into the books.
    pub(super) fn rouse(&mut self, start: usize) {
        if let Some(chunk) = self.asleep.remove(&start) {
            self.sleeping = self.sleeping.saturating_sub(chunk.len);
            self.chunks.insert(start, chunk);
        }
    }

    /// Enters all chunks that sleep as idle memory.
    pub fn wake<T: Datum>(&mut self, space: &mut Space<T>) {
        self.sleeping = 0;
        for (start, chunk) in std::mem::take(&mut self.asleep) {
            let done = space.map(start, chunk.len, chunk.len);
            debug_assert!(done, "what sleeps is a gap");
            self.chunks.insert(start, chunk);
        }
    }

    /// Whether all chunks are of one page, as far as there have been any.
    pub fn has_pages_only(&self) -> bool {
        self.longest <= PAGE
    }

    /// How much sleeps, in bytes.
    pub fn sleeping(&self) -> usize {
        self.sleeping
    }

    /// The chunk that sleeps at an address or behind it.
    pub(super) fn next_asleep(&self, addr: usize) -> Option<(usize, Chunk)> {
        let (start, chunk) = self.asleep.range(addr..).next()?;
        Some((*start, *chunk))
    }

    /// Where the chunk begins that sleeps around an address; the address itself if there is none.
    pub(super) fn start_of_sleeper(&self, addr: usize) -> usize {
        match self.asleep.range(..addr).next_back() {
            Some((start, chunk)) if addr < start.saturating_add(chunk.len) => *start,
            _ => addr,
        }
    }

    /// What the books of the space say of chunks that sleep.
    pub(super) fn check_asleep<T: Datum>(
        &self,
        space: &Space<T>,
        parts: &[Range<usize>],
    ) -> Result<(), String> {
        let lens = self.asleep.values().map(|chunk| chunk.len);
        if lens.fold(0usize, usize::saturating_add) != self.sleeping {
            return Err("the chunks that sleep are miscounted".into());
        }
        for (start, chunk) in &self.asleep {
            let end = start.saturating_add(chunk.len);
            let overlaps = |from: usize, to: usize| from < end && *start < to;
            let before = self.chunks.range(..end).next_back();
            if before.is_some_and(|(at, other)| overlaps(*at, at.saturating_add(other.len)))
                || parts.iter().any(|part| overlaps(part.start, part.end))
                || space.segment_of(*start).is_none()
            {
                return Err(format!("the chunk that sleeps at {start:#x} is in use"));
            }
        }
        Ok(())
    }
}
