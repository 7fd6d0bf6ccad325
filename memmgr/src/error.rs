//! What can go wrong, as values: one [`Error`] for the whole crate, each with what a user needs to act on it.

use crate::{
    mode::UnknownMode,
    out_of_memory::{Exact, OutOfMemory, limit_setter},
    source::UnknownSource,
};
use std::fmt;

/// A consuming operation that was refused: the error, and what was handed in. `?` turns it into the [`Error`] alone, which
/// drops what was handed in.
pub struct Refused<B>(Box<(Error, B)>);

impl<B> Refused<B> {
    pub(crate) fn new(error: Error, given: B) -> Self {
        Self(Box::new((error, given)))
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// What was handed in.
    pub fn into_inner(self) -> B {
        self.0.1
    }
}

impl<B> From<Refused<B>> for Error {
    fn from(refused: Refused<B>) -> Self {
        refused.0.0
    }
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_with("Refused", self.error(), f)
    }
}

impl<B> fmt::Display for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<B> std::error::Error for Refused<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // Its text is this one's.
        std::error::Error::source(self.error())
    }
}

/// An error that carries something else: `{:?}` prints the text, which names the fix, and `{:#?}` what the error has.
pub(crate) fn debug_with(name: &str, error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if f.alternate() {
        f.debug_tuple(name).field(error).finish()
    } else {
        fmt::Display::fmt(error, f)
    }
}

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose memory an error speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Memory of the device with this ordinal.
    Device(i32),
    /// Page-locked memory of the host.
    Pinned,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Device(ordinal) => write!(f, "device {ordinal}"),
            Place::Pinned => f.write_str("pinned host memory"),
        }
    }
}

/// Any failure of this crate. `{:?}` prints the same text as `{}`, so that a `main` that returns it, and `unwrap`, say what
/// helps; `{:#?}` prints the variant with its fields.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A CUDA call failed.
    #[error("{call} failed with {name} ({code}): {description}{}", pending_text(*.also_pending))]
    Cuda {
        /// The C function, for example `cudaMalloc`.
        call: &'static str,
        /// Its `cudaError_t`.
        code: i32,
        /// The name of the code, for example `cudaErrorInvalidValue`.
        name: String,
        /// The runtime's text for the code.
        description: String,
        /// An error that other code had left in `cudaGetLastError` and that this failure replaced.
        also_pending: Option<i32>,
    },
    /// Neither the pool nor CUDA had the memory.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// A request can never be met within the limit that was set.
    #[error(
        "{} on {place} can never fit: rounded up to a multiple of 256 bytes, it exceeds the pool's limit of {} (raise it with {})",
        Exact(*.requested, *.limit), Exact(*.limit, *.requested), limit_setter(*.place)
    )]
    LimitExceeded {
        /// Where the memory was wanted.
        place: Place,
        /// What was asked for, in bytes.
        requested: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A size that cannot be served: it overflows when it is rounded up or multiplied.
    #[error("invalid size: {reason}")]
    InvalidSize {
        /// What is wrong with it.
        reason: String,
    },
    /// An alignment that is not a power of two, or larger than a segment can honour.
    #[error("invalid alignment {alignment}: it must be a power of two of at most {max} bytes")]
    InvalidAlignment {
        /// What was asked for, in bytes.
        alignment: usize,
        /// The largest that is served, in bytes.
        max: usize,
    },
    /// A setting, in code or from the environment, that cannot be used.
    #[error("invalid setting: {reason}")]
    InvalidSetting {
        /// Which setting, its value, and what it must be.
        reason: String,
    },
    /// A pointer that the manager does not know as the start of a live block, or whose block a guard frees.
    #[error("unknown pointer {ptr:#x}: {reason}")]
    UnknownPointer {
        /// The address.
        ptr: usize,
        /// What is known about it.
        reason: String,
    },
    /// A pointer into memory that is free: its block was freed before, and not handed out since, or no block ever started there.
    #[error(
        "double free of {ptr:#x}: the memory there is free (freed before and not handed out since, or the pointer was never handed out)"
    )]
    DoubleFree {
        /// The address.
        ptr: usize,
    },
    /// A range that leaves its block, or lengths that do not match.
    #[error("invalid range: {reason}")]
    InvalidRange {
        /// Which range and what bounds it.
        reason: String,
    },
    /// A size was configured after the pool had been made.
    #[error(
        "{what} cannot be changed any more: the pool exists already, with {in_force} bytes configured (shutdown() first)"
    )]
    AlreadyInitialized {
        /// Which setting.
        what: &'static str,
        /// The size that is in force, in bytes.
        in_force: usize,
    },
    /// The device, the toolkit or the present situation cannot do this.
    #[error("not supported: {reason}")]
    Unsupported {
        /// What is missing.
        reason: String,
    },
    /// There is no CUDA to talk to: no driver (35), a stub library (34), no device (100), or the process is exiting.
    #[error("CUDA is not available{}: {reason}", code_text(*.code))]
    Unavailable {
        /// The `cudaError_t`, if a call said so.
        code: Option<i32>,
        /// What is missing and what would help.
        reason: String,
    },
    /// The process was forked after CUDA had been used: a child can make no CUDA call.
    #[error(
        "this process was forked from one that used CUDA: CUDA does not work in the child (use exec, or fork first)"
    )]
    ForkedChild,
    /// A block or stream of one device was used with another.
    #[error("wrong device: {reason}")]
    WrongDevice {
        /// What belongs where.
        reason: String,
    },
}

