//! Pools of virtual memory: one thread maps and moves at a time, and nobody gets what is being moved.

use crate::explore::{all, drawn};
use crate::show::*;
use memmgr::{Config, DeviceSource, MemoryManager, PoolStats};
use std::sync::Arc;

/// A chunk of the smallest kind.
const CHUNK: usize = 2 << 20;

/// A manager whose device pool may have so many chunks.
fn mapped(chunks: usize) -> Arc<MemoryManager> {
    let config = Config::default()
        .device_source(DeviceSource::Virtual)
        .device_growth(CHUNK)
        .device_pool_limit(Some(chunks * CHUNK));
    Arc::new(MemoryManager::new(config).unwrap())
}

fn stats(manager: &MemoryManager) -> PoolStats {
    manager.stats().device[0].best_fit
}

/// Allocates without a stream and frees.
fn wants(manager: &Arc<MemoryManager>, bytes: usize) -> impl FnOnce() + Send + 'static {
    let manager = manager.clone();
    move || Block(manager.allocate_device(bytes).unwrap()).free(&manager)
}

/// Nothing is there yet.
fn two_misses() {
    let manager = mapped(1);
    join([start(wants(&manager, 256)), start(wants(&manager, 256))]);
    assert_eq!(stats(&manager).growths, 1);
    sound_and_empty(&manager);
}

/// Four chunks, of which the first and the third are idle, and a limit.
fn with_holes(most: usize) -> (Arc<MemoryManager>, [Block; 2]) {
    let manager = mapped(most);
    let blocks = [(); 4].map(|()| Block(manager.allocate_device(CHUNK).unwrap()));
    blocks[0].free(&manager);
    blocks[2].free(&manager);
    (manager, [blocks[1], blocks[3]])
}

/// One needs both holes in one piece, another needs one of them.
fn taken_while_it_moves() {
    let (manager, live) = with_holes(5);
    join([
        start(wants(&manager, 2 * CHUNK)),
        start(wants(&manager, CHUNK)),
    ]);
    live.iter().for_each(|block| block.free(&manager));
    assert!(stats(&manager).reserved <= 5 * CHUNK);
    sound_and_empty(&manager);
}

/// As before, while all that is idle is given back.
fn given_back_while_it_moves() {
    let (manager, live) = with_holes(5);
    let trims = manager.clone();
    join([
        start(wants(&manager, 2 * CHUNK)),
        start(move || assert!(trims.trim().is_ok())),
    ]);
    live.iter().for_each(|block| block.free(&manager));
    sound_and_empty(&manager);
    manager.shutdown().unwrap();
    assert_eq!(stats(&manager).reserved, 0);
}

/// Both need more than one hole.
fn two_move() {
    let (manager, [first, last]) = with_holes(6);
    let mine = manager.clone();
    join([
        start(wants(&manager, 2 * CHUNK)),
        start(move || {
            first.free(&mine);
            Block(mine.allocate_device(3 * CHUNK).unwrap()).free(&mine);
        }),
    ]);
    last.free(&manager);
    sound_and_empty(&manager);
}

#[test]
fn two_threads_that_find_nothing_map_memory_once() {
    everywhere("two misses, mapped", 2, two_misses);
}

#[test]
fn memory_that_moves_is_handed_to_nobody_meanwhile() {
    all("taken while it moves", 2, EAGER, taken_while_it_moves);
    drawn("taken while it moves", EAGER, taken_while_it_moves);
    all(
        "given back while it moves",
        2,
        EAGER,
        given_back_while_it_moves,
    );
    drawn(
        "given back while it moves",
        EAGER,
        given_back_while_it_moves,
    );
    all("two move", 2, EAGER, two_move);
    drawn("two move", EAGER, two_move);
}
