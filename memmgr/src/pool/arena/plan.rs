//! What a growth would have to move and to make.

use super::{Arena, Chunk, PAGE};
use crate::pool::{
    GRANULE,
    best_fit::{Kind, Piece, Run, Slot, Space},
};
use std::{collections::BTreeMap, ops::Range};

/// No chunk that is made is longer.
pub(super) const LONGEST: usize = 32 << 20;
/// A chunk is at most such a part of the pool.
const CHUNKS: usize = 1024;
/// So many places in a run are compared.
const PLACES: usize = 64;

/// A chunk that is to be mapped at `to`.
#[derive(Debug, Clone, Copy)]
pub(in crate::pool) struct Move {
    pub chunk: Chunk,
    /// Where it is mapped now; `None`: nowhere.
    pub from: Option<usize>,
    pub to: usize,
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
    /// What of the held memory comes back with the target, in bytes.
    pub(super) held: usize,
}

/// What a search for a plan ended with.
#[derive(Debug)]
pub(in crate::pool) enum Planned {
    /// This serves the request.
    Plan(Plan),
    /// The limit forbids every plan.
    NoRoom,
    /// There are not enough addresses.
    NoAddresses,
}

/// A chunk that could move.
#[derive(Debug, Clone, Copy)]
struct Idle {
    chunk: Chunk,
    /// Where it is, and the span around it.
    from: Option<(usize, Slot)>,
}

/// The chunks that could move, by their length; the last of a list is taken first.
struct Stock(BTreeMap<usize, Vec<Idle>>);

impl Stock {
    fn take(&mut self, len: usize) -> Option<Idle> {
        let list = self.0.get_mut(&len)?;
        let found = list.pop();
        if list.is_empty() {
            self.0.remove(&len);
        }
        found
    }

    /// The longest that is not longer.
    fn at_most(&mut self, len: usize) -> Option<Idle> {
        let found = *self.0.range(..=len).next_back()?.0;
        self.take(found)
    }

    /// The shortest that is longer, but not too long.
    fn longer(&mut self, than: usize, most: usize) -> Option<Idle> {
        let found = *self.0.range(than..).next()?.0;
        if found > most {
            return None;
        }
        self.take(found)
    }
}

fn page_floor(addr: usize) -> usize {
    addr - addr % PAGE
}

