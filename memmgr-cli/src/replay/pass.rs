//! One pass over a trace: each event is one call of an allocator, timed in batches.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use memmgr::{Error, MemoryManager, PoolFragmentation, PoolStats, Snapshot, Stream};

use crate::error::Result;
use crate::trace::{Event, Trace};

/// Events between two looks at the clock and two moves of the progress bar.
const BATCH: usize = 4096;

/// What a trace is replayed on.
pub trait Allocator {
    /// A block, or `None` where memory ran out.
    fn allocate(&mut self, size: usize, stream: u32) -> Result<Option<*mut c_void>, Error>;
    fn free(&mut self, block: *mut c_void, stream: u32) -> Result<(), Error>;
    /// The trace has the most bytes live now. Not timed.
    fn at_peak(&mut self) {}
}

/// How one pass went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    pub elapsed: Duration,
    pub failures: u64,
}

impl Pass {
    pub fn ns_per_op(self, events: usize) -> f64 {
        // Tenths of a nanosecond are more than the clock gives.
        (self.elapsed.as_nanos() as f64 / events as f64 * 10.0).round() / 10.0
    }
}

/// Replays the trace once; then, off the clock, frees what it leaves live.
pub fn pass(
    allocator: &mut impl Allocator,
    trace: &Trace,
    mut moved: impl FnMut(usize),
) -> Result<Pass, Error> {
    let mut blocks: Vec<Option<*mut c_void>> = vec![None; trace.blocks];
    let mut result = Pass::default();
    let (until_peak, beyond) = trace
        .events
        .split_at(trace.peak_at.saturating_add(1).min(trace.events.len()));
    let batches = (until_peak.chunks(BATCH)).chain(beyond.chunks(BATCH));
    let mut done = 0;
    for batch in batches {
        let start = Instant::now();
        for event in batch {
            match *event {
                Event::Allocate {
                    block,
                    stream,
                    size,
                } => match allocator.allocate(size, stream)? {
                    None => result.failures += 1,
                    some => blocks[block as usize] = some,
                },
                Event::Free { block, stream } => {
                    if let Some(pointer) = blocks[block as usize].take() {
                        allocator.free(pointer, stream)?;
                    }
                }
            }
        }
        result.elapsed += start.elapsed();
        done += batch.len();
        if done == until_peak.len() {
            allocator.at_peak();
        }
        moved(batch.len());
    }
    for event in &trace.events {
        if let Event::Allocate { block, stream, .. } = *event
            && let Some(pointer) = blocks[block as usize].take()
        {
            allocator.free(pointer, stream)?;
        }
    }
    Ok(result)
}

/// The figures of an own pool when the most bytes were live.
#[derive(Clone, Copy)]
pub struct AtPeak {
    pub stats: PoolStats,
    pub fragmentation: PoolFragmentation,
}

/// A memory manager with one stream for each stream of the trace.
pub struct Managed<'a> {
    pub manager: &'a MemoryManager,
    pub streams: Vec<Stream>,
    /// Whether a snapshot is to be taken then.
    pub takes_snapshot: bool,
    pub snapshot: Option<Snapshot>,
    pub at_peak: Option<AtPeak>,
}

impl<'a> Managed<'a> {
    /// So many new streams.
    pub fn new(manager: &'a MemoryManager, streams: usize) -> Result<Self, Error> {
        let streams = (0..streams).map(|_| Stream::new());
        Ok(Self {
            manager,
            streams: streams.collect::<Result<_, _>>()?,
            at_peak: None,
            takes_snapshot: false,
            snapshot: None,
        })
    }
}

impl Allocator for Managed<'_> {
    fn allocate(&mut self, size: usize, stream: u32) -> Result<Option<*mut c_void>, Error> {
        let stream = &self.streams[stream as usize];
        match self.manager.allocate_device_on(size, stream) {
            Ok(pointer) => Ok(Some(pointer)),
            Err(error) if is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, block: *mut c_void, stream: u32) -> Result<(), Error> {
        // SAFETY: `allocate` returned the block, `pass` takes it out of its list before it frees it,
        // and what uses it, if anything, is in the stream that it was allocated on, which is waited for
        // where another frees it.
        unsafe {
            self.manager
                .free_device_on(block, &self.streams[stream as usize])
        }
    }

    fn at_peak(&mut self) {
        if self.takes_snapshot {
            self.snapshot = Some(self.manager.snapshot());
        }
        let device = self.streams.first().map(Stream::device);
        let stats = self.manager.stats();
        let fragmentation = self.manager.fragmentation();
        self.at_peak = (stats.device.iter())
            .find(|of| Some(of.device) == device)
            .map(|of| AtPeak {
                stats: of.best_fit,
                fragmentation: fragmentation.of_device(of.device),
            });
    }
}

/// Whether a device had no memory for a request, which is counted; other errors end the replay.
pub fn is_out_of_memory(error: &Error) -> bool {
    error.is_out_of_memory()
        || matches!(
            error,
            Error::LimitExceeded { .. } | Error::InvalidSize { .. }
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out numbers instead of memory, up to a limit of live blocks.
    struct Fake {
        live: std::collections::BTreeSet<usize>,
        next: usize,
        limit: usize,
    }

    impl Allocator for Fake {
        fn allocate(&mut self, _: usize, _: u32) -> Result<Option<*mut c_void>, Error> {
            if self.live.len() == self.limit {
                return Ok(None);
            }
            self.next += 1;
            self.live.insert(self.next);
            Ok(Some(std::ptr::without_provenance_mut(self.next)))
        }

        fn free(&mut self, block: *mut c_void, _: u32) -> Result<(), Error> {
            assert!(self.live.remove(&block.addr()), "freed once");
            Ok(())
        }
    }

    fn trace() -> Trace {
        let text = format!(
            "{}\n0,0,allocate,0x1,1,0\n0,0,allocate,0x2,1,0\n0,0,allocate,0x3,1,0\n\
             0,0,free,0x3,1,0\n0,0,free,0x1,1,0\n0,0,allocate,0x1,1,0\n",
            crate::trace::HEADER
        );
        Trace::read(text.as_bytes()).expect("a trace")
    }

    #[test]
    fn a_pass_frees_everything_and_moves_on_by_every_event() {
        let mut fake = Fake {
            live: Default::default(),
            next: 0,
            limit: 9,
        };
        let mut moved = 0;
        let result = pass(&mut fake, &trace(), |n| moved += n).expect("no error");
        assert_eq!((result.failures, moved, fake.next), (0, 6, 4));
        assert!(fake.live.is_empty());
    }

    #[test]
    fn a_request_that_finds_no_memory_is_counted_and_its_free_left_out() {
        let mut fake = Fake {
            live: Default::default(),
            next: 0,
            limit: 2,
        };
        let result = pass(&mut fake, &trace(), |_| ()).expect("no error");
        assert_eq!((result.failures, fake.next), (1, 3));
        assert!(fake.live.is_empty());
    }
}
