//! Threads that compete for one pool: no byte is handed out twice, nothing is lost, the figures are exact afterwards, and what
//! looks at the books meanwhile (statistics, trim, reports of live blocks) is right.

mod common;

use common::assert_sound;
use memmgr::{Config, Error, MemoryManager, Stream};
use memmgr_tests::Rng;
use std::{
    collections::HashMap,
    ffi::c_void,
    sync::{
        Barrier, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;
const GRANULE: usize = 256;
const THREADS: usize = 4;

/// How long each test goes on: `MEMMGR_CONTENDED_SECONDS`, or two seconds.
fn duration() -> Duration {
    let seconds = std::env::var("MEMMGR_CONTENDED_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(2))
}

fn manager(size: usize) -> MemoryManager {
    let mut config = Config::default();
    config.device_pool_size = size;
    config.device_pool_limit = Some(size);
    MemoryManager::new(config).unwrap()
}

/// Who has each granule of the pool: a claim of one that is taken is an error.
struct Claims {
    base: usize,
    granules: Vec<AtomicU32>,
}

impl Claims {
    /// Of a pool of this size, all of which is free.
    fn new(manager: &MemoryManager, size: usize) -> Self {
        let whole = manager.allocate_device(size).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(whole) }.unwrap();
        Self {
            base: whole.addr(),
            granules: (0..size / GRANULE).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn of(&self, block: *mut c_void, size: usize) -> &[AtomicU32] {
        let first = (block.addr() - self.base) / GRANULE;
        &self.granules[first..first + size.div_ceil(GRANULE)]
    }

    fn claim(&self, block: *mut c_void, size: usize, by: u32) {
        for granule in self.of(block, size) {
            let before = granule.swap(by, Relaxed);
            assert_eq!(before, 0, "{size} bytes at {block:?} belong to two threads");
        }
    }

    fn release(&self, block: *mut c_void, size: usize, by: u32) {
        for granule in self.of(block, size) {
            assert_eq!(granule.swap(0, Relaxed), by);
        }
    }
}

fn free(manager: &MemoryManager, block: *mut c_void, stream: &Stream) {
    // SAFETY: the block is live and nobody uses it.
    unsafe { manager.free_device_on(block, stream) }.unwrap();
}

/// What a thread does: up to 32 blocks, sometimes handed to another thread, sometimes freed without the stream.
fn work(
    number: usize,
    manager: &MemoryManager,
    claims: &Claims,
    stream: &Stream,
    parcels: &Mutex<Vec<(usize, usize, u32)>>,
    until: Instant,
    counted: &AtomicU64,
) {
    let mut random = Rng(number as u64 + 1);
    let mut live: Vec<(*mut c_void, usize, u32)> = Vec::new();
    let me = number as u32 + 1;
    while Instant::now() < until {
        for _ in 0..100 {
            if live.len() < 32 && (live.is_empty() || random.below(2) == 0) {
                let size = (GRANULE << random.below(9)) - random.index(3);
                let block = manager.allocate_device_on(size, stream).unwrap();
                counted.fetch_add(1, Relaxed);
                claims.claim(block, size, me);
                live.push((block, size, me));
                continue;
            }
            let (block, size, by) = live.swap_remove(random.index(live.len()));
            match random.below(50) {
                0 => parcels
                    .lock()
                    .unwrap()
                    .push((block.expose_provenance(), size, by)),
                1 => {
                    claims.release(block, size, by);
                    // SAFETY: the block is live and nobody uses it.
                    unsafe { manager.free_device(block) }.unwrap();
                }
                _ => {
                    claims.release(block, size, by);
                    free(manager, block, stream);
                }
            }
        }
        if let Some((address, size, by)) = parcels.lock().unwrap().pop() {
            let block = std::ptr::with_exposed_provenance_mut(address);
            live.push((block, size, by));
        }
    }
    for (block, size, by) in live {
        claims.release(block, size, by);
        free(manager, block, stream);
    }
}

fn compete(streams: usize) {
    let size = 512 * MIB;
    let manager = manager(size);
    let claims = Claims::new(&manager, size);
    // As long as this block is live, the pool's segment stays where it is.
    let anchor = manager.allocate_device(1).unwrap();
    claims.claim(anchor, 1, u32::MAX);
    let before = manager.stats().device[0].best_fit;
    let streams: Vec<Stream> = (0..streams).map(|_| Stream::new().unwrap()).collect();
    let (parcels, counted, start) = (
        Mutex::default(),
        AtomicU64::new(0),
        Barrier::new(THREADS + 1),
    );
    let until = Instant::now() + duration();
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (manager, claims, parcels, counted, start) =
                (&manager, &claims, &parcels, &counted, &start);
            let stream = &streams[number % streams.len()];
            scope.spawn(move || {
                start.wait();
                work(number, manager, claims, stream, parcels, until, counted);
            });
        }
        start.wait();
        // Somebody who wants exact books, all the time.
        while Instant::now() < until {
            let stats = manager.stats().device[0].best_fit;
            assert_eq!(stats.in_use + stats.idle + stats.pending, stats.reserved);
            assert!(stats.in_use <= (THREADS + 1) * 33 * MIB, "{stats:?}");
            assert!(stats.frees <= stats.allocations);
            manager.trim().unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    for (address, size, by) in parcels.into_inner().unwrap() {
        let block = std::ptr::with_exposed_provenance_mut(address);
        claims.release(block, size, by);
        free(&manager, block, &streams[0]);
    }
    claims.release(anchor, 1, u32::MAX);
    // SAFETY: the block is live and nobody uses it.
    unsafe { manager.free_device(anchor) }.unwrap();
    let after = manager.stats().device[0].best_fit;
    let counted = counted.into_inner();
    eprintln!("{counted} allocations");
    assert_eq!(after.in_use, 0);
    assert_eq!(after.allocations - before.allocations, counted);
    assert_eq!(after.frees - before.frees, counted + 1);
    assert_sound(&manager);
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    manager.trim().unwrap();
    assert_eq!(manager.stats().device[0].best_fit.reserved, 0);
}

#[test]
fn threads_on_one_stream_never_share_a_byte() {
    compete(1);
}

#[test]
fn threads_on_streams_of_their_own_never_share_a_byte() {
    compete(THREADS);
}

/// One thread allocates and another frees, so that blocks gather where nobody asks for them.
#[test]
fn what_one_thread_frees_serves_the_one_that_allocates() {
    let size = 512 * MIB;
    let manager = manager(size);
    let claims = Claims::new(&manager, size);
    let stream = Stream::new().unwrap();
    let before = manager.stats().device[0].best_fit;
    let (until, counted) = (Instant::now() + duration(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for pair in 0..THREADS / 2 {
            let (sender, receiver) = mpsc::sync_channel::<(usize, usize)>(200);
            let (manager, claims, stream, counted) = (&manager, &claims, &stream, &counted);
            let me = pair as u32 + 1;
            scope.spawn(move || {
                let mut random = Rng(pair as u64);
                while Instant::now() < until {
                    for _ in 0..100 {
                        let size = GRANULE << random.below(3);
                        let block = manager.allocate_device_on(size, stream).unwrap();
                        counted.fetch_add(1, Relaxed);
                        claims.claim(block, size, me);
                        sender.send((block.expose_provenance(), size)).unwrap();
                    }
                }
            });
            scope.spawn(move || {
                for (address, size) in receiver {
                    let block = std::ptr::with_exposed_provenance_mut(address);
                    claims.release(block, size, me);
                    free(manager, block, stream);
                }
            });
        }
        // What is on its way is little: half of all can be had at any moment.
        while Instant::now() < until {
            let half = manager.allocate_device_on(size / 2, &stream).unwrap();
            counted.fetch_add(1, Relaxed);
            claims.claim(half, size / 2, u32::MAX);
            claims.release(half, size / 2, u32::MAX);
            free(&manager, half, &stream);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let after = manager.stats().device[0].best_fit;
    let counted = counted.into_inner();
    let met = manager.contention(0).unwrap();
    eprintln!("{counted} allocations, {met:?}");
    assert_eq!(after.allocations - before.allocations, counted);
    assert_eq!(after.frees - before.frees, counted);
    assert_eq!((after.in_use, after.growths), (0, before.growths));
    assert_sound(&manager);
}

/// Threads that end leave blocks behind in their bins; those that come use them.
#[test]
fn threads_that_come_and_go_lose_nothing() {
    let size = 256 * MIB;
    let manager = manager(size);
    let claims = Claims::new(&manager, size);
    let stream = Stream::new().unwrap();
    let parcels = Mutex::default();
    let (until, counted) = (Instant::now() + duration(), AtomicU64::new(0));
    let mut generations = 0;
    while Instant::now() < until {
        let end = until.min(Instant::now() + Duration::from_millis(20));
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (manager, claims, parcels) = (&manager, &claims, &parcels);
                let (stream, counted) = (&stream, &counted);
                scope.spawn(move || {
                    work(number, manager, claims, stream, parcels, end, counted);
                });
            }
        });
        generations += 1;
    }
    for (address, size, by) in parcels.into_inner().unwrap() {
        let block = std::ptr::with_exposed_provenance_mut(address);
        claims.release(block, size, by);
        free(&manager, block, &stream);
    }
    assert!(generations > 1 && counted.into_inner() > 0);
    let whole = manager.allocate_device_on(size, &stream).unwrap();
    free(&manager, whole, &stream);
    assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
    assert_sound(&manager);
}

/// All memory is asked for again and again: what the threads hold back must not be missing.
#[test]
fn a_request_for_everything_finds_what_others_hold_back() {
    let size = 64 * MIB;
    let manager = manager(size);
    drop(Claims::new(&manager, size));
    let (stream, done) = (Stream::new().unwrap(), AtomicBool::new(false));
    let until = Instant::now() + duration();
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (manager, stream, done) = (&manager, &stream, &done);
            scope.spawn(move || {
                let mut random = Rng(number as u64);
                let mut turns = 0u32;
                while !done.load(Relaxed) {
                    for _ in 0..200 {
                        let block = manager.allocate_device_on(1 + random.index(4096), stream);
                        match block {
                            Ok(block) => free(manager, block, stream),
                            // Somebody has it all.
                            Err(Error::OutOfMemory(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    turns += 1;
                    if turns.is_multiple_of(50) {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            });
        }
        let mut served = 0;
        while Instant::now() < until {
            // The others have a block each at most, so half of it is always there.
            let half = manager.allocate_device_on(size / 2 - MIB, &stream).unwrap();
            free(&manager, half, &stream);
            served += 1;
        }
        done.store(true, Relaxed);
        assert!(served > 0);
    });
    let whole = manager.allocate_device_on(size, &stream).unwrap();
    free(&manager, whole, &stream);
    assert_eq!(manager.stats().device[0].best_fit.growths, 1);
    assert_sound(&manager);
}

/// Every block is freed twice, by two threads at a time: one succeeds.
#[test]
fn of_two_threads_that_free_one_block_one_is_told() {
    let manager = manager(64 * MIB);
    let stream = Stream::new().unwrap();
    let outcomes: Mutex<HashMap<usize, usize>> = Mutex::default();
    let rounds = if cfg!(debug_assertions) {
        2_000
    } else {
        20_000
    };
    let (start, block) = (Barrier::new(2), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (manager, stream, outcomes, start, block) =
                (&manager, &stream, &outcomes, &start, &block);
            scope.spawn(move || {
                for round in 0..rounds {
                    if number == 0 {
                        let new = manager.allocate_device_on(4096, stream).unwrap();
                        block.store(new.expose_provenance() as u64, Relaxed);
                    }
                    start.wait();
                    let ptr = std::ptr::with_exposed_provenance_mut(block.load(Relaxed) as usize);
                    // SAFETY: nobody uses the memory; whether the block is live is what the manager is asked.
                    match unsafe { manager.free_device_on(ptr, stream) } {
                        Ok(()) => *outcomes.lock().unwrap().entry(round).or_default() += 1,
                        Err(Error::DoubleFree { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    start.wait();
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    assert_eq!(outcomes.len(), rounds);
    assert!(outcomes.values().all(|count| *count == 1));
    assert_eq!(manager.stats().device[0].best_fit.in_use, 0);
    assert_sound(&manager);
}
