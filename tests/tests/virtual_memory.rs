//! Device pools of virtual memory: one range of addresses, idle memory that moves to where it is needed, growth by what is
//! missing; and what each source of device memory says of itself. A process of its own: tests limit the device and inject
//! faults.

#[cfg(feature = "sim")]
#[path = "common/capturing.rs"]
mod capturing;
mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, stall};
use memmgr::{
    Config, DeviceSource, Error, MemoryManager, Observer, Place, PoolStats, SegmentChange, Stream,
};
use memmgr_tests::{Gate, Rng};
use std::{
    ffi::c_void,
    ops::Range,
    sync::{
        Arc, Barrier, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// What 300 ms of somebody else's work must not become.
const SOON: Duration = Duration::from_millis(150);

/// One test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A manager with virtual memory; `None` where the device has none.
fn virtual_memory(config: Config) -> Option<MemoryManager> {
    let supported = memmgr::devices().unwrap()[0].virtual_memory_supported;
    if !supported {
        memmgr_tests::skip("virtual_memory", "the device has none");
        return None;
    }
    let config = config
        .device_source(DeviceSource::Virtual)
        .device_growth(2 * MIB);
    Some(MemoryManager::new(config).unwrap())
}

fn stats(manager: &MemoryManager) -> PoolStats {
    let stats = manager.stats();
    stats
        .device
        .first()
        .map(|device| device.best_fit)
        .unwrap_or_default()
}

/// What a growth that fails must leave as it was.
#[cfg(feature = "sim")]
fn held(manager: &MemoryManager) -> PoolStats {
    let mut stats = stats(manager);
    (stats.failures, stats.splits, stats.merges) = (0, 0, 0);
    (stats.allocations, stats.reuses) = (0, 0);
    // Finished work is found when somebody looks.
    stats.idle += std::mem::take(&mut stats.pending);
    stats.largest_idle = 0;
    stats
}

/// Blocks of which each byte is the number of the block.
struct Stamped {
    manager: MemoryManager,
    stream: Stream,
    blocks: Vec<Option<(*mut c_void, usize)>>,
}

impl Stamped {
    fn new(manager: MemoryManager) -> Self {
        Self {
            manager,
            stream: Stream::new().unwrap(),
            blocks: Vec::new(),
        }
    }

    fn add(&mut self, size: usize) -> memmgr::Result<*mut c_void> {
        let block = self.manager.allocate_device(size)?;
        let stamp = self.blocks.len() as u8;
        // SAFETY: the block is ours, and has so many bytes.
        unsafe {
            self.manager
                .memset(block, stamp, size, &self.stream)
                .unwrap();
        }
        self.stream.synchronize().unwrap();
        self.blocks.push(Some((block, size)));
        Ok(block)
    }

    fn free(&mut self, number: usize) {
        let (block, _) = self.blocks[number].take().unwrap();
        // SAFETY: nobody uses the block.
        unsafe { self.manager.free_device(block).unwrap() };
    }

    /// Every byte of every block is what it was.
    fn verify(&self) {
        for (stamp, block) in self.blocks.iter().enumerate() {
            if let Some((block, size)) = *block {
                // SAFETY: the block has so many bytes.
                let found = unsafe { rig::read_back(&self.manager, block, size, &self.stream) };
                assert!(
                    found.iter().all(|byte| *byte == stamp as u8),
                    "block {stamp}"
                );
            }
        }
        assert_sound(&self.manager);
    }

    /// What a trim takes from the device pool.
    fn trim(&self) -> usize {
        let before = stats(&self.manager).reserved;
        self.manager.trim().unwrap();
        before - stats(&self.manager).reserved
    }

    /// Eight blocks of 2 MiB side by side, of which 1, 3 and 5 are free.
    fn with_holes(manager: MemoryManager) -> Self {
        let mut stamped = Self::new(manager);
        for _ in 0..8 {
            stamped.add(2 * MIB).unwrap();
        }
        for hole in [1, 3, 5] {
            stamped.free(hole);
        }
        stamped
    }
}

/// The first growth is the configured one, as far as there is room; from then on a pool grows by what is missing.
#[test]
fn the_first_growth_is_the_configured_one() {
    let _turn = turn();
    for (limit, first) in [(None, 32 * MIB), (Some(5 * MIB), 5 * MIB)] {
        let config = Config::default().device_pool_limit(limit);
        let manager = MemoryManager::new(config).unwrap();
        manager.allocate_device(256).unwrap();
        assert_eq!(stats(&manager).reserved, first);
        let device = manager.stats().device[0];
        if limit.is_none() && device.source == DeviceSource::Virtual {
            manager.allocate_device(32 * MIB).unwrap();
            assert_eq!(stats(&manager).reserved, first + 2 * MIB);
        }
        assert_sound(&manager);
    }
}

#[test]
fn a_growing_pool_is_one_piece() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let blocks: Vec<_> = (0..400)
        .map(|_| manager.allocate_device(100 * KIB).unwrap())
        .collect();
    let grown = stats(&manager);
    assert_eq!(grown.segments, 1);
    assert!(grown.reserved - 400 * 100 * KIB < 2 * MIB, "{grown:?}");
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(block).unwrap() };
    }
    let all = manager.allocate_device(grown.reserved).unwrap();
    let now = stats(&manager);
    assert_eq!(
        (now.growths, now.moves, now.reserved),
        (grown.growths, 0, grown.reserved)
    );
    assert_sound(&manager);
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device(all).unwrap() };
    assert_eq!(manager.shutdown().unwrap().released, grown.reserved);
}

