//! Blocks that change hands between the threads without the pool's lock, while threads compete for it.
//!
//! A thread that finds the lock taken works with the *front* for its next few thousand calls, and again as long as others have
//! been at the lock since. A block that it gets is entered
//! in a table of its own; whoever frees such a block, in the order of the stream that it was allocated on, puts it into a
//! small bin of the thread that got it, and the next request of that thread for the same size and stream takes it from there.
//! For the pool's books the block is live all the time, with the marks that it had.
//!
//! What is held back is bounded: all bins together have at most one hundredth of the pool's reserved bytes. It is given back
//! whenever somebody needs the books to be exact ([`Pool::flush_front`]): before a request that finds nothing looks further,
//! before the pool grows, waits or fails, and for `trim`, `shutdown`, statistics and reports. Any thread can do that, since the
//! bins are not bound to their threads.
//!
//! An entry's word says which block it is and what it is: with its user, or in a bin. All changes go from one to the other by
//! compare-and-exchange, so that a block freed twice is found without the lock. Entries are filled and emptied under the lock.

use super::{FreeOn, GRANULE, Pool, State, best_fit};
use crate::sync::{
    OnceLock,
    atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    },
};
use held::Held;
use std::cell::Cell;

mod held;

/// How many calls a thread works with the front before it looks again whether threads compete.
const CALLS: u32 = 8192;
/// How many blocks can be in the front, and in how many neighbouring places one is looked for.
const ENTRIES: usize = 8192;
const PROBES: usize = 4;
/// How many bins a lane has, and how many blocks a bin.
const BINS: usize = 256;
const DEPTH: usize = 8;
/// Of the reserved bytes, the bins have at most this part together.
const SHARE: usize = 100;
/// A block has at most this part of what a lane may hold.
const PART: usize = 8;

/// What a block in the front is; the low bits of its word.
const WITH_USER: u64 = 1;
const IN_BIN: u64 = 2;
const STATES: u32 = 2;

fn word(address: usize, state: u64) -> u64 {
    ((address / GRANULE) as u64) << STATES | state
}

fn address_of(word: u64) -> usize {
    (word >> STATES) as usize * GRANULE
}

/// A block in the front. A cache line of its own, so that threads with different blocks do not meet.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// The block and what it is; 0 if the entry is vacant.
    word: AtomicU64,
    /// Its length in bytes.
    len: AtomicUsize,
    /// What was asked for, in bytes.
    requested: AtomicUsize,
    /// The stream that it was allocated on, by uid; 0 without one.
    stream: AtomicU64,
    /// Into whose bins it goes.
    lane: AtomicU32,
    raw: AtomicBool,
}

/// The bins of some threads, mostly of one.
#[derive(Debug)]
#[repr(align(64))]
struct Lane {
    held: Held,
    /// Numbers of entries, plus one; 0 where there is none.
    bins: Box<[[AtomicU32; DEPTH]]>,
}

#[derive(Debug)]
struct Parts {
    entries: Box<[Entry]>,
    lanes: Box<[Lane]>,
}

/// The front of a pool. All threads read it, and what lies beside it is written.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Front {
    /// Made when threads compete for the first time.
    parts: OnceLock<Parts>,
    /// What one lane may hold, in bytes.
    quota: AtomicUsize,
    /// Grows with each flush: who has put something into a bin meanwhile takes it out again.
    flushes: AtomicU64,
}

/// What a thread has found in its bins.
pub(super) enum Taken {
    /// The block at this address.
    Block(usize),
    Nothing,
    /// An entry that does not suit, and that the thread has: it goes back to the books.
    Other(u32),
}

/// A block in the front, as the books see it.
#[derive(Clone, Copy)]
pub(super) struct Fronted {
    pub requested: usize,
    pub raw: bool,
    /// Whether it is in a bin (or on its way): free for its user.
    pub in_bin: bool,
}

/// How many blocks a thread remembers the entries of.
const REMEMBERED: usize = 128;

