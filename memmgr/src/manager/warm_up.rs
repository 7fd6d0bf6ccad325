//! Who keeps some of the pinned pool idle: a thread that grows it ahead of need ([`Config::pinned_warm_up`]).
//!
//! The thread is started by the first allocation that leaves too little idle, sleeps on a condition until the next one,
//! and holds the pool only while it grows it, so that it keeps no manager alive and nobody waits for it when one goes: a
//! segment that is on its way then is left to the next call of any manager, with the rest of the pool.
//!
//! [`Config::pinned_warm_up`]: crate::Config::pinned_warm_up

use crate::{
    cuda, foreign,
    pool::{
        Pool,
        segment::{Warm, Warmed},
    },
    process,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
        thread::{self, ThreadId},
    },
};
use std::sync::{Arc, PoisonError, Weak};

/// The manager's side.
pub(super) struct Warmer {
    /// How much is kept idle, in bytes; 0: nothing, and no thread.
    idle: usize,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when the thread has something to do.
    news: Condvar,
    /// How often something happened that makes a refusal worth another try: memory was freed, the limit was set.
    changes: AtomicU64,
    /// What [`Shared::changes`] was before CUDA or the limit refused: nobody asks as long as it is that.
    refused_at: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The thread has been started, or cannot be.
    started: bool,
    thread: Option<ThreadId>,
    /// There may be too little idle.
    asked: bool,
    /// How often the work has been called off.
    held: u64,
    /// Who gives memory back now.
    holders: usize,
    /// The manager is gone.
    over: bool,
    /// How often there was a refusal; the first is logged.
    refusals: u64,
}

impl Warmer {
    pub fn new(idle: Option<usize>) -> Self {
        // The model checker counts threads.
        let off = cfg!(all(shuttle, feature = "sim"));
        Self {
            idle: idle.filter(|_| !off).unwrap_or(0),
            shared: Arc::new(Shared {
                state: Mutex::default(),
                news: Condvar::new(),
                changes: AtomicU64::new(0),
                refused_at: AtomicU64::new(u64::MAX),
            }),
        }
    }

    /// Sees to it that the pool grows, if too little is idle.
    #[inline]
    pub fn after_allocation(&self, pool: &Arc<Pool>) {
        if self.idle > 0 && !self.shared.is_refused() {
            self.look(pool);
        }
    }

    /// What was refused is worth another try at the next allocation.
    #[inline]
    pub fn after_free(&self) {
        if self.idle > 0 {
            self.shared.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// What was refused is worth another try, in a pool that is in use.
    pub fn after_limit(&self, pool: &Arc<Pool>) {
        self.after_free();
        if self.idle > 0 && pool.is_initialized() {
            self.look(pool);
        }
    }

    fn look(&self, pool: &Arc<Pool>) {
        if pool.idle() >= self.idle {
            return;
        }
        let starts = {
            let mut state = lock(&self.shared.state);
            if std::mem::replace(&mut state.asked, true) && state.started {
                return;
            }
            !std::mem::replace(&mut state.started, true)
        };
        if starts {
            self.start(pool);
        } else {
            self.shared.news.notify_all();
        }
    }

    #[cold]
    fn start(&self, pool: &Arc<Pool>) {
        let seen = self.shared.changes.load(Ordering::Acquire);
        let fail = |error: &dyn std::fmt::Display| {
            lock(&self.shared.state).started = false;
            self.shared.refuse(error, seen);
        };
        // So that no context comes into being on a device where nothing was asked.
        let device = match cuda::get_device() {
            Ok(device) => device,
            Err(error) => return fail(&error),
        };
        let (shared, pool, idle) = (self.shared.clone(), Arc::downgrade(pool), self.idle);
        let thread = thread::Builder::new().name("memmgr-warmer".into());
        if let Err(error) = thread.spawn(move || shared.run(&pool, idle, device)) {
            fail(&error);
        }
    }

    /// As long as the answer lives the pool is not grown ahead of need; afterwards not before the next allocation. A
    /// segment that is on its way is waited for.
    pub fn hold(&self, pool: &Pool) -> Hold<'_> {
        if self.idle > 0 {
            let thread = {
                let mut state = lock(&self.shared.state);
                state.asked = false;
                state.held = state.held.wrapping_add(1);
                state.holders = state.holders.saturating_add(1);
                state.thread
            };
            if let Some(thread) = thread {
                pool.wait_for_growth_by(thread);
            }
        }
        Hold(self)
    }
}

impl Drop for Warmer {
    fn drop(&mut self) {
        // The child's copy of the lock may be held by a thread that it does not have.
        if self.idle == 0 || process::is_forked() {
            return;
        }
        lock(&self.shared.state).over = true;
        self.shared.news.notify_all();
    }
}

/// Memory is given back.
pub(super) struct Hold<'a>(&'a Warmer);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.0.idle == 0 || process::is_forked() {
            return;
        }
        let shared = &self.0.shared;
        let asked = {
            let mut state = lock(&shared.state);
            state.holders = state.holders.saturating_sub(1);
            state.asked
        };
        if asked {
            shared.news.notify_all();
        }
    }
}

