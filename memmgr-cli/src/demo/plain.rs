//! The demo without a memory manager: plain CUDA calls for every frame, as a program begins.
//!
//! Buffers know their size, and every copy is checked against it before the call, so that nothing here
//! can reach memory outside a buffer. `cudaFree` and `cudaFreeHost` wait for the device, hence also for
//! the work on the buffer that they free.

use std::ffi::c_void;
use std::ptr;

use cuda_sys as cuda;

use super::frames::Region;
use super::pipeline::Memory;
use crate::cuda::{check, check_memory};
use crate::error::{Failure, Result};

/// A buffer of `cudaHostAlloc` or `cudaMalloc`; who owns it frees it with [`Memory`]'s functions.
pub struct Buffer {
    address: *mut c_void,
    len: usize,
}

/// The size of two buffers that are copied as a whole.
fn same_len(a: &Buffer, b: &Buffer) -> Result<usize> {
    if a.len == b.len {
        Ok(a.len)
    } else {
        Err(Failure::message("the buffers of a copy differ in size"))
    }
}

/// What has been asked of the runtime, and how much is held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub calls: u64,
    pub requests: u64,
    pub device: u64,
    pub device_peak: u64,
    pub pinned: u64,
    pub pinned_peak: u64,
}

/// Plain CUDA calls on a set of streams.
pub struct Plain {
    streams: Vec<cuda::cudaStream_t>,
    pub usage: Usage,
}

impl Plain {
    /// Makes the streams on the current device.
    pub fn new(streams: usize) -> Result<Self> {
        let mut plain = Self {
            streams: Vec::new(),
            usage: Usage::default(),
        };
        for _ in 0..streams {
            let mut stream = ptr::null_mut();
            // SAFETY: `stream` is a valid place for the handle.
            check("cudaStreamCreateWithFlags", unsafe {
                cuda::cudaStreamCreateWithFlags(&raw mut stream, cuda::cudaStreamNonBlocking)
            })?;
            plain.streams.push(stream);
        }
        Ok(plain)
    }

    /// Counts and checks one call.
    fn call(&mut self, name: &str, status: cuda::cudaError_t) -> Result<()> {
        self.usage.calls += 1;
        check(name, status)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            // SAFETY: made in `new` and destroyed here only. A failure leaves a stream behind in a
            // program that is about to end.
            let _ = unsafe { cuda::cudaStreamDestroy(stream) };
        }
    }
}

impl Memory for Plain {
    type Pinned = Buffer;
    type Device = Buffer;
    const FREES_IN_STREAM_ORDER: bool = false;

    fn pinned(&mut self, len: usize) -> Result<Buffer> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for the pointer.
        let status =
            unsafe { cuda::cudaHostAlloc(&raw mut address, len, cuda::cudaHostAllocPortable) };
        self.usage.calls += 1;
        check_memory("cudaHostAlloc", len, status)?;
        self.usage.requests += 1;
        self.usage.pinned += len as u64;
        self.usage.pinned_peak = self.usage.pinned_peak.max(self.usage.pinned);
        Ok(Buffer { address, len })
    }

    fn device(&mut self, len: usize, _stream: usize) -> Result<Buffer> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a valid place for the pointer.
        let status = unsafe { cuda::cudaMalloc(&raw mut address, len) };
        self.usage.calls += 1;
        check_memory("cudaMalloc", len, status)?;
        self.usage.requests += 1;
        self.usage.device += len as u64;
        self.usage.device_peak = self.usage.device_peak.max(self.usage.device);
        Ok(Buffer { address, len })
    }

    fn free_pinned(&mut self, memory: Buffer) -> Result<()> {
        self.usage.pinned -= memory.len as u64;
        // SAFETY: a buffer of `pinned`, given up by its owner; the call waits for copies that use it.
        let status = unsafe { cuda::cudaFreeHost(memory.address) };
        self.call("cudaFreeHost", status)
    }

    fn free_device(&mut self, memory: Buffer, _stream: usize) -> Result<()> {
        self.usage.device -= memory.len as u64;
        // SAFETY: a buffer of `device`, given up by its owner; the call waits for work that uses it.
        let status = unsafe { cuda::cudaFree(memory.address) };
        self.call("cudaFree", status)
    }

    fn write(&mut self, to: &mut Buffer, bytes: &[u8]) -> Result<()> {
        if bytes.len() != to.len {
            return Err(Failure::message("the contents do not fit their buffer"));
        }
        // SAFETY: `len` bytes of host memory that no work has been given yet: the pipeline writes a
        // buffer before it submits a copy from it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.address.cast::<u8>(), to.len) };
        Ok(())
    }

    fn read<'m>(&mut self, from: &'m Buffer) -> Result<&'m [u8]> {
        // SAFETY: `len` bytes of host memory that came from the driver, hence with contents. The
        // pipeline has synchronised the stream that wrote them, and the borrow keeps them from being
        // freed or written.
        Ok(unsafe { std::slice::from_raw_parts(from.address.cast::<u8>(), from.len) })
    }

    fn copy_in(&mut self, to: &mut Buffer, from: &Buffer, stream: usize) -> Result<()> {
        let (stream, len) = (self.streams[stream], same_len(to, from)?);
        // SAFETY: both buffers hold `len` bytes, and the pipeline keeps them until the stream is done.
        let status = unsafe {
            cuda::cudaMemcpyAsync(
                to.address,
                from.address,
                len,
                cuda::cudaMemcpyKind::cudaMemcpyHostToDevice,
                stream,
            )
        };
        self.call("cudaMemcpyAsync", status)
    }

    fn copy_out(&mut self, to: &mut Buffer, from: &Buffer, stream: usize) -> Result<()> {
        let (stream, len) = (self.streams[stream], same_len(to, from)?);
        // SAFETY: as in `copy_in`.
        let status = unsafe {
            cuda::cudaMemcpyAsync(
                to.address,
                from.address,
                len,
                cuda::cudaMemcpyKind::cudaMemcpyDeviceToHost,
                stream,
            )
        };
        self.call("cudaMemcpyAsync", status)
    }

    fn copy_part(
        &mut self,
        to: (&mut Buffer, Region),
        from: (&Buffer, Region),
        row: usize,
        rows: usize,
        stream: usize,
    ) -> Result<()> {
        let target = to.1.within(to.0.address, to.0.len, row, rows)?;
        let source = from.1.within(from.0.address, from.0.len, row, rows)?;
        // SAFETY: both regions lie inside their buffers, which the pipeline keeps until the stream is
        // done.
        let status = unsafe {
            cuda::cudaMemcpy2DAsync(
                target,
                to.1.pitch,
                source,
                from.1.pitch,
                row,
                rows,
                cuda::cudaMemcpyKind::cudaMemcpyDeviceToDevice,
                self.streams[stream],
            )
        };
        self.call("cudaMemcpy2DAsync", status)
    }

    fn fill(&mut self, memory: &mut Buffer, value: u8, stream: usize) -> Result<()> {
        let stream = self.streams[stream];
        // SAFETY: sets the bytes of the buffer, which the pipeline keeps until the stream is done.
        let status =
            unsafe { cuda::cudaMemsetAsync(memory.address, i32::from(value), memory.len, stream) };
        self.call("cudaMemsetAsync", status)
    }

    fn synchronize(&mut self, stream: usize) -> Result<()> {
        // SAFETY: a stream of `new`, alive as long as `self`.
        let status = unsafe { cuda::cudaStreamSynchronize(self.streams[stream]) };
        self.call("cudaStreamSynchronize", status)
    }
}
