//! The work that follows an allocation (`--lag`), and an allocator whose blocks are worked on.

use std::collections::HashMap;
use std::ffi::c_void;
use std::time::{Duration, Instant};

#[cfg(feature = "sim")]
use memmgr::Backend;
use memmgr::{Error, Stream};

use super::pass::{Allocator, Managed, Pass, pass};
use crate::cuda;
use crate::error::{Failure, Result};
use crate::trace::Trace;

/// The work that follows an allocation.
pub struct Work {
    pub length: Duration,
    how: How,
}

enum How {
    /// A modelled kernel. Where no time is modelled it takes as long by itself.
    #[cfg(feature = "sim")]
    Kernel { modelled: bool },
    /// Fills of a buffer that all streams share.
    Fills { buffer: *mut c_void, bytes: usize },
}

/// The most that one fill fills.
const BUFFER: usize = 256 << 20;
/// Fills whose time is measured.
const MEASURED: u32 = 16;

impl Work {
    /// Work that takes about so long on the current device while nothing else runs.
    pub fn new(length: Duration, _modelled: bool) -> Result<Self> {
        #[cfg(feature = "sim")]
        if memmgr::backend() == Backend::Simulated {
            let modelled = _modelled;
            let how = How::Kernel { modelled };
            return Ok(Self { length, how });
        }
        let buffer = cuda::allocate(BUFFER)?;
        let stream = Stream::new()?;
        let mut taken = Duration::ZERO;
        // The first time is not typical.
        for _ in 0..2 {
            let start = Instant::now();
            for _ in 0..MEASURED {
                // SAFETY: the buffer has so many bytes and is never freed; the stream is alive.
                unsafe { cuda::fill(buffer, BUFFER, &stream) }?;
            }
            stream.synchronize()?;
            taken = start.elapsed() / MEASURED;
        }
        let fills = length.as_secs_f64() / taken.as_secs_f64().max(1e-9);
        let bytes = (fills * BUFFER as f64) as usize;
        let how = How::Fills { buffer, bytes };
        Ok(Self { length, how })
    }

    /// Submits it to the stream. It touches the first bytes of the block.
    fn submit(&self, block: *mut c_void, size: usize, stream: &Stream) -> Result<()> {
        match self.how {
            #[cfg(feature = "sim")]
            How::Kernel { modelled } => {
                let length = self.length;
                let touched = (block.cast_const(), size.min(1));
                let raw = stream.as_raw().cast();
                let status = cudart_sim::launch_for(raw, length, &[], &[touched], move |_| {
                    if !modelled {
                        std::thread::sleep(length);
                    }
                });
                cuda::check("a simulated kernel", cuda_sys::cudaError(status.0))
            }
            How::Fills { buffer, bytes } => {
                let mut left = bytes;
                let mut place = (block, size);
                while left > 0 {
                    let len = left.min(place.1);
                    // SAFETY: the block is live and as long, or it is the buffer, which is never freed; what others
                    // write there is the same. The stream is alive.
                    unsafe { cuda::fill(place.0, len, stream) }?;
                    left -= len;
                    place = (buffer, BUFFER);
                }
                Ok(())
            }
        }
    }
}

/// An allocator whose blocks are worked on.
pub struct Lagging<'a, A> {
    pub inner: A,
    work: &'a Work,
    /// Where each live block was allocated, since what works on it is there.
    streams: HashMap<usize, u32, rustc_hash::FxBuildHasher>,
    failure: Option<Failure>,
}

/// What can tell a stream of the trace, and that its work so far uses a block.
pub trait OnStreams: Allocator {
    fn streams(&self) -> &[Stream];
    fn record_use(&self, block: *mut c_void, stream: u32) -> Result<(), Error>;
}

impl OnStreams for Managed<'_> {
    fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn record_use(&self, block: *mut c_void, stream: u32) -> Result<(), Error> {
        (self.manager).record_use(block, &self.streams[stream as usize])
    }
}

impl<'a, A: OnStreams> Lagging<'a, A> {
    pub fn new(inner: A, work: &'a Work) -> Self {
        Self {
            inner,
            work,
            streams: HashMap::default(),
            failure: None,
        }
    }

    /// One pass, until all of its work has finished: the wall time, and what the pass says.
    pub fn pass(&mut self, trace: &Trace, moved: impl FnMut(usize)) -> Result<(Duration, Pass)> {
        let result = pass(self, trace, moved)?;
        let start = Instant::now();
        for stream in self.inner.streams() {
            stream.synchronize()?;
        }
        let taken = result.elapsed + start.elapsed();
        self.failure()?;
        Ok((taken, result))
    }

    /// Whether some work could not be submitted.
    pub fn failure(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl<A: OnStreams> Allocator for Lagging<'_, A> {
    fn allocate(&mut self, size: usize, stream: u32) -> Result<Option<*mut c_void>, Error> {
        let block = self.inner.allocate(size, stream)?;
        if let Some(block) = block {
            self.streams.insert(block.addr(), stream);
            let on = &self.inner.streams()[stream as usize];
            if let Err(failure) = self.work.submit(block, size, on) {
                self.failure.get_or_insert(failure);
            }
        }
        Ok(block)
    }

    fn free(&mut self, block: *mut c_void, stream: u32) -> Result<(), Error> {
        // A program that frees a block on another stream has ordered the two; here the block waits for both.
        if let Some(worked) = self.streams.remove(&block.addr())
            && worked != stream
        {
            self.inner.record_use(block, worked)?;
        }
        self.inner.free(block, stream)
    }

    fn at_peak(&mut self) {
        self.inner.at_peak();
    }
}
