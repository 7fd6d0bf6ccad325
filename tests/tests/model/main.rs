//! What the manager's threads share, under a model checker: `cargo xtask model`, or what that runs,
//! `RUSTFLAGS="--cfg shuttle" cargo test -p memmgr-tests --release --test model --target-dir target/model`.
//!
//! The manager and the simulated runtime below it run on threads of `shuttle`, which tries many orders of all that the
//! threads of a program and the runtime's workers do. Nobody is woken by time: somebody who is never woken is a deadlock,
//! and fails. After each run all books are verified (`show.rs`).
#![cfg(shuttle)]

#[path = "../../../cudart-sim/tests/model/explore.rs"]
mod explore;
mod fences;
mod front;
mod mapped;
mod mistakes;
mod pools;
mod shared;
mod show;
