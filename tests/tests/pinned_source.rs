//! Where pinned segments come from, and what becomes of requests where nothing can be page-locked.
#![cfg(feature = "sim")]

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, last_error};
use cudart_sim::{sys::cudaError, thread_calls_of};
use memmgr::{Config, Error, MemoryManager, PinnedSource, Stream};
use std::{
    ffi::c_void,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// One test at a time: whoever trims gives back what the managers of other tests have left, too.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    manager(Config::default()).trim().unwrap();
    turn
}

/// How often this thread has registered, unregistered, allocated and freed page-locked memory.
fn calls() -> [u64; 4] {
    [
        "cudaHostRegister",
        "cudaHostUnregister",
        "cudaHostAlloc",
        "cudaFreeHost",
    ]
    .map(thread_calls_of)
}

fn since(before: [u64; 4]) -> [u64; 4] {
    let now = calls();
    std::array::from_fn(|at| now[at] - before[at])
}

fn manager(config: Config) -> MemoryManager {
    MemoryManager::new(config).unwrap()
}

/// # Safety
/// `ptr` has so many bytes, which nobody writes.
unsafe fn is_zero(ptr: *const c_void, len: usize) -> bool {
    // SAFETY: as this function demands.
    unsafe { common::bytes(ptr, len) }
        .iter()
        .all(|byte| *byte == 0)
}

/// Whether the address is mapped in this process.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(from)..number(to)).contains(&address)
    })
}

#[test]
fn a_long_segment_is_registered_and_goes_back_whole() {
    let _turn = turn();
    let mm = manager(Config::default());
    let before = calls();
    let block = mm.allocate_pinned(20 * MIB).unwrap();
    assert_eq!(since(before), [1, 0, 0, 0]);
    // SAFETY: the block is ours.
    assert!(unsafe { is_zero(block, 20 * MIB) });
    assert!(mm.is_pinned(block) && mm.is_pinned(block.wrapping_byte_add(20 * MIB - 1)));
    assert!(is_mapped(block.addr()));
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(block).unwrap() };
    assert_eq!(mm.trim().unwrap(), 20 * MIB);
    assert_eq!(since(before), [1, 1, 0, 0]);
    assert!(!mm.is_pinned(block));
    assert_eq!(mm.stats().pinned.reserved, 0);
    assert_eq!(last_error(), 0);
}

#[test]
fn what_is_given_back_is_unmapped() {
    let _turn = turn();
    let mm = manager(Config::default());
    // So long that nothing else is mapped there at once.
    let block = mm.allocate_pinned(512 * MIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(block).unwrap() };
    let inside = block.addr() + 256 * MIB;
    assert!(is_mapped(inside));
    mm.trim().unwrap();
    assert!(!is_mapped(inside));
}

#[test]
fn short_segments_and_who_asks_for_it_get_them_from_cuda_host_alloc() {
    let _turn = turn();
    let short = Config::default().pinned_growth(MIB);
    let asked = Config::default().pinned_source(PinnedSource::HostAlloc);
    for (config, size) in [(short, MIB), (asked, 20 * MIB)] {
        let mm = manager(config);
        let before = calls();
        let block = mm.allocate_pinned(size).unwrap();
        // SAFETY: the block is ours, and nobody uses it afterwards.
        unsafe {
            assert!(is_zero(block, size) && mm.is_pinned(block));
            mm.free_pinned(block).unwrap();
        }
        mm.trim().unwrap();
        assert_eq!(since(before), [0, 0, 1, 1]);
    }
}

#[test]
fn what_cannot_be_registered_comes_from_cuda_host_alloc() {
    let _turn = turn();
    for code in [
        cudaError::cudaErrorMemoryAllocation,
        cudaError::cudaErrorNotSupported,
    ] {
        let mm = manager(Config::default());
        let before = calls();
        let fault = cudart_sim::fail("cudaHostRegister", code);
        let block = mm.allocate_pinned(8 * MIB).unwrap();
        assert_eq!((fault.fired(), last_error()), (1, 0));
        drop(fault);
        // SAFETY: the block is ours, and nobody uses it afterwards.
        unsafe {
            assert!(is_zero(block, 8 * MIB) && mm.is_pinned(block));
            mm.free_pinned(block).unwrap();
        }
        mm.trim().unwrap();
        assert_eq!(since(before), [1, 0, 1, 1]);
    }
}

#[test]
fn an_error_of_others_is_named_when_both_ways_fail() {
    let _turn = turn();
    let mm = manager(Config::default());
    common::checks::leave_foreign_error();
    let fault = nothing_pinned(cudaError::cudaErrorInvalidValue);
    match mm.allocate_pinned(8 * MIB).unwrap_err() {
        Error::Cuda {
            call, also_pending, ..
        } => {
            assert_eq!((call, also_pending), ("cudaHostAlloc", Some(101)));
        }
        other => panic!("{other}"),
    }
    assert!(fault.iter().all(|fault| fault.fired() == 1));
    assert_eq!(last_error(), 0);
}

/// Nothing can be page-locked as long as the answer lives.
fn nothing_pinned(code: cudaError) -> [cudart_sim::Fault; 2] {
    ["cudaHostRegister", "cudaHostAlloc"].map(|name| cudart_sim::fail(name, code).times(1000))
}

