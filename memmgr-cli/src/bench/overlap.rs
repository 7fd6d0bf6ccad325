//! Whether streams that share the manager run side by side: four of them, each allocating, working and
//! freeing, over the time of one.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use cuda_sys as sys;
use memmgr::{Backend, MemoryManager, Stream};

use super::Bench;
use super::figure::Row;
use super::subject::with_manager;
use super::turns::PASSES;
use crate::cuda;
use crate::error::Result;

/// Streams at a time.
const STREAMS: usize = 4;
/// The block of each step.
const BLOCK: usize = 8;
/// How long a host function takes.
const HOST_WORK: Duration = Duration::from_micros(500);
/// What a fill on a GPU fills.
const FILL: usize = 64 << 20;

/// Streams, and on a GPU a buffer for each to work on.
struct Lanes<'a> {
    manager: &'a MemoryManager,
    streams: Vec<Stream>,
    /// Empty on the simulator.
    buffers: Vec<*mut std::ffi::c_void>,
    steps: usize,
}

impl Lanes<'_> {
    fn work(&self, lane: usize) -> Result<()> {
        let stream = &self.streams[lane];
        let Some(buffer) = self.buffers.get(lane) else {
            return Ok(stream.launch_host(|| thread::sleep(HOST_WORK))?);
        };
        // SAFETY: the buffer holds so many bytes until the streams have been waited for.
        let status = unsafe { sys::cudaMemsetAsync(*buffer, 1, FILL, stream.as_raw().cast()) };
        cuda::check("cudaMemsetAsync", status)
    }

    /// All steps on the first `lanes` streams, in turns.
    fn time(&self, lanes: usize, allocates: bool) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..self.steps {
            for lane in 0..lanes {
                if !allocates {
                    self.work(lane)?;
                    continue;
                }
                let stream = &self.streams[lane];
                let block = self.manager.allocate_device_on(BLOCK, stream)?;
                self.work(lane)?;
                // SAFETY: the block was just allocated, and is freed on the stream that would use it.
                unsafe { self.manager.free_device_on(block, stream) }?;
            }
        }
        for stream in &self.streams {
            stream.synchronize()?;
        }
        Ok(start.elapsed())
    }

    /// The time of all streams over that of one.
    fn ratio(&self, allocates: bool) -> Result<f64> {
        let one = self.time(1, allocates)?;
        let all = self.time(STREAMS, allocates)?;
        Ok(all.as_secs_f64() / one.as_secs_f64().max(1e-9))
    }
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let passes = bench.passes(PASSES);
    let simulated = memmgr::backend() == Backend::Simulated;
    let work = if simulated {
        "a host function of 0.5 ms"
    } else {
        "a fill of 64 MiB"
    };
    let text = format!(
        "4 streams, each allocating 8 B, {work}, freeing; their time over that of one, ideal \
        1; cuda: without the blocks"
    );
    bench.heading("overlap", &text, passes)?;
    let steps = if bench.quick() { 10 } else { 40 };
    let mut found = [Vec::new(), Vec::new()];
    with_manager(|manager| {
        let mut lanes = Lanes {
            manager,
            streams: (0..STREAMS)
                .map(|_| Stream::new())
                .collect::<Result<_, _>>()?,
            buffers: Vec::new(),
            steps,
        };
        if !simulated {
            for stream in &lanes.streams {
                lanes
                    .buffers
                    .push(manager.allocate_device_on(FILL, stream)?);
            }
        }
        for pass in 0..=passes {
            for (samples, allocates) in found.iter_mut().zip([true, false]) {
                let ratio = lanes.ratio(allocates)?;
                if pass > 0 {
                    samples.push(ratio);
                }
            }
        }
        for (buffer, stream) in lanes.buffers.iter().zip(&lanes.streams) {
            // SAFETY: allocated above; every pass waited for all streams.
            unsafe { manager.free_device_on(*buffer, stream) }?;
        }
        Ok(())
    })?;
    let [ours, plain] = found;
    let case = format!("{STREAMS} streams over 1");
    bench.report(vec![
        Row::new("overlap", &case, "memmgr", "x", &ours),
        Row::new("overlap", &case, "cuda", "x", &plain),
    ])
}
