//! Two devices: blocks and streams belong to one, and the caller's current device stays what it was.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{MIB, assert_sound, manager_in};
use memmgr::{By, DeviceAllocatorMode, Error, MemoryManager, Observer, Place, Stream};
use memmgr_tests::Gate;
use std::{
    future::IntoFuture,
    ops::Range,
    sync::{Arc, Mutex, Once},
};

/// Whether there are two devices.
fn two() -> bool {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(feature = "sim")]
        cudart_sim::configure(cudart_sim::Config::devices(2, 1 << 30)).unwrap();
    });
    let two = memmgr::devices().unwrap().len() >= 2;
    if !two {
        memmgr_tests::skip("two_devices", "there is one device");
    }
    two
}

/// Runs `f` and verifies that device 0 is still current.
#[track_caller]
fn stays<T>(f: impl FnOnce() -> T) -> T {
    assert_eq!(rig::current_device(), 0, "before");
    let value = f();
    assert_eq!(rig::current_device(), 0, "the current device has changed");
    value
}

fn on(device: i32) -> Stream {
    Stream::builder().device(device).build().unwrap()
}

fn in_use(mm: &MemoryManager, device: i32) -> usize {
    mm.stats()
        .device
        .iter()
        .find(|stats| stats.device == device)
        .map_or(0, |stats| stats.in_use())
}

/// Asking makes a context, so nobody else is asked.
#[test]
fn one_device_is_asked_about_alone() {
    if !two() {
        return;
    }
    let (info, one) = rig::calls_of(|| stays(|| memmgr::device(1).unwrap()));
    assert_eq!(info.ordinal, 1);
    let (all, both) = rig::calls_of(|| memmgr::devices().unwrap());
    assert_eq!(all[1].name, info.name);
    assert!(
        both > one + one / 2,
        "{one} calls for one device, {both} for all"
    );
    let missing = memmgr::device(77);
    assert!(
        matches!(&missing, Err(Error::WrongDevice { reason }) if reason.contains("77")),
        "{missing:?}"
    );
}

#[test]
fn every_call_leaves_the_current_device_alone() {
    if !two() {
        return;
    }
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let s1 = stays(|| on(1));
        assert_eq!(s1.device(), 1);
        let block = stays(|| mm.allocate_device_on(MIB, &s1).unwrap());
        let plain = stays(|| mm.allocate_device_at(1, MIB).unwrap());
        let guard = stays(|| mm.device_zeroed::<u8>(MIB, &s1).unwrap());
        assert_eq!(guard.device(), 1);
        assert_eq!(in_use(&mm, 0), 0);
        assert_eq!(in_use(&mm, 1), 3 * MIB);
        let mut host = stays(|| mm.pinned::<u8>(MIB).unwrap());
        // SAFETY: the blocks are ours.
        unsafe {
            stays(|| mm.memset(block, 1, MIB, &s1).unwrap());
            stays(|| {
                mm.copy_to_host_async(host.as_ptr(), block, MIB, &s1)
                    .unwrap()
            });
            stays(|| mm.copy_device_to_device(plain, block, MIB, &s1).unwrap());
            stays(|| mm.memset_2d(block, 1024, 2, 512, 1024, &s1).unwrap());
        }
        stays(|| s1.copy_to_host(&guard, &mut host).unwrap().wait().unwrap());
        rig::assert_all(host.as_slice().unwrap(), 0, "zeroed");
        stays(|| s1.record().unwrap().synchronize().unwrap());
        stays(|| mm.record_use(block, &s1).unwrap());
        // SAFETY: nobody uses the blocks.
        unsafe {
            stays(|| mm.free_device(plain).unwrap());
            stays(|| mm.free_device_on(block, &s1).unwrap());
        }
        stays(|| drop(guard));
        stays(|| drop(host));
        assert_eq!(in_use(&mm, 1), 0);
        stays(|| s1.synchronize().unwrap());
        stays(|| drop(s1));
        stays(|| mm.trim().unwrap());
        stays(|| mm.shutdown().unwrap());
        assert_eq!(mm.stats().drop_failures, 0);
        assert_sound(&mm);
        stays(|| drop(mm));
    }
}

