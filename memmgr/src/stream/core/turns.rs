//! Calls that submit, and captures that begin or end: they exclude each other.

use super::StreamCore;
use crate::{
    capture,
    error::Result,
    process,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
    },
};
use std::sync::PoisonError;

/// Who submits to a stream now. Whether it is being captured is asked first, and something submitted then: nobody may begin or
/// end a capture between the two, or the one is in a graph that does not keep its memory, and the other runs in no order.
pub(super) struct Turns {
    /// How many calls submit now, and whether a capture begins or ends ([`TURNS`]).
    submitting: AtomicU64,
    turning: Mutex<()>,
    /// Signalled when nobody submits any more while a capture ends, and when a capture has begun or ended.
    quiet: Condvar,
}

/// In [`Turns::submitting`]: a capture begins or ends.
const TURNS: u64 = 1 << 63;

/// As long as this lives, no capture of the manager's begins or ends on the stream.
pub(crate) struct Steady<'a>(&'a Turns);

impl Drop for Steady<'_> {
    fn drop(&mut self) {
        // Only the end of a capture waits, and it says so.
        if self.0.submitting.fetch_sub(1, Ordering::AcqRel) == TURNS + 1 {
            self.0.wake();
        }
    }
}

/// A capture begins or ends.
struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.submitting.fetch_sub(TURNS, Ordering::AcqRel);
        self.0.wake();
    }
}

impl Turns {
    /// Nobody submits.
    pub fn new() -> Self {
        Self {
            submitting: AtomicU64::new(0),
            turning: Mutex::new(()),
            quiet: Condvar::new(),
        }
    }

    /// Wakes who ends a capture, and is between its look and its sleep or asleep.
    #[cold]
    fn wake(&self) {
        drop(lock(&self.turning));
        self.quiet.notify_all();
    }
}

impl StreamCore {
    /// To be held from the question whether the stream is being captured to the end of what depends on the answer. Refused
    /// while another thread begins or ends a capture.
    pub fn steady(&self) -> Result<Steady<'_>> {
        process::gate()?;
        self.turns
            .submitting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |calls| {
                (calls & TURNS == 0).then_some(calls.wrapping_add(1))
            })
            .map_err(|_| capture::turning())?;
        Ok(Steady(&self.turns))
    }

    /// Begins a capture with `f`: refused while others submit, since such a call may take as long as the stream's work.
    pub fn begin_capture<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        process::gate()?;
        self.turns
            .submitting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |calls| {
                (calls == 0).then_some(TURNS)
            })
            .map_err(|_| capture::turning())?;
        let _turn = Turn(&self.turns);
        f()
    }

    /// Ends a capture with `f`. Waits for others who submit: what is captured waits for no work.
    pub fn end_capture<T>(&self, f: impl FnOnce() -> T) -> T {
        // Who submitted when the process was forked does not exist in the child.
        if process::is_forked() {
            return f();
        }
        let turn = || {
            let free = |calls: u64| (calls & TURNS == 0).then_some(calls | TURNS);
            self.turns
                .submitting
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, free)
        };
        let mut turning = lock(&self.turns.turning);
        let wait = |turning| {
            self.turns
                .quiet
                .wait(turning)
                .unwrap_or_else(PoisonError::into_inner)
        };
        while turn().is_err() {
            turning = wait(turning);
        }
        while self.turns.submitting.load(Ordering::Acquire) != TURNS {
            turning = wait(turning);
        }
        drop(turning);
        let _turn = Turn(&self.turns);
        f()
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::stream::{Stream, handle_of};
    use std::{
        sync::{
            atomic::{AtomicI32, AtomicU32, Ordering::SeqCst},
            mpsc,
        },
        thread,
        time::Duration,
    };

    /// No capture begins or ends between a question and what depends on its answer, and who ends one is woken.
    #[test]
    fn who_submits_and_who_begins_or_ends_a_capture_exclude_each_other() {
        let (sender, receiver) = mpsc::channel();
        let worker = thread::spawn(move || {
            let stream = Stream::new().unwrap();
            let core = handle_of(&stream).core();
            // Who submits, and -1 for a turn.
            let inside = AtomicI32::new(0);
            let (submitted, begun) = (AtomicU32::new(0), AtomicU32::new(0));
            let turn = || {
                assert_eq!(inside.swap(-1, SeqCst), 0, "somebody submits in a turn");
                thread::yield_now();
                assert_eq!(inside.swap(0, SeqCst), -1, "a turn within a turn");
            };
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..20_000 {
                            let Ok(steady) = core.steady() else {
                                thread::yield_now();
                                continue;
                            };
                            assert!(inside.fetch_add(1, SeqCst) >= 0, "a turn beside a call");
                            submitted.fetch_add(1, SeqCst);
                            inside.fetch_sub(1, SeqCst);
                            drop(steady);
                        }
                    });
                    scope.spawn(|| {
                        for _ in 0..5_000 {
                            core.end_capture(turn);
                            let turned = core.begin_capture(|| {
                                turn();
                                Ok(())
                            });
                            if turned.is_ok() {
                                begun.fetch_add(1, SeqCst);
                            }
                        }
                    });
                }
            });
            assert!(submitted.into_inner() > 0 && begun.into_inner() > 0);
            // Who ends a capture sleeps as long as somebody submits; nobody comes in meanwhile.
            let steady = core.steady().unwrap();
            thread::scope(|scope| {
                let ends = scope.spawn(|| core.end_capture(turn));
                thread::sleep(Duration::from_millis(100));
                assert!(!ends.is_finished() && core.steady().is_err());
                drop(steady);
            });
            // Nobody is left inside.
            assert!(core.begin_capture(|| Ok(())).is_ok());
            sender.send(()).unwrap();
        });
        let ended = receiver.recv_timeout(Duration::from_secs(60));
        if worker.is_finished() || ended.is_ok() {
            worker.join().unwrap();
        }
        assert!(ended.is_ok(), "somebody waits for ever");
    }
}
