//! Locks that outlive a panic of their holder, and where locks, conditions, atomics and thread locals come from.
//!
//! What threads share is made of these alone. A plain build has the standard library's; built with `--cfg shuttle` on the
//! simulated runtime, they are those of its model checker (`model.rs`).

#[cfg(not(all(shuttle, feature = "sim")))]
pub(crate) use plain::*;

#[cfg(all(shuttle, feature = "sim"))]
pub(crate) use cudart_sim::model::{
    mark,
    sync::{Condition as Condvar, Mutex, MutexGuard, OnceLock, atomic, thread, thread_local},
};

#[cfg(not(all(shuttle, feature = "sim")))]
mod plain {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic};
    pub(crate) use std::{thread, thread_local};

    /// Tells a model checker that what comes next is worth a change of threads.
    #[inline]
    pub(crate) fn mark() {}
}

use std::sync::PoisonError;

/// Locks; a holder that panicked leaves consistent data behind here, since nothing under these locks calls foreign code.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mark();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
