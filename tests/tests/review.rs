//! Promises that a review found broken: each test takes a turn, since they count the process's calls.
#![cfg(feature = "sim")]

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, manager, manager_in, stall};
use memmgr::{
    Config, DeviceAllocatorMode, DeviceBuffer, MemoryManager, Observer, PerThreadStream, Place,
    SegmentChange, Stream,
};
use memmgr_tests::Gate;
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    time::{Duration, Instant},
};

static TURN: Mutex<()> = Mutex::new(());
fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` on a thread of its own; fails if it does not come back.
fn within(seconds: u64, f: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    wait.recv_timeout(Duration::from_secs(seconds))
        .expect("stuck (or panicked)");
}

/// R01: "a report may call the manager": one that allocates when a segment is added waits for itself.
#[test]
fn r01_an_observer_may_allocate_when_a_segment_is_added() {
    let _turn = turn();
    within(10, || {
        struct Asks(OnceLock<Arc<MemoryManager>>, Mutex<u32>);
        impl Observer for Asks {
            fn on_segment(&self, _: Place, _: Range<usize>, change: SegmentChange) {
                let mut times = self.1.lock().unwrap();
                *times += 1;
                if *times > 1 || change == SegmentChange::Removed {
                    return;
                }
                drop(times);
                let _ = self.0.get().unwrap().allocate_device(KIB);
            }
        }
        let mm = Arc::new(manager());
        let observer = Arc::new(Asks(OnceLock::new(), Mutex::new(0)));
        assert!(observer.0.set(mm.clone()).is_ok());
        mm.set_observer(observer).unwrap();
        let ptr = mm.allocate_device(KIB).unwrap();
        assert!(!ptr.is_null());
        assert_sound(&mm);
    });
}

/// R02: the former hook is dropped under the hook's lock.
#[test]
fn r02_what_a_former_hook_holds_may_call_the_manager_when_it_is_dropped() {
    let _turn = turn();
    within(10, || {
        struct Calls(Arc<MemoryManager>);
        impl Drop for Calls {
            fn drop(&mut self) {
                self.0.on_out_of_memory(|_| false);
            }
        }
        let mm = Arc::new(manager());
        let held = Calls(mm.clone());
        mm.on_out_of_memory(move |_| {
            let _ = &held;
            false
        });
        mm.on_out_of_memory(|_| false);
    });
}

/// R03: a borrowed stream that its owner destroys after dropping the last handle is still passed to CUDA.
#[test]
fn r03_no_handle_of_a_borrowed_stream_is_used_once_the_last_stream_is_dropped() {
    let _turn = turn();
    let mm = Arc::new(rig::capped(2 * MIB));
    let mut raw = std::ptr::null_mut();
    // SAFETY: a place for a handle.
    unsafe { cuda_sys::cudaStreamCreateWithFlags(&mut raw, cuda_sys::cudaStreamNonBlocking) };
    // SAFETY: alive until after the last handle is dropped, below.
    let borrowed = unsafe { Stream::borrow_raw(raw.cast()).unwrap() };
    let asker = Stream::new().unwrap();
    let gate = Gate::new();
    let x = mm.allocate_device_on(2 * MIB, &borrowed).unwrap();
    stall(&borrowed, &gate);
    // A full queue: whoever records on it waits.
    let scratch = Stream::new().unwrap();
    let _ = &scratch;
    for _ in 0..1021 {
        // SAFETY: the block lives; the work runs before the free.
        unsafe { rig::kernel_fill(x, 1, 256, &borrowed) };
    }
    // SAFETY: ours.
    unsafe { mm.free_device_on(x, &borrowed).unwrap() };
    let other = {
        let (mm, asker) = (mm.clone(), asker.clone());
        std::thread::spawn(move || mm.allocate_device_on(2 * MIB, &asker).map(|p| p as usize))
    };
    std::thread::sleep(Duration::from_millis(300));
    let destroyed = cudart_sim::calls("cudaStreamDestroy");
    let opener = gate.open_after(Duration::from_millis(300));
    let begun = Instant::now();
    drop(borrowed);
    eprintln!("the drop took {:?}", begun.elapsed());
    // The owner may destroy it now.
    let records = cudart_sim::calls("cudaEventRecord");
    // SAFETY: ours, no `Stream` of it is left.
    unsafe { cuda_sys::cudaStreamDestroy(raw) };
    opener.join().unwrap();
    let got = other.join().unwrap();
    eprintln!("{got:?}, destroys {destroyed}");
    assert_eq!(
        cudart_sim::calls("cudaEventRecord"),
        records,
        "a record on the stream after its owner destroyed it"
    );
}

/// R04: the last handle of a stream dropped in a host function.
#[test]
fn r04_a_stream_dropped_in_a_host_function_loses_no_memory() {
    let _turn = turn();
    let mm = rig::capped(2 * MIB);
    let s = Stream::new().unwrap();
    let x: DeviceBuffer<u8> = mm.device(2 * MIB, &s).unwrap();
    let _ = s.memset(&x, 3).unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let inside = s.clone();
    s.launch_host(move || drop(inside)).unwrap();
    drop(x);
    drop(s);
    let destroyed = cudart_sim::calls("cudaStreamDestroy");
    gate.open();
    let t = Stream::new().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let again = mm.device::<u8>(2 * MIB, &t);
    assert!(again.is_ok(), "{:?}", again.err());
    t.synchronize().unwrap();
    assert!(
        rig::eventually(|| {
            // Whatever comes next ends the stream.
            drop(Stream::new().unwrap());
            cudart_sim::calls("cudaStreamDestroy") > destroyed
        }),
        "the stream leaked"
    );
    assert_sound(&mm);
}

/// R05: upload on one stream, compute on another: the pool must not grow without need.
#[test]
fn r05_memory_used_on_two_streams_is_reused_before_the_pool_grows() {
    let _turn = turn();
    let mm = manager();
    let (compute, upload) = (Stream::new().unwrap(), Stream::new().unwrap());
    for _ in 0..500 {
        let x = mm.device::<u8>(MIB, &compute).unwrap();
        let up = upload.memset(&x, 1).unwrap();
        compute.wait(up.event().unwrap()).unwrap();
        let _ = compute.memset(&x, 2).unwrap();
        compute.synchronize().unwrap();
        upload.synchronize().unwrap();
    }
    let stats = mm.stats().device[0].best_fit;
    eprintln!(
        "reserved {} MiB, peak in use {} MiB",
        stats.reserved / MIB,
        stats.peak_in_use / MIB
    );
    assert!(
        stats.reserved <= 64 * MIB,
        "{} MiB for one block of 1 MiB",
        stats.reserved / MIB
    );
}

/// R06: allocate on a stream, copy, free without a stream, never waiting for anything.
#[test]
fn r06_marks_of_one_stream_do_not_pile_up() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    let before = cudart_sim::calls("cudaEventCreateWithFlags");
    let mut marks = Vec::new();
    let begun = Instant::now();
    for i in 0..6000 {
        let x = mm.allocate_device_on(KIB, &s).unwrap();
        // SAFETY: ours; the copy is the manager's.
        unsafe {
            mm.memset(x, 1, KIB, &s).unwrap();
            mm.free_device(x).unwrap();
        }
        if i % 1000 == 999 {
            s.synchronize().unwrap();
            marks.push((i + 1, begun.elapsed()));
        }
    }
    let events = cudart_sim::calls("cudaEventCreateWithFlags") - before;
    eprintln!("{events} events, {marks:?}");
    assert!(events <= 64, "{events} events for one block on one stream");
    assert_sound(&mm);
}

/// R07: a buffer that lives on while streams come and go.
#[test]
fn r07_uses_of_streams_that_have_ended_do_not_pile_up() {
    let _turn = turn();
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let home = Stream::new().unwrap();
        let weights = mm.device_zeroed::<u8>(KIB, &home).unwrap();
        let mut host = mm.pinned::<u8>(KIB).unwrap();
        home.synchronize().unwrap();
        let before = cudart_sim::calls("cudaEventCreateWithFlags");
        let waits = cudart_sim::calls("cudaStreamWaitEvent");
        for _ in 0..2000 {
            let s = Stream::new().unwrap();
            let _ = s.copy_to_host(&weights, &mut host).unwrap();
            s.synchronize().unwrap();
        }
        let events = cudart_sim::calls("cudaEventCreateWithFlags") - before;
        let waits = cudart_sim::calls("cudaStreamWaitEvent") - waits;
        eprintln!("{mode}: {events} events, {waits} waits");
        assert!(
            events <= 256,
            "{mode}: {events} events are held for streams that are gone; {waits} waits"
        );
    }
}

/// R08: streams that come and go, each with one block.
#[test]
fn r08_streams_that_have_ended_do_not_pile_up_in_a_pool() {
    let _turn = turn();
    let mm = rig::capped(64 * MIB);
    let before = cudart_sim::calls("cudaEventCreateWithFlags");
    for _ in 0..4000 {
        let s = Stream::new().unwrap();
        let x = mm.device::<u8>(256, &s).unwrap();
        let _ = s.memset(&x, 1).unwrap();
        s.synchronize().unwrap();
    }
    let events = cudart_sim::calls("cudaEventCreateWithFlags") - before;
    eprintln!("{events} events, {:?}", mm.stats().device[0].best_fit);
    assert!(events <= 512, "{events} events");
    assert_sound(&mm);
}

/// R09: a segment with a live block at `shutdown` follows when the block is freed, at the next call that may wait.
#[test]
fn r09_a_segment_follows_its_last_block_after_shutdown() {
    let _turn = turn();
    for (stalled, on) in [(false, false), (false, true), (true, false), (true, true)] {
        let mm = MemoryManager::new(Config::default().device_growth(2 * MIB)).unwrap();
        let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
        let x = mm.allocate_device_on(2 * MIB, &s).unwrap();
        mm.shutdown().unwrap();
        let gate = Gate::new();
        if stalled {
            stall(&other, &gate);
        }
        // SAFETY: ours.
        unsafe {
            if on {
                mm.free_device_on(x, &s).unwrap();
            } else {
                mm.free_device(x).unwrap();
            }
        }
        s.synchronize().unwrap();
        let y = mm.allocate_device(4 * MIB).unwrap();
        gate.open();
        other.synchronize().unwrap();
        let z = mm.allocate_device(6 * MIB).unwrap();
        let w = mm.allocate_device(8 * MIB).unwrap();
        let stats = mm.stats().device[0].best_fit;
        assert_eq!(
            stats.reserved,
            18 * MIB,
            "stalled {stalled}, freed on a stream {on}: the segment of 2 MiB stayed"
        );
        // SAFETY: ours.
        unsafe {
            for p in [y, z, w] {
                mm.free_device(p).unwrap();
            }
        }
    }
}

/// R10: "its segments go back to CUDA at the next call of any manager that may wait (a growth, …)".
#[test]
fn r10_segments_of_dropped_managers_go_back_when_others_grow() {
    let _turn = turn();
    let _ = manager().trim();
    let (free, _) = rig::mem_get_info();
    for _ in 0..50 {
        let mm = manager();
        let x = mm.allocate_device(MIB).unwrap();
        // SAFETY: ours.
        unsafe { mm.free_device(x).unwrap() };
    }
    let (now, _) = rig::mem_get_info();
    let held = (free - now) / MIB;
    let _ = manager().trim();
    assert!(held <= 64, "{held} MiB held by managers that are gone");
}

/// R11: async modes: frees on a per-thread stream are seen before memory is said to be out.
#[test]
fn r11_a_free_on_a_per_thread_stream_is_seen_before_out_of_memory() {
    let _turn = turn();
    let mm = manager_in(DeviceAllocatorMode::AsyncStreamOrdered);
    let _ = mm.trim();
    let s = Stream::new().unwrap();
    let (free, _) = rig::mem_get_info();
    let (most, more) = (free / 10 * 6, free / 10 * 7);
    let mine = PerThreadStream::new().unwrap();
    let x = mm.allocate_device_on(most, &mine).unwrap();
    // SAFETY: ours.
    unsafe { mm.free_device_on(x, &mine).unwrap() };
    let y = mm.allocate_device_on(more, &s);
    mine.synchronize().unwrap();
    let z = mm.allocate_device_on(more, &s);
    eprintln!(
        "at once: {}, after a synchronisation: {}",
        y.is_ok(),
        z.is_ok()
    );
    let ok = y.is_ok();
    // SAFETY: ours.
    unsafe {
        for p in [y, z].into_iter().flatten() {
            mm.free_device_on(p, &s).unwrap();
        }
    }
    s.synchronize().unwrap();
    let _ = mm.trim();
    assert!(ok);
}

/// R12: the last guard of a manager is dropped in a host function.
#[test]
fn r12_a_manager_that_ends_in_a_host_function_leaves_nothing() {
    let _turn = turn();
    let _ = manager().trim();
    for mode in DeviceAllocatorMode::ALL {
        let before = cudart_sim::memory_info(0).unwrap();
        let s = Stream::new().unwrap();
        {
            let mm = manager_in(mode);
            let x = mm.device::<u8>(MIB, &s).unwrap();
            s.synchronize().unwrap();
            s.launch_host(move || drop(x)).unwrap();
        }
        s.synchronize().unwrap();
        let gone = rig::eventually(|| {
            manager().trim().unwrap();
            // SAFETY: no preconditions. The host sees what has been freed.
            unsafe { cuda_sys::cudaDeviceSynchronize() };
            let now = cudart_sim::memory_info(0).unwrap();
            // What the device's current pool keeps idle is the user's.
            let kept = now.pool_reserved <= before.pool_reserved
                || mode == DeviceAllocatorMode::AsyncStreamOrdered;
            kept && (now.blocks, now.pool_blocks) == (before.blocks, before.pool_blocks)
        });
        assert!(gone, "{mode}: {before:?}, {:?}", cudart_sim::memory_info(0));
    }
}

/// R13: a guard dropped in a host function while its stream goes elsewhere.
#[test]
fn r13_a_guard_dropped_in_a_host_function_as_its_stream_goes() {
    let _turn = turn();
    let mm = manager_in(DeviceAllocatorMode::CudaAsyncPool);
    let runner = Stream::new().unwrap();
    let mut lost = 0;
    for _ in 0..300 {
        let s = Stream::new().unwrap();
        let x = mm.device::<u8>(KIB, &s).unwrap();
        s.synchronize().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        runner
            .launch_host(move || {
                let _ = wait.recv();
                drop(x);
            })
            .unwrap();
        let destroyed = cudart_sim::calls("cudaStreamDestroy");
        go.send(()).unwrap();
        drop(s);
        runner.synchronize().unwrap();
        let y = mm.device::<u8>(KIB, &runner).unwrap();
        drop(y);
        lost += u64::from(cudart_sim::calls("cudaStreamDestroy") != destroyed + 1);
    }
    runner.synchronize().unwrap();
    mm.shutdown().unwrap();
    let now = cudart_sim::memory_info(0).unwrap();
    eprintln!("odd {lost}, {now:?}");
    assert_eq!(now.pool_blocks.0, 0, "blocks that are never freed");
}
