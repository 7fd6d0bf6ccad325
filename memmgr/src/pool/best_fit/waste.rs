//! What fragmentation takes, and what keeps whole segments from being idle: walks over all records.

use super::{GRANULE, OwnerId, OwnerList, Space, blocks::Body};

/// What a walk has found; lengths in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waste {
    /// What live blocks have beyond what was asked for.
    pub internal: usize,
    /// All idle spans that are shorter than the length asked about, together.
    pub external: usize,
}

impl<T: Default> Space<T> {
    /// What live blocks have beyond what was asked for, and what of the idle memory lies in spans shorter than `len`. `asked`
    /// says what was asked for of a live block. Looks at every block.
    pub fn waste(&self, len: usize, asked: impl Fn(&T) -> usize) -> Waste {
        let mut waste = Waste::default();
        for block in self.blocks.records() {
            match &block.body {
                Body::Live(data) => {
                    // What rounding adds is less than a granule: a datum that says otherwise is in between.
                    let more = block.len.saturating_sub(asked(data)).min(GRANULE - 1);
                    waste.internal = waste.internal.saturating_add(more);
                }
                Body::Free(span) if span.owner == OwnerId::IDLE && block.len < len => {
                    waste.external = waste.external.saturating_add(block.len);
                }
                Body::Free(_) | Body::Vacant | Body::Gap => {}
            }
        }
        waste
    }
    /// The segments without a live block in which not everything is idle: their lengths, and who must have finished.
    pub fn unsettled(&self) -> Vec<(usize, OwnerList)> {
        let owners = |segment: &super::space::Segment| {
            let mut owners = OwnerList::default();
            for slot in self.blocks.following(segment.first) {
                owners.add(self.blocks.owner(slot)?);
            }
            let owners = owners.finish();
            (!owners.is_empty()).then_some((segment.len, owners))
        };
        self.segments.values().filter_map(owners).collect()
    }

    /// What each owner has that is not idle, in bytes.
    pub fn owned(&self) -> Vec<(usize, OwnerList)> {
        let owners = self.owners.owners();
        let owned = owners.filter(|(id, owner)| *id != OwnerId::IDLE && owner.bytes > 0);
        owned
            .map(|(id, owner)| (owner.bytes, OwnerList::of(id)))
            .collect()
    }
}
