//! The ordering checker knows physical memory wherever it is mapped: it sees a chunk that moves while work may still touch it.
//! A process of its own, as all that make mistakes.
#![cfg(feature = "sim")]

mod common;

use common::{MIB, stall};
use cudart_sim::{Check, FindingKind};
use memmgr::{
    Config, DeviceSource, MemoryManager, Stream,
    planted::{self, Mistake},
};
use memmgr_tests::Gate;

/// Two blocks apart from each other are freed behind work that writes them; another stream wants a block as long as both.
fn program() -> u64 {
    let config = Config::default()
        .device_source(DeviceSource::Virtual)
        .device_growth(2 * MIB);
    let mm = MemoryManager::new(config).unwrap();
    let [a, b] = [(); 2].map(|()| Stream::new().unwrap());
    let blocks = [(); 3].map(|()| mm.allocate_device_on(2 * MIB, &a).unwrap());
    let gate = Gate::new();
    stall(&a, &gate);
    for block in [blocks[0], blocks[2]] {
        // SAFETY: the stream orders the work; nobody uses the blocks after their free.
        unsafe {
            mm.memset(block, 1, 2 * MIB, &a).unwrap();
            mm.free_device_on(block, &a).unwrap();
        }
    }
    let large = mm.allocate_device_on(4 * MIB, &b).unwrap();
    let moves = mm.stats().device[0].best_fit.moves;
    gate.open();
    // The chunks are mapped where they were, too.
    a.synchronize().unwrap();
    // SAFETY: nobody uses the blocks.
    unsafe {
        let _ = mm.free_device(large);
        let _ = mm.free_device(blocks[1]);
    }
    moves
}

#[test]
fn a_chunk_that_moves_under_pending_work_is_seen() {
    cudart_sim::check(Check::Off);
    cudart_sim::check(Check::Report);
    assert_eq!(planted::make(None, program), 0);
    let clean = cudart_sim::report();
    assert!(clean.is_empty(), "without the mistake: {clean:?}");
    assert!(planted::make(Some(Mistake::ChunksMoveUnderWork), program) > 0);
    let found = cudart_sim::report();
    let first = found.first().expect("the mistake was not seen");
    assert_eq!(first.kind, FindingKind::ReusedInUse, "{first}");
    // Of two chunks one lies where it did: the other is found at an address at which no work knows it.
    assert_eq!(found.len(), 2, "{found:?}");
    for finding in &found {
        assert_eq!(finding.kind, FindingKind::ReusedInUse, "{finding}");
    }
}
