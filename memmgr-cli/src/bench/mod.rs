//! `memmgr bench`: the manager's own cost on workloads that draw the same numbers in every run.
//!
//! Each case begins with a new manager and some passes of warm-up. Then the median of the passes counts, with
//! the smallest and the largest beside it. The allocator called `null` does nothing, so that its rows are
//! the cost of the loops. Reference allocators run on the same calls; where one thread works they take
//! turns with the manager, pass by pass.

mod copy;
mod counted;
mod cpus;
mod figure;
mod loops;
mod overlap;
mod pinned_growth;
mod producer;
mod reference;
mod single;
mod streams;
mod subject;
mod threads;
mod traces;
mod turns;

use std::io::Write;

use indicatif::ProgressBar;

use crate::device::{self, Machine};
use crate::error::{Failure, Result};
use crate::json::Output;
use crate::options::{BenchOptions, Reference, Workload};
use crate::progress;
use crate::replay::{Named, cannot_write, load};
use crate::settings::{self, Settings};
use crate::table::wrapped;

use figure::Row;

/// What the lines hold, above them all.
const LEGEND: &str = "\
columns: allocator, case, median, unit, smallest..largest pass, remarks
null      does nothing: the cost of the loop itself
ours x    the manager's figure over that of the allocator in this row
held x    the most bytes held from CUDA over the most bytes live
of N      fewer passes than usual, since they took seconds
";

/// A run: what was asked for, where the lines go, and the rows so far.
struct Bench<'a, W> {
    options: &'a BenchOptions,
    out: &'a mut W,
    bar: ProgressBar,
    rows: Vec<Row>,
    /// The passes that the last heading named.
    usual: usize,
}

impl<W: Write> Bench<'_, W> {
    /// How many passes a figure has: as asked for, else `usual`.
    fn passes(&self, usual: usize) -> usize {
        self.options.passes.unwrap_or(usual)
    }

    fn quick(&self) -> bool {
        self.options.quick
    }

    fn wants(&self, reference: Reference) -> bool {
        self.options.references().contains(&reference)
    }

    /// Begins a workload: its heading, with the number of passes.
    fn heading(&mut self, name: &str, text: &str, passes: usize) -> Result<()> {
        self.usual = passes;
        self.bar.set_message(name.to_owned());
        let text = format!("{name}: {text}; median of {passes} after a warm-up");
        let out = &mut *self.out;
        self.bar
            .suspend(|| writeln!(out, "\n{}", wrapped(&text)).and_then(|()| out.flush()))?;
        Ok(())
    }

    /// A line of its own.
    fn remark(&mut self, text: &str) -> Result<()> {
        let out = &mut *self.out;
        self.bar.suspend(|| writeln!(out, "{}", wrapped(text)))?;
        Ok(())
    }

    /// Shows and keeps the rows of one case. Those of others get the ratio to the manager's.
    fn report(&mut self, mut rows: Vec<Row>) -> Result<()> {
        let ours: Vec<(String, f64)> = rows
            .iter()
            .filter(|row| row.subject == "memmgr")
            .map(|row| (row.case.clone(), row.value))
            .collect();
        for row in rows.iter_mut().filter(|row| row.subject != "memmgr") {
            let same = ours.iter().find(|(case, _)| *case == row.case);
            if row.subject != "null" && row.value > 0.0 {
                row.ratio = same.map(|(_, value)| value / row.value);
            }
        }
        let (out, usual) = (&mut *self.out, self.usual);
        self.bar.suspend(|| {
            for row in &rows {
                writeln!(out, "{}", row.line(usual))?;
            }
            out.flush()
        })?;
        self.bar.inc(1);
        self.rows.extend(rows);
        Ok(())
    }

    fn workload(&mut self, workload: Workload, traces: &[Named]) -> Result<()> {
        match workload {
            Workload::Hot => single::hot(self),
            Workload::Random => single::random(self),
            Workload::Tail => single::tail(self),
            Workload::Holes => single::holes(self),
            Workload::Pinned => single::pinned(self),
            Workload::PinnedGrowth => pinned_growth::run(self),
            Workload::Threads => threads::run(self),
            Workload::Producer => producer::run(self),
            Workload::Streams => streams::run(self),
            Workload::Replay => traces::run(self, traces),
            Workload::Copy => copy::run(self),
            Workload::Overlap => overlap::run(self),
        }
    }
}

/// Runs the workloads that were asked for.
pub fn run(options: &BenchOptions, machine: Machine, out: &mut impl Write) -> Result<()> {
    if options.traces.is_empty() && options.names(Workload::Replay) {
        return Err(Failure::message(
            "the workload replay needs traces: --traces tests/data/traces",
        ));
    }
    if !options.traces.is_empty() && !options.workloads().contains(&Workload::Replay) {
        return Err(Failure::message(
            "--traces is for the workload replay, which is not among those that were named",
        ));
    }
    // Asked here for what is said of those that are not used.
    Settings::read("bench", &[settings::DEVICE_SOURCE])?;
    let files = traces::files(&options.traces)?;
    let json = match &options.json {
        None => None,
        Some(path) => {
            let output = Output::prepare(path, &files);
            Some((path, output.map_err(|error| cannot_write(path, error))?))
        }
    };
    let traces = load(&files)?;
    let peak = traces.iter().map(|named| named.trace.peak_live).max();
    // Room for what is live, and several times that for what does not fit together.
    let needed = peak.unwrap_or(0).max(loops::CAP as u64);
    let note = machine.prepare(Some((needed, "the largest workload")))?;
    if let Some(note) = note.filter(|_| !options.counted) {
        writeln!(out, "{note}")?;
    }
    device::select(options.device)?;
    if let Some(note) = device::silence_checker() {
        writeln!(out, "{}", wrapped(note))?;
    }
    if options.counted {
        return counted::run(out);
    }
    write!(out, "{}\n{LEGEND}", cpus::described())?;
    let workloads = options.workloads();
    let mut bench = Bench {
        options,
        out,
        bar: progress::spinner(),
        rows: Vec::new(),
        usual: 0,
    };
    for workload in workloads {
        bench.workload(workload, &traces)?;
    }
    bench.bar.finish_and_clear();
    if let Some((path, output)) = json {
        output
            .write(&bench.rows)
            .map_err(|error| cannot_write(path, error))?;
    }
    Ok(())
}
