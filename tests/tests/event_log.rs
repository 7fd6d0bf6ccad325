//! The log file of a manager, and the ring of its last events: what they say, in which order, and what cannot harm them.

mod common;

use common::{KIB, MIB, child, config};
use memmgr::{
    Config, DeviceAllocatorMode, Error, MemoryManager, Place, Stream,
    events::{Action, Event},
};
use memmgr_tests::Rng;
use std::{
    collections::HashMap,
    ffi::c_void,
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

fn logging(folder: &Path) -> Config {
    config().log_file(folder.join("log.csv"))
}

fn manager(config: Config) -> MemoryManager {
    MemoryManager::new(config).expect("the settings are valid")
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    thread: u64,
    action: String,
    address: usize,
    size: usize,
    stream: u64,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").expect(text), 16).expect(text)
}

#[track_caller]
fn lines(path: &Path) -> Vec<Line> {
    let text = fs::read_to_string(path).expect("a log");
    assert!(text.ends_with('\n'), "whole lines: {text}");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(HEADER));
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let [thread, time, action, pointer, size, stream] = fields[..] else {
            panic!("{line}");
        };
        let clock: Vec<&str> = time.split([':', '.']).collect();
        let widths: Vec<usize> = clock.iter().map(|part| part.len()).collect();
        assert_eq!(widths, [2, 2, 2, 6], "{line}");
        Line {
            thread: thread.parse().expect(line),
            action: action.into(),
            address: hex(pointer) as usize,
            size: size.parse().expect(line),
            stream: hex(stream),
        }
    };
    lines.map(line).collect()
}

/// The most bytes live at one time. No address is handed out while it is live.
#[track_caller]
fn peak(lines: &[Line]) -> usize {
    let (mut live, mut now, mut peak) = (HashMap::new(), 0, 0);
    for line in lines {
        match line.action.as_str() {
            "allocate" => {
                now += line.size;
                peak = peak.max(now);
                let former = live.insert(line.address, line.size);
                assert_eq!(former, None, "{line:x?} is live");
            }
            "free" => {
                let size = live.remove(&line.address);
                assert_eq!(size, Some(line.size), "{line:x?} is not live");
                now -= line.size;
            }
            other => assert_eq!(other, "allocate failure"),
        }
    }
    peak
}

/// # Safety
/// Nobody uses the block.
unsafe fn free(mm: &MemoryManager, block: *mut c_void) {
    // SAFETY: as this function demands.
    unsafe { mm.free_device(block).unwrap() };
}

#[test]
fn a_log_has_every_call_of_a_place_in_order_with_sizes_and_streams() {
    for mode in DeviceAllocatorMode::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mm = manager(logging(folder.path()).mode(mode));
        let stream = Stream::new().unwrap();
        let a = mm.allocate_device_on(1000, &stream).unwrap();
        let b = mm.allocate_device(2000).unwrap();
        let pinned = mm.pinned::<u8>(300).unwrap();
        let guard = mm.device::<u8>(5, &stream).unwrap();
        let at = guard.as_ptr() as usize;
        drop(guard);
        // SAFETY: nobody uses the blocks.
        unsafe {
            mm.free_device_on(a, &stream).unwrap();
            free(&mm, b);
        }
        let host = pinned.as_ptr() as usize;
        drop(pinned);
        mm.flush_log().unwrap();
        let device = lines(&folder.path().join("log.dev0.csv"));
        // SAFETY: the call has no arguments.
        let thread = unsafe { libc::gettid() } as u64;
        let line = |action: &str, address, size, stream| Line {
            thread,
            action: action.into(),
            address,
            size,
            stream,
        };
        let (a, b, on) = (a as usize, b as usize, stream.id());
        assert_eq!(
            device,
            [
                line("allocate", a, 1000, on),
                line("allocate", b, 2000, 0),
                line("allocate", at, 5, on),
                line("free", at, 5, on),
                line("free", a, 1000, on),
                line("free", b, 2000, 0),
            ],
            "{mode}"
        );
        assert_eq!(peak(&device), 3005);
        let pinned = lines(&folder.path().join("log.pinned.csv"));
        assert_eq!(
            pinned,
            [line("allocate", host, 300, 0), line("free", host, 300, 0)]
        );
    }
}

#[test]
fn a_free_comes_before_the_next_allocation_of_its_address_whoever_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let mm = &manager(logging(folder.path()));
    let shared = &Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || {
                let mut rng = Rng(seed);
                let stream = Stream::new().unwrap();
                for _ in 0..2000 {
                    let size = 256 * (1 + rng.index(4));
                    let block = mm.allocate_device_on(size, &stream).unwrap() as usize;
                    let mut all = shared.lock().unwrap();
                    all.push(block);
                    let at = rng.index(all.len());
                    let other = all.swap_remove(at) as *mut c_void;
                    drop(all);
                    // SAFETY: whoever takes a block out of the list has it alone.
                    unsafe { mm.free_device_on(other, &stream).unwrap() };
                }
            });
        }
    });
    assert!(shared.lock().unwrap().is_empty());
    mm.flush_log().unwrap();
    let lines = lines(&folder.path().join("log.dev0.csv"));
    assert_eq!(lines.len(), 6 * 2000 * 2);
    peak(&lines);
    let addresses: std::collections::HashSet<usize> =
        lines.iter().map(|line| line.address).collect();
    assert!(addresses.len() < 2000, "addresses were used again");
}