/// B30 on two devices.
#[test]
fn a_guard_of_device_one_dropped_on_a_fresh_thread_goes_home() {
    if !two() {
        return;
    }
    for mode in DeviceAllocatorMode::ALL {
        let mm = Arc::new(manager_in(mode));
        let s1 = on(1);
        let zero = mm.allocate_device_at(0, MIB).unwrap();
        let before = mm.stats().device[0];
        let guard = mm.device::<u8>(MIB, &s1).unwrap();
        let at = guard.as_ptr() as usize;
        let theirs = mm.clone();
        std::thread::spawn(move || {
            drop(guard);
            let block = theirs.allocate_device_at(1, MIB).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { theirs.free_device(block).unwrap() };
            assert_eq!(rig::current_device(), 0);
        })
        .join()
        .unwrap();
        assert_eq!(mm.stats().drop_failures, 0, "{mode}: {:?}", mm.take_error());
        assert_eq!(
            mm.stats().device[0],
            before,
            "device 0 has nothing to do with it"
        );
        if mode == DeviceAllocatorMode::BestFitPool {
            assert_eq!(mm.device::<u8>(MIB, &s1).unwrap().as_ptr() as usize, at);
        }
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(zero).unwrap() };
        mm.shutdown().unwrap();
    }
}

/// What an observer was told of frees.
#[derive(Default)]
struct Frees(Mutex<Vec<usize>>);

impl Observer for Frees {
    fn on_free(&self, _: Place, range: Range<usize>, _: By) {
        self.0.lock().unwrap().push(range.start);
    }
}

#[test]
fn a_block_freed_on_a_stream_of_another_device_is_refused_and_stays_live() {
    if !two() {
        return;
    }
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let frees = Arc::new(Frees::default());
        mm.set_observer(frees.clone()).unwrap();
        let (s0, s1) = (on(0), on(1));
        let blocks = [
            (mm.allocate_device_on(MIB, &s0).unwrap(), &s1),
            (mm.allocate_device_on(MIB, &s1).unwrap(), &s0),
        ];
        for (block, wrong) in blocks {
            // SAFETY: the free is refused.
            let refused = stays(|| unsafe { mm.free_device_on(block, wrong) });
            assert!(
                matches!(refused, Err(Error::WrongDevice { .. })),
                "{mode}: {refused:?}"
            );
        }
        assert_eq!(mm.stats().in_use(), 2 * MIB);
        assert!(
            frees.0.lock().unwrap().is_empty(),
            "{mode}: the observer was told of a free that was refused"
        );
        for (block, _) in blocks {
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device(block).unwrap() };
        }
        mm.shutdown().unwrap();
    }
}

/// The handle of the legacy stream names no device: each call must name it.
#[test]
fn the_legacy_stream_of_a_device_that_is_not_current_is_that_devices() {
    if !two() {
        return;
    }
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let legacy = stays(|| Stream::legacy(1).unwrap());
        assert_eq!(legacy.device(), 1);
        let block = stays(|| mm.allocate_device_on(MIB, &legacy).unwrap());
        let mut attributes = std::mem::MaybeUninit::<cuda_sys::cudaPointerAttributes>::zeroed();
        // SAFETY: the place is one structure of plain numbers; any pointer may be asked about.
        let device = unsafe {
            assert_eq!(
                cuda_sys::cudaPointerGetAttributes(attributes.as_mut_ptr(), block).0,
                0
            );
            attributes.assume_init().device
        };
        assert_eq!(device, 1, "{mode}: the block lies on the wrong device");
        let mut host = mm.pinned::<u8>(MIB).unwrap();
        host.as_mut_slice().unwrap().fill(0);
        let gate = Gate::new();
        stays(|| common::stall(&legacy, &gate));
        // SAFETY: the blocks are ours.
        unsafe {
            stays(|| mm.memset(block, 7, MIB, &legacy).unwrap());
            // On the legacy stream of device 0 the copy would not wait.
            stays(|| {
                mm.copy_to_host_async(host.as_ptr(), block, MIB, &legacy)
                    .unwrap()
            });
        }
        assert!(!stays(|| legacy.query().unwrap()));
        gate.open();
        stays(|| legacy.synchronize().unwrap());
        rig::assert_all(host.as_slice().unwrap(), 7, &format!("{mode}: copied"));
        // SAFETY: nobody uses the block.
        unsafe { stays(|| mm.free_device_on(block, &legacy).unwrap()) };
        drop(host);
        mm.shutdown().unwrap();
    }
}

