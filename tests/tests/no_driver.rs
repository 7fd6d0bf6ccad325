//! On a machine without a driver every entry point answers `Error::Unavailable` (35), and nothing panics.
//!
//! Built against the real runtime (`--no-default-features`) and run where no driver is installed; on the simulated
//! runtime it re-runs itself with `CUDART_SIM_DRIVER=none`. Where a driver is installed it is skipped.

mod common;

use memmgr::{
    CopyKind, DeviceAllocatorMode, Error, MemoryManager, PerThreadStream, Result, Stream,
};
use std::ptr;

fn assert_unavailable<T>(what: &str, result: Result<T>) {
    match result {
        Err(Error::Unavailable {
            code: Some(35),
            reason,
        }) => {
            assert!(
                reason.contains("driver") && reason.contains("sim"),
                "{what}: {reason}"
            );
            // The code is that of a driver that is too old, too.
            assert!(
                !memmgr_tests::SIMULATED || reason.contains("too old"),
                "{what}: {reason}"
            );
        }
        Err(other) => panic!("{what}: {other:?}"),
        Ok(_) => panic!("{what} succeeded"),
    }
}

#[test]
fn without_a_driver_every_entry_point_is_unavailable_and_nothing_panics() {
    if memmgr_tests::SIMULATED && std::env::var("CUDART_SIM_DRIVER").as_deref() != Ok("none") {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .env("CUDART_SIM_DRIVER", "none")
            .arg("--nocapture")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    if memmgr::versions().is_ok_and(|versions| versions.driver > 0) {
        memmgr_tests::skip("no_driver", "a driver is installed");
        return;
    }
    println!("backend: {}, no driver", memmgr::backend());
    let mm = MemoryManager::instance();
    assert_unavailable("devices", memmgr::devices());
    assert_unavailable("Stream::new", Stream::new());
    assert_unavailable(
        "Stream::builder",
        Stream::builder().device(0).blocking(true).build(),
    );
    assert_unavailable("Stream::legacy", Stream::legacy(0));
    assert_unavailable("PerThreadStream::new", PerThreadStream::new());
    // SAFETY: the null stream is always a stream.
    assert_unavailable("Stream::borrow_raw", unsafe {
        Stream::borrow_raw(ptr::null_mut())
    });
    for mode in DeviceAllocatorMode::ALL {
        mm.set_device_allocator_mode(mode);
        assert_eq!(mm.requested_device_allocator_mode(), mode);
        assert_unavailable("allocate_device", mm.allocate_device(4096));
        assert_unavailable("allocate_device_at", mm.allocate_device_at(0, 4096));
        assert_unavailable("effective mode", mm.effective_device_allocator_mode());
        assert_unavailable("supports async", mm.supports_async_device_allocator());
    }
    assert_unavailable(
        "native_pool_usage",
        mm.native_pool_usage(DeviceAllocatorMode::AsyncStreamOrdered),
    );
    assert_unavailable("allocate_pinned", mm.allocate_pinned(4096));
    assert_unavailable("pinned", mm.pinned::<u32>(16).map(drop));
    assert_unavailable("pinned_zeroed", mm.pinned_zeroed::<u32>(16).map(drop));
    // What needs no CUDA call works all the same.
    assert!(mm.allocate_device(0).unwrap().is_null());
    assert!(mm.allocate_pinned(0).unwrap().is_null());
    assert_eq!(
        mm.pinned::<u32>(0).unwrap().as_slice().unwrap(),
        &[] as &[u32]
    );
    // SAFETY: null and pointers that the manager does not know are refused or ignored.
    unsafe {
        mm.free_device(ptr::null_mut()).unwrap();
        mm.free_pinned(ptr::null_mut()).unwrap();
        assert!(matches!(
            mm.free_device(ptr::dangling_mut::<u64>().cast()),
            Err(Error::UnknownPointer { .. })
        ));
    }
    assert_eq!(mm.stats().in_use(), 0);
    assert_eq!(mm.trim().unwrap(), 0);
    assert!(mm.shutdown().unwrap().live.is_empty());
    mm.check().unwrap();
    let _ = CopyKind::HostToDevice;
}
