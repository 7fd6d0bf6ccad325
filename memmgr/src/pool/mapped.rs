//! Mapped physical memory of one device: the CUDA side of a pool that grows by chunks. No lock may be held.

use super::{
    arena::{Chunk, Idles, PAGE, Plan},
    segment::internal_stream,
};
use crate::{
    context,
    cuda::{
        self,
        virtual_memory::{self as driver, RawChunk},
    },
    device::{self, on_device},
    error::{Error, Result},
    planted::{self, Mistake},
    stream::{Stream, handle_of},
    sync::OnceLock,
};
use std::{collections::BTreeSet, ops::Range};

/// A range of addresses is so many times as long as the device has memory, if the driver gives that many.
const TIMES: usize = 4;

/// Where there are not so many addresses in one piece, in bytes, a pool of mapped memory is not begun.
const FEW: usize = 32 * PAGE;

/// Where a device's chunks come from.
#[derive(Debug)]
pub(crate) struct Mapped {
    device: i32,
    /// Its stream for zeroing.
    zeroing: OnceLock<Stream>,
    /// Whether network adapters can reach its chunks.
    rdma: OnceLock<bool>,
    /// The devices that may use its chunks, itself first.
    reach: OnceLock<Vec<i32>>,
}

/// What could not be done, and what it has cost.
pub(super) struct Failed {
    pub error: Error,
    /// So many of the aliases that were to go are gone.
    pub cleared: usize,
    /// Whether something stays mapped at the target, so that nothing else can be mapped there.
    pub stuck: bool,
}

/// Whether CUDA says that there is not so much, of memory or of addresses.
pub(super) fn is_out_of_memory(error: &Error) -> bool {
    matches!(
        error,
        Error::Cuda {
            code: cuda::OUT_OF_MEMORY,
            ..
        }
    )
}

impl Mapped {
    pub fn new(device: i32) -> Self {
        Self {
            device,
            zeroing: OnceLock::new(),
            rdma: OnceLock::new(),
            reach: OnceLock::new(),
        }
    }

    /// Whose memory it is.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Whether the process has addresses left for a pool, as far as the driver says.
    pub fn has_addresses() -> bool {
        match driver::reserve(FEW) {
            Ok(start) => {
                // SAFETY: the range was just reserved, and nobody knows it. What stays reserved harms nobody.
                let _ = unsafe { driver::free(start, FEW) };
                true
            }
            // Another error is for whoever needs the addresses.
            Err(error) => !is_out_of_memory(&error),
        }
    }

    /// Reserves a range of addresses for at least `least` bytes: start and length.
    pub fn reserve(&self, least: usize) -> Result<(usize, usize)> {
        on_device(self.device, || {
            // This makes the context, if there is none, and the stream while no queue is full.
            let (_, total) = cuda::mem_get_info()?;
            internal_stream(&self.zeroing, self.device)?;
            if self.reach.get().is_none() {
                let _ = self.reach.set(device::devices_in_reach(self.device)?);
            }
            context::note(self.device);
            let least = least
                .checked_next_multiple_of(PAGE)
                .ok_or_else(|| Error::InvalidSize {
                    reason: format!("{least} bytes are more than an address range can have"),
                })?;
            let most = total.saturating_mul(TIMES);
            let mut len = (most - most % PAGE).max(least);
            loop {
                match driver::reserve(len) {
                    Ok(start) => return Ok((start, len)),
                    Err(error) if len <= least => return Err(error),
                    Err(_) => len = (len / 2 - len / 2 % PAGE).max(least),
                }
            }
        })
    }

    /// Gives a range of addresses back.
    ///
    /// # Safety
    /// The range came from [`Mapped::reserve`], nothing is mapped in it, and nobody uses its addresses any more.
    pub unsafe fn free_range(&self, start: usize, len: usize) -> Result<()> {
        // SAFETY: as this function demands.
        on_device(self.device, || unsafe { driver::free(start, len) })
    }

    /// Physical memory.
    fn create(&self, len: usize) -> Result<Chunk> {
        let rdma = match self.rdma.get() {
            Some(rdma) => *rdma,
            None => {
                let rdma = device::mapped_memory_is_reachable(self.device)?;
                *self.rdma.get_or_init(|| rdma)
            }
        };
        let raw = driver::create(self.device, len, rdma)?;
        Ok(Chunk { raw, len })
    }

    /// Moves what is to be moved and makes what is missing, as planned; the new chunks, and where they are. Either all of it
    /// is done, or nothing, but for aliases that are gone. A chunk that moves stays mapped where it was, which becomes an alias.
    ///
    /// # Safety
    /// The chunks and addresses of the plan are out of the books, and no work touches the chunks.
    pub(super) unsafe fn carry_out(&self, plan: &Plan) -> Result<Vec<(usize, Chunk)>, Failed> {
        let mut steps = Steps {
            made: Vec::new(),
            cleared: 0,
            mapped: Vec::new(),
            zeroing: false,
        };
        let done = on_device(self.device, || {
            // What can be refused comes first.
            for place in &plan.make {
                steps.made.push((place.start, self.create(place.len())?));
            }
            for (at, chunk) in &plan.clear {
                // SAFETY: nothing lies there in the books, and so nobody uses these addresses.
                unsafe { driver::unmap(*at, chunk.len)? };
                steps.cleared += 1;
            }
            let moved = plan.moves.iter().filter(|one| !one.is_mapped);
            let moved = moved.map(|one| (one.to, one.chunk));
            let all: Vec<(usize, Chunk)> = moved.chain(steps.made.iter().copied()).collect();
            for (to, chunk) in &all {
                // SAFETY: the chunk is alive, and nothing is mapped there.
                unsafe { driver::map(*to, chunk.len, chunk.raw)? };
                steps.mapped.push((*to, *chunk));
            }
            for part in parts(&all) {
                self.allow(part.start, part.len())?;
            }
            let new = parts(&steps.made);
            steps.zeroing = !new.is_empty();
            self.zero(&new)
        });
        match done {
            Ok(()) => Ok(steps.made),
            Err(error) => {
                let cleared = steps.cleared;
                // SAFETY: the memory was never handed out at its new addresses.
                let stuck = unsafe { steps.undo(self) };
                Err(Failed {
                    error,
                    cleared,
                    stuck,
                })
            }
        }
    }

