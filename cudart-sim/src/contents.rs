//! The bytes of a device: committed where written, a record where a large range was filled, nothing elsewhere.
//!
//! A memset of whole pages is kept as a record and gives the pages back, so that filling the largest device costs nothing.
//! Every copy looks at the records first: what was filled is made real only where something else is written beside it.

use crate::error::Answer;
use crate::mirror::{Mirror, copy_bytes, fill_bytes};
use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;

const PAGE: usize = 4096;
/// The unit in which it is remembered whether anything was written.
const CHUNK: usize = 2 << 20;
/// Fills below this are written out.
const RECORD_FROM: usize = 256 << 10;

/// The memory of one device.
#[derive(Debug)]
pub(crate) struct Space {
    mirror: Mirror,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// One bit a chunk: something in it may be committed.
    touched: Vec<u64>,
    /// Start → (end, value), whole pages, disjoint, not merged.
    fills: BTreeMap<usize, (usize, u8)>,
}

/// A stretch of memory as a reader sees it.
#[derive(Debug, PartialEq, Eq)]
enum Stretch {
    Data(usize, usize),
    Filled(usize, usize, u8),
}

impl State {
    fn touched(&self, chunk: usize) -> bool {
        self.touched
            .get(chunk / 64)
            .is_some_and(|w| w & (1 << (chunk % 64)) != 0)
    }

    fn mark(&mut self, chunk: usize, touched: bool) {
        if let Some(word) = self.touched.get_mut(chunk / 64) {
            if touched {
                *word |= 1 << (chunk % 64);
            } else {
                *word &= !(1 << (chunk % 64));
            }
        }
    }

    /// Takes the fill records out of `start..end` (whole pages) and returns the parts that were taken.
    fn cut(&mut self, start: usize, end: usize) -> Vec<(usize, usize, u8)> {
        let mut taken = Vec::new();
        if self.fills.is_empty() {
            return taken;
        }
        let from = self
            .fills
            .range(..=start)
            .next_back()
            .map_or(start, |(s, _)| *s);
        let hit: Vec<_> = self
            .fills
            .range(from..end)
            .filter(|(_, (e, _))| *e > start)
            .map(|(s, (e, v))| (*s, *e, *v))
            .collect();
        for (s, e, v) in hit {
            self.fills.remove(&s);
            if s < start {
                self.fills.insert(s, (start, v));
            }
            if e > end {
                self.fills.insert(end, (e, v));
            }
            taken.push((s.max(start), e.min(end), v));
        }
        taken
    }

    fn stretches(&self, start: usize, end: usize) -> Vec<Stretch> {
        let mut found: Vec<Stretch> = Vec::new();
        let mut at = start;
        while at < end {
            let record = self.fills.range(..=at).next_back();
            if let Some((_, &(e, v))) = record
                && e > at
            {
                found.push(Stretch::Filled(at, e.min(end), v));
                at = e.min(end);
                continue;
            }
            let next_fill = self.fills.range(at..).next().map_or(end, |(s, _)| *s);
            let stop = end.min(next_fill).min((at / CHUNK + 1) * CHUNK);
            let data = self.touched(at / CHUNK);
            match found.last_mut() {
                Some(Stretch::Data(_, e)) if data && *e == at => *e = stop,
                Some(Stretch::Filled(_, e, 0)) if !data && *e == at => *e = stop,
                _ if data => found.push(Stretch::Data(at, stop)),
                _ => found.push(Stretch::Filled(at, stop, 0)),
            }
            at = stop;
        }
        found
    }
}

impl Space {
    pub(crate) fn new(len: usize) -> Answer<Space> {
        let mirror = Mirror::new(len, CHUNK)?;
        let words = len / CHUNK / 64 + 1;
        Ok(Space {
            mirror,
            state: Mutex::new(State {
                touched: vec![0; words],
                fills: BTreeMap::new(),
            }),
        })
    }

    /// The first device address.
    pub(crate) fn base(&self) -> u64 {
        self.mirror.base()
    }

