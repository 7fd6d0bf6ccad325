//! What a growth would have to move and to make.

use super::{
    Arena, Chunk, PAGE,
    asleep::Sleepers,
    places::page_floor,
    stock::{Idle, Stock},
};
use crate::pool::{
    GRANULE,
    best_fit::{Datum, Kind, Piece, Run, Slot, Space},
};
use std::{collections::BTreeSet, ops::Range, rc::Rc};

/// No chunk that is made is longer.
pub(super) const LONGEST: usize = 32 << 20;
/// A chunk is at most such a part of the pool.
const CHUNKS: usize = 1024;
/// And so many are tried to put all memory together.
const TRIES: usize = 8;

/// A chunk that is to be mapped at `to`.
#[derive(Debug, Clone, Copy)]
pub(in crate::pool) struct Move {
    pub chunk: Chunk,
    /// Where it is mapped now; `None`: nowhere.
    pub from: Option<usize>,
    pub to: usize,
    /// Whether it is mapped there already, by an alias.
    pub is_mapped: bool,
}

/// How a pool grows by one run of addresses.
#[derive(Debug)]
pub(in crate::pool) struct Plan {
    /// What becomes idle.
    pub target: Range<usize>,
    /// What leaves the books for it: idle memory of the target, and of the chunks that move. The last of a span first.
    pub(super) hold: Vec<(Slot, Range<usize>)>,
    /// Chunks that are there already.
    pub moves: Vec<Move>,
    /// Where new chunks are to be mapped.
    pub make: Vec<Range<usize>>,
    /// Aliases that are to go: those of others where chunks are to be mapped, and then those that are too many.
    pub clear: Vec<(usize, Chunk)>,
    /// The last of those that are too many.
    pub(super) evicted: Option<usize>,
    /// Chunks that sleep where the target is.
    pub wake: Vec<usize>,
    /// Those of the chunks that move that sleep.
    pub(super) fetch: Vec<usize>,
    /// Idle chunks that would have moved to where others sleep, and sleep in place of them.
    pub(super) lay: Vec<usize>,
    /// What of the held memory comes back with the target, in bytes.
    pub(super) held: usize,
}

/// What may move for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum Moving {
    /// Nothing: new memory alone serves.
    Nothing,
    /// Idle memory, that at the highest address first, so that the low end stays in one piece.
    Highest,
    /// Idle memory, that which was there once first.
    Known,
    /// As that, to where most of it was once.
    Home,
}

/// What a search for a plan ended with.
#[derive(Debug)]
pub(in crate::pool) enum Planned {
    /// This serves the request.
    Plan(Box<Plan>),
    /// The limit forbids every plan.
    NoRoom,
    /// There are not enough addresses.
    NoAddresses,
}

impl Arena {
    /// The chunks outside of a block that lie wholly inside idle spans.
    fn stock<T: Datum>(&self, space: &mut Space<T>, block: &Range<usize>) -> Stock {
        let idle = (self.idle_chunks(space).into_iter()).map(|(start, chunk, slot)| Idle {
            chunk,
            from: Some(start),
            span: Some(slot),
        });
        // The highest address is taken first, so that the low end stays in one piece.
        let idle = idle.filter(|idle| idle.is_apart(block));
        let spare = self.spare.iter().map(|chunk| Idle {
            chunk: *chunk,
            from: None,
            span: None,
        });
        let mut stock = Stock::of(idle);
        spare.for_each(|idle| stock.put(idle));
        stock
    }