thread_local! {
    static CREDIT: Cell<u32> = const { Cell::new(0) };
    /// The entries of the blocks that the thread got last, by address: to look at the neighbours of an entry, which are
    /// others', would slow them down.
    static ENTRIES_OF: [Cell<u16>; REMEMBERED] = const { [const { Cell::new(0) }; REMEMBERED] };
    static LANE: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Whether this thread works with the front now; counts the call.
#[inline]
pub(super) fn is_used() -> bool {
    CREDIT.with(|credit| {
        let left = credit.get();
        credit.set(left.saturating_sub(1));
        left > 0
    })
}

/// This thread has found the lock taken.
#[cold]
pub(super) fn use_it() {
    if cfg!(not(shuttle)) {
        CREDIT.with(|credit| credit.set(CALLS));
    }
}

/// The number of the calling thread, for the choice of its lane.
fn lane_of_thread() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    LANE.with(|lane| {
        if lane.get() == u32::MAX {
            lane.set(NEXT.fetch_add(1, Relaxed) % (u32::MAX - 1));
        }
        lane.get()
    })
}

fn mix(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// Remembers the entry of a block.
#[inline]
fn remember(address: usize, number: u32) {
    ENTRIES_OF.with(|entries| {
        if let Some(entry) = entries.get(mix((address / GRANULE) as u64) % REMEMBERED) {
            entry.set(number as u16);
        }
    });
}

/// The entry that a block may have.
#[inline]
fn remembered(address: usize) -> u32 {
    ENTRIES_OF.with(|entries| {
        let entry = entries.get(mix((address / GRANULE) as u64) % REMEMBERED);
        entry.map_or(0, |entry| u32::from(entry.get()))
    })
}

impl Parts {
    fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let lanes = threads.next_power_of_two().clamp(2, 64);
        let bins = || (0..BINS).map(|_| Default::default()).collect();
        Self {
            entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
            lanes: (0..lanes)
                .map(|_| Lane {
                    held: Held::default(),
                    bins: bins(),
                })
                .collect(),
        }
    }

    /// The places where a block may be.
    fn places(&self, address: usize) -> impl Iterator<Item = (u32, &Entry)> {
        let first = mix((address / GRANULE) as u64);
        (0..PROBES).filter_map(move |step| {
            let place = first.wrapping_add(step) % ENTRIES;
            Some((place as u32, self.entries.get(place)?))
        })
    }

    fn lane(&self, number: u32) -> Option<&Lane> {
        self.lanes.get(number as usize % self.lanes.len().max(1))
    }

    fn entry(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)
    }
}

impl Lane {
    fn bin(&self, len: usize, stream: u64) -> Option<&[AtomicU32; DEPTH]> {
        let key = (len / GRANULE) as u64 ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.bins.get(mix(key) % BINS)
    }
}

impl Front {
    /// A block from the calling thread's bins.
    #[inline]
    pub fn take(&self, size: usize, stream: u64, raw: bool) -> Taken {
        let Some((parts, len)) = self.parts.get().zip(best_fit::round(size)) else {
            return Taken::Nothing;
        };
        let number = lane_of_thread();
        let Some(lane) = parts.lane(number) else {
            return Taken::Nothing;
        };
        for place in lane.bin(len, stream).into_iter().flatten() {
            let found = place.load(Relaxed);
            let Some(entry) = found.checked_sub(1).and_then(|number| parts.entry(number)) else {
                continue;
            };
            let suits = || entry.len.load(Relaxed) == len && entry.stream.load(Relaxed) == stream;
            if !suits() || place.compare_exchange(found, 0, AcqRel, Relaxed).is_err() {
                continue;
            }
            // The entry is this thread's now.
            if !suits() {
                // It was another block's when it was looked at, and came back here meanwhile.
                lane.held.remove(entry.len.load(Relaxed));
                return Taken::Other(found.wrapping_sub(1));
            }
            lane.held.hand_out(len);
            let before = entry.requested.load(Relaxed);
            if before != size {
                lane.held.ask(before, size);
                entry.requested.store(size, Relaxed);
            }
            entry.raw.store(raw, Relaxed);
            entry.lane.store(number, Relaxed);
            let address = address_of(entry.word.load(Relaxed));
            remember(address, found.wrapping_sub(1));
            entry.word.store(word(address, WITH_USER), Release);
            return Taken::Block(address);
        }
        Taken::Nothing
    }

