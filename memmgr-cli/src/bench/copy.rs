//! Copies through the manager beside plain `cudaMemcpyAsync` between the same buffers.

use std::ffi::c_void;
use std::io::Write;
use std::time::Instant;

use cuda_sys as sys;
use memmgr::{Error, MemoryManager, Stream};

use super::Bench;
use super::figure::Row;
use super::subject::with_manager;
use super::turns::PASSES;
use crate::cuda;
use crate::error::Result;

/// Sizes in KiB.
const SIZES: [usize; 6] = [64, 256, 1 << 10, 16 << 10, 256 << 10, 1 << 20];
/// Calls that are timed by themselves, before the stream is waited for.
const CALLS: usize = 64;
/// What one pass copies, so that small copies are timed many at once.
const PASS_BYTES: usize = 64 << 20;

/// Both buffers, and the stream that copies.
struct Ends<'a> {
    manager: &'a MemoryManager,
    stream: &'a Stream,
    device: *mut c_void,
    host: *mut c_void,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToDevice,
    ToHost,
}

impl Ends<'_> {
    fn managed(&self, way: Way, size: usize) -> Result<()> {
        // SAFETY: both buffers hold `size` bytes, nobody views them, and they are freed when the stream
        // has been waited for.
        unsafe {
            match way {
                Way::ToDevice => {
                    self.manager
                        .copy_to_device_async(self.device, self.host, size, self.stream)
                }
                Way::ToHost => {
                    self.manager
                        .copy_to_host_async(self.host, self.device, size, self.stream)
                }
            }
        }?;
        Ok(())
    }

    fn plain(&self, way: Way, size: usize) -> Result<()> {
        use sys::cudaMemcpyKind as Kind;

        let (to, from, kind) = match way {
            Way::ToDevice => (self.device, self.host, Kind::cudaMemcpyHostToDevice),
            Way::ToHost => (self.host, self.device, Kind::cudaMemcpyDeviceToHost),
        };
        let stream = self.stream.as_raw().cast();
        // SAFETY: as in `managed`; the stream is alive.
        let status = unsafe { sys::cudaMemcpyAsync(to, from, size, kind, stream) };
        cuda::check("cudaMemcpyAsync", status)
    }

    fn one(&self, managed: bool, way: Way, size: usize) -> Result<()> {
        if managed {
            self.managed(way, size)
        } else {
            self.plain(way, size)
        }
    }

    /// Microseconds per copy, waiting included, of `count` copies.
    fn whole(&self, managed: bool, way: Way, size: usize, count: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            self.one(managed, way, size)?;
        }
        self.stream.synchronize()?;
        Ok(start.elapsed().as_nanos() as f64 / count as f64 / 1e3)
    }

    /// Nanoseconds per call, without the copies themselves.
    fn call(&self, managed: bool, way: Way, size: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..CALLS {
            self.one(managed, way, size)?;
        }
        let elapsed = start.elapsed();
        self.stream.synchronize()?;
        Ok(elapsed.as_nanos() as f64 / CALLS as f64)
    }
}

/// The samples of both kinds of call, which take turns; the first, of warm-up, are left out.
fn samples(passes: usize, mut one: impl FnMut(bool) -> Result<f64>) -> Result<[Vec<f64>; 2]> {
    let mut found = [Vec::new(), Vec::new()];
    for pass in 0..=passes {
        for (samples, managed) in found.iter_mut().zip([true, false]) {
            let sample = one(managed)?;
            if pass > 0 {
                samples.push(sample);
            }
        }
    }
    Ok(found)
}

fn rows(case: &str, unit: &'static str, [ours, plain]: [Vec<f64>; 2]) -> Vec<Row> {
    vec![
        Row::new("copy", case, "memmgr", unit, &ours),
        Row::new("copy", case, "cuda", unit, &plain),
    ]
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let text = "page-locked memory and the device, beside plain cudaMemcpyAsync (cuda); us \
        per copy, and ns per call without waiting";
    bench.heading("copy", text, bench.passes(PASSES))?;
    let largest = if bench.quick() { 16 << 10 } else { 1 << 20 };
    for kib in SIZES.into_iter().filter(|kib| *kib <= largest) {
        let short = with_manager(|manager| {
            let stream = Stream::new()?;
            match Buffers::new(manager, &stream, kib << 10)? {
                None => Ok(true),
                Some(buffers) => {
                    let result = measure(bench, &buffers.ends, kib << 10);
                    buffers.free()?;
                    result.map(|()| false)
                }
            }
        })?;
        if short {
            bench.remark(&format!("skipped {}: too little memory", name(kib)))?;
        }
    }
    Ok(())
}

fn measure<W: Write>(bench: &mut Bench<'_, W>, ends: &Ends<'_>, size: usize) -> Result<()> {
    let passes = bench.passes(PASSES);
    let kib = size >> 10;
    for (word, way) in [("H2D", Way::ToDevice), ("D2H", Way::ToHost)] {
        let count = (PASS_BYTES / size).clamp(1, CALLS);
        let whole = samples(passes, |managed| ends.whole(managed, way, size, count))?;
        bench.report(rows(&format!("{word} {}", name(kib)), "us", whole))?;
        if kib < 1 << 10 {
            let calls = samples(passes, |managed| ends.call(managed, way, size))?;
            bench.report(rows(&format!("{word} {} call", name(kib)), "ns", calls))?;
        }
    }
    Ok(())
}

/// A size as its unit suits it.
fn name(kib: usize) -> String {
    match kib {
        0..1024 => format!("{kib} KiB"),
        1024..1_048_576 => format!("{} MiB", kib >> 10),
        _ => format!("{} GiB", kib >> 20),
    }
}

/// Buffers at both ends.
struct Buffers<'a> {
    ends: Ends<'a>,
}

impl<'a> Buffers<'a> {
    /// `None` where there is too little memory.
    fn new(manager: &'a MemoryManager, stream: &'a Stream, size: usize) -> Result<Option<Self>> {
        let short = |error: Error| {
            if error.is_out_of_memory() {
                Ok(None)
            } else {
                Err(error)
            }
        };
        let host = manager.allocate_pinned(size).map(Some).or_else(short)?;
        let device = manager
            .allocate_device_on(size, stream)
            .map(Some)
            .or_else(short)?;
        match (host, device) {
            (Some(host), Some(device)) => Ok(Some(Self {
                ends: Ends {
                    manager,
                    stream,
                    device,
                    host,
                },
            })),
            (host, device) => {
                // SAFETY: each is a block that was just allocated and that nobody uses.
                unsafe {
                    host.map_or(Ok(()), |host| manager.free_pinned(host))?;
                    device.map_or(Ok(()), |device| manager.free_device_on(device, stream))?;
                }
                Ok(None)
            }
        }
    }

    fn free(self) -> Result<()> {
        let ends = self.ends;
        ends.stream.synchronize()?;
        // SAFETY: `new` allocated both, and the stream has finished all that uses them.
        unsafe {
            ends.manager.free_device_on(ends.device, ends.stream)?;
            ends.manager.free_pinned(ends.host)?;
        }
        Ok(())
    }
}
