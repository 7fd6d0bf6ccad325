//! Frees, each behind every stream that used its block, and what is known of those that the driver may still be busy with.

use super::{Block, Native, containing};
use crate::{
    context, cuda,
    error::{Error, Result},
    event::Fence,
    planted::{self, Mistake},
    pool::{FreeOn, Freed, Who, belongs_to_a_guard, segment::internal_stream},
    stream::{Handle, Stream, StreamCore, handle_of},
    sync::lock,
};
use std::sync::Arc;

/// How many streams [`State::freed_on`](super::State::freed_on) may hold before those that have ended are dropped.
const FREED_ON: usize = 64;

impl Native {
    /// Frees a block in stream order; never waits on the host.
    ///
    /// `None`: no live block contains the address.
    pub fn free(&self, address: usize, on: FreeOn<'_>, who: Who) -> Result<Option<()>> {
        let known = (lock(&self.state).blocks.get(&address))
            .map(|block| who.may_free(block.raw) || block.freed.is_some());
        if let Some(may) = known {
            if !may {
                return Err(belongs_to_a_guard(address));
            }
            context::check(self.device)?;
            // Only its own thread can record the point of the free, and only now: what is refused stays live.
            if let FreeOn::Stream(handle) = on
                && handle.core().is_per_thread()
            {
                handle.refuse_capture(
                    "a free on the thread's default stream",
                    "free it after the capture has ended, or on another stream",
                )?;
            }
        }
        let block = {
            let mut state = lock(&self.state);
            if let Some(block) = state
                .blocks
                .get_mut(&address)
                .filter(|block| block.held > 0)
            {
                if block.freed.is_some() {
                    return Err(Error::DoubleFree { ptr: address });
                }
                block.freed = Some(Freed::new(on, block.users.stream.as_ref()));
                return Ok(Some(()));
            }
            let Some(block) = state.blocks.remove(&address) else {
                return match containing(&state, address) {
                    Some((start, block)) => Err(Error::unknown(
                        address,
                        format!(
                            "it lies inside the live block of {} bytes at {start:#x}; free its start",
                            block.requested
                        ),
                    )),
                    None => Ok(None),
                };
            };
            let stats = &mut state.stats[block.family as usize];
            stats.in_use = stats.in_use.saturating_sub(block.requested);
            stats.live_blocks = stats.live_blocks.saturating_sub(1);
            stats.frees += 1;
            block
        };
        self.free_parked();
        self.submit_free(address, &block, on).map(Some)
    }

    fn submit_free(&self, address: usize, block: &Block, on: FreeOn<'_>) -> Result<()> {
        let upgraded;
        let handle = match on {
            FreeOn::Recorded => None,
            FreeOn::Stream(handle) => Some(handle),
            FreeOn::Core(core) => {
                upgraded = core.upgrade();
                upgraded.as_ref()
            }
            FreeOn::Allocating => {
                upgraded = block.users.stream.as_ref().and_then(StreamCore::upgrade);
                upgraded.as_ref()
            }
        };
        let uses: Vec<Arc<Fence>> = block
            .users
            .uses
            .iter()
            .map(|used| used.fence.clone())
            .filter(|fence| !fence.is_done())
            .collect();
        let steady = handle.map(|handle| handle.core().steady());
        // The stream itself, if nobody else has anything to do with the block, and a free in it would not be captured.
        if let (Some(handle), Some(Ok(_))) = (handle, &steady)
            && !handle.is_out_of_bounds()
        {
            let mine = |core: &Arc<StreamCore>| {
                core.is_same(handle.core()) || planted::is_made(Mistake::AsyncFreesIgnoreOthers)
            };
            if block.users.stream.as_ref().is_none_or(mine)
                && uses.iter().all(|fence| mine(fence.core()))
            {
                let result = handle.with_device(|| {
                    // SAFETY: the block was live and is out of the books; the handle is alive; the caller says that its
                    // other work comes before in this stream.
                    unsafe { cuda::free_async(address, handle.raw()) }
                });
                self.note_freed_on(handle);
                let mut marks = uses;
                marks.push(Fence::open(handle.core().clone()));
                return self.finish_free(address, marks, result);
            }
        }
        drop(steady);
        // Otherwise an internal stream waits for everybody and frees; no stream of the user's waits.
        let mut marks = uses;
        if let Some(handle) = handle {
            // Recorded when the free waits for it, which is later where CUDA permits no call now.
            marks.push(if handle.core().is_per_thread() {
                Fence::after_work(handle).0
            } else {
                Fence::open(handle.core().clone())
            });
        }
        if let (FreeOn::Core(core), None) = (on, handle) {
            // Its last handle went while a graph kept the block: what was in it then comes first all the same.
            marks.push(Fence::open(core.clone()));
        }
        let allocated_elsewhere = block
            .users
            .stream
            .as_ref()
            .filter(|core| !handle.is_some_and(|handle| handle.core().is_same(core)));
        if let Some(core) = allocated_elsewhere {
            // The allocation itself is a point of its stream that the free must follow.
            marks.push(Fence::open(core.clone()));
        }
        self.free_behind_or_park(address, marks)
    }

