//! Passes for a profiler that counts instructions: each is one call of [`memmgr_bench_counted`], and
//! what each was is printed, in their order, as JSON.

use std::ffi::c_void;
use std::io::Write;
use std::ptr;

use memmgr::{DeviceBuffer, Error, MemoryManager, Stream};
use serde::Serialize;

use super::loops::{self, Random};
use super::reference::Tree;
use super::subject::{Null, Subject, with_device, with_manager, with_pinned};
use crate::error::{Failure, Result};

/// What a call of [`memmgr_bench_counted`] did.
#[derive(Serialize)]
struct Counted {
    case: String,
    subject: &'static str,
    /// Pairs, or single calls in the random workload.
    operations: u64,
}

/// The function whose calls are counted, by its name.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn memmgr_bench_counted(work: &mut dyn FnMut()) {
    work();
}

/// Pairs of calls in a case.
const PAIRS: u64 = 5000;

/// What is counted.
#[derive(Clone, Copy)]
enum Case {
    Hot,
    /// Guards instead of raw pointers.
    Guard,
    /// Device memory without a stream.
    NoStream,
    Pinned,
    /// A block is freed when the next one is there, so that none comes back at once.
    Turns,
    Random(Random),
    Holes(usize),
    /// As holes, in turns.
    HolesInTurns(usize),
}

const CASES: [Case; 13] = [
    Case::Hot,
    Case::Turns,
    Case::Guard,
    Case::NoStream,
    Case::Pinned,
    Case::Random(few(1)),
    Case::Random(many(1)),
    Case::Random(few(64)),
    Case::Random(few(1024)),
    Case::Holes(16),
    Case::Holes(4096),
    Case::HolesInTurns(16),
    Case::HolesInTurns(4096),
];

const fn few(max_mib: usize) -> Random {
    Random {
        blocks: 1000,
        max_mib,
    }
}

const fn many(max_mib: usize) -> Random {
    Random {
        blocks: 100_000,
        max_mib,
    }
}

/// How many passes are not counted. Blocks of up to 1 GiB do not fit into 20 GiB before a pool has moved its memory, or grown.
const fn warm_up(shape: Random) -> usize {
    if shape.max_mib < 1024 { 1 } else { 50 }
}

/// A guard on a stream, one at a time.
struct Guards<'a> {
    manager: &'a MemoryManager,
    stream: &'a Stream,
    live: Option<DeviceBuffer<u8>>,
    failure: Option<Error>,
}

impl Subject for Guards<'_> {
    #[inline]
    fn allocate(&mut self, size: usize) -> *mut c_void {
        match self.manager.device::<u8>(size, self.stream) {
            Ok(guard) => {
                let block = guard.as_ptr();
                // Nothing is live, so that nothing is dropped here.
                let before = self.live.replace(guard);
                debug_assert!(before.is_none(), "two are live");
                std::mem::forget(before);
                block
            }
            Err(error) => {
                self.failure = Some(error);
                ptr::null_mut()
            }
        }
    }

    #[inline]
    fn free(&mut self, _: *mut c_void) {
        self.live = None;
    }

    fn verdict(&mut self) -> Result<()> {
        self.failure
            .take()
            .map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Device memory without a stream.
struct NoStream<'a> {
    manager: &'a MemoryManager,
    failure: Option<Error>,
}

impl Subject for NoStream<'_> {
    #[inline]
    fn allocate(&mut self, size: usize) -> *mut c_void {
        self.manager.allocate_device(size).unwrap_or_else(|error| {
            self.failure = Some(error);
            ptr::null_mut()
        })
    }

    #[inline]
    fn free(&mut self, block: *mut c_void) {
        // SAFETY: the workloads free what `allocate` returned, once, and submit no work that uses it.
        if let Err(error) = unsafe { self.manager.free_device(block) } {
            self.failure = Some(error);
        }
    }

    fn verdict(&mut self) -> Result<()> {
        self.failure
            .take()
            .map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Counts a case on the manager.
fn count_ours(case: Case) -> Result<Counted> {
    const NAME: &str = "memmgr";
    match case {
        Case::Pinned => with_pinned(|subject| count(case, NAME, subject)),
        Case::NoStream => with_manager(|manager| {
            let failure = None;
            count(case, NAME, &mut NoStream { manager, failure })
        }),
        Case::Guard => with_manager(|manager| {
            let stream = &Stream::new()?;
            let (live, failure) = (None, None);
            let mut guards = Guards {
                manager,
                stream,
                live,
                failure,
            };
            count(case, NAME, &mut guards)
        }),
        Case::Hot | Case::Turns | Case::Random(_) | Case::Holes(_) | Case::HolesInTurns(_) => {
            with_device(|subject| count(case, NAME, subject))
        }
    }
}

/// Warms a loop of one size up, and has it counted; how often there was no memory.
fn count_loop<S: Subject>(
    subject: &mut S,
    size: usize,
    run: impl Fn(&mut S, usize, u64) -> u64,
) -> u64 {
    let mut failures = 0;
    run(subject, size, 1000);
    memmgr_bench_counted(&mut || failures = run(subject, size, PAIRS));
    failures
}

/// Warms up, and has one pass counted.
fn count(case: Case, name: &'static str, subject: &mut impl Subject) -> Result<Counted> {
    let mut operations = PAIRS;
    let failures;
    let text = match case {
        Case::Hot | Case::Guard | Case::NoStream | Case::Pinned => {
            let (text, size) = match case {
                Case::Guard => ("guard 4 KiB", 4096),
                Case::NoStream => ("no stream 4 KiB", 4096),
                Case::Pinned => ("pinned 1 MiB", 1 << 20),
                _ => ("hot 4 KiB", 4096),
            };
            failures = count_loop(subject, size, loops::pairs);
            text.to_owned()
        }
        Case::Turns => {
            failures = count_loop(subject, 4096, loops::turns);
            "turns 4 KiB".to_owned()
        }
        Case::Random(shape) => {
            for _ in 0..warm_up(shape) {
                loops::random(subject, shape);
            }
            let mut pass = loops::Pass::default();
            memmgr_bench_counted(&mut || pass = loops::random(subject, shape));
            (operations, failures) = (pass.operations, pass.failures);
            format!("random {}", shape.case())
        }
        Case::Holes(holes) | Case::HolesInTurns(holes) => {
            let walls = loops::make_holes(subject, holes);
            let name = if matches!(case, Case::Holes(_)) {
                failures = count_loop(subject, 1024, loops::pairs);
                "holes"
            } else {
                failures = count_loop(subject, 1024, loops::turns);
                "holes in turns"
            };
            walls.into_iter().for_each(|wall| subject.free(wall));
            format!("{name} k={holes}")
        }
    };
    subject.verdict()?;
    if failures > 0 {
        return Err(Failure::message(format!(
            "{name}, {text}: {failures} requests found no memory, so nothing was counted; the \
            device needs 24 GiB (CUDART_SIM_MEMORY)"
        )));
    }
    Ok(Counted {
        case: text,
        subject: name,
        operations,
    })
}

/// Counts every case on the manager, on `null` and on `btree`.
pub fn run(out: &mut impl Write) -> Result<()> {
    let mut done = Vec::new();
    for case in CASES {
        done.push(count_ours(case)?);
        done.push(count(case, "null", &mut Null::new())?);
        done.push(count(case, "btree", &mut Tree::new())?);
    }
    let text = serde_json::to_string(&done).map_err(Failure::message)?;
    writeln!(out, "{text}")?;
    Ok(())
}
