//! `memmgr bench`: the manager's own cost on workloads that draw the same numbers in every run.
//!
//! Each case begins with a new manager and a pass of warm-up. Then the median of the passes counts, with
//! the smallest and the largest beside it. The allocator called `null` does nothing, so that its rows are
//! the cost of the loops; reference allocators run in the same process on the same calls.

mod cpus;
mod figure;
mod loops;
mod reference;
mod single;
mod subject;
mod threads;

use std::io::Write;

use indicatif::ProgressBar;

use crate::device::{self, Machine};
use crate::error::Result;
use crate::json::Output;
use crate::options::{BenchOptions, Reference, Workload};
use crate::progress;
use crate::replay::cannot_write;
use crate::table::wrapped;

use figure::Row;

/// What the lines hold, above them all.
const LEGEND: &str = "\
columns: allocator, case, median, unit, smallest..largest pass, remarks
null      does nothing: the cost of the loop itself
ours x    the manager's figure over that of the allocator in this row
held x    the most bytes held from CUDA over the most bytes live
of N      fewer passes than usual, as one takes seconds; then without warm-up
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

    fn workload(&mut self, workload: Workload) -> Result<()> {
        match workload {
            Workload::Hot => single::hot(self),
            Workload::Random => single::random(self),
            Workload::Tail => single::tail(self),
            Workload::Holes => single::holes(self),
            Workload::Pinned => single::pinned(self),
            Workload::Threads => threads::run(self),
        }
    }
}

/// Runs the workloads that were asked for.
pub fn run(options: &BenchOptions, machine: Machine, out: &mut impl Write) -> Result<()> {
    let json = match &options.json {
        None => None,
        Some(path) => {
            let output = Output::prepare(path, &[]);
            Some((path, output.map_err(|error| cannot_write(path, error))?))
        }
    };
    // Room for what is live, for what does not fit together, and for several managers.
    let needed = loops::CAP as u64;
    if let Some(note) = machine.prepare(Some((needed, "the largest workload")))? {
        writeln!(out, "{note}")?;
    }
    device::select(options.device)?;
    if let Some(note) = device::silence_checker() {
        writeln!(out, "{}", wrapped(note))?;
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
        bench.workload(workload)?;
    }
    bench.bar.finish_and_clear();
    if let Some((path, output)) = json {
        output
            .write(&bench.rows)
            .map_err(|error| cannot_write(path, error))?;
    }
    Ok(())
}
