//! Streams: they may go at any time, are known by what they are and not by their handle, and share one state.

use crate::common::{KIB, MIB, assert_sound, manager, manager_in, stall};
use crate::rig;
use memmgr::{
    Config, DeviceAllocatorMode, Error, MemoryManager, PerThreadStream, Stream, StreamKind,
};
use memmgr_tests::Gate;
use std::time::Duration;

#[test]
fn the_last_handle_of_a_stream_may_go_with_work_queued_and_blocks_live() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let stream = Stream::new().unwrap();
        let after = Stream::new().unwrap();
        let guard = mm.device::<u8>(MIB, &stream).unwrap();
        let raw = mm.allocate_device_on(MIB, &stream).unwrap();
        let freed = mm.allocate_device_on(MIB, &stream).unwrap();
        let gate = Gate::new();
        stall(&stream, &gate);
        let _ = stream.memset(&guard, 0x44).unwrap();
        // SAFETY: the blocks are ours.
        unsafe {
            rig::kernel_fill(raw, 0x45, MIB, &stream);
            mm.record_use(raw, &stream).unwrap();
            mm.free_device_on(freed, &stream).unwrap();
        }
        drop(stream);
        let opener = gate.open_after(Duration::from_millis(50));
        // Another stream that uses the guard waits for what the dead one still has.
        let mut host = mm.pinned::<u8>(MIB).unwrap();
        let _ = after.copy_to_host(&guard, &mut host).unwrap();
        rig::assert_all(host.as_slice().unwrap(), 0x44, &mode.to_string());
        opener.join().unwrap();
        drop(guard);
        // SAFETY: the use is recorded.
        unsafe { mm.free_device(raw).unwrap() };
        assert_eq!(mm.stats().drop_failures, 0, "{mode}");
        drop(host);
        assert_sound(&mm);
        assert!(mm.shutdown().unwrap().live.is_empty());
        assert_eq!(mm.stats().device[0].best_fit.reserved, 0);
    }
}

/// Later streams must not pay for those that are gone.
#[test]
fn requests_do_not_get_slower_with_the_number_of_streams_that_ever_were() {
    let mm = manager();
    let round = || {
        let begun = std::time::Instant::now();
        for _ in 0..1000 {
            let stream = Stream::new().unwrap();
            // SAFETY: nobody uses the blocks.
            unsafe {
                let block = mm.allocate_device_on(64 * KIB, &stream).unwrap();
                mm.free_device_on(block, &stream).unwrap();
            }
        }
        begun.elapsed()
    };
    let first = (0..3).map(|_| round()).min().unwrap();
    for _ in 0..14 {
        round();
    }
    let last = (0..3).map(|_| round()).min().unwrap();
    assert!(
        last < 4 * first,
        "1000 streams took {first:?} at first and {last:?} at last"
    );
    mm.shutdown().unwrap();
}

#[test]
fn two_streams_made_from_one_raw_handle_are_one_stream() {
    let (mm, other_mm) = (manager(), manager());
    let mut raw = std::ptr::null_mut();
    // SAFETY: the stream is made here and lives until the end, where the one owner destroys it.
    unsafe {
        let code = cuda_sys::cudaStreamCreateWithFlags(&mut raw, cuda_sys::cudaStreamNonBlocking);
        assert_eq!(code.0, 0);
        let one = Stream::borrow_raw(raw.cast()).unwrap();
        let two = Stream::borrow_raw(raw.cast()).unwrap();
        let owner = Stream::from_raw(raw.cast()).unwrap();
        assert_eq!((one.id(), one.kind()), (two.id(), StreamKind::NonBlocking));
        assert_eq!((owner.id(), owner.as_raw()), (one.id(), one.as_raw()));
        for mm in [&mm, &other_mm] {
            let block = mm.allocate_device_on(MIB, &one).unwrap();
            mm.free_device_on(block, &one).unwrap();
            // Its own memory, at once and without a call, through the other handle.
            let (again, calls) = rig::calls_of(|| mm.allocate_device_on(MIB, &two).unwrap());
            assert_eq!((again, calls), (block, 0));
            mm.free_device_on(again, &owner).unwrap();
        }
        // The owner goes first: the stream lives as long as a handle.
        drop(owner);
        drop(one);
        let block = mm.allocate_device_on(MIB, &two).unwrap();
        mm.memset(block, 1, MIB, &two).unwrap();
        two.synchronize().unwrap();
        mm.free_device_on(block, &two).unwrap();
    }
    mm.shutdown().unwrap();
    other_mm.shutdown().unwrap();
}

