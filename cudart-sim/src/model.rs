//! The simulator under the model checker `shuttle` (`--cfg shuttle` alone): its clock, its threads, and what can be broken.
//!
//! Time does not pass by itself. Whoever waits for a time to come (an idle worker, the clock of the lazy schedule) waits
//! until a test calls [`pass_time`], which ends one such wait; so the scheduler decides when, and whether at all.
//! Somebody whom nobody wakes therefore shows as a deadlock, which a timeout would hide. [`plant`] breaks the primitives
//! on purpose, so that a test can show that it would notice.

use crate::runtime;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What [`plant`] can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mistake {
    /// Nothing.
    None,
    /// A `notify_one` wakes nobody.
    LostOne,
    /// A `notify_all` wakes nobody.
    LostAll,
    /// A `notify_all` wakes one.
    OneOfAll,
}

static MISTAKE: AtomicU32 = AtomicU32::new(0);
static THREADS_LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);
static FINE: AtomicU32 = AtomicU32::new(0);

/// Breaks the primitives from now on.
pub fn plant(mistake: Mistake) {
    MISTAKE.store(mistake as u32, Relaxed);
}

fn planted(mistake: Mistake) -> bool {
    MISTAKE.load(Relaxed) == mistake as u32
}

/// How many more threads the system grants.
pub fn grant_threads(count: usize) {
    THREADS_LEFT.store(count, Relaxed);
}

/// Whether the scheduler may change threads at atomic operations too, or only at locks, waits and starts of threads.
pub fn fine(fine: bool) {
    FINE.store(fine.into(), Relaxed);
}

static MARKED: AtomicBool = AtomicBool::new(false);

/// The scheduler's next point is one of the code above the simulator. A search that takes the simulator's own steps for one
/// changes threads at these alone.
pub fn mark() {
    MARKED.store(true, Relaxed);
}

/// Whether this point is such a one.
pub fn take_mark() -> bool {
    MARKED.swap(false, Relaxed)
}

/// A marked point, for host functions.
pub fn point() {
    mark();
    sync::sleep(Duration::ZERO);
}

/// Time passes for one of those who wait for it. Whether there was one.
pub fn pass_time() -> bool {
    sync::pass_time()
}

/// The simulator's threads and whom they wait for: all of this is zero when nothing is left to do and time has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Threads that run work, or could.
    pub workers: usize,
    /// Of those, the ones that have not begun.
    pub starting: usize,
    /// Of those, the ones that wait for work.
    pub idle: usize,
    /// How many idle ones were woken and have not noticed yet.
    pub notified: usize,
    /// Streams whose head could run.
    pub ready: usize,
    /// How many of those heads may block.
    pub ready_blocking: usize,
    /// How many heads that may block are running.
    pub running_blocking: usize,
    /// Threads of the program that wait for work.
    pub host_waiters: usize,
    /// Of those, the ones that wait for room in a full queue.
    pub blocked_on_full: usize,
    /// Whether the lazy schedule's clock runs.
    pub watchdog: usize,
}

/// The counts now.
pub fn counts() -> Counts {
    let rt = runtime::lock();
    let e = &rt.engine;
    Counts {
        workers: e.workers,
        starting: e.starting,
        idle: e.idle,
        notified: e.notified,
        ready: e.ready.len(),
        ready_blocking: e.ready_blocking,
        running_blocking: e.running_blocking,
        host_waiters: e.host_waiters,
        blocked_on_full: e.blocked_on_full,
        watchdog: usize::from(e.watchdog),
    }
}

