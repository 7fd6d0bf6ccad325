//! Marks and epochs: who may reuse free memory, and when.
//!
//! A free span carries an owner: a set of marks, each a [`Fence`] (a point in a stream's order). Usually that is one
//! mark, the *epoch* of the stream that freed it: a run of frees that share one event. An epoch stays open, and costs no
//! CUDA call, until somebody else wants its memory. Whoever takes a span keeps its marks with the block until they are
//! known to be complete; a later free adds to them and never replaces them, unless the freeing stream is known to follow
//! them.
//!
//! This module makes no CUDA call: it hands out fences that its caller closes, queries and waits for, outside its lock.

mod check;
mod completion;
mod epochs;
mod marks;
mod streams;

pub(crate) use marks::add_follower;
pub(crate) use streams::Ready;

use self::{marks::drop_covered, streams::Slot};
use super::{
    best_fit::{ClassId, Owner, OwnerId, Space},
    live::{Extras, Live},
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

    /// Whether everything that the owner stands for is known to be complete.
    pub fn is_complete(&self, id: OwnerId) -> bool {
        id == OwnerId::IDLE || self.entry(id).is_none_or(|entry| entry.pending == 0)
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
}