#[test]
fn a_borrowed_stream_is_not_destroyed_with_its_handles() {
    let mm = manager();
    let mut raw = std::ptr::null_mut();
    // SAFETY: the stream is made and destroyed here.
    unsafe {
        assert_eq!(cuda_sys::cudaStreamCreate(&mut raw).0, 0);
        for _ in 0..3 {
            let lent = Stream::borrow_raw(raw.cast()).unwrap();
            assert_eq!(lent.kind(), StreamKind::Blocking);
            let block = mm.allocate_device_on(MIB, &lent).unwrap();
            mm.memset(block, 1, MIB, &lent).unwrap();
            mm.free_device_on(block, &lent).unwrap();
            drop(lent);
            assert_eq!(cuda_sys::cudaStreamSynchronize(raw).0, 0);
        }
        assert_eq!(cuda_sys::cudaStreamDestroy(raw).0, 0);
    }
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn the_legacy_stream_serves_and_orders_its_blocks() {
    for mode in rig::modes() {
        let mm = MemoryManager::new(Config::default().mode(*mode).device_growth(2 * MIB)).unwrap();
        let legacy = Stream::legacy(0).unwrap();
        // SAFETY: the null stream is a stream of the current device.
        let null = unsafe { Stream::borrow_raw(std::ptr::null_mut()).unwrap() };
        assert_eq!(
            (legacy.id(), legacy.kind()),
            (null.id(), StreamKind::Legacy)
        );
        let free = Stream::new().unwrap();
        let block = mm.allocate_device_on(2 * MIB, &legacy).unwrap();
        let gate = Gate::new();
        stall(&legacy, &gate);
        // SAFETY: the blocks are ours.
        unsafe {
            rig::kernel_fill(block, 0x10, 2 * MIB, &legacy);
            mm.free_device_on(block, &null).unwrap();
            let opener = gate.open_after(Duration::from_millis(50));
            let next = mm.allocate_device_on(2 * MIB, &free).unwrap();
            mm.memset(next, 0x20, 2 * MIB, &free).unwrap();
            opener.join().unwrap();
            legacy.synchronize().unwrap();
            free.synchronize().unwrap();
            rig::assert_all(
                &rig::read_back(&mm, next, 2 * MIB, &free),
                0x20,
                &mode.to_string(),
            );
            mm.free_device_on(next, &free).unwrap();
        }
        mm.shutdown().unwrap();
    }
}

/// A guard that was allocated with one handle of it, a kernel launched with another, or with none.
#[test]
fn the_legacy_stream_is_one_stream_though_its_handles_come_and_go() {
    for mode in rig::modes() {
        let mm = MemoryManager::new(
            Config::default()
                .mode(*mode)
                .device_pool_size(2 * MIB)
                .device_pool_limit(Some(2 * MIB)),
        )
        .unwrap();
        let free = Stream::new().unwrap();
        let first = Stream::legacy(0).unwrap();
        let id = first.id();
        let guard = mm.device::<u8>(2 * MIB, &first).unwrap();
        drop(first);
        let gate = Gate::new();
        {
            let second = Stream::legacy(0).unwrap();
            assert_eq!(second.id(), id);
            stall(&second, &gate);
            // SAFETY: the guard is alive, and the kernel belongs to the stream that it was allocated on.
            unsafe { rig::kernel_fill(guard.as_ptr(), 0x10, 2 * MIB, &second) };
        }
        drop(guard);
        let opener = gate.open_after(Duration::from_millis(50));
        let next = mm.device::<u8>(2 * MIB, &free).unwrap();
        let _ = free.memset(&next, 0x20).unwrap();
        opener.join().unwrap();
        Stream::legacy(0).unwrap().synchronize().unwrap();
        let mut host = mm.pinned::<u8>(2 * MIB).unwrap();
        let _ = free.copy_to_host(&next, &mut host).unwrap();
        rig::assert_all(host.as_slice().unwrap(), 0x20, &mode.to_string());
        drop((host, next));
        assert_sound(&mm);
        assert!(mm.shutdown().unwrap().live.is_empty());
    }
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    for mode in rig::modes() {
        let mm = &MemoryManager::new(Config::default().mode(*mode).device_growth(2 * MIB)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let mine = PerThreadStream::new().unwrap();
                    let reader = Stream::new().unwrap();
                    for round in 0..50u8 {
                        let value = thread * 50 + round;
                        let block = mm.allocate_device_on(64 * KIB, &mine).unwrap();
                        // SAFETY: the block is ours and the stream is waited for.
                        unsafe {
                            mm.memset(block, value, 64 * KIB, &mine).unwrap();
                            mine.synchronize().unwrap();
                            let contents = rig::read_back(mm, block, 64 * KIB, &reader);
                            rig::assert_all(&contents, value, &mode.to_string());
                            if round % 2 == 0 {
                                mm.free_device_on(block, &mine).unwrap();
                            } else {
                                mm.free_device(block).unwrap();
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(mm.stats().in_use(), 0);
        assert_sound(mm);
        mm.shutdown().unwrap();
    }
}

/// Memory freed on a per-thread stream reaches another thread only behind that stream's work, and the request gets it.
#[test]
fn memory_freed_on_one_threads_stream_serves_another_thread_in_order() {
    let mm = rig::capped(2 * MIB);
    let mine = PerThreadStream::new().unwrap();
    let block = mm.allocate_device_on(2 * MIB, &mine).unwrap();
    // SAFETY: as below.
    let raw = unsafe { Stream::borrow_raw(std::ptr::without_provenance_mut(2)) };
    assert!(matches!(raw, Err(Error::Unsupported { .. })), "{raw:?}");
    // SAFETY: the block is ours and freed behind its work.
    unsafe {
        mm.memset(block, 0x30, 2 * MIB, &mine).unwrap();
        mm.free_device_on(block, &mine).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = Stream::new().unwrap();
            let next = mm.allocate_device_on(2 * MIB, &stream).unwrap();
            // SAFETY: the block is ours.
            unsafe {
                mm.memset(next, 0x31, 2 * MIB, &stream).unwrap();
                rig::assert_all(
                    &rig::read_back(&mm, next, 2 * MIB, &stream),
                    0x31,
                    "the next",
                );
                mm.free_device_on(next, &stream).unwrap();
            }
        });
    });
    mm.shutdown().unwrap();
}

#[test]
fn a_stream_of_a_device_that_does_not_exist_is_refused() {
    for result in [
        Stream::builder().device(99).build().map(drop),
        Stream::legacy(99).map(drop),
        Stream::builder()
            .device(-1)
            .blocking(true)
            .build()
            .map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::WrongDevice { .. }) || error.cuda_code() == Some(101),
            "{error:?}"
        );
    }
    assert_eq!(crate::common::last_error(), 0);
    assert_eq!(rig::current_device(), 0);
}

