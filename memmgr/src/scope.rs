//! Scopes: copies to and from plain slices of the host, which are lent until the scope ends and no longer.

use crate::{
    CopyKind, Pod,
    buffer::{DevicePart, operate, part_of},
    checker, context, cuda,
    device::on_device,
    error::{Error, Result},
    event::Fence,
    manager::MemoryManager,
    planted::{self, Mistake},
    process,
    stream::{AsStream, handle_of},
    sync::{Mutex, lock},
};
use std::{
    fmt,
    io::Write,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

/// Where copies may use slices of the host; from [`MemoryManager::scope`].
///
/// A slice that a copy reads can be read, one that it writes cannot be touched before the scope has ended:
///
/// ```compile_fail,E0502
/// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
/// # let device = manager.device::<u8>(8, &stream).unwrap();
/// let mut target = vec![0u8; 8];
/// manager.scope(|s| {
///     s.copy_to_host(&device, &mut target, &stream)?;
///     assert_eq!(target[0], 0);
///     Ok(())
/// }).unwrap();
/// ```
/// ```compile_fail,E0506
/// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
/// # let device = manager.device::<u8>(8, &stream).unwrap();
/// let mut source = [1u8; 8];
/// manager.scope(|s| {
///     s.copy_to_device(&source, &device, &stream)?;
///     source[0] = 2;
///     Ok(())
/// }).unwrap();
/// ```
/// What is made inside cannot be lent, since it goes before the scope ends; nor can what is dropped inside:
///
/// ```compile_fail,E0597
/// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
/// # let device = manager.device::<u8>(8, &stream).unwrap();
/// manager.scope(|s| {
///     let source = vec![1u8; 8];
///     s.copy_to_device(&source, &device, &stream)?;
///     Ok(())
/// }).unwrap();
/// ```
/// ```compile_fail,E0505
/// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
/// # let device = manager.device::<u8>(8, &stream).unwrap();
/// let source = vec![1u8; 8];
/// manager.scope(|s| {
///     s.copy_to_device(&source, &device, &stream)?;
///     drop(source);
///     Ok(())
/// }).unwrap();
/// ```
/// And the scope cannot be carried out of its closure:
///
/// ```compile_fail
/// # let manager = memmgr::MemoryManager::instance();
/// let mut outside = None;
/// manager.scope(|s| {
///     outside = Some(s);
///     Ok(())
/// }).unwrap();
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    lent: Mutex<Vec<Lent>>,
    // Both invariant, so that neither can be made shorter or longer than what the closure was given.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A slice that a copy uses.
struct Lent {
    /// Behind the copy.
    fence: Arc<Fence>,
    address: usize,
    bytes: usize,
    /// Whether the copy writes it.
    written: bool,
}

/// Ends the process when it is dropped.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl MemoryManager {
    /// Runs `f`, which may have slices of the host copied to and from device memory, and waits for these copies before it
    /// returns, also when `f` fails or panics. The slices are ordinary (pageable) memory of the caller; inside they stay
    /// borrowed, as in [`std::thread::scope`].
    ///
    /// ```
    /// # fn main() -> memmgr::Result<()> {
    /// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new()?);
    /// let source = vec![3u32; 1000];
    /// let mut target = [0u32; 500];
    /// let device = manager.device::<u32>(1000, &stream)?;
    /// manager.scope(|s| {
    ///     s.copy_to_device(&source, &device, &stream)?;
    ///     s.copy_to_host(&device.slice(..500)?, &mut target, &stream)?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(target, [3; 500]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Aborts
    /// If the runtime gives no proof that the copies have ended, neither success nor an error that says that the context is
    /// gone ([`Error::ends_context`], or a reset of the device): to return would let the caller free memory that the device still uses. If another
    /// thread has begun to exit the process with copies in flight, this one stops here for good.
    ///
    /// # Errors
    /// What `f` says; otherwise the error that ended the context of one of the copies: the contents of what they wrote
    /// cannot be trusted then.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn scope<'env, R>(
        &self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        let _called = checker::called_here();
        let scope = Scope {
            lent: Mutex::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
        // A panic on the way to the proof (in a subscriber of `tracing`, say) must not get out without it.
        let unwinding = Abort;
        let ended = scope.end();
        std::mem::forget(unwinding);
        match result {
            Ok(result) => result.and_then(|value| ended.map(|()| value)),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Copies a slice to device memory of the same length in `stream`.
    ///
    /// # Errors
    /// As [`Stream::copy_to_device`](crate::Stream::copy_to_device); also [`Error::Unsupported`] if the stream is being
    /// captured into a graph.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_to_device<T: Pod>(
        &'scope self,
        src: &'scope [T],
        dst: &impl DevicePart<Element = T>,
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        let address = src.as_ptr().expose_provenance();
        // SAFETY: the slice is borrowed until the scope has ended, which is after the copy, and nobody writes it.
        unsafe {
            self.copy(
                address,
                size_of_val(src),
                dst,
                CopyKind::HostToDevice,
                stream,
            )
        }
    }

    /// Copies device memory to a slice of the same length in `stream`.
    ///
    /// # Errors
    /// As [`Scope::copy_to_device`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn copy_to_host<T: Pod>(
        &'scope self,
        src: &impl DevicePart<Element = T>,
        dst: &'scope mut [T],
        stream: &impl AsStream,
    ) -> Result<()> {
        let _called = checker::called_here();
        let address = dst.as_mut_ptr().expose_provenance();
        // SAFETY: the slice is borrowed until the scope has ended, which is after the copy, and nobody else uses it; every
        // bit pattern is a `T`.
        unsafe {
            self.copy(
                address,
                size_of_val(dst),
                src,
                CopyKind::DeviceToHost,
                stream,
            )
        }
    }

    /// # Safety
    /// `address` has `bytes` bytes that stay until the scope has ended; nobody else writes them, nor, if the copy writes
    /// them, reads them.
    unsafe fn copy(
        &self,
        address: usize,
        bytes: usize,
        on_device: &impl DevicePart,
        kind: CopyKind,
        stream: &impl AsStream,
    ) -> Result<()> {
        let (handle, part) = (handle_of(stream), part_of(on_device));
        if part.bytes != bytes {
            return Err(Error::range(format!(
                "a copy between a slice of {bytes} bytes and a buffer of {} bytes",
                part.bytes
            )));
        }
        if bytes == 0 {
            return Ok(());
        }
        let _steady = handle.core().steady()?;
        // The graph could run when the slice is gone.
        handle.refuse_capture(
            "a copy of a borrowed slice",
            "copy it before the capture begins, or to and from a buffer of the manager",
        )?;
        let to_host = kind == CopyKind::DeviceToHost;
        let (dst, src) = if to_host {
            (address, part.address)
        } else {
            (part.address, address)
        };
        // From here on the copy must not be forgotten.
        let unwinding = Abort;
        let operated = operate(handle, &[(part, !to_host)], || {
            // SAFETY: the part is live, as long as the copy, and marked with it; the stream follows everything else
            // that uses it. The slice is the caller's promise.
            unsafe { cuda::memcpy_async(dst, src, bytes, kind, handle.raw())? };
            part.block.inner.traffic.add_copy(kind, bytes);
            Ok(())
        });
        let submitted = operated.map(|(fence, submitted)| {
            // Somebody else began to capture the stream since it was asked: the graph has the slice now.
            let Some(fence) = fence else {
                std::process::abort();
            };
            // Also where the submission failed: nobody knows how far it came.
            lock(&self.lent).push(Lent {
                fence,
                address,
                bytes,
                written: to_host,
            });
            submitted
        });
        std::mem::forget(unwinding);
        submitted?
    }

    /// Waits until no copy uses a slice any more.
    fn end(&self) -> Result<()> {
        let mut result = Ok(());
        for lent in std::mem::take(&mut *lock(&self.lent)) {
            let ended = if planted::is_made(Mistake::ScopesDoNotWait) {
                Ok(())
            } else {
                proof(&lent.fence)
            };
            match ended {
                Ok(()) if lent.written => checker::host_view(lent.address, lent.bytes, true),
                Ok(()) => {}
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

/// Returns only with a proof that the work before the fence has ended: success, or an error that is one.
fn proof(fence: &Fence) -> Result<()> {
    // Of several devices, each answers with the errors of its own context.
    let device = fence.core().device();
    let last = || on_device(device, cuda::device_synchronize);
    let stream = || match fence.core().upgrade() {
        Some(handle) => handle.synchronize(),
        None => last(),
    };
    let tries: [&dyn Fn() -> Result<()>; 3] = [
        &|| {
            on_device(device, || {
                context::check(device).and_then(|()| fence.wait_on_host())
            })
        },
        &|| on_device(device, stream),
        &last,
    ];
    let mut said = None;
    for attempt in tries {
        match attempt() {
            Ok(()) => {
                fence.mark_done();
                return Ok(());
            }
            // The context is gone, by a fault or a reset; or the device works on the memory of the parent, which is not
            // this process's.
            Err(error) if error.ends_context() || process::has_lost_its_context() => {
                return Err(error);
            }
            Err(error) => said = Some(error),
        }
    }
    // Nobody may ask CUDA any more, and the process goes on to its end without this thread.
    while process::is_over() {
        std::thread::park();
    }
    let said = said.map_or_else(String::new, |error| error.to_string());
    let _ = writeln!(
        std::io::stderr(),
        "memmgr: a scope cannot end, since nothing proves that its copies have: {said}. The process is aborted"
    );
    tracing::error!("a scope cannot end: {said}");
    std::process::abort()
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("copies", &lock(&self.lent).len())
            .finish()
    }
}
