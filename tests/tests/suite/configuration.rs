//! Sizes and modes that are set are in force, or refused; nothing is ignored and nothing is reserved before its time.

use crate::common::{MIB, assert_sound, manager};
use crate::rig;
use memmgr::{Config, DeviceAllocatorMode, DeviceSource, Error, MemoryManager, Stream};

/// B44 (a)
#[test]
fn the_configured_size_is_reserved_at_the_first_allocation() {
    let mm = manager();
    mm.set_pinned_pool_size(8 * MIB).unwrap();
    mm.set_device_pool_size(8 * MIB).unwrap();
    let host = mm.allocate_pinned(100).unwrap();
    let device = mm.allocate_device(100).unwrap();
    let stats = mm.stats();
    assert_eq!(stats.pinned.reserved, 8 * MIB);
    assert_eq!(stats.device[0].best_fit.reserved, 8 * MIB);
    assert_eq!(
        (stats.pinned.growths, stats.device[0].best_fit.growths),
        (1, 1)
    );
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_pinned(host).unwrap();
        mm.free_device(device).unwrap();
    }
    mm.shutdown().unwrap();
    assert_sound(&mm);
}

/// B44 (a): a first request that is larger than the configured size.
#[test]
fn a_first_request_above_the_configured_size_is_served_beside_it() {
    for source in [DeviceSource::Malloc, DeviceSource::Auto] {
        let mm = MemoryManager::new(Config::default().device_source(source)).unwrap();
        mm.set_device_pool_size(4 * MIB).unwrap();
        let stream = Stream::new().unwrap();
        let block = mm.allocate_device_on(6 * MIB, &stream).unwrap();
        let device = mm.stats().device[0];
        let stats = device.best_fit;
        match device.source {
            // The pool has become longer.
            DeviceSource::Virtual => assert_eq!(stats.reserved, 6 * MIB, "{stats:?}"),
            _ => assert!(stats.reserved >= 10 * MIB, "{stats:?}"),
        }
        assert_eq!(stats.in_use, 6 * MIB);
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(block).unwrap() };
        mm.shutdown().unwrap();
    }
}

/// B44 (b)
#[test]
fn a_size_that_comes_too_late_is_refused_with_the_size_in_force() {
    for mode in rig::modes() {
        let mm = crate::common::manager_in(*mode);
        mm.set_pinned_pool_size(4 * MIB).unwrap();
        mm.set_device_pool_size(4 * MIB).unwrap();
        let host = mm.allocate_pinned(100).unwrap();
        let device = mm.allocate_device(100).unwrap();
        // The device's current pool has a size of its own that is nobody's here to set: there is nothing to be late for.
        let has_size = *mode != DeviceAllocatorMode::AsyncStreamOrdered;
        let mut refused = vec![mm.set_pinned_pool_size(16 * MIB)];
        refused.extend(has_size.then(|| mm.set_device_pool_size(16 * MIB)));
        for refused in refused {
            match refused {
                Err(Error::AlreadyInitialized { in_force, .. }) => assert_eq!(in_force, 4 * MIB),
                other => panic!("{mode}: {other:?}"),
            }
        }
        // SAFETY: nobody uses the blocks.
        unsafe {
            mm.free_pinned(host).unwrap();
            mm.free_device(device).unwrap();
        }
        // Freeing alone does not open it again; `shutdown` does.
        assert!(matches!(
            mm.set_pinned_pool_size(16 * MIB),
            Err(Error::AlreadyInitialized { .. })
        ));
        mm.shutdown().unwrap();
        mm.set_pinned_pool_size(16 * MIB).unwrap();
        mm.set_device_pool_size(16 * MIB).unwrap();
        let host = mm.allocate_pinned(100).unwrap();
        let device = mm.allocate_device(100).unwrap();
        assert_eq!(mm.stats().pinned.reserved, 16 * MIB, "{mode}");
        if *mode == DeviceAllocatorMode::BestFitPool {
            assert_eq!(mm.stats().device[0].best_fit.reserved, 16 * MIB);
        }
        // SAFETY: nobody uses the blocks.
        unsafe {
            mm.free_pinned(host).unwrap();
            mm.free_device(device).unwrap();
        }
        mm.shutdown().unwrap();
    }
}

/// B44 (c): the last one counts.
#[test]
fn of_two_sizes_before_the_first_use_the_last_counts() {
    let mm = manager();
    for size in [64 * MIB, 4 * MIB] {
        mm.set_pinned_pool_size(size).unwrap();
        mm.set_device_pool_size(size).unwrap();
    }
    let host = mm.allocate_pinned(1).unwrap();
    let device = mm.allocate_device(1).unwrap();
    assert_eq!(mm.stats().pinned.reserved, 4 * MIB);
    assert_eq!(mm.stats().device[0].best_fit.reserved, 4 * MIB);
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_pinned(host).unwrap();
        mm.free_device(device).unwrap();
    }
    mm.shutdown().unwrap();
}

