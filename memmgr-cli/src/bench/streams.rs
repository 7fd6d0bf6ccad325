//! The random workload on several streams: each block is allocated on a stream that is drawn, and freed on
//! the same.

use std::ffi::c_void;
use std::io::Write;

use memmgr::Stream;

use super::Bench;
use super::loops::Random;
use super::subject::{Device, Null, Subject, with_pool};
use super::turns::{Label, PASSES, measure, on};
use crate::error::Result;
use crate::rng::Rng;

/// Draws the streams, beside the numbers of the workload.
const SEED: u64 = 43;

/// One allocator for each stream. Blocks are aligned to more than their number, so that the lowest bits of
/// a block's address say whose it is.
struct Drawn<S> {
    each: Vec<S>,
    rng: Rng,
}

impl<S: Subject> Drawn<S> {
    fn new(each: Vec<S>) -> Self {
        Self {
            each,
            rng: Rng::new(SEED),
        }
    }
}

impl<S: Subject> Subject for Drawn<S> {
    fn allocate(&mut self, size: usize) -> *mut c_void {
        let index = self.rng.below(self.each.len());
        let block = self.each[index].allocate(size);
        if block.is_null() {
            return block;
        }
        block.map_addr(|address| address | index)
    }

    fn free(&mut self, block: *mut c_void) {
        let index = block.addr() % 256;
        self.each[index].free(block.map_addr(|address| address - index));
    }

    fn verdict(&mut self) -> Result<()> {
        self.each.iter_mut().try_for_each(Subject::verdict)
    }

    fn peak_reserved(&self) -> Option<u64> {
        self.each.first().and_then(Subject::peak_reserved)
    }
}

pub fn run<W: Write>(bench: &mut Bench<'_, W>) -> Result<()> {
    let passes = bench.passes(PASSES);
    let text = "random on K streams, each block on one that is drawn; ns per call";
    bench.heading("streams", text, passes)?;
    let blocks = if bench.quick() { 1000 } else { 10_000 };
    let shape = Random { blocks, max_mib: 1 };
    for count in [1, 4, 64] {
        let label = Label {
            workload: "streams",
            case: &format!("K={count} n={blocks}"),
            unit: "ns/op",
        };
        let found = with_pool(|manager| {
            let streams = (0..count).map(|_| Stream::new());
            let streams = streams.collect::<Result<Vec<_>, _>>()?;
            let each = streams.iter().map(|stream| Device::new(manager, stream));
            let ours = on("memmgr", Drawn::new(each.collect()), &shape);
            let null = on("null", Drawn::new(vec![Null::new(); count]), &shape);
            measure(label, passes, vec![ours, null])
        })?;
        bench.report(found)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::loops;
    use super::super::reference::Tree;
    use super::*;

    /// Fails for a block that is not its own.
    struct Own(Tree, std::collections::BTreeSet<usize>);

    impl Subject for Own {
        fn allocate(&mut self, size: usize) -> *mut c_void {
            let block = self.0.allocate(size);
            assert!(self.1.insert(block.addr()));
            block
        }

        fn free(&mut self, block: *mut c_void) {
            assert!(self.1.remove(&block.addr()), "freed where it came from");
            self.0.free(block);
        }
    }

    #[test]
    fn a_block_is_freed_on_the_stream_of_its_allocation() {
        let each = (0..64).map(|_| Own(Tree::new(), Default::default()));
        let mut drawn = Drawn::new(each.collect());
        let shape = Random {
            blocks: 2000,
            max_mib: 1,
        };
        let pass = loops::random(&mut drawn, shape);
        assert_eq!(pass.operations, 4000);
        assert!(drawn.each.iter().all(|own| own.1.is_empty()));
    }
}
