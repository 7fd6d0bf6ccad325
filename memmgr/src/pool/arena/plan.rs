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
    /// Chunks that sleep where the target is.
    pub wake: Vec<usize>,
    /// Those of the chunks that move that sleep.
    pub(super) fetch: Vec<usize>,
    /// Idle chunks that would have moved to where others sleep, and sleep in place of them.
    pub(super) lay: Vec<usize>,
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
    /// Where it is; `None`: mapped nowhere.
    from: Option<usize>,
    /// The span around it; `None`: it sleeps, or is mapped nowhere.
    span: Option<Slot>,
}

impl Idle {
    /// Whether it lies outside of a block.
    fn is_apart(&self, block: &Range<usize>) -> bool {
        self.from.is_none_or(|start| {
            start.saturating_add(self.chunk.len) <= block.start || block.end <= start
        })
    }
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

    /// One that is idle, and may sleep in place of another.
    fn take_idle(&mut self, len: usize) -> Option<Idle> {
        let list = self.0.get_mut(&len)?;
        let last = list.iter().rposition(|idle| idle.span.is_some())?;
        let found = list.remove(last);
        if list.is_empty() {
            self.0.remove(&len);
        }
        Some(found)
    }

    /// One more, which is taken before others.
    fn put(&mut self, idle: Idle) {
        self.0.entry(idle.chunk.len).or_default().push(idle);
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
        let mut stock = Stock(BTreeMap::new());
        idle.chain(spare).for_each(|idle| stock.put(idle));
        stock
    }

    /// The chunks outside of a block that sleep.
    fn sleepers(&self, block: &Range<usize>) -> Stock {
        let asleep = self.asleep.iter().map(|(start, chunk)| Idle {
            chunk: *chunk,
            from: Some(*start),
            span: None,
        });
        let mut stock = Stock(BTreeMap::new());
        let apart = asleep.filter(|idle| idle.is_apart(block));
        apart.for_each(|idle| stock.put(idle));
        stock
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
        let (mut stock, mut sleepers) = if may_move {
            (self.stock(space, &block), self.sleepers(&block))
        } else {
            (Stock(BTreeMap::new()), Stock(BTreeMap::new()))
        };
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
                    if let Some(idle) = stock.take_idle(chunk.len) {
                        sleepers.put(idle);
                    }
                    at = at.saturating_add(chunk.len);
                    continue;
                }
                let next = next.map_or(usize::MAX, |(start, _)| start);
                let left = hole.end.min(next) - at;
                let most = hole.most.min(next) - at;
                let Some(idle) = (stock.at_most(left))
                    .or_else(|| stock.longer(left, most))
                    .or_else(|| sleepers.at_most(left))
                    .or_else(|| sleepers.longer(left, most))
                else {
                    make.push(at..at.saturating_add(left));
                    at = at.saturating_add(left);
                    continue;
                };
                moves.push(Move {
                    chunk: idle.chunk,
                    from: idle.from,
                    to: at,
                });
                taken.push(idle);
                at = at.saturating_add(idle.chunk.len);
            }
            behind = behind.max(at);
        }
        let lay = sleepers.0.into_values().flatten();
        let lay: Vec<Idle> = lay.filter(|idle| idle.span.is_some()).collect();
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
