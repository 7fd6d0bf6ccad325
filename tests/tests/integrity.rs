//! Eight threads pass blocks over sixteen streams: every block is stamped, goes on to other streams and threads, is
//! compared with its stamp, and is freed by a thread that neither made it nor used it last. A program of its own, for
//! as many operations as `MEMMGR_INTEGRITY_OPERATIONS` says, in each mode.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{assert_sound, bytes, bytes_mut};
use memmgr::{Config, DeviceAllocatorMode, Event, MemoryManager, Stream};
use memmgr_tests::{Rng, SIMULATED};
use std::{
    collections::VecDeque,
    ffi::c_void,
    io::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

const THREADS: usize = 8;
const STREAMS: usize = 16;
/// Copies to the host that one thread leaves in flight.
const IN_FLIGHT: usize = 16;

fn operations() -> u64 {
    match std::env::var("MEMMGR_INTEGRITY_OPERATIONS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("MEMMGR_INTEGRITY_OPERATIONS={text} is no number")),
        Err(_) if SIMULATED => 20_000,
        Err(_) => 100_000,
    }
}

#[derive(Clone, Copy)]
enum Stamp {
    Fill(u8),
    Words(u64),
}

impl Stamp {
    fn word(self, at: usize) -> u64 {
        match self {
            Stamp::Fill(value) => u64::from_ne_bytes([value; 8]),
            Stamp::Words(number) => number ^ (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }
}

struct Block {
    address: usize,
    len: usize,
    stamp: Stamp,
    /// Follows all that used it; the manager knows of all of it.
    after: Event,
    maker: usize,
    user: usize,
}

impl Block {
    fn ptr(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

struct Copy {
    host: usize,
    len: usize,
    stamp: Stamp,
    after: Event,
}

struct Shared {
    mm: MemoryManager,
    streams: Vec<Stream>,
    shelf: Mutex<Vec<Block>>,
    operations: AtomicU64,
    verified: AtomicU64,
    freed_by_a_third: AtomicU64,
}

struct Worker<'a> {
    shared: &'a Shared,
    number: usize,
    rng: Rng,
    copies: VecDeque<Copy>,
}

impl<'a> Worker<'a> {
    fn shelf(&self) -> std::sync::MutexGuard<'a, Vec<Block>> {
        let shared = self.shared;
        shared.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream(&mut self) -> &'a Stream {
        &self.shared.streams[self.rng.below(STREAMS as u64) as usize]
    }

    fn count(&self, operations: u64) {
        self.shared.operations.fetch_add(operations, Relaxed);
    }

    /// In words of eight bytes; a few are large.
    fn len(&mut self) -> usize {
        let most = if self.rng.below(16) == 0 { 8192 } else { 512 };
        8 * (1 + self.rng.below(most) as usize)
    }

    /// Writes all of a block in the order of a stream.
    fn stamp(&mut self, ptr: *mut c_void, len: usize, stream: &Stream) -> Stamp {
        let number = self.rng.next_u64();
        let mm = &self.shared.mm;
        // SAFETY: the blocks are ours, and the stream follows all that used them; nobody else has the pinned one before
        // its copy has run.
        unsafe {
            if self.rng.below(3) == 0 {
                mm.memset(ptr, number as u8, len, stream).unwrap();
                self.count(1);
                return Stamp::Fill(number as u8);
            }
            let stamp = Stamp::Words(number);
            let host = mm.allocate_pinned(len).unwrap();
            let words = bytes_mut(host, len).chunks_exact_mut(8);
            for (at, word) in words.enumerate() {
                word.copy_from_slice(&stamp.word(at).to_ne_bytes());
            }
            mm.copy_to_device_async(ptr, host, len, stream).unwrap();
            mm.free_pinned(host).unwrap();
            self.count(3);
            stamp
        }
    }

    fn make(&mut self) {
        let (len, stream) = (self.len(), self.stream());
        let ptr = self.shared.mm.allocate_device_on(len, stream).unwrap();
        self.count(1);
        let stamp = self.stamp(ptr, len, stream);
        let after = stream.record().unwrap();
        let block = Block {
            address: ptr.expose_provenance(),
            len,
            stamp,
            after,
            maker: self.number,
            user: self.number,
        };
        self.shelf().push(block);
    }

    fn take(&mut self, wanted: impl Fn(&Block) -> bool) -> Option<Block> {
        let mut shelf = self.shelf();
        let from = self.rng.below(shelf.len() as u64) as usize;
        let mut places = (from..shelf.len()).chain(0..from);
        let at = places.find(|at| wanted(&shelf[*at]))?;
        Some(shelf.swap_remove(at))
    }

    /// Copies a block to the host, in the order of a stream that follows its users.
    fn look(&mut self, block: &Block, stream: &Stream) {
        let mm = &self.shared.mm;
        let host = mm.allocate_pinned(block.len).unwrap();
        // SAFETY: both blocks are ours and large enough; nobody looks before the event.
        unsafe {
            mm.copy_to_host_async(host, block.ptr(), block.len, stream)
                .unwrap();
        }
        self.count(2);
        self.copies.push_back(Copy {
            host: host.expose_provenance(),
            len: block.len,
            stamp: block.stamp,
            after: stream.record().unwrap(),
        });
        while self.copies.len() > IN_FLIGHT {
            self.compare();
        }
    }

    fn compare(&mut self) {
        let Some(copy) = self.copies.pop_front() else {
            return;
        };
        copy.after.synchronize().unwrap();
        let host = std::ptr::with_exposed_provenance_mut(copy.host);
        // SAFETY: the copy has run, and the block is ours.
        unsafe {
            let words = bytes(host, copy.len).chunks_exact(8);
            for (at, got) in words.enumerate() {
                let expected = copy.stamp.word(at).to_ne_bytes();
                assert_eq!(got, expected, "word {at} of {} bytes", copy.len);
            }
            self.shared.mm.free_pinned(host).unwrap();
        }
        self.count(1);
        self.shared.verified.fetch_add(copy.len as u64, Relaxed);
    }

    /// Another stream goes on with a block: looks at it, and stamps it anew or copies it into another.
    fn use_block(&mut self) {
        let Some(mut block) = self.take(|_| true) else {
            return;
        };
        let stream = self.stream();
        stream.wait(&block.after).unwrap();
        self.look(&block, stream);
        if self.rng.below(2) == 0 {
            block.stamp = self.stamp(block.ptr(), block.len, stream);
        } else {
            let mm = &self.shared.mm;
            let copy = mm.allocate_device_on(block.len, stream).unwrap();
            // SAFETY: the blocks are ours, and the stream follows what used them.
            unsafe {
                mm.copy_device_to_device(copy, block.ptr(), block.len, stream)
                    .unwrap();
                match self.rng.below(2) {
                    0 => mm.free_device(block.ptr()).unwrap(),
                    _ => mm.free_device_on(block.ptr(), stream).unwrap(),
                }
            }
            self.count(3);
            block.address = copy.expose_provenance();
            block.maker = self.number;
        }
        (block.after, block.user) = (stream.record().unwrap(), self.number);
        self.shelf().push(block);
    }

    /// Frees what two other threads made and used; whether there was any.
    fn free(&mut self) -> bool {
        let me = self.number;
        let others =
            |block: &Block| block.maker != me && block.user != me && block.maker != block.user;
        let Some(block) = self.take(others) else {
            return false;
        };
        self.free_block(block);
        self.shared.freed_by_a_third.fetch_add(1, Relaxed);
        true
    }

    fn free_block(&mut self, block: Block) {
        let (stream, third) = (self.stream(), self.stream());
        stream.wait(&block.after).unwrap();
        self.look(&block, stream);
        let mm = &self.shared.mm;
        // SAFETY: nobody uses the block afterwards; the manager knows of all that did.
        unsafe {
            match self.rng.below(3) {
                0 => mm.free_device(block.ptr()).unwrap(),
                1 => mm.free_device_on(block.ptr(), third).unwrap(),
                _ => mm.free_device_on(block.ptr(), stream).unwrap(),
            }
        }
        self.count(1);
    }

    fn step(&mut self) {
        let on_shelf = self.shelf().len();
        match self.rng.below(8) {
            0..3 if on_shelf < 256 => self.make(),
            3..5 => self.use_block(),
            _ if on_shelf > 32 && self.free() => {}
            _ if on_shelf < 64 => self.make(),
            _ => self.use_block(),
        }
    }
}

fn run(mode: DeviceAllocatorMode, wanted: u64) {
    let shared = Shared {
        mm: MemoryManager::new(Config::default().mode(mode)).expect("valid settings"),
        streams: (0..STREAMS)
            .map(|at| Stream::builder().blocking(at % 8 == 7).build().unwrap())
            .collect(),
        shelf: Mutex::default(),
        operations: AtomicU64::new(0),
        verified: AtomicU64::new(0),
        freed_by_a_third: AtomicU64::new(0),
    };
    let shared = &shared;
    let failed = &AtomicBool::new(false);
    let begun = Instant::now();
    let worker = |number| Worker {
        shared,
        number,
        rng: Rng(7000 + number as u64),
        copies: VecDeque::new(),
    };
    let tell = |what: &str| {
        // Seen at once, also where the output of tests is kept until their end.
        let _ = writeln!(
            std::io::stderr(),
            "{}, {mode}{what}: {} operations, {} bytes verified, {} blocks freed by a third thread, {:.1} s",
            memmgr::backend(),
            shared.operations.load(Relaxed),
            shared.verified.load(Relaxed),
            shared.freed_by_a_third.load(Relaxed),
            begun.elapsed().as_secs_f64()
        );
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    struct Fail<'a>(&'a AtomicBool);
                    impl Drop for Fail<'_> {
                        fn drop(&mut self) {
                            if std::thread::panicking() {
                                self.0.store(true, Relaxed);
                            }
                        }
                    }
                    let _fail = Fail(failed);
                    let mut worker = worker(number);
                    while shared.operations.load(Relaxed) < wanted && !failed.load(Relaxed) {
                        worker.step();
                    }
                    while !worker.copies.is_empty() {
                        worker.compare();
                    }
                })
            })
            .collect();
        let mut said = Instant::now();
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
            if said.elapsed() >= Duration::from_secs(15) {
                said = Instant::now();
                tell(", so far");
            }
        }
    });
    let mut last = worker(THREADS);
    while let Some(block) = last.take(|_| true) {
        last.free_block(block);
    }
    while !last.copies.is_empty() {
        last.compare();
    }
    tell("");
    assert!(shared.operations.load(Relaxed) >= wanted);
    assert!(shared.freed_by_a_third.load(Relaxed) > wanted / 100);
    let mm = &shared.mm;
    assert_sound(mm);
    assert_eq!((mm.stats().in_use(), mm.stats().drop_failures), (0, 0));
    assert!(mm.shutdown().unwrap().live.is_empty());
}

#[test]
fn what_threads_and_streams_pass_on_arrives_whole_in_each_mode() {
    for mode in rig::modes() {
        run(*mode, operations());
    }
}
