//! Recorded programs, replayed with their streams kept apart: a first pass that begins with an empty
//! manager, and a second that finds what the first has left.

use std::ffi::c_void;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memmgr::{DeviceAllocatorMode, Error};

use super::Bench;
use super::figure::Row;
use super::reference::{List, Tree};
use super::subject::{Null, Subject, with_manager};
use super::turns::{LONG, PASSES};
use crate::device;
use crate::error::{Failure, Result};
use crate::options::Reference;
use crate::replay::{Allocator, Managed, Named, pass};
use crate::trace::Trace;

/// The traces that the paths name: files, and all traces in folders.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let cannot_read = |error| {
            Failure::message(format!(
                "cannot read the folder {}: {error}",
                path.display()
            ))
        };
        let entries = fs::read_dir(path).map_err(cannot_read)?;
        let files = entries.flatten().map(|entry| entry.path());
        let mut traces: Vec<PathBuf> = files.filter(|file| is_trace(file)).collect();
        if traces.is_empty() {
            return Err(Failure::message(format!(
                "there is no trace (.csv or .csv.gz) in the folder {}",
                path.display()
            )));
        }
        traces.sort();
        found.extend(traces);
    }
    Ok(found)
}

fn is_trace(path: &Path) -> bool {
    let name = path.to_string_lossy();
    (name.ends_with(".csv") || name.ends_with(".csv.gz")) && path.is_file()
}

/// An allocator that knows no streams.
struct Plain<S>(S);

impl<S: Subject> Allocator for Plain<S> {
    fn allocate(&mut self, size: usize, _: u32) -> Result<Option<*mut c_void>, Error> {
        let block = self.0.allocate(size);
        Ok((!block.is_null()).then_some(block))
    }

    fn free(&mut self, block: *mut c_void, _: u32) -> Result<(), Error> {
        self.0.free(block);
        Ok(())
    }
}

/// What both passes of all rounds took.
#[derive(Default)]
struct Rounds {
    nanoseconds: [Vec<f64>; 2],
    failures: u64,
    peak_reserved: Option<u64>,
}

impl Rounds {
    /// A round of warm-up, and then as many as asked for, or until they have taken long.
    fn run(
        passes: usize,
        trace: &Trace,
        mut round: impl FnMut() -> Result<([f64; 2], u64, Option<u64>)>,
    ) -> Result<Self> {
        let mut rounds = Self::default();
        round()?;
        let start = Instant::now();
        for index in 0..passes {
            if index > 0 && start.elapsed() > LONG {
                break;
            }
            let (times, failures, reserved) = round()?;
            for (samples, time) in rounds.nanoseconds.iter_mut().zip(times) {
                samples.push(time / trace.events.len().max(1) as f64);
            }
            rounds.failures += failures;
            rounds.peak_reserved = rounds.peak_reserved.max(reserved);
        }
        Ok(rounds)
    }

    fn rows(self, named: &Named, subject: &'static str) -> [Row; 2] {
        let words = ["1st", "2nd"];
        [0, 1].map(|index| {
            let case = format!("{} {}", named.name, words[index]);
            let samples = &self.nanoseconds[index];
            let mut row = Row::new("replay", case, subject, "ns/op", samples);
            row.failures = Some(self.failures);
            row.peak_live_bytes = Some(named.trace.peak_live);
            row.peak_reserved_bytes = self.peak_reserved;
            row
        })
    }
}

fn twice(allocator: &mut impl Allocator, trace: &Trace) -> Result<([f64; 2], u64)> {
    let (first, second) = (
        pass(allocator, trace, |_| ())?,
        pass(allocator, trace, |_| ())?,
    );
    let times = [first, second].map(|pass| pass.elapsed.as_nanos() as f64);
    Ok((times, first.failures + second.failures))
}

fn managed(trace: &Trace, ordinal: i32) -> Result<([f64; 2], u64, Option<u64>)> {
    with_manager(|manager| {
        let mut managed = Managed::new(manager, trace.streams)?;
        let (times, failures) = twice(&mut managed, trace)?;
        let usage = device::usage(manager, DeviceAllocatorMode::BestFitPool, ordinal)?;
        Ok((times, failures, Some(usage.peak_reserved)))
    })
}

fn plain<S: Subject>(
    named: &Named,
    name: &'static str,
    passes: usize,
    make: impl Fn() -> S,
) -> Result<[Row; 2]> {
    let rounds = Rounds::run(passes, &named.trace, || {
        let (times, failures) = twice(&mut Plain(make()), &named.trace)?;
        Ok((times, failures, None))
    })?;
    Ok(rounds.rows(named, name))
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>, traces: &[Named]) -> Result<()> {
    let passes = bench.passes(PASSES);
    let text = "recorded programs, streams kept apart, 1st and 2nd pass; ns per call";
    bench.heading("replay", text, passes)?;
    if traces.is_empty() {
        return bench.remark("skipped: no trace was named (--traces FILE or FOLDER)");
    }
    let ordinal = bench.options.device;
    for named in traces {
        let ours = Rounds::run(passes, &named.trace, || managed(&named.trace, ordinal))?;
        let mut rows = Vec::from(ours.rows(named, "memmgr"));
        rows.extend(plain(named, "null", passes, Null::new)?);
        if bench.wants(Reference::List) {
            rows.extend(plain(named, "list", passes, List::new)?);
        }
        if bench.wants(Reference::Btree) {
            rows.extend(plain(named, "btree", passes, Tree::new)?);
        }
        bench.report(rows)?;
    }
    Ok(())
}
