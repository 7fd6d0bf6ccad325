//! Frees at length: in whose order, what is said of them, and what becomes of blocks that work or graphs still use.

use super::{
    GRANULE, Pool, State,
    best_fit::{FreeError, LiveInfo, Slot},
    live::{Freed, Live},
    observer::By,
    recorded::Use,
};
use crate::{
    error::{Error, Result},
    event::Fence,
    mode::DeviceAllocatorMode,
    stream::{Handle, StreamCore},
};
use std::sync::Arc;

/// In whose order a block is freed.
#[derive(Clone, Copy)]
pub(crate) enum FreeOn<'a> {
    /// Only recorded uses touch it.
    Recorded,
    /// Work that is in this stream already may touch it.
    Stream(&'a Handle),
    /// Work that is in this stream already may touch it; no handle is at hand.
    Core(&'a Arc<StreamCore>),
    /// Work that is in the stream it was allocated on, if it was on one, may touch it (guards, and they alone).
    Allocating,
}

impl FreeOn<'_> {
    /// Whether a block, handed out as a raw pointer or not, can be freed so on the short way: in the order that a caller names,
    /// raw ones alone.
    #[inline(always)]
    pub fn may_free(self, raw: bool) -> bool {
        raw || matches!(self, FreeOn::Allocating)
    }
}

/// What becomes of a free that is about to be made.
pub(crate) enum Announced {
    /// It is to be made after this report.
    Now(Leaving),
    /// It has been left to a captured graph that uses the block: nothing is free yet, and nothing is to be reported.
    Left,
    /// It will not be made.
    Refused(Error),
}

/// Who frees a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Somebody with its pointer, which may be that of a guard's block.
    Pointer,
    /// The guard that it belongs to, or who kept it for one that is gone.
    Keeper,
}

impl Who {
    /// Whether the block may be freed so: one that was handed out as a raw pointer, or one of a guard.
    #[inline(always)]
    pub fn may_free(self, raw: bool) -> bool {
        raw || self == Who::Keeper
    }
}

/// A guard's block is freed by its pointer.
pub(crate) fn belongs_to_a_guard(address: usize) -> Error {
    Error::unknown(
        address,
        "the block there belongs to a guard, which frees it when it is dropped: drop it",
    )
}

/// What is said of a block that is about to be freed.
pub(crate) struct Leaving {
    /// What was asked for, in bytes.
    pub size: usize,
    pub by: By,
    /// The stream that was named, by id.
    pub stream: Option<u64>,
    /// Which family made it; `None` for pinned memory.
    pub mode: Option<DeviceAllocatorMode>,
}

impl Pool {
    /// Takes a block back. Makes no CUDA call, unless another stream waits for this one's epoch, or the stream is a
    /// per-thread one.
    ///
    /// `None`: the address belongs to no segment of this pool.
    pub fn free(&self, address: usize, on: FreeOn<'_>) -> Result<Option<()>> {
        self.free_as(address, on, Who::Keeper)
    }

    /// As [`Pool::free`], if `who` may free the block.
    #[inline]
    pub fn free_as(&self, address: usize, on: FreeOn<'_>, who: Who) -> Result<Option<()>> {
        if self.free_plain(address, on) {
            return Ok(Some(()));
        }
        self.free_marked(address, on, who)
    }

    #[cold]
    fn free_marked(&self, address: usize, on: FreeOn<'_>, who: Who) -> Result<Option<()>> {
        let single = {
            let mut state = self.lock_block(address);
            let Some(slot) = state.space.find(address) else {
                return match state.space.why_not_live(address) {
                    FreeError::Foreign => Ok(None),
                    FreeError::Interior { start, len } => {
                        let asked = state.space.live(start).map_or(len, |live| live.requested);
                        Err(inside(address, start, asked))
                    }
                    error => Err(free_error(address, error)),
                };
            };
            if let Some(live) = state.space.data_at(slot)
                && !who.may_free(live.raw())
                && state.extras.of(live).freed.is_none()
            {
                return Err(belongs_to_a_guard(address));
            }
            let Some(single) = state.free_with_marks(slot, address, on)? else {
                return Ok(Some(()));
            };
            if !state.retiring.is_empty() {
                state.release_due |= state.is_retiring(address);
            }
            single
        };
        self.finish_free(single, on);
        Ok(Some(()))
    }

    /// Records the events that a free is asked for.
    fn finish_free(&self, single: Option<Arc<Fence>>, on: FreeOn<'_>) {
        let handle = match on {
            FreeOn::Stream(handle) => Some(handle),
            _ => None,
        };
        if let Some(fence) = single {
            // What cannot be recorded now is tried again at the stream's next call.
            match handle {
                Some(handle) => drop(fence.record_begun(handle)),
                None => fence.leave_open(),
            }
            self.state.lock().order.enqueue(&fence);
        }
        if let Some(handle) = handle {
            let wanted = self.state.lock().order.epochs_to_close(handle.core());
            self.close_epochs(wanted, Some(handle));
        }
    }