    /// How a request of `size` bytes can be served, where the pool may get `room` more bytes. Ranges for which `closed` says so are left alone.
    pub fn plan<T: Datum>(
        &self,
        space: &mut Space<T>,
        size: usize,
        room: usize,
        moving: Moving,
        closed: impl Fn(usize) -> bool,
    ) -> Planned {
        let is_open = |run: &Run| {
            let segment = run.first().and_then(|first| space.segment_of(first.addr));
            segment.is_some_and(|segment| !closed(segment.base))
        };
        let known = (moving == Moving::Home).then(|| self.aliases.cover());
        // Chunks of several lengths may not fit where most of them were.
        let tries = if known.is_some() { TRIES } else { 1 };
        let mut places: Vec<(usize, Range<usize>, Rc<Run>)> = space
            .runs()
            .filter(is_open)
            .flat_map(|run| {
                let blocks = self.blocks(&run, size, known.as_ref());
                let run = Rc::new(run);
                (blocks.into_iter().take(tries))
                    .map(move |(missing, block)| (missing, block, Rc::clone(&run)))
            })
            .collect();
        if places.is_empty() {
            return Planned::NoAddresses;
        }
        places.sort_by_key(|(missing, _, _)| *missing);
        if known.is_some() {
            places.truncate(TRIES);
        }
        let mut plans = places
            .into_iter()
            .filter_map(|(_, block, run)| self.plan_block(space, &run, block, room, moving));
        (plans.next()).map_or(Planned::NoRoom, |plan| Planned::Plan(Box::new(plan)))
    }

    /// The aliases that moves and new chunks need to go, and those of all that are too many then, of which the last is named.
    fn aliases_to_go(
        &self,
        moves: &[Move],
        make: &[Range<usize>],
    ) -> (Vec<(usize, Chunk)>, Option<usize>) {
        let moved = moves.iter().filter(|one| !one.is_mapped);
        let moved = moved.map(|one| one.to..one.to.saturating_add(one.chunk.len));
        let mut clear: Vec<(usize, Chunk)> = moved
            .chain(make.iter().cloned())
            .flat_map(|range| self.aliases.over(&range).collect::<Vec<_>>())
            .collect();
        clear.sort_unstable_by_key(|(at, _)| *at);
        clear.dedup_by_key(|(at, _)| *at);
        let come = moves.iter().filter(|one| one.from.is_some()).count();
        let ends = moves.iter().filter(|one| one.is_mapped);
        let ends: BTreeSet<usize> = ends.map(|one| one.to).collect();
        let go = clear.len().saturating_add(ends.len());
        let stays = |at: usize| {
            clear.binary_search_by_key(&at, |(at, _)| *at).is_ok() || ends.contains(&at)
        };
        let more = come.saturating_sub(go);
        let chunks = self.chunks().saturating_add(make.len());
        let many = self.aliases.too_many(more, chunks, stays);
        let last = many.last().map(|(at, _)| *at);
        clear.extend(many);
        (clear, last)
    }

