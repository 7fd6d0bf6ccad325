//! How many bytes a manager has had copied and filled.

use crate::{cuda::CopyKind, stats::Copied};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of what was submitted. Lines of their own: what lies beside it is read by every request.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Traffic {
    to_device: AtomicU64,
    to_host: AtomicU64,
    within_devices: AtomicU64,
    filled: AtomicU64,
}

impl Traffic {
    /// A copy was submitted.
    pub fn add_copy(&self, kind: CopyKind, bytes: usize) {
        let count = match kind {
            CopyKind::HostToDevice => &self.to_device,
            CopyKind::DeviceToHost => &self.to_host,
            CopyKind::DeviceToDevice => &self.within_devices,
        };
        count.fetch_add(bytes as u64, Relaxed);
    }

    /// A fill was submitted.
    pub fn add_fill(&self, bytes: usize) {
        self.filled.fetch_add(bytes as u64, Relaxed);
    }

    /// The bytes so far.
    pub fn copied(&self) -> Copied {
        Copied {
            host_to_device: self.to_device.load(Relaxed),
            device_to_host: self.to_host.load(Relaxed),
            device_to_device: self.within_devices.load(Relaxed),
            memset: self.filled.load(Relaxed),
        }
    }
}
