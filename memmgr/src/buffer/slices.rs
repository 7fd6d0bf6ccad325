//! Borrowed parts of guards.

use super::{Part, elements};
use crate::{Pod, checker, cuda, error::Result};
use std::{
    ffi::c_void,
    fmt,
    marker::PhantomData,
    ops::RangeBounds,
    ptr::NonNull,
    slice::{from_raw_parts, from_raw_parts_mut},
};

/// A part of a guard with its elements.
pub(super) struct Elements<'a, T> {
    pub part: Part<'a>,
    pub len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<'_, T> {}

impl<'a, T: Pod> Elements<'a, T> {
    /// `part` has `len` elements: its length was checked when its buffer was made.
    pub fn new(part: Part<'a>, len: usize) -> Self {
        Self {
            part,
            len,
            elements: PhantomData,
        }
    }

    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = elements(range, self.len)?;
        Ok(self.cut(range.start, range.len()))
    }

    /// Within the part: the caller has checked it.
    fn cut(self, from: usize, len: usize) -> Self {
        let size = size_of::<T>();
        // Less than the bytes of the part, which did not overflow.
        let part = self
            .part
            .cut(from.saturating_mul(size), len.saturating_mul(size));
        Self::new(part, len)
    }

    pub fn split(self, at: usize) -> Result<(Self, Self)> {
        elements(..at, self.len)?;
        Ok((self.cut(0, at), self.cut(at, self.len - at)))
    }

    pub fn pointer(self) -> *mut c_void {
        cuda::pointer(self.part.pointer())
    }

    fn start(self) -> NonNull<T> {
        NonNull::new(self.pointer().cast::<T>()).unwrap_or(NonNull::dangling())
    }

    /// Waits for copies that write the elements, and shows them.
    ///
    /// # Safety
    /// It is host memory, and nobody can submit a copy that writes it, or change it otherwise, as long as the slice lives.
    pub unsafe fn view(self) -> Result<&'a [T]> {
        let _called = checker::called_here();
        self.part.settle(true)?;
        checker::host_view(self.part.pointer(), self.part.bytes, false);
        // SAFETY: the part has `len` elements inside a live block, is aligned for them, and was initialised (zeroed when
        // its segment was made, or by its owner); every bit pattern is a `T`. No copy writes it: earlier ones have
        // finished, and the caller says that there are no later ones.
        Ok(unsafe { from_raw_parts(self.start().as_ptr(), self.len) })
    }

    /// Waits for every copy that touches the elements, and lends them.
    ///
    /// # Safety
    /// As [`Elements::view`], for copies that read as well, and nobody else looks at it meanwhile.
    pub unsafe fn view_mut(self) -> Result<&'a mut [T]> {
        let _called = checker::called_here();
        self.part.settle(false)?;
        checker::host_view(self.part.pointer(), self.part.bytes, true);
        // SAFETY: as in `view`; nobody else uses it, says the caller.
        Ok(unsafe { from_raw_parts_mut(self.start().as_ptr(), self.len) })
    }

    fn describe(self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("address", &format_args!("{:#x}", self.part.address))
            .field("len", &self.len)
            .field("bytes", &self.part.bytes)
            .finish()
    }
}

macro_rules! slices {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name<'a, T: Pod> {
            pub(super) elements: Elements<'a, T>,
        }

        impl<T: Pod> $name<'_, T> {
            /// The number of elements.
            pub fn len(&self) -> usize {
                self.elements.len
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.elements.len == 0
            }

            /// The size in bytes.
            pub fn size_bytes(&self) -> usize {
                self.elements.part.bytes
            }

            /// The raw pointer, aligned for `T`, valid as long as the buffer lives; null if there are no bytes.
            pub fn as_ptr(&self) -> *mut c_void {
                self.elements.pointer()
            }
        }

        impl<T: Pod> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.elements.describe(stringify!($name), f)
            }
        }
    )*};
}

