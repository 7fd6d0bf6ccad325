//! The loops of the workloads on one allocator and one thread.
//!
//! They draw the same numbers in the same order as every driver of these workloads, in whatever language,
//! so that all are measured on one sequence of calls. What is timed is the loop: `null` tells its own cost.

use std::ffi::c_void;
use std::hint;
use std::ptr;
use std::time::{Duration, Instant};

use super::subject::Subject;
use crate::rng::Rng;

/// The most bytes that are live at one time in the random workload.
pub const CAP: usize = 16_000 << 20;
/// The seed of the random workload.
const SEED: u64 = 42;

/// The shape of a random workload.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// How many blocks are allocated.
    pub blocks: usize,
    /// The largest of them, in MiB.
    pub max_mib: usize,
}

impl Random {
    pub fn case(self) -> String {
        format!("n={} max={}MiB", self.blocks, self.max_mib)
    }
}

/// How one pass went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pass {
    pub elapsed: Duration,
    pub operations: u64,
    pub failures: u64,
    pub peak_live: u64,
}

impl Pass {
    pub fn nanoseconds(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.operations.max(1) as f64
    }
}

/// Allocates and frees at once, `pairs` times; how often there was no memory.
pub fn pairs(subject: &mut impl Subject, size: usize, pairs: u64) -> u64 {
    let mut failures = 0;
    for _ in 0..pairs {
        let block = hint::black_box(subject.allocate(hint::black_box(size)));
        if block.is_null() {
            failures += 1;
        } else {
            subject.free(block);
        }
    }
    failures
}

/// Allocates `pairs` times, and frees each block when the next one is there; how often there was no memory.
pub fn turns(subject: &mut impl Subject, size: usize, pairs: u64) -> u64 {
    let mut failures = 0;
    let mut former: *mut c_void = ptr::null_mut();
    for _ in 0..=pairs {
        let block = hint::black_box(subject.allocate(hint::black_box(size)));
        failures += u64::from(block.is_null());
        if !former.is_null() {
            subject.free(former);
        }
        former = block;
    }
    if !former.is_null() {
        subject.free(former);
    }
    failures
}

/// [`pairs`] on the clock, until there are `most` of them or `limit` has passed; one operation is a pair.
pub fn timed_pairs(subject: &mut impl Subject, size: usize, most: u64, limit: Duration) -> Pass {
    const LARGEST: u64 = 512;
    let mut pass = Pass::default();
    let mut batch = 1;
    let start = Instant::now();
    while pass.operations < most && pass.elapsed < limit {
        let count = batch.min(most - pass.operations);
        pass.failures += pairs(subject, size, count);
        pass.operations += count;
        pass.elapsed = start.elapsed();
        batch = (2 * batch).min(LARGEST);
    }
    pass
}

/// Blocks of random sizes: 73 % of the steps allocate, the others free a random one; then the rest is
/// freed.
pub fn random(subject: &mut impl Subject, shape: Random) -> Pass {
    let mut live = Vec::with_capacity(shape.blocks);
    let start = Instant::now();
    let mut pass = random_steps(subject, shape, &mut live);
    for (block, _) in live {
        subject.free(block);
        pass.operations += 1;
    }
    pass.elapsed = start.elapsed();
    pass
}

/// The steps of [`random`] without freeing the rest, off the clock.
pub fn random_steps(
    subject: &mut impl Subject,
    shape: Random,
    live: &mut Vec<(*mut c_void, usize)>,
) -> Pass {
    let max = shape.max_mib << 20;
    let mut rng = Rng::new(SEED);
    let mut pass = Pass::default();
    let (mut used, mut count) = (0_usize, 0_usize);
    for _ in 0..2 * shape.blocks {
        let size = 1 + rng.below(max);
        let mut allocates = true;
        if !live.is_empty() {
            allocates = rng.below(100) < 73 && count < shape.blocks && used + size < CAP;
        }
        if allocates {
            let block = subject.allocate(size);
            pass.operations += 1;
            if !block.is_null() {
                live.push((block, size));
                count += 1;
                used += size;
                pass.peak_live = pass.peak_live.max(used as u64);
                continue;
            }
            pass.failures += 1;
        }
        if !live.is_empty() {
            let (block, size) = live.swap_remove(rng.below(live.len()));
            subject.free(block);
            pass.operations += 1;
            used -= size;
        }
    }
    pass
}

/// What the threads do: up to 32 live blocks of 256 bytes to 1 MiB; how often there was no memory.
pub fn mixed(subject: &mut impl Subject, seed: u64, operations: usize) -> u64 {
    let mut live = Vec::with_capacity(32);
    let mut rng = Rng::new(seed);
    let mut failures = 0;
    for _ in 0..operations {
        if live.len() < 32 && (live.is_empty() || rng.below(2) == 1) {
            let block = subject.allocate(256 << rng.below(13));
            failures += u64::from(block.is_null());
            live.push(block);
        } else {
            let block: *mut c_void = live.swap_remove(rng.below(live.len()));
            if !block.is_null() {
                subject.free(block);
            }
        }
    }
    for block in live.into_iter().filter(|block| !block.is_null()) {
        subject.free(block);
    }
    failures
}

/// Makes `holes` free spans of 256 bytes to 2 KiB, kept apart by live blocks of 256 bytes, which it
/// returns.
pub fn make_holes(subject: &mut impl Subject, holes: usize) -> Vec<*mut c_void> {
    let mut walls = Vec::with_capacity(holes);
    let mut spans = Vec::with_capacity(holes);
    for index in 0..holes {
        spans.push(subject.allocate((index % 8 + 1) * 256));
        walls.push(subject.allocate(256));
    }
    for span in spans {
        subject.free(span);
    }
    walls
}

