//! The simulator's own threads under a model checker: `cargo xtask model`, or what that runs,
//! `RUSTFLAGS="--cfg shuttle" cargo test -p cudart-sim --release --test model --target-dir target/model`.
//!
//! The C functions are called from threads of `shuttle`, which tries many orders of all that the threads of a program, the
//! simulator's workers and the passing of time do. Nobody is woken by time unless a test says so: somebody who is never
//! woken is a deadlock, and fails.
#![cfg(shuttle)]

mod explore;
mod mistakes;
mod programs;
mod show;
