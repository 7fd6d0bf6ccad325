//! Tests that can share a process: each has a manager of its own, and faults and counters are those of its thread.
//!
//! What needs the process's one manager, a machine of its own kind or all of the device's memory is a program of its own,
//! beside this folder.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/rig.rs"]
mod rig;

mod adoption;
mod alignment;
mod bad_input;
mod best_fit;
mod configuration;
mod devices;
mod figures;
mod hit_path;
mod hooks;
mod last_error;
mod marks;
mod modes;
mod names;
mod observer;
mod parts;
mod pinned_copies;
mod pointers;
mod rectangles;
mod refusals;
mod scopes;
mod sizes;
mod streams;
mod trim;
