//! [`PeakScope`]: the highest figures between two moments.

use super::{Inner, MemoryManager};
use crate::{
    pool::{
        High,
        native::{FAMILIES, Family},
    },
    process,
    stats::{DevicePeaks, Peak, Peaks},
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

static NEXT: AtomicU64 = AtomicU64::new(crate::pool::FIRST_SCOPE);

/// The pools of a place: the own one, and those of the async modes.
type OfDevice = [High; 1 + FAMILIES.len()];

/// Watches the peaks of a manager's pools from [`MemoryManager::peak_scope`] on until it is ended or dropped.
///
/// Scopes may lie inside one another, overlap, and end in any order on any thread; each has the peaks of its own time, of all
/// threads together. [`MemoryManager::reset_peak`] does not touch them. Requests and frees pay nothing for a scope.
#[must_use = "a scope ends when it is dropped"]
pub struct PeakScope {
    inner: Arc<Inner>,
    id: u64,
    /// What was the case at the beginning: of pinned memory, and of each device that had been used by then.
    pinned: High,
    devices: Vec<(i32, OfDevice)>,
}

impl MemoryManager {
    /// Begins to watch the highest `in_use` and `reserved` of each pool, in bytes.
    ///
    /// ```
    /// # fn main() -> memmgr::Result<()> {
    /// # let manager = memmgr::MemoryManager::instance();
    /// let scope = manager.peak_scope();
    /// drop(manager.pinned::<u8>(4096)?);
    /// let peaks = scope.end();
    /// assert_eq!(peaks.pinned.in_use_above_begin(), 4096);
    /// # Ok(()) }
    /// ```
    pub fn peak_scope(&self) -> PeakScope {
        let inner = self.inner.clone();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (mut pinned, mut devices) = (High::default(), Vec::new());
        if !process::is_forked() {
            pinned = inner.pinned.begin_peak(id);
            devices.extend(inner.states().map(|state| {
                let own = state.pool.begin_peak(id);
                let [current, cuda] = FAMILIES.map(|family| state.native.begin_peak(family, id));
                (state.ordinal, [own, current, cuda])
            }));
        }
        PeakScope {
            inner,
            id,
            pinned,
            devices,
        }
    }
}

impl PeakScope {
    /// The peaks so far. All zero in a forked child.
    pub fn peaks(&self) -> Peaks {
        if process::is_forked() {
            return Peaks::default();
        }
        let device = self.inner.states().map(|state| {
            let of = |place: usize, high: High| peak(self.begin(state.ordinal, place), high);
            let native = |family: Family| state.native.peak_since(family, self.id);
            DevicePeaks {
                device: state.ordinal,
                best_fit: of(0, state.pool.peak_since(self.id)),
                async_stream_ordered: of(1, native(Family::Current)),
                cuda_async_pool: of(2, native(Family::Own)),
            }
        });
        Peaks {
            device: device.collect(),
            pinned: peak(self.pinned, self.inner.pinned.peak_since(self.id)),
        }
    }

    /// Ends the scope; the peaks from its beginning until now.
    pub fn end(self) -> Peaks {
        self.peaks()
    }

    /// What was the case in a pool of a device at the beginning: nothing, if the device was not in use then.
    fn begin(&self, ordinal: i32, place: usize) -> High {
        let found = self.devices.iter().find(|(device, _)| *device == ordinal);
        found
            .and_then(|(_, of)| of.get(place).copied())
            .unwrap_or_default()
    }
}

impl Drop for PeakScope {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        self.inner.pinned.end_peak(self.id);
        for state in self.inner.states() {
            state.pool.end_peak(self.id);
            for family in FAMILIES {
                state.native.end_peak(family, self.id);
            }
        }
    }
}

fn peak(begin: High, high: High) -> Peak {
    Peak {
        in_use_at_begin: begin.in_use,
        reserved_at_begin: begin.reserved,
        in_use: high.in_use,
        reserved: high.reserved,
    }
}

impl fmt::Debug for PeakScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeakScope")
            .field("peaks", &self.peaks())
            .finish()
    }
}
