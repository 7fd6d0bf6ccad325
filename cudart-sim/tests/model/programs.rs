//! The programs, each with what must hold under every schedule.

use crate::explore::{MACHINE, Machine, all, drawn};
use crate::show::*;
use cudart_sim::{Schedule, model, sys};
use shuttle::thread;
use std::ptr::null_mut;

const LAZY: Machine = Machine {
    when: Schedule::Lazy,
    ..MACHINE
};

fn one_stream() {
    let (s, log) = (stream(), Log::default());
    log.on(s.raw(), 1);
    ok!(cudaStreamSynchronize(s.raw()));
    assert_eq!(log.get(), [1]);
}

#[test]
fn a_synchronisation_returns_after_the_work_which_ran_once() {
    all("one stream", 4, MACHINE, one_stream);
    all("one stream, lazy", 3, LAZY, one_stream);
    let ticking = Machine {
        ticks: 2,
        ..MACHINE
    };
    all("one stream, time passing", 2, ticking, one_stream);
}

fn two_rounds() {
    let (s, log) = (stream(), Log::default());
    for n in 1..=2 {
        log.on(s.raw(), n);
        ok!(cudaStreamSynchronize(s.raw()));
    }
    assert_eq!(log.get(), [1, 2]);
}

/// With `idle` counted wrongly, or a time-out that takes the place of a wake-up, the second round hangs.
#[test]
fn an_idle_worker_is_woken_whether_or_not_its_time_passes_meanwhile() {
    all("two rounds", 3, MACHINE, two_rounds);
    let ticking = Machine {
        ticks: 1,
        ..MACHINE
    };
    all("two rounds, time passing", 3, ticking, two_rounds);
    let often = Machine {
        ticks: 4,
        ..MACHINE
    };
    drawn("two rounds, time passing often", often, two_rounds);
}

fn two_streams() {
    let (a, b, e, log) = (stream(), stream(), event(), Log::default());
    log.on(a.raw(), 1);
    ok!(cudaEventRecord(e.raw(), a.raw()));
    ok!(cudaStreamWaitEvent(b.raw(), e.raw(), 0));
    log.on(b.raw(), 2);
    log.on(a.raw(), 3);
    ok!(cudaStreamSynchronize(b.raw()));
    let seen = log.get();
    let places = [1, 2].map(|n| seen.iter().position(|x| *x == n));
    assert!(places[0].is_some() && places[0] < places[1], "{seen:?}");
    ok!(cudaStreamSynchronize(a.raw()));
    assert_eq!(log.get().len(), 3);
}

#[test]
fn an_event_orders_two_streams_and_the_wait_for_one_is_no_wait_for_the_other() {
    all("two streams", 2, MACHINE, two_streams);
    all("two streams, lazy", 2, LAZY, two_streams);
    drawn(
        "two streams",
        Machine {
            ticks: 2,
            ..MACHINE
        },
        two_streams,
    );
    drawn(
        "two streams, lazy",
        Machine { ticks: 2, ..LAZY },
        two_streams,
    );
}

fn two_waiters() {
    let (s, e, log) = (stream(), event(), Log::default());
    log.on(s.raw(), 1);
    ok!(cudaEventRecord(e.raw(), s.raw()));
    log.on(s.raw(), 2);
    let theirs = log.clone();
    let other = thread::spawn(move || {
        ok!(cudaEventSynchronize(e.raw()));
        assert_eq!(theirs.get().first(), Some(&1));
    });
    ok!(cudaStreamSynchronize(s.raw()));
    assert_eq!(log.get(), [1, 2]);
    other.join().unwrap();
}

#[test]
fn two_host_threads_that_wait_for_one_stream_are_both_woken() {
    all("two waiters", 2, MACHINE, two_waiters);
    drawn("two waiters", MACHINE, two_waiters);
    drawn("two waiters, lazy", LAZY, two_waiters);
}

fn asker_and_waiter() {
    let (s, log) = (stream(), Log::default());
    log.on(s.raw(), 1);
    let other = thread::spawn(move || ok!(cudaStreamSynchronize(s.raw())));
    // SAFETY: a live stream.
    while unsafe { cudart_sim::sys::cudaStreamQuery(s.raw()) }.0 == 600 {
        thread::yield_now();
    }
    assert_eq!(log.get(), [1]);
    other.join().unwrap();
}

#[test]
fn somebody_who_asks_does_not_take_the_wake_up_of_somebody_who_waits() {
    all("asker and waiter", 2, MACHINE, asker_and_waiter);
    drawn("asker and waiter, lazy", LAZY, asker_and_waiter);
}

fn full_queue() {
    let (s, log) = (stream(), Log::default());
    let (theirs, also) = (log.clone(), log.clone());
    let submitter = thread::spawn(move || (0..3).for_each(|n| theirs.on(s.raw(), n)));
    let second = thread::spawn(move || (10..12).for_each(|n| also.on(s.raw(), n)));
    // Both are held up while anybody is stuck on a full stream.
    ok!(cudaEventDestroy(event().raw()));
    ok!(cudaStreamDestroy(stream().raw()));
    submitter.join().unwrap();
    second.join().unwrap();
    ok!(cudaStreamSynchronize(s.raw()));
    let seen = log.get();
    let of = |from: u32| {
        seen.iter()
            .copied()
            .filter(|n| n / 10 == from / 10)
            .collect::<Vec<_>>()
    };
    assert_eq!((of(0), of(10)), (vec![0, 1, 2], vec![10, 11]));
}

