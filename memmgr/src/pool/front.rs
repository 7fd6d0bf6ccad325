//! Blocks that are handed out and taken back without the pool's lock, while threads compete for it.
//!
//! A thread that finds the lock taken works with the *front* for its next few thousand calls, and again as long as others do
//! so too. A block that it gets is entered in a table; whoever frees such a block, in the order of the stream that it was
//! allocated on, puts it into a bin of its own lane, and takes it from there for its next request of that size and stream.
//! Whoever has none takes what others have in their bins (`books.rs`). For the pool's books the block is live all the time,
//! with the marks that it had.
//!
//! As long as each thread frees what it gets, no thread writes a cache line that another one touches.
//!
//! What is held back is bounded: all bins together have at most one hundredth of the pool's reserved bytes. It is given back
//! whenever somebody needs the books to be exact ([`Pool::flush_front`]): before a request that finds nothing looks further,
//! before the pool grows, waits or fails, and for `trim`, `shutdown`, statistics and reports. Any thread can do that, since the
//! bins are not bound to their threads.
//!
//! An entry's word says which block it is and what it is: with its user, or in a bin. All changes go from one to the other by
//! compare-and-exchange, so that a block freed twice is found without the lock. Entries are filled and emptied under the lock.

use super::{FreeOn, GRANULE, Pool, State, best_fit};
use crate::process;
use crate::sync::{
    OnceLock,
    atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    },
};
use bins::{Bins, key};
use held::{Held, Spare};
use thread::Turn;

mod bins;
mod books;
mod held;
#[cfg(all(test, feature = "sim"))]
mod tests;
mod thread;

pub use books::Contention;

/// How many blocks can be in the front, and in how many neighbouring places one is looked for.
const ENTRIES: usize = if cfg!(shuttle) { 16 } else { 8192 };
const PROBES: usize = 4;
/// Of the reserved bytes, the bins have at most this part together.
const SHARE: usize = 100;
/// A lane may have so many times its even share of that.
const UNEVEN: usize = 2;
/// Its budget grows by this part of its even share. A block has at most as much, or this part of all, if that is more.
const PART: usize = 8;
const LARGEST: usize = 128;

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

fn mix(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// A block in the front. Two cache lines of its own, since processors fetch them in pairs, so that threads with different
/// blocks do not meet.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Entry {
    /// The block and what it is; 0 if the entry is vacant.
    word: AtomicU64,
    /// Its length in bytes.
    len: AtomicUsize,
    /// What was asked for, in bytes.
    requested: AtomicUsize,
    /// The stream that it was allocated on, by uid; 0 without one.
    stream: AtomicU64,
    /// In a bin: the number of the entry below, plus one.
    below: AtomicU64,
    raw: AtomicBool,
}

/// The bins of one thread, or of some where there are many.
#[derive(Debug)]
#[repr(align(128))]
struct Lane {
    held: Held,
    bins: Bins,
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
    /// What all lanes may hold together, in bytes.
    total: AtomicUsize,
    /// By how much a lane's budget grows, in bytes.
    step: AtomicUsize,
    /// Grows with each flush: who has put something into a bin meanwhile takes it out again.
    flushes: AtomicU64,
    /// How many flushes are on their way: until they are over, nothing goes from bin to bin.
    flushing: AtomicU64,
    shared: Shared,
}

/// What threads write that have to leave their lane.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shared {
    /// What no lane has.
    spare: Spare,
    /// Requests that found nothing in their lane, and those of them that another lane had something for.
    missed: AtomicU64,
    fetched: AtomicU64,
}

/// What has become of a block that was freed.
pub(super) enum Given {
    /// It is in a bin.
    Kept,
    /// It is in a bin of this lane, or was, and a flush may have missed it.
    Late(u32),
    /// It was not taken, and this lane is to give back what it has.
    Crowded(u32),
    /// It was not taken, and half of its bin in this lane is to be given back.
    Full { lane: u32, len: usize, stream: u64 },
    /// It was not taken.
    No,
}

/// A request, as the front knows it.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub size: usize,
    pub stream: u64,
    pub raw: bool,
}

/// A block in the front, as the books see it.
#[derive(Clone, Copy)]
pub(super) struct Fronted {
    pub requested: usize,
    pub raw: bool,
    /// Whether it is in a bin (or on its way): free for its user.
    pub in_bin: bool,
}

/// This thread has found the lock taken: it works with the front from now on.
#[cold]
pub(super) fn use_it() {
    thread::renew();
}

/// As [`use_it`], in a program of the model checker.
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) fn use_it_in_model() {
    thread::start();
}

impl Entry {
    #[inline]
    fn suits(&self, len: usize, stream: u64) -> bool {
        self.len.load(Relaxed) == len && self.stream.load(Relaxed) == stream
    }
}

