//! Pinned memory is not handed out again while a copy reads or writes it, and copies are checked before any CUDA call.

use crate::common::{MIB, assert_sound, bytes, bytes_mut, manager_in, stall};
use crate::rig;
use memmgr::{Error, Stream};
use memmgr_tests::Gate;

/// B21
#[test]
fn a_copy_from_the_middle_of_a_pinned_block_keeps_all_of_it() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let s = Stream::new().unwrap();
        let d = mm.allocate_device_on(MIB, &s).unwrap();
        let p = mm.allocate_pinned(4 * MIB).unwrap();
        // SAFETY: the blocks are ours; `p` is freed with its copy in flight, which is what is tested.
        unsafe {
            bytes_mut(p, 4 * MIB).fill(0xA1);
            s.synchronize().unwrap();
            let gate = Gate::new();
            stall(&s, &gate);
            mm.copy_to_device_async(d, p.cast::<u8>().add(MIB).cast(), MIB, &s)
                .unwrap();
            mm.free_pinned(p).unwrap();
            let q = mm.allocate_pinned(4 * MIB).unwrap();
            assert_ne!(q, p, "{mode}: handed out while a copy reads it");
            bytes_mut(q, 4 * MIB).fill(0xB2);
            gate.open();
            s.synchronize().unwrap();
            rig::assert_all(&rig::read_back(&mm, d, MIB, &s), 0xA1, &mode.to_string());
            mm.free_pinned(q).unwrap();
            // And it comes back.
            assert!(rig::eventually(|| {
                let again = mm.allocate_pinned(8 * MIB - 4096).unwrap();
                mm.free_pinned(again).unwrap();
                mm.stats().pinned.pending == 0
            }));
            mm.free_device_on(d, &s).unwrap();
        }
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

/// B21
#[test]
fn a_use_of_memory_that_is_no_live_block_is_an_error() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let s = Stream::new().unwrap();
        let block = mm.allocate_device_on(MIB, &s).unwrap();
        let host = mm.allocate_pinned(MIB).unwrap();
        let stack = 7u64;
        let inside = |p: *mut std::ffi::c_void, at: usize| p.cast::<u8>().wrapping_add(at).cast();
        mm.record_use(block, &s).unwrap();
        mm.record_use(inside(block, MIB - 1), &s).unwrap();
        mm.record_use(inside(host, MIB / 2), &s).unwrap();
        // SAFETY: nobody uses the blocks.
        unsafe {
            mm.free_device_on(block, &s).unwrap();
            mm.free_pinned(host).unwrap();
        }
        for unknown in [
            std::ptr::null(),
            (&raw const stack).cast(),
            block.cast_const(),
            inside(block, 4096).cast_const(),
            host.cast_const(),
        ] {
            assert!(
                matches!(
                    mm.record_use(unknown, &s),
                    Err(Error::UnknownPointer { .. })
                ),
                "{mode}: {unknown:?}"
            );
        }
        assert_eq!(crate::common::last_error(), 0);
        mm.shutdown().unwrap();
    }
}

/// B22: raw pointers and guards, both ways.
#[test]
fn pinned_sources_and_targets_outlive_their_copies_though_dropped_at_once() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let s = Stream::new().unwrap();
        let mut a = mm.pinned::<u8>(MIB).unwrap();
        let mut b = mm.pinned::<u8>(MIB).unwrap();
        let d1 = mm.device::<u8>(MIB, &s).unwrap();
        let d2 = mm.device::<u8>(MIB, &s).unwrap();
        let _ = s.copy_to_device(&a, &d1).unwrap();
        s.synchronize().unwrap();
        a.as_mut_slice().unwrap().fill(0x11);
        b.as_mut_slice().unwrap().fill(0x22);
        let (a_at, b_at) = (a.as_ptr(), b.as_ptr());
        let gate = Gate::new();
        stall(&s, &gate);
        let _ = s.copy_to_device(&a, &d1).unwrap();
        let _ = s.copy_to_device(&b, &d2).unwrap();
        drop(a);
        drop(b);
        let mut c = mm.pinned::<u8>(MIB).unwrap();
        let mut e = mm.pinned::<u8>(MIB).unwrap();
        for next in [&mut c, &mut e] {
            assert!(next.as_ptr() != a_at && next.as_ptr() != b_at, "{mode}");
            next.as_mut_slice().unwrap().fill(0xEE);
        }
        gate.open();
        s.synchronize().unwrap();
        // SAFETY: both buffers are live and have that many bytes.
        unsafe {
            rig::assert_all(
                &rig::read_back(&mm, d1.as_ptr(), MIB, &s),
                0x11,
                &mode.to_string(),
            );
            rig::assert_all(
                &rig::read_back(&mm, d2.as_ptr(), MIB, &s),
                0x22,
                &mode.to_string(),
            );
        }
        drop((c, e));
        // The other way: the late copy writes nobody's memory.
        let mut h = mm.pinned::<u8>(MIB).unwrap();
        let h_at = h.as_ptr();
        let gate = Gate::new();
        stall(&s, &gate);
        let _ = s.copy_to_host(&d1, &mut h).unwrap();
        drop(h);
        let mut h2 = mm.pinned::<u8>(MIB).unwrap();
        assert_ne!(h2.as_ptr(), h_at, "{mode}");
        h2.as_mut_slice().unwrap().fill(0x77);
        gate.open();
        s.synchronize().unwrap();
        rig::assert_all(
            h2.as_slice().unwrap(),
            0x77,
            &format!("{mode}: written by a late copy"),
        );
        drop((h2, d1, d2));
        assert_eq!(mm.stats().drop_failures, 0);
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

