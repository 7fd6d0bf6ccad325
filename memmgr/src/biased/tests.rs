//! Tests of the lock: one thread inside, whoever has the bias or had it.

use super::*;
use std::sync::{Barrier, atomic::AtomicUsize};

/// Rounds in which one thread after the other has the lock alone for long, and others break in.
#[test]
fn one_thread_at_a_time_is_inside_whoever_has_the_bias() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 40;
    const ALONE: usize = 20_000;
    let counter = Biased::new((0u64, 0u64));
    let (start, biased) = (Barrier::new(THREADS), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (counter, start, biased) = (&counter, &start, &biased);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    start.wait();
                    let mine = round % THREADS == number;
                    for _ in 0..if mine { ALONE } else { 20 } {
                        let mut guard = counter.lock();
                        if guard.mutex.is_none() {
                            biased.fetch_add(1, Relaxed);
                        }
                        // Two steps, which another thread inside would tear apart.
                        guard.0 += 1;
                        hint::black_box(&mut *guard);
                        assert_eq!(guard.0, guard.1 + 1);
                        guard.1 += 1;
                        drop(guard);
                        if !mine {
                            thread::sleep(Duration::from_micros(50));
                        }
                    }
                }
            });
        }
    });
    let expected = (ROUNDS * (ALONE + (THREADS - 1) * 20)) as u64;
    assert_eq!(*counter.lock(), (expected, expected));
    let biased = biased.load(Relaxed);
    assert_eq!(biased > 0, barrier::is_there(), "{biased} of {expected}");
}

/// Takes the lock until the bias is this thread's; the bias.
fn acquire_bias(lock: &Biased<u32>) -> u64 {
    for _ in 0..PATIENCE << (MOST_DOUBLINGS + 1) {
        drop(lock.lock());
        let bias = lock.bias.0.load(Relaxed);
        if bias >> FLAG_BITS == me() {
            return bias;
        }
    }
    panic!("the bias does not come");
}

/// A thread that was stopped behind its look at the bias goes on when another one has the bias and is inside: that one is
/// waited for all the same.
#[test]
fn a_thread_that_comes_late_hides_nobody() {
    if !barrier::is_there() {
        return;
    }
    let lock = &Biased::new(0u32);
    let late = acquire_bias(lock);
    let (inside, go_on) = (&Barrier::new(2), &Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            acquire_bias(lock);
            let mut guard = lock.lock();
            assert!(guard.mutex.is_none());
            inside.wait();
            go_on.wait();
            *guard = 1;
        });
        inside.wait();
        assert!(lock.enter_with(late).is_none());
        let third = scope.spawn(|| *lock.lock());
        thread::sleep(Duration::from_millis(50));
        assert!(!third.is_finished(), "two threads are inside");
        go_on.wait();
        assert_eq!(third.join().unwrap(), 1);
    });
}

/// More threads than there are flags get the bias one after the other, and come again.
#[test]
fn flags_come_back_from_threads_that_do() {
    let lock = &Biased::new(0u32);
    if !barrier::is_there() {
        return;
    }
    acquire_bias(lock);
    for _ in 0..3 {
        thread::scope(|scope| scope.spawn(|| acquire_bias(lock)).join().unwrap());
        acquire_bias(lock);
    }
    let turns = lock.lock_to_wait();
    let turns = turns.mutex.as_ref().unwrap();
    let count = |is: &dyn Fn(u64) -> bool| turns.flags.iter().filter(|id| is(**id)).count();
    assert_eq!((count(&|id| id == me()), count(&|id| id != NOBODY)), (1, 4));
    assert_eq!(turns.used, 4);
}

/// Threads that have had the bias and end take a flag each with them; without one, the mutex is left.
#[test]
fn without_a_flag_the_lock_is_a_mutex() {
    let lock = &Biased::new(0u32);
    let mut turns = lock.lock_to_wait();
    let all = turns.mutex.as_mut().unwrap();
    for thread in 0..FLAGS as u64 {
        assert!(all.take(u64::MAX - thread).is_some());
    }
    assert!(all.take(1).is_none());
    drop(turns);
    for _ in 0..3 * PATIENCE {
        assert!(lock.lock().mutex.is_some());
    }
    assert_eq!(lock.bias.0.load(Relaxed), NOBODY);
}

/// A value that one thread writes with the bias is seen by another that waits for it.
#[test]
fn who_waits_sees_what_the_thread_with_the_bias_does_next() {
    let (value, changed) = (Biased::new(0u32), Condvar::new());
    for round in 1..200 {
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = value.lock_to_wait();
                while *guard < round {
                    guard = guard.wait(&changed);
                }
            });
            for _ in 0..PATIENCE * 2 {
                let _ = *value.lock();
            }
            *value.lock() = round;
            changed.notify_all();
        });
    }
}
