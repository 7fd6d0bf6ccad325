//! The front and the pool's books: what enters and leaves it, and what goes from lane to lane. All of it under the lock.

use super::*;
use crate::pool::{
    best_fit::{OwnerId, Slot},
    live::Place,
};

/// A thread that has so many blocks in a bin frees what others get: those take them. Who takes one that the other needs would
/// only make it come for another.
pub(super) const SURPLUS: u64 = bins::DEPTH / 4;

/// How threads have met at a pool, since it was made. For benchmarks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contention {
    /// Blocks that were handed out without the lock.
    pub from_front: u64,
    /// Requests of threads that bypass the lock, and had to take it.
    pub missed: u64,
    /// Those of them that were served by what another thread had held back.
    pub fetched: u64,
    /// Blocks that a thread had no room to hold back.
    pub refused: u64,
    /// How often everything held back was given back.
    pub flushes: u64,
    /// How often the lock was taken, other than by the thread that has its bias.
    pub locked: u64,
    /// How often it was taken when that happened.
    pub waited: u64,
    /// How often a bias was withdrawn.
    pub withdrawn: u64,
}

impl Front {
    /// A lane whose bin has more of what is wanted than its thread seems to need, other than the calling thread's.
    pub(in crate::pool) fn elsewhere(&self, wanted: Wanted) -> Option<u32> {
        self.shared.missed.fetch_add(1, Relaxed);
        let (parts, len) = self.parts.get().zip(best_fit::round(wanted.size))?;
        if !thread::may_look_elsewhere() {
            return None;
        }
        let key = key(len, wanted.stream);
        let mine = thread::number();
        let count = parts.lanes.len() as u32;
        let mut others = (1..count).map(|step| mine.wrapping_add(step));
        others.find(|number| {
            let bin = parts.lane(*number).and_then(|lane| lane.bins.find(key));
            bin.is_some_and(|bin| bin.count() >= SURPLUS)
        })
    }

    /// Takes a block out of the front if it is with its user; what it is then. `Err` if it is in a bin.
    fn leave(&self, number: u32) -> Result<(usize, bool), ()> {
        let entry = self
            .parts
            .get()
            .and_then(|parts| parts.entry(number))
            .ok_or(())?;
        let now = entry.word.load(Acquire);
        if now & ((1 << STATES) - 1) != WITH_USER
            || entry
                .word
                .compare_exchange(now, 0, AcqRel, Relaxed)
                .is_err()
        {
            return Err(());
        }
        Ok((entry.requested.load(Relaxed), entry.raw.load(Relaxed)))
    }

    /// A lane, and where its entries are.
    fn lane(&self, number: u32) -> Option<(&Parts, &Lane)> {
        let parts = self.parts.get()?;
        Some((parts, parts.lane(number)?))
    }

    /// Lets a lane keep only what it needs of its budget.
    fn give_up(&self, lane: &Lane) {
        lane.held.give_up(usize::MAX, &self.shared.spare);
    }
}

impl State {
    /// Enters a block that was just handed out into the front, if it can be there.
    pub(in crate::pool) fn enter_front(&mut self, front: &Front, address: usize, stream: u64) {
        let Some(slot) = self
            .space
            .find(address)
            .filter(|_| self.retiring.is_empty())
        else {
            return;
        };
        let parts = front.parts.get_or_init(Parts::new);
        self.set_quota(front);
        // What is in the front does not rest: it is freed without the lock.
        self.last.forget();
        let requested = self.space.requested_at(slot);
        let Some((len, live)) = self.space.block_at_mut(slot) else {
            return;
        };
        if live.plain().is_none() || len > front.largest() {
            return;
        }
        let vacant = parts
            .places(address)
            .find(|(_, entry)| entry.word.load(Relaxed) == 0);
        let raw = live.raw();
        if let Some((place, entry)) = vacant
            && self.extras.enter_front(live, place)
        {
            entry.len.store(len, Relaxed);
            entry.requested.store(requested, Relaxed);
            entry.raw.store(raw, Relaxed);
            entry.stream.store(stream, Relaxed);
            thread::remember(address, place);
            entry.word.store(word(address, WITH_USER), Release);
        }
    }

