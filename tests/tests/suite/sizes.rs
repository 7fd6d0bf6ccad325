//! Sizes at both ends: 0, near `usize::MAX`, and lengths in elements.

use crate::common::{
    KIB, MIB, MODES, assert_sound,
    checks::{
        KINDS, Kind, are_disjoint, calls_of, driver_allocations, figures, hex, within_five_seconds,
        without_calls,
    },
    last_error, manager, manager_in,
};
use memmgr::{CopyKind, DeviceAllocatorMode, Error, Stream};
use std::{ptr::null_mut, sync::Arc};

/// Sizes that overflow when they are rounded up, and their neighbours.
const HUGE: [usize; 10] = [
    usize::MAX,
    usize::MAX - 1,
    usize::MAX - 254,
    usize::MAX - 255,
    usize::MAX - 256,
    usize::MAX - 510,
    usize::MAX - 511,
    1 << 63,
    (1 << 63) + 1,
    (1 << 63) - 1,
];

/// Case B01. The alignment of 4096 is tested with the address-space allocator itself: requests have none here.
#[test]
fn a_size_near_the_largest_number_is_a_clean_error_that_changes_nothing() {
    for kind in KINDS {
        let manager = Arc::new(kind.manager());
        let warm = kind.allocate(&manager, 4096).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, warm).unwrap() };
        let before = figures(&manager);
        for size in HUGE {
            for on_stream in [false, true] {
                let what = format!("{kind:?}: {size} bytes, on a stream: {on_stream}");
                let (worker, label) = (manager.clone(), what.clone());
                let error = within_five_seconds(&what, move || {
                    let stream = Stream::new().unwrap();
                    #[cfg(feature = "sim")]
                    let count = || {
                        cudart_sim::thread_calls_of("cudaMalloc")
                            + cudart_sim::thread_calls_of("cudaHostAlloc")
                    };
                    #[cfg(feature = "sim")]
                    let calls = count();
                    let result = if on_stream {
                        kind.allocate_on(&worker, size, &stream)
                    } else {
                        kind.allocate(&worker, size)
                    };
                    #[cfg(feature = "sim")]
                    assert_eq!(count(), calls, "{label}: a segment was asked for");
                    assert_eq!(last_error(), 0, "{label}");
                    result.map(|ptr| ptr.addr()).expect_err(&label)
                });
                match &error {
                    Error::InvalidSize { reason } => {
                        assert!(reason.contains(&size.to_string()), "{what}: {error}");
                    }
                    Error::OutOfMemory(refusal) => {
                        assert_eq!(refusal.requested, size, "{what}");
                        assert!(!refusal.can_ever_fit(), "{what}");
                    }
                    _ => panic!("{what}: {error}"),
                }
            }
        }
        assert_eq!(figures(&manager), before, "{kind:?}");
        let blocks = [256, 256].map(|size| kind.allocate(&manager, size).unwrap());
        assert!(
            are_disjoint(&blocks.map(|ptr| (ptr.addr(), 256))),
            "{kind:?}"
        );
        assert_sound(&manager);
        for ptr in blocks {
            // SAFETY: nobody uses the block.
            unsafe { kind.free(&manager, ptr).unwrap() };
        }
        manager.shutdown().unwrap();
    }
}

/// Case B01, as the documentation of the allocating functions puts it: one answer, whichever family serves the request.
#[test]
fn a_size_near_the_largest_number_is_an_invalid_size_in_every_mode() {
    for kind in KINDS {
        let manager = kind.manager();
        for size in HUGE {
            match kind.allocate(&manager, size) {
                Err(Error::InvalidSize { reason }) => {
                    assert!(reason.contains(&size.to_string()), "{kind:?}: {reason}");
                }
                other => panic!("{kind:?}: {size} bytes: {other:?}"),
            }
        }
        assert_eq!(kind.stats(&manager).reserved, 0, "{kind:?}");
    }
}

