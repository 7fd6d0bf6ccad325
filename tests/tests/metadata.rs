//! What the manager's books cost: host memory per block, and allocations on the host's heap in passes of which the
//! manager has seen the like.
//!
//! The allocator of this program counts for each thread, so that tests and the runtime's threads do not disturb each other.

use memmgr::{Config, DeviceSource, MemoryManager, Stream};
use memmgr_tests::Rng;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ffi::c_void,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize, allocations: usize) {
    // A thread that ends may still free.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize, 1);
        // SAFETY: as this function demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize), 0);
        // SAFETY: as this function demands.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize, 1);
        // SAFETY: as this function demands.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CAP: usize = 16_000 << 20;

/// What a step of the random workload does.
enum Step {
    Allocate(usize),
    /// Frees the block at this index, whose place the last one takes.
    Free(usize),
}

/// The steps of the random workload with `blocks` blocks of at most 1 MiB, without freeing the rest, and how many of them
/// lead to the most live blocks.
fn steps(blocks: usize) -> (Vec<Step>, usize) {
    let mut rng = Rng(42);
    let mut live: Vec<usize> = Vec::new();
    let (mut used, mut count, mut most, mut until) = (0, 0, 0, 0);
    let mut steps = Vec::with_capacity(2 * blocks);
    for _ in 0..2 * blocks {
        let size = 1 + rng.below(1 << 20) as usize;
        if live.is_empty() || (rng.below(100) < 73 && count < blocks && used + size < CAP) {
            live.push(size);
            (used, count) = (used + size, count + 1);
            steps.push(Step::Allocate(size));
        } else {
            let index = rng.below(live.len() as u64) as usize;
            used -= live.swap_remove(index);
            steps.push(Step::Free(index));
        }
        if live.len() > most {
            (most, until) = (live.len(), steps.len());
        }
    }
    (steps, until)
}

/// Segments that come one by one, and a range of addresses that has its memory from the beginning: what a growth of virtual
/// memory takes from the host's heap is another matter.
fn configs(bytes: usize) -> [Config; 2] {
    [
        Config::default().device_source(DeviceSource::Malloc),
        Config::default().device_pool_size(bytes),
    ]
}

/// The device has not memory enough for two of the tests at once.
static DEVICE: Mutex<()> = Mutex::new(());

/// A manager, a stream, and the blocks that a workload holds.
struct Bench {
    manager: MemoryManager,
    stream: Stream,
    live: Vec<*mut c_void>,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(room: usize, config: Config) -> Self {
        let turn = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
        // The checker allocates too.
        #[cfg(feature = "sim")]
        cudart_sim::check(cudart_sim::Check::Off);
        Self {
            live: Vec::with_capacity(room),
            stream: Stream::new().expect("a stream"),
            manager: MemoryManager::new(config).expect("the settings are valid"),
            _turn: turn,
        }
    }

    fn allocate(&self, size: usize) -> *mut c_void {
        self.manager
            .allocate_device_on(size, &self.stream)
            .expect("memory")
    }

    fn free(&self, block: *mut c_void) {
        // SAFETY: every block is freed once, and no work uses it.
        unsafe { self.manager.free_device_on(block, &self.stream) }.expect("freed");
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Allocate(size) => {
                    let block = self.allocate(size);
                    self.live.push(block);
                }
                Step::Free(index) => {
                    let block = self.live.swap_remove(index);
                    self.free(block);
                }
            }
        }
    }

    fn free_rest(&mut self) {
        while let Some(block) = self.live.pop() {
            self.free(block);
        }
    }

    fn pairs(&self, size: usize, pairs: usize) {
        for _ in 0..pairs {
            let block = self.allocate(size);
            self.free(block);
        }
    }

    /// Runs `pass` three times, and counts what the last one allocates on the host's heap: in the first the pool is new, and
    /// only from the second on all memory has been its stream's.
    fn third_pass(&mut self, mut pass: impl FnMut(&mut Self)) -> usize {
        pass(self);
        pass(self);
        let before = ALLOCATIONS.get();
        pass(self);
        ALLOCATIONS.get() - before
    }
}