    /// Sets what the lanes may hold from what is reserved now.
    pub(in crate::pool) fn set_quota(&self, front: &Front) {
        let Some(parts) = front.parts.get() else {
            return;
        };
        let total = self.space.reserved() / SHARE;
        // All threads read it: it is written only when it changes.
        let before = front.total.load(Relaxed);
        if before == total {
            return;
        }
        front.total.store(total, Relaxed);
        let share = total / parts.lanes.len().max(1);
        front.step.store(share / PART, Relaxed);
        front.shared.spare.change(before, total);
        parts.lanes.iter().for_each(|lane| front.give_up(lane));
    }

    /// Takes the block that starts at `address` out of the front, if it is there. False if it is in a bin.
    pub(in crate::pool) fn recall(&mut self, front: &Front, address: usize) -> bool {
        let Some(slot) = self.space.find(address) else {
            return true;
        };
        let Some(number) = (self.space.data_at(slot)).and_then(|live| self.extras.front(live))
        else {
            return true;
        };
        let Ok((requested, raw)) = front.leave(number) else {
            return false;
        };
        self.leave_front(slot, requested, raw);
        true
    }

    /// Takes every block out of the front that is with its user.
    pub(in crate::pool) fn recall_all(&mut self, front: &Front) {
        let fronted: Vec<usize> = (self.space.live_blocks())
            .filter(|live| self.extras.front(live.data).is_some())
            .map(|live| live.addr)
            .collect();
        for address in fronted {
            self.recall(front, address);
        }
    }

    /// A block is not in the front any more: its stream, and the owner of the memory that it was made of.
    fn leave_front(
        &mut self,
        slot: Slot,
        requested: usize,
        raw: bool,
    ) -> Option<(Option<Place>, OwnerId)> {
        let live = self.space.data_at_mut(slot)?;
        self.extras.leave_front(live, raw);
        let left = (live.stream(), live.plain()?);
        self.space.set_requested(slot, requested);
        Some(left)
    }

    /// Frees a block that was taken out of a bin.
    fn free_from_bin(&mut self, entry: &Entry) {
        let address = address_of(entry.word.load(Acquire));
        let (requested, raw) = (entry.requested.load(Relaxed), entry.raw.load(Relaxed));
        entry.word.store(0, Release);
        let Some(slot) = self.space.find(address) else {
            return;
        };
        let left = self.leave_front(slot, requested, raw);
        let Some((place, inherited)) = left else {
            return;
        };
        self.counters.asked = self.counters.asked.wrapping_sub(requested);
        let given = self.give_back_plain(slot, place, inherited);
        debug_assert!(
            given,
            "only blocks that are freed without marks are in the front"
        );
        if !self.retiring.is_empty() {
            self.release_due |= self.is_retiring(address);
        }
    }

    /// Gives everything back that a lane holds.
    fn empty_lane(&mut self, front: &Front, number: u32) {
        let Some((parts, lane)) = front.lane(number) else {
            return;
        };
        for bin in lane.bins.all().filter(|bin| bin.count() > 0) {
            for entry in bin
                .empty(&parts.entries)
                .filter_map(|number| parts.entry(number))
            {
                lane.held.remove(entry.len.load(Relaxed));
                self.free_from_bin(entry);
            }
        }
        front.give_up(lane);
    }

    /// Serves a request with what another lane holds back, and takes the rest of that bin over.
    pub(in crate::pool) fn fetch(
        &mut self,
        front: &Front,
        from: u32,
        wanted: Wanted,
    ) -> Option<usize> {
        // A flush that has been in this thread's lane would miss what comes there now.
        if front.flushing.load(SeqCst) > 0 {
            return None;
        }
        let (parts, len) = front.parts.get().zip(best_fit::round(wanted.size))?;
        let (theirs, mine) = (parts.lane(from)?, parts.lane(thread::number())?);
        let key = key(len, wanted.stream);
        let mut served = None;
        for number in theirs.bins.find(key)?.empty(&parts.entries) {
            let entry = parts.entry(number)?;
            let other = entry.len.load(Relaxed);
            theirs.held.remove(other);
            let suits = entry.suits(len, wanted.stream);
            if suits && served.is_none() {
                mine.held.pass_on();
                served = Some(front.hand_over(mine, number, entry, wanted));
                continue;
            }
            if suits && front.admit(mine, len) {
                let bin = mine.bins.find_or_make(key);
                if bin.is_some_and(|bin| bin.push(&parts.entries, number)) {
                    continue;
                }
                mine.held.remove(len);
            }
            self.free_from_bin(entry);
        }
        front.give_up(theirs);
        if served.is_some() {
            thread::has_found();
            front.shared.fetched.fetch_add(1, Relaxed);
        }
        served
    }

