//! What is known of devices, and threads that have never touched CUDA.

use crate::common::{MIB, manager_in};
use crate::rig;
use memmgr::{DeviceAllocatorMode, Error, Stream};

/// B52, the half at run time.
#[test]
fn the_device_has_a_name_and_as_much_memory_as_the_runtime_says() {
    let devices = memmgr::devices().unwrap();
    assert!(!devices.is_empty());
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(device.ordinal as usize, ordinal);
        assert!(!device.name.trim().is_empty());
        assert!(
            device.name.chars().all(|c| !c.is_control()),
            "{:?}",
            device.name
        );
        assert_eq!(
            device.name.contains("Simulated"),
            memmgr::backend() == memmgr::Backend::Simulated
        );
        assert!(device.free_memory <= device.total_memory);
        assert!(device.compute_capability.0 > 0);
    }
    let (_, total) = rig::mem_get_info();
    let told = devices[0].total_memory;
    assert!(told.abs_diff(total) <= total / 50, "{told} and {total}");
    let versions = memmgr::versions().unwrap();
    assert!(versions.driver >= versions.runtime / 1000 * 1000 && versions.runtime >= 11_000);
    assert_eq!(rig::current_device(), 0, "asking changes nothing");
}

/// B30 on one device.
#[test]
fn a_guard_dropped_on_a_thread_that_never_touched_cuda_goes_home() {
    for mode in rig::modes() {
        let mm = std::sync::Arc::new(manager_in(*mode));
        let stream = Stream::new().unwrap();
        let guard = mm.device::<u8>(MIB, &stream).unwrap();
        let pinned = mm.pinned::<u8>(MIB).unwrap();
        let at = guard.as_ptr() as usize;
        let theirs = mm.clone();
        std::thread::spawn(move || {
            drop(guard);
            drop(pinned);
            assert_eq!(rig::current_device(), 0);
            let raw = theirs.allocate_device_at(0, MIB).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { theirs.free_device(raw).unwrap() };
            assert_eq!(rig::current_device(), 0);
            assert_eq!(crate::common::last_error(), 0);
        })
        .join()
        .unwrap();
        assert_eq!(mm.stats().drop_failures, 0, "{mode}: {:?}", mm.take_error());
        assert_eq!(mm.stats().in_use(), 0);
        if *mode == DeviceAllocatorMode::BestFitPool {
            let again = mm.device::<u8>(MIB, &stream).unwrap();
            assert_eq!(again.as_ptr() as usize, at, "the block is at home");
        }
        mm.shutdown().unwrap();
    }
}

/// Devices that do not exist are refused, and nothing changes.
#[test]
fn a_device_that_does_not_exist_is_refused() {
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        for ordinal in [99, -1, i32::MAX, i32::MIN] {
            let refused = mm.allocate_device_at(ordinal, MIB);
            assert!(
                matches!(refused, Err(Error::WrongDevice { .. })),
                "{ordinal}: {refused:?}"
            );
            for result in [
                Stream::builder().device(ordinal).build().map(drop),
                Stream::legacy(ordinal).map(drop),
            ] {
                assert!(result.is_err(), "{ordinal}");
            }
            assert_eq!(crate::common::last_error(), 0);
            assert_eq!(rig::current_device(), 0);
        }
        assert_eq!(mm.stats().in_use(), 0);
    }
}
