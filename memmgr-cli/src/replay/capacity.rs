//! `memmgr replay --capacity`: the smallest limit of the pool with which a trace passes, by bisection.
//!
//! A trace passes if no request fails. Somewhat smaller limits may pass by luck: where blocks lie depends on the limit.

use std::ffi::c_void;
use std::io::Write;

use memmgr::{DeviceAllocatorMode, Error, MemoryManager};
use serde::Serialize;

use super::pass::{Allocator, Managed, pass};
use super::work::{Lagging, OnStreams, Work};
use super::{Json, Named, cannot_write};
use crate::error::{Failure, Result};
use crate::options::ReplayOptions;
use crate::progress;
use crate::settings::Settings;
use crate::table::{counted, people, wrapped};

/// Limits are multiples of this.
pub const STEP: u64 = 2 << 20;

/// What was found for one trace.
#[derive(Clone, Debug, Serialize)]
struct Row {
    trace: String,
    backend: String,
    peak_live_bytes: u64,
    /// The most that was tried.
    largest_bytes: u64,
    /// The smallest limit with which the trace passes; null if it does not pass with the largest.
    capacity_bytes: Option<u64>,
    capacity_over_live: Option<f64>,
    /// How often the trace was replayed.
    trials: usize,
}

/// An allocator that is asked no more once a request has failed.
struct Strict<A> {
    inner: A,
    /// The size of the request that failed.
    failed: Option<usize>,
}

impl<A: Allocator> Allocator for Strict<A> {
    fn allocate(&mut self, size: usize, stream: u32) -> Result<Option<*mut c_void>, Error> {
        if self.failed.is_some() {
            return Ok(None);
        }
        let block = self.inner.allocate(size, stream)?;
        if block.is_none() {
            self.failed = Some(size);
        }
        Ok(block)
    }

    fn free(&mut self, block: *mut c_void, stream: u32) -> Result<(), Error> {
        self.inner.free(block, stream)
    }
}

/// Replays the trace with a limit; the size of the request that failed, if one did.
fn attempt(
    named: &Named,
    settings: &Settings,
    limit: u64,
    work: Option<&Work>,
) -> Result<Option<usize>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let config = (settings.config())
        .mode(DeviceAllocatorMode::BestFitPool)
        .device_pool_limit(Some(limit));
    let manager = MemoryManager::new(config)?;
    let managed = Managed::new(&manager, named.trace.streams)?;
    let failed = match work {
        None => {
            let mut strict = Strict {
                inner: managed,
                failed: None,
            };
            pass(&mut strict, &named.trace, |_| ())?;
            strict.failed
        }
        Some(work) => {
            let mut strict = Strict {
                inner: Lagging::new(managed, work),
                failed: None,
            };
            pass(&mut strict, &named.trace, |_| ())?;
            for stream in strict.inner.inner.streams() {
                stream.synchronize()?;
            }
            strict.inner.failure()?;
            strict.failed
        }
    };
    manager.shutdown()?;
    Ok(failed)
}

/// The smallest number from `low + 1` to `high` for which `passes`, if it does for `high`.
fn bisect(
    mut low: u64,
    mut high: u64,
    mut passes: impl FnMut(u64) -> Result<bool>,
) -> Result<Option<u64>> {
    if high <= low || !passes(high)? {
        return Ok(None);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if passes(middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(Some(high))
}

/// Looks for the smallest limit of each trace.
pub fn run(
    options: &ReplayOptions,
    settings: &Settings,
    traces: &[Named],
    work: Option<&Work>,
    json: Option<Json<'_>>,
    out: &mut impl Write,
) -> Result<()> {
    if !options
        .mode
        .modes()
        .contains(&DeviceAllocatorMode::BestFitPool)
    {
        return Err(Failure::message(
            "--capacity sets the limit of the manager's own pool, and other modes have none: use --mode pool",
        ));
    }
    let largest = options.capacity.unwrap_or(0) / STEP;
    let bar = progress::spinner();
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for named in traces {
        let live = named.trace.peak_live;
        bar.set_message(named.name.clone());
        let events = counted(named.trace.events.len(), "event");
        let text = format!("{}: {events}, peak live {}", named.name, people(live));
        bar.suspend(|| writeln!(out, "\n{}", wrapped(&text)))?;
        let mut trials = 0;
        // What is live at one time cannot fit less.
        let found = bisect(live.saturating_sub(1) / STEP, largest, |steps| {
            trials += 1;
            let limit = steps * STEP;
            bar.set_message(format!("{}: {}", named.name, people(limit)));
            let failed = attempt(named, settings, limit, work)?;
            let text = match failed {
                None => format!("  {}: passes", exact(limit)),
                Some(size) => format!("  {}: {} do not fit", exact(limit), people(size as u64)),
            };
            bar.suspend(|| writeln!(out, "{text}").and_then(|()| out.flush()))?;
            Ok(failed.is_none())
        })?;
        let capacity = found.map(|steps| steps * STEP);
        let ratio = capacity.map(|capacity| capacity as f64 / live as f64);
        let text = match capacity.zip(ratio) {
            Some((capacity, ratio)) => format!(
                "{} passes with a pool of {}: {ratio:.3} x its peak of live bytes ({})",
                named.name,
                exact(capacity),
                counted(trials, "trial")
            ),
            None => {
                failed.push(named.name.as_str());
                format!(
                    "{} does not pass with a pool of {}",
                    named.name,
                    exact(largest * STEP)
                )
            }
        };
        bar.suspend(|| writeln!(out, "{}", wrapped(&text)))?;
        rows.push(Row {
            trace: named.name.clone(),
            backend: memmgr::backend().to_string(),
            peak_live_bytes: live,
            largest_bytes: largest * STEP,
            capacity_bytes: capacity,
            capacity_over_live: ratio,
            trials,
        });
    }
    bar.finish_and_clear();
    if let Some((path, output)) = json {
        (output.write(&rows)).map_err(|error| cannot_write(path, error))?;
    }
    if !failed.is_empty() {
        return Err(Failure::message(format!(
            "no pool of up to {} is enough for {}: try a larger --capacity",
            exact(largest * STEP),
            failed.join(", ")
        )));
    }
    Ok(())
}

/// Whole MiB, since a limit is used as it is.
fn exact(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_number_that_passes_is_found() {
        for wanted in 6..=40 {
            let mut asked = Vec::new();
            let found = bisect(5, 40, |number| {
                asked.push(number);
                Ok(number >= wanted)
            });
            assert_eq!(found.expect("no failure"), Some(wanted));
            assert!(asked.len() <= 7 && asked.iter().all(|number| (6..=40).contains(number)));
        }
        let never = bisect(5, 40, |_| Ok(false));
        assert_eq!(never.expect("no failure"), None);
        let empty = bisect(5, 5, |_| panic!("nothing to ask"));
        assert_eq!(empty.expect("no failure"), None);
    }
}