#[test]
fn an_events_answers_agree_with_the_stream() {
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let gate = Gate::new();
    stall(&a, &gate);
    let event = a.record().unwrap();
    b.wait(&event).unwrap();
    let behind = b.record().unwrap();
    assert!(!event.is_done().unwrap() && !behind.is_done().unwrap());
    assert!(!a.query().unwrap() && !b.query().unwrap());
    drop(a);
    let opener = gate.open_after(Duration::from_millis(20));
    behind.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    opener.join().unwrap();
    let _ = DeviceAllocatorMode::ALL;
}

/// Who has only the raw handle makes a handle for each call. What such a call has freed, the next ones may use at once, though the
/// stream still works: it is the same stream.
#[test]
fn memory_freed_by_a_handle_that_is_gone_is_the_streams_own() {
    let mm = manager();
    let mut raw = std::ptr::null_mut();
    // SAFETY: `raw` is a place for one handle.
    let code =
        unsafe { cuda_sys::cudaStreamCreateWithFlags(&mut raw, cuda_sys::cudaStreamNonBlocking) };
    assert_eq!(code.0, 0);
    let raw = raw.cast::<std::ffi::c_void>();
    // SAFETY: the stream is destroyed at the end, when all handles are gone.
    let handle = || unsafe { Stream::borrow_raw(raw) }.unwrap();
    let first = mm.allocate_device_on(16 * MIB, &handle()).unwrap();
    let gate = Gate::new();
    stall(&handle(), &gate);
    // SAFETY: the block is ours, and freed in the order of the only stream that uses it.
    unsafe {
        rig::kernel_fill(first, 1, 16 * MIB, &handle());
        mm.free_device_on(first, &handle()).unwrap();
    }
    for turn in 0..50 {
        let block = mm.allocate_device_on(16 * MIB, &handle()).unwrap();
        assert_eq!(block, first, "turn {turn}");
        // SAFETY: as above.
        unsafe {
            rig::kernel_fill(block, turn, 16 * MIB, &handle());
            mm.free_device_on(block, &handle()).unwrap();
        }
    }
    // Another stream does not get it before the work has finished.
    let other = Stream::new().unwrap();
    let theirs = mm.allocate_device_on(16 * MIB, &other).unwrap();
    assert_ne!(theirs, first);
    assert_sound(&mm);
    gate.open();
    handle().synchronize().unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(theirs, &other).unwrap() };
    // SAFETY: the stream is ours, and no handle of it is left.
    assert_eq!(unsafe { cuda_sys::cudaStreamDestroy(raw.cast()) }.0, 0);
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