/// B56 (a), (c): the present interface lets pageable memory in through raw pointers only; it must stay as it is until
/// the copy is done, and then everybody who follows the stream's event sees the data.
#[test]
fn a_copy_from_pageable_memory_is_seen_by_its_stream_and_by_whoever_waits_for_it() {
    let len = 16 * MIB;
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let s = Stream::new().unwrap();
        let source: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
        let d = mm.allocate_device_on(len, &s).unwrap();
        let (first, second) = (
            mm.allocate_pinned(len).unwrap(),
            mm.allocate_pinned(len).unwrap(),
        );
        // SAFETY: the vector stays until the stream has been synchronised; the blocks are ours.
        unsafe {
            mm.copy_to_device_async(d, source.as_ptr().cast(), len, &s)
                .unwrap();
            mm.copy_to_host_async(first, d, len, &s).unwrap();
            let event = s.record().unwrap();
            let legacy = Stream::legacy(s.device()).unwrap();
            legacy.wait(&event).unwrap();
            mm.copy_to_host_async(second, d, len, &legacy).unwrap();
            s.synchronize().unwrap();
            legacy.synchronize().unwrap();
            assert!(bytes(first, len) == source, "{mode}: on its own stream");
            assert!(bytes(second, len) == source, "{mode}: behind the event");
            mm.free_device_on(d, &s).unwrap();
            mm.free_pinned(first).unwrap();
            mm.free_pinned(second).unwrap();
        }
        mm.shutdown().unwrap();
    }
}

/// B56: lengths that do not match, and ranges that leave their block: refused before any CUDA call.
#[test]
fn a_copy_that_leaves_its_block_is_refused_before_any_cuda_call() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let s = Stream::new().unwrap();
        let small = mm.device::<u8>(1000, &s).unwrap();
        let large = mm.device::<u8>(2000, &s).unwrap();
        let mut host = mm.pinned::<u8>(1500).unwrap();
        host.as_mut_slice().unwrap().fill(9);
        let _ = s.memset(&small, 3).unwrap();
        let _ = s.memset(&large, 4).unwrap();
        s.synchronize().unwrap();
        let (results, calls) = rig::calls_of(|| {
            [
                s.copy_to_device(&host, &small).map(drop),
                s.copy_to_device(&host, &large).map(drop),
                s.copy_to_host(&small, &mut host).map(drop),
                s.copy_to_host(&large, &mut host).map(drop),
                s.copy_device_to_device(&small, &large).map(drop),
                // SAFETY: each is refused before anything happens.
                unsafe { mm.copy_to_device_async(small.as_ptr(), host.as_ptr(), 1001, &s) },
                // SAFETY: as above.
                unsafe { mm.copy_to_host_async(host.as_ptr(), large.as_ptr(), 1501, &s) },
                // SAFETY: as above.
                unsafe {
                    mm.copy_to_host_async(
                        host.as_ptr(),
                        large.as_ptr().cast::<u8>().wrapping_add(1000).cast(),
                        1001,
                        &s,
                    )
                },
                // SAFETY: as above.
                unsafe { mm.memset(small.as_ptr(), 1, 1001, &s) },
                // SAFETY: as above.
                unsafe { mm.memset(small.as_ptr(), 1, usize::MAX, &s) },
                // SAFETY: as above.
                unsafe { mm.memset_2d(small.as_ptr(), 300, 1, 256, 4, &s) },
                // SAFETY: as above.
                unsafe { mm.memset_2d(small.as_ptr(), 100, 1, 256, 2, &s) },
                // SAFETY: as above.
                unsafe {
                    mm.copy_2d(
                        large.as_ptr(),
                        300,
                        host.as_ptr(),
                        256,
                        256,
                        6,
                        memmgr::CopyKind::HostToDevice,
                        &s,
                    )
                },
            ]
        });
        for (i, result) in results.iter().enumerate() {
            assert!(
                matches!(result, Err(Error::InvalidRange { .. })),
                "{mode}: number {i}: {result:?}"
            );
        }
        assert_eq!(calls, 0, "{mode}: a refused copy called CUDA");
        // SAFETY: the buffers are live and have that many bytes.
        unsafe {
            rig::assert_all(
                &rig::read_back(&mm, small.as_ptr(), 1000, &s),
                3,
                "the small one",
            );
            rig::assert_all(
                &rig::read_back(&mm, large.as_ptr(), 2000, &s),
                4,
                "the large one",
            );
        }
        rig::assert_all(host.as_slice().unwrap(), 9, "the host's");
        drop((small, large, host));
        mm.shutdown().unwrap();
    }
}
