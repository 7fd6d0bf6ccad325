//! Giving memory back: down to a target, by itself after a while, and before a share of the device is exceeded.
//!
//! In a process of its own, since the tests compare what the device has left.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{MIB, assert_sound, last_error, stall};
use memmgr::{Config, DeviceAllocatorMode, DeviceSource, Error, MemoryManager, PoolStats, Stream};
use memmgr_tests::{Gate, sim_only};
use std::{
    sync::{Mutex, MutexGuard, Once, PoisonError},
    time::{Duration, Instant},
};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(feature = "sim")]
        cudart_sim::configure(cudart_sim::Config::devices(1, 512 * MIB)).unwrap();
    });
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // What the managers of other tests have left goes first.
    #[cfg(feature = "sim")]
    while rig::mem_get_info().0 < 512 * MIB {
        common::manager().trim().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    turn
}

fn growing(step: usize) -> Config {
    Config::default().device_growth(step).pinned_growth(step)
}

fn device(mm: &MemoryManager) -> PoolStats {
    mm.stats().device[0].best_fit
}

/// Segments of these sizes, of which nothing is in use.
fn hold_idle(mm: &MemoryManager, sizes: &[usize]) {
    let blocks: Vec<_> = (sizes.iter())
        .map(|size| mm.allocate_device(*size).unwrap())
        .collect();
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(block).unwrap() };
    }
}

#[test]
fn trim_to_keeps_as_much_as_it_may_and_the_device_agrees() {
    let _turn = turn();
    let config = growing(2 * MIB).device_source(DeviceSource::Malloc);
    let mm = MemoryManager::new(config).unwrap();
    let (before, _) = rig::mem_get_info();
    hold_idle(&mm, &[16 * MIB, 4 * MIB, 8 * MIB, 4 * MIB]);
    assert_eq!(device(&mm).reserved, 32 * MIB);
    for (target, released, left) in [
        (40 * MIB, 0, 32 * MIB),
        (32 * MIB, 0, 32 * MIB),
        (29 * MIB, 4 * MIB, 28 * MIB),
        (21 * MIB, 8 * MIB, 20 * MIB),
        (10 * MIB, 16 * MIB, 4 * MIB),
        (0, 4 * MIB, 0),
    ] {
        let (free, _) = rig::mem_get_info();
        assert_eq!(mm.trim_to(target).unwrap(), released, "to {target}");
        assert_eq!(device(&mm).reserved, left, "to {target}");
        if memmgr_tests::SIMULATED {
            assert_eq!(rig::mem_get_info().0 - free, released, "to {target}");
        }
        assert_sound(&mm);
    }
    if memmgr_tests::SIMULATED {
        assert_eq!(rig::mem_get_info().0, before);
    }
    assert_eq!(last_error(), 0);
}

/// Mapped memory goes back in pages, wherever it lies.
#[test]
fn trim_to_of_mapped_memory_keeps_what_was_said() {
    let _turn = turn();
    let config = growing(2 * MIB).device_source(DeviceSource::Virtual);
    let mm = MemoryManager::new(config).unwrap();
    hold_idle(&mm, &[16 * MIB, 4 * MIB, 8 * MIB, 4 * MIB]);
    assert_eq!(device(&mm).reserved, 32 * MIB);
    for target in [40 * MIB, 32 * MIB, 29 * MIB, 21 * MIB, 10 * MIB, 0] {
        let before = device(&mm).reserved;
        let (free, _) = rig::mem_get_info();
        let released = mm.trim_to(target).unwrap();
        let left = device(&mm).reserved;
        assert_eq!(before - left, released);
        assert!(
            left <= target && left + 2 * MIB > before.min(target),
            "{left} of {target} stay"
        );
        if memmgr_tests::SIMULATED {
            assert_eq!(rig::mem_get_info().0 - free, released, "to {target}");
        }
        assert_sound(&mm);
    }
    assert_eq!(last_error(), 0);
}