/// Case B01, for guards.
#[test]
fn a_guard_of_a_size_near_the_largest_number_is_a_clean_error() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        for size in HUGE {
            let refusals = [
                manager.pinned::<u8>(size).map(drop),
                manager.pinned_zeroed::<u8>(size).map(drop),
                manager.device::<u8>(size, &stream).map(drop),
                manager.device_zeroed::<u8>(size, &stream).map(drop),
            ];
            for refusal in refusals {
                assert!(
                    matches!(
                        refusal,
                        Err(Error::InvalidSize { .. } | Error::OutOfMemory(_))
                    ),
                    "{mode}: {size}: {refusal:?}"
                );
            }
        }
        assert_eq!(manager.stats().in_use(), 0);
        assert_eq!(manager.stats().drop_failures, 0);
        assert_eq!(last_error(), 0);
        assert_sound(&manager);
    }
}

/// Case B03.
#[test]
fn a_length_in_elements_is_multiplied_by_their_size_once() {
    let in_pinned = {
        let manager = manager();
        let buffer = manager.pinned::<u64>(1 << 20).unwrap();
        assert_eq!((buffer.len(), buffer.size_bytes()), (1 << 20, 8 * MIB));
        assert_eq!(buffer.as_slice().unwrap().len(), 1 << 20);
        manager.stats().in_use()
    };
    assert_eq!(in_pinned, 8 * MIB);
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let buffer = manager.device::<u64>(1 << 20, &stream).unwrap();
        assert_eq!((buffer.len(), buffer.size_bytes()), (1 << 20, 8 * MIB));
        assert_eq!(Kind::Device(mode).stats(&manager).in_use, 8 * MIB, "{mode}");
        assert_eq!(manager.stats().in_use(), 8 * MIB, "{mode}");
        drop(buffer);
        assert_eq!(manager.stats().in_use(), 0, "{mode}");
    }
}

/// Case B03: elements without a size.
#[test]
fn a_thousand_elements_without_a_size_take_no_memory() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        without_calls("a buffer of units", || {
            let mut pinned = manager.pinned::<()>(1000).unwrap();
            let device = manager.device::<()>(1000, &stream).unwrap();
            assert_eq!((pinned.len(), pinned.size_bytes()), (1000, 0));
            assert_eq!((device.len(), device.size_bytes()), (1000, 0));
            assert!(!pinned.is_empty() && !device.is_empty());
            assert!(pinned.as_ptr().is_null() && device.as_ptr().is_null());
            assert_eq!(pinned.as_slice().unwrap().len(), 1000);
            // Nobody counts to that.
            let many = manager.pinned_zeroed::<()>(usize::MAX).unwrap();
            assert_eq!(many.as_slice().unwrap().len(), usize::MAX);
            assert_eq!(pinned.as_mut_slice().unwrap().len(), 1000);
            assert!(
                stream
                    .copy_to_device(&pinned, &device)
                    .unwrap()
                    .is_done()
                    .unwrap()
            );
            assert!(
                stream
                    .copy_to_host(&device, &mut pinned)
                    .unwrap()
                    .event()
                    .is_none()
            );
        });
        assert_eq!(manager.stats().in_use(), 0);
        assert_eq!(manager.stats().pinned.reserved, 0);
    }
}

/// Case B03: a length whose bytes overflow.
#[test]
fn a_length_whose_bytes_overflow_is_refused_and_reserves_nothing() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        for len in [usize::MAX / 4, usize::MAX / 8 + 1, usize::MAX] {
            without_calls("a length that overflows", || {
                let refusals = [
                    manager.pinned::<u64>(len).map(drop),
                    manager.pinned_zeroed::<u64>(len).map(drop),
                    manager.device::<u64>(len, &stream).map(drop),
                    manager.device_zeroed::<u64>(len, &stream).map(drop),
                ];
                for refusal in refusals {
                    match refusal {
                        Err(Error::InvalidSize { reason }) => assert!(
                            reason.contains(&len.to_string()) && reason.contains("8 bytes"),
                            "{reason}"
                        ),
                        other => panic!("{mode}: {len}: {other:?}"),
                    }
                }
            });
        }
        assert_eq!(manager.stats().pinned.reserved, 0);
        assert!(manager.stats().device.is_empty());
    }
}

