//! A free that fails in a drop: no panic, no abort, counted once, and memory in an unknown state is never handed out.
#![cfg(feature = "sim")]

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, manager_in, stall};
use cudart_sim::sys::cudaError;
use memmgr::{
    Config, DeviceAllocatorMode, DeviceBuffer, DeviceSource, Error, MemoryManager, PinnedBuffer,
    PinnedSource, Stream,
};
use memmgr_tests::Gate;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Out of memory, a context that is gone, and a code that nobody knows.
const CODES: [cudaError; 3] = [
    cudaError::cudaErrorMemoryAllocation,
    cudaError::cudaErrorContextIsDestroyed,
    cudaError(12_345),
];
const ASYNC: [DeviceAllocatorMode; 2] = [
    DeviceAllocatorMode::AsyncStreamOrdered,
    DeviceAllocatorMode::CudaAsyncPool,
];
/// What a drop can come to call.
const CALLS: [&str; 8] = [
    "cudaFree",
    "cudaFreeAsync",
    "cudaFreeHost",
    "cudaEventRecord",
    "cudaEventCreateWithFlags",
    "cudaEventDestroy",
    "cudaStreamDestroy",
    "cudaStreamWaitEvent",
];

/// Drops a value; `unwinding`: while a panic unwinds.
fn drop_it<T>(value: T, unwinding: bool) {
    if !unwinding {
        drop(value);
        return;
    }
    struct Bomb;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _held = value;
        std::panic::resume_unwind(Box::new(Bomb));
    }));
    assert!(
        result.unwrap_err().is::<Bomb>(),
        "another panic came out of the drop"
    );
}

/// B47: `cudaFreeAsync` fails in the drop of a guard.
#[test]
fn a_guard_whose_free_fails_is_counted_once_and_never_panics() {
    for mode in ASYNC {
        for code in CODES {
            for unwinding in [false, true] {
                let mm = manager_in(mode);
                let stream = Stream::new().unwrap();
                let guard = mm.device::<u8>(MIB, &stream).unwrap();
                let address = guard.as_ptr();
                let fault = cudart_sim::fail("cudaFreeAsync", code);
                drop_it(guard, unwinding);
                assert_eq!(fault.fired(), 1);
                drop(fault);
                assert_eq!(mm.stats().drop_failures, 1);
                let error = mm.take_error().expect("the failure is kept");
                assert_eq!(error.cuda_code(), Some(code.0 as i32), "{error}");
                assert_eq!(mm.take_error(), None, "it is told once");
                assert_eq!(common::last_error(), 0);
                // Nobody gets the block: its state is unknown.
                stream.synchronize().unwrap();
                let others: Vec<_> = (0..8)
                    .map(|_| mm.device::<u8>(MIB, &stream).unwrap())
                    .collect();
                assert!(others.iter().all(|other| other.as_ptr() != address));
                drop(others);
                assert_eq!(mm.stats().drop_failures, 1);
            }
        }
    }
}

/// B47: the explicit free tells its caller.
#[test]
fn an_explicit_free_returns_the_error_and_counts_no_drop() {
    for mode in ASYNC {
        for code in CODES {
            let mm = manager_in(mode);
            let stream = Stream::new().unwrap();
            let on = mm.allocate_device_on(MIB, &stream).unwrap();
            let without = mm.allocate_device(MIB).unwrap();
            for free in 0..2 {
                let fault = cudart_sim::fail("cudaFreeAsync", code);
                // SAFETY: nobody uses the blocks.
                let result = unsafe {
                    if free == 0 {
                        mm.free_device_on(on, &stream)
                    } else {
                        mm.free_device(without)
                    }
                };
                assert_eq!(fault.fired(), 1, "{mode}");
                match result {
                    Err(Error::Cuda {
                        code: told, call, ..
                    }) => {
                        assert_eq!((told, call), (code.0 as i32, "cudaFreeAsync"));
                    }
                    other => panic!("{mode}: {other:?}"),
                }
            }
            assert_eq!(mm.stats().drop_failures, 0);
            assert_eq!(mm.take_error(), None);
            let others: Vec<_> = (0..8)
                .map(|_| mm.device::<u8>(MIB, &stream).unwrap())
                .collect();
            assert!(
                others
                    .iter()
                    .all(|other| other.as_ptr() != on && other.as_ptr() != without)
            );
        }
    }
}