#[test]
fn trim_to_keeps_segments_with_live_blocks_and_pinned_memory_follows_it_too() {
    let _turn = turn();
    let mm = MemoryManager::new(growing(MIB)).unwrap();
    let blocks = [(); 3].map(|()| mm.allocate_pinned(2 * MIB).unwrap());
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_pinned(blocks[0]).unwrap();
        mm.free_pinned(blocks[2]).unwrap();
    }
    assert_eq!(mm.trim_to(4 * MIB).unwrap(), 2 * MIB);
    assert_eq!(mm.stats().pinned.reserved, 4 * MIB);
    // The last one is in use.
    assert_eq!(mm.trim_to(MIB).unwrap(), 2 * MIB);
    assert_eq!(mm.stats().pinned.reserved, 2 * MIB);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(blocks[1]).unwrap() };
    assert_eq!(mm.trim_to(MIB).unwrap(), 2 * MIB);
    assert_sound(&mm);
}

#[test]
fn trim_to_holds_for_the_pools_of_cuda() {
    let _turn = turn();
    if !rig::has_pools() {
        memmgr_tests::skip("trim_to", "the device has no memory pools");
        return;
    }
    for mode in [
        DeviceAllocatorMode::CudaAsyncPool,
        DeviceAllocatorMode::AsyncStreamOrdered,
    ] {
        let mm = common::manager_in(mode);
        // The device's pool gives everything back by itself.
        let own = mode == DeviceAllocatorMode::CudaAsyncPool;
        let stream = Stream::new().unwrap();
        let blocks = [64 * MIB, 32 * MIB].map(|size| mm.allocate_device_on(size, &stream).unwrap());
        for block in blocks {
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &stream).unwrap() };
        }
        stream.synchronize().unwrap();
        let held = |mm: &MemoryManager| mm.native_pool_usage(mode).unwrap().reserved;
        assert!(!own || held(&mm) >= 96 * MIB, "{mode}");
        for target in [64 * MIB, 0] {
            let before = held(&mm);
            let released = mm.trim_to(target).unwrap();
            assert_eq!(held(&mm), before - released, "{mode}");
            assert!(held(&mm) <= target, "{mode}: {} to {target}", held(&mm));
        }
    }
}

