//! `memmgr replay`: repeats the allocations of recorded programs in each allocator mode and measures
//! them.
//!
//! Each stream of the trace gets a stream of its own; no work is submitted to them, so what is measured
//! is the allocator alone. Every trace runs twice in a mode: the first pass finds an empty manager and
//! includes growing, the second finds what the first has left. Only the calls are timed; the progress
//! bar moves between batches of them.

use std::ffi::c_void;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use memmgr::{DeviceAllocatorMode, Error, MemoryManager, Stream};

use crate::cuda;
use crate::device::{self, Machine};
use crate::error::{Failure, Result};
use crate::json::{self, Output};
use crate::options::ReplayOptions;
use crate::progress;
use crate::table::{Table, counted, mib, people, wrapped};
use crate::trace::{Event, Trace};

/// Events between two looks at the clock and two moves of the progress bar.
const BATCH: usize = 4096;

/// What the columns hold, below the last table.
const LEGEND: &str = "\
ns/op      time of one call; the 1st pass begins with an empty manager
peak live  the most bytes live at one time, as the trace requests them
reserved   the most bytes held from the device at one time
waits      requests that waited for another stream's work; only pool tells
failures   requests of both passes that the device could not meet
";

/// Below a table with failures.
const FAILED: &str =
    "* not comparable: some requests failed, so less was held than the trace needs";

/// What a trace is replayed on.
pub trait Allocator {
    /// A block, or `None` where memory ran out.
    fn allocate(&mut self, size: usize, stream: u32) -> Result<Option<*mut c_void>, Error>;
    fn free(&mut self, block: *mut c_void, stream: u32) -> Result<(), Error>;
}

/// How one pass went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    pub elapsed: Duration,
    pub failures: u64,
}

impl Pass {
    fn ns_per_op(self, events: usize) -> f64 {
        // Tenths of a nanosecond are more than the clock gives.
        (self.elapsed.as_nanos() as f64 / events as f64 * 10.0).round() / 10.0
    }
}

/// Replays the trace once; then, off the clock, frees what it leaves live.
pub fn pass(
    allocator: &mut impl Allocator,
    trace: &Trace,
    mut moved: impl FnMut(usize),
) -> Result<Pass, Error> {
    let mut blocks: Vec<Option<*mut c_void>> = vec![None; trace.blocks];
    let mut result = Pass::default();
    for batch in trace.events.chunks(BATCH) {
        let start = Instant::now();
        for event in batch {
            match *event {
                Event::Allocate {
                    block,
                    stream,
                    size,
                } => match allocator.allocate(size, stream)? {
                    None => result.failures += 1,
                    some => blocks[block as usize] = some,
                },
                Event::Free { block, stream } => {
                    if let Some(pointer) = blocks[block as usize].take() {
                        allocator.free(pointer, stream)?;
                    }
                }
            }
        }
        result.elapsed += start.elapsed();
        moved(batch.len());
    }
    for event in &trace.events {
        if let Event::Allocate { block, stream, .. } = *event
            && let Some(pointer) = blocks[block as usize].take()
        {
            allocator.free(pointer, stream)?;
        }
    }
    Ok(result)
}

/// A memory manager with one stream for each stream of the trace.
pub struct Managed<'a> {
    pub manager: &'a MemoryManager,
    pub streams: Vec<Stream>,
}

impl Allocator for Managed<'_> {
    fn allocate(&mut self, size: usize, stream: u32) -> Result<Option<*mut c_void>, Error> {
        let stream = &self.streams[stream as usize];
        match self.manager.allocate_device_on(size, stream) {
            Ok(pointer) => Ok(Some(pointer)),
            Err(error) if is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, block: *mut c_void, stream: u32) -> Result<(), Error> {
        // SAFETY: `allocate` returned the block, `pass` takes it out of its list before it frees it,
        // and no work that could use it is ever submitted.
        unsafe {
            self.manager
                .free_device_on(block, &self.streams[stream as usize])
        }
    }
}

/// Whether a device had no memory for a request, which is counted; other errors end the replay.
fn is_out_of_memory(error: &Error) -> bool {
    error.is_out_of_memory()
        || matches!(
            error,
            Error::LimitExceeded { .. } | Error::InvalidSize { .. }
        )
}

/// A trace and the name that its results go by.
pub struct Named {
    pub name: String,
    pub trace: Trace,
}

/// The file's name without `.csv` and `.gz`.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.strip_suffix(".csv").unwrap_or(name).to_owned()
}