#[test]
fn idle_memory_moves_to_a_request_and_nothing_live_notices() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    let holes: Vec<usize> = [0, 2, 4]
        .map(|n| stamped.blocks[n].unwrap().0.addr() + 2 * MIB)
        .into();
    let before = stats(&stamped.manager);
    let large = stamped.add(6 * MIB).unwrap();
    let after = stats(&stamped.manager);
    assert_eq!(
        (after.moves, after.growths),
        (3, before.growths),
        "{after:?}"
    );
    assert_eq!(after.reserved, before.reserved);
    assert_eq!(after.idle, 0);
    assert!(large.addr() > stamped.blocks[7].unwrap().0.addr());
    stamped.verify();

    // What was left behind serves the next growth, the lowest first.
    let next = stamped.add(2 * MIB).unwrap();
    assert_eq!(next.addr(), holes[0]);
    let grown = stats(&stamped.manager);
    assert_eq!(grown.reserved, before.reserved + 2 * MIB);
    stamped.verify();
    // The address of a block that has moved away is free, and belongs to the pool.
    // SAFETY: the call is refused.
    let refused = unsafe {
        stamped
            .manager
            .free_device(std::ptr::with_exposed_provenance_mut(holes[1]))
    };
    assert!(
        matches!(refused, Err(Error::DoubleFree { .. })),
        "{refused:?}"
    );
}

/// Only what is missing is made.
#[test]
fn a_growth_takes_what_is_idle_and_makes_the_rest() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    let before = stats(&stamped.manager);
    stamped.add(9 * MIB).unwrap();
    let after = stats(&stamped.manager);
    assert_eq!(after.reserved, before.reserved + 4 * MIB, "{after:?}");
    assert_eq!((after.moves, after.growths), (3, before.growths + 1));
    stamped.verify();
}

/// What work in a stream may still touch stays where it is.
#[test]
fn memory_that_work_may_touch_does_not_move() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let blocks = [(); 3].map(|()| manager.allocate_device_on(2 * MIB, &a).unwrap());
    let gate = Gate::new();
    stall(&a, &gate);
    // SAFETY: the stream orders the work; nobody uses the blocks afterwards.
    unsafe {
        manager.memset(blocks[0], 1, 2 * MIB, &a).unwrap();
        manager.free_device_on(blocks[0], &a).unwrap();
        manager.memset(blocks[2], 1, 2 * MIB, &a).unwrap();
        manager.free_device_on(blocks[2], &a).unwrap();
    }
    for stream in [&a, &b] {
        let large = manager.allocate_device_on(4 * MIB, stream).unwrap();
        assert_eq!(stats(&manager).moves, 0);
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(large, &b).unwrap() };
    }
    gate.open();
    a.synchronize().unwrap();
    assert_sound(&manager);
}