/// Handles of one stream are equal, however they came about, and can be keys.
// They are known by what never changes.
#[allow(clippy::mutable_key_type)]
#[test]
fn streams_and_events_are_equal_if_they_are_the_same() {
    use std::collections::HashMap;
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    // SAFETY: the stream lives as long as this handle.
    let borrowed = unsafe { Stream::borrow_raw(a.as_raw()).unwrap() };
    assert!(a == borrowed && a == a.clone() && a != b);
    let names = HashMap::from([(a.clone(), "a"), (b.clone(), "b")]);
    assert_eq!((names[&borrowed], names[&b]), ("a", "b"));
    assert_eq!(
        Stream::legacy(0).unwrap(),
        Stream::legacy(0).unwrap(),
        "the legacy stream of a device"
    );
    let (first, second) = (a.record().unwrap(), a.record().unwrap());
    assert!(first == first.clone() && first != second);
    let order = HashMap::from([(first.clone(), 1), (second.clone(), 2)]);
    assert_eq!((order[&first.clone()], order[&second]), (1, 2));
    a.synchronize().unwrap();
    assert!(memmgr::Place::Device(1) < memmgr::Place::Pinned);
}

/// What CUDA does not permit in a host function says so.
#[test]
fn a_request_in_a_host_function_is_told_that_this_is_the_reason() {
    use std::sync::mpsc;
    let mm = std::sync::Arc::new(manager());
    let stream = Stream::new().unwrap();
    let (answer, answered) = mpsc::channel();
    let inside = mm.clone();
    stream
        .launch_host(move || {
            answer
                .send(inside.allocate_device_at(0, 64 * MIB).map(drop))
                .unwrap()
        })
        .unwrap();
    stream.synchronize().unwrap();
    let error = answered.recv().unwrap().unwrap_err();
    assert_eq!(error.cuda_code(), Some(800), "{error}");
    assert!(error.to_string().contains("host function"), "{error}");
}
