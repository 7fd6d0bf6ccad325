//! Sixteen threads call every safe method at once. In a process of its own, since it looks at the device's free memory.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, manager};
use memmgr::{
    DeviceAllocatorMode, DeviceBuffer, Error, MemoryManager, PerThreadStream, PinnedBuffer, Result,
    Stream,
};
use memmgr_tests::Rng;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

const THREADS: usize = 16;
/// A thread that makes no step for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

fn seconds() -> u64 {
    std::env::var("MEMMGR_STRESS_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(10)
}

/// What limits and fullness may answer; everything else is a failure.
fn allowed<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::OutOfMemory(_) | Error::LimitExceeded { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// What one thread holds on to between steps.
struct Held {
    device: DeviceBuffer<u64>,
    seed: u64,
    stream: Stream,
}

fn pattern(seed: u64, i: usize) -> u64 {
    seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i as u64
}

fn fill(host: &mut PinnedBuffer<u64>, seed: u64) -> Result<()> {
    for (i, word) in host.as_mut_slice()?.iter_mut().enumerate() {
        *word = pattern(seed, i);
    }
    Ok(())
}

fn verify(host: &PinnedBuffer<u64>, seed: u64, what: &str) -> Result<()> {
    for (i, word) in host.as_slice()?.iter().enumerate() {
        assert_eq!(
            *word,
            pattern(seed, i),
            "{what}, word {i} of {}",
            host.len()
        );
    }
    Ok(())
}

struct Worker<'a> {
    mm: &'a MemoryManager,
    rng: Rng,
    streams: Vec<Stream>,
    held: Vec<Held>,
}

impl Worker<'_> {
    fn stream(&mut self) -> Stream {
        let at = self.rng.below(self.streams.len() as u64) as usize;
        self.streams[at].clone()
    }

    fn words(&mut self) -> usize {
        1 + self.rng.below(8 * KIB as u64) as usize
    }

    /// Host to device, kept for later.
    fn upload(&mut self) -> Option<()> {
        let (stream, words, seed) = (self.stream(), self.words(), self.rng.next_u64());
        let mut host = allowed(self.mm.pinned::<u64>(words))?;
        fill(&mut host, seed).unwrap();
        let device = allowed(self.mm.device::<u64>(words, &stream))?;
        let _ = stream.copy_to_device(&host, &device).unwrap();
        // The source goes while the copy may be running.
        drop(host);
        self.held.push(Held {
            device,
            seed,
            stream,
        });
        Some(())
    }

    /// Device to host, on the buffer's stream or another, and a look at the contents.
    fn download(&mut self) -> Option<()> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.rng.below(self.held.len() as u64) as usize;
        let other = self.stream();
        let mut host = allowed(self.mm.pinned::<u64>(self.held[at].device.len()))?;
        let held = self.held.swap_remove(at);
        let stream = if self.rng.below(2) == 0 {
            &other
        } else {
            &held.stream
        };
        let _ = stream.copy_to_host(&held.device, &mut host).unwrap();
        if self.rng.below(2) == 0 {
            drop(held.device);
        }
        verify(&host, held.seed, "downloaded").unwrap();
        Some(())
    }

    /// Device to device on a third stream, then back.
    fn duplicate(&mut self) -> Option<()> {
        let at = self.held.len().checked_sub(1)?;
        let stream = self.stream();
        let copy = allowed(self.mm.device::<u64>(self.held[at].device.len(), &stream))?;
        let _ = stream
            .copy_device_to_device(&self.held[at].device, &copy)
            .unwrap();
        let held = self.held.swap_remove(at);
        self.held.push(Held {
            device: copy,
            seed: held.seed,
            stream,
        });
        drop(held);
        Some(())
    }

    fn zeroed(&mut self) -> Option<()> {
        let (stream, other, words) = (self.stream(), self.stream(), self.words());
        let device = allowed(self.mm.device_zeroed::<u64>(words, &stream))?;
        let mut host = allowed(self.mm.pinned_zeroed::<u64>(words))?;
        assert!(host.as_slice().unwrap().iter().all(|word| *word == 0));
        host.as_mut_slice().unwrap().fill(1);
        let _ = other.copy_to_host(&device, &mut host).unwrap();
        assert!(
            host.as_slice().unwrap().iter().all(|word| *word == 0),
            "not zeroed"
        );
        let _ = other.memset(&device, 0xFF).unwrap();
        let _ = other.copy_to_host(&device, &mut host).unwrap().wait();
        assert!(
            host.as_slice()
                .unwrap()
                .iter()
                .all(|word| *word == u64::MAX)
        );
        Some(())
    }

    fn raw(&mut self) -> Option<()> {
        let stream = self.stream();
        let size = 1 + self.rng.below(128 * KIB as u64) as usize;
        let on = allowed(self.mm.allocate_device_on(size, &stream))?;
        self.mm.record_use(on, &stream).unwrap();
        // SAFETY: the block is ours; what uses it is recorded.
        unsafe {
            match self.rng.below(2) {
                0 => self.mm.free_device_on(on, &stream).unwrap(),
                _ => self.mm.free_device(on).unwrap(),
            }
        }
        let plain = allowed(self.mm.allocate_device(size))?;
        // SAFETY: nobody uses the block.
        unsafe { self.mm.free_device(plain).unwrap() };
        let mine = PerThreadStream::new().unwrap();
        let own = allowed(self.mm.allocate_device_on(size, &mine))?;
        // SAFETY: the block is ours and the stream orders all.
        unsafe {
            self.mm.memset(own, 3, size, &mine).unwrap();
            self.mm.free_device_on(own, &mine).unwrap();
        }
        let host = allowed(self.mm.allocate_pinned(size))?;
        // SAFETY: nobody uses the block.
        unsafe { self.mm.free_pinned(host).unwrap() };
        Some(())
    }

    fn manage(&mut self) {
        let mm = self.mm;
        match self.rng.below(24) {
            0 => mm.set_device_allocator_mode(DeviceAllocatorMode::ALL[self.rng.below(3) as usize]),
            1 => mm.set_device_pool_limit(Some((64 + self.rng.below(64) as usize) * MIB)),
            2 => mm.set_device_pool_limit(None),
            3 => mm.set_pinned_pool_limit(Some((64 + self.rng.below(64) as usize) * MIB)),
            4 => mm.set_pinned_pool_limit(None),
            5 => drop(mm.trim().unwrap()),
            6 => drop(mm.shutdown().unwrap()),
            7 => mm.check().unwrap(),
            8..10 => mm.reset_peak(),
            10..12 => drop(mm.effective_device_allocator_mode().unwrap()),
            12..14 => drop(mm.native_pool_usage(DeviceAllocatorMode::CudaAsyncPool)),
            14 => mm.on_out_of_memory(|_| false),
            15 => assert_eq!(mm.take_error(), None),
            16 => {
                let at = self.rng.below(self.streams.len() as u64) as usize;
                self.streams[at] = Stream::new().unwrap();
            }
            17 => {
                let event = self.stream().record().unwrap();
                self.stream().wait(&event).unwrap();
                let _ = event.is_done().unwrap();
            }
            18 => self.stream().synchronize().unwrap(),
            _ => {
                let stats = mm.stats();
                assert!(stats.pinned.in_use <= stats.pinned.reserved, "{stats:?}");
                let _ = format!("{mm:?}");
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(16) {
            0..4 => drop(self.upload()),
            4..8 => drop(self.download()),
            8..10 => drop(self.duplicate()),
            10 => drop(self.zeroed()),
            11..13 => drop(self.raw()),
            _ => self.manage(),
        }
        if self.held.len() > 8 {
            let at = self.rng.below(self.held.len() as u64) as usize;
            self.held.swap_remove(at);
        }
    }
}

#[test]
fn sixteen_threads_that_call_everything_at_once_leave_nothing_behind() {
    #[cfg(feature = "sim")]
    cudart_sim::check(cudart_sim::Check::Report);
    // What only the first use of the device makes is made before the figure is taken.
    {
        let first = manager();
        let stream = Stream::new().unwrap();
        drop(first.device::<u8>(1, &stream).unwrap());
        first.shutdown().unwrap();
    }
    let (free_before, _) = rig::mem_get_info();
    let mm = manager();
    let steps: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
    let over = AtomicBool::new(false);
    let finished = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mm, steps, over, finished, failed) = (&mm, &steps, &over, &finished, &failed);
        for (i, mine) in steps.iter().enumerate() {
            scope.spawn(move || {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let mut worker = Worker {
                        mm,
                        rng: Rng(1000 + i as u64),
                        streams: (0..3)
                            .map(|n| Stream::builder().blocking(n == 2).build().unwrap())
                            .collect(),
                        held: Vec::new(),
                    };
                    while !over.load(Ordering::Relaxed) {
                        worker.step();
                        mine.fetch_add(1, Ordering::Relaxed);
                    }
                    while !worker.held.is_empty() {
                        if worker.download().is_none() {
                            worker.held.pop();
                        }
                        mine.fetch_add(1, Ordering::Relaxed);
                    }
                }));
                if let Err(panic) = result {
                    failed.store(true, Ordering::Relaxed);
                    over.store(true, Ordering::Relaxed);
                    finished.fetch_add(1, Ordering::Relaxed);
                    std::panic::resume_unwind(panic);
                }
                finished.fetch_add(1, Ordering::Relaxed);
            });
        }
        let begun = Instant::now();
        let mut last = [(0, begun); THREADS];
        while finished.load(Ordering::Relaxed) < THREADS as u64 {
            std::thread::sleep(Duration::from_millis(20));
            if begun.elapsed() > Duration::from_secs(seconds()) {
                over.store(true, Ordering::Relaxed);
            }
            for (i, (count, when)) in last.iter_mut().enumerate() {
                let now = steps[i].load(Ordering::Relaxed);
                if now != *count {
                    (*count, *when) = (now, Instant::now());
                }
            }
            // All that have not ended are stuck: nothing can come any more.
            if last.iter().all(|(_, when)| when.elapsed() > PATIENCE) {
                eprintln!("stress: no thread has made a step for {PATIENCE:?}; steps {last:?}");
                std::process::abort();
            }
        }
        println!(
            "steps: {}",
            last.iter().map(|(count, _)| count).sum::<u64>()
        );
    });
    assert!(!failed.load(Ordering::Relaxed));
    assert_eq!(mm.stats().drop_failures, 0, "{:?}", mm.take_error());
    assert_eq!(mm.stats().in_use(), 0, "{:?}", mm.stats());
    assert_sound(&mm);
    let report = mm.shutdown().unwrap();
    assert!(report.live.is_empty(), "{report}");
    let stats = mm.stats();
    assert_eq!(stats.pinned.reserved, 0);
    assert_eq!(stats.device[0].best_fit.reserved, 0);
    assert_sound(&mm);
    drop(mm);
    // SAFETY: the function has no preconditions.
    assert_eq!(unsafe { cuda_sys::cudaDeviceSynchronize() }.0, 0);
    let (free_after, _) = rig::mem_get_info();
    // Streams and events of a real runtime keep a little.
    assert!(
        free_before <= free_after + 64 * MIB,
        "{} bytes of device memory did not come back",
        free_before - free_after
    );
    #[cfg(feature = "sim")]
    {
        let info = cudart_sim::memory_info(0).unwrap();
        assert_eq!((info.blocks.0, info.pool_blocks.0), (0, 0), "{info:?}");
        assert_eq!(info.pool_reserved, 0, "{info:?}");
        assert_eq!(free_before, free_after);
    }
    #[cfg(feature = "sim")]
    cudart_sim::expect_clean();
}