#[test]
fn what_was_refused_is_logged_with_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let mm = manager(
        logging(folder.path())
            .device_pool_limit(Some(4 * MIB))
            .event_ring(9),
    );
    let stream = Stream::new().unwrap();
    let kept = mm.allocate_device(3 * MIB).unwrap();
    let refused = mm.allocate_device_on(2 * MIB, &stream).unwrap_err();
    assert!(refused.is_out_of_memory());
    let above = mm.allocate_device(5 * MIB).unwrap_err();
    assert!(matches!(above, Error::LimitExceeded { .. }));
    mm.allocate_device(usize::MAX).unwrap_err();
    mm.flush_log().unwrap();
    let failures: Vec<(usize, u64)> = lines(&folder.path().join("log.dev0.csv"))
        .into_iter()
        .filter(|line| line.action == "allocate failure")
        .map(|line| (line.size, line.stream))
        .collect();
    // Readers of the format take no more than 2^63.
    let expected = [(2 * MIB, stream.id()), (5 * MIB, 0), (1 << 63, 0)];
    assert_eq!(failures, expected);
    let told: Vec<(usize, bool)> = (mm.events().iter())
        .filter_map(|event| match event.action {
            Action::Failure { out_of_memory } => Some((event.requested, out_of_memory)),
            _ => None,
        })
        .collect();
    let expected = [(2 * MIB, true), (5 * MIB, true), (usize::MAX, false)];
    assert_eq!(told, expected);
    // SAFETY: nobody uses the block.
    unsafe { free(&mm, kept) };
}

#[test]
fn a_log_is_written_by_itself_by_a_shutdown_and_with_the_last_manager() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.dev0.csv");
    fs::write(
        &path,
        "what an earlier run has left, which is longer than a header",
    )
    .unwrap();
    let mm = manager(logging(folder.path()));
    let block = mm.allocate_device(KIB).unwrap();
    let begun = Instant::now();
    while fs::read_to_string(&path).unwrap().lines().count() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody writes");
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: nobody uses the block.
    unsafe { free(&mm, block) };
    mm.shutdown().unwrap();
    assert_eq!(lines(&path).len(), 2);
    // Another manager of the process goes on with the file.
    let other = manager(logging(folder.path()));
    let block = other.allocate_device(KIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { free(&other, block) };
    drop((mm, other));
    assert_eq!(lines(&path).len(), 4);
    let third = manager(logging(folder.path()));
    drop(third.device::<u8>(9, &Stream::new().unwrap()).unwrap());
    drop(third);
    let lines = lines(&path);
    assert_eq!((lines.len(), peak(&lines)), (6, KIB));
}

#[test]
fn a_log_that_cannot_be_written_ends_and_the_program_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = config().log_file(folder.path().join("no/such/folder/log.csv"));
    std::os::unix::fs::symlink("/dev/full", folder.path().join("full.dev0.csv")).unwrap();
    let full = config().log_file(folder.path().join("full.csv"));
    for (config, fix) in [(nowhere, "a folder that is there"), (full, "make room")] {
        let mm = manager(config);
        for _ in 0..3 {
            let block = mm.allocate_device(KIB).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { free(&mm, block) };
            let error = mm.flush_log().unwrap_err().to_string();
            assert!(
                error.contains("MEMMGR_LOG_FILE") && error.contains(fix),
                "{error}"
            );
        }
        mm.shutdown().unwrap();
        mm.check().unwrap();
    }
}

#[test]
fn two_processes_do_not_write_one_log() {
    let folder = tempfile::tempdir().unwrap();
    let mm = manager(logging(folder.path()));
    drop(mm.device::<u8>(9, &Stream::new().unwrap()).unwrap());
    mm.flush_log().unwrap();
    let (status, stderr) = run("second", folder.path());
    assert_eq!(status, Some(0), "{stderr}");
    assert!(
        stderr.contains("another process") && stderr.contains("%p"),
        "{stderr}"
    );
    assert_eq!(lines(&folder.path().join("log.dev0.csv")).len(), 2);
}

#[test]
fn the_log_of_the_environment_is_whole_when_the_process_exits() {
    let folder = tempfile::tempdir().unwrap();
    let (status, stderr) = run("exit", folder.path());
    assert_eq!(status, Some(7), "{stderr}");
    assert_eq!(lines(&folder.path().join("log.dev0.csv")).len(), 1000);
}

