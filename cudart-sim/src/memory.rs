//! What is allocated where: device blocks and page-locked host memory, found by any address inside them.

use crate::device::Device;
use crate::error::{Answer, INVALID_VALUE};
use crate::work::Place;
use crate::{thread, vmm};
use std::collections::BTreeMap;

/// Where a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `cudaMalloc`.
    Malloc,
    /// The pool in this place of the pool table.
    Pool(usize),
    /// The capture of this number: it stays until the graph of it is gone.
    Graph(u64),
}

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Bytes that were asked for.
    pub(crate) size: u64,
    pub(crate) source: Source,
    /// The device, for device memory; for memory of a host pool, the device that was current.
    pub(crate) device: u32,
    /// Memory of a host pool.
    pub(crate) host: bool,
}

/// Page-locked host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) len: u64,
    pub(crate) flags: u32,
    pub(crate) device: u32,
    /// By `cudaHostRegister`; else by `cudaHostAlloc`.
    pub(crate) registered: bool,
}

/// All live memory.
pub(crate) struct Memory {
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) pinned: BTreeMap<u64, Pinned>,
}

impl Memory {
    pub(crate) const fn new() -> Memory {
        Memory {
            blocks: BTreeMap::new(),
            pinned: BTreeMap::new(),
        }
    }

    /// The block that holds an address.
    pub(crate) fn block(&self, address: u64) -> Option<(u64, &Block)> {
        let (start, block) = self.blocks.range(..=address).next_back()?;
        (address - start < block.size).then_some((*start, block))
    }

    /// The page-locked region that holds an address.
    pub(crate) fn pinned(&self, address: u64) -> Option<(u64, &Pinned)> {
        let (start, region) = self.pinned.range(..=address).next_back()?;
        (address - start < region.len).then_some((*start, region))
    }

    /// The page-locked regions that overlap the range.
    pub(crate) fn pinned_in(&self, start: u64, len: u64) -> impl Iterator<Item = &Pinned> {
        let end = start.saturating_add(len);
        let before = self.pinned(start).filter(|(at, _)| *at < start);
        let inside = self.pinned.range(start..end);
        before
            .map(|(_, region)| region)
            .into_iter()
            .chain(inside.map(|(_, region)| region))
    }

    /// What lies at an address: device memory (the whole extent must be inside one block) or host memory.
    pub(crate) fn resolve(&self, devices: &[Device], address: u64, extent: usize) -> Answer<Place> {
        let end = address.checked_add(extent as u64).ok_or(INVALID_VALUE)?;
        if let Some((start, block)) = self.block(address) {
            if end > start.saturating_add(block.size) {
                return Err(INVALID_VALUE);
            }
            if block.host {
                return Ok(Place::Host(address as usize, true));
            }
            let space = devices
                .get(block.device as usize)
                .and_then(|d| d.space())
                .ok_or(INVALID_VALUE)?;
            return Ok(Place::Device(
                space.clone(),
                (address - space.base()) as usize,
            ));
        }
        if vmm::reserved(address) {
            // All of it has to be mapped now (measured for a fill); what is mapped there shows when the work runs.
            if !vmm::mapped(address, extent) {
                return Err(INVALID_VALUE);
            }
            return Ok(Place::Mapped(address, thread::device()));
        }
        if address == 0 || devices.iter().any(|d| d.owns(address)) {
            return Err(INVALID_VALUE);
        }
        let pinned = self
            .pinned(address)
            .is_some_and(|(start, region)| end <= start.saturating_add(region.len));
        Ok(Place::Host(address as usize, pinned))
    }
}
