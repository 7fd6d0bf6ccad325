//! Bad input: ranges that leave their blocks, lengths that differ, limits, second configurations, devices that are not
//! there. Each is a clear error that changes nothing.

use crate::common::{
    KIB, MIB, MODES, assert_sound,
    checks::{
        FOREIGN, KINDS, Kind, OWN_POOLS, clear_error, current_device, driver_allocations, figures,
        hex, leave_foreign_error, refused, without_calls,
    },
    last_error, manager, manager_in,
};
use memmgr::{Config, CopyKind, DeviceAllocatorMode, Error, MemoryManager, Place, Result, Stream};
use std::{ffi::c_void, ptr::null_mut};

/// Shorter than its granule, so that the slack behind it counts as outside.
const LEN: usize = 100;

/// Verifies that the range is refused before CUDA hears of it, and that the error names all of `names`.
#[track_caller]
fn out_of_range(manager: &MemoryManager, what: &str, names: &[String], f: impl Fn() -> Result<()>) {
    let error = refused(manager, what, names, || without_calls(what, &f));
    assert!(
        matches!(error, Error::InvalidRange { .. }),
        "{what}: {error}"
    );
}

fn fill(ptr: *mut c_void, len: usize) {
    // SAFETY: the callers pass live pinned blocks of that length that nobody else uses.
    unsafe { ptr.cast::<u8>().write_bytes(0, len) };
}

#[test]
fn copies_and_memsets_past_the_end_of_a_block_are_refused() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let device = manager.allocate_device_on(LEN, &stream).unwrap();
        let large = manager.allocate_device_on(MIB, &stream).unwrap();
        let pinned = manager.allocate_pinned(LEN).unwrap();
        let large_pinned = manager.allocate_pinned(MIB).unwrap();
        fill(pinned, LEN);
        fill(large_pinned, MIB);
        // SAFETY: the ranges that fit are live; the others must be refused.
        unsafe {
            for offset in [0, 1, 50, 99] {
                let at = |block: *mut c_void| block.wrapping_byte_add(offset);
                for size in [
                    LEN - offset + 1,
                    LEN - offset + 156,
                    MIB - offset,
                    usize::MAX / 2,
                    usize::MAX - 1,
                    usize::MAX,
                ] {
                    let what = format!("{mode}: {size} bytes at offset {offset}");
                    let names = |block: *mut c_void| {
                        let mut names = vec![size.to_string()];
                        // Longer ranges leave the other block as well, and either may be named.
                        if size <= MIB {
                            names.extend([hex(at(block)), hex(block), LEN.to_string()]);
                        }
                        names
                    };
                    let check = |block, f: &dyn Fn() -> Result<()>| {
                        out_of_range(&manager, &what, &names(block), f);
                    };
                    check(device, &|| {
                        manager.copy_to_device_async(at(device), large_pinned, size, &stream)
                    });
                    check(device, &|| {
                        manager.copy_to_host_async(large_pinned, at(device), size, &stream)
                    });
                    check(device, &|| {
                        manager.copy_device_to_device(at(device), large, size, &stream)
                    });
                    check(device, &|| manager.memset(at(device), 1, size, &stream));
                    check(pinned, &|| {
                        manager.copy_to_host_async(at(pinned), large, size, &stream)
                    });
                    // Only where the target has room is the source what is wrong.
                    if size <= MIB {
                        check(pinned, &|| {
                            manager.copy_to_device_async(large, at(pinned), size, &stream)
                        });
                        check(device, &|| {
                            manager.copy_device_to_device(large, at(device), size, &stream)
                        });
                    }
                }
                // To the very end is fine.
                let rest = LEN - offset;
                manager
                    .copy_to_device_async(at(device), at(pinned), rest, &stream)
                    .unwrap();
                manager
                    .copy_to_host_async(at(pinned), at(device), rest, &stream)
                    .unwrap();
                manager.memset(at(device), 1, rest, &stream).unwrap();
            }
            // The slack between what was asked for and the granule is nobody's.
            for (block, offset) in [(device, LEN), (device, 255), (pinned, LEN), (pinned, 255)] {
                if block == device && mode != DeviceAllocatorMode::BestFitPool {
                    continue; // There the driver judges it.
                }
                let ptr = block.wrapping_byte_add(offset);
                out_of_range(&manager, "the slack", &[hex(ptr), hex(block)], || {
                    if block == device {
                        manager.memset(ptr, 1, 1, &stream)
                    } else {
                        manager.copy_to_device_async(large, ptr, 1, &stream)
                    }
                });
            }
            stream.synchronize().unwrap();
            for block in [device, large] {
                manager.free_device_on(block, &stream).unwrap();
            }
            manager.free_pinned(pinned).unwrap();
            manager.free_pinned(large_pinned).unwrap();
        }
        assert_eq!(manager.stats().in_use(), 0);
    }
}

