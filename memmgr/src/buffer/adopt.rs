//! Guards over memory of others: vectors that move in, and device memory that other code has allocated.

use super::{Block, DeviceBuffer, PinnedBuffer, bytes_of};
use crate::{
    Pod, Stream, checker, cuda,
    error::{Error, Refused, Result},
    manager::{Home, MemoryManager, adopted::Owner},
    process,
    stream::{all_idle, handle_of},
};
use std::{ffi::c_void, marker::PhantomData};

/// How many buffers may wait to be given back before another `adopt` waits for them.
const MANY_LEAVING: usize = 16;

/// The vector of a guard.
struct Held<T>(Vec<T>);

// SAFETY: a `T: Pod` is plain bytes without a destructor; to drop the vector elsewhere only frees its memory, and
// whoever gets its elements has them from a guard, which hands them to any thread as well.
unsafe impl<T: Pod> Send for Held<T> {}

impl MemoryManager {
    /// A pinned buffer over a vector or boxed slice that moves in (`cudaHostRegister`): its memory is page-locked where it
    /// is, nothing is copied. [`PinnedBuffer::into_vec`] gives it back. The memory of a buffer that is dropped is freed by a
    /// later call that may wait: `trim`, `shutdown`, a request that finds no memory, another `adopt` while nothing runs or
    /// when 16 buffers wait; never while work touches it, and never in the drop.
    ///
    /// A vector without bytes is taken without a CUDA call.
    ///
    /// ```
    /// # fn main() -> memmgr::Result<()> {
    /// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new()?);
    /// let host = manager.adopt(vec![1.5f32; 1000])?;
    /// let device = manager.device::<f32>(1000, &stream)?;
    /// let _ = stream.copy_to_device(&host, &device)?;
    /// let vec: Vec<f32> = host.into_vec()?; // waits for the copy
    /// # assert_eq!(vec, [1.5f32; 1000]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the vector and what the runtime says, for example that some of its memory is registered already.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn adopt<T: Pod>(
        &self,
        memory: impl Into<Vec<T>>,
    ) -> Result<PinnedBuffer<T>, Refused<Vec<T>>> {
        let _called = checker::called_here();
        let mut memory: Vec<T> = memory.into();
        let (len, bytes) = (memory.len(), size_of_val(memory.as_slice()));
        let mut address = 0;
        if bytes > 0 {
            if let Err(error) = process::gate() {
                return Err(Refused::new(error, memory));
            }
            self.collect();
            address = memory.as_mut_ptr().expose_provenance();
            // SAFETY: the vector has these bytes and moves into the books, where it stays until they are unregistered.
            if let Err(error) = unsafe { cuda::host_register(address, bytes) } {
                return Err(Refused::new(error, memory));
            }
            let owner = Owner::host(Box::new(Held(memory)));
            if let Err(owner) = self.inner.adopted.enter(address, bytes, None, owner) {
                // Somebody said that it was device memory.
                return Err(self.back_out(address, owner));
            }
        }
        Ok(PinnedBuffer {
            block: Block {
                inner: self.inner.clone(),
                address,
                bytes,
                home: Home::Adopted,
                whole: None,
            },
            len,
            elements: PhantomData,
        })
    }

    /// A device buffer over memory that other code has allocated on the stream's device, usable by work submitted to
    /// `stream` from now on. When the buffer is gone, and everything that uses it has finished (work of `stream` included),
    /// `free` is called: by a later call that may wait, as for [`MemoryManager::adopt`], on whatever thread, without any
    /// lock, and never in a drop. A panic in it is caught. It is not called once the process exits, nor for a buffer without
    /// bytes (that is dropped at once).
    ///
    /// # Errors
    /// [`Error::InvalidSize`] if the bytes overflow; [`Error::UnknownPointer`] for null and for memory that belongs to this
    /// manager already. `free` is not called then.
    ///
    /// # Safety
    /// `ptr` has `len` elements of memory of the stream's device, aligned for `T`, until `free` is called. Other work that
    /// touches them is ordered before what `stream` gets from now on, and nobody else uses them until then.
    #[cfg_attr(feature = "sim", track_caller)]
    pub unsafe fn adopt_device<T: Pod>(
        &self,
        ptr: *mut c_void,
        len: usize,
        stream: &Stream,
        free: impl FnOnce() + Send + 'static,
    ) -> Result<DeviceBuffer<T>> {
        let _called = checker::called_here();
        let bytes = bytes_of::<T>(len)?;
        let mut address = 0;
        if bytes > 0 {
            process::gate()?;
            self.collect();
            address = ptr.expose_provenance();
            if address == 0 || address.checked_add(bytes).is_none() {
                return Err(Error::unknown(address, "it cannot be device memory"));
            }
            if self.inner.owns(address) {
                return Err(entered_already(address));
            }
            let core = handle_of(stream).core().clone();
            let owner = Owner::Device(Box::new(free));
            self.inner
                .adopted
                .enter(address, bytes, Some(core), owner)
                .map_err(|_| entered_already(address))?;
        }
        Ok(DeviceBuffer {
            block: Block {
                inner: self.inner.clone(),
                address,
                bytes,
                home: Home::Adopted,
                whole: None,
            },
            device: stream.device(),
            len,
            elements: PhantomData,
        })
    }
}