#[test]
fn whoever_is_stuck_on_a_full_queue_goes_on_and_so_do_those_held_up_by_that() {
    let small = Machine {
        queue: 1,
        ..MACHINE
    };
    drawn("full queue", small.clone(), full_queue);
    drawn(
        "full queue, lazy",
        Machine {
            when: Schedule::Lazy,
            ..small.clone()
        },
        full_queue,
    );
    let ticking = Machine { ticks: 3, ..small };
    drawn("full queue, time passing", ticking, full_queue);
}

fn destroyed_while_full() {
    let (s, log) = (stream(), Log::default());
    let gate = log.clone();
    host(s.raw(), move || {
        while gate.get().is_empty() {
            thread::yield_now();
        }
    });
    log.on(s.raw(), 2);
    let theirs = log.clone();
    let stuck = thread::spawn(move || {
        let log = theirs.clone();
        // The stream goes meanwhile: refused, or done.
        try_host(s.raw(), move || log.add(3))
    });
    while model::counts().blocked_on_full == 0 {
        thread::yield_now();
    }
    ok!(cudaStreamDestroy(s.raw()));
    log.add(1);
    let answer = stuck.join().unwrap();
    ok!(cudaDeviceSynchronize());
    match answer {
        0 => assert_eq!(log.get(), [1, 2, 3]),
        code => assert_eq!((code, log.get()), (400, vec![1, 2])),
    }
}

#[test]
fn a_stream_that_is_destroyed_under_somebody_who_waits_for_room_holds_nobody_up() {
    let small = Machine {
        queue: 1,
        ..MACHINE
    };
    drawn("destroyed while full", small, destroyed_while_full);
}

fn destroyed() {
    let (s, log) = (stream(), Log::default());
    log.on(s.raw(), 1);
    log.on(s.raw(), 2);
    ok!(cudaStreamDestroy(s.raw()));
    let again = stream();
    log.on(again.raw(), 3);
    ok!(cudaDeviceSynchronize());
    let seen = log.get();
    assert_eq!(
        seen.iter().copied().filter(|n| *n < 3).collect::<Vec<_>>(),
        [1, 2]
    );
    assert!(seen.contains(&3));
}

#[test]
fn the_work_of_a_destroyed_stream_is_done_and_its_place_is_another_streams() {
    all("destroyed", 2, MACHINE, destroyed);
    drawn("destroyed", MACHINE, destroyed);
    drawn("destroyed, lazy", LAZY, destroyed);
}

