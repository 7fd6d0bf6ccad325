//! Pools: growth, reuse across streams, giving memory back.

use crate::explore::{all, drawn};
use crate::show::*;
use memmgr::{Config, DeviceSource, Error, MemoryManager, Stream};
use std::sync::Arc;

// Device memory is of `cudaMalloc` here: one call grows a pool, so that the search stays short.
const BLOCK: usize = 256;

fn growths(manager: &MemoryManager) -> u64 {
    manager
        .stats()
        .device
        .iter()
        .map(|d| d.best_fit.growths)
        .sum()
}

/// Nothing is there yet, and two threads want a block.
fn two_misses() {
    let manager = Arc::new(
        MemoryManager::new(
            Config::default()
                .device_source(DeviceSource::Malloc)
                .device_growth(4096),
        )
        .unwrap(),
    );
    let wants = |manager: &Arc<MemoryManager>| {
        let manager = manager.clone();
        move || Block(manager.allocate_device(BLOCK).unwrap()).free(&manager)
    };
    join([start(wants(&manager)), start(wants(&manager))]);
    assert_eq!(growths(&manager), 1);
    sound_and_empty(&manager);
}

fn two_first_requests() {
    let manager = Arc::new(pool_of(2 * BLOCK));
    let wants = |manager: &Arc<MemoryManager>| {
        let manager = manager.clone();
        move || Block(manager.allocate_device(BLOCK).unwrap()).free(&manager)
    };
    join([start(wants(&manager)), start(wants(&manager))]);
    assert_eq!(growths(&manager), 1);
    sound_and_empty(&manager);
}

#[test]
fn two_threads_that_find_nothing_make_the_pool_grow_once() {
    everywhere("two misses", 2, two_misses);
    everywhere("two first requests", 2, two_first_requests);
}

/// All that a pool has was freed on a stream that is still at work.
fn freed_elsewhere(blocks: usize) -> (Arc<MemoryManager>, Stream, Flag) {
    let manager = Arc::new(pool_of(blocks * BLOCK));
    let (a, work) = (Stream::new().unwrap(), Flag::default());
    let mut all: Vec<Block> = (0..blocks)
        .map(|_| Block::on(&manager, BLOCK, &a))
        .collect();
    work.set_by(&a);
    all.drain(..).for_each(|block| block.free_on(&manager, &a));
    (manager, a, work)
}

fn takes_on_stream(manager: &Arc<MemoryManager>, work: &Flag) -> impl FnOnce() + Send + 'static {
    let (manager, work) = (manager.clone(), work.clone());
    move || {
        let b = Stream::new().unwrap();
        let block = Block::on(&manager, BLOCK, &b);
        let ran = work.needed_by(&b);
        block.free_on(&manager, &b);
        b.synchronize().unwrap();
        assert!(ran.is_set(), "memory was used before its last owner's work");
    }
}

fn takes_on_host(manager: &Arc<MemoryManager>, work: &Flag) -> impl FnOnce() + Send + 'static {
    let (manager, work) = (manager.clone(), work.clone());
    move || {
        let block = Block(manager.allocate_device(BLOCK).unwrap());
        assert!(
            work.is_set(),
            "memory was handed out before its last owner's work"
        );
        block.free(&manager);
    }
}

fn reuse() {
    let (manager, _a, work) = freed_elsewhere(1);
    join([start(takes_on_stream(&manager, &work))]);
    sound_and_empty(&manager);
}

fn reuse_by_all() {
    let (manager, a, work) = freed_elsewhere(3);
    let (mine, theirs) = (manager.clone(), a.clone());
    let goes_on = move || Block::on(&mine, BLOCK, &theirs).free_on(&mine, &theirs);
    join([
        start(takes_on_stream(&manager, &work)),
        start(takes_on_host(&manager, &work)),
        start(goes_on),
    ]);
    sound_and_empty(&manager);
}

fn reuse_while_the_stream_goes() {
    let (manager, a, work) = freed_elsewhere(2);
    join([
        start(takes_on_stream(&manager, &work)),
        start(takes_on_host(&manager, &work)),
        start(move || drop(a)),
    ]);
    sound_and_empty(&manager);
}

#[test]
fn memory_that_another_stream_freed_is_used_after_that_streams_work() {
    everywhere("reuse", 2, reuse);
    everywhere("reuse by all", 2, reuse_by_all);
    everywhere(
        "reuse while the stream goes",
        2,
        reuse_while_the_stream_goes,
    );
}

/// One thread allocates and frees, one trims, one shuts down.
fn given_back_meanwhile() {
    let manager = Arc::new(
        MemoryManager::new(
            Config::default()
                .device_source(DeviceSource::Malloc)
                .device_growth(4096),
        )
        .unwrap(),
    );
    let a = Stream::new().unwrap();
    Block::on(&manager, BLOCK, &a).free_on(&manager, &a);
    let (users, trims, shuts) = (manager.clone(), manager.clone(), manager.clone());
    join([
        start(move || {
            let block = Block::on(&users, BLOCK, &a);
            let other = Block(users.allocate_device(BLOCK).unwrap());
            block.free_on(&users, &a);
            other.free(&users);
        }),
        start(move || assert!(trims.trim().is_ok())),
        start(move || assert!(shuts.shutdown().is_ok())),
    ]);
    sound_and_empty(&manager);
    manager.shutdown().unwrap();
    assert_eq!(manager.stats().device[0].best_fit.reserved, 0);
}

#[test]
fn memory_may_be_given_back_while_others_allocate_and_free() {
    all("given back meanwhile", 2, EAGER, given_back_meanwhile);
    drawn("given back meanwhile", EAGER, given_back_meanwhile);
    drawn("given back meanwhile, lazy", LAZY, given_back_meanwhile);
}

/// There is one block for two threads: one has it, and the other gets it too or is told that there is none.
fn one_for_two() {
    let manager = Arc::new(pool_of(BLOCK));
    let wants = |manager: &Arc<MemoryManager>| {
        let manager = manager.clone();
        move || {
            let s = Stream::new().unwrap();
            match manager.allocate_device_on(BLOCK, &s) {
                Ok(block) => {
                    Block(block).fill(&manager, BLOCK, &s);
                    Block(block).free_on(&manager, &s);
                }
                Err(error) => assert!(matches!(error, Error::OutOfMemory(_)), "{error}"),
            }
        }
    };
    join([start(wants(&manager)), start(wants(&manager))]);
    sound_and_empty(&manager);
    Block(manager.allocate_device(BLOCK).unwrap()).free(&manager);
}

#[test]
fn two_threads_that_want_the_only_block_leave_sound_books() {
    everywhere("one for two", 2, one_for_two);
}

/// A manager is dropped while another one looks for what dropped managers have left.
fn a_manager_goes() {
    let (manager, a, work) = freed_elsewhere(1);
    let manager = Arc::into_inner(manager).unwrap();
    let other = Arc::new(pool_of(BLOCK));
    let theirs = other.clone();
    join([
        start(move || drop(manager)),
        start(move || {
            theirs.trim().unwrap();
            Block(theirs.allocate_device(BLOCK).unwrap()).free(&theirs);
        }),
        start(move || drop(a)),
    ]);
    other.shutdown().unwrap();
    assert!(work.is_set(), "segments were given back before the work");
    sound_and_empty(&other);
}

#[test]
fn what_a_dropped_manager_leaves_is_given_back_after_its_work() {
    everywhere("a manager goes", 2, a_manager_goes);
}