/// B47: `cudaFree`, and `cudaFreeHost` or `cudaHostUnregister`, fail while segments are given back.
#[test]
fn a_segment_that_cannot_be_freed_is_an_error_of_trim_and_shutdown_and_is_not_used_again() {
    let sources = [
        (PinnedSource::HostAlloc, "cudaFreeHost"),
        (PinnedSource::HostRegister, "cudaHostUnregister"),
    ];
    for (code, (source, gives_back)) in
        (CODES.into_iter()).flat_map(|code| sources.map(|source| (code, source)))
    {
        for shutdown in [false, true] {
            let config = Config::default()
                .device_source(DeviceSource::Malloc)
                .pinned_source(source);
            let mm = MemoryManager::new(config).unwrap();
            let block = mm.allocate_device(MIB).unwrap();
            let host = mm.allocate_pinned(MIB).unwrap();
            // SAFETY: nobody uses the blocks.
            unsafe {
                mm.free_device(block).unwrap();
                mm.free_pinned(host).unwrap();
            }
            // Segments of managers that other tests dropped come through here too, so every call fails.
            let faults = [
                cudart_sim::fail("cudaFree", code).times(1000),
                cudart_sim::fail(gives_back, code).times(1000),
            ];
            let error = if shutdown {
                mm.shutdown().unwrap_err()
            } else {
                mm.trim().unwrap_err()
            };
            assert_eq!(error.cuda_code(), Some(code.0 as i32));
            assert!(faults.iter().all(|fault| fault.fired() > 0));
            drop(faults);
            assert_eq!(mm.stats().drop_failures, 0, "the caller was told");
            assert_eq!(common::last_error(), 0);
            assert_sound(&mm);
            let (again, host_again) = (
                mm.allocate_device(MIB).unwrap(),
                mm.allocate_pinned(MIB).unwrap(),
            );
            assert_ne!(again, block, "memory in an unknown state is out of use");
            assert_ne!(host_again, host);
            // SAFETY: nobody uses the blocks.
            unsafe {
                mm.free_device(again).unwrap();
                mm.free_pinned(host_again).unwrap();
            }
            mm.shutdown().unwrap();
            assert_eq!(mm.stats().device[0].best_fit.reserved, 0);
            assert_eq!(mm.stats().pinned.reserved, 0);
        }
    }
}

/// What a drop touches: a device guard, a pinned guard with a copy, and the last handle of a stream, under a fault.
fn drop_all_under(mode: DeviceAllocatorMode, call: &str, code: cudaError, unwinding: bool) {
    let what = format!("{mode}, {call} fails with {}", code.0);
    let mm = manager_in(mode);
    let stream = Stream::new().unwrap();
    let other = Stream::new().unwrap();
    let device: DeviceBuffer<u8> = mm.device(64 * KIB, &stream).unwrap();
    let mut host: PinnedBuffer<u8> = mm.pinned(64 * KIB).unwrap();
    host.as_mut_slice().unwrap().fill(0x41);
    let _ = other.copy_to_device(&host, &device).unwrap();
    let _ = stream.memset(&device, 0x42).unwrap();
    let (device_at, host_at) = (device.as_ptr(), host.as_ptr());
    let gate = Gate::new();
    stall(&stream, &gate);
    stall(&other, &gate);
    let _ = other.copy_to_device(&host, &device).unwrap();
    let fault = cudart_sim::fail(call, code).times(1000);
    let begun = std::time::Instant::now();
    drop_it((device, host, stream, other), unwinding);
    assert!(begun.elapsed().as_secs() < 5, "{what}: the drop waited");
    let failed_frees = fault.fired();
    drop(fault);
    let stats = mm.stats();
    assert_eq!(stats.in_use(), 0, "{what}");
    assert!(stats.drop_failures <= 1, "{what}: counted more than once");
    assert_eq!(
        stats.drop_failures == 1,
        mm.take_error().is_some(),
        "{what}"
    );
    if mode == DeviceAllocatorMode::BestFitPool {
        assert_eq!(
            stats.drop_failures, 0,
            "{what}: the pool's drops only edit lists"
        );
    } else if call == "cudaFreeAsync" {
        assert!(failed_frees >= 1 && stats.drop_failures == 1, "{what}");
    }
    assert_eq!(common::last_error(), 0, "{what}");
    // While the work is pending, nobody gets the memory in real time.
    let (device_now, host_now) = (
        mm.allocate_device(64 * KIB).unwrap(),
        mm.allocate_pinned(64 * KIB).unwrap(),
    );
    assert!(
        begun.elapsed().as_secs() < 5,
        "{what}: an allocation waited"
    );
    assert_ne!(device_now, device_at, "{what}");
    assert_ne!(host_now, host_at, "{what}");
    gate.open();
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_device(device_now).unwrap();
        mm.free_pinned(host_now).unwrap();
    }
    assert_sound(&mm);
    // What is proven to be done goes back; what is not is reported and stays.
    let _ = mm.shutdown();
    assert_sound(&mm);
}

/// B47
#[test]
fn no_call_that_fails_in_a_drop_panics_or_gives_memory_away_early() {
    for mode in DeviceAllocatorMode::ALL {
        for call in CALLS {
            for code in CODES {
                drop_all_under(mode, call, code, false);
            }
            drop_all_under(mode, call, CODES[2], true);
        }
    }
}

