//! Who gives memory back that has been idle for a while: a thread that looks now and then ([`Config::release_threshold`]).
//!
//! The thread is started by the first request that is not served at once, and looks only while a pool holds more than it
//! should; otherwise it sleeps until the next such request. It keeps no manager alive.
//!
//! [`Config::release_threshold`]: crate::Config::release_threshold

use super::inner::Inner;
use crate::{
    Config, context, cuda,
    error::{Place, Result},
    foreign,
    pool::{Busy, Seen},
    process,
    sync::{Condvar, Mutex, lock, thread},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

/// How often a segment is looked at in the time for which it must have been idle.
const LOOKS: u32 = 4;
/// No more often than this, and no less.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The manager's side.
pub(super) struct Releaser {
    /// What each pool keeps, in bytes, and how long between two looks; nothing is given back without it.
    setting: Option<(usize, Duration)>,
    inner: Weak<Inner>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when the thread has something to do.
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// The thread has been started, or cannot be.
    started: bool,
    /// A pool may have grown.
    asked: bool,
    /// The manager is gone.
    over: bool,
}

impl Releaser {
    pub fn new(config: &Config, inner: Weak<Inner>) -> Self {
        // The model checker counts threads.
        let off = cfg!(all(shuttle, feature = "sim"));
        let pause = (config.release_after / LOOKS).clamp(SHORTEST, LONGEST);
        Self {
            setting: (config.release_threshold)
                .filter(|_| !off)
                .map(|keep| (keep, pause)),
            inner,
            shared: Arc::default(),
        }
    }

    /// A request was not served at once: a pool may have grown.
    pub fn after_growth(&self) {
        if let Some(setting) = self.setting {
            self.look(setting);
        }
    }

    #[cold]
    fn look(&self, (keep, pause): (usize, Duration)) {
        let starts = {
            let mut state = lock(&self.shared.state);
            state.asked = true;
            !std::mem::replace(&mut state.started, true)
        };
        if !starts {
            self.shared.news.notify_all();
            return;
        }
        // So that no context comes into being on a device where nothing was asked.
        let started = cuda::get_device().map_err(|error| error.to_string());
        let started = started.and_then(|device| {
            let (shared, inner) = (self.shared.clone(), self.inner.clone());
            (thread::Builder::new().name("memmgr-releaser".into()))
                .spawn(move || shared.run(&inner, keep, pause, device))
                .map_err(|error| error.to_string())
        });
        if let Err(error) = started {
            lock(&self.shared.state).started = false;
            tracing::warn!(%error, "idle memory cannot be given back in the background now");
        }
    }
}

impl Drop for Releaser {
    fn drop(&mut self) {
        // The child's copy of the lock may be held by a thread that it does not have.
        if self.setting.is_none() || process::is_forked() {
            return;
        }
        lock(&self.shared.state).over = true;
        self.shared.news.notify_all();
    }
}

impl Shared {
    /// The thread.
    fn run(&self, inner: &Weak<Inner>, keep: usize, pause: Duration, device: i32) {
        let mut seen = BTreeMap::new();
        let mut goes_on = false;
        while self.wait(goes_on.then_some(pause)) {
            let Some(inner) = inner.upgrade() else { return };
            // The process may exit at any moment, which takes the memory away from under a thread that nobody waits for.
            let Some(busy) = Busy::enter() else { return };
            let step = process::gate()
                .and_then(|()| cuda::set_device(device))
                .and_then(|()| context::check_all())
                .and_then(|()| inner.decay(keep, &mut seen));
            drop(busy);
            // With the last handle of the manager goes its observer, which is anybody's code.
            foreign::report("the drop of an observer", || drop(inner));
            goes_on = step.unwrap_or_else(|error| {
                foreign::log(|| {
                    tracing::warn!(%error, "idle memory could not be given back in the background");
                });
                false
            });
        }
    }

    /// Sleeps until there is something to do, for a while at most if that is known already. False: the manager is gone.
    fn wait(&self, pause: Option<Duration>) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.over {
                return false;
            }
            let Some(pause) = pause else {
                if std::mem::take(&mut state.asked) {
                    return true;
                }
                state = (self.news.wait(state)).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // News are no reason to look early.
            let end = std::time::Instant::now() + pause;
            while !state.over {
                let left = end.saturating_duration_since(std::time::Instant::now());
                if left.is_zero() {
                    return true;
                }
                state = (self.news.wait_timeout(state, left))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }
}

impl Inner {
    /// One look at all pools; whether another is worth it.
    fn decay(&self, keep: usize, seen: &mut BTreeMap<Option<i32>, Seen>) -> Result<bool> {
        let pools = (self.states().map(|state| &state.pool)).chain([&*self.pinned]);
        let mut goes_on = false;
        for pool in pools {
            let key = match pool.place() {
                Place::Device(ordinal) => Some(ordinal),
                Place::Pinned => None,
            };
            goes_on |= pool.decay_to(keep, LOOKS, seen.entry(key).or_default())?;
        }
        Ok(goes_on)
    }
}
