//! CUDA events, made in batches and never destroyed: they go back to a cache per device, so that dropping one makes no
//! CUDA call.
//!
//! Each thread keeps a few of those that it drops, so that a thread that copies again and again meets nobody at the cache.

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
        if let Some(raw) = near::take(device) {
            return Ok(Self { raw, device });
        }
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
        if process::is_forked() || near::keep(self.device, self.raw) {
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

/// What a thread keeps for itself.
#[cfg(not(all(shuttle, feature = "sim")))]
mod near {
    use super::{CACHE, RawEvent, lock, process};
    use std::cell::RefCell;

    /// More than these go to the others.
    const MOST: usize = 16;

    /// Events and their devices.
    struct Near(RefCell<Vec<(i32, RawEvent)>>);

    thread_local! {
        static NEAR: Near = const { Near(RefCell::new(Vec::new())) };
    }

    impl Drop for Near {
        fn drop(&mut self) {
            if process::is_forked() || self.0.get_mut().is_empty() {
                return;
            }
            let mut cache = lock(&CACHE);
            for (device, raw) in self.0.get_mut().drain(..) {
                cache.entry(device).or_default().push(raw);
            }
        }
    }

    /// An event of the device, if the thread has one.
    #[inline]
    pub(super) fn take(device: i32) -> Option<RawEvent> {
        let take = |near: &Near| {
            let mut near = near.0.try_borrow_mut().ok()?;
            let at = near.iter().rposition(|(of, _)| *of == device)?;
            Some(near.swap_remove(at).1)
        };
        NEAR.try_with(take).ok().flatten()
    }

    /// Whether the thread keeps the event.
    #[inline]
    pub(super) fn keep(device: i32, raw: RawEvent) -> bool {
        let keep = |near: &Near| match near.0.try_borrow_mut() {
            Ok(mut near) if near.len() < MOST => {
                near.push((device, raw));
                true
            }
            _ => false,
        };
        NEAR.try_with(keep).unwrap_or(false)
    }
}

/// The model checker's runs must be alike, whatever threads there were before.
#[cfg(all(shuttle, feature = "sim"))]
mod near {
    use super::RawEvent;

    pub(super) fn take(_: i32) -> Option<RawEvent> {
        None
    }

    pub(super) fn keep(_: i32, _: RawEvent) -> bool {
        false
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

#[cfg(all(test, feature = "sim", not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_keeps_goes_to_the_others_when_it_ends() {
        // No device that anybody has: these are no events.
        const NOWHERE: i32 = 1_000_000;
        let left = || lock(&CACHE).get(&NOWHERE).map_or(0, Vec::len);
        let keep = move || {
            for raw in 0..40 {
                let raw = RawEvent(raw);
                drop(PooledEvent {
                    raw,
                    device: NOWHERE,
                });
            }
            assert_eq!(near::take(NOWHERE + 1), None);
            let mine = near::take(NOWHERE).unwrap();
            assert!(near::keep(NOWHERE, mine));
            left()
        };
        let shared = std::thread::spawn(keep).join().unwrap();
        assert!(shared > 0 && shared < 40, "{shared}");
        assert_eq!(left(), 40);
        lock(&CACHE).remove(&NOWHERE);
    }
}