    /// What a report says of the free of the live block that starts at `address`; or leaves it to the captured graph that
    /// uses the block. That is one step: the graph may go at any moment.
    pub fn announce_free(&self, address: usize, on: FreeOn<'_>, who: Who) -> Option<Announced> {
        let mut guard = self.lock_block(address);
        let State {
            space,
            order,
            extras,
            ..
        } = &mut *guard;
        let LiveInfo {
            data: live,
            requested,
            ..
        } = space.live(address)?;
        if !who.may_free(live.raw()) && extras.of(live).freed.is_none() {
            return Some(Announced::Refused(belongs_to_a_guard(address)));
        }
        let stream = order.core(live.stream());
        if let Some(extra) = extras.of_mut(live)
            && extra.held > 0
        {
            return leave_to_graph(&mut extra.freed, on, stream);
        }
        let inherited = !extras.inherited(live).all(|id| order.is_complete(id));
        let by = freed_by(on, stream, &extras.of(live).uses, inherited);
        Some(Announced::Now(Leaving {
            size: requested,
            by,
            stream: core_of(on, stream).map(|core| core.id()),
            mode: self.mode(),
        }))
    }
}

impl State {
    /// Frees any block; `None` if it was left to a captured graph, otherwise a fence to be recorded at once, if there is one.
    #[allow(clippy::type_complexity)]
    fn free_with_marks(
        &mut self,
        slot: Slot,
        address: usize,
        on: FreeOn<'_>,
    ) -> Result<Option<Option<Arc<Fence>>>> {
        let Self {
            space,
            order,
            extras,
            ..
        } = self;
        let Some(live) = space.data_at_mut(slot) else {
            return Err(Error::DoubleFree { ptr: address });
        };
        let stream = order.core(live.stream());
        if let Some(extra) = extras.of_mut(live)
            && extra.held > 0
        {
            if extra.freed.is_some() {
                return Err(Error::DoubleFree { ptr: address });
            }
            extra.freed = Some(Freed::new(on, stream));
            return Ok(None);
        }
        let core = core_of(on, stream).cloned();
        let live = *live;
        let requested = space.requested_at(slot);
        let (owner, single) = order.owner_for_free(&live, extras, core.as_ref());
        if let Err(error) = space.free_at(slot, owner) {
            return Err(free_error(address, error));
        }
        self.forget(&live, requested);
        self.note_empty();
        Ok(Some(single))
    }

    /// A block that carried this, and of which so much was asked for, is gone.
    pub(super) fn forget(&mut self, live: &Live, requested: usize) {
        self.counters.asked = self.counters.asked.wrapping_sub(requested);
        if let Some(place) = live.stream() {
            self.order.unname(place);
        }
        for id in self.extras.inherited(live) {
            self.order.release(id, &self.space);
        }
        self.extras.forget(live);
    }
}

/// The stream that a free names.
pub(super) fn core_of<'a>(
    on: FreeOn<'a>,
    allocated_on: Option<&'a Arc<StreamCore>>,
) -> Option<&'a Arc<StreamCore>> {
    match on {
        FreeOn::Recorded => None,
        FreeOn::Stream(handle) => Some(handle.core()),
        FreeOn::Core(core) => Some(core),
        FreeOn::Allocating => allocated_on,
    }
}

/// Leaves a free to the graph that uses the block, unless that has been done before.
pub(super) fn leave_to_graph(
    freed: &mut Option<Freed>,
    on: FreeOn<'_>,
    allocated_on: Option<&Arc<StreamCore>>,
) -> Option<Announced> {
    if freed.is_some() {
        return None;
    }
    *freed = Some(Freed::new(on, allocated_on));
    Some(Announced::Left)
}

/// In whose order a block can be said to be freed: the one that everything which may touch it precedes, if there is one.
pub(super) fn freed_by(
    on: FreeOn<'_>,
    allocated_on: Option<&Arc<StreamCore>>,
    uses: &[Use],
    inherited: bool,
) -> By {
    let core = core_of(on, allocated_on);
    let pending = uses.iter().any(|used| {
        !used.fence.is_done() && !core.is_some_and(|core| core.is_same(used.fence.core()))
    });
    let follows = match (core, allocated_on) {
        (Some(core), Some(stream)) => core.is_same(stream),
        (_, None) => !inherited,
        (None, Some(_)) => false,
    };
    if pending || !follows {
        return By::Nobody;
    }
    core.map_or(By::Host, |core| By::Stream(core.id()))
}

fn free_error(address: usize, error: FreeError) -> Error {
    match error {
        // Blocks start at multiples of the granule.
        FreeError::AlreadyFree if !address.is_multiple_of(GRANULE) => Error::unknown(
            address,
            "no block starts there: it lies in free memory of the pool",
        ),
        FreeError::AlreadyFree => Error::DoubleFree { ptr: address },
        FreeError::Interior { start, len } => inside(address, start, len),
        FreeError::Foreign => Error::unknown(address, "it belongs to no segment of this pool"),
        FreeError::Owner(error) => Error::unknown(address, error.to_string()),
    }
}

/// The address lies in a live block of which so many bytes were asked for.
fn inside(address: usize, start: usize, len: usize) -> Error {
    Error::unknown(
        address,
        format!("it lies inside the live block of {len} bytes at {start:#x}; free its start"),
    )
}
