//! What happens all the time: a request that one span serves, and the free of a block of which nothing is known but where it
//! came from. No CUDA call, no memory of the host, no list is walked.
//!
//! Both answer whether they have done it. If not, nothing has changed, and `Pool::allocate` and `Pool::free` do it at length.

use super::{
    FreeOn, Pool, State,
    best_fit::{ClassId, LiveInfo, Owner, OwnerId, Single, Slot},
    front::{self, Front, Given, Wanted},
    live::{Live, Place},
    order::{Order, Ready},
};
use crate::{biased::Met, stream::Handle, sync::atomic::Ordering::Relaxed};

/// For how many calls in a row a thread must be alone before nobody competes any more.
const PEACE: u32 = 4096;

/// After how many of them it looks whether others work with the front.
const GLANCE: u32 = 64;

/// A request that found nothing: as long as nothing becomes free, it finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missed {
    size: usize,
    place: Option<Place>,
    frees: u64,
}

impl Pool {
    /// The address of a block, if one span that may be used at once serves the request.
    #[inline]
    pub fn hit(&self, size: usize, on: Option<&Handle>, raw: bool) -> Option<usize> {
        if let Some(mut state) = self.state.lock_with_bias()
            && state.competed == 0
        {
            return state.hit(size, on, raw);
        }
        self.hit_beside_others(size, on, raw)
    }

    /// As [`Pool::hit`], for a thread that does not have the lock to itself.
    fn hit_beside_others(&self, size: usize, on: Option<&Handle>, raw: bool) -> Option<usize> {
        if self.front.is_used() {
            return self.hit_in_front(size, on, raw);
        }
        let (mut state, met) = self.state.lock_and_tell();
        state.note_meeting(met, &self.front);
        state.hit(size, on, raw)
    }

    /// As [`Pool::hit`], while threads compete for the lock.
    #[inline(never)]
    fn hit_in_front(&self, size: usize, on: Option<&Handle>, raw: bool) -> Option<usize> {
        let stream = on.map_or(0, |handle| handle.core().uid);
        let wanted = Wanted { size, stream, raw };
        let mut elsewhere = None;
        if !self.restless.load(Relaxed) {
            let taken = self.front.take(wanted);
            if taken.is_some() {
                return taken;
            }
            elsewhere = self.front.elsewhere(wanted);
        }
        let mut state = self.state.lock();
        let fetched = elsewhere.and_then(|lane| state.fetch(&self.front, lane, wanted));
        if fetched.is_some() {
            return fetched;
        }
        let address = state.hit(size, on, raw)?;
        if on.is_none_or(|handle| !handle.core().is_per_thread()) {
            state.enter_front(&self.front, address, stream);
        }
        Some(address)
    }

    /// Takes back a block that was allocated on the stream in whose order it is freed, or on none and is freed on none, and
    /// that nobody has recorded a use of. False if it is not such a block, or others wait for something.
    #[inline]
    pub fn free_plain(&self, address: usize, on: FreeOn<'_>) -> bool {
        match on {
            FreeOn::Recorded => self.free_on_none(address),
            _ => self.free_plain_as(address, on),
        }
    }

    /// As [`Pool::free_plain`], on no stream: by itself, so that nothing asks which.
    fn free_on_none(&self, address: usize) -> bool {
        self.free_plain_as(address, FreeOn::Recorded)
    }

    #[inline(always)]
    fn free_plain_as(&self, address: usize, on: FreeOn<'_>) -> bool {
        if let Some(mut state) = self.state.lock_with_bias()
            && state.competed == 0
        {
            return state.free_plain(&self.front, address, on);
        }
        self.free_beside_others(address, on)
    }

    /// As [`Pool::free_plain`], for a thread that does not have the lock to itself.
    #[inline(never)]
    fn free_beside_others(&self, address: usize, on: FreeOn<'_>) -> bool {
        if self.front.is_used() && !self.restless.load(Relaxed) {
            let given = self.front.give(address, Self::front_key(on));
            if matches!(given, Given::Kept) || self.settle_front(given) {
                return true;
            }
        }
        let (mut state, met) = self.state.lock_and_tell();
        state.note_meeting(met, &self.front);
        state.free_plain(&self.front, address, on)
    }
}

impl State {
    #[inline]
    fn hit(&mut self, size: usize, on: Option<&Handle>, raw: bool) -> Option<usize> {
        if !self.prepared || self.release_due {
            return None;
        }
        if self.last.rests() {
            if !self.order.is_restless()
                && let Some(address) = self.revive(size, on, raw)
            {
                return Some(address);
            }
            self.settle_rest();
        }
        let (place, own, epoch) = match on {
            Some(handle) => {
                let Ready {
                    place,
                    class,
                    epoch,
                } = self.order.ready(handle.core())?;
                (Some(place), class, epoch)
            }
            None if self.order.is_restless() => return None,
            None => (None, ClassId::IDLE, Some(OwnerId::IDLE)),
        };
        let asked = &mut self.counters.asked;
        // Made where the block is taken, and only then.
        let datum = |owner| {
            *asked = asked.wrapping_add(size);
            Live::new(place, owner, raw)
        };
        let taken = self.space.take_single(size, own, datum)?;
        let Single {
            addr, len, owner, ..
        } = taken;
        let in_use = self.space.in_use();
        // The free of the only block may be what lets the memory be put together.
        if epoch == Some(owner) && !(in_use == len && self.has_moved()) {
            self.last.note(taken, size, on, raw);
        } else {
            self.last.forget();
        }
        if owner != OwnerId::IDLE {
            self.order.hold(owner);
        }
        if let Some(place) = place {
            self.order.name(place);
        }
        self.counters.hits += 1;
        if in_use > self.counters.peak_in_use {
            self.counters.peak_in_use = in_use;
        }
        Some(addr)
    }

