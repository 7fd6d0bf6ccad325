//! The demo with the memory manager, in any of its modes: memory is given back as soon as its last work
//! has been submitted, while that work still runs, and the next frame may have it.
//!
//! Buffers know their size, and the manager checks every range against the block that it lies in.

use std::ffi::c_void;

use memmgr::{Config, CopyKind, DeviceAllocatorMode, MemoryManager, Stream};

use super::Measured;
use super::frames::Region;
use super::pipeline::{Memory, Times};
use crate::cuda;
use crate::device;
use crate::error::{Failure, Result};

/// What CUDA's pool of the mode `cuda-pool` keeps when it is idle, in bytes.
const KEPT: usize = 256 << 20;

/// A block of the manager.
pub struct Block {
    address: *mut c_void,
    len: usize,
}

/// A manager of its own, with its streams.
pub struct Managed {
    manager: MemoryManager,
    mode: DeviceAllocatorMode,
    ordinal: i32,
    streams: Vec<Stream>,
    device_requests: u64,
    /// Requests that CUDA's pool served from what it held.
    native_reuses: u64,
    /// Bytes that CUDA's pool held at the last request.
    native_reserved: u64,
    /// CUDA calls made only to observe.
    observing: u64,
}

impl Managed {
    /// A manager in this mode, and streams on the current device, which is `ordinal`.
    pub fn new(mode: DeviceAllocatorMode, ordinal: i32, streams: usize) -> Result<Self> {
        let mut config = Config::default().mode(mode);
        match mode {
            DeviceAllocatorMode::BestFitPool => {}
            DeviceAllocatorMode::AsyncStreamOrdered => cuda::reset_current_pool(ordinal)?,
            DeviceAllocatorMode::CudaAsyncPool => config = config.device_pool_size(KEPT),
        }
        let streams = (0..streams).map(|_| Stream::new());
        Ok(Self {
            manager: MemoryManager::new(config)?,
            mode,
            ordinal,
            streams: streams.collect::<Result<_, _>>()?,
            device_requests: 0,
            native_reuses: 0,
            native_reserved: 0,
            observing: 0,
        })
    }

    /// What the manager says at the end; it is shut down.
    pub fn measured(self, times: Times) -> Result<Measured> {
        let stats = self.manager.stats();
        let usage = device::usage(&self.manager, self.mode, self.ordinal)?;
        let own_pool = stats.device.iter().find(|own| own.device == self.ordinal);
        let device_reuses = match own_pool {
            Some(own) if self.is_own_pool() => own.best_fit.reuses,
            _ => self.native_reuses,
        };
        let measured = Measured {
            times,
            requests: self.device_requests + stats.pinned.allocations,
            reuses: device_reuses + stats.pinned.reuses,
            cuda_calls: stats.total_cuda_calls().saturating_sub(self.observing),
            device_in_use: usage.peak_in_use,
            device_reserved: usage.peak_reserved,
            pinned_in_use: stats.pinned.peak_in_use as u64,
            pinned_reserved: stats.pinned.peak_reserved as u64,
        };
        drop(self.streams);
        self.manager.shutdown()?;
        Ok(measured)
    }

    fn is_own_pool(&self) -> bool {
        self.mode == DeviceAllocatorMode::BestFitPool
    }
}

impl Memory for Managed {
    type Pinned = Block;
    type Device = Block;
    const FREES_IN_STREAM_ORDER: bool = true;

    fn pinned(&mut self, len: usize) -> Result<Block> {
        let address = self.manager.allocate_pinned(len)?;
        Ok(Block { address, len })
    }

    fn device(&mut self, len: usize, stream: usize) -> Result<Block> {
        self.device_requests += 1;
        let address = self
            .manager
            .allocate_device_on(len, &self.streams[stream])?;
        Ok(Block { address, len })
    }

    fn free_pinned(&mut self, memory: Block) -> Result<()> {
        // SAFETY: a block of `pinned`, given up by its owner; only copies through the manager use it.
        Ok(unsafe { self.manager.free_pinned(memory.address) }?)
    }

    fn free_device(&mut self, memory: Block, stream: usize) -> Result<()> {
        let stream = &self.streams[stream];
        // SAFETY: a block of `device`, given up by its owner, whose work is all on this stream.
        Ok(unsafe { self.manager.free_device_on(memory.address, stream) }?)
    }

    fn write(&mut self, to: &mut Block, bytes: &[u8]) -> Result<()> {
        if bytes.len() != to.len {
            return Err(Failure::message("the contents do not fit their buffer"));
        }
        // SAFETY: `len` bytes of host memory that nothing else uses: the manager hands out a block only
        // after the work on it has finished, and the pipeline writes it before it submits a copy.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.address.cast::<u8>(), to.len) };
        Ok(())
    }

    fn read<'m>(&mut self, from: &'m Block) -> Result<&'m [u8]> {
        // SAFETY: `len` bytes of host memory, initialised when their segment was made. The pipeline has
        // synchronised the stream that wrote them, and the borrow keeps them from being freed.
        Ok(unsafe { std::slice::from_raw_parts(from.address.cast::<u8>(), from.len) })
    }

    fn copy_in(&mut self, to: &mut Block, from: &Block, stream: usize) -> Result<()> {
        let (len, stream) = (to.len.min(from.len), &self.streams[stream]);
        // SAFETY: both blocks hold `len` bytes, are of this manager, and are freed in stream order.
        Ok(unsafe {
            self.manager
                .copy_to_device_async(to.address, from.address, len, stream)
        }?)
    }

    fn copy_out(&mut self, to: &mut Block, from: &Block, stream: usize) -> Result<()> {
        let (len, stream) = (to.len.min(from.len), &self.streams[stream]);
        // SAFETY: as in `copy_in`.
        Ok(unsafe {
            self.manager
                .copy_to_host_async(to.address, from.address, len, stream)
        }?)
    }

    fn copy_part(
        &mut self,
        to: (&mut Block, Region),
        from: (&Block, Region),
        row: usize,
        rows: usize,
        stream: usize,
    ) -> Result<()> {
        let target = to.1.within(to.0.address, to.0.len, row, rows)?;
        let source = from.1.within(from.0.address, from.0.len, row, rows)?;
        // SAFETY: both regions lie inside their blocks, which are freed in stream order.
        Ok(unsafe {
            self.manager.copy_2d(
                target,
                to.1.pitch,
                source,
                from.1.pitch,
                row,
                rows,
                CopyKind::DeviceToDevice,
                &self.streams[stream],
            )
        }?)
    }

    fn fill(&mut self, memory: &mut Block, value: u8, stream: usize) -> Result<()> {
        let stream = &self.streams[stream];
        // SAFETY: sets the bytes of the block, which is freed in stream order.
        Ok(unsafe {
            self.manager
                .memset(memory.address, value, memory.len, stream)
        }?)
    }

    fn synchronize(&mut self, stream: usize) -> Result<()> {
        Ok(self.streams[stream].synchronize()?)
    }

    /// CUDA's pools do not count reuse: a request that did not make the pool grow was served by it.
    fn observe(&mut self) -> Result<()> {
        if self.is_own_pool() {
            return Ok(());
        }
        let before = self.manager.stats().total_cuda_calls();
        let reserved = self.manager.native_pool_usage(self.mode)?.reserved as u64;
        self.observing += self.manager.stats().total_cuda_calls() - before;
        if reserved <= self.native_reserved {
            self.native_reuses += 1;
        }
        self.native_reserved = reserved;
        Ok(())
    }
}