/// Streams of one device wait for copies on another.
#[test]
fn a_pinned_block_used_by_both_devices_waits_for_both() {
    if !two() {
        return;
    }
    let mm = manager_in(DeviceAllocatorMode::BestFitPool);
    let (s0, s1) = (on(0), on(1));
    let host = mm.pinned::<u8>(MIB).unwrap();
    let (d0, d1) = (
        mm.device::<u8>(MIB, &s0).unwrap(),
        mm.device::<u8>(MIB, &s1).unwrap(),
    );
    let gate = Gate::new();
    common::stall(&s1, &gate);
    let _ = s0.copy_to_device(&host, &d0).unwrap();
    let _ = stays(|| s1.copy_to_device(&host, &d1).unwrap());
    s0.synchronize().unwrap();
    let at = host.as_ptr();
    drop(host);
    let next = mm.pinned::<u8>(MIB).unwrap();
    assert_ne!(next.as_ptr(), at, "the copy of device 1 still reads it");
    gate.open();
    // Across: device 0's stream follows device 1's.
    let _ = stays(|| s1.memset(&d1, 5).unwrap());
    let mut back = mm.pinned::<u8>(MIB).unwrap();
    let _ = stays(|| s0.copy_to_host(&d1, &mut back).unwrap());
    rig::assert_all(back.as_slice().unwrap(), 5, "across devices");
    drop((next, back, d0, d1));
    assert_eq!(mm.stats().drop_failures, 0);
    stays(|| mm.shutdown().unwrap());
}

/// A fill is work of the stream's device, which need not reach the other's memory; a copy is staged by the runtime.
#[test]
fn a_fill_on_a_stream_of_another_device_is_refused_and_a_transfer_works() {
    if !two() {
        return;
    }
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager_in(mode);
        let (s0, s1) = (on(0), on(1));
        let d1 = mm.device::<u8>(MIB, &s1).unwrap();
        let (refused, calls) = rig::calls_of(|| s0.memset(&d1, 1));
        assert!(matches!(refused, Err(Error::WrongDevice { .. })), "{mode}");
        assert_eq!(calls, 0);
        let _ = stays(|| s1.memset(&d1, 6).unwrap());
        let host = mm.pinned::<u8>(MIB).unwrap();
        let transfer = stays(|| s0.transfer_to_host(d1, host).unwrap());
        let (d1, host) = stays(|| pollster::block_on(transfer.into_future()).unwrap());
        rig::assert_all(host.as_slice().unwrap(), 6, &mode.to_string());
        drop((d1, host));
        assert_sound(&mm);
    }
}

/// The watchdog's thread has the device of what it asks for current, or else it would make a context elsewhere.
#[test]
fn points_of_both_devices_can_be_awaited_at_once() {
    if !two() {
        return;
    }
    let (s0, s1) = (on(0), on(1));
    let gate = Gate::new();
    let waiting: Vec<_> = (0..6)
        .map(|at| {
            let s = if at % 2 == 0 { &s0 } else { &s1 };
            if at < 2 {
                common::stall(s, &gate);
            }
            let event = s.record().unwrap();
            std::thread::spawn(move || pollster::block_on(event.into_future()))
        })
        .collect();
    let opener = gate.open_after(std::time::Duration::from_millis(50));
    for thread in waiting {
        thread.join().unwrap().unwrap();
    }
    opener.join().unwrap();
    assert_eq!(rig::current_device(), 0);
}
