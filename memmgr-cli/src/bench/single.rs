//! The workloads of one thread and one stream: `hot`, `random`, `tail`, `holes` and `pinned`.

use std::io::Write;
use std::time::{Duration, Instant};

use super::Bench;
use super::figure::Row;
use super::loops::{self, Pass, Random, Timed, percentile};
use super::reference::{List, Tree};
use super::subject::{Null, Subject, with_device, with_pinned};
use crate::error::Result;
use crate::options::Reference;

/// Passes of a figure, unless the command line says otherwise.
pub const PASSES: usize = 5;
/// Passes that have taken longer are enough.
pub const LONG: Duration = Duration::from_secs(2);
/// What a pass of pairs may take on a slow allocator.
const PAIRS_LIMIT: Duration = Duration::from_millis(200);
/// The random workload whose single calls are timed.
const TAIL: Random = Random {
    blocks: 100_000,
    max_mib: 1,
};

/// What was measured of one case on one allocator.
pub struct Measured {
    /// A word to tell the figures of one case apart, and the samples of each.
    figures: Vec<(&'static str, Vec<f64>)>,
    peak_live: Option<u64>,
    failures: Option<u64>,
}

/// One case of a workload, to be measured on any allocator.
pub trait Case {
    fn measure<S: Subject>(&self, subject: &mut S, passes: usize) -> Measured;
}

/// A pass of warm-up, and then as many as asked for, or until they have taken long.
pub fn repeat(passes: usize, mut pass: impl FnMut() -> Pass) -> Vec<Pass> {
    pass();
    let start = Instant::now();
    let mut measured = Vec::with_capacity(passes);
    while measured.len() < passes && (measured.is_empty() || start.elapsed() < LONG) {
        measured.push(pass());
    }
    measured
}

/// What was measured where each pass gives one figure.
fn one_figure(passes: &[Pass]) -> Measured {
    Measured {
        figures: vec![("", passes.iter().map(Pass::nanoseconds).collect())],
        peak_live: passes.iter().map(|pass| pass.peak_live).max(),
        failures: Some(passes.iter().map(|pass| pass.failures).sum()),
    }
}

struct Hot {
    size: usize,
    pairs: u64,
}

impl Case for Hot {
    fn measure<S: Subject>(&self, subject: &mut S, passes: usize) -> Measured {
        loops::pairs(subject, self.size, 1000);
        let measured = repeat(passes, || {
            loops::timed_pairs(subject, self.size, self.pairs, PAIRS_LIMIT)
        });
        one_figure(&measured)
    }
}

impl Case for Random {
    fn measure<S: Subject>(&self, subject: &mut S, passes: usize) -> Measured {
        let measured = repeat(passes, || loops::random(subject, *self));
        one_figure(&measured)
    }
}

/// A random workload of which each call is timed.
struct Tail(Random);

impl Case for Tail {
    fn measure<S: Subject>(&self, subject: &mut S, passes: usize) -> Measured {
        const SHARES: [f64; 4] = [0.5, 0.99, 0.999, 1.0];
        const NAMES: [[&str; 4]; 2] = [
            ["alloc p50", "alloc p99", "alloc p99.9", "alloc max"],
            ["free p50", "free p99", "free p99.9", "free max"],
        ];
        let mut tails = Vec::new();
        let measured = repeat(passes, || {
            let mut timed = Timed::new(subject, self.0.blocks);
            let pass = loops::random(&mut timed, self.0);
            tails.push(timed.tail);
            pass
        });
        tails.remove(0);
        let mut figures = Vec::new();
        for (names, free) in NAMES.into_iter().zip([false, true]) {
            let mut samples = SHARES.map(|_| Vec::new());
            for tail in &mut tails {
                let times = if free {
                    &mut tail.free
                } else {
                    &mut tail.allocate
                };
                times.sort_unstable();
                for (samples, share) in samples.iter_mut().zip(SHARES) {
                    samples.push(percentile(times, share));
                }
            }
            figures.extend(names.into_iter().zip(samples));
        }
        Measured {
            figures,
            peak_live: None,
            failures: Some(measured.iter().map(|pass| pass.failures).sum()),
        }
    }
}

struct Holes {
    holes: usize,
    pairs: u64,
}

impl Case for Holes {
    fn measure<S: Subject>(&self, subject: &mut S, passes: usize) -> Measured {
        let walls = loops::make_holes(subject, self.holes);
        let measured = repeat(passes, || {
            loops::timed_pairs(subject, 1024, self.pairs, PAIRS_LIMIT)
        });
        for wall in walls {
            subject.free(wall);
        }
        one_figure(&measured)
    }
}

/// The name of a workload, of a case, and the unit of its figures.
#[derive(Clone, Copy)]
pub struct Label<'a> {
    pub workload: &'static str,
    pub case: &'a str,
    pub unit: &'static str,
}

