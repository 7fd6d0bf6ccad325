//! The pinned pool grows ahead of need: on a thread of the manager's own, or when it is told to.
//!
//! A `cudaHostAlloc` takes its time here, so that whoever makes one is found out. The tests take turns: each looks at the
//! threads of the process.
#![cfg(feature = "sim")]

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{MIB, child, stall};
use memmgr::{
    Config, Error, MemoryManager, Observer, PinnedSource, Place, PoolStats, SegmentChange, Stream,
    cuda_calls_on_this_thread,
};
use memmgr_tests::Gate;
use rig::eventually;
use std::{
    ffi::c_void,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// What a `cudaHostAlloc` of one MiB takes.
const SLOW: Duration = Duration::from_millis(20);
/// How long nothing happens where nothing may.
const WHILE: Duration = Duration::from_millis(150);
/// The growth of most managers here.
const STEP: usize = 2 * MIB;

static TURN: Mutex<()> = Mutex::new(());
static CONFIGURED: Once = Once::new();

fn turn() -> MutexGuard<'static, ()> {
    CONFIGURED.call_once(|| {
        let mut config = cudart_sim::Config::devices(1, 1 << 30);
        config.schedule = cudart_sim::Schedule::Lazy;
        config.time = Some(cudart_sim::TimeModel {
            host_alloc_per_mib: SLOW,
            ..Default::default()
        });
        cudart_sim::configure(config).unwrap();
    });
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Grows by [`STEP`], and keeps this much idle.
fn warm(idle: usize) -> Config {
    Config::default()
        .pinned_growth(STEP)
        .pinned_source(PinnedSource::HostAlloc)
        .pinned_warm_up(Some(idle))
}

fn manager(config: Config) -> MemoryManager {
    MemoryManager::new(config).unwrap()
}

fn pinned(mm: &MemoryManager) -> PoolStats {
    mm.stats().pinned
}

fn is_warm(mm: &MemoryManager, idle: usize) -> bool {
    eventually(|| pinned(mm).idle >= idle)
}

/// # Safety
/// Nobody uses the block.
unsafe fn free(mm: &MemoryManager, block: *mut c_void) {
    // SAFETY: as this function demands.
    unsafe { mm.free_pinned(block).unwrap() };
}

/// The numbers of the threads that warm pools.
fn warmers() -> Vec<i32> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut found = Vec::new();
    for thread in threads.flatten() {
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.trim() == "memmgr-warmer" {
            found.extend(thread.file_name().to_string_lossy().parse::<i32>());
        }
    }
    found
}

/// How often a thread has been woken so far.
fn wakings(thread: i32) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = |line: &&str| line.starts_with("voluntary_ctxt_switches");
    status.lines().find(line).unwrap().to_owned()
}

/// Holds up whoever reports a segment of more than some size, while its pool still grows.
struct Doorman {
    gate: Gate,
    /// How many segments come in before the gate.
    free: usize,
    seen: AtomicUsize,
}

impl Observer for Doorman {
    fn on_segment(&self, _: Place, _: Range<usize>, change: SegmentChange) {
        if change == SegmentChange::Added && self.seen.fetch_add(1, SeqCst) >= self.free {
            self.gate.pass();
        }
    }
}

/// The `free` first segments come in at once, the others wait for the gate.
fn doorman(mm: &MemoryManager, free: usize) -> (Gate, Arc<Doorman>) {
    let gate = Gate::new();
    let doorman = Arc::new(Doorman {
        gate: gate.clone(),
        free,
        seen: AtomicUsize::new(0),
    });
    mm.set_observer(doorman.clone()).unwrap();
    (gate, doorman)
}

/// One frame: everything is allocated, copied, and freed. The calls that the allocations made on this thread.
fn frame(mm: &MemoryManager, stream: &Stream, device: *mut c_void, sizes: &[usize]) -> u64 {
    let before = cuda_calls_on_this_thread();
    let blocks: Vec<_> = sizes
        .iter()
        .map(|size| mm.allocate_pinned(*size).unwrap())
        .collect();
    let calls = cuda_calls_on_this_thread() - before;
    for (block, size) in blocks.into_iter().zip(sizes) {
        // SAFETY: both blocks have that many bytes; the stream orders the copies.
        unsafe {
            mm.copy_to_device_async(device, block, *size, stream)
                .unwrap();
            free(mm, block);
        }
    }
    calls
}

