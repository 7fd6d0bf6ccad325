//! Guards, graphs and events that several threads have to do with.

use crate::show::*;
use memmgr::{Config, DeviceSource, MemoryManager, Stream};
use std::sync::Arc;

/// Two threads copy into the halves of one block, and drop them; a third wants the memory.
fn halves() {
    let manager = Arc::new(pool_of(512));
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let whole = manager.device::<u8>(512, &a).unwrap();
    let (left, right) = whole.split_at(256).unwrap();
    let work = Flag::default();
    let seen = work.clone();
    join([
        start(move || drop(a.memset(&left, 1).unwrap())),
        start(move || {
            seen.set_by(&b);
            drop(b.memset(&right, 2).unwrap());
        }),
    ]);
    let c = Stream::new().unwrap();
    let next = manager.device::<u8>(512, &c).unwrap();
    let _ = c.memset(&next, 3).unwrap();
    let ran = work.needed_by(&c);
    c.synchronize().unwrap();
    assert!(ran.is_set(), "a block was handed out while a copy used it");
    drop(next);
    sound_and_empty(&manager);
}

#[test]
fn the_parts_of_a_block_may_go_on_different_threads_while_copies_use_them() {
    everywhere("halves", 2, halves);
}

/// A guard is dropped on one thread, while another records a copy from it: it has the last share.
fn shared_guard() {
    let manager = Arc::new(pool_of(512));
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let source = Arc::new(manager.device::<u8>(256, &a).unwrap());
    let _ = a.memset(&*source, 1).unwrap();
    let target = manager.device::<u8>(256, &b).unwrap();
    let (other, wants) = (source.clone(), manager.clone());
    join([
        start(move || {
            let _ = b.copy_device_to_device(&*other, &target).unwrap();
        }),
        start(move || drop(source)),
        start(move || {
            let c = Stream::new().unwrap();
            if let Ok(next) = wants.device::<u8>(256, &c) {
                let _ = c.memset(&next, 3).unwrap();
            }
        }),
    ]);
    sound_and_empty(&manager);
}

#[test]
fn a_guard_may_go_on_one_thread_while_another_records_a_copy() {
    everywhere("shared guard", 2, shared_guard);
}

/// Pinned memory: its copy is recorded and both go while another thread takes pinned memory and writes it.
fn pinned() {
    let config = Config::default()
        .device_source(DeviceSource::Malloc)
        .pinned_pool_size(256)
        .pinned_pool_limit(Some(512));
    let manager = Arc::new(MemoryManager::new(config).unwrap());
    let a = Stream::new().unwrap();
    let target = manager.device::<u8>(256, &a).unwrap();
    let mut source = manager.pinned::<u8>(256).unwrap();
    source.as_mut_slice().unwrap().fill(1);
    let other = manager.clone();
    join([
        start(move || {
            let _ = a.copy_to_device(&source, &target).unwrap();
        }),
        start(move || {
            let mut mine = other.pinned::<u8>(256).unwrap();
            mine.as_mut_slice().unwrap().fill(2);
        }),
    ]);
    sound_and_empty(&manager);
}

#[test]
fn pinned_memory_is_written_again_after_its_copies_only() {
    everywhere("pinned", 2, pinned);
}

/// A graph is launched and goes, and meanwhile the guard whose block it keeps; the memory is wanted.
fn kept() {
    let manager = Arc::new(pool_of(256));
    let a = Stream::new().unwrap();
    let guard = manager.device::<u8>(256, &a).unwrap();
    let mut graph = a.capture(|a| a.memset(&guard, 1).map(drop)).unwrap();
    let wants = manager.clone();
    join([
        start(move || {
            // SAFETY: the graph uses nothing but the block, which it keeps.
            let _ = unsafe { graph.launch(&a) }.unwrap();
            drop(graph);
        }),
        start(move || drop(guard)),
        start(move || {
            let b = Stream::new().unwrap();
            // As long as the graph or the guard is there, there is none.
            if let Ok(next) = wants.device::<u8>(256, &b) {
                let _ = b.memset(&next, 2).unwrap();
            }
        }),
    ]);
    sound_and_empty(&manager);
}

#[test]
fn blocks_that_a_graph_keeps_may_be_freed_while_the_graph_goes() {
    everywhere("kept", 2, kept);
}

/// Events are recorded, asked and dropped by two threads.
fn events() {
    let uses = || {
        let s = Stream::new().unwrap();
        let work = Flag::default();
        work.set_by(&s);
        let (first, second) = (s.record().unwrap(), s.record().unwrap());
        drop(first);
        second.synchronize().unwrap();
        assert!(work.is_set());
    };
    join([start(uses), start(uses)]);
}

#[test]
fn events_of_the_cache_belong_to_one_at_a_time() {
    everywhere("events", 2, events);
}
