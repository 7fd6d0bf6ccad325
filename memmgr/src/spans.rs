//! What takes long, as a tool shows it in a timeline: spans of `tracing` (feature `trace-events`) and ranges of NVTX (feature
//! `nvtx`). Without both there is nothing here.

use crate::error::Place;

/// Lasts as long as what it stands for. No lock is held when it begins or ends.
#[must_use]
pub(crate) struct Span {
    #[cfg(feature = "trace-events")]
    _entered: tracing::span::EnteredSpan,
    #[cfg(feature = "nvtx")]
    _range: Option<nvtx::Range>,
}

macro_rules! spans {
    ($($(#[$doc:meta])* $name:ident, $text:literal;)*) => {$(
        $(#[$doc])*
        #[inline]
        #[allow(unused_variables)]
        pub(crate) fn $name(place: Place, bytes: usize) -> Span {
            Span {
                #[cfg(feature = "trace-events")]
                _entered: tracing::debug_span!($text, %place, bytes).entered(),
                #[cfg(feature = "nvtx")]
                _range: nvtx::begin(
                    const {
                        match std::ffi::CStr::from_bytes_with_nul(concat!("memmgr ", $text, "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => c"memmgr",
                        }
                    },
                    bytes,
                ),
            }
        }
    )*};
}

spans! {
    /// A pool grows for a request of so many bytes.
    grow, "grow";
    /// Idle memory goes back to CUDA, until a pool holds so many bytes.
    trim, "trim";
    /// A request for so many bytes takes memory that other streams have freed.
    wait, "wait";
    /// A copy or fill of so many bytes is submitted.
    copy, "copy";
}

/// CUDA has been initialized: tools may be told.
#[inline]
pub(crate) fn may_begin() {
    #[cfg(feature = "nvtx")]
    nvtx::READY.store(true, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(feature = "nvtx")]
mod nvtx {
    use std::{
        ffi::CStr,
        marker::PhantomData,
        sync::atomic::{AtomicBool, Ordering},
    };

    /// Tools must not be called before CUDA has been initialized.
    pub(super) static READY: AtomicBool = AtomicBool::new(false);

    /// Of one thread.
    pub(super) struct Range(PhantomData<*const ()>);

    pub(super) fn begin(name: &'static CStr, bytes: usize) -> Option<Range> {
        READY.load(Ordering::Relaxed).then(|| {
            cuda_sys::nvtx::push(name, bytes as u64);
            Range(PhantomData)
        })
    }

    impl Drop for Range {
        fn drop(&mut self) {
            cuda_sys::nvtx::pop();
        }
    }
}
