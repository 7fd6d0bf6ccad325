//! What touches live blocks: finding the block of an address range, recording uses, and what must be waited for.

use super::{
    Freed, Pool, State,
    order::add_follower,
    recorded::{self, Span, pending_uses, query_all, record, uses_of_others},
};
use crate::{
    checker,
    error::{Error, Result},
    event::Fence,
    planted::{self, Mistake},
    stream::Handle,
};
use std::sync::Arc;

/// A range inside a live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRange {
    /// The start of the block.
    pub start: usize,
    /// What of it is meant.
    pub span: Span,
}

impl BlockRange {
    /// The `size` bytes at `address` in the block that starts at `start`.
    #[inline]
    pub fn new(start: usize, address: usize, size: usize) -> Self {
        Self {
            start,
            span: Span::new(address, size),
        }
    }

    /// The whole block that starts there.
    pub fn all(start: usize) -> Self {
        Self {
            start,
            span: Span::ALL,
        }
    }

    /// The whole block that this lies in.
    pub fn whole(self) -> Self {
        Self {
            span: Span::ALL,
            ..self
        }
    }
}

/// Checks that `size` bytes at `address` stay inside a block of `requested` bytes at `start`.
pub(crate) fn check_inside(
    address: usize,
    size: usize,
    start: usize,
    requested: usize,
) -> Result<()> {
    let end = start.saturating_add(requested);
    if address.checked_add(size).is_some_and(|last| last <= end) {
        return Ok(());
    }
    Err(Error::range(format!(
        "{size} bytes at {address:#x} run past the end of the block of {requested} bytes at {start:#x} ({} bytes are left there)",
        end.saturating_sub(address)
    )))
}

/// The error for a block that was freed while a captured graph uses it.
pub(crate) fn kept_by_a_graph(address: usize) -> Error {
    Error::unknown(
        address,
        "it lies in a block that was freed and that only a captured graph keeps",
    )
}

/// What a copy does with its two blocks, where the thread has the lock's bias and each block is used from its start: nearly
/// always. Both answer whether they have done it; if not, nothing has changed.
impl Pool {
    /// Whether a live block begins at `address` that has so many bytes and was not freed.
    #[inline(always)]
    fn begins_at(&self, address: usize, size: usize) -> bool {
        let Some(state) = self.state.lock_with_bias() else {
            return false;
        };
        let live = (state.space.find(address)).and_then(|slot| state.space.live_at(slot));
        live.is_some_and(|live| {
            size <= live.requested && state.extras.may_be_used(live.data) && !state.last.rests()
        })
    }

    /// Records a use in place of the block's last one, which it makes needless.
    #[inline(always)]
    fn replace_use(&self, block: BlockRange, fence: &Arc<Fence>, writes: bool) -> bool {
        let Some(mut guard) = self.state.lock_with_bias() else {
            return false;
        };
        let state = &mut *guard;
        let live = (state.space.find(block.start)).and_then(|slot| state.space.data_at(slot));
        // What was handed out last has no use yet, and must not rest once it has one.
        let busy = state.last.rests() || state.last.is(block.start);
        live.filter(|live| state.extras.front(live).is_none() && !busy)
            .and_then(|live| state.extras.of_mut(live))
            .is_some_and(|extra| recorded::replace(&mut extra.uses, block.span, fence, writes))
    }
}

