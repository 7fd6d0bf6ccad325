//! What copies take: whole guards and parts of them, behind three sealed traits.

use super::{
    DeviceBuffer, DeviceSlice, DeviceSliceMut, Part, PinnedBuffer, PinnedSlice, PinnedSliceMut,
};
use crate::Pod;
use std::sync::Arc;

mod sealed {
    /// Only the guards of this crate and their parts.
    pub trait Sealed {
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn part(&self) -> super::Part<'_>;
    }
}

pub(crate) fn part_of(operand: &impl sealed::Sealed) -> Part<'_> {
    operand.part()
}

/// Device memory that an operation may read or write: a [`DeviceBuffer`], a [`DeviceSlice`] or a [`DeviceSliceMut`].
pub trait DevicePart: sealed::Sealed {
    /// The type of the elements.
    type Element: Pod;
}

/// Pinned memory that an operation may read: a [`PinnedBuffer`], a [`PinnedSlice`] or a [`PinnedSliceMut`].
pub trait PinnedPart: sealed::Sealed {
    /// The type of the elements.
    type Element: Pod;
}

/// Pinned memory that an operation may write: a [`PinnedBuffer`] or a [`PinnedSliceMut`].
///
/// ```compile_fail,E0277
/// # let (manager, stream) = (memmgr::MemoryManager::instance(), memmgr::Stream::new().unwrap());
/// # let device = manager.device::<u8>(8, &stream).unwrap();
/// let host = manager.pinned::<u8>(8).unwrap();
/// let _ = stream.copy_to_host(&device, &mut host.slice(..).unwrap());
/// ```
pub trait PinnedPartMut: PinnedPart {}

macro_rules! operands {
    ($($name:ty, $kind:ident, $self:ident => $part:expr;)*) => {$(
        impl<T: Pod> sealed::Sealed for $name {
            #[allow(private_interfaces)]
            fn part(&$self) -> Part<'_> {
                $part
            }
        }

        impl<T: Pod> $kind for $name {
            type Element = T;
        }
    )*};
}

operands! {
    DeviceBuffer<T>, DevicePart, self => self.block.part();
    DeviceSlice<'_, T>, DevicePart, self => self.elements.part;
    DeviceSliceMut<'_, T>, DevicePart, self => self.elements.part;
    PinnedBuffer<T>, PinnedPart, self => self.block.part();
    PinnedSlice<'_, T>, PinnedPart, self => self.elements.part;
    PinnedSliceMut<'_, T>, PinnedPart, self => self.elements.part;
}

impl<T: Pod> PinnedPartMut for PinnedBuffer<T> {}
impl<T: Pod> PinnedPartMut for PinnedSliceMut<'_, T> {}

// What a reference to a guard was taken for before there were parts.
macro_rules! pointers {
    ($($name:ty),*) => {$(
        impl<P: sealed::Sealed> sealed::Sealed for $name {
            #[allow(private_interfaces)]
            fn part(&self) -> Part<'_> {
                (**self).part()
            }
        }

        impl<P: DevicePart> DevicePart for $name {
            type Element = P::Element;
        }

        impl<P: PinnedPart> PinnedPart for $name {
            type Element = P::Element;
        }
    )*};
}

pointers!(&P, &mut P, Box<P>, Arc<P>);

impl<P: PinnedPartMut> PinnedPartMut for &mut P {}
impl<P: PinnedPartMut> PinnedPartMut for Box<P> {}
