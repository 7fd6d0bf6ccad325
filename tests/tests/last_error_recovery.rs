//! An error that the manager handled leaves nothing behind for somebody else's check.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{MIB, assert_sound, last_error, manager};
use memmgr::{Config, DeviceSource, Error, MemoryManager, Stream};
use std::sync::{Mutex, PoisonError};

/// Who asks for all memory of a GPU takes it from others meanwhile, where that is more than they can spare.
static ALL_MEMORY: Mutex<()> = Mutex::new(());

fn assert_clean(mm: &MemoryManager, what: &str) {
    assert_eq!(last_error(), 0, "{what} left an error behind");
    let stream = Stream::new().unwrap();
    let block = mm.allocate_device_on(4096, &stream).unwrap();
    // SAFETY: the block is ours and has 4096 bytes.
    unsafe {
        mm.memset(block, 0x3C, 4096, &stream).unwrap();
        rig::assert_all(&rig::read_back(mm, block, 4096, &stream), 0x3C, what);
        mm.free_device_on(block, &stream).unwrap();
    }
    assert_eq!(last_error(), 0, "{what}: afterwards");
}

/// B45 (a)
#[cfg(feature = "sim")]
#[test]
fn a_refused_segment_that_a_trim_made_room_for_leaves_no_error() {
    use cudart_sim::sys::cudaError;
    let config = Config::default().device_source(DeviceSource::Malloc);
    let mm = MemoryManager::new(config.device_growth(2 * MIB)).unwrap();
    let stream = Stream::new().unwrap();
    let cached = mm.allocate_device_on(2 * MIB, &stream).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(cached, &stream).unwrap() };
    stream.synchronize().unwrap();
    // So much longer that the cached segment is no part of it worth giving back first.
    let fault = cudart_sim::fail("cudaMalloc", cudaError::cudaErrorMemoryAllocation);
    let block = mm.allocate_device_on(32 * MIB, &stream).unwrap();
    assert_eq!(fault.fired(), 1);
    let stats = mm.stats().device[0].best_fit;
    assert_eq!(
        stats.reserved,
        32 * MIB,
        "the cached segment was given back"
    );
    assert_clean(&mm, "a request that succeeded after a trim");
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(block, &stream).unwrap() };
    mm.shutdown().unwrap();
}

/// B45 (a): the same for pinned memory.
#[cfg(feature = "sim")]
#[test]
fn a_refused_pinned_segment_that_a_trim_made_room_for_leaves_no_error() {
    use cudart_sim::sys::cudaError;
    let config = Config::default()
        .pinned_growth(2 * MIB)
        .pinned_source(memmgr::PinnedSource::HostAlloc);
    let mm = MemoryManager::new(config).unwrap();
    let cached = mm.allocate_pinned(2 * MIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(cached).unwrap() };
    let fault = cudart_sim::fail("cudaHostAlloc", cudaError::cudaErrorMemoryAllocation);
    let block = mm.allocate_pinned(4 * MIB).unwrap();
    assert_eq!(fault.fired(), 1);
    assert_eq!(mm.stats().pinned.reserved, 4 * MIB);
    assert_clean(&mm, "a pinned request that succeeded after a trim");
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(block).unwrap() };
    mm.shutdown().unwrap();
}

/// B45 (b)
#[test]
fn a_request_above_all_memory_is_refused_and_leaves_no_error() {
    let _turn = ALL_MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    for mode in rig::modes() {
        let mm = common::manager_in(*mode);
        let stream = Stream::new().unwrap();
        let (_, total) = rig::mem_get_info();
        for result in [
            mm.allocate_device(2 * total),
            mm.allocate_device_on(2 * total, &stream),
            mm.device::<u8>(2 * total, &stream).map(|b| b.as_ptr()),
        ] {
            match result {
                Err(Error::OutOfMemory(oom)) => {
                    assert_eq!(oom.requested, 2 * total);
                    assert!(!oom.can_ever_fit(), "{mode}: {oom}");
                }
                other => panic!("{mode}: {other:?}"),
            }
            assert_eq!(last_error(), 0, "{mode}");
        }
        assert_eq!(mm.stats().in_use(), 0);
        assert_clean(&mm, "a request above all memory");
        mm.shutdown().unwrap();
        assert_sound(&mm);
    }
}

/// B45 (c): up to a cap of the test's own, since the machine may be shared.
#[test]
fn after_memory_has_run_out_and_all_is_freed_everything_works_again() {
    let _turn = ALL_MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    // A small block anywhere in a pool of one piece takes a page.
    for (source, page) in [(DeviceSource::Malloc, 0), (DeviceSource::Auto, 2 * MIB)] {
        run_out_and_recover(source, 8 * 64 * MIB, page);
    }
}

fn run_out_and_recover(source: DeviceSource, all: usize, page: usize) {
    let cap = all + page;
    let config = Config::default().device_source(source);
    let mm = MemoryManager::new(config.device_pool_limit(Some(cap))).unwrap();
    let stream = Stream::new().unwrap();
    for _ in 0..2 {
        let mut blocks = Vec::new();
        let refusal = loop {
            match mm.allocate_device_on(64 * MIB, &stream) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
            assert!(blocks.len() <= 8, "the limit is not kept");
        };
        match refusal {
            Error::OutOfMemory(oom) => {
                assert_eq!((oom.in_use, oom.limit), (all, Some(cap)), "{oom}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(blocks.len(), 8);
        assert_eq!(last_error(), 0);
        for block in blocks {
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &stream).unwrap() };
        }
        assert_clean(&mm, "running out of memory");
    }
    assert_sound(&mm);
    mm.shutdown().unwrap();
    assert_eq!(mm.stats().device[0].best_fit.reserved, 0);
}

/// Design 5.7: an error of others stays where it is while the manager's calls succeed.
#[test]
fn an_error_that_others_left_stays_for_them() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let warm = mm.allocate_device_on(MIB, &stream).unwrap();
    // SAFETY: any ordinal may be passed.
    assert_eq!(unsafe { cuda_sys::cudaSetDevice(9999) }.0, 101);
    // SAFETY: the blocks are ours and nobody uses them.
    unsafe {
        mm.memset(warm, 1, MIB, &stream).unwrap();
        mm.free_device_on(warm, &stream).unwrap();
        let block = mm.allocate_device(8 * MIB).unwrap();
        mm.free_device(block).unwrap();
        let host = mm.allocate_pinned(MIB).unwrap();
        mm.free_pinned(host).unwrap();
    }
    assert!(stream.query().is_ok());
    stream.synchronize().unwrap();
    mm.trim().unwrap();
    mm.shutdown().unwrap();
    assert_eq!(
        last_error(),
        101,
        "the manager swallowed somebody else's error"
    );
    // SAFETY: the function has no preconditions.
    unsafe { cuda_sys::cudaGetLastError() };
}

/// Asking whether work has finished is no error.
#[test]
fn unfinished_work_leaves_no_error() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let other = Stream::new().unwrap();
    let block = mm.allocate_device_on(MIB, &stream).unwrap();
    let gate = memmgr_tests::Gate::new();
    common::stall(&stream, &gate);
    let event = stream.record().unwrap();
    assert!(!event.is_done().unwrap());
    assert!(!stream.query().unwrap());
    // SAFETY: the blocks are ours and nobody uses them.
    unsafe {
        mm.free_device_on(block, &stream).unwrap();
        let block = mm.allocate_device_on(MIB, &other).unwrap();
        mm.free_device_on(block, &other).unwrap();
    }
    assert_eq!(last_error(), 0);
    gate.open();
    stream.synchronize().unwrap();
    mm.shutdown().unwrap();
}
