//! Streams and events: order between them, the default streams, handles, full queues.

mod common;
use common::*;
use cudart_sim::{Schedule, sys};
use std::ptr::null_mut;
use std::time::Duration;

#[test]
fn a_handle_is_reused_by_the_next_stream_and_an_id_never_is() {
    let _turn = machine();
    let a = blocking_stream();
    let first = id(a);
    assert_eq!(cuda!(cudaStreamDestroy(a)), 0);
    let b = blocking_stream();
    assert_eq!(a, b);
    assert_ne!(first, id(b));
    assert_eq!(id(null_mut()), id(LEGACY));
    let mine = id(PER_THREAD);
    assert_eq!(mine, id(PER_THREAD));
    let theirs = std::thread::spawn(|| id(PER_THREAD)).join().unwrap();
    assert_ne!(mine, theirs);
}

#[test]
fn a_dead_handle_is_answered_with_400() {
    let _turn = machine();
    let (s, e) = (stream(), event());
    let mut n = 0;
    cuda!(cudaStreamDestroy(s));
    assert_eq!(cuda!(cudaStreamGetId(s, &mut n)), 400);
    assert_eq!(cuda!(cudaEventRecord(e, s)), 400);
    assert_eq!(cuda!(cudaStreamQuery(s)), 400);
    assert_eq!(cuda!(cudaFreeAsync(null_mut(), s)), 400);
    assert_eq!(cuda!(cudaStreamDestroy(s)), 400);
    cuda!(cudaEventDestroy(e));
    assert_eq!(cuda!(cudaEventQuery(e)), 400);
    assert_eq!(cuda!(cudaStreamDestroy(null_mut())), 400);
}

#[test]
fn an_event_orders_one_stream_behind_another() {
    under_every_schedule(|| {
        let (a, b, e) = (stream(), stream(), event());
        let d = malloc(1 << 20);
        let gate = Gate::on(a);
        cuda!(cudaMemsetAsync(d, 1, 1 << 20, a));
        cuda!(cudaEventRecord(e, a));
        cuda!(cudaStreamWaitEvent(b, e, 0));
        cuda!(cudaMemsetAsync(d, 2, 1 << 20, b));
        assert_eq!(cuda!(cudaStreamQuery(b)), 600);
        gate.open();
        cuda!(cudaStreamSynchronize(b));
        assert_eq!(cuda!(cudaStreamQuery(a)), 0);
        assert_eq!(cudart_sim::read_device(d, 1 << 20), vec![2; 1 << 20]);
    });
}

#[test]
fn a_wait_is_for_the_record_that_it_found() {
    under_every_schedule(|| {
        let (a, b, c, e) = (stream(), stream(), stream(), event());
        cuda!(cudaEventRecord(e, a));
        cuda!(cudaStreamWaitEvent(b, e, 0));
        let gate = Gate::on(c);
        cuda!(cudaEventRecord(e, c));
        assert_eq!(
            cuda!(cudaStreamSynchronize(b)),
            0,
            "the later record is another matter"
        );
        assert_eq!(cuda!(cudaEventQuery(e)), 600);
        gate.open();
        assert_eq!(cuda!(cudaEventSynchronize(e)), 0);
    });
}

#[test]
fn a_record_on_the_legacy_stream_is_a_barrier_between_blocking_streams() {
    under_every_schedule(|| {
        let (b1, b2, e) = (blocking_stream(), blocking_stream(), event());
        let d = malloc(64);
        let memset = || {
            cuda!(cudaMemsetAsync(d, 0, 64, b2));
            cuda!(cudaStreamSynchronize(b2))
        };
        does_not_wait_for(b1, memset);
        waits_for(b1, || {
            cuda!(cudaEventRecord(e, LEGACY));
            memset()
        });
        waits_for(b1, || {
            // The event is done or not yet: it does not matter.
            cuda!(cudaStreamWaitEvent(null_mut(), e, 0));
            memset()
        });
        does_not_wait_for(b1, || {
            cuda!(cudaEventRecord(e, PER_THREAD));
            memset()
        });
    });
}

#[test]
fn elapsed_time_is_measured_between_two_records() {
    under_every_schedule(|| {
        let s = stream();
        let (mut a, mut b) = (null_mut(), null_mut());
        cuda!(cudaEventCreate(&mut a));
        cuda!(cudaEventCreate(&mut b));
        let mut ms = -1.0;
        assert_eq!(
            cuda!(cudaEventElapsedTime(&mut ms, a, b)),
            400,
            "never recorded"
        );
        cuda!(cudaEventRecord(a, s));
        stall(s, 30);
        cuda!(cudaEventRecord(b, s));
        assert_eq!(cuda!(cudaEventElapsedTime(&mut ms, a, b)), 600);
        cuda!(cudaStreamSynchronize(s));
        assert_eq!(cuda!(cudaEventElapsedTime(&mut ms, a, b)), 0);
        assert!((29.0..500.0).contains(&ms), "{ms}");
        let plain = event();
        cuda!(cudaEventRecord(plain, s));
        cuda!(cudaEventSynchronize(plain));
        assert_eq!(cuda!(cudaEventElapsedTime(&mut ms, a, plain)), 400);
    });
}