#[test]
fn two_dimensional_ranges_are_checked_to_the_last_byte_of_the_last_row() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let device = manager.allocate_device_on(LEN, &stream).unwrap();
        let pinned = manager.allocate_pinned(LEN).unwrap();
        let large = manager.allocate_device_on(MIB, &stream).unwrap();
        fill(pinned, LEN);
        let (to_host, to_device) = (CopyKind::DeviceToHost, CopyKind::HostToDevice);
        // SAFETY: the ranges that fit are live; the others must be refused.
        unsafe {
            // 3 * 32 + 4 is 100: the last row needs no full pitch.
            manager
                .copy_2d(device, 32, pinned, 32, 4, 4, to_device, &stream)
                .unwrap();
            manager
                .copy_2d(pinned, 32, device, 32, 4, 4, to_host, &stream)
                .unwrap();
            manager.memset_2d(device, 32, 5, 4, 4, &stream).unwrap();
            manager.memset_2d(device, LEN, 5, LEN, 1, &stream).unwrap();

            for (pitch, width, height, wanted) in [
                (32, 5, 4, 101),
                (33, 4, 4, 103),
                (32, 4, 5, 132),
                (LEN, LEN, 2, 200),
                (LEN + 1, LEN + 1, 1, LEN + 1),
                (256, 256, 256, 65536),
            ] {
                let what = format!("{mode}: {height} rows of {width} at {pitch}");
                let names = |block| [format!("{wanted} bytes"), hex(block)];
                out_of_range(&manager, &what, &names(device), || {
                    manager.copy_2d(
                        device,
                        pitch,
                        large,
                        pitch,
                        width,
                        height,
                        CopyKind::DeviceToDevice,
                        &stream,
                    )
                });
                out_of_range(&manager, &what, &names(device), || {
                    manager.copy_2d(
                        large,
                        pitch,
                        device,
                        pitch,
                        width,
                        height,
                        CopyKind::DeviceToDevice,
                        &stream,
                    )
                });
                out_of_range(&manager, &what, &names(pinned), || {
                    manager.copy_2d(pinned, pitch, large, pitch, width, height, to_host, &stream)
                });
                out_of_range(&manager, &what, &names(pinned), || {
                    manager.copy_2d(
                        large, pitch, pinned, pitch, width, height, to_device, &stream,
                    )
                });
                out_of_range(&manager, &what, &names(device), || {
                    manager.memset_2d(device, pitch, 5, width, height, &stream)
                });
            }
            // By an interior pointer.
            let inside = device.wrapping_byte_add(1);
            out_of_range(&manager, "interior", &[hex(inside), hex(device)], || {
                manager.memset_2d(inside, 32, 5, 4, 4, &stream)
            });

            // A pitch below the width, on either side; also where there is one row only.
            for (dst_pitch, src_pitch, height) in [
                (15, 16, 2),
                (16, 15, 2),
                (0, 16, 2),
                (16, 0, 1),
                (15, 16, 1),
            ] {
                let small = dst_pitch.min(src_pitch);
                let names = [format!("pitch of {small}"), "16 bytes".to_owned()];
                out_of_range(&manager, "a pitch below the width", &names, || {
                    manager.copy_2d(
                        device, dst_pitch, pinned, src_pitch, 16, height, to_device, &stream,
                    )
                });
                out_of_range(&manager, "a pitch below the width", &names, || {
                    manager.memset_2d(device, small, 1, 16, height, &stream)
                });
            }

            // Products and sums that overflow.
            for (pitch, width, height) in [
                (usize::MAX / 2, 16, 4),
                (1 << 33, 16, (1 << 31) + 1),
                (16, 16, usize::MAX),
                (usize::MAX, usize::MAX, 2),
                (usize::MAX - 7, 16, 2),
            ] {
                let what = format!("{height} rows of {width} at {pitch}");
                let names = [height.to_string(), pitch.to_string()];
                out_of_range(&manager, &what, &names, || {
                    manager.copy_2d(
                        device, pitch, pinned, pitch, width, height, to_device, &stream,
                    )
                });
                out_of_range(&manager, &what, &names, || {
                    manager.memset_2d(device, pitch, 1, width, height, &stream)
                });
            }
            // No product overflows, but the end of the range does.
            for (width, height, pitch) in [(usize::MAX, 1, usize::MAX), (16, 2, usize::MAX - 16)] {
                out_of_range(&manager, "the end overflows", &[hex(device)], || {
                    manager.memset_2d(device, pitch, 1, width, height, &stream)
                });
            }
            stream.synchronize().unwrap();
            manager.free_device_on(device, &stream).unwrap();
            manager.free_device_on(large, &stream).unwrap();
            manager.free_pinned(pinned).unwrap();
        }
        assert_eq!(manager.stats().in_use(), 0);
    }
}

