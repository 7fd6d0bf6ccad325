//! The search for a run: neighbouring free spans of one segment that satisfy a request together.
//!
//! Neighbours with the same owner are merged, so a run has at least two owners, and every run begins at a span
//! with a seam. The search therefore walks the seams, finds the longest run around each,
//! and slides a window over it. Each span of such a run is looked at a constant number of times.

use std::collections::VecDeque;

use super::blocks::{Blocks, Datum, Slot};
use super::{OwnerId, align_up};

/// What a search wants.
#[derive(Clone, Copy)]
pub(super) struct Request {
    /// The length in bytes, a multiple of the granule.
    pub size: usize,
    /// The alignment, a power of two, at least the granule.
    pub align: usize,
}

impl Request {
    /// Start and end of the block at the first aligned address that is not below `addr`.
    fn reach(self, addr: usize) -> Option<(usize, usize)> {
        let start = align_up(addr, self.align)?;
        Some((start, start.checked_add(self.size)?))
    }

    /// Where the block starts in the range of `len` bytes at `addr`, if it fits.
    pub fn place(self, addr: usize, len: usize) -> Option<usize> {
        let (start, end) = self.reach(addr)?;
        (end <= addr.checked_add(len)?).then_some(start)
    }
}

/// Where a block can be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The first span that the block touches.
    pub first: Slot,
    /// The address of the block.
    pub start: usize,
}

/// What is compared between runs, in this order. The smallest is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The highest rank in the run.
    rank: u32,
    /// How many owners other than the idle one are in the run; 0 where that does not matter.
    owners: usize,
    /// The bytes of the spans together.
    total: usize,
    /// The address of the first span.
    addr: usize,
}

/// What a search needs room for; kept from search to search.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    window: Window,
    run: Vec<Span>,
}

/// A span of a run.
#[derive(Debug)]
struct Span {
    slot: Slot,
    addr: usize,
    end: usize,
    owner: OwnerId,
    rank: u32,
}

/// The best run among the spans for whose owner `usable` gives a rank: the lowest highest rank, then, if their number is given,
/// the fewest owners that are not idle, then the smallest total, then the lowest address.
/// `seams` has every span with a seam, and perhaps others, which it loses.
pub(super) fn best_run<T: Datum>(
    blocks: &mut Blocks<T>,
    owners: Option<usize>,
    seams: &mut Vec<Slot>,
    request: Request,
    usable: impl Fn(OwnerId) -> Option<u32>,
    scratch: &mut Scratch,
) -> Option<Found> {
    let Scratch { window, run } = scratch;
    window.count(owners.unwrap_or(0));
    let mut best: Option<(Key, Found)> = None;
    let mut place = 0;
    while let Some(first) = seams.get(place).copied() {
        let block = blocks.at(first);
        let (prev, next) = (block.prev, block.next);
        let (owner, behind) = (block.owner(), blocks.owner(next));
        let Some((owner, behind)) = owner.zip(behind) else {
            blocks.at_mut(first).set_seam(false);
            seams.swap_remove(place);
            continue;
        };
        place = place.saturating_add(1);
        // Only the first span of the longest run around this seam counts, so that each run comes once.
        if usable(owner).is_some()
            && usable(behind).is_some()
            && blocks.owner(prev).and_then(&usable).is_none()
            && collect_run(blocks, first, request, &usable, run)
            && let Some(found) = window.best_of(run, request)
            && best.is_none_or(|(key, _)| found.0 < key)
        {
            best = Some(found);
        }
    }
    best.map(|(_, found)| found)
}