#[test]
fn frames_that_fit_what_is_warm_make_no_call_and_the_pool_stays_in_bounds() {
    let _turn = turn();
    const IDLE: usize = 8 * MIB;
    let sizes = [MIB, 3 * MIB / 2, MIB / 4, 2 * MIB, 100];
    let stream = Stream::new().unwrap();
    let run = |config: Config, warms: bool| {
        let mm = manager(config);
        let device = mm.allocate_device(2 * MIB).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { free(&mm, mm.allocate_pinned(1).unwrap()) };
        let mut calls = 0;
        for _ in 0..20 {
            assert!(!warms || is_warm(&mm, IDLE), "{:?}", pinned(&mm));
            calls += frame(&mm, &stream, device, &sizes);
            stream.synchronize().unwrap();
        }
        let stats = pinned(&mm);
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(device).unwrap() };
        mm.check().unwrap();
        (calls, stats, stats.failures)
    };
    let (calls, stats, failures) = run(warm(IDLE), true);
    assert_eq!((calls, failures), (0, 0), "{stats:?}");
    // The thread sees what has finished, before it grows.
    let frame: usize = sizes.iter().sum();
    assert!(
        stats.reserved <= frame + IDLE + 2 * STEP,
        "{} bytes",
        stats.reserved
    );
    let (calls, ..) = run(Config::default().pinned_growth(STEP), false);
    assert!(calls > 0, "without the setting the frames grow the pool");
}

#[test]
fn what_is_reserved_follows_what_is_in_use_and_no_further() {
    let _turn = turn();
    const IDLE: usize = 4 * MIB;
    let mm = manager(warm(IDLE));
    let mut blocks = Vec::new();
    for _ in 0..6 {
        blocks.push(mm.allocate_pinned(MIB).unwrap());
        assert!(is_warm(&mm, IDLE));
    }
    thread::sleep(WHILE);
    let stats = pinned(&mm);
    assert!(
        stats.reserved < 6 * MIB + IDLE + STEP,
        "{} bytes",
        stats.reserved
    );
    let growths = stats.growths;
    for _ in 0..10 {
        for block in blocks.drain(..) {
            // SAFETY: nobody uses the block.
            unsafe { free(&mm, block) };
        }
        blocks.extend((0..6).map(|_| mm.allocate_pinned(MIB).unwrap()));
    }
    thread::sleep(WHILE);
    assert_eq!(pinned(&mm).growths, growths);
    mm.check().unwrap();
}

#[test]
fn the_thread_is_there_for_those_who_ask_sleeps_and_ends_with_the_manager() {
    let _turn = turn();
    assert!(eventually(|| warmers().is_empty()));
    for off in [None, Some(0)] {
        let mm = manager(Config::default().pinned_warm_up(off));
        mm.allocate_pinned(1).unwrap();
        mm.warm_up_pinned(4 * MIB).unwrap();
        assert!(warmers().is_empty());
    }
    let mm = manager(warm(MIB));
    assert!(warmers().is_empty(), "before anything was allocated");
    mm.allocate_pinned(STEP).unwrap();
    assert!(is_warm(&mm, MIB));
    let [thread] = warmers()[..] else {
        panic!("{:?}", warmers());
    };
    thread::sleep(WHILE / 3);
    let before = wakings(thread);
    thread::sleep(2 * WHILE);
    assert_eq!(wakings(thread), before, "it looks around by itself");
    drop(mm);
    assert!(eventually(|| warmers().is_empty()));
}

