//! The invariant walker: looks at everything and says what does not hold.

use super::blocks::{Datum, Slot, State};
use super::index::Entry;
use super::space::{Segment, Space};
use super::{ClassId, GRANULE, OwnerId};

/// Fails with a text unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

pub(super) use ensure;

/// What the walk over all segments has counted.
struct Walk {
    blocks: usize,
    live: usize,
    live_bytes: usize,
    free_bytes: usize,
    /// Their number and their bytes.
    gaps: (usize, usize),
    seams: usize,
    /// Spans and bytes of each owner, by its place.
    owned: Vec<(usize, usize)>,
}

impl<T: Datum> Space<T> {
    /// Verifies every invariant: blocks tile their segment exactly; none is empty; no two neighbouring free
    /// spans have one owner; indexes, chains and figures say what the walk over all blocks finds. The cost
    /// grows with the number of blocks: for tests and for a look at a broken process.
    pub fn check(&self) -> Result<(), String> {
        let mut walk = Walk {
            blocks: 0,
            live: 0,
            live_bytes: 0,
            free_bytes: 0,
            gaps: (0, 0),
            seams: 0,
            owned: vec![(0, 0); self.owners.owners().count()],
        };
        let mut reserved = 0usize;
        let mut behind = 0;
        for (&base, segment) in &self.segments {
            ensure!(
                base >= behind && base > 0,
                "the segment at {base:#x} overlaps the one before it"
            );
            ensure!(
                base.is_multiple_of(GRANULE),
                "the segment at {base:#x} is misaligned"
            );
            ensure!(
                segment.len > 0 && segment.len.is_multiple_of(GRANULE),
                "the segment at {base:#x} has {} bytes",
                segment.len
            );
            behind = base
                .checked_add(segment.len)
                .ok_or("a segment runs past the last address")?;
            reserved = reserved
                .checked_add(segment.len)
                .ok_or("too many bytes are reserved")?;
            self.check_segment(base, segment, &mut walk)?;
        }
        self.check_gaps(walk.gaps)?;
        self.check_recent()?;
        self.check_owners(&walk)?;
        self.check_classes(&walk)?;
        self.check_figures(&walk, reserved)
    }

    fn check_segment(&self, base: usize, segment: &Segment, walk: &mut Walk) -> Result<(), String> {
        let mut expected = base;
        let mut prev = Slot::NONE;
        let mut prev_owner = None;
        for slot in self.blocks.following(segment.first) {
            let block = self.blocks.at(slot);
            let (addr, len) = (block.addr(), block.len());
            ensure!(
                addr == expected,
                "the block at {addr:#x} should start at {expected:#x}"
            );
            ensure!(
                block.prev == prev,
                "the block at {addr:#x} does not know the one before it"
            );
            ensure!(
                len > 0 && block.requested() <= len,
                "the block at {addr:#x} has {len} bytes"
            );
            expected = addr
                .checked_add(len)
                .ok_or("a block runs past the last address")?;
            walk.blocks += 1;
            let owner = self.blocks.owner(slot);
            match block.state() {
                State::Vacant => return Err(format!("the block at {addr:#x} is a vacant record")),
                State::Live => {
                    ensure!(
                        self.find(addr) == Some(slot),
                        "the live block at {addr:#x} is not known as live"
                    );
                    walk.live += 1;
                    walk.live_bytes = walk.live_bytes.saturating_add(len);
                }
                State::Gap => {
                    self.check_gap(prev, slot)?;
                    walk.gaps = (walk.gaps.0 + 1, walk.gaps.1.saturating_add(len));
                }
                State::Free => {
                    let owner = owner.ok_or("a free block has no owner")?;
                    ensure!(
                        self.find(addr).is_none(),
                        "the free span at {addr:#x} is known as live"
                    );
                    ensure!(
                        prev_owner != Some(owner),
                        "the free span at {addr:#x} has the owner of the one before it"
                    );
                    let counts = walk
                        .owned
                        .get_mut(owner.0 as usize)
                        .ok_or("a span has an unknown owner")?;
                    *counts = (counts.0 + 1, counts.1.saturating_add(len));
                    walk.free_bytes = walk.free_bytes.saturating_add(len);
                }
            }
            if owner.is_some() {
                // The recent span may have seams that nobody has noted.
                let pair = [slot, block.next];
                let seam =
                    self.blocks.owner(block.next).is_some() && !pair.contains(&self.recent.slot);
                ensure!(
                    block.seam() || !seam,
                    "the seam behind the span at {addr:#x} is not noted"
                );
                walk.seams += usize::from(block.seam());
            } else {
                walk.seams += usize::from(block.seam());
            }
            if self.starts.are_kept() {
                let inside = addr.saturating_add(len / 2);
                for addr in [addr, inside, block.end().saturating_sub(1)] {
                    ensure!(
                        self.starts.find(&self.blocks, addr) == Some(slot),
                        "the block around {addr:#x} is not found by its page"
                    );
                }
            }
            (prev, prev_owner) = (slot, owner);
        }
        let end = base.saturating_add(segment.len);
        ensure!(
            expected == end,
            "the blocks of the segment at {base:#x} end at {expected:#x}, not at {end:#x}"
        );
        Ok(())
    }

