//! A transfer owns its buffers: it gives them back, or keeps their memory until the copy is done.

mod common;
#[path = "common/executors.rs"]
mod executors;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, MODES, assert_sound, manager, manager_in, stall};
use executors::{Counting, poll};
use memmgr::{Error, Stream};
use memmgr_tests::{Gate, sim_only};
use std::{
    future::IntoFuture,
    pin::pin,
    task::{Poll, Waker},
};

#[test]
fn a_transfer_that_is_waited_for_gives_its_buffers_back() {
    for mode in MODES {
        let mm = manager_in(mode);
        let s = Stream::new().unwrap();
        let mut host = mm.pinned::<u8>(MIB).unwrap();
        host.as_mut_slice().unwrap().fill(0x3C);
        let device = mm.device::<u8>(MIB, &s).unwrap();
        let at = (host.as_ptr(), device.as_ptr());
        let transfer = s.transfer_to_device(host, device).unwrap();
        assert_eq!(at, (transfer.source().as_ptr(), transfer.target().as_ptr()));
        assert!(transfer.event().is_some());
        let (host, device) = transfer.wait().unwrap();
        assert_eq!(at, (host.as_ptr(), device.as_ptr()));
        let other = mm.device::<u8>(MIB, &s).unwrap();
        let (_, other) = s
            .transfer_device_to_device(device, other)
            .unwrap()
            .wait()
            .unwrap();
        // Without a wait of the transfer's own: the view waits.
        let transfer = s
            .transfer_to_host(other, mm.pinned::<u8>(MIB).unwrap())
            .unwrap();
        let (_, back) = transfer.into_buffers();
        rig::assert_all(back.as_slice().unwrap(), 0x3C, &mode.to_string());
        drop((host, back));
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

#[test]
fn a_transfer_that_cannot_begin_gives_its_buffers_back() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let (host, device) = (
        mm.pinned::<u8>(KIB).unwrap(),
        mm.device::<u8>(2 * KIB, &s).unwrap(),
    );
    let at = (host.as_ptr(), device.as_ptr());
    let (refused, calls) = rig::calls_of(|| s.transfer_to_device(host, device).unwrap_err());
    assert_eq!(calls, 0, "no CUDA call for two lengths");
    assert!(
        matches!(refused.error(), Error::InvalidRange { .. }),
        "{refused}"
    );
    let (_, host, device) = refused.into_parts();
    assert_eq!(at, (host.as_ptr(), device.as_ptr()));
    sim_only!("injects a fault");
    #[cfg(feature = "sim")]
    {
        let code = cuda_sys::cudaError::cudaErrorLaunchFailure;
        let device = mm.device::<u8>(KIB, &s).unwrap();
        let fault = cudart_sim::fail("cudaMemcpyAsync", code);
        let failed = s.transfer_to_device(host, device).unwrap_err();
        assert!(fault.fired() > 0);
        let (error, mut host, device) = failed.into_parts();
        assert_eq!(error.cuda_code(), Some(719));
        assert_eq!(common::last_error(), 0);
        host.as_mut_slice().unwrap().fill(1);
        let _ = s.transfer_to_device(host, device).unwrap().wait().unwrap();
    }
}

#[test]
fn a_transfer_of_nothing_is_done_at_once_without_a_cuda_call() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let (buffers, calls) = rig::calls_of(|| {
        let (host, device) = (mm.pinned::<u8>(0).unwrap(), mm.device::<u8>(0, &s).unwrap());
        let mut awaited = pin!(s.transfer_to_device(host, device).unwrap().into_future());
        poll(&mut awaited, Waker::noop())
    });
    assert!(matches!(buffers, Poll::Ready(Ok(_))));
    assert_eq!(calls, 0);
}

