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
//! Either is done where that, and what follows from it, is little beside the calls that were made meanwhile.

use super::{
    Ticket,
    growth::{CALLS, Need},
};
use crate::{
    pool::{Pool, State},
    sync::thread,
};

/// As many calls must be made for each step that a pool of sleeping chunks takes again: a chunk that moves, a growth.
const CALLS_ASLEEP: u64 = 128;

/// The moves up to the moment when the memory was last in one piece or asleep, and the calls up to the last attempt.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::pool) struct Tidied {
    calls: u64,
    moves: u64,
    /// How many of all moves were made for that.
    own: u64,
    /// The growths since then that went over chunks that were asleep.
    woken: u64,
}

impl Tidied {
    /// Of so many moves, those that were made for requests.
    pub(super) fn others(&self, moves: u64) -> u64 {
        moves.saturating_sub(self.own)
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
                let moves = state.counters.moves;
                state.note_tidied(moves);
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
        let before = self.state.lock().counters.moves;
        let tidied = self.grow_by(mapped, idle, Need::at_most(0), |state| {
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

    /// Whether memory has moved since it was last in one piece.
    #[inline]
    pub(in crate::pool) fn has_moved(&self) -> bool {
        self.counters.moves != self.tidied.moves
    }

    #[cold]
    fn look_if_worth_it(&mut self) {
        self.release_due |= self.is_worth_tidying();
    }

    /// Whether nothing is live, memory has moved, and so rarely that as many moves again, and as many growths over what sleeps,
    /// cost little.
    fn is_worth_tidying(&self) -> bool {
        let moved = self.counters.moves.saturating_sub(self.tidied.moves);
        let calls = self.calls().saturating_sub(self.tidied.calls);
        let steps = moved.saturating_add(self.tidied.woken);
        let each = match self.arena.has_pages_only() {
            true => CALLS_ASLEEP,
            false => CALLS,
        };
        self.space.in_use() == 0 && moved > 0 && steps.saturating_mul(each) <= calls
    }

    /// All memory is in one piece, or asleep, and there had been so many moves `before`.
    fn note_tidied(&mut self, before: u64) {
        let moves = self.counters.moves;
        let own = moves.saturating_sub(before);
        self.tidied.moves = moves;
        self.tidied.woken = 0;
        self.tidied.own = self.tidied.own.saturating_add(own);
    }

    /// The requests that were served.
    pub(super) fn calls(&self) -> u64 {
        self.counters.hits.saturating_add(self.counters.served)
    }
}
