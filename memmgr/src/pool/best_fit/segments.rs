//! Segments: memory that comes and goes as a whole.

#[cfg(test)]
use super::Owner;
use super::blocks::{Datum, Slot};
use super::space::{Segment, Space};
use super::{GRANULE, OwnerId, RemoveError, SegmentError, SegmentInfo};

impl<T: Datum> Space<T> {
    /// Adds the segment of `len` bytes at `base`, as one idle span.
    pub fn add_segment(&mut self, base: usize, len: usize) -> Result<(), SegmentError> {
        if base == 0 {
            return Err(SegmentError::Null);
        }
        if len == 0 {
            return Err(SegmentError::Empty);
        }
        if !base.is_multiple_of(GRANULE) || !len.is_multiple_of(GRANULE) {
            return Err(SegmentError::Misaligned);
        }
        let end = base.checked_add(len).ok_or(SegmentError::Overflow)?;
        let reserved = self
            .reserved
            .checked_add(len)
            .ok_or(SegmentError::Overflow)?;
        if let Some((&other, segment)) = self.segments.range(..end).next_back()
            && other.saturating_add(segment.len) > base
        {
            return Err(SegmentError::Overlap {
                base: other,
                len: segment.len,
            });
        }
        let first = self.blocks.insert_after(Slot::NONE, base, len);
        if first.is_none() {
            return Err(SegmentError::Full);
        }
        self.segments.insert(base, Segment { len, first });
        self.starts.add_segment(base, len);
        self.starts.add(&self.blocks, first, base);
        self.reserved = reserved;
        self.attach(first, OwnerId::IDLE);
        Ok(())
    }

    /// Removes the segment at `base`, which must be one idle span, and returns its length.
    pub fn remove_segment(&mut self, base: usize) -> Result<usize, RemoveError> {
        let segment = *self.segments.get(&base).ok_or(RemoveError::Unknown)?;
        if !self.is_wholly_idle(segment) {
            return Err(RemoveError::Busy);
        }
        self.detach(segment.first);
        self.blocks.remove(segment.first);
        self.segments.remove(&base);
        self.starts.remove_segment(base);
        self.reserved = self.reserved.saturating_sub(segment.len);
        Ok(segment.len)
    }

    /// The segments by ascending base.
    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> + '_ {
        self.segments
            .iter()
            .map(|(base, segment)| self.segment_info(*base, *segment))
    }

    /// The segment in which an address lies.
    pub fn segment_of(&self, addr: usize) -> Option<SegmentInfo> {
        let (&base, &segment) = self.segments.range(..=addr).next_back()?;
        (addr < base.saturating_add(segment.len)).then(|| self.segment_info(base, segment))
    }

    /// The blocks of the segment at `base` by ascending address; none if no segment starts there.
    #[cfg(test)]
    pub fn blocks_of(&self, base: usize) -> impl Iterator<Item = super::BlockInfo> + '_ {
        let first = self
            .segments
            .get(&base)
            .map_or(Slot::NONE, |segment| segment.first);
        self.blocks.following(first).map(|slot| {
            let block = self.blocks.at(slot);
            let state = match self.blocks.owner(slot) {
                Some(owner) => {
                    super::BlockState::Free(Owner::new(owner, self.owners.class_of(owner)))
                }
                None if block.is_gap() => super::BlockState::Gap,
                None => super::BlockState::Live,
            };
            super::BlockInfo {
                addr: block.addr(),
                len: block.len(),
                state,
            }
        })
    }

    fn segment_info(&self, base: usize, segment: Segment) -> SegmentInfo {
        SegmentInfo {
            base,
            len: segment.len,
            wholly_idle: self.is_wholly_idle(segment),
        }
    }

    fn is_wholly_idle(&self, segment: Segment) -> bool {
        self.blocks.owner(segment.first) == Some(OwnerId::IDLE)
            && self.blocks.at(segment.first).len() == segment.len
    }

    /// Whether any block of a segment is live.
    pub fn has_live_blocks(&self, segment: SegmentInfo) -> bool {
        self.segments.get(&segment.base).is_some_and(|segment| {
            self.blocks
                .following(segment.first)
                .any(|slot| self.blocks.at(slot).is_live())
        })
    }
}
