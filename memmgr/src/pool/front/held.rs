//! What a lane of the front counts: the bytes in its bins and how many it may have there, how often it has handed out a block,
//! and by how much more was asked for then than the books know.
//!
//! Bytes and count are one word, so that a block that is handed out costs one locked instruction: the granules in the lower
//! half, the count in the upper. Long before the count runs out, half of it is put aside.
//!
//! What all lanes may have together is divided by need: a lane takes from the [`Spare`] and gives back what it has not needed
//! where another wants it. All of this is written by the lane's thread, but for the spare, which is seldom touched.

use super::super::GRANULE;
use crate::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

/// One more that was handed out.
const ONE: u64 = 1 << 32;
/// So many are put aside at once.
const HALF: u64 = 1 << 63;

/// After so many blocks that were refused it is asked what the bins have been good for: fewer than so many for each is little.
const PATIENCE: u64 = 64;
const FEW: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Held {
    /// Granules in the bins, and how often a block was handed out.
    word: AtomicU64,
    /// How often before that.
    aside: AtomicU64,
    /// What was asked for beyond what the books know, in bytes; wraps.
    asked: AtomicUsize,
    /// What the bins may have, in bytes: part of what all lanes may have together.
    budget: AtomicUsize,
    /// How many blocks were refused, as they would have gone beyond that.
    refused: AtomicU64,
    /// How often a block had been handed out when that was last looked at.
    looked: AtomicU64,
}

/// What the lanes may still take. The two parts are no neighbours: all threads read whether it is short.
#[derive(Debug, Default)]
pub(super) struct Spare {
    left: Left,
    short: Short,
}

/// In bytes. It falls below zero when the pool shrinks, and wraps then.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Left(AtomicUsize);

/// Whether a lane has lately wanted more than there was. Only then do others give back what they do not need: to take and to
/// give back all the time would be a line that all threads write.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Short(AtomicBool);

fn granules(bytes: usize) -> u64 {
    (bytes / GRANULE) as u64
}

fn bytes_of(word: u64) -> usize {
    (word % ONE) as usize * GRANULE
}

impl Spare {
    /// More, or less, may be held than before.
    pub fn change(&self, from: usize, to: usize) {
        self.left.0.fetch_add(to.wrapping_sub(from), SeqCst);
    }

    /// Whether lanes give back what they do not need.
    #[inline]
    fn is_short(&self) -> bool {
        self.short.0.load(Relaxed)
    }

    /// From now on they do not, until a lane wants more than there is.
    pub fn forget_shortage(&self) {
        if self.is_short() {
            self.short.0.store(false, Relaxed);
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let left = |spare: usize| {
            let left = (spare as isize).checked_sub(isize::try_from(bytes).ok()?)?;
            (left >= 0).then_some(left as usize)
        };
        let taken = self.left.0.fetch_update(SeqCst, Relaxed, left).is_ok();
        if !taken && !self.is_short() {
            self.short.0.store(true, Relaxed);
        }
        taken
    }

    fn put(&self, bytes: usize) {
        self.left.0.fetch_add(bytes, SeqCst);
    }
}

impl Held {
    /// The bytes in the bins.
    #[inline]
    pub fn bytes(&self) -> usize {
        bytes_of(self.word.load(SeqCst))
    }

    /// Changes whenever a block comes or goes.
    pub fn pulse(&self) -> u64 {
        self.word.load(Relaxed)
    }

    /// A block comes into a bin, if the bytes there stay within the budget; it grows by what the spare has, by `step` or more,
    /// up to `most`.
    #[inline]
    pub fn admit(&self, len: usize, spare: &Spare, step: usize, most: usize) -> bool {
        let held = self.add(len);
        if held <= self.budget.load(SeqCst) || self.extend(held, spare, step, most) {
            return true;
        }
        self.remove(len);
        false
    }

    #[cold]
    fn extend(&self, held: usize, spare: &Spare, step: usize, most: usize) -> bool {
        loop {
            let budget = self.budget.load(SeqCst);
            if held <= budget {
                return true;
            }
            let missing = held.saturating_sub(budget);
            let steps = [step.max(missing), missing];
            let fits = |more: &usize| budget.saturating_add(*more) <= most && spare.take(*more);
            let Some(more) = steps.into_iter().find(fits) else {
                return false;
            };
            self.budget.fetch_add(more, SeqCst);
        }
    }