/// The rows of one allocator, once its verdict is in.
pub fn rows<S: Subject>(
    label: Label<'_>,
    name: &'static str,
    subject: &mut S,
    case: &impl Case,
    passes: usize,
) -> Result<Vec<Row>> {
    let measured = case.measure(subject, passes);
    subject.verdict()?;
    let reserved = subject.peak_reserved();
    let row = |(word, samples): (&str, Vec<f64>)| {
        let case = format!("{} {word}", label.case);
        let mut row = Row::new(label.workload, case.trim_end(), name, label.unit, &samples);
        row.failures = measured.failures;
        if measured.peak_live.is_some_and(|live| live > 0) {
            row.peak_live_bytes = measured.peak_live;
            row.peak_reserved_bytes = reserved;
        }
        row
    };
    Ok(measured.figures.into_iter().map(row).collect())
}

/// The manager, `null` and the references on one case.
fn all<W: Write>(
    bench: &mut Bench<'_, W>,
    label: Label<'_>,
    case: &impl Case,
    pinned: bool,
) -> Result<()> {
    let passes = bench.passes(PASSES);
    let mut found = if pinned {
        with_pinned(|subject| rows(label, "memmgr", subject, case, passes))?
    } else {
        with_device(|subject| rows(label, "memmgr", subject, case, passes))?
    };
    found.extend(rows(label, "null", &mut Null::new(), case, passes)?);
    if bench.wants(Reference::List) {
        found.extend(rows(label, "list", &mut List::new(), case, passes)?);
    }
    if bench.wants(Reference::Btree) {
        found.extend(rows(label, "btree", &mut Tree::new(), case, passes)?);
    }
    bench.report(found)
}

fn hot_cases<W: Write>(
    bench: &mut Bench<'_, W>,
    workload: &'static str,
    pinned: bool,
) -> Result<()> {
    let pairs = if bench.quick() { 20_000 } else { 200_000 };
    let sizes = [
        ("4 KiB", 4 << 10, pairs),
        ("1 MiB", 1 << 20, pairs),
        ("64 MiB", 64 << 20, pairs / 4),
    ];
    for (name, size, pairs) in sizes {
        let label = Label {
            workload,
            case: &format!("hot {name}"),
            unit: "ns",
        };
        all(bench, label, &Hot { size, pairs }, pinned)?;
    }
    Ok(())
}

fn random_cases<W: Write>(
    bench: &mut Bench<'_, W>,
    workload: &'static str,
    shapes: impl IntoIterator<Item = (usize, usize)>,
    pinned: bool,
) -> Result<()> {
    for (blocks, max_mib) in shapes {
        let shape = Random { blocks, max_mib };
        let label = Label {
            workload,
            case: &shape.case(),
            unit: "ns/op",
        };
        all(bench, label, &shape, pinned)?;
    }
    Ok(())
}

pub fn hot<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let text = "allocates one size and frees it at once; ns per pair";
    bench.heading("hot", text, bench.passes(PASSES))?;
    hot_cases(bench, "hot", false)
}

pub fn random<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let text = "2n steps, 73 % allocate 1 byte to max, the others free; ns per call";
    bench.heading("random", text, bench.passes(PASSES))?;
    let counts: &[usize] = if bench.quick() {
        &[1000, 10_000]
    } else {
        &[1000, 10_000, 100_000]
    };
    let shapes = counts
        .iter()
        .flat_map(|count| [1, 64, 1024].map(|max| (*count, max)));
    random_cases(bench, "random", shapes, false)
}

pub fn tail<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let text = "single calls of random n=100000 max=1MiB, clock included; ns";
    bench.heading("tail", text, bench.passes(PASSES))?;
    let shape = if bench.quick() {
        Random {
            blocks: 10_000,
            ..TAIL
        }
    } else {
        TAIL
    };
    let label = Label {
        workload: "tail",
        case: &format!("n={}", shape.blocks),
        unit: "ns",
    };
    all(bench, label, &Tail(shape), false)
}

pub fn holes<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let text = "allocates and frees 1 KiB beside k free spans of 256 B to 2 KiB; ns per pair";
    bench.heading("holes", text, bench.passes(PASSES))?;
    let pairs = if bench.quick() { 20_000 } else { 100_000 };
    for holes in [16, 256, 4096, 65_536] {
        let label = Label {
            workload: "holes",
            case: &format!("k={holes}"),
            unit: "ns",
        };
        all(bench, label, &Holes { holes, pairs }, false)?;
    }
    let first_and_last = |rows: &[Row]| {
        let ours = rows
            .iter()
            .filter(|row| row.workload == "holes" && row.subject == "memmgr");
        let values: Vec<f64> = ours.map(|row| row.value).collect();
        Some(values.last()? / values.first()?)
    };
    if let Some(growth) = first_and_last(&bench.rows) {
        bench.remark(&format!("memmgr, k=65536 over k=16: x{growth:.2}"))?;
    }
    Ok(())
}

pub fn pinned<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let text = "hot and random on page-locked memory; ns per pair, ns per call";
    bench.heading("pinned", text, bench.passes(PASSES))?;
    hot_cases(bench, "pinned", true)?;
    // More of it takes page-locked memory of many GiB, and minutes to obtain it.
    let counts: &[usize] = if bench.quick() {
        &[1000]
    } else {
        &[1000, 10_000]
    };
    let shapes = counts.iter().map(|count| (*count, 1));
    random_cases(bench, "pinned", shapes, true)
}
