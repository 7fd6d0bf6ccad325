//! Marks and epochs: who may reuse free memory, and when.
//!
//! A free span carries an owner: a set of marks, each a [`Fence`] (a point in a stream's order). Usually that is one
//! mark, the *epoch* of the stream that freed it: a run of frees that share one event. An epoch stays open, and costs no
//! CUDA call, until somebody else wants its memory. Whoever takes a span keeps its marks with the block until they are
//! known to be complete; a later free adds to them and never replaces them, unless the freeing stream is known to follow
//! them.
//!
//! This module makes no CUDA call: it hands out fences that its caller closes, queries and waits for, outside its lock.

use super::{
    best_fit::{ClassId, Owner, OwnerId, Space},
    live::{Extras, Live, Place},
};
use crate::{
    event::Fence,
    planted::{self, Mistake},
    stream::StreamCore,
    sync::atomic::AtomicBool,
};
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// The class of spans whose marks lie on several streams: nobody may use them without a wait.
pub(crate) const SHARED: ClassId = ClassId(1);
/// How many spans change their owner in one call on the hot path.
pub(crate) const SETTLE_BUDGET: usize = 64;
/// How many fences of one stream are looked at in one call.
const QUERIES_PER_STREAM: usize = 8;

/// An owner: the marks that must complete, and what still refers to it.
#[derive(Debug)]
struct Entry {
    marks: Vec<Arc<Fence>>,
    /// How many marks are not known to be complete.
    pending: usize,
    /// Live blocks that inherited it.
    holders: u32,
    class: ClassId,
}

impl Entry {
    /// The stream of all marks that are not complete, if they were on several and now are on one.
    fn only_stream(&self) -> Option<&Arc<StreamCore>> {
        if self.class != SHARED {
            return None;
        }
        let mut left = self.marks.iter().filter(|mark| !mark.is_done());
        let first = left.next()?.core();
        left.all(|mark| mark.core().is_same(first)).then_some(first)
    }
}

/// Drops marks that a later one of the same stream proves, so that the marks of memory that changes hands for ever stay
/// few.
fn drop_covered(marks: &mut Vec<Arc<Fence>>) {
    if marks.len() < 2 {
        return;
    }
    let mut last: FxHashMap<u64, u64> = FxHashMap::default();
    for mark in marks.iter() {
        let begun = last.entry(mark.core().uid).or_default();
        *begun = (*begun).max(mark.begun());
    }
    marks.retain(|mark| {
        last.get(&mark.core().uid)
            .is_none_or(|begun| *begun <= mark.ended())
    });
}

/// How many streams are remembered to follow a block's marks.
const FOLLOWERS: usize = 64;

/// Remembers a stream that follows a block's marks; one that is forgotten is made to wait once more.
pub(crate) fn add_follower(followers: &mut Vec<u64>, uid: u64) {
    if followers.contains(&uid) {
        return;
    }
    if followers.len() >= FOLLOWERS {
        followers.clear();
    }
    followers.push(uid);
}

/// A stream, as a pool sees it.
#[derive(Debug)]
struct Slot {
    core: Arc<StreamCore>,
    /// How many live blocks name it.
    blocks: usize,
    class: ClassId,
    epoch: Option<(Arc<Fence>, OwnerId)>,
    /// Epochs that others have asked for: this stream's next call records their event.
    wanted: Vec<Arc<Fence>>,
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

/// The numbers of an owner's marks, in order. Most owners have one mark, and need no memory for that.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    One(u64),
    Several(Box<[u64]>),
}

impl Key {
    fn of(marks: &[Arc<Fence>]) -> Self {
        match marks {
            [mark] => Self::One(mark.uid),
            marks => Self::Several(marks.iter().map(|mark| mark.uid).collect()),
        }
    }
}

/// A fence that owners wait for.
#[derive(Debug)]
struct Watch {
    fence: Arc<Fence>,
    /// One of the owners: most fences have no other.
    owner: OwnerId,
    others: Vec<OwnerId>,
}

impl Watch {
    fn owners(&self) -> impl Iterator<Item = OwnerId> {
        std::iter::once(self.owner).chain(self.others.iter().copied())
    }
}

