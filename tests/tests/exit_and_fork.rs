//! What is left when a process exits or forks: each case in a process of its own, this binary run again.

mod common;

use common::{KIB, MIB, bytes, bytes_mut, child, stall};
use memmgr::{DeviceAllocatorMode, DeviceBuffer, Error, MemoryManager, PinnedBuffer, Stream};
use memmgr_tests::Gate;
use std::{
    cell::RefCell,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::{Barrier, Mutex},
    task::{Context, Waker},
    time::Duration,
};

/// What a child may write: the harness's own lines, and the panic of the case that panics.
const STDERR_LIMIT: usize = 2000;

/// How often a case runs: `MEMMGR_EXIT_RUNS` times, else a few times, more often where threads race.
fn rounds(case: &str) -> usize {
    let wanted = std::env::var("MEMMGR_EXIT_RUNS").ok();
    let usual = if case.starts_with("race") { 20 } else { 3 };
    wanted.and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[track_caller]
fn ends_with(case: &str, code: i32) {
    for round in 0..rounds(case) {
        let (status, stderr) = child::run(case, Duration::from_secs(60));
        assert_eq!(
            status.code(),
            Some(code),
            "{case}, round {round}:\n{stderr}"
        );
        assert!(
            stderr.len() < STDERR_LIMIT,
            "{case} floods stderr:\n{stderr}"
        );
    }
}

/// The child's side: does nothing unless a case is named.
#[test]
fn the_case_that_the_environment_names() {
    let Ok(case) = std::env::var(child::CASE) else {
        return;
    };
    let (case, mode) = case.split_once('/').unwrap_or((&case, "pool"));
    let mode: DeviceAllocatorMode = mode.parse().unwrap();
    MemoryManager::instance().set_device_allocator_mode(mode);
    match case {
        "cached" => cached(),
        "static" => in_a_static(),
        "leaked" => leaked(),
        "pending" => pending(),
        "adopted" => adopted(),
        "fork-adopted" => fork_with_adopted_memory(),
        "thread_local" => in_a_thread_local(),
        "race-exit" => exit_from_a_worker(),
        "late" => late_drops(),
        "panic" => panics(),
        "atexit" => in_exit_handlers(),
        "fork-drop" => fork_and_drop(),
        "fork-allocate" => fork_and_allocate(),
        "race-fork" => fork_beside_a_busy_thread(),
        "fork-first" => fork_before_cuda(),
        "race-first" => first_use_by_64_threads(),
        "reset" => reset_under_a_manager(mode),
        "reset-stream" => reset_and_a_new_stream(),
        "reset-idle" => reset_after_everything_went(),
        "awaiting" => awaiting_at_exit(),
        "race-awaiting" => exit_while_tasks_await(),
        "fork-awaiting" => fork_while_something_is_awaited(),
        other => panic!("no case {other}"),
    }
}

/// A case in every mode.
fn in_all_modes(case: &str, code: i32) {
    for mode in DeviceAllocatorMode::ALL {
        ends_with(&format!("{case}/{mode}"), code);
    }
}

type Guards = (Stream, DeviceBuffer<u8>, PinnedBuffer<u8>);

fn guards() -> Guards {
    let mm = MemoryManager::instance();
    let stream = Stream::new().unwrap();
    let device = mm.device::<u8>(64 * KIB, &stream).unwrap();
    let mut host = mm.pinned::<u8>(64 * KIB).unwrap();
    host.as_mut_slice().unwrap().fill(0x5A);
    let _ = stream.copy_to_device(&host, &device).unwrap();
    (stream, device, host)
}

/// B48 (a)
#[test]
fn exit_with_cached_segments_is_quiet() {
    in_all_modes("cached", 0);
}

fn cached() {
    drop(guards());
}

/// B48 (b)
#[test]
fn exit_with_live_guards_in_a_static_or_leaked_is_quiet() {
    in_all_modes("static", 0);
    in_all_modes("leaked", 0);
}

static KEPT: Mutex<Vec<Guards>> = Mutex::new(Vec::new());

fn in_a_static() {
    KEPT.lock().unwrap().push(guards());
}

fn leaked() {
    std::mem::forget(guards());
}

/// B48 (b), for memory of others: live, dropped with a copy in flight, and dropped with nothing in flight.
#[test]
fn exit_with_adopted_memory_is_quiet() {
    ends_with("adopted", 0);
}

static ADOPTED: Mutex<Vec<Parts>> = Mutex::new(Vec::new());
type Parts = (PinnedBuffer<u8>, PinnedBuffer<u8>, DeviceBuffer<u8>);

thread_local! {
    static ADOPTED_HERE: RefCell<Option<PinnedBuffer<u8>>> = const { RefCell::new(None) };
}

fn adopted() {
    let mm = MemoryManager::instance();
    let stream = Stream::new().unwrap();
    let mut memory = std::ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    assert_eq!(unsafe { cuda_sys::cudaMalloc(&mut memory, MIB) }.0, 0);
    let free = || eprintln!("{}", "called at exit. ".repeat(STDERR_LIMIT));
    // SAFETY: the memory has these bytes and is never freed.
    let device = unsafe { mm.adopt_device::<u8>(memory, MIB, &stream, free) }.unwrap();
    let vec = || mm.adopt(vec![1u8; MIB]).unwrap();
    let (front, back) = vec().split_at(KIB).unwrap();
    let gate = Gate::new();
    stall(&stream, &gate);
    let in_flight = vec();
    let _ = stream.copy_to_device(&in_flight, &device).unwrap();
    drop(in_flight);
    drop(vec());
    ADOPTED_HERE.set(Some(vec()));
    ADOPTED.lock().unwrap().push((front, back, device));
    std::mem::forget(vec());
    let own = MemoryManager::new(memmgr::Config::default()).unwrap();
    drop(own.adopt(vec![1u8; MIB]).unwrap());
    gate.open();
}

/// B49, for memory of others.
#[test]
fn a_forked_child_leaves_adopted_memory_alone() {
    ends_with("fork-adopted", 0);
}

fn fork_with_adopted_memory() {
    let mm = MemoryManager::instance();
    let own = MemoryManager::new(memmgr::Config::default()).unwrap();
    let mut inherited = Some((
        mm.adopt(vec![1u8; MIB]).unwrap(),
        own.adopt(vec![2u8; MIB]).unwrap().split_at(KIB).unwrap(),
        own,
    ));
    drop(mm.adopt(vec![3u8; MIB]).unwrap());
    for orderly in [false, true] {
        let take = &mut inherited;
        let pid = fork(orderly, || {
            let calls = memmgr::cuda_calls_on_this_thread();
            let (whole, parts, own) = take.take().unwrap();
            let refused = whole.into_vec().unwrap_err();
            let told = [
                refused.error().clone(),
                mm.adopt(vec![4u8; KIB]).unwrap_err().into(),
                mm.trim().unwrap_err(),
            ];
            drop((refused, parts, own));
            let told = told.iter().all(|error| *error == Error::ForkedChild);
            i32::from(!told || memmgr::cuda_calls_on_this_thread() != calls)
        });
        assert_eq!(wait_for(pid), 0, "orderly: {orderly}");
    }
    let (whole, (front, back), own) = inherited.take().unwrap();
    assert_eq!(whole.into_vec().unwrap(), [1; MIB]);
    assert_eq!(front.join(back).unwrap().into_vec().unwrap(), [2; MIB]);
    own.shutdown().unwrap();
    mm.trim().unwrap();
}

/// B48 (c)
#[test]
fn exit_with_work_pending_is_quiet() {
    in_all_modes("pending", 0);
}

fn pending() {
    let (stream, device, host) = guards();
    let gate = Gate::new();
    stall(&stream, &gate);
    let _ = stream.copy_to_device(&host, &device).unwrap();
    let event = stream.record().unwrap();
    drop((device, host));
    KEPT.lock().unwrap().push(guards());
    // The gate opens while the process is on its way out.
    let _ = gate.open_after(Duration::from_millis(5));
    std::mem::forget(event);
}

thread_local! {
    static LOCAL: RefCell<Option<(Guards, Guards)>> = const { RefCell::new(None) };
}

/// B48 (d)
#[test]
fn guards_in_thread_locals_of_any_thread_go_quietly() {
    in_all_modes("thread_local", 0);
}

fn in_a_thread_local() {
    LOCAL.with_borrow_mut(|local| *local = Some((guards(), guards())));
    std::thread::spawn(|| LOCAL.with_borrow_mut(|local| *local = Some((guards(), guards()))))
        .join()
        .unwrap();
    // This one is still alive when the process ends.
    std::thread::spawn(|| {
        LOCAL.with_borrow_mut(|local| *local = Some((guards(), guards())));
        std::thread::sleep(Duration::from_secs(60));
    });
    std::thread::sleep(Duration::from_millis(5));
    let mm = MemoryManager::instance();
    assert_eq!(mm.stats().drop_failures, 0);
}

/// B48 (e)
#[test]
fn exit_from_a_worker_while_others_allocate_is_quiet() {
    in_all_modes("race-exit", 7);
}

fn exit_from_a_worker() {
    for _ in 0..4 {
        std::thread::spawn(|| {
            loop {
                // After the exit has begun, calls are refused; that ends the thread.
                let mm = MemoryManager::instance();
                let Ok(stream) = Stream::new() else { break };
                let Ok(device) = mm.device::<u8>(MIB, &stream) else {
                    break;
                };
                let Ok(host) = mm.pinned::<u8>(MIB) else {
                    break;
                };
                if stream.copy_to_device(&host, &device).is_err() {
                    break;
                }
            }
            std::thread::sleep(Duration::from_secs(60));
        });
    }
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(20));
        std::process::exit(7);
    });
    std::thread::sleep(Duration::from_secs(60));
}

