//! Runs a program under many schedules: drawn ones, and all those with few preemptions.

use cudart_sim::model::{self, Mistake};
use cudart_sim::{Config, Schedule as When};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// All schedules in which a thread that could go on is stopped at most `bound` times, one after another, depth first. Who
/// goes on when a thread waits or ends costs nothing, until somebody yields: a program that polls would have schedules
/// without end, so from then on all but the fair choice count. Most mistakes need two preemptions at most.
///
/// A coarse search takes calls into the simulator for one step, up to where they wait: it stops threads only at points that
/// the code above has marked; and every choice but the fair one counts.
pub struct Bounded {
    bound: usize,
    coarse: bool,
    path: Vec<(Vec<Choice>, usize)>,
    step: usize,
    preemptions: usize,
    yielded: bool,
    last_run: BTreeMap<TaskId, usize>,
    begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    Task(TaskId),
    Number(u64),
}

impl Bounded {
    pub fn new(bound: usize, coarse: bool) -> Bounded {
        Bounded {
            bound,
            coarse,
            path: Vec::new(),
            step: 0,
            preemptions: 0,
            yielded: false,
            last_run: BTreeMap::new(),
            begun: false,
        }
    }

    fn choose(&mut self, options: Vec<Choice>) -> Choice {
        let at = match self.path.get(self.step) {
            Some((known, at)) => {
                assert_eq!(*known, options, "the program is not the same each time");
                *at
            }
            None => {
                self.path.push((options.clone(), 0));
                0
            }
        };
        self.step += 1;
        options[at]
    }
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        while self.begun {
            let (options, at) = self.path.last_mut()?;
            *at += 1;
            if *at < options.len() {
                break;
            }
            self.path.pop();
        }
        (self.begun, self.step, self.preemptions) = (true, 0, 0);
        self.yielded = false;
        self.last_run.clear();
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yields: bool,
    ) -> Option<TaskId> {
        // Whoever has not run for the longest time is first, so that nobody starves; whoever runs goes on if it can.
        let mut order: Vec<TaskId> = runnable.iter().map(|t| t.id()).collect();
        order.sort_by_key(|id| self.last_run.get(id).copied());
        let here = order.iter().position(|id| Some(*id) == current);
        if let Some(at) = here.filter(|_| !yields) {
            order[..=at].rotate_right(1);
        }
        self.yielded |= yields;
        let inside = self.coarse && !model::take_mark();
        if here.is_some() && !yields && inside {
            order.truncate(1);
        }
        let free = here.is_none() && !self.yielded && !self.coarse;
        if !free && self.preemptions == self.bound {
            order.truncate(1);
        }
        let cheap = order[0];
        let Choice::Task(next) = self.choose(order.into_iter().map(Choice::Task).collect()) else {
            return None;
        };
        self.preemptions += usize::from(!free && next != cheap);
        self.last_run.insert(next, self.step);
        Some(next)
    }

    fn next_u64(&mut self) -> u64 {
        match self.choose([0, 1].map(Choice::Number).to_vec()) {
            Choice::Number(n) => n,
            Choice::Task(_) => 0,
        }
    }
}

/// The statics of the simulator are one: programs take turns.
static TURN: Mutex<()> = Mutex::new(());

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

/// What a program runs on.
#[derive(Clone)]
pub struct Machine {
    pub when: When,
    pub queue: usize,
    /// How often time passes while the program runs, at moments that the scheduler chooses.
    pub ticks: usize,
    /// How many threads the system grants.
    pub threads: usize,
    /// What happens before and after each program, on the same threads.
    pub before: fn(),
    pub after: fn(),
    /// Whether a call into the simulator is one step of an exhaustive search.
    pub coarse: bool,
    /// Whether the ordering checker looks on: it must find nothing.
    pub checked: bool,
}

pub const MACHINE: Machine = Machine {
    when: When::Eager,
    queue: 1021,
    ticks: 0,
    threads: usize::MAX,
    before: || (),
    after: || (),
    coarse: false,
    checked: false,
};

