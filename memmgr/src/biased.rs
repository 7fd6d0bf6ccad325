//! A lock that costs nothing atomic where one thread takes it again and again.
//!
//! Most pools are used by one thread for long stretches. Such a thread gets the lock's *bias*: it enters by writing a flag of
//! its own and looking whether the bias still stands, without a locked instruction. Whoever else wants the lock takes the
//! mutex, withdraws the bias, and waits until the thread is not inside. What makes the two agree is Linux's `membarrier`
//! (private expedited): after the call, either the flag is seen by the one who withdraws, or the withdrawal by the thread that
//! enters. (The scheme is that of asymmetric Dekker locks: Dice, Moir and Scherer, "Quickly reacquirable locks", 2003.) Where
//! the kernel has no such call, and under the model checker, the lock is the mutex alone.
//!
//! A withdrawal costs a few microseconds, so the bias goes to a thread only after it has taken the mutex many times in a row,
//! and after each withdrawal twice as many.

use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use std::{
    cell::{Cell, UnsafeCell},
    fmt, hint,
    ops::{Deref, DerefMut},
    sync::{
        PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            compiler_fence,
        },
    },
    thread,
    time::Duration,
};

/// How often in a row a thread takes the mutex before it gets the bias for the first time.
const PATIENCE: u32 = 64;
/// The largest power of two by which that is multiplied.
const MOST_DOUBLINGS: u32 = 14;
/// How often a thread that withdraws the bias looks before it gives the processor away, and before it sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 1000;

/// Nobody has the bias.
const NOBODY: u64 = 0;

/// Who took the mutex, for the decision about the bias.
#[derive(Debug)]
struct Turns {
    last: u64,
    in_a_row: u32,
    withdrawals: u32,
}

/// A value behind the lock.
pub(crate) struct Biased<T> {
    /// The thread that may enter without the mutex. Set by that thread, and withdrawn by anybody, with the mutex held.
    bias: AtomicU64,
    /// Whether that thread is inside. Written by it alone.
    inside: AtomicBool,
    mutex: Mutex<Turns>,
    value: UnsafeCell<T>,
}

// SAFETY: a guard is the only way to the value, and `enter` and `enter_with_mutex` see to it that there is one at a time: a
// thread without the mutex is the one that has the bias, and nobody has the mutex and goes on before the bias is withdrawn and
// that thread is outside. So the value goes from thread to thread, as with a mutex, for which `T: Send` is enough.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The value, as long as this lives.
pub(crate) struct Guard<'a, T> {
    lock: &'a Biased<T>,
    /// `None` where the bias was enough.
    mutex: Option<MutexGuard<'a, Turns>>,
}

/// A number that no other thread of the process has or had.
#[inline]
fn me() -> u64 {
    thread_local! {
        static ME: Cell<u64> = const { Cell::new(NOBODY) };
    }
    static NEXT: AtomicU64 = AtomicU64::new(1);
    ME.with(|me| {
        if me.get() == NOBODY {
            me.set(NEXT.fetch_add(1, Relaxed));
        }
        me.get()
    })
}

impl<T> Biased<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> Self {
        Self {
            bias: AtomicU64::new(NOBODY),
            inside: AtomicBool::new(false),
            mutex: Mutex::new(Turns {
                last: NOBODY,
                in_a_row: 0,
                withdrawals: 0,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.enter(me()) {
            Some(guard) => guard,
            None => self.enter_with_mutex(me(), lock(&self.mutex)),
        }
    }

    /// Waits for the lock; and whether nobody else had it.
    #[inline]
    pub fn lock_and_tell(&self) -> (Guard<'_, T>, bool) {
        match self.enter(me()) {
            Some(guard) => (guard, true),
            None => match self.mutex.try_lock() {
                Ok(turns) => (self.enter_with_mutex(me(), turns), true),
                Err(_) => (self.enter_with_mutex(me(), lock(&self.mutex)), false),
            },
        }
    }

    /// The lock with the mutex, as [`Guard::wait`] wants it.
    pub fn lock_to_wait(&self) -> Guard<'_, T> {
        let guard = lock(&self.mutex);
        self.enter_with_mutex(NOBODY, guard)
    }

    /// Enters with the bias, if this thread has it.
    #[inline]
    fn enter(&self, me: u64) -> Option<Guard<'_, T>> {
        if self.bias.load(Relaxed) != me {
            return None;
        }
        self.inside.store(true, Relaxed);
        // Who withdraws the bias makes the processor keep this order; the compiler has to be told.
        compiler_fence(SeqCst);
        if self.bias.load(Relaxed) == me {
            return Some(Guard {
                lock: self,
                mutex: None,
            });
        }
        self.inside.store(false, Release);
        None
    }

