//! Promises that a second review tried to break, on a simulated machine of two devices.
#![cfg(feature = "sim")]

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, manager, manager_in, stall};
use cuda_sys as sys;
use cudart_sim::sys::cudaError;
use memmgr::{
    By, Config, DeviceAllocatorMode, Error, MemoryManager, Observer, PerThreadStream, PinnedBuffer,
    Place, Stream,
};
use memmgr_tests::Gate;
use std::{
    ffi::c_void,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// One test at a time, on two devices: some set faults, and some the current device.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static TWO: Once = Once::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    TWO.call_once(|| {
        cudart_sim::configure(cudart_sim::Config::devices(2, 1 << 30)).unwrap();
    });
    turn
}

fn set_device(device: i32) {
    // SAFETY: any ordinal may be passed.
    assert_eq!(unsafe { sys::cudaSetDevice(device) }.0, 0);
}

/// What a panic throws, and what throws once more when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("the bomb");
        }
    }
}

fn is_pinned(address: *mut c_void) -> bool {
    // SAFETY: the structure is plain numbers and pointers, and a place for the answer.
    unsafe {
        let mut attributes: sys::cudaPointerAttributes = std::mem::zeroed();
        assert_eq!(sys::cudaPointerGetAttributes(&mut attributes, address).0, 0);
        attributes.type_ == sys::cudaMemoryType::cudaMemoryTypeHost
    }
}

/// "A panic in it is caught": also one whose payload panics when it is dropped. What waited behind it on the list is
/// registered memory under a copy, which must not reach the host's heap.
#[test]
fn a_deleter_that_throws_a_bomb_takes_no_other_adopted_memory_along() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut memory = std::ptr::null_mut();
    // SAFETY: `memory` is a place for a pointer.
    assert_eq!(unsafe { sys::cudaMalloc(&mut memory, KIB) }.0, 0);
    // SAFETY: the memory has these bytes; it is leaked.
    let thrower = unsafe { mm.adopt_device::<u8>(memory, KIB, &s, || panic_any(Bomb)) }.unwrap();
    let host = mm.adopt(vec![7u8; MIB]).unwrap();
    let device = mm.device::<u8>(MIB, &s).unwrap();
    drop(thrower);
    let gate = Gate::new();
    let other = Stream::new().unwrap();
    stall(&other, &gate);
    let copied = other.copy_to_device(&host, &device).unwrap();
    let at = host.as_ptr();
    drop(host);
    let opener = gate.open_after(Duration::from_millis(50));
    let trimmed = catch_unwind(AssertUnwindSafe(|| mm.trim()));
    assert!(trimmed.is_ok(), "the panic came out");
    assert!(copied.is_done().unwrap(), "the vector went under its copy");
    opener.join().unwrap();
    assert!(!is_pinned(at), "it was given back");
    drop(device);
    mm.shutdown().unwrap();
}

/// What frees adopted memory is called "without any lock": growth, for which other threads wait, is one.
#[test]
fn a_deleter_may_wait_for_a_thread_that_allocates_from_the_pool_that_calls_it() {
    let _turn = turn();
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mm = Arc::new(manager());
        let s = Stream::new().unwrap();
        let mut memory = std::ptr::null_mut();
        // SAFETY: `memory` is a place for a pointer.
        assert_eq!(unsafe { sys::cudaMalloc(&mut memory, KIB) }.0, 0);
        let (other, at) = (mm.clone(), memory as usize);
        let free = move || {
            let grows =
                std::thread::spawn(move || other.allocate_device(100 * MIB).unwrap() as usize);
            let _ = grows.join().unwrap();
            // SAFETY: the memory was just made, and nobody uses it any more.
            assert_eq!(unsafe { sys::cudaFree(at as *mut c_void) }.0, 0);
        };
        let owner = manager();
        // SAFETY: the memory has these bytes, and is freed by `free` alone.
        let adopted = unsafe { owner.adopt_device::<u8>(memory, KIB, &s, free) }.unwrap();
        drop(adopted);
        drop(owner);
        // The first allocation reserves the pool; these make it grow.
        let held: Vec<_> = (0..3)
            .map(|_| mm.device::<u8>(100 * MIB, &s).unwrap())
            .collect();
        drop(held);
        // SAFETY: the raw block of the deleter is used by nobody.
        unsafe { mm.shutdown_and_free_raw() }.unwrap();
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(60))
        .expect("stuck (or panicked)");
}

