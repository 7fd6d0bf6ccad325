//! How often each function was called: by the whole process, and by the calling thread.

use crate::calls::{COUNT, Call};
use crate::thread;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static COUNTS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

pub(crate) fn count(call: Call) {
    if let Some(n) = COUNTS.get(call as usize) {
        n.fetch_add(1, Relaxed);
    }
    thread::count(call);
}

fn entry(name: &str) -> Call {
    match Call::find(name) {
        Some(call) => call,
        None => panic!("cudart-sim: there is no function {name}"),
    }
}

/// How often the process has called the C function of this name.
///
/// # Panics
/// If no function of that name is exported.
pub fn calls(name: &str) -> u64 {
    COUNTS
        .get(entry(name) as usize)
        .map_or(0, |n| n.load(Relaxed))
}

/// How many CUDA calls the calling thread has made.
pub fn thread_calls() -> u64 {
    thread::with(|t| t.total_calls.get())
}

/// How often the calling thread has called the C function of this name.
///
/// # Panics
/// If no function of that name is exported.
pub fn thread_calls_of(name: &str) -> u64 {
    let call = entry(name);
    thread::with(|t| t.calls.get(call as usize).map_or(0, |n| n.get()))
}