#[test]
fn the_limit_holds_and_a_new_one_is_noticed() {
    let _turn = turn();
    let mm = manager(warm(4 * MIB).pinned_pool_limit(Some(5 * MIB)));
    let blocks = [(); 3].map(|()| mm.allocate_pinned(MIB).unwrap());
    assert!(is_warm(&mm, 2 * MIB));
    thread::sleep(WHILE);
    assert_eq!(pinned(&mm).reserved, 5 * MIB);
    // What is idle may be used to the last byte.
    let rest = mm.allocate_pinned(MIB).unwrap();
    thread::sleep(WHILE / 2);
    assert_eq!(pinned(&mm).reserved, 5 * MIB);
    // Without an allocation.
    mm.set_pinned_pool_limit(Some(10 * MIB));
    assert!(is_warm(&mm, 4 * MIB));
    assert!(pinned(&mm).reserved <= 10 * MIB);
    for block in blocks.into_iter().chain([rest]) {
        // SAFETY: nobody uses the block.
        unsafe { free(&mm, block) };
    }
    mm.check().unwrap();
}

/// What is kept idle is in nobody's way: with the limit reached, it goes back for a request that needs the room.
#[test]
fn a_request_that_needs_the_room_of_what_is_idle_gets_it() {
    let _turn = turn();
    for _ in 0..5 {
        let mm = manager(warm(6 * MIB).pinned_pool_limit(Some(8 * MIB)));
        mm.allocate_pinned(1).unwrap();
        assert!(is_warm(&mm, 5 * MIB));
        let long = mm.allocate_pinned(6 * MIB).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { free(&mm, long) };
        mm.check().unwrap();
    }
}

#[test]
fn a_failure_stops_it_until_memory_is_freed() {
    let _turn = turn();
    let mm = manager(warm(4 * MIB));
    let fault = cudart_sim::fail("cudaHostAlloc", cuda_sys::cudaError(2))
        .after(1)
        .times(1000)
        .any_thread();
    let first = mm.allocate_pinned(MIB).unwrap();
    assert!(eventually(|| fault.fired() > 0));
    thread::sleep(WHILE / 2);
    let tried = fault.fired();
    for _ in 0..10 {
        mm.allocate_pinned(64 << 10).unwrap();
        thread::sleep(WHILE / 50);
    }
    // One more attempt may have begun while the first went on.
    assert!(fault.fired() <= tried + 1, "{} attempts", fault.fired());
    let tried = fault.fired();
    // SAFETY: nobody uses the block.
    unsafe { free(&mm, first) };
    thread::sleep(WHILE / 2);
    assert_eq!(fault.fired(), tried, "a free alone asks for nothing");
    mm.allocate_pinned(MIB / 2).unwrap();
    assert!(eventually(|| fault.fired() > tried));
    drop(fault);
    let more = mm.allocate_pinned(1).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { free(&mm, more) };
    mm.allocate_pinned(1).unwrap();
    assert!(is_warm(&mm, 4 * MIB));
    assert_eq!(pinned(&mm).failures, 0);
    mm.check().unwrap();
}

#[test]
fn who_misses_meanwhile_waits_and_does_not_grow_and_who_fits_does_not_wait() {
    let _turn = turn();
    let mm = manager(warm(STEP));
    let (gate, doorman) = doorman(&mm, 1);
    mm.allocate_pinned(MIB).unwrap();
    // The warmer has a segment that nobody can use yet.
    assert!(eventually(|| doorman.seen.load(SeqCst) == 2));
    let begun = Instant::now();
    mm.allocate_pinned(MIB / 2).unwrap();
    assert!(begun.elapsed() < SLOW, "{:?}", begun.elapsed());
    thread::scope(|scope| {
        let misses = scope.spawn(|| mm.allocate_pinned(STEP).map(drop).unwrap());
        thread::sleep(WHILE);
        assert!(!misses.is_finished());
        assert_eq!(doorman.seen.load(SeqCst), 2, "a second growth");
        gate.open();
        misses.join().unwrap();
    });
    assert!(is_warm(&mm, STEP));
    // One for the first block, one on its way, one after that.
    assert_eq!(pinned(&mm).growths, 3);
    mm.check().unwrap();
}