#[test]
fn a_host_function_that_throws_a_bomb_stops_nobody() {
    let _turn = turn();
    let s = Stream::new().unwrap();
    s.launch_host(|| panic_any(Bomb)).unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let counted = done.clone();
    s.launch_host(move || _ = counted.fetch_add(1, Ordering::SeqCst))
        .unwrap();
    s.synchronize().unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 1);
}

#[test]
fn hooks_and_observers_that_throw_bombs_are_caught_also_in_a_drop() {
    let _turn = turn();
    struct Throws;
    impl Observer for Throws {
        fn on_allocate(&self, _: Place, _: Range<usize>, _: By) {
            panic_any(Bomb);
        }
        fn on_free(&self, _: Place, _: Range<usize>, _: By) {
            panic_any(Bomb);
        }
    }
    let mm = rig::capped(MIB);
    mm.on_out_of_memory(|_| panic_any(Bomb));
    mm.set_observer(Arc::new(Throws)).unwrap();
    let s = Stream::new().unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let held = mm.device::<u8>(MIB, &s).unwrap();
        let refused = mm.device::<u8>(MIB, &s).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
        drop(held);
    }));
    assert!(caught.is_ok());
    assert_sound(&mm);
}

/// The handle of the legacy stream names no device: a launch, too, must make the right one current.
#[test]
fn a_graph_launched_on_the_legacy_stream_of_its_device_runs_there_whatever_is_current() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::builder().device(1).build().unwrap();
    let legacy = Stream::legacy(1).unwrap();
    let mut output = mm.pinned_zeroed::<u8>(MIB).unwrap();
    let device = mm.device::<u8>(MIB, &s).unwrap();
    let _ = s.memset(&device, 9).unwrap();
    let mut graph = s
        .capture(|s| s.copy_to_host(&device, &mut output).map(drop))
        .unwrap();
    s.synchronize().unwrap();
    let gate = Gate::new();
    set_device(1);
    stall(&legacy, &gate);
    set_device(0);
    // SAFETY: no slice of `output` is alive.
    let launched = unsafe { graph.launch(&legacy) }.unwrap();
    assert!(!launched.is_done().unwrap());
    gate.open();
    rig::assert_all(output.as_slice().unwrap(), 9, "after the launch");
    assert_eq!(rig::current_device(), 0);
    // Ordered behind what it uses on its own device, too: the checker would say.
    let _ = legacy.memset(&device, 1).unwrap();
    // SAFETY: as above.
    let _ = unsafe { graph.launch(&legacy) }.unwrap();
    rig::assert_all(output.as_slice().unwrap(), 1, "after the second launch");
    drop(graph);
}

/// What another device's legacy stream still does is not taken for done because this one's is idle, also where no event
/// can be recorded.
#[test]
fn the_work_of_another_devices_legacy_stream_is_not_taken_for_done_when_this_ones_is() {
    let _turn = turn();
    let mm = rig::capped(MIB);
    let legacy = Stream::legacy(1).unwrap();
    let gate = Gate::new();
    let block = mm.device::<u8>(MIB, &legacy).unwrap();
    let at = block.as_ptr();
    stall(&legacy, &gate);
    set_device(1);
    // SAFETY: the block is live.
    unsafe { rig::kernel_fill(at, 3, MIB, &legacy) };
    set_device(0);
    drop(block);
    drop(legacy);
    let s = Stream::builder().device(1).build().unwrap();
    let fault = cudart_sim::fail("cudaEventRecord", cudaError(12_345)).times(1000);
    // There is no other memory, and no proof for this.
    assert!(mm.device::<u8>(MIB, &s).is_err());
    assert!(fault.fired() > 0);
    drop(fault);
    gate.open();
    // With a proof there is; the checker would say if it were none.
    let again = mm.device::<u8>(MIB, &s).unwrap();
    assert_eq!(again.as_ptr(), at);
    let _ = s.memset(&again, 4).unwrap();
    s.synchronize().unwrap();
}

