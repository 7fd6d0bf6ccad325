//! What the integration tests share that needs no `memmgr`: which backend they run on, and tests that state their needs.
//!
//! The tests in `tests/` run unchanged on the simulated runtime (the default) and on a GPU
//! (`--no-default-features`). A test that can run on one of them only says so with [`sim_only!`]; a
//! skipped test prints why.

use std::sync::{
    Arc, Condvar, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

/// Whether the tests run on the simulated runtime.
pub const SIMULATED: bool = cfg!(feature = "sim");

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Prints that a test is skipped, and why; how many have been so far in this process.
pub fn skip(test: &str, why: &str) -> usize {
    eprintln!("SKIPPED {test}: {why}");
    SKIPPED.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns from the test on a GPU: it injects faults, or inspects the simulated runtime.
#[macro_export]
macro_rules! sim_only {
    ($why:literal) => {
        if !$crate::SIMULATED {
            $crate::skip(std::any::type_name_of_val(&|| {}), $why);
            return;
        }
    };
}

/// A flag that a host function waits for: `stall` a stream with it, then `release` it. It opens by itself after ten
/// seconds, so that a failing test cannot hang the suite.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everybody through.
    pub fn open(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Waits until the gate is open, for ten seconds at most.
    pub fn pass(&self) {
        let open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self
            .0
            .1
            .wait_timeout_while(open, Duration::from_secs(10), |open| !*open);
    }

    /// Opens the gate on another thread after a while.
    pub fn open_after(&self, delay: Duration) -> std::thread::JoinHandle<()> {
        let gate = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            gate.open();
        })
    }
}

/// splitmix64: the random numbers of all workloads.
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n.max(1)
    }

    /// A number below `n`, of an index or a size.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }
}