impl MemoryManager {
    /// Gives back what is waiting for that, unless this call would have to wait; or where too much waits.
    fn collect(&self) {
        let leaving = self.inner.adopted.leaving();
        if leaving >= MANY_LEAVING || (leaving > 0 && all_idle()) {
            self.inner.adopted.release();
        }
    }

    /// Undoes a registration.
    fn back_out<T: Pod>(&self, address: usize, owner: Owner) -> Refused<Vec<T>> {
        let held = owner
            .take_host()
            .and_then(|owner| owner.downcast::<Held<T>>().ok());
        // SAFETY: the caller has just registered the memory, and nobody uses it.
        match unsafe { cuda::host_unregister(address) } {
            Ok(()) => {
                let memory = held.map_or_else(Vec::new, |held| held.0);
                Refused::new(entered_already(address), memory)
            }
            // Registered memory must not reach the host's heap: it stays for good.
            Err(error) => {
                std::mem::forget(held);
                Refused::new(error, Vec::new())
            }
        }
    }
}

impl<T: Pod> PinnedBuffer<T> {
    /// The vector that was adopted, after waiting on the host for every copy that touches it, and, to unregister it, for
    /// the device (`cudaHostUnregister`). The vector of a buffer without bytes is made anew.
    ///
    /// # Errors
    /// [`Refused`] with the buffer: [`Error::Unsupported`] if it is no adopted memory or not all of it, otherwise what the
    /// runtime says.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn into_vec(self) -> Result<Vec<T>, Refused<Self>> {
        let _called = checker::called_here();
        if self.block.bytes == 0 {
            return Ok(vec![T::zeroed(); self.len]);
        }
        if self.block.home != Home::Adopted || !self.block.is_all() {
            let reason = "a vector from memory that was not adopted as a whole".into();
            return Err(Refused::new(Error::Unsupported { reason }, self));
        }
        let settled = self.block.part().settle(false).and_then(|()| {
            // SAFETY: the memory was registered when it was adopted, no work touches it, and no guard but this one can
            // have more submitted.
            unsafe { cuda::host_unregister(self.block.address) }
        });
        if let Err(error) = settled {
            return Err(Refused::new(error, self));
        }
        let owner = self.block.inner.adopted.take_host(self.block.address);
        match owner.map(|owner| owner.downcast::<Held<T>>()) {
            Some(Ok(held)) => Ok(held.0),
            _ => Err(Refused::new(entered_already(self.block.address), self)),
        }
    }
}

fn entered_already(address: usize) -> Error {
    Error::unknown(address, "the memory belongs to the manager already")
}