    /// Puts a block into the bins of the thread that had it, if it is in the front and is freed in the order of its stream
    /// (`None`: in whatever order it was allocated).
    #[inline]
    pub fn give(&self, address: usize, stream: Option<u64>) -> bool {
        let Some(parts) = self.parts.get() else {
            return false;
        };
        let with_user = word(address, WITH_USER);
        let is_here = |entry: &Entry| entry.word.load(Acquire) == with_user;
        let number = remembered(address);
        let known = parts.entry(number).filter(|entry| is_here(entry));
        let Some((number, entry)) = known
            .map(|entry| (number, entry))
            .or_else(|| parts.places(address).find(|(_, entry)| is_here(entry)))
        else {
            return false;
        };
        let (of, len) = (entry.stream.load(Relaxed), entry.len.load(Relaxed));
        if stream.is_some_and(|stream| stream != of) {
            return false;
        }
        let Some(lane) = parts.lane(entry.lane.load(Relaxed)) else {
            return false;
        };
        let Some(bin) = lane.bin(len, of) else {
            return false;
        };
        let Some(place) = bin.iter().find(|place| place.load(Relaxed) == 0) else {
            return false;
        };
        let held = lane.held.add(len);
        let flushes = self.flushes.load(SeqCst);
        if held > self.quota.load(Relaxed)
            || entry
                .word
                .compare_exchange(with_user, word(address, IN_BIN), SeqCst, Relaxed)
                .is_err()
        {
            lane.held.remove(len);
            return false;
        }
        let put = place
            .compare_exchange(0, number.wrapping_add(1), SeqCst, Relaxed)
            .is_ok();
        // What a flush has not seen must not stay: it goes to the books as any other block. Where the flush, or another
        // request, was faster, it has been dealt with.
        let stays = put
            && (self.flushes.load(SeqCst) == flushes
                || place
                    .compare_exchange(number.wrapping_add(1), 0, SeqCst, Relaxed)
                    .is_err());
        if !stays {
            lane.held.remove(len);
            entry.word.store(with_user, Release);
        }
        stays
    }

    /// Whether threads have ever competed.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.parts.get().is_some()
    }

    /// What a block in the front is now.
    pub fn look(&self, number: u32) -> Option<Fronted> {
        let entry = self.parts.get()?.entry(number)?;
        Some(Fronted {
            requested: entry.requested.load(Relaxed),
            raw: entry.raw.load(Relaxed),
            in_bin: entry.word.load(Acquire) & ((1 << STATES) - 1) != WITH_USER,
        })
    }

    /// What the lanes count for the books.
    pub fn counted(&self) -> held::Counted {
        let lanes = self.parts.get().map_or(&[][..], |parts| &parts.lanes);
        held::Counted::sum(lanes.iter().map(|lane| &lane.held))
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
}

impl State {
    /// Enters a block that was just handed out into the front, if it can be there.
    pub(super) fn enter_front(&mut self, front: &Front, address: usize, stream: u64) {
        let Some(slot) = self
            .space
            .find(address)
            .filter(|_| self.retiring.is_empty())
        else {
            return;
        };
        let parts = front.parts.get_or_init(Parts::new);
        let quota = self.set_quota(front);
        let number = lane_of_thread();
        let Some((len, live)) = self.space.block_at_mut(slot) else {
            return;
        };
        if !live.is_plain() || len > quota / PART {
            return;
        }
        let vacant = parts
            .places(address)
            .find(|(_, entry)| entry.word.load(Relaxed) == 0);
        if let Some((place, entry)) = vacant {
            entry.len.store(len, Relaxed);
            entry.requested.store(live.requested, Relaxed);
            entry.raw.store(live.raw, Relaxed);
            entry.stream.store(stream, Relaxed);
            entry.lane.store(number, Relaxed);
            live.enter_front(place);
            // It goes to the bins: only those know whether it is with its user.
            self.last.forget();
            remember(address, place);
            entry.word.store(word(address, WITH_USER), Release);
        }
    }