impl Pool {
    /// A captured graph uses a live block from now on: it stays, also when it is freed. Whether there is such a block.
    pub fn hold(&self, block: BlockRange) -> bool {
        let mut state = self.lock_block(block.start);
        match state.make_extra(block.start) {
            Some(extra) if extra.freed.is_none() => {
                extra.held = extra.held.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// Whether a captured graph uses the live block that starts at `address`.
    pub fn is_held(&self, address: usize) -> bool {
        let state = self.lock_block(address);
        state
            .extra(address)
            .is_some_and(|extra| extra.held > 0 && extra.freed.is_none())
    }

    /// A graph does not use the block any more. If it was the last and the block was freed meanwhile: how it is to be freed
    /// now.
    pub fn unhold(&self, block: BlockRange) -> Option<Freed> {
        let mut state = self.lock_block(block.start);
        let extra = state.make_extra(block.start)?;
        extra.held = extra.held.saturating_sub(1);
        if extra.held > 0 {
            None
        } else {
            extra.freed.take()
        }
    }

    /// The segment in which an address lies: where it begins, and how long it is.
    pub fn segment_at(&self, address: usize) -> Option<(usize, usize)> {
        let state = self.state.lock();
        let segment = state.space.segment_of(address)?;
        Some((segment.base, segment.len))
    }

    /// The live block in which `size` bytes at `address` lie; `None` if the address belongs to no segment of the pool.
    #[inline]
    pub fn locate(&self, address: usize, size: usize) -> Result<Option<BlockRange>> {
        if self.begins_at(address, size) {
            return Ok(Some(BlockRange::new(address, address, size)));
        }
        self.locate_inside(address, size)
    }

    #[inline(never)]
    fn locate_inside(&self, address: usize, size: usize) -> Result<Option<BlockRange>> {
        let mut state = self.state.lock();
        let mut slot = state.space.find_containing(address);
        if let Some(live) = slot.and_then(|slot| state.space.live_at(slot))
            && state.extras.front(live.data).is_some()
        {
            let start = live.addr;
            drop(state);
            state = self.lock_block(start);
            slot = state.space.find_containing(address);
        }
        match slot.and_then(|slot| state.space.live_at(slot)) {
            Some(live) if state.extras.of(live.data).freed.is_some() => {
                Err(kept_by_a_graph(address))
            }
            Some(live) => {
                check_inside(address, size, live.addr, live.requested)?;
                Ok(Some(BlockRange::new(live.addr, address, size)))
            }
            None if state.space.segment_of(address).is_some() => Err(Error::unknown(
                address,
                "it lies in memory of the pool that is free",
            )),
            None => Ok(None),
        }
    }

    /// Records a use of a part of a live block.
    #[inline]
    pub fn add_use(&self, block: BlockRange, fence: &Arc<Fence>, writes: bool) {
        if !self.replace_use(block, fence, writes) {
            self.add_another_use(block, fence, writes);
        }
    }

    #[inline(never)]
    fn add_another_use(&self, block: BlockRange, fence: &Arc<Fence>, writes: bool) {
        let many = self
            .lock_block(block.start)
            .make_extra(block.start)
            .map(|extra| record(&mut extra.uses, block.span, fence, writes));
        if let Some(many) = many.filter(|many| !many.is_empty()) {
            query_all(many);
        }
    }

    /// The recorded uses of the range that are not known to have finished: all, or those that write.
    pub fn uses(&self, block: BlockRange, only_writes: bool) -> Vec<Arc<Fence>> {
        self.lock_block(block.start)
            .extra(block.start)
            .map_or_else(Vec::new, |extra| {
                pending_uses(&extra.uses, block.span, only_writes)
            })
    }

    /// What a stream must wait for before it uses a block: recorded uses of other streams, and, unless it is the stream
    /// that the block was allocated on, the marks that the block's memory carries.
    pub fn before_use(&self, block: BlockRange, handle: &Handle, writes: bool) -> Vec<Arc<Fence>> {
        let mut guard = self.lock_block(block.start);
        let state = &mut *guard;
        let State {
            space,
            order,
            extras,
            ..
        } = state;
        let Some(slot) = space.find(block.start) else {
            return Vec::new();
        };
        let requested = space.requested_at(slot);
        let Some(live) = space.data_at_mut(slot) else {
            return Vec::new();
        };
        let mut fences = uses_of_others(&extras.of(live).uses, block.span, !writes, handle);
        let allocated_here = order
            .core(live.stream())
            .is_some_and(|stream| stream.is_same(handle.core()));
        if allocated_here {
            return fences;
        }
        checker::shared(block.start, requested);
        if !planted::is_made(Mistake::InheritedMarksAreForgotten)
            && extras.has_inherited(live)
            && !extras.of(live).followers.contains(&handle.core().uid)
        {
            fences.extend(order.marks_of(extras.inherited(live), Some(handle.core())));
            // Nothing is left to wait for: the stream follows them all.
            if fences.is_empty()
                && let Some(extra) = extras.make(live)
            {
                add_follower(&mut extra.followers, handle.core().uid);
            }
        }
        fences
    }

    /// Notes that the events of what [`Pool::before_use`] named have been recorded, and that the stream has been made to
    /// wait for them.
    pub fn follows(&self, block: BlockRange, handle: &Handle, fences: &[Arc<Fence>], waited: bool) {
        let mut guard = self.lock_block(block.start);
        let state = &mut *guard;
        for fence in fences {
            if fence.is_closed() || !waited {
                state.order.enqueue(fence);
            }
        }
        if waited
            && let Some(live) = state.space.data_mut(block.start)
            && state.extras.has_inherited(live)
            && let Some(extra) = state.extras.make(live)
        {
            add_follower(&mut extra.followers, handle.core().uid);
        }
    }
}
