//! The workloads of one thread and one stream: `hot`, `random`, `tail`, `holes` and `pinned`.

use std::ffi::c_void;
use std::io::Write;
use std::time::Duration;

use super::Bench;
use super::figure::Row;
use super::loops::{self, Pass, Random, Timed, percentile};
use super::reference::{List, Tree};
use super::subject::{Null, Subject, with_device, with_pinned};
use super::turns::{Case, Label, PASSES, measure, on};
use crate::error::Result;
use crate::options::Reference;

/// What a pass of pairs may take on a slow allocator.
const PAIRS_LIMIT: Duration = Duration::from_millis(200);
/// The random workload whose single calls are timed.
const TAIL: Random = Random {
    blocks: 100_000,
    max_mib: 1,
};

/// A pass that gives its time as the one figure.
fn alone(pass: Pass) -> (Pass, Vec<f64>) {
    (pass, vec![pass.nanoseconds()])
}

struct Hot {
    size: usize,
    pairs: u64,
}

impl Case for Hot {
    fn pass<S: Subject>(&self, subject: &mut S) -> (Pass, Vec<f64>) {
        loops::pairs(subject, self.size, 1000);
        let pass = loops::timed_pairs(subject, self.size, self.pairs, PAIRS_LIMIT);
        alone(pass)
    }
}

impl Case for Random {
    fn pass<S: Subject>(&self, subject: &mut S) -> (Pass, Vec<f64>) {
        alone(loops::random(subject, *self))
    }
}

/// A random workload of which each call is timed.
struct Tail(Random);

impl Case for Tail {
    fn figures(&self) -> &'static [&'static str] {
        &[
            "alloc p50",
            "alloc p99",
            "alloc p99.9",
            "alloc max",
            "free p50",
            "free p99",
            "free p99.9",
            "free max",
        ]
    }

    fn pass<S: Subject>(&self, subject: &mut S) -> (Pass, Vec<f64>) {
        let mut timed = Timed::new(subject, self.0.blocks);
        let pass = loops::random(&mut timed, self.0);
        let tail = timed.tail;
        let mut samples = Vec::new();
        for mut times in [tail.allocate, tail.free] {
            times.sort_unstable();
            samples.extend([0.5, 0.99, 0.999, 1.0].map(|share| percentile(&times, share)));
        }
        let pass = Pass {
            peak_live: 0,
            ..pass
        };
        (pass, samples)
    }
}

struct Holes {
    holes: usize,
    pairs: u64,
}

impl Case for Holes {
    fn begin<S: Subject>(&self, subject: &mut S) -> Vec<*mut c_void> {
        loops::make_holes(subject, self.holes)
    }

    fn pass<S: Subject>(&self, subject: &mut S) -> (Pass, Vec<f64>) {
        let pass = loops::timed_pairs(subject, 1024, self.pairs, PAIRS_LIMIT);
        alone(pass)
    }
}

/// The manager, `null` and the references on one case.
fn all<W: Write>(
    bench: &mut Bench<'_, W>,
    label: Label<'_>,
    case: &impl Case,
    pinned: bool,
) -> Result<()> {
    let rows = if pinned {
        with_pinned(|subject| beside(bench, label, case, subject))
    } else {
        with_device(|subject| beside(bench, label, case, subject))
    };
    bench.report(rows?)
}

fn beside<W: Write>(
    bench: &Bench<'_, W>,
    label: Label<'_>,
    case: &impl Case,
    ours: &mut impl Subject,
) -> Result<Vec<Row>> {
    let mut runners = vec![on("memmgr", ours, case), on("null", Null::new(), case)];
    if bench.wants(Reference::List) {
        runners.push(on("list", List::new(), case));
    }
    if bench.wants(Reference::Btree) {
        runners.push(on("btree", Tree::new(), case));
    }
    measure(label, bench.passes(PASSES), runners)
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