fn pending_text(also_pending: Option<i32>) -> String {
    also_pending.map_or_else(String::new, |code| {
        format!(" (it replaced an earlier error {code} that other code had left behind)")
    })
}

fn code_text(code: Option<i32>) -> String {
    code.map_or_else(String::new, |code| format!(" (CUDA error {code})"))
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        match self {
            Error::Cuda {
                call,
                code,
                name,
                description,
                also_pending,
            } => (f.debug_struct("Cuda"))
                .field("call", call)
                .field("code", code)
                .field("name", name)
                .field("description", description)
                .field("also_pending", also_pending)
                .finish(),
            Error::OutOfMemory(refusal) => f.debug_tuple("OutOfMemory").field(refusal).finish(),
            Error::LimitExceeded {
                place,
                requested,
                limit,
            } => (f.debug_struct("LimitExceeded"))
                .field("place", place)
                .field("requested", requested)
                .field("limit", limit)
                .finish(),
            Error::InvalidSize { reason } => because("InvalidSize", reason, f),
            Error::InvalidAlignment { alignment, max } => (f.debug_struct("InvalidAlignment"))
                .field("alignment", alignment)
                .field("max", max)
                .finish(),
            Error::InvalidSetting { reason } => because("InvalidSetting", reason, f),
            Error::UnknownPointer { ptr, reason } => (f.debug_struct("UnknownPointer"))
                .field("ptr", &format_args!("{ptr:#x}"))
                .field("reason", reason)
                .finish(),
            Error::DoubleFree { ptr } => (f.debug_struct("DoubleFree"))
                .field("ptr", &format_args!("{ptr:#x}"))
                .finish(),
            Error::InvalidRange { reason } => because("InvalidRange", reason, f),
            Error::AlreadyInitialized { what, in_force } => (f.debug_struct("AlreadyInitialized"))
                .field("what", what)
                .field("in_force", in_force)
                .finish(),
            Error::Unsupported { reason } => because("Unsupported", reason, f),
            Error::Unavailable { code, reason } => (f.debug_struct("Unavailable"))
                .field("code", code)
                .field("reason", reason)
                .finish(),
            Error::ForkedChild => f.write_str("ForkedChild"),
            Error::WrongDevice { reason } => because("WrongDevice", reason, f),
        }
    }
}

fn because(name: &str, reason: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name).field("reason", &reason).finish()
}

impl From<UnknownMode> for Error {
    fn from(unknown: UnknownMode) -> Self {
        Error::InvalidSetting {
            reason: unknown.to_string(),
        }
    }
}

