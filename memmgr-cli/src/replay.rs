//! `memmgr replay`: repeats the allocations of recorded programs in each allocator mode and measures
//! them.
//!
//! Each stream of the trace gets a stream of its own; no work is submitted to them, so what is measured
//! is the allocator alone. Every trace runs several times in a mode: the first pass finds an empty manager and
//! includes growing, the others find what was left. Only the calls are timed; the progress
//! bar moves between batches of them.
//!
//! With `--lag` work follows each allocation (`lag.rs`); `--capacity` looks for the smallest pool with which
//! a trace passes (`capacity.rs`).

mod capacity;
mod lag;
pub mod pass;
mod work;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use memmgr::{DeviceAllocatorMode, MemoryManager, Stats};

use crate::cuda;
use crate::device::{self, Machine};
use crate::error::{Failure, Result};
use crate::json::{self, Output};
use crate::options::ReplayOptions;
use crate::progress;
use crate::settings::{self, Settings};
use crate::table::{Table, counted, mib, people, wrapped};
use crate::trace::Trace;

pub use capacity::STEP;
pub use pass::{Allocator, Managed, Pass, pass};

/// What the columns hold, below the last table.
const LEGEND: &str = "\
ns/op      time of one call; the 1st pass begins with an empty manager
peak live  the most bytes live at one time, as the trace requests them
reserved   the most bytes held from the device at one time
waits      requests that waited for another stream's work; only pool tells
failures   requests of all passes that the device or a limit could not meet
";

/// Below a table with failures.
const FAILED: &str =
    "* not comparable: some requests failed, so less was held than the trace needs";

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
        Ok(trace) => {
            if let Some(warning) = trace.warning() {
                warn(path, &warning);
            }
            Ok(Named { name, trace })
        }
        Err(error) => Err(Failure::message(format!("{}: {error}", path.display()))),
    };
    paths.iter().zip(names(paths)).map(read).collect()
}

/// Says on standard error what was odd about a file.
pub fn warn(path: &Path, warning: &str) {
    let text = format!("warning: {}: {warning}", path.display());
    // Where standard error is closed nobody can be told.
    let _ = writeln!(io::stderr(), "{}", wrapped(&text));
}

/// Where results go, by the path that was named.
type Json<'a> = (&'a Path, Output);

/// What is said of a file for results that cannot be written. As for all that goes to standard output, a
/// reader who has seen enough is no failure.
pub fn cannot_write(path: &Path, error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::Output(error);
    }
    Failure::message(format!("cannot write {}: {error}", path.display()))
}

/// The settings of the environment that a replay uses. It has no pinned memory, and `--mode` names the mode.
fn used(options: &ReplayOptions) -> Vec<&'static str> {
    let mut used = vec![settings::DEVICE_SOURCE];
    let has_pool = (options.mode.modes()).contains(&DeviceAllocatorMode::BestFitPool);
    // The search is for a limit, and what it compares with `--lag` is set up in ways of its own.
    if options.capacity.is_some() {
        used.push(settings::REUSE);
        return used;
    }
    if has_pool {
        used.push(settings::DEVICE_POOL_LIMIT);
    }
    if options.lag.is_none() {
        used.extend([
            settings::DEVICE_POOL_SIZE,
            settings::RELEASE_THRESHOLD,
            settings::RELEASE_AFTER,
            settings::REUSE,
            settings::CALL_SITES,
            settings::LOG_FILE,
            settings::EVENT_RING,
        ]);
    }
    used
}

/// Looks whether results can be written there.
fn prepared<'a>(path: Option<&'a Path>, traces: &[PathBuf]) -> Result<Option<Json<'a>>> {
    let Some(path) = path else { return Ok(None) };
    let output = Output::prepare(path, traces).map_err(|error| cannot_write(path, error))?;
    Ok(Some((path, output)))
}

