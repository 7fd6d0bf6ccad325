//! A lock that costs nothing atomic where one thread takes it again and again.
//!
//! Most pools are used by one thread for long stretches. Such a thread gets the lock's *bias*: it enters by writing a flag of
//! its own and looking whether the bias still stands, without a locked instruction. Whoever else wants the lock takes the
//! mutex, withdraws the bias, and waits until the thread is not inside. What makes the two agree is Linux's `membarrier`
//! (private expedited): after the call, either the flag is seen by the one who withdraws, or the withdrawal by the thread that
//! enters. (The scheme is that of asymmetric Dekker locks: Dice, Moir and Scherer, "Quickly reacquirable locks", 2003.) Where
//! the kernel has no such call, and under the model checker, the lock is the mutex alone.
//!
//! A thread may be stopped between its look at the bias and the flag that it writes then, for as long as the system likes, and
//! write the flag when another thread has the bias. So a lock has several flags, and one goes to another thread only after the
//! former has come for the mutex, which it cannot do between the two.
//!
//! A withdrawal costs a few microseconds, so the bias goes to a thread only after it has taken the mutex many times in a row,
//! and after each withdrawal twice as many.

use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use std::{
    cell::{Cell, UnsafeCell},
    fmt, hint,
    marker::PhantomData,
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

#[cfg(test)]
mod tests;

/// How often in a row a thread takes the mutex before it gets the bias for the first time.
const PATIENCE: u32 = 64;
/// The largest power of two by which that is multiplied.
const MOST_DOUBLINGS: u32 = 14;
/// How often a thread that withdraws the bias looks before it gives the processor away, and before it sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 1000;

/// Nobody has the bias.
const NOBODY: u64 = 0;
/// How many flags a lock has: so many threads may have had the bias and not come back. Together they fill a cache line.
const FLAGS: usize = 1 << FLAG_BITS;
const FLAG_BITS: u32 = 6;

/// Who took the mutex, for the decision about the bias.
#[derive(Debug)]
struct Turns {
    last: u64,
    in_a_row: u32,
    withdrawals: u32,
    /// How often the mutex was taken, and how often it was waited for.
    taken: u64,
    waited: u64,
    /// Whose the flags are; a thread has one at most.
    flags: [u64; FLAGS],
    /// How many have been somebody's: the first ones.
    used: usize,
}

impl Turns {
    /// The thread has come for the mutex, and does not have the bias: its flag may go to another.
    fn leave(&mut self, me: u64) {
        let mut used = self.flags.iter_mut().take(self.used);
        if let Some(flag) = used.find(|owner| **owner == me) {
            *flag = NOBODY;
        }
    }

    /// A flag for a thread that has none; `None` if all are somebody's.
    fn take(&mut self, me: u64) -> Option<usize> {
        let flag = self.flags.iter().position(|owner| *owner == NOBODY)?;
        *self.flags.get_mut(flag)? = me;
        self.used = self.used.max(flag.saturating_add(1));
        Some(flag)
    }
}

/// The bias, in lines of its own: all threads read it, also those that need no lock, and it seldom changes.
#[repr(align(128))]
struct Bias(AtomicU64);

/// The flags, in a line of their own.
#[repr(align(64))]
struct Flags([AtomicBool; FLAGS]);

impl Flags {
    /// The flag that the bias names.
    #[inline]
    fn of(&self, bias: u64) -> &AtomicBool {
        &self.0[bias as usize % FLAGS]
    }
}

/// A value behind the lock. It shares no cache line with what lies beside it, which others may read without the lock.
#[repr(align(128))]
pub(crate) struct Biased<T> {
    /// The thread that may enter without the mutex, and in the lowest bits its flag. Set by that thread, and withdrawn by
    /// anybody, with the mutex held.
    bias: Bias,
    /// Whether the thread with the bias is inside. Each is written only by the thread whose it is, and by the one that makes it
    /// its own.
    inside: Flags,
    mutex: Mutex<Turns>,
    value: UnsafeCell<T>,
}

// SAFETY: a guard is the only way to the value, and `enter` and `enter_with_mutex` see to it that there is one at a time: a
// thread without the mutex is the one that has the bias and was not inside, and nobody has the mutex and goes on before the bias
// is withdrawn and that thread's flag is down, which no other thread writes. So the value goes from thread to thread, as with a
// mutex, for which `T: Send` is enough.
unsafe impl<T: Send> Sync for Biased<T> {}

/// Whom a thread has met at the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// It was the last that had it.
    Nobody,
    /// Another thread has had it since.
    Trace,
    /// Another thread had it, and was waited for.
    Holder,
}

/// How often threads have met at the lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meetings {
    /// How often it was taken, other than by the thread that has its bias.
    pub locked: u64,
    /// How often it was taken then.
    pub waited: u64,
    /// How often a bias was withdrawn.
    pub withdrawn: u64,
}

