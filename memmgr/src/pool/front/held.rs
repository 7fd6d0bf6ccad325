//! What a lane of the front counts: the bytes in its bins, how often it has handed out a block, and by how much more was
//! asked for then than the books know.
//!
//! The first two are one word, so that a block that is handed out costs one locked instruction: the granules in the lower
//! half, the count in the upper. Long before the count runs out, half of it is put aside.

use super::super::GRANULE;
use crate::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

/// One more that was handed out.
const ONE: u64 = 1 << 32;
/// So many are put aside at once.
const HALF: u64 = 1 << 63;

#[derive(Debug, Default)]
pub(super) struct Held {
    /// Granules in the bins, and how often a block was handed out.
    word: AtomicU64,
    /// How often before that.
    aside: AtomicU64,
    /// What was asked for beyond what the books know, in bytes; wraps.
    asked: AtomicUsize,
}

fn granules(bytes: usize) -> u64 {
    (bytes / GRANULE) as u64
}

fn bytes_of(word: u64) -> usize {
    (word % ONE) as usize * GRANULE
}

impl Held {
    /// The bytes in the bins.
    #[inline]
    pub fn bytes(&self) -> usize {
        bytes_of(self.word.load(SeqCst))
    }

    /// A block comes into a bin; the bytes in the bins then.
    #[inline]
    pub fn add(&self, len: usize) -> usize {
        bytes_of(self.word.fetch_add(granules(len), SeqCst)).saturating_add(len)
    }

    /// A block that was added has left, but for its owner.
    #[inline]
    pub fn remove(&self, len: usize) {
        self.word.fetch_sub(granules(len), Relaxed);
    }

    /// A block that was added is handed out again.
    #[inline]
    pub fn hand_out(&self, len: usize) {
        let before = self
            .word
            .fetch_add(ONE.wrapping_sub(granules(len)), Relaxed);
        if before >= HALF {
            self.put_aside();
        }
    }

    #[cold]
    fn put_aside(&self) {
        // Others may come here for the same half.
        let halved = self
            .word
            .fetch_update(SeqCst, Relaxed, |word| word.checked_sub(HALF));
        if halved.is_ok() {
            self.aside.fetch_add(HALF / ONE, Relaxed);
        }
    }

    /// Something else was asked for of a block than the last time, in bytes.
    #[inline]
    pub fn ask(&self, before: usize, now: usize) {
        self.asked.fetch_add(now.wrapping_sub(before), Relaxed);
    }
}

/// What the lanes of a front count together.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::pool) struct Counted {
    /// How often a block was handed out again.
    pub handed_out: u64,
    /// What was asked for beyond what the books know, in bytes; wraps.
    pub asked: usize,
}

impl Counted {
    /// Of these lanes.
    pub(super) fn sum<'a>(lanes: impl Iterator<Item = &'a Held>) -> Self {
        lanes.fold(Self::default(), |sum, held| Self {
            handed_out: (sum.handed_out)
                .wrapping_add(held.aside.load(Relaxed))
                .wrapping_add(held.word.load(Relaxed) / ONE),
            asked: sum.asked.wrapping_add(held.asked.load(Relaxed)),
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_counts_do_not_touch_each_other() {
        let held = Held::default();
        assert_eq!(held.add(4096), 4096);
        assert_eq!(held.add(256), 4352);
        held.hand_out(4096);
        held.ask(4096, 4000);
        assert_eq!(held.bytes(), 256);
        held.remove(256);
        let counted = Counted::sum([&held].into_iter());
        assert_eq!((held.bytes(), counted.handed_out), (0, 1));
        assert_eq!(counted.asked.wrapping_add(4096), 4000);
    }

    #[test]
    fn a_count_that_would_run_out_is_put_aside() {
        let held = Held::default();
        held.word.store(HALF - ONE, Relaxed);
        for round in 0..3u64 {
            held.add(512);
            held.hand_out(512);
            let counted = Counted::sum([&held].into_iter());
            assert_eq!(counted.handed_out, (HALF - ONE) / ONE + round + 1);
        }
        assert_eq!(held.bytes(), 0);
        assert_eq!(held.aside.load(Relaxed), HALF / ONE);
    }
}