/// The request's own stream is asked: what it has freed moves once it is idle.
#[test]
fn what_an_idle_stream_has_freed_itself_moves() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let stream = Stream::new().unwrap();
    let blocks = [(); 3].map(|()| manager.allocate_device_on(2 * MIB, &stream).unwrap());
    // SAFETY: nobody uses the blocks afterwards.
    unsafe {
        manager.free_device_on(blocks[0], &stream).unwrap();
        manager.free_device_on(blocks[2], &stream).unwrap();
    }
    stream.synchronize().unwrap();
    let large = manager.allocate_device_on(4 * MIB, &stream).unwrap();
    let now = stats(&manager);
    assert_eq!((now.reserved, now.moves), (6 * MIB, 1), "{now:?}");
    // SAFETY: nobody uses the blocks.
    unsafe {
        manager.free_device(large).unwrap();
        manager.free_device(blocks[1]).unwrap();
    }
}

/// Sizes of all kinds, at random, with every byte looked at.
#[test]
fn blocks_keep_their_bytes_while_memory_moves_around_them() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default().device_pool_limit(Some(64 * MIB))) else {
        return;
    };
    let mut stamped = Stamped::new(manager);
    let mut rng = Rng(15);
    for step in 0..250 {
        let size = match rng.below(4) {
            0 => 1 + rng.index(4 * KIB),
            1 => 1 + rng.index(MIB),
            _ => 1 + rng.index(9 * MIB),
        };
        match stamped.add(size) {
            Ok(block) => assert!(block.addr().is_multiple_of(256)),
            Err(error) => assert!(error.is_out_of_memory(), "{error}"),
        }
        let live: Vec<usize> = (0..stamped.blocks.len())
            .filter(|n| stamped.blocks[*n].is_some())
            .collect();
        if live.len() > 8 {
            stamped.free(live[rng.index(live.len())]);
        }
        if step % 10 == 0 {
            stamped.verify();
        }
        if step % 60 == 59 {
            stamped.manager.trim().unwrap();
        }
        assert!(stats(&stamped.manager).reserved <= 64 * MIB);
    }
    let now = stats(&stamped.manager);
    assert!(now.moves > 10, "{now:?}");
    stamped.verify();
}

/// The device has no more than so many bytes for anybody, as long as this lives.
#[cfg(feature = "sim")]
struct Limit;

#[cfg(feature = "sim")]
impl Limit {
    fn of_what_is_left(bytes: usize) -> Self {
        let now = cudart_sim::memory_info(0).unwrap();
        let limit = now.total - now.free + bytes as u64;
        cudart_sim::limit(cudart_sim::Limited::Device(0), Some(limit));
        Self
    }
}

#[cfg(feature = "sim")]
impl Drop for Limit {
    fn drop(&mut self) {
        cudart_sim::limit(cudart_sim::Limited::Device(0), None);
    }
}

/// Case B14.
#[test]
fn a_growth_asks_for_no_more_than_is_needed() {
    memmgr_tests::sim_only!("it limits the device");
    let _turn = turn();
    #[cfg(feature = "sim")]
    {
        {
            let manager = virtual_memory(Config::default()).unwrap();
            // What other tests have left goes.
            manager.trim().unwrap();
            let _limit = Limit::of_what_is_left(32 * MIB);
            for _ in 0..3 {
                manager.allocate_device(8 * MIB).unwrap();
            }
            assert_eq!(stats(&manager).reserved, 24 * MIB);
            let refused = manager.allocate_device(8 * MIB + 1).unwrap_err();
            assert!(refused.is_out_of_memory(), "{refused}");
        }
        let size = 15_250_961;
        let manager = virtual_memory(Config::default().device_pool_size(size)).unwrap();
        let _limit = Limit::of_what_is_left(16 * MIB);
        manager.allocate_device(MIB).unwrap();
        assert_eq!(stats(&manager).reserved, size.next_multiple_of(256));
        manager.allocate_device(size - MIB).unwrap();
        assert_sound(&manager);
    }
    let both = Config::default()
        .device_pool_size(1000)
        .device_pool_limit(Some(1000));
    let manager = virtual_memory(both).unwrap();
    manager.allocate_device(700).unwrap();
    assert!(manager.allocate_device(700).is_err());
    assert_eq!(stats(&manager).reserved, 768);
    assert_sound(&manager);
    let contrary = Config::default()
        .device_pool_size(2000)
        .device_pool_limit(Some(1000));
    assert!(MemoryManager::new(contrary).is_err());
}

