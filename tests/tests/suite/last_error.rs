//! `cudaGetLastError` belongs to everybody: what the manager handles leaves nothing there, what others left stays.

use crate::common::{
    KIB, MIB, MODES, assert_sound,
    checks::{FOREIGN, clear_error, leave_foreign_error},
    last_error, manager, manager_in, stall,
};
use memmgr::{CopyKind, Error, PerThreadStream, Stream};
use memmgr_tests::Gate;
use std::{ptr::null_mut, time::Duration};

/// The whole life of a manager, with an error of other code pending all the time.
#[test]
fn an_error_that_others_left_is_still_there_after_calls_that_succeed() {
    for mode in MODES {
        leave_foreign_error();
        let still_there = |what: &str| assert_eq!(last_error(), FOREIGN, "{mode}: {what}");
        let manager = manager_in(mode);
        memmgr::devices().unwrap();
        memmgr::versions().unwrap();
        still_there("looking");
        let stream = Stream::new().unwrap();
        let other = Stream::builder().blocking(true).build().unwrap();
        let legacy = Stream::legacy(0).unwrap();
        let mine = PerThreadStream::new().unwrap();
        still_there("streams");
        manager.effective_device_allocator_mode().unwrap();
        let _ = manager.native_pool_usage(mode);
        still_there("asking");

        let pinned = manager.allocate_pinned(MIB).unwrap();
        let device = manager.allocate_device(MIB).unwrap();
        let streamed = manager.allocate_device_on(MIB, &stream).unwrap();
        let threads = manager.allocate_device_on(MIB, &mine).unwrap();
        still_there("allocating");
        // SAFETY: the blocks are live and large enough; nobody uses them after their free, and all work is ordered by
        // the streams named or finished before.
        unsafe {
            pinned.cast::<u8>().write_bytes(1, MIB);
            manager
                .copy_to_device_async(device, pinned, MIB, &stream)
                .unwrap();
            manager
                .copy_device_to_device(streamed, device, MIB, &stream)
                .unwrap();
            manager
                .copy_to_host_async(pinned, streamed, MIB, &stream)
                .unwrap();
            manager.memset(device, 3, MIB, &stream).unwrap();
            manager.memset_2d(device, 512, 3, 100, 8, &stream).unwrap();
            let kind = CopyKind::DeviceToDevice;
            manager
                .copy_2d(device, 512, streamed, 256, 100, 8, kind, &stream)
                .unwrap();
        }
        still_there("copying");
        manager.record_use(device, &other).unwrap();
        let event = stream.record().unwrap();
        other.wait(&event).unwrap();
        event.synchronize().unwrap();
        still_there("events");

        {
            let mut buffer = manager.pinned::<u32>(1000).unwrap();
            buffer.as_mut_slice().unwrap().fill(7);
            let target = manager.device_zeroed::<u32>(1000, &stream).unwrap();
            stream
                .copy_to_device(&buffer, &target)
                .unwrap()
                .wait()
                .unwrap();
            let _ = other.copy_to_host(&target, &mut buffer).unwrap();
            assert_eq!(buffer.as_slice().unwrap()[999], 7);
            let _ = legacy.memset(&target, 0).unwrap();
        }
        still_there("guards");

        // "Not ready" is an answer and no error.
        let gate = Gate::new();
        stall(&stream, &gate);
        let submitted = stream.record().unwrap();
        assert!(!stream.query().unwrap() && !submitted.is_done().unwrap());
        still_there("not ready");
        let opener = gate.open_after(Duration::from_millis(1));
        stream.synchronize().unwrap();
        opener.join().unwrap();

        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device(device).unwrap();
            manager.free_device_on(streamed, &other).unwrap();
            manager.free_device_on(threads, &mine).unwrap();
            manager.free_pinned(pinned).unwrap();
        }
        still_there("freeing");
        drop((stream, other, legacy));
        still_there("dropping streams");
        manager.trim().unwrap();
        let large = manager.allocate_device(40 * MIB).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(large).unwrap() };
        assert!(manager.shutdown().unwrap().live.is_empty());
        drop(manager);
        still_there("the end");
        assert_eq!(clear_error(), FOREIGN);
        assert_eq!(last_error(), 0);
    }
}

