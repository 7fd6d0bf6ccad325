//! What can go wrong, as values: one [`Error`] for the whole crate, each with what a user needs to act on it.

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
        f.debug_tuple("Refused").field(self.error()).finish()
    }
}

impl<B> fmt::Display for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<B> std::error::Error for Refused<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.error())
    }
}

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose memory an error speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// Everything that an out-of-memory error knows; its `Display` explains what was missing. All figures are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Where the memory was wanted.
    pub place: Place,
    /// What was asked for.
    pub requested: usize,
    /// Live in the manager's pool, rounded to its granule.
    pub in_use: usize,
    /// Held from CUDA by the pool.
    pub reserved: usize,
    /// Free in the pool and usable at once.
    pub idle: usize,
    /// Free in the pool, but work that may touch it has not finished.
    pub pending: usize,
    /// The largest idle block: smaller than `requested`, or the request would have been served. `None` in the async
    /// modes, whose pool is the driver's.
    pub largest_idle: Option<usize>,
    /// What the device reported as free (`cudaMemGetInfo`); `None` for pinned memory.
    pub device_free: Option<usize>,
    /// The limit of the pool, if one is set.
    pub limit: Option<usize>,
    /// All memory of the place, in use by whomever.
    pub capacity: usize,
    /// Whether it was the configured size of the pool that could not be reserved, at the first allocation.
    pub initial: bool,
}

impl OutOfMemory {
    /// Whether the request would fit if everything else were gone.
    pub fn can_ever_fit(&self) -> bool {
        self.requested <= self.capacity && self.limit.is_none_or(|limit| self.requested <= limit)
    }
}

/// Bytes as people read them: `1.5 MiB`.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} bytes", self.0),
            1024..1_048_576 => write!(f, "{:.1} KiB", n / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", n / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", n / 1_073_741_824.0),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.initial {
            " for the initial pool"
        } else {
            ""
        };
        write!(
            f,
            "out of memory on {}: {} requested{what}. The pool holds {}: {} in use, {} idle",
            self.place,
            Bytes(self.requested),
            Bytes(self.reserved),
            Bytes(self.in_use),
            Bytes(self.idle),
        )?;
        if let Some(largest) = self.largest_idle {
            write!(f, " (largest block {})", Bytes(largest))?;
        }
        write!(f, ", {} waiting for work to finish", Bytes(self.pending))?;
        if let Some(free) = self.device_free {
            write!(f, "; the device reports {} free", Bytes(free))?;
        }
        if let Some(limit) = self.limit {
            write!(f, "; the pool's limit is {}", Bytes(limit))?;
        }
        f.write_str(if self.requested > self.capacity {
            ". It is more than there is at all"
        } else if self.initial {
            ". Configure a smaller pool (set_*_pool_size)"
        } else if self.idle >= self.requested && self.largest_idle.is_some() {
            ". Enough is idle, but not in one piece: a larger initial pool, or freeing neighbours, would help"
        } else if self.idle.saturating_add(self.pending) >= self.requested {
            ". Enough will be free once pending work has finished: synchronise its streams and try again"
        } else {
            ""
        })
    }
}

/// Any failure of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
        "{requested} bytes on {place} can never fit: rounded up to a multiple of 256 they exceed the pool's limit of {limit} bytes (set_*_pool_limit raises it)"
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
    /// A pointer that the manager does not know as the start of a live block.
    #[error("unknown pointer {ptr:#x}: {reason}")]
    UnknownPointer {
        /// The address.
        ptr: usize,
        /// What is known about it.
        reason: String,
    },
    /// A pointer whose block is free already.
    #[error(
        "double free of {ptr:#x}: the memory there is free already (freed before, and not handed out since)"
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
    fn an_out_of_memory_text_explains_itself() {
        let text = Error::OutOfMemory(Box::new(OutOfMemory {
            place: Place::Device(0),
            requested: 3 << 20,
            in_use: 10 << 20,
            reserved: 16 << 20,
            idle: 4 << 20,
            pending: 2 << 20,
            largest_idle: Some(2 << 20),
            initial: false,
            device_free: Some(1 << 20),
            limit: None,
            capacity: 24 << 30,
        }))
        .to_string();
        assert!(
            text.contains("3.0 MiB requested") && text.contains("not in one piece"),
            "{text}"
        );
    }

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
}
