//! The hook that is asked when memory has run out: set, unset and called so that whoever unsets it knows that nobody is in it.

use super::MemoryManager;
use crate::{
    device::keeping_current,
    foreign,
    out_of_memory::OutOfMemory,
    process,
    sync::{Condvar, Mutex, lock},
};
use std::{
    cell::Cell,
    sync::{Arc, PoisonError},
};

type Hook = Arc<dyn Fn(&OutOfMemory) -> bool + Send + Sync>;

crate::sync::thread_local! {
    /// How many calls of hooks, of any manager, this thread is in.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

#[derive(Default)]
struct State {
    hook: Option<Hook>,
    /// Grows whenever another hook is set, or none.
    turn: u64,
    /// The calls that have not returned: the turn of their hook, and how many there are.
    running: Vec<(u64, usize)>,
}

/// The place of the hook.
#[derive(Default)]
pub(super) struct HookPlace {
    state: Mutex<State>,
    /// Signalled when a call has returned.
    returned: Condvar,
}

/// A call that has not returned.
struct Running<'a> {
    place: &'a HookPlace,
    turn: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
        // In a forked child the lock may be held by a thread that does not exist.
        if process::is_forked() {
            return;
        }
        let mut state = lock(&self.place.state);
        if let Some(calls) = (state.running.iter_mut()).find(|(turn, _)| *turn == self.turn) {
            calls.1 = calls.1.saturating_sub(1);
        }
        state.running.retain(|(_, calls)| *calls > 0);
        drop(state);
        self.place.returned.notify_all();
    }
}

impl HookPlace {
    /// Whether there is one.
    pub fn is_set(&self) -> bool {
        lock(&self.state).hook.is_some()
    }

    /// Asks the hook that is set now; `None` if there is none, or if this thread is in a hook of this manager already. A panic
    /// in it counts as "no".
    pub fn ask(&self, refusal: &OutOfMemory) -> Option<bool> {
        let _entered = foreign::enter(std::ptr::from_ref(self).addr())?;
        let (hook, running) = {
            let mut state = lock(&self.state);
            let hook = state.hook.clone()?;
            let turn = state.turn;
            match (state.running.iter_mut()).find(|(known, _)| *known == turn) {
                Some((_, calls)) => *calls = calls.saturating_add(1),
                None => state.running.push((turn, 1)),
            }
            (hook, Running { place: self, turn })
        };
        let _ = INSIDE.try_with(|depth| depth.set(depth.get().saturating_add(1)));
        let asked = foreign::report("the hook", || keeping_current(|| hook(refusal)));
        // What it holds may be dropped here: before anybody is told that the call is over.
        drop(hook);
        drop(running);
        Some(asked.unwrap_or(false))
    }

    /// Sets another hook, or none, and waits for the calls of former ones on other threads; not from inside a hook, where two
    /// threads would wait for each other.
    pub fn set(&self, hook: Option<Hook>) {
        let mut state = lock(&self.state);
        let former = std::mem::replace(&mut state.hook, hook);
        state.turn = state.turn.saturating_add(1);
        let turn = state.turn;
        if INSIDE.try_with(Cell::get).is_ok_and(|depth| depth == 0) {
            while state.running.iter().any(|(began, _)| *began < turn) {
                state = (self.returned.wait(state)).unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(state);
        // What it holds is dropped without the lock.
        drop(former);
    }
}

impl MemoryManager {
    /// Called when a request cannot be met, after everything idle has been given back: `hook` may free memory and return
    /// `true` to have the request tried again, 16 times at most. It is called without locks and may use the manager: a request
    /// that it makes itself, on its thread, of this manager, does not ask it again, but fails with its own error. A
    /// panic in it counts as `false`. It is not called for a request that could not be met in an empty pool either.
    ///
    /// When this returns, no call of a former hook is running on any thread, nor will one begin. From inside a hook it returns
    /// at once: calls that run then, its own one included, go on to their end.
    pub fn on_out_of_memory(&self, hook: impl Fn(&OutOfMemory) -> bool + Send + Sync + 'static) {
        if !process::is_forked() {
            self.inner.hook.set(Some(Arc::new(hook)));
        }
    }

    /// Asks nobody any more when a request cannot be met. As [`MemoryManager::on_out_of_memory`], it returns when no call of the
    /// former hook is running, unless it is called from inside a hook.
    pub fn clear_out_of_memory_hook(&self) {
        if !process::is_forked() {
            self.inner.hook.set(None);
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::{
        sync::{
            atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
            mpsc,
        },
        thread,
        time::Duration,
    };

    /// A manager whose limit makes every second block fail, with one block.
    fn full() -> Arc<MemoryManager> {
        let config = Config::default().device_pool_limit(Some(4 << 20));
        let mm = Arc::new(MemoryManager::new(config).unwrap());
        mm.allocate_device_at(0, 3 << 20).unwrap();
        mm
    }

    #[test]
    fn who_unsets_the_hook_waits_for_the_call_that_runs() {
        let mm = full();
        let (began, begun) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let inside = Arc::new(AtomicBool::new(false));
        let seen = inside.clone();
        mm.on_out_of_memory(move |_| {
            seen.store(true, SeqCst);
            began.send(()).unwrap();
            lock(&gate).recv().unwrap();
            seen.store(false, SeqCst);
            false
        });
        thread::scope(|scope| {
            let asks = scope.spawn(|| mm.allocate_device_at(0, 2 << 20).is_err());
            begun.recv().unwrap();
            let unsets = scope.spawn(|| {
                mm.clear_out_of_memory_hook();
                inside.load(SeqCst)
            });
            thread::sleep(Duration::from_millis(100));
            assert!(!unsets.is_finished(), "the hook is unset while it runs");
            go.send(()).unwrap();
            assert!(asks.join().unwrap());
            assert!(!unsets.join().unwrap(), "the hook ran after it was unset");
        });
    }

    /// A hook that asks to be tried again is not asked again once it was unset.
    #[test]
    fn no_call_begins_after_the_hook_was_unset() {
        let mm = full();
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, weak) = (calls.clone(), Arc::downgrade(&mm));
        mm.on_out_of_memory(move |_| {
            counted.fetch_add(1, SeqCst);
            // From inside: at once, and two threads that do so do not wait for each other.
            weak.upgrade().unwrap().clear_out_of_memory_hook();
            true
        });
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert!(mm.allocate_device_at(0, 2 << 20).is_err()));
            }
        });
        let calls = calls.load(SeqCst);
        assert!((1..=2).contains(&calls), "{calls}");
        assert!(mm.allocate_device_at(0, 2 << 20).is_err());
        assert!(lock(&mm.inner.hook.state).running.is_empty());
    }
}
