//! Scopes: plain slices are lent to copies, and nobody gets them back before the copies have ended.

use crate::common::{MIB, manager, manager_in, stall};
use crate::rig;
use memmgr::{Error, PerThreadStream, Stream};
use memmgr_tests::{Gate, sim_only};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

#[test]
fn slices_are_copied_in_both_directions_on_several_streams() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        let source: Vec<u32> = (0..MIB as u32 / 4).collect();
        let mut target = vec![0u32; MIB / 4];
        let mut small = [0u32; 3];
        let device = mm.device::<u32>(MIB / 4, &a).unwrap();
        let copy = mm.device::<u32>(MIB / 4, &b).unwrap();
        let sum = mm
            .scope(|s| {
                s.copy_to_device(&source, &device, &a)?;
                // Read meanwhile, and lent twice.
                s.copy_to_device(&source[1..4], &copy.slice(..3)?, &b)?;
                let sum: u64 = source.iter().map(|n| u64::from(*n)).sum();
                let (front, back) = target.split_at_mut(MIB / 8);
                s.copy_to_host(&device.slice(MIB / 8..)?, back, &b)?;
                let _ = b.copy_device_to_device(
                    &device.slice(..MIB / 8)?,
                    &copy.slice(3..MIB / 8 + 3)?,
                )?;
                s.copy_to_host(&copy.slice(3..MIB / 8 + 3)?, front, &a)?;
                s.copy_to_host(&copy.slice(..3)?, &mut small, &PerThreadStream::new()?)?;
                s.copy_to_device(&[], &copy.slice(7..7)?, &a)?;
                Ok(sum)
            })
            .unwrap();
        let n = MIB as u64 / 4;
        assert_eq!(sum, n * (n - 1) / 2);
        assert!(target == source, "{mode}");
        assert_eq!(small, [1, 2, 3], "{mode}");
        drop((device, copy));
        mm.shutdown().unwrap();
    }
}

/// However the closure ends. (There are no handles to forget.)
#[test]
fn a_scope_waits_for_its_copies_however_it_ends() {
    let mm = manager();
    for how in ["value", "error", "panic", "inner panic"] {
        let s = Stream::new().unwrap();
        let device = mm.device::<u8>(MIB, &s).unwrap();
        let _ = s.memset(&device, 0x77).unwrap();
        // Page-locked: what copies pageable memory to the host waits for it.
        let mut pinned = mm.pinned_zeroed::<u8>(MIB).unwrap();
        let target = pinned.as_mut_slice().unwrap();
        let gate = Gate::new();
        let opener = gate.open_after(Duration::from_millis(50));
        let result = catch_unwind(AssertUnwindSafe(|| {
            mm.scope(|outer| {
                stall(&s, &gate);
                outer.copy_to_host(&device, &mut *target, &s)?;
                match how {
                    "error" => Err(Error::ForkedChild),
                    "panic" => panic!("on purpose"),
                    "inner panic" => mm.scope(|_| panic!("on purpose")),
                    _ => Ok(5),
                }
            })
        }));
        match (how, result) {
            ("value", Ok(Ok(5))) | ("error", Ok(Err(Error::ForkedChild))) => {}
            ("panic" | "inner panic", Err(text)) => {
                assert_eq!(text.downcast_ref(), Some(&"on purpose"));
            }
            (how, result) => panic!("{how}: {result:?}"),
        }
        rig::assert_all(target, 0x77, how);
        assert!(s.query().unwrap(), "{how}: the stream has not finished");
        opener.join().unwrap();
        drop(device);
    }
    mm.shutdown().unwrap();
}

#[test]
fn a_scope_within_another_ends_for_itself() {
    let mm = manager();
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let source = vec![9u8; 1000];
    let mut inner_target = vec![0u8; 1000];
    let mut outer_target = vec![0u8; 1000];
    let device = mm.device::<u8>(1000, &a).unwrap();
    mm.scope(|outer| {
        outer.copy_to_device(&source, &device, &a)?;
        mm.scope(|inner| inner.copy_to_host(&device, &mut inner_target, &b))?;
        // The inner one has ended: what it was lent is back.
        rig::assert_all(&inner_target, 9, "inside");
        inner_target.fill(1);
        outer.copy_to_host(&device, &mut outer_target, &b)?;
        Ok(())
    })
    .unwrap();
    rig::assert_all(&outer_target, 9, "outside");
    drop(device);
    mm.shutdown().unwrap();
}