/// Case B15.
#[test]
fn idle_memory_makes_room_under_the_limit() {
    let _turn = turn();
    let config = || {
        Config::default()
            .device_pool_size(256 * KIB)
            .device_pool_limit(Some(MIB))
    };
    for small in [false, true] {
        let Some(manager) = virtual_memory(config()) else {
            return;
        };
        let first = manager.allocate_device(256).unwrap();
        if small {
            assert!(manager.allocate_device(MIB).unwrap_err().is_out_of_memory());
            manager.allocate_device(MIB - 256 * KIB).unwrap();
        } else {
            // SAFETY: nobody uses the block.
            unsafe { manager.free_device(first).unwrap() };
            manager.allocate_device(MIB).unwrap();
        }
        let now = stats(&manager);
        assert!(now.peak_reserved <= MIB, "{now:?}");
        assert_sound(&manager);
    }
    // The same in chunks: what is idle moves, so that the limit is kept to at every moment.
    let Some(manager) = virtual_memory(Config::default().device_pool_limit(Some(16 * MIB))) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    stamped.add(6 * MIB).unwrap();
    assert!(stamped.add(1).unwrap_err().is_out_of_memory());
    assert_eq!(stats(&stamped.manager).peak_reserved, 16 * MIB);
    stamped.verify();
}

/// Idle chunks go back, not whole ranges alone; the addresses stay usable.
#[test]
fn trim_gives_idle_chunks_back() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    #[cfg(feature = "sim")]
    let before = cudart_sim::memory_info(0).unwrap();
    assert_eq!(stamped.trim(), 6 * MIB);
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.idle, now.segments), (10 * MIB, 0, 1));
    #[cfg(feature = "sim")]
    {
        let after = cudart_sim::memory_info(0).unwrap();
        assert_eq!(after.free, before.free + 6 * MIB as u64);
        assert_eq!(after.physical.0, before.physical.0 - 3);
    }
    stamped.verify();
    stamped.add(2 * MIB).unwrap();
    stamped.verify();
    for number in [0, 2, 4, 6, 7, 8] {
        stamped.free(number);
    }
    assert_eq!(stamped.trim(), 12 * MIB);
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.segments, now.free_spans), (0, 0, 0));
    assert_sound(&stamped.manager);
    stamped.add(5 * MIB).unwrap();
    stamped.verify();
}

/// Is stopped at the first segment of so many bytes that is added, until the gate opens.
struct Stop {
    bytes: usize,
    begun: Gate,
    gate: Gate,
    added: AtomicUsize,
}

impl Observer for Stop {
    fn on_segment(&self, _: Place, range: Range<usize>, change: SegmentChange) {
        if change == SegmentChange::Added && range.len() == self.bytes {
            self.added.fetch_add(1, SeqCst);
            self.begun.open();
            self.gate.pass();
        }
    }
}