    /// Counts a block that was not admitted. Whether the bins seem to have what nobody asks for any more: many were refused
    /// since few were handed out.
    pub fn refuse(&self) -> bool {
        let refused = self.refused.fetch_add(1, Relaxed).wrapping_add(1);
        if !refused.is_multiple_of(PATIENCE) {
            return false;
        }
        let now = self.word.load(Relaxed) / ONE;
        let before = self.looked.swap(now, Relaxed);
        now.wrapping_sub(before) < PATIENCE * FEW
    }

    /// A block comes into a bin; the bytes in the bins then.
    #[inline]
    fn add(&self, len: usize) -> usize {
        bytes_of(self.word.fetch_add(granules(len), SeqCst)).saturating_add(len)
    }

    /// A block that was added has left, but for its owner.
    #[inline]
    pub fn remove(&self, len: usize) {
        self.word.fetch_sub(granules(len), SeqCst);
    }

    /// A block that was added is handed out again. If the budget is larger than needed by two steps then, one goes back where it
    /// is wanted.
    #[inline]
    pub fn hand_out(&self, len: usize, spare: &Spare, step: usize) {
        let change = ONE.wrapping_sub(granules(len));
        let before = self.word.fetch_add(change, SeqCst);
        if before >= HALF {
            self.put_aside();
        }
        let held = bytes_of(before.wrapping_add(change));
        let unused = self.budget.load(Relaxed).saturating_sub(held);
        if unused / 2 > step && spare.is_short() {
            self.give_up(step, spare);
        }
    }