/// B48 (f)
#[test]
fn guards_dropped_after_shutdown_are_harmless() {
    in_all_modes("late", 0);
}

fn late_drops() {
    let mm = MemoryManager::instance();
    let first = guards();
    let second = guards();
    let report = mm.shutdown().unwrap();
    assert_eq!(report.live.len(), 4, "{report}");
    drop(first);
    LOCAL.with_borrow_mut(|local| *local = Some((second, guards())));
    assert_eq!(mm.stats().drop_failures, 0);
    mm.check().unwrap();
}

/// B48 (g): the harness answers a panic with 101.
#[test]
fn a_panic_with_guards_alive_ends_as_a_panic() {
    in_all_modes("panic", 101);
}

fn panics() {
    let held = guards();
    LOCAL.with_borrow_mut(|local| *local = Some((guards(), guards())));
    assert_eq!(held.1.len(), 0, "on purpose");
}

/// B48: drops and calls in exit handlers, before and after the manager's and the runtime's own.
#[test]
fn exit_handlers_may_drop_guards_and_are_refused_calls() {
    in_all_modes("atexit", 0);
}

extern "C" fn at_exit() {
    let kept = std::mem::take(&mut *KEPT.lock().unwrap());
    let had_some = !kept.is_empty();
    drop(kept);
    if !had_some {
        return;
    }
    // Whichever side of the manager's handler this is: no crash, and a clear answer.
    let mm = MemoryManager::instance();
    let answers = [
        mm.allocate_pinned(4096).map(drop),
        mm.allocate_device(4096).map(drop),
        Stream::new().map(drop),
    ];
    for answer in answers {
        if let Err(error) = answer
            && !matches!(error, Error::Unavailable { .. })
        {
            eprintln!("{error:?}");
            // SAFETY: the function ends the process and has no preconditions.
            unsafe { libc::_exit(3) };
        }
    }
}