    /// How many bytes of addresses there are.
    pub(crate) fn len(&self) -> usize {
        self.mirror.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes `offset..offset + len` ready to be written through the mirror: the bytes beside it keep their values.
    fn prepare(&self, offset: usize, len: usize) {
        let end = offset + len;
        let (first, last) = (offset / PAGE * PAGE, end.next_multiple_of(PAGE));
        let mut state = self.state();
        for (s, e, v) in state.cut(first, last) {
            // Only the pages at the two ends keep something of the record.
            for page in [first, last.saturating_sub(PAGE)] {
                let partial = page < offset || page + PAGE > end;
                if partial && s <= page && page < e {
                    self.raw_fill(page, PAGE, v);
                }
            }
        }
        for chunk in offset / CHUNK..=(last.saturating_sub(1)) / CHUNK {
            state.mark(chunk, true);
        }
    }

    fn raw_fill(&self, offset: usize, len: usize, value: u8) {
        if let Some(at) = self.mirror.at(offset, len) {
            // SAFETY: `at` gave `len` bytes inside the mirror, which is mapped for writing.
            unsafe { fill_bytes(at, value, len) };
        }
    }

    /// Writes from host memory.
    ///
    /// # Safety
    /// `src..src + len` must be readable.
    pub(crate) unsafe fn write(&self, offset: usize, src: usize, len: usize) {
        let Some(at) = self.mirror.at(offset, len) else {
            return;
        };
        if len > 0 {
            self.prepare(offset, len);
            // SAFETY: the source by the contract; the target is inside the mirror.
            unsafe { copy_bytes(at, src, len) };
        }
    }

    /// Reads into host memory.
    ///
    /// # Safety
    /// `dst..dst + len` must be writable.
    pub(crate) unsafe fn read(&self, offset: usize, dst: usize, len: usize) {
        if self.mirror.at(offset, len).is_none() {
            return;
        }
        let stretches = self.state().stretches(offset, offset + len);
        for stretch in stretches {
            match stretch {
                Stretch::Data(s, e) => {
                    if let Some(at) = self.mirror.at(s, e - s) {
                        // SAFETY: the target by the contract; the source is inside the mirror.
                        unsafe { copy_bytes(dst + (s - offset), at, e - s) };
                    }
                }
                // SAFETY: inside the target range, by the contract.
                Stretch::Filled(s, e, v) => unsafe { fill_bytes(dst + (s - offset), v, e - s) },
            }
        }
    }

    /// Copies from another device, or from this one.
    pub(crate) fn copy_from(&self, offset: usize, from: &Space, from_offset: usize, len: usize) {
        if self.mirror.at(offset, len).is_none() || from.mirror.at(from_offset, len).is_none() {
            return;
        }
        let stretches = from.state().stretches(from_offset, from_offset + len);
        // Overlapping ranges inside one device are copied as if through a buffer of each stretch; CUDA leaves them undefined.
        for stretch in stretches {
            match stretch {
                Stretch::Data(s, e) => {
                    if let Some(at) = from.mirror.at(s, e - s) {
                        // SAFETY: the source is inside the other mirror, which the caller keeps alive.
                        unsafe { self.write(offset + (s - from_offset), at, e - s) };
                    }
                }
                Stretch::Filled(s, e, v) => self.fill(offset + (s - from_offset), e - s, v),
            }
        }
    }

    /// Fills a range with a byte. Large ranges commit nothing.
    pub(crate) fn fill(&self, offset: usize, len: usize, value: u8) {
        if len == 0 || self.mirror.at(offset, len).is_none() {
            return;
        }
        if len < RECORD_FROM {
            self.prepare(offset, len);
            self.raw_fill(offset, len, value);
            return;
        }
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        for (s, e) in [(offset, first), (last, end)] {
            if s < e {
                self.prepare(s, e - s);
                self.raw_fill(s, e - s, value);
            }
        }
        let mut state = self.state();
        state.cut(first, last);
        self.give_back(&mut state, first, last);
        if value != 0 {
            state.fills.insert(first, (last, value));
        }
    }

    /// Forgets the contents of a range (whole pages) and gives its memory back.
    pub(crate) fn discard(&self, offset: usize, len: usize) {
        if len == 0 || self.mirror.at(offset, len).is_none() {
            return;
        }
        let mut state = self.state();
        state.cut(offset, offset + len);
        self.give_back(&mut state, offset, offset + len);
    }

    /// Punches the touched chunks of a range, neighbours in one go.
    fn give_back(&self, state: &mut State, start: usize, end: usize) {
        let mut run: Option<(usize, usize)> = None;
        let mut chunk = start / CHUNK;
        while chunk * CHUNK < end {
            if chunk.is_multiple_of(64)
                && state.touched.get(chunk / 64) == Some(&0)
                && (chunk + 64) * CHUNK <= end
            {
                if let Some((s, e)) = run.take() {
                    self.mirror.punch(s, e - s);
                }
                chunk += 64;
                continue;
            }
            let (s, e) = ((chunk * CHUNK).max(start), ((chunk + 1) * CHUNK).min(end));
            if state.touched(chunk) {
                run = match run {
                    Some((first, last)) if last == s => Some((first, e)),
                    Some((first, last)) => {
                        self.mirror.punch(first, last - first);
                        Some((s, e))
                    }
                    None => Some((s, e)),
                };
                if e - s == CHUNK {
                    state.mark(chunk, false);
                }
            }
            chunk += 1;
        }
        if let Some((s, e)) = run {
            self.mirror.punch(s, e - s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(space: &Space, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0xEE; len];
        // SAFETY: `out` has `len` bytes.
        unsafe { space.read(offset, out.as_mut_ptr() as usize, len) };
        out
    }

    fn write(space: &Space, offset: usize, bytes: &[u8]) {
        // SAFETY: the source is a slice of that length.
        unsafe { space.write(offset, bytes.as_ptr() as usize, bytes.len()) };
    }

    #[test]
    fn filling_a_hundred_gibibytes_commits_nothing() {
        let space = Space::new(100 << 30).unwrap();
        space.fill(0, 100 << 30, 0xAB);
        assert_eq!(read(&space, (99 << 30) + 5, 3), [0xAB; 3]);
        space.fill(0, 100 << 30, 0);
        assert_eq!(read(&space, (99 << 30) + 5, 3), [0; 3]);
    }

    #[test]
    fn a_write_into_a_filled_range_changes_its_own_bytes_only() {
        let space = Space::new(8 << 20).unwrap();
        space.fill(100, 4 << 20, 7);
        write(&space, 9000, &[1, 2, 3]);
        assert_eq!(read(&space, 8998, 7), [7, 7, 1, 2, 3, 7, 7]);
        assert_eq!(read(&space, 99, 2), [0, 7]);
        assert_eq!(read(&space, (4 << 20) + 99, 2), [7, 0]);
    }

    #[test]
    fn contents_match_a_plain_array_after_random_operations() {
        const LEN: usize = 6 << 20;
        let (a, b) = (Space::new(LEN).unwrap(), Space::new(LEN).unwrap());
        let mut model = [vec![0u8; LEN], vec![0u8; LEN]];
        let mut seed = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = |bound: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % bound as u64) as usize
        };
        for round in 0..300 {
            let len = match next(3) {
                0 => next(10_000),
                1 => next(3 << 20),
                _ => (next(500)) * PAGE,
            };
            let at = next(LEN - len);
            let (space, side) = if next(2) == 0 { (&a, 0) } else { (&b, 1) };
            match next(4) {
                0 => {
                    let v = next(4) as u8;
                    space.fill(at, len, v);
                    model[side][at..at + len].fill(v);
                }
                1 => {
                    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + round) as u8).collect();
                    write(space, at, &bytes);
                    model[side][at..at + len].copy_from_slice(&bytes);
                }
                2 => {
                    let other = if side == 0 { &b } else { &a };
                    let from = next(LEN - len);
                    space.copy_from(at, other, from, len);
                    let bytes = model[1 - side][from..from + len].to_vec();
                    model[side][at..at + len].copy_from_slice(&bytes);
                }
                _ => {
                    let (s, e) = (at.next_multiple_of(PAGE), (at + len) / PAGE * PAGE);
                    if s < e {
                        space.discard(s, e - s);
                        model[side][s..e].fill(0);
                    }
                }
            }
            assert!(
                read(space, at, len) == model[side][at..at + len],
                "round {round}"
            );
        }
        assert!(read(&a, 0, LEN) == model[0] && read(&b, 0, LEN) == model[1]);
    }
}
