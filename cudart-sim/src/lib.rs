//! A simulated CUDA runtime: the same C symbols as `libcudart`, no GPU.
//!
//! Devices are host memory, streams are queues that really run beside the host, and the answers are those that a real
//! runtime gave (`docs/simulator.md` says which of them were measured). A Rust program that links this crate, or a C
//! program that links its static library, calls `cudaMalloc` and finds these functions.
//!
//! The machine is described by [`Config`]: from the environment (`CUDART_SIM_DEVICES`, `CUDART_SIM_MEMORY`,
//! `CUDART_SIM_SCHEDULE` …), or by [`configure`] before the first call.
//!
//! ```
//! use cudart_sim::sys;
//! use std::ptr::null_mut;
//!
//! let mut p = null_mut();
//! // SAFETY: `p` is a place for a pointer, and the memory is used only between its allocation and its free.
//! unsafe {
//!     assert_eq!(sys::cudaMalloc(&mut p, 1 << 20), sys::cudaError::cudaSuccess);
//!     sys::cudaMemset(p, 7, 1 << 20);
//!     sys::cudaDeviceSynchronize();
//!     assert_eq!(cudart_sim::read_device(p, 3), [7, 7, 7]);
//!     sys::cudaFree(p);
//! }
//! ```
//!
//! A test takes a machine of its own, lazy and checked:
//!
//! ```
//! # fn main() {
//! let _machine = cudart_sim::testing::Machine::new();
//! // … CUDA calls. At the end the test fails if two accesses to the same memory had no order.
//! # }
//! ```
//!
//! # Inside
//!
//! One lock guards everything (`runtime.rs`); work runs outside it (`worker.rs`). `engine.rs` decides what may run,
//! `contents.rs` and `mirror.rs` hold the bytes, `device.rs`, `pool.rs`, `memory.rs` and `vmm.rs` say who owns which of them,
//! `capture.rs` and `graph.rs` record work instead of running it, and `api/` holds the C functions by subject. `check/` is
//! the ordering checker, which looks at all that is submitted.
#![deny(missing_docs)]

mod api;
mod calls;
mod capture;
mod check;
mod config;
mod contents;
mod control;
mod counters;
mod device;
mod engine;
mod entry;
mod error;
mod event;
mod fault;
mod graph;
mod handles;
mod heap;
mod kernel;
mod limit;
mod memory;
mod mirror;
#[cfg(shuttle)]
pub mod model;
mod pool;
mod runtime;
mod stream;
mod sync;
pub mod testing;
mod thread;
mod timing;
mod trace;
mod vmm;
mod work;
mod worker;

pub use check::{
    By, CalledFrom, Check, CheckerSize, Finding, FindingKind, Moment, Operation, called_here,
    check, checker_size, expect_clean, host_read, host_write, is_checking, moment, on_allocate,
    on_free, on_segment, on_share, ordered, report, report_within, tag,
};
pub use config::{Config, DeviceConfig, Schedule, TimeModel};
pub use control::{
    AlreadyInUse, MemoryInfo, break_context, configure, memory_info, reset, set_schedule, unload,
};
pub use counters::{calls, thread_calls, thread_calls_of};
pub use fault::{Fault, fail};
pub use kernel::{KernelView, Range, launch, launch_for, launch_host, read_device};
pub use limit::{Limited, limit};

/// The types and signatures of the CUDA runtime that is simulated.
pub mod sys {
    #![allow(
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        missing_docs,
        clippy::all,
        clippy::undocumented_unsafe_blocks
    )]
    include!("bindings.rs");
}

/// Tells what this is: simulated, and which runtime it answers like. Devices are named "Simulated CUDA device".
pub const VERSION_NOTE: &str = concat!(
    "cudart-sim ",
    env!("CARGO_PKG_VERSION"),
    ", simulating the CUDA runtime 13.0"
);

/// Marks every program that contains the simulator, so that it cannot be taken for one that drives a GPU.
#[unsafe(no_mangle)]
pub static CUDART_SIM_MARKER: u8 = 1;
