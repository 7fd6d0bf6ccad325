//! `memmgr replay --lag`: each allocation is followed by work on its stream, so that work is in flight when blocks are
//! freed. What a pool holds then, and what its streams lose, is compared with one pool per stream, which never waits.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io::Write;

use indicatif::ProgressBar;
use memmgr::{Config, DeviceAllocatorMode, Error, MemoryManager, Reuse, Stream};
use serde::Serialize;

use super::pass::{Allocator, Managed, is_out_of_memory};
use super::work::{Lagging, OnStreams, Work};
use super::{Json, Named, cannot_write};
use crate::cuda;
use crate::device;
use crate::error::{Failure, Result};
use crate::json::Waste;
use crate::options::ReplayOptions;
use crate::progress;
use crate::settings::Settings;
use crate::table::{Table, counted, mib, people, wrapped};
use crate::trace::Trace;

/// What the columns hold, below the last table.
const LEGEND: &str = "\
pool         the default: it grows before it waits for another stream's work
pool, memory PreferMemory: it waits before it grows
pool, 1.5 x  the default, with a limit of 1.5 x the peak of live bytes
per stream   the reference: a pool for each stream, which never waits for others
pass         wall time until all work has finished, the shortest of all rounds;
             the 1st begins with nothing
÷ reference  the time of both passes over that of the reference
reserved     the most bytes held from the device at one time
waits        requests that waited for another stream's work; only pools tell
";

/// A manager for each stream: no stream ever waits for another.
struct PerStream {
    managers: Vec<MemoryManager>,
    streams: Vec<Stream>,
    /// Whose each live block is.
    owners: HashMap<usize, u32, rustc_hash::FxBuildHasher>,
}

impl PerStream {
    fn new(streams: usize, config: &Config) -> Result<Self> {
        let managers = (0..streams).map(|_| MemoryManager::new(config.clone()));
        let streams = (0..streams).map(|_| Stream::new());
        Ok(Self {
            managers: managers.collect::<Result<_, _>>()?,
            streams: streams.collect::<Result<_, _>>()?,
            owners: HashMap::default(),
        })
    }

    fn owner(&self, block: *mut c_void) -> &MemoryManager {
        // Who frees what nobody has allocated is told so by any of them.
        let owner = self.owners.get(&block.addr()).copied().unwrap_or(0);
        &self.managers[owner as usize]
    }
}

impl Allocator for PerStream {
    fn allocate(&mut self, size: usize, stream: u32) -> Result<Option<*mut c_void>, Error> {
        let index = stream as usize;
        match self.managers[index].allocate_device_on(size, &self.streams[index]) {
            Ok(block) => {
                self.owners.insert(block.addr(), stream);
                Ok(Some(block))
            }
            Err(error) if is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, block: *mut c_void, stream: u32) -> Result<(), Error> {
        // SAFETY: `pass` frees a block once; what uses it is in the stream that it was allocated on, and recorded where
        // another frees it.
        unsafe {
            self.owner(block)
                .free_device_on(block, &self.streams[stream as usize])?;
        }
        self.owners.remove(&block.addr());
        Ok(())
    }
}

impl OnStreams for PerStream {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn record_use(&self, block: *mut c_void, stream: u32) -> Result<(), Error> {
        (self.owner(block)).record_use(block, &self.streams[stream as usize])
    }
}

/// One trace with one allocator.
#[derive(Clone, Debug, Serialize)]
struct Row {
    trace: String,
    /// As in the table: `pool`, `pool, memory`, `pool, 1.5 x`, `per stream`, `async` or `cuda-pool`.
    allocator: String,
    backend: String,
    streams: usize,
    events: usize,
    lag_ms: f64,
    /// The wall time of the first and of the second pass, until all work has finished: the shortest of all rounds.
    wall_ms: [f64; 2],
    /// Both passes over those of the reference.
    wall_over_reference: Option<f64>,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    reserved_over_live: f64,
    waits: u64,
    failures: u64,
    internal_waste_bytes: Option<u64>,
    external_waste_bytes: Option<u64>,
    pending_bytes: Option<u64>,
    largest_miss_bytes: Option<u64>,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq)]
enum Setup {
    Managed(DeviceAllocatorMode, Reuse),
    /// With a limit of [`MOST`] times the peak of live bytes.
    Limited,
    PerStream,
}

const REFERENCE: &str = "per stream";
/// What a pool with a limit may hold, over the peak of live bytes.
const MOST: f64 = 1.5;

