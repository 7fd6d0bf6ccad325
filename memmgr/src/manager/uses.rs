//! Which block an address lies in, what touches it, and what must come first.

use super::{
    MemoryManager,
    inner::{Home, Inner},
};
use crate::{
    capture, context,
    error::{Error, Result},
    event::Fence,
    planted::{self, Mistake},
    pool::BlockRange,
    process,
    stream::{AsStream, Handle, handle_of},
};
use std::{ffi::c_void, sync::Arc};

impl MemoryManager {
    /// Tells the manager that work submitted to `stream` so far (a kernel launch) uses the block that `ptr` points into:
    /// the block is not handed out again before that work has finished. Call it after the launch. While `stream` is captured,
    /// the graph keeps the block.
    ///
    /// # Errors
    /// [`Error::UnknownPointer`] if `ptr` points into no live block; otherwise what the runtime says.
    pub fn record_use(&self, ptr: *const c_void, stream: &impl AsStream) -> Result<()> {
        process::gate()?;
        let address = ptr.expose_provenance();
        let Some((home, block)) = self.inner.find(address, 0)? else {
            return Err(Error::unknown(
                address,
                "no live block of the manager contains it",
            ));
        };
        let handle = handle_of(stream);
        let _steady = handle.core().steady()?;
        if let Some(keeper) = capture::keeper(handle)? {
            keeper.keep(&self.inner, home, block.whole(), true);
            return Ok(());
        }
        let (fence, recorded) = Fence::after_work(handle);
        self.inner.add_use(home, block.whole(), &fence, true);
        recorded
    }
}

impl Inner {
    /// The live block that contains the range, if it is memory of this manager at all.
    #[inline]
    pub(super) fn find(&self, address: usize, size: usize) -> Result<Option<(Home, BlockRange)>> {
        match self.pinned.locate(address, size)? {
            Some(block) => Ok(Some((Home::Pinned, block))),
            None => match self.find_device(address, size)? {
                None => Ok(self
                    .adopted
                    .locate(address, size)?
                    .map(|block| (Home::Adopted, block))),
                found => Ok(found),
            },
        }
    }

    /// As [`Inner::find`], for an address that probably belongs to this device: its tables are searched first.
    #[inline(always)]
    pub(super) fn find_near(
        &self,
        address: usize,
        size: usize,
        device: Option<i32>,
    ) -> Result<Option<(Home, BlockRange)>> {
        if let Some(state) = device.and_then(|device| self.known_state(device))
            && let Some(block) = state.pool.locate(address, size)?
        {
            return Ok(Some((Home::Pool(state.ordinal), block)));
        }
        self.find(address, size)
    }

    /// The live device block that contains the range.
    pub(super) fn find_device(
        &self,
        address: usize,
        size: usize,
    ) -> Result<Option<(Home, BlockRange)>> {
        for state in self.states() {
            if let Some(block) = state.pool.locate(address, size)? {
                return Ok(Some((Home::Pool(state.ordinal), block)));
            }
            if let Some(block) = state.native.locate(address, size)? {
                return Ok(Some((Home::Native(state.ordinal), block)));
            }
        }
        Ok(None)
    }

    /// Whether the address lies in memory of this manager, live or free.
    pub fn owns(&self, address: usize) -> bool {
        self.pinned.contains(address)
            || self
                .states()
                .any(|state| state.pool.contains(address) || state.native.contains(address))
    }

    /// Records a use of a block.
    #[inline(always)]
    pub fn add_use(&self, home: Home, block: BlockRange, fence: &Arc<Fence>, writes: bool) {
        if planted::is_made(Mistake::UsesAreForgotten) {
            return;
        }
        match home {
            Home::Pinned => self.pinned.add_use(block, fence, writes),
            Home::Pool(device) => {
                if let Ok(state) = self.state(device) {
                    state.pool.add_use(block, fence, writes);
                }
            }
            Home::Native(device) => {
                if let Ok(state) = self.state(device) {
                    state.native.add_use(block, fence, writes);
                }
            }
            Home::Adopted => self.adopted.add_use(block, fence, writes),
        }
    }

    /// Makes a stream wait for everything that a safe operation on a block must follow.
    pub fn order_before_use(
        &self,
        home: Home,
        block: BlockRange,
        handle: &Handle,
        writes: bool,
    ) -> Result<()> {
        if planted::is_made(Mistake::GuardsDoNotWait) {
            return Ok(());
        }
        let wait = |fences: &[Arc<Fence>]| {
            fences
                .iter()
                .try_for_each(|fence| fence.wait_on_stream(handle))
        };
        match home {
            Home::Pinned => wait(&self.pinned.before_use(block, handle, writes)),
            Home::Pool(device) => {
                let pool = &self.state(device)?.pool;
                let fences = pool.before_use(block, handle, writes);
                if fences.is_empty() {
                    return Ok(());
                }
                let waited = wait(&fences);
                pool.follows(block, handle, &fences, waited.is_ok());
                waited
            }
            Home::Native(device) => {
                let native = &self.state(device)?.native;
                wait(&native.before_use(block, handle, writes))?;
                native.follows(block, handle);
                Ok(())
            }
            Home::Adopted => {
                wait(&self.adopted.before_use(block, handle, writes))?;
                self.adopted.follows(block, handle);
                Ok(())
            }
        }
    }

    /// Waits on the host for the recorded uses of a block: all, or those that write.
    pub fn settle(&self, home: Home, block: BlockRange, only_writes: bool) -> Result<()> {
        process::gate()?;
        if planted::is_made(Mistake::ViewsDoNotWait) {
            return Ok(());
        }
        let fences = match home {
            Home::Pinned => self.pinned.uses(block, only_writes),
            Home::Pool(device) => self.state(device)?.pool.uses(block, only_writes),
            Home::Native(device) => self.state(device)?.native.uses(block, only_writes),
            Home::Adopted => self.adopted.uses(block, only_writes),
        };
        fences.iter().try_for_each(|fence| {
            context::check(fence.core().device())?;
            fence.wait_on_host()
        })
    }
}