/// Case B40 (a), for both sources.
#[test]
fn a_growth_holds_up_no_hit_and_is_made_once() {
    let _turn = turn();
    for source in [DeviceSource::Malloc, DeviceSource::Auto] {
        let config = Config::default()
            .device_source(source)
            .device_growth(2 * MIB);
        let manager = MemoryManager::new(config).unwrap();
        let stop = Arc::new(Stop {
            bytes: 4 * MIB,
            begun: Gate::new(),
            gate: Gate::new(),
            added: AtomicUsize::new(0),
        });
        manager.set_observer(stop.clone()).unwrap();
        // A block that stays keeps the first segment apart from what comes.
        let (cached, _stays) = (
            manager.allocate_device(256).unwrap(),
            manager.allocate_device(2 * MIB - 256).unwrap(),
        );
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(cached).unwrap() };
        let growths = stats(&manager).growths;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| manager.allocate_device(2 * MIB + 256).unwrap().addr());
            stop.begun.pass();
            let second = scope.spawn(|| manager.allocate_device(MIB).unwrap().addr());
            let begun = Instant::now();
            let hit = manager.allocate_device(256).unwrap();
            assert!(begun.elapsed() < SOON, "{source}: {:?}", begun.elapsed());
            // SAFETY: nobody uses the block.
            unsafe { manager.free_device(hit).unwrap() };
            // The books can be looked at meanwhile.
            assert_sound(&manager);
            stop.gate.open();
            assert_ne!(first.join().unwrap(), second.join().unwrap());
        });
        assert_eq!(stats(&manager).growths, growths + 1, "{source}");
        assert_eq!(stop.added.load(SeqCst), 1, "{source}");
        assert_sound(&manager);
    }
}

#[test]
fn eight_threads_that_miss_together_grow_once() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    for round in 1..=20 {
        let barrier = Barrier::new(8);
        let mut addresses: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        manager.allocate_device(256 * KIB).unwrap().addr()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        addresses.sort_unstable();
        assert!(
            addresses
                .windows(2)
                .all(|pair| pair[0] + 256 * KIB <= pair[1])
        );
        let now = stats(&manager);
        assert_eq!(
            (now.growths, now.reserved),
            (round, round as usize * 2 * MIB),
            "{now:?}"
        );
        assert_sound(&manager);
    }
}

/// Each call of a growth fails in turn: the error says which, and nothing has changed.
#[test]
fn a_growth_that_fails_leaves_everything_as_it_was() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        for call in [
            "cuMemCreate",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cudaMemsetAsync",
            "cudaStreamSynchronize",
        ] {
            let mut failed = 0;
            loop {
                let mut stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
                let (figures, memory) = (held(&stamped.manager), cudart_sim::memory_info(0));
                let fault = cudart_sim::fail(call, unknown).after(failed);
                let answer = stamped.manager.allocate_device(10 * MIB);
                let fired = fault.fired();
                drop(fault);
                stamped.verify();
                if fired == 0 {
                    answer.unwrap();
                    break;
                }
                let error = answer.unwrap_err().to_string();
                assert!(error.contains(call), "{error}");
                assert_eq!(held(&stamped.manager), figures, "{call}, {failed}");
                assert_eq!(cudart_sim::memory_info(0), memory, "{call}, {failed}");
                failed += 1;
                // And it can be done afterwards.
                stamped.add(10 * MIB).unwrap();
                assert_eq!(stats(&stamped.manager).reserved, figures.reserved + 4 * MIB);
                stamped.verify();
                let report = stamped.manager.shutdown().unwrap();
                assert_eq!(report.live.len(), 6);
            }
            assert!(failed > 0, "{call}");
        }
    }
}

/// Where a device refuses a range of addresses, a shorter one does; where it refuses all, the error says so.
#[test]
fn addresses_are_asked_for_until_there_are_some() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let refused = cuda_sys::cudaError::cudaErrorMemoryAllocation;
        let manager = virtual_memory(Config::default()).unwrap();
        let fault = cudart_sim::fail("cuMemAddressReserve", refused).times(1000);
        let error = manager.allocate_device(MIB).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert!(fault.fired() > 10);
        drop(fault);
        assert_eq!(stats(&manager).segments, 0);
        let fault = cudart_sim::fail("cuMemAddressReserve", refused).times(5);
        manager.allocate_device(MIB).unwrap();
        assert_eq!(fault.fired(), 5);
        assert_sound(&manager);
    }
}