/// All owners, epochs and marks of one pool.
#[derive(Debug)]
pub(crate) struct Order {
    /// Tells this pool's places in [`StreamCore::place`] from those of others.
    uid: u32,
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    by_marks: FxHashMap<Key, OwnerId>,
    slots: Vec<Option<Slot>>,
    vacant_places: Vec<u32>,
    /// The places of the streams, by uid.
    places: FxHashMap<u64, u32>,
    next_class: u32,
    /// How many slots are worth a sweep.
    sweep_at: usize,
    /// How many fences are wanted, of all streams.
    wanted: usize,
    /// Says [`Order::is_restless`] to those who do not have the lock.
    restless: Arc<AtomicBool>,
    /// Whether so many streams have come that a sweep is due.
    crowded: bool,
    vacant_classes: Vec<ClassId>,
    watches: FxHashMap<u64, Watch>,
    /// Closed fences by stream and time, to be queried from the oldest on.
    queues: BTreeMap<u64, BTreeMap<(u64, u64), Arc<Fence>>>,
    /// Owners whose marks are complete and whose spans are being made idle.
    settling: VecDeque<OwnerId>,
}

static NEXT_UID: AtomicU32 = AtomicU32::new(1);

impl Order {
    /// Of a new pool.
    pub fn new() -> Self {
        Self {
            uid: NEXT_UID.fetch_add(1, Relaxed),
            entries: Vec::new(),
            vacant: Vec::new(),
            by_marks: FxHashMap::default(),
            slots: Vec::new(),
            vacant_places: Vec::new(),
            places: FxHashMap::default(),
            next_class: 0,
            sweep_at: 0,
            wanted: 0,
            restless: Arc::default(),
            crowded: false,
            vacant_classes: Vec::new(),
            watches: FxHashMap::default(),
            queues: BTreeMap::new(),
            settling: VecDeque::new(),
        }
    }

    #[inline]
    fn entry(&self, id: OwnerId) -> Option<&Entry> {
        self.entries.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    fn entry_mut(&mut self, id: OwnerId) -> Option<&mut Entry> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }

    #[inline]
    fn slot(&self, place: Place) -> Option<&Slot> {
        self.slots.get(place.0 as usize)?.as_ref()
    }

