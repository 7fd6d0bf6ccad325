//! `memmgr demo`: frames of mixed sizes, once with plain CUDA calls and once in each allocator mode, and
//! one table that compares them. Every byte of every result is verified.

mod frames;
mod managed;
mod pipeline;
mod plain;

use std::io::Write;

use indicatif::ProgressBar;
use memmgr::{Backend, DeviceAllocatorMode, Error, Place};

use crate::cuda;
use crate::device::{self, Machine};
use crate::error::{Failure, Result};
use crate::options::DemoOptions;
use crate::progress;
use crate::settings::{self, Settings};
use crate::table::{Table, counted, mib, people, percent, wrapped};

use frames::{Frame, Noise};
use managed::Managed;
use pipeline::{Memory, Pipeline, Times};
use plain::Plain;

/// What the modes do with the memory they are given, below the table.
const LEGEND: &str = "\
none       cudaHostAlloc, cudaMalloc, cudaFree and cudaFreeHost for every frame
pool       the manager's own best-fit pools, for device and pinned memory
async      cudaMallocAsync on the device's memory pool; pinned as in pool
cuda-pool  cudaMallocFromPoolAsync on a pool of the manager; pinned as in pool
alloc      time inside allocating and freeing, of all frames
reuse      requests served without new memory from CUDA
";

/// What was measured in one row of the table. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    times: Times,
    requests: u64,
    reuses: u64,
    cuda_calls: u64,
    device_in_use: u64,
    device_reserved: u64,
    pinned_in_use: u64,
    pinned_reserved: u64,
}

/// The run that all rows share.
struct Demo<'a> {
    options: &'a DemoOptions,
    settings: Settings,
    noise: Noise,
    bar: ProgressBar,
}

/// The settings of the environment that the demo uses: all but the mode, of which it takes each, and the events, which it
/// does not show.
const USED: [&str; 13] = [
    settings::PINNED_POOL_SIZE,
    settings::PINNED_POOL_LIMIT,
    settings::PINNED_WARM_UP,
    settings::PINNED_SOURCE,
    settings::PINNED_FALLBACK,
    settings::DEVICE_POOL_SIZE,
    settings::DEVICE_POOL_LIMIT,
    settings::DEVICE_SOURCE,
    settings::RELEASE_THRESHOLD,
    settings::RELEASE_AFTER,
    settings::REUSE,
    settings::CALL_SITES,
    settings::LOG_FILE,
];

pub fn run(options: &DemoOptions, machine: Machine, out: &mut impl Write) -> Result<()> {
    let settings = Settings::read("demo", &USED)?;
    machine.prepare(None)?;
    device::select(options.device)?;
    writeln!(
        out,
        "{} on {}, seed {}: 480p to 4K; crop, border and tiles on the device",
        counted(options.frames, "frame"),
        counted(options.streams, "stream"),
        options.seed
    )?;
    for limit in settings.limits()? {
        writeln!(out, "{}", wrapped(&limit))?;
    }
    let demo = Demo {
        options,
        settings,
        noise: Noise::new(options.seed),
        bar: progress::bar(options.frames.saturating_mul(4)),
    };
    let mut table = Table::new(&[
        "mode",
        "frames/s",
        "alloc\nms",
        "reuse",
        "CUDA\ncalls",
        "device\nin use",
        "MiB peak\nreserved",
        "pinned\nin use",
        "MiB peak\nreserved",
    ]);
    table.row(demo.cells("none", demo.plain()?));
    for mode in DeviceAllocatorMode::ALL {
        let granted = device::granted(mode)?;
        if granted == mode {
            table.row(demo.cells(&mode.to_string(), demo.managed(mode)?));
        } else {
            writeln!(out, "note: this device does not support {mode}")?;
        }
    }
    demo.bar.finish_and_clear();
    write!(out, "\n{table}\n{LEGEND}")?;
    writeln!(out, "every byte of every frame was verified in each mode")?;
    Ok(())
}