#[test]
fn a_forked_child_writes_nothing() {
    for case in ["fork", "fork-early"] {
        let folder = tempfile::tempdir().unwrap();
        let (status, stderr) = run(case, folder.path());
        assert_eq!(status, Some(0), "{case}: {stderr}");
        let lines = lines(&folder.path().join("log.dev0.csv"));
        assert_eq!(lines.len(), 2, "{case}: {lines:?}");
        if case == "fork-early" {
            let pinned = fs::read_to_string(folder.path().join("log.pinned.csv")).unwrap();
            assert_eq!(pinned.lines().count(), 2, "{pinned}");
        }
    }
}

#[test]
fn a_log_that_grows_too_long_ends_with_a_whole_line() {
    let folder = tempfile::tempdir().unwrap();
    let (status, stderr) = run("limited", folder.path());
    assert_eq!(status, Some(0), "{stderr}");
    let path = folder.path().join("log.dev0.csv");
    let lines = lines(&path);
    assert!(!lines.is_empty() && lines.len() < 20_000, "{}", lines.len());
    peak(&lines);
}

#[track_caller]
fn run(case: &str, folder: &Path) -> (Option<i32>, String) {
    let case = format!("{case}={}", folder.display());
    let (status, stderr) = child::run(&case, Duration::from_secs(60));
    (status.code(), stderr)
}

/// The child's side: does nothing unless a case is named.
#[test]
fn the_case_that_the_environment_names() {
    let Ok(case) = std::env::var(child::CASE) else {
        return;
    };
    let (case, folder) = case.split_once('=').unwrap();
    let folder = PathBuf::from(folder);
    // SAFETY: no other thread reads the environment now.
    unsafe { std::env::set_var("MEMMGR_LOG_FILE", folder.join("log.csv")) };
    let mm = MemoryManager::instance();
    let churn = |times: usize| {
        for _ in 0..times {
            let block = mm.allocate_device(KIB).unwrap();
            // SAFETY: nobody uses the block.
            unsafe { free(mm, block) };
        }
    };
    match case {
        "second" => churn(1),
        "exit" => {
            churn(500);
            std::process::exit(7);
        }
        "fork" => {
            churn(1);
            forked(|| {
                assert!(mm.allocate_device(KIB).is_err());
                assert!(mm.events().is_empty());
            });
        }
        // The logs are begun by a refusal, before CUDA was used: the child may use it then.
        "fork-early" => {
            mm.allocate_pinned(usize::MAX).unwrap_err();
            forked(|| churn(1));
            churn(1);
        }
        "limited" => {
            // A simulated device is a file, too.
            churn(1);
            // SAFETY: the calls have no preconditions.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                let most = libc::rlimit {
                    rlim_cur: 100_000,
                    rlim_max: 100_000,
                };
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most), 0);
            }
            churn(10_000);
            let error = mm.flush_log().unwrap_err().to_string();
            assert!(error.contains("make room"), "{error}");
        }
        other => panic!("no case {other}"),
    }
}

/// Runs something in a forked child, which exits in the usual way and must not fail.
fn forked(f: impl FnOnce()) {
    // SAFETY: the test runs on the process's main thread; what the child does is what is tested.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
        std::process::exit(i32::from(failed));
    }
    let mut status = 0;
    // SAFETY: the child is this process's.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "{status}"
    );
}

#[test]
fn the_ring_keeps_the_last_events_with_all_that_is_known_of_them() {
    let none = manager(config());
    drop(none.pinned::<u8>(9).unwrap());
    assert!(none.events().is_empty(), "off by default");
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager(config().mode(mode).event_ring(8));
        let stream = Stream::new().unwrap();
        let first = mm.device::<u8>(1000, &stream).unwrap();
        let events = mm.events();
        let own = mode == DeviceAllocatorMode::BestFitPool;
        // The segment comes before its block.
        let segment = events
            .iter()
            .find(|event| event.action == Action::SegmentAdded);
        assert_eq!(segment.is_some(), own, "{mode}");
        let event: &Event = events.last().unwrap();
        assert_eq!(
            (event.action, event.place, event.mode),
            (Action::Allocate, Place::Device(0), Some(mode))
        );
        let size = if own { 1024 } else { 1000 };
        assert_eq!((event.requested, event.size), (1000, size));
        assert_eq!(
            (event.address, event.stream),
            (first.as_ptr() as usize, Some(stream.id()))
        );
        if let Some(segment) = segment {
            let range = segment.address..segment.address + segment.size;
            assert!(range.contains(&event.address) && segment.time_us <= event.time_us);
        }
        for size in 1..20 {
            drop(mm.pinned::<u8>(size).unwrap());
        }
        let events = mm.events();
        let sizes: Vec<(Action, usize)> = events
            .iter()
            .map(|event| (event.action, event.requested))
            .collect();
        let expected: Vec<(Action, usize)> = (16..20)
            .flat_map(|size| [(Action::Allocate, size), (Action::Free, size)])
            .collect();
        assert_eq!(sizes, expected);
        assert!(
            events
                .iter()
                .all(|event| event.mode.is_none() && event.stream.is_none())
        );
    }
}
