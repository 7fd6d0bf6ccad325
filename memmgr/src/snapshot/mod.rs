//! What a manager holds at one moment: [`MemoryManager::snapshot`](crate::MemoryManager::snapshot), and the files that it can
//! be written to.

mod encode;
mod file;
mod torch;

use crate::{
    error::{Error, Place},
    events::Event,
    mode::DeviceAllocatorMode,
};
use encode::{Json, Pickle};
use std::{io, panic::Location, path::Path, sync::Arc};

/// What a block of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockState {
    /// Handed out.
    Live,
    /// Freed, but a captured graph keeps it.
    KeptByGraph,
    /// Free, but work that was submitted before may still use it.
    Pending,
    /// Free, and usable at once by anybody.
    Idle,
}

/// A block of a segment. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// Where it begins.
    pub address: usize,
    /// How long it is.
    pub size: usize,
    /// What was asked for; 0 if it is free.
    pub requested: usize,
    /// What it is.
    pub state: BlockState,
    /// The stream that it was allocated on, by the driver's id; of pending memory the stream whose work it waits for, if that
    /// is one.
    pub stream: Option<u64>,
    /// Whether it was handed out as a raw pointer; otherwise a guard owns it.
    pub raw: bool,
    /// The name that it was given.
    pub name: Option<Arc<str>>,
    /// Where in the program it was allocated.
    pub call_site: Option<&'static Location<'static>>,
}

/// Memory that was obtained from CUDA in one piece; of a range of virtual addresses a part that is mapped without a gap; in
/// the async modes, whose segments are the driver's affair, a block. Its blocks fill it. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Whose memory it is.
    pub place: Place,
    /// Which family serves it; `None` for pinned memory.
    pub mode: Option<DeviceAllocatorMode>,
    /// Where it begins.
    pub address: usize,
    /// How long it is.
    pub size: usize,
    /// Whether it is a mapped part of a range of virtual addresses.
    pub mapped: bool,
    /// What is in it, by ascending address.
    pub blocks: Vec<Block>,
}

/// What a manager holds at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// When, in microseconds since the beginning of 1970, UTC.
    pub time_us: u64,
    /// How many devices the machine has, as far as the manager has asked.
    pub devices: usize,
    /// All segments, those of pinned memory last.
    pub segments: Vec<Segment>,
    /// The last events, if [`Config::event_ring`](crate::Config::event_ring) keeps any.
    pub events: Vec<Event>,
    /// Whether it was taken in a forked child, which knows nothing of what there is.
    pub(crate) forked: bool,
}

impl Snapshot {
    /// Writes it as PyTorch's `torch.cuda.memory._dump_snapshot` does: a pickle of plain values, which `_memory_viz.py`, the
    /// viewer at pytorch.org/memory_viz and `memmgr report` open. Pinned memory goes by the number behind that of the last
    /// device.
    ///
    /// The file is written whole or not at all: a reader never sees half of one, and what was there stays if it fails.
    ///
    /// # Errors
    /// What the operating system says; an [`io::Error`] with [`Error::ForkedChild`] for a snapshot that was taken in a forked
    /// child, which knows nothing, and the file is not touched.
    pub fn write_pickle(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.is_of_something()?;
        file::write(path.as_ref(), |file| torch::write(self, Pickle::new(file)))
    }

    /// As [`Snapshot::write_pickle`], the same in JSON.
    ///
    /// # Errors
    /// As [`Snapshot::write_pickle`].
    pub fn write_json(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.is_of_something()?;
        file::write(path.as_ref(), |file| torch::write(self, Json::new(file)))
    }

    fn is_of_something(&self) -> io::Result<()> {
        if self.forked {
            return Err(io::Error::other(Error::ForkedChild));
        }
        Ok(())
    }
}
