//! CUDA events, made in batches and never destroyed: they go back to a cache per device, so that dropping one makes no
//! CUDA call.

use crate::{
    cuda::{self, RawEvent},
    device::on_device,
    error::{Error, Result},
    process,
    sync::{Mutex, lock},
};
use std::collections::BTreeMap;

/// Events that are free to be recorded, by device.
static CACHE: Mutex<BTreeMap<i32, Vec<RawEvent>>> = Mutex::new(BTreeMap::new());
/// How many events are made at a time.
const BATCH: usize = 16;

/// An event out of the cache; back into it on drop.
#[derive(Debug)]
pub(crate) struct PooledEvent {
    raw: RawEvent,
    device: i32,
}

impl PooledEvent {
    /// An event of `device`; makes a batch of them if the cache has none.
    pub fn new(device: i32) -> Result<Self> {
        let cached = lock(&CACHE).get_mut(&device).and_then(Vec::pop);
        if let Some(raw) = cached {
            return Ok(Self { raw, device });
        }
        let mut batch = Vec::with_capacity(BATCH);
        let made = on_device(device, || {
            for _ in 0..BATCH {
                batch.push(cuda::event_create()?);
            }
            Ok(())
        });
        let first = batch.pop();
        lock(&CACHE).entry(device).or_default().append(&mut batch);
        match (first, made) {
            (Some(raw), _) => Ok(Self { raw, device }),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(Error::Unsupported {
                reason: "no event could be made".into(),
            }),
        }
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        lock(&CACHE).entry(self.device).or_default().push(self.raw);
    }
}

impl PooledEvent {
    /// Whether the runtime has passed the point where the event was recorded.
    pub fn query(&self) -> Result<bool> {
        // SAFETY: pooled events are never destroyed, and this one is ours until it is dropped.
        unsafe { cuda::event_query(self.raw) }
    }

    /// Waits on the host.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: as in `query`.
        unsafe { cuda::event_synchronize(self.raw) }
    }

    pub fn raw(&self) -> RawEvent {
        self.raw
    }
}

/// Empties the cache: the machine is gone. How many events were in it twice.
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) fn forget() -> usize {
    let cached = std::mem::take(&mut *lock(&CACHE));
    let mut all: Vec<usize> = cached.into_values().flatten().map(|raw| raw.0).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    count - all.len()
}