    /// Sets what a lane may hold from what is reserved now, in bytes.
    pub(super) fn set_quota(&self, front: &Front) -> usize {
        let lanes = front
            .parts
            .get()
            .map_or(1, |parts| parts.lanes.len().max(1));
        let quota = self.space.reserved() / SHARE / lanes;
        // All threads read it: it is written only when it changes.
        if front.quota.load(Relaxed) != quota {
            front.quota.store(quota, Relaxed);
        }
        quota
    }

    /// Takes the block that starts at `address` out of the front, if it is there. False if it is in a bin.
    pub(super) fn recall(&mut self, front: &Front, address: usize) -> bool {
        let Some(slot) = self.space.find(address) else {
            return true;
        };
        let Some(number) = self.space.data_at(slot).and_then(|live| live.front()) else {
            return true;
        };
        let Ok((requested, raw)) = front.leave(number) else {
            return false;
        };
        if let Some(live) = self.space.data_at_mut(slot) {
            live.leave_front(requested, raw);
        }
        true
    }

    /// Frees a block that was taken out of a bin.
    pub(super) fn free_from_bin(&mut self, front: &Front, number: u32) {
        let Some(entry) = front.parts.get().and_then(|parts| parts.entry(number)) else {
            return;
        };
        let address = address_of(entry.word.load(Acquire));
        let (requested, raw) = (entry.requested.load(Relaxed), entry.raw.load(Relaxed));
        entry.word.store(0, Release);
        let Some(slot) = self.space.find(address) else {
            return;
        };
        let Some(live) = self.space.data_at_mut(slot) else {
            return;
        };
        live.leave_front(requested, raw);
        let (place, inherited) = (live.stream(), live.inherited);
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

    /// Takes every block out of the front that is with its user.
    pub(super) fn recall_all(&mut self, front: &Front) {
        let fronted: Vec<usize> = (self.space.live_blocks())
            .filter(|live| live.data.front().is_some())
            .map(|live| live.addr)
            .collect();
        for address in fronted {
            self.recall(front, address);
        }
    }
}

impl Pool {
    /// The stream in whose order a block is freed, as the front knows it.
    pub(super) fn front_key(on: FreeOn<'_>) -> Option<u64> {
        match on {
            FreeOn::Recorded => Some(0),
            FreeOn::Stream(handle) => Some(handle.core().uid),
            FreeOn::Core(core) => Some(core.uid),
            FreeOn::Allocating => None,
        }
    }

    /// Gives everything in the bins back to the books. Afterwards they say what is the case, but for what other threads do
    /// meanwhile.
    pub(super) fn flush_front(&self) {
        let Some(parts) = self.front.parts.get() else {
            return;
        };
        self.front.flushes.fetch_add(1, SeqCst);
        for lane in &parts.lanes {
            if lane.held.bytes() == 0 {
                continue;
            }
            let mut state = self.state.lock();
            for place in lane.bins.iter().flatten() {
                if place.load(SeqCst) == 0 {
                    continue;
                }
                if let Some(number) = place.swap(0, SeqCst).checked_sub(1) {
                    if let Some(entry) = parts.entry(number) {
                        lane.held.remove(entry.len.load(Relaxed));
                    }
                    state.free_from_bin(&self.front, number);
                }
            }
        }
    }