/// B44 (c): a size above the limit is refused and the one before stays.
#[test]
fn a_refused_size_leaves_the_one_before_in_force() {
    let limited = Config::default()
        .device_pool_limit(Some(8 * MIB))
        .pinned_pool_limit(Some(8 * MIB));
    let mm = MemoryManager::new(limited).unwrap();
    mm.set_device_pool_size(4 * MIB).unwrap();
    mm.set_pinned_pool_size(4 * MIB).unwrap();
    for refused in [
        mm.set_device_pool_size(9 * MIB),
        mm.set_pinned_pool_size(9 * MIB),
    ] {
        assert!(
            matches!(refused, Err(Error::LimitExceeded { limit, .. }) if limit == 8 * MIB),
            "{refused:?}"
        );
    }
    let host = mm.allocate_pinned(1).unwrap();
    let device = mm.allocate_device(1).unwrap();
    assert_eq!(mm.stats().pinned.reserved, 4 * MIB);
    assert_eq!(mm.stats().device[0].best_fit.reserved, 4 * MIB);
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_pinned(host).unwrap();
        mm.free_device(device).unwrap();
    }
    mm.shutdown().unwrap();
}

/// B44 (d)
#[test]
fn a_manager_and_a_stream_that_allocate_nothing_reserve_nothing() {
    for mode in DeviceAllocatorMode::ALL {
        let (mm, calls) = rig::calls_of(|| crate::common::manager_in(mode));
        assert_eq!(calls, 0, "{mode}: making a manager calls CUDA");
        mm.set_pinned_pool_size(8 * MIB).unwrap();
        mm.set_device_pool_size(8 * MIB).unwrap();
        let stream = Stream::new().unwrap();
        stream.synchronize().unwrap();
        let _ = mm.effective_device_allocator_mode().unwrap();
        assert!(mm.allocate_device(0).unwrap().is_null());
        assert!(mm.allocate_pinned(0).unwrap().is_null());
        let stats = mm.stats();
        assert_eq!(stats.pinned.reserved, 0);
        assert!(
            stats
                .device
                .iter()
                .all(|device| device.best_fit.reserved == 0)
        );
        // Asking about the mode has not fixed the size.
        mm.set_device_pool_size(4 * MIB).unwrap();
        mm.shutdown().unwrap();
    }
}

/// B44 (e): counted by the simulated runtime on this thread.
#[cfg(feature = "sim")]
#[test]
fn each_mode_calls_its_own_family_and_no_other() {
    use cudart_sim::thread_calls_of as calls;
    const FAMILIES: [[&str; 2]; 3] = [
        ["cudaMalloc", "cudaFree"],
        ["cudaMallocAsync", "cudaFreeAsync"],
        ["cudaMallocFromPoolAsync", "cudaFreeAsync"],
    ];
    const ALL: [&str; 5] = [
        "cudaMalloc",
        "cudaFree",
        "cudaMallocAsync",
        "cudaMallocFromPoolAsync",
        "cudaFreeAsync",
    ];
    for (mode, family) in DeviceAllocatorMode::ALL.into_iter().zip(FAMILIES) {
        let mm = crate::common::manager_of_segments();
        mm.set_device_allocator_mode(mode);
        let stream = Stream::new().unwrap();
        let before = ALL.map(calls);
        let a = mm.allocate_device(4096).unwrap();
        let b = mm.allocate_device_on(4096, &stream).unwrap();
        let c = mm.device::<u32>(1024, &stream).unwrap();
        drop(c);
        // SAFETY: nobody uses the blocks.
        unsafe {
            mm.free_device(a).unwrap();
            mm.free_device_on(b, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        mm.shutdown().unwrap();
        for (name, before) in ALL.iter().zip(before) {
            let made = calls(name) - before;
            // Segments of managers that other tests have dropped are freed here too.
            if *name == "cudaFree" {
                continue;
            }
            assert_eq!(made > 0, family.contains(name), "{mode}: {made} × {name}");
        }
    }
}

/// B44: the mode of a later call counts, and each block goes back to the family that made it.
#[test]
fn a_mode_set_between_calls_serves_the_next_call_and_old_blocks_go_home() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let mut blocks = Vec::new();
    for mode in rig::modes() {
        mm.set_device_allocator_mode(*mode);
        assert_eq!(mm.effective_device_allocator_mode().unwrap(), *mode);
        blocks.push(mm.allocate_device_on(MIB, &stream).unwrap());
    }
    let live = |mm: &MemoryManager| {
        let device = &mm.stats().device[0];
        [
            device.best_fit.live_blocks,
            device.async_stream_ordered.live_blocks,
            device.cuda_async_pool.live_blocks,
        ]
    };
    let made = live(&mm);
    assert_eq!(made[..blocks.len()], [1, 1, 1][..blocks.len()]);
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &stream).unwrap() };
    }
    assert_eq!(live(&mm), [0, 0, 0]);
    assert_eq!(mm.stats().in_use(), 0);
    mm.shutdown().unwrap();
}
