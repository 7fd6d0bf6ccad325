//! The streams that a pool knows, each at its place; and whether others wait for something that a stream does with its next call.

use super::{Order, SHARED};
use crate::{
    event::Fence,
    pool::{
        best_fit::{ClassId, OwnerId},
        live::Place,
    },
    stream::StreamCore,
    sync::atomic::AtomicBool,
};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// A stream, as a pool sees it.
#[derive(Debug)]
pub(super) struct Slot {
    pub core: Arc<StreamCore>,
    /// How many live blocks name it.
    pub blocks: usize,
    pub class: ClassId,
    pub epoch: Option<(Arc<Fence>, OwnerId)>,
    /// Epochs that others have asked for: this stream's next call records their event.
    pub wanted: Vec<Arc<Fence>>,
}

impl Slot {
    #[inline]
    fn is_of(&self, core: &StreamCore) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.core), core)
    }
}

/// A stream that may be served at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub place: Place,
    /// The class of spans that it may use, beside the idle ones.
    pub class: ClassId,
    /// The owner of what is freed in its order now, if its epoch is open.
    pub epoch: Option<OwnerId>,
}

impl Order {
    #[inline]
    pub(super) fn slot(&self, place: Place) -> Option<&Slot> {
        self.slots.get(place.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, place: Place) -> Option<&mut Slot> {
        self.slots.get_mut(place.0 as usize)?.as_mut()
    }

    /// The place of a stream, if it is known.
    #[inline]
    pub fn known_place(&self, core: &StreamCore) -> Option<Place> {
        self.known_slot(core).map(|(place, _)| place)
    }

    /// What is known of a stream, if anything is. The stream remembers its place; only a stream that several pools use in turn
    /// is looked up.
    #[inline]
    fn known_slot(&self, core: &StreamCore) -> Option<(Place, &Slot)> {
        let (pool, place) = core.place();
        if pool == self.uid
            && let Some(slot) = self.slot(Place(place))
            && slot.is_of(core)
        {
            return Some((Place(place), slot));
        }
        let place = *self.places.get(&core.uid)?;
        core.set_place(self.uid, place);
        Some((Place(place), self.slot(Place(place))?))
    }

    /// Whether this stream is at a place.
    #[inline]
    pub fn is_at(&self, place: Place, core: &StreamCore) -> bool {
        self.slot(place).is_some_and(|slot| slot.is_of(core))
    }

    /// The place of a stream, made if there is none.
    #[inline]
    pub fn place(&mut self, core: &Arc<StreamCore>) -> Place {
        match self.known_place(core) {
            Some(place) => place,
            None => self.new_place(core),
        }
    }

    #[cold]
    fn new_place(&mut self, core: &Arc<StreamCore>) -> Place {
        if let Some(place) = self.take_over(core) {
            return place;
        }
        let class = self.vacant_classes.pop().unwrap_or_else(|| {
            // 0 is idle and 1 shared.
            self.next_class = self.next_class.max(SHARED.0) + 1;
            ClassId(self.next_class)
        });
        let slot = Slot {
            core: core.clone(),
            blocks: 0,
            class,
            epoch: None,
            wanted: Vec::new(),
        };
        let place = self.vacant_places.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        if let Some(vacant) = self.slots.get_mut(place as usize) {
            *vacant = Some(slot);
        }
        self.places.insert(core.uid, place);
        self.crowded = self.is_crowded();
        self.tell();
        core.set_place(self.uid, place);
        Place(place)
    }

    /// The place of the same stream under another handle: that one is gone, or this one is. The driver's ids are never given twice,
    /// so what was freed in the order of the former may be used in that of the latter.
    fn take_over(&mut self, core: &Arc<StreamCore>) -> Option<Place> {
        let is_same = |slot: &Slot| slot.core.is_same(core);
        let place = (self.slots.iter()).position(|slot| slot.as_ref().is_some_and(is_same))?;
        let slot = self.slots.get_mut(place)?.as_mut()?;
        // One that is gone gives its name to nothing: its end may lie before what the other has done since.
        if core.is_retired() {
            return Some(Place(u32::try_from(place).ok()?));
        }
        // Only visitors are left, and its end is recorded at any moment: what this one does must not be named by it.
        if !slot.core.is_retired() {
            return None;
        }
        let former = std::mem::replace(&mut slot.core, core.clone());
        let epoch = slot.epoch.take().map(|(fence, _)| fence);
        let wanted = std::mem::take(&mut slot.wanted);
        let place = u32::try_from(place).ok()?;
        self.wanted = self.wanted.saturating_sub(wanted.len());
        self.places.remove(&former.uid);
        self.places.insert(core.uid, place);
        // Whose end is recorded.
        for fence in epoch.iter().chain(&wanted) {
            self.enqueue(fence);
        }
        self.tell();
        core.set_place(self.uid, place);
        Some(Place(place))
    }

    /// The stream at a place.
    #[inline]
    pub fn core(&self, place: Option<Place>) -> Option<&Arc<StreamCore>> {
        self.slot(place?).map(|slot| &slot.core)
    }

    /// A live block names the stream.
    #[inline]
    pub fn name(&mut self, place: Place) {
        if let Some(slot) = self.slot_mut(place) {
            slot.blocks = slot.blocks.saturating_add(1);
        }
    }

    /// A block that named the stream is gone.
    #[inline]
    pub fn unname(&mut self, place: Place) {
        if let Some(slot) = self.slot_mut(place) {
            slot.blocks = slot.blocks.saturating_sub(1);
        }
    }

    /// The class of spans that the stream may use at once, beside the idle ones.
    #[inline]
    pub fn class_of(&self, place: Place) -> Option<ClassId> {
        self.slot(place).map(|slot| slot.class)
    }

    pub(super) fn slot_of(&self, core: &StreamCore) -> Option<&Slot> {
        self.known_slot(core).map(|(_, slot)| slot)
    }

    pub(super) fn slot_of_mut(&mut self, core: &StreamCore) -> Option<&mut Slot> {
        let place = self.known_place(core)?;
        self.slot_mut(place)
    }

    /// What is known of a stream, unless others wait for something that the stream's next call does.
    #[inline]
    pub fn ready(&self, core: &StreamCore) -> Option<Ready> {
        let (place, slot) = self.known_slot(core)?;
        if self.is_restless() && (self.crowded || !slot.wanted.is_empty()) {
            return None;
        }
        Some(Ready {
            place,
            class: slot.class,
            epoch: slot.epoch.as_ref().map(|(_, owner)| *owner),
        })
    }

    /// What says [`Order::is_restless`] without the lock.
    pub fn restless(&self) -> Arc<AtomicBool> {
        self.restless.clone()
    }

    /// Tells those who do not have the lock.
    pub(super) fn tell(&self) {
        self.restless.store(self.is_restless(), Relaxed);
    }

    /// Whether somebody waits for something that a stream's next call does, or streams that have ended have left much.
    #[inline]
    pub fn is_restless(&self) -> bool {
        self.wanted > 0 || self.crowded
    }

    /// Whether others wait for something that a call of this stream does, or of anybody.
    pub fn is_awaited(&self, core: Option<&Arc<StreamCore>>) -> bool {
        let is_wanted = |core: &Arc<StreamCore>| {
            self.slot_of(core)
                .is_some_and(|slot| !slot.wanted.is_empty())
        };
        self.is_crowded() || (self.wanted > 0 && core.is_some_and(is_wanted))
    }

    /// How many streams are known.
    pub fn streams(&self) -> usize {
        self.places.len()
    }

    /// Whether many streams have come since the last [`Order::sweep`].
    pub fn is_crowded(&self) -> bool {
        self.places.len() >= self.sweep_at.max(64)
    }

    /// Drops what streams that have ended left behind.
    pub fn sweep(&mut self) {
        let is_ended = |slot: &Slot| {
            slot.blocks == 0
                && slot.core.is_retired()
                && slot.epoch.is_none()
                && slot.wanted.is_empty()
        };
        if self.slots.iter().flatten().any(is_ended) {
            let used: rustc_hash::FxHashSet<u32> = self
                .entries
                .iter()
                .flatten()
                .map(|entry| entry.class.0)
                .collect();
            for (place, vacant) in self.slots.iter_mut().enumerate() {
                let ended = vacant.take_if(|slot| is_ended(slot) && !used.contains(&slot.class.0));
                if let Some(slot) = ended {
                    self.places.remove(&slot.core.uid);
                    self.vacant_classes.push(slot.class);
                    self.vacant_places.push(place as u32);
                }
            }
        }
        self.sweep_at = self.places.len() * 2;
        self.crowded = self.is_crowded();
        self.tell();
    }
}