    /// Whether this request found nothing, and nothing has become free since.
    pub(super) fn has_missed(&self, size: usize, place: Option<Place>) -> bool {
        self.missed == Some(self.miss_now(size, place))
    }

    /// This request found nothing, in one span or in several.
    pub(super) fn note_miss(&mut self, size: usize, place: Option<Place>) {
        self.missed = Some(self.miss_now(size, place));
    }

    fn miss_now(&self, size: usize, place: Option<Place>) -> Missed {
        Missed {
            size,
            place,
            frees: self.space.frees(),
        }
    }

    /// Decides whether the calling thread works with the front from now on: when it had to wait for another, and, once that has
    /// happened to anybody, whenever another has been here. A thread that is alone for long ends that.
    #[inline]
    fn note_meeting(&mut self, met: Met, front: &Front) {
        if met == Met::Nobody && self.competed == 0 {
            return;
        }
        self.note_competition(met, front);
    }

    #[cold]
    fn note_competition(&mut self, met: Met, front: &Front) {
        match met {
            Met::Holder => self.competed = PEACE,
            Met::Trace if self.competed > 0 => self.competed = PEACE,
            // Who works with the front comes to the lock seldom, and is met there more seldom still.
            Met::Trace if front.is_beside_others_now() => self.competed = PEACE,
            Met::Trace => return,
            Met::Nobody => {
                self.competed -= 1;
                if !self.competed.is_multiple_of(GLANCE) || !front.is_beside_others() {
                    return;
                }
                self.competed = PEACE;
            }
        }
        front::use_it();
    }

    #[inline(always)]
    fn free_plain(&mut self, front: &Front, address: usize, on: FreeOn<'_>) -> bool {
        if !self.retiring.is_empty() || self.order.is_restless() {
            return false;
        }
        if self.rest(address, on) {
            return true;
        }
        self.wake();
        let Some(slot) = self.space.find(address) else {
            return false;
        };
        let mut live = self.space.live_at(slot);
        if live
            .as_ref()
            .is_some_and(|live| live.data.plain().is_none())
        {
            if !self.recall(front, address) {
                return false;
            }
            live = self.space.live_at(slot);
        }
        let Some(LiveInfo {
            requested, data, ..
        }) = live
        else {
            return false;
        };
        let Some((place, inherited)) = self.order.plain_place(data, on) else {
            return false;
        };
        self.counters.asked = self.counters.asked.wrapping_sub(requested);
        self.give_back_plain(slot, place, inherited)
    }

    /// The block stays live, though it was counted as given back. Answers that it was not given back.
    #[cold]
    fn ask_again(&mut self, slot: Slot) -> bool {
        let requested = self.space.requested_at(slot);
        self.counters.asked = self.counters.asked.wrapping_add(requested);
        false
    }

    /// Gives back a block whose only mark will be the epoch of its stream, and of which the caller has counted already that what
    /// was asked for is given back.
    #[inline(always)]
    pub(super) fn give_back_plain(
        &mut self,
        slot: Slot,
        place: Option<Place>,
        inherited: OwnerId,
    ) -> bool {
        match self.order.owner_at(place, inherited) {
            Some(owner) => self.give_back_to(slot, place, inherited, owner),
            None => self.ask_again(slot),
        }
    }

    /// As [`State::give_back_plain`], where it is known whose the memory is afterwards.
    #[inline(always)]
    pub(super) fn give_back_to(
        &mut self,
        slot: Slot,
        place: Option<Place>,
        inherited: OwnerId,
        owner: Owner,
    ) -> bool {
        if self.space.free_at(slot, owner).is_err() {
            return self.ask_again(slot);
        }
        self.note_empty();
        if let Some(place) = place {
            self.order.unname(place);
        }
        if inherited != OwnerId::IDLE {
            self.order.release(inherited, &self.space);
        }
        true
    }
}

impl Order {
    /// The stream in whose order a block is freed, of which nothing is known but where it came from; `None` if it is no such
    /// block, or a guard's and not freed by that. And the owner of the memory that it was made of.
    #[inline]
    fn plain_place(&self, live: &Live, on: FreeOn<'_>) -> Option<(Option<Place>, OwnerId)> {
        let inherited = live.plain()?;
        let place = live.stream();
        let is_on = |core| place.is_some_and(|place| self.is_at(place, core));
        let plain = match on {
            FreeOn::Recorded => live.raw() && place.is_none(),
            FreeOn::Stream(handle) => live.raw() && is_on(handle.core()),
            FreeOn::Core(core) => live.raw() && is_on(core),
            FreeOn::Allocating => true,
        };
        plain.then_some((place, inherited))
    }

    /// Whose the memory of such a block is afterwards, made of memory of `inherited`; `None` if that is not simple.
    #[inline]
    fn owner_at(&mut self, place: Option<Place>, inherited: OwnerId) -> Option<Owner> {
        match place {
            Some(place) => self.plain_owner(place),
            None => (inherited == OwnerId::IDLE).then_some(Owner::IDLE),
        }
    }
}