/// Without anybody else's error there is none at any time, not even "not ready".
#[test]
fn not_ready_is_no_error() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    let (a, b) = (
        manager.allocate_device_on(64 * KIB, &stream).unwrap(),
        manager.allocate_pinned(64 * KIB).unwrap(),
    );
    let gate = Gate::new();
    stall(&stream, &gate);
    // SAFETY: the blocks are live and large enough, and nobody uses them after their free.
    unsafe {
        manager
            .copy_to_device_async(a, b, 64 * KIB, &stream)
            .unwrap();
        manager.free_device_on(a, &stream).unwrap();
        manager.free_pinned(b).unwrap();
    }
    assert!(!stream.query().unwrap());
    // Both requests look at what is pending.
    let c = manager.allocate_pinned(64 * KIB).unwrap();
    let d = manager.allocate_device(40 * MIB).unwrap();
    assert_ne!(c, b);
    assert_eq!(last_error(), 0);
    gate.open();
    stream.synchronize().unwrap();
    // SAFETY: nobody uses the blocks.
    unsafe {
        manager.free_pinned(c).unwrap();
        manager.free_device(d).unwrap();
    }
    assert_eq!(last_error(), 0);
    assert_sound(&manager);
}

/// A failing call of the manager's own: the code is in the error, and with it what others had left.
#[test]
fn a_failing_call_takes_its_code_out_and_names_what_it_replaced() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    let (a, b) = (
        manager.allocate_device(512).unwrap(),
        manager.allocate_device(512).unwrap(),
    );
    for pending in [false, true] {
        if pending {
            leave_foreign_error();
        }
        // Pageable memory is no place on the device.
        let mut pageable = [0u8; 512];
        // SAFETY: both ranges are live and have 512 bytes.
        let error =
            unsafe { manager.copy_to_device_async(pageable.as_mut_ptr().cast(), b, 512, &stream) }
                .unwrap_err();
        assert_eq!(last_error(), 0, "the slot is clean");
        let Error::Cuda {
            call,
            code,
            ref name,
            ref description,
            also_pending,
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!((call, code), ("cudaMemcpyAsync", 1));
        assert_eq!(also_pending, pending.then_some(FOREIGN as i32));
        let text = error.to_string();
        for part in [call, name.as_str(), "(1)", description.as_str()] {
            assert!(!part.is_empty() && text.contains(part), "{text}");
        }
        assert_eq!(text.contains("101"), pending, "{text}");
    }
    assert_sound(&manager);
    stream.synchronize().unwrap();
    // SAFETY: nobody uses the blocks.
    unsafe {
        manager.free_device(a).unwrap();
        manager.free_device(b).unwrap();
    }
}

/// Also where both have the same code: it does not vanish without a trace.
#[test]
fn a_failing_call_names_what_it_replaced_also_if_the_code_is_the_same() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    let a = manager.allocate_device(512).unwrap();
    // SAFETY: a null place is answered with an error.
    let answer = unsafe { cuda_sys::cudaMalloc(null_mut(), 16) };
    assert_eq!((answer.0, last_error()), (1, 1));
    let mut pageable = [0u8; 512];
    // SAFETY: both ranges are live and have 512 bytes.
    let error =
        unsafe { manager.copy_to_device_async(pageable.as_mut_ptr().cast(), a, 512, &stream) }
            .unwrap_err();
    assert_eq!(last_error(), 0);
    match error {
        Error::Cuda {
            code: 1,
            also_pending,
            ..
        } => assert_eq!(also_pending, Some(1)),
        other => panic!("{other:?}"),
    }
}

