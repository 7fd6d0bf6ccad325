//! All blocks of a segment, as a snapshot sees them.

use super::{OwnerId, Slot, Space, blocks::Body};

/// What a block is.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a, T> {
    /// It is live, and carries this.
    Live(&'a T),
    /// It is free, with this owner.
    Free(OwnerId),
    /// No memory is there.
    Gap,
}

impl<T: Default> Space<T> {
    /// Address, length and state of each block of the segment at `base`, by ascending address; none if no segment starts there.
    pub fn walk(&self, base: usize) -> impl Iterator<Item = (usize, usize, Seen<'_, T>)> {
        let segment = self.segments.get(&base);
        let first = segment.map_or(Slot::NONE, |segment| segment.first);
        self.blocks.following(first).map(|slot| {
            let block = self.blocks.at(slot);
            let seen = match &block.body {
                Body::Live(data) => Seen::Live(data),
                Body::Free(span) => Seen::Free(span.owner),
                Body::Gap | Body::Vacant => Seen::Gap,
            };
            (block.addr, block.len, seen)
        })
    }
}
