//! The workload of several threads: each is pinned to a processor of its own where there are enough, and
//! all start each pass together.

use std::ffi::c_void;
use std::hint;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memmgr::{MemoryManager, Stream};

use super::figure::{Met, Row};
use super::loops;
use super::reference::{List, Tree};
use super::subject::{Device, Null, Subject, with_pool};
use super::{Bench, cpus};
use crate::cuda;
use crate::error::{Failure, Result};
use crate::options::Reference;

/// Passes of a figure, unless the command line says otherwise: a pass is short.
pub const PASSES: usize = 9;
/// More threads than this only wait for each other.
const MOST: usize = 16;

/// Lets threads go on together, without sleeping as long as the wait is short.
pub struct Barrier {
    count: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
}

impl Barrier {
    pub fn new(count: usize) -> Self {
        Self {
            count,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
        }
    }

    pub fn wait(&self) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.store(0, Ordering::Release);
            self.generation.fetch_add(1, Ordering::AcqRel);
            return;
        }
        let mut turns = 0_u32;
        while self.generation.load(Ordering::Acquire) == generation {
            pause(&mut turns);
        }
    }
}

/// Waits a moment; a long wait lets others have the processor.
pub fn pause(turns: &mut u32) {
    *turns = turns.saturating_add(1);
    if *turns < 20_000 {
        hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

/// A reference allocator that threads share behind a lock.
pub struct Locked<'a, S>(pub &'a Mutex<S>);

impl<S: Subject> Subject for Locked<'_, S> {
    fn allocate(&mut self, size: usize) -> *mut c_void {
        let mut inner = self.0.lock().unwrap_or_else(|e| e.into_inner());
        inner.allocate(size)
    }

    fn free(&mut self, block: *mut c_void) {
        let mut inner = self.0.lock().unwrap_or_else(|e| e.into_inner());
        inner.free(block);
    }
}

/// Several threads with one loop each.
pub struct Crew {
    pub threads: usize,
    pub passes: usize,
    pub device: i32,
    /// Where each thread stays; empty where there are too few processors.
    pub cpus: Vec<usize>,
}

impl Crew {
    pub fn new(threads: usize, passes: usize, device: i32) -> Self {
        let mut cpus = cpus::usable();
        cpus.truncate(threads);
        if cpus.len() < threads {
            cpus.clear();
        }
        Self {
            threads,
            passes,
            device,
            cpus,
        }
    }

    /// Runs `work` in every thread, in every pass, on what `make` made in that thread; how long each
    /// pass took, from its start to the end of the last thread. The first pass, of warm-up, is left out.
    pub fn run<S: Subject>(
        &self,
        make: impl Fn(usize) -> S + Sync,
        work: impl Fn(usize, &mut S) + Sync,
    ) -> Result<Vec<Duration>> {
        let barrier = Barrier::new(self.threads);
        let one = |index: usize| -> (Vec<(Instant, Instant)>, Result<()>) {
            let selected = cuda::select_device(self.device);
            if let Some(cpu) = self.cpus.get(index) {
                cpus::pin(*cpu);
            }
            let mut subject = make(index);
            let mut times = Vec::with_capacity(self.passes + 1);
            // The others wait for this thread, whatever befalls it.
            for _ in 0..=self.passes {
                barrier.wait();
                let start = Instant::now();
                work(index, &mut subject);
                times.push((start, Instant::now()));
            }
            (times, selected.and_then(|()| subject.verdict()))
        };
        let results = thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> = (0..self.threads)
                .map(|index| scope.spawn(move || one(index)))
                .collect();
            let joined = threads.into_iter().map(|thread| {
                let panicked = |_| Failure::message("a thread of the benchmark panicked");
                thread.join().map_err(panicked)
            });
            joined.collect::<Result<Vec<_>>>()
        })?;
        let mut spans: Vec<Option<(Instant, Instant)>> = vec![None; self.passes + 1];
        for (times, verdict) in results {
            verdict?;
            for (span, (start, end)) in spans.iter_mut().zip(times) {
                let (first, last) = span.unwrap_or((start, end));
                *span = Some((first.min(start), last.max(end)));
            }
        }
        let spans = spans.into_iter().skip(1).flatten();
        Ok(spans.map(|(first, last)| last - first).collect())
    }
}