fn in_exit_handlers() {
    // SAFETY: the handler is a plain function; it may run at any point of the process's exit.
    unsafe { libc::atexit(at_exit) };
    let first = guards();
    KEPT.lock().unwrap().push(guards());
    // SAFETY: as above.
    unsafe { libc::atexit(at_exit) };
    std::mem::forget(first);
}

/// Forks; the child runs `child` and leaves with its answer, by `exit` if `orderly`, so that exit handlers run.
fn fork(orderly: bool, child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only drops guards and asks the manager, which is what is tested.
    match unsafe { libc::fork() } {
        -1 => panic!("fork failed"),
        0 => {
            // SAFETY: an alarm ends a child that hangs.
            unsafe { libc::alarm(20) };
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: both end the process and have no preconditions.
            unsafe {
                if orderly {
                    libc::exit(code);
                }
                libc::_exit(code)
            }
        }
        pid => pid,
    }
}

/// The exit code of a child; negative: the signal that ended it.
fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a place for one int.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -libc::WTERMSIG(status)
    }
}

/// B49 (a)
#[test]
fn a_forked_child_drops_what_it_inherits_without_a_call() {
    in_all_modes("fork-drop", 0);
}

fn fork_and_drop() {
    let mm = MemoryManager::instance();
    let (stream, device, host) = guards();
    let own = MemoryManager::new(memmgr::Config::default()).unwrap();
    let foreign = own.device::<u8>(MIB, &stream).unwrap();
    stream.synchronize().unwrap();
    let event = stream.record().unwrap();
    let raw = mm.allocate_pinned(4096).unwrap();
    // SAFETY: the block is ours and has 4096 bytes.
    unsafe { bytes_mut(raw, 4096) }.fill(0x77);
    // What was cached belongs to the parent too.
    drop(guards());
    let before = mm.stats().in_use();
    let mut inherited = Some((stream, device, host, own, foreign, event));
    for orderly in [false, true] {
        let take = &mut inherited;
        let pid = fork(orderly, || {
            let calls = memmgr::cuda_calls_on_this_thread();
            drop(take.take());
            i32::from(memmgr::cuda_calls_on_this_thread() != calls)
        });
        assert_eq!(wait_for(pid), 0, "orderly: {orderly}");
    }
    // The parent goes on as if nothing had been.
    assert_eq!(mm.stats().in_use(), before);
    let (stream, device, mut host, own, foreign, event) = inherited.take().unwrap();
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    host.as_mut_slice().unwrap().fill(0);
    let _ = stream.copy_to_host(&device, &mut host).unwrap();
    assert!(host.as_slice().unwrap().iter().all(|byte| *byte == 0x5A));
    // SAFETY: the block is ours.
    unsafe {
        assert!(bytes(raw, 4096).iter().all(|byte| *byte == 0x77));
        mm.free_pinned(raw).unwrap();
    }
    drop((foreign, own));
    mm.check().unwrap();
}

