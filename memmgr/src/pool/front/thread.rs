//! What a thread knows of the fronts: for how many calls it works with them, its number, and where the entries of its blocks are.

use super::{GRANULE, mix};
use crate::sync::{
    atomic::{AtomicU64, Ordering::Relaxed},
    thread_local,
};
use std::cell::Cell;

/// How many calls a thread works with the front before it looks again whether threads compete.
const CALLS: u32 = 8192;
/// How many blocks a thread remembers the entries of.
const REMEMBERED: usize = 512;
/// How often in a row a thread looks into the bins of others for nothing before it seldom does, and how seldom then.
const IN_VAIN: u32 = 8;
/// After how many traces of others a thread looks whether they work with the front.
const EVERY: u32 = 4;

thread_local! {
    static CREDIT: Cell<u32> = const { Cell::new(0) };
    /// Which front the thread saw last when its credit ended, and what others had done there.
    static SEEN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
    /// The entries of the blocks that the thread got last, by address: to look at the neighbours of an entry, which are
    /// others', would slow them down.
    static ENTRIES_OF: [Cell<u16>; REMEMBERED] = const { [const { Cell::new(0) }; REMEMBERED] };
    static NUMBER: Cell<u32> = const { Cell::new(u32::MAX) };
    static CLAIMED: Claimed = const { Claimed(Cell::new(u32::MAX)) };
    static VAIN: Cell<u32> = const { Cell::new(0) };
    static GLANCE: Cell<u32> = const { Cell::new(0) };
}

/// What this call of the thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It bypasses the lock.
    Front,
    /// It is the last that does, unless others are still there.
    Last,
    Lock,
}

/// How this thread makes its next call; counts it.
#[inline]
pub(super) fn turn() -> Turn {
    CREDIT.with(|credit| {
        let left = credit.get();
        credit.set(left.saturating_sub(1));
        match left {
            0 => Turn::Lock,
            1 => Turn::Last,
            _ => Turn::Front,
        }
    })
}

/// This thread works with the front from now on. Under the model checker only where a program wants it, since it has enough to
/// try without.
#[cold]
pub(super) fn renew() {
    if cfg!(not(shuttle)) {
        start();
    }
}

/// As [`renew`], under the model checker too.
pub(super) fn start() {
    CREDIT.with(|credit| credit.set(CALLS));
}

/// Whether others have done something since the thread was told of this front last.
pub(super) fn is_new(front: usize, done: u64) -> bool {
    let (last, seen) = SEEN.with(|last| last.replace((front, done)));
    last == front && seen != done
}

/// Whether the thread looks now what others do.
pub(super) fn glances() -> bool {
    let glance = GLANCE.with(|glance| glance.replace(glance.get().wrapping_add(1)));
    glance.is_multiple_of(EVERY)
}

/// Whether the thread looks into the bins of others now.
pub(super) fn may_look_elsewhere() -> bool {
    let vain = VAIN.with(|vain| vain.replace(vain.get().wrapping_add(1)));
    vain < IN_VAIN || vain.is_multiple_of(IN_VAIN)
}

/// It has found something there.
pub(super) fn has_found() {
    VAIN.with(|vain| vain.set(0));
}

/// Numbers that threads have. One that ends gives its number to the next, so that as few lanes as possible are shared.
static TAKEN: AtomicU64 = AtomicU64::new(0);

struct Claimed(Cell<u32>);

impl Drop for Claimed {
    fn drop(&mut self) {
        give_back(self.0.get());
    }
}

fn give_back(number: u32) {
    if let Some(bit) = 1u64.checked_shl(number) {
        TAKEN.fetch_sub(bit, Relaxed);
    }
}

/// The number of the calling thread, for the choice of its lane.
#[inline]
pub(super) fn number() -> u32 {
    match NUMBER.with(Cell::get) {
        u32::MAX => claim(),
        number => number,
    }
}

#[cold]
fn claim() -> u32 {
    static MORE: AtomicU64 = AtomicU64::new(0);
    let lowest = |taken: u64| Some(taken | taken.checked_add(1)?);
    let number = match TAKEN.fetch_update(Relaxed, Relaxed, lowest) {
        Ok(before) => {
            let number = before.trailing_ones();
            // A thread that ends has none to give back later.
            if CLAIMED.try_with(|claimed| claimed.0.set(number)).is_err() {
                give_back(number);
            }
            number
        }
        // More threads than numbers: they share.
        Err(_) => MORE.fetch_add(1, Relaxed) as u32 % u64::BITS,
    };
    NUMBER.with(|mine| mine.set(number));
    number
}

#[inline]
fn place(address: usize) -> usize {
    mix((address / GRANULE) as u64) % REMEMBERED
}

/// Remembers the entry of a block.
#[inline]
pub(super) fn remember(address: usize, number: u32) {
    ENTRIES_OF.with(|entries| {
        if let Some(entry) = entries.get(place(address)) {
            entry.set(number as u16);
        }
    });
}

/// The entry that a block may have.
#[inline]
pub(super) fn remembered(address: usize) -> u32 {
    ENTRIES_OF.with(|entries| {
        entries
            .get(place(address))
            .map_or(0, |entry| u32::from(entry.get()))
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_a_thread_gave_back_is_used_again() {
        // Other tests have threads that come and go: of many, some follow each other.
        let numbers = |_| std::thread::spawn(|| (number(), number())).join().unwrap();
        let numbers: Vec<(u32, u32)> = (0..200).map(numbers).collect();
        assert!(numbers.iter().all(|(first, again)| first == again));
        let distinct: std::collections::BTreeSet<u32> = numbers.iter().map(|(n, _)| *n).collect();
        assert!(distinct.len() < 32, "{distinct:?}");
    }

    #[test]
    fn credit_is_spent_and_renewed() {
        assert!(turn() == Turn::Lock);
        renew();
        assert!((1..CALLS).all(|_| turn() == Turn::Front));
        assert!(turn() == Turn::Last && turn() == Turn::Lock);
        assert!(!is_new(1, 5), "it had not been told of it");
        assert!(!is_new(1, 5) && is_new(1, 6) && !is_new(2, 7));
    }
}
