//! The command line: subcommands, options and what `--help` says of them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use memmgr::DeviceAllocatorMode;

pub use crate::bench_options::{BenchOptions, Reference, Workload};
use crate::replay::STEP;

/// Shows CUDA devices, demonstrates and measures the memory manager, and replays allocation traces.
///
/// The first line of the output says whether a GPU does the work or the simulated CUDA runtime (a build
/// with `--features sim`). There the times inside CUDA are modelled, or with CUDART_SIM_TIME=off those of
/// this machine, and say nothing about a GPU.
#[derive(Debug, Parser)]
#[command(name = "memmgr", version, after_help = EXAMPLES, max_term_width = 80)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:
  memmgr info
  memmgr demo --frames 200 --streams 8
  memmgr replay tests/data/traces/*.csv.gz --json replay.json
  memmgr replay program.csv --mode pool
  memmgr bench hot random --reference both
  memmgr report tests/data/traces/*.csv.gz -o report.html";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the CUDA runtime, the driver, the devices and what the memory manager can do on them
    ///
    /// MEMMGR_DEVICE_SOURCE=auto|malloc|vmm asks for a source of the memory of device pools; what each device is served from, and
    /// what that memory is not fit for, is said here.
    Info,
    Demo(DemoOptions),
    Replay(ReplayOptions),
    Bench(BenchOptions),
    Report(ReportOptions),
}

/// Process frames of mixed sizes without a memory manager and in each of its modes.
///
/// Frames from 480p to 4K go from page-locked memory to the device, are cropped, framed by a border and
/// tiled there, and come back, on several streams at a time; every byte of every result is verified.
/// This is done once with plain CUDA calls for each frame and once in each mode of the memory manager,
/// and one table compares them. The library's settings (MEMMGR_PINNED_POOL_LIMIT and others) hold for the
/// memory manager; those that are set and do nothing here are named on standard error.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  memmgr demo --frames 200 --streams 8 --seed 7")]
pub struct DemoOptions {
    /// How many frames to process
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = frames, allow_negative_numbers = true)]
    pub frames: usize,
    /// On how many streams, each with one frame in flight (1 to 64)
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = streams, allow_negative_numbers = true)]
    pub streams: usize,
    /// Decides sizes and contents: the same seed gives the same frames
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    pub seed: u64,
    /// The device to use, as `memmgr info` numbers them
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub device: i32,
}

/// Repeat the allocations of a recorded program and measure them.
///
/// A trace is a log of RMM's logging resource adaptor: CSV, plain or compressed with gzip, with the
/// header `Thread,Time,Action,Pointer,Size,Stream`. Its streams are kept apart. Each trace runs twice in
/// each mode, or as often as --passes says; the first pass begins with an empty manager, and each frees
/// all that it has allocated. Rows that free a pointer which the log did not allocate, recorded failures
/// and requests of zero bytes are left out with a warning.
///
/// A simulated device gets several times the memory that the largest trace needs, unless
/// CUDART_SIM_MEMORY is set. Requests that a device cannot meet are counted and reported.
///
/// No work runs in the streams, unless --lag asks for it; --capacity measures nothing, but looks for the
/// smallest pool that does.
///
/// The library's settings hold here too, as far as they are about device pools: MEMMGR_DEVICE_POOL_LIMIT=8G
/// sets a limit, MEMMGR_DEVICE_SOURCE=malloc takes segments of cudaMalloc instead of virtual memory. With
/// --lag those two are used, with --capacity the source and MEMMGR_REUSE. Others that are set are named on
/// standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memmgr replay tests/data/traces/*.csv.gz
  memmgr replay program.csv --mode pool --json replay.json
  memmgr replay program.csv --mode pool --lag 0.5
  memmgr replay program.csv --mode pool --capacity 16G
  memmgr replay program.csv --mode pool --snapshot peak.pickle")]
pub struct ReplayOptions {
    /// Traces in RMM's log format, .csv or .csv.gz
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// The allocator mode
    #[arg(long, value_enum, default_value_t = ModeChoice::All)]
    pub mode: ModeChoice,
    /// How often each trace runs (1 to 1000): times of the first and the last pass are shown
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = passes, conflicts_with_all = ["lag", "capacity"],
        allow_negative_numbers = true)]
    pub passes: usize,
    /// Let work of so many milliseconds follow each allocation, on its stream
    ///
    /// So work is in flight when blocks are freed: a fill that takes about that long on an idle GPU, or a
    /// modelled kernel on the simulator. The wall time of both passes, until all work has finished, and
    /// what is held are shown for the pool, for the pool that waits before it grows (PreferMemory), for
    /// the pool with a limit of 1.5 x the peak of live bytes, and for one pool per stream, to which the
    /// others are compared.
    #[arg(long, value_name = "MS", value_parser = lag, allow_negative_numbers = true)]
    pub lag: Option<Duration>,
    /// How often --lag runs everything, in turns: the shortest times count (1 to 100)
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = rounds, requires = "lag", conflicts_with = "capacity",
        allow_negative_numbers = true)]
    pub rounds: usize,
    /// Find the smallest limit of the pool, of at most so many bytes, with which each trace passes
    ///
    /// As 512M or 16G, at least 2M. By bisection to 2 MiB: the trace is replayed with a limit again and again, until
    /// the first request that fails. It is the limit of the manager's own pool, so that it needs no
    /// simulator and no smaller device; other modes have no limit. With --lag, work is in flight.
    #[arg(long, value_name = "BYTES", value_parser = capacity, allow_negative_numbers = true)]
    pub capacity: Option<u64>,
    /// Also write the results to this file, as JSON: an array with one row per trace and mode
    ///
    /// A file is replaced as a whole; a link is followed; devices and pipes are written to. `-` is standard
    /// output: everything else goes to standard error then. It must not be one of the traces.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the figures of the last trace and mode to this file, in Prometheus' text format
    ///
    /// As they are when all passes are over. The file is written as that of --json; `-` is standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lag", "capacity"])]
    pub prometheus: Option<PathBuf>,
    /// Also write a snapshot of the memory, with the calls before it, for `memmgr report` and PyTorch's viewer
    ///
    /// Of the moment when the most bytes are live, in the last pass. JSON if the name ends in .json,
    /// otherwise a pickle as torch.cuda.memory._dump_snapshot writes it. For one trace in one mode. Every
    /// call is recorded then, which the times include.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lag", "capacity"])]
    pub snapshot: Option<PathBuf>,
    /// The device to use, as `memmgr info` numbers them
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub device: i32,
}

/// Make a page about recorded allocations: how much, when, who, why not less.
///
/// An input is an allocation log in RMM's CSV format (MEMMGR_LOG_FILE writes one), a memory snapshot (what
/// torch.cuda.memory._dump_snapshot writes, or a manager, also as JSON), or what `memmgr replay --json`
/// writes; its content tells. Each may be compressed with gzip. The page is one HTML file that needs no network. No device is used.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memmgr report tests/data/traces/*.csv.gz -o report.html
  memmgr report snapshot.pickle -o report.html --svg pictures")]
pub struct ReportOptions {
    /// Allocation logs, memory snapshots, results of replays
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<PathBuf>,
    /// The page; it must not be one of the inputs
    ///
    /// A file is replaced as a whole. `-` is standard output: everything else goes to standard error then.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Also draw each chart as an SVG file in this folder
    #[arg(long, value_name = "FOLDER")]
    pub svg: Option<PathBuf>,
}

/// More streams than this would only hold memory.
const MOST_STREAMS: usize = 64;

fn frames(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| "it must be a whole number, at least 1".to_owned())
}

fn streams(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=MOST_STREAMS).contains(count))
        .ok_or_else(|| format!("it must be a whole number from 1 to {MOST_STREAMS}"))
}

/// The longest that work after an allocation may take.
const LONGEST_LAG: f64 = 60_000.0;

fn lag(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|millis| *millis > 0.0 && *millis <= LONGEST_LAG)
        .map(|millis: f64| Duration::from_secs_f64(millis / 1000.0))
        .ok_or_else(|| {
            format!("it must be a number of milliseconds, above 0 and at most {LONGEST_LAG}")
        })
}

fn rounds(text: &str) -> Result<usize, String> {
    count(text, 100)
}

fn passes(text: &str) -> Result<usize, String> {
    count(text, 1000)
}

fn count(text: &str, most: usize) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| format!("it must be a whole number from 1 to {most}"))
}

fn capacity(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => Some(0),
        "K" | "KIB" => Some(10),
        "M" | "MIB" => Some(20),
        "G" | "GIB" => Some(30),
        "T" | "TIB" => Some(40),
        _ => None,
    };
    let bytes = |shift: u32| number.parse::<u64>().ok()?.checked_mul(1 << shift);
    shift
        .and_then(bytes)
        .filter(|bytes| (STEP..1 << 62).contains(bytes))
        .ok_or_else(|| "it must be a number of bytes, at least 2M, such as 512M or 16G".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// One allocator mode, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeChoice {
    /// The manager's own best-fit pool
    Pool,
    /// cudaMallocAsync on the device's memory pool
    Async,
    /// cudaMallocFromPoolAsync on a pool that the manager owns
    CudaPool,
    /// All three, one after the other
    All,
}

impl ModeChoice {
    pub fn modes(self) -> &'static [DeviceAllocatorMode] {
        match self {
            Self::Pool => &[DeviceAllocatorMode::BestFitPool],
            Self::Async => &[DeviceAllocatorMode::AsyncStreamOrdered],
            Self::CudaPool => &[DeviceAllocatorMode::CudaAsyncPool],
            Self::All => &DeviceAllocatorMode::ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn lags_and_capacities_are_read_within_their_bounds() {
        assert_eq!(lag("0.5"), Ok(Duration::from_micros(500)));
        for text in ["0", "-1", "nan", "inf", "60001", "1ms", ""] {
            assert!(lag(text).is_err(), "{text}");
        }
        assert_eq!(capacity("2097152"), Ok(2 << 20));
        assert_eq!(capacity("16G"), Ok(16 << 30));
        assert_eq!(capacity("3MiB"), Ok(3 << 20));
        for text in [
            "0",
            "1",
            "2097151",
            "-1",
            "1.5G",
            "G",
            "9999999999T",
            "4E",
            "",
            "4611686018427387904",
        ] {
            assert!(capacity(text).is_err(), "{text}");
        }
    }

    #[test]
    fn help_texts_fit_a_terminal() {
        for name in ["info", "demo", "replay", "bench", "report"] {
            let mut command = Options::command();
            let sub = command.find_subcommand_mut(name).expect(name);
            let help = sub.clone().term_width(80).render_long_help().to_string();
            assert!(
                help.lines().all(|line| line.chars().count() <= 80),
                "{help}"
            );
        }
    }
}
