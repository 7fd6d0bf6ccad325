//! The command line: subcommands, options and what `--help` says of them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use memmgr::DeviceAllocatorMode;

pub use crate::bench_options::{BenchOptions, Reference, Workload};

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
/// and one table compares them.
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
/// each mode; the first pass begins with an empty manager. Rows that free a pointer which the log did
/// not allocate, recorded failures and requests of zero bytes are left out with a warning.
///
/// A simulated device gets several times the memory that the largest trace needs, unless
/// CUDART_SIM_MEMORY is set. Requests that a device cannot meet are counted and reported.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memmgr replay tests/data/traces/*.csv.gz
  memmgr replay program.csv --mode pool --json replay.json")]
pub struct ReplayOptions {
    /// Traces in RMM's log format, .csv or .csv.gz
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// The allocator mode
    #[arg(long, value_enum, default_value_t = ModeChoice::All)]
    pub mode: ModeChoice,
    /// Also write the results to this file, as JSON: an array with one row per trace and mode
    ///
    /// A file is replaced as a whole; a link is followed; devices and pipes are written to. `-` is standard
    /// output: everything else goes to standard error then. It must not be one of the traces.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
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
/// An input is an allocation log in RMM's CSV format, a PyTorch memory snapshot (what
/// torch.cuda.memory._dump_snapshot writes), or what `memmgr replay --json` writes; its content tells. Each
/// may be compressed with gzip. The page is one HTML file that needs no network. No device is used.
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