#[test]
fn trim_and_shutdown_take_what_is_on_its_way_and_nothing_comes_before_the_next_allocation() {
    let _turn = turn();
    let ends: [fn(&MemoryManager); 2] = [
        |mm| assert!(mm.trim().is_ok()),
        |mm| drop(mm.shutdown().unwrap()),
    ];
    for end in ends {
        let mm = manager(warm(4 * STEP));
        let (gate, doorman) = doorman(&mm, 1);
        let block = mm.allocate_pinned(STEP).unwrap();
        assert!(eventually(|| doorman.seen.load(SeqCst) == 2));
        // SAFETY: nobody uses the block.
        unsafe { free(&mm, block) };
        thread::scope(|scope| {
            let ends = scope.spawn(|| end(&mm));
            thread::sleep(WHILE / 2);
            assert!(!ends.is_finished(), "a segment is left behind");
            gate.open();
            ends.join().unwrap();
        });
        assert_eq!(pinned(&mm).reserved, 0);
        thread::sleep(WHILE);
        assert_eq!(pinned(&mm).reserved, 0, "it came back");
        let block = mm.allocate_pinned(STEP).unwrap();
        assert!(is_warm(&mm, 4 * STEP));
        // SAFETY: nobody uses the block.
        unsafe { free(&mm, block) };
        mm.check().unwrap();
        mm.shutdown().unwrap();
    }
}

#[test]
fn trim_and_shutdown_beside_frames_leave_the_books_right() {
    let _turn = turn();
    let mm = manager(warm(2 * STEP));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for i in 0..60 {
                    let block = mm.allocate_pinned(MIB / 2 + i * 1000).unwrap();
                    // SAFETY: nobody uses the block.
                    unsafe { free(&mm, block) };
                }
            });
        }
        for i in 0..6 {
            thread::sleep(SLOW);
            if i % 2 == 0 {
                mm.trim().unwrap();
            } else {
                mm.shutdown().unwrap();
            }
            mm.check().unwrap();
        }
    });
    mm.shutdown().unwrap();
    assert_eq!(pinned(&mm).reserved, 0);
}

fn calls(name: &str) -> u64 {
    let all = memmgr::MemoryManager::instance().stats().cuda_calls;
    let found = all.iter().find(|(known, _)| *known == name);
    found.map_or(0, |(_, count)| *count)
}

