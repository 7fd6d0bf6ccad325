//! Reference allocators to measure beside the manager: exact best fit with splitting and coalescing, ties
//! to the lowest address, in one arena of addresses, without a lock, streams or statistics.
//!
//! `list` is the plainest form, a vector of free spans that is scanned; `btree` is what the standard
//! library's ordered collections make of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::c_void;
use std::ptr;

use rustc_hash::FxHashMap;

use super::subject::Subject;

/// Sizes are rounded up to it, as the manager's are.
const GRANULE: usize = 256;
/// Where the arena begins, so that no address is null.
const BASE: usize = 1 << 40;
/// Addresses cost nothing: four times the most that any workload has live.
const ARENA: usize = 64 << 30;

fn rounded(size: usize) -> usize {
    size.max(1).next_multiple_of(GRANULE)
}

/// A vector of free spans in order of address, scanned for the best fit; `HashMap` for what is live.
#[derive(Debug)]
pub struct List {
    /// Address and length.
    free: Vec<(usize, usize)>,
    live: HashMap<usize, usize>,
}

impl List {
    pub fn new() -> Self {
        Self {
            free: vec![(BASE, ARENA)],
            live: HashMap::new(),
        }
    }
}

impl Subject for List {
    fn allocate(&mut self, size: usize) -> *mut c_void {
        let size = rounded(size);
        let mut best = None;
        let mut best_len = usize::MAX;
        for (index, &(_, len)) in self.free.iter().enumerate() {
            if len >= size && len < best_len {
                (best, best_len) = (Some(index), len);
                if len == size {
                    break;
                }
            }
        }
        let Some(index) = best else {
            return ptr::null_mut();
        };
        let (address, len) = self.free[index];
        if len == size {
            self.free.remove(index);
        } else {
            self.free[index] = (address + size, len - size);
        }
        self.live.insert(address, size);
        ptr::without_provenance_mut(address)
    }

    fn free(&mut self, block: *mut c_void) {
        let address = block.addr();
        let Some(len) = self.live.remove(&address) else {
            return;
        };
        let at = self.free.partition_point(|&(start, _)| start < address);
        let joins_next = self
            .free
            .get(at)
            .is_some_and(|&(start, _)| start == address + len);
        let joins_previous = at > 0 && {
            let (start, before) = self.free[at - 1];
            start + before == address
        };
        match (joins_previous, joins_next) {
            (true, true) => {
                self.free[at - 1].1 += len + self.free[at].1;
                self.free.remove(at);
            }
            (true, false) => self.free[at - 1].1 += len,
            (false, true) => {
                self.free[at].0 = address;
                self.free[at].1 += len;
            }
            (false, false) => self.free.insert(at, (address, len)),
        }
    }
}

/// Free spans by size and address in a `BTreeSet`, by address in a `BTreeMap`; `FxHashMap` for what is
/// live.
#[derive(Debug)]
pub struct Tree {
    by_size: BTreeSet<(usize, usize)>,
    by_address: BTreeMap<usize, usize>,
    live: FxHashMap<usize, usize>,
}

impl Tree {
    pub fn new() -> Self {
        Self {
            by_size: BTreeSet::from([(ARENA, BASE)]),
            by_address: BTreeMap::from([(BASE, ARENA)]),
            live: FxHashMap::default(),
        }
    }
}

impl Subject for Tree {
    fn allocate(&mut self, size: usize) -> *mut c_void {
        let size = rounded(size);
        let Some(&(len, address)) = self.by_size.range((size, 0)..).next() else {
            return ptr::null_mut();
        };
        self.by_size.remove(&(len, address));
        self.by_address.remove(&address);
        if len > size {
            self.by_size.insert((len - size, address + size));
            self.by_address.insert(address + size, len - size);
        }
        self.live.insert(address, size);
        ptr::without_provenance_mut(address)
    }

    fn free(&mut self, block: *mut c_void) {
        let mut address = block.addr();
        let Some(mut len) = self.live.remove(&address) else {
            return;
        };
        let end = address + len;
        if let Some(next) = self.by_address.remove(&end) {
            self.by_size.remove(&(next, end));
            len += next;
        }
        if let Some((&start, before)) = self.by_address.range_mut(..address).next_back()
            && start + *before == address
        {
            self.by_size.remove(&(*before, start));
            *before += len;
            (address, len) = (start, *before);
        } else {
            self.by_address.insert(address, len);
        }
        self.by_size.insert((len, address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Best fit as its definition says: every gap between live blocks is looked at.
    #[derive(Default)]
    struct Definition(BTreeMap<usize, usize>);

    impl Subject for Definition {
        fn allocate(&mut self, size: usize) -> *mut c_void {
            let size = rounded(size);
            let mut gaps = Vec::new();
            let mut start = BASE;
            for (&address, &len) in &self.0 {
                gaps.push((address - start, start));
                start = address + len;
            }
            gaps.push((BASE + ARENA - start, start));
            let best = gaps.into_iter().filter(|(len, _)| *len >= size).min();
            let Some((_, address)) = best else {
                return ptr::null_mut();
            };
            self.0.insert(address, size);
            ptr::without_provenance_mut(address)
        }

        fn free(&mut self, block: *mut c_void) {
            self.0.remove(&block.addr());
        }
    }

    fn addresses(subject: &mut impl Subject, sizes: &[usize]) -> Vec<usize> {
        let mut rng = Rng::new(9);
        let (mut live, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..4000 {
            if live.is_empty() || (live.len() < 200 && rng.below(100) < 60) {
                let size = sizes[rng.below(sizes.len())];
                let block = subject.allocate(size);
                seen.push(block.addr());
                if !block.is_null() {
                    live.push(block);
                }
            } else {
                let block = live.swap_remove(rng.below(live.len()));
                subject.free(block);
            }
        }
        seen
    }

    #[test]
    fn both_place_every_block_as_the_definition_says() {
        let few = [1, 256, 700, 3000, 3001];
        let many: Vec<usize> = (1..500).map(|i| i * 97).collect();
        let huge = [ARENA / 7, ARENA / 3, 4096];
        for sizes in [&few[..], &many, &huge] {
            let defined = addresses(&mut Definition::default(), sizes);
            assert_eq!(addresses(&mut List::new(), sizes), defined);
            assert_eq!(addresses(&mut Tree::new(), sizes), defined);
        }
    }

    #[test]
    fn when_all_is_freed_one_span_is_left() {
        let (mut list, mut tree) = (List::new(), Tree::new());
        for subject in [&mut list as &mut dyn Subject, &mut tree] {
            let blocks: Vec<_> = (1..100).map(|i| subject.allocate(i * 100)).collect();
            for i in 0..99 {
                subject.free(blocks[i * 37 % 99]);
            }
        }
        assert_eq!(list.free, [(BASE, ARENA)]);
        assert_eq!(tree.by_size, BTreeSet::from([(ARENA, BASE)]));
        assert_eq!(tree.by_address, BTreeMap::from([(BASE, ARENA)]));
        assert!(list.live.is_empty() && tree.live.is_empty());
    }
}