#[test]
fn a_block_takes_at_most_eighty_bytes_of_host_memory() {
    configs(18 << 30)
        .into_iter()
        .for_each(count_bytes_of_blocks);
}

fn count_bytes_of_blocks(config: Config) {
    let (steps, until) = steps(100_000);
    let mut bench = Bench::new(100_000, config);
    // What the simulated driver keeps with the first memory is not counted.
    bench.pairs(256, 1);
    let before = HELD.get();
    bench.run(&steps[..until]);
    let held = HELD.get() - before;
    let stats = bench.manager.stats();
    let stats = &stats.device.first().expect("a device").best_fit;
    // A free span between live blocks is a block too.
    let (live, free) = (stats.live_blocks, stats.free_spans);
    bench.free_rest();
    assert!(live > 20_000, "{live} blocks");
    let each = held as f64 / (live + free) as f64;
    println!("{each:.1} bytes for each of {live} live and {free} free blocks");
    assert!(each > 0.0 && each <= 80.0, "{each:.1} bytes");
    // The next one needs the memory.
    bench.manager.shutdown().expect("all is free");
}

#[test]
fn live_blocks_alone_take_at_most_eighty_bytes_however_many_they_are() {
    // From this number on: the books grow by whole pieces.
    const FROM: usize = 2_000;
    let config = Config::default().device_pool_size(1 << 30);
    let mut bench = Bench::new(60_000, config);
    bench.pairs(256, 1);
    let before = HELD.get();
    let mut most = (0.0, 0);
    while bench.live.len() < 60_000 {
        let block = bench.allocate(4096);
        bench.live.push(block);
        let blocks = bench.live.len();
        let each = (HELD.get() - before) as f64 / blocks as f64;
        if blocks >= FROM && each > most.0 {
            most = (each, blocks);
        }
    }
    bench.free_rest();
    let (each, blocks) = most;
    println!("at most {each:.1} bytes for each of {blocks} live blocks");
    assert!(each > 60.0 && each <= 80.0, "{each:.1} bytes at {blocks}");
    bench.manager.shutdown().expect("all is free");
}

#[test]
fn warm_passes_allocate_nothing_on_the_hosts_heap() {
    configs(4 << 30)
        .into_iter()
        .for_each(count_allocations_of_warm_passes);
}

fn count_allocations_of_warm_passes(config: Config) {
    let mut bench = Bench::new(10_000, config);
    let mut found = vec![(
        "hot",
        bench.third_pass(|bench| {
            for size in [4 << 10, 1 << 20, 64 << 20] {
                bench.pairs(size, 1000);
            }
        }),
    )];
    let (steps, _) = steps(10_000);
    found.push((
        "random",
        bench.third_pass(|bench| {
            bench.run(&steps);
            bench.free_rest();
        }),
    ));
    for index in 0..4096 {
        let span = bench.allocate((index % 8 + 1) * 256);
        let wall = bench.allocate(256);
        bench.live.extend([span, wall]);
    }
    for index in (0..4096).rev() {
        let span = bench.live.swap_remove(2 * index);
        bench.free(span);
    }
    found.push(("holes", bench.third_pass(|bench| bench.pairs(1024, 1000))));
    bench.free_rest();
    bench.manager.shutdown().expect("all is free");
    println!("allocations of the third passes: {found:?}");
    assert!(found.iter().all(|(_, count)| *count == 0), "{found:?}");
}

#[test]
fn the_counting_allocator_counts_this_thread() {
    let counts = || {
        let (held, allocations) = (HELD.get(), ALLOCATIONS.get());
        let block = std::hint::black_box(vec![0_u8; 4096]);
        let during = (HELD.get() - held, ALLOCATIONS.get() - allocations);
        drop(block);
        (during, HELD.get() - held)
    };
    assert_eq!(counts(), ((4096, 1), 0));
    let noise = std::thread::spawn(move || (0..1000).map(|_| counts()).collect::<Vec<_>>());
    for _ in 0..1000 {
        assert_eq!(counts(), ((4096, 1), 0), "others do not count here");
    }
    assert!(noise.join().is_ok_and(|counts| counts.len() == 1000));
}
