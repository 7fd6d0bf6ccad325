//! How long the pinned pool takes to get a long segment, in both ways that the manager knows.

use std::io::Write;
use std::time::Instant;

use memmgr::{Config, MemoryManager, PinnedSource};

use super::Bench;
use super::figure::Row;
use super::turns::PASSES;
use crate::error::Result;
use crate::table::people;

/// The segment, and a shorter one for a quick look.
const LONG: usize = 256 << 20;
const SHORT: usize = 16 << 20;

/// Milliseconds until a segment is there, zeroed and page-locked.
fn grow(source: PinnedSource, bytes: usize) -> Result<f64> {
    let manager = MemoryManager::new(Config::default().pinned_source(source))?;
    let start = Instant::now();
    manager.warm_up_pinned(bytes)?;
    let taken = start.elapsed();
    manager.shutdown()?;
    Ok(taken.as_secs_f64() * 1000.0)
}

fn described(source: PinnedSource) -> &'static str {
    match source {
        PinnedSource::HostRegister => "map, touch, register",
        PinnedSource::HostAlloc => "cudaHostAlloc",
    }
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let passes = bench.passes(PASSES);
    let bytes = if bench.quick() { SHORT } else { LONG };
    let text = format!(
        "the pinned pool grows by {}: mapped, touched and registered, and (cuda) with cudaHostAlloc",
        people(bytes as u64)
    );
    bench.heading("pinned-growth", &text, passes)?;
    let sources = [PinnedSource::HostRegister, PinnedSource::HostAlloc];
    let mut found = [Vec::new(), Vec::new()];
    for pass in 0..=passes {
        for (samples, source) in found.iter_mut().zip(sources) {
            let taken = grow(source, bytes)?;
            if pass > 0 {
                samples.push(taken);
            }
        }
    }
    let case = people(bytes as u64);
    let [registered, allocated] = found;
    bench.report(vec![
        Row::new("pinned-growth", &case, "memmgr", "ms", &registered),
        Row::new("pinned-growth", &case, "cuda", "ms", &allocated),
    ])?;
    bench.remark(&format!(
        "used by default: {} (Config::pinned_source, MEMMGR_PINNED_SOURCE)",
        described(Config::default().pinned_source)
    ))
}
