//! Work that touches blocks: they are checked, the work is submitted on the right device, and they are marked.

use super::inner::{Home, Inner};
use crate::{
    capture,
    cuda::{self, CopyKind},
    device::on_device,
    error::{Error, Place, Result},
    event::Fence,
    process, spans,
    stream::{Handle, StreamKind},
};
use std::{ffi::c_void, sync::Arc};

/// What an operation touches.
#[derive(Clone, Copy)]
pub(super) struct Touched {
    address: usize,
    size: usize,
    writes: bool,
    /// Whether it is probably memory of the stream's device.
    on_device: bool,
}

impl Touched {
    /// Where a copy writes and reads: address and bytes.
    pub fn by_copy(kind: CopyKind, dst: (usize, usize), src: (usize, usize)) -> [Self; 2] {
        let within = kind == CopyKind::DeviceToDevice;
        [
            Self {
                on_device: within || kind == CopyKind::HostToDevice,
                ..Self::by_fill(dst.0, dst.1)
            },
            Self {
                writes: false,
                on_device: within || kind == CopyKind::DeviceToHost,
                ..Self::by_fill(src.0, src.1)
            },
        ]
    }

    /// What a fill writes.
    pub fn by_fill(address: usize, size: usize) -> Self {
        Self {
            address,
            size,
            writes: true,
            on_device: true,
        }
    }
}

impl Inner {
    /// Submits work that touches ranges: checks those that belong to the manager, submits, and marks their blocks, also when
    /// the submission failed.
    ///
    /// Besides the work this makes two CUDA calls: the question whether the stream is being captured, which nobody else
    /// knows, and the record of the event behind the work. (On a machine with several devices also that for the current
    /// device.) Nothing but the fence is allocated.
    pub(super) fn submit<const N: usize>(
        self: &Arc<Self>,
        handle: &Handle,
        ranges: [Touched; N],
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let bytes = ranges.first().map_or(0, |range| range.size);
        let _span = spans::copy(Place::Device(handle.device()), bytes);
        process::gate()?;
        let mut blocks = [None; N];
        for (range, block) in ranges.iter().zip(&mut blocks) {
            if range.address == 0 {
                return Err(Error::unknown(0, "null"));
            }
            let device = range.on_device.then_some(handle.device());
            *block = self
                .find_near(range.address, range.size, device)?
                .map(|(home, block)| (home, block, range.writes));
        }
        let blocks = || blocks.iter().flatten().copied();
        // What is captured has not run when it is over, and runs again and again: the graph keeps its blocks.
        let homes = blocks().map(|(home, ..)| home);
        let _steady = handle.core().steady()?;
        if let Some(keeper) = capture::keeper(handle)? {
            for (home, block, writes) in blocks() {
                keeper.keep(self, home, block, writes);
            }
            return self.on_device_of(handle, homes, work);
        }
        let submitted = self.on_device_of(handle, homes, work);
        if blocks().next().is_none() {
            return submitted;
        }
        let (fence, recorded) = Fence::after_work(handle);
        for (home, block, writes) in blocks() {
            self.add_use(home, block, &fence, writes);
        }
        submitted.and(recorded)
    }

    /// # Safety
    /// As [`MemoryManager::copy_to_device_async`](crate::MemoryManager::copy_to_device_async).
    pub unsafe fn copy(
        self: &Arc<Self>,
        dst: *mut c_void,
        src: *const c_void,
        size: usize,
        kind: CopyKind,
        handle: &Handle,
    ) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
        self.submit(
            handle,
            Touched::by_copy(kind, (dst, size), (src, size)),
            || {
                // SAFETY: as this function demands; the handle is alive.
                unsafe { cuda::memcpy_async(dst, src, size, kind, handle.raw())? };
                self.traffic.add_copy(kind, size);
                Ok(())
            },
        )
    }

    /// # Safety
    /// As [`MemoryManager::memset`](crate::MemoryManager::memset).
    pub unsafe fn memset(
        self: &Arc<Self>,
        address: usize,
        value: u8,
        size: usize,
        handle: &Handle,
    ) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        self.submit(handle, [Touched::by_fill(address, size)], || {
            // SAFETY: as this function demands; the handle is alive.
            unsafe { cuda::memset_async(address, value, size, handle.raw())? };
            self.traffic.add_fill(size);
            Ok(())
        })
    }

    /// Runs `f`, which submits work that touches such memory, with the device current that CUDA wants then: copies of
    /// stream-ordered memory want the memory's, fills the stream's. With one device it is in any case.
    pub fn on_device_of<T>(
        &self,
        handle: &Handle,
        mut homes: impl Iterator<Item = Home>,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.devices.get().is_some_and(|devices| devices.len() == 1) {
            return f();
        }
        let stream_ordered = homes.find_map(|home| match home {
            Home::Native(device) => Some(device),
            _ => None,
        });
        // The handle of a default stream names no device.
        let device = match handle.core().kind() {
            StreamKind::Legacy | StreamKind::PerThread => handle.device(),
            _ => stream_ordered.unwrap_or(handle.device()),
        };
        on_device(device, f)
    }
}

#[cfg(all(test, feature = "sim", not(shuttle)))]
mod tests {
    use crate::{Config, MemoryManager, Stream, cuda_calls_on_this_thread as calls};

    #[test]
    fn a_copy_makes_two_calls_beside_the_copy_itself() {
        let (manager, stream) = (
            MemoryManager::new(Config::default()).unwrap(),
            Stream::new().unwrap(),
        );
        let device = manager.device::<u8>(4096, &stream).unwrap();
        let mut host = manager.pinned::<u8>(4096).unwrap();
        let (to, from) = (device.as_ptr(), host.as_ptr());
        for round in 0..8 {
            let before = calls();
            // SAFETY: both blocks have that many bytes.
            unsafe { manager.copy_to_device_async(to.cast(), from.cast(), 4096, &stream) }.unwrap();
            drop(stream.copy_to_device(&host, &device).unwrap());
            drop(stream.copy_to_host(&device, &mut host).unwrap());
            // The first may have to make events.
            assert!(round < 4 || calls() - before == 9, "{}", calls() - before);
        }
        stream.synchronize().unwrap();
    }
}
