//! What safe code may do to buffers at the worst moment: forget them, leak them, share them, panic with them, look at them
//! in a host function. Nothing of it shows anybody memory that is not theirs.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, MODES, assert_sound, manager, manager_in, stall};
use memmgr::Stream;
use memmgr_tests::{Gate, sim_only};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
};

/// The late copy writes memory that is nobody's.
#[test]
fn a_target_that_is_forgotten_under_its_copy_is_never_handed_out() {
    for mode in MODES {
        let mm = manager_in(mode);
        let s = Stream::new().unwrap();
        let device = mm.device::<u8>(MIB, &s).unwrap();
        let _ = s.memset(&device, 0x11).unwrap();
        let mut host = mm.pinned::<u8>(MIB).unwrap();
        let at = (host.as_ptr(), device.as_ptr());
        let gate = Gate::new();
        stall(&s, &gate);
        let _ = s.copy_to_host(&device, &mut host).unwrap();
        std::mem::forget((host, device));
        let mut others: Vec<_> = (0..4).map(|_| mm.pinned::<u8>(MIB).unwrap()).collect();
        for other in &mut others {
            assert_ne!(other.as_ptr(), at.0, "{mode}");
            other.as_mut_slice().unwrap().fill(0x77);
        }
        gate.open();
        s.synchronize().unwrap();
        for other in &others {
            rig::assert_all(other.as_slice().unwrap(), 0x77, &mode.to_string());
        }
        let fresh = mm.device::<u8>(MIB, &s).unwrap();
        assert_ne!(fresh.as_ptr(), at.1, "{mode}");
        drop((others, fresh));
        // Not even when the manager gives everything back.
        assert_eq!(mm.shutdown().unwrap().live.len(), 2, "{mode}");
        assert_sound(&mm);
    }
}

/// A view that is leaked keeps its buffer borrowed for good, and the memory stays where it is.
#[test]
fn a_leaked_buffer_can_be_viewed_after_its_manager_is_gone() {
    let mm = manager();
    let buffer = Box::leak(Box::new(mm.pinned::<u8>(MIB).unwrap()));
    buffer.as_mut_slice().unwrap().fill(0x5A);
    let view: &'static [u8] = buffer.as_slice().unwrap();
    mm.shutdown().unwrap();
    drop(mm);
    // Whatever another manager does with the memory that there is.
    let other = manager();
    let mut next = other.pinned::<u8>(8 * MIB).unwrap();
    next.as_mut_slice().unwrap().fill(0xEE);
    rig::assert_all(view, 0x5A, "the leaked view");
}

/// A panic while copies run drops what it unwinds through, and those blocks know their copies.
#[test]
fn a_panic_after_a_submission_hands_nothing_out_early() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let seen = mm.device::<u8>(MIB, &s).unwrap();
    let gate = Gate::new();
    let mut at = std::ptr::null_mut();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut host = mm.pinned::<u8>(MIB).unwrap();
        host.as_mut_slice().unwrap().fill(0x21);
        at = host.as_ptr();
        stall(&s, &gate);
        let _ = s.copy_to_device(&host, &seen).unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(unwound.is_err());
    let mut next = mm.pinned::<u8>(MIB).unwrap();
    assert_ne!(next.as_ptr(), at);
    next.as_mut_slice().unwrap().fill(0xEE);
    gate.open();
    let _ = s.copy_to_host(&seen, &mut next).unwrap();
    rig::assert_all(next.as_slice().unwrap(), 0x21, "what the copy had read");
}

/// A host function owns its buffers, may look at them, and lets go of them even if it panics.
#[test]
fn a_host_function_may_view_its_buffers_and_panic_with_them() {
    for mode in MODES {
        let mm = manager_in(mode);
        let s = Stream::new().unwrap();
        let mut host = mm.pinned::<u8>(MIB).unwrap();
        host.as_mut_slice().unwrap().fill(0x42);
        let device = mm.device::<u8>(MIB, &s).unwrap();
        let (sender, receiver) = mpsc::channel();
        s.launch_host(move || {
            host.as_mut_slice().unwrap()[0] = 0x43;
            sender.send(host.as_slice().unwrap()[..2].to_vec()).unwrap();
            let _both = (host, device);
            std::panic::resume_unwind(Box::new("on purpose"));
        })
        .unwrap();
        s.synchronize().unwrap();
        assert_eq!(receiver.recv().unwrap(), [0x43, 0x42], "{mode}");
        // CUDA permits no call in a host function: the next call of the manager does the rest.
        drop(mm.pinned::<u8>(KIB).unwrap());
        drop(mm.device::<u8>(KIB, &s).unwrap());
        assert!(rig::eventually(|| mm.shutdown().unwrap().live.is_empty()));
        assert_sound(&mm);
    }
}

/// Nobody may wait in a host function: a view that would have to is refused, and does not show what is being written.
#[test]
fn a_view_in_a_host_function_is_refused_while_a_copy_writes() {
    sim_only!(
        "the runtime of a GPU runs host functions one after the other, so that this one would come too late"
    );
    let mm = manager();
    let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
    let device = mm.device::<u8>(KIB, &s).unwrap();
    s.memset(&device, 1).unwrap().wait().unwrap();
    let mut host = mm.pinned::<u8>(KIB).unwrap();
    let gate = Gate::new();
    stall(&other, &gate);
    let _ = other.copy_to_host(&device, &mut host).unwrap();
    let (sender, receiver) = mpsc::channel();
    s.launch_host(move || {
        let shared = host.as_slice().map(drop);
        let exclusive = host.as_mut_slice().map(drop);
        sender.send((shared, exclusive, host)).unwrap();
    })
    .unwrap();
    s.synchronize().unwrap();
    let (shared, exclusive, host) = receiver.recv().unwrap();
    for refused in [shared, exclusive] {
        assert_eq!(refused.unwrap_err().cuda_code(), Some(800));
    }
    gate.open();
    rig::assert_all(host.as_slice().unwrap(), 1, "afterwards");
}

/// Shared buffers are read by copies and views of many threads at once, and written by whoever owns them last.
#[test]
fn a_buffer_shared_by_threads_is_read_by_all_and_written_by_its_owner() {
    let mm = Arc::new(manager());
    let mut host = mm.pinned::<u8>(64 * KIB).unwrap();
    for round in 0..5u8 {
        host.as_mut_slice().unwrap().fill(round);
        let shared = Arc::new(host);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (mm, shared) = (mm.clone(), shared.clone());
                std::thread::spawn(move || {
                    let s = Stream::new().unwrap();
                    let device = mm.device::<u8>(64 * KIB, &s).unwrap();
                    let _ = s.copy_to_device(&shared, &device).unwrap();
                    rig::assert_all(shared.as_slice().unwrap(), round, "the source");
                    drop(shared);
                    let mut back = mm.pinned::<u8>(64 * KIB).unwrap();
                    let _ = s.copy_to_host(&device, &mut back).unwrap();
                    rig::assert_all(back.as_slice().unwrap(), round, "the copy");
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        host = Arc::into_inner(shared).expect("the last owner");
    }
}
