//! What a pool keeps with a live block: little with every block, and more with those that were copied, passed on or captured.

use super::{FreeOn, best_fit::OwnerId, labels::Label, recorded::Use};
use crate::stream::StreamCore;
use std::sync::Arc;

/// The place of a stream in a pool's books; it stays the same as long as a live block names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(super) u32);

/// The place of an [`Extra`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At(u32);

/// What a pool keeps with every live block. It lies in the block's record, beside what a free span needs there.
#[derive(Debug)]
pub(crate) struct Live {
    /// What was asked for, in bytes. In the front: the number of the entry there, which has it.
    pub requested: usize,
    /// The stream that the block was allocated on; [`Live::NOBODY`] without one.
    stream: u32,
    /// The owner of the memory that the block was made of; idle if there is none. [`Extra::inherited`] has more.
    pub inherited: OwnerId,
    /// Where the rest is; [`Live::NOBODY`] if there is none.
    extra: u32,
    /// Whether it was handed out as a raw pointer.
    pub raw: bool,
    /// Whether it is in the front.
    fronted: bool,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            requested: 0,
            stream: Self::NOBODY,
            inherited: OwnerId::IDLE,
            extra: Self::NOBODY,
            raw: false,
            fronted: false,
        }
    }
}

impl Live {
    const NOBODY: u32 = u32::MAX;

    /// A block that was just handed out.
    #[inline]
    pub fn new(requested: usize, stream: Option<Place>, inherited: OwnerId, raw: bool) -> Self {
        Self {
            requested,
            stream: stream.map_or(Self::NOBODY, |place| place.0),
            inherited,
            extra: Self::NOBODY,
            raw,
            fronted: false,
        }
    }

    /// The stream that the block was allocated on. It follows all marks that the block inherited.
    #[inline]
    pub fn stream(&self) -> Option<Place> {
        (self.stream != Self::NOBODY).then_some(Place(self.stream))
    }

    /// The same block, as if it had been allocated on no stream.
    pub fn on_no_stream(&self) -> Self {
        Self {
            stream: Self::NOBODY,
            ..*self
        }
    }

    /// Whether nothing but the block's making is known of it.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.extra == Self::NOBODY && !self.fronted
    }

    /// The number of its entry, if it is in the front.
    pub fn front(&self) -> Option<u32> {
        self.fronted.then_some(self.requested as u32)
    }

    /// It is in the front.
    pub fn enter_front(&mut self, number: u32) {
        (self.requested, self.fronted) = (number as usize, true);
    }

    /// It is not in the front any more.
    pub fn leave_front(&mut self, requested: usize, raw: bool) {
        (self.requested, self.raw, self.fronted) = (requested, raw, false);
    }

    fn extra(&self) -> Option<At> {
        (self.extra != Self::NOBODY).then_some(At(self.extra))
    }
}

/// What is known of a live block that was used in more than one way.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// The owners of the memory that the block was made of, beside [`Live::inherited`].
    pub inherited: Vec<OwnerId>,
    /// Copies and other uses that were recorded.
    pub uses: Vec<Use>,
    /// Streams that have been made to wait for what the block inherited, by uid.
    pub followers: Vec<u64>,
    /// How many captured graphs use the block: it stays live as long as there are any.
    pub held: u32,
    /// In whose order it was freed meanwhile.
    pub freed: Option<Freed>,
    /// What it is called, and where it was allocated.
    pub label: Option<Box<Label>>,
}

/// What was kept of a block that has none.
static NONE: Extra = Extra {
    inherited: Vec::new(),
    uses: Vec::new(),
    followers: Vec::new(),
    held: 0,
    freed: None,
    label: None,
};

/// All [`Extra`]s of a pool. Those of blocks that were freed are used again, with the room that their lists have.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    all: Vec<Extra>,
    vacant: Vec<u32>,
}

/// Lists with more room than this give it back.
const ROOM: usize = 64;

impl Extras {
    /// What is kept of a block.
    #[inline]
    pub fn of(&self, live: &Live) -> &Extra {
        live.extra()
            .and_then(|at| self.all.get(at.0 as usize))
            .unwrap_or(&NONE)
    }

    /// What is kept of a block, to be changed, if there is anything.
    pub fn of_mut(&mut self, live: &Live) -> Option<&mut Extra> {
        live.extra().and_then(|at| self.all.get_mut(at.0 as usize))
    }

    /// What is kept of a block, made if there is nothing. `None` only where four thousand million blocks have something.
    pub fn make(&mut self, live: &mut Live) -> Option<&mut Extra> {
        if live.extra == Live::NOBODY {
            live.extra = match self.vacant.pop() {
                Some(at) => at,
                None => {
                    let at = u32::try_from(self.all.len()).ok()?;
                    self.all.push(Extra::default());
                    at
                }
            };
        }
        self.all.get_mut(live.extra as usize)
    }

    /// The block is gone.
    pub fn forget(&mut self, live: &Live) {
        let Some(at) = live.extra() else { return };
        let Some(extra) = self.all.get_mut(at.0 as usize) else {
            return;
        };
        clear(&mut extra.inherited);
        clear(&mut extra.uses);
        clear(&mut extra.followers);
        (extra.held, extra.freed, extra.label) = (0, None, None);
        self.vacant.push(at.0);
    }

    /// The owners of the memory that a block was made of.
    pub fn inherited<'a>(&'a self, live: &'a Live) -> impl Iterator<Item = OwnerId> + Clone + 'a {
        let first = (live.inherited != OwnerId::IDLE).then_some(live.inherited);
        first
            .into_iter()
            .chain(self.of(live).inherited.iter().copied())
    }
}

fn clear<T>(list: &mut Vec<T>) {
    list.clear();
    if list.capacity() > ROOM {
        *list = Vec::new();
    }
}

/// In whose order a block was freed that a captured graph still uses.
#[derive(Debug, Clone)]
pub(crate) enum Freed {
    /// Only recorded uses touch it.
    Recorded,
    /// Work that was in this stream may touch it.
    Stream(Arc<StreamCore>),
}

impl Freed {
    /// As it was said, for a block that was allocated on `stream`.
    pub fn new(on: FreeOn<'_>, stream: Option<&Arc<StreamCore>>) -> Self {
        let core = match on {
            FreeOn::Recorded => None,
            FreeOn::Stream(handle) => Some(handle.core()),
            FreeOn::Core(core) => Some(core),
            FreeOn::Allocating => stream,
        };
        core.map_or(Freed::Recorded, |core| Freed::Stream(core.clone()))
    }

    /// How it is freed at last.
    pub fn on(&self) -> FreeOn<'_> {
        match self {
            Freed::Recorded => FreeOn::Recorded,
            Freed::Stream(core) => FreeOn::Core(core),
        }
    }
}
