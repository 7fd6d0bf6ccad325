//! What the ordering checker costs in time: `cargo bench -p cudart-sim --bench checker` prints a table.
//!
//! Processor time on one core, the best of several rounds, for each number of live ranges: an operation with the check, and what of that
//! is the check.

use cudart_sim::{By, Check, checker_size, on_allocate, on_free, sys, testing::Machine};
use std::ffi::c_void;
use std::ptr::null_mut;

const STRIDE: usize = 64;
const ROUNDS: usize = 100;

/// Keeps this thread, and those that it makes, on the core where it runs.
fn pin() -> Option<usize> {
    // SAFETY: plain calls; the set is a value of this function, with room for the core's bit.
    unsafe {
        let core = usize::try_from(libc::sched_getcpu()).ok()?;
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        (libc::sched_setaffinity(0, size_of_val(&set), &set) == 0).then_some(core)
    }
}

macro_rules! cuda {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the pointers and handles are those that this program has made, and are alive.
        assert_eq!(unsafe { sys::$name($($argument),*) }.0, 0)
    };
}

struct Bench {
    device: *mut c_void,
    streams: Vec<sys::cudaStream_t>,
    event: sys::cudaEvent_t,
    ranges: usize,
}

impl Bench {
    fn new(ranges: usize) -> Bench {
        let (mut device, mut event) = (null_mut(), null_mut());
        cuda!(cudaMalloc(&mut device, ranges * STRIDE));
        cuda!(cudaEventCreateWithFlags(
            &mut event,
            sys::cudaEventDisableTiming
        ));
        let stream = |_| {
            let mut s = null_mut();
            cuda!(cudaStreamCreateWithFlags(
                &mut s,
                sys::cudaStreamNonBlocking
            ));
            s
        };
        Bench {
            device,
            streams: (0..4).map(stream).collect(),
            event,
            ranges,
        }
    }

    /// A range, and the stream to which it belongs; in no order of addresses.
    fn range(&self, i: usize) -> (*mut c_void, sys::cudaStream_t) {
        let range = i.wrapping_mul(7919) % self.ranges;
        (
            self.device.wrapping_byte_add(range * STRIDE),
            self.streams[range % 4],
        )
    }

    fn fill(&self, i: usize) {
        let (p, s) = self.range(i);
        cuda!(cudaMemsetAsync(p, 1, 32, s));
    }

    fn copy(&self, i: usize) {
        let (to, s) = self.range(i);
        // Four ranges on: the same stream's.
        let from = match to.wrapping_byte_add(4 * STRIDE) {
            p if p < self.device.wrapping_byte_add(self.ranges * STRIDE) => p,
            _ => self.device.wrapping_byte_add(self.range_of(s) * STRIDE),
        };
        let kind = sys::cudaMemcpyKind::cudaMemcpyDeviceToDevice;
        cuda!(cudaMemcpyAsync(to, from, 32, kind, s));
    }

    fn range_of(&self, s: sys::cudaStream_t) -> usize {
        self.streams.iter().position(|t| *t == s).unwrap_or(0)
    }

    /// Another stream waits for the one that this range belongs to.
    fn order(&self, i: usize) {
        let (_, s) = self.range(i);
        cuda!(cudaEventRecord(self.event, s));
        cuda!(cudaStreamWaitEvent(self.streams[i % 4], self.event, 0));
    }

    fn report(&self, i: usize) {
        let (p, s) = self.range(i);
        on_allocate(p, 32, By::Stream(s));
        on_free(p, 32, By::Stream(s));
    }
}

/// Processor time of all threads of this process so far, so that others on the machine do not count.
fn processor_nanoseconds() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Nanoseconds for each of `count` operations: the best of several rounds.
fn nanoseconds(count: usize, f: impl Fn(usize)) -> f64 {
    (0..ROUNDS)
        .map(|round| {
            let start = processor_nanoseconds();
            (0..count).for_each(|i| f(round * count + i));
            (processor_nanoseconds() - start) as f64 / count as f64
        })
        .fold(f64::INFINITY, f64::min)
}

/// Fill, copy, record and wait, fill and record and wait, report.
fn measure(ranges: usize, check: Check, count: usize) -> [f64; 5] {
    let _machine = Machine::new().eager().devices(1, 1 << 30);
    cudart_sim::check(check);
    let bench = Bench::new(ranges);
    (0..ranges).for_each(|i| bench.fill(i));
    if check == Check::Report {
        assert_eq!(checker_size().ranges, ranges, "7919 must not divide it");
    }
    let times = [
        nanoseconds(count, |i| bench.fill(i)),
        nanoseconds(count, |i| bench.copy(i)),
        nanoseconds(count, |i| bench.order(i)),
        nanoseconds(count, |i| {
            bench.fill(i);
            bench.order(i);
        }),
        nanoseconds(count, |i| bench.report(i)),
    ];
    cudart_sim::expect_clean();
    times
}

fn main() {
    // `cargo test --all-targets` runs this too, and wants to know only whether it runs.
    let whole = std::env::args().any(|a| a == "--bench");
    let (sizes, count): (&[usize], usize) = match whole {
        true => (&[100, 1_000, 10_000, 100_000, 1_000_000], 1_000),
        false => (&[100], 100),
    };
    let core = pin().map_or("not pinned".into(), |c| format!("pinned to core {c}"));
    println!(
        "backend: {}, schedule eager; {core}, best of {ROUNDS} rounds of {count}; ns of processor time with the check (of them the check)",
        cudart_sim::VERSION_NOTE
    );
    println!(
        "| live ranges | fill | copy | record + wait | fill + record + wait | reported allocation + free |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut at_10_000 = 0.0f64;
    for ranges in sizes {
        let off = measure(*ranges, Check::Off, count);
        let on = measure(*ranges, Check::Report, count);
        let cells: Vec<String> = on
            .iter()
            .zip(&off)
            .map(|(on, off)| format!("{on:.0} ({:.0})", on - off))
            .collect();
        println!("| {ranges} | {} |", cells.join(" | "));
        if *ranges == 10_000 {
            let more = on.iter().zip(&off).map(|(on, off)| on - off);
            at_10_000 = more.fold(0.0, f64::max);
        }
    }
    if whole {
        println!(
            "the check at 10,000 live ranges: at most {:.2} µs (promised: 3)",
            at_10_000 / 1000.0
        );
    }
}
