//! Hooks are called without locks, may call the manager, and their panics are caught.

use crate::common::{KIB, MIB, assert_sound, last_error};
use memmgr::{Config, Error, MemoryManager, Stream};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

fn full() -> (Arc<MemoryManager>, Stream) {
    let config = Config::default()
        .device_pool_size(2 * MIB)
        .device_pool_limit(Some(2 * MIB));
    let mm = Arc::new(MemoryManager::new(config).unwrap());
    (mm, Stream::new().unwrap())
}

#[test]
fn a_hook_that_frees_memory_saves_the_request() {
    let (mm, stream) = full();
    let kept = Arc::new(Mutex::new(Some(mm.device::<u8>(2 * MIB, &stream).unwrap())));
    let calls = Arc::new(AtomicUsize::new(0));
    {
        let (kept, calls) = (kept.clone(), calls.clone());
        mm.on_out_of_memory(move |refusal| {
            assert_eq!(refusal.requested, MIB);
            calls.fetch_add(1, SeqCst);
            kept.lock().unwrap().take().is_some()
        });
    }
    let got = mm.device::<u8>(MIB, &stream).unwrap();
    assert_eq!(calls.load(SeqCst), 1);
    drop(got);
    assert_sound(&mm);
}

#[test]
fn a_hook_may_call_everything_and_a_request_in_it_does_not_ask_it() {
    let (mm, stream) = full();
    let kept = mm.device::<u8>(2 * MIB, &stream).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    {
        let (weak, stream, calls) = (Arc::downgrade(&mm), stream.clone(), calls.clone());
        mm.on_out_of_memory(move |_| {
            let Some(mm) = weak.upgrade() else {
                return false;
            };
            // The request inside fails like the one outside.
            if calls.fetch_add(1, SeqCst) == 0 {
                assert!(mm.device::<u8>(MIB, &stream).is_err());
                assert_eq!(mm.stats().device[0].best_fit.in_use, 2 * MIB);
                mm.trim().unwrap();
                drop(mm.pinned::<u8>(KIB).unwrap());
                mm.check().unwrap();
            }
            false
        });
    }
    assert!(matches!(
        mm.device::<u8>(MIB, &stream),
        Err(Error::OutOfMemory(_))
    ));
    assert_eq!(calls.load(SeqCst), 1, "for the request outside alone");
    drop(kept);
    drop(mm.device::<u8>(MIB, &stream).unwrap());
    assert_sound(&mm);
    assert_eq!(last_error(), 0);
}

#[test]
fn a_hook_that_panics_counts_as_one_that_gives_up() {
    let (mm, stream) = full();
    let kept = mm.device::<u8>(2 * MIB, &stream).unwrap();
    mm.on_out_of_memory(|_| panic!("on purpose"));
    for _ in 0..3 {
        assert!(matches!(
            mm.device::<u8>(MIB, &stream),
            Err(Error::OutOfMemory(_))
        ));
    }
    drop(kept);
    drop(mm.device::<u8>(MIB, &stream).unwrap());
    assert_sound(&mm);
}

#[test]
fn a_hook_that_always_says_again_is_not_asked_for_ever() {
    let (mm, stream) = full();
    let _kept = mm.device::<u8>(2 * MIB, &stream).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    {
        let calls = calls.clone();
        mm.on_out_of_memory(move |_| {
            calls.fetch_add(1, SeqCst);
            true
        });
    }
    assert!(mm.device::<u8>(MIB, &stream).is_err());
    assert!((1..1_000).contains(&calls.load(SeqCst)), "{calls:?}");
}

/// Two threads are out of memory at once; each is asked for its own request, and one that waits in its hook holds up nobody.
#[test]
fn a_hook_that_takes_its_time_holds_up_nobody_else() {
    let (mm, stream) = full();
    let other = Stream::new().unwrap();
    let small = mm.device::<u8>(MIB / 2, &other).unwrap();
    let kept = mm.device::<u8>(MIB, &stream).unwrap();
    let (entered, leave) = (
        Arc::new(std::sync::Barrier::new(2)),
        Arc::new(std::sync::Barrier::new(2)),
    );
    {
        let (entered, leave) = (entered.clone(), leave.clone());
        mm.on_out_of_memory(move |_| {
            entered.wait();
            leave.wait();
            false
        });
    }
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| mm.device::<u8>(2 * MIB, &stream).is_err());
        entered.wait();
        for _ in 0..100 {
            drop(mm.device::<u8>(KIB, &other).unwrap());
        }
        drop(small);
        mm.trim().unwrap();
        mm.check().unwrap();
        leave.wait();
        assert!(refused.join().unwrap());
    });
    drop(kept);
}

/// A hook that moves what it can to pinned memory: the request in it that finds none either fails by itself.
#[test]
fn a_request_in_a_hook_that_finds_nothing_does_not_ask_the_hook_again() {
    let config = Config::default()
        .device_pool_size(2 * MIB)
        .device_pool_limit(Some(2 * MIB))
        .pinned_pool_limit(Some(MIB));
    let mm = Arc::new(MemoryManager::new(config).unwrap());
    let stream = Stream::new().unwrap();
    let kept = mm.device::<u8>(2 * MIB, &stream).unwrap();
    let taken = mm.pinned::<u8>(MIB / 2).unwrap();
    let (calls, inside) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(Mutex::new(Vec::new())),
    );
    {
        let (weak, stream) = (Arc::downgrade(&mm), stream.clone());
        let (calls, inside) = (calls.clone(), inside.clone());
        mm.on_out_of_memory(move |_| {
            calls.fetch_add(1, SeqCst);
            let mm = weak.upgrade().unwrap();
            let mut inside = inside.lock().unwrap();
            inside.push(mm.pinned::<u8>(MIB).map(drop));
            inside.push(mm.device::<u8>(MIB, &stream).map(drop));
            false
        });
    }
    assert!(mm.device::<u8>(MIB, &stream).is_err());
    assert_eq!(calls.load(SeqCst), 1);
    for refused in inside.lock().unwrap().drain(..) {
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    }
    // It is asked for the next request of its thread, and on another thread.
    assert!(mm.pinned::<u8>(MIB).is_err());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| mm.device::<u8>(MIB, &stream).is_err());
        assert!(other.join().unwrap());
    });
    assert_eq!(calls.load(SeqCst), 3);
    drop((kept, taken));
    assert_sound(&mm);
}

/// Two managers whose hooks ask each other: each is asked once.
#[test]
fn hooks_of_two_managers_that_ask_each_other_come_to_an_end() {
    let ((one, stream), (two, _)) = (full(), full());
    let kept = [&one, &two].map(|mm| mm.device::<u8>(2 * MIB, &stream).unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    for (own, other) in [(&one, &two), (&two, &one)] {
        let (other, stream, calls) = (Arc::downgrade(other), stream.clone(), calls.clone());
        own.on_out_of_memory(move |_| {
            calls.fetch_add(1, SeqCst);
            let other = other.upgrade().unwrap();
            assert!(other.device::<u8>(MIB, &stream).is_err());
            false
        });
    }
    assert!(one.device::<u8>(MIB, &stream).is_err());
    assert_eq!(calls.load(SeqCst), 2);
    drop(kept);
}
