//! The command line of `memmgr bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Measure what the memory manager itself costs.
///
/// Workloads of raw calls on a stream, which draw the same numbers in every run. Each case begins with a
/// new manager and passes of warm-up, of 100,000 calls together where it is alone on its thread; the median
/// of the passes counts, and the smallest and the largest are shown beside it. A figure is worth something only beside another of the same run: --reference
/// measures plain best-fit allocators on the same calls.
///
/// MEMMGR_DEVICE_SOURCE=malloc measures pools of segments of cudaMalloc instead of virtual memory; other settings of the
/// library are not used. The simulator's ordering checker is off while benchmarks run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memmgr bench --quick
  memmgr bench hot random holes --reference btree --json bench.json
  memmgr bench replay --traces tests/data/traces --reference both")]
pub struct BenchOptions {
    /// The workloads; all of them where none is named
    #[arg(value_enum, value_name = "WORKLOAD")]
    workloads: Vec<Workload>,
    /// Also measure this allocator: exact best fit without a lock or streams
    #[arg(long, value_enum, value_name = "NAME")]
    reference: Vec<ReferenceChoice>,
    /// Traces for `replay`, in RMM's log format: .csv or .csv.gz, or folders of them
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub traces: Vec<PathBuf>,
    /// Fewer and smaller cases
    #[arg(long)]
    pub quick: bool,
    /// Passes of each figure (usually 5; with threads 9)
    #[arg(long, value_name = "N", value_parser = passes, allow_negative_numbers = true)]
    pub passes: Option<usize>,
    /// Also write the results to this file, as JSON: an array with one row per figure
    ///
    /// `-` is standard output: everything else goes to standard error then.
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
    /// Passes for a profiler that counts instructions (`cargo xtask instructions`)
    #[arg(long, hide = true)]
    pub counted: bool,
}

impl BenchOptions {
    /// The workloads, each once, in the order of their list.
    pub fn workloads(&self) -> Vec<Workload> {
        let all = Workload::value_variants().iter().copied();
        if self.workloads.is_empty() {
            return all.collect();
        }
        all.filter(|workload| self.workloads.contains(workload))
            .collect()
    }

    /// Whether this workload was asked for by its name.
    pub fn names(&self, workload: Workload) -> bool {
        self.workloads.contains(&workload)
    }

    /// The references to measure.
    pub fn references(&self) -> &'static [Reference] {
        let wants = |choice| {
            self.reference.contains(&choice) || self.reference.contains(&ReferenceChoice::Both)
        };
        match (wants(ReferenceChoice::List), wants(ReferenceChoice::Btree)) {
            (false, false) => &[],
            (true, false) => &[Reference::List],
            (false, true) => &[Reference::Btree],
            (true, true) => &[Reference::List, Reference::Btree],
        }
    }
}

fn passes(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=1000).contains(count))
        .ok_or_else(|| "it must be a whole number from 1 to 1000".to_owned())
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// One size, allocated and freed at once
    Hot,
    /// Blocks of random sizes, up to 16,000 MiB live
    Random,
    /// The times of single calls in the largest random workload
    Tail,
    /// A pair of calls in a pool with many free spans
    Holes,
    /// Hot and random on page-locked memory
    Pinned,
    /// How long a page-locked segment takes, in both ways to make one
    PinnedGrowth,
    /// Several threads at a time
    Threads,
    /// One thread allocates, another frees
    Producer,
    /// Random on several streams
    Streams,
    /// Recorded programs (--traces)
    Replay,
    /// Copies through the manager, beside plain calls
    Copy,
    /// Whether streams run side by side
    Overlap,
}

/// A reference allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    List,
    Btree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReferenceChoice {
    /// A vector of free spans that is scanned
    List,
    /// Ordered sets of the standard library
    Btree,
    /// Both of them
    Both,
}
