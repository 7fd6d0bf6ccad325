//! The invariants of the books of order.

use super::Order;
use crate::pool::{
    best_fit::{OwnerId, Space},
    live::{Extras, Live, Place},
};

impl Order {
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
