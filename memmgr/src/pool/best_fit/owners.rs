//! The records of owners and classes: who has how many spans, and where they are found.
//!
//! Ids come from outside and may be any number; inside, a record is known by its place in a table, so that a
//! merge or a split looks nothing up. Records stay when their last span goes, because the next free of the
//! same stream needs them again; they are few, since the order layer recycles its ids.

use rustc_hash::FxHashMap;

use super::blocks::Slot;
use super::index::Index;
use super::{ClassId, Owner, OwnerError, OwnerId};

/// The place of an owner's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OwnerSlot(u32);

impl OwnerSlot {
    /// The idle owner's record, which is always there.
    pub const IDLE: Self = Self(0);

    /// The place as an index.
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

/// The place of a class's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClassSlot(u32);

impl ClassSlot {
    /// The idle class's record, which is always there.
    pub const IDLE: Self = Self(0);
}

/// What is known of an owner.
#[derive(Debug)]
pub(super) struct OwnerRecord {
    /// Its id.
    pub id: OwnerId,
    /// The class of its spans.
    pub class: ClassSlot,
    /// The number of its spans.
    pub spans: usize,
    /// The bytes of its spans together.
    pub bytes: usize,
    /// Its spans. Empty for the idle owner, whose spans are those of the idle class.
    pub list: Vec<Slot>,
}

impl OwnerRecord {
    const fn new(id: OwnerId, class: ClassSlot) -> Self {
        Self {
            id,
            class,
            spans: 0,
            bytes: 0,
            list: Vec::new(),
        }
    }
}

/// What is known of a class.
#[derive(Debug)]
pub(super) struct ClassRecord {
    /// Its id.
    pub id: ClassId,
    /// Its spans by length and address.
    pub index: Index,
    /// Those of its spans that have a seam.
    pub seams: Vec<Slot>,
}

impl ClassRecord {
    fn new(id: ClassId) -> Self {
        Self {
            id,
            index: Index::new(),
            seams: Vec::new(),
        }
    }
}

/// Ids below this are looked up in a table, which is what the order layer's small numbers need.
const DENSE: usize = 1 << 16;
/// No record in the table.
const UNKNOWN: u32 = u32::MAX;

/// From ids to the places of their records.
#[derive(Debug, Default)]
struct Places {
    dense: Vec<u32>,
    sparse: FxHashMap<u32, u32>,
}

impl Places {
    #[inline]
    fn get(&self, id: u32) -> Option<u32> {
        match self.dense.get(id as usize) {
            Some(place) => (*place != UNKNOWN).then_some(*place),
            None if (id as usize) < DENSE => None,
            None => self.sparse.get(&id).copied(),
        }
    }

    fn insert(&mut self, id: u32, place: u32) {
        let index = id as usize;
        if index >= DENSE {
            self.sparse.insert(id, place);
            return;
        }
        if index >= self.dense.len() {
            self.dense.resize(index + 1, UNKNOWN);
        }
        if let Some(known) = self.dense.get_mut(index) {
            *known = place;
        }
    }
}

/// All owners and classes.
#[derive(Debug)]
pub(super) struct Owners {
    owners: Vec<OwnerRecord>,
    classes: Vec<ClassRecord>,
    owner_places: Places,
    class_places: Places,
}

impl Owners {
    /// The idle owner and the idle class.
    pub fn new() -> Self {
        Self {
            owners: vec![OwnerRecord::new(OwnerId::IDLE, ClassSlot::IDLE)],
            classes: vec![ClassRecord::new(ClassId::IDLE)],
            owner_places: Places::default(),
            class_places: Places::default(),
        }
    }

    /// The record of an owner.
    #[inline]
    pub fn owner(&self, slot: OwnerSlot) -> Option<&OwnerRecord> {
        self.owners.get(slot.place())
    }

    /// The record of an owner, to be changed.
    #[inline]
    pub fn owner_mut(&mut self, slot: OwnerSlot) -> Option<&mut OwnerRecord> {
        self.owners.get_mut(slot.place())
    }

    /// The record of a class.
    #[inline]
    pub fn class(&self, slot: ClassSlot) -> Option<&ClassRecord> {
        self.classes.get(slot.0 as usize)
    }