/// A name for each file; those that would have the same go by their paths.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let short: Vec<String> = paths.iter().map(|path| name_of(path)).collect();
    let unique = |name: &String| short.iter().filter(|other| *other == name).count() == 1;
    let named = short.iter().zip(paths).map(|(name, path)| {
        if unique(name) {
            name.clone()
        } else {
            path.display().to_string()
        }
    });
    named.collect()
}

pub fn load(paths: &[PathBuf]) -> Result<Vec<Named>> {
    let read = |(path, name): (&PathBuf, String)| match Trace::open(path) {
        Ok(trace) => Ok(Named { name, trace }),
        Err(error) => Err(Failure::message(format!("{}: {error}", path.display()))),
    };
    paths.iter().zip(names(paths)).map(read).collect()
}

/// What is said of a file for results that cannot be written. As for all that goes to standard output, a
/// reader who has seen enough is no failure.
pub fn cannot_write(path: &Path, error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::Output(error);
    }
    Failure::message(format!("cannot write {}: {error}", path.display()))
}

/// Replays all traces in all modes that were asked for.
pub fn run(options: &ReplayOptions, machine: Machine, out: &mut impl Write) -> Result<()> {
    let json = match &options.json {
        None => None,
        Some(path) => {
            let output = Output::prepare(path, &options.traces);
            Some((path, output.map_err(|error| cannot_write(path, error))?))
        }
    };
    let traces = load(&options.traces)?;
    let peak = traces.iter().map(|t| t.trace.peak_live).max().unwrap_or(0);
    if let Some(note) = machine.prepare(Some((peak, "the largest trace")))? {
        writeln!(out, "{note}")?;
    }
    device::select(options.device)?;
    let modes = options.mode.modes();
    let events: usize = traces.iter().map(|t| t.trace.events.len()).sum();
    let bar = progress::bar(2 * events * modes.len());
    let mut rows = Vec::new();
    for named in &traces {
        bar.set_message(named.name.clone());
        let first = rows.len();
        let mut notes = Vec::new();
        for &mode in modes {
            let granted = device::granted(mode)?;
            if granted != mode {
                notes.push(format!(
                    "note: this device does not support {mode}; {granted} is used instead"
                ));
                let done: &[json::Row] = &rows[first..];
                if done.iter().any(|row| row.mode == granted.to_string()) {
                    bar.inc(2 * named.trace.events.len() as u64);
                    continue;
                }
            }
            let row = replay(named, granted, options.device, &bar);
            rows.push(row.map_err(|failure| {
                let name = &named.name;
                Failure::message(format!("{name} in mode {granted}: {failure}"))
            })?);
        }
        bar.suspend(|| {
            print(named, &rows[first..], &notes, out)?;
            out.flush()?;
            warn_of_failures(&rows[first..], options.device)
        })?;
    }
    bar.finish_and_clear();
    write!(out, "\n{LEGEND}")?;
    if let Some((path, output)) = json {
        output
            .write(&rows)
            .map_err(|error| cannot_write(path, error))?;
    }
    Ok(())
}

/// Says on standard error which rows are no measure of their mode, and how much memory there was.
fn warn_of_failures(rows: &[json::Row], ordinal: i32) -> Result<()> {
    for row in rows.iter().filter(|row| row.failures > 0) {
        let (_, total) = cuda::device_memory()?;
        let text = format!(
            "warning: {}, {}: {} failed; device {ordinal} has {}",
            row.trace,
            row.mode,
            counted(row.failures as usize, "request"),
            people(total)
        );
        // Where standard error is closed nobody can be told.
        let _ = writeln!(io::stderr(), "{}", wrapped(&text));
    }
    Ok(())
}

/// Both passes of one trace in one mode, with a manager and streams of their own.
fn replay(
    named: &Named,
    mode: DeviceAllocatorMode,
    ordinal: i32,
    bar: &ProgressBar,
) -> Result<json::Row> {
    let trace = &named.trace;
    let manager = MemoryManager::new(device::config()?.mode(mode))?;
    if mode == DeviceAllocatorMode::AsyncStreamOrdered {
        cuda::reset_current_pool(ordinal)?;
    }
    let streams = (0..trace.streams).map(|_| Stream::new());
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    let mut managed = Managed {
        manager: &manager,
        streams,
    };
    let mut passes = [Pass::default(); 2];
    for result in &mut passes {
        *result = pass(&mut managed, trace, |events| bar.inc(events as u64))?;
    }
    let usage = device::usage(&manager, mode, ordinal)?;
    for stream in &managed.streams {
        stream.synchronize()?;
    }
    drop(managed);
    manager.shutdown()?;
    Ok(json::Row {
        trace: named.name.clone(),
        mode: mode.to_string(),
        backend: memmgr::backend().to_string(),
        streams: trace.streams,
        events: trace.events.len(),
        ns_per_op: passes.map(|pass| pass.ns_per_op(trace.events.len())),
        peak_live_bytes: trace.peak_live,
        peak_reserved_bytes: usage.peak_reserved,
        waits: usage.waits,
        failures: passes.iter().map(|pass| pass.failures).sum(),
    })
}