    /// The lock, with the block that starts at `address` out of the front. A block that is in a bin, or on its way, is given
    /// back first.
    pub(super) fn lock_block(&self, address: usize) -> crate::biased::Guard<'_, State> {
        loop {
            let mut state = self.state.lock();
            if !self.front.is_on() || state.recall(&self.front, address) {
                return state;
            }
            drop(state);
            self.flush_front();
            std::thread::yield_now();
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::{
        Config, Error, MemoryManager, Reuse, Stream,
        pool::{PoolConfig, observer::Observed, segment::Source},
        stream::handle_of,
    };

    const MIB: usize = 1 << 20;

    fn manager() -> MemoryManager {
        let config = Config {
            device_pool_size: 1024 * MIB,
            ..Config::default()
        };
        MemoryManager::new(config).unwrap()
    }

    /// A manager whose pool has a front, and a stream.
    fn contended() -> (MemoryManager, Stream) {
        let (manager, stream) = (manager(), Stream::new().unwrap());
        let first = manager.allocate_device_on(1, &stream).unwrap();
        // SAFETY: the block is live, and nobody uses it.
        unsafe { manager.free_device_on(first, &stream) }.unwrap();
        use_it();
        (manager, stream)
    }

    fn free(
        manager: &MemoryManager,
        block: *mut std::ffi::c_void,
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: nobody uses the memory; whether the block is live is what the manager is asked.
        unsafe { manager.free_device_on(block, stream) }
    }

    #[test]
    fn a_block_comes_back_from_the_bin_and_is_counted() {
        let (manager, stream) = contended();
        let before = manager.stats().device[0].best_fit;
        let first = manager.allocate_device_on(4096, &stream).unwrap();
        for _ in 0..100 {
            free(&manager, first, &stream).unwrap();
            assert_eq!(manager.allocate_device_on(4000, &stream).unwrap(), first);
        }
        let live = manager.stats().device[0].best_fit;
        assert_eq!(live.in_use - before.in_use, 4096);
        assert_eq!(live.internal_waste - before.internal_waste, 96);
        assert_eq!(live.allocations - before.allocations, 101);
        assert_eq!(live.frees - before.frees, 100);
        assert_eq!(live.live_blocks - before.live_blocks, 1);
        free(&manager, first, &stream).unwrap();
        let after = manager.stats().device[0].best_fit;
        assert_eq!(
            (after.in_use, after.live_blocks),
            (before.in_use, before.live_blocks)
        );
        assert_eq!(
            (after.allocations, after.frees),
            (live.allocations, live.frees + 1)
        );
    }

    #[test]
    fn a_second_free_is_found_while_the_block_is_in_a_bin() {
        let (manager, stream) = contended();
        let block = manager.allocate_device_on(4096, &stream).unwrap();
        free(&manager, block, &stream).unwrap();
        assert!(matches!(
            free(&manager, block, &stream),
            Err(Error::DoubleFree { .. })
        ));
        let inside = block.wrapping_byte_add(256);
        assert!(free(&manager, inside, &stream).is_err());
        let again = manager.allocate_device_on(4096, &stream).unwrap();
        free(&manager, again, &stream).unwrap();
        assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
    }

    #[test]
    fn another_stream_or_none_or_a_recorded_use_takes_a_block_out_of_the_front() {
        let (manager, stream) = contended();
        let other = Stream::new().unwrap();
        let host = manager.allocate_pinned(4096).unwrap();
        for way in 0..3 {
            use_it();
            let block = manager.allocate_device_on(4096, &stream).unwrap();
            match way {
                0 => free(&manager, block, &other).unwrap(),
                // SAFETY: the block is live, and nobody uses it.
                1 => unsafe { manager.free_device(block) }.unwrap(),
                _ => {
                    // SAFETY: both have 4096 bytes until the copy has run.
                    unsafe { manager.copy_to_host_async(host, block, 4096, &stream) }.unwrap();
                    free(&manager, block, &stream).unwrap();
                }
            }
            let number = way + 1;
            assert!(
                matches!(
                    free(&manager, block, &stream),
                    Err(Error::DoubleFree { .. })
                ),
                "way {number}"
            );
        }
        stream.synchronize().unwrap();
        assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
    }

    #[test]
    fn a_name_takes_a_block_out_of_the_front_and_goes_with_it() {
        let (manager, stream) = contended();
        let name = || manager.live_blocks().pop().and_then(|block| block.name);
        for named in ["first", "second"] {
            use_it();
            let block = manager.allocate_device_on(4096, &stream).unwrap();
            free(&manager, block, &stream).unwrap();
            assert_eq!(manager.allocate_device_on(4096, &stream).unwrap(), block);
            assert_eq!(name(), None);
            manager.name_block(block, named).unwrap();
            assert_eq!(name().as_deref(), Some(named));
            free(&manager, block, &stream).unwrap();
            assert!(manager.live_blocks().is_empty());
        }
        manager.check().unwrap();
    }

    #[test]
    fn ranges_are_checked_against_what_was_asked_for_last() {
        let (manager, stream) = contended();
        let first = manager.allocate_device_on(4096, &stream).unwrap();
        free(&manager, first, &stream).unwrap();
        let block = manager.allocate_device_on(3900, &stream).unwrap();
        assert_eq!(block, first);
        // SAFETY: refused, as 4096 bytes run past the end of what was asked for.
        assert!(unsafe { manager.memset(block, 1, 4096, &stream) }.is_err());
        // SAFETY: the block has 3900 bytes.
        unsafe { manager.memset(block, 1, 3900, &stream) }.unwrap();
        free(&manager, block, &stream).unwrap();
    }

    #[test]
    fn what_the_bins_hold_is_bounded_and_given_back_before_the_pool_grows() {
        let stream = Stream::new().unwrap();
        let on = handle_of(&stream);
        let reserved = 256 * MIB;
        let config = PoolConfig {
            initial: reserved,
            limit: None,
            limit_share: None,
            growth: 0,
            reuse: Reuse::default(),
        };
        let pool = Pool::new(Source::malloc(0), config, Observed::default());
        let allocate = |size| {
            use_it();
            pool.allocate(size, Some(on), true).unwrap()
        };
        let free = |block| {
            use_it();
            pool.free(block, FreeOn::Stream(on)).unwrap().unwrap();
        };
        // This thread alone would soon have the lock's bias, and leave the front.
        pool.state.lock().competed = u32::MAX;
        free(allocate(64 << 10));
        let blocks: Vec<usize> = (0..reserved / (64 << 10))
            .map(|_| allocate(64 << 10))
            .collect();
        blocks.into_iter().for_each(free);
        let held: usize = (pool.front.parts.get().unwrap().lanes.iter())
            .map(|lane| lane.held.bytes())
            .sum();
        assert!(held > 0 && held <= reserved / SHARE, "{held} of {reserved}");
        // All of it in one block: nothing may be missing.
        free(allocate(reserved));
        let stats = pool.stats();
        assert_eq!(
            (stats.reserved, stats.growths, stats.in_use),
            (reserved, 1, 0)
        );
        pool.check().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(pool.trim_to(0).unwrap(), reserved);
    }

    #[test]
    fn after_a_shutdown_nothing_stays_in_the_front() {
        let (manager, stream) = contended();
        let kept = manager.allocate_device_on(4096, &stream).unwrap();
        let freed = manager.allocate_device_on(8192, &stream).unwrap();
        free(&manager, freed, &stream).unwrap();
        let report = manager.shutdown().unwrap();
        assert_eq!(report.live.len(), 1);
        assert_eq!(report.live[0].size, 4096);
        use_it();
        free(&manager, kept, &stream).unwrap();
        stream.synchronize().unwrap();
        manager.trim().unwrap();
        assert_eq!(manager.stats().device[0].best_fit.reserved, 0);
    }
}
