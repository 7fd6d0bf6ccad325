//! Claims about order and devices that only hold where several things meet: refusals that cost nothing, functions of the
//! user's that change the device, faults on a device that is not current, threads that come and go.

#[path = "common/capturing.rs"]
mod capturing;
mod common;
#[path = "common/rig.rs"]
mod rig;

#[cfg_attr(not(feature = "sim"), allow(unused_imports))]
use common::{KIB, MIB, assert_sound, last_error, manager_in, stall};
#[cfg_attr(not(feature = "sim"), allow(unused_imports))]
use memmgr::{
    CaptureMode, Config, DeviceAllocatorMode, Error, MemoryManager, PerThreadStream, Stream,
};
#[cfg_attr(not(feature = "sim"), allow(unused_imports))]
use memmgr_tests::{Gate, sim_only};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// One test at a time: captures of one are everybody's. Two devices, where there are two.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    ONCE.call_once(|| {
        #[cfg(feature = "sim")]
        cudart_sim::configure(cudart_sim::Config::devices(2, 1 << 30)).unwrap();
    });
    turn
}

fn two() -> bool {
    let two = memmgr::devices().unwrap().len() >= 2;
    if !two {
        memmgr_tests::skip("claims", "there is one device");
    }
    two
}

/// A free that a capture forbids leaves the block live.
#[test]
fn a_free_that_is_refused_frees_nothing() {
    let _turn = turn();
    for &mode in rig::modes() {
        let mm = manager_in(mode);
        // On a thread of its own, whose default stream ends with it.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (own, s) = (PerThreadStream::new().unwrap(), Stream::new().unwrap());
                for allocated_on_it in [true, false] {
                    let x = match allocated_on_it {
                        true => mm.allocate_device_on(KIB, &own).unwrap(),
                        false => mm.allocate_device_on(KIB, &s).unwrap(),
                    };
                    let begin = cuda_sys::cudaStreamCaptureMode::cudaStreamCaptureModeThreadLocal;
                    // SAFETY: the stream lives as long as the thread.
                    let code =
                        unsafe { cuda_sys::cudaStreamBeginCapture(own.as_raw().cast(), begin) };
                    assert_eq!(code.0, 0);
                    // SAFETY: the block is ours.
                    let freed = unsafe { mm.free_device_on(x, &own) };
                    assert_eq!(capturing::status(own.as_raw()), 1, "{mode}");
                    let (code, graph) = capturing::end(own.as_raw());
                    assert_eq!(code, 0, "{mode}");
                    capturing::destroy(graph);
                    match freed {
                        Ok(()) => assert_eq!(mm.stats().in_use(), 0, "{mode}"),
                        Err(Error::Unsupported { .. }) => {
                            assert_eq!(mm.stats().in_use(), KIB, "{mode}: it is live");
                            // SAFETY: the block is ours.
                            unsafe { mm.free_device_on(x, &own) }.unwrap();
                        }
                        Err(error) => panic!("{mode}: {error}"),
                    }
                    assert_sound(&mm);
                }
            });
        });
    }
}

/// What frees adopted memory, and the hook, run in somebody's call: whatever device they leave current.
#[test]
fn functions_of_the_users_leave_the_callers_device_alone() {
    let _turn = turn();
    if !two() {
        return;
    }
    let set = |device| {
        // SAFETY: any ordinal may be passed.
        assert_eq!(unsafe { cuda_sys::cudaSetDevice(device) }.0, 0);
    };
    let mm = MemoryManager::new(Config::default().device_pool_limit(Some(MIB))).unwrap();
    let far = Stream::builder().device(1).build().unwrap();
    let mut memory = std::ptr::null_mut();
    set(1);
    // SAFETY: `memory` is a place for one pointer.
    assert_eq!(unsafe { cuda_sys::cudaMalloc(&mut memory, KIB) }.0, 0);
    set(0);
    let address = memory as usize;
    let free = move || {
        set(1);
        // SAFETY: the memory was allocated above, and its guard is gone.
        assert_eq!(unsafe { cuda_sys::cudaFree(address as *mut _) }.0, 0);
    };
    // SAFETY: the memory has these bytes, and `free` alone frees it.
    let guard = unsafe { mm.adopt_device::<u8>(memory, KIB, &far, free) }.unwrap();
    assert_eq!(guard.device(), 1);
    drop(guard);
    mm.trim().unwrap();
    assert_eq!(rig::current_device(), 0, "after the function that frees");
    let held = mm.allocate_device(MIB).unwrap();
    mm.on_out_of_memory(move |_| {
        set(1);
        true
    });
    assert!(mm.allocate_device(MIB).unwrap_err().is_out_of_memory());
    assert_eq!(rig::current_device(), 0, "after the hook");
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(held).unwrap() };
}

