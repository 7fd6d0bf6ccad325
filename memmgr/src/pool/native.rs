//! The two async modes: blocks of `cudaMallocAsync` and of a `cudaMemPool_t` that the manager owns.
//!
//! The driver keeps the memory and orders its reuse. What is added here: which blocks are live and how they were made;
//! a free that follows every stream that used the block; allocation and free without a stream, on two internal streams
//! (one that allocates and never waits, one that frees and waits for whatever it must).

mod allocate;
mod figures;
mod free;
mod live;

use super::{Freed, Label, Users, peaks::Peaks};
use crate::{
    cuda::{self, PoolAttr, RawPool},
    device::on_device,
    error::{Error, Result},
    event::Fence,
    mode::DeviceAllocatorMode,
    process,
    stats::{NativePoolUsage, PoolStats},
    stream::Stream,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        lock,
    },
};
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

/// Which of the two families made a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// `cudaMallocAsync` on the device's current pool.
    Current,
    /// `cudaMallocFromPoolAsync` on the manager's pool.
    Own,
}

/// Both.
pub(crate) const FAMILIES: [Family; 2] = [Family::Current, Family::Own];

impl Family {
    /// The family that serves a mode.
    pub fn of(mode: DeviceAllocatorMode) -> Option<Self> {
        match mode {
            DeviceAllocatorMode::BestFitPool => None,
            DeviceAllocatorMode::AsyncStreamOrdered => Some(Family::Current),
            DeviceAllocatorMode::CudaAsyncPool => Some(Family::Own),
        }
    }

    /// The mode that it serves.
    pub fn mode(self) -> DeviceAllocatorMode {
        match self {
            Family::Current => DeviceAllocatorMode::AsyncStreamOrdered,
            Family::Own => DeviceAllocatorMode::CudaAsyncPool,
        }
    }
}

/// A live block.
#[derive(Debug)]
struct Block {
    requested: usize,
    raw: bool,
    family: Family,
    users: Users,
    /// As of [`Live`](super::live::Live).
    held: u32,
    freed: Option<Freed>,
    label: Option<Box<Label>>,
}

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<usize, Block>,
    /// The peak is the highest since one was asked for anew: `peaks` has what was before.
    stats: [PoolStats; 2],
    peaks: [Peaks; 2],
    /// Blocks whose free could not be submitted where it was asked for (in a host function, or behind a stream that is being
    /// captured): the next call that can does it.
    parked: Vec<(usize, Vec<Arc<Fence>>)>,
    /// Points of streams on which blocks were freed that the host has not seen to be free since, by the stream's uid:
    /// open ones, or, on a per-thread stream, the last free.
    freed_on: BTreeMap<u64, Arc<Fence>>,
}

/// What managers left that were dropped in a host function, or while frees were in flight.
static ORPHANS: Mutex<Vec<Native>> = Mutex::new(Vec::new());

/// Whether there is anything for [`release_orphans`] to do.
pub(crate) fn has_orphans() -> bool {
    !lock(&ORPHANS).is_empty()
}

/// Gives back what managers left. Waits for the frees of a pool, as far as that is possible.
pub(crate) fn release_orphans() {
    let orphans = std::mem::take(&mut *lock(&ORPHANS));
    for orphan in orphans {
        if orphan.own.get().is_some() {
            orphan.wait_for_frees();
        }
    }
}

/// The async modes of one device.
#[derive(Debug)]
pub(crate) struct Native {
    device: i32,
    state: Mutex<State>,
    own: OnceLock<RawPool>,
    /// Whether the own pool keeps what is configured.
    sized: AtomicBool,
    /// How much the own pool keeps when memory is released, in bytes; 0 means everything, unless there is a threshold.
    keep: Mutex<usize>,
    /// The configured release threshold.
    threshold: Option<usize>,
    allocating: OnceLock<Stream>,
    freeing: OnceLock<Stream>,
}

impl Native {
    /// No blocks; makes no CUDA call.
    pub fn new(device: i32, keep: usize, threshold: Option<usize>) -> Self {
        Self {
            device,
            state: Mutex::default(),
            own: OnceLock::new(),
            sized: AtomicBool::new(false),
            keep: Mutex::new(keep),
            threshold,
            allocating: OnceLock::new(),
            freeing: OnceLock::new(),
        }
    }

    /// Sets what the own pool keeps when memory is released; 0 means everything.
    pub fn set_keep(&self, bytes: usize) {
        *lock(&self.keep) = bytes;
    }

    /// Whether any block was ever allocated here.
    pub fn is_used(&self) -> bool {
        self.own.get().is_some()
            || lock(&self.state)
                .stats
                .iter()
                .any(|stats| stats.allocations > 0)
    }

    /// Whether the own pool has been used since the beginning or the last `shutdown`.
    pub fn is_initialized(&self) -> bool {
        self.sized.load(Ordering::Acquire)
    }

