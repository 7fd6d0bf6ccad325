//! Every stream with a live handle: who asks for one by its raw handle or id shares its state.

use super::{
    Handle, StreamCore, StreamKind,
    end::{End, finish_retirements},
    handle::USER,
    turns::Turns,
};
use crate::{
    cuda::{self, RawStream},
    device::on_device,
    error::Result,
    process,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        lock,
    },
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

/// Streams by the driver's id, which only default streams of several devices share, and device.
type Registry = BTreeMap<(u64, i32), Weak<StreamCore>>;
/// Every stream with a live handle.
static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());
static NEXT_UID: AtomicU64 = AtomicU64::new(1);

/// Whether every stream that has a live handle is known to be idle.
pub(crate) fn all_idle() -> bool {
    let cores: Vec<Arc<StreamCore>> = lock(&REGISTRY).values().filter_map(Weak::upgrade).collect();
    cores.iter().all(|core| core.is_idle())
}

/// The stream has no handle any more.
pub(super) fn remove(core: &Arc<StreamCore>) {
    let mut registry = lock(&REGISTRY);
    let key = (core.id, core.device);
    if registry
        .get(&key)
        .is_some_and(|entry| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(core)))
    {
        registry.remove(&key);
    }
}

/// How many streams are known, and how many wait for their end; numbers begin anew.
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) fn forget() -> (usize, usize) {
    NEXT_UID.store(1, Ordering::Relaxed);
    (lock(&REGISTRY).len(), super::end::deferred())
}

impl Handle {
    /// Registers a raw handle; an existing state of the same stream is shared.
    ///
    /// # Safety
    /// The handle is alive, and stays so as long as users exist.
    pub(in crate::stream) unsafe fn register(
        raw: RawStream,
        device: i32,
        kind: StreamKind,
        owned: bool,
    ) -> Result<Self> {
        finish_retirements();
        // SAFETY: as this function demands.
        let ask = || unsafe { cuda::stream_id(raw) };
        let id = match kind {
            StreamKind::Legacy | StreamKind::PerThread => on_device(device, ask)?,
            _ => ask()?,
        };
        Ok(Self::register_as(id, raw, device, kind, owned, true))
    }

    /// As [`Handle::register`], of a stream whose id is known. `owes`: whether the stream's end will be asked for.
    pub(in crate::stream) fn register_as(
        id: u64,
        raw: RawStream,
        device: i32,
        kind: StreamKind,
        owned: bool,
        owes: bool,
    ) -> Self {
        let mut registry = lock(&REGISTRY);
        if let Some(handle) = registry
            .get(&(id, device))
            .and_then(Weak::upgrade)
            .and_then(|core| core.add_user())
        {
            handle.core.owned.fetch_or(owned, Ordering::AcqRel);
            handle.core.owes.fetch_or(owes, Ordering::AcqRel);
            return handle;
        }
        let core = Arc::new(StreamCore {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            id,
            device,
            kind,
            raw,
            owned: AtomicBool::new(owned),
            owes: AtomicBool::new(owes),
            users: AtomicU64::new(USER),
            capturing: AtomicBool::new(false),
            turns: Turns::new(),
            keeps: AtomicBool::new(false),
            keeper: Mutex::new(None),
            clock: AtomicU64::new(1),
            place: std::sync::atomic::AtomicU64::new(0),
            end: Mutex::new(End::NotYet),
            ended: Condvar::new(),
        });
        registry.insert((id, device), Arc::downgrade(&core));
        let handle = Self { core, weight: USER };
        if kind == StreamKind::Legacy {
            // CUDA never ends it, and whoever makes a handle anew means the same stream: a user for good.
            std::mem::forget(handle.clone());
        }
        handle
    }

    /// A handle to a stream that somebody has one to already, other than the default streams: found by its id alone.
    pub(in crate::stream) fn of_registered(id: u64, owned: bool) -> Option<Self> {
        let registry = lock(&REGISTRY);
        let known = registry
            .range((id, i32::MIN)..=(id, i32::MAX))
            .find_map(|(_, core)| {
                let core = core.upgrade()?;
                let is_own = matches!(core.kind, StreamKind::Blocking | StreamKind::NonBlocking);
                is_own.then(|| core.add_user())?
            });
        if let Some(handle) = &known {
            handle.core.owned.fetch_or(owned, Ordering::AcqRel);
        }
        known
    }

    /// A handle to a stream that is being captured, and that somebody has one to already: found by its raw handle, which is
    /// no other stream's as long as that one lives.
    pub(in crate::stream) fn of_captured(raw: RawStream, owned: bool) -> Option<Self> {
        if process::is_forked() {
            return None;
        }
        let registry = lock(&REGISTRY);
        let known = registry.values().find_map(|core| {
            let core = core.upgrade()?;
            let is_own = matches!(core.kind, StreamKind::Blocking | StreamKind::NonBlocking);
            (is_own && core.raw.0 == raw.0).then(|| core.add_user())?
        });
        if let Some(handle) = &known {
            handle.core.owned.fetch_or(owned, Ordering::AcqRel);
        }
        known
    }
}