impl Parts {
    fn new() -> Self {
        // Not `available_parallelism`: the thread that comes first may be bound to one processor.
        let lanes = match cfg!(shuttle) {
            true => 2,
            false => process::processors().next_power_of_two().clamp(4, 64),
        };
        Self {
            entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
            lanes: (0..lanes)
                .map(|_| Lane {
                    held: Held::default(),
                    bins: Bins::new(),
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

impl Front {
    /// Whether the calling thread bypasses the lock now; counts the call.
    #[inline]
    pub fn is_used(&self) -> bool {
        match thread::turn() {
            Turn::Front => true,
            Turn::Last => {
                self.shared.spare.forget_shortage();
                if self.is_beside_others() {
                    use_it();
                }
                true
            }
            Turn::Lock => false,
        }
    }

    /// Whether others have done something in their lanes since the calling thread last asked. The lock does not tell: who works
    /// with the front is seldom there.
    #[cold]
    pub fn is_beside_others(&self) -> bool {
        let Some(parts) = self.parts.get() else {
            return false;
        };
        let own = parts.lane(thread::number());
        let others =
            (parts.lanes.iter()).filter(|lane| !own.is_some_and(|own| std::ptr::eq(own, *lane)));
        let done = others.fold(0u64, |sum, lane| {
            sum.wrapping_mul(31).wrapping_add(lane.held.pulse())
        });
        thread::is_new(std::ptr::from_ref(self).addr(), done)
    }

    /// As [`Front::is_beside_others`], every few times.
    pub fn is_beside_others_now(&self) -> bool {
        self.is_on() && thread::glances() && self.is_beside_others()
    }

    /// The length of the largest block, in bytes.
    fn largest(&self) -> usize {
        self.step().max(self.total.load(Relaxed) / LARGEST)
    }

    fn step(&self) -> usize {
        self.step.load(Relaxed)
    }

    /// The address of a block from the calling thread's bins.
    #[inline]
    pub fn take(&self, wanted: Wanted) -> Option<usize> {
        let (parts, len) = self.parts.get().zip(best_fit::round(wanted.size))?;
        let lane = parts.lane(thread::number())?;
        let bin = lane.bins.find(key(len, wanted.stream))?;
        let (number, entry) = bin.pop(&parts.entries, |entry| entry.suits(len, wanted.stream))?;
        lane.held.hand_out(len, &self.shared.spare, self.step());
        Some(self.hand_over(lane, number, entry, wanted))
    }

    /// Gives the user a block that the calling thread has taken out of a bin; its address.
    #[inline]
    fn hand_over(&self, lane: &Lane, number: u32, entry: &Entry, wanted: Wanted) -> usize {
        let before = entry.requested.load(Relaxed);
        if before != wanted.size {
            lane.held.ask(before, wanted.size);
            entry.requested.store(wanted.size, Relaxed);
        }
        entry.raw.store(wanted.raw, Relaxed);
        let address = address_of(entry.word.load(Relaxed));
        thread::remember(address, number);
        entry.word.store(word(address, WITH_USER), Release);
        address
    }

    /// Puts a block into the calling thread's bins, if it is in the front and is freed in the order of its stream (`None`: in
    /// whatever order it was allocated).
    #[inline]
    pub fn give(&self, address: usize, stream: Option<u64>) -> Given {
        let Some(parts) = self.parts.get() else {
            return Given::No;
        };
        let with_user = word(address, WITH_USER);
        let number = thread::remembered(address);
        let known = parts
            .entry(number)
            .filter(|entry| entry.word.load(Acquire) == with_user);
        // Of another thread's block the cache line is fetched once, to be written.
        let is_here = |entry: &Entry| {
            let word = &entry.word;
            word.compare_exchange(with_user, with_user, Acquire, Relaxed)
                .is_ok()
        };
        let Some((number, entry)) = known
            .map(|entry| (number, entry))
            .or_else(|| parts.places(address).find(|(_, entry)| is_here(entry)))
        else {
            return Given::No;
        };
        let (of, len) = (entry.stream.load(Relaxed), entry.len.load(Relaxed));
        // Who names an order may not free a guard's block.
        if stream.is_some_and(|stream| stream != of || !entry.raw.load(Relaxed)) {
            return Given::No;
        }
        let mine = thread::number();
        let Some(lane) = parts.lane(mine) else {
            return Given::No;
        };
        let Some(bin) = lane.bins.find_or_make(key(len, of)) else {
            return Given::No;
        };
        if bin.count() >= bins::DEPTH {
            return Given::Full {
                lane: mine,
                len,
                stream: of,
            };
        }
        if !self.admit(lane, len) {
            let crowded = lane.held.refuse();
            return if crowded {
                Given::Crowded(mine)
            } else {
                Given::No
            };
        }
        let flushes = self.flushes.load(SeqCst);
        let in_bin = word(address, IN_BIN);
        if (entry.word)
            .compare_exchange(with_user, in_bin, SeqCst, Relaxed)
            .is_err()
        {
            lane.held.remove(len);
            return Given::No;
        }
        if !bin.push(&parts.entries, number) {
            lane.held.remove(len);
            entry.word.store(with_user, Release);
            return Given::No;
        }
        // What a flush has not seen must not stay.
        if self.flushes.load(SeqCst) == flushes {
            Given::Kept
        } else {
            Given::Late(mine)
        }
    }

    /// Whether the lane may have so much more in its bins; counts it.
    #[inline]
    fn admit(&self, lane: &Lane, len: usize) -> bool {
        let step = self.step();
        let most = step.saturating_mul(PART * UNEVEN);
        lane.held.admit(len, &self.shared.spare, step, most)
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
}