/// Dropped as a transfer, as a future that nobody polled, and as one that somebody did.
#[test]
fn a_transfer_that_is_dropped_keeps_its_memory_until_the_copy_is_done() {
    for mode in MODES {
        for polled in 0..3 {
            let mm = manager_in(mode);
            let s = Stream::new().unwrap();
            let mut host = mm.pinned::<u8>(MIB).unwrap();
            host.as_mut_slice().unwrap().fill(0x42);
            let device = mm.device::<u8>(MIB, &s).unwrap();
            let seen = mm.device::<u8>(MIB, &s).unwrap();
            let at = host.as_ptr();
            let gate = Gate::new();
            stall(&s, &gate);
            let transfer = s.transfer_to_device(host, device).unwrap();
            // What arrives is looked at in the stream, before the memory can be anybody else's.
            let _ = s.copy_device_to_device(transfer.target(), &seen).unwrap();
            let woken = Counting::new(|| {});
            match polled {
                0 => drop(transfer),
                1 => drop(transfer.into_future()),
                _ => {
                    let mut awaited = transfer.into_future();
                    let waker = woken.clone().into();
                    assert!(poll(&mut awaited, &waker).is_pending());
                    drop(awaited);
                }
            }
            let mut next = mm.pinned::<u8>(MIB).unwrap();
            assert_ne!(next.as_ptr(), at, "{mode}");
            next.as_mut_slice().unwrap().fill(0xEE);
            gate.open();
            let (_, back) = s
                .transfer_to_host(seen, mm.pinned::<u8>(MIB).unwrap())
                .unwrap()
                .wait()
                .unwrap();
            rig::assert_all(back.as_slice().unwrap(), 0x42, &mode.to_string());
            assert_eq!(woken.count(), 0, "a future that is gone wakes nobody");
            assert_eq!(mm.stats().drop_failures, 0);
            assert_sound(&mm);
        }
    }
}

#[test]
fn a_forgotten_transfer_or_future_never_gives_its_memory_away() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut at = Vec::new();
    for polled in [false, true] {
        let (host, device) = (
            mm.pinned::<u8>(MIB).unwrap(),
            mm.device::<u8>(MIB, &s).unwrap(),
        );
        at.extend([host.as_ptr(), device.as_ptr()]);
        let gate = Gate::new();
        stall(&s, &gate);
        let transfer = s.transfer_to_device(host, device).unwrap();
        if polled {
            let mut awaited = transfer.into_future();
            assert!(poll(&mut awaited, Waker::noop()).is_pending());
            std::mem::forget(awaited);
        } else {
            std::mem::forget(transfer);
        }
        gate.open();
        s.synchronize().unwrap();
    }
    let hosts: Vec<_> = (0..8).map(|_| mm.pinned::<u8>(MIB).unwrap()).collect();
    let devices: Vec<_> = (0..8).map(|_| mm.device::<u8>(MIB, &s).unwrap()).collect();
    let given = hosts.iter().map(|buffer| buffer.as_ptr());
    for pointer in given.chain(devices.iter().map(|buffer| buffer.as_ptr())) {
        assert!(!at.contains(&pointer));
    }
    drop((hosts, devices));
    // They are still live, and their memory is still there.
    assert_eq!(mm.shutdown().unwrap().live.len(), 4);
    assert_sound(&mm);
}

#[test]
fn a_future_that_gave_up_gives_its_transfer_back() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let (host, device) = (
        mm.pinned::<u8>(KIB).unwrap(),
        mm.device::<u8>(KIB, &s).unwrap(),
    );
    let mut awaited = s.transfer_to_device(host, device).unwrap().into_future();
    assert!(poll(&mut awaited, Waker::noop()).is_pending());
    let transfer = awaited.into_transfer().unwrap();
    gate.open();
    let (host, device) = transfer.wait().unwrap();
    // One that has completed has nothing more to give, and does not complete again.
    let mut awaited = s.transfer_to_device(host, device).unwrap().into_future();
    assert!(rig::eventually(
        || poll(&mut awaited, Waker::noop()).is_ready()
    ));
    assert!(poll(&mut awaited, Waker::noop()).is_pending());
    assert!(awaited.into_transfer().is_none());
}