impl Setup {
    /// For the modes that were asked for.
    fn all(modes: &[DeviceAllocatorMode]) -> Vec<Self> {
        let mut all = Vec::new();
        for mode in modes {
            all.push(Self::Managed(*mode, Reuse::PreferSpeed));
            if *mode == DeviceAllocatorMode::BestFitPool {
                all.push(Self::Managed(*mode, Reuse::PreferMemory));
                all.push(Self::Limited);
            }
        }
        all.push(Self::PerStream);
        all
    }

    fn name(self) -> String {
        match self {
            Self::Managed(mode, Reuse::PreferSpeed) => mode.to_string(),
            Self::Managed(mode, Reuse::PreferMemory) => format!("{mode}, memory"),
            Self::Limited => format!("{}, {MOST} x", DeviceAllocatorMode::BestFitPool),
            Self::PerStream => REFERENCE.to_owned(),
        }
    }

    /// The mode and the settings of one manager.
    fn config(self, settings: &Settings, peak_live: u64) -> (DeviceAllocatorMode, Config) {
        let (mode, reuse) = match self {
            Self::Managed(mode, reuse) => (mode, reuse),
            Self::Limited | Self::PerStream => Default::default(),
        };
        let config = settings.config().mode(mode).reuse(reuse);
        if self != Self::Limited {
            return (mode, config);
        }
        let own = (peak_live as f64 * MOST) as usize;
        let limit = config.device_pool_limit.map_or(own, |of| of.min(own));
        (mode, config.device_pool_limit(Some(limit)))
    }

    /// Both passes.
    fn run(
        self,
        named: &Named,
        settings: &Settings,
        work: &Work,
        ordinal: i32,
        bar: &ProgressBar,
    ) -> Result<Row> {
        let trace = &named.trace;
        let moved = |events| bar.inc(events as u64);
        let mut row = Row {
            trace: named.name.clone(),
            allocator: self.name(),
            backend: memmgr::backend().to_string(),
            streams: trace.streams,
            events: trace.events.len(),
            lag_ms: work.length.as_secs_f64() * 1000.0,
            wall_ms: [0.0; 2],
            wall_over_reference: None,
            peak_live_bytes: trace.peak_live,
            peak_reserved_bytes: 0,
            reserved_over_live: 0.0,
            waits: 0,
            failures: 0,
            internal_waste_bytes: None,
            external_waste_bytes: None,
            pending_bytes: None,
            largest_miss_bytes: None,
        };
        match self {
            Self::Managed(..) | Self::Limited => {
                let (mode, config) = self.config(settings, trace.peak_live);
                let manager = MemoryManager::new(config)?;
                if mode == DeviceAllocatorMode::AsyncStreamOrdered {
                    cuda::reset_current_pool(ordinal)?;
                }
                let managed = Managed::new(&manager, trace.streams)?;
                let mut lagging = Lagging::new(managed, work);
                row.passes(&mut lagging, trace, moved)?;
                let usage = device::usage(&manager, mode, ordinal)?;
                (row.peak_reserved_bytes, row.waits) = (usage.peak_reserved, usage.waits);
                if let Some(at_peak) = lagging.inner.at_peak
                    && mode == DeviceAllocatorMode::BestFitPool
                {
                    let waste = Waste::from(&at_peak);
                    row.internal_waste_bytes = Some(waste.internal);
                    row.external_waste_bytes = Some(waste.external);
                    row.pending_bytes = Some(waste.pending);
                    row.largest_miss_bytes = Some(waste.largest_miss);
                }
                drop(lagging);
                manager.shutdown()?;
            }
            Self::PerStream => {
                // Its managers share the device, so that a limit of each would be none.
                let config = (settings.config())
                    .device_pool_limit(None)
                    .device_pool_limit_share(None);
                let per_stream = PerStream::new(trace.streams, &config)?;
                let mut lagging = Lagging::new(per_stream, work);
                row.passes(&mut lagging, trace, moved)?;
                for manager in &lagging.inner.managers {
                    let mode = DeviceAllocatorMode::BestFitPool;
                    let usage = device::usage(manager, mode, ordinal)?;
                    // None of them has given anything back: they have held it all at one time.
                    row.peak_reserved_bytes += usage.peak_reserved;
                    row.waits += usage.waits;
                }
                for manager in &lagging.inner.managers {
                    manager.shutdown()?;
                }
            }
        }
        row.reserved_over_live = row.peak_reserved_bytes as f64 / row.peak_live_bytes as f64;
        Ok(row)
    }
}

impl Row {
    fn passes<A: OnStreams>(
        &mut self,
        lagging: &mut Lagging<'_, A>,
        trace: &Trace,
        mut moved: impl FnMut(usize),
    ) -> Result<()> {
        for wall in &mut self.wall_ms {
            let (taken, pass) = lagging.pass(trace, &mut moved)?;
            *wall = taken.as_secs_f64() * 1000.0;
            self.failures += pass.failures;
        }
        Ok(())
    }

