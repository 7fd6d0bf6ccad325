//! For tests: a machine of a test's own, on which work runs late and its order is checked.

use crate::check::{self, Check};
use crate::config::{Config, DeviceConfig, Schedule};
use crate::control::{configure, reset};
use std::sync::{Mutex, MutexGuard};

static TURN: Mutex<()> = Mutex::new(());

/// The simulated machine, for one test.
///
/// As long as this lives, nobody else gets one: tests of one process take turns. The machine is fresh, its schedule is
/// lazy, and the ordering checker is on. When this is dropped, all work is waited for, the machine is forgotten, and the
/// test fails if the checker has found anything. (A test that means to make a mistake takes its findings before that:
/// [`report`](crate::report). While a test fails for another reason, findings are printed.) Drop it last: declare it
/// first. No other thread may be inside a CUDA call then, and a second one on the same thread never comes.
///
/// `CUDART_SIM_SCHEDULE`, `CUDART_SIM_CHECK` and the other variables change what a test does not ask for by name.
///
/// ```
/// use cudart_sim::{sys, testing::Machine};
/// use std::ptr::null_mut;
///
/// # fn main() {
/// let machine = Machine::new().devices(1, 1 << 30);
/// let (mut a, mut b, mut p) = (null_mut(), null_mut(), null_mut());
/// // SAFETY: the places are valid, and the memory is used between its allocation and its free.
/// unsafe {
///     sys::cudaStreamCreateWithFlags(&mut a, sys::cudaStreamNonBlocking);
///     sys::cudaStreamCreateWithFlags(&mut b, sys::cudaStreamNonBlocking);
///     sys::cudaMalloc(&mut p, 4096);
///     sys::cudaMemsetAsync(p, 1, 4096, a);
///     // Nothing makes `b` wait for `a`.
///     sys::cudaMemsetAsync(p, 2, 4096, b);
/// }
/// let failed = std::panic::catch_unwind(move || drop(machine));
/// assert!(failed.is_err());
/// # }
/// ```
#[derive(Debug)]
pub struct Machine {
    config: Config,
    check: Check,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    /// Waits for its turn, and forgets what was there before.
    #[must_use = "the test has the machine as long as this lives"]
    pub fn new() -> Machine {
        let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let machine = Machine {
            config: Config {
                schedule: Schedule::Lazy,
                ..Config::default()
            }
            .or_env(),
            check: check::from_variable().unwrap_or(Check::Report),
            _turn: turn,
        };
        machine.begin()
    }

    fn begin(self) -> Machine {
        reset();
        // It is refused only if somebody uses the machine out of turn.
        let _ = configure(self.config.clone());
        check::check(Check::Off);
        check::check(self.check);
        self
    }

    /// Begins anew, with the machine described otherwise.
    #[must_use = "the test has the machine as long as this lives"]
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Machine {
        change(&mut self.config);
        self.begin()
    }

    /// Begins anew, with that many devices of that many bytes.
    #[must_use = "the test has the machine as long as this lives"]
    pub fn devices(self, count: usize, memory: usize) -> Machine {
        self.with(|config| {
            let device = DeviceConfig {
                memory,
                ..DeviceConfig::default()
            };
            config.devices = vec![device; count];
        })
    }

    /// Begins anew, with another schedule.
    #[must_use = "the test has the machine as long as this lives"]
    pub fn schedule(self, schedule: Schedule) -> Machine {
        self.with(|config| config.schedule = schedule)
    }

    /// Begins anew: work runs as soon as it can.
    #[must_use = "the test has the machine as long as this lives"]
    pub fn eager(self) -> Machine {
        self.schedule(Schedule::Eager)
    }

    /// Begins anew: work runs after delays drawn from this seed.
    #[must_use = "the test has the machine as long as this lives"]
    pub fn random(self, seed: u64) -> Machine {
        self.schedule(Schedule::Random(seed))
    }

    /// Begins anew, without the ordering checker.
    #[must_use = "the test has the machine as long as this lives"]
    pub fn without_check(mut self) -> Machine {
        self.check = Check::Off;
        self.begin()
    }
}

impl Default for Machine {
    fn default() -> Self {
        Machine::new()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        reset();
        let found = check::report();
        check::check(Check::Off);
        if let Some(usual) = check::from_variable() {
            check::check(usual);
        }
        if found.is_empty() {
            return;
        }
        let text: Vec<String> = found.iter().map(ToString::to_string).collect();
        let text = format!("{} ordering findings:\n{}", found.len(), text.join("\n"));
        if std::thread::panicking() {
            // Where stderr is closed nobody can be told.
            eprintln!("{text}");
        } else {
            panic!("{text}");
        }
    }
}

/// Runs a test under each schedule: work that runs at once, late, and at any time. It must not matter to it.
pub fn under_every_schedule(test: impl Fn(Schedule)) {
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(11)] {
        let machine = Machine::new().schedule(schedule);
        test(schedule);
        drop(machine);
    }
}
