//! Live blocks: which one an address lies in, what touches it, who keeps it, what is told of it.

use super::{Block, Family, Native, containing};
use crate::{
    error::{Place, Result},
    event::Fence,
    out_of_memory::{Held, Holders},
    pool::{
        Announced, BlockRange, FreeOn, Freed, Label, Leaving, LiveRange, Span, Who,
        belongs_to_a_guard, core_of, freed_by, leave_to_graph, pending_uses, query_all, record,
        uses::{check_inside, kept_by_a_graph},
    },
    snapshot::{self, BlockState, Segment},
    stream::Handle,
    sync::lock,
};
use std::sync::Arc;

impl Native {
    /// Whether a live block contains the address.
    pub fn contains(&self, address: usize) -> bool {
        containing(&lock(&self.state), address).is_some()
    }

    /// As [`crate::pool::Pool::locate`].
    pub fn locate(&self, address: usize, size: usize) -> Result<Option<BlockRange>> {
        let state = lock(&self.state);
        let Some((start, block)) = containing(&state, address) else {
            return Ok(None);
        };
        if block.freed.is_some() {
            return Err(kept_by_a_graph(address));
        }
        check_inside(address, size, start, block.requested)?;
        Ok(Some(BlockRange {
            start,
            span: Span::new(address, size),
        }))
    }

    /// As [`crate::pool::Pool::hold`].
    pub fn hold(&self, range: BlockRange) -> bool {
        match lock(&self.state).blocks.get_mut(&range.start) {
            Some(block) if block.freed.is_none() => {
                block.held = block.held.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// As [`crate::pool::Pool::is_held`].
    pub fn is_held(&self, address: usize) -> bool {
        let state = lock(&self.state);
        let block = state.blocks.get(&address);
        block.is_some_and(|block| block.held > 0 && block.freed.is_none())
    }

    /// As [`crate::pool::Pool::unhold`].
    pub fn unhold(&self, range: BlockRange) -> Option<Freed> {
        let mut state = lock(&self.state);
        let block = state.blocks.get_mut(&range.start)?;
        block.held = block.held.saturating_sub(1);
        if block.held > 0 {
            None
        } else {
            block.freed.take()
        }
    }

    /// As [`crate::pool::Pool::add_use`].
    pub fn add_use(&self, range: BlockRange, fence: &Arc<Fence>, writes: bool) {
        let many = (lock(&self.state).blocks.get_mut(&range.start))
            .map(|block| record(&mut block.users.uses, range.span, fence, writes));
        query_all(many.unwrap_or_default());
    }

    /// As [`crate::pool::Pool::uses`].
    pub fn uses(&self, range: BlockRange, only_writes: bool) -> Vec<Arc<Fence>> {
        lock(&self.state)
            .blocks
            .get(&range.start)
            .map_or_else(Vec::new, |block| {
                pending_uses(&block.users.uses, range.span, only_writes)
            })
    }

    /// As [`crate::pool::Pool::before_use`]: another stream than the allocating one must follow the allocation.
    pub fn before_use(&self, range: BlockRange, handle: &Handle, writes: bool) -> Vec<Arc<Fence>> {
        (lock(&self.state).blocks.get(&range.start)).map_or_else(Vec::new, |block| {
            block.users.before_use(range.span, handle, writes)
        })
    }

    /// As [`crate::pool::Pool::follows`].
    pub fn follows(&self, range: BlockRange, handle: &Handle) {
        if let Some(block) = lock(&self.state).blocks.get_mut(&range.start) {
            block.users.follows(handle);
        }
    }

    /// Every live block.
    pub fn live_blocks(&self) -> Vec<LiveRange> {
        let state = lock(&self.state);
        state
            .blocks
            .iter()
            .map(|(start, block)| LiveRange {
                start: *start,
                len: block.requested,
                raw: block.raw,
                kept: block.freed.is_some(),
                stream: block.users.stream.as_ref().map(|core| core.id()),
                label: Label::of(block.label.as_deref()),
            })
            .collect()
    }

    /// As [`crate::pool::Pool::listing`]: each block is a segment, since the driver keeps the memory.
    pub fn listing(&self) -> Vec<Segment> {
        let state = lock(&self.state);
        let segment = |(address, block): (&usize, &Block)| Segment {
            place: Place::Device(self.device),
            mode: Some(block.family.mode()),
            address: *address,
            size: block.requested,
            mapped: false,
            blocks: vec![snapshot::Block {
                address: *address,
                size: block.requested,
                requested: block.requested,
                state: match block.freed {
                    Some(_) => BlockState::KeptByGraph,
                    None => BlockState::Live,
                },
                stream: block.users.stream.as_ref().map(|core| core.id()),
                raw: block.raw,
                name: block.label.as_ref().and_then(|label| label.name.clone()),
                call_site: block.label.as_ref().and_then(|label| label.site),
            }],
        };
        state.blocks.iter().map(segment).collect()
    }

    /// A request for which there was no memory is not made again.
    pub fn count_failure(&self, family: Family) {
        let stats = &mut lock(&self.state).stats[family as usize];
        stats.failures = stats.failures.wrapping_add(1);
    }

    /// Who holds what is in use in a family.
    pub fn holders(&self, family: Family) -> Holders {
        let state = lock(&self.state);
        let live = (state.blocks.iter()).filter(|(_, block)| block.family == family);
        Holders::of(live.map(|(address, block)| Held {
            size: block.requested,
            address: *address,
            stream: block.users.stream.as_ref().map(|core| core.id()),
            label: block.label.as_deref(),
        }))
    }

    /// Changes the label of the live block that starts at `address`; whether there is one.
    pub(in crate::pool) fn with_label(
        &self,
        address: usize,
        change: impl FnOnce(&mut Label),
    ) -> bool {
        let mut state = lock(&self.state);
        let block = state.blocks.get_mut(&address);
        (block.map(|block| change(block.label.get_or_insert_default()))).is_some()
    }

    /// As [`crate::pool::Pool::announce_free`].
    pub fn announce_free(&self, address: usize, on: FreeOn<'_>, who: Who) -> Option<Announced> {
        let mut state = lock(&self.state);
        let block = state.blocks.get_mut(&address)?;
        if !who.may_free(block.raw) && block.freed.is_none() {
            return Some(Announced::Refused(belongs_to_a_guard(address)));
        }
        if block.held > 0 {
            return leave_to_graph(&mut block.freed, on, block.users.stream.as_ref());
        }
        let by = freed_by(on, block.users.stream.as_ref(), &block.users.uses, false);
        let stream = block.users.stream.as_ref();
        Some(Announced::Now(Leaving {
            size: block.requested,
            by,
            stream: core_of(on, stream).map(|core| core.id()),
            mode: Some(block.family.mode()),
        }))
    }
}