/// B49 (b)
#[test]
fn a_forked_child_that_calls_is_told() {
    in_all_modes("fork-allocate", 0);
}

fn fork_and_allocate() {
    let mm = MemoryManager::instance();
    let (stream, device, mut host) = guards();
    stream.synchronize().unwrap();
    let raw = mm.allocate_device(4096).unwrap();
    let pid = fork(true, || {
        // SAFETY: the calls are refused.
        let refused: Vec<(&str, memmgr::Result<()>)> = unsafe {
            vec![
                ("allocate_pinned", mm.allocate_pinned(4096).map(drop)),
                ("allocate_device", mm.allocate_device(4096).map(drop)),
                (
                    "allocate_device_at",
                    mm.allocate_device_at(0, 4096).map(drop),
                ),
                (
                    "allocate_device_on",
                    mm.allocate_device_on(4096, &stream).map(drop),
                ),
                ("free_device", mm.free_device(raw)),
                ("free_device_on", mm.free_device_on(raw, &stream)),
                ("memset", mm.memset(raw, 0, 4096, &stream)),
                ("record_use", mm.record_use(raw, &stream)),
                ("copy", stream.copy_to_host(&device, &mut host).map(drop)),
                ("pinned", mm.pinned::<u8>(4096).map(drop)),
                ("device", mm.device::<u8>(4096, &stream).map(drop)),
                ("Stream::new", Stream::new().map(drop)),
                ("synchronize", stream.synchronize()),
                ("query", stream.query().map(drop)),
                ("record", stream.record().map(drop)),
                ("launch_host", stream.launch_host(|| ())),
                ("trim", mm.trim().map(drop)),
                ("shutdown", mm.shutdown().map(drop)),
                ("devices", memmgr::devices().map(drop)),
                (
                    "another manager",
                    MemoryManager::new(memmgr::Config::default())
                        .unwrap()
                        .allocate_pinned(1)
                        .map(drop),
                ),
            ]
        };
        // What it would write is of nothing.
        let snapshot = mm.snapshot();
        let file = std::env::temp_dir().join("memmgr-forked-child");
        for written in [snapshot.write_json(&file), snapshot.write_pickle(&file)] {
            let error = written.unwrap_err();
            let inner = error
                .get_ref()
                .and_then(|error| error.downcast_ref::<Error>());
            assert_eq!(inner, Some(&Error::ForkedChild));
            assert!(!file.exists());
        }
        for (name, result) in refused {
            if !matches!(result, Err(Error::ForkedChild)) {
                eprintln!("{name}: {result:?}");
                return 1;
            }
        }
        0
    });
    assert_eq!(wait_for(pid), 0);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(raw).unwrap() };
    assert_eq!(mm.stats().drop_failures, 0);
}

