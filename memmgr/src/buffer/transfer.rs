//! [`Transfer`]: a copy that owns its buffers, to be waited for, awaited, or handed away.

use super::{DeviceBuffer, PinnedBuffer};
use crate::{
    Pod, Stream, checker,
    error::{Error, Result, debug_with},
    event::{Event, Submitted},
    stream::handle_of,
};
use std::fmt;

/// A copy that owns both of its buffers until it has finished; from [`Stream::transfer_to_device`] and its siblings.
///
/// Wait for it with [`Transfer::wait`], or, with the feature `async`, by `transfer.await`: both give the buffers back.
/// The copy runs in any case. A transfer that is dropped before it has finished drops its buffers, whose memory is not
/// handed out again before the copy has finished; one that is forgotten (`mem::forget`) keeps them for good.
///
/// ```
/// use memmgr::{MemoryManager, Stream};
/// # fn main() -> memmgr::Result<()> {
/// let manager = MemoryManager::instance();
/// let stream = Stream::new()?;
/// let (host, device) = (manager.pinned::<u8>(4096)?, manager.device::<u8>(4096, &stream)?);
/// let transfer = stream.transfer_to_device(host, device)?;
/// // Do something else here.
/// let (host, device) = transfer.wait()?;
/// # let _ = (host, device);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the copy runs in any case, but its buffers go with the transfer: `wait()` gives them back"]
pub struct Transfer<S, D> {
    source: S,
    target: D,
    submitted: Submitted,
}

impl<S, D> Transfer<S, D> {
    /// Waits on the host until the copy has finished, and gives the buffers back.
    ///
    /// # Errors
    /// What the runtime says instead of a proof that the copy has finished, with the buffers.
    pub fn wait(self) -> TransferResult<S, D, (S, D)> {
        let waited = self.submitted.wait();
        self.ended(waited)
    }

    /// Whether the copy has finished.
    ///
    /// # Errors
    /// As [`Event::is_done`].
    pub fn is_done(&self) -> Result<bool> {
        self.submitted.is_done()
    }

    /// The event behind the copy; `None` if there was nothing to copy.
    pub fn event(&self) -> Option<&Event> {
        self.submitted.event()
    }

    /// The buffer that is copied from. To look at it waits, as ever.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The buffer that is copied to. To look at it waits, as ever; kernels on the same stream may use it at once.
    pub fn target(&self) -> &D {
        &self.target
    }

    /// Gives the buffers back without waiting. They know of the copy, as after one that borrows them.
    pub fn into_buffers(self) -> (S, D) {
        (self.source, self.target)
    }

    #[cfg(feature = "async")]
    pub(crate) fn submitted(&self) -> &Submitted {
        &self.submitted
    }

    /// What the end of the copy gives back.
    pub(crate) fn ended(self, how: Result<()>) -> TransferResult<S, D, (S, D)> {
        match how {
            Ok(()) => Ok((self.source, self.target)),
            Err(error) => Err(TransferError::new(error, self.source, self.target)),
        }
    }
}

/// A transfer that did not begin, or whose end cannot be proved; it has the buffers.
///
/// They are as good as before: where the copy may still run, they know of it. `?` turns it into an [`Error`] and drops
/// them.
pub struct TransferError<S, D>(Box<(Error, S, D)>);

/// A transfer, or what it gives back, or an error with its buffers.
pub type TransferResult<S, D, T = Transfer<S, D>> = Result<T, TransferError<S, D>>;

impl<S, D> TransferError<S, D> {
    fn new(error: Error, source: S, target: D) -> Self {
        Self(Box::new((error, source, target)))
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// What went wrong, and the buffers: source and target.
    pub fn into_parts(self) -> (Error, S, D) {
        *self.0
    }
}

impl<S, D> fmt::Debug for TransferError<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_with("TransferError", self.error(), f)
    }
}

impl<S, D> fmt::Display for TransferError<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<S, D> std::error::Error for TransferError<S, D> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

impl<S, D> From<TransferError<S, D>> for Error {
    fn from(failed: TransferError<S, D>) -> Self {
        failed.into_parts().0
    }
}

impl Stream {
    /// Copies a pinned buffer to a device buffer of the same length in this stream. The transfer owns both meanwhile.
    ///
    /// # Errors
    /// As [`Stream::copy_to_device`], with the buffers; [`Error::Unsupported`] on a stream that is being captured, whose
    /// copies may never run.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn transfer_to_device<T: Pod>(
        &self,
        source: PinnedBuffer<T>,
        target: DeviceBuffer<T>,
    ) -> TransferResult<PinnedBuffer<T>, DeviceBuffer<T>> {
        let _called = checker::called_here();
        start(self, source, target, |source, target| {
            self.copy_to_device(source, &*target)
        })
    }

    /// Copies a device buffer to a pinned buffer of the same length in this stream. The transfer owns both meanwhile.
    ///
    /// # Errors
    /// As [`Stream::transfer_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn transfer_to_host<T: Pod>(
        &self,
        source: DeviceBuffer<T>,
        target: PinnedBuffer<T>,
    ) -> TransferResult<DeviceBuffer<T>, PinnedBuffer<T>> {
        let _called = checker::called_here();
        start(self, source, target, |source, target| {
            self.copy_to_host(source, target)
        })
    }

    /// Copies a device buffer to another of the same length in this stream. The transfer owns both meanwhile.
    ///
    /// # Errors
    /// As [`Stream::transfer_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn transfer_device_to_device<T: Pod>(
        &self,
        source: DeviceBuffer<T>,
        target: DeviceBuffer<T>,
    ) -> TransferResult<DeviceBuffer<T>, DeviceBuffer<T>> {
        let _called = checker::called_here();
        start(self, source, target, |source, target| {
            self.copy_device_to_device(source, &*target)
        })
    }
}

/// A buffer, as far as the start of a transfer is concerned.
trait Buffer {
    fn bytes(&self) -> usize;
}

impl<T: Pod> Buffer for PinnedBuffer<T> {
    fn bytes(&self) -> usize {
        self.size_bytes()
    }
}

impl<T: Pod> Buffer for DeviceBuffer<T> {
    fn bytes(&self) -> usize {
        self.size_bytes()
    }
}

fn start<S: Buffer, D: Buffer>(
    stream: &Stream,
    source: S,
    mut target: D,
    copy: impl FnOnce(&S, &mut D) -> Result<Submitted>,
) -> TransferResult<S, D> {
    // A copy of nothing, or of two lengths, ends before any CUDA call.
    let calls = source.bytes() != 0 && source.bytes() == target.bytes();
    let core = handle_of(stream).core();
    let submitted = if calls {
        core.steady().and_then(|steady| {
            refuse_capture(stream)?;
            let submitted = copy(&source, &mut target);
            drop(steady);
            submitted
        })
    } else {
        copy(&source, &mut target)
    };
    match submitted {
        Ok(submitted) => Ok(Transfer {
            source,
            target,
            submitted,
        }),
        Err(error) => Err(TransferError::new(error, source, target)),
    }
}

/// What is captured runs when its graph is launched, or never: nobody could wait for it.
fn refuse_capture(stream: &Stream) -> Result<()> {
    handle_of(stream).refuse_capture(
        "a transfer",
        "borrow the buffers for the copy, or begin after the capture has ended",
    )
}
