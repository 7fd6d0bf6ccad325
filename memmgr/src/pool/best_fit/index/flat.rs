//! A few lengths in no order. A search looks at all of them, without a branch for each: that costs less than to keep an order.

use super::{Entry, tree};
use crate::pool::best_fit::{
    GRANULE,
    blocks::{Blocks, Datum, Slot},
};

/// How many lengths there may be.
const MOST: usize = 48;
/// How many words are looked at together.
const TOGETHER: usize = 8;
/// With so many buckets most lengths that are not there are known by a look at `seen`.
const BUCKETS: usize = 256;
// A place fits below the granule, a bucket's number into a byte, and the words are whole groups.
const _: () = assert!(MOST < GRANULE && MOST <= u8::MAX as usize && MOST.is_multiple_of(TOGETHER));

/// The lengths, and their spans.
#[derive(Debug)]
pub(super) struct Flat {
    /// A word for each length: the length, with its own place here in the bits below the granule. 0 up to a multiple of [`TOGETHER`].
    words: Vec<usize>,
    /// The lowest span of each length, which knows its place.
    heads: Vec<Slot>,
    /// How many lengths fall into each bucket; empty as long as there are no lengths.
    seen: Vec<u8>,
}

#[inline]
fn place_of(word: usize) -> usize {
    word % GRANULE
}

#[inline]
fn len_of(word: usize) -> usize {
    word & !(GRANULE - 1)
}

#[inline]
fn bucket(len: usize) -> usize {
    ((len / GRANULE) as u32).wrapping_mul(0x9e37_79b1) as usize >> 24
}