impl From<UnknownSource> for Error {
    fn from(unknown: UnknownSource) -> Self {
        Error::InvalidSetting {
            reason: unknown.to_string(),
        }
    }
}

impl Error {
    /// The `cudaError_t` behind this error, if a CUDA call made it.
    pub fn cuda_code(&self) -> Option<i32> {
        match self {
            Error::Cuda { code, .. } => Some(*code),
            Error::Unavailable { code, .. } => *code,
            _ => None,
        }
    }

    /// Whether this is [`Error::OutOfMemory`].
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory(_))
    }

    /// Whether it says that the device's context is gone, after a fault in a kernel for example. Nothing that was submitted
    /// runs any more then, and every further call fails; the process must be started anew to use the device.
    pub fn ends_context(&self) -> bool {
        matches!(self, Error::Cuda { code, .. } if crate::cuda::ends_context(*code))
    }

    pub(crate) fn range(reason: impl Into<String>) -> Self {
        Error::InvalidRange {
            reason: reason.into(),
        }
    }

    pub(crate) fn unknown(ptr: usize, reason: impl Into<String>) -> Self {
        Error::UnknownPointer {
            ptr,
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cuda_error_names_call_code_name_and_text() {
        let error = Error::Cuda {
            call: "cudaMalloc",
            code: 1,
            name: "cudaErrorInvalidValue".into(),
            description: "invalid argument".into(),
            also_pending: Some(101),
        };
        let text = error.to_string();
        for part in [
            "cudaMalloc",
            "cudaErrorInvalidValue",
            "(1)",
            "invalid argument",
            "101",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(error.cuda_code(), Some(1));
    }

    /// What `fn main() -> memmgr::Result<()>` and `unwrap` print is the text; `{:#?}` has the fields.
    #[test]
    fn what_a_main_prints_is_the_text_that_names_the_fix() {
        let limit = Error::LimitExceeded {
            place: Place::Device(0),
            requested: 300 << 20,
            limit: 8 << 20,
        };
        for error in [limit.clone(), Error::ForkedChild, Error::range("7 to 3")] {
            assert_eq!(format!("{error:?}"), error.to_string());
            assert_eq!(
                format!("{:?}", Refused::new(error.clone(), ())),
                error.to_string()
            );
        }
        let fields = format!("{limit:#?}");
        for part in ["LimitExceeded {", "place: Device(", "limit: 8388608"] {
            assert!(fields.contains(part), "{fields}");
        }
        let refused = Refused::new(limit, ());
        assert!(format!("{refused:#?}").starts_with("Refused(\n    LimitExceeded {"));
    }

    /// A report of an error and its sources has each text once.
    #[test]
    fn a_refusal_is_not_its_own_source() {
        let refused = Refused::new(Error::range("a split at 9"), ());
        assert!(std::error::Error::source(&refused).is_none());
    }

    #[test]
    fn a_limit_is_told_in_units_and_with_the_function_that_raises_it() {
        let text = |place, requested, limit| {
            Error::LimitExceeded {
                place,
                requested,
                limit,
            }
            .to_string()
        };
        let device = text(Place::Device(0), 300 << 20, 8 << 20);
        for part in [
            "300.0 MiB on device 0",
            "of 8.0 MiB",
            "set_device_pool_limit",
        ] {
            assert!(device.contains(part), "{device}");
        }
        let close = text(Place::Pinned, (8 << 20) + 1, 8 << 20);
        for part in ["8388609 bytes", "of 8388608 bytes", "set_pinned_pool_limit"] {
            assert!(close.contains(part), "{close}");
        }
    }

    #[test]
    fn a_name_that_is_none_becomes_an_error() {
        let parse = || -> Result<()> {
            let _: crate::DeviceAllocatorMode = "pool".parse()?;
            let _: crate::DeviceSource = "vmm".parse()?;
            let _: crate::DeviceAllocatorMode = "best".parse()?;
            Ok(())
        };
        let error = parse().unwrap_err();
        assert!(error.to_string().contains("unknown allocator mode `best`"));
    }
}