slices! {
    /// A borrowed part of a [`DeviceBuffer`](crate::DeviceBuffer); cheap to copy. Operations may read and write it: whoever
    /// touches the same bytes on another stream is made to wait.
    DeviceSlice;
    /// A borrowed part of a [`DeviceBuffer`](crate::DeviceBuffer) that nobody else can submit an operation on meanwhile.
    ///
    /// ```compile_fail,E0499
    /// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
    /// let mut device = manager.device::<u8>(8, &stream).unwrap();
    /// let front = device.slice_mut(..5).unwrap();
    /// let back = device.slice_mut(4..).unwrap();
    /// drop((front, back));
    /// ```
    DeviceSliceMut;
    /// A borrowed part of a [`PinnedBuffer`](crate::PinnedBuffer), to be read; cheap to copy.
    ///
    /// It borrows its buffer, which can neither go nor be written as long as it lives:
    ///
    /// ```compile_fail,E0505
    /// # let manager = memmgr::MemoryManager::instance();
    /// let host = manager.pinned::<u8>(8).unwrap();
    /// let front = host.slice(..4).unwrap();
    /// drop(host);
    /// front.as_slice().unwrap();
    /// ```
    /// ```compile_fail,E0502
    /// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
    /// # let device = manager.device::<u8>(8, &stream).unwrap();
    /// let mut host = manager.pinned::<u8>(8).unwrap();
    /// let seen = host.slice(..4).unwrap().as_slice().unwrap();
    /// let _ = stream.copy_to_host(&device, &mut host).unwrap();
    /// assert_eq!(seen[0], 0);
    /// ```
    PinnedSlice;
    /// A borrowed part of a [`PinnedBuffer`](crate::PinnedBuffer), to be written.
    ///
    /// Two such parts of one buffer come from [`PinnedSliceMut::split_at_mut`]; parts that overlap do not compile:
    ///
    /// ```compile_fail,E0499
    /// # let manager = memmgr::MemoryManager::instance();
    /// let mut host = manager.pinned::<u8>(8).unwrap();
    /// let mut front = host.slice_mut(..5).unwrap();
    /// let mut back = host.slice_mut(4..).unwrap();
    /// front.as_mut_slice().unwrap()[4] = back.as_mut_slice().unwrap()[0];
    /// ```
    /// What a view shows cannot be the target of a copy as long as it is looked at:
    ///
    /// ```compile_fail,E0502
    /// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
    /// # let device = manager.device::<u8>(8, &stream).unwrap();
    /// let mut host = manager.pinned::<u8>(16).unwrap();
    /// let mut front = host.slice_mut(..8).unwrap();
    /// let seen = front.as_slice().unwrap();
    /// let _ = stream.copy_to_host(&device, &mut front).unwrap();
    /// assert_eq!(seen[0], 0);
    /// ```
    PinnedSliceMut;
}

impl<T: Pod> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for DeviceSlice<'_, T> {}

impl<T: Pod> DeviceSlice<'_, T> {
    /// A part of this part.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if the range leaves it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let elements = self.elements.slice(range)?;
        Ok(Self { elements })
    }
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    /// A part of this part, to be shared.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if the range leaves it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        let elements = self.elements.slice(range)?;
        Ok(DeviceSlice { elements })
    }

    /// A part of this part.
    ///
    /// # Errors
    /// As [`DeviceSliceMut::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        let elements = self.elements.slice(range)?;
        Ok(DeviceSliceMut { elements })
    }

    /// The first `at` elements and the rest.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if there are fewer.
    pub fn split_at_mut(self, at: usize) -> Result<(Self, Self)> {
        let (front, back) = self.elements.split(at)?;
        Ok((Self { elements: front }, Self { elements: back }))
    }
}

impl<T: Pod> Clone for PinnedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for PinnedSlice<'_, T> {}

impl<'a, T: Pod> PinnedSlice<'a, T> {
    /// A part of this part.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if the range leaves it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let elements = self.elements.slice(range)?;
        Ok(Self { elements })
    }

    /// The elements, after waiting on the host for copies that write them.
    ///
    /// # Errors
    /// As [`PinnedBuffer::as_slice`](crate::PinnedBuffer::as_slice).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn as_slice(&self) -> Result<&'a [T]> {
        let _called = checker::called_here();
        // SAFETY: it is pinned memory, borrowed for `'a`, and whoever writes it needs `&mut` of the buffer.
        unsafe { self.elements.view() }
    }
}

impl<'a, T: Pod> PinnedSliceMut<'a, T> {
    /// A part of this part, to be read.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if the range leaves it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<PinnedSlice<'_, T>> {
        let elements = self.elements.slice(range)?;
        Ok(PinnedSlice { elements })
    }

    /// A part of this part.
    ///
    /// # Errors
    /// As [`PinnedSliceMut::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<PinnedSliceMut<'_, T>> {
        let elements = self.elements.slice(range)?;
        Ok(PinnedSliceMut { elements })
    }

    /// The first `at` elements and the rest.
    ///
    /// # Errors
    /// [`Error::InvalidRange`](crate::Error::InvalidRange) if there are fewer.
    pub fn split_at_mut(self, at: usize) -> Result<(Self, Self)> {
        let (front, back) = self.elements.split(at)?;
        Ok((Self { elements: front }, Self { elements: back }))
    }

    /// The elements, after waiting on the host for copies that write them.
    ///
    /// # Errors
    /// As [`PinnedBuffer::as_slice`](crate::PinnedBuffer::as_slice).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn as_slice(&self) -> Result<&[T]> {
        let _called = checker::called_here();
        // SAFETY: it is pinned memory that this alone may write, which is borrowed as long as the slice lives.
        unsafe { self.elements.view() }
    }

    /// The elements, after waiting on the host for every copy that touches them.
    ///
    /// # Errors
    /// As [`PinnedBuffer::as_slice`](crate::PinnedBuffer::as_slice).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        let _called = checker::called_here();
        // SAFETY: as in `as_slice`; `self` is borrowed exclusively as long as the slice lives.
        unsafe { self.elements.view_mut() }
    }

    /// As [`PinnedSliceMut::as_mut_slice`], for as long as the buffer is borrowed: for functions that return the elements.
    ///
    /// # Errors
    /// As [`PinnedBuffer::as_slice`](crate::PinnedBuffer::as_slice).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn into_mut_slice(self) -> Result<&'a mut [T]> {
        let _called = checker::called_here();
        // SAFETY: it is pinned memory that this part alone may use for `'a`, and the part, which cannot be copied, is gone.
        unsafe { self.elements.view_mut() }
    }
}