    fn check_recent(&self) -> Result<(), String> {
        let recent = self.recent;
        if recent.slot.is_none() {
            return Ok(());
        }
        let block = self.blocks.at(recent.slot);
        ensure!(
            (block.addr(), block.len()) == (recent.addr, recent.len)
                && block.owner() == Some(recent.owner)
                && self.owners.class_of(recent.owner) == recent.class,
            "{recent:x?} is not what its record says"
        );
        // A seam before it is noted, or it says so; one behind it is another slot's once its front is taken.
        let is_free = |slot| self.blocks.owner(slot).is_some();
        let before = is_free(block.prev) && !self.blocks.at(block.prev).seam();
        ensure!(
            (recent.seams.0 || !before) && (recent.seams.1 || !is_free(block.next)),
            "{recent:x?} does not know of a seam"
        );
        Ok(())
    }

    fn check_owners(&self, walk: &Walk) -> Result<(), String> {
        let recent = self.blocks.owner(self.recent.slot);
        for ((id, owner), counts) in self.owners.owners().zip(&walk.owned) {
            ensure!(
                (owner.spans, owner.bytes) == *counts,
                "owner {id:?} has {counts:?} spans and bytes, its record says {owner:?}"
            );
            let idle = id == OwnerId::IDLE;
            ensure!(
                owner.spans == 0 || idle == (owner.class == ClassId::IDLE),
                "owner {id:?} is half idle"
            );
            let listed = |span: &Slot| {
                self.blocks.owner(*span) == Some(id)
                    && self.blocks.listed(*span) == id.0
                    && *span != self.recent.slot
            };
            let mut listed: Vec<Slot> = owner.list.iter().copied().filter(listed).collect();
            listed.sort_unstable();
            listed.dedup();
            let filed = owner.spans.saturating_sub(usize::from(recent == Some(id)));
            ensure!(
                listed.len() == if idle || owner.implied { 0 } else { filed },
                "the list of owner {id:?} has {} of its {filed} spans",
                listed.len()
            );
            ensure!(
                owner.list.len() <= self.longest_list(),
                "the list of owner {id:?} has {} places",
                owner.list.len()
            );
        }
        Ok(())
    }