fn page_ceil(addr: usize) -> usize {
    addr.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

/// A part of a gap that is to get memory, and how far it could go on.
#[derive(Debug, Clone, Copy)]
struct Hole {
    start: usize,
    end: usize,
    most: usize,
}

impl Arena {
    /// The part of a gap that a block at `block` touches and that has no memory.
    fn hole(&self, gap: &Piece, block: &Range<usize>) -> Hole {
        let start = page_floor(gap.addr.max(block.start)).max(self.mapped_until(gap.addr));
        let end = page_ceil(gap.end.min(block.end)).min(gap.end);
        Hole {
            start,
            end: end.max(start),
            most: if block.end < gap.end { gap.end } else { end },
        }
    }

    /// The holes under a block in a run.
    fn holes<'a>(
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

    /// The block in a run for which the least memory is missing, and how many bytes that is; ties by address.
    fn best_block(&self, run: &Run, size: usize) -> Option<(usize, Range<usize>)> {
        let (first, last) = (run.first()?.addr, run.last()?.end);
        if last.saturating_sub(first) < size {
            return None;
        }
        let ends = run.iter().filter_map(|piece| {
            let start = piece
                .end
                .checked_sub(size)
                .filter(|start| *start >= first)?;
            // What is mapped at the front of a gap stays together.
            let gap = run.iter().find(|gap| {
                gap.kind == Kind::Gap && gap.addr < start && start < self.mapped_until(gap.addr)
            });
            Some(gap.map_or(start, |gap| gap.addr))
        });
        let starts = run.iter().map(|piece| piece.addr);
        starts
            .chain(ends)
            .take(PLACES)
            .filter_map(|start| Some(start..start.checked_add(size)?))
            .filter(|block| block.end <= last)
            .map(|block| {
                let missing = self.holes(run, &block).fold(0usize, |sum, hole| {
                    sum.saturating_add(hole.end - hole.start)
                });
                (missing, block)
            })
            .min_by_key(|(missing, block)| (*missing, block.start))
    }

    /// The chunks outside of a block that lie wholly inside idle spans.
    fn stock<T: Default>(&self, space: &mut Space<T>, block: &Range<usize>) -> Stock {
        let mut found: Vec<Idle> = Vec::new();
        for span in space.idle_spans(PAGE) {
            let Kind::Idle(slot) = span.kind else {
                continue;
            };
            let inside = self.chunks.range(span.addr..span.end);
            found.extend(inside.filter_map(|(start, chunk)| {
                let end = start.saturating_add(chunk.len);
                let apart = end <= block.start || block.end <= *start;
                (end <= span.end && apart).then_some(Idle {
                    chunk: *chunk,
                    from: Some((*start, slot)),
                })
            }));
        }
        // The highest address is taken first, so that the low end stays in one piece.
        found.sort_unstable_by_key(|idle| idle.from.map(|(start, _)| start));
        let mut stock: BTreeMap<usize, Vec<Idle>> = BTreeMap::new();
        let spare = self.spare.iter().map(|chunk| Idle {
            chunk: *chunk,
            from: None,
        });
        for idle in found.into_iter().chain(spare) {
            stock.entry(idle.chunk.len).or_default().push(idle);
        }
        Stock(stock)
    }

    /// How a request of `size` bytes can be served, where the pool may get `room` more bytes; by new memory alone, unless idle memory
    /// `may_move`. Ranges for which `closed` says so are left alone.
    pub fn plan<T: Default>(
        &self,
        space: &mut Space<T>,
        size: usize,
        room: usize,
        may_move: bool,
        closed: impl Fn(usize) -> bool,
    ) -> Planned {
        let is_open = |run: &Run| {
            let segment = run.first().and_then(|first| space.segment_of(first.addr));
            segment.is_some_and(|segment| !closed(segment.base))
        };
        let mut places: Vec<(usize, Range<usize>, Run)> = space
            .runs()
            .filter(is_open)
            .filter_map(|run| {
                let (missing, block) = self.best_block(&run, size)?;
                Some((missing, block, run))
            })
            .collect();
        if places.is_empty() {
            return Planned::NoAddresses;
        }
        places.sort_by_key(|(missing, _, _)| *missing);
        let mut plans = places
            .into_iter()
            .filter_map(|(_, block, run)| self.plan_block(space, &run, block, room, may_move));
        plans.next().map_or(Planned::NoRoom, Planned::Plan)
    }

    fn plan_block<T: Default>(
        &self,
        space: &mut Space<T>,
        run: &Run,
        block: Range<usize>,
        room: usize,
        may_move: bool,
    ) -> Option<Plan> {
        let mut stock = if may_move {
            self.stock(space, &block)
        } else {
            Stock(BTreeMap::new())
        };
        let (mut taken, mut moves, mut make) = (Vec::new(), Vec::new(), Vec::new());
        let mut behind = block.end;
        for hole in self.holes(run, &block) {
            let mut at = hole.start;
            while at < hole.end {
                let left = hole.end - at;
                let Some(idle) = stock
                    .at_most(left)
                    .or_else(|| stock.longer(left, hole.most - at))
                else {
                    make.push(at..hole.end);
                    at = hole.end;
                    break;
                };
                moves.push(Move {
                    chunk: idle.chunk,
                    from: idle.from.map(|(from, _)| from),
                    to: at,
                });
                taken.push(idle);
                at = at.saturating_add(idle.chunk.len);
            }
            behind = behind.max(at);
        }
        let start = match run.iter().find(|piece| block.start < piece.end) {
            Some(Piece {
                kind: Kind::Gap,
                addr,
                ..
            }) => page_floor(block.start).max(*addr),
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
        hold.extend(taken.iter().filter_map(|idle| {
            let (from, slot) = idle.from?;
            Some((slot, from..from.saturating_add(idle.chunk.len)))
        }));
        hold.sort_unstable_by_key(|(_, range)| std::cmp::Reverse(range.start));
        let spare = taken.iter().filter(|idle| idle.from.is_none());
        let held = hold
            .iter()
            .map(|(_, range)| range.len())
            .chain(spare.map(|idle| idle.chunk.len))
            .fold(0usize, usize::saturating_add);
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
            make: make
                .into_iter()
                .flat_map(|hole| chunks(hole, len))
                .collect(),
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
