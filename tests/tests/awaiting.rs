//! What is awaited arrives, whoever wakes it, and nobody stays behind.
//!
//! The tests take turns: some look at the threads and the CUDA calls of the process.

#[path = "common/awaiting.rs"]
mod awaiting;
mod common;
#[path = "common/executors.rs"]
mod executors;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, last_error, manager, stall};
use executors::{Counting, poll};
use memmgr::{Error, Stream, Submitted};
use memmgr_tests::Gate;
use std::{
    future::IntoFuture,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the watchdog's thread lives.
fn watchdog_lives() -> bool {
    std::fs::read_dir("/proc/self/task").unwrap().any(|task| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.is_ok_and(|name| name.trim() == "memmgr-watchdog")
    })
}

#[test]
fn whatever_is_awaited_arrives_with_its_bytes() {
    let _turn = turn();
    awaiting::run_all();
}

/// A task may move, and bring another waker.
#[test]
fn the_last_waker_counts() {
    let _turn = turn();
    let s = Stream::new().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let mut awaited = s.record().unwrap().into_future();
    let (old, new) = (Counting::new(|| {}), Counting::new(|| {}));
    assert!(poll(&mut awaited, &old.clone().into()).is_pending());
    assert!(poll(&mut awaited, &new.clone().into()).is_pending());
    gate.open();
    assert!(rig::eventually(|| new.count() > 0));
    assert_eq!((old.count(), new.count()), (0, 1));
    assert!(matches!(
        poll(&mut awaited, Waker::noop()),
        Poll::Ready(Ok(()))
    ));
}

/// Wakers are anybody's code: they call CUDA, which no host function may, or panic, and the others are woken all the same.
#[test]
fn wakers_may_call_cuda_and_panic() {
    let _turn = turn();
    let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
    let gate = Gate::new();
    stall(&s, &gate);
    let mut awaited: Vec<_> = (0..3).map(|_| s.record().unwrap().into_future()).collect();
    let calls = Counting::new(move || other.synchronize().unwrap());
    let panics = Counting::new(|| panic!("a waker of a test panics on purpose"));
    let last = Counting::new(|| {});
    let wakers: [Waker; 3] = [
        calls.clone().into(),
        panics.clone().into(),
        last.clone().into(),
    ];
    for (awaited, waker) in awaited.iter_mut().zip(&wakers) {
        assert!(poll(awaited, waker).is_pending());
    }
    gate.open();
    assert!(rig::eventually(|| last.count() == 1));
    assert_eq!((calls.count(), panics.count()), (1, 1));
    // And the thread is still there for those that come later.
    pollster::block_on(s.record().unwrap().into_future()).unwrap();
}

/// A stream that hangs holds up nobody else.
#[test]
fn a_stuck_stream_holds_up_itself_only() {
    let _turn = turn();
    let (stuck, s) = (Stream::new().unwrap(), Stream::new().unwrap());
    let gate = Gate::new();
    stall(&stuck, &gate);
    let mut never = stuck.record().unwrap().into_future();
    let woken = Counting::new(|| {});
    assert!(poll(&mut never, &woken.clone().into()).is_pending());
    for _ in 0..20 {
        pollster::block_on(s.record().unwrap().into_future()).unwrap();
    }
    assert_eq!(woken.count(), 0);
    gate.open();
    pollster::block_on(never).unwrap();
}

#[test]
fn awaiting_leaves_the_last_error_alone() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    // SAFETY: the function has no preconditions.
    unsafe { cuda_sys::cudaSetDevice(9999) };
    assert_eq!(last_error(), 101);
    let gate = Gate::new();
    stall(&s, &gate);
    let (host, device) = (
        mm.pinned::<u8>(KIB).unwrap(),
        mm.device::<u8>(KIB, &s).unwrap(),
    );
    let transfer = s.transfer_to_device(host, device).unwrap();
    let opener = gate.open_after(Duration::from_millis(5));
    let _ = pollster::block_on(transfer.into_future()).unwrap();
    opener.join().unwrap();
    assert_eq!(last_error(), 101);
    // SAFETY: the function has no preconditions.
    unsafe { cuda_sys::cudaGetLastError() };
    pollster::block_on(s.record().unwrap().into_future()).unwrap();
    assert_eq!(last_error(), 0);
}