    fn check_classes(&self, walk: &Walk) -> Result<(), String> {
        let recent = (!self.recent.slot.is_none()).then_some(self.recent.class);
        for (id, class) in self.owners.classes() {
            let of_class = || self.owners.owners().filter(|(_, owner)| owner.class == id);
            let spans: usize = of_class().map(|(_, owner)| owner.spans).sum();
            let spans = spans.saturating_sub(usize::from(recent == Some(id)));
            ensure!(
                class.index.count() == spans,
                "class {id:?} has {} spans in the index instead of {spans}",
                class.index.count()
            );
            (class.index.check(&self.blocks))
                .map_err(|what| format!("the index of class {id:?}: {what}"))?;
            let mut last: Option<Entry> = None;
            let mut count = 0;
            for entry in class.index.at_least(&self.nodes, &self.blocks, 0) {
                ensure!(
                    last.is_none_or(|last| last < entry),
                    "the index of class {id:?} is out of order"
                );
                // So many different spans of the class are all that it has.
                ensure!(
                    entry == Entry::of(&self.blocks, entry.slot)
                        && entry.slot != self.recent.slot
                        && self
                            .blocks
                            .owner(entry.slot)
                            .is_some_and(|owner| self.owners.class_of(owner) == id),
                    "the index of class {id:?} has {entry:x?}, which is no span of it"
                );
                ensure!(
                    class.index.least() <= entry.len,
                    "the index of class {id:?} has shorter spans than it says"
                );
                ensure!(
                    last.is_some_and(|last| last.len == entry.len)
                        || class.index.exact(&self.nodes, entry.len) == Some(entry.slot),
                    "the index of class {id:?} does not find {entry:x?} by its length"
                );
                last = Some(entry);
                count += 1;
            }
            ensure!(
                count == spans,
                "the index of class {id:?} lists {count} spans instead of {spans}"
            );
            let longest = last.map_or(0, |entry| entry.len);
            ensure!(
                class.index.longest(&self.nodes, &self.blocks) == longest,
                "the longest span of class {id:?} is wrong"
            );
        }
        let noted = self
            .seams
            .iter()
            .filter(|slot| self.blocks.at(**slot).seam());
        let vacant = noted
            .clone()
            .filter(|slot| self.blocks.at(**slot).state() == State::Vacant);
        ensure!(
            noted.clone().count() == self.seams.len()
                && self.seams.len() == walk.seams.saturating_add(vacant.count()),
            "{} spans have a noted seam, {} seams are listed",
            walk.seams,
            self.seams.len()
        );
        Ok(())
    }

    fn check_figures(&self, walk: &Walk, reserved: usize) -> Result<(), String> {
        let reserved = reserved.saturating_sub(walk.gaps.1);
        ensure!(
            self.reserved == reserved,
            "{reserved} bytes are reserved, not {}",
            self.reserved
        );
        ensure!(
            self.in_use == walk.live_bytes,
            "{} bytes are in use, not {}",
            walk.live_bytes,
            self.in_use
        );
        ensure!(
            walk.live_bytes.checked_add(walk.free_bytes) == Some(reserved),
            "used and free bytes are not the reserved bytes"
        );
        ensure!(
            self.live.len() == walk.live,
            "{} blocks are live, not {}",
            walk.live,
            self.live.len()
        );
        ensure!(
            self.blocks.count() == walk.blocks,
            "{} blocks are in segments, not {}",
            walk.blocks,
            self.blocks.count()
        );
        ensure!(
            self.blocks.walk_vacant() == self.blocks.vacant_count(),
            "the list of vacant records is damaged"
        );
        let divided = (self.segments.len() as u64)
            .wrapping_add(self.splits)
            .wrapping_add_signed(self.blocks_by_gaps() as i64)
            .wrapping_sub(self.merges);
        ensure!(
            divided == walk.blocks as u64,
            "splits and merges would make {divided} blocks, there are {}",
            walk.blocks
        );
        let stats = self.stats();
        let parts = stats
            .in_use
            .checked_add(stats.idle)
            .and_then(|sum| sum.checked_add(stats.pending));
        ensure!(
            parts == Some(self.reserved()) && stats.reserved == self.reserved(),
            "the figures do not add up: {stats:?}"
        );
        Ok(())
    }
}
