//! The simulator under load: many streams, threads, events and bytes, each within what a test may take.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{Check, Config, Schedule, checker_size, read_device};
use programs::*;
use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const STREAMS: usize = 64;
const OPERATIONS: usize = 10_000;
/// An operation in so many hands something to the next stream.
const HAND_OVER: usize = 100;
const CELL: usize = 64;

/// A fresh machine, and what it is told to check.
fn loaded(config: Config, check: Check) -> cudart_sim::testing::Machine {
    let turn = machine();
    cudart_sim::configure(config).unwrap();
    cudart_sim::check(Check::Off);
    cudart_sim::check(check);
    turn
}

/// 64 streams, 10,000 operations and 200 more each, given by four threads. Each stream fills and copies cells of its own, so that its
/// end tells whether its operations stayed in order, and hands a number of cells to the next stream, behind an event.
fn many_streams(schedule: Schedule, check: Check) {
    let config = Config {
        schedule,
        // Half a microsecond is no delay for a clock; a hand from one thread to another is.
        random_delay: Duration::from_nanos(500),
        ..Config::devices(1, 1 << 30)
    };
    let _turn = loaded(config, check);
    let start = Instant::now();
    let row = (OPERATIONS / HAND_OVER + 1) * CELL;
    let [own, copies, given] = [(); 3].map(|()| malloc(STREAMS * row) as usize);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let place =
                    |base: usize, s: usize, cell: usize| at(base as Pointer, s * row + cell * CELL);
                let all: Vec<usize> = (thread * STREAMS / 4..(thread + 1) * STREAMS / 4).collect();
                let streams: Vec<_> = all.iter().map(|_| stream()).collect();
                let e = event();
                for i in 0..OPERATIONS {
                    for (k, &s) in all.iter().enumerate() {
                        let (cell, value) = (i / HAND_OVER, (i + s) as i32);
                        let set = || {
                            let p = place(own, s, cell);
                            assert_eq!(cuda!(cudaMemsetAsync(p, value, CELL, streams[k])), 0);
                        };
                        match i % HAND_OVER {
                            // The last fill of a cell: the next stream gets it, with a wait and a copy.
                            98 => {
                                set();
                                let next = streams[(k + 1) % all.len()];
                                record(e, streams[k]);
                                wait(next, e);
                                copy(place(given, s, cell), place(own, s, cell), CELL, next);
                            }
                            99 => {}
                            j if j % 2 == 0 => set(),
                            _ => copy(
                                place(copies, s, cell),
                                place(own, s, cell),
                                CELL,
                                streams[k],
                            ),
                        }
                    }
                }
                for s in streams {
                    sync(s);
                    assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
                }
                for &s in &all {
                    for cell in 0..OPERATIONS / HAND_OVER {
                        let last = cell * HAND_OVER + s;
                        for (base, value) in
                            [(own, last + 98), (copies, last + 96), (given, last + 98)]
                        {
                            assert_eq!(
                                read_device(place(base, s, cell), CELL),
                                [value as u8; CELL],
                                "stream {s}, cell {cell}"
                            );
                        }
                    }
                }
            });
        }
    });
    cudart_sim::expect_clean();
    println!(
        "{schedule:?}, {check:?}: {:.1} s, {:?}",
        start.elapsed().as_secs_f64(),
        checker_size()
    );
    cudart_sim::check(Check::Off);
}