#[test]
fn null_is_no_place_for_a_copy() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let device = manager.allocate_device_on(LEN, &stream).unwrap();
        let pinned = manager.allocate_pinned(LEN).unwrap();
        let null = null_mut();
        let kind = CopyKind::HostToDevice;
        // SAFETY: all of this must be refused.
        unsafe {
            let calls: [&dyn Fn() -> Result<()>; 10] = [
                &|| manager.copy_to_device_async(null, pinned, LEN, &stream),
                &|| manager.copy_to_device_async(device, null, LEN, &stream),
                &|| manager.copy_to_host_async(null, device, LEN, &stream),
                &|| manager.copy_to_host_async(pinned, null, LEN, &stream),
                &|| manager.copy_device_to_device(null, device, LEN, &stream),
                &|| manager.copy_device_to_device(device, null, LEN, &stream),
                &|| manager.copy_2d(null, 8, pinned, 8, 8, 2, kind, &stream),
                &|| manager.copy_2d(device, 8, null, 8, 8, 2, kind, &stream),
                &|| manager.memset(null, 1, LEN, &stream),
                &|| manager.memset_2d(null, 8, 1, 8, 2, &stream),
            ];
            for (number, call) in calls.into_iter().enumerate() {
                let what = format!("{mode}: null, call {number}");
                let error = refused(&manager, &what, &["0x0".to_owned()], || {
                    without_calls(&what, call)
                });
                assert!(
                    matches!(error, Error::UnknownPointer { ptr: 0, .. }),
                    "{error}"
                );
            }
            manager.free_device_on(device, &stream).unwrap();
            manager.free_pinned(pinned).unwrap();
        }
    }
}

/// Memory of the manager's pools that is free is nobody's. (What the driver's pools do with theirs is up to them.)
#[test]
fn freed_memory_is_no_place_for_a_copy() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    let live = manager.allocate_device_on(LEN, &stream).unwrap();
    let live_pinned = manager.allocate_pinned(LEN).unwrap();
    fill(live_pinned, LEN);
    for on_stream in [false, true] {
        let device = manager.allocate_device_on(LEN, &stream).unwrap();
        let pinned = manager.allocate_pinned(LEN).unwrap();
        // SAFETY: nobody uses the blocks; the copies must be refused.
        unsafe {
            if on_stream {
                manager.free_device_on(device, &stream).unwrap();
            } else {
                manager.free_device(device).unwrap();
            }
            manager.free_pinned(pinned).unwrap();
            for offset in [0, 1, 99, 256] {
                let (device, pinned) = (
                    device.wrapping_byte_add(offset),
                    pinned.wrapping_byte_add(offset),
                );
                let calls: [(*mut c_void, &dyn Fn() -> Result<()>); 6] = [
                    (device, &|| {
                        manager.copy_to_device_async(device, live_pinned, 1, &stream)
                    }),
                    (pinned, &|| {
                        manager.copy_to_device_async(live, pinned, 1, &stream)
                    }),
                    (pinned, &|| {
                        manager.copy_to_host_async(pinned, live, 1, &stream)
                    }),
                    (device, &|| {
                        manager.copy_to_host_async(live_pinned, device, 1, &stream)
                    }),
                    (device, &|| manager.memset(device, 1, 1, &stream)),
                    (device, &|| manager.memset_2d(device, 1, 1, 1, 1, &stream)),
                ];
                for (ptr, call) in calls {
                    let error = refused(&manager, "freed memory", &[hex(ptr)], || {
                        without_calls("freed memory", call)
                    });
                    assert!(matches!(error, Error::UnknownPointer { .. }), "{error}");
                }
            }
        }
    }
}