    fn free_behind_or_park(&self, address: usize, marks: Vec<Arc<Fence>>) -> Result<()> {
        if marks.iter().any(|mark| mark.waits_for_a_capture()) {
            lock(&self.state).parked.push((address, marks));
            return Ok(());
        }
        let handle = match self.follow(&marks) {
            Ok(stream) => handle_of(stream),
            // Nothing was submitted: the block is what it was, and the next call tries again.
            Err(error) => {
                if !error.ends_context() {
                    lock(&self.state).parked.push((address, marks));
                }
                return match error.cuda_code() {
                    Some(cuda::NOT_PERMITTED) => Ok(()),
                    _ => Err(error),
                };
            }
        };
        // SAFETY: the block is out of the books and the stream waits for everything that may touch it.
        let result = unsafe { cuda::free_async(address, handle.raw()) };
        self.finish_free(address, marks, result)
    }

    /// The stream that frees, made to wait for these.
    fn follow(&self, marks: &[Arc<Fence>]) -> Result<&Stream> {
        let stream = internal_stream(&self.freeing, self.device)?;
        let handle = handle_of(stream);
        if !planted::is_made(Mistake::AsyncFreesDoNotWait) {
            marks
                .iter()
                .try_for_each(|mark| mark.wait_on_stream(handle))?;
        }
        Ok(stream)
    }

    /// A free that CUDA does not permit here (in a host function) is left to the next call. After any other failure the
    /// block's state is unknown: it stays out of use.
    fn finish_free(
        &self,
        address: usize,
        marks: Vec<Arc<Fence>>,
        result: Result<()>,
    ) -> Result<()> {
        match result {
            Err(Error::Cuda {
                code: cuda::NOT_PERMITTED,
                ..
            }) => {
                lock(&self.state).parked.push((address, marks));
                Ok(())
            }
            other => other,
        }
    }

    pub(super) fn free_parked(&self) {
        crate::stream::finish_retirements();
        let parked = {
            let mut state = lock(&self.state);
            if state.parked.is_empty() {
                return;
            }
            std::mem::take(&mut state.parked)
        };
        for (address, marks) in parked {
            if let Err(error) = self.free_behind_or_park(address, marks) {
                tracing::debug!(%error, "a parked block could not be freed");
            }
        }
    }

    /// Remembers a stream on which a block was freed.
    fn note_freed_on(&self, handle: &Handle) {
        let core = handle.core();
        // Only its own thread can record on a per-thread stream.
        let recorded = core.is_per_thread().then(|| Fence::after_work(handle).0);
        let mut state = lock(&self.state);
        if recorded.is_none() && state.freed_on.contains_key(&core.uid) {
            return;
        }
        let point = recorded.unwrap_or_else(|| Fence::open(core.clone()));
        if state.freed_on.len() >= FREED_ON {
            // Asking makes CUDA calls, which is not for this lock.
            let known = std::mem::take(&mut state.freed_on);
            drop(state);
            let pending: Vec<_> = known
                .into_iter()
                .filter(|(_, fence)| !fence.query().unwrap_or(false))
                .collect();
            state = lock(&self.state);
            state.freed_on.extend(pending);
        }
        state.freed_on.insert(core.uid, point);
    }

    /// Whether any of the frees may not have been done yet.
    pub(super) fn has_frees_in_flight(&self) -> bool {
        let known: Vec<Arc<Fence>> = lock(&self.state).freed_on.values().cloned().collect();
        let is_busy = |stream: &Stream| !stream.query().unwrap_or(false);
        known
            .iter()
            .any(|fence| !fence.query().unwrap_or(false) && !fence.core().is_idle())
            || self.freeing.get().is_some_and(is_busy)
    }

    /// Waits for all frees, as far as that is possible.
    pub(super) fn wait_for_frees(&self) {
        let mut waited = Vec::new();
        while self.settle_one(&mut waited) {}
        if let Some(Err(error)) = self.freeing.get().map(Stream::synchronize) {
            tracing::debug!(%error, "some frees cannot be waited for");
        }
    }

    /// Waits until the frees of one more stream have been seen, those first that have finished; false if there is none
    /// beside those that `waited` names, by uid. What was waited for is added there.
    pub fn settle_one(&self, waited: &mut Vec<u64>) -> bool {
        let mut known: Vec<(u64, Arc<Fence>)> = (lock(&self.state).freed_on.iter())
            .map(|(uid, fence)| (*uid, fence.clone()))
            .collect();
        known.retain(|(uid, _)| !waited.contains(uid));
        let Some(first) = known.first().cloned() else {
            return false;
        };
        known.retain(|(_, fence)| fence.query().unwrap_or(false));
        if known.is_empty() {
            if let Err(error) = first.1.wait_on_host() {
                tracing::debug!(%error, "some frees cannot be waited for");
            }
            known.push(first);
        }
        let mut state = lock(&self.state);
        for (uid, fence) in known {
            waited.push(uid);
            // What was freed meanwhile is later.
            if (state.freed_on.get(&uid)).is_some_and(|found| Arc::ptr_eq(found, &fence)) {
                state.freed_on.remove(&uid);
            }
        }
        true
    }
}
