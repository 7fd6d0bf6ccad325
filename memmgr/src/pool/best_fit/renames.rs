//! Spans that change their owner: one becomes idle when the work that used them is done, or another stream's.

use super::blocks::{Blocks, Datum, UNLISTED};
use super::index::Entry;
use super::owners::ClassRecord;
use super::space::Space;
use super::{ClassId, Owner, OwnerError, OwnerId};

impl<T: Datum> Space<T> {
    /// Makes up to `budget` spans of an owner idle. True when none is left.
    pub fn settle(&mut self, owner: OwnerId, budget: usize) -> bool {
        owner == OwnerId::IDLE || self.rename(owner, Owner::IDLE, budget) == Ok(true)
    }

    /// Gives up to `budget` spans of the owner `from` to the owner `to`. True when none is left. The idle owner
    /// gives no spans away.
    pub fn rename(&mut self, from: OwnerId, to: Owner, budget: usize) -> Result<bool, OwnerError> {
        if from == OwnerId::IDLE || !to.is_sound() {
            return Err(OwnerError::Idle);
        }
        if self.spans_of(from) == 0 {
            return Ok(true);
        }
        // A rename to itself must name the class that the spans have, and changes nothing.
        self.owners.admit(to)?;
        if to.id == from {
            return Ok(true);
        }
        if budget >= self.spans_of(from) {
            self.rename_all(from, to);
            return Ok(self.spans_of(from) == 0);
        }
        for _ in 0..budget {
            self.file_recent();
            let Some(first) = self.pop_span(from) else {
                break;
            };
            self.detach(first);
            self.coalesce(first, to);
        }
        Ok(self.spans_of(from) == 0)
    }

    /// Whether all filed spans of an owner's class are its own: then nobody needs its list.
    pub(super) fn has_class_alone(&self, id: OwnerId) -> bool {
        let owner = self.owners.owner(id);
        owner.is_some_and(|owner| {
            let class = self.owners.class(owner.class);
            class.is_some_and(|class| class.index.count() == owner.spans)
        })
    }

    /// Gives all spans of the owner `from` to another, `to`, which is known. No span is the recent one meanwhile, so that the lists and
    /// the indexes know all of them.
    fn rename_all(&mut self, from: OwnerId, to: Owner) {
        self.file_recent();
        self.make_list(from);
        let class = self.owners.class_of(from);
        let is_filed = !self.unfile_all(from, class);
        let Some(record) = self.owners.owner_mut(from) else {
            return;
        };
        let mut list = std::mem::take(&mut record.list);
        for slot in list.drain(..) {
            if self.blocks.listed(slot) != from.0 {
                continue;
            }
            self.blocks.set_listed(slot, UNLISTED);
            if self.blocks.owner(slot) != Some(from) {
                continue;
            }
            let entry = Entry::of(&self.blocks, slot);
            if is_filed {
                self.unfile(entry, class);
            }
            if let Some(record) = self.owners.owner_mut(from) {
                record.spans = record.spans.wrapping_sub(1);
                record.bytes = record.bytes.wrapping_sub(entry.len);
            }
            self.hand_over(entry, to);
        }
        // It keeps its room.
        if let Some(record) = self.owners.owner_mut(from) {
            record.list = list;
        }
    }

    /// Makes a free span that is in no index, nor the recent one, another owner's, and one with those of its neighbours that are the
    /// same owner's, of which none is the recent one either. Where both are free the seams between them are noted already, and a
    /// seam that a span has stays noted when the span grows at its end.
    fn hand_over(&mut self, entry: Entry, to: Owner) {
        let Entry { len, slot, .. } = entry;
        let Owner { id, class } = to;
        self.frees = self.frees.wrapping_add(1);
        self.blocks.at_mut(slot).make_free(len, id);
        let block = self.blocks.at(slot);
        let (prev, next) = (block.prev, block.next);
        let joins = |blocks: &Blocks<T>, other| blocks.owner(other) == Some(id);
        let (joins_prev, joins_next) = (joins(&self.blocks, prev), joins(&self.blocks, next));
        if !joins_prev {
            self.note_owner(slot, id);
        }
        let (blocks, nodes) = (&mut self.blocks, &mut self.nodes);
        let Some(ClassRecord { index }) = self.owners.class_mut(class) else {
            debug_assert!(false, "no class has this id");
            return;
        };
        // What grows changes its place in the index, while the blocks are still what the index knows.
        let mut grown = entry;
        if joins_next {
            grown.len = len.wrapping_add(blocks.at(next).len());
        }
        if joins_prev {
            let before = Entry::of(blocks, prev);
            if joins_next {
                index.remove(nodes, blocks, Entry::of(blocks, next));
            }
            let after = Entry {
                len: before.len.wrapping_add(grown.len),
                ..before
            };
            index.replace(nodes, blocks, before, after);
        } else if joins_next {
            let behind = Entry::of(blocks, next);
            index.replace(nodes, blocks, behind, grown);
        } else {
            index.insert(nodes, blocks, entry);
        }
        let spans = 1 - isize::from(joins_next) - isize::from(joins_prev);
        if let Some(record) = self.owners.owner_mut(id) {
            record.spans = record.spans.wrapping_add_signed(spans);
            record.bytes = record.bytes.wrapping_add(len);
        }
        if joins_next {
            self.join(slot, next);
        }
        if joins_prev {
            self.join(prev, slot);
        }
    }

    /// Takes all spans of an owner out of their index at once, if no others are in it and that is quick. They are still free, and
    /// counted.
    fn unfile_all(&mut self, owner: OwnerId, class: ClassId) -> bool {
        self.has_class_alone(owner)
            && (self.owners.class_mut(class)).is_some_and(|class| class.index.clear())
    }
}