/// Case B04.
#[test]
fn size_zero_is_null_or_empty_in_every_mode_and_makes_no_call() {
    for mode in MODES {
        let manager = manager_in(mode);
        let kind = Kind::Device(mode);
        let stream = Stream::new().unwrap();
        let device = manager.allocate_device_on(MIB, &stream).unwrap();
        let pinned = manager.allocate_pinned(MIB).unwrap();
        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device_on(device, &stream).unwrap();
            manager.free_pinned(pinned).unwrap();
        }
        let own_pool = (mode == DeviceAllocatorMode::CudaAsyncPool)
            .then(|| manager.native_pool_usage(mode).unwrap());
        let before = figures(&manager);
        let asked = driver_allocations();

        without_calls("size 0", || {
            for ptr in [
                manager.allocate_device(0),
                manager.allocate_device_at(0, 0),
                manager.allocate_device_on(0, &stream),
                manager.allocate_pinned(0),
            ] {
                assert!(ptr.unwrap().is_null(), "{mode}");
            }
            let device = manager.device::<u8>(0, &stream).unwrap();
            let other = manager.device_zeroed::<u32>(0, &stream).unwrap();
            let mut pinned = manager.pinned::<u8>(0).unwrap();
            let zeroed = manager.pinned_zeroed::<u64>(0).unwrap();
            assert!(device.is_empty() && other.is_empty());
            assert!(pinned.as_slice().unwrap().is_empty());
            assert!(pinned.as_mut_slice().unwrap().is_empty());
            assert!(zeroed.as_slice().unwrap().is_empty());
            assert_eq!(hex(device.as_ptr()), "0x0");

            for submitted in [
                stream.copy_to_device(&pinned, &device),
                stream.copy_to_host(&device, &mut pinned),
                stream.copy_device_to_device(&device, &device),
                stream.memset(&device, 7),
            ] {
                let submitted = submitted.unwrap();
                assert!(submitted.is_done().unwrap() && submitted.event().is_none());
                submitted.wait().unwrap();
            }
            let null = null_mut();
            // SAFETY: nothing is copied, set or freed.
            unsafe {
                manager
                    .copy_to_device_async(null, null, 0, &stream)
                    .unwrap();
                manager.copy_to_host_async(null, null, 0, &stream).unwrap();
                manager
                    .copy_device_to_device(null, null, 0, &stream)
                    .unwrap();
                manager.memset(null, 1, 0, &stream).unwrap();
                for (width, height) in [(0, 0), (0, 5), (5, 0)] {
                    let kind = CopyKind::DeviceToDevice;
                    manager
                        .copy_2d(null, 8, null, 8, width, height, kind, &stream)
                        .unwrap();
                    manager
                        .memset_2d(null, 8, 1, width, height, &stream)
                        .unwrap();
                }
                manager.free_device(null).unwrap();
                manager.free_device_on(null, &stream).unwrap();
                manager.free_pinned(null).unwrap();
            }
        });

        assert_eq!(figures(&manager), before, "{mode}");
        assert_eq!(last_error(), 0, "{mode}");
        if let Some(usage) = own_pool {
            assert_eq!(manager.native_pool_usage(mode).unwrap(), usage);
        }
        assert_eq!(driver_allocations(), asked);

        // The cached blocks were not given out for nothing: they serve the next request.
        let (again, calls) = calls_of(|| manager.allocate_device_on(MIB, &stream).unwrap());
        assert_eq!(again, device, "{mode}");
        if kind.is_own_pool() {
            assert_eq!(calls, 0, "{mode}");
        }
        assert_eq!(
            without_calls("a hit", || manager.allocate_pinned(MIB).unwrap()),
            pinned
        );
        assert_eq!(manager.stats().pinned.growths, 1);
        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device_on(again, &stream).unwrap();
            manager.free_pinned(pinned).unwrap();
        }
        stream.synchronize().unwrap();
        assert_sound(&manager);
    }
}

/// Case B04: a manager that has served nothing yet reserves nothing for nothing.
#[test]
fn size_zero_reserves_nothing_on_a_fresh_manager() {
    for mode in MODES {
        let manager = manager_in(mode);
        manager.set_device_pool_size(MIB).unwrap();
        manager.set_pinned_pool_size(MIB).unwrap();
        without_calls("size 0", || {
            assert!(manager.allocate_device(0).unwrap().is_null());
            assert!(manager.allocate_pinned(0).unwrap().is_null());
        });
        let stats = manager.stats();
        assert!(stats.device.is_empty());
        assert_eq!(stats.pinned.reserved, 0);
        // Its sizes can still be configured.
        manager.set_device_pool_size(64 * KIB).unwrap();
        manager.set_pinned_pool_size(64 * KIB).unwrap();
    }
}
