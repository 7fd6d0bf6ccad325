//! The async modes: out of memory only after everything that can come back has, and thresholds that stay what they were.
//!
//! In a process of its own, on a simulated device with little memory.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{MIB, manager_in, stall};
use memmgr::{Config, DeviceAllocatorMode, MemoryManager, Stream};
use memmgr_tests::Gate;
use std::sync::Once;

const MODES: [DeviceAllocatorMode; 2] = [
    DeviceAllocatorMode::AsyncStreamOrdered,
    DeviceAllocatorMode::CudaAsyncPool,
];

/// The tests of this file take turns: each wants most of the memory.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn turn() -> Option<std::sync::MutexGuard<'static, ()>> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(feature = "sim")]
        cudart_sim::configure(cudart_sim::Config::devices(1, 1 << 30)).unwrap();
    });
    let turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if rig::has_pools() {
        return Some(turn);
    }
    memmgr_tests::skip("native_modes", "the device has no memory pools");
    None
}

fn share(percent: usize) -> usize {
    rig::mem_get_info().0 / 100 * percent
}

/// B18 (a)
#[test]
fn memory_freed_on_one_stream_serves_a_larger_request_of_another() {
    let Some(_turn) = turn() else { return };
    for mode in MODES {
        let mm = manager_in(mode);
        let (s1, s2) = (Stream::new().unwrap(), Stream::new().unwrap());
        let (small, large) = (share(60), share(70));
        let x = mm.allocate_device_on(small, &s1).unwrap();
        // SAFETY: the blocks are ours.
        unsafe {
            mm.memset(x, 1, small, &s1).unwrap();
            mm.free_device_on(x, &s1).unwrap();
            let y = mm
                .allocate_device_on(large, &s2)
                .unwrap_or_else(|error| panic!("{mode}: {error}"));
            mm.memset(y, 2, 4096, &s2).unwrap();
            rig::assert_all(&rig::read_back(&mm, y, 4096, &s2), 2, &mode.to_string());
            mm.free_device_on(y, &s2).unwrap();
            s2.synchronize().unwrap();
        }
        assert_eq!(common::last_error(), 0);
        mm.shutdown().unwrap();
    }
}

/// B18 (a): the same where the first stream is behind.
#[test]
fn a_larger_request_waits_for_a_stream_that_is_behind_rather_than_failing() {
    let Some(_turn) = turn() else { return };
    for mode in MODES {
        let mm = manager_in(mode);
        let (s1, s2) = (Stream::new().unwrap(), Stream::new().unwrap());
        let (small, large) = (share(60), share(70));
        let x = mm.allocate_device_on(small, &s1).unwrap();
        let gate = Gate::new();
        stall(&s1, &gate);
        // SAFETY: the blocks are ours.
        unsafe {
            mm.free_device_on(x, &s1).unwrap();
            let opener = gate.open_after(std::time::Duration::from_millis(50));
            let y = mm
                .allocate_device_on(large, &s2)
                .unwrap_or_else(|error| panic!("{mode}: {error}"));
            opener.join().unwrap();
            mm.free_device_on(y, &s2).unwrap();
            s2.synchronize().unwrap();
        }
        mm.shutdown().unwrap();
    }
}

/// B18 (a): the memory that another family of the same manager keeps is given back too.
#[test]
fn what_one_family_keeps_idle_serves_another() {
    let Some(_turn) = turn() else { return };
    let mm = manager_in(DeviceAllocatorMode::BestFitPool);
    let stream = Stream::new().unwrap();
    let modes = [
        DeviceAllocatorMode::BestFitPool,
        DeviceAllocatorMode::CudaAsyncPool,
        DeviceAllocatorMode::AsyncStreamOrdered,
        DeviceAllocatorMode::BestFitPool,
    ];
    let size = share(60);
    for mode in modes {
        mm.set_device_allocator_mode(mode);
        let block = mm
            .allocate_device_on(size, &stream)
            .unwrap_or_else(|error| panic!("{mode}: {error}"));
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &stream).unwrap() };
        stream.synchronize().unwrap();
    }
    mm.shutdown().unwrap();
}

/// B18 (b)
#[test]
fn trim_tells_what_it_gave_back_and_in_the_end_nothing_is_left() {
    let Some(_turn) = turn() else { return };
    let mode = DeviceAllocatorMode::CudaAsyncPool;
    let mm = manager_in(mode);
    let s = Stream::new().unwrap();
    let size = 256 * MIB;
    let x = mm.allocate_device_on(size, &s).unwrap();
    s.synchronize().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(x, &s).unwrap() };
    let before = mm.native_pool_usage(mode).unwrap().reserved;
    let released = mm.trim().unwrap();
    assert_eq!(
        released,
        before - mm.native_pool_usage(mode).unwrap().reserved
    );
    gate.open();
    s.synchronize().unwrap();
    let rest = mm.trim().unwrap();
    assert!(released + rest >= size, "{released} and {rest}");
    let usage = mm.native_pool_usage(mode).unwrap();
    assert_eq!((usage.reserved, usage.used), (0, 0));
    mm.shutdown().unwrap();
}

