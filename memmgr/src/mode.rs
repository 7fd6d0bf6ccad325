//! Which family of CUDA calls serves device memory.

use std::{fmt, str::FromStr};

/// The device allocator (reference API: `DeviceAllocatorMode`).
///
/// The mode may be changed at any time: each block is freed by the family that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceAllocatorMode {
    /// The manager's own exact best-fit pool, over virtual memory or segments of `cudaMalloc` (see
    /// [`DeviceSource`](crate::DeviceSource)).
    #[default]
    BestFitPool,
    /// `cudaMallocAsync` and `cudaFreeAsync` on the device's current memory pool, whose attributes stay the user's.
    AsyncStreamOrdered,
    /// `cudaMallocFromPoolAsync` on a `cudaMemPool_t` that the manager owns.
    CudaAsyncPool,
}

impl DeviceAllocatorMode {
    /// Every mode, in the order of the reference.
    pub const ALL: [DeviceAllocatorMode; 3] = [
        Self::BestFitPool,
        Self::AsyncStreamOrdered,
        Self::CudaAsyncPool,
    ];

    pub(crate) const fn from_index(index: u8) -> Self {
        match index {
            1 => Self::AsyncStreamOrdered,
            2 => Self::CudaAsyncPool,
            _ => Self::BestFitPool,
        }
    }

    pub(crate) const fn index(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for DeviceAllocatorMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BestFitPool => "pool",
            Self::AsyncStreamOrdered => "async",
            Self::CudaAsyncPool => "cuda-pool",
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for DeviceAllocatorMode {
    /// As it is printed.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A mode name that is none; the text lists those that are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown allocator mode `{0}`: pool, async or cuda-pool")]
pub struct UnknownMode(String);

impl FromStr for DeviceAllocatorMode {
    type Err = UnknownMode;

    fn from_str(s: &str) -> Result<Self, UnknownMode> {
        match s.to_ascii_lowercase().replace('_', "-").as_str() {
            "pool" | "best-fit-pool" => Ok(Self::BestFitPool),
            "async" | "async-stream-ordered" => Ok(Self::AsyncStreamOrdered),
            "cuda-pool" | "cuda-async-pool" => Ok(Self::CudaAsyncPool),
            _ => Err(UnknownMode(s.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_reads_back_what_it_prints() {
        for mode in DeviceAllocatorMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(DeviceAllocatorMode::from_index(mode.index()), mode);
        }
        assert!(
            "best"
                .parse::<DeviceAllocatorMode>()
                .unwrap_err()
                .to_string()
                .contains("cuda-pool")
        );
    }
}
