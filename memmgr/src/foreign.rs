//! Calls of code that is not the manager's (hooks, observers, deleters, host functions, wakers, who listens to the log):
//! whatever it throws stays here.

use std::{
    cell::Cell,
    mem::forget,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// In so many calls at once, each of another's code, a thread can be; what is deeper is not called.
const DEEPEST: usize = 16;

/// Whose code a thread is in: the first `depth` are counted.
#[derive(Clone, Copy)]
struct Calls {
    depth: usize,
    whose: [usize; DEEPEST],
}

crate::sync::thread_local! {
    static CALLS: Cell<Calls> = const {
        Cell::new(Calls {
            depth: 0,
            whose: [0; DEEPEST],
        })
    };
}

/// The thread is in a call that does not begin again inside itself, until this is dropped.
pub(crate) struct Entered(());

/// Begins a call of code that may use the manager, which would call the same code again; `None` if this thread is in a call of
/// the same already, or in too many. `whose` tells them apart: an address of whom the code belongs to.
pub(crate) fn enter(whose: usize) -> Option<Entered> {
    let counted = CALLS.try_with(|cell| {
        let mut calls = cell.get();
        let (inside, free) = calls.whose.split_at_mut_checked(calls.depth)?;
        let place = free.first_mut()?;
        if inside.contains(&whose) {
            return None;
        }
        *place = whose;
        calls.depth = calls.depth.saturating_add(1);
        cell.set(calls);
        Some(Entered(()))
    });
    // A thread that is ending may have no locals any more.
    counted.unwrap_or_else(|_| Some(Entered(())))
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Calls end in the reverse of the order in which they began.
        let _ = CALLS.try_with(|cell| {
            let mut calls = cell.get();
            calls.depth = calls.depth.saturating_sub(1);
            cell.set(calls);
        });
    }
}

/// Runs `f`; `None` if it panics. What was thrown may throw once more when it is dropped; that is leaked.
pub(crate) fn run<T>(f: impl FnOnce() -> T) -> Option<T> {
    let thrown = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => return Some(value),
        Err(thrown) => thrown,
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        forget(again);
    }
    None
}

/// As [`run`]; a panic is told to the log.
pub(crate) fn report<T>(what: &str, f: impl FnOnce() -> T) -> Option<T> {
    let value = run(f);
    if value.is_none() {
        log(|| tracing::error!("{what} panicked"));
    }
    value
}

/// Writes to the log where no panic of a listener may get out: in drops, and on the way to a proof.
pub(crate) fn log(f: impl FnOnce()) {
    let _ = run(f);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_does_not_begin_again_inside_itself_nor_too_deep() {
        let first = enter(1).unwrap();
        let second = enter(2).unwrap();
        assert!(enter(1).is_none() && enter(2).is_none());
        drop(second);
        let more: Vec<Entered> = (2..=DEEPEST).map(|whose| enter(whose).unwrap()).collect();
        assert!(enter(DEEPEST + 1).is_none());
        drop((first, more));
        assert!(std::thread::spawn(|| enter(1).is_some()).join().unwrap());
        drop(enter(1).unwrap());
    }
}