    fn own_pool(&self) -> Result<RawPool> {
        let pool = match self.own.get() {
            Some(pool) => *pool,
            None => {
                let made = on_device(self.device, || cuda::mem_pool_create(self.device))?;
                let pool = *self.own.get_or_init(|| made);
                if pool != made {
                    // SAFETY: another thread was faster; nobody knows this pool.
                    let _ = unsafe { cuda::mem_pool_destroy(made) };
                }
                pool
            }
        };
        if !self.is_initialized() {
            let keep = *lock(&self.keep);
            let threshold = match self.threshold {
                Some(threshold) => threshold.max(keep) as u64,
                None if keep == 0 => u64::MAX,
                None => keep as u64,
            };
            // SAFETY: the pool lives as long as this.
            unsafe {
                cuda::mem_pool_set(pool, PoolAttr::cudaMemPoolAttrReleaseThreshold, threshold)?
            };
            self.sized.store(true, Ordering::Release);
        }
        Ok(pool)
    }

    fn pool_of(&self, family: Family) -> Result<RawPool> {
        match family {
            Family::Current => on_device(self.device, || cuda::device_mem_pool(self.device)),
            Family::Own => self.own_pool(),
        }
    }

    /// What the driver holds.
    pub fn usage(&self, family: Family) -> Result<NativePoolUsage> {
        let pool = self.pool_of(family)?;
        // SAFETY: the device's pool lives as long as the device, the own one as long as this manager is not shut down.
        let get =
            |attribute| unsafe { cuda::mem_pool_get(pool, attribute) }.map(|value| value as usize);
        Ok(NativePoolUsage {
            used: get(PoolAttr::cudaMemPoolAttrUsedMemCurrent)?,
            used_high: get(PoolAttr::cudaMemPoolAttrUsedMemHigh)?,
            reserved: get(PoolAttr::cudaMemPoolAttrReservedMemCurrent)?,
            reserved_high: get(PoolAttr::cudaMemPoolAttrReservedMemHigh)?,
        })
    }

    /// Gives the family's idle memory back to the device; the bytes.
    pub fn trim(&self, family: Family) -> Result<usize> {
        self.trim_to(family, 0)
    }

    /// As [`Native::trim`], until at most `target` bytes are held.
    pub fn trim_to(&self, family: Family, target: usize) -> Result<usize> {
        if family == Family::Own && self.own.get().is_none() {
            return Ok(0);
        }
        let before = self.usage(family)?.reserved;
        let pool = self.pool_of(family)?;
        // SAFETY: as in `usage`.
        unsafe { cuda::mem_pool_trim(pool, target)? };
        Ok(before.saturating_sub(self.usage(family)?.reserved))
    }

    /// Waits for frees in flight on the internal streams and gives back what is idle in the own pool, and in the
    /// device's pool if this manager used it.
    pub fn shutdown(&self) -> Result<usize> {
        self.free_parked();
        for stream in [&self.freeing, &self.allocating]
            .into_iter()
            .filter_map(OnceLock::get)
        {
            stream.synchronize()?;
        }
        let mut released = self.trim(Family::Own)?;
        if lock(&self.state).stats[Family::Current as usize].allocations > 0 {
            released += self.trim(Family::Current)?;
        }
        self.sized.store(false, Ordering::Release);
        Ok(released)
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        if process::is_over() {
            return;
        }
        self.free_parked();
        // A pool with live blocks or frees in flight stays until they are gone, says CUDA; memory of a manager that is
        // dropped has no user. But with frees in flight a driver (580.159) crashes in this now and then: then a later call destroys it.
        let in_flight = self.own.get().is_some() && self.has_frees_in_flight();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let State {
            parked, freed_on, ..
        } = std::mem::take(state);
        let own = self.own.take().filter(|pool| {
            if in_flight {
                return true;
            }
            // SAFETY: this was the last user of the pool.
            match unsafe { cuda::mem_pool_destroy(*pool) } {
                Err(Error::Cuda {
                    code: cuda::NOT_PERMITTED,
                    ..
                }) => true,
                Err(error) => {
                    tracing::debug!(%error, "a memory pool could not be destroyed");
                    false
                }
                Ok(()) => false,
            }
        });
        // In a host function nothing can be given back, either: a later call does it, by dropping what is left.
        if own.is_some() || !parked.is_empty() {
            let left = Self::new(self.device, 0, None);
            {
                let mut state = lock(&left.state);
                (state.parked, state.freed_on) = (parked, freed_on);
            }
            if let Some(freeing) = self.freeing.take() {
                let _ = left.freeing.set(freeing);
            }
            if let Some(own) = own {
                let _ = left.own.set(own);
            }
            lock(&ORPHANS).push(left);
        }
    }
}

fn containing(state: &State, address: usize) -> Option<(usize, &Block)> {
    let (start, block) = state.blocks.range(..=address).next_back()?;
    (address - start < block.requested).then_some((*start, block))
}