impl Shared {
    /// The thread.
    fn run(&self, pool: &Weak<Pool>, idle: usize, device: i32) {
        lock(&self.state).thread = Some(thread::current().id());
        while let Some(held) = self.wait_until_asked() {
            let Some(pool) = pool.upgrade() else { return };
            let goes_on = || {
                let state = lock(&self.state);
                !state.over && state.holders == 0 && state.held == held
            };
            let seen = self.changes.load(Ordering::Acquire);
            let step = process::gate()
                .and_then(|()| cuda::set_device(device))
                .and_then(|()| {
                    pool.warm(&Warm {
                        idle,
                        ahead: Some(&goes_on),
                    })
                });
            // With the last handle of the pool goes its observer, which is anybody's code.
            foreign::report("the drop of an observer", || drop(pool));
            match step {
                Ok(Warmed::Grown(_)) => {
                    let mut state = lock(&self.state);
                    state.asked |= state.held == held;
                }
                Ok(Warmed::Enough | Warmed::Stopped) => {}
                Err(error) => self.refuse(&error, seen),
            }
        }
    }

    fn is_refused(&self) -> bool {
        self.refused_at.load(Ordering::Acquire) == self.changes.load(Ordering::Acquire)
    }

    /// Sleeps until there is something to do; how often the work had been called off by then. `None`: the manager is gone.
    fn wait_until_asked(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        loop {
            if state.over {
                return None;
            }
            if state.asked && state.holders == 0 {
                state.asked = false;
                return Some(state.held);
            }
            state = self
                .news
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody asks until something changes; the log hears of it once.
    fn refuse(&self, error: &dyn std::fmt::Display, seen: u64) {
        self.refused_at.store(seen, Ordering::Release);
        let first = {
            let mut state = lock(&self.state);
            state.refusals = state.refusals.saturating_add(1);
            state.refusals == 1
        };
        if first && !process::is_over() {
            foreign::log(|| {
                tracing::warn!(%error, "the pinned pool could not be grown ahead of need; it is tried again when pinned memory has been freed or the limit is set");
            });
        }
    }
}

#[cfg(all(test, feature = "sim", not(shuttle)))]
mod tests {
    use crate::{Config, MemoryManager, sync::lock};
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread::sleep,
        time::Duration,
    };
    use tracing::{Event, Metadata, Subscriber, span};

    static REFUSALS: AtomicUsize = AtomicUsize::new(0);

    /// Counts what this file writes to the log.
    struct Counts;

    impl Subscriber for Counts {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().ends_with("warm_up")
        }
        fn event(&self, _: &Event<'_>) {
            REFUSALS.fetch_add(1, Ordering::SeqCst);
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_refusal_is_logged_once_however_often_it_is_tried_again() {
        tracing::subscriber::set_global_default(Counts).unwrap();
        let config = Config::default()
            .pinned_growth(1 << 20)
            .pinned_pool_limit(Some(2 << 20))
            .pinned_warm_up(Some(2 << 20));
        let manager = MemoryManager::new(config).unwrap();
        let kept = manager.pinned::<u8>(4096).unwrap();
        for _ in 0..500 {
            let before = lock(&manager.inner.warmer.shared.state).refusals;
            drop(manager.pinned::<u8>(4096).unwrap());
            drop(manager.pinned::<u8>(4096).unwrap());
            sleep(Duration::from_millis(2));
            if before > 3 && REFUSALS.load(Ordering::SeqCst) > 0 {
                break;
            }
        }
        assert!(lock(&manager.inner.warmer.shared.state).refusals > 3);
        assert_eq!(REFUSALS.load(Ordering::SeqCst), 1);
        drop(kept);
    }
}
