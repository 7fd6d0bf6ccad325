//! From an address inside a block to the block.
//!
//! Most callers name the start of a block, which the table of live blocks knows. Only when somebody asks for an address inside
//! a block are the segments divided into pages, each with the first block that starts in it; from then on that is kept right.

use std::collections::BTreeMap;

use super::blocks::{Blocks, Datum, Slot};

/// The length of a page in bytes: at most 256 blocks start in it.
const PAGE: usize = 64 << 10;

/// The pages of one segment, up to the last one in which a block starts: most of a large segment may be a gap.
#[derive(Debug)]
struct Pages {
    len: usize,
    /// Which pages have a block that starts in them, 64 to a word.
    starts: Vec<u64>,
    first: Vec<Slot>,
}

impl Pages {
    fn new(len: usize) -> Self {
        Self {
            len,
            starts: Vec::new(),
            first: Vec::new(),
        }
    }

    fn get(&self, page: usize) -> Slot {
        self.first.get(page).copied().unwrap_or(Slot::NONE)
    }

    fn set(&mut self, page: usize, slot: Slot) {
        if page >= self.first.len() && !slot.is_none() {
            self.first.resize(page.saturating_add(1), Slot::NONE);
            self.starts.resize(self.first.len().div_ceil(64), 0);
        }
        if let Some(first) = self.first.get_mut(page) {
            *first = slot;
        }
        if let Some(word) = self.starts.get_mut(page / 64) {
            let bit = 1 << (page % 64);
            if slot.is_none() {
                *word &= !bit;
            } else {
                *word |= bit;
            }
        }
    }

    /// The last page below `page` in which a block starts.
    fn before(&self, page: usize) -> Option<usize> {
        let page = page.min(self.first.len());
        let mut word = page / 64;
        // The page behind the last one may begin another word.
        let mut bits = self.starts.get(word).copied().unwrap_or(0) & !(u64::MAX << (page % 64));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = *self.starts.get(word)?;
        }
        Some(word * 64 + (63 - bits.leading_zeros() as usize))
    }
}

/// The pages of all segments, once somebody has asked.
#[derive(Debug, Default)]
pub(super) struct Starts(Option<BTreeMap<usize, Pages>>);

impl Starts {
    /// Whether the pages are kept.
    #[inline]
    pub fn are_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps the pages from now on; the caller adds all segments and blocks.
    pub fn keep(&mut self) {
        self.0.get_or_insert_default();
    }

    /// A segment, without its blocks.
    pub fn add_segment(&mut self, base: usize, len: usize) {
        if let Some(segments) = &mut self.0 {
            segments.insert(base, Pages::new(len));
        }
    }

    /// A segment is gone.
    pub fn remove_segment(&mut self, base: usize) {
        if let Some(segments) = &mut self.0 {
            segments.remove(&base);
        }
    }

    /// The base and the pages of the segment in which `addr` lies, and the number of its page.
    fn page(&mut self, addr: usize) -> Option<(usize, &mut Pages, usize)> {
        let (base, pages) = self.0.as_mut()?.range_mut(..=addr).next_back()?;
        Some((*base, pages, addr.saturating_sub(*base) / PAGE))
    }

    /// A block starts at `addr` now.
    pub fn add<T: Datum>(&mut self, blocks: &Blocks<T>, slot: Slot, addr: usize) {
        if let Some((_, pages, page)) = self.page(addr) {
            let first = pages.get(page);
            if first.is_none() || addr < blocks.at(first).addr() {
                pages.set(page, slot);
            }
        }
    }

    /// No block starts at `addr` any more; `next` is the block behind it.
    pub fn remove<T: Datum>(&mut self, blocks: &Blocks<T>, slot: Slot, addr: usize, next: Slot) {
        if let Some((base, pages, page)) = self.page(addr)
            && pages.get(page) == slot
        {
            // Pages are counted from the base of the segment, which need not be a multiple of their length.
            let stays = !next.is_none() && {
                let behind = blocks.at(next).addr();
                behind.saturating_sub(base) / PAGE == page
            };
            pages.set(page, if stays { next } else { Slot::NONE });
        }
    }

    /// The block in which `addr` lies; `None` outside of all segments.
    pub fn find<T: Datum>(&self, blocks: &Blocks<T>, addr: usize) -> Option<Slot> {
        let (base, pages) = self.0.as_ref()?.range(..=addr).next_back()?;
        let offset = addr.saturating_sub(*base);
        if offset >= pages.len {
            return None;
        }
        let page = offset / PAGE;
        let here = pages.get(page);
        let mut slot = if !here.is_none() && blocks.at(here).addr() <= addr {
            here
        } else {
            pages.get(pages.before(page)?)
        };
        // A damaged chain ends the search.
        for _ in 0..=blocks.count() {
            let block = blocks.at(slot);
            if block.next.is_none() || blocks.at(block.next).addr() > addr {
                return Some(slot);
            }
            slot = block.next;
        }
        None
    }
}