#[test]
fn a_full_stream_makes_its_caller_wait_and_others_not() {
    let depth = 20;
    let _turn = machine().with(|c| c.queue_depth = depth);
    let (a, b, e) = (stream(), stream(), event());
    let d = malloc(256) as usize;
    let gate = Gate::on(a);
    let took = milliseconds(|| {
        for _ in 0..depth {
            cuda!(cudaMemsetAsync(d as *mut _, 0, 256, a));
        }
    });
    assert!(took < 1000);
    let a = a as usize;
    let stuck = std::thread::spawn(move || {
        cuda!(cudaMemsetAsync(d as *mut _, 0, 256, a as *mut _));
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!stuck.is_finished());
    assert_eq!(cuda!(cudaEventRecord(e, b)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(b)), 0);
    assert_eq!(cuda!(cudaEventQuery(e)), 0);
    let held_up = std::thread::spawn(|| {
        event();
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(
        !held_up.is_finished(),
        "cudaEventCreate is held up while somebody is stuck"
    );
    gate.open();
    stuck.join().unwrap();
    held_up.join().unwrap();
}

#[test]
fn lazy_work_starts_when_it_is_asked_for() {
    let _turn = machine().schedule(Schedule::Lazy);
    let (a, b, e) = (stream(), stream(), event());
    let d = malloc(64);
    cuda!(cudaMemset(d, 0, 64));
    cuda!(cudaDeviceSynchronize());
    cuda!(cudaMemsetAsync(d, 1, 64, a));
    cuda!(cudaEventRecord(e, a));
    cuda!(cudaStreamWaitEvent(b, e, 0));
    cuda!(cudaMemsetAsync(d.wrapping_byte_add(32), 2, 32, b));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(cudart_sim::read_device(d, 64), [0; 64], "nobody has asked");
    assert_eq!(cuda!(cudaStreamQuery(b)), 600);
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while cuda!(cudaStreamQuery(b)) == 600 {
        assert!(std::time::Instant::now() < deadline);
    }
    let bytes = cudart_sim::read_device(d, 64);
    assert_eq!((&bytes[..32], &bytes[32..]), (&[1; 32][..], &[2; 32][..]));
}

#[test]
fn lazy_work_that_nobody_asks_for_runs_in_the_end() {
    let _turn = machine().with(|c| {
        c.schedule = Schedule::Lazy;
        c.patience = Duration::from_millis(30);
    });
    let d = malloc(64);
    cuda!(cudaMemsetAsync(d, 1, 64, stream()));
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while cudart_sim::read_device(d, 64) != [1; 64] {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn many_short_lived_streams_leave_nothing_behind() {
    under_every_schedule(|| {
        let d = malloc(2_000 << 10);
        for i in 0..2_000 {
            let s = stream();
            cuda!(cudaMemsetAsync(d.wrapping_byte_add(i << 10), 1, 1 << 10, s));
            cuda!(cudaStreamDestroy(s));
        }
        cuda!(cudaDeviceSynchronize());
        let threads = std::fs::read_dir("/proc/self/task").map_or(0, |d| d.count());
        assert!(threads < 100, "{threads}");
    });
}

#[test]
fn streams_tell_their_flags_priority_and_device() {
    let _turn = machine();
    let (mut least, mut greatest) = (1, 1);
    assert_eq!(
        cuda!(cudaDeviceGetStreamPriorityRange(&mut least, &mut greatest)),
        0
    );
    assert!(greatest < least);
    let mut s = null_mut();
    assert_eq!(
        cuda!(cudaStreamCreateWithPriority(
            &mut s,
            sys::cudaStreamNonBlocking,
            -99
        )),
        0
    );
    let (mut flags, mut priority, mut device) = (9, 9, 9);
    cuda!(cudaStreamGetFlags(s, &mut flags));
    cuda!(cudaStreamGetPriority(s, &mut priority));
    cuda!(cudaStreamGetDevice(s, &mut device));
    assert_eq!((flags, priority, device), (1, greatest, 0));
    assert_eq!(cuda!(cudaStreamCreateWithFlags(&mut s, 77)), 1);
}

#[test]
fn a_kernel_sees_its_ranges_and_nothing_else() {
    under_every_schedule(|| {
        let s = stream();
        let (a, b) = (malloc(1 << 20), malloc(1 << 20));
        cuda!(cudaMemsetAsync(a, 3, 1 << 20, s));
        cuda!(cudaMemsetAsync(b, 1, 1 << 20, s));
        let code = cudart_sim::launch(s, &[(a, 1 << 20)], &[(b, 1 << 20)], |k| {
            for (x, y) in k.writes[0].iter_mut().zip(&k.reads[0]) {
                *x += y;
            }
        });
        assert_eq!(code.0, 0);
        cuda!(cudaStreamSynchronize(s));
        assert_eq!(cudart_sim::read_device(b, 1 << 20), vec![4; 1 << 20]);
        assert_eq!(
            cudart_sim::launch(s, &[(a, (1 << 20) + 1)], &[], |_| {}).0,
            1
        );
        cuda!(cudaGetLastError());
    });
}
