//! Mapped memory in one piece again, or as in the beginning, when nothing is live.
//!
//! A growth moves idle chunks to where they are needed, so that after a while the memory lies in pieces, each with a part of a
//! page at its ends that no request fits. When the last block has been freed it can begin anew: a program that repeats itself
//! then needs no more memory than the first time.
//!
//! - **Chunks of one page**, as small pools have, are laid to sleep where they are (`arena/asleep.rs`), which costs no CUDA call. The
//!   pool grows over them again as it did in the beginning, and is afterwards what it was then.
//! - **Longer ones** would not lie as they did then. All memory is put together, which costs as many moves as there are chunks in
//!   the wrong place.
//!
//! Either is done where that, and what follows from it, is little beside the calls that were made meanwhile, and not where the memory
//! has just served as many calls as moved it, as it lies.

use super::{
    Ticket,
    growth::{CALLS, Need},
};
use crate::{
    pool::{Counters, Pool, State},
    sync::thread,
};

/// As many calls must be made for each step that a pool of sleeping chunks takes again: a chunk that is mapped elsewhere, a growth.
const CALLS_ASLEEP: u64 = 128;
/// So many moves that map nothing count as one.
const FREE: u64 = 16;
/// So many chunks are looked at in the time of a call.
const LOOKS: u64 = 4;

/// The pool when nothing was live last. What happened since then is a *round*.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    moves: u64,
    /// The growths that made memory.
    growths: u64,
    calls: u64,
}

/// The moves up to the moment when the memory was last in one piece or asleep, and the calls up to the last attempt.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::pool) struct Tidied {
    calls: u64,
    moves: u64,
    remaps: u64,
    /// How many of those moves that mapped memory were made for that.
    own: u64,
    /// The growths since then that went over chunks that were asleep.
    woken: u64,
    seen: Seen,
    /// Whether memory has moved in a round that made none: the same may come again.
    again: bool,
    /// The calls of the longest round in which memory has moved.
    round: u64,
    /// The moves up to a round of as many calls for which nothing had to move: the memory serves as it lies.
    served: u64,
}

impl Tidied {
    /// Of so many moves that mapped memory, those that were made for requests.
    pub(super) fn others(&self, remaps: u64) -> u64 {
        remaps.saturating_sub(self.own)
    }

    /// Whether the memory has been put together, or laid to sleep, after it had moved.
    pub(super) fn has_begun_anew(&self) -> bool {
        self.moves > 0
    }

    /// A growth has gone over chunks that were asleep.
    pub(super) fn note_woken(&mut self) {
        self.woken = self.woken.saturating_add(1);
    }
}

impl Pool {
    /// Lets the memory begin anew if that is due and nothing is live. A failure changes nothing, and nobody needs to know of it; the
    /// next attempt is as many calls away as the last one was.
    pub(super) fn tidy(&self) {
        let Some(mapped) = self.source.mapped() else {
            return;
        };
        {
            let mut state = self.state.lock();
            if !state.is_worth_tidying() {
                return;
            }
            state.tidied.calls = state.calls();
            state.tidied.again = false;
        }
        // What has been freed must be idle first.
        self.poll(true);
        self.end_epochs(None);
        let idle = {
            let mut state = self.state.lock();
            let idle = state.space.stats().idle;
            if state.growing.is_some() || idle != state.space.reserved() {
                return;
            }
            if state.arena.has_pages_only() {
                let remaps = state.counters.remaps;
                state.note_tidied(remaps);
                let State { space, arena, .. } = &mut *state;
                arena.sleep(space);
                return;
            }
            state.growing = Some(thread::current().id());
            let State { space, arena, .. } = &mut *state;
            arena.wake(space);
            idle
        };
        let _ticket = Ticket(self);
        let before = self.state.lock().counters.remaps;
        let tidied = self.grow_by(mapped, idle, Need::TIDY, |state| {
            state.note_tidied(before);
        });
        if let Err(error) = tidied {
            tracing::debug!(%error, "idle memory could not be put together");
        }
    }
}

impl State {
    /// Lets the next allocating call look whether the memory is to be put together, if nothing is live.
    #[inline]
    pub(in crate::pool) fn note_empty(&mut self) {
        if self.space.in_use() == 0 && self.has_moved() {
            self.look_if_worth_it();
        }
    }

    /// Whether memory has moved since it was last in one piece, and since it last served a whole round as it lay.
    #[inline]
    pub(in crate::pool) fn has_moved(&self) -> bool {
        let moves = self.counters.moves;
        moves != self.tidied.moves && moves != self.tidied.served
    }

    #[cold]
    fn look_if_worth_it(&mut self) {
        let now = Seen {
            moves: self.counters.moves,
            growths: self.counters.growths,
            calls: self.calls(),
        };
        let tidied = &mut self.tidied;
        let before = std::mem::replace(&mut tidied.seen, now);
        let round = now.calls.saturating_sub(before.calls);
        if now.moves > before.moves {
            tidied.again |= now.growths == before.growths;
            tidied.round = tidied.round.max(round);
        } else if round >= tidied.round {
            // As a program that repeats itself is served from now on.
            tidied.served = now.moves;
            return;
        }
        self.release_due |= self.is_worth_tidying();
    }

    /// Whether nothing is live, memory has moved, and as many moves again, and as many growths over what sleeps, cost little: beside
    /// the calls that were made meanwhile, or beside what a program that repeats itself pays each time until it finds its
    /// memory where it was.
    pub(super) fn is_worth_tidying(&self) -> bool {
        let moved = self.counters.moves.saturating_sub(self.tidied.moves);
        let remapped = self.counters.remaps.saturating_sub(self.tidied.remaps);
        let calls = self.calls().saturating_sub(self.tidied.calls);
        let free = moved.saturating_sub(remapped) / FREE;
        let steps = (remapped.saturating_add(free)).saturating_add(self.tidied.woken);
        let each = match self.arena.has_pages_only() {
            true => CALLS_ASLEEP,
            false => CALLS,
        };
        // Whatever moves, all chunks are looked at.
        let chunks = self.arena.chunks() as u64;
        let is_little = steps.saturating_mul(each) <= calls || {
            let most = remapped.min(chunks);
            let others = self.tidied.others(self.counters.remaps);
            self.tidied.again
                && !self.arena.has_pages_only()
                && self.tidied.own.saturating_add(most) <= others
        };
        self.space.in_use() == 0 && self.has_moved() && chunks / LOOKS <= calls && is_little
    }

    /// All memory is in one piece, or asleep, and there had been so many moves that mapped memory `before`.
    fn note_tidied(&mut self, before: u64) {
        let Counters { moves, remaps, .. } = self.counters;
        let own = remaps.saturating_sub(before);
        (self.tidied.moves, self.tidied.remaps) = (moves, remaps);
        (self.tidied.woken, self.tidied.round) = (0, 0);
        self.tidied.own = self.tidied.own.saturating_add(own);
    }

    /// The requests that were served.
    pub(super) fn calls(&self) -> u64 {
        self.counters.hits.saturating_add(self.counters.served)
    }
}