/// The value, as long as this lives.
pub(crate) struct Guard<'a, T> {
    lock: &'a Biased<T>,
    /// The flag to be taken down, of the thread that has the bias.
    flag: Option<&'a AtomicBool>,
    /// `None` where the bias was enough.
    mutex: Option<MutexGuard<'a, Turns>>,
    /// To share a guard is to share the value.
    value: PhantomData<&'a T>,
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
            bias: Bias(AtomicU64::new(NOBODY)),
            inside: Flags([const { AtomicBool::new(false) }; FLAGS]),
            mutex: Mutex::new(Turns {
                last: NOBODY,
                in_a_row: 0,
                withdrawals: 0,
                taken: 0,
                waited: 0,
                flags: [NOBODY; FLAGS],
                used: 0,
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

    /// The lock, if this thread has the bias.
    #[inline]
    pub fn lock_with_bias(&self) -> Option<Guard<'_, T>> {
        self.enter(me())
    }

    /// Waits for the lock; and whom the thread has met.
    #[inline]
    pub fn lock_and_tell(&self) -> (Guard<'_, T>, Met) {
        match self.enter(me()) {
            Some(guard) => (guard, Met::Nobody),
            None => self.take_turn(me()),
        }
    }

    #[cold]
    fn take_turn(&self, me: u64) -> (Guard<'_, T>, Met) {
        match self.mutex.try_lock() {
            Ok(turns) => {
                let met = if turns.last == me {
                    Met::Nobody
                } else {
                    Met::Trace
                };
                (self.enter_with_mutex(me, turns), met)
            }
            Err(_) => {
                let mut turns = lock(&self.mutex);
                turns.waited = turns.waited.wrapping_add(1);
                (self.enter_with_mutex(me, turns), Met::Holder)
            }
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
        let bias = self.bias.0.load(Relaxed);
        if bias >> FLAG_BITS != me {
            return None;
        }
        self.enter_with(bias)
    }

    /// Enters with the bias that this thread has, or had a moment ago.
    #[inline]
    fn enter_with(&self, bias: u64) -> Option<Guard<'_, T>> {
        let inside = self.inside.of(bias);
        // Only this thread raises its flag: it is inside already, and must wait for itself as with any mutex.
        if inside.load(Relaxed) {
            debug_assert!(false, "the lock is taken by the thread that holds it");
            return None;
        }
        inside.store(true, Relaxed);
        // Who withdraws the bias makes the processor keep this order; the compiler has to be told.
        compiler_fence(SeqCst);
        if self.bias.0.load(Relaxed) == bias {
            return Some(Guard {
                lock: self,
                flag: Some(inside),
                mutex: None,
                value: PhantomData,
            });
        }
        inside.store(false, Release);
        None
    }

    /// Enters with the mutex: withdraws the bias of another thread, and takes it over if that is worth it.
    #[cold]
    fn enter_with_mutex<'a>(&'a self, me: u64, mut turns: MutexGuard<'a, Turns>) -> Guard<'a, T> {
        turns.taken = turns.taken.wrapping_add(1);
        if self.withdraw() {
            turns.withdrawals = turns.withdrawals.saturating_add(1);
        }
        if turns.last == me {
            turns.in_a_row = turns.in_a_row.saturating_add(1);
        } else {
            // Who was the last has no flag, or has the bias still.
            turns.leave(me);
            (turns.last, turns.in_a_row) = (me, 0);
        }
        let patience = PATIENCE << turns.withdrawals.min(MOST_DOUBLINGS);
        let mut flag = None;
        if me != NOBODY && turns.in_a_row >= patience && barrier::is_there() {
            turns.in_a_row = 0;
            if let Some(number) = turns.take(me) {
                let bias = me << FLAG_BITS | number as u64;
                let mine = self.inside.of(bias);
                // It is inside, so that it waits for itself if it comes again now.
                mine.store(true, Relaxed);
                flag = Some(mine);
                self.bias.0.store(bias, Relaxed);
            }
        }
        Guard {
            lock: self,
            flag,
            mutex: Some(turns),
            value: PhantomData,
        }
    }

    /// Withdraws the bias, and waits until the thread that had it is outside; whether anybody had it. The mutex is held, so
    /// nobody gets it meanwhile.
    fn withdraw(&self) -> bool {
        let bias = self.bias.0.load(Relaxed);
        if bias == NOBODY {
            return false;
        }
        self.bias.0.store(NOBODY, Relaxed);
        barrier::everywhere();
        let inside = self.inside.of(bias);
        let mut looks = 0u32;
        while inside.load(Acquire) {
            looks = looks.saturating_add(1);
            match looks {
                0..SPINS => hint::spin_loop(),
                SPINS..YIELDS => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
        }
        true
    }

    /// How threads have met here.
    pub fn meetings(&self) -> Meetings {
        let turns = lock(&self.mutex);
        Meetings {
            locked: turns.taken,
            waited: turns.waited,
            withdrawn: u64::from(turns.withdrawals),
        }
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
        if self.flag.is_none()
            && let Some(turns) = self.mutex.take()
        {
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
        // The mutex, if there is one, goes after this.
        if let Some(flag) = self.flag {
            flag.store(false, Release);
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
    use std::{
        io::Write,
        sync::atomic::{AtomicU8, Ordering::Relaxed},
    };

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
        if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            withheld();
        }
    }

    /// The process has shut itself off from a call that it had. Nothing else tells whether the thread with the bias is inside,
    /// and two threads inside would hand memory out twice.
    #[cold]
    fn withheld() -> ! {
        let _ = writeln!(
            std::io::stderr(),
            "memmgr: the kernel refuses membarrier, which it allowed before: \
             have filters of system calls that are set up while the process runs permit it"
        );
        std::process::abort()
    }
}

#[cfg(not(all(target_os = "linux", not(all(shuttle, feature = "sim")))))]
mod barrier {
    pub fn is_there() -> bool {
        false
    }

    pub fn everywhere() {}
}