fn per_thread() {
    let log = Log::default();
    let threads: Vec<_> = (0..2)
        .map(|n| {
            let log = log.clone();
            thread::spawn(move || {
                log.on(PER_THREAD, n);
                if n == 0 {
                    ok!(cudaStreamSynchronize(PER_THREAD));
                    assert!(log.get().contains(&0));
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    ok!(cudaDeviceSynchronize());
    assert_eq!(log.get().len(), 2);
}

#[test]
fn a_thread_that_ends_leaves_the_work_of_its_own_stream_to_be_done() {
    drawn("per-thread streams", MACHINE, per_thread);
    drawn(
        "per-thread streams, lazy",
        Machine { ticks: 2, ..LAZY },
        per_thread,
    );
}

fn barriers() {
    let (a, b, log) = (blocking_stream(), blocking_stream(), Log::default());
    log.on(a.raw(), 1);
    log.on(null_mut(), 2);
    log.on(b.raw(), 3);
    ok!(cudaStreamSynchronize(b.raw()));
    assert_eq!(log.get(), [1, 2, 3]);
}

#[test]
fn the_legacy_stream_is_a_barrier_between_blocking_streams() {
    all("legacy stream", 1, MACHINE, barriers);
    drawn("legacy stream", MACHINE, barriers);
    drawn("legacy stream, lazy", LAZY, barriers);
}

fn wait_for_each_other() {
    let (a, b, log) = (stream(), stream(), Log::default());
    for (s, mine, theirs) in [(a, 1, 2), (b, 2, 1)] {
        let log = log.clone();
        host(s.raw(), move || {
            log.add(mine);
            while !log.get().contains(&theirs) {
                thread::yield_now();
            }
        });
    }
    ok!(cudaDeviceSynchronize());
    assert_eq!(log.get().len(), 2);
}

#[test]
fn host_functions_that_wait_for_one_another_each_have_a_thread() {
    all("host functions that wait", 1, MACHINE, wait_for_each_other);
    drawn(
        "host functions that wait",
        Machine {
            ticks: 1,
            ..MACHINE
        },
        wait_for_each_other,
    );
}

fn polled_flag() {
    let (s, log) = (stream(), Log::default());
    log.on(s.raw(), 1);
    while log.get().is_empty() {
        model::pass_time();
        thread::yield_now();
    }
    log.on(s.raw(), 2);
    ok!(cudaStreamSynchronize(s.raw()));
}

#[test]
fn work_that_nobody_asks_for_runs_when_patience_is_at_its_end() {
    all("a polled flag, lazy", 1, LAZY, polled_flag);
    drawn("a polled flag, lazy", LAZY, polled_flag);
}

fn changing_schedule() {
    let (s, log) = (stream(), Log::default());
    log.on(s.raw(), 1);
    let theirs = log.clone();
    let other = thread::spawn(move || {
        theirs.on(s.raw(), 2);
        ok!(cudaStreamSynchronize(s.raw()));
    });
    cudart_sim::set_schedule(Schedule::Eager);
    other.join().unwrap();
    cudart_sim::set_schedule(Schedule::Random(3));
    log.on(s.raw(), 3);
    cudart_sim::set_schedule(Schedule::Lazy);
    ok!(cudaDeviceSynchronize());
    assert_eq!(log.get(), [1, 2, 3]);
}

#[test]
fn the_schedule_may_change_under_waiting_work() {
    drawn("changing schedule", LAZY, changing_schedule);
}

/// The two copies meet inside a page, of which so far it was only noted that it is filled.
fn neighbours() {
    const HALF: usize = 40_000;
    let (a, b) = (stream(), stream());
    let mut d = null_mut();
    ok!(cudaMalloc(&mut d, 1 << 20));
    ok!(cudaMemset(d, 7, 1 << 20));
    ok!(cudaDeviceSynchronize());
    for (s, at, value) in [(a, 0, 1u8), (b, HALF, 2)] {
        let source = vec![value; HALF];
        let (to, from) = (d.wrapping_byte_add(at), source.as_ptr().cast());
        let kind = sys::cudaMemcpyKind::cudaMemcpyHostToDevice;
        ok!(cudaMemcpyAsync(to, from, HALF, kind, s.raw()));
    }
    ok!(cudaStreamSynchronize(a.raw()));
    assert!(cudart_sim::read_device(d, HALF) == [1; HALF]);
    ok!(cudaStreamSynchronize(b.raw()));
    let seen = cudart_sim::read_device(d, 2 * HALF + 1);
    assert!(seen[..HALF] == [1; HALF] && seen[HALF..2 * HALF] == [2; HALF]);
    assert_eq!(seen.last(), Some(&7));
    ok!(cudaFree(d));
}

#[test]
fn copies_to_neighbouring_bytes_do_not_disturb_each_other() {
    all("neighbouring bytes", 1, MACHINE, neighbours);
    drawn("neighbouring bytes", MACHINE, neighbours);
}

fn first_calls() {
    let threads: Vec<_> = (0..2)
        .map(|_| thread::spawn(|| stream().raw() as usize))
        .collect();
    let handles: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert_ne!(handles[0], handles[1]);
}

#[test]
fn two_threads_may_make_the_first_call() {
    drawn("first calls", MACHINE, first_calls);
}

fn many() {
    let (streams, log) = ([stream(), stream(), stream()], Log::default());
    let threads: Vec<_> = (0..2u32)
        .map(|t| {
            let log = log.clone();
            thread::spawn(move || {
                for n in 0..3u32 {
                    log.on(streams[(t + n) as usize % 3].raw(), t * 3 + n);
                }
                ok!(cudaStreamSynchronize(streams[t as usize].raw()));
            })
        })
        .collect();
    ok!(cudaStreamSynchronize(streams[2].raw()));
    for t in threads {
        t.join().unwrap();
    }
    ok!(cudaDeviceSynchronize());
    let mut seen = log.get();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn all_work_of_several_threads_and_streams_is_done() {
    drawn(
        "many",
        Machine {
            ticks: 4,
            ..MACHINE
        },
        many,
    );
    drawn("many, lazy", Machine { ticks: 2, ..LAZY }, many);
    drawn(
        "many, delayed",
        Machine {
            when: Schedule::Random(7),
            ..MACHINE
        },
        many,
    );
}

#[test]
fn a_host_function_that_waits_for_work_without_a_thread_goes_on() {
    let poor = Machine {
        threads: 1,
        ..MACHINE
    };
    all(
        "one thread, host functions that wait",
        1,
        poor.clone(),
        wait_for_each_other,
    );
    drawn(
        "one thread, host functions that wait",
        poor,
        wait_for_each_other,
    );
}

#[test]
fn where_the_system_grants_no_threads_whoever_waits_does_the_work() {
    for threads in 0..3 {
        let poor = Machine { threads, ..MACHINE };
        all("no threads, two waiters", 2, poor.clone(), two_waiters);
        drawn("no threads, two streams", poor.clone(), two_streams);
        drawn(
            "no threads, many",
            Machine {
                ticks: 3,
                ..poor.clone()
            },
            many,
        );
        drawn(
            "no threads, full queue",
            Machine {
                queue: 1,
                ..poor.clone()
            },
            full_queue,
        );
        drawn(
            "no threads, lazy",
            Machine {
                when: Schedule::Lazy,
                ..poor
            },
            many,
        );
    }
}
