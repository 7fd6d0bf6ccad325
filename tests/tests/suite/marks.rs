//! Who gets memory that other streams may still touch: every mark counts until it is known to be complete.

use crate::common::{MIB, assert_sound, manager, manager_of, stall};
use crate::rig;
use memmgr::{Config, DeviceAllocatorMode, MemoryManager, Stream};
use memmgr_tests::Gate;
use std::time::Duration;

/// How long a stalled stream stays stalled when a request is expected to wait for it.
const STALL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
enum Free {
    WithoutStream,
    OnThird,
    OnItsOwn,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Asker {
    Third,
    Host,
    First,
}

/// D01 (a), (b): `x` carries the mark of `a` although `b` and then somebody else freed it without any work.
fn a_mark_survives(free: Free, asker: Asker) {
    let what = format!("freed {free:?}, asked for by {asker:?}");
    let size = 2 * MIB;
    let mm = rig::capped(size);
    let [a, b, c] = [(); 3].map(|()| Stream::new().unwrap());
    // Warm: memory, events, a pinned block.
    let x = mm.allocate_device_on(size, &a).unwrap();
    // SAFETY: the blocks are ours; work on them is ordered by the streams, which is what is tested.
    unsafe {
        let _ = rig::read_back(&mm, x, size, &a);
        let gate = Gate::new();
        stall(&a, &gate);
        rig::kernel_fill(x, 0xAA, size, &a);
        mm.free_device_on(x, &a).unwrap();
        let again = mm.allocate_device_on(size, &b).unwrap();
        assert_eq!(again, x, "{what}: the only memory there is");
        match free {
            Free::WithoutStream => mm.free_device(again).unwrap(),
            Free::OnThird => mm.free_device_on(again, &c).unwrap(),
            Free::OnItsOwn => mm.free_device_on(again, &b).unwrap(),
        }
        assert_eq!(
            mm.stats().device[0].best_fit.idle,
            0,
            "{what}: nothing is idle while `a` is stalled"
        );
        assert_sound(&mm);
        let opener = gate.open_after(STALL);
        let (last, on) = match asker {
            Asker::Third => (mm.allocate_device_on(size, &c).unwrap(), &c),
            Asker::First => (mm.allocate_device_on(size, &a).unwrap(), &a),
            Asker::Host => {
                let last = mm.allocate_device(size).unwrap();
                assert!(
                    a.query().unwrap(),
                    "{what}: the host got it before `a` had passed"
                );
                // Usable at once, in real time, by a stream that follows nobody.
                (last, &b)
            }
        };
        assert_eq!(last, x);
        if asker != Asker::Host {
            mm.memset(last, 0xCC, size, on).unwrap();
        } else {
            let fresh = Stream::new().unwrap();
            mm.memset(last, 0xCC, size, &fresh).unwrap();
            fresh.synchronize().unwrap();
        }
        opener.join().unwrap();
        for stream in [&a, &b, &c] {
            stream.synchronize().unwrap();
        }
        rig::assert_all(&rig::read_back(&mm, last, size, &c), 0xCC, &what);
        mm.free_device(last).unwrap();
    }
    assert_sound(&mm);
    mm.shutdown().unwrap();
    assert_eq!(mm.stats().device[0].best_fit.reserved, 0);
}

/// D01
#[test]
fn a_free_does_not_wash_away_an_older_mark() {
    for free in [Free::WithoutStream, Free::OnThird, Free::OnItsOwn] {
        for asker in [Asker::Third, Asker::Host, Asker::First] {
            a_mark_survives(free, asker);
        }
    }
}

/// D01: the same with a chain of owners, none of which does anything.
#[test]
fn a_mark_survives_a_chain_of_idle_owners() {
    let size = 2 * MIB;
    let mm = rig::capped(size);
    let a = Stream::new().unwrap();
    let others: Vec<Stream> = (0..6).map(|_| Stream::new().unwrap()).collect();
    let x = mm.allocate_device_on(size, &a).unwrap();
    // SAFETY: as in `a_mark_survives`.
    unsafe {
        let _ = rig::read_back(&mm, x, size, &a);
        let gate = Gate::new();
        stall(&a, &gate);
        rig::kernel_fill(x, 0xAA, size, &a);
        mm.free_device_on(x, &a).unwrap();
        for (i, stream) in others.iter().enumerate() {
            let again = mm.allocate_device_on(size, stream).unwrap();
            assert_eq!(again, x);
            if i % 2 == 0 {
                mm.free_device(again).unwrap();
            } else {
                mm.free_device_on(again, stream).unwrap();
            }
        }
        let opener = gate.open_after(STALL);
        let last = mm.allocate_device(size).unwrap();
        assert!(
            a.query().unwrap(),
            "the mark of the first stream got lost on the way"
        );
        opener.join().unwrap();
        mm.free_device(last).unwrap();
    }
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

/// B24
#[test]
fn a_guard_dropped_while_another_stream_uses_it_is_not_reused_before() {
    for mode in rig::modes() {
        let mm = MemoryManager::new(Config::default().mode(*mode).device_growth(2 * MIB)).unwrap();
        let (s1, s2) = (Stream::new().unwrap(), Stream::new().unwrap());
        let x = mm.device::<u8>(2 * MIB, &s1).unwrap();
        let mut h = mm.pinned::<u8>(2 * MIB).unwrap();
        h.as_mut_slice().unwrap().fill(0);
        // Warm both streams.
        let _ = s2.memset(&x, 0x11).unwrap();
        let _ = s1.memset(&x, 0x22).unwrap();
        s1.synchronize().unwrap();
        s2.synchronize().unwrap();
        let gate = Gate::new();
        stall(&s2, &gate);
        let _ = s2.memset(&x, 0x55).unwrap();
        let _ = s2.copy_to_host(&x, &mut h).unwrap();
        drop(x);
        assert!(!s2.query().unwrap(), "{mode}: the drop waited");
        let opener = gate.open_after(STALL);
        let y = mm.device::<u8>(2 * MIB, &s1).unwrap();
        let _ = s1.memset(&y, 0x66).unwrap();
        opener.join().unwrap();
        s1.synchronize().unwrap();
        s2.synchronize().unwrap();
        rig::assert_all(
            h.as_slice().unwrap(),
            0x55,
            &format!("{mode}: what s2 read"),
        );
        // SAFETY: the buffer is live and has that many bytes.
        let contents = unsafe { rig::read_back(&mm, y.as_ptr(), 2 * MIB, &s1) };
        rig::assert_all(
            &contents,
            0x66,
            &format!("{mode}: the next owner's contents"),
        );
        drop((h, y));
        assert_eq!(mm.stats().drop_failures, 0, "{mode}");
        mm.shutdown().unwrap();
    }
}

/// B24: the same through raw pointers and `record_use`, for work that the manager does not see.
#[test]
fn a_recorded_use_keeps_a_block_from_its_next_owner() {
    for mode in rig::modes() {
        let mm = MemoryManager::new(Config::default().mode(*mode).device_growth(2 * MIB)).unwrap();
        let (s1, s2) = (Stream::new().unwrap(), Stream::new().unwrap());
        let x = mm.allocate_device_on(2 * MIB, &s1).unwrap();
        s1.synchronize().unwrap();
        // SAFETY: the blocks are ours and all work on them is recorded.
        unsafe {
            let _ = rig::read_back(&mm, x, 2 * MIB, &s2);
            let gate = Gate::new();
            stall(&s2, &gate);
            rig::kernel_fill(x, 0x55, 2 * MIB, &s2);
            mm.record_use(x.cast::<u8>().add(MIB + 3).cast(), &s2)
                .unwrap();
            mm.free_device_on(x, &s1).unwrap();
            let opener = gate.open_after(STALL);
            let y = mm.allocate_device_on(2 * MIB, &s1).unwrap();
            mm.memset(y, 0x66, 2 * MIB, &s1).unwrap();
            opener.join().unwrap();
            s1.synchronize().unwrap();
            s2.synchronize().unwrap();
            rig::assert_all(
                &rig::read_back(&mm, y, 2 * MIB, &s1),
                0x66,
                &mode.to_string(),
            );
            mm.free_device_on(y, &s1).unwrap();
        }
        mm.shutdown().unwrap();
    }
}

/// B26 (a)
#[test]
fn memory_freed_on_streams_that_are_gone_is_used_again() {
    for mode in rig::modes() {
        let mm = manager_of(Config::default().mode(*mode), 8 * MIB);
        for _ in 0..8 {
            let stream = Stream::new().unwrap();
            let block = mm.allocate_device_on(MIB, &stream).unwrap();
            // SAFETY: the block is ours.
            unsafe {
                mm.memset(block, 1, MIB, &stream).unwrap();
                mm.free_device_on(block, &stream).unwrap();
            }
        }
        let legacy = Stream::legacy(0).unwrap();
        let big = mm.allocate_device_on(8 * MIB, &legacy).unwrap();
        // SAFETY: nobody uses the blocks.
        unsafe {
            mm.memset(big, 2, 8 * MIB, &legacy).unwrap();
            mm.free_device_on(big, &legacy).unwrap();
        }
        let blocks: Vec<_> = (0..8)
            .map(|_| mm.allocate_device_on(MIB, &legacy).unwrap())
            .collect();
        for block in blocks {
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &legacy).unwrap() };
        }
        assert_sound(&mm);
        mm.shutdown().unwrap();
        assert_eq!(mm.stats().in_use(), 0);
    }
}