/// Waits for five seconds at most.
fn wait_until(mm: &MemoryManager, what: &str, is: impl Fn(&MemoryManager) -> bool) {
    let begun = Instant::now();
    while !is(mm) {
        assert!(begun.elapsed() < Duration::from_secs(5), "{what}: {mm:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn releasing_after(after: Duration) -> Config {
    growing(2 * MIB)
        .release_threshold(Some(4 * MIB))
        .release_after(after)
}

fn releasing(after: Duration) -> MemoryManager {
    MemoryManager::new(releasing_after(after)).unwrap()
}

#[test]
fn what_is_idle_for_a_while_goes_back_down_to_the_threshold() {
    let _turn = turn();
    let after = Duration::from_millis(40);
    let mm = releasing(after);
    let begun = Instant::now();
    hold_idle(&mm, &[4 * MIB; 4]);
    let pinned = [(); 3].map(|()| mm.allocate_pinned(4 * MIB).unwrap());
    // SAFETY: nobody uses the blocks.
    pinned
        .into_iter()
        .for_each(|block| unsafe { mm.free_pinned(block).unwrap() });
    wait_until(&mm, "the threshold is reached", |mm| {
        device(mm).reserved <= 4 * MIB && mm.stats().pinned.reserved <= 4 * MIB
    });
    assert!(
        begun.elapsed() >= after,
        "it was idle for {after:?} at least"
    );
    std::thread::sleep(2 * after);
    assert_eq!(device(&mm).reserved, 4 * MIB, "no more than that goes back");
    // The thread sleeps now; what comes later wakes it.
    hold_idle(&mm, &[8 * MIB]);
    wait_until(&mm, "again", |mm| device(mm).reserved <= 4 * MIB);
    assert_sound(&mm);
    assert_eq!(mm.take_error(), None);
}

#[test]
fn without_a_threshold_everything_stays() {
    let _turn = turn();
    let config = growing(2 * MIB).release_after(Duration::from_millis(1));
    let mm = MemoryManager::new(config).unwrap();
    hold_idle(&mm, &[4 * MIB; 2]);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(device(&mm).reserved, 8 * MIB);
}

#[test]
fn what_is_in_use_or_behind_running_work_is_not_given_back_by_itself() {
    let _turn = turn();
    let config = releasing_after(Duration::from_millis(8)).device_source(DeviceSource::Malloc);
    let mm = MemoryManager::new(config).unwrap();
    let stream = Stream::new().unwrap();
    let used = mm.allocate_device_on(8 * MIB, &stream).unwrap();
    hold_idle(&mm, &[8 * MIB]);
    let gate = Gate::new();
    stall(&stream, &gate);
    std::thread::sleep(Duration::from_millis(80));
    let reserved = device(&mm).reserved;
    if reserved != 16 * MIB {
        gate.open();
    }
    assert_eq!(reserved, 16 * MIB, "cudaFree would have waited");
    gate.open();
    stream.synchronize().unwrap();
    wait_until(&mm, "the idle half", |mm| device(mm).reserved == 8 * MIB);
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(device(&mm).reserved, 8 * MIB);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(used, &stream).unwrap() };
    stream.synchronize().unwrap();
    wait_until(&mm, "the other half", |mm| device(mm).reserved == 0);
    assert_sound(&mm);
}

/// Unmapping waits for nothing: idle memory goes back beside running work, and what that work uses stays.
#[test]
fn idle_mapped_memory_goes_back_beside_running_work() {
    let _turn = turn();
    let config = releasing_after(Duration::from_millis(8)).device_source(DeviceSource::Virtual);
    let mm = MemoryManager::new(config).unwrap();
    let stream = Stream::new().unwrap();
    let used = mm.allocate_device_on(8 * MIB, &stream).unwrap();
    hold_idle(&mm, &[8 * MIB]);
    let gate = Gate::new();
    let opener = gate.open_after(Duration::from_secs(5));
    stall(&stream, &gate);
    // SAFETY: the block is ours and freed in the order of the only stream that uses it.
    unsafe { mm.free_device_on(used, &stream).unwrap() };
    wait_until(&mm, "the idle half", |mm| device(mm).reserved == 8 * MIB);
    assert!(!stream.query().unwrap(), "the work still runs");
    gate.open();
    stream.synchronize().unwrap();
    wait_until(&mm, "the other half, down to the threshold", |mm| {
        device(mm).reserved == 4 * MIB
    });
    assert_sound(&mm);
    opener.join().unwrap();
}

#[test]
fn the_configured_size_stays_whatever_the_threshold() {
    let _turn = turn();
    let config = growing(2 * MIB)
        .device_pool_size(16 * MIB)
        .release_threshold(Some(0))
        .release_after(Duration::from_millis(4));
    let mm = MemoryManager::new(config).unwrap();
    hold_idle(&mm, &[16 * MIB, 4 * MIB]);
    wait_until(&mm, "what was added", |mm| device(mm).reserved == 16 * MIB);
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(device(&mm).reserved, 16 * MIB);
}

#[test]
fn a_manager_that_goes_ends_what_gives_back() {
    let _turn = turn();
    for _ in 0..20 {
        let mm = releasing(Duration::from_millis(1));
        hold_idle(&mm, &[4 * MIB; 3]);
        let guard = mm.pinned::<u8>(MIB).unwrap();
        drop(mm);
        drop(guard);
    }
    assert_eq!(last_error(), 0);
}

#[test]
fn the_threshold_is_that_of_the_own_cuda_pool() {
    let _turn = turn();
    if !rig::has_pools() {
        memmgr_tests::skip("release_threshold", "the device has no memory pools");
        return;
    }
    let mode = DeviceAllocatorMode::CudaAsyncPool;
    let config = Config::default()
        .mode(mode)
        .release_threshold(Some(40 * MIB));
    let mm = MemoryManager::new(config).unwrap();
    let stream = Stream::new().unwrap();
    let blocks = [64 * MIB, 32 * MIB].map(|size| mm.allocate_device_on(size, &stream).unwrap());
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &stream).unwrap() };
    }
    stream.synchronize().unwrap();
    let held = mm.native_pool_usage(mode).unwrap().reserved;
    assert!(held <= 64 * MIB, "{held}");
}