    /// Takes another round of the same in: what was fastest, and the most of all else.
    fn merge(&mut self, other: Self) {
        let wall_ms = [0, 1].map(|pass| self.wall_ms[pass].min(other.wall_ms[pass]));
        let (waits, failures) = (
            self.waits.max(other.waits),
            self.failures.max(other.failures),
        );
        if other.peak_reserved_bytes > self.peak_reserved_bytes {
            *self = other;
        }
        (self.wall_ms, self.waits, self.failures) = (wall_ms, waits, failures);
    }

    fn wall(&self) -> f64 {
        self.wall_ms.iter().sum()
    }

    fn waste(&self) -> Option<String> {
        let waste = Waste {
            internal: self.internal_waste_bytes?,
            external: self.external_waste_bytes?,
            pending: self.pending_bytes?,
            largest_miss: self.largest_miss_bytes?,
        };
        Some(format!("{}: {waste}", self.allocator))
    }
}

/// Replays all traces with work in flight.
pub fn run(
    options: &ReplayOptions,
    settings: &Settings,
    traces: &[Named],
    work: &Work,
    json: Option<Json<'_>>,
    out: &mut impl Write,
) -> Result<()> {
    let mut modes = Vec::new();
    for mode in options.mode.modes() {
        let granted = device::granted(*mode)?;
        if !modes.contains(&granted) {
            modes.push(granted);
        }
    }
    let setups = Setup::all(&modes);
    let events: usize = traces.iter().map(|t| t.trace.events.len()).sum();
    let bar = progress::bar(2 * events * setups.len() * options.rounds);
    let mut rows = Vec::new();
    for named in traces {
        bar.set_message(named.name.clone());
        let mut of_trace: Vec<Row> = Vec::new();
        // They take turns, so that what else the machine does meets them all.
        for _ in 0..options.rounds {
            for (index, setup) in setups.iter().enumerate() {
                let row = setup.run(named, settings, work, options.device, &bar);
                let row = row.map_err(|failure| {
                    Failure::message(format!("{} with {}: {failure}", named.name, setup.name()))
                })?;
                match of_trace.get_mut(index) {
                    None => of_trace.push(row),
                    Some(best) => best.merge(row),
                }
            }
        }
        let reference = of_trace.last().map_or(0.0, Row::wall);
        for row in &mut of_trace {
            row.wall_over_reference = (reference > 0.0).then(|| row.wall() / reference);
        }
        bar.suspend(|| print(named, work, &of_trace, out))?;
        rows.extend(of_trace);
    }
    bar.finish_and_clear();
    write!(out, "\n{LEGEND}")?;
    if let Some((path, output)) = json {
        (output.write(&rows)).map_err(|error| cannot_write(path, error))?;
    }
    Ok(())
}

fn print(named: &Named, work: &Work, rows: &[Row], out: &mut impl Write) -> Result<()> {
    let trace = &named.trace;
    let text = format!(
        "{}: {}, {}, peak live {}, {} ms of work behind each allocation",
        named.name,
        counted(trace.events.len(), "event"),
        counted(trace.streams, "stream"),
        people(trace.peak_live),
        work.length.as_secs_f64() * 1000.0
    );
    writeln!(out, "\n{}", wrapped(&text))?;
    let mut table = Table::new(&[
        "allocator",
        "1st pass\nms",
        "2nd pass\nms",
        "÷ refer-\nence",
        "reserved\nMiB",
        "reserved\n÷ live",
        "waits",
        "failures",
    ]);
    for row in rows {
        table.row(vec![
            row.allocator.clone(),
            format!("{:.1}", row.wall_ms[0]),
            format!("{:.1}", row.wall_ms[1]),
            (row.wall_over_reference).map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}")),
            mib(row.peak_reserved_bytes),
            format!("{:.3}", row.reserved_over_live),
            row.waits.to_string(),
            row.failures.to_string(),
        ]);
    }
    write!(out, "{table}")?;
    for row in rows {
        if let Some(text) = row.waste() {
            writeln!(out, "{}", wrapped(&text))?;
        }
        if let Some(ratio) = row
            .wall_over_reference
            .filter(|_| row.allocator != REFERENCE)
        {
            let text = format!(
                "{}: reserved ÷ live {:.2} at {ratio:.3} x the wall time of one pool per stream",
                row.allocator, row.reserved_over_live
            );
            writeln!(out, "{}", wrapped(&text))?;
        }
    }
    out.flush()?;
    Ok(())
}