    #[inline]
    fn slot_mut(&mut self, place: Place) -> Option<&mut Slot> {
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

    /// Whether everything that the owner stands for is known to be complete.
    pub fn is_complete(&self, id: OwnerId) -> bool {
        id == OwnerId::IDLE || self.entry(id).is_none_or(|entry| entry.pending == 0)
    }

    fn slot_of(&self, core: &StreamCore) -> Option<&Slot> {
        self.known_slot(core).map(|(_, slot)| slot)
    }

    fn slot_of_mut(&mut self, core: &StreamCore) -> Option<&mut Slot> {
        let place = self.known_place(core)?;
        self.slot_mut(place)
    }

    fn new_owner(&mut self, marks: Vec<Arc<Fence>>, class: ClassId) -> OwnerId {
        let number = self.vacant.pop().unwrap_or_else(|| {
            if self.entries.is_empty() {
                self.entries.push(None); // 0 is the idle owner.
            }
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        let id = OwnerId(number);
        for mark in &marks {
            self.watches
                .entry(mark.uid)
                .and_modify(|watch| watch.others.push(id))
                .or_insert_with(|| Watch {
                    fence: mark.clone(),
                    owner: id,
                    others: Vec::new(),
                });
            // What only its own thread can record waits for that thread's next call.
            if mark.is_closed() || (mark.core().is_per_thread() && !mark.is_closing()) {
                self.enqueue(mark);
            }
        }
        self.by_marks.insert(Key::of(&marks), id);
        let pending = marks.len();
        if let Some(place) = self.entries.get_mut(number as usize) {
            *place = Some(Entry {
                marks,
                pending,
                holders: 0,
                class,
            });
        }
        id
    }

    /// Puts a closed fence where [`Order::candidates`] finds it, if anybody waits for it.
    pub fn enqueue(&mut self, fence: &Arc<Fence>) {
        if !self.watches.contains_key(&fence.uid) {
            return;
        }
        // What could not be recorded is tried again at the stream's next call.
        if !fence.is_closed() && !fence.core().is_retired() {
            let place = self.place(fence.core());
            if let Some(slot) = self.slot_mut(place)
                && slot.wanted.iter().all(|wanted| wanted.uid != fence.uid)
            {
                slot.wanted.push(fence.clone());
                self.wanted += 1;
                self.tell();
            }
            return;
        }
        self.queues
            .entry(fence.core().uid)
            .or_default()
            .insert((fence.begun(), fence.uid), fence.clone());
    }

    /// The owner of what a stream frees now: its open epoch.
    #[inline]
    pub fn epoch(&mut self, place: Place) -> Owner {
        match self.slot(place) {
            Some(Slot {
                epoch: Some((_, id)),
                class,
                ..
            }) => Owner::new(*id, *class),
            _ => self.open_epoch(place),
        }
    }

    #[cold]
    fn open_epoch(&mut self, place: Place) -> Owner {
        let Some((core, class)) = self.slot(place).map(|slot| (slot.core.clone(), slot.class))
        else {
            debug_assert!(false, "no stream has this place");
            return Owner::IDLE;
        };
        let fence = Fence::open(core);
        let id = self.new_owner(vec![fence.clone()], class);
        if let Some(slot) = self.slot_mut(place) {
            slot.epoch = Some((fence, id));
        }
        Owner::new(id, class)
    }

    /// The owner of a block that was allocated on a stream and is freed in the stream's order, where nothing else is known of
    /// the block: `None` if only the stream's own thread can record its epochs.
    #[inline]
    pub fn plain_owner(&mut self, place: Place) -> Option<Owner> {
        let slot = self.slot(place)?;
        if slot.core.is_per_thread() {
            return None;
        }
        match &slot.epoch {
            Some((_, id)) => Some(Owner::new(*id, slot.class)),
            None => Some(self.open_epoch(place)),
        }
    }

    /// An epoch of its own for one free on a per-thread stream, which only its own thread can record: with
    /// [`Fence::record_begun`], at once.
    fn single(&mut self, core: &Arc<StreamCore>) -> (Owner, Arc<Fence>) {
        let class = self.class(core);
        let fence = Fence::begun_by_caller(core.clone());
        let id = self.new_owner(vec![fence.clone()], class);
        (Owner::new(id, class), fence)
    }

    /// The class of a stream, which becomes known.
    fn class(&mut self, core: &Arc<StreamCore>) -> ClassId {
        let place = self.place(core);
        self.class_of(place).unwrap_or(SHARED)
    }

    /// The owner that stands for a set of marks.
    pub fn owner_of(&mut self, mut marks: Vec<Arc<Fence>>) -> Owner {
        marks.retain(|mark| !mark.is_done());
        marks.sort_unstable_by_key(|mark| mark.uid);
        marks.dedup_by_key(|mark| mark.uid);
        drop_covered(&mut marks);
        let Some(first) = marks.first() else {
            return Owner::IDLE;
        };
        if let Some(id) = self.by_marks.get(&Key::of(&marks)) {
            return Owner::new(*id, self.entry(*id).map_or(SHARED, |entry| entry.class));
        }
        let core = first.core().clone();
        let class = if planted::is_made(Mistake::SharedMemoryIsAnybodys)
            || marks.iter().all(|mark| mark.core().is_same(&core))
        {
            self.class(&core)
        } else {
            SHARED
        };
        // A use whose event could not be recorded is no epoch: its stream's next call tries again, or who finds it idle.
        let open: Vec<Arc<Fence>> = marks
            .iter()
            .filter(|mark| !mark.is_closed() && !mark.is_closing() && !self.is_epoch(mark))
            .cloned()
            .collect();
        let id = self.new_owner(marks, class);
        for mark in &open {
            self.enqueue(mark);
        }
        Owner::new(id, class)
    }

    /// Whether the mark is the open epoch of its stream.
    fn is_epoch(&self, mark: &Fence) -> bool {
        self.slot_of(mark.core())
            .and_then(|slot| slot.epoch.as_ref())
            .is_some_and(|(fence, _)| fence.uid == mark.uid)
    }

    /// The owner of a block that is freed.
    ///
    /// `on` is the stream in whose order it is freed; `None` where the caller says that only recorded uses touch it.
    pub fn owner_for_free(
        &mut self,
        live: &Live,
        extras: &Extras,
        on: Option<&Arc<StreamCore>>,
    ) -> (Owner, Option<Arc<Fence>>) {
        let follows = |core: &Arc<StreamCore>| on.is_some_and(|on| on.is_same(core));
        let mut marks: Vec<Arc<Fence>> = Vec::new();
        // A stream follows its own marks, and those that the block was taken under if it was taken for this stream.
        if !self.core(live.stream()).is_some_and(follows) {
            let class = on.and_then(|core| self.slot_of(core).map(|slot| slot.class));
            for id in extras.inherited(live) {
                if let Some(entry) = self.entry(id)
                    && Some(entry.class) != class
                {
                    marks.extend(
                        entry
                            .marks
                            .iter()
                            .filter(|mark| !mark.is_done() && !follows(mark.core()))
                            .cloned(),
                    );
                }
            }
        }
        marks.extend(
            extras
                .of(live)
                .uses
                .iter()
                .map(|used| &used.fence)
                .filter(|mark| !mark.is_done() && !follows(mark.core()))
                .cloned(),
        );
        if planted::is_made(Mistake::FreesReplaceMarks) {
            marks.clear();
        }
        match on {
            None => (self.owner_of(marks), None),
            Some(core) if core.is_per_thread() => {
                let (owner, fence) = self.single(core);
                if planted::is_made(Mistake::ThreadsLeaveNoEvents) {
                    return (Owner::IDLE, Some(fence));
                }
                if marks.is_empty() {
                    return (owner, Some(fence));
                }
                marks.push(fence.clone());
                (self.owner_of(marks), Some(fence))
            }
            Some(core) => {
                let place = self.place(core);
                let epoch = self.epoch(place);
                if marks.is_empty() {
                    return (epoch, None);
                }
                marks.extend(
                    self.entry(epoch.id)
                        .map(|entry| entry.marks.clone())
                        .unwrap_or_default(),
                );
                (self.owner_of(marks), None)
            }
        }
    }

    /// A live block was made of memory of this owner.
    #[inline]
    pub fn hold(&mut self, id: OwnerId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.holders = entry.holders.saturating_add(1);
        }
    }

    /// A live block refers to this owner no longer.
    #[inline(always)]
    pub fn release(&mut self, id: OwnerId, space: &Space<Live>) {
        if let Some(entry) = self.entry_mut(id) {
            entry.holders = entry.holders.saturating_sub(1);
            if entry.holders == 0 && space.spans_of(id) == 0 {
                self.recycle(id, space);
            }
        }
    }

    /// Forgets an owner that nothing refers to any more.
    #[cold]
    fn recycle(&mut self, id: OwnerId, space: &Space<Live>) {
        let Some(entry) = self.entry(id) else { return };
        if entry.holders > 0 || space.spans_of(id) > 0 {
            return;
        }
        // The open epoch of a stream in use stays: its next free would only make it again. So does one that others' marks
        // contain: the stream may have ended, but its blocks are still freed in its order, and join the epoch by this number.
        if let [mark] = entry.marks.as_slice()
            && self.is_epoch(mark)
            && (!mark.core().is_retired() || self.is_shared(mark))
        {
            return;
        }
        let Some(entry) = self.entries.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        let key = Key::of(&entry.marks);
        if self.by_marks.get(&key) == Some(&id) {
            self.by_marks.remove(&key);
        }
        for mark in &entry.marks {
            let Some(watch) = self.watches.get_mut(&mark.uid) else {
                continue;
            };
            if watch.owner != id {
                watch.others.retain(|owner| *owner != id);
            } else if watch.others.is_empty() {
                self.watches.remove(&mark.uid);
                self.forget(mark);
            } else {
                watch.owner = watch.others.remove(0);
            }
        }
        self.vacant.push(id.0);
    }

    /// Whether several owners wait for the fence.
    fn is_shared(&self, fence: &Fence) -> bool {
        (self.watches.get(&fence.uid)).is_some_and(|watch| !watch.others.is_empty())
    }

    /// Nobody waits for the fence any more, which is watched no longer.
    fn forget(&mut self, fence: &Fence) {
        let uid = fence.core().uid;
        if let Some(queue) = self.queues.get_mut(&uid) {
            queue.remove(&(fence.begun(), fence.uid));
            if queue.is_empty() {
                self.queues.remove(&uid);
            }
        }
        self.detach(fence);
        if let Some(slot) = self.slot_of_mut(fence.core()) {
            let before = slot.wanted.len();
            slot.wanted.retain(|wanted| wanted.uid != fence.uid);
            let gone = before - slot.wanted.len();
            self.wanted = self.wanted.saturating_sub(gone);
            self.tell();
        }
    }

    /// A request of `by` (a stream's uid) found nothing: all other open epochs end here. Each is either known to be
    /// complete soon, because its stream turns out to be idle, or its stream records the event at its next call.
    pub fn end_epochs(&mut self, by: Option<u64>) -> Vec<Arc<Fence>> {
        let mut ended = Vec::new();
        let mut wanted = 0;
        for slot in self.slots.iter_mut().flatten() {
            if Some(slot.core.uid) == by {
                wanted += slot.wanted.len();
                continue;
            }
            if let Some((fence, _)) = slot.epoch.take() {
                slot.wanted.push(fence);
            }
            slot.wanted.retain(|fence| !fence.is_closed());
            ended.extend(slot.wanted.iter().cloned());
            wanted += slot.wanted.len();
        }
        self.wanted = wanted;
        self.tell();
        ended
    }

    /// Ends the open epoch of one stream; it, and those of the stream's that ended before and have no event yet.
    pub fn end_epoch_of(&mut self, core: &StreamCore) -> Vec<Arc<Fence>> {
        let Some(slot) = self.slot_of_mut(core) else {
            return Vec::new();
        };
        let mut added = 0;
        if let Some((fence, _)) = slot.epoch.take() {
            slot.wanted.push(fence);
            added = 1;
        }
        let ended = slot.wanted.clone();
        self.wanted = self.wanted.saturating_add(added);
        self.tell();
        ended
    }

    /// The epochs whose event the stream should record now, since others have asked for their memory.
    pub fn epochs_to_close(&mut self, core: &StreamCore) -> Vec<Arc<Fence>> {
        match self.slot_of_mut(core) {
            Some(slot) if !slot.wanted.is_empty() => {
                let wanted = std::mem::take(&mut slot.wanted);
                self.wanted = self.wanted.saturating_sub(wanted.len());
                self.tell();
                wanted
            }
            _ => Vec::new(),
        }
    }

    /// Detaches an epoch from its stream before somebody closes it: no later free may join.
    fn detach(&mut self, fence: &Fence) {
        if let Some(slot) = self.slot_of_mut(fence.core())
            && slot
                .epoch
                .as_ref()
                .is_some_and(|(epoch, _)| epoch.uid == fence.uid)
        {
            slot.epoch = None;
        }
    }

    /// All marks of these owners that are not complete and not on the stream `besides`, ready to be waited for.
    pub fn marks_of(
        &mut self,
        owners: impl Iterator<Item = OwnerId>,
        besides: Option<&Arc<StreamCore>>,
    ) -> Vec<Arc<Fence>> {
        let mut marks: Vec<Arc<Fence>> = owners
            .filter_map(|id| self.entry(id))
            .flat_map(|entry| entry.marks.iter())
            .filter(|mark| {
                !mark.is_done() && !besides.is_some_and(|core| core.is_same(mark.core()))
            })
            .cloned()
            .collect();
        marks.sort_unstable_by_key(|mark| mark.uid);
        marks.dedup_by_key(|mark| mark.uid);
        if !planted::is_made(Mistake::EpochsGoOn) {
            for mark in &marks {
                self.detach(mark);
            }
        }
        marks
    }

    /// Whether any of these owners has a mark, complete or not, of another stream than `by`.
    pub fn has_marks_of_others(&self, owners: &[OwnerId], by: Option<&Arc<StreamCore>>) -> bool {
        let entries = owners.iter().filter_map(|id| self.entry(*id));
        let mut marks = entries.flat_map(|entry| &entry.marks);
        marks.any(|mark| !by.is_some_and(|core| core.is_same(mark.core())))
    }

    /// How costly it is to wait for an owner: streams to wait for, open epochs counting more. `None`: no proof of
    /// completion will come.
    pub fn rank(&self, id: OwnerId, by: Option<&Arc<StreamCore>>) -> Option<u32> {
        let Some(entry) = self.entry(id) else {
            return Some(0);
        };
        let mut rank = 0u32;
        for mark in entry.marks.iter().filter(|mark| !mark.is_done()) {
            if by.is_some_and(|core| core.is_same(mark.core())) {
                continue;
            }
            if mark.is_lost() {
                return None;
            }
            rank = rank.saturating_add(if mark.is_closed() || mark.core().is_retired() {
                1
            } else {
                1000
            });
        }
        Some(rank)
    }

    /// The streams that an owner waits for, by uid, in order. `None`: no proof of completion will come.
    pub fn streams_of(&self, ids: &[OwnerId]) -> Option<Vec<u64>> {
        let marks = || {
            (ids.iter())
                .filter_map(|id| self.entry(*id))
                .flat_map(|entry| &entry.marks)
        };
        let pending = || marks().filter(|mark| !mark.is_done());
        if pending().any(|mark| mark.is_lost()) {
            return None;
        }
        let mut streams: Vec<u64> = pending().map(|mark| mark.core().uid).collect();
        streams.sort_unstable();
        streams.dedup();
        Some(streams)
    }

    /// The streams whose work the spans of an owner wait for, by the driver's id, in order.
    pub fn streams_awaited(&self, id: OwnerId) -> Vec<u64> {
        let marks = self.entry(id).into_iter().flat_map(|entry| &entry.marks);
        let pending = marks.filter(|mark| !mark.is_done());
        let mut streams: Vec<u64> = pending.map(|mark| mark.core().id()).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Whether [`Order::candidates`] has any, or spans of completed owners are still to be made idle.
    pub fn has_candidates(&self) -> bool {
        let has_ended = |slot: &Slot| {
            (slot.epoch.is_some() || !slot.wanted.is_empty()) && slot.core.is_retired()
        };
        !self.queues.is_empty()
            || !self.settling.is_empty()
            || self.slots.iter().flatten().any(has_ended)
    }

    /// Fences worth asking about: per stream the oldest closed ones, and the open epochs of streams that have ended.
    pub fn candidates(&mut self, all: bool) -> Vec<Vec<Arc<Fence>>> {
        let ended: Vec<Arc<Fence>> = self
            .slots
            .iter_mut()
            .flatten()
            .filter(|slot| slot.core.is_retired())
            .flat_map(|slot| {
                slot.epoch
                    .take()
                    .map(|(fence, _)| fence)
                    .into_iter()
                    .chain(slot.wanted.drain(..))
            })
            .collect();
        // Those that were wanted are among them.
        self.wanted = (self.slots.iter().flatten()).fold(0, |sum, slot| sum + slot.wanted.len());
        for fence in &ended {
            self.enqueue(fence);
        }
        let limit = if all { usize::MAX } else { QUERIES_PER_STREAM };
        self.queues
            .values()
            .map(|queue| queue.values().take(limit).cloned().collect())
            .collect()
    }

    /// Whether somebody waits for a fence of this kind.
    pub fn any_mark(&self, mut is: impl FnMut(&Fence) -> bool) -> bool {
        self.watches.values().any(|watch| is(&watch.fence))
    }

    /// Every fence that somebody waits for, open epochs included; for `shutdown`.
    pub fn all_marks(&mut self) -> Vec<Arc<Fence>> {
        let marks: Vec<Arc<Fence>> = self
            .watches
            .values()
            .map(|watch| watch.fence.clone())
            .collect();
        for mark in &marks {
            self.detach(mark);
        }
        marks
    }

    /// Notes fences that have completed; their owners' spans become idle, up to `budget` of them now.
    pub fn complete<'a>(
        &mut self,
        fences: impl IntoIterator<Item = &'a Arc<Fence>>,
        space: &mut Space<Live>,
        budget: usize,
    ) {
        for fence in fences {
            let Some(watch) = self.watches.remove(&fence.uid) else {
                continue;
            };
            self.forget(fence);
            for id in watch.owners() {
                let Some(entry) = self.entry_mut(id) else {
                    continue;
                };
                entry.pending = entry.pending.saturating_sub(1);
                if entry.pending == 0 || entry.only_stream().is_some() {
                    self.settling.push_back(id);
                }
            }
        }
        self.settle(space, budget);
    }

    /// Goes on making the spans of completed owners idle.
    pub fn settle(&mut self, space: &mut Space<Live>, mut budget: usize) {
        while budget > 0 {
            let Some(id) = self.settling.front().copied() else {
                return;
            };
            // A number that was recycled meanwhile belongs to somebody else.
            let target = if self.is_complete(id) {
                None
            } else if let Some(entry) = self.entry(id).filter(|_| space.spans_of(id) > 0)
                && entry.only_stream().is_some()
            {
                // What remains lies on one stream, which may have the memory at once.
                Some(self.owner_of(entry.marks.clone()))
            } else {
                self.settling.pop_front();
                continue;
            };
            let before = space.spans_of(id);
            let finished = match target {
                None => space.settle(id, budget),
                // An error (ids that contradict each other) leaves the spans as they are.
                Some(target) => space.rename(id, target, budget).unwrap_or(true),
            };
            budget = budget.saturating_sub(before.saturating_sub(space.spans_of(id)).max(1));
            if finished {
                self.settling.pop_front();
                self.recycle(id, space);
            }
        }
    }

    /// What says [`Order::is_restless`] without the lock.
    pub fn restless(&self) -> Arc<AtomicBool> {
        self.restless.clone()
    }

    /// Tells those who do not have the lock.
    fn tell(&self) {
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

    /// Verifies what this module keeps against the spans.
    pub fn check(&self, space: &Space<Live>, extras: &Extras) -> Result<(), String> {
        for (place, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let named = space
                .live_blocks()
                .filter(|live| live.data.stream() == Some(Place(place as u32)))
                .count();
            if let Some((fence, id)) = &slot.epoch
                && !self
                    .entry(*id)
                    .is_some_and(|entry| matches!(&*entry.marks, [mark] if mark.uid == fence.uid))
            {
                return Err(format!("the open epoch of {:?} has no owner", slot.core));
            }
            if named != slot.blocks || self.places.get(&slot.core.uid) != Some(&(place as u32)) {
                return Err(format!(
                    "{:?} at {place} counts {} blocks, {named} name it",
                    slot.core, slot.blocks
                ));
            }
        }
        let wanted: usize = (self.slots.iter().flatten())
            .map(|slot| slot.wanted.len())
            .sum();
        if wanted != self.wanted {
            return Err(format!(
                "{wanted} fences are wanted, {} are counted",
                self.wanted
            ));
        }
        for id in space.owners_with_spans() {
            if id != OwnerId::IDLE && self.entry(id).is_none() {
                return Err(format!("spans have the owner {}, which is gone", id.0));
            }
        }
        for (number, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            let id = OwnerId(number as u32);
            let holders = space
                .live_blocks()
                .filter(|live| extras.inherited(live.data).any(|owner| owner == id))
                .count();
            if holders != entry.holders as usize {
                return Err(format!(
                    "owner {number} has {} holders, {holders} blocks name it",
                    entry.holders
                ));
            }
            if let Some(class) = space.class_of(id)
                && space.spans_of(id) > 0
                && class != entry.class
            {
                return Err(format!(
                    "owner {number} has class {:?}, its spans {class:?}",
                    entry.class
                ));
            }
            if entry.pending > 0
                && !entry
                    .marks
                    .iter()
                    .any(|mark| self.watches.contains_key(&mark.uid))
            {
                return Err(format!(
                    "owner {number} waits for marks that nobody watches"
                ));
            }
        }
        for (uid, watch) in &self.watches {
            if watch.owners().any(|owner| self.entry(owner).is_none()) {
                return Err(format!("mark {uid} is watched for an owner that is gone"));
            }
        }
        Ok(())
    }
}
