//! Growing and shrinking a pool of mapped memory: chunks of idle memory move to where the request goes, and only what is
//! missing is made.
//!
//! Under the lock a plan takes chunks and addresses out of the books; the calls are made without it; under the lock again the
//! target becomes idle. Who does this holds the pool's one ticket (`State::growing`), so that nobody else maps or unmaps
//! meanwhile; those who miss wait for it and search again first.

use super::{Growth, Request, Ticket};
use crate::{
    error::{Error, Result},
    planted::{self, Mistake},
    pool::{
        GRANULE, Pool, State,
        arena::{Chunk, Idles, Move, Moving, PAGE, Plan, Planned, Taken},
        mapped::{Mapped, is_out_of_memory, parts},
        observer::SegmentChange,
        segment,
    },
    spans,
    sync::thread,
};

/// So many times as many chunks as there are may be mapped elsewhere, and one more with every so many calls, before more memory is made
/// instead: a program whose requests miss again and again would otherwise move the same memory for ever, at some tens of
/// microseconds a request. As it is, moving costs a call less than a fifth of a microsecond in the long run.
const MOVES: usize = 4;
pub(super) const CALLS: u64 = 256;
/// Growths for small requests add such a part of the pool.
const STEPS: usize = 512;

/// What a growth may do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// How many bytes more the pool may hold; `None`: what the limit leaves.
    room: Option<usize>,
    /// What may move.
    moving: Moving,
}

impl Need {
    /// Whatever the limit leaves.
    const ANY: Self = Self {
        room: None,
        moving: Moving::Highest,
    };
    /// New memory alone.
    const NEW: Self = Self {
        room: None,
        moving: Moving::Nothing,
    };

    /// No memory more: what there is moves to where most of it was once.
    pub const TIDY: Self = Self {
        room: Some(0),
        moving: Moving::Home,
    };

    /// At most so many bytes more.
    pub fn at_most(room: usize) -> Self {
        Self {
            room: Some(room),
            moving: Moving::Highest,
        }
    }
}