    /// A block of another lane is handed out.
    pub fn pass_on(&self) {
        if self.word.fetch_add(ONE, SeqCst) >= HALF {
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

    /// Gives so much of the budget back, or as much as is not needed.
    #[cold]
    pub fn give_up(&self, most: usize, spare: &Spare) {
        let budget = self.budget.load(SeqCst);
        let gone = budget.saturating_sub(self.bytes()).min(most);
        let less = budget.saturating_sub(gone);
        if gone == 0
            || self
                .budget
                .compare_exchange(budget, less, SeqCst, Relaxed)
                .is_err()
        {
            return;
        }
        // Who has added a block meanwhile saw the larger budget, and is seen here; who adds one later sees the smaller.
        if self.bytes() > less {
            self.budget.fetch_add(gone, SeqCst);
        } else {
            spare.put(gone);
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
    /// How many blocks were refused for want of budget; wraps.
    pub refused: u64,
}

impl Counted {
    /// Of these lanes.
    pub(super) fn sum<'a>(lanes: impl Iterator<Item = &'a Held>) -> Self {
        lanes.fold(Self::default(), |sum, held| Self {
            handed_out: (sum.handed_out)
                .wrapping_add(held.aside.load(Relaxed))
                .wrapping_add(held.word.load(Relaxed) / ONE),
            asked: sum.asked.wrapping_add(held.asked.load(Relaxed)),
            refused: sum.refused.wrapping_add(held.refused.load(Relaxed)),
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const STEP: usize = 4096;

    fn spare(bytes: usize) -> Spare {
        let spare = Spare::default();
        spare.put(bytes);
        spare
    }

    #[test]
    fn bytes_and_counts_do_not_touch_each_other() {
        let (held, spare) = (Held::default(), spare(1 << 20));
        assert!(held.admit(4096, &spare, STEP, 1 << 20));
        assert!(held.admit(256, &spare, STEP, 1 << 20));
        assert_eq!(held.bytes(), 4352);
        held.hand_out(4096, &spare, STEP);
        held.ask(4096, 4000);
        assert_eq!(held.bytes(), 256);
        held.remove(256);
        let counted = Counted::sum([&held].into_iter());
        assert_eq!((held.bytes(), counted.handed_out), (0, 1));
        assert_eq!(counted.asked.wrapping_add(4096), 4000);
    }

    #[test]
    fn a_count_that_would_run_out_is_put_aside() {
        let (held, spare) = (Held::default(), spare(1 << 20));
        held.word.store(HALF - ONE, Relaxed);
        for round in 0..3u64 {
            assert!(held.admit(512, &spare, STEP, 1 << 20));
            held.hand_out(512, &spare, STEP);
            let counted = Counted::sum([&held].into_iter());
            assert_eq!(counted.handed_out, (HALF - ONE) / ONE + round + 1);
        }
        assert_eq!(held.bytes(), 0);
        assert_eq!(held.aside.load(Relaxed), HALF / ONE);
    }

    #[test]
    fn lanes_take_what_they_need_and_give_back_what_they_do_not() {
        let (lanes, spare) = ([Held::default(), Held::default()], spare(10 * STEP));
        let [first, second] = &lanes;
        let fill = |held: &Held| {
            let admit = |_: &usize| held.admit(STEP, &spare, STEP, 8 * STEP);
            (0..20usize).filter(admit).count()
        };
        assert_eq!(fill(first), 8, "no lane has more than `most`");
        assert_eq!(fill(second), 2, "both together have no more than all");
        assert_eq!(first.bytes() + second.bytes(), 10 * STEP);
        for _ in 0..8 {
            first.hand_out(STEP, &spare, STEP);
        }
        assert!(fill(second) >= 3, "what the first does not need");
        second.give_up(usize::MAX, &spare);
        assert_eq!(second.budget.load(Relaxed), second.bytes());
        let all = spare.left.0.load(Relaxed) + first.budget.load(Relaxed) + second.bytes();
        assert_eq!(all, 10 * STEP);
    }

    #[test]
    fn a_lane_gives_nothing_back_before_another_has_wanted_more_than_there_is() {
        let (lanes, spare) = ([Held::default(), Held::default()], spare(8 * STEP));
        let [first, second] = &lanes;
        let left = || spare.left.0.load(Relaxed);
        for _ in 0..3 {
            let admitted = (0..8).filter(|_| first.admit(STEP, &spare, STEP, 8 * STEP));
            assert_eq!(admitted.count(), 8);
            (0..8).for_each(|_| first.hand_out(STEP, &spare, STEP));
            assert_eq!((left(), first.budget.load(Relaxed)), (0, 8 * STEP));
        }
        assert!(!second.admit(STEP, &spare, STEP, 8 * STEP));
        assert!(first.admit(STEP, &spare, STEP, 8 * STEP));
        first.hand_out(STEP, &spare, STEP);
        assert_eq!(left(), STEP);
        spare.forget_shortage();
        assert!(first.admit(STEP, &spare, STEP, 8 * STEP));
        first.hand_out(STEP, &spare, STEP);
        assert_eq!(left(), STEP);
    }

    #[test]
    fn after_the_pool_has_shrunk_nothing_is_taken_until_there_is_enough() {
        let (held, spare) = (Held::default(), spare(4 * STEP));
        assert!(held.admit(3 * STEP, &spare, STEP, 8 * STEP));
        spare.change(4 * STEP, STEP);
        assert!(!held.admit(STEP, &spare, STEP, 8 * STEP));
        assert_eq!(held.bytes(), 3 * STEP);
        held.remove(3 * STEP);
        held.give_up(usize::MAX, &spare);
        assert!(held.admit(STEP, &spare, STEP, 8 * STEP));
        assert!(!held.admit(256, &spare, STEP, 8 * STEP));
    }

    #[test]
    fn bins_that_are_of_no_use_any_more_are_told_from_those_that_are_too_small() {
        let (held, spare) = (Held::default(), spare(2 * STEP));
        let refusals = || (0..PATIENCE).filter(|_| held.refuse()).count();
        let use_it = || {
            assert!(held.admit(STEP, &spare, STEP, 2 * STEP));
            held.hand_out(STEP, &spare, STEP);
        };
        assert_eq!(refusals(), 1);
        (0..PATIENCE * FEW).for_each(|_| use_it());
        assert_eq!(refusals(), 0);
        (1..PATIENCE * FEW).for_each(|_| use_it());
        assert_eq!(refusals(), 1);
    }

    #[test]
    fn threads_that_trade_budget_never_hold_more_than_all() {
        let all = 8 * STEP;
        let (lanes, spare) = ([(); 4].map(|()| Held::default()), spare(all));
        let admitted = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for lane in &lanes {
                let (spare, admitted) = (&spare, &admitted);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let blocks = 1 + round % 3;
                        let admit = |_: &usize| lane.admit(STEP, spare, STEP, 4 * STEP);
                        let inside = (0..blocks).filter(admit).count() * STEP;
                        let now = admitted.fetch_add(inside, SeqCst) + inside;
                        assert!(now <= all, "{now}");
                        admitted.fetch_sub(inside, SeqCst);
                        for _ in 0..inside / STEP {
                            lane.hand_out(STEP, spare, STEP / 8);
                        }
                        lane.give_up(STEP, spare);
                    }
                });
            }
        });
        for lane in &lanes {
            lane.give_up(usize::MAX, &spare);
        }
        assert_eq!(spare.left.0.load(Relaxed), all);
    }
}