    /// Enters with the mutex: withdraws the bias of another thread, and takes it over if that is worth it.
    #[cold]
    fn enter_with_mutex<'a>(&'a self, me: u64, mut turns: MutexGuard<'a, Turns>) -> Guard<'a, T> {
        if self.withdraw() {
            turns.withdrawals = turns.withdrawals.saturating_add(1);
        }
        if turns.last == me {
            turns.in_a_row = turns.in_a_row.saturating_add(1);
        } else {
            (turns.last, turns.in_a_row) = (me, 0);
        }
        let patience = PATIENCE << turns.withdrawals.min(MOST_DOUBLINGS);
        if me != NOBODY && turns.in_a_row >= patience && barrier::is_there() {
            turns.in_a_row = 0;
            self.bias.store(me, Relaxed);
        }
        Guard {
            lock: self,
            mutex: Some(turns),
        }
    }

    /// Withdraws the bias, and waits until the thread that had it is outside; whether anybody had it. The mutex is held, so
    /// nobody gets it meanwhile.
    fn withdraw(&self) -> bool {
        if self.bias.load(Relaxed) == NOBODY {
            return false;
        }
        self.bias.store(NOBODY, Relaxed);
        barrier::everywhere();
        let mut looks = 0u32;
        while self.inside.load(Acquire) {
            looks = looks.saturating_add(1);
            match looks {
                0..SPINS => hint::spin_loop(),
                SPINS..YIELDS => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
        }
        true
    }

    /// The value, which nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<'a, T> Guard<'a, T> {
    /// Gives the lock back and waits to be woken, as [`std::sync::Condvar::wait`]. The guard is one of
    /// [`Biased::lock_to_wait`]; another returns at once, as if it had been woken for nothing.
    pub fn wait(mut self, condition: &Condvar) -> Self {
        if let Some(turns) = self.mutex.take() {
            let turns = condition
                .wait(turns)
                .unwrap_or_else(PoisonError::into_inner);
            // The mutex was free meanwhile, and another thread may have the bias now.
            return self.lock.enter_with_mutex(NOBODY, turns);
        }
        self
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists, so nobody else is inside (see the type's `Sync`).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the guard is borrowed mutably, so the reference is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.mutex.is_none() {
            self.lock.inside.store(false, Release);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Biased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Biased").field(&*self.lock()).finish()
    }
}

/// A memory barrier on all threads of the process.
#[cfg(all(target_os = "linux", not(all(shuttle, feature = "sim"))))]
mod barrier {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    const UNKNOWN: u8 = 0;
    const THERE: u8 = 1;
    const NOT_THERE: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three numbers and touches no memory of the caller; a kernel that does not know it says so.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Whether [`everywhere`] works; registers the process for it when first asked.
    pub fn is_there() -> bool {
        match STATE.load(Relaxed) {
            UNKNOWN => {
                let there = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
                STATE.store(if there { THERE } else { NOT_THERE }, Relaxed);
                there
            }
            state => state == THERE,
        }
    }

    /// Every thread of the process passes a full barrier during this call.
    pub fn everywhere() {
        let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        debug_assert!(done, "a bias exists only where the barrier does");
    }
}

#[cfg(not(all(target_os = "linux", not(all(shuttle, feature = "sim")))))]
mod barrier {
    pub fn is_there() -> bool {
        false
    }

    pub fn everywhere() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, atomic::AtomicUsize};

    /// Rounds in which one thread after the other has the lock alone for long, and others break in.
    #[test]
    fn one_thread_at_a_time_is_inside_whoever_has_the_bias() {
        const THREADS: usize = 4;
        const ROUNDS: usize = 40;
        const ALONE: usize = 20_000;
        let counter = Biased::new((0u64, 0u64));
        let (start, biased) = (Barrier::new(THREADS), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (counter, start, biased) = (&counter, &start, &biased);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        start.wait();
                        let mine = round % THREADS == number;
                        for _ in 0..if mine { ALONE } else { 20 } {
                            let mut guard = counter.lock();
                            if guard.mutex.is_none() {
                                biased.fetch_add(1, Relaxed);
                            }
                            // Two steps, which another thread inside would tear apart.
                            guard.0 += 1;
                            hint::black_box(&mut *guard);
                            assert_eq!(guard.0, guard.1 + 1);
                            guard.1 += 1;
                            drop(guard);
                            if !mine {
                                thread::sleep(Duration::from_micros(50));
                            }
                        }
                    }
                });
            }
        });
        let expected = (ROUNDS * (ALONE + (THREADS - 1) * 20)) as u64;
        assert_eq!(*counter.lock(), (expected, expected));
        let biased = biased.load(Relaxed);
        assert_eq!(biased > 0, barrier::is_there(), "{biased} of {expected}");
    }

    /// A value that one thread writes with the bias is seen by another that waits for it.
    #[test]
    fn who_waits_sees_what_the_thread_with_the_bias_does_next() {
        let (value, changed) = (Biased::new(0u32), Condvar::new());
        for round in 1..200 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut guard = value.lock_to_wait();
                    while *guard < round {
                        guard = guard.wait(&changed);
                    }
                });
                for _ in 0..PATIENCE * 2 {
                    let _ = *value.lock();
                }
                *value.lock() = round;
                changed.notify_all();
            });
        }
    }
}