/// Collects the longest run that begins at a span; false if that is too short for the request, wherever it begins.
fn collect_run<T: Datum>(
    blocks: &Blocks<T>,
    first: Slot,
    request: Request,
    usable: &impl Fn(OwnerId) -> Option<u32>,
    run: &mut Vec<Span>,
) -> bool {
    let span = |slot: Slot| {
        let block = blocks.at(slot);
        let owner = block.owner()?;
        let rank = usable(owner)?;
        let span = Span {
            slot,
            addr: block.addr(),
            end: block.end(),
            owner,
            rank,
        };
        Some((span, block.next))
    };
    // Most runs are too short, and end here. A damaged chain ends too.
    let (mut slot, mut total) = (first, 0usize);
    for _ in 0..blocks.count() {
        let Some((Span { addr, end, .. }, next)) = span(slot) else {
            break;
        };
        total = total.wrapping_add(end.wrapping_sub(addr));
        if next.is_none() {
            break;
        }
        slot = next;
    }
    if total < request.size {
        return false;
    }
    run.clear();
    let spans = blocks
        .following(first)
        .map_while(|slot| Some(span(slot)?.0));
    run.extend(spans);
    true
}

/// A window over a run, with the highest rank and the number of owners in it.
#[derive(Debug, Default)]
struct Window {
    /// How many spans of each owner are in the window. Empty where owners are not counted.
    counts: Vec<usize>,
    owners: usize,
    /// Places in the run whose rank is above all ranks behind them in the window; the front is the highest.
    peaks: VecDeque<usize>,
}

impl Window {
    /// Counts so many owners from now on.
    fn count(&mut self, owners: usize) {
        self.counts.clear();
        self.counts.resize(owners, 0);
    }

    /// The best place in a run. The window is empty before and after.
    fn best_of(&mut self, run: &[Span], request: Request) -> Option<(Key, Found)> {
        let best = self.slide(run, request);
        self.owners = 0;
        self.peaks.clear();
        for span in run {
            if let Some(count) = self.counts.get_mut(span.owner.0 as usize) {
                *count = 0;
            }
        }
        best
    }

    fn slide(&mut self, run: &[Span], request: Request) -> Option<(Key, Found)> {
        let mut best: Option<(Key, Found)> = None;
        // The window is run[first..behind]. Its end only moves forward, as the first address does.
        let mut behind = 0;
        let mut end = 0;
        for (first, span) in run.iter().enumerate() {
            let Some((start, needed)) = request.reach(span.addr) else {
                break;
            };
            // The spans touch, so the end of an empty window is below what is needed: it takes one in at least.
            while end < needed {
                let Some(next) = run.get(behind) else {
                    return best;
                };
                self.enter(run, behind, next);
                end = next.end;
                behind += 1;
            }
            // A block that starts behind the first span does not need that span.
            if start < span.end {
                let rank = self
                    .peaks
                    .front()
                    .and_then(|peak| run.get(*peak))
                    .map_or(span.rank, |peak| peak.rank);
                let total = end.saturating_sub(span.addr);
                let key = Key {
                    rank,
                    owners: self.owners,
                    total,
                    addr: span.addr,
                };
                if best.is_none_or(|(other, _)| key < other) {
                    best = Some((
                        key,
                        Found {
                            first: span.slot,
                            start,
                        },
                    ));
                }
            }
            self.leave(first, span);
        }
        best
    }

    fn enter(&mut self, run: &[Span], place: usize, span: &Span) {
        while let Some(last) = self.peaks.back()
            && run.get(*last).is_none_or(|last| last.rank <= span.rank)
        {
            self.peaks.pop_back();
        }
        self.peaks.push_back(place);
        if span.owner != OwnerId::IDLE
            && let Some(count) = self.counts.get_mut(span.owner.0 as usize)
        {
            *count += 1;
            if *count == 1 {
                self.owners += 1;
            }
        }
    }

    fn leave(&mut self, place: usize, span: &Span) {
        if self.peaks.front() == Some(&place) {
            self.peaks.pop_front();
        }
        if span.owner != OwnerId::IDLE
            && let Some(count) = self.counts.get_mut(span.owner.0 as usize)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.owners = self.owners.saturating_sub(1);
            }
        }
    }
}
