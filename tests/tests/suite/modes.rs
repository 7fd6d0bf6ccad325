//! Blocks are freed by the family of calls that made them, whatever the mode is by then (case B35).

use crate::common::{
    KIB, MODES, assert_sound, bytes,
    checks::{Kind, calls_of, current_device},
    last_error, manager_in,
};
use memmgr::{DeviceAllocatorMode, MemoryManager, Stream};
use std::{ffi::c_void, ptr::null_mut};

const SIZE: usize = 4 * KIB;

/// How a block leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    OnStream,
    OnOtherStream,
    Guard,
}

const WAYS: [Way; 4] = [Way::Plain, Way::OnStream, Way::OnOtherStream, Way::Guard];

/// What this thread made the simulated driver free: by `cudaFree` and `cudaFreeHost`, and by `cudaFreeAsync`.
#[cfg(feature = "sim")]
fn driver_frees() -> (u64, u64) {
    let of = cudart_sim::thread_calls_of;
    (of("cudaFree") + of("cudaFreeHost"), of("cudaFreeAsync"))
}

fn granted(manager: &MemoryManager, mode: DeviceAllocatorMode) -> DeviceAllocatorMode {
    if manager.supports_async_device_allocator().unwrap() {
        mode
    } else {
        DeviceAllocatorMode::BestFitPool
    }
}

/// Fills a block and reads it back: it must not have become anybody else's.
fn assert_holds(manager: &MemoryManager, ptr: *mut c_void, value: u8, stream: &Stream) {
    let host = manager.allocate_pinned(SIZE).unwrap();
    // SAFETY: both blocks are live and have `SIZE` bytes; the host reads after the copy.
    unsafe {
        manager.copy_to_host_async(host, ptr, SIZE, stream).unwrap();
        stream.synchronize().unwrap();
        assert!(
            bytes(host, SIZE).iter().all(|byte| *byte == value),
            "{value}"
        );
        manager.free_pinned(host).unwrap();
    }
}

/// Case B35: all ordered pairs of modes, all ways to free.
#[test]
fn a_block_is_freed_by_the_family_that_made_it_whatever_the_mode_is_now() {
    for before in MODES {
        for after in MODES {
            for way in WAYS {
                let what = format!("{before} then {after}, {way:?}");
                let manager = manager_in(before);
                let stream = Stream::new().unwrap();
                let other = Stream::new().unwrap();
                // The first allocation of a manager gets streams and events of its own.
                let warm = manager.allocate_device(1).unwrap();
                // SAFETY: nobody uses the block.
                unsafe { manager.free_device(warm).unwrap() };

                let mut blocks: Vec<Option<memmgr::DeviceBuffer<u8>>> = Vec::new();
                let mut pointers: Vec<*mut c_void> = Vec::new();
                for number in 0..4u8 {
                    if number == 3 {
                        manager.set_device_allocator_mode(after);
                        assert_eq!(manager.requested_device_allocator_mode(), after);
                        assert_eq!(
                            manager.effective_device_allocator_mode().unwrap(),
                            granted(&manager, after)
                        );
                    }
                    let ptr = if way == Way::Guard {
                        let buffer = manager.device::<u8>(SIZE, &stream).unwrap();
                        let ptr = buffer.as_ptr();
                        blocks.push(Some(buffer));
                        ptr
                    } else {
                        manager.allocate_device_on(SIZE, &stream).unwrap()
                    };
                    // SAFETY: the block is live and has `SIZE` bytes.
                    unsafe { manager.memset(ptr, number, SIZE, &stream).unwrap() };
                    pointers.push(ptr);
                }
                for mode in MODES {
                    let wanted = 3 * usize::from(mode == granted(&manager, before))
                        + usize::from(mode == granted(&manager, after));
                    let stats = Kind::Device(mode).stats(&manager);
                    assert_eq!(stats.live_blocks, wanted, "{what}: {mode}");
                    assert_eq!(stats.in_use, wanted * SIZE, "{what}: {mode}");
                }
                let own = Kind::Device(DeviceAllocatorMode::BestFitPool).stats(&manager);
                if granted(&manager, before) == DeviceAllocatorMode::BestFitPool {
                    assert!(own.splits >= 3, "{what}: one segment was split");
                    assert_eq!(own.segments, 1, "{what}");
                }
                for (number, ptr) in pointers.iter().enumerate() {
                    assert_holds(&manager, *ptr, number as u8, &stream);
                }

                // Mixed order; the mode changes once more on the way.
                let native = 4 - own.live_blocks as u64;
                #[cfg(feature = "sim")]
                let frees = driver_frees();
                for number in [2, 3, 0, 1] {
                    let ptr = pointers[number];
                    // SAFETY: nobody uses the blocks; their work is in `stream`, for which `other` is made to wait.
                    let ((), calls) = calls_of(|| unsafe {
                        match way {
                            Way::Plain => manager.free_device(ptr).unwrap(),
                            Way::OnStream => manager.free_device_on(ptr, &stream).unwrap(),
                            Way::OnOtherStream => {
                                manager.free_device_on(ptr, &other).unwrap();
                            }
                            Way::Guard => drop(blocks[number].take()),
                        }
                    });
                    if native == 0 {
                        assert_eq!(calls, 0, "{what}: blocks of the own pool reach no driver");
                    }
                    if number == 0 {
                        manager.set_device_allocator_mode(before);
                    }
                }
                #[cfg(feature = "sim")]
                {
                    let now = driver_frees();
                    assert_eq!(now.0, frees.0, "{what}: nothing of the own pool is freed");
                    assert_eq!(now.1 - frees.1, native, "{what}: each driver block once");
                }

                stream.synchronize().unwrap();
                other.synchronize().unwrap();
                let report = manager.shutdown().unwrap();
                assert!(report.live.is_empty(), "{what}: {report}");
                let stats = manager.stats();
                assert_eq!((stats.in_use(), stats.drop_failures), (0, 0), "{what}");
                assert_eq!(manager.take_error(), None, "{what}");
                for mode in MODES {
                    let stats = Kind::Device(mode).stats(&manager);
                    assert_eq!((stats.live_blocks, stats.in_use), (0, 0), "{what}: {mode}");
                    assert_eq!(stats.allocations, stats.frees, "{what}: {mode}");
                    assert_eq!(stats.reserved, 0, "{what}: {mode}");
                }
                if [before, after].contains(&DeviceAllocatorMode::CudaAsyncPool)
                    && manager.supports_async_device_allocator().unwrap()
                {
                    let usage = manager
                        .native_pool_usage(DeviceAllocatorMode::CudaAsyncPool)
                        .unwrap();
                    assert_eq!((usage.used, usage.reserved), (0, 0), "{what}: {usage:?}");
                }
                assert_eq!((last_error(), current_device()), (0, 0), "{what}");
                assert_sound(&manager);
            }
        }
    }
}