    fn plan_block<T: Datum>(
        &self,
        space: &mut Space<T>,
        run: &Run,
        block: Range<usize>,
        room: usize,
        moving: Moving,
    ) -> Option<Plan> {
        let mut stock = Stock::default();
        if moving != Moving::Nothing {
            stock = self.stock(space, &block);
        }
        let mut sleepers = Sleepers::new((moving != Moving::Nothing).then_some((self, &block)));
        let (mut taken, mut moves, mut make) = (Vec::new(), Vec::new(), Vec::new());
        let mut wake: Vec<(usize, usize)> = Vec::new();
        let mut behind = block.end;
        for hole in self.holes(run, &block) {
            let mut at = hole.start;
            while at < hole.end {
                let next = self.next_asleep(at);
                if let Some((start, chunk)) = next
                    && start == at
                {
                    wake.push((start, chunk.len));
                    sleepers.lay_for(chunk.len, &mut stock);
                    at = at.saturating_add(chunk.len);
                    continue;
                }
                let next = next.map_or(usize::MAX, |(start, _)| start);
                let left = hole.end.min(next) - at;
                let most = hole.most.min(next) - at;
                // What was here once comes back before others: that needs no CUDA call.
                let known = self.aliases.at(at).filter(|(chunk, _)| chunk.len <= most);
                let slept = known.and_then(|(_, lies)| sleepers.at(lies));
                if let Some(idle) = slept {
                    sleepers.lay_for(idle.chunk.len, &mut stock);
                }
                let home = known.filter(|_| matches!(moving, Moving::Known | Moving::Home));
                let Some(idle) = slept
                    .or_else(|| home.and_then(|(_, lies)| stock.at(lies)))
                    .or_else(|| stock.at_most(left))
                    .or_else(|| stock.longer(left, most))
                    .or_else(|| sleepers.take(at, left, most))
                else {
                    make.push(at..at.saturating_add(left));
                    at = at.saturating_add(left);
                    continue;
                };
                moves.push(Move {
                    chunk: idle.chunk,
                    from: idle.from,
                    to: at,
                    is_mapped: known.map(|(chunk, _)| chunk) == Some(idle.chunk),
                });
                taken.push(idle);
                at = at.saturating_add(idle.chunk.len);
            }
            behind = behind.max(at);
        }
        let lay = sleepers.into_laid();
        let (clear, evicted) = self.aliases_to_go(&moves, &make);
        let start = match run.iter().find(|piece| block.start < piece.end) {
            Some(Piece {
                kind: Kind::Gap,
                addr,
                ..
            }) => {
                let start = page_floor(block.start).max(*addr);
                let hole = self.holes(run, &block).next();
                hole.map_or(start, |hole| start.min(hole.start))
            }
            _ => block.start,
        };
        // Idle memory under the block, and then what moves.
        let mut hold: Vec<(Slot, Range<usize>)> = run
            .iter()
            .filter_map(|piece| match piece.kind {
                Kind::Idle(slot) if piece.addr < block.end && block.start < piece.end => {
                    let inside = piece.addr.max(block.start)..piece.end.min(block.end);
                    Some((slot, inside))
                }
                _ => None,
            })
            .collect();
        let place = |idle: &Idle| {
            let (from, slot) = (idle.from?, idle.span?);
            Some((slot, from..from.saturating_add(idle.chunk.len)))
        };
        hold.extend(taken.iter().filter_map(place));
        let others = taken.iter().filter(|idle| idle.span.is_none());
        let held = hold
            .iter()
            .map(|(_, range)| range.len())
            .chain(others.map(|idle| idle.chunk.len))
            .chain(wake.iter().map(|(_, len)| *len))
            .fold(0usize, usize::saturating_add);
        // What is laid to sleep stays held.
        hold.extend(lay.iter().filter_map(place));
        hold.sort_unstable_by_key(|(_, range)| std::cmp::Reverse(range.start));
        // A limit may cut what is behind the block.
        let more = (behind - start).saturating_sub(held);
        let excess = more.saturating_sub(room).next_multiple_of(GRANULE);
        if excess > behind - block.end {
            return None;
        }
        let len = chunk_len(block.len(), space.reserved().saturating_add(more));
        Some(Plan {
            target: start..behind - excess,
            hold,
            moves,
            clear,
            evicted,
            make: make
                .into_iter()
                .flat_map(|hole| chunks(hole, len))
                .collect(),
            wake: wake.into_iter().map(|(start, _)| start).collect(),
            fetch: (taken.iter().filter(|idle| idle.span.is_none()))
                .filter_map(|idle| idle.from)
                .collect(),
            lay: lay.iter().filter_map(|idle| idle.from).collect(),
            held,
        })
    }
}

/// How long new chunks are: a small part of the pool, so that it has some thousand of them at most, and at most half of the
/// request, so that small blocks, which keep their chunk where it is, keep little.
fn chunk_len(request: usize, reserved: usize) -> usize {
    let most = LONGEST.min(request / 2).min(reserved / CHUNKS).max(PAGE);
    // The power of two that is not above it.
    (most / 2 + 1).checked_next_power_of_two().unwrap_or(PAGE)
}

/// The chunks that new memory in a hole comes in, each of `len` bytes; what is left over comes in pages.
fn chunks(hole: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = hole.start;
    std::iter::from_fn(move || {
        let left = hole.end - at;
        let len = if left >= len { len } else { PAGE.min(left) };
        let chunk = at..at.saturating_add(len);
        at = chunk.end;
        (len > 0).then_some(chunk)
    })
}