/// Host memory that the manager does not know may be copied; device memory that nobody made may not.
#[test]
fn pageable_memory_is_copied_and_foreign_device_pointers_are_the_runtimes_to_refuse() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let device = manager.allocate_device_on(LEN, &stream).unwrap();
        let out: Vec<u8> = (0..LEN as u8).collect();
        let mut back = [0u8; LEN];
        // SAFETY: all ranges have `LEN` bytes and live until the stream has been synchronised.
        unsafe {
            manager
                .copy_to_device_async(device, out.as_ptr().cast(), LEN, &stream)
                .unwrap();
            manager
                .copy_to_host_async(back.as_mut_ptr().cast(), device, LEN, &stream)
                .unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(back[..], out[..]);
        let before = figures(&manager);
        // Not on a GPU: one that reaches pageable memory takes the pointer, and breaks its context on the address.
        #[cfg(feature = "sim")]
        for target in [
            back.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(0x64),
        ] {
            // SAFETY: the runtime refuses what is no device memory.
            let result =
                unsafe { manager.copy_to_device_async(target, out.as_ptr().cast(), LEN, &stream) };
            match result {
                Err(Error::Cuda { call, code: 1, .. }) => assert_eq!(call, "cudaMemcpyAsync"),
                other => panic!("{mode}: {other:?}"),
            }
            // SAFETY: as above.
            match unsafe { manager.memset(target, 1, LEN, &stream) } {
                Err(Error::Cuda { call, code: 1, .. }) => assert_eq!(call, "cudaMemsetAsync"),
                other => panic!("{mode}: {other:?}"),
            }
            assert_eq!(last_error(), 0);
        }
        assert_eq!(figures(&manager), before);
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(device, &stream).unwrap() };
    }
}

#[test]
fn buffers_of_different_lengths_are_not_copied() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        for (ten, eleven) in [(10, 11), (11, 10), (0, 10), (10, 0)] {
            let pinned = manager.pinned_zeroed::<u32>(ten).unwrap();
            let device = manager.device::<u32>(eleven, &stream).unwrap();
            let other = manager.device::<u32>(ten, &stream).unwrap();
            let mut target = manager.pinned_zeroed::<u32>(ten).unwrap();
            let names = [
                format!("{} bytes", 4 * ten),
                format!("{} bytes", 4 * eleven),
            ];
            out_of_range(&manager, "to the device", &names, || {
                stream.copy_to_device(&pinned, &device).map(drop)
            });
            out_of_range(&manager, "inside the device", &names, || {
                stream.copy_device_to_device(&other, &device).map(drop)
            });
            let error = without_calls("to the host", || {
                stream
                    .copy_to_host(&device, &mut target)
                    .map(drop)
                    .unwrap_err()
            });
            assert!(matches!(error, Error::InvalidRange { .. }), "{error}");
            for name in names {
                assert!(error.to_string().contains(&name), "{error}");
            }
        }
        assert_eq!(manager.stats().in_use(), 0);
    }
}

#[test]
fn a_second_configuration_names_the_size_in_force() {
    for kind in KINDS {
        let manager = kind.manager();
        kind.set_pool_size(&manager, MIB).unwrap();
        kind.set_pool_size(&manager, 2 * MIB).unwrap();
        let warm = kind.allocate(&manager, 256).unwrap();
        if kind == Kind::Device(DeviceAllocatorMode::AsyncStreamOrdered) {
            // The driver's pool has no size of ours.
            kind.set_pool_size(&manager, MIB).unwrap();
        } else {
            for size in [0, MIB, 2 * MIB, usize::MAX] {
                let names = [(2 * MIB).to_string()];
                let error = refused(&manager, "a second size", &names, || {
                    without_calls("a second size", || kind.set_pool_size(&manager, size))
                });
                match error {
                    Error::AlreadyInitialized { in_force, .. } => assert_eq!(in_force, 2 * MIB),
                    other => panic!("{kind:?}: {other}"),
                }
            }
            if kind.is_own_pool() {
                assert_eq!(kind.stats(&manager).reserved, 2 * MIB);
            }
        }
        // The other pool is not concerned.
        match kind {
            Kind::Pinned => manager.set_device_pool_size(MIB).unwrap(),
            Kind::Device(_) => manager.set_pinned_pool_size(MIB).unwrap(),
        }
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, warm).unwrap() };
        // Still not, until shutdown.
        if kind.is_own_pool() {
            kind.set_pool_size(&manager, MIB).unwrap_err();
        }
        manager.shutdown().unwrap();
        kind.set_pool_size(&manager, 3 * MIB).unwrap();
        let again = kind.allocate(&manager, 256).unwrap();
        if kind.is_own_pool() {
            assert_eq!(kind.stats(&manager).reserved, 3 * MIB);
        }
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, again).unwrap() };
    }
}