impl Demo<'_> {
    fn frames<M: Memory>(&self, name: &str, memory: &mut M) -> Result<Times> {
        self.bar.set_message(name.to_owned());
        let (seed, count) = (self.options.seed, self.options.frames);
        let frames = (0..count).map(|index| Frame::new(seed, index));
        Pipeline::new(memory, &self.noise)
            .run(frames, self.options.streams, || self.bar.inc(1))
            .map_err(|failure| self.explained(name, failure))
    }

    /// Where memory ran out: in which mode, how much the device has, and what would help.
    fn explained(&self, mode: &str, failure: Failure) -> Failure {
        if let Some(limit) = self.limit_met(&failure) {
            return Failure::message(format!(
                "mode {mode}: {failure}; a higher {limit} would help"
            ));
        }
        let Some(wanted) = failure.wanted() else {
            return failure;
        };
        let (ordinal, streams) = (self.options.device, self.options.streams);
        if let Failure::Manager(Error::OutOfMemory(refusal)) = &failure
            && refusal.place == Place::Pinned
        {
            let fix = if self.settings.config().pinned_pool_size > 0 {
                format!("; a smaller {} would help", settings::PINNED_POOL_SIZE)
            } else if streams > 1 {
                format!("; fewer --streams than {streams} would help")
            } else {
                String::new()
            };
            return Failure::message(format!("mode {mode}: {failure}{fix}"));
        }
        let Ok((free, total)) = cuda::device_memory() else {
            return failure;
        };
        let mut fix = String::new();
        if streams > 1 && wanted <= total {
            fix = format!("fewer --streams than {streams}, or ");
        }
        fix += match memmgr::backend() {
            Backend::Gpu => "a larger device",
            // It has the memory, but the process has no addresses for it.
            Backend::Simulated if wanted <= free => {
                "a smaller device (CUDART_SIM_MEMORY), or more addresses for the process (ulimit -v)"
            }
            Backend::Simulated => "a larger device (CUDART_SIM_MEMORY)",
        };
        Failure::message(format!(
            "mode {mode} ran out of memory (device {ordinal} has {}): {failure}; {fix} would help",
            people(total)
        ))
    }

    /// The variable whose limit kept memory back, if that is what failed.
    fn limit_met(&self, failure: &Failure) -> Option<&'static str> {
        let place = match failure {
            Failure::Manager(Error::LimitExceeded { place, .. }) => *place,
            Failure::Manager(Error::OutOfMemory(refusal)) => refusal.place,
            _ => return None,
        };
        let config = self.settings.config();
        let (set, name) = match place {
            Place::Device(_) => (
                config.device_pool_limit.is_some() || config.device_pool_limit_share.is_some(),
                settings::DEVICE_POOL_LIMIT,
            ),
            _ => (
                config.pinned_pool_limit.is_some(),
                settings::PINNED_POOL_LIMIT,
            ),
        };
        set.then_some(name)
    }

    fn plain(&self) -> Result<Measured> {
        let mut plain = Plain::new(self.options.streams)?;
        let times = self.frames("none", &mut plain)?;
        let usage = plain.usage;
        Ok(Measured {
            times,
            requests: usage.requests,
            reuses: 0,
            cuda_calls: usage.calls,
            device_in_use: usage.device_peak,
            device_reserved: usage.device_peak,
            pinned_in_use: usage.pinned_peak,
            pinned_reserved: usage.pinned_peak,
        })
    }

    fn managed(&self, mode: DeviceAllocatorMode) -> Result<Measured> {
        let mut managed = Managed::new(
            mode,
            self.settings.config(),
            self.options.device,
            self.options.streams,
        )?;
        let times = self.frames(&mode.to_string(), &mut managed)?;
        managed.measured(times)
    }

    fn cells(&self, name: &str, measured: Measured) -> Vec<String> {
        let work = measured.times.work.as_secs_f64().max(1e-9);
        let allocation = measured.times.allocation.as_secs_f64();
        vec![
            name.to_owned(),
            format!("{:.1}", self.options.frames as f64 / work),
            format!("{:.1}", allocation * 1e3),
            percent(measured.reuses, measured.requests),
            measured.cuda_calls.to_string(),
            mib(measured.device_in_use),
            mib(measured.device_reserved),
            mib(measured.pinned_in_use),
            mib(measured.pinned_reserved),
        ]
    }
}
