//! Giving memory back: trims and shutdowns.

use super::{
    LiveBlock, MemoryManager,
    free::Memory,
    inner::{DeviceState, Inner},
};
use crate::{
    checker, context, cuda,
    device::on_device,
    error::{Place, Result},
    out_of_memory::Counted,
    pool::{FreeOn, native::Family, segment},
};
use std::fmt;

/// What [`MemoryManager::shutdown`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Bytes given back to CUDA.
    pub released: usize,
    /// Blocks that are still live; they stay valid, and their segments follow when they are freed.
    pub live: Vec<LiveBlock>,
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} given back, {} live",
            Counted(self.released, "byte"),
            Counted(self.live.len(), "block")
        )?;
        for block in &self.live {
            write!(f, "\n  {block}")?;
        }
        Ok(())
    }
}

impl MemoryManager {
    /// Gives all idle memory back to CUDA, in every family; the bytes. `cudaFree` and `cudaFreeHost` wait for the
    /// device's running work. Memory whose marks have not completed stays. Adopted memory whose guards are gone goes back to
    /// its owners, after waiting for what may still touch it.
    ///
    /// # Errors
    /// What the runtime says; the rest has been given back all the same.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn trim(&self) -> Result<usize> {
        self.trim_to(0)
    }

    /// As [`MemoryManager::trim`], until each pool (pinned; on each device that of every mode) holds at most `target` bytes:
    /// the bytes really given back. Memory goes back by whole segments, those first that leave the most; a pool whose live
    /// blocks lie in more than `target` bytes of segments keeps these.
    ///
    /// # Errors
    /// As [`MemoryManager::trim`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn trim_to(&self, target: usize) -> Result<usize> {
        let _called = checker::called_here();
        context::check_all()?;
        self.inner.adopted.release();
        let mut total = self.inner.trim_pinned_to(target);
        for state in self.inner.states() {
            total = sum(total, state.trim_to(target));
        }
        total
    }

    /// Waits for the manager's own pending work, gives back every segment without a live block, and reports the live
    /// ones (reference: `shutdown`, whose C++ form also frees raw blocks: [`MemoryManager::shutdown_and_free_raw`]).
    /// Live blocks stay valid. The manager can be configured and used again.
    ///
    /// # Errors
    /// What the runtime says; the rest has been given back all the same.
    pub fn shutdown(&self) -> Result<ShutdownReport> {
        context::check_all()?;
        self.inner.adopted.release();
        let mut released = {
            let _held = self.inner.warmer.hold(&self.inner.pinned);
            self.inner.pinned.shutdown()
        };
        for state in self.inner.states() {
            released = sum(released, state.pool.shutdown());
            if state.native.is_used() {
                released = sum(released, state.native.shutdown());
            }
        }
        segment::release_orphans();
        // What cannot be written has been told to the log of warnings.
        let _ = self.inner.observed.sinks().flush();
        Ok(ShutdownReport {
            released: released?,
            live: self.inner.live_blocks(),
        })
    }

    /// As [`MemoryManager::shutdown`], after freeing every block that was handed out as a raw pointer and waiting for
    /// the devices. Guards are not touched; what a captured graph uses follows when the graph is gone.
    ///
    /// # Errors
    /// What the runtime says.
    ///
    /// # Safety
    /// Nobody uses or frees those raw pointers afterwards.
    pub unsafe fn shutdown_and_free_raw(&self) -> Result<ShutdownReport> {
        context::check_all()?;
        for state in self.inner.states() {
            on_device(state.ordinal, cuda::wait_for_device)?;
        }
        for block in self
            .inner
            .live_blocks()
            .into_iter()
            .filter(|block| block.raw && !block.kept_by_graph)
        {
            let memory = match block.place {
                Place::Pinned => Memory::Pinned,
                Place::Device(_) => Memory::Device(None),
            };
            self.inner.free(block.address, FreeOn::Recorded, memory)?;
        }
        self.shutdown()
    }
}

fn sum(left: Result<usize>, right: Result<usize>) -> Result<usize> {
    match (left, right) {
        (Ok(left), Ok(right)) => Ok(left.saturating_add(right)),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

impl DeviceState {
    /// Gives idle memory back until each pool holds at most `target` bytes.
    pub(super) fn trim_to(&self, target: usize) -> Result<usize> {
        let mut total = self.pool.trim_to(target);
        if self.native.is_used() {
            total = sum(total, self.native.trim_to(Family::Current, target));
            total = sum(total, self.native.trim_to(Family::Own, target));
        }
        total
    }
}

impl Inner {
    /// Gives idle pinned memory back, as far as more than `target` bytes are held; nobody reserves it again meanwhile.
    pub(super) fn trim_pinned_to(&self, target: usize) -> Result<usize> {
        let _held = self.warmer.hold(&self.pinned);
        self.pinned.trim_to(target)
    }
}
