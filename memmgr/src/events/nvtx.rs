//! What memory is whose, told to tools through NVTX: a segment of a device pool is memory of which nothing may be used but the
//! blocks that are live. compute-sanitizer then finds what leaves its block and stays in the segment.
//!
//! Whether there is a tool is known once the first segment is told of; no call may come before CUDA has been initialized.

use crate::sync::{Mutex, lock};
use cuda_sys::nvtx::Heap;
use std::{collections::BTreeMap, ops::Range};

/// What the tool has been told of one manager.
#[derive(Default)]
pub(super) struct Annotations(Mutex<State>);

#[derive(Default)]
struct State {
    /// No tool wants to know.
    absent: bool,
    /// Segments by their start, with their end.
    heaps: BTreeMap<usize, (usize, Heap)>,
    /// Live blocks: what was asked for, in bytes.
    blocks: BTreeMap<usize, usize>,
}

impl Annotations {
    /// Memory of a device pool has been obtained; whether a tool wants to know. Mapped parts that touch are one: a block may lie
    /// in both.
    pub fn add_segment(&self, range: Range<usize>, mapped: bool) -> bool {
        let mut state = lock(&self.0);
        if state.absent {
            return false;
        }
        let (mut start, mut end) = (range.start, range.end);
        if mapped {
            let before = state.heaps.range(..start).next_back();
            if let Some(former) = before.map(|(at, (end, _))| *at..*end)
                && former.end == start
            {
                state.end(former.start);
                start = former.start;
            }
            if let Some(next) = state.end(end) {
                end = next;
            }
        }
        state.begin(start..end);
        !state.absent
    }

    /// Memory of a device pool is about to be given back.
    pub fn remove_segment(&self, range: Range<usize>) {
        let mut state = lock(&self.0);
        let met = |(at, (end, _)): (&usize, &(usize, Heap))| (*at, *end);
        let before = state.heaps.range(..range.end).rev().map(met);
        let found: Vec<(usize, usize)> = before.take_while(|(_, end)| *end > range.start).collect();
        for (start, end) in found {
            state.end(start);
            state.begin(start..range.start);
            state.begin(range.end..end);
        }
    }

    /// A block was handed out.
    pub fn add_block(&self, address: usize, bytes: usize) {
        let mut state = lock(&self.0);
        if let Some(heap) = state.heap_of(address) {
            heap.add(address, bytes);
            state.blocks.insert(address, bytes);
        }
    }

    /// A block is about to be taken back.
    pub fn remove_block(&self, address: usize) {
        let mut state = lock(&self.0);
        if state.blocks.remove(&address).is_some()
            && let Some(heap) = state.heap_of(address)
        {
            heap.remove(address);
        }
    }
}

impl State {
    fn heap_of(&self, address: usize) -> Option<Heap> {
        let (_, (end, heap)) = self.heaps.range(..=address).next_back()?;
        (address < *end).then_some(*heap)
    }

    /// Tells of a segment, with the blocks that are live there.
    fn begin(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let Some(heap) = Heap::register(range.start, range.len()) else {
            self.absent = true;
            return;
        };
        for (address, bytes) in self.blocks.range(range.clone()) {
            heap.add(*address, *bytes);
        }
        self.heaps.insert(range.start, (range.end, heap));
    }

    /// The segment that starts there is not there any more; its end.
    fn end(&mut self, start: usize) -> Option<usize> {
        let (end, heap) = self.heaps.remove(&start)?;
        heap.unregister();
        Some(end)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::{Config, MemoryManager, Stream};

    #[test]
    fn without_a_tool_nobody_listens() {
        assert!(!Annotations::default().add_segment(0x1000..0x2000, false));
        let manager = MemoryManager::new(Config::default()).unwrap();
        let stream = Stream::new().unwrap();
        let guard = manager.device::<u8>(1000, &stream).unwrap();
        assert!(!manager.inner.listens());
        drop(guard);
    }
}
