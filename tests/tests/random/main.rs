//! Random programs that use all of the manager, by several threads: nobody sees another's memory, nothing is left, and the
//! ordering checker of the simulated runtime has nothing to say.
//!
//! `MEMMGR_PROGRAM_SECONDS` says for how long, `MEMMGR_PROGRAM_SEED` runs one program again.

#[path = "../common/mod.rs"]
mod common;
mod guards;
mod program;
mod raws;
#[path = "../common/rig.rs"]
mod rig;
mod worker;
mod world;

use memmgr_tests::SIMULATED;
use std::{
    io::Write,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const STEPS: u64 = 300;
/// What a hundred programs must have done.
const KINDS: [&str; 28] = [
    "raw allocation",
    "raw use",
    "raw free",
    "guard",
    "guard use",
    "guard drop",
    "split",
    "look at a copy",
    "transfer",
    "end of a transfer",
    "capture",
    "use of a graph",
    "launch",
    "event",
    "stream replaced",
    "stall",
    "per-thread stream",
    "adopted device memory",
    "adopted vector",
    "scope",
    "mode",
    "limit",
    "trim",
    "shutdown",
    "hook",
    "out of memory",
    "figures",
    "check",
];

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

#[test]
fn random_programs_of_several_threads_are_ordered_and_leave_nothing() {
    let chosen = variable("MEMMGR_PROGRAM_SEED");
    let asked = variable("MEMMGR_PROGRAM_SECONDS");
    let seconds = asked.unwrap_or(if SIMULATED { 30 } else { 15 });
    // The short form runs the same programs each time; the long one goes on to new ones.
    let first = chosen.unwrap_or(match asked {
        None => 1,
        Some(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |time| time.as_secs() << 20),
    });
    println!("seeds from {first}");
    let (begun, mut said) = (Instant::now(), Instant::now());
    let (mut programs, mut steps, mut verified, mut bytes) = (0u64, 0u64, 0u64, 0u64);
    let mut tally = world::Tally::new();
    loop {
        let seed = first + programs;
        let outcome = program::run(seed, STEPS, None);
        if !outcome.is_clean() {
            let seen: Vec<&str> = outcome
                .findings
                .iter()
                .take(5)
                .map(String::as_str)
                .collect();
            panic!(
                "seed {seed}, after {} steps: {}\n{} findings\n{}\nrun it again: MEMMGR_PROGRAM_SEED={seed} cargo test -p \
                 memmgr-tests --test random random_programs -- --nocapture",
                outcome.steps,
                outcome.failure.as_deref().unwrap_or("no wrong answer"),
                outcome.findings.len(),
                seen.join("\n"),
            );
        }
        programs += 1;
        for (what, count) in outcome.tally {
            *tally.entry(what).or_default() += count;
        }
        steps += outcome.steps;
        verified += outcome.verified;
        bytes += outcome.bytes;
        let over = begun.elapsed() >= Duration::from_secs(seconds) || chosen.is_some();
        if over || said.elapsed() >= Duration::from_secs(15) {
            said = Instant::now();
            let text = format!(
                "{}: {:.0} s, seeds {first} to {seed}: {programs} programs, {steps} steps, {verified} blocks verified, \
                 {bytes} bytes",
                memmgr::backend(),
                begun.elapsed().as_secs_f64()
            );
            match asked {
                // Seen at once, also where the output of tests is kept until their end.
                Some(_) => drop(writeln!(std::io::stderr(), "{text}")),
                None => println!("{text}"),
            }
        }
        if over {
            break;
        }
    }
    println!("{tally:?}");
    if programs >= 100 {
        let missing: Vec<_> = KINDS
            .iter()
            .filter(|kind| !tally.contains_key(*kind) && (SIMULATED || **kind != "adopted vector"))
            .collect();
        assert!(missing.is_empty(), "never done: {missing:?}");
    }
    assert!(
        programs > 0 && verified > programs,
        "hardly anything was looked at"
    );
}
