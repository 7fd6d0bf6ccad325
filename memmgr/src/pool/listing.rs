//! All segments and blocks of a pool, copied out of its books.

use super::{
    Pool, State,
    best_fit::{OwnerId, Seen},
};
use crate::{
    error::Place,
    mode::DeviceAllocatorMode,
    snapshot::{Block, BlockState, Segment},
};
use rustc_hash::FxHashMap;

impl Pool {
    /// All segments with their blocks, by ascending address. Its time under the lock goes with the number of blocks.
    pub fn listing(&self) -> Vec<Segment> {
        self.flush_front();
        let mut list = List {
            place: self.place(),
            mode: self.mode(),
            mapped: self.source.mapped().is_some(),
            segments: Vec::new(),
        };
        let mut owners = FxHashMap::default();
        let state = self.state.lock();
        for segment in state.space.segments() {
            let mut part: Option<Vec<Block>> = None;
            for (address, size, seen) in state.space.walk(segment.base) {
                match self.block(&state, &mut owners, address, size, seen) {
                    Some(block) => part.get_or_insert_default().push(block),
                    None => list.add(part.take()),
                }
            }
            list.add(part);
        }
        list.segments
    }

    /// A block as a listing says it; `None` for a gap.
    fn block(
        &self,
        state: &State,
        owners: &mut FxHashMap<OwnerId, Waits>,
        address: usize,
        size: usize,
        seen: Seen<'_, super::Live>,
    ) -> Option<Block> {
        let mut block = Block {
            address,
            size,
            requested: 0,
            state: BlockState::Idle,
            stream: None,
            raw: false,
            name: None,
            call_site: None,
        };
        match seen {
            Seen::Gap => return None,
            Seen::Free(OwnerId::IDLE) => {}
            Seen::Free(owner) => {
                let waits = owners.entry(owner);
                let waits = waits.or_insert_with(|| Waits::of(state, owner));
                (block.state, block.stream) = (waits.state, waits.stream);
            }
            Seen::Live(live, requested) => {
                block.stream = state.order.core(live.stream()).map(|core| core.id());
                let number = state.extras.front(live);
                let fronted = number.and_then(|number| self.front.look(number));
                if fronted.is_some_and(|fronted| fronted.in_bin) {
                    // Freed, and kept ready for the thread that had it.
                    block.state = match block.stream {
                        Some(_) => BlockState::Pending,
                        None => BlockState::Idle,
                    };
                    return Some(block);
                }
                block.requested = fronted.map_or(requested, |fronted| fronted.requested);
                block.raw = fronted.map_or(live.raw(), |fronted| fronted.raw);
                let extra = state.extras.of(live);
                block.state = match extra.freed {
                    Some(_) => BlockState::KeptByGraph,
                    None => BlockState::Live,
                };
                if let Some(label) = &extra.label {
                    (block.name, block.call_site) = (label.name.clone(), label.site);
                }
            }
        }
        Some(block)
    }
}

/// What the spans of an owner wait for.
struct Waits {
    state: BlockState,
    stream: Option<u64>,
}

impl Waits {
    fn of(state: &State, owner: OwnerId) -> Self {
        let streams = state.order.streams_awaited(owner);
        Self {
            // It may be complete, and not be settled yet.
            state: match streams.is_empty() {
                true => BlockState::Idle,
                false => BlockState::Pending,
            },
            stream: match streams.as_slice() {
                [only] => Some(*only),
                _ => None,
            },
        }
    }
}

struct List {
    place: Place,
    mode: Option<DeviceAllocatorMode>,
    mapped: bool,
    segments: Vec<Segment>,
}

impl List {
    /// Blocks without a gap between them.
    fn add(&mut self, blocks: Option<Vec<Block>>) {
        let blocks = blocks.unwrap_or_default();
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return;
        };
        let end = last.address.saturating_add(last.size);
        self.segments.push(Segment {
            place: self.place,
            mode: self.mode,
            address: first.address,
            size: end.saturating_sub(first.address),
            mapped: self.mapped,
            blocks,
        });
    }
}