/// B47: a lost epoch costs its own memory only.
#[test]
fn an_event_that_cannot_be_recorded_parks_its_own_memory_and_no_later_one() {
    let mm = rig::capped(4 * MIB);
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let blocks: Vec<_> = (0..4)
        .map(|_| mm.allocate_device_on(MIB, &a).unwrap())
        .collect();
    // SAFETY: nobody uses the blocks after their frees.
    unsafe {
        // While `a` is busy, the request of another stream has to close its epoch, which fails.
        let gate = Gate::new();
        stall(&a, &gate);
        mm.free_device_on(blocks[0], &a).unwrap();
        let fault = cudart_sim::fail("cudaEventRecord", cudaError(12_345)).times(1000);
        let refused = mm.allocate_device_on(MIB, &b);
        assert!(fault.fired() > 0);
        assert!(refused.is_err(), "the memory was given away without a wait");
        drop(fault);
        gate.open();
        // A later one works.
        for block in &blocks[1..] {
            mm.free_device_on(*block, &a).unwrap();
        }
    }
    a.synchronize().unwrap();
    let got: Vec<_> = (0..3)
        .map_while(|_| mm.allocate_device_on(MIB, &b).ok())
        .collect();
    assert_eq!(got.len(), 3, "{:?}", mm.stats().device[0].best_fit);
    for block in got {
        // SAFETY: nobody used the block.
        unsafe { mm.free_device(block).unwrap() };
    }
    mm.trim().unwrap();
    let stats = mm.stats().device[0].best_fit;
    assert!(stats.pending <= MIB, "{stats:?}");
    // The end of the stream is the proof that was missing.
    drop((a, b));
    assert!(rig::eventually(|| {
        mm.trim().unwrap();
        mm.stats().device[0].best_fit.reserved == 0
    }));
    assert_sound(&mm);
}

/// B47: the end of a stream that cannot be recorded does not become the error of somebody else's request.
#[test]
fn a_stream_that_ended_without_a_proof_keeps_its_memory_and_troubles_nobody() {
    let mm = rig::capped(2 * MIB);
    let b = Stream::new().unwrap();
    let a = Stream::new().unwrap();
    let block = mm.allocate_device_on(2 * MIB, &a).unwrap();
    let gate = Gate::new();
    stall(&a, &gate);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(block, &a).unwrap() };
    let fault = cudart_sim::fail("cudaEventRecord", cudaError(12_345)).times(1000);
    drop(a);
    assert!(fault.fired() > 0);
    drop(fault);
    match mm.allocate_device_on(2 * MIB, &b) {
        Err(Error::OutOfMemory(oom)) => assert_eq!(oom.pending, 2 * MIB, "{oom}"),
        other => panic!("{other:?}"),
    }
    gate.open();
    assert_sound(&mm);
}

/// B47: a guard dropped in a host function, where CUDA permits no call.
#[test]
fn a_guard_dropped_in_a_host_function_is_freed_by_a_later_call() {
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        let own = mm.device::<u8>(MIB, &a).unwrap();
        let shared = mm.device::<u8>(MIB, &a).unwrap();
        let host = mm.pinned::<u8>(MIB).unwrap();
        let _ = a.memset(&own, 1).unwrap();
        let _ = b.copy_to_device(&host, &shared).unwrap();
        a.launch_host(move || drop((own, shared, host))).unwrap();
        a.synchronize().unwrap();
        b.synchronize().unwrap();
        let stats = mm.stats();
        assert_eq!(stats.drop_failures, 0, "{mode}: {:?}", mm.take_error());
        assert_eq!(stats.in_use(), 0, "{mode}");
        let block = mm.allocate_device_on(MIB, &a).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &a).unwrap() };
        mm.shutdown().unwrap();
        if let Ok(usage) = mm.native_pool_usage(mode) {
            // The default pool is everybody's.
            if mode == DeviceAllocatorMode::CudaAsyncPool {
                assert_eq!(usage.used, 0, "{mode}: the blocks were never freed");
            }
        }
        assert_sound(&mm);
    }
}

/// B47: and not before the work of its own stream has run, which only that stream knows of.
#[test]
fn a_guard_dropped_in_a_host_function_waits_for_the_work_of_its_stream() {
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        // All of the size, so that whoever comes next would be given this block.
        let x = mm.device::<u8>(MIB, &a).unwrap();
        let at = x.as_ptr();
        let gate = Gate::new();
        stall(&a, &gate);
        // SAFETY: the block outlives the work: a guard's memory waits for its stream.
        unsafe { rig::kernel_fill(at, 0x55, MIB, &a) };
        b.launch_host(move || drop(x)).unwrap();
        b.synchronize().unwrap();
        let ys: Vec<_> = (0..40)
            .map(|_| {
                let y = mm.device::<u8>(MIB, &b).unwrap();
                let _ = b.memset(&y, 0x66).unwrap();
                y
            })
            .collect();
        gate.open_after(std::time::Duration::from_millis(20));
        a.synchronize().unwrap();
        b.synchronize().unwrap();
        for y in &ys {
            // SAFETY: the buffer is live and has that many bytes.
            let contents = unsafe { rig::read_back(&mm, y.as_ptr(), MIB, &b) };
            rig::assert_all(
                &contents,
                0x66,
                &format!("{mode}, block {:?}, was {at:?}", y.as_ptr()),
            );
        }
        drop(ys);
        let _ = MemoryManager::shutdown(&mm).unwrap();
    }
}
