//! What becomes of a scope where the runtime gives no proof that its copies have ended: each case in a process of its own,
//! this binary run again.
#![cfg(feature = "sim")]

mod common;

use common::{MIB, child, stall};
use cudart_sim::Fault;
use memmgr::{Error, MemoryManager, Stream};
use memmgr_tests::Gate;
use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

fn run(case: &str) -> (ExitStatus, String) {
    child::run(case, Duration::from_secs(120))
}

/// The child's side: does nothing unless a case is named.
#[test]
fn the_case_that_the_environment_names() {
    match std::env::var(child::CASE).as_deref() {
        Err(_) => {}
        Ok("abort") => without_proof(),
        Ok("abort-unwinding") => without_proof_while_a_panic_unwinds(),
        Ok("broken") => in_a_context_that_is_gone(),
        Ok("reset") => in_a_device_that_was_reset(),
        Ok("exit") => while_the_process_exits(),
        Ok("fork") => in_a_forked_child(),
        Ok(other) => panic!("no case {other}"),
    }
}

/// Nothing that could prove anything works; with a code that says nothing of the context.
fn faults() -> [Fault; 4] {
    [
        "cudaEventRecord",
        "cudaEventSynchronize",
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
    ]
    .map(|name| cudart_sim::fail(name, cuda_sys::cudaError(999)).times(1000))
}

#[test]
fn a_scope_without_a_proof_aborts_the_process_and_says_why() {
    for case in ["abort", "abort-unwinding"] {
        let (status, stderr) = run(case);
        assert_eq!(
            status.signal(),
            Some(libc::SIGABRT),
            "{case}: {status}\n{stderr}"
        );
        assert!(
            stderr.contains("nothing proves that its copies have"),
            "{stderr}"
        );
        assert!(stderr.contains("cudaErrorUnknown"), "{stderr}");
        assert!(!stderr.contains("the scope has ended"), "{stderr}");
    }
}

fn without_proof() {
    let stream = Stream::new().unwrap();
    let device = MemoryManager::instance()
        .device::<u8>(MIB, &stream)
        .unwrap();
    let source = vec![1u8; MIB];
    let faults = faults();
    let result = MemoryManager::instance().scope(|s| {
        assert!(s.copy_to_device(&source, &device, &stream).is_err());
        Ok(())
    });
    eprintln!("the scope has ended: {result:?}");
    drop(faults);
}

fn without_proof_while_a_panic_unwinds() {
    let stream = Stream::new().unwrap();
    let device = MemoryManager::instance()
        .device::<u8>(MIB, &stream)
        .unwrap();
    let source = vec![1u8; MIB];
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        MemoryManager::instance().scope::<()>(|s| {
            s.copy_to_device(&source, &device, &stream).unwrap();
            std::mem::forget(faults());
            panic!("on purpose");
        })
    }));
    eprintln!("the scope has ended: {}", result.is_err());
}

#[test]
fn an_error_that_ends_the_context_is_a_proof() {
    let (status, stderr) = run("broken");
    assert_eq!(status.code(), Some(0), "{stderr}");
}

fn in_a_context_that_is_gone() {
    let stream = Stream::new().unwrap();
    let device = MemoryManager::instance()
        .device::<u8>(MIB, &stream)
        .unwrap();
    // Page-locked: what copies pageable memory to the host waits for it.
    let mut pinned = MemoryManager::instance().pinned_zeroed::<u8>(MIB).unwrap();
    let target = pinned.as_mut_slice().unwrap();
    let gate = Gate::new();
    stall(&stream, &gate);
    let result = MemoryManager::instance().scope(|s| {
        s.copy_to_host(&device, &mut *target, &stream)?;
        cudart_sim::break_context(0, cuda_sys::cudaError(700));
        gate.open();
        Ok(())
    });
    match result {
        Err(error) => assert!(error.ends_context(), "{error:?}"),
        Ok(()) => panic!("the copy cannot have run"),
    }
    // The memory is the caller's again.
    target.fill(2);
    // The checker does not know that a context which is gone touches nothing.
    std::mem::forget(pinned);
}

#[test]
fn a_reset_of_the_device_is_a_proof() {
    let (status, stderr) = run("reset");
    assert_eq!(status.code(), Some(0), "{stderr}");
}

fn in_a_device_that_was_reset() {
    let stream = Stream::new().unwrap();
    let device = MemoryManager::instance()
        .device::<u8>(MIB, &stream)
        .unwrap();
    let source = vec![1u8; MIB];
    let result = MemoryManager::instance().scope(|s| {
        s.copy_to_device(&source, &device, &stream)?;
        stream.synchronize()?;
        // SAFETY: the function has no preconditions.
        assert_eq!(unsafe { cuda_sys::cudaDeviceReset() }.0, 0);
        Ok(())
    });
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
}

#[test]
fn a_process_exits_as_it_wants_while_a_scope_waits() {
    let (status, stderr) = run("exit");
    assert_eq!(status.code(), Some(7), "{status}\n{stderr}");
    assert!(!stderr.contains("aborted"), "{stderr}");
}

fn while_the_process_exits() {
    extern "C" fn linger() {
        std::thread::sleep(Duration::from_millis(100));
    }
    // Registered before the first CUDA call, so that it runs when the manager makes none any more.
    // SAFETY: the handler only sleeps.
    unsafe { libc::atexit(linger) };
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let stream = Stream::new().unwrap();
        let device = MemoryManager::instance()
            .device::<u8>(MIB, &stream)
            .unwrap();
        let source = vec![1u8; MIB];
        let result = MemoryManager::instance().scope(|s| {
            s.copy_to_device(&source, &device, &stream)?;
            sender.send(()).unwrap();
            // Until the exit handlers have begun.
            while stream.query().is_ok() {
                std::thread::yield_now();
            }
            Ok(())
        });
        eprintln!("aborted? the scope has ended: {result:?}");
    });
    receiver.recv().unwrap();
    std::process::exit(7);
}

#[test]
fn a_forked_child_leaves_a_scope_of_its_parent_with_an_error() {
    let (status, stderr) = run("fork");
    assert_eq!(status.code(), Some(0), "{status}\n{stderr}");
}

fn in_a_forked_child() {
    let stream = Stream::new().unwrap();
    let device = MemoryManager::instance()
        .device::<u8>(MIB, &stream)
        .unwrap();
    let mut target = vec![1u8; MIB];
    let mut child = 0;
    let result = MemoryManager::instance().scope(|s| {
        s.copy_to_host(&device, &mut target, &stream)?;
        // SAFETY: the child only leaves the scope and exits.
        child = unsafe { libc::fork() };
        Ok(())
    });
    if child == 0 {
        let code = if result == Err(Error::ForkedChild) {
            0
        } else {
            3
        };
        // SAFETY: nothing of the parent's is run in the child.
        unsafe { libc::_exit(code) };
    }
    assert_eq!(result, Ok(()));
    let mut status = 0;
    // SAFETY: the child is ours, `status` is a place for one int.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}
