//! Requests to the driver's pools, and what is tried before one is refused.

use super::{Block, Family, Native};
use crate::{
    context, cuda,
    device::on_device,
    error::{Error, Place, Result},
    event::Fence,
    out_of_memory::{Holders, OutOfMemory},
    planted::{self, Mistake},
    pool::{Span, Use, Users, best_fit, segment::internal_stream},
    stream::{Handle, handle_of},
    sync::lock,
};

impl Native {
    /// A block of `size` bytes: usable by work submitted to the stream from now on; without a stream, by anybody at once
    /// (the host waits for the allocation).
    pub fn allocate(
        &self,
        family: Family,
        size: usize,
        on: Option<&Handle>,
        raw: bool,
    ) -> Result<usize> {
        best_fit::checked(size)?;
        context::check(self.device)?;
        let _steady = on.map(|handle| handle.core().steady()).transpose()?;
        if let Some(handle) = on {
            handle.refuse_capture(
                "an allocation of the driver's pool on a stream",
                "allocate before the capture begins, or in the mode `BestFitPool`",
            )?;
        }
        self.free_parked();
        let result = match on {
            Some(handle) => self.with_retry(family, size, handle),
            None => internal_stream(&self.allocating, self.device).and_then(|stream| {
                let handle = handle_of(stream);
                let address = self.with_retry(family, size, handle)?;
                if let Err(error) = Fence::record(handle).and_then(|fence| fence.wait_on_host()) {
                    // SAFETY: the block was just made on this stream and nobody else knows it.
                    let _ = unsafe { cuda::free_async(address, handle.raw()) };
                    return Err(error);
                }
                Ok(address)
            }),
        };
        // Only its own thread can record on a per-thread stream: the point of the allocation is recorded now.
        let mut uses = Vec::new();
        let stream = match on.filter(|_| result.is_ok()) {
            Some(handle) if handle.core().is_per_thread() => {
                if !planted::is_made(Mistake::ThreadsLeaveNoEvents) {
                    uses.push(Use {
                        fence: Fence::after_work(handle).0,
                        span: Span::ALL,
                        writes: true,
                    });
                }
                None
            }
            other => other.map(|handle| handle.core().clone()),
        };
        let mut state = lock(&self.state);
        let stats = &mut state.stats[family as usize];
        // Where there was no memory it may be made again: who gives it up counts it.
        let counts = |error: &Error| !matches!(error, Error::OutOfMemory(_));
        let failed = |error: &Error| stats.failures += u64::from(counts(error));
        let address = result.inspect_err(failed)?;
        stats.allocations += 1;
        stats.in_use += size;
        stats.live_blocks += 1;
        stats.peak_in_use = stats.peak_in_use.max(stats.in_use);
        let former = state.blocks.insert(
            address,
            Block {
                requested: size,
                raw,
                family,
                users: Users::new(stream, uses),
                held: 0,
                freed: None,
                label: None,
            },
        );
        // Other code freed a block behind our back and the driver gave the address out again.
        if let Some(former) = former {
            let stats = &mut state.stats[former.family as usize];
            stats.in_use = stats.in_use.saturating_sub(former.requested);
            stats.live_blocks = stats.live_blocks.saturating_sub(1);
            stats.frees += 1;
        }
        Ok(address)
    }

    fn submit_allocation(&self, family: Family, size: usize, handle: &Handle) -> Result<usize> {
        match family {
            Family::Current => handle.with_device(|| {
                // SAFETY: the handle is alive.
                unsafe { cuda::malloc_async(size, handle.raw()) }
            }),
            Family::Own => {
                let pool = self.own_pool()?;
                handle.with_device(|| {
                    // SAFETY: pool and handle are alive; the pool is destroyed with this, after all blocks' managers.
                    unsafe { cuda::malloc_from_pool_async(size, pool, handle.raw()) }
                })
            }
        }
    }

    /// Allocates; out of memory is final only after pending frees have been seen, idle memory has gone back, and one
    /// more try.
    fn with_retry(&self, family: Family, size: usize, handle: &Handle) -> Result<usize> {
        match self.submit_allocation(family, size, handle) {
            Err(Error::Cuda {
                code: cuda::OUT_OF_MEMORY,
                ..
            }) => {}
            other => return other,
        }
        if on_device(self.device, cuda::mem_get_info)?.1 < size {
            return Err(self.refusal(family, size));
        }
        // The driver gives memory to others only once the host has seen that it is free: of one stream after the other, so
        // that a request waits for no more than it must; at last of those that free and ask.
        let mut waited = Vec::new();
        for last in [false, true] {
            while last || self.settle_one(&mut waited) {
                if last {
                    if let Some(stream) = self.freeing.get() {
                        stream.synchronize()?;
                    }
                    handle.synchronize()?;
                }
                if let Err(error) = self.trim(family) {
                    tracing::debug!(%error, "a memory pool could not be trimmed");
                }
                match self.submit_allocation(family, size, handle) {
                    Err(Error::Cuda {
                        code: cuda::OUT_OF_MEMORY,
                        ..
                    }) => {}
                    other => return other,
                }
                if last {
                    break;
                }
            }
        }
        Err(self.refusal(family, size))
    }

    fn refusal(&self, family: Family, size: usize) -> Error {
        let usage = self.usage(family).unwrap_or_default();
        let (free, total) = on_device(self.device, cuda::mem_get_info).unwrap_or((0, usize::MAX));
        Error::OutOfMemory(Box::new(OutOfMemory {
            place: Place::Device(self.device),
            requested: size,
            in_use: usage.used,
            reserved: usage.reserved,
            idle: usage.reserved.saturating_sub(usage.used),
            pending: 0,
            largest_idle: None,
            free_pieces: 0,
            initial: false,
            // Asked of the last refusal alone.
            idle_of_others: 0,
            no_addresses: false,
            device_free: Some(free),
            limit: None,
            capacity: total,
            holders: Holders::default(),
        }))
    }
}
