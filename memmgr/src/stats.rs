//! What is in use, held, and done: the figures of pools and managers. All sizes are bytes. With the feature `serde` all of them
//! can be serialized, by the names of their fields.

use crate::source::DeviceSource;

/// The figures of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolStats {
    /// Live blocks, rounded up to the granule.
    pub in_use: usize,
    /// Held from CUDA. For the async modes, which let the driver hold memory, see
    /// [`MemoryManager::native_pool_usage`](crate::MemoryManager::native_pool_usage).
    pub reserved: usize,
    /// Free and usable by anybody at once.
    pub idle: usize,
    /// Free, but work that may touch it is not known to have finished.
    pub pending: usize,
    /// The largest idle block.
    pub largest_idle: usize,
    /// What live blocks have beyond what was asked for: sizes are rounded up to the granule. 0 in the async modes, where the
    /// driver rounds.
    pub internal_waste: usize,
    /// The largest request that found no free block of its size at once, since the beginning or the last
    /// [`MemoryManager::reset_peak`](crate::MemoryManager::reset_peak). What is idle in pieces shorter than this is
    /// [`PoolFragmentation::external_waste`].
    pub largest_miss: usize,
    /// The highest `in_use` so far.
    pub peak_in_use: usize,
    /// The highest `reserved` so far.
    pub peak_reserved: usize,
    /// Blocks handed out.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Allocations served from memory that the pool held already.
    pub reuses: u64,
    /// Allocations that took memory from another stream, whose mark it still had. (Memory whose work was seen to have finished
    /// has lost its marks, and is idle: to take that is no steal.)
    pub steals: u64,
    /// Those of the steals that made their own stream, or the host, wait for the other one's work; for the rest that was
    /// known to have finished by then.
    pub waits: u64,
    /// Segments obtained from CUDA; with virtual memory, growths that made new chunks.
    pub growths: u64,
    /// Chunks of physical memory that were moved to other addresses (virtual memory); segments that were idle and went into a
    /// longer one (`cudaMalloc`).
    pub moves: u64,
    /// Those of the moves for which memory was mapped anew. The others found it mapped where it had been before.
    pub remaps: u64,
    /// Requests refused.
    pub failures: u64,
    /// Blocks divided in two.
    pub splits: u64,
    /// Neighbouring free blocks joined.
    pub merges: u64,
    /// Live blocks now.
    pub live_blocks: usize,
    /// Free spans now.
    pub free_spans: usize,
    /// Segments now.
    pub segments: usize,
}

impl PoolStats {
    /// The most that was held over the most that was live, each at its peak: what fragmentation, and memory that waits for
    /// work, cost at most. 1 is ideal; 0 where nothing was ever live, and in the async modes.
    pub fn reserved_over_live(&self) -> f64 {
        if self.peak_in_use == 0 {
            return 0.0;
        }
        self.peak_reserved as f64 / self.peak_in_use as f64
    }
}

/// The figures of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceStats {
    /// Its ordinal.
    pub device: i32,
    /// Where the memory of the manager's own pool was asked to come from.
    pub requested_source: DeviceSource,
    /// Where it comes from.
    pub source: DeviceSource,
    /// The manager's own pool.
    pub best_fit: PoolStats,
    /// Blocks of `cudaMallocAsync`.
    pub async_stream_ordered: PoolStats,
    /// Blocks of the manager's `cudaMemPool_t`.
    pub cuda_async_pool: PoolStats,
}

impl DeviceStats {
    /// Live bytes in all three modes.
    pub fn in_use(&self) -> usize {
        self.best_fit.in_use + self.async_stream_ordered.in_use + self.cuda_async_pool.in_use
    }
}

/// What was copied and filled, in bytes: by all calls of a manager that the runtime has accepted. What is captured into a
/// graph counts once, when it is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Copied {
    /// From host to device memory.
    pub host_to_device: u64,
    /// From device to host memory.
    pub device_to_host: u64,
    /// Within device memory, and between devices.
    pub device_to_device: u64,
    /// Filled with one value.
    pub memset: u64,
}

/// The figures of a manager.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Each device that has been used.
    pub device: Vec<DeviceStats>,
    /// The pinned pool.
    pub pinned: PoolStats,
    /// What was copied and filled through the manager.
    pub copied: Copied,
    /// Failures in drops, which had nobody to report to.
    pub drop_failures: u64,
    /// CUDA calls of this crate by name, in the whole process.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_map"))]
    pub cuda_calls: Vec<(&'static str, u64)>,
}

