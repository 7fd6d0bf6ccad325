//! Byte limits that a test sets and lifts while the machine runs: what would go beyond one is out of memory.

use crate::error::{Answer, OUT_OF_MEMORY};
use crate::runtime::{self, lock};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// All memory of a device together, in pages of 2 MiB, as if another process had the rest: `cudaMemGetInfo` tells
    /// what is free below the limit.
    Device(u32),
    /// What `cudaMalloc` has given on a device, and graphs: the bytes that were asked for.
    Malloc(u32),
    /// What the pools of a device hold, in use or not. A pool that reaches the limit still hands out what it has.
    Pools(u32),
    /// Physical memory of a device that `cuMemCreate` made.
    Physical(u32),
    /// Page-locked memory that `cudaHostAlloc` or `cudaMallocHost` gave, and pools of host memory, in pages of 4 KiB.
    Host,
}

/// How a device's memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Malloc,
    Pools,
    Physical,
}

/// The limit of one use, and what it holds.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    held: u64,
    limit: Option<u64>,
}

/// The limits of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Of everything together.
    pub(crate) device: Option<u64>,
    malloc: Count,
    pools: Count,
    physical: Count,
}

impl Limits {
    fn count(&mut self, by: Use) -> &mut Count {
        match by {
            Use::Malloc => &mut self.malloc,
            Use::Pools => &mut self.pools,
            Use::Physical => &mut self.physical,
        }
    }

    /// Whether there is room for that much more.
    pub(crate) fn room(&mut self, by: Use, len: u64) -> Answer {
        let count = self.count(by);
        let after = count.held.checked_add(len).ok_or(OUT_OF_MEMORY)?;
        let within = count.limit.is_none_or(|limit| after <= limit);
        within.then_some(()).ok_or(OUT_OF_MEMORY)
    }

    pub(crate) fn taken(&mut self, by: Use, len: u64) {
        let count = self.count(by);
        count.held = count.held.saturating_add(len);
    }

    pub(crate) fn given(&mut self, by: Use, len: u64) {
        let count = self.count(by);
        count.held = count.held.saturating_sub(len);
    }

    /// The same limits, for a device that holds nothing.
    pub(crate) fn of_an_empty_device(self) -> Limits {
        let empty = |count: Count| Count { held: 0, ..count };
        Limits {
            device: self.device,
            malloc: empty(self.malloc),
            pools: empty(self.pools),
            physical: empty(self.physical),
        }
    }
}

const NO_LIMIT: u64 = u64::MAX;
static HOST_LIMIT: AtomicU64 = AtomicU64::new(NO_LIMIT);
static HOST_HELD: AtomicU64 = AtomicU64::new(0);

/// Takes page-locked bytes into account; false: there is no room for them.
pub(crate) fn host_taken(len: usize) -> bool {
    let more = |held: u64| {
        let after = held.checked_add(len as u64)?;
        (after <= HOST_LIMIT.load(Relaxed)).then_some(after)
    };
    HOST_HELD.fetch_update(Relaxed, Relaxed, more).is_ok()
}

pub(crate) fn host_given(len: usize) {
    HOST_HELD.fetch_sub(len as u64, Relaxed);
}

pub(crate) fn lift_host() {
    HOST_LIMIT.store(NO_LIMIT, Relaxed);
}

/// From now on every allocation that would make `what` hold more than `bytes` answers out of memory (2) and takes
/// nothing; `None` lifts the limit. What is held already stays. [`reset`](crate::reset) lifts all limits.
///
/// ```
/// use cudart_sim::{Limited, limit, sys};
/// limit(Limited::Malloc(0), Some(1 << 20));
/// let mut p = std::ptr::null_mut();
/// // SAFETY: `p` is a valid place for a pointer.
/// assert_eq!(unsafe { sys::cudaMalloc(&mut p, (1 << 20) + 1) }.0, 2);
/// limit(Limited::Malloc(0), None);
/// ```
///
/// # Panics
/// If there is no such device.
pub fn limit(what: Limited, bytes: Option<u64>) {
    if runtime::forked() {
        return;
    }
    runtime::start();
    let (Limited::Device(ordinal)
    | Limited::Malloc(ordinal)
    | Limited::Pools(ordinal)
    | Limited::Physical(ordinal)) = what
    else {
        HOST_LIMIT.store(bytes.unwrap_or(NO_LIMIT), Relaxed);
        return;
    };
    let mut rt = lock();
    let Some(device) = rt.devices.get_mut(ordinal as usize) else {
        drop(rt);
        panic!("cudart-sim: there is no device {ordinal}");
    };
    let limits = &mut device.limits;
    match what {
        Limited::Device(_) => limits.device = bytes,
        Limited::Malloc(_) => limits.malloc.limit = bytes,
        Limited::Pools(_) => limits.pools.limit = bytes,
        Limited::Physical(_) => limits.physical.limit = bytes,
        Limited::Host => {}
    }
}