/// Case B35: pointers and ranges are found in all families at once.
#[test]
fn copies_find_blocks_of_every_family_whatever_the_mode_is() {
    let manager = manager_in(DeviceAllocatorMode::BestFitPool);
    let stream = Stream::new().unwrap();
    let mut blocks = Vec::new();
    for mode in MODES {
        manager.set_device_allocator_mode(mode);
        blocks.push(manager.allocate_device_on(SIZE, &stream).unwrap());
    }
    for mode in MODES {
        manager.set_device_allocator_mode(mode);
        for (value, block) in (1u8..).zip(&blocks) {
            // SAFETY: the block is live and has `SIZE` bytes; the longer range must be refused.
            unsafe {
                manager.memset(*block, value, SIZE, &stream).unwrap();
                let error = manager.memset(*block, 0, SIZE + 1, &stream).unwrap_err();
                assert!(
                    matches!(error, memmgr::Error::InvalidRange { .. }),
                    "{error}"
                );
            }
        }
        for (value, block) in (1u8..).zip(&blocks) {
            assert_holds(&manager, *block, value, &stream);
        }
    }
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(block).unwrap() };
    }
    assert_eq!(manager.stats().in_use(), 0);
}

/// Case B35 with many threads: one changes the mode all the time, the others allocate and free.
#[test]
fn the_mode_may_change_while_others_allocate_and_free() {
    let manager = manager_in(DeviceAllocatorMode::BestFitPool);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let stream = Stream::new().unwrap();
                    for round in 0..200 {
                        let mut blocks = [null_mut(); 4];
                        for block in &mut blocks {
                            *block = manager.allocate_device_on(SIZE, &stream).unwrap();
                        }
                        for (number, block) in blocks.into_iter().enumerate() {
                            // SAFETY: nobody uses the block.
                            unsafe {
                                if (round + number) % 2 == 0 {
                                    manager.free_device_on(block, &stream).unwrap();
                                } else {
                                    manager.free_device(block).unwrap();
                                }
                            }
                        }
                    }
                    assert_eq!(last_error(), 0);
                })
            })
            .collect();
        scope.spawn(|| {
            for mode in MODES.into_iter().cycle() {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                manager.set_device_allocator_mode(mode);
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for result in results {
            result.unwrap();
        }
    });
    let stats = manager.stats().device[0];
    assert_eq!(stats.in_use(), 0);
    let families = [
        stats.best_fit,
        stats.async_stream_ordered,
        stats.cuda_async_pool,
    ];
    assert_eq!(
        families
            .iter()
            .map(|family| family.allocations)
            .sum::<u64>(),
        3 * 200 * 4
    );
    for family in families {
        assert_eq!(family.allocations, family.frees);
    }
    assert_sound(&manager);
    assert!(manager.shutdown().unwrap().live.is_empty());
}

/// Case B34, last part, in the driver's pool: other code frees a block behind the manager's back, and the driver gives the
/// address out again. Then there is one block, counted once.
#[test]
fn a_block_that_the_driver_gives_out_twice_is_counted_once() {
    memmgr_tests::sim_only!("a real driver may take another address");
    // A pool of the manager's own: nobody else takes the address meanwhile.
    let mode = DeviceAllocatorMode::CudaAsyncPool;
    let manager = manager_in(mode);
    let stream = Stream::new().unwrap();
    let p = manager.allocate_device_on(512, &stream).unwrap();
    // SAFETY: the block came from the driver's pool, and nothing uses its memory; the manager does not know of this, which
    // is what the test is about.
    let answer = unsafe { cuda_sys::cudaFreeAsync(p, stream.as_raw().cast()) };
    assert_eq!(answer.0, 0);
    let again = manager.allocate_device_on(512, &stream);
    let stats = Kind::Device(mode).stats(&manager);
    assert_eq!((stats.live_blocks, stats.in_use), (1, 512), "{again:?}");
    if let Ok(q) = again {
        assert_eq!(q, p, "or this test shows nothing");
    }
    // SAFETY: nobody uses the block.
    let _ = unsafe { manager.free_device_on(p, &stream) };
    let stats = Kind::Device(mode).stats(&manager);
    assert_eq!((stats.live_blocks, stats.in_use), (0, 0));
    stream.synchronize().unwrap();
}