/// Calls by name.
#[cfg(feature = "serde")]
fn as_map<S: serde::Serializer>(
    calls: &[(&'static str, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(calls.iter().copied())
}

impl Stats {
    /// Live bytes, device and pinned.
    pub fn in_use(&self) -> usize {
        self.pinned.in_use + self.device.iter().map(DeviceStats::in_use).sum::<usize>()
    }

    /// All CUDA calls of this crate in this process.
    pub fn total_cuda_calls(&self) -> u64 {
        self.cuda_calls.iter().map(|(_, count)| count).sum()
    }
}

/// How the idle memory of one pool lies, see [`MemoryManager::fragmentation`](crate::MemoryManager::fragmentation); bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolFragmentation {
    /// Idle, but in pieces shorter than the largest miss.
    pub external_waste: usize,
    /// As [`PoolStats::largest_miss`].
    pub largest_miss: usize,
    /// As [`PoolStats::idle`].
    pub idle: usize,
    /// As [`PoolStats::largest_idle`].
    pub largest_idle: usize,
}

/// How the idle memory of a manager's own pools lies, see
/// [`MemoryManager::fragmentation`](crate::MemoryManager::fragmentation).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Fragmentation {
    /// The own pool of each device that has been used, by ordinal.
    pub device: Vec<(i32, PoolFragmentation)>,
    /// The pinned pool.
    pub pinned: PoolFragmentation,
}

impl Fragmentation {
    /// The own pool of a device; all zero where it was not used.
    pub fn of_device(&self, ordinal: i32) -> PoolFragmentation {
        let mut found = self.device.iter().filter(|(device, _)| *device == ordinal);
        found
            .next()
            .map_or_else(Default::default, |(_, pool)| *pool)
    }
}

/// What a pool had at the beginning of a [`PeakScope`](crate::PeakScope), and the most since then; bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Peak {
    /// [`PoolStats::in_use`] at the beginning.
    pub in_use_at_begin: usize,
    /// [`PoolStats::reserved`] at the beginning.
    pub reserved_at_begin: usize,
    /// The highest `in_use` since then; where threads compete for the pool it may be too high by 1 % of what is reserved.
    pub in_use: usize,
    /// The highest `reserved` since then; 0 in the async modes.
    pub reserved: usize,
}

impl Peak {
    /// By how much `in_use` rose at most.
    pub fn in_use_above_begin(&self) -> usize {
        self.in_use.saturating_sub(self.in_use_at_begin)
    }

    /// By how much `reserved` rose at most.
    pub fn reserved_above_begin(&self) -> usize {
        self.reserved.saturating_sub(self.reserved_at_begin)
    }
}

/// The peaks of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DevicePeaks {
    /// Its ordinal.
    pub device: i32,
    /// The manager's own pool.
    pub best_fit: Peak,
    /// Blocks of `cudaMallocAsync`.
    pub async_stream_ordered: Peak,
    /// Blocks of the manager's `cudaMemPool_t`.
    pub cuda_async_pool: Peak,
}

/// The peaks of a manager's pools between two moments, see [`MemoryManager::peak_scope`](crate::MemoryManager::peak_scope).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Peaks {
    /// Each device that has been used.
    pub device: Vec<DevicePeaks>,
    /// The pinned pool.
    pub pinned: Peak,
}

/// What the driver holds for an async mode, from the attributes of its memory pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NativePoolUsage {
    /// Live bytes (`cudaMemPoolAttrUsedMemCurrent`).
    pub used: usize,
    /// The highest of them (`cudaMemPoolAttrUsedMemHigh`).
    pub used_high: usize,
    /// Bytes held from the device (`cudaMemPoolAttrReservedMemCurrent`).
    pub reserved: usize,
    /// The highest of them (`cudaMemPoolAttrReservedMemHigh`).
    pub reserved_high: usize,
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;
    use crate::DeviceAllocatorMode;
    use serde_json::{json, to_value};

    #[test]
    fn figures_are_serialized_by_name_and_modes_as_they_are_printed() {
        let pool = PoolStats {
            in_use: 256,
            steals: 3,
            ..PoolStats::default()
        };
        let stats = Stats {
            device: vec![DeviceStats {
                device: 1,
                source: DeviceSource::Virtual,
                best_fit: pool,
                ..DeviceStats::default()
            }],
            copied: Copied {
                memset: 7,
                ..Copied::default()
            },
            cuda_calls: vec![("cudaMalloc", 2)],
            ..Stats::default()
        };
        let value = to_value(&stats).unwrap();
        let device = &value["device"][0];
        assert_eq!(device["best_fit"]["in_use"], 256);
        assert_eq!(device["best_fit"]["steals"], 3);
        assert_eq!(device["source"], "vmm");
        assert_eq!(device["requested_source"], "auto");
        assert_eq!(value["copied"]["memset"], 7);
        assert_eq!(value["cuda_calls"], json!({ "cudaMalloc": 2 }));
        for mode in DeviceAllocatorMode::ALL {
            assert_eq!(to_value(mode).unwrap(), mode.to_string());
        }
        for source in DeviceSource::ALL {
            assert_eq!(to_value(source).unwrap(), source.to_string());
        }
    }
}
