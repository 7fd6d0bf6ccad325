//! Pointers that are freed twice, that point into a block, or that the manager never gave out (case B34).

use crate::common::{
    KIB, MIB, MODES, assert_sound,
    checks::{KINDS, Kind, OWN_POOLS, are_disjoint, figures, hex, refused, without_calls},
    last_error, manager, manager_in,
};
use memmgr::{Error, MemoryManager, Stream};
use memmgr_tests::Rng;
use std::{ffi::c_void, ptr::null_mut, sync::Barrier};

/// Every way to free: by kind of memory, and on a stream for device memory.
fn frees(
    manager: &MemoryManager,
    stream: &Stream,
    ptr: *mut c_void,
) -> [(&'static str, memmgr::Result<()>); 3] {
    // SAFETY: the pointers that are tried here belong to no block that anybody uses; each call must refuse them.
    unsafe {
        [
            ("free_device", manager.free_device(ptr)),
            ("free_device_on", manager.free_device_on(ptr, stream)),
            ("free_pinned", manager.free_pinned(ptr)),
        ]
    }
}

/// Verifies that nobody takes the pointer, that the error names it, and that no CUDA call is made on the way.
#[track_caller]
fn assert_nobody_frees(manager: &MemoryManager, stream: &Stream, ptr: *mut c_void, what: &str) {
    let before = figures(manager);
    for (call, result) in without_calls(what, || frees(manager, stream, ptr)) {
        match result {
            Err(error @ (Error::UnknownPointer { .. } | Error::DoubleFree { .. })) => {
                assert!(
                    error.to_string().contains(&hex(ptr)),
                    "{what}: {call}: {error}"
                );
            }
            other => panic!("{what}: {call}: {other:?}"),
        }
    }
    assert_eq!(figures(manager), before, "{what}");
    assert_eq!(last_error(), 0, "{what}");
    assert_sound(manager);
}

/// Case B34: free p, free p.
#[test]
fn a_second_free_is_an_error_and_the_block_is_handed_out_once() {
    for kind in KINDS {
        let manager = kind.manager();
        let stream = Stream::new().unwrap();
        for streamed in [false, true] {
            let what = format!("{kind:?}, freed on a stream: {streamed}");
            let p = kind.allocate_on(&manager, 512, &stream).unwrap();
            // SAFETY: nobody uses the block.
            unsafe {
                if streamed {
                    kind.free_on(&manager, p, &stream).unwrap();
                } else {
                    kind.free(&manager, p).unwrap();
                }
            }
            // SAFETY: the block is free already, so the call must refuse it.
            let error = refused(&manager, &what, &[hex(p)], || unsafe {
                kind.free(&manager, p)
            });
            match error {
                Error::DoubleFree { ptr } => assert_eq!(ptr, p.addr()),
                // The driver's memory is no longer known once it is freed.
                Error::UnknownPointer { ptr, .. } if !kind.is_own_pool() => {
                    assert_eq!(ptr, p.addr());
                }
                other => panic!("{what}: {other}"),
            }
            assert_nobody_frees(&manager, &stream, p, &what);

            let blocks = [512; 2].map(|size| kind.allocate_on(&manager, size, &stream).unwrap());
            if kind.is_own_pool() {
                assert_eq!(blocks[0], p, "{what}: it is used again");
            }
            assert_ne!(blocks[0], blocks[1], "{what}: once");
            assert_eq!(kind.stats(&manager).in_use, 1024);
            for block in blocks {
                // SAFETY: nobody uses the block.
                unsafe { kind.free(&manager, block).unwrap() };
            }
            assert_eq!(kind.stats(&manager).in_use, 0);
        }
    }
}

/// Case B34: of two threads that free one block, one succeeds.
#[test]
fn of_many_threads_that_free_one_block_one_succeeds() {
    for kind in KINDS {
        let manager = kind.manager();
        for _ in 0..20 {
            let address = kind.allocate(&manager, 512).unwrap().expose_provenance();
            let barrier = Barrier::new(4);
            let succeeded = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            let ptr = std::ptr::with_exposed_provenance_mut(address);
                            // SAFETY: nobody uses the block.
                            unsafe { kind.free(&manager, ptr) }.is_ok()
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|t| t.join().unwrap())
                    .filter(|ok| *ok)
                    .count()
            });
            assert_eq!(succeeded, 1, "{kind:?}");
            assert_eq!(kind.stats(&manager).in_use, 0, "{kind:?}");
            assert_sound(&manager);
        }
        assert_eq!(kind.stats(&manager).frees, 20, "{kind:?}");
    }
}