/// What cannot be mapped back waits: it is still counted, the next growth uses it, and it goes back.
#[test]
fn chunks_that_cannot_be_mapped_back_are_not_lost() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        for (call, after, times) in [
            ("cuMemMap", 0, 2),
            ("cuMemMap", 0, 4),
            ("cuMemSetAccess", 0, 2),
            ("cuMemSetAccess", 0, 4),
        ] {
            for trims in [false, true] {
                let mut stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
                let (figures, memory) =
                    (held(&stamped.manager), cudart_sim::memory_info(0).unwrap());
                let fault = cudart_sim::fail(call, unknown).after(after).times(times);
                stamped.manager.allocate_device(10 * MIB).unwrap_err();
                assert_eq!(fault.fired(), times);
                drop(fault);
                stamped.verify();
                let now = held(&stamped.manager);
                assert_eq!((now.reserved, now.idle), (figures.reserved, figures.idle));
                assert_eq!(
                    cudart_sim::memory_info(0).unwrap().physical,
                    memory.physical
                );
                if trims {
                    assert_eq!(stamped.trim(), 6 * MIB);
                } else {
                    stamped.add(6 * MIB).unwrap();
                    let now = stats(&stamped.manager);
                    assert_eq!((now.reserved, now.idle), (figures.reserved, 0));
                }
                stamped.verify();
                for number in 0..stamped.blocks.len() {
                    if stamped.blocks[number].is_some() {
                        stamped.free(number);
                    }
                }
                assert_eq!(stamped.manager.shutdown().unwrap().live.len(), 0);
                let left = cudart_sim::memory_info(0).unwrap();
                assert_eq!(left.physical.1 + figures.reserved as u64, memory.physical.1);
            }
        }
    }
}

/// A trim that fails keeps what it could not give back.
#[test]
fn a_trim_that_fails_keeps_the_rest() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        for call in ["cuMemUnmap", "cuMemRelease"] {
            let stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
            let before = stats(&stamped.manager);
            let fault = cudart_sim::fail(call, unknown).after(1);
            stamped.manager.trim().unwrap_err();
            assert_eq!(fault.fired(), 1);
            drop(fault);
            stamped.verify();
            let now = stats(&stamped.manager);
            assert_eq!(now.reserved, before.reserved - 4 * MIB, "{call}");
            assert_eq!(stamped.trim(), 2 * MIB, "{call}");
            stamped.verify();
        }
    }
}

/// New memory is zero, whatever the device had there; memory that has moved is not made so again.
#[test]
fn new_chunks_are_zero() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let stream = Stream::new().unwrap();
    for _ in 0..2 {
        let block = manager.allocate_device(3 * MIB).unwrap();
        // SAFETY: the block has so many bytes.
        unsafe {
            let found = rig::read_back(&manager, block, 3 * MIB, &stream);
            assert!(found.iter().all(|byte| *byte == 0));
            manager.memset(block, 9, 3 * MIB, &stream).unwrap();
            stream.synchronize().unwrap();
            manager.free_device(block).unwrap();
        }
        manager.trim().unwrap();
    }
}

/// Growth in a capture, on the capturing thread and by the captured stream, leaves the capture alive.
#[test]
#[cfg(feature = "sim")]
fn a_pool_grows_while_a_stream_is_captured() {
    use memmgr::CaptureMode;
    let _turn = turn();
    for mode in [
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ] {
        for warm in [false, true] {
            let manager = virtual_memory(Config::default()).unwrap();
            if warm {
                let block = manager.allocate_device(MIB).unwrap();
                // SAFETY: nobody uses the block.
                unsafe { manager.free_device(block).unwrap() };
            }
            let stream = Stream::new().unwrap();
            let mallocs = cudart_sim::thread_calls_of("cudaMalloc");
            capturing::begin(&stream, mode);
            let mine = manager.allocate_device_on(4 * MIB, &stream).unwrap();
            let other = manager.allocate_device(8 * MIB).unwrap();
            manager.trim().unwrap();
            assert_eq!(
                capturing::status(stream.as_raw().cast()),
                1,
                "{mode:?}, {warm}"
            );
            let (code, graph) = capturing::end(stream.as_raw().cast());
            assert_eq!(code, 0);
            capturing::destroy(graph);
            assert_eq!(cudart_sim::thread_calls_of("cudaMalloc"), mallocs);
            // SAFETY: nobody uses the blocks.
            unsafe {
                manager.free_device(mine).unwrap();
                manager.free_device(other).unwrap();
            }
        }
    }
}