macro_rules! many_streams {
    ($($name:ident: $schedule:expr, $check:expr;)*) => {
        $(#[test] fn $name() { many_streams($schedule, $check); })*
    };
}

many_streams! {
    sixty_four_streams_of_10_000_operations_stay_in_order_eagerly: Schedule::Eager, Check::Off;
    sixty_four_streams_of_10_000_operations_stay_in_order_lazily: Schedule::Lazy, Check::Off;
    sixty_four_streams_of_10_000_operations_stay_in_order_at_random: Schedule::Random(3), Check::Off;
    sixty_four_streams_of_10_000_operations_are_checked_eagerly: Schedule::Eager, Check::Report;
    sixty_four_streams_of_10_000_operations_are_checked_lazily: Schedule::Lazy, Check::Report;
    sixty_four_streams_of_10_000_operations_are_checked_at_random: Schedule::Random(3), Check::Report;
}

/// What one of a thousand threads does: streams, events, both kinds of copies, its own default stream.
fn one_of_many(n: usize, source: Pointer) {
    let (s, e) = (stream(), event());
    let (d, h) = (malloc(K), pinned(K));
    // Pageable memory to the device on the thread's own default stream; back through page-locked memory behind an event.
    let bytes = [n as u8; K];
    copy(d, bytes.as_ptr().cast_mut().cast(), K, PER_THREAD);
    record(e, PER_THREAD);
    wait(s, e);
    copy(h, d, K, s);
    record(e, s);
    until(|| {
        // A thousand threads that ask without a pause would leave nobody to do the work.
        std::thread::sleep(Duration::from_millis(1));
        cuda!(cudaEventQuery(e))
    });
    // SAFETY: 1 KiB of page-locked memory of this thread's, and the copy into it is done.
    let back = unsafe { std::slice::from_raw_parts(h.cast::<u8>(), K) };
    assert_eq!(back, bytes);
    // What all of them read.
    copy(d, source, K, s);
    sync(s);
    assert_eq!(read_device(d, K), [7; K]);
    assert_eq!(cuda!(cudaFreeAsync(malloc_async(K, s), s)), 0);
    assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
    assert_eq!(cuda!(cudaEventDestroy(e)), 0);
    assert_eq!(cuda!(cudaFree(d)), 0);
    assert_eq!(cuda!(cudaFreeHost(h)), 0);
}

#[test]
fn a_thousand_threads_at_once_get_what_is_theirs() {
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(9)] {
        let config = Config {
            schedule,
            patience: Duration::from_millis(50),
            random_delay: Duration::from_micros(20),
            ..Config::devices(1, 1 << 30)
        };
        let _turn = loaded(config, Check::Off);
        let start = Instant::now();
        let source = malloc(K) as usize;
        assert_eq!(cuda!(cudaMemset(source as Pointer, 7, K)), 0);
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        let all = Barrier::new(1_000);
        std::thread::scope(|scope| {
            for n in 0..1_000 {
                let all = &all;
                let thread = std::thread::Builder::new().stack_size(128 << 10);
                thread
                    .spawn_scoped(scope, move || {
                        all.wait();
                        one_of_many(n, source as Pointer);
                    })
                    .unwrap();
            }
        });
        let info = cudart_sim::memory_info(0).unwrap();
        assert_eq!((info.blocks, info.pool_blocks), ((1, K as u64), (0, 0)));
        println!("{schedule:?}: {:.1} s", start.elapsed().as_secs_f64());
    }
}

#[test]
fn a_hundred_thousand_live_events_are_recorded_asked_waited_for_and_destroyed() {
    const EVENTS: usize = 100_000;
    for check in [Check::Off, Check::Report] {
        let _turn = loaded(Config::default(), check);
        let start = Instant::now();
        let streams: Vec<_> = (0..16).map(|_| stream()).collect();
        let d = malloc(K);
        // One stream is held up, so that the answers differ.
        let gate = Gate::on(streams[0]);
        let events: Vec<usize> = (0..EVENTS).map(|_| event() as usize).collect();
        assert_eq!(events.iter().collect::<HashSet<_>>().len(), EVENTS);
        for (i, e) in events.iter().enumerate() {
            // The held stream takes no more than its queue holds.
            let s = if i < 500 { 0 } else { 1 + i % 15 };
            record(*e as _, streams[s]);
        }
        let answers = |want: &dyn Fn(usize) -> u32| {
            for (i, e) in events.iter().enumerate() {
                assert_eq!(cuda!(cudaEventQuery(*e as _)), want(i), "event {i}");
            }
        };
        answers(&|i| if i < 500 { 600 } else { 0 });
        for (i, e) in events.iter().enumerate().skip(500) {
            wait(streams[1 + i % 15], *e as _);
        }
        gate.open();
        for e in &events {
            assert_eq!(cuda!(cudaEventSynchronize(*e as _)), 0);
        }
        answers(&|_| 0);
        fill(d, K, streams[3]);
        for e in &events {
            assert_eq!(cuda!(cudaEventDestroy(*e as _)), 0);
        }
        // Handles are used again, the last destroyed first.
        let again = event() as usize;
        assert_eq!(Some(&again), events.last());
        println!(
            "{check:?}: {:.1} s, {:?}",
            start.elapsed().as_secs_f64(),
            checker_size()
        );
        cudart_sim::expect_clean();
        cudart_sim::check(Check::Off);
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    }
}