fn mistake() -> Mistake {
    match std::env::var("MODEL_MISTAKE").as_deref() {
        Ok("LostOne") => Mistake::LostOne,
        Ok("LostAll") => Mistake::LostAll,
        Ok("OneOfAll") => Mistake::OneOfAll,
        _ => Mistake::None,
    }
}

/// One run: the program, with time passing beside it; then a reset, and all the time that anybody waits for.
fn run(machine: &Machine, program: fn()) {
    model::grant_threads(machine.threads);
    cudart_sim::configure(Config {
        schedule: machine.when,
        queue_depth: machine.queue,
        ..Config::devices(1, 16 << 20)
    })
    .expect("the machine is fresh");
    if machine.checked {
        // What an earlier run left is forgotten.
        cudart_sim::check(cudart_sim::Check::Off);
        cudart_sim::check(cudart_sim::Check::Report);
    }
    (machine.before)();
    let ticks = machine.ticks;
    let time = thread::spawn(move || {
        for _ in 0..ticks {
            thread::sleep(Duration::ZERO);
            model::pass_time();
        }
    });
    program();
    time.join().expect("time passes");
    (machine.after)();
    cudart_sim::reset();
    if machine.checked {
        let found = cudart_sim::report();
        assert!(found.is_empty(), "unordered: {}", found[0]);
    }
    while model::pass_time() || model::counts() != model::Counts::default() {
        thread::yield_now();
    }
}

fn check(
    name: &str,
    how: &str,
    scheduler: impl Scheduler + 'static,
    machine: &Machine,
    program: fn(),
) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = shuttle::MaxSteps::FailAfter(50_000);
    config.silence_warnings = true;
    let start = Instant::now();
    // What happens once in a process happens now, so that all runs are alike.
    let (once, first) = (RandomScheduler::new_from_seed(0, 1), machine.clone());
    shuttle::Runner::new(once, config.clone()).run(move || run(&first, program));
    let machine = machine.clone();
    let runs = shuttle::Runner::new(scheduler, config).run(move || run(&machine, program));
    eprintln!(
        "{name}: {runs} schedules ({how}), {:.1} s",
        start.elapsed().as_secs_f64()
    );
}

/// Under `MODEL_SCHEDULES` (1000) random schedules, and as many in which few changes of priority decide. Also between
/// atomic operations.
pub fn drawn(name: &str, machine: Machine, program: fn()) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    model::plant(mistake());
    model::fine(true);
    let (count, seed) = (
        number("MODEL_SCHEDULES", 1000) as usize,
        number("MODEL_SEED", 1),
    );
    let random = RandomScheduler::new_from_seed(seed, count);
    check(name, "random", random, &machine, program);
    let few = PctScheduler::new_from_seed(seed, 3, count);
    check(name, "few changes of priority", few, &machine, program);
}

/// Under all schedules with at most that many preemptions at locks, waits and starts of threads.
pub fn all(name: &str, bound: usize, machine: Machine, program: fn()) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    model::plant(mistake());
    model::fine(false);
    let bound = bound + number("MODEL_PREEMPTIONS", 0) as usize;
    let what = if machine.coarse {
        "departures"
    } else {
        "preemptions"
    };
    let how = format!("all with {bound} {what}");
    check(
        name,
        &how,
        Bounded::new(bound, machine.coarse),
        &machine,
        program,
    );
}

/// The program of that test, with that mistake, must fail in that way.
pub fn is_found(mistake: &str, program: &str, how: &str) {
    let me = std::env::current_exe().expect("a test program");
    let output = std::process::Command::new(me)
        .args(["--exact", program, "--nocapture"])
        .env("MODEL_MISTAKE", mistake)
        .env("MODEL_SCHEDULES", "1000")
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&output.stderr);
    let end = printed.len().saturating_sub(2000);
    let tail = printed.get(end..).unwrap_or_default();
    assert!(!output.status.success(), "{mistake} was not found: {tail}");
    assert!(printed.contains(how), "{mistake}: {tail}");
}