impl Pool {
    /// As [`Pool::grow`], with mapped memory.
    pub(super) fn grow_mapped(
        &self,
        mapped: &Mapped,
        request: Request<'_>,
        rounded: usize,
    ) -> Result<Growth> {
        let _span = spans::grow(self.place(), rounded);
        let mut asked = false;
        loop {
            {
                let mut state = match self.lock_to_grow(request)? {
                    Ok(state) => state,
                    Err(growth) => return Ok(growth),
                };
                state.no_addresses = false;
                // All that could move and all that could come would not be enough.
                if rounded > state.room().saturating_add(state.space.stats().idle) {
                    return Ok(Growth::Refused);
                }
                if asked {
                    state.growing = Some(thread::current().id());
                }
            }
            // Before anybody waits for this growth: what frees adopted memory is anybody's code.
            if !std::mem::replace(&mut asked, true) {
                segment::release_idle_orphans();
                self.complete_own(request);
                continue;
            }
            let _ticket = Ticket(self);
            // What sleeps is there without a question.
            let free = if self.is_asleep(rounded) {
                None
            } else {
                let capacity = self.source.capacity()?;
                if rounded > capacity.total {
                    return Ok(Growth::Refused);
                }
                capacity.free
            };
            let take = |state: &mut State| state.take_usable_on(request);
            if let Some(more) = self.preferred(rounded, free) {
                // Where there is not that much, what is needed may be there.
                match self.grow_by(mapped, more, Need::ANY, take) {
                    Ok(Some(taken)) => return Ok(taken.map_or(Growth::Elsewhere, Growth::Served)),
                    Ok(None) => {}
                    Err(error) if is_out_of_memory(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            if self.state.lock().has_moved_enough() {
                match self.grow_by(mapped, rounded, Need::NEW, take) {
                    Ok(Some(taken)) => return Ok(taken.map_or(Growth::Elsewhere, Growth::Served)),
                    Ok(None) => {}
                    Err(error) if is_out_of_memory(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            return match self.grow_by(mapped, rounded, Need::ANY, take) {
                Ok(None) => Ok(Growth::Refused),
                Ok(Some(taken)) => Ok(taken.map_or(Growth::Elsewhere, Growth::Served)),
                Err(error) if is_out_of_memory(&error) => Ok(Growth::Refused),
                Err(error) => Err(error),
            };
        }
    }

    /// Whether chunks sleep that are as long together as a growth for a request of `rounded` bytes.
    fn is_asleep(&self, rounded: usize) -> bool {
        let state = self.state.lock();
        state.arena.sleeping() >= rounded.max(state.config.growth)
    }

    /// By how much the pool should grow for a request of `rounded` bytes, if that is more than the request. An empty pool gets
    /// the configured growth at once: streams that take turns would otherwise take each other's last memory. A large one
    /// grows by a small part of itself, so that a thousand small requests do not make it grow a thousand times.
    fn preferred(&self, rounded: usize, free: Option<usize>) -> Option<usize> {
        let state = self.state.lock();
        let limit = state.config.limit.or(free).unwrap_or(usize::MAX);
        // As if what sleeps were not there.
        let awake = (state.space.reserved()).saturating_sub(state.arena.sleeping());
        let more = match awake {
            0 => state.config.growth.min(limit),
            awake => awake / STEPS / PAGE * PAGE,
        };
        let more = more - more % GRANULE;
        (more > rounded).then_some(more)
    }

    /// Makes `len` bytes idle in one piece, and at once does
    /// `then`; `None` if that is not possible. This thread holds the ticket.
    pub(super) fn grow_by<T>(
        &self,
        mapped: &Mapped,
        len: usize,
        need: Need,
        then: impl FnOnce(&mut State) -> T,
    ) -> Result<Option<T>> {
        let mut reserved = false;
        let plan = loop {
            let planned = {
                let mut state = self.state.lock();
                state.no_addresses = false;
                state.plan(len, need)
            };
            match planned {
                Planned::Plan(plan) => break plan,
                Planned::NoRoom => return Ok(None),
                Planned::NoAddresses if reserved => return Ok(None),
                Planned::NoAddresses => {
                    let (start, len) = mapped.reserve(len).inspect_err(|error| {
                        self.state.lock().no_addresses = is_out_of_memory(error);
                    })?;
                    reserved = true;
                    let added = self.state.lock().space.add_range(start, len);
                    if let Err(error) = added {
                        // SAFETY: the range was just reserved, and nobody knows it.
                        let _ = unsafe { mapped.free_range(start, len) };
                        return Err(Error::Unsupported {
                            reason: format!(
                                "the driver reserved {len} bytes at {start:#x} that cannot be used: {error}"
                            ),
                        });
                    }
                }
            }
        };
        let moved = |one: &Move| Some((one.from?, one.chunk));
        self.report_parts(plan.moves.iter().filter_map(moved), SegmentChange::Removed);
        // SAFETY: the plan has taken its chunks out of the books, which only idle memory leaves.
        match unsafe { mapped.carry_out(&plan) } {
            Ok(made) => {
                let placed = plan.moves.iter().map(|one| (one.to, one.chunk));
                self.report_parts(placed.chain(made.iter().copied()), SegmentChange::Added);
                let mut state = self.state.lock();
                state.finish(&plan, made);
                Ok(Some(then(&mut state)))
            }
            Err(failed) => {
                let back = plan.moves.iter().filter_map(moved);
                self.report_parts(back, SegmentChange::Added);
                let mut state = self.state.lock();
                let State {
                    space,
                    arena,
                    retiring,
                    ..
                } = &mut *state;
                arena.undo(space, &plan, failed.cleared);
                if failed.stuck
                    && let Some(segment) = space.segment_of(plan.target.start)
                {
                    // The pool goes on with other addresses.
                    retiring.insert(segment.base);
                }
                Err(failed.error)
            }
        }
    }

    /// Tells what chunks make up together.
    fn report_parts(&self, placed: impl Iterator<Item = (usize, Chunk)>, change: SegmentChange) {
        if cfg!(feature = "trace-events") || self.observed.wants_segments() {
            for part in parts(&placed.collect::<Vec<_>>()) {
                self.report_segment(part.start, part.len(), change);
            }
        }
    }

    /// Gives back chunks that nothing uses, until that makes `most` bytes, and ranges of addresses of which nothing is left: of
    /// the segments for which `wanted` says so. The bytes.
    pub(super) fn release_chunks(
        &self,
        mapped: &Mapped,
        most: usize,
        mut wanted: impl FnMut(&State, usize) -> bool,
    ) -> Result<usize> {
        let (idles, _ticket) = loop {
            let mut state = self.state.lock();
            if let Some(by) = state.growing {
                if by == thread::current().id() {
                    // An observer's call, inside a growth.
                    return Ok(0);
                }
                drop(state);
                self.wait_for_growth();
                continue;
            }
            state.growing = Some(thread::current().id());
            let bases: Vec<usize> = state.space.segments().map(|segment| segment.base).collect();
            let bases: Vec<usize> = bases
                .into_iter()
                .filter(|base| wanted(&state, *base))
                .collect();
            let State { space, arena, .. } = &mut *state;
            let idles = arena.take_idle(space, most, |base| bases.contains(&base));
            break (idles, Ticket(self));
        };
        let taken = |taken: &Taken| (taken.start, taken.chunk);
        self.report_parts(idles.mapped.iter().map(taken), SegmentChange::Removed);
        // SAFETY: the chunks are out of the books, which only idle memory leaves.
        let (gone, rest, mut done) = unsafe { mapped.release(idles) };
        self.report_parts(rest.mapped.iter().map(taken), SegmentChange::Added);
        let aliases = {
            let mut state = self.state.lock();
            let State { space, arena, .. } = &mut *state;
            arena.put_back(space, rest, gone);
            arena.take_aliases_of_empty(space)
        };
        let mut left = Idles::default();
        if !aliases.is_empty() {
            let aliases = Idles {
                aliases,
                ..Idles::default()
            };
            // SAFETY: the aliases are out of the books, and no chunk goes with them.
            let (_, stuck, cleared) = unsafe { mapped.release(aliases) };
            (left, done) = (stuck, done.and(cleared));
        }
        let empty: Vec<(usize, usize)> = {
            let mut state = self.state.lock();
            let State {
                space,
                arena,
                retiring,
                ..
            } = &mut *state;
            arena.put_back(space, left, 0);
            let segments: Vec<_> = space.segments().collect();
            let empty = (segments.into_iter())
                // What is mapped there still would keep the driver from taking the addresses back.
                .filter(|segment| !arena.has_alias_in(segment.base, segment.len))
                .filter(|segment| space.remove_range(segment.base))
                .map(|segment| {
                    retiring.remove(&segment.base);
                    (segment.base, segment.len)
                })
                .collect();
            state.set_quota(&self.front);
            empty
        };
        for (start, len) in empty {
            // SAFETY: the range is out of the books, since no memory and no alias lies in it. Where a growth that failed left
            // something mapped, the driver refuses.
            done = done.and(unsafe { mapped.free_range(start, len) });
        }
        done.map(|()| gone)
    }
}

impl State {
    /// Finds out how `len` bytes can become idle in one piece, and takes out of the books what that needs.
    fn plan(&mut self, len: usize, need: Need) -> Planned {
        if planted::is_made(Mistake::ChunksMoveUnderWork) {
            let owners: Vec<_> = self.space.owners_with_spans().collect();
            for owner in owners {
                self.space.settle(owner, usize::MAX);
            }
        }
        let room = need.room.unwrap_or_else(|| self.room());
        let Self {
            space,
            arena,
            retiring,
            tidied,
            ..
        } = self;
        // A program that has begun anew may repeat itself.
        let moving = match need.moving {
            Moving::Highest if tidied.has_begun_anew() => Moving::Known,
            moving => moving,
        };
        let planned = arena.plan(space, len, room, moving, |base| retiring.contains(&base));
        if let Planned::Plan(plan) = &planned {
            arena.begin(space, plan);
        }
        planned
    }

    /// Whether so much has moved that the next growth had better make what it needs.
    fn has_moved_enough(&self) -> bool {
        let chunks = self.arena.chunks().saturating_mul(MOVES) as u64;
        let remaps = self.tidied.others(self.counters.remaps);
        remaps > chunks.saturating_add(self.calls() / CALLS)
    }

    /// A plan has been carried out.
    fn finish(&mut self, plan: &Plan, made: Vec<(usize, Chunk)>) {
        let Self {
            space,
            arena,
            counters,
            tidied,
            ..
        } = self;
        if !plan.wake.is_empty() {
            tidied.note_woken();
        }
        counters.growths = counters.growths.saturating_add(u64::from(!made.is_empty()));
        counters.moves = counters.moves.saturating_add(plan.moves.len() as u64);
        let mapped = plan.moves.iter().filter(|one| !one.is_mapped).count();
        counters.remaps = counters.remaps.saturating_add(mapped as u64);
        arena.finish(space, plan, made);
        counters.peak_reserved = counters.peak_reserved.max(space.reserved());
    }
}