/// The numbers of threads that say something here: up to twice the processors.
fn counts(quick: bool) -> Vec<usize> {
    let most = (2 * cpus::usable().len()).clamp(2, MOST);
    let all = [1, 2, 4, 8, 16].into_iter();
    all.filter(|count| *count <= most && (!quick || *count <= 2))
        .collect()
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let passes = bench.passes(PASSES);
    let text = "T threads with up to 32 blocks of 256 B to 1 MiB each; million calls a second";
    bench.heading("threads", text, passes)?;
    bench.remark("list and btree: behind one lock; null: how the machine itself scales")?;
    let operations = if bench.quick() { 20_000 } else { 100_000 };
    for own in [false, true] {
        for count in counts(bench.quick()) {
            let crew = Crew::new(count, passes, bench.options.device);
            let rows = case(bench, &crew, own, operations)?;
            bench.report(rows)?;
        }
    }
    Ok(())
}

fn case<W: Write>(
    bench: &Bench<'_, W>,
    crew: &Crew,
    own: bool,
    operations: usize,
) -> Result<Vec<Row>> {
    let streams = if own { "own" } else { "one" };
    let pinned = if crew.cpus.is_empty() {
        " unpinned"
    } else {
        ""
    };
    let name = format!("T={} {streams} stream{pinned}", crew.threads);
    let total = (crew.threads * operations) as f64;
    let failed = AtomicU64::new(0);
    let row = |subject, times: Vec<Duration>| {
        let rate = |time: &Duration| total / time.as_secs_f64().max(1e-9) / 1e6;
        let samples: Vec<f64> = times.iter().map(rate).collect();
        let mut row = Row::new("threads", &name, subject, "Mops/s", &samples);
        row.failures = Some(failed.swap(0, Ordering::Relaxed));
        row
    };
    let mixed = Mixed {
        operations,
        failed: &failed,
    };
    let mut rows = Vec::new();
    let (times, met) = with_pool(|manager| {
        let count = if own { crew.threads } else { 1 };
        let streams = (0..count).map(|_| Stream::new());
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        let times = crew.run(
            |index| Device::new(manager, &streams[index % count]),
            |index, subject| mixed.run(index, subject),
        )?;
        for stream in &streams {
            stream.synchronize()?;
        }
        Ok((times, met(manager, bench.options.device)))
    })?;
    let mut ours = row("memmgr", times);
    ours.met = met;
    rows.push(ours);
    if own {
        // The others know no streams.
        return Ok(rows);
    }
    let null = crew.run(|_| Null::new(), |index, subject| mixed.run(index, subject));
    rows.push(row("null", null?));
    if bench.wants(Reference::List) {
        rows.push(row("list", mixed.locked(crew, List::new())?));
    }
    if bench.wants(Reference::Btree) {
        rows.push(row("btree", mixed.locked(crew, Tree::new())?));
    }
    Ok(rows)
}

/// How threads have met in the pool of a device, of which all calls were theirs.
pub fn met(manager: &MemoryManager, device: i32) -> Option<Met> {
    let contention = manager.contention(device)?;
    let stats = manager.stats().device;
    let pool = &stats.iter().find(|stats| stats.device == device)?.best_fit;
    let share = contention.from_front as f64 / pool.allocations.max(1) as f64;
    Some(Met {
        calls: pool.allocations.saturating_add(pool.frees),
        front: (share * 1e6).round() / 1e6,
        missed: contention.missed,
        fetched: contention.fetched,
        refused: contention.refused,
        flushes: contention.flushes,
        locked: contention.locked,
        waited: contention.waited,
        withdrawn: contention.withdrawn,
    })
}

/// What each thread does in a pass.
struct Mixed<'a> {
    operations: usize,
    failed: &'a AtomicU64,
}

impl Mixed<'_> {
    fn run(&self, index: usize, subject: &mut impl Subject) {
        let failures = loops::mixed(subject, index as u64 + 1, self.operations);
        if failures > 0 {
            self.failed.fetch_add(failures, Ordering::Relaxed);
        }
    }

    fn locked<S: Subject + Send>(&self, crew: &Crew, subject: S) -> Result<Vec<Duration>> {
        let subject = Mutex::new(subject);
        crew.run(
            |_| Locked(&subject),
            |index, subject| self.run(index, subject),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_run_every_pass() {
        let calls = AtomicUsize::new(0);
        let crew = Crew {
            threads: 3,
            passes: 4,
            device: 0,
            cpus: Vec::new(),
        };
        let barrier = Barrier::new(3);
        let times: Vec<()> = thread::scope(|scope| {
            let run = || {
                for _ in 0..crew.passes {
                    barrier.wait();
                    calls.fetch_add(1, Ordering::Relaxed);
                    barrier.wait();
                    assert_eq!(calls.load(Ordering::Relaxed) % 3, 0);
                    barrier.wait();
                }
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("no panic"))
                .collect()
        });
        assert_eq!((times.len(), calls.into_inner()), (3, 12));
    }
}