#[test]
fn more_than_the_limit_can_never_fit_and_is_told_from_out_of_memory() {
    for kind in OWN_POOLS {
        let manager = manager();
        kind.set_pool_limit(&manager, MIB);
        // Before the first allocation and after it.
        for warm in [false, true] {
            if warm {
                let block = kind.allocate(&manager, 256).unwrap();
                // SAFETY: nobody uses the block.
                unsafe { kind.free(&manager, block).unwrap() };
            } else if kind != Kind::Pinned {
                // The device's figures begin with its first request.
                kind.allocate(&manager, usize::MAX).unwrap_err();
            }
            for size in [MIB + 1, 2 * MIB, 1 << 40] {
                let asked = driver_allocations();
                let names = ["can never fit".to_owned(), "_pool_limit".to_owned()];
                let error = refused(&manager, "more than the limit", &names, || {
                    kind.allocate(&manager, size)
                });
                let place = match kind {
                    Kind::Pinned => Place::Pinned,
                    Kind::Device(_) => Place::Device(0),
                };
                let wanted = Error::LimitExceeded {
                    place,
                    requested: size,
                    limit: MIB,
                };
                assert_eq!(error, wanted);
                assert_eq!(driver_allocations(), asked, "CUDA is not asked");
            }
        }
        let halves = [512 * KIB; 2].map(|size| kind.allocate(&manager, size).unwrap());
        let asked = driver_allocations();
        for size in [1, 256, 512 * KIB, MIB] {
            let error = refused(&manager, "a full pool", &[], || {
                kind.allocate(&manager, size)
            });
            match &error {
                Error::OutOfMemory(refusal) => {
                    assert_eq!(refusal.requested, size);
                    assert_eq!((refusal.in_use, refusal.reserved), (MIB, MIB));
                    assert_eq!((refusal.idle, refusal.limit), (0, Some(MIB)));
                    assert!(refusal.can_ever_fit());
                    let text = error.to_string();
                    assert!(text.contains("limit is 1.0 MiB"), "{text}");
                }
                other => panic!("{kind:?}: {other}"),
            }
        }
        assert_eq!(driver_allocations(), asked, "CUDA is not asked");
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, halves[0]).unwrap() };
        assert_eq!(kind.allocate(&manager, 512 * KIB).unwrap(), halves[0]);
        // What the refusals counted.
        assert_eq!(kind.stats(&manager).reserved, MIB);
        assert!(kind.stats(&manager).failures > 0);
        assert_sound(&manager);
    }
}

#[test]
fn an_initial_size_above_its_limit_is_refused() {
    for config in [
        Config::default()
            .pinned_pool_size(2000)
            .pinned_pool_limit(Some(1000)),
        Config::default()
            .device_pool_size(2000)
            .device_pool_limit(Some(1000)),
    ] {
        let error = without_calls("a configuration", || {
            MemoryManager::new(config).unwrap_err()
        });
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidSetting { .. }), "{text}");
        assert!(text.contains("2000") && text.contains("1000"), "{text}");
    }
    for kind in OWN_POOLS {
        let manager = manager();
        kind.set_pool_limit(&manager, MIB);
        for size in [MIB + 1, usize::MAX] {
            let names = ["can never fit".to_owned(), "_pool_limit".to_owned()];
            let error = refused(&manager, "a size above the limit", &names, || {
                without_calls("a size", || kind.set_pool_size(&manager, size))
            });
            match error {
                Error::LimitExceeded {
                    requested, limit, ..
                } => assert_eq!((requested, limit), (size, MIB)),
                other => panic!("{other}"),
            }
        }
        kind.set_pool_size(&manager, MIB).unwrap();
        let block = kind.allocate(&manager, MIB).unwrap();
        assert_eq!(kind.stats(&manager).reserved, MIB);
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, block).unwrap() };
    }
}