/// Case B34: free(null).
#[test]
fn freeing_null_does_nothing() {
    for kind in KINDS {
        for used in [false, true] {
            let manager = kind.manager();
            let stream = Stream::new().unwrap();
            if used {
                let _ = kind.allocate(&manager, 512).unwrap();
            }
            let before = figures(&manager);
            for (call, result) in without_calls("null", || frees(&manager, &stream, null_mut())) {
                result.unwrap_or_else(|error| panic!("{kind:?}: {call}: {error}"));
            }
            assert_eq!(figures(&manager), before);
        }
    }
}

/// Case B34: free(p + 256), free(0x64) and others that nobody gave out.
#[test]
fn interior_and_foreign_pointers_are_errors_that_change_nothing() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let mut on_stack = [0u8; 512];
        let mut on_heap = vec![0u8; 512];
        let foreign = [
            std::ptr::without_provenance_mut(0x64),
            std::ptr::without_provenance_mut(usize::MAX),
            std::ptr::without_provenance_mut(1 << 63),
            on_stack.as_mut_ptr().cast(),
            on_heap.as_mut_ptr().cast(),
        ];
        // Before anything was allocated, too.
        for ptr in foreign {
            assert_nobody_frees(&manager, &stream, ptr, "foreign, on a fresh manager");
        }
        let device = manager.allocate_device_on(512, &stream).unwrap();
        let pinned = manager.allocate_pinned(512).unwrap();
        for ptr in foreign {
            assert_nobody_frees(&manager, &stream, ptr, "foreign");
        }
        for block in [device, pinned] {
            for offset in [1, 255, 256, 511] {
                let ptr = block.wrapping_byte_add(offset);
                assert_nobody_frees(
                    &manager,
                    &stream,
                    ptr,
                    &format!("{mode}, interior {offset}"),
                );
            }
            // What lies before and behind the block was never given out.
            for offset in [-256, 512, 4096] {
                let ptr = block.wrapping_byte_offset(offset);
                assert_nobody_frees(&manager, &stream, ptr, &format!("{mode}, beside {offset}"));
            }
        }
        // Interior pointers are told from others.
        let inside = device.wrapping_byte_add(256);
        // SAFETY: the pointer starts no block, so the call must refuse it.
        let error = unsafe { manager.free_device(inside) }
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&hex(device)) && error.contains("512"),
            "{error}"
        );
        // The blocks are still there, once.
        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device(device).unwrap();
            manager.free_pinned(pinned).unwrap();
        }
        assert_eq!(manager.stats().in_use(), 0);
        for block in [device, pinned] {
            for offset in [0, 1, 256] {
                let ptr = block.wrapping_byte_add(offset);
                assert_nobody_frees(&manager, &stream, ptr, "into a freed block");
            }
        }
    }
}

/// Case B34: a pinned pointer in the device pool and the reverse.
#[test]
fn memory_of_the_other_kind_is_refused_with_a_hint() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let device = manager.allocate_device(512).unwrap();
        let pinned = manager.allocate_pinned(512).unwrap();
        let names = |ptr: *mut c_void, hint: &str| [hex(ptr), hint.to_owned()];
        // SAFETY: each call must refuse the pointer.
        unsafe {
            for error in [
                refused(
                    &manager,
                    "pinned as device",
                    &names(pinned, "free_pinned"),
                    || manager.free_device(pinned),
                ),
                refused(
                    &manager,
                    "pinned on a stream",
                    &names(pinned, "free_pinned"),
                    || manager.free_device_on(pinned, &stream),
                ),
                refused(
                    &manager,
                    "device as pinned",
                    &names(device, "free_device"),
                    || manager.free_pinned(device),
                ),
            ] {
                assert!(matches!(error, Error::UnknownPointer { .. }), "{error}");
            }
            manager.free_device(device).unwrap();
            manager.free_pinned(pinned).unwrap();
        }
        assert_eq!(manager.stats().in_use(), 0);
    }
}

/// Case B34: blocks of another manager are foreign.
#[test]
fn a_block_of_another_manager_is_refused() {
    for kind in KINDS {
        let (one, two) = (kind.manager(), kind.manager());
        let stream = Stream::new().unwrap();
        let p = kind.allocate(&one, 512).unwrap();
        let q = kind.allocate(&two, 512).unwrap();
        assert_nobody_frees(&one, &stream, q, "the second manager's block");
        assert_nobody_frees(&two, &stream, p, "the first manager's block");
        // SAFETY: nobody uses the blocks.
        unsafe {
            kind.free(&one, p).unwrap();
            kind.free(&two, q).unwrap();
        }
    }
}

