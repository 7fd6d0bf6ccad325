//! What the workloads measure: the manager's pools behind one interface, and `null`, which does nothing,
//! so that the cost of a loop itself is known.

use std::ffi::c_void;
use std::ptr;

use memmgr::{Config, Error, MemoryManager, Stream};

use crate::error::Result;

/// An allocator under test.
pub trait Subject {
    /// A block, or a null pointer where there is no memory.
    fn allocate(&mut self, size: usize) -> *mut c_void;

    /// Gives a block of [`Subject::allocate`] back, once.
    fn free(&mut self, block: *mut c_void);

    /// The first error that was neither expected nor counted; asked off the clock.
    fn verdict(&mut self) -> Result<()> {
        Ok(())
    }

    /// The most bytes that it has held from CUDA; `None` where it holds none.
    fn peak_reserved(&self) -> Option<u64> {
        None
    }
}

impl<S: Subject> Subject for &mut S {
    #[inline]
    fn allocate(&mut self, size: usize) -> *mut c_void {
        (**self).allocate(size)
    }

    #[inline]
    fn free(&mut self, block: *mut c_void) {
        (**self).free(block);
    }

    fn verdict(&mut self) -> Result<()> {
        (**self).verdict()
    }

    fn peak_reserved(&self) -> Option<u64> {
        (**self).peak_reserved()
    }
}

/// Hands out ever higher addresses and keeps no books.
#[derive(Clone, Debug)]
pub struct Null(usize);

impl Null {
    pub fn new() -> Self {
        Self(1 << 20)
    }
}

impl Subject for Null {
    #[inline]
    fn allocate(&mut self, size: usize) -> *mut c_void {
        self.0 = self.0.wrapping_add(size | 255).wrapping_add(1) & !255;
        ptr::without_provenance_mut(self.0)
    }

    #[inline]
    fn free(&mut self, _: *mut c_void) {}
}

/// Device memory of a manager, on one stream.
pub struct Device<'a> {
    manager: &'a MemoryManager,
    stream: &'a Stream,
    failure: Option<Error>,
}

impl<'a> Device<'a> {
    pub fn new(manager: &'a MemoryManager, stream: &'a Stream) -> Self {
        Self {
            manager,
            stream,
            failure: None,
        }
    }
}

impl Subject for Device<'_> {
    #[inline]
    fn allocate(&mut self, size: usize) -> *mut c_void {
        match self.manager.allocate_device_on(size, self.stream) {
            Ok(block) => block,
            Err(error) => refused(&mut self.failure, error),
        }
    }

    #[inline]
    fn free(&mut self, block: *mut c_void) {
        // SAFETY: the workloads free what `allocate` returned, once, and submit no work that uses it.
        if let Err(error) = unsafe { self.manager.free_device_on(block, self.stream) } {
            refused(&mut self.failure, error);
        }
    }

    fn verdict(&mut self) -> Result<()> {
        self.failure
            .take()
            .map_or(Ok(()), |error| Err(error.into()))
    }

    fn peak_reserved(&self) -> Option<u64> {
        let stats = self.manager.stats();
        let device = self.stream.device();
        let stats = stats.device.iter().find(|stats| stats.device == device);
        stats.map(|stats| stats.best_fit.peak_reserved as u64)
    }
}

/// Pinned memory of a manager.
pub struct Pinned<'a> {
    manager: &'a MemoryManager,
    failure: Option<Error>,
}

impl<'a> Pinned<'a> {
    pub fn new(manager: &'a MemoryManager) -> Self {
        Self {
            manager,
            failure: None,
        }
    }
}

impl Subject for Pinned<'_> {
    #[inline]
    fn allocate(&mut self, size: usize) -> *mut c_void {
        match self.manager.allocate_pinned(size) {
            Ok(block) => block,
            Err(error) => refused(&mut self.failure, error),
        }
    }

    #[inline]
    fn free(&mut self, block: *mut c_void) {
        // SAFETY: the workloads free what `allocate` returned, once, and nobody views or copies it.
        if let Err(error) = unsafe { self.manager.free_pinned(block) } {
            refused(&mut self.failure, error);
        }
    }

    fn verdict(&mut self) -> Result<()> {
        self.failure
            .take()
            .map_or(Ok(()), |error| Err(error.into()))
    }

    fn peak_reserved(&self) -> Option<u64> {
        Some(self.manager.stats().pinned.peak_reserved as u64)
    }
}

/// What a refused call answers; lack of memory is counted by the workload, anything else is kept.
#[cold]
fn refused(failure: &mut Option<Error>, error: Error) -> *mut c_void {
    let counted = error.is_out_of_memory()
        || matches!(
            error,
            Error::LimitExceeded { .. } | Error::InvalidSize { .. }
        );
    if !counted {
        failure.get_or_insert(error);
    }
    ptr::null_mut()
}

/// What the device pools of most workloads reserve at once, in bytes.
pub const POOL: usize = 20 << 30;

/// The settings of a manager that is measured: the defaults, with the source of device memory that the environment names.
fn config() -> Result<Config> {
    Ok(Config::default().device_source(Config::from_env()?.device_source))
}

/// Runs `work` with a new manager, and gives all of its memory back afterwards.
pub fn with_manager<T>(work: impl FnOnce(&MemoryManager) -> Result<T>) -> Result<T> {
    run_with(MemoryManager::new(config()?)?, work)
}

/// As [`with_manager`], with a device pool that has [`POOL`] bytes from the beginning, or grows by need on a device that has
/// less.
pub fn with_pool<T>(work: impl FnOnce(&MemoryManager) -> Result<T>) -> Result<T> {
    let mut config = config()?;
    config.device_pool_size = POOL;
    let manager = MemoryManager::new(config)?;
    match manager.allocate_device(1) {
        Ok(first) => {
            // SAFETY: the block was just allocated, and nobody has used it.
            unsafe { manager.free_device(first) }?;
            run_with(manager, work)
        }
        Err(error) if error.is_out_of_memory() => with_manager(work),
        Err(error) => Err(error.into()),
    }
}

fn run_with<T>(
    manager: MemoryManager,
    work: impl FnOnce(&MemoryManager) -> Result<T>,
) -> Result<T> {
    let result = work(&manager)?;
    manager.shutdown()?;
    Ok(result)
}

/// Runs `work` with device memory of a new manager on a new stream.
pub fn with_device<T>(work: impl FnOnce(&mut Device<'_>) -> Result<T>) -> Result<T> {
    with_pool(|manager| {
        let stream = Stream::new()?;
        let result = work(&mut Device::new(manager, &stream))?;
        stream.synchronize()?;
        Ok(result)
    })
}

/// Runs `work` with pinned memory of a new manager.
pub fn with_pinned<T>(work: impl FnOnce(&mut Pinned<'_>) -> Result<T>) -> Result<T> {
    with_manager(|manager| work(&mut Pinned::new(manager)))
}
