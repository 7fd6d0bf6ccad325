//! The demo with the memory manager, in any of its modes: memory is given back as soon as its last work
//! has been submitted, while that work still runs, and the next frame may have it.
//!
//! Buffers are the manager's guards: dropping one is all there is to freeing it.

use memmgr::{
    Config, CopyKind, DeviceAllocatorMode, DeviceBuffer, MemoryManager, PinnedBuffer, Stream,
};

use super::Measured;
use super::frames::Region;
use super::pipeline::{Memory, Times};
use crate::cuda;
use crate::device;
use crate::error::Result;

/// What CUDA's pool of the mode `cuda-pool` keeps when it is idle, in bytes.
const KEPT: usize = 256 << 20;

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
    /// The manager's CUDA calls before the first frame, and those made only to observe.
    other_calls: u64,
}

/// The CUDA calls that the manager has made so far, in the whole process.
fn cuda_calls() -> u64 {
    memmgr::cuda_calls().iter().map(|(_, count)| count).sum()
}

impl Managed {
    /// A manager in this mode, and streams on the current device, which is `ordinal`.
    pub fn new(
        mode: DeviceAllocatorMode,
        config: Config,
        ordinal: i32,
        streams: usize,
    ) -> Result<Self> {
        let mut config = config.mode(mode);
        match mode {
            DeviceAllocatorMode::BestFitPool => {}
            DeviceAllocatorMode::AsyncStreamOrdered => cuda::reset_current_pool(ordinal)?,
            DeviceAllocatorMode::CudaAsyncPool => {
                // The limit is that of the manager's own pool, and may be less than this.
                config = config.device_pool_limit(None).device_pool_limit_share(None);
                if config.device_pool_size == 0 {
                    config.device_pool_size = KEPT;
                }
            }
        }
        let streams = (0..streams).map(|_| Stream::new());
        let streams = streams.collect::<Result<_, _>>()?;
        Ok(Self {
            manager: MemoryManager::new(config)?,
            mode,
            ordinal,
            streams,
            device_requests: 0,
            native_reuses: 0,
            native_reserved: 0,
            other_calls: cuda_calls(),
        })
    }

    /// What the manager says at the end; it is shut down.
    pub fn measured(self, times: Times) -> Result<Measured> {
        let cuda_calls = cuda_calls() - self.other_calls;
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
            cuda_calls,
            device_in_use: usage.peak_in_use,
            device_reserved: usage.peak_reserved,
            pinned_in_use: stats.pinned.peak_in_use as u64,
            pinned_reserved: stats.pinned.peak_reserved as u64,
        };
        drop(self.streams);
        self.manager.shutdown()?;
        Ok(measured)
    }

    /// A drop cannot fail visibly; the manager keeps what went wrong in it.
    fn drop_failure(&self) -> Result<()> {
        self.manager.take_error().map_or(Ok(()), |e| Err(e.into()))
    }

    fn is_own_pool(&self) -> bool {
        self.mode == DeviceAllocatorMode::BestFitPool
    }
}

impl Memory for Managed {
    type Pinned = PinnedBuffer<u8>;
    type Device = DeviceBuffer<u8>;
    const FREES_IN_STREAM_ORDER: bool = true;

    fn pinned(&mut self, len: usize) -> Result<PinnedBuffer<u8>> {
        Ok(self.manager.pinned(len)?)
    }

    fn device(&mut self, len: usize, stream: usize) -> Result<DeviceBuffer<u8>> {
        self.device_requests += 1;
        Ok(self.manager.device(len, &self.streams[stream])?)
    }

    fn free_pinned(&mut self, memory: PinnedBuffer<u8>) -> Result<()> {
        drop(memory);
        self.drop_failure()
    }

    fn free_device(&mut self, memory: DeviceBuffer<u8>, _stream: usize) -> Result<()> {
        drop(memory);
        self.drop_failure()
    }

    fn write(&mut self, to: &mut PinnedBuffer<u8>, bytes: &[u8]) -> Result<()> {
        to.as_mut_slice()?.copy_from_slice(bytes);
        Ok(())
    }

    fn read<'m>(&mut self, from: &'m PinnedBuffer<u8>) -> Result<&'m [u8]> {
        Ok(from.as_slice()?)
    }

    fn copy_in(
        &mut self,
        to: &mut DeviceBuffer<u8>,
        from: &PinnedBuffer<u8>,
        stream: usize,
    ) -> Result<()> {
        let _ = self.streams[stream].copy_to_device(from, to)?;
        Ok(())
    }

    fn copy_out(
        &mut self,
        to: &mut PinnedBuffer<u8>,
        from: &DeviceBuffer<u8>,
        stream: usize,
    ) -> Result<()> {
        let _ = self.streams[stream].copy_to_host(from, to)?;
        Ok(())
    }

    fn copy_part(
        &mut self,
        to: (&mut DeviceBuffer<u8>, Region),
        from: (&DeviceBuffer<u8>, Region),
        row: usize,
        rows: usize,
        stream: usize,
    ) -> Result<()> {
        let target = to.1.within(to.0.as_ptr(), to.0.len(), row, rows)?;
        let source = from.1.within(from.0.as_ptr(), from.0.len(), row, rows)?;
        // SAFETY: both regions lie inside buffers of this manager, which the host cannot reach; when a
        // buffer is dropped its memory stays as it is until this copy has finished.
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

    fn fill(&mut self, memory: &mut DeviceBuffer<u8>, value: u8, stream: usize) -> Result<()> {
        let _ = self.streams[stream].memset(memory, value)?;
        Ok(())
    }

    fn synchronize(&mut self, stream: usize) -> Result<()> {
        Ok(self.streams[stream].synchronize()?)
    }

    /// CUDA's pools do not count reuse: a request that did not make the pool grow was served by it.
    fn observe(&mut self) -> Result<()> {
        if self.is_own_pool() {
            return Ok(());
        }
        let before = cuda_calls();
        let reserved = self.manager.native_pool_usage(self.mode)?.reserved as u64;
        self.other_calls += cuda_calls() - before;
        if reserved <= self.native_reserved {
            self.native_reuses += 1;
        }
        self.native_reserved = reserved;
        Ok(())
    }
}
