//! One thread allocates blocks, another frees them: what a pair costs when no block is freed where it was
//! allocated.

use std::ffi::c_void;
use std::io::Write;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use memmgr::Stream;

use super::Bench;
use super::figure::Row;
use super::reference::{List, Tree};
use super::subject::{Device, Null, Subject, with_pool};
use super::threads::{Crew, Locked, PASSES, met, pause};
use crate::error::{Failure, Result};
use crate::options::Reference;

/// Blocks on their way from one thread to the other, at most.
const SLOTS: usize = 1024;
/// The size of a block.
const SIZE: usize = 4096;

/// A counter on a cache line of its own.
#[repr(align(128))]
struct Padded(AtomicUsize);

/// A queue from one thread to one other.
struct Queue {
    slots: Vec<AtomicPtr<c_void>>,
    written: Padded,
    read: Padded,
}

impl Queue {
    fn new() -> Self {
        let slots = (0..SLOTS).map(|_| AtomicPtr::new(ptr::null_mut()));
        Self {
            slots: slots.collect(),
            written: Padded(AtomicUsize::new(0)),
            read: Padded(AtomicUsize::new(0)),
        }
    }

    /// Called by the one thread that writes.
    fn push(&self, block: *mut c_void) {
        let at = self.written.0.load(Ordering::Relaxed);
        let mut turns = 0;
        while at.wrapping_sub(self.read.0.load(Ordering::Acquire)) >= SLOTS {
            pause(&mut turns);
        }
        self.slots[at % SLOTS].store(block, Ordering::Relaxed);
        self.written.0.store(at.wrapping_add(1), Ordering::Release);
    }

    /// Called by the one thread that reads.
    fn pop(&self) -> *mut c_void {
        let at = self.read.0.load(Ordering::Relaxed);
        let mut turns = 0;
        while self.written.0.load(Ordering::Acquire) == at {
            pause(&mut turns);
        }
        let block = self.slots[at % SLOTS].load(Ordering::Relaxed);
        self.read.0.store(at.wrapping_add(1), Ordering::Release);
        block
    }
}

/// Nanoseconds per pair in each pass, with what `make` makes for the thread that allocates (0) and the one
/// that frees (1).
fn measure<S: Subject>(
    crew: &Crew,
    pairs: usize,
    make: impl Fn(usize) -> S + Sync,
) -> Result<Vec<f64>> {
    let queue = Queue::new();
    let missing = AtomicUsize::new(0);
    let times = crew.run(make, |index, subject: &mut S| {
        for _ in 0..pairs {
            if index == 0 {
                queue.push(subject.allocate(SIZE));
                continue;
            }
            let block = queue.pop();
            if block.is_null() {
                missing.fetch_add(1, Ordering::Relaxed);
            } else {
                subject.free(block);
            }
        }
    })?;
    if missing.into_inner() > 0 {
        return Err(Failure::message(
            "producer: the device has too little memory for 1024 blocks of 4 KiB",
        ));
    }
    let per_pair = |time: Duration| time.as_nanos() as f64 / pairs as f64;
    Ok(times.into_iter().map(per_pair).collect())
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let passes = bench.passes(PASSES);
    let text = "one thread allocates 4 KiB, another frees it; ns per pair";
    bench.heading("producer", text, passes)?;
    let pairs = if bench.quick() { 20_000 } else { 100_000 };
    let crew = Crew::new(2, passes, bench.options.device);
    let pinned = if crew.cpus.is_empty() {
        " unpinned"
    } else {
        ""
    };
    for own in [false, true] {
        let case = format!("{} stream{pinned}", if own { "own" } else { "one" });
        let row = |subject, samples: Vec<f64>| Row::new("producer", &case, subject, "ns", &samples);
        let (samples, met) = with_pool(|manager| {
            let streams = [Stream::new()?, Stream::new()?];
            let stream = |index: usize| &streams[if own { index } else { 0 }];
            let samples = measure(&crew, pairs, |index| Device::new(manager, stream(index)))?;
            Ok((samples, met(manager, bench.options.device)))
        })?;
        let mut ours = row("memmgr", samples);
        ours.met = met;
        let mut rows = vec![ours];
        if !own {
            // The others know no streams.
            rows.push(row("null", measure(&crew, pairs, |_| Null::new())?));
            if bench.wants(Reference::List) {
                let list = Mutex::new(List::new());
                rows.push(row("list", measure(&crew, pairs, |_| Locked(&list))?));
            }
            if bench.wants(Reference::Btree) {
                let tree = Mutex::new(Tree::new());
                rows.push(row("btree", measure(&crew, pairs, |_| Locked(&tree))?));
            }
        }
        bench.report(rows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_in_order() {
        let queue = Queue::new();
        let sum = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let blocks = (1..=50_000_usize).map(|number| (number, queue.pop().addr()));
                blocks.filter(|(number, block)| number == block).count()
            });
            for number in 1..=50_000 {
                queue.push(ptr::without_provenance_mut(number));
            }
            reader.join().expect("no panic")
        });
        assert_eq!(sum, 50_000);
    }
}