/// Every call that can fail on the way, with faults of the simulated runtime.
#[cfg(feature = "sim")]
#[test]
fn any_failing_call_is_named_and_leaves_the_slot_clean() {
    use cudart_sim::sys::cudaError;
    // Each gets a manager, a stream and an event, warm.
    type Action = fn(&memmgr::MemoryManager, &Stream, &memmgr::Event) -> memmgr::Result<()>;
    // Not `cudaGetDevice` for `allocate_device`: it is the one call of a hit, and fails only without CUDA.
    let actions: [(&str, Action); 12] = [
        ("cudaGetDevice", |_, _, _| Stream::new().map(drop)),
        ("cudaStreamCreateWithPriority", |_, _, _| {
            Stream::new().map(drop)
        }),
        ("cudaStreamGetId", |_, _, _| Stream::new().map(drop)),
        ("cudaStreamQuery", |_, s, _| s.query().map(drop)),
        ("cudaStreamSynchronize", |_, s, _| s.synchronize()),
        ("cudaEventQuery", |_, _, e| e.is_done().map(drop)),
        ("cudaEventSynchronize", |_, _, e| e.synchronize()),
        ("cudaEventRecord", |_, s, _| s.record().map(drop)),
        ("cudaLaunchHostFunc", |_, s, _| s.launch_host(|| ())),
        ("cudaMalloc", |m, _, _| {
            m.allocate_device(100 * MIB).map(drop)
        }),
        ("cudaHostAlloc", |m, _, _| {
            m.allocate_pinned(100 * MIB).map(drop)
        }),
        ("cudaMemsetAsync", |m, s, _| {
            let p = m.allocate_device(256)?;
            // SAFETY: the block is live and has 256 bytes, and nobody uses it after its free.
            unsafe {
                let result = m.memset(p, 1, 256, s);
                m.free_device(p)?;
                result
            }
        }),
    ];
    let code = cudaError::cudaErrorLaunchOutOfResources;
    let mut wrong = Vec::new();
    for (function, action) in actions {
        for pending in [false, true] {
            let manager = allocating();
            let stream = Stream::new().unwrap();
            let warm = manager.allocate_device(256).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { manager.free_device(warm).unwrap() };
            let event = stream.record().unwrap();
            let before = crate::common::checks::figures(&manager).in_use();
            if pending {
                leave_foreign_error();
            }
            let fault = cudart_sim::fail(function, code);
            let result = action(&manager, &stream, &event);
            assert_eq!(fault.fired(), 1, "{function}");
            drop(fault);
            let left = clear_error();
            assert_eq!(manager.stats().in_use(), before, "{function}");
            assert_sound(&manager);
            match result {
                Err(Error::Cuda {
                    call,
                    code: answer,
                    also_pending,
                    ..
                }) if call == function
                    && answer == code.0 as i32
                    && also_pending == pending.then_some(FOREIGN as i32)
                    && left == 0 => {}
                other => wrong.push(format!(
                    "{function}, 101 pending: {pending}: {other:?}, left behind: {left}"
                )),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A manager whose pinned memory comes from `cudaHostAlloc` alone.
#[cfg(feature = "sim")]
fn allocating() -> memmgr::MemoryManager {
    let config = memmgr::Config::default()
        .device_source(memmgr::DeviceSource::Malloc)
        .pinned_source(memmgr::PinnedSource::HostAlloc);
    memmgr::MemoryManager::new(config).unwrap()
}

/// Out of memory that was handled by a smaller segment, or is reported in an error of its own, leaves no code 2.
#[cfg(feature = "sim")]
#[test]
fn out_of_memory_that_was_handled_leaves_nothing_behind() {
    use cudart_sim::sys::cudaError;
    for (pinned, function) in [(false, "cudaMalloc"), (true, "cudaHostAlloc")] {
        for times in [1, 100] {
            let manager = allocating();
            let fault =
                cudart_sim::fail(function, cudaError::cudaErrorMemoryAllocation).times(times);
            let result = if pinned {
                manager.allocate_pinned(MIB)
            } else {
                manager.allocate_device(MIB)
            };
            assert_eq!(last_error(), 0, "{function}, {times} times");
            assert!(fault.fired() >= 1);
            match result {
                Ok(_) if times == 1 => {}
                Err(Error::OutOfMemory(refusal)) if times == 100 => {
                    assert_eq!((refusal.requested, refusal.reserved), (MIB, 0));
                    assert!(!refusal.to_string().is_empty());
                }
                other => panic!("{function}, {times} times: {other:?}"),
            }
            drop(fault);
            assert_sound(&manager);
        }
    }
}
