//! Free address ranges, best fit: the smallest range that is large enough, the lowest among equals.

use std::collections::{BTreeMap, BTreeSet};

/// A set of disjoint free ranges, each with a tag (the greatest tag wins when ranges merge). Every operation is O(log n).
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    by_address: BTreeMap<u64, (u64, u64)>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Ranges {
    pub(crate) const fn new() -> Self {
        Ranges {
            by_address: BTreeMap::new(),
            by_size: BTreeSet::new(),
        }
    }

    /// Adds a free range and merges it with free neighbours that lie within `bounds` (start, end); returns the merged
    /// range.
    pub(crate) fn insert(
        &mut self,
        start: u64,
        len: u64,
        tag: u64,
        bounds: (u64, u64),
    ) -> (u64, u64) {
        let (mut start, mut len, mut tag) = (start, len, tag);
        if let Some((&s, &(l, t))) = self.by_address.range(..start).next_back()
            && s.checked_add(l) == Some(start)
            && s >= bounds.0
        {
            self.remove(s);
            start = s;
            len += l;
            tag = tag.max(t);
        }
        let end = start.saturating_add(len);
        if let Some(&(l, t)) = self.by_address.get(&end)
            && end.saturating_add(l) <= bounds.1
        {
            self.remove(end);
            len += l;
            tag = tag.max(t);
        }
        self.put(start, len, tag);
        (start, len)
    }

    /// Takes `len` from the best-fitting range; returns where, and the range's tag.
    pub(crate) fn take(&mut self, len: u64) -> Option<(u64, u64)> {
        let &(size, start) = self.by_size.range((len, 0)..).next()?;
        let (_, tag) = self.remove(start)?;
        if size > len {
            self.put(start + len, size - len, tag);
        }
        Some((start, tag))
    }

    /// As [`take`](Ranges::take), if the tag of the best-fitting range pleases.
    pub(crate) fn take_if(&mut self, len: u64, pleases: impl FnOnce(u64) -> bool) -> Option<u64> {
        let (_, start) = self.by_size.range((len, 0)..).next()?;
        let (_, tag) = self.by_address.get(start)?;
        if pleases(*tag) {
            self.take(len).map(|(start, _)| start)
        } else {
            None
        }
    }

    /// The size of the best-fitting range.
    pub(crate) fn fit(&self, len: u64) -> Option<u64> {
        self.by_size.range((len, 0)..).next().map(|(size, _)| *size)
    }

    /// Removes the range that starts there; returns its length and tag.
    pub(crate) fn remove(&mut self, start: u64) -> Option<(u64, u64)> {
        let (len, tag) = self.by_address.remove(&start)?;
        self.by_size.remove(&(len, start));
        Some((len, tag))
    }

    /// Removes the ranges whose tag is at most `tag`; returns them as (start, length).
    pub(crate) fn remove_up_to(&mut self, tag: u64) -> Vec<(u64, u64)> {
        let found: Vec<(u64, u64)> = self
            .by_address
            .iter()
            .filter(|(_, (_, t))| *t <= tag)
            .map(|(s, (l, _))| (*s, *l))
            .collect();
        for (start, _) in &found {
            self.remove(*start);
        }
        found
    }

    fn put(&mut self, start: u64, len: u64, tag: u64) {
        self.by_address.insert(start, (len, tag));
        self.by_size.insert((len, start));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    #[cfg(test)]
    fn total(&self) -> u64 {
        self.by_address.values().map(|(len, _)| len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_range_that_fits_is_taken_and_the_lowest_among_equals() {
        let mut r = Ranges::new();
        for (start, len) in [(0, 1024), (4096, 512), (8192, 512), (16384, 768)] {
            r.insert(start, len, 0, (0, u64::MAX));
        }
        assert_eq!(r.take(512), Some((4096, 0)));
        assert_eq!(r.take(512), Some((8192, 0)));
        assert_eq!(r.take(600), Some((16384, 0)));
        assert_eq!(r.take(2000), None);
        assert_eq!(r.total(), 1024 + 168);
    }

    #[test]
    fn neighbours_merge_only_within_their_bounds() {
        let mut r = Ranges::new();
        r.insert(0, 100, 1, (0, 200));
        assert_eq!(r.insert(100, 100, 2, (0, 200)), (0, 200));
        assert_eq!(r.insert(200, 100, 3, (200, 400)), (200, 100));
        assert_eq!(r.insert(300, 100, 1, (200, 400)), (200, 200));
        assert_eq!(r.total(), 400);
        assert_eq!(r.remove_up_to(2), [(0, 200)]);
        assert_eq!(r.take(200), Some((200, 3)));
    }
}