/// Replays all traces in all modes that were asked for.
pub fn run(options: &ReplayOptions, machine: Machine, out: &mut impl Write) -> Result<()> {
    let json = prepared(options.json.as_deref(), &options.traces)?;
    let prometheus = prepared(options.prometheus.as_deref(), &options.traces)?;
    if let (Some((path, one)), Some((_, other))) = (&json, &prometheus)
        && one.is_same(other)
    {
        let error = io::Error::other("--json and --prometheus name the same file");
        return Err(cannot_write(path, error));
    }
    let snapshot = options.snapshot.as_deref();
    if let Some(path) = snapshot {
        check_snapshot(path, options)?;
    }
    let settings = Settings::read("replay", &used(options))?;
    let traces = load(&options.traces)?;
    let peak = traces.iter().map(|t| t.trace.peak_live).max().unwrap_or(0);
    // A device that is larger than the limit that is looked for.
    let needed = peak.max(options.capacity.unwrap_or(0) / 4);
    let modelled = machine.time_is_modelled();
    if let Some(note) = machine.prepare(Some((needed, "the largest trace")))? {
        writeln!(out, "{note}")?;
    }
    device::select(options.device)?;
    for limit in settings.limits()? {
        writeln!(out, "{}", wrapped(&limit))?;
    }
    let work = match options.lag {
        None => None,
        Some(length) => Some(work::Work::new(length, modelled)?),
    };
    if options.capacity.is_some() {
        return capacity::run(options, &settings, &traces, work.as_ref(), json, out);
    }
    if let Some(work) = &work {
        return lag::run(options, &settings, &traces, work, json, out);
    }
    let modes = options.mode.modes();
    let events: usize = traces.iter().map(|t| t.trace.events.len()).sum();
    let bar = progress::bar(options.passes * events * modes.len());
    let (mut rows, mut last) = (Vec::new(), Stats::default());
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
                    bar.inc((options.passes * named.trace.events.len()) as u64);
                    continue;
                }
            }
            let row = replay(named, granted, options, &settings, &bar, &mut last);
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
    if let Some((path, output)) = prometheus {
        output
            .write_bytes(last.to_prometheus().as_bytes())
            .map_err(|error| cannot_write(path, error))?;
    }
    Ok(())
}

/// Whether a snapshot can be taken of what is asked for, and be written.
fn check_snapshot(path: &Path, options: &ReplayOptions) -> Result<()> {
    if options.traces.len() != 1 || options.mode.modes().len() != 1 {
        return Err(Failure::message(
            "--snapshot is of one trace in one mode: name one trace, and --mode pool".to_owned(),
        ));
    }
    if path == "-" {
        return Err(Failure::message(
            "--snapshot needs the name of a file".to_owned(),
        ));
    }
    let prepared = Output::prepare(path, &options.traces);
    prepared
        .map(drop)
        .map_err(|error| cannot_write(path, error))
}

/// Says on standard error which rows are no measure of their mode, and how much memory there was.
fn warn_of_failures(rows: &[json::Row], ordinal: i32) -> Result<()> {
    for row in rows.iter().filter(|row| row.failures > 0) {
        let (_, total) = cuda::device_memory()?;
        let room = match row.limit_bytes {
            Some(limit) => format!("the limit of the pool is {}", people(limit)),
            None => format!("device {ordinal} has {}", people(total)),
        };
        let text = format!(
            "warning: {}, {}: {} failed; {room}",
            row.trace,
            row.mode,
            counted(row.failures as usize, "request"),
        );
        // Where standard error is closed nobody can be told.
        let _ = writeln!(io::stderr(), "{}", wrapped(&text));
    }
    Ok(())
}

