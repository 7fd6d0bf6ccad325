//! What fragmentation takes, and what keeps whole segments from being idle: walks over all records.

use super::{Datum, OwnerId, OwnerList, Space};

impl<T: Datum> Space<T> {
    /// What of the idle memory lies in spans shorter than `len`, in bytes. Looks at every block.
    pub fn idle_below(&self, len: usize) -> usize {
        let records = self.blocks.records().iter();
        let short =
            records.filter(|block| block.owner() == Some(OwnerId::IDLE) && block.len() < len);
        short.fold(0, |sum, block| sum.saturating_add(block.len()))
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