/// A queue that takes no more holds up no growth. With `cudaMalloc` it does, so that this test can fail.
#[test]
fn a_full_queue_stops_no_growth() {
    memmgr_tests::sim_only!("the length of a queue is known");
    let _turn = turn();
    for source in [DeviceSource::Virtual, DeviceSource::Malloc] {
        let config = Config::default()
            .device_source(source)
            .device_growth(2 * MIB);
        let manager = MemoryManager::new(config).unwrap();
        let stream = Stream::new().unwrap();
        let block = manager.allocate_device(4 * KIB).unwrap();
        let gate = Gate::new();
        let mut grown = std::ptr::null_mut();
        stall(&stream, &gate);
        std::thread::scope(|scope| {
            let opener = gate.open_after(3 * SOON);
            let filler = (stream.clone(), block.addr());
            scope.spawn(move || {
                let (stream, block) = filler;
                let block = std::ptr::with_exposed_provenance_mut(block);
                for _ in 0..1100 {
                    // SAFETY: the block stays until the stream is idle.
                    unsafe { rig::kernel_fill(block, 1, 16, &stream) };
                }
            });
            // By now it waits in the full queue.
            std::thread::sleep(SOON);
            let begun = Instant::now();
            grown = manager.allocate_device(4 * MIB).unwrap();
            let (took, is_fast) = (begun.elapsed(), source == DeviceSource::Virtual);
            assert_eq!(took < SOON, is_fast, "{source}: {took:?}");
            opener.join().unwrap();
        });
        stream.synchronize().unwrap();
        // SAFETY: nobody uses the blocks.
        unsafe {
            manager.free_device(grown).unwrap();
            manager.free_device(block).unwrap();
        }
    }
}

/// What a manager leaves goes with the next call that may wait, of any manager: chunks and addresses.
#[test]
fn a_dropped_manager_leaves_nothing_behind() {
    memmgr_tests::sim_only!("it counts what the device has given");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let other = virtual_memory(Config::default()).unwrap();
        other.trim().unwrap();
        let before = cudart_sim::memory_info(0).unwrap();
        let freed = cudart_sim::calls("cuMemAddressFree");
        drop(Stamped::with_holes(
            virtual_memory(Config::default()).unwrap(),
        ));
        other.trim().unwrap();
        // Raw blocks that are live keep their chunks and their addresses.
        let left = cudart_sim::memory_info(0).unwrap();
        assert_eq!(left.physical.1, before.physical.1 + 10 * MIB as u64);
        assert_eq!(cudart_sim::calls("cuMemAddressFree"), freed);
        let manager = virtual_memory(Config::default()).unwrap();
        let stream = Stream::new().unwrap();
        let gate = Gate::new();
        let guard = manager.device::<u8>(3 * MIB, &stream).unwrap();
        stall(&stream, &gate);
        let _ = stream.memset(&guard, 1).unwrap();
        let opener = gate.open_after(Duration::from_millis(30));
        drop(guard);
        drop(manager);
        other.trim().unwrap();
        opener.join().unwrap();
        assert_eq!(cudart_sim::memory_info(0).unwrap(), left);
        assert_eq!(cudart_sim::calls("cuMemAddressFree"), freed + 1);
    }
}

/// After a shutdown what is live stays, what comes has other addresses, and the rest follows.
#[test]
fn a_shutdown_keeps_what_is_live_until_it_is_freed() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let mut stamped = Stamped::with_holes(manager);
    let report = stamped.manager.shutdown().unwrap();
    assert_eq!((report.released, report.live.len()), (6 * MIB, 5));
    let new = stamped.add(3 * MIB).unwrap();
    stamped.verify();
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.segments), (14 * MIB, 2), "{now:?}");
    for number in [0, 2, 4, 6, 7] {
        stamped.free(number);
    }
    // The next call that may wait.
    stamped.add(MIB + 256).unwrap();
    let now = stats(&stamped.manager);
    assert_eq!((now.reserved, now.segments), (6 * MIB, 1), "{now:?}");
    assert!(
        stamped
            .blocks
            .iter()
            .flatten()
            .any(|(block, _)| *block == new)
    );
    stamped.verify();
}