impl Flat {
    /// No lengths.
    pub const fn new() -> Self {
        Self {
            words: Vec::new(),
            heads: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// How many lengths there are.
    #[inline]
    pub fn lengths(&self) -> usize {
        self.heads.len()
    }

    /// Whether no further length can come.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.heads.len() >= MOST
    }

    /// The word of the smallest length of at least `len` bytes, a multiple of the granule and not 0.
    #[inline]
    fn best(&self, len: usize) -> Option<usize> {
        // By how much each is too long; what is too short is far above all others then. Only the last step of a group waits for the
        // group before.
        let mut least = usize::MAX;
        let used = self.heads.len().div_ceil(TOGETHER);
        let (groups, _) = self.words.as_chunks::<TOGETHER>();
        for [a, b, c, d, e, f, g, h] in groups.iter().take(used) {
            let left = a.wrapping_sub(len).min(b.wrapping_sub(len));
            let right = c.wrapping_sub(len).min(d.wrapping_sub(len));
            let low = left.min(right);
            let left = e.wrapping_sub(len).min(f.wrapping_sub(len));
            let right = g.wrapping_sub(len).min(h.wrapping_sub(len));
            least = low.min(left.min(right)).min(least);
        }
        len.checked_add(least)
    }

    /// The place of a length.
    #[inline]
    fn place(&self, len: usize) -> Option<usize> {
        match self.seen.get(bucket(len)) {
            None | Some(0) => None,
            Some(_) => {
                let word = self.best(len)?;
                (len_of(word) == len).then_some(place_of(word))
            }
        }
    }

    /// The lowest span of exactly `len` bytes.
    #[inline]
    pub fn exact(&self, len: usize) -> Option<Slot> {
        self.heads.get(self.place(len)?).copied()
    }

    /// The lowest of the smallest spans of at least `len` bytes, a multiple of the granule and not 0.
    #[inline]
    pub fn smallest(&self, len: usize) -> Option<Slot> {
        self.heads.get(place_of(self.best(len)?)).copied()
    }

    /// Adds a span, or all of a length that none has here: then it is the lowest. False if there are too many lengths already; then
    /// nothing has changed.
    #[inline]
    pub fn insert<T: Datum>(&mut self, blocks: &mut Blocks<T>, entry: Entry) -> bool {
        if let Some(place) = self.place(entry.len) {
            if let Some(head) = self.heads.get_mut(place) {
                *head = tree::insert(blocks, *head, entry);
                blocks.at_mut(*head).set_node(place as u32);
            }
            return true;
        }
        if self.is_full() {
            return false;
        }
        self.push(blocks, entry);
        true
    }

    #[inline]
    fn push<T: Datum>(&mut self, blocks: &mut Blocks<T>, entry: Entry) {
        let Entry { len, slot, .. } = entry;
        let place = self.heads.len();
        if place == self.words.len() {
            self.make_room();
        }
        if let Some((word, seen)) = self
            .words
            .get_mut(place)
            .zip(self.seen.get_mut(bucket(len)))
        {
            *word = len | place;
            *seen = seen.wrapping_add(1);
        }
        self.heads.push(slot);
        blocks.at_mut(slot).set_node(place as u32);
    }

    #[cold]
    fn make_room(&mut self) {
        // All that it will ever need, so that a free needs no memory later.
        self.words
            .reserve_exact(MOST.saturating_sub(self.words.len()));
        self.heads
            .reserve_exact(MOST.saturating_sub(self.heads.len()));
        self.words.extend([0; TOGETHER]);
        self.seen.resize(BUCKETS, 0);
    }

    /// Removes a span, which is there.
    #[inline]
    pub fn remove<T: Datum>(&mut self, blocks: &mut Blocks<T>, slot: Slot) {
        // Of the spans of one length only the lowest knows its place for sure.
        let place = blocks.at(slot).node() as usize;
        let is_lowest = self.heads.get(place) == Some(&slot);
        if blocks.is_alone(slot) {
            debug_assert!(is_lowest, "a free span is missing in its index");
            if is_lowest {
                self.drop_length(blocks, place);
            }
            return;
        }
        let lowest = tree::remove(blocks, slot, is_lowest);
        if let Some((lowest, head)) = lowest.zip(self.heads.get_mut(place)) {
            *head = lowest;
            blocks.at_mut(lowest).set_node(place as u32);
        }
    }

    /// Puts another span, of another length, in the place of one, which is there: false, with nothing changed, if either length
    /// has other spans.
    #[inline]
    pub fn replace<T: Datum>(
        &mut self,
        blocks: &mut Blocks<T>,
        former: Entry,
        entry: Entry,
    ) -> bool {
        let place = blocks.at(former.slot).node() as usize;
        if !blocks.is_alone(former.slot) || self.place(entry.len).is_some() {
            return false;
        }
        let (Some(head), Some(word)) = (self.heads.get_mut(place), self.words.get_mut(place))
        else {
            return false;
        };
        if *head != former.slot {
            debug_assert!(false, "a free span is missing in its index");
            return false;
        }
        (*head, *word) = (entry.slot, entry.len | place);
        blocks.at_mut(entry.slot).set_node(place as u32);
        if let Some(seen) = self.seen.get_mut(bucket(former.len)) {
            *seen = seen.wrapping_sub(1);
        }
        if let Some(seen) = self.seen.get_mut(bucket(entry.len)) {
            *seen = seen.wrapping_add(1);
        }
        true
    }

    /// Removes the length at a place; the last one takes the place.
    #[inline]
    fn drop_length<T: Datum>(&mut self, blocks: &mut Blocks<T>, place: usize) {
        let last = self.heads.len().saturating_sub(1);
        self.heads.swap_remove(place);
        let moved = self.words.get_mut(last).map_or(0, std::mem::take);
        let mut gone = moved;
        if let Some(head) = self.heads.get(place) {
            blocks.at_mut(*head).set_node(place as u32);
            if let Some(word) = self.words.get_mut(place) {
                gone = std::mem::replace(word, len_of(moved) | place);
            }
        }
        if let Some(seen) = self.seen.get_mut(bucket(len_of(gone))) {
            *seen = seen.wrapping_sub(1);
        }
    }

    /// Forgets all lengths and their spans.
    pub fn clear(&mut self) {
        for word in self.words.iter_mut().take(self.heads.len()) {
            *word = 0;
        }
        self.heads.clear();
        self.seen.fill(0);
    }

    /// Takes out all spans below `floor` bytes, length by length; `give` is given the lowest span of each.
    pub fn release<T: Datum>(
        &mut self,
        floor: usize,
        blocks: &mut Blocks<T>,
        mut give: impl FnMut(&mut Blocks<T>, Entry),
    ) {
        // From the end, so that none that was not looked at takes a place that was.
        for place in (0..self.heads.len()).rev() {
            let Some(head) = self.heads.get(place) else {
                continue;
            };
            let lowest = Entry::of(blocks, *head);
            if lowest.len < floor {
                self.drop_length(blocks, place);
                give(blocks, lowest);
            }
        }
    }

    /// The greatest length.
    pub fn longest(&self) -> Option<usize> {
        self.words
            .iter()
            .max()
            .map(|word| len_of(*word))
            .filter(|len| *len > 0)
    }

    /// What is wrong, if anything is.
    pub fn check<T: Datum>(&self, blocks: &Blocks<T>) -> Result<(), String> {
        let mut seen = vec![0; self.seen.len()];
        for (place, head) in self.heads.iter().enumerate() {
            let len = blocks.at(*head).len();
            if self.words.get(place) != Some(&(len | place))
                || blocks.at(*head).node() as usize != place
            {
                return Err(format!(
                    "the span of {len} bytes at place {place} is not there"
                ));
            }
            if let Some(seen) = seen.get_mut(bucket(len)) {
                *seen += 1;
            }
        }
        if seen != self.seen {
            return Err("the lengths are not those that were counted".to_string());
        }
        if self
            .words
            .iter()
            .skip(self.heads.len())
            .any(|word| *word != 0)
        {
            return Err("there are lengths without spans".to_string());
        }
        Ok(())
    }
}