/// B26 (b)
#[test]
fn a_stream_that_reuses_a_handle_does_not_inherit_its_memory() {
    for mode in rig::modes() {
        let mm = MemoryManager::new(Config::default().mode(*mode).device_growth(2 * MIB)).unwrap();
        let s1 = Stream::new().unwrap();
        let (raw, id) = (s1.as_raw(), s1.id());
        let x = mm.allocate_device_on(2 * MIB, &s1).unwrap();
        s1.synchronize().unwrap();
        let gate = Gate::new();
        stall(&s1, &gate);
        // SAFETY: the block is ours; the work is in the stream that frees it.
        unsafe {
            rig::kernel_fill(x, 0xAA, 2 * MIB, &s1);
            mm.free_device_on(x, &s1).unwrap();
        }
        drop(s1);
        let mut streams = Vec::new();
        while streams.len() < 64 {
            streams.push(Stream::new().unwrap());
            if streams.last().unwrap().as_raw() == raw {
                break;
            }
        }
        let s = streams.last().unwrap();
        assert_ne!(s.id(), id, "ids are never reused");
        let opener = gate.open_after(STALL);
        let y = mm.allocate_device_on(2 * MIB, s).unwrap();
        // SAFETY: the block is ours.
        unsafe {
            mm.memset(y, 0xBB, 2 * MIB, s).unwrap();
            opener.join().unwrap();
            // All that the old stream had has run when this returns.
            assert_eq!(cuda_sys::cudaDeviceSynchronize().0, 0);
            rig::assert_all(&rig::read_back(&mm, y, 2 * MIB, s), 0xBB, &mode.to_string());
            mm.free_device_on(y, s).unwrap();
        }
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

/// B26 (c)
#[test]
fn a_block_used_on_a_foreign_stream_that_is_gone_comes_back() {
    for mode in rig::modes() {
        let mm = MemoryManager::new(
            Config::default()
                .mode(*mode)
                .device_pool_size(MIB)
                .device_pool_limit(Some(MIB)),
        )
        .unwrap();
        let s = Stream::new().unwrap();
        let block = mm.device::<u8>(MIB, &s).unwrap();
        let at = block.as_ptr();
        s.synchronize().unwrap();
        let mut raw = std::ptr::null_mut();
        // SAFETY: the stream is made here, lent to the manager while it lives, and destroyed here.
        unsafe {
            assert_eq!(cuda_sys::cudaStreamCreate(&mut raw).0, 0);
            let foreign = Stream::borrow_raw(raw.cast()).unwrap();
            rig::kernel_fill(at, 1, MIB, &foreign);
            mm.record_use(at, &foreign).unwrap();
            drop(foreign);
            assert_eq!(cuda_sys::cudaStreamDestroy(raw).0, 0);
        }
        drop(block);
        assert_eq!(mm.stats().drop_failures, 0, "{mode}");
        s.synchronize().unwrap();
        if *mode == DeviceAllocatorMode::BestFitPool {
            assert!(rig::eventually(|| {
                let again = mm.allocate_device(MIB).unwrap();
                // SAFETY: nobody uses the block.
                unsafe { mm.free_device(again).unwrap() };
                again == at
            }));
        }
        let report = mm.shutdown().unwrap();
        assert!(report.live.is_empty());
        assert_eq!(mm.stats().device[0].best_fit.reserved, 0, "{mode}");
    }
}

/// Design 5.1: `trim` gives back what no work needs any more, also where nobody has asked for the memory meanwhile.
#[test]
fn memory_of_a_stream_that_was_synchronised_is_given_back_by_trim() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let block = mm.allocate_device_on(MIB, &stream).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(block, &stream).unwrap() };
    stream.synchronize().unwrap();
    let reserved = mm.stats().device[0].best_fit.reserved;
    assert_eq!(mm.trim().unwrap(), reserved);
    let stats = mm.stats().device[0].best_fit;
    assert_eq!((stats.reserved, stats.pending), (0, 0), "{stats:?}");
    mm.shutdown().unwrap();
}

/// Design 5.5 (6): memory of a stream's own frees in segments that are too small is given back before a refusal.
#[test]
fn a_stream_whose_small_segments_fill_the_limit_gets_a_large_one_instead() {
    let mm = MemoryManager::new(
        Config::default()
            .device_growth(2 * MIB)
            .device_pool_limit(Some(8 * MIB)),
    )
    .unwrap();
    let stream = Stream::new().unwrap();
    let blocks: Vec<_> = (0..4)
        .map(|_| mm.allocate_device_on(2 * MIB, &stream).unwrap())
        .collect();
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &stream).unwrap() };
    }
    stream.synchronize().unwrap();
    let large = mm.allocate_device_on(6 * MIB, &stream).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(large, &stream).unwrap() };
    mm.shutdown().unwrap();
}
