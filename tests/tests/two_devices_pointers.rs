//! Blocks and streams of different devices (case B34). A process of its own: the simulated machine has two.

mod common;

use common::{
    MODES, assert_sound,
    checks::{current_device, figures, hex, refused, without_calls},
    last_error, manager_in,
};
use memmgr::{Error, Stream};

/// Whether there are two devices; says so if not.
fn two_devices(test: &str) -> bool {
    #[cfg(feature = "sim")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            cudart_sim::configure(cudart_sim::Config::devices(2, 1 << 30)).unwrap();
        });
    }
    let enough = memmgr::devices().unwrap().len() >= 2;
    if !enough {
        memmgr_tests::skip(test, "it needs two devices");
    }
    enough
}

/// Case B34: a pointer of device 0 in device 1's pool.
#[test]
fn a_block_of_one_device_is_not_freed_on_a_stream_of_another() {
    if !two_devices("a_block_of_one_device_is_not_freed_on_a_stream_of_another") {
        return;
    }
    for mode in MODES {
        let manager = manager_in(mode);
        let streams = [0, 1].map(|device| Stream::builder().device(device).build().unwrap());
        let blocks = [0, 1].map(|device| manager.allocate_device_at(device, 512).unwrap());
        for (block, own) in blocks.into_iter().zip([0usize, 1]) {
            let other = 1 - own;
            let names = [
                hex(block),
                format!("device {own}"),
                format!("device {other}"),
            ];
            let error = without_calls("a free on the wrong device", || {
                // SAFETY: the call must refuse the block.
                unsafe { manager.free_device_on(block, &streams[other]) }.unwrap_err()
            });
            assert!(
                matches!(error, Error::WrongDevice { .. }),
                "{mode}: {error}"
            );
            refused(&manager, "a free on the wrong device", &names, || {
                // SAFETY: the call must refuse the block.
                unsafe { manager.free_device_on(block, &streams[other]) }
            });
            // An interior pointer is no block of either device.
            let inside = block.wrapping_byte_add(256);
            let error = refused(&manager, "an interior pointer", &[hex(inside)], || {
                // SAFETY: the call must refuse the pointer.
                unsafe { manager.free_device_on(inside, &streams[own]) }
            });
            assert!(
                matches!(error, Error::UnknownPointer { .. }),
                "{mode}: {error}"
            );
        }
        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device_on(blocks[0], &streams[0]).unwrap();
            manager.free_device(blocks[1]).unwrap();
            for block in blocks {
                manager.free_device(block).unwrap_err();
            }
        }
        let stats = manager.stats();
        assert_eq!(stats.device.len(), 2);
        assert_eq!(stats.in_use(), 0);
        assert_eq!(last_error(), 0);
        assert_sound(&manager);
    }
}

/// Blocks come from the device that was asked for, and the current device stays what it was.
#[test]
fn each_device_has_its_own_pool_and_the_current_device_stays() {
    if !two_devices("each_device_has_its_own_pool_and_the_current_device_stays") {
        return;
    }
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::builder().device(1).build().unwrap();
        let on_stream = manager.allocate_device_on(512, &stream).unwrap();
        let plain = manager.allocate_device(512).unwrap();
        let chosen = manager.allocate_device_at(1, 512).unwrap();
        assert_eq!(current_device(), 0);
        let mut in_use = [0; 2];
        for device in &manager.stats().device {
            in_use[device.device as usize] = device.in_use();
        }
        assert_eq!(in_use, [512, 1024], "{mode}");
        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device_on(on_stream, &stream).unwrap();
            manager.free_device(plain).unwrap();
            manager.free_device(chosen).unwrap();
        }
        assert_eq!(current_device(), 0);
        assert_eq!(manager.stats().in_use(), 0);
    }
}

/// A third device is not there, neither is device -1.
#[test]
fn a_device_behind_the_last_is_named() {
    if !two_devices("a_device_behind_the_last_is_named") {
        return;
    }
    let manager = manager_in(MODES[0]);
    let count = memmgr::devices().unwrap().len() as i32;
    manager.allocate_device_at(count - 1, 256).unwrap();
    let before = figures(&manager);
    for ordinal in [count, -1] {
        let names = [format!("device {ordinal}"), count.to_string()];
        let error = refused(&manager, "a device that is not there", &names, || {
            manager.allocate_device_at(ordinal, 256)
        });
        assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    }
    assert_eq!(figures(&manager), before);
}