/// All passes of one trace in one mode, with a manager and streams of their own, whose figures afterwards are `last`.
fn replay(
    named: &Named,
    mode: DeviceAllocatorMode,
    options: &ReplayOptions,
    settings: &Settings,
    bar: &ProgressBar,
    last: &mut Stats,
) -> Result<json::Row> {
    let (trace, ordinal) = (&named.trace, options.device);
    let mut config = settings.config().mode(mode);
    if options.snapshot.is_some() {
        // The last pass and the one before, and the growth that they need.
        config.event_ring = trace.events.len().saturating_mul(3).saturating_add(10_000);
    }
    let manager = MemoryManager::new(config)?;
    if mode == DeviceAllocatorMode::AsyncStreamOrdered {
        cuda::reset_current_pool(ordinal)?;
    }
    let mut managed = Managed::new(&manager, trace.streams)?;
    managed.takes_snapshot = options.snapshot.is_some();
    let mut passes: Vec<Pass> = Vec::with_capacity(options.passes);
    let mut reserved = Vec::with_capacity(options.passes);
    let mut remaps = Vec::with_capacity(options.passes);
    for _ in 0..options.passes {
        passes.push(pass(&mut managed, trace, |events| {
            bar.inc(events as u64);
        })?);
        let usage = device::usage(&manager, mode, ordinal)?;
        reserved.push(usage.peak_reserved);
        remaps.push(usage.remaps);
    }
    let usage = device::usage(&manager, mode, ordinal)?;
    for stream in &managed.streams {
        stream.synchronize()?;
    }
    if let (Some(path), Some(snapshot)) = (&options.snapshot, managed.snapshot.take()) {
        let json = path.extension().is_some_and(|ending| ending == "json");
        let written = match json {
            true => snapshot.write_json(path),
            false => snapshot.write_pickle(path),
        };
        written.map_err(|error| cannot_write(path, error))?;
    }
    let own = mode == DeviceAllocatorMode::BestFitPool;
    let limit = settings.device_limit()?.filter(|_| own);
    let waste = managed
        .at_peak
        .filter(|_| own)
        .as_ref()
        .map(json::Waste::from);
    drop(managed);
    *last = manager.stats();
    manager.shutdown()?;
    Ok(json::Row {
        trace: named.name.clone(),
        mode: mode.to_string(),
        backend: memmgr::backend().to_string(),
        streams: trace.streams,
        events: trace.events.len(),
        ns_per_op: (passes.iter())
            .map(|pass| pass.ns_per_op(trace.events.len()))
            .collect(),
        peak_live_bytes: trace.peak_live,
        peak_reserved_bytes: usage.peak_reserved,
        reserved_by_pass_bytes: reserved,
        remaps_by_pass: own.then_some(remaps),
        limit_bytes: limit,
        waits: usage.waits,
        failures: passes.iter().map(|pass| pass.failures).sum(),
        internal_waste_bytes: waste.as_ref().map(|of| of.internal),
        external_waste_bytes: waste.as_ref().map(|of| of.external),
        pending_bytes: waste.as_ref().map(|of| of.pending),
        largest_miss_bytes: waste.as_ref().map(|of| of.largest_miss),
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
        "last pass\nns/op",
        "peak live\nMiB",
        "reserved\nMiB",
        "reserved\n÷ live",
        "waits",
        "failures",
    ]);
    let time = |ns: Option<&f64>| ns.map_or_else(String::new, |ns| format!("{ns:.1}"));
    for row in rows {
        // Without the failed requests less was held than the trace needs.
        let mark = if row.failures > 0 { "*" } else { "" };
        let ratio = row.peak_reserved_bytes as f64 / row.peak_live_bytes as f64;
        table.row(vec![
            row.mode.clone(),
            row.events.to_string(),
            time(row.ns_per_op.first()),
            time(row.ns_per_op.last()),
            mib(row.peak_live_bytes),
            mib(row.peak_reserved_bytes),
            format!("{ratio:.3}{mark}"),
            row.waits.to_string(),
            row.failures.to_string(),
        ]);
    }
    write!(out, "{table}")?;
    for row in rows {
        for text in row.waste().into_iter().chain(row.grown()) {
            writeln!(out, "{}", wrapped(&text))?;
        }
    }
    if rows.iter().any(|row| row.failures > 0) {
        writeln!(out, "{FAILED}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