/// What stands in for the standard library, for code above the simulator that is checked together with it.
#[allow(missing_docs)]
#[doc(hidden)]
pub mod sync {
    use super::{FINE, Mistake, THREADS_LEFT, planted};
    /// A condition without time, which anybody may notify, with the lock or without.
    pub use shuttle::sync::Condvar as Condition;
    pub use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use shuttle::{thread, thread_local};
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, LockResult, PoisonError};
    use std::time::Duration;

    /// A point at which the scheduler may let another thread go on.
    fn point() {
        // Shuttle's `sleep` is just that.
        shuttle::thread::sleep(Duration::ZERO);
    }

    pub(crate) fn sleep(_: Duration) {
        point();
    }

    pub(crate) fn spawn(name: &str, body: fn()) -> bool {
        if THREADS_LEFT.load(Relaxed) == 0 {
            return false;
        }
        THREADS_LEFT.fetch_sub(1, Relaxed);
        let thread = shuttle::thread::Builder::new().name(name.into());
        thread.spawn(body).is_ok()
    }

    /// The clock's reading, in steps: each [`pass_time`] is longer than anybody's patience.
    static TIME: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    const STEP: Duration = Duration::from_secs(3600);

    #[derive(Clone, Copy)]
    pub(crate) struct Instant(u64);

    impl Instant {
        pub(crate) fn now() -> Instant {
            Instant(TIME.load(Relaxed))
        }

        pub(crate) fn elapsed(&self) -> Duration {
            let steps = TIME.load(Relaxed).saturating_sub(self.0);
            STEP.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
        }
    }

    /// One thread that waits. Nothing here is a point of the scheduler's but the wait itself.
    struct Waiter {
        woken: shuttle::sync::Condvar,
        /// Which condition it waits for, and whether its time may pass.
        place: usize,
        timed: bool,
        timed_out: std::sync::atomic::AtomicBool,
    }

    /// All that wait, in the order of their coming. All threads of the checker are one thread of the system.
    static WAITERS: std::sync::Mutex<Vec<Arc<Waiter>>> = std::sync::Mutex::new(Vec::new());

    fn waiters() -> std::sync::MutexGuard<'static, Vec<Arc<Waiter>>> {
        WAITERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of those that are meant, whichever the scheduler chooses.
    fn take(meant: impl Fn(&Waiter) -> bool) -> Option<Arc<Waiter>> {
        let mut waiters = waiters();
        let found: Vec<usize> = (0..waiters.len())
            .filter(|at| waiters.get(*at).is_some_and(|w| meant(w)))
            .collect();
        let chosen = match found.len() {
            0 => return None,
            1 => 0,
            n => {
                use shuttle::rand::RngCore as _;
                (shuttle::rand::thread_rng().next_u64() % n as u64) as usize
            }
        };
        found.get(chosen).map(|at| waiters.remove(*at))
    }

    pub(crate) fn pass_time() -> bool {
        // Under the locks of all that wait, so that nobody is met half-way to its wait.
        let _held = (
            crate::runtime::lock(),
            PAUSED.lock().unwrap_or_else(PoisonError::into_inner),
        );
        let Some(waiter) = take(|w| w.timed) else {
            return false;
        };
        TIME.fetch_add(1, Relaxed);
        waiter.timed_out.store(true, Relaxed);
        waiter.woken.notify_one();
        true
    }

    /// Waits until time has passed.
    pub(crate) fn pause(_: Duration) {
        static NEVER: Condvar = Condvar::new();
        let guard = PAUSED.lock().unwrap_or_else(PoisonError::into_inner);
        drop(NEVER.wait_timeout(guard, STEP));
    }

    static PAUSED: Mutex<()> = Mutex::new(());

    pub(crate) struct TimedOut(bool);

    impl TimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            self.0
        }
    }

    /// A condition whose timed waits end when time passes. Whoever notifies must hold the lock.
    pub(crate) struct Condvar(u8);

    impl Condvar {
        pub(crate) const fn new() -> Condvar {
            Condvar(0)
        }

        fn place(&self) -> usize {
            &raw const self.0 as usize
        }

        fn enter<'a, T>(&self, guard: MutexGuard<'a, T>, timed: bool) -> (MutexGuard<'a, T>, bool) {
            let waiter = Arc::new(Waiter {
                woken: shuttle::sync::Condvar::new(),
                place: self.place(),
                timed,
                timed_out: false.into(),
            });
            waiters().push(waiter.clone());
            let guard = waiter
                .woken
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
            (guard, waiter.timed_out.load(Relaxed))
        }

        pub(crate) fn wait<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
        ) -> LockResult<MutexGuard<'a, T>> {
            Ok(self.enter(guard, false).0)
        }

        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, TimedOut)> {
            let (guard, timed_out) = self.enter(guard, true);
            Ok((guard, TimedOut(timed_out)))
        }

        pub(crate) fn notify_one(&self) {
            if planted(Mistake::LostOne) {
                return;
            }
            if let Some(waiter) = take(|w| w.place == self.place()) {
                waiter.woken.notify_one();
            }
        }

        pub(crate) fn notify_all(&self) {
            if planted(Mistake::LostAll) {
                return;
            }
            while let Some(waiter) = take(|w| w.place == self.place()) {
                waiter.woken.notify_one();
                if planted(Mistake::OneOfAll) {
                    return;
                }
            }
        }
    }

    /// A value that is made once. The standard library's would block the one thread of the system on which all of the
    /// checker's run.
    #[derive(Debug)]
    pub struct OnceLock<T> {
        making: Mutex<()>,
        value: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub const fn new() -> Self {
            Self {
                making: Mutex::new(()),
                value: std::sync::OnceLock::new(),
            }
        }

        pub fn get(&self) -> Option<&T> {
            self.value.get()
        }

        pub fn take(&mut self) -> Option<T> {
            self.value.take()
        }

        pub fn set(&self, value: T) -> Result<(), T> {
            let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            self.value.set(value)
        }

        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            if let Some(made) = self.get() {
                return made;
            }
            let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(made) = self.get() {
                return made;
            }
            let made = make();
            self.value.get_or_init(|| made)
        }
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self::new()
        }
    }

    /// Atomics whose operations are points of the scheduler's if a test wants that. No weak memory is modelled.
    pub mod atomic {
        use super::{FINE, Relaxed, point};
        pub use std::sync::atomic::Ordering;

        fn maybe() {
            if FINE.load(Relaxed) != 0 {
                point();
            }
        }

        macro_rules! atomics {
            ($($name:ident: $type:ty),*) => {$(
                #[derive(Debug, Default)]
                pub struct $name(std::sync::atomic::$name);

                impl $name {
                    pub const fn new(value: $type) -> Self {
                        Self(std::sync::atomic::$name::new(value))
                    }

                    pub fn load(&self, order: Ordering) -> $type {
                        maybe();
                        self.0.load(order)
                    }

                    pub fn store(&self, value: $type, order: Ordering) {
                        maybe();
                        self.0.store(value, order);
                    }

                    pub fn swap(&self, value: $type, order: Ordering) -> $type {
                        maybe();
                        self.0.swap(value, order)
                    }

                    pub fn compare_exchange(
                        &self,
                        current: $type,
                        new: $type,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$type, $type> {
                        maybe();
                        self.0.compare_exchange(current, new, success, failure)
                    }

                    pub fn fetch_or(&self, value: $type, order: Ordering) -> $type {
                        maybe();
                        self.0.fetch_or(value, order)
                    }
                }
            )*};
        }

        atomics!(
            AtomicBool: bool, AtomicU8: u8, AtomicI32: i32, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize
        );

        macro_rules! counters {
            ($($name:ident: $type:ty),*) => {$(
                impl $name {
                    pub fn fetch_add(&self, value: $type, order: Ordering) -> $type {
                        maybe();
                        self.0.fetch_add(value, order)
                    }

                    pub fn fetch_sub(&self, value: $type, order: Ordering) -> $type {
                        maybe();
                        self.0.fetch_sub(value, order)
                    }

                    pub fn fetch_update(
                        &self,
                        set: Ordering,
                        fetch: Ordering,
                        f: impl FnMut($type) -> Option<$type>,
                    ) -> Result<$type, $type> {
                        maybe();
                        self.0.fetch_update(set, fetch, f)
                    }
                }
            )*};
        }

        counters!(AtomicU64: u64, AtomicUsize: usize);
    }
}