/// Case B34: pointers from before a shutdown, whose segments are gone.
#[test]
fn a_pointer_from_before_a_shutdown_is_refused() {
    for kind in KINDS {
        let manager = kind.manager();
        let stream = Stream::new().unwrap();
        let p = kind.allocate(&manager, 512).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, p).unwrap() };
        manager.shutdown().unwrap();
        assert_nobody_frees(&manager, &stream, p, "after shutdown");
    }
}

/// Case B34: release 100 live blocks in random order.
#[test]
fn a_hundred_blocks_can_be_freed_in_any_order() {
    for kind in KINDS {
        let manager = kind.manager();
        let stream = Stream::new().unwrap();
        let mut rng = Rng(34);
        for round in 0..5 {
            let mut blocks: Vec<(*mut c_void, usize)> = (0..100)
                .map(|_| {
                    let size = 1 + rng.below(64 * KIB as u64) as usize;
                    (kind.allocate_on(&manager, size, &stream).unwrap(), size)
                })
                .collect();
            let ranges: Vec<_> = blocks
                .iter()
                .map(|(ptr, size)| (ptr.addr(), *size))
                .collect();
            assert!(are_disjoint(&ranges), "{kind:?}");
            while !blocks.is_empty() {
                let (ptr, _) = blocks.swap_remove(rng.below(blocks.len() as u64) as usize);
                // SAFETY: nobody uses the block.
                unsafe {
                    if rng.below(2) == 0 {
                        kind.free(&manager, ptr).unwrap();
                    } else {
                        kind.free_on(&manager, ptr, &stream).unwrap();
                    }
                }
                assert_eq!(kind.stats(&manager).live_blocks, blocks.len());
                if kind.is_own_pool() {
                    assert_sound(&manager);
                }
            }
            let stats = kind.stats(&manager);
            assert_eq!(
                (stats.in_use, stats.frees),
                (0, 100 * (round + 1)),
                "{kind:?}"
            );
        }
        stream.synchronize().unwrap();
        assert!(manager.shutdown().unwrap().live.is_empty());
        assert_eq!(
            kind.stats(&manager).reserved,
            0,
            "{kind:?}: all of it is idle"
        );
    }
}

/// Recording a use needs a live block.
#[test]
fn a_use_of_what_is_no_live_block_is_refused() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        let freed = manager.allocate_pinned(512).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { manager.free_pinned(freed).unwrap() };
        let mut on_stack = 0u64;
        for ptr in [
            null_mut(),
            freed,
            freed.wrapping_byte_add(256),
            (&raw mut on_stack).cast(),
            std::ptr::without_provenance_mut(0x64),
        ] {
            let error = refused(&manager, "a recorded use", &[hex(ptr)], || {
                manager.record_use(ptr, &stream)
            });
            assert!(matches!(error, Error::UnknownPointer { .. }), "{error}");
        }
        // Anywhere in a live block is fine.
        let live = manager.allocate_device(512).unwrap();
        for offset in [0, 1, 511] {
            manager
                .record_use(live.wrapping_byte_add(offset), &stream)
                .unwrap();
        }
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(live).unwrap() };
    }
}

/// The error of a freed device block says that it was freed, however the pool is cut meanwhile.
#[test]
fn a_double_free_is_told_after_the_block_has_merged_with_its_neighbours() {
    let manager = manager();
    let kind = Kind::Pinned;
    let blocks = [512; 4].map(|size| kind.allocate(&manager, size).unwrap());
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, block).unwrap() };
    }
    assert_eq!(kind.stats(&manager).free_spans, 1);
    for block in blocks {
        // SAFETY: the block is free already, so the call must refuse it.
        let error = unsafe { kind.free(&manager, block) }.unwrap_err();
        assert_eq!(error, Error::DoubleFree { ptr: block.addr() });
    }
}