fn print(named: &Named, rows: &[json::Row], notes: &[String], out: &mut impl Write) -> Result<()> {
    let trace = &named.trace;
    writeln!(
        out,
        "\n{}: {}, {}",
        named.name,
        counted(trace.events.len(), "event"),
        counted(trace.streams, "stream")
    )?;
    if trace.skipped.total() > 0 {
        let count = counted(trace.skipped.total(), "row");
        let text = format!("warning: {count} left out: {}", trace.skipped);
        writeln!(out, "{}", wrapped(&text))?;
    }
    for note in notes {
        writeln!(out, "{}", wrapped(note))?;
    }
    let mut table = Table::new(&[
        "mode",
        "events",
        "1st pass\nns/op",
        "2nd pass\nns/op",
        "peak live\nMiB",
        "reserved\nMiB",
        "reserved\n÷ live",
        "waits",
        "failures",
    ]);
    for row in rows {
        // Without the failed requests less was held than the trace needs.
        let mark = if row.failures > 0 { "*" } else { "" };
        let ratio = row.peak_reserved_bytes as f64 / row.peak_live_bytes as f64;
        table.row(vec![
            row.mode.clone(),
            row.events.to_string(),
            format!("{:.1}", row.ns_per_op[0]),
            format!("{:.1}", row.ns_per_op[1]),
            mib(row.peak_live_bytes),
            mib(row.peak_reserved_bytes),
            format!("{ratio:.3}{mark}"),
            row.waits.to_string(),
            row.failures.to_string(),
        ]);
    }
    write!(out, "{table}")?;
    if rows.iter().any(|row| row.failures > 0) {
        writeln!(out, "{FAILED}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out numbers instead of memory, up to a limit of live blocks.
    struct Fake {
        live: std::collections::BTreeSet<usize>,
        next: usize,
        limit: usize,
    }

    impl Allocator for Fake {
        fn allocate(&mut self, _: usize, _: u32) -> Result<Option<*mut c_void>, Error> {
            if self.live.len() == self.limit {
                return Ok(None);
            }
            self.next += 1;
            self.live.insert(self.next);
            Ok(Some(std::ptr::without_provenance_mut(self.next)))
        }

        fn free(&mut self, block: *mut c_void, _: u32) -> Result<(), Error> {
            assert!(self.live.remove(&block.addr()), "freed once");
            Ok(())
        }
    }

    fn trace() -> Trace {
        let text = format!(
            "{}\n0,0,allocate,0x1,1,0\n0,0,allocate,0x2,1,0\n0,0,allocate,0x3,1,0\n\
             0,0,free,0x3,1,0\n0,0,free,0x1,1,0\n0,0,allocate,0x1,1,0\n",
            crate::trace::HEADER
        );
        Trace::read(text.as_bytes()).expect("a trace")
    }

    #[test]
    fn a_pass_frees_everything_and_moves_on_by_every_event() {
        let mut fake = Fake {
            live: Default::default(),
            next: 0,
            limit: 9,
        };
        let mut moved = 0;
        let result = pass(&mut fake, &trace(), |n| moved += n).expect("no error");
        assert_eq!((result.failures, moved, fake.next), (0, 6, 4));
        assert!(fake.live.is_empty());
    }

    #[test]
    fn a_request_that_finds_no_memory_is_counted_and_its_free_left_out() {
        let mut fake = Fake {
            live: Default::default(),
            next: 0,
            limit: 2,
        };
        let result = pass(&mut fake, &trace(), |_| ()).expect("no error");
        assert_eq!((result.failures, fake.next), (1, 3));
        assert!(fake.live.is_empty());
    }

    #[test]
    fn traces_with_one_file_name_go_by_their_paths() {
        let paths = ["a/x.csv", "b/x.csv.gz", "b/y.csv"].map(PathBuf::from);
        assert_eq!(names(&paths), ["a/x.csv", "b/x.csv.gz", "y"]);
    }

    #[test]
    fn a_trace_goes_by_its_name_without_endings() {
        for path in ["a/gpt2.csv.gz", "gpt2.csv", "gpt2"] {
            assert_eq!(name_of(Path::new(path)), "gpt2");
        }
    }
}