#[test]
fn a_scope_is_shared_by_threads_and_outlives_its_streams() {
    let mm = manager();
    let sources: Vec<Vec<u8>> = (0..4).map(|i| vec![i; MIB / 4]).collect();
    let mut targets = vec![vec![0u8; MIB / 4]; 4];
    let owner = Stream::new().unwrap();
    let device = mm.device::<u8>(MIB, &owner).unwrap();
    mm.scope(|s| {
        std::thread::scope(|threads| {
            for (i, target) in targets.iter_mut().enumerate() {
                let (source, device) = (&sources[i], &device);
                threads.spawn(move || {
                    let stream = Stream::new().unwrap();
                    let part = device.slice(i * MIB / 4..(i + 1) * MIB / 4).unwrap();
                    s.copy_to_device(source, &part, &stream).unwrap();
                    s.copy_to_host(&part, target, &stream).unwrap();
                });
            }
        });
        Ok(())
    })
    .unwrap();
    assert!(targets == sources);
    drop(device);
    mm.shutdown().unwrap();
}

#[test]
fn lengths_that_differ_are_refused_before_any_cuda_call() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let device = mm.device::<u16>(100, &s).unwrap();
    let (source, mut target) = ([1u16; 99], [2u16; 101]);
    let ((), calls) = rig::calls_of(|| {
        let result = mm.scope(|scope| {
            assert!(matches!(
                scope.copy_to_device(&source, &device, &s),
                Err(Error::InvalidRange { .. })
            ));
            scope.copy_to_host(&device, &mut target, &s)
        });
        assert!(
            matches!(result, Err(Error::InvalidRange { .. })),
            "{result:?}"
        );
    });
    assert_eq!(calls, 0);
    assert_eq!(target, [2; 101]);
    drop(device);
    mm.shutdown().unwrap();
}

/// The graph could run when the slice is gone.
#[test]
fn a_slice_is_not_lent_to_a_stream_that_is_being_captured() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let device = mm.device_zeroed::<u8>(100, &s).unwrap();
    let mut target = [1u8; 100];
    s.synchronize().unwrap();
    let raw = s.as_raw().cast();
    let mode = cuda_sys::cudaStreamCaptureMode::cudaStreamCaptureModeThreadLocal;
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { cuda_sys::cudaStreamBeginCapture(raw, mode) }.0, 0);
    let refused = mm.scope(|scope| {
        let source = scope.copy_to_device(&[2; 100], &device, &s);
        assert!(
            matches!(source, Err(Error::Unsupported { .. })),
            "{source:?}"
        );
        scope.copy_to_host(&device, &mut target, &s)
    });
    assert!(
        matches!(refused, Err(Error::Unsupported { .. })),
        "{refused:?}"
    );
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is alive, `graph` is a place for one handle, and the graph is destroyed once.
    unsafe {
        assert_eq!(cuda_sys::cudaStreamEndCapture(raw, &mut graph).0, 0);
        assert_eq!(cuda_sys::cudaGraphDestroy(graph).0, 0);
    }
    mm.scope(|scope| scope.copy_to_host(&device, &mut target, &s))
        .unwrap();
    assert_eq!(target, [0; 100]);
    drop(device);
    mm.shutdown().unwrap();
}

/// A call that fails once is no proof, and another one is asked for.
#[test]
fn a_scope_that_is_refused_one_proof_finds_another() {
    sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    for call in [
        "cudaEventRecord",
        "cudaEventSynchronize",
        "cudaMemcpyAsync",
        "cudaEventCreateWithFlags",
    ] {
        let mm = manager();
        let s = Stream::new().unwrap();
        let device = mm.device::<u8>(MIB, &s).unwrap();
        let _ = s.memset(&device, 0x31).unwrap();
        s.synchronize().unwrap();
        let mut pinned = mm.pinned_zeroed::<u8>(MIB).unwrap();
        let target = pinned.as_mut_slice().unwrap();
        let gate = Gate::new();
        let opener = gate.open_after(Duration::from_millis(50));
        stall(&s, &gate);
        let fault = cudart_sim::fail(call, cuda_sys::cudaError(999)).times(1);
        let result = mm.scope(|scope| scope.copy_to_host(&device, &mut *target, &s));
        if fault.fired() == 0 {
            // Events are kept.
            assert_eq!(call, "cudaEventCreateWithFlags");
        }
        drop(fault);
        assert_eq!(
            result.is_err(),
            matches!(call, "cudaEventRecord" | "cudaMemcpyAsync"),
            "{call}: {result:?}"
        );
        if call != "cudaMemcpyAsync" {
            rig::assert_all(target, 0x31, call);
        }
        assert!(s.query().unwrap());
        opener.join().unwrap();
        drop((device, pinned));
        mm.shutdown().unwrap();
    }
}