/// And whoever awaits something else meanwhile ends nobody's capture, not even in the mode that counts other threads.
#[test]
fn a_transfer_on_a_capturing_stream_is_refused_and_awaiting_ends_no_capture() {
    let _turn = turn();
    let mm = manager();
    let (captured, s) = (Stream::new().unwrap(), Stream::new().unwrap());
    let (host, device) = (
        mm.pinned::<u8>(KIB).unwrap(),
        mm.device::<u8>(KIB, &captured).unwrap(),
    );
    let gate = Gate::new();
    stall(&s, &gate);
    let event = s.record().unwrap();
    let raw = captured.as_raw().cast();
    let mode = cuda_sys::cudaStreamCaptureMode::cudaStreamCaptureModeGlobal;
    // SAFETY: the handle is alive.
    let begun = unsafe { cuda_sys::cudaStreamBeginCapture(raw, mode) };
    assert_eq!(begun.0, 0);
    let refused = s_refuses(captured.transfer_to_device(host, device));
    let opener = gate.open_after(Duration::from_millis(5));
    pollster::block_on(event.into_future()).unwrap();
    opener.join().unwrap();
    let mut graph = std::ptr::null_mut();
    // SAFETY: the handle is alive and captures; `graph` is a place for one handle, which is destroyed once.
    let ended = unsafe {
        let ended = cuda_sys::cudaStreamEndCapture(raw, &mut graph);
        cuda_sys::cudaGraphDestroy(graph);
        ended
    };
    assert_eq!(ended.0, 0, "the capture has survived");
    let (host, device) = refused;
    let _ = captured
        .transfer_to_device(host, device)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(last_error(), 0);
}

/// The buffers of a transfer that is refused as unsupported.
#[track_caller]
fn s_refuses<S, D>(started: Result<memmgr::Transfer<S, D>, memmgr::TransferError<S, D>>) -> (S, D) {
    let Err(refused) = started else {
        panic!("the transfer has begun");
    };
    let (error, source, target) = refused.into_parts();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    (source, target)
}

/// No thread before the first one that has to wait, none a while after the last, and no CUDA call while nobody waits.
#[test]
fn the_thread_sleeps_and_goes_when_nothing_is_awaited() {
    let _turn = turn();
    let s = Stream::new().unwrap();
    let gone = || rig::eventually(|| !watchdog_lives());
    assert!(gone(), "a thread of an earlier test stays");
    let gate = Gate::new();
    stall(&s, &gate);
    let mut awaited = s.record().unwrap().into_future();
    assert!(poll(&mut awaited, Waker::noop()).is_pending());
    assert!(rig::eventually(watchdog_lives));
    // Cancelled: nothing is awaited any more, though the point is still ahead.
    drop(awaited);
    assert!(
        rig::eventually(|| {
            let before = memmgr::cuda_calls();
            std::thread::sleep(Duration::from_millis(300));
            memmgr::cuda_calls() == before
        }),
        "it goes on asking"
    );
    assert!(gone(), "the thread stays");
    gate.open();
    // It comes back.
    let late = Gate::new();
    stall(&s, &late);
    let event = s.record().unwrap();
    let opener = late.open_after(Duration::from_millis(5));
    pollster::block_on(event.into_future()).unwrap();
    opener.join().unwrap();
    assert!(gone(), "the thread stays");
}

/// What is borrowed may be awaited, too, and dropped while others wait for the same.
#[test]
fn one_operation_can_be_awaited_by_many() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    let device = mm.device::<u8>(KIB, &s).unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let submitted: Submitted = s.memset(&device, 5).unwrap();
    let counts: Vec<_> = (0..10).map(|_| Counting::new(|| {})).collect();
    let mut awaited: Vec<_> = counts
        .iter()
        .map(|count| {
            let mut awaited = (&submitted).into_future();
            assert!(poll(&mut awaited, &count.clone().into()).is_pending());
            awaited
        })
        .collect();
    awaited.truncate(5);
    drop(submitted);
    gate.open();
    assert!(rig::eventually(|| counts[..5]
        .iter()
        .all(|count| count.count() == 1)));
    assert!(counts[5..].iter().all(|count| count.count() == 0));
    for one in awaited {
        pollster::block_on(one).unwrap();
    }
}

/// However many futures wait for one stream, one host function lies behind it, and the thread looks seldom.
#[test]
fn a_thousand_futures_of_one_stream_take_one_host_function_and_few_queries() {
    let _turn = turn();
    let calls = |name: &str| {
        let calls = memmgr::cuda_calls();
        let found = calls.iter().find(|(called, _)| *called == name);
        found.map_or(0, |(_, count)| *count)
    };
    let s = Stream::new().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let event = s.record().unwrap();
    let launched = calls("cudaLaunchHostFunc");
    let mut awaited: Vec<_> = (0..1000).map(|_| (&event).into_future()).collect();
    for one in &mut awaited {
        assert!(poll(one, Waker::noop()).is_pending());
    }
    assert!(
        rig::eventually(|| calls("cudaLaunchHostFunc") > launched),
        "there is no bell"
    );
    let queried = calls("cudaEventQuery");
    std::thread::sleep(Duration::from_millis(500));
    let queried = calls("cudaEventQuery") - queried;
    assert!((1..100).contains(&queried), "{queried} queries");
    gate.open();
    for one in awaited {
        pollster::block_on(one).unwrap();
    }
    assert_eq!(calls("cudaLaunchHostFunc"), launched + 1);
}