    /// Gives half of a bin back.
    fn thin(&mut self, front: &Front, number: u32, len: usize, stream: u64) {
        let Some((parts, lane)) = front.lane(number) else {
            return;
        };
        let Some(bin) = lane.bins.find(key(len, stream)) else {
            return;
        };
        // As for `fetch`.
        let mut kept = match front.flushing.load(SeqCst) {
            0 => bins::DEPTH / 2,
            _ => 0,
        };
        for number in bin.empty(&parts.entries) {
            let Some(entry) = parts.entry(number) else {
                return;
            };
            if kept > 0 && bin.push(&parts.entries, number) {
                kept -= 1;
                continue;
            }
            lane.held.remove(entry.len.load(Relaxed));
            self.free_from_bin(entry);
        }
    }
}

impl Pool {
    /// The stream in whose order a block is freed, as the front knows it.
    pub(in crate::pool) fn front_key(on: FreeOn<'_>) -> Option<u64> {
        match on {
            FreeOn::Recorded => Some(0),
            FreeOn::Stream(handle) => Some(handle.core().uid),
            FreeOn::Core(core) => Some(core.uid),
            FreeOn::Allocating => None,
        }
    }

    /// Does what a free has left to be done under the lock; whether the block is free.
    #[cold]
    pub(in crate::pool) fn settle_front(&self, given: Given) -> bool {
        match given {
            Given::Kept => true,
            Given::Late(lane) => {
                self.state.lock().empty_lane(&self.front, lane);
                true
            }
            Given::Crowded(lane) => {
                self.state.lock().empty_lane(&self.front, lane);
                false
            }
            Given::Full { lane, len, stream } => {
                self.state.lock().thin(&self.front, lane, len, stream);
                false
            }
            Given::No => false,
        }
    }

    /// Gives everything in the bins back to the books. Afterwards they say what is the case, but for what other threads do
    /// meanwhile.
    pub(in crate::pool) fn flush_front(&self) {
        let front = &self.front;
        let Some(parts) = front.parts.get() else {
            return;
        };
        front.flushing.fetch_add(1, SeqCst);
        front.flushes.fetch_add(1, SeqCst);
        // What goes from lane to lane does so under the lock: either before this, or it sees that there is a flush.
        let mut state = self.state.lock();
        for (number, lane) in (0..).zip(&parts.lanes) {
            if lane.held.bytes() == 0 {
                front.give_up(lane);
                continue;
            }
            state.empty_lane(front, number);
            // Others may come in between.
            drop(state);
            state = self.state.lock();
        }
        drop(state);
        front.flushing.fetch_sub(1, SeqCst);
    }

    /// The lock, with the block that starts at `address` out of the front. A block that is in a bin, or on its way, is given
    /// back first.
    pub(in crate::pool) fn lock_block(&self, address: usize) -> crate::biased::Guard<'_, State> {
        loop {
            let mut state = self.state.lock();
            if !self.front.is_on() || state.recall(&self.front, address) {
                return state;
            }
            drop(state);
            self.flush_front();
            crate::sync::thread::yield_now();
        }
    }

    /// How threads have met here.
    pub fn contention(&self) -> Contention {
        let counted = self.front.counted();
        let shared = &self.front.shared;
        let met = self.state.meetings();
        Contention {
            from_front: counted.handed_out,
            missed: shared.missed.load(Relaxed),
            fetched: shared.fetched.load(Relaxed),
            refused: counted.refused,
            flushes: self.front.flushes.load(Relaxed),
            locked: met.locked,
            waited: met.waited,
            withdrawn: met.withdrawn,
        }
    }
}
