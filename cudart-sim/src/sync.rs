//! Locks, conditions, threads, thread locals and clocks: those of the standard library, or those of a model checker.
//!
//! The simulator takes what its threads share from here alone. Built with `--cfg shuttle` it runs on the threads of
//! `shuttle`, whose scheduler decides at each of these operations who goes on, and on a clock that stands still until a
//! test moves it (`model.rs`). The plain build is what it would be without this file.

#[cfg(not(shuttle))]
pub(crate) use plain::*;

#[cfg(shuttle)]
pub(crate) use crate::model::sync::*;

#[cfg(not(shuttle))]
mod plain {
    pub(crate) use std::sync::atomic;
    pub(crate) use std::sync::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    };
    pub(crate) use std::thread::sleep;
    /// Sleeps until time has passed, however long nothing else happens.
    pub(crate) use std::thread::sleep as pause;
    pub(crate) use std::thread_local;
    pub(crate) use std::time::Instant;

    /// Starts a thread that nobody waits for. Whether there could be one.
    pub(crate) fn spawn(name: &str, body: fn()) -> bool {
        std::thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .is_ok()
    }
}