/// A call of the driver that fails is named, and takes nobody's error away.
#[test]
fn a_failure_of_the_driver_leaves_the_errors_of_others() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        common::checks::leave_foreign_error();
        let manager = virtual_memory(Config::default()).unwrap();
        let fault = cudart_sim::fail("cuMemMap", cuda_sys::cudaError::cudaErrorUnknown);
        let error = manager.allocate_device(MIB).unwrap_err();
        assert_eq!(fault.fired(), 1);
        match error {
            Error::Cuda {
                call,
                code,
                also_pending,
                ..
            } => {
                assert_eq!((call, code, also_pending), ("cuMemMap", 999, None));
            }
            other => panic!("{other}"),
        }
        assert_eq!(common::checks::clear_error(), common::checks::FOREIGN);
        manager.allocate_device(MIB).unwrap();
    }
}

/// While new memory may still be written it is not unmapped, and the pool goes on elsewhere.
#[test]
fn new_memory_that_may_still_be_written_stays() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let mut stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
        let figures = held(&stamped.manager);
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        let faults = [
            cudart_sim::fail("cudaStreamSynchronize", unknown).times(2),
            cudart_sim::fail("cudaFree", unknown),
        ];
        stamped.manager.allocate_device(10 * MIB).unwrap_err();
        assert!(faults.iter().all(|fault| fault.fired() > 0));
        drop(faults);
        stamped.verify();
        assert_eq!(held(&stamped.manager), figures);
        stamped.add(10 * MIB).unwrap();
        assert_eq!(stats(&stamped.manager).segments, 2);
        stamped.verify();
    }
}

/// Each source says what it is; what is asked for and cannot be is an error that names the way out.
#[test]
fn a_source_is_told_and_can_be_chosen() {
    let _turn = turn();
    let supported = memmgr::devices().unwrap()[0].virtual_memory_supported;
    for (config, requested) in [
        (Config::default(), DeviceSource::Auto),
        (
            Config::default().device_source(DeviceSource::Malloc),
            DeviceSource::Malloc,
        ),
        (
            Config::default().device_source(DeviceSource::Virtual),
            DeviceSource::Virtual,
        ),
        (Config::default().shareable(true), DeviceSource::Malloc),
    ] {
        let manager = MemoryManager::new(config.clone()).unwrap();
        let answer = manager.allocate_device(MIB);
        if requested == DeviceSource::Virtual && !supported {
            assert!(answer.unwrap_err().to_string().contains("malloc"));
            continue;
        }
        let block = answer.unwrap();
        let told = manager.stats().device[0];
        let effective = match requested {
            DeviceSource::Malloc => DeviceSource::Malloc,
            _ if supported => DeviceSource::Virtual,
            _ => DeviceSource::Malloc,
        };
        assert_eq!((told.requested_source, told.source), (requested, effective));
        assert_eq!(requested.on(0), Ok(effective));
        assert!(format!("{manager:?}").contains(&format!("source: {effective:?}")));
        let mut handle = cuda_sys::cudaIpcMemHandle_t::default();
        // SAFETY: a place for one handle, and a block that is live.
        let code = unsafe { cuda_sys::cudaIpcGetMemHandle(&mut handle, block) };
        // SAFETY: the function has no preconditions.
        unsafe { cuda_sys::cudaGetLastError() };
        assert_eq!(code.0 == 0, effective == DeviceSource::Malloc);
        assert_eq!(
            effective.cannot().is_some(),
            effective == DeviceSource::Virtual
        );
    }
    let contrary = Config::default()
        .shareable(true)
        .device_source(DeviceSource::Virtual);
    let error = MemoryManager::new(contrary).unwrap_err().to_string();
    assert!(error.contains("auto or malloc"), "{error}");
}