/// B19: the manager's own pool keeps what it has, or exactly what is configured.
#[test]
fn the_own_pool_keeps_its_memory_over_synchronisations() {
    let Some(_turn) = turn() else { return };
    let mode = DeviceAllocatorMode::CudaAsyncPool;
    for keep in [0, 96 * MIB] {
        let mm = MemoryManager::new(Config::default().mode(mode).device_pool_size(keep)).unwrap();
        let s = Stream::new().unwrap();
        for round in 0..100 {
            let block = mm.allocate_device_on(64 * MIB, &s).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &s).unwrap() };
            s.synchronize().unwrap();
            let usage = mm.native_pool_usage(mode).unwrap();
            assert!(
                usage.reserved >= 64 * MIB,
                "keep {keep}, round {round}: {usage:?}"
            );
        }
        // Above the configured size it gives back.
        let block = mm.allocate_device_on(256 * MIB, &s).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &s).unwrap() };
        s.synchronize().unwrap();
        let usage = mm.native_pool_usage(mode).unwrap();
        if keep > 0 {
            assert!(
                usage.reserved <= keep.next_multiple_of(64 * MIB),
                "{usage:?}"
            );
        }
        mm.shutdown().unwrap();
        assert_eq!(mm.native_pool_usage(mode).unwrap().reserved, 0);
    }
}

/// B19: the device's pool is the user's.
#[test]
fn a_threshold_that_the_user_set_on_the_default_pool_stays() {
    let Some(_turn) = turn() else { return };
    let (mut pool, threshold) = (std::ptr::null_mut(), 32u64 << 20);
    let attribute = cuda_sys::cudaMemPoolAttr::cudaMemPoolAttrReleaseThreshold;
    let mut set = threshold;
    // SAFETY: the pool is the device's own, and the attribute is 64 bits wide.
    unsafe {
        assert_eq!(cuda_sys::cudaDeviceGetDefaultMemPool(&mut pool, 0).0, 0);
        assert_eq!(
            cuda_sys::cudaMemPoolSetAttribute(pool, attribute, (&raw mut set).cast()).0,
            0
        );
    }
    let mm = MemoryManager::new(
        Config::default()
            .mode(DeviceAllocatorMode::AsyncStreamOrdered)
            .device_pool_size(128 * MIB),
    )
    .unwrap();
    let s = Stream::new().unwrap();
    for _ in 0..10 {
        let block = mm.allocate_device_on(8 * MIB, &s).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, &s).unwrap() };
        s.synchronize().unwrap();
    }
    mm.trim().unwrap();
    mm.shutdown().unwrap();
    let mut now = 0u64;
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            cuda_sys::cudaMemPoolGetAttribute(pool, attribute, (&raw mut now).cast()).0,
            0
        );
    }
    assert_eq!(now, threshold);
    let mut zero = 0u64;
    // SAFETY: as above.
    unsafe { cuda_sys::cudaMemPoolSetAttribute(pool, attribute, (&raw mut zero).cast()) };
}

/// A driver crashed now and then when a pool was destroyed that frees were still to come back to.
#[test]
fn a_pool_with_frees_in_flight_is_destroyed_by_a_later_call() {
    let Some(_turn) = turn() else { return };
    let s = Stream::new().unwrap();
    let gate = Gate::new();
    let mm = manager_in(DeviceAllocatorMode::CudaAsyncPool);
    let block = mm.allocate_device_on(8 * MIB, &s).unwrap();
    stall(&s, &gate);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(block, &s).unwrap() };
    #[cfg(feature = "sim")]
    let destroyed = cudart_sim::calls("cudaMemPoolDestroy");
    // It does not wait.
    drop(mm);
    #[cfg(feature = "sim")]
    assert_eq!(cudart_sim::calls("cudaMemPoolDestroy"), destroyed);
    gate.open();
    let other = manager_in(DeviceAllocatorMode::BestFitPool);
    other.trim().unwrap();
    #[cfg(feature = "sim")]
    assert_eq!(cudart_sim::calls("cudaMemPoolDestroy"), destroyed + 1);
    s.synchronize().unwrap();
    // Without any it goes at once.
    let mm = manager_in(DeviceAllocatorMode::CudaAsyncPool);
    let block = mm.allocate_device_on(8 * MIB, &s).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(block, &s).unwrap() };
    s.synchronize().unwrap();
    drop(mm);
    #[cfg(feature = "sim")]
    assert_eq!(cudart_sim::calls("cudaMemPoolDestroy"), destroyed + 2);
}