/// A block that was freed on a stream while a graph held it is freed behind that stream's work, also when the stream is gone
/// when the graph goes.
#[test]
fn what_a_graph_held_is_freed_behind_the_end_of_the_stream_it_was_freed_on() {
    let _turn = turn();
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        let at = mm.allocate_device_on(MIB, &a).unwrap();
        a.synchronize().unwrap();
        let graph = a
            .capture(|a| {
                // SAFETY: the block is live, and kept by the graph.
                unsafe { mm.memset(at, 1, MIB, a) }
            })
            .unwrap();
        let gate = Gate::new();
        stall(&b, &gate);
        // SAFETY: the block is live, and freed behind the kernel.
        unsafe {
            rig::kernel_fill(at, 2, MIB, &b);
            mm.free_device_on(at, &b).unwrap();
        }
        drop(b);
        drop(graph);
        let c = Stream::new().unwrap();
        let opener = gate.open_after(Duration::from_millis(50));
        let mut host = mm.pinned_zeroed::<u8>(MIB).unwrap();
        for value in 0..4 {
            let next = mm.device::<u8>(MIB, &c).unwrap();
            let _ = c.memset(&next, value).unwrap();
            let _ = c.copy_to_host(&next, &mut host).unwrap();
            rig::assert_all(host.as_slice().unwrap(), value, "the next owner's");
        }
        opener.join().unwrap();
        assert_sound(&mm);
    }
}

/// A stream is `Sync`: somebody may begin to capture it at any moment. What is captured runs as often as the graph.
#[test]
fn a_host_function_that_slips_into_a_capture_runs_once_at_most() {
    let _turn = turn();
    let s = Stream::new().unwrap();
    let (launched, ran) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let over = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while over.load(Ordering::SeqCst) == 0 {
                // The box is what a second run would free once more.
                let (ran, boxed) = (ran.clone(), Box::new([1u64; 8]));
                let function = move || _ = ran.fetch_add(boxed[3] as usize, Ordering::SeqCst);
                if s.launch_host(function).is_ok() {
                    launched.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let other = Stream::new().unwrap();
        let mut captured = 0;
        while captured < 1000 {
            let Ok(mut graph) = s.capture(|_| Ok(())) else {
                std::thread::yield_now();
                continue;
            };
            captured += 1;
            for _ in 0..2 {
                // SAFETY: the graph uses no memory.
                let _ = unsafe { graph.launch(&other) }.unwrap().wait();
            }
        }
        over.store(1, Ordering::SeqCst);
    });
    s.synchronize().unwrap();
    assert!(ran.load(Ordering::SeqCst) <= launched.load(Ordering::SeqCst));
}

/// As above, for copies and fills of every kind: what slips into a graph is kept by it and ordered by its launches, and what
/// slips out of it is ordered at once.
#[test]
fn an_operation_that_slips_into_a_capture_or_out_of_it_never_touches_memory_of_others() {
    let _turn = turn();
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let s = Stream::new().unwrap();
        let over = AtomicUsize::new(0);
        // One operation each: two threads that use the same bytes at the same moment are not ordered.
        let fill = |mine: &Stream| {
            let device = || mm.device::<u8>(KIB, mine).unwrap();
            let _ = s.memset(&device(), 1);
            let source = [3u8; KIB];
            let _ = mm.scope(|scope| scope.copy_to_device(&source, &device(), &s));
            let host = mm.pinned_zeroed::<u8>(KIB).unwrap();
            match s.transfer_to_host(device(), host) {
                Ok(transfer) => drop(transfer.wait().unwrap()),
                Err(refused) => drop(refused.into_parts()),
            }
            let _ = mine.memset(&device(), 4).unwrap().wait();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mine = Stream::new().unwrap();
                while over.load(Ordering::SeqCst) == 0 {
                    fill(&mine);
                }
            });
            let other = Stream::new().unwrap();
            let mut captured = 0;
            while captured < 300 {
                let Ok(mut graph) = s.capture(|_| Ok(())) else {
                    std::thread::yield_now();
                    continue;
                };
                captured += 1;
                // SAFETY: what the graph uses is the manager's.
                let _ = unsafe { graph.launch(&other) }.unwrap().wait();
            }
            over.store(1, Ordering::SeqCst);
        });
        s.synchronize().unwrap();
        assert_sound(&mm);
        assert!(mm.take_error().is_none(), "a block was lost");
    }
}