    /// The record of a class, to be changed.
    #[inline]
    pub fn class_mut(&mut self, slot: ClassSlot) -> Option<&mut ClassRecord> {
        self.classes.get_mut(slot.0 as usize)
    }

    /// The class of an owner's spans.
    #[inline]
    pub fn class_of(&self, slot: OwnerSlot) -> ClassSlot {
        match self.owner(slot) {
            Some(owner) => owner.class,
            None => {
                debug_assert!(false, "no owner has this slot");
                ClassSlot::IDLE
            }
        }
    }

    /// The id of an owner.
    #[inline]
    pub fn id(&self, slot: OwnerSlot) -> OwnerId {
        self.owner(slot).map_or(OwnerId::IDLE, |owner| owner.id)
    }

    /// Id and class of an owner.
    pub fn identity(&self, slot: OwnerSlot) -> Owner {
        match self.owner(slot) {
            Some(owner) => {
                let class = self
                    .class(owner.class)
                    .map_or(ClassId::IDLE, |class| class.id);
                Owner {
                    id: owner.id,
                    class,
                }
            }
            None => {
                debug_assert!(false, "no owner has this slot");
                Owner::IDLE
            }
        }
    }

    /// The owner with this id, if it was ever seen.
    #[inline]
    pub fn find(&self, id: OwnerId) -> Option<OwnerSlot> {
        if id == OwnerId::IDLE {
            return Some(OwnerSlot::IDLE);
        }
        self.owner_places.get(id.0).map(OwnerSlot)
    }

    /// The class with this id, if it was ever seen.
    #[inline]
    pub fn find_class(&self, id: ClassId) -> Option<ClassSlot> {
        if id == ClassId::IDLE {
            return Some(ClassSlot::IDLE);
        }
        self.class_places.get(id.0).map(ClassSlot)
    }

    /// The record for this owner, made if there is none. Without spans the owner takes the class given; with
    /// spans it must have that class.
    pub fn admit(&mut self, owner: Owner) -> Result<OwnerSlot, OwnerError> {
        if !owner.is_sound() {
            return Err(OwnerError::Idle);
        }
        if owner == Owner::IDLE {
            return Ok(OwnerSlot::IDLE);
        }
        if let Some(slot) = self.find(owner.id) {
            let known = self.identity(slot).class;
            if known == owner.class {
                return Ok(slot);
            }
            if self.owner(slot).is_some_and(|record| record.spans > 0) {
                return Err(OwnerError::Class { known });
            }
            let class = self.admit_class(owner.class);
            if let Some(record) = self.owner_mut(slot) {
                record.class = class;
            }
            return Ok(slot);
        }
        let class = self.admit_class(owner.class);
        let slot = OwnerSlot(u32::try_from(self.owners.len()).unwrap_or(u32::MAX));
        self.owners.push(OwnerRecord::new(owner.id, class));
        self.owner_places.insert(owner.id.0, slot.0);
        Ok(slot)
    }

    /// The record for this class, made if there is none.
    pub fn admit_class(&mut self, id: ClassId) -> ClassSlot {
        if let Some(slot) = self.find_class(id) {
            return slot;
        }
        let slot = ClassSlot(u32::try_from(self.classes.len()).unwrap_or(u32::MAX));
        self.classes.push(ClassRecord::new(id));
        self.class_places.insert(id.0, slot.0);
        slot
    }

    /// The bytes of the spans of a class together.
    pub fn bytes_of_class(&self, slot: ClassSlot) -> usize {
        self.owners
            .iter()
            .filter(|owner| owner.class == slot)
            .fold(0usize, |sum, owner| sum.saturating_add(owner.bytes))
    }

    /// All owners with their slots.
    pub fn owners(&self) -> impl Iterator<Item = (OwnerSlot, &OwnerRecord)> {
        (0..).map(OwnerSlot).zip(&self.owners)
    }

    /// All classes with their slots.
    pub fn classes(&self) -> impl Iterator<Item = (ClassSlot, &ClassRecord)> {
        (0..).map(ClassSlot).zip(&self.classes)
    }
}
