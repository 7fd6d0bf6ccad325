//! All blocks of a segment, as a snapshot sees them.

use super::{Datum, OwnerId, Slot, Space};

/// What a block is.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a, T> {
    /// It is live, carries this, and so many bytes of it were asked for.
    Live(&'a T, usize),
    /// It is free, with this owner.
    Free(OwnerId),
    /// No memory is there.
    Gap,
}

impl<T: Datum> Space<T> {
    /// Address, length and state of each block of the segment at `base`, by ascending address; none if no segment starts there.
    pub fn walk(&self, base: usize) -> impl Iterator<Item = (usize, usize, Seen<'_, T>)> {
        let segment = self.segments.get(&base);
        let first = segment.map_or(Slot::NONE, |segment| segment.first);
        self.blocks.following(first).map(|slot| {
            let block = self.blocks.at(slot);
            let seen = match (block.data(), block.owner()) {
                (Some(data), _) => Seen::Live(data, block.requested()),
                (None, Some(owner)) => Seen::Free(owner),
                (None, None) => Seen::Gap,
            };
            (block.addr(), block.len(), seen)
        })
    }
}
