//! A block that is freed right after it was allocated rests: the books take it back only when they are needed.
//!
//! Programs often ask for scratch memory, free it, and ask for the same again. Best fit then answers with the same block: if
//! nothing happened between a request and the free of its block, and the free makes the memory whose it was before the request,
//! then the free leaves what was there before the request, and the same request is served as before. So such a block stays
//! live in the books when it is freed, and is handed out again as it is. Whoever else takes the lock, for whatever reason,
//! finds it given back: [`Books::lock`] does that first, and so does every other request or free. Only `splits` and `merges`
//! tell the difference, as nothing is divided and joined meanwhile.

use super::{
    FreeOn, GRANULE, State,
    best_fit::{ClassId, Owner, OwnerId, Single, Slot},
};
use crate::{
    biased::{Biased, Guard, Meetings, Met},
    stream::{Handle, StreamCore},
    sync::Condvar,
};
use std::sync::Arc;

#[cfg(all(test, feature = "sim"))]
mod tests;

/// The books of a pool behind their lock.
#[derive(Debug)]
pub(super) struct Books(Biased<State>);

/// The block that was handed out last, as long as nothing has happened since but that it was freed.
#[derive(Debug)]
pub(super) struct Last {
    /// Where it starts; 0 if something else has happened since, or if it cannot rest.
    addr: usize,
    /// Whether it rests, or is with its user.
    rests: bool,
    /// Its length, and what was asked for, in bytes.
    len: usize,
    requested: usize,
    /// The address of the stream that it was allocated on, which the books keep; 0 without one.
    core: usize,
    slot: Slot,
    /// Whose the memory was that it was made of.
    from: OwnerId,
    raw: bool,
}

impl Last {
    /// Nothing was handed out, or something else has happened since.
    pub const NONE: Self = Self {
        addr: 0,
        rests: false,
        len: 0,
        requested: 0,
        core: 0,
        slot: Slot::NONE,
        from: OwnerId::IDLE,
        raw: false,
    };

    /// Whether a block rests.
    #[inline]
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Whether nothing has happened since the block that starts at `addr` was handed out. It has no recorded use, then, and may
    /// rest.
    #[inline]
    pub fn is(&self, addr: usize) -> bool {
        self.addr == addr
    }

    /// A block was handed out of memory that is the same owner's if it is freed now, and none rests.
    #[inline]
    pub fn note(&mut self, taken: Single, requested: usize, on: Option<&Handle>, raw: bool) {
        let Single {
            addr,
            len,
            slot,
            owner,
        } = taken;
        (self.addr, self.len, self.slot, self.from) = (addr, len, slot, owner);
        (self.requested, self.raw) = (requested, raw);
        self.core = address_on(on);
    }

    /// Something happens to the books in which no block rests.
    #[inline]
    pub fn forget(&mut self) {
        self.addr = 0;
    }

    /// Whether the block that starts at `addr` is with its user and may rest if it is freed now, and how.
    #[inline]
    fn rests_after(&self, addr: usize, on: FreeOn<'_>) -> bool {
        let core = match on {
            FreeOn::Recorded => 0,
            FreeOn::Stream(handle) => address_of(handle.core()),
            FreeOn::Core(core) => address_of(core),
            FreeOn::Allocating => self.core,
        };
        self.addr == addr && self.core == core && !self.rests && on.may_free(self.raw)
    }
}

/// What tells a stream from others as long as the books keep it.
#[inline]
fn address_of(core: &Arc<StreamCore>) -> usize {
    Arc::as_ptr(core).addr()
}

/// As [`address_of`]; 0 without a stream.
#[inline]
fn address_on(on: Option<&Handle>) -> usize {
    on.map_or(0, |handle| address_of(handle.core()))
}

impl Books {
    pub fn new(state: State) -> Self {
        Self(Biased::new(state))
    }

    /// Waits for the lock. No block rests.
    #[inline]
    pub fn lock(&self) -> Guard<'_, State> {
        woken(self.0.lock())
    }

    /// As [`Books::lock`], to wait with [`Books::wait`].
    pub fn lock_to_wait(&self) -> Guard<'_, State> {
        woken(self.0.lock_to_wait())
    }

    /// Gives the lock back until it is woken.
    pub fn wait<'a>(&self, guard: Guard<'a, State>, condition: &Condvar) -> Guard<'a, State> {
        woken(guard.wait(condition))
    }

    /// The lock, if this thread has the bias; a block may rest.
    #[inline]
    pub fn lock_with_bias(&self) -> Option<Guard<'_, State>> {
        self.0.lock_with_bias()
    }

    /// Waits for the lock; and whom the thread has met. A block may rest.
    #[inline]
    pub fn lock_and_tell(&self) -> (Guard<'_, State>, Met) {
        self.0.lock_and_tell()
    }

    /// How threads have met at the lock.
    pub fn meetings(&self) -> Meetings {
        self.0.meetings()
    }

    /// The books, which nobody else can reach. No block rests.
    pub fn get_mut(&mut self) -> &mut State {
        let state = self.0.get_mut();
        state.wake();
        state
    }
}

#[inline]
fn woken(mut guard: Guard<'_, State>) -> Guard<'_, State> {
    guard.wake();
    guard
}

impl State {
    /// Something happens to the books: a block that rests is given back.
    #[inline]
    pub(super) fn wake(&mut self) {
        if self.last.rests() {
            self.settle_rest();
        }
        self.last.forget();
    }

    /// Gives the block that rests back.
    #[cold]
    pub(super) fn settle_rest(&mut self) {
        let Last { slot, from, .. } = std::mem::replace(&mut self.last, Last::NONE);
        let Some(live) = self.space.data_at(slot) else {
            debug_assert!(false, "a block that rests is live");
            return;
        };
        let place = live.stream();
        let requested = self.space.requested_at(slot);
        self.counters.asked = self.counters.asked.wrapping_sub(requested);
        let class = place.and_then(|place| self.order.class_of(place));
        let owner = Owner::new(from, class.unwrap_or(ClassId::IDLE));
        let given = self.give_back_to(slot, place, from, owner);
        debug_assert!(given, "a block that rests can be given back");
    }

    /// The block that rests, if it is what this request gets.
    #[inline]
    pub(super) fn revive(&mut self, size: usize, on: Option<&Handle>, raw: bool) -> Option<usize> {
        let last = &mut self.last;
        if address_on(on) != last.core || size > last.len || last.len - size >= GRANULE {
            return None;
        }
        last.rests = false;
        self.counters.hits += 1;
        let addr = last.addr;
        if size != last.requested || raw != last.raw {
            self.change_last(size, raw);
        }
        Some(addr)
    }

    /// The block that was handed out last is another user's now.
    fn change_last(&mut self, size: usize, raw: bool) {
        (self.last.requested, self.last.raw) = (size, raw);
        let asked = self.space.requested_at(self.last.slot);
        if let Some(live) = self.space.data_at_mut(self.last.slot) {
            live.set_raw(raw);
            self.counters.asked = self.counters.asked.wrapping_sub(asked).wrapping_add(size);
            self.space.set_requested(self.last.slot, size);
        }
    }

    /// Lets a block rest that is freed, if it is the one that was handed out last. Whether it rests.
    #[inline]
    pub(super) fn rest(&mut self, addr: usize, on: FreeOn<'_>) -> bool {
        if addr == 0 || !self.last.rests_after(addr, on) {
            return false;
        }
        self.last.rests = true;
        true
    }
}