/// A guard's block is freed by its guard alone: its pointer is refused, whatever has happened to the block.
#[test]
fn a_guards_block_is_not_freed_by_its_pointer() {
    for mode in MODES {
        let manager = manager_in(mode);
        let (stream, other) = (Stream::new().unwrap(), Stream::new().unwrap());
        let mut pinned = manager.pinned_zeroed::<u8>(KIB).unwrap();
        let refuse = |ptr: *mut c_void, what: &str| {
            for (call, result) in frees(&manager, &stream, ptr) {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, Error::UnknownPointer { ptr: at, .. } if at == ptr.addr()),
                    "{mode}, {what}, {call}: {error}"
                );
            }
            // SAFETY: the block is a guard's, so the call must refuse it.
            let error = unsafe { manager.free_device_on(ptr, &other) }.unwrap_err();
            (error.to_string(), what.to_owned())
        };
        let says_guard = |(text, what): (String, String)| {
            assert!(
                text.contains("belongs to a guard"),
                "{mode}, {what}: {text}"
            );
        };
        // Just handed out, as long as nothing else has happened.
        let device = manager.device::<u8>(KIB, &stream).unwrap();
        says_guard(refuse(device.as_ptr(), "just handed out"));
        // SAFETY: the block is a guard's, so the call must refuse it.
        let error = unsafe { manager.free_pinned(pinned.as_ptr()) }.unwrap_err();
        assert!(error.to_string().contains("drop it"), "{error}");
        // With a copy in flight.
        let _ = other.copy_to_device(&pinned, &device).unwrap();
        says_guard(refuse(device.as_ptr(), "in use by another stream"));
        // The next guard has another block, and the dropped one's is free once.
        let next = manager.device::<u8>(KIB, &stream).unwrap();
        assert_ne!(next.as_ptr(), device.as_ptr());
        let address = device.as_ptr();
        drop(device);
        for (call, result) in frees(&manager, &stream, address) {
            let text = result.unwrap_err().to_string();
            assert!(!text.contains("guard"), "{mode}, {call}: {text}");
        }
        pinned.as_mut_slice().unwrap().fill(1);
        drop((next, pinned));
        assert_eq!(manager.stats().in_use(), 0, "{mode}");
        assert_eq!(manager.stats().drop_failures, 0, "{mode}");
        assert_sound(&manager);
    }
}

/// What is asked for as a raw pointer is one, whoever had the memory before, and the other way round.
#[test]
fn memory_of_a_guard_that_is_gone_is_freed_by_pointer_when_it_is_handed_out_so() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    for _ in 0..3 {
        let guard = manager.device::<u8>(KIB, &stream).unwrap();
        let address = guard.as_ptr();
        drop(guard);
        let raw = manager.allocate_device_on(KIB, &stream).unwrap();
        assert_eq!(raw, address);
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(raw, &stream).unwrap() };
        let guard = manager.device::<u8>(KIB, &stream).unwrap();
        assert_eq!(guard.as_ptr(), address);
        // SAFETY: the block is a guard's, so the call must refuse it.
        assert!(unsafe { manager.free_device_on(address, &stream) }.is_err());
    }
    assert_eq!(manager.stats().in_use(), 0);
    assert_sound(&manager);
}

/// A refusal is not reported as a free.
#[test]
fn a_guard_that_is_not_freed_by_its_pointer_is_not_reported_as_freed() {
    #[derive(Default)]
    struct Frees(std::sync::atomic::AtomicUsize);
    impl memmgr::Observer for Frees {
        fn on_free(&self, _: memmgr::Place, _: std::ops::Range<usize>, _: memmgr::By) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    for mode in MODES {
        let manager = manager_in(mode);
        let counted = std::sync::Arc::new(Frees::default());
        manager.set_observer(counted.clone()).unwrap();
        let stream = Stream::new().unwrap();
        let guard = manager.device::<u8>(KIB, &stream).unwrap();
        for (call, result) in frees(&manager, &stream, guard.as_ptr()) {
            assert!(result.is_err(), "{mode}, {call}");
        }
        assert_eq!(
            counted.0.load(std::sync::atomic::Ordering::SeqCst),
            0,
            "{mode}"
        );
        drop(guard);
        assert_eq!(
            counted.0.load(std::sync::atomic::Ordering::SeqCst),
            1,
            "{mode}"
        );
    }
}

/// Where no block can start, nothing was freed before; where one could, the text leaves both open.
#[test]
fn a_pointer_that_was_never_handed_out_is_not_said_to_be_freed_before() {
    for kind in OWN_POOLS {
        let manager = kind.manager();
        let block = kind.allocate(&manager, 1000).unwrap();
        let free = |ptr: *mut c_void| {
            // SAFETY: no block starts there, so the call must refuse it.
            unsafe { kind.free(&manager, ptr) }.unwrap_err()
        };
        let odd = free(block.wrapping_byte_add(MIB + 3));
        assert!(
            matches!(&odd, Error::UnknownPointer { reason, .. } if reason.contains("no block starts there")),
            "{kind:?}: {odd}"
        );
        let even = free(block.wrapping_byte_add(MIB)).to_string();
        assert!(
            even.contains("or the pointer was never handed out"),
            "{kind:?}: {even}"
        );
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, block).unwrap() };
        let inside = free(block.wrapping_byte_add(1));
        assert!(
            matches!(inside, Error::UnknownPointer { .. }),
            "{kind:?}: {inside}"
        );
    }
}