/// The question whether a stream is captured is asked of that stream, also where its handle names no device.
#[test]
fn a_scope_refuses_a_captured_thread_default_stream_of_another_device() {
    let _turn = turn();
    std::thread::spawn(|| {
        let mm = manager();
        set_device(1);
        let mine = PerThreadStream::new().unwrap();
        let s = Stream::new().unwrap();
        let device = mm.device::<u8>(KIB, &s).unwrap();
        s.synchronize().unwrap();
        let mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
        // SAFETY: the stream is this thread's.
        let begun = unsafe { sys::cudaStreamBeginCapture(mine.as_raw().cast(), mode) };
        assert_eq!(begun.0, 0);
        set_device(0);
        let source = [1u8; KIB];
        let refused = mm.scope(|scope| scope.copy_to_device(&source, &device, &mine));
        assert!(
            matches!(refused, Err(Error::Unsupported { .. })),
            "{refused:?}"
        );
        set_device(1);
        let mut graph = std::ptr::null_mut();
        // SAFETY: as above; `graph` is a place for a handle, which is destroyed once.
        unsafe {
            assert_eq!(
                sys::cudaStreamEndCapture(mine.as_raw().cast(), &mut graph).0,
                0
            );
            sys::cudaGraphDestroy(graph);
        }
        set_device(0);
    })
    .join()
    .unwrap();
}

/// Every function that an operation may come to call.
const CALLS: &[&str] = &[
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaFreeHost",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaMallocAsync",
    "cudaMallocFromPoolAsync",
    "cudaFreeAsync",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaMemcpy2DAsync",
    "cudaMemGetInfo",
    "cudaEventCreateWithFlags",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaStreamCreateWithPriority",
    "cudaStreamDestroy",
    "cudaStreamGetId",
    "cudaStreamQuery",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
    "cudaStreamIsCapturing",
    "cudaStreamGetCaptureInfo",
    "cudaStreamBeginCapture",
    // Not cudaStreamEndCapture: a capture that never ends keeps everybody out, and no runtime does that.
    "cudaThreadExchangeStreamCaptureMode",
    "cudaGraphInstantiate",
    "cudaGraphLaunch",
    "cudaGraphExecDestroy",
    "cudaGraphDestroy",
    "cudaLaunchHostFunc",
    "cudaMemPoolCreate",
    "cudaMemPoolTrimTo",
    "cudaMemPoolGetAttribute",
    "cudaMemPoolSetAttribute",
    "cudaDeviceGetMemPool",
];

/// What one of these did when it failed nobody knows: the memory is given up.
const FREES: [&str; 3] = [
    "cudaFree",
    "cudaFreeAsync",
    "cudaThreadExchangeStreamCaptureMode",
];