#[test]
fn a_limit_may_be_a_share_of_the_device() {
    sim_only!("the device has 512 MiB");
    let _turn = turn();
    let config = Config::default().device_pool_limit_share(0.25);
    let mm = MemoryManager::new(config).unwrap();
    let stream = Stream::new().unwrap();
    let all = mm.allocate_device_on(128 * MIB, &stream).unwrap();
    match mm.allocate_device_on(1, &stream).unwrap_err() {
        Error::OutOfMemory(refusal) => assert_eq!(refusal.limit, Some(128 * MIB)),
        other => panic!("{other}"),
    }
    assert!(matches!(
        mm.allocate_device_on(128 * MIB + 1, &stream),
        Err(Error::LimitExceeded { .. })
    ));
    // The limit that is set later is the one that counts.
    mm.set_device_pool_limit(Some(192 * MIB));
    let more = mm.allocate_device_on(64 * MIB, &stream).unwrap();
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_device_on(all, &stream).unwrap();
        mm.free_device_on(more, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    mm.shutdown().unwrap();
}

#[test]
fn of_a_limit_in_bytes_and_one_as_a_share_the_lower_counts() {
    sim_only!("the device has 512 MiB");
    let _turn = turn();
    for (bytes, share, limit) in [(64 * MIB, 0.5, 64 * MIB), (400 * MIB, 0.5, 256 * MIB)] {
        let config = Config::default()
            .device_pool_limit(Some(bytes))
            .device_pool_limit_share(share);
        let mm = MemoryManager::new(config).unwrap();
        match mm.allocate_device(300 * MIB + bytes) {
            Err(Error::LimitExceeded { limit: found, .. }) => assert_eq!(found, limit),
            other => panic!("{other:?}"),
        }
    }
}

/// A manager that is dropped leaves its memory to a later call of any other one.
#[test]
fn what_dropped_managers_have_left_is_there_for_a_request_that_needs_it() {
    sim_only!("the device has 512 MiB");
    let _turn = turn();
    for source in [DeviceSource::Malloc, DeviceSource::Virtual] {
        for (initial, busy) in [(0, false), (0, true), (400 * MIB, false), (400 * MIB, true)] {
            let config = Config::default().device_source(source);
            let (gate, stream) = (Gate::new(), Stream::new().unwrap());
            {
                let mm = MemoryManager::new(config.clone()).unwrap();
                let block = mm.allocate_device_on(300 * MIB, &stream).unwrap();
                if busy {
                    stall(&stream, &gate);
                }
                // SAFETY: only what is in the stream uses the block.
                unsafe { mm.free_device_on(block, &stream).unwrap() };
            }
            assert!(rig::mem_get_info().0 <= 212 * MIB);
            let opened = gate.open_after(Duration::from_millis(20));
            let mm = MemoryManager::new(config.device_pool_size(initial)).unwrap();
            let other = Stream::new().unwrap();
            let block = mm.allocate_device_on(400 * MIB, &other).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &other).unwrap() };
            opened.join().unwrap();
            mm.shutdown().unwrap();
        }
    }
}

/// However often a request is tried, it is refused once, and not at all if it is served in the end.
#[test]
fn a_request_that_is_made_again_counts_as_refused_once() {
    sim_only!("the device has 512 MiB");
    let _turn = turn();
    for mode in [
        DeviceAllocatorMode::BestFitPool,
        DeviceAllocatorMode::CudaAsyncPool,
    ] {
        let mm = MemoryManager::new(Config::default().mode(mode)).unwrap();
        let stream = Stream::new().unwrap();
        let held = mm.allocate_device_on(400 * MIB, &stream).unwrap();
        let failures = || match mode {
            DeviceAllocatorMode::BestFitPool => device(&mm).failures,
            _ => mm.stats().device[0].cuda_async_pool.failures,
        };
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let seen = asked.clone();
        mm.on_out_of_memory(move |_| seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 3);
        assert!(mm.allocate_device_on(300 * MIB, &stream).is_err());
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 4);
        assert_eq!(failures(), 1, "{mode}");
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(held, &stream).unwrap() };
        mm.clear_out_of_memory_hook();
        let block = mm.allocate_device_on(500 * MIB, &stream).unwrap();
        assert_eq!(failures(), 1, "{mode}");
        // SAFETY: as above.
        unsafe { mm.free_device_on(block, &stream).unwrap() };
        stream.synchronize().unwrap();
        mm.shutdown().unwrap();
    }
}
