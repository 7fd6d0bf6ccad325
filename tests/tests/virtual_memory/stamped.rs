//! Blocks whose bytes are looked at.

use crate::{
    common::{MIB, assert_sound},
    rig, stats,
};
use memmgr::{MemoryManager, Stream};
use std::ffi::c_void;

/// Blocks of which each byte is the number of the block.
pub struct Stamped {
    pub manager: MemoryManager,
    stream: Stream,
    pub blocks: Vec<Option<(*mut c_void, usize)>>,
}

impl Stamped {
    pub fn new(manager: MemoryManager) -> Self {
        Self {
            manager,
            stream: Stream::new().unwrap(),
            blocks: Vec::new(),
        }
    }

    pub fn add(&mut self, size: usize) -> memmgr::Result<*mut c_void> {
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

    pub fn free(&mut self, number: usize) {
        let (block, _) = self.blocks[number].take().unwrap();
        // SAFETY: nobody uses the block.
        unsafe { self.manager.free_device(block).unwrap() };
    }

    /// Every byte of every block is what it was.
    pub fn verify(&self) {
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
    pub fn trim(&self) -> usize {
        let before = stats(&self.manager).reserved;
        self.manager.trim().unwrap();
        before - stats(&self.manager).reserved
    }

    /// Eight blocks of 2 MiB side by side, of which 1, 3 and 5 are free.
    pub fn with_holes(manager: MemoryManager) -> Self {
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