/// B49: another thread of the parent is inside the manager at the moment of the fork.
#[test]
fn a_child_forked_beside_a_busy_thread_does_not_hang() {
    ends_with("race-fork/pool", 0);
    ends_with("race-fork/async", 0);
}

fn fork_beside_a_busy_thread() {
    static OVER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    use std::sync::atomic::Ordering::Relaxed;
    let mm = MemoryManager::instance();
    let busy: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                while !OVER.load(Relaxed) {
                    let stream = Stream::new().unwrap();
                    let device = mm.device::<u8>(KIB, &stream).unwrap();
                    let host = mm.pinned::<u8>(KIB).unwrap();
                    let _ = stream.copy_to_device(&host, &device).unwrap();
                    let _ = mm.stats();
                }
            })
        })
        .collect();
    for _ in 0..30 {
        let mut mine = Some(guards());
        let event = mine.as_ref().unwrap().0.record().unwrap();
        let mut event = Some(event);
        let pid = fork(false, || {
            let (_, _, host) = mine.as_mut().unwrap();
            let refused = [
                host.as_slice().map(drop),
                host.as_mut_slice().map(drop),
                mm.allocate_pinned(1).map(drop),
                mm.set_pinned_pool_size(1),
                mm.set_device_pool_size(1),
            ];
            // These have no error to give, and must not wait for a lock that nobody will open.
            assert_eq!(mm.stats(), memmgr::Stats::default());
            let _ = format!("{mm:?}");
            mm.reset_peak();
            mm.set_pinned_pool_limit(None);
            mm.set_device_pool_limit(None);
            mm.on_out_of_memory(|_| false);
            let _ = (mm.take_error(), mm.check());
            drop(event.take());
            drop(mine.take());
            i32::from(!refused.iter().all(|r| matches!(r, Err(Error::ForkedChild))))
        });
        assert_eq!(wait_for(pid), 0, "a signal 14 is a child that hung");
    }
    OVER.store(true, Relaxed);
    for thread in busy {
        thread.join().unwrap();
    }
}

