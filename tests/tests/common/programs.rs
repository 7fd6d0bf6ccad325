//! Random programs over several streams, against a model: each block is filled with its own byte when it is allocated,
//! and copied back in stream order before it is freed. Work that the manager does not see (fills) stands for kernels.
//! If memory changes hands too early, a late fill of the former owner, or an early one of the next, shows in a copy.
#![allow(dead_code)]

use crate::rig;
use memmgr::{Config, DeviceAllocatorMode, Error, MemoryManager, Stream};
use memmgr_tests::{Gate, Rng};
use std::{ffi::c_void, time::Duration};

const CAP: usize = 4 << 20;
const STREAMS: usize = 5;

struct Block {
    ptr: *mut c_void,
    size: usize,
    tag: u8,
    /// The stream behind everything that uses the block.
    last: usize,
    /// For the text of a failure.
    born: usize,
}

/// A copy that was submitted: the pinned memory, and what must be in it.
struct Copy {
    host: *mut c_void,
    size: usize,
    tag: u8,
    what: String,
}

struct Program {
    mm: MemoryManager,
    streams: Vec<Stream>,
    blocks: Vec<Block>,
    copies: Vec<Copy>,
    rng: Rng,
    step: usize,
    gates: Vec<std::thread::JoinHandle<()>>,
}

impl Program {
    fn tag(&mut self) -> u8 {
        1 + self.rng.below(255) as u8
    }

    fn allocate(&mut self) {
        // Mostly small ones, some that need a good part of the pool.
        let size = match self.rng.below(8) {
            0 => 1 + self.rng.below(CAP as u64 / 3) as usize,
            _ => 1 + self.rng.below(CAP as u64 / 16) as usize,
        };
        let on = self.rng.below(STREAMS as u64) as usize;
        let result = match self.rng.below(4) {
            0 => self.mm.allocate_device(size),
            _ => self.mm.allocate_device_on(size, &self.streams[on]),
        };
        let ptr = match result {
            Ok(ptr) => ptr,
            Err(Error::OutOfMemory(_)) => {
                self.finish();
                return;
            }
            Err(error) => panic!("step {}: {error:?}", self.step),
        };
        // An owner that does nothing: what its memory waits for must not be forgotten with it.
        if self.rng.below(3) == 0 {
            let by = self.rng.below(STREAMS as u64 + 1) as usize;
            // SAFETY: nobody used the block.
            unsafe {
                match self.streams.get(by) {
                    Some(stream) => self.mm.free_device_on(ptr, stream).unwrap(),
                    None => self.mm.free_device(ptr).unwrap(),
                }
            }
            return;
        }
        let tag = self.tag();
        // SAFETY: the block is ours from here on: at once in real time, or for work in its stream.
        unsafe { rig::kernel_fill(ptr, tag, size, &self.streams[on]) };
        self.blocks.push(Block {
            ptr,
            size,
            tag,
            last: on,
            born: self.step,
        });
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| self.rng.below(self.blocks.len() as u64) as usize)
    }

    /// Another stream goes on with a block, ordered by an event.
    fn hand_over(&mut self) {
        let Some(at) = self.pick() else { return };
        let to = self.rng.below(STREAMS as u64) as usize;
        let tag = self.tag();
        let block = &mut self.blocks[at];
        if to != block.last {
            let event = self.streams[block.last].record().unwrap();
            self.streams[to].wait(&event).unwrap();
        }
        // SAFETY: the block is ours and the stream follows all that used it.
        unsafe { rig::kernel_fill(block.ptr, tag, block.size, &self.streams[to]) };
        (block.tag, block.last) = (tag, to);
    }

    /// Copies a block out in the order of its last stream, through the manager or behind its back.
    fn copy_out(&mut self, at: usize) {
        let block = &self.blocks[at];
        let host = self.mm.allocate_pinned(block.size).expect("pinned memory");
        // SAFETY: both blocks are live and large enough, and the pinned one is not looked at before a synchronisation.
        unsafe {
            self.mm
                .copy_to_host_async(host, block.ptr, block.size, &self.streams[block.last])
                .unwrap();
        }
        self.copies.push(Copy {
            host,
            size: block.size,
            tag: block.tag,
            what: format!(
                "block {:?} of {} bytes, allocated in step {}, copied in step {} on stream {}",
                block.ptr, block.size, block.born, self.step, block.last
            ),
        });
    }

    fn free(&mut self) {
        let Some(at) = self.pick() else { return };
        self.copy_out(at);
        let block = self.blocks.swap_remove(at);
        let stream = &self.streams[block.last];
        // SAFETY: nobody uses the block afterwards; what did is in `stream`, or recorded.
        unsafe {
            match self.rng.below(3) {
                0 => {
                    self.mm.record_use(block.ptr, stream).unwrap();
                    self.mm.free_device(block.ptr).unwrap();
                }
                1 => {
                    // On a third stream, told by a recorded use.
                    self.mm.record_use(block.ptr, stream).unwrap();
                    let third = self.rng.below(STREAMS as u64) as usize;
                    self.mm
                        .free_device_on(block.ptr, &self.streams[third])
                        .unwrap();
                }
                _ => self.mm.free_device_on(block.ptr, stream).unwrap(),
            }
        }
    }

    /// A stream that stops for a moment. One at a time: a device may run all host functions on one thread.
    fn stall(&mut self) {
        self.gates.retain(|gate| !gate.is_finished());
        if !self.gates.is_empty() {
            return;
        }
        let at = self.rng.below(STREAMS as u64) as usize;
        let gate = Gate::new();
        crate::common::stall(&self.streams[at], &gate);
        self.gates
            .push(gate.open_after(Duration::from_micros(self.rng.below(4000))));
    }

    /// A stream ends with whatever is in it, and another takes its place.
    fn replace_stream(&mut self) {
        let at = self.rng.below(STREAMS as u64) as usize;
        // What it has lives on in a stream that follows it.
        let heir = (at + 1) % STREAMS;
        let event = self.streams[at].record().unwrap();
        self.streams[heir].wait(&event).unwrap();
        for block in self.blocks.iter_mut().filter(|block| block.last == at) {
            block.last = heir;
        }
        self.streams[at] = Stream::new().unwrap();
    }

    /// Waits for everything and looks at all copies.
    fn finish(&mut self) {
        while self.blocks.len() > STREAMS {
            self.free();
        }
        for stream in &self.streams {
            stream.synchronize().unwrap();
        }
        for copy in self.copies.drain(..) {
            // SAFETY: the copy has run, and the block is ours.
            unsafe {
                rig::assert_all(
                    crate::common::bytes(copy.host, copy.size),
                    copy.tag,
                    &copy.what,
                );
                self.mm.free_pinned(copy.host).unwrap();
            }
        }
        self.mm.check().unwrap();
    }

    fn step(&mut self) {
        self.step += 1;
        match self.rng.below(32) {
            0..14 => self.allocate(),
            14..22 => self.free(),
            22..26 => self.hand_over(),
            26..28 => self.stall(),
            28 => {
                if let Some(at) = self.pick() {
                    self.copy_out(at);
                }
            }
            29 => self.replace_stream(),
            30 => drop(self.mm.trim().unwrap()),
            _ if self.copies.len() > 200 => self.finish(),
            _ => self.mm.check().unwrap(),
        }
    }
}

