//! Four devices, of which some have no memory pools, and one that has little memory: each is asked for itself.
#![cfg(feature = "sim")]

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, last_error};
use memmgr::{Config, DeviceAllocatorMode, Error, MemoryManager, Stream};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Devices 0 and 2 have pools, 1 and 3 have none; device 3 has 64 MiB.
///
/// The tests take turns: each wants most of some device.
fn machine() -> MutexGuard<'static, ()> {
    static ONCE: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    ONCE.call_once(|| {
        let mut config = cudart_sim::Config::devices(4, 1 << 30);
        config.devices[1].memory_pools = false;
        config.devices[3].memory_pools = false;
        config.devices[3].memory = 64 * MIB;
        cudart_sim::configure(config).unwrap();
    });
    turn
}

fn on(device: i32) -> Stream {
    Stream::builder().device(device).build().unwrap()
}

fn set(device: i32) {
    // SAFETY: any ordinal may be passed.
    assert_eq!(unsafe { cuda_sys::cudaSetDevice(device) }.0, 0);
}

/// B32: a mode that a device lacks falls back there, for allocation and free alike, and nowhere else.
#[test]
fn a_mode_falls_back_on_the_devices_that_lack_it_alone() {
    let _turn = machine();
    for mode in DeviceAllocatorMode::ALL {
        let mm = MemoryManager::new(Config::default().mode(mode)).unwrap();
        // A second manager for the same devices is as good as the first.
        let second = MemoryManager::new(Config::default().mode(mode)).unwrap();
        for device in 0..4 {
            set(device);
            let has = device % 2 == 0;
            assert_eq!(mm.supports_async_device_allocator().unwrap(), has);
            assert_eq!(mm.requested_device_allocator_mode(), mode);
            let effective = if has {
                mode
            } else {
                DeviceAllocatorMode::BestFitPool
            };
            assert_eq!(mm.effective_device_allocator_mode().unwrap(), effective);
            let stream = on(device);
            let blocks = [
                mm.allocate_device(MIB).unwrap(),
                mm.allocate_device_on(MIB, &stream).unwrap(),
            ];
            let other = second.allocate_device(MIB).unwrap();
            let guard = mm.device::<u8>(KIB, &stream).unwrap();
            assert_eq!(guard.device(), device);
            let stats = mm.stats();
            let of = stats.device.iter().find(|s| s.device == device).unwrap();
            let in_pool = of.best_fit.in_use;
            let expected = if effective == DeviceAllocatorMode::BestFitPool {
                2 * MIB + KIB
            } else {
                0
            };
            assert_eq!(in_pool, expected, "{mode} on device {device}");
            assert_eq!(of.in_use(), 2 * MIB + KIB);
            // From elsewhere, with another device current.
            set((device + 1) % 4);
            // SAFETY: nobody uses the blocks.
            unsafe {
                mm.free_device(blocks[0]).unwrap();
                mm.free_device_on(blocks[1], &stream).unwrap();
                second.free_device(other).unwrap();
            }
            drop(guard);
            assert_eq!(rig::current_device(), (device + 1) % 4);
        }
        assert_eq!(mm.stats().in_use(), 0);
        mm.trim().unwrap();
        assert_sound(&mm);
        mm.shutdown().unwrap();
        second.shutdown().unwrap();
        assert_eq!(last_error(), 0, "{mode}");
    }
    set(0);
}

/// Errors on one device leave the current device and the other devices as they were.
#[test]
fn a_full_device_is_not_a_full_machine() {
    let _turn = machine();
    for mode in DeviceAllocatorMode::ALL {
        let mm = MemoryManager::new(Config::default().mode(mode)).unwrap();
        set(2);
        let small = on(3);
        let error = mm.allocate_device_on(100 * MIB, &small).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        assert!(mm.allocate_device_at(3, 100 * MIB).is_err());
        assert_eq!(rig::current_device(), 2);
        let block = mm.allocate_device(100 * MIB).unwrap();
        for (name, code) in [("cudaMalloc", 1), ("cudaMallocAsync", 1)] {
            let fault = cudart_sim::fail(name, cudart_sim::sys::cudaError(code)).times(9);
            let _ = mm.allocate_device_at(0, 300 * MIB);
            assert_eq!(rig::current_device(), 2, "after {name} failed");
            drop(fault);
        }
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(block).unwrap() };
        assert_eq!(rig::current_device(), 2);
        assert_eq!(last_error(), 0);
        mm.shutdown().unwrap();
    }
    set(0);
}

/// Guards of four devices, made on one thread and dropped on others, each with another device current.
#[test]
fn guards_of_four_devices_go_home_from_any_thread() {
    let _turn = machine();
    for mode in DeviceAllocatorMode::ALL {
        let mm = MemoryManager::new(Config::default().mode(mode)).unwrap();
        std::thread::scope(|scope| {
            for device in 0..4 {
                let stream = on(device);
                let guards: Vec<_> = (0..16)
                    .map(|_| mm.device::<u32>(KIB, &stream).unwrap())
                    .collect();
                for (i, guard) in guards.into_iter().enumerate() {
                    let stream = stream.clone();
                    scope.spawn(move || {
                        set(i as i32 % 4);
                        let _ = stream.memset(&guard, i as u8).unwrap();
                        drop(guard);
                        assert_eq!(rig::current_device(), i as i32 % 4);
                        assert_eq!(last_error(), 0);
                    });
                }
            }
        });
        let stats = mm.stats();
        assert_eq!((stats.in_use(), stats.drop_failures), (0, 0), "{mode}");
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}