#[test]
fn a_manager_that_goes_while_its_pool_grows_waits_for_nothing_and_leaves_nothing() {
    let _turn = turn();
    let balance = || calls("cudaHostAlloc").wrapping_sub(calls("cudaFreeHost"));
    let other = manager(Config::default());
    assert!(eventually(|| warmers().is_empty()));
    other.trim().unwrap();
    let before = balance();
    let mm = manager(warm(16 * MIB).pinned_growth(16 * MIB));
    mm.warm_up_pinned(MIB).unwrap();
    // From here on the thread may grow the pool: the first block already leaves less idle than it keeps.
    let grown = calls("cudaHostAlloc");
    let block = mm.allocate_pinned(MIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { free(&mm, block) };
    mm.allocate_pinned(16 * MIB).unwrap();
    // The thread is inside its call, which takes 320 ms.
    assert!(eventually(|| calls("cudaHostAlloc") > grown));
    let begun = Instant::now();
    drop(mm);
    assert!(begun.elapsed() < SLOW, "{:?}", begun.elapsed());
    assert_eq!(warmers().len(), 1);
    assert!(eventually(|| warmers().is_empty()));
    other.trim().unwrap();
    // The segment of the block that nobody freed stays.
    assert_eq!(balance(), before + 1);
}

#[test]
fn it_can_be_told_to_reserve_at_once() {
    let _turn = turn();
    let mm = manager(Config::default().pinned_growth(STEP));
    assert_eq!(mm.warm_up_pinned(0).unwrap(), 0);
    assert_eq!(mm.warm_up_pinned(6 * MIB).unwrap(), 6 * MIB);
    assert_eq!(mm.warm_up_pinned(6 * MIB).unwrap(), 0);
    let before = cuda_calls_on_this_thread();
    let block = mm.allocate_pinned(6 * MIB).unwrap();
    assert_eq!(cuda_calls_on_this_thread(), before);
    assert_eq!(mm.warm_up_pinned(1).unwrap(), STEP);
    // The limit.
    mm.set_pinned_pool_limit(Some(10 * MIB));
    assert!(matches!(
        mm.warm_up_pinned(11 * MIB),
        Err(Error::LimitExceeded { .. })
    ));
    assert_eq!(pinned(&mm).reserved, 8 * MIB);
    let error = mm.warm_up_pinned(6 * MIB).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert_eq!(pinned(&mm).reserved, 10 * MIB, "as far as the limit allows");
    let no_size = || {
        matches!(
            mm.warm_up_pinned(usize::MAX),
            Err(Error::InvalidSize { .. })
        )
    };
    assert!(no_size(), "as for a request of that size");
    mm.set_pinned_pool_limit(None);
    assert!(no_size());
    // What copies have left counts once they have finished.
    // SAFETY: nobody uses the block.
    unsafe { free(&mm, block) };
    assert_eq!(mm.warm_up_pinned(10 * MIB).unwrap(), 0);
    // A failure of CUDA's.
    let fault = cudart_sim::fail("cudaHostAlloc", cuda_sys::cudaError(2)).times(9);
    let error = mm.warm_up_pinned(12 * MIB).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    drop(fault);
    // The configured size is part of it.
    let mm = manager(Config::default().pinned_pool_size(4 * MIB));
    assert_eq!(mm.warm_up_pinned(MIB).unwrap(), 4 * MIB);
    mm.check().unwrap();
}

#[test]
fn captures_and_stalled_streams_are_left_alone() {
    let _turn = turn();
    let mm = manager(warm(2 * STEP));
    let (stalled, stream) = (Stream::new().unwrap(), Stream::new().unwrap());
    let device = mm.device_zeroed::<u8>(MIB, &stream).unwrap();
    let gate = Gate::new();
    stall(&stalled, &gate);
    stream.synchronize().unwrap();
    let mut graph = stream
        .capture(|s| {
            let host = mm.pinned::<u8>(MIB)?;
            assert!(is_warm(&mm, 2 * STEP));
            drop(s.copy_to_device(&host, &device)?);
            Ok(())
        })
        .unwrap();
    // SAFETY: the buffers are the graph's, and nobody uses them otherwise.
    unsafe { graph.launch(&stream) }.map(drop).unwrap();
    stream.synchronize().unwrap();
    gate.open();
    stalled.synchronize().unwrap();
}

/// The child's side: does nothing unless a case is named.
#[test]
fn the_case_that_the_environment_names() {
    let Ok(case) = std::env::var(child::CASE) else {
        return;
    };
    let _turn = turn();
    let mm = manager(warm(16 * MIB).pinned_growth(16 * MIB));
    mm.warm_up_pinned(MIB).unwrap();
    let grown = calls("cudaHostAlloc");
    mm.allocate_pinned(12 * MIB).unwrap();
    assert!(eventually(|| calls("cudaHostAlloc") > grown));
    if case == "exit" {
        // The pool grows still.
        std::mem::forget(mm);
        std::process::exit(7);
    }
    let mut mm = Some(mm);
    // SAFETY: the child only asks and drops, which is what is tested.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: an alarm ends a child that hangs.
        unsafe { libc::alarm(20) };
        let told = mm.as_ref().is_some_and(|mm| {
            matches!(mm.warm_up_pinned(1), Err(Error::ForkedChild))
                && matches!(mm.allocate_pinned(1), Err(Error::ForkedChild))
                && mm.trim().is_err()
        });
        mm.as_ref().unwrap().set_pinned_pool_limit(None);
        drop(mm.take());
        std::process::exit(if told { 0 } else { 3 });
    }
    let mut status = 0;
    // SAFETY: `status` is a place for one int.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "{status:#x}"
    );
    assert!(is_warm(mm.as_ref().unwrap(), 16 * MIB));
    std::process::exit(7);
}

#[test]
fn neither_exit_nor_a_forked_child_hangs_or_crashes_while_the_pool_grows() {
    for case in ["exit", "fork"] {
        for round in 0..3 {
            let (status, stderr) = child::run(case, Duration::from_secs(60));
            assert_eq!(status.code(), Some(7), "{case}, round {round}:\n{stderr}");
        }
    }
}
