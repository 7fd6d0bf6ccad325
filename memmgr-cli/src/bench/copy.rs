//! Copies through the manager beside plain `cudaMemcpyAsync` between the same buffers, and beside what a program that keeps its
//! buffers until a copy has ended calls in any case.

use std::cell::Cell;
use std::ffi::c_void;
use std::io::Write;
use std::ptr;
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
const SIZES: [usize; 7] = [4, 64, 256, 1 << 10, 16 << 10, 256 << 10, 1 << 20];
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
    events: Events,
}

/// Who copies.
#[derive(Clone, Copy)]
enum By {
    /// The manager.
    Memmgr,
    /// `cudaMemcpyAsync` alone.
    Plain,
    /// `cudaMemcpyAsync`, the question whether the stream is being captured, and an event behind the copy.
    WithEvent,
}

impl By {
    /// All, with their names in the table.
    const ALL: [(Self, &'static str); 3] = [
        (Self::Memmgr, "memmgr"),
        (Self::Plain, "cuda"),
        (Self::WithEvent, "+event"),
    ];
}

/// Events that are recorded in turn.
struct Events {
    all: Vec<sys::cudaEvent_t>,
    next: Cell<usize>,
}

impl Events {
    fn new() -> Result<Self> {
        let mut events = Self {
            all: Vec::with_capacity(CALLS),
            next: Cell::new(0),
        };
        for _ in 0..CALLS {
            let mut event = ptr::null_mut();
            // SAFETY: `event` is a place for one event.
            let status = unsafe {
                sys::cudaEventCreateWithFlags(&raw mut event, sys::cudaEventDisableTiming)
            };
            cuda::check("cudaEventCreateWithFlags", status)?;
            events.all.push(event);
        }
        Ok(events)
    }

    fn next(&self) -> sys::cudaEvent_t {
        let next = self.next.get();
        self.next.set((next + 1) % CALLS);
        self.all.get(next).copied().unwrap_or(ptr::null_mut())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in &self.all {
            // SAFETY: the event is this value's, which goes; CUDA keeps one that is still to be passed.
            let _ = unsafe { sys::cudaEventDestroy(*event) };
        }
    }
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

    fn with_event(&self, way: Way, size: usize) -> Result<()> {
        let stream = self.stream.as_raw().cast();
        let mut status = sys::cudaStreamCaptureStatus::cudaStreamCaptureStatusNone;
        // SAFETY: the stream is alive, and `status` a place for the answer.
        let asked = unsafe { sys::cudaStreamIsCapturing(stream, &raw mut status) };
        cuda::check("cudaStreamIsCapturing", asked)?;
        self.plain(way, size)?;
        // SAFETY: stream and event are alive.
        let recorded = unsafe { sys::cudaEventRecord(self.events.next(), stream) };
        cuda::check("cudaEventRecord", recorded)
    }

    fn one(&self, by: By, way: Way, size: usize) -> Result<()> {
        match by {
            By::Memmgr => self.managed(way, size),
            By::Plain => self.plain(way, size),
            By::WithEvent => self.with_event(way, size),
        }
    }

    /// Microseconds per copy, waiting included, of `count` copies.
    fn whole(&self, by: By, way: Way, size: usize, count: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            self.one(by, way, size)?;
        }
        self.stream.synchronize()?;
        Ok(start.elapsed().as_nanos() as f64 / count as f64 / 1e3)
    }

    /// Nanoseconds per call, without the copies themselves.
    fn call(&self, by: By, way: Way, size: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..CALLS {
            self.one(by, way, size)?;
        }
        let elapsed = start.elapsed();
        self.stream.synchronize()?;
        Ok(elapsed.as_nanos() as f64 / CALLS as f64)
    }
}

/// The rows of all who copy, who take turns; the first samples, of warm-up, are left out.
fn rows(
    case: &str,
    unit: &'static str,
    passes: usize,
    mut one: impl FnMut(By) -> Result<f64>,
) -> Result<Vec<Row>> {
    let mut samples = By::ALL.map(|_| Vec::new());
    for pass in 0..=passes {
        for (samples, (by, _)) in samples.iter_mut().zip(By::ALL) {
            let sample = one(by)?;
            if pass > 0 {
                samples.push(sample);
            }
        }
    }
    let rows = samples.iter().zip(By::ALL);
    Ok(rows
        .map(|(samples, (_, name))| Row::new("copy", case, name, unit, samples))
        .collect())
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let text = "page-locked memory and the device, beside plain cudaMemcpyAsync (cuda), and \
        beside that with the question for a capture and an event (+event); us per copy, \
        and ns per call without waiting";
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
        let case = format!("{word} {}", name(kib));
        let whole = |by| ends.whole(by, way, size, count);
        bench.report(rows(&case, "us", passes, whole)?)?;
        if kib < 1 << 10 {
            let call = |by| ends.call(by, way, size);
            bench.report(rows(&format!("{case} call"), "ns", passes, call)?)?;
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
                    events: Events::new()?,
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
