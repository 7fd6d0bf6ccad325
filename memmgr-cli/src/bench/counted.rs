//! Passes for a profiler that counts instructions: each is one call of [`memmgr_bench_counted`], and
//! what each was is printed, in their order, as JSON.

use std::io::Write;

use serde::Serialize;

use super::loops::{self, Random};
use super::reference::Tree;
use super::subject::{Null, Subject, with_device};
use crate::error::{Failure, Result};

/// What a call of [`memmgr_bench_counted`] did.
#[derive(Serialize)]
struct Counted {
    case: String,
    subject: &'static str,
    /// Pairs, or single calls in the random workload.
    operations: u64,
}

/// The function whose calls are counted, by its name.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn memmgr_bench_counted(work: &mut dyn FnMut()) {
    work();
}

/// Pairs of calls in a case.
const PAIRS: u64 = 5000;

/// What is counted.
#[derive(Clone, Copy)]
enum Case {
    Hot,
    Random(usize),
    Holes(usize),
}

const CASES: [Case; 5] = [
    Case::Hot,
    Case::Random(1000),
    Case::Random(100_000),
    Case::Holes(16),
    Case::Holes(4096),
];

/// Warms up, and has one pass counted.
fn count(case: Case, name: &'static str, subject: &mut impl Subject) -> Result<Counted> {
    let mut operations = PAIRS;
    let mut failures = 0;
    let text = match case {
        Case::Hot => {
            loops::pairs(subject, 4096, 1000);
            memmgr_bench_counted(&mut || failures = loops::pairs(subject, 4096, PAIRS));
            "hot 4 KiB".to_owned()
        }
        Case::Random(blocks) => {
            let shape = Random { blocks, max_mib: 1 };
            loops::random(subject, shape);
            let mut pass = loops::Pass::default();
            memmgr_bench_counted(&mut || pass = loops::random(subject, shape));
            (operations, failures) = (pass.operations, pass.failures);
            format!("random {}", shape.case())
        }
        Case::Holes(holes) => {
            let walls = loops::make_holes(subject, holes);
            loops::pairs(subject, 1024, 1000);
            memmgr_bench_counted(&mut || failures = loops::pairs(subject, 1024, PAIRS));
            walls.into_iter().for_each(|wall| subject.free(wall));
            format!("holes k={holes}")
        }
    };
    subject.verdict()?;
    if failures > 0 {
        return Err(Failure::message(format!(
            "{name}, {text}: {failures} requests found no memory, so nothing was counted; the \
            device needs 24 GiB (CUDART_SIM_MEMORY)"
        )));
    }
    Ok(Counted {
        case: text,
        subject: name,
        operations,
    })
}

/// Counts every case on the manager, on `null` and on `btree`.
pub fn run(out: &mut impl Write) -> Result<()> {
    let mut done = Vec::new();
    for case in CASES {
        done.push(with_device(|subject| count(case, "memmgr", subject))?);
        done.push(count(case, "null", &mut Null::new())?);
        done.push(count(case, "btree", &mut Tree::new())?);
    }
    let text = serde_json::to_string(&done).map_err(Failure::message)?;
    writeln!(out, "{text}")?;
    Ok(())
}
