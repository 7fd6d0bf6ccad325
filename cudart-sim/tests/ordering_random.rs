//! Random programs on several streams, devices and threads, judged by the ordering checker and by an oracle that shares
//! nothing with it: a graph of all operations, in which two accesses race if neither can be reached from the other. Both
//! have to agree about every single step, under every schedule.
//!
//! `CUDART_SIM_RANDOM_SECONDS=600` goes on for that long, with new seeds; `CUDART_SIM_RANDOM_SEED=N` runs one program
//! under each schedule and prints it. A failure names its seed and shows the program, made as small as it still fails.

mod common;
mod cuda;
#[path = "random/memory.rs"]
mod memory;
#[path = "random/oracle.rs"]
mod oracle;
#[path = "random/program.rs"]
mod program;
#[path = "common/programs.rs"]
mod programs;
#[path = "random/reports.rs"]
mod reports;
#[path = "random/run.rs"]
mod run;
#[path = "random/steps.rs"]
mod steps;
#[path = "random/world.rs"]
mod world;
use cudart_sim::{Check, Config, Schedule, sys};
use program::Program;
use programs::{cuda as call, machine};
use run::{Counts, Verdict};
use std::io::Write;
use std::time::{Duration, Instant, SystemTime};
use world::Threads;

const SCHEDULES: [Schedule; 3] = [Schedule::Eager, Schedule::Lazy, Schedule::Random(7)];

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Straight to stderr, past what the test harness captures: these runs are long.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn attempt(
    program: &Program,
    schedule: Schedule,
    threads: &Threads,
    counts: &mut Counts,
) -> Verdict {
    cudart_sim::reset();
    let config = Config {
        schedule,
        ..Config::devices(2, 1 << 30)
    };
    cudart_sim::configure(config).expect("nobody else uses the machine");
    // Copies of stream-ordered memory want its device current, or one that has access to it.
    for device in 0..2 {
        let mut pool = std::ptr::null_mut();
        assert_eq!(call!(cudaDeviceGetDefaultMemPool(&mut pool, device)), 0);
        let mut other = sys::cudaMemAccessDesc::default();
        other.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeDevice;
        other.location.id = 1 - device;
        other.flags = sys::cudaMemAccessFlags::cudaMemAccessFlagsProtReadWrite;
        assert_eq!(call!(cudaMemPoolSetAccess(pool, &other, 1)), 0);
    }
    run::run(program, threads, counts)
}

/// Leaves out all that the failure does not need.
fn shrunk(program: &Program, schedule: Schedule, threads: &Threads) -> Program {
    let mut small = program.clone();
    let mut chunk = small.steps.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < small.steps.len() {
            let mut less = small.clone();
            less.steps.drain(at..(at + chunk).min(less.steps.len()));
            match attempt(&less, schedule, threads, &mut Counts::default()) {
                Err(_) => small = less,
                Ok(()) => at += chunk,
            }
        }
        chunk /= 2;
    }
    small
}

/// Runs the program of a seed, and panics with it if the two disagree.
fn one(seed: u64, schedule: Schedule, threads: &Threads, counts: &mut Counts) {
    let program = Program::new(seed);
    let Err((text, listing)) = attempt(&program, schedule, threads, counts) else {
        return;
    };
    let small = shrunk(&program, schedule, threads);
    let (text, listing) = match attempt(&small, schedule, threads, &mut Counts::default()) {
        Err(smaller) => smaller,
        // It does not fail each time.
        Ok(()) => (text, listing),
    };
    panic!(
        "seed {seed}, {schedule:?}, {:?}: {text}\n{listing}again: CUDART_SIM_RANDOM_SEED={seed} cargo test \
         -p cudart-sim --release --test ordering_random -- --nocapture",
        program.mode
    );
}

fn summary(counts: &Counts) -> String {
    format!(
        "{} programs without a race, {} with one planted, {} with whatever came; {} operations",
        counts.race_free, counts.planted, counts.wild_with_races, counts.operations
    )
}

fn many(schedule: Schedule, programs: u64) {
    if variable("CUDART_SIM_RANDOM_SECONDS").is_some() {
        return;
    }
    let _turn = machine();
    cudart_sim::check(Check::Report);
    let (threads, mut counts) = (Threads::new(), Counts::default());
    if let Some(seed) = variable("CUDART_SIM_RANDOM_SEED") {
        println!("{:#?}", Program::new(seed));
        return one(seed, schedule, &threads, &mut counts);
    }
    for seed in 0..programs {
        one(seed, schedule, &threads, &mut counts);
    }
    println!("{schedule:?}: {}", summary(&counts));
    assert!(counts.race_free > programs / 4);
    assert!(counts.planted > programs / 4);
    assert!(counts.wild_with_races > programs / 20);
    if programs > 1000 {
        println!("{:#?}", counts.kinds);
        assert!(counts.kinds.len() >= 49, "{}", counts.kinds.len());
    }
}

#[test]
fn the_checker_and_the_oracle_agree_when_work_runs_at_once() {
    many(Schedule::Eager, 6000);
}

#[test]
fn the_checker_and_the_oracle_agree_when_work_runs_late() {
    many(Schedule::Lazy, 3000);
}

#[test]
fn the_checker_and_the_oracle_agree_when_work_runs_at_any_time() {
    many(Schedule::Random(7), 300);
}

#[test]
fn the_checker_and_the_oracle_agree_for_as_long_as_was_asked_for() {
    let Some(seconds) = variable("CUDART_SIM_RANDOM_SECONDS") else {
        println!("not asked for: CUDART_SIM_RANDOM_SECONDS=600");
        return;
    };
    let _turn = machine();
    cudart_sim::check(Check::Report);
    let threads = Threads::new();
    let mut counts: Vec<Counts> = SCHEDULES.iter().map(|_| Counts::default()).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut seed = now.map_or(1, |d| d.as_secs()).wrapping_mul(1_000_000);
    let (start, end) = (Instant::now(), Duration::from_secs(seconds));
    let mut said = start;
    while start.elapsed() < end {
        for (schedule, counts) in SCHEDULES.iter().zip(&mut counts) {
            // As long for each schedule: they are not equally fast.
            let turn = Instant::now();
            while turn.elapsed() < Duration::from_secs(2) && start.elapsed() < end {
                one(seed, *schedule, &threads, counts);
                seed += 1;
            }
        }
        if said.elapsed() > Duration::from_secs(15) {
            said = Instant::now();
            let all: u64 = counts
                .iter()
                .map(|c| c.race_free + c.planted + c.wild_with_races)
                .sum();
            let gone = start.elapsed().as_secs();
            say(&format!(
                "{gone} of {seconds} s, {all} programs, seed {seed}"
            ));
        }
    }
    for (schedule, counts) in SCHEDULES.iter().zip(&counts) {
        say(&format!("{schedule:?}: {}", summary(counts)));
        assert!(counts.race_free > 0 && counts.planted > 0);
    }
}