/// B49: a child of a process that has not used CUDA may use it.
#[test]
fn a_child_forked_before_the_first_use_works() {
    ends_with("fork-first/pool", 0);
}

fn fork_before_cuda() {
    let mm = MemoryManager::instance();
    let pid = fork(true, || {
        drop(guards());
        i32::from(mm.stats().drop_failures != 0)
    });
    assert_eq!(wait_for(pid), 0);
    drop(guards());
}

/// The first call of the process is made by 64 threads at once.
#[test]
fn the_first_use_by_64_threads_at_once_makes_one_manager() {
    in_all_modes("race-first", 0);
}

fn first_use_by_64_threads() {
    let start = Barrier::new(64);
    let managers: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|i| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let mm = MemoryManager::instance();
                    let stream = Stream::new().unwrap();
                    let device = mm.device::<u8>(4 * KIB, &stream).unwrap();
                    let mut host = mm.pinned::<u8>(4 * KIB).unwrap();
                    host.as_mut_slice().unwrap().fill(i);
                    let _ = stream.copy_to_device(&host, &device).unwrap();
                    let mut back = mm.pinned::<u8>(4 * KIB).unwrap();
                    let _ = stream.copy_to_host(&device, &mut back).unwrap();
                    assert!(back.as_slice().unwrap().iter().all(|byte| *byte == i));
                    std::ptr::from_ref(mm).addr()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(managers.iter().all(|at| *at == managers[0]), "one manager");
    let mm = MemoryManager::instance();
    let stats = mm.stats();
    assert_eq!((stats.in_use(), stats.pinned.growths), (0, 1));
    assert!(stats.device[0].best_fit.growths <= 1);
    mm.check().unwrap();
}

fn reset() {
    // SAFETY: the function has no preconditions; what it takes away is what is tested.
    let code = unsafe { cuda_sys::cudaDeviceReset() };
    assert_eq!(code.0, 0);
}

/// B37: a device is reset under a live manager: no stale pointer is handed out, guards of before go without a call, and
/// what has the same addresses now is nobody's business.
#[test]
fn a_reset_device_is_noticed_and_nothing_of_before_touches_what_came_after() {
    in_all_modes("reset", 0);
    in_all_modes("reset-stream", 0);
}

#[track_caller]
fn was_reset<T: std::fmt::Debug>(result: memmgr::Result<T>) {
    let error = result.unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable { .. }) && error.to_string().contains("was reset"),
        "{error}"
    );
}

fn reset_under_a_manager(mode: DeviceAllocatorMode) {
    let mm = MemoryManager::instance();
    let cached = mm.allocate_device(MIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(cached).unwrap() };
    let (stream, device, host) = guards();
    let event = stream.record().unwrap();
    let kept = mm.allocate_device(MIB).unwrap();
    reset();
    // Somebody else's memory, very likely at an address that the manager knows.
    let mut theirs = std::ptr::null_mut();
    // SAFETY: `theirs` is a place for one pointer.
    assert_eq!(unsafe { cuda_sys::cudaMalloc(&mut theirs, 2 * MIB) }.0, 0);
    was_reset(mm.allocate_device(MIB));
    was_reset(mm.allocate_device(64 * MIB));
    was_reset(mm.allocate_pinned(MIB));
    was_reset(Stream::new());
    was_reset(mm.trim());
    was_reset(mm.shutdown());
    was_reset(host.as_slice());
    was_reset(event.synchronize());
    was_reset(stream.synchronize());
    // SAFETY: the block is refused.
    was_reset(unsafe { mm.free_device(kept) });
    drop((device, host, event, stream));
    assert_eq!(mm.stats().drop_failures, 0, "{mode}");
    // SAFETY: the memory is this function's; nothing of the manager has freed it.
    let code = unsafe { cuda_sys::cudaMemset(theirs, 1, 2 * MIB) };
    assert_eq!(code.0, 0, "{mode}: memory of after the reset was freed");
    // SAFETY: as above.
    assert_eq!(unsafe { cuda_sys::cudaFree(theirs) }.0, 0);
    assert_eq!(common::last_error(), 0);
}

