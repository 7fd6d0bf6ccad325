//! What a test or a program does to the simulated machine itself.

use crate::config::{Config, Schedule};
use crate::runtime::{self, lock};
use crate::sys::cudaError;
use crate::worker;

/// The machine is in use: it cannot be described any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyInUse;

impl std::fmt::Display for AlreadyInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulated CUDA machine is in use already; configure it before the first call, or reset it")
    }
}

impl std::error::Error for AlreadyInUse {}

/// Says what the machine looks like. Has an effect only before the first CUDA call of the process, or after [`reset`].
///
/// # Errors
/// If the machine is already in use.
pub fn configure(config: Config) -> Result<(), AlreadyInUse> {
    let mut rt = lock();
    if runtime::started() {
        return Err(AlreadyInUse);
    }
    rt.config = Some(config);
    Ok(())
}

/// Waits for all work, then forgets everything: memory, streams, events, pools, last errors, counters excepted. The next
/// CUDA call makes a new machine, from the environment or from what [`configure`] says before it.
///
/// No other thread may be inside a CUDA call, and all pointers and handles from before are dead.
pub fn reset() {
    if runtime::forked() {
        return;
    }
    let mut rt = runtime::synchronize(lock(), None);
    rt.stop();
}

/// From now on every call answers `cudaErrorCudartUnloading`, as when the process ends. [`reset`] undoes it.
pub fn unload() {
    runtime::set_unloaded(true);
}

/// Changes the schedule from now on.
pub fn set_schedule(schedule: Schedule) {
    if runtime::forked() {
        return;
    }
    runtime::start();
    let mut rt = lock();
    rt.engine.set_schedule(schedule);
    worker::wake(&mut rt, 0);
}

/// Breaks the context of a device, as a faulting kernel does: from now on every call there answers this code, and work
/// that has not begun never runs. [`reset`] or `cudaDeviceReset` mends it.
pub fn break_context(device: u32, code: cudaError) {
    runtime::start();
    runtime::set_broken(device, code.0);
}

/// What a device's memory is used for, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Capacity.
    pub total: u64,
    /// Held by nothing, as `cudaMemGetInfo` answers.
    pub free: u64,
    /// Live blocks of `cudaMalloc`: how many, and how many bytes were asked for.
    pub blocks: (usize, u64),
    /// Live blocks of memory pools and of graphs, likewise.
    pub pool_blocks: (usize, u64),
    /// Held by memory pools, used or not.
    pub pool_reserved: u64,
    /// Physical memory that the virtual memory functions made and that lives: how many chunks, and how many bytes.
    pub physical: (usize, u64),
}

/// What a device's memory is used for; `None` if there is no such device.
pub fn memory_info(device: u32) -> Option<MemoryInfo> {
    use crate::memory::Source;
    use crate::pool::Location;
    if runtime::forked() {
        return None;
    }
    runtime::start();
    let rt = lock();
    let known = rt.devices.get(device as usize)?;
    let mut info = MemoryInfo {
        total: known.capacity(),
        free: known.available(),
        blocks: (0, 0),
        pool_blocks: (0, 0),
        pool_reserved: 0,
        physical: rt.vmm.held(device),
    };
    let here = |b: &&crate::memory::Block| b.device == device && !b.host;
    for block in rt.memory.blocks.values().filter(here) {
        let sum = match block.source {
            Source::Malloc => &mut info.blocks,
            Source::Pool(_) | Source::Graph(_) => &mut info.pool_blocks,
        };
        sum.0 += 1;
        sum.1 += block.size;
    }
    for pool in rt.pools.iter().flatten() {
        if pool.location == Location::Device(device) {
            info.pool_reserved += pool.reserved;
        }
    }
    Some(info)
}
