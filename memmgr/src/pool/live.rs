//! What a pool keeps with a live block: little with every block, and more with those that were copied, passed on or captured.

use super::{
    FreeOn,
    best_fit::{Datum, OwnerId},
    free::core_of,
    labels::Label,
    recorded::Use,
};
use crate::stream::StreamCore;
use std::sync::Arc;

/// The place of a stream in a pool's books; it stays the same as long as a live block names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(super) u32);

/// The place of an [`Extra`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At(u32);

/// What a pool keeps with every live block: eight bytes in its record, where a free span keeps whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    /// The owner of the memory that the block was made of, idle if there is none; the place of an [`Extra`], if there is one, which
    /// has the owner then.
    word: u32,
    /// The stream that the block was allocated on, [`Live::NOBODY`] without one, above two bits: whether there is an [`Extra`], and
    /// whether it was handed out as a raw pointer.
    bits: u32,
}

impl Default for Live {
    fn default() -> Self {
        Self::new(None, OwnerId::IDLE, false)
    }
}

impl Datum for Live {
    #[inline]
    fn of_span(owner: OwnerId, node: u32) -> Self {
        Self {
            word: owner.0,
            bits: node,
        }
    }

    #[inline]
    fn owner(&self) -> OwnerId {
        OwnerId(self.word)
    }

    #[inline]
    fn node(&self) -> u32 {
        self.bits
    }
}

impl Live {
    /// More streams than a pool can have: their classes are numbers below 2^24.
    const NOBODY: u32 = u32::MAX / 4;
    const EXTRA: u32 = 1;
    const RAW: u32 = 2;

    /// A block that was just handed out.
    #[inline]
    pub fn new(stream: Option<Place>, inherited: OwnerId, raw: bool) -> Self {
        let stream = stream.map_or(Self::NOBODY, |place| place.0 & Self::NOBODY);
        Self {
            word: inherited.0,
            bits: stream << 2 | if raw { Self::RAW } else { 0 },
        }
    }

    /// The stream that the block was allocated on. It follows all marks that the block inherited.
    #[inline]
    pub fn stream(&self) -> Option<Place> {
        let stream = self.bits >> 2;
        (stream != Self::NOBODY).then_some(Place(stream))
    }

    /// The same block, as if it had been allocated on no stream.
    pub fn on_no_stream(&self) -> Self {
        Self {
            bits: self.bits | Self::NOBODY << 2,
            ..*self
        }
    }

    /// Whether it was handed out as a raw pointer.
    #[inline]
    pub fn raw(&self) -> bool {
        self.bits & Self::RAW != 0
    }

    /// It was handed out as a raw pointer, or to a guard.
    #[inline]
    pub fn set_raw(&mut self, raw: bool) {
        self.bits = self.bits & !Self::RAW | if raw { Self::RAW } else { 0 };
    }

    /// The owner of the memory that the block was made of, idle if there is none, if nothing else is known of it.
    #[inline]
    pub fn plain(&self) -> Option<OwnerId> {
        (self.bits & Self::EXTRA == 0).then_some(OwnerId(self.word))
    }

    #[inline]
    fn extra(&self) -> Option<At> {
        (self.bits & Self::EXTRA != 0).then_some(At(self.word))
    }
}

/// What is known of a live block that was used in more than one way.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// The owner of the memory that the block was made of; idle if there is none.
    first: OwnerId,
    /// And the others.
    pub inherited: Vec<OwnerId>,
    /// The number of its entry in the front, if it is there. Only `first` is known of it then, besides.
    front: Option<u32>,
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
    first: OwnerId::IDLE,
    inherited: Vec::new(),
    front: None,
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
        if let Some(first) = live.plain() {
            let at = match self.vacant.pop() {
                Some(at) => at,
                None => {
                    let at = u32::try_from(self.all.len()).ok()?;
                    self.all.push(Extra::default());
                    at
                }
            };
            (live.word, live.bits) = (at, live.bits | Live::EXTRA);
            self.all.get_mut(at as usize)?.first = first;
        }
        self.of_mut(live)
    }

    /// The block is gone.
    pub fn forget(&mut self, live: &Live) {
        let Some(at) = live.extra() else { return };
        let Some(extra) = self.all.get_mut(at.0 as usize) else {
            return;
        };
        (extra.first, extra.front) = (OwnerId::IDLE, None);
        clear(&mut extra.inherited);
        clear(&mut extra.uses);
        clear(&mut extra.followers);
        (extra.held, extra.freed, extra.label) = (0, None, None);
        self.vacant.push(at.0);
    }

    /// The owners of the memory that a block was made of.
    pub fn inherited<'a>(&'a self, live: &'a Live) -> impl Iterator<Item = OwnerId> + Clone + 'a {
        let extra = self.of(live);
        let first = live.plain().unwrap_or(extra.first);
        let first = (first != OwnerId::IDLE).then_some(first);
        first.into_iter().chain(extra.inherited.iter().copied())
    }

    /// Whether a block was made of memory that had an owner.
    pub fn has_inherited(&self, live: &Live) -> bool {
        self.inherited(live).next().is_some()
    }

    /// The block was made of nobody's memory; whose it was.
    pub fn disinherit(&mut self, live: &mut Live) -> Vec<OwnerId> {
        let before: Vec<OwnerId> = self.inherited(live).collect();
        match self.of_mut(live) {
            Some(extra) => {
                extra.first = OwnerId::IDLE;
                clear(&mut extra.inherited);
            }
            None => live.word = OwnerId::IDLE.0,
        }
        before
    }

    /// Whether a block is not in the front, and was not freed.
    #[inline]
    pub fn may_be_used(&self, live: &Live) -> bool {
        let extra = self.of(live);
        extra.front.is_none() && extra.freed.is_none()
    }

    /// The number of a block's entry, if it is in the front.
    #[inline]
    pub fn front(&self, live: &Live) -> Option<u32> {
        self.of(live).front
    }

    /// A block of which nothing else is known is in the front. False if there is no room for that.
    pub fn enter_front(&mut self, live: &mut Live, number: u32) -> bool {
        let extra = self.make(live);
        extra.map(|extra| extra.front = Some(number)).is_some()
    }

    /// A block is not in the front any more, and nothing else is known of it.
    pub fn leave_front(&mut self, live: &mut Live, raw: bool) {
        if let Some(At(at)) = live.extra()
            && let Some(extra) = self.all.get_mut(at as usize)
            && extra.front.take().is_some()
        {
            (live.word, live.bits) = (extra.first.0, live.bits & !Live::EXTRA);
            self.vacant.push(at);
        }
        live.set_raw(raw);
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
        core_of(on, stream).map_or(Freed::Recorded, |core| Freed::Stream(core.clone()))
    }

    /// How it is freed at last.
    pub fn on(&self) -> FreeOn<'_> {
        match self {
            Freed::Recorded => FreeOn::Recorded,
            Freed::Stream(core) => FreeOn::Core(core),
        }
    }
}
