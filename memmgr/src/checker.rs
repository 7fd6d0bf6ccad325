//! The simulated runtime's ordering checker, as one more observer: it is told of every block, of every segment, and of what
//! the host is about to see. In a build for a GPU there is none, and nothing of this costs anything.

/// Whether a checker listens.
#[inline]
pub(crate) fn is_on() -> bool {
    listener().is_some()
}

/// The checker, if it listens.
#[cfg(not(feature = "sim"))]
#[inline]
pub(crate) fn listener() -> Option<&'static dyn crate::Observer> {
    None
}

/// The host is given a view of memory: to read, or to write as well.
#[cfg(not(feature = "sim"))]
#[inline]
pub(crate) fn host_view(_address: usize, _bytes: usize, _writes: bool) {}

/// As long as the answer lives, findings name the place where the caller was called.
#[cfg(not(feature = "sim"))]
#[inline]
pub(crate) fn called_here() -> impl Sized {}

/// The pool lets any stream use a block: nothing that came before it is left.
#[cfg(not(feature = "sim"))]
#[inline]
pub(crate) fn shared(_address: usize, _bytes: usize) {}

#[cfg(feature = "sim")]
pub(crate) use cudart_sim::called_here;
#[cfg(feature = "sim")]
pub(crate) use simulated::{host_view, listener, shared};

#[cfg(feature = "sim")]
mod simulated {
    use crate::{
        cuda,
        error::Place,
        pool::observer::{By, Observer, SegmentChange},
    };
    use std::ops::Range;

    struct Checker;

    /// The checker, if it listens.
    #[inline]
    pub(crate) fn listener() -> Option<&'static dyn Observer> {
        cudart_sim::is_checking().then_some(&Checker as &dyn Observer)
    }

    /// The host is given a view of memory: to read, or to write as well.
    #[inline]
    pub(crate) fn host_view(address: usize, bytes: usize, writes: bool) {
        if writes {
            cudart_sim::host_write(cuda::pointer(address), bytes);
        } else {
            cudart_sim::host_read(cuda::pointer(address), bytes);
        }
    }

    /// The pool lets any stream use a block: nothing that came before it is left.
    #[inline]
    pub(crate) fn shared(address: usize, bytes: usize) {
        cudart_sim::on_share(cuda::pointer(address), bytes);
    }

    impl From<By> for cudart_sim::By {
        fn from(by: By) -> Self {
            match by {
                By::Host => Self::Host,
                By::Stream(id) => Self::StreamId(id),
                By::Nobody => Self::Nobody,
            }
        }
    }

    impl Observer for Checker {
        fn on_allocate(&self, _: Place, range: Range<usize>, by: By) {
            cudart_sim::on_allocate(cuda::pointer(range.start), range.len(), by.into());
        }

        fn on_free(&self, _: Place, range: Range<usize>, by: By) {
            cudart_sim::on_free(cuda::pointer(range.start), range.len(), by.into());
        }

        fn on_segment(&self, _: Place, range: Range<usize>, change: SegmentChange) {
            let added = change == SegmentChange::Added;
            cudart_sim::on_segment(cuda::pointer(range.start), range.len(), added);
        }
    }
}