/// The limit holds also where it was set after the initial size.
#[test]
fn an_initial_size_above_a_later_limit_is_refused_or_cut() {
    for pinned in [false, true] {
        let manager = manager();
        let (result, reserved) = if pinned {
            manager.set_pinned_pool_size(2 * MIB).unwrap();
            manager.set_pinned_pool_limit(Some(MIB));
            let result = manager.allocate_pinned(256);
            (result, manager.stats().pinned.reserved)
        } else {
            manager.set_device_pool_size(2 * MIB).unwrap();
            manager.set_device_pool_limit(Some(MIB));
            let result = manager.allocate_device(256);
            (result, manager.stats().device[0].best_fit.reserved)
        };
        assert!(
            reserved <= MIB,
            "pinned: {pinned}: {reserved} bytes reserved, limit {MIB}"
        );
        if let Err(error) = result {
            assert!(
                matches!(
                    error,
                    Error::LimitExceeded { .. } | Error::InvalidSize { .. }
                ),
                "{error}"
            );
        }
        assert_sound(&manager);
    }
}

/// A limit (and an initial size) that cuts into a granule: whatever the answer, it is the same each time, and a refusal
/// names the granule.
#[test]
fn a_limit_that_is_no_multiple_of_the_granule_gives_one_answer() {
    for kind in OWN_POOLS {
        for initial in [0, 1000] {
            let manager = manager();
            kind.set_pool_limit(&manager, 1000);
            kind.set_pool_size(&manager, initial).unwrap();
            let answers: Vec<bool> = (0..3)
                .map(|_| match kind.allocate(&manager, 1000) {
                    Ok(block) => {
                        // SAFETY: nobody uses the block.
                        unsafe { kind.free(&manager, block).unwrap() };
                        true
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("256"), "{kind:?}: {error}");
                        false
                    }
                })
                .collect();
            assert!(
                answers.iter().all(|answer| *answer == answers[0]),
                "{kind:?}, initial size {initial}: {answers:?}"
            );
            // What fits with its granule is served in any case.
            let block = kind.allocate(&manager, 768).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { kind.free(&manager, block).unwrap() };
            assert_sound(&manager);
        }
    }
}

/// An initial size that nobody can grant is told at the first request; a smaller one can be set then.
#[test]
fn an_initial_size_that_cannot_be_had_is_an_error_and_can_be_changed() {
    let manager = manager();
    for kind in OWN_POOLS {
        kind.set_pool_size(&manager, usize::MAX).unwrap();
        let error = kind.allocate(&manager, 256).unwrap_err();
        assert!(
            matches!(error, Error::InvalidSize { .. })
                && error.to_string().contains(&usize::MAX.to_string()),
            "{kind:?}: {error}"
        );
        if kind != Kind::Pinned {
            kind.set_pool_size(&manager, 1 << 50).unwrap();
            match kind.allocate(&manager, 256) {
                Err(Error::OutOfMemory(refusal)) => assert!(!refusal.can_ever_fit()),
                other => panic!("{kind:?}: {other:?}"),
            }
        }
        assert_eq!(last_error(), 0);
        assert_eq!(kind.stats(&manager).reserved, 0);
        kind.set_pool_size(&manager, 64 * KIB).unwrap();
        let block = kind.allocate(&manager, 256).unwrap();
        assert_eq!(kind.stats(&manager).reserved, 64 * KIB);
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, block).unwrap() };
        assert_sound(&manager);
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    for mode in MODES {
        let manager = manager_in(mode);
        let block = manager.allocate_device(256).unwrap();
        for ordinal in [99, -1, i32::MAX, i32::MIN] {
            let names = [ordinal.to_string()];
            let error = refused(&manager, "a device that is not there", &names, || {
                manager.allocate_device_at(ordinal, 256)
            });
            assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
        }
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(block).unwrap() };
    }
}

#[test]
fn a_stream_on_a_device_that_is_not_there_is_refused_by_name() {
    for ordinal in [99, -1, i32::MAX, i32::MIN] {
        for pending in [false, true] {
            for error in [
                Stream::builder().device(ordinal).build().unwrap_err(),
                Stream::builder()
                    .device(ordinal)
                    .blocking(true)
                    .build()
                    .unwrap_err(),
                Stream::legacy(ordinal).unwrap_err(),
            ] {
                let text = error.to_string();
                assert!(
                    matches!(
                        error,
                        Error::WrongDevice { .. } | Error::Cuda { code: 101, .. }
                    ),
                    "{text}"
                );
                assert!(text.contains(&ordinal.to_string()), "{ordinal}: {text}");
                assert_eq!(current_device(), 0);
                // Clean, unless somebody else's error was there and no call of ours failed.
                assert!([0, if pending { FOREIGN } else { 0 }].contains(&last_error()));
                clear_error();
                if pending {
                    leave_foreign_error();
                }
            }
            clear_error();
        }
    }
}