/// A bit of everything; the first error ends it, and drops what there is.
fn program(mm: &MemoryManager) -> Result<(), Error> {
    const LEN: usize = 16 * KIB;
    let (a, b) = (Stream::new()?, Stream::new()?);
    let mut host = mm.pinned_zeroed::<u8>(LEN)?;
    host.as_mut_slice()?.fill(5);
    let device = mm.device::<u8>(LEN, &a)?;
    let _ = a.copy_to_device(&host, &device)?;
    let second = mm.device::<u8>(LEN, &b)?;
    let _ = b.copy_device_to_device(&device, &second)?;
    let (mut front, back) = host.split_at(LEN / 2).map_err(Error::from)?;
    let _ = b.copy_to_host(&second.slice(..LEN / 2)?, &mut front)?;
    let _ = a.copy_2d_to_device(&back, 64, &second, 128, 64, 8)?;
    for byte in front.as_slice()? {
        assert_eq!(*byte, 5, "a view without its copy");
    }
    let mut graph = a.capture(|a| {
        let kept = mm.device::<u8>(LEN / 2, &b)?;
        let _ = a.copy_device_to_device(&second.slice(..LEN / 2)?, &kept)?;
        a.copy_to_host(&kept, &mut front).map(drop)
    })?;
    // SAFETY: no slice of `front` is alive.
    let _ = unsafe { graph.launch(&b) }?;
    // SAFETY: as above.
    let _ = unsafe { graph.launch(&a) }?;
    drop(graph);
    let seen = front.as_slice()?;
    assert_eq!((seen[70], seen[300]), (5, 5));
    let host: PinnedBuffer<u8> = front.join(back).map_err(Error::from)?;
    let transfer = a.transfer_to_device(host, device)?;
    let adopted = mm.adopt(vec![8u8; LEN]).map_err(Error::from)?;
    let _ = b.copy_to_device(&adopted, &second)?;
    let (host, device) = transfer.wait()?;
    a.launch_host(move || drop(host))?;
    drop(b);
    drop(device);
    let vec = adopted.into_vec().map_err(Error::from)?;
    assert!(vec.iter().all(|byte| *byte == 8));
    mm.trim()?;
    mm.shutdown()?;
    Ok(())
}

/// Every call of every function fails once, in turn: nothing panics, no view shows what a copy writes (the checker looks
/// on), the books stay sound, the current device stays current, and the manager goes on and gives everything back.
#[test]
fn whatever_call_fails_once_the_books_are_sound_and_the_manager_goes_on() {
    let _turn = turn();
    for code in [cudaError::cudaErrorMemoryAllocation, cudaError(12_345)] {
        for mode in DeviceAllocatorMode::ALL {
            let used = |mm: MemoryManager| {
                drop(mm);
                // What dropped managers left goes with any manager's trim.
                manager().trim().unwrap();
                let (free, total) = rig::mem_get_info();
                total - free
            };
            let warm = manager_in(mode);
            program(&warm).unwrap();
            let mut before = used(warm);
            for call in CALLS {
                for n in 0.. {
                    // Small segments: one whose `cudaFree` failed is given up for good.
                    let config = Config::default().mode(mode).device_pool_size(MIB);
                    let config = config.device_growth(MIB).pinned_pool_size(MIB);
                    let mm = MemoryManager::new(config).unwrap();
                    let fault = cudart_sim::fail(call, code).after(n);
                    let result = catch_unwind(AssertUnwindSafe(|| program(&mm)));
                    let fired = fault.fired();
                    drop(fault);
                    let what = format!("{call} no. {n}, {code:?}, mode {mode}");
                    assert!(result.is_ok(), "{what}: a panic");
                    if rig::current_device() != 0 {
                        // Only where the way back itself was refused.
                        assert_eq!(*call, "cudaSetDevice", "{what}: the current device");
                        set_device(0);
                    }
                    assert_eq!(common::last_error(), 0, "{what}: the last error");
                    assert_sound(&mm);
                    if fired == 0 {
                        result
                            .unwrap()
                            .unwrap_or_else(|error| panic!("{what}: {error}"));
                        break;
                    }
                    assert!(n < 500, "{what}: it does not end");
                    program(&mm).unwrap_or_else(|error| panic!("after {what}: {error}"));
                    let stats = mm.stats();
                    let in_use: usize = stats.device.iter().map(|d| d.in_use()).sum();
                    assert_eq!(
                        (in_use, stats.pinned.in_use),
                        (0, 0),
                        "after {what}: in use"
                    );
                    let after = used(mm);
                    assert!(
                        after <= before || FREES.contains(call),
                        "{what}: {after} bytes are used, {before} before"
                    );
                    before = after;
                }
            }
        }
    }
}
