//! Under which key an address is remembered: its own, or, where physical memory is mapped, that of the physical memory,
//! so that memory that moves to another address stays the same memory.

use std::collections::BTreeMap;

/// The keys of physical memory: above all addresses.
const PHYSICAL: u64 = 1 << 63;
/// How many keys a piece of physical memory has.
const SPAN: u32 = 40;

/// The key of the first byte of a piece of physical memory.
fn key(handle: u64) -> u64 {
    PHYSICAL | (handle << SPAN) & !PHYSICAL
}

/// What is mapped where.
#[derive(Default)]
pub(crate) struct Places {
    /// Start → end, key of the start.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// Key of the start → how often it is mapped.
    times: BTreeMap<u64, usize>,
}

impl Places {
    pub(crate) fn map(&mut self, start: u64, len: u64, handle: u64, offset: u64) {
        self.unmap(start, len);
        let end = start.saturating_add(len);
        if start < end {
            let key = key(handle) | offset;
            self.mapped.insert(start, (end, key));
            *self.times.entry(key).or_default() += 1;
        }
    }

    pub(crate) fn unmap(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let known: Vec<u64> = self
            .mapped
            .range(start..end.max(start))
            .map(|(s, _)| *s)
            .collect();
        for s in known {
            let Some((_, key)) = self.mapped.remove(&s) else {
                continue;
            };
            if let Some(times) = self.times.get_mut(&key) {
                *times = times.saturating_sub(1);
                if *times == 0 {
                    self.times.remove(&key);
                }
            }
        }
    }

    /// Whether what is mapped at an address is mapped at another one too.
    pub(crate) fn is_elsewhere(&self, start: u64) -> bool {
        let key = self.mapped.get(&start).map(|(_, key)| key);
        let times = key.and_then(|key| self.times.get(key));
        times.is_some_and(|times| *times > 1)
    }

    /// Calls `f` for each piece of an address range: address, key, length.
    pub(crate) fn pieces(&self, start: u64, end: u64, f: &mut dyn FnMut(u64, u64, u64)) {
        let mut at = start;
        if !self.mapped.is_empty() {
            let from = self
                .mapped
                .range(..=start)
                .next_back()
                .map_or(start, |(s, _)| *s);
            for (s, (e, key)) in self.mapped.range(from..end.max(from)) {
                let (first, last) = ((*s).max(at), (*e).min(end));
                if first >= last {
                    continue;
                }
                if at < first {
                    f(at, at, first - at);
                }
                f(first, key.saturating_add(first - s), last - first);
                at = last;
            }
        }
        if at < end {
            f(at, at, end - at);
        }
    }

    /// The keys of a piece of physical memory.
    pub(crate) fn keys(handle: u64) -> (u64, u64) {
        let first = key(handle);
        (first, first.saturating_add(1 << SPAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_falls_into_mapped_pieces_and_the_rest() {
        let mut places = Places::default();
        places.map(100, 50, 1, 0);
        places.map(150, 50, 2, 8);
        let mut pieces = Vec::new();
        places.pieces(90, 210, &mut |a, k, l| pieces.push((a, k, l)));
        assert_eq!(
            pieces,
            [
                (90, 90, 10),
                (100, key(1), 50),
                (150, key(2) + 8, 50),
                (200, 200, 10)
            ]
        );
        places.unmap(100, 100);
        pieces.clear();
        places.pieces(120, 130, &mut |a, k, l| pieces.push((a, k, l)));
        assert_eq!(pieces, [(120, 120, 10)]);
    }

    #[test]
    fn what_is_mapped_twice_is_elsewhere_until_one_is_gone() {
        let mut places = Places::default();
        places.map(100, 50, 1, 0);
        places.map(200, 50, 2, 0);
        assert!(!places.is_elsewhere(100));
        places.map(300, 50, 1, 0);
        assert!(places.is_elsewhere(100) && places.is_elsewhere(300));
        assert!(!places.is_elsewhere(200) && !places.is_elsewhere(110));
        places.unmap(100, 50);
        assert!(!places.is_elsewhere(300));
    }
}