/// The time of each call of [`random`], in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    pub allocate: Vec<u32>,
    pub free: Vec<u32>,
}

/// Times each call of an allocator by itself.
pub struct Timed<'a, S> {
    subject: &'a mut S,
    pub tail: Tail,
}

impl<'a, S: Subject> Timed<'a, S> {
    pub fn new(subject: &'a mut S, blocks: usize) -> Self {
        Self {
            subject,
            tail: Tail {
                allocate: Vec::with_capacity(2 * blocks),
                free: Vec::with_capacity(2 * blocks),
            },
        }
    }
}

impl<S: Subject> Subject for Timed<'_, S> {
    fn allocate(&mut self, size: usize) -> *mut c_void {
        let start = Instant::now();
        let block = self.subject.allocate(size);
        self.tail.allocate.push(since(start));
        block
    }

    fn free(&mut self, block: *mut c_void) {
        let start = Instant::now();
        self.subject.free(block);
        self.tail.free.push(since(start));
    }
}

fn since(start: Instant) -> u32 {
    u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// The value below which `share` of the sorted samples lie.
pub fn percentile(sorted: &[u32], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = (share * last as f64).round() as usize;
    sorted.get(index.min(last)).copied().map_or(0.0, f64::from)
}

#[cfg(test)]
mod tests {
    use super::super::subject::Null;
    use super::*;

    /// Counts what the loops do, and the sum of the sizes that they draw.
    #[derive(Default)]
    struct Count {
        allocated: usize,
        freed: usize,
        bytes: usize,
    }

    impl Subject for Count {
        fn allocate(&mut self, size: usize) -> *mut c_void {
            self.allocated += 1;
            self.bytes = self.bytes.wrapping_add(size);
            std::ptr::without_provenance_mut(self.allocated)
        }

        fn free(&mut self, _: *mut c_void) {
            self.freed += 1;
        }
    }

    /// Tells sequences of calls apart.
    #[derive(Default)]
    struct Hash {
        blocks: usize,
        hash: usize,
    }

    impl Hash {
        fn add(&mut self, number: usize) {
            self.hash = self.hash.wrapping_mul(1_000_003).wrapping_add(number);
        }
    }

    impl Subject for Hash {
        fn allocate(&mut self, size: usize) -> *mut c_void {
            self.blocks += 1;
            self.add(size);
            std::ptr::without_provenance_mut(self.blocks)
        }

        fn free(&mut self, block: *mut c_void) {
            self.add(block.addr());
        }
    }

    /// The hashes are those of the drivers in C++.
    #[test]
    fn the_calls_are_those_of_every_driver() {
        for (blocks, max_mib, hash, peak) in [
            (1000, 1, 32_534_833_295_127_718, 343_278_748),
            (1000, 64, 11_969_902_617_272_663_606, 16_775_495_131),
            (1000, 1024, 16_470_643_601_178_152_410, 16_777_058_605),
            (10_000, 1, 1_650_948_631_875_481_787, 3_282_271_348),
            (10_000, 64, 4_100_919_433_916_869_945, 16_777_215_699),
            (10_000, 1024, 16_259_300_198_679_817_266, 16_777_187_909),
        ] {
            let mut calls = Hash::default();
            let pass = random(&mut calls, Random { blocks, max_mib });
            assert_eq!(
                (calls.hash, pass.peak_live),
                (hash, peak),
                "{blocks} {max_mib}"
            );
            assert_eq!(calls.blocks, blocks);
        }
        let mut calls = Hash::default();
        assert_eq!(mixed(&mut calls, 1, 100_000), 0);
        assert_eq!(
            (calls.hash, calls.blocks),
            (17_665_892_829_023_537_821, 50_010)
        );
    }

    #[test]
    fn the_random_workload_frees_all_that_it_allocates() {
        let shape = Random {
            blocks: 1000,
            max_mib: 1,
        };
        let mut count = Count::default();
        let pass = random(&mut count, shape);
        assert_eq!((count.allocated, count.freed), (1000, 1000));
        assert_eq!(pass.operations, 2000);
        assert!(pass.peak_live <= CAP as u64 && pass.peak_live > 100 << 20);
    }

    #[test]
    fn the_threads_workload_frees_all_that_it_allocates() {
        let mut count = Count::default();
        mixed(&mut count, 1, 10_000);
        assert_eq!(count.allocated, count.freed);
        assert!(count.allocated >= 5000);
    }

    #[test]
    fn holes_are_kept_apart_by_live_blocks() {
        let mut count = Count::default();
        let walls = make_holes(&mut count, 16);
        assert_eq!((walls.len(), count.allocated, count.freed), (16, 32, 16));
        assert_eq!(count.bytes, 16 * 256 + 2 * 36 * 256);
    }

    #[test]
    fn every_call_is_timed() {
        let shape = Random {
            blocks: 50,
            max_mib: 1,
        };
        let mut null = Null::new();
        let mut timed = Timed::new(&mut null, shape.blocks);
        random(&mut timed, shape);
        assert_eq!((timed.tail.allocate.len(), timed.tail.free.len()), (50, 50));
        assert_eq!(percentile(&[1, 2, 3, 4, 5], 0.5), 3.0);
        assert_eq!(percentile(&[1, 2, 3, 4, 5], 1.0), 5.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
