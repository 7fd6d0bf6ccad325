//! The records of owners and classes: who has how many spans, and where they are found.
//!
//! The ids are small numbers, which the order layer recycles, and each is the place of its record. Records stay when their
//! last span goes, because the next free of the same stream needs them again.

use super::blocks::Slot;
use super::index::Index;
use super::{ClassId, Owner, OwnerError, OwnerId};

/// Ids above this are refused, as a table up to them would be too long.
const MOST: u32 = 1 << 24;

/// What is known of an owner.
#[derive(Debug)]
pub(super) struct OwnerRecord {
    /// The class of its spans.
    pub class: ClassId,
    /// The number of its spans.
    pub spans: usize,
    /// The bytes of its spans together.
    pub bytes: usize,
    /// Its spans, but for the recent one, and slots that were its spans once (see [`Space::file`](super::Space)). Empty for the
    /// idle owner, whose spans are those of the idle class.
    pub list: Vec<Slot>,
    /// Which place of the list is looked at next.
    pub next_look: usize,
    /// How many spans were entered in the list since it was made.
    pub entered: usize,
    /// Whether the list is not kept, but made when somebody wants it.
    pub implied: bool,
}

/// What is known of a class.
#[derive(Debug)]
pub(super) struct ClassRecord {
    /// Its spans by length and address, but for the recent one.
    pub index: Index,
}

/// All owners and classes.
#[derive(Debug)]
pub(super) struct Owners {
    owners: Vec<OwnerRecord>,
    classes: Vec<ClassRecord>,
}

impl Owners {
    /// The idle owner and the idle class.
    pub fn new() -> Self {
        let mut owners = Self {
            owners: Vec::new(),
            classes: Vec::new(),
        };
        owners.add_classes(ClassId::IDLE);
        owners.add_owners(OwnerId::IDLE, ClassId::IDLE);
        owners
    }

    /// The record of an owner, if it was ever seen.
    #[inline]
    pub fn owner(&self, id: OwnerId) -> Option<&OwnerRecord> {
        self.owners.get(id.0 as usize)
    }

    /// The record of an owner, to be changed.
    #[inline]
    pub fn owner_mut(&mut self, id: OwnerId) -> Option<&mut OwnerRecord> {
        self.owners.get_mut(id.0 as usize)
    }

    /// The record of a class, if it was ever seen.
    #[inline]
    pub fn class(&self, id: ClassId) -> Option<&ClassRecord> {
        self.classes.get(id.0 as usize)
    }

    /// The record of a class, to be changed.
    #[inline]
    pub fn class_mut(&mut self, id: ClassId) -> Option<&mut ClassRecord> {
        self.classes.get_mut(id.0 as usize)
    }

    /// The class of an owner's spans.
    #[inline]
    pub fn class_of(&self, id: OwnerId) -> ClassId {
        match self.owner(id) {
            Some(owner) => owner.class,
            None => {
                debug_assert!(false, "no owner has this id");
                ClassId::IDLE
            }
        }
    }

    /// The number of spans that an owner has.
    #[inline]
    pub fn spans_of(&self, id: OwnerId) -> usize {
        self.owner(id).map_or(0, |owner| owner.spans)
    }

    /// Makes sure that there is a record for this owner. Without spans the owner takes the class given; with spans it must
    /// have that class.
    #[inline(always)]
    pub fn admit(&mut self, owner: Owner) -> Result<(), OwnerError> {
        match self.owner(owner.id) {
            Some(record) if record.class == owner.class && owner.is_sound() => Ok(()),
            _ => self.admit_other(owner),
        }
    }

    #[cold]
    fn admit_other(&mut self, owner: Owner) -> Result<(), OwnerError> {
        if !owner.is_sound() {
            return Err(OwnerError::Idle);
        }
        if owner.id.0 > MOST || owner.class.0 > MOST {
            return Err(OwnerError::Large { most: MOST });
        }
        match self.owner(owner.id) {
            Some(record) if record.spans > 0 && record.class != owner.class => {
                return Err(OwnerError::Class {
                    known: record.class,
                });
            }
            _ => {}
        }
        self.add_classes(owner.class);
        self.add_owners(owner.id, owner.class);
        if let Some(record) = self.owner_mut(owner.id) {
            record.class = owner.class;
        }
        Ok(())
    }

    fn add_classes(&mut self, up_to: ClassId) {
        while self.classes.len() <= up_to.0 as usize {
            self.classes.push(ClassRecord {
                index: Index::new(),
            });
        }
    }

    fn add_owners(&mut self, up_to: OwnerId, class: ClassId) {
        while self.owners.len() <= up_to.0 as usize {
            self.owners.push(OwnerRecord {
                class,
                spans: 0,
                bytes: 0,
                list: Vec::new(),
                next_look: 0,
                entered: 0,
                implied: false,
            });
        }
    }

    /// The owners with these classes, a bit for each that has one, and the bytes of all their spans.
    pub fn of_classes(&self, ids: &[ClassId]) -> (u64, usize) {
        let (mut members, mut bytes) = (0, 0usize);
        for (number, owner) in (0..).zip(&self.owners) {
            if ids.contains(&owner.class) {
                members |= 1u64.checked_shl(number).unwrap_or(0);
                bytes = bytes.saturating_add(owner.bytes);
            }
        }
        (members, bytes)
    }

    /// All owners with their ids.
    pub fn owners(&self) -> impl Iterator<Item = (OwnerId, &OwnerRecord)> {
        (0..).map(OwnerId).zip(&self.owners)
    }

    /// All classes with their ids.
    pub fn classes(&self) -> impl Iterator<Item = (ClassId, &ClassRecord)> {
        (0..).map(ClassId).zip(&self.classes)
    }
}