    /// Lets the devices use what is mapped in a range.
    fn allow(&self, start: usize, len: usize) -> Result<()> {
        let own = std::slice::from_ref(&self.device);
        driver::allow(start, len, self.reach.get().map_or(own, Vec::as_slice))
    }

    /// Zeroes new memory, so that no buffer ever shows what another process left there.
    fn zero(&self, parts: &[Range<usize>]) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let stream = internal_stream(&self.zeroing, self.device)?;
        for part in parts {
            // SAFETY: the memory was just made and mapped, and nobody else knows it; the stream is alive.
            unsafe { cuda::memset_async(part.start, 0, part.len(), handle_of(stream).raw())? };
        }
        if planted::is_made(Mistake::ZeroingIsNotAwaited) {
            return Ok(());
        }
        stream.synchronize()
    }

    /// Whether nothing that zeroes memory runs any more.
    fn has_stopped_zeroing(&self) -> bool {
        let Some(stream) = self.zeroing.get() else {
            return true;
        };
        // SAFETY: the stream is alive.
        let waited = unsafe { cuda::stream_synchronize(handle_of(stream).raw()) };
        waited.is_ok() || cuda::wait_for_device().is_ok()
    }

    /// Unmaps and releases chunks; the bytes that the books counted, and what could not be given back.
    ///
    /// # Safety
    /// The chunks are out of the books, and no work touches them.
    pub(super) unsafe fn release(&self, idles: Idles) -> (usize, Idles, Result<()>) {
        let (mut gone, mut rest) = (0usize, Idles::default());
        // Where the device cannot be asked for, all of it stays.
        let mut all = Some(idles);
        let done = on_device(self.device, || {
            let mut idles = all.take().unwrap_or_default();
            let mut first = Ok(());
            for (at, chunk) in idles.aliases {
                // SAFETY: nothing lies there in the books, and so nobody uses these addresses.
                if let Err(error) = unsafe { driver::unmap(at, chunk.len) } {
                    rest.aliases.push((at, chunk));
                    first = first.and(Err(error));
                }
            }
            let stuck: BTreeSet<RawChunk> =
                rest.aliases.iter().map(|(_, chunk)| chunk.raw).collect();
            for taken in idles.mapped {
                if stuck.contains(&taken.chunk.raw) {
                    // It would not give its memory back.
                    rest.mapped.push(taken);
                    continue;
                }
                // SAFETY: as this function demands.
                match unsafe { driver::unmap(taken.start, taken.chunk.len) } {
                    Ok(()) => idles.unmapped.push((taken.chunk, taken.len)),
                    Err(error) => {
                        rest.mapped.push(taken);
                        first = first.and(Err(error));
                    }
                }
            }
            for (chunk, len) in idles.unmapped {
                // SAFETY: it is mapped nowhere, and out of the books.
                match unsafe { driver::release(chunk.raw) } {
                    Ok(()) => gone = gone.saturating_add(len),
                    Err(error) => {
                        rest.unmapped.push((chunk, len));
                        first = first.and(Err(error));
                    }
                }
            }
            first
        });
        (gone, all.unwrap_or(rest), done)
    }
}

/// How far a plan has come.
struct Steps {
    made: Vec<(usize, Chunk)>,
    /// So many of the aliases that are to go are gone.
    cleared: usize,
    mapped: Vec<(usize, Chunk)>,
    /// Whether new memory may be in the middle of being zeroed.
    zeroing: bool,
}

impl Steps {
    /// Takes everything back but the aliases that are gone; whether something stays mapped.
    ///
    /// # Safety
    /// No work touches the chunks.
    unsafe fn undo(self, mapped: &Mapped) -> bool {
        let mut stuck = false;
        let undone = on_device(mapped.device, || {
            let is_busy = self.zeroing && !mapped.has_stopped_zeroing();
            for (at, chunk) in &self.mapped {
                if is_busy && self.made.contains(&(*at, *chunk)) {
                    tracing::warn!("new memory may still be written: it is lost");
                    stuck = true;
                    continue;
                }
                // SAFETY: as this function demands.
                if let Err(error) = unsafe { driver::unmap(*at, chunk.len) } {
                    tracing::warn!(%error, "memory could not be unmapped: it is lost");
                    stuck = true;
                }
            }
            for (_, chunk) in &self.made {
                // SAFETY: nobody knows the chunk. One that is still mapped lives as long as that.
                if let Err(error) = unsafe { driver::release(chunk.raw) } {
                    tracing::warn!(%error, "memory could not be released: it is lost");
                }
            }
            Ok(())
        });
        if let Err(error) = undone {
            tracing::warn!(%error, "a growth could not be undone");
            stuck = true;
        }
        stuck
    }
}

/// The ranges that chunks make up together.
pub(super) fn parts(placed: &[(usize, Chunk)]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = placed
        .iter()
        .map(|(at, chunk)| *at..at.saturating_add(chunk.len))
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|right, left| {
        let touch = left.end == right.start;
        if touch {
            left.end = right.end;
        }
        touch
    });
    ranges
}
