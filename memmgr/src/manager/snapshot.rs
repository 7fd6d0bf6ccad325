//! What a manager holds at one moment.

use super::MemoryManager;
use crate::{events, process, snapshot::Snapshot};

/// How often a snapshot is taken anew because something has happened meanwhile.
const ATTEMPTS: usize = 4;

impl MemoryManager {
    /// All segments with their blocks, and the last events. Makes no CUDA call. Each pool is copied out under its lock, which
    /// takes time in proportion to its blocks; what other threads do meanwhile may be in the copy of one pool and not in that
    /// of another. Adopted memory is not in it. Empty in a forked child, and then it
    /// cannot be written to a file.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            time_us: events::now(),
            devices: 0,
            segments: Vec::new(),
            events: Vec::new(),
            forked: process::is_forked(),
        };
        if snapshot.forked {
            return snapshot;
        }
        let inner = &self.inner;
        snapshot.devices = inner.devices.get().map_or(0, |devices| devices.len());
        let sinks = inner.observed.sinks();
        for _ in 0..ATTEMPTS {
            let before = sinks.count();
            snapshot.segments.clear();
            for state in inner.states() {
                snapshot.segments.extend(state.pool.listing());
                snapshot.segments.extend(state.native.listing());
            }
            snapshot.segments.extend(inner.pinned.listing());
            snapshot.events = sinks.events();
            // Who reads both wants them to agree.
            if sinks.count() == before {
                break;
            }
        }
        snapshot
    }
}