/// Runs a program of this many steps.
pub fn run(mode: DeviceAllocatorMode, seed: u64, steps: usize) {
    let mm = MemoryManager::new(
        Config::default()
            .mode(mode)
            .reuse(if seed.is_multiple_of(2) {
                memmgr::Reuse::PreferSpeed
            } else {
                memmgr::Reuse::PreferMemory
            })
            .device_growth(1 << 20)
            .device_pool_limit(Some(CAP)),
    )
    .expect("valid settings");
    let mut program = Program {
        mm,
        streams: (0..STREAMS)
            .map(|i| {
                Stream::builder()
                    .blocking(i == 0)
                    .build()
                    .expect("a stream")
            })
            .collect(),
        blocks: Vec::new(),
        copies: Vec::new(),
        rng: Rng(seed),
        step: 0,
        gates: Vec::new(),
    };
    println!("{mode}, seed {seed}");
    for _ in 0..steps {
        program.step();
    }
    while !program.blocks.is_empty() {
        program.free();
    }
    program.finish();
    for gate in program.gates.drain(..) {
        gate.join().expect("the gate opens");
    }
    let stats = program.mm.stats();
    assert_eq!((stats.in_use(), stats.drop_failures), (0, 0));
    let report = program.mm.shutdown().expect("everything has completed");
    assert!(report.live.is_empty());
    assert_eq!(program.mm.stats().device[0].best_fit.reserved, 0);
}

/// The programs that every schedule runs.
pub fn run_all() {
    for mode in rig::modes() {
        for seed in 0..8 {
            run(*mode, seed, 400);
        }
    }
}