#[test]
fn ten_thousand_short_lived_streams_leave_no_clocks_and_use_handles_again() {
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(4)] {
        let config = Config {
            schedule,
            random_delay: Duration::from_micros(20),
            ..Config::default()
        };
        let _turn = loaded(config, Check::Report);
        let start = Instant::now();
        let (d, h) = (malloc(1 << 20), pinned(1 << 20));
        let (mut handles, mut ids) = (HashSet::new(), HashSet::new());
        // Destroyed while busy; the host hears of every tenth.
        for i in 0..10_000 {
            let s = stream();
            handles.insert(s as usize);
            assert!(ids.insert(id(s)));
            let place = i % 1_000 * K;
            if i >= 1_000 && i % 1_000 == 0 {
                assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
            }
            copy(at(d, place), at(h, place), K, s);
            if i % 10 == 0 {
                sync(s);
            }
            assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
        }
        assert_eq!(handles.len(), 1, "each was gone when the next one came");
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        // One more stream finds the places of those that the host knows to be done.
        fill(d, K, stream());
        let size = checker_size();
        println!(
            "{schedule:?}: {:.1} s, {size:?}",
            start.elapsed().as_secs_f64()
        );
        assert!(size.clocks <= 1_100 && size.ranges <= 2_100, "{size:?}");
        cudart_sim::expect_clean();
        cudart_sim::check(Check::Off);
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn three_devices_of_139_gib_are_filled_and_commit_only_what_is_copied() {
    const GIB: usize = 1 << 30;
    let _turn = loaded(Config::devices(3, 139 * GIB), Check::Off);
    let start = Instant::now();
    let before = resident();
    let mut devices = Vec::new();
    for device in 0..3 {
        assert_eq!(cuda!(cudaSetDevice(device)), 0);
        let p = malloc(139 * GIB);
        let (mut free, mut total) = (0, 0);
        assert_eq!(cuda!(cudaMemGetInfo(&mut free, &mut total)), 0);
        assert_eq!((free, total), (0, 139 * GIB));
        assert_eq!(cuda!(cudaMalloc(&mut null_mut(), 1)), 2);
        assert_eq!(cuda!(cudaMemset(p, 0xA0 + device, 139 * GIB)), 0);
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        devices.push((p, 0xA0 + device as u8));
    }
    let corners = [0, 4096 - 7, 2 << 20, 70 * GIB + 13, 139 * GIB - K];
    for (n, &(p, value)) in devices.iter().enumerate() {
        assert_eq!(cuda!(cudaSetDevice(n as i32)), 0);
        for (i, corner) in corners.into_iter().enumerate() {
            let bytes = [(n * 16 + i) as u8; K];
            assert_eq!(
                cuda!(cudaMemcpy(at(p, corner), bytes.as_ptr().cast(), K, H2D)),
                0
            );
        }
        for (i, corner) in corners.into_iter().enumerate() {
            assert_eq!(read_device(at(p, corner), K), [(n * 16 + i) as u8; K]);
            for beside in [corner.checked_sub(1), corner.checked_add(K)] {
                if let Some(beside) = beside.filter(|b| *b < 139 * GIB) {
                    assert_eq!(
                        read_device(at(p, beside), 1),
                        [value],
                        "device {n}, byte {beside}"
                    );
                }
            }
        }
    }
    // From device to device, and past the end.
    let ((a, _), (b, _)) = (devices[0], devices[2]);
    assert_eq!(cuda!(cudaMemcpy(at(b, 100 * GIB), a, K, ANY)), 0);
    assert_eq!(read_device(at(b, 100 * GIB), K), [0; K]);
    assert_eq!(cuda!(cudaMemset(at(a, GIB), 0, 138 * GIB + 1)), 1);
    let grown = resident().saturating_sub(before);
    println!(
        "{:.1} s, {} KiB more",
        start.elapsed().as_secs_f64(),
        grown >> 10
    );
    assert!(grown < 64 << 20, "{grown} bytes more are resident");
}