/// Every call that can fail fails, on a device that is not current: the current one stays.
#[cfg(feature = "sim")]
#[test]
fn a_fault_on_another_device_leaves_the_current_one_current() {
    let _turn = turn();
    sim_only!("it injects faults");
    const CALLS: [&str; 17] = [
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaFreeHost",
        "cudaMallocAsync",
        "cudaMallocFromPoolAsync",
        "cudaFreeAsync",
        "cudaMemPoolCreate",
        "cudaMemPoolTrimTo",
        "cudaMemsetAsync",
        "cudaMemcpyAsync",
        "cudaEventRecord",
        "cudaEventQuery",
        "cudaEventCreateWithFlags",
        "cudaStreamWaitEvent",
        "cudaStreamIsCapturing",
        "cudaMemGetInfo",
    ];
    for mode in DeviceAllocatorMode::ALL {
        for call in CALLS {
            for after in 0..3 {
                let mm = manager_in(mode);
                let [s, t] = [(); 2].map(|()| Stream::builder().device(1).build().unwrap());
                let _ = after;
                let fault = cudart_sim::fail(call, cuda_sys::cudaError(2))
                    .after(after)
                    .times(1000);
                let _ = (|| -> memmgr::Result<()> {
                    let host = mm.pinned_zeroed::<u8>(KIB)?;
                    let x = mm.device::<u8>(KIB, &s)?;
                    let _ = s.copy_to_device(&host, &x)?;
                    let _ = t.memset(&x, 1)?;
                    Ok(())
                })();
                let plain = mm.allocate_device_at(1, 64 * MIB);
                let _ = mm.trim();
                if let Ok(plain) = plain {
                    // SAFETY: nobody uses the block.
                    let _ = unsafe { mm.free_device_on(plain, &s) };
                }
                let _ = mm.trim();
                drop((s, t));
                let _ = mm.shutdown();
                assert_eq!(rig::current_device(), 0, "{mode}, {call} from {after}");
                assert_eq!(last_error(), 0, "{mode}, {call} from {after}");
                assert_sound(&mm);
                drop(mm);
                drop(fault);
                let _ = MemoryManager::new(Config::default()).unwrap().trim();
                assert_eq!(rig::current_device(), 0, "{mode}, {call} from {after}");
            }
        }
    }
}

/// A copy whose event could not be recorded keeps its block until a later event of the stream, or its end, proves that it is
/// over; not for good.
#[cfg(feature = "sim")]
#[test]
fn a_use_without_an_event_keeps_its_block_until_there_is_another_proof() {
    let _turn = turn();
    sim_only!("it injects faults");
    for ends in [false, true] {
        let mm = rig::capped(2 * MIB);
        // What others left goes first: `cudaFree` would wait for the stream below.
        mm.trim().unwrap();
        let (s, gate) = (Stream::new().unwrap(), Gate::new());
        let x = mm.allocate_device(2 * MIB).unwrap();
        stall(&s, &gate);
        let record = cudart_sim::fail("cudaEventRecord", cuda_sys::cudaError(2)).times(1);
        let wait = cudart_sim::fail("cudaStreamSynchronize", cuda_sys::cudaError(2)).times(1);
        // SAFETY: the block is ours, and as long as the fill.
        unsafe {
            assert!(mm.memset(x, 1, MIB, &s).is_err());
            assert_eq!((record.fired(), wait.fired()), (1, 1));
            mm.free_device(x).unwrap();
        }
        drop((record, wait));
        mm.trim().unwrap();
        assert_eq!(mm.stats().device[0].best_fit.reserved, 2 * MIB, "in use");
        gate.open();
        s.synchronize().unwrap();
        if ends {
            drop(s);
        }
        assert!(
            rig::eventually(|| {
                mm.trim().unwrap();
                mm.stats().device[0].best_fit.reserved == 0
            }),
            "{ends}: {:?}",
            mm.stats().device[0].best_fit
        );
        assert_sound(&mm);
    }
}

/// Threads come, use their default streams, and go.
#[test]
fn two_hundred_threads_with_streams_of_their_own_leave_nothing_behind() {
    let _turn = turn();
    for &mode in rig::modes() {
        let mm = manager_in(mode);
        for _ in 0..200 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let own = PerThreadStream::new().unwrap();
                    let x = mm.allocate_device_on(64 * KIB, &own).unwrap();
                    // SAFETY: the block is ours, and as long as the fill.
                    unsafe {
                        mm.memset(x, 1, 64 * KIB, &own).unwrap();
                        mm.free_device_on(x, &own).unwrap();
                    }
                });
            });
        }
        assert_eq!(mm.stats().in_use(), 0, "{mode}");
        assert!(
            rig::eventually(|| {
                mm.trim().unwrap();
                mm.stats().device[0].best_fit.reserved == 0
            }),
            "{mode}: {:?}",
            mm.stats()
        );
        assert_sound(&mm);
    }
}

/// While a blocking stream is captured, nobody may ask the legacy stream: what would have to is refused.
#[test]
fn a_transfer_and_a_lent_slice_on_the_legacy_stream_are_refused_beside_a_capture() {
    let _turn = turn();
    let mm = MemoryManager::new(Config::default()).unwrap();
    let blocking = Stream::builder().blocking(true).build().unwrap();
    let legacy = Stream::legacy(0).unwrap();
    let s = Stream::new().unwrap();
    let (host, device) = (
        mm.pinned_zeroed::<u8>(KIB).unwrap(),
        mm.device::<u8>(KIB, &s).unwrap(),
    );
    capturing::begin(&blocking, CaptureMode::Relaxed);
    let slice = [0u8; KIB];
    let lent = mm.scope(|scope| scope.copy_to_device(&slice, &device, &legacy));
    let transfer = legacy.transfer_to_device(host, device).map(drop);
    let status = capturing::status(blocking.as_raw());
    let (code, graph) = capturing::end(blocking.as_raw());
    capturing::destroy(graph);
    assert_eq!((status, code), (1, 0));
    assert!(matches!(lent, Err(Error::Unsupported { .. })), "{lent:?}");
    match transfer {
        Err(failed) => assert!(
            matches!(failed.error(), Error::Unsupported { .. }),
            "{failed}"
        ),
        Ok(()) => panic!("it was not refused"),
    }
    assert_eq!(last_error(), 0);
}