#[test]
fn where_nothing_can_be_page_locked_pageable_memory_serves_who_wants_that() {
    let _turn = turn();
    let stream = Stream::new().unwrap();
    for size in [100, 64 * KIB, 20 * MIB] {
        let mm = manager(Config::default().pinned_fallback(true));
        let fault = nothing_pinned(cudaError::cudaErrorMemoryAllocation);
        let block = mm.allocate_pinned(size).unwrap();
        assert_eq!(mm.stats().pinned.failures, 0, "it was served");
        // SAFETY: the block is ours; the stream has finished before it is freed.
        unsafe {
            assert!(is_zero(block, size));
            assert!(!mm.is_pinned(block));
            let device = mm.allocate_device_on(size, &stream).unwrap();
            common::bytes_mut(block, size).fill(7);
            mm.copy_to_device_async(device, block, size, &stream)
                .unwrap();
            mm.memset(device, 9, 1, &stream).unwrap();
            mm.copy_to_host_async(block, device, size, &stream).unwrap();
            stream.synchronize().unwrap();
            let bytes = common::bytes(block, size);
            assert!(bytes[0] == 9 && bytes[1..].iter().all(|byte| *byte == 7));
            mm.free_device_on(device, &stream).unwrap();
            mm.free_pinned(block).unwrap();
        }
        drop(fault);
        stream.synchronize().unwrap();
        assert_sound(&mm);
        let inside = block.addr();
        assert!(mm.trim().unwrap() >= size);
        assert_eq!((mm.stats().pinned.reserved, last_error()), (0, 0));
        // What comes now is page-locked.
        let block = mm.allocate_pinned(size).unwrap();
        assert!(mm.is_pinned(block), "{inside:#x}");
        // SAFETY: nobody uses the block.
        unsafe { mm.free_pinned(block).unwrap() };
        mm.shutdown().unwrap();
    }
}

#[test]
fn a_configured_size_that_cannot_be_page_locked_is_pageable_too() {
    let _turn = turn();
    let config = Config::default()
        .pinned_pool_size(16 * MIB)
        .pinned_fallback(true);
    let mm = manager(config);
    let fault = nothing_pinned(cudaError::cudaErrorMemoryAllocation);
    let block = mm.allocate_pinned(MIB).unwrap();
    drop(fault);
    assert!(!mm.is_pinned(block));
    assert_eq!(mm.stats().pinned.reserved, 16 * MIB);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(block).unwrap() };
    assert_sound(&mm);
}

#[test]
fn pageable_memory_is_no_way_around_a_limit_or_other_errors_and_is_off_by_default() {
    let _turn = turn();
    let mm = manager(Config::default());
    let fault = nothing_pinned(cudaError::cudaErrorMemoryAllocation);
    assert!(mm.allocate_pinned(8 * MIB).unwrap_err().is_out_of_memory());
    drop(fault);

    let config = Config::default()
        .pinned_pool_limit(Some(8 * MIB))
        .pinned_fallback(true);
    let mm = manager(config);
    let block = mm.allocate_pinned(8 * MIB).unwrap();
    assert!(mm.allocate_pinned(MIB).unwrap_err().is_out_of_memory());
    assert_eq!(mm.stats().pinned.failures, 1);
    assert!(matches!(
        mm.allocate_pinned(9 * MIB),
        Err(Error::LimitExceeded { .. })
    ));
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(block).unwrap() };

    let mm = manager(Config::default().pinned_fallback(true));
    let fault = nothing_pinned(cudaError::cudaErrorInvalidValue);
    let error = mm.allocate_pinned(8 * MIB).unwrap_err();
    assert_eq!(error.cuda_code(), Some(1), "{error}");
    drop(fault);
    assert_eq!(last_error(), 0);
}

#[test]
fn only_page_locked_memory_is_pinned() {
    let _turn = turn();
    let mm = manager(Config::default());
    let stream = Stream::new().unwrap();
    let adopted = mm.adopt(vec![1u8; 4096]).unwrap();
    assert!(mm.is_pinned(adopted.as_ptr().cast()));
    let device = mm.device::<u8>(4096, &stream).unwrap();
    let vector = vec![0u8; 4096];
    for other in [device.as_ptr().cast_const().cast(), vector.as_ptr().cast()] {
        assert!(!mm.is_pinned(other));
    }
    assert!(!mm.is_pinned(std::ptr::null()));
    let _ = rig::mem_get_info();
}

#[test]
fn segments_that_are_registered_and_given_back_by_several_threads_stay_apart() {
    let _turn = turn();
    let mm = manager(Config::default().pinned_growth(4 * MIB));
    std::thread::scope(|scope| {
        for number in 0..4u8 {
            let mm = &mm;
            scope.spawn(move || {
                for round in 0..12 {
                    let block = mm.allocate_pinned(4 * MIB).unwrap();
                    // SAFETY: the block is this thread's, and nobody uses it afterwards.
                    unsafe {
                        common::bytes_mut(block, 4 * MIB).fill(number);
                        assert!(
                            common::bytes(block, 4 * MIB)
                                .iter()
                                .all(|byte| *byte == number)
                        );
                        mm.free_pinned(block).unwrap();
                    }
                    if round % 3 == 0 {
                        mm.trim().unwrap();
                    }
                }
            });
        }
    });
    assert_sound(&mm);
    mm.trim().unwrap();
    assert_eq!(mm.stats().pinned.reserved, 0);
}