fn reset_and_a_new_stream() {
    let (stream, device, host) = guards();
    reset();
    // The drops come first: those that ask CUDA find out, the others edit lists.
    drop((device, host));
    drop(stream);
    was_reset(Stream::new());
    was_reset(MemoryManager::instance().trim());
}

/// A reset after everything was given back is one like any other.
#[test]
fn a_reset_after_a_shutdown_is_told_as_well() {
    ends_with("reset-idle", 0);
}

fn reset_after_everything_went() {
    drop(guards());
    MemoryManager::instance().shutdown().unwrap();
    reset();
    was_reset(MemoryManager::instance().allocate_device(MIB));
}

/// Polls once: it is not done yet.
#[track_caller]
fn begin_to_await<T: Future + Unpin>(awaited: &mut T) {
    let polled = Pin::new(awaited).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}

/// The watchdog's thread is there, something is awaited, and the process ends.
#[test]
fn exit_while_something_is_awaited_is_quiet() {
    in_all_modes("awaiting", 0);
    ends_with("race-awaiting/pool", 7);
}

fn awaiting_at_exit() {
    let (stream, device, host) = guards();
    let gate = Gate::new();
    stall(&stream, &gate);
    let mut awaited = stream
        .transfer_to_device(host, device)
        .unwrap()
        .into_future();
    begin_to_await(&mut awaited);
    let mut event = stream.record().unwrap().into_future();
    begin_to_await(&mut event);
    std::mem::forget(event);
    static AWAITED: Mutex<Vec<Box<dyn std::any::Any + Send>>> = Mutex::new(Vec::new());
    AWAITED.lock().unwrap().push(Box::new(awaited));
    let _ = gate.open_after(Duration::from_millis(5));
}

fn exit_while_tasks_await() {
    for _ in 0..3 {
        std::thread::spawn(|| {
            loop {
                let (stream, device, host) = guards_or_end();
                let Ok(transfer) = stream.transfer_to_device(host, device) else {
                    break;
                };
                if pollster::block_on(transfer.into_future()).is_err() {
                    break;
                }
            }
        });
    }
    std::thread::sleep(Duration::from_millis(20));
    std::process::exit(7);
}

/// As [`guards`]; after the exit has begun the thread sleeps until the process is gone.
fn guards_or_end() -> Guards {
    let mm = MemoryManager::instance();
    let made = Stream::new().and_then(|stream| {
        let device = mm.device::<u8>(KIB, &stream)?;
        let host = mm.pinned::<u8>(KIB)?;
        Ok((stream, device, host))
    });
    made.unwrap_or_else(|_| {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    })
}

#[test]
fn what_is_awaited_ends_with_an_error_in_a_forked_child() {
    ends_with("fork-awaiting/pool", 0);
}

fn fork_while_something_is_awaited() {
    let (stream, device, host) = guards();
    let gate = Gate::new();
    stall(&stream, &gate);
    let fresh = stream.record().unwrap();
    let mut awaited = stream
        .transfer_to_device(host, device)
        .unwrap()
        .into_future();
    begin_to_await(&mut awaited);
    let mut mine = Some(awaited);
    for _ in 0..20 {
        let pid = fork(false, || {
            let fresh = pollster::block_on((&fresh).into_future());
            let awaited = mine.take().map(pollster::block_on);
            let Some(Err(failed)) = awaited else { return 1 };
            let (error, host, device) = failed.into_parts();
            drop((host, device));
            i32::from(!matches!(
                (fresh, error),
                (Err(Error::ForkedChild), Error::ForkedChild)
            ))
        });
        assert_eq!(wait_for(pid), 0, "a signal 14 is a child that hung");
    }
    gate.open();
    let _ = pollster::block_on(mine.unwrap()).unwrap();
}
