//! Handles: values that name a stream, an event or a pool, and that point at nothing.
//!
//! They lie in a range of addresses without access, so that a handle is never mistaken for memory. The value of a
//! destroyed handle is the next one to be given out, as with the real runtime.

use crate::error::{Answer, OUT_OF_MEMORY};
use crate::mirror::reserve_forever;

const STEP: usize = 16;
const SPAN: usize = 64 << 20;

/// A table of handles.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    base: usize,
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Handles {
            base: 0,
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Answer<usize> {
        if self.base == 0 {
            self.base = reserve_forever(SPAN).ok_or(OUT_OF_MEMORY)?;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < SPAN / STEP => {
                self.entries.push(None);
                self.entries.len() - 1
            }
            None => return Err(OUT_OF_MEMORY),
        };
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Some(value);
        }
        Ok(self.base + index * STEP)
    }

    fn index(&self, handle: usize) -> Option<usize> {
        let offset = handle.checked_sub(self.base)?;
        (self.base != 0 && offset.is_multiple_of(STEP)).then_some(offset / STEP)
    }

    pub(crate) fn get(&self, handle: usize) -> Option<&T> {
        self.entries.get(self.index(handle)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, handle: usize) -> Option<&mut T> {
        let index = self.index(handle)?;
        self.entries.get_mut(index)?.as_mut()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }

    pub(crate) fn remove(&mut self, handle: usize) -> Option<T> {
        let index = self.index(handle)?;
        let value = self.entries.get_mut(index)?.take()?;
        self.free.push(index);
        Some(value)
    }

    /// Forgets all; the range of addresses stays.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
    }

    /// Removes the entries for which `keep` says no.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.as_ref().is_some_and(|value| !keep(value)) {
                *entry = None;
                self.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_handle_is_the_next_one_given_out_and_is_dead_until_then() {
        let mut h = Handles::new();
        let (a, b) = (h.insert('a').unwrap(), h.insert('b').unwrap());
        assert_ne!(a, b);
        assert_eq!(h.remove(a), Some('a'));
        assert_eq!(h.get(a), None);
        assert_eq!(h.remove(a), None);
        assert_eq!(h.insert('c').unwrap(), a);
        assert_eq!(h.get(a), Some(&'c'));
        assert_eq!(h.get(b + 1), None);
        assert_eq!(h.get(usize::MAX), None);
        assert_eq!(h.get(0), None);
    }
}
