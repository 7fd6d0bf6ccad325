//! Requests: pinned and device memory for raw pointers and guards, the short way and at length, and who is told of them.

use super::{
    inner::{Home, Inner},
    rescue::Served,
};
use crate::{
    error::{Error, Place, Result},
    mode::DeviceAllocatorMode,
    pool::{
        BlockRange, best_fit, is_refused_by_limit,
        native::Family,
        observer::{By, Told, What},
    },
    spans,
    stream::Handle,
    sync::atomic::Ordering,
};
use std::{cell::OnceCell, panic::Location, sync::Arc};

/// How often others may take what was made for a request.
const HASTY: usize = 8;

impl Inner {
    /// Device memory of the own pool, if it needs no look at anything else: the pool serves it from one span at once, and
    /// nobody wants to hear of it.
    #[inline]
    pub fn hit(&self, ordinal: i32, size: usize, on: Option<&Handle>, raw: bool) -> Option<usize> {
        let usual = self.mode.load(Ordering::Acquire) == DeviceAllocatorMode::BestFitPool.index()
            && self.is_plain
            && self.is_usual()
            && on.is_none_or(|handle| !handle.core().has_keeper());
        if usual {
            self.known_state(ordinal)?.pool.hit(size, on, raw)
        } else {
            None
        }
    }

    /// Device memory for a raw pointer or a guard, and where it lives.
    #[inline]
    #[track_caller]
    pub fn allocate_device(
        self: &Arc<Self>,
        ordinal: i32,
        size: usize,
        on: Option<&Handle>,
        raw: bool,
    ) -> Result<(usize, Home)> {
        match self.hit(ordinal, size, on, raw) {
            Some(address) => Ok((address, Home::Pool(ordinal))),
            None => self.allocate_device_at_length(ordinal, size, on, raw),
        }
    }

    /// As [`Inner::allocate_device`], for what [`Inner::hit`] has not served.
    #[cold]
    #[track_caller]
    pub(super) fn allocate_device_at_length(
        self: &Arc<Self>,
        ordinal: i32,
        size: usize,
        on: Option<&Handle>,
        raw: bool,
    ) -> Result<(usize, Home)> {
        if size == 0 {
            return Ok((0, Home::Pool(ordinal)));
        }
        self.gate()?;
        let state = self.state(ordinal)?;
        let family = Family::of(self.effective(state)?);
        let allocate = || match family {
            None => state.pool.allocate(size, on, raw),
            Some(family) => state.native.allocate(family, size, on, raw),
        };
        let served = Served {
            pool: &state.pool,
            native: Some((state, family)),
            trim: &|| state.trim_to(0),
            falls_back: false,
        };
        let place = Place::Device(ordinal);
        let mode = Some(family.map_or(DeviceAllocatorMode::BestFitPool, Family::mode));
        let served = self.with_rescue(allocate, served);
        if let Err(error) = &served {
            self.report(place, mode, (0, size), on, What::Failure(error));
        }
        let address = served?;
        self.releaser.after_growth();
        self.report(place, mode, (address, size), on, What::Allocate);
        let home = if family.is_some() {
            Home::Native(ordinal)
        } else {
            Home::Pool(ordinal)
        };
        // What is allocated for a graph stays as long as the graph, whatever of it uses the block.
        if let Some(keeper) = on.and_then(|handle| handle.core().keeper()) {
            keeper.keep(self, home, BlockRange::all(address), true);
        }
        self.note_site(home, address);
        Ok((address, home))
    }

    /// Pinned memory for a raw pointer or a guard; the address, 0 for size 0.
    #[inline]
    #[track_caller]
    pub fn allocate_pinned(&self, size: usize, raw: bool) -> Result<usize> {
        match self.hit_pinned(size, raw) {
            Some(address) => Ok(address),
            None => self.allocate_pinned_at_length(size, raw),
        }
    }

    /// As [`Inner::hit`], of the pinned pool.
    #[inline]
    fn hit_pinned(&self, size: usize, raw: bool) -> Option<usize> {
        if !self.is_plain || !self.is_usual() {
            return None;
        }
        let address = self.pinned.hit(size, None, raw)?;
        self.warmer.after_allocation(&self.pinned);
        Some(address)
    }

    #[cold]
    #[track_caller]
    fn allocate_pinned_at_length(&self, size: usize, raw: bool) -> Result<usize> {
        if size == 0 {
            return Ok(0);
        }
        self.gate()?;
        // What is given back for this request stays there for it.
        let held = OnceCell::new();
        let trim = || {
            held.get_or_init(|| self.warmer.hold(&self.pinned));
            self.pinned.trim_to(0)
        };
        let served = Served {
            pool: &self.pinned,
            native: None,
            trim: &trim,
            falls_back: self.pinned_fallback,
        };
        let served = match self.with_rescue(|| self.pinned.allocate(size, None, raw), served) {
            Err(error) if self.pinned_fallback && error.is_out_of_memory() => self
                .allocate_pageable(size, raw, error)
                .inspect_err(|_| self.pinned.count_failure()),
            other => other,
        };
        if let Err(error) = &served {
            self.report(Place::Pinned, None, (0, size), None, What::Failure(error));
        }
        let address = served?;
        drop(held);
        self.warmer.after_allocation(&self.pinned);
        self.releaser.after_growth();
        self.report(Place::Pinned, None, (address, size), None, What::Allocate);
        self.note_site(Home::Pinned, address);
        Ok(address)
    }

    /// A request for pinned memory that found none, served with pageable memory.
    #[cold]
    fn allocate_pageable(&self, size: usize, raw: bool, refused: Error) -> Result<usize> {
        let Error::OutOfMemory(refusal) = &refused else {
            return Err(refused);
        };
        if is_refused_by_limit(&refused) {
            return Err(refused);
        }
        // It stands for the configured size, if that could not be had.
        let initial = if refusal.initial {
            refusal.requested
        } else {
            0
        };
        let len = best_fit::checked(size.max(initial))?;
        tracing::warn!(%refused, "pinned memory is served with pageable memory");
        // Others may be faster than this request.
        for _ in 0..HASTY {
            self.pinned.grow_pageable(len)?;
            if let Ok(address) = self.pinned.allocate(size, None, raw) {
                return Ok(address);
            }
        }
        Err(refused)
    }

    /// Tells who listens of a block, by address and bytes, or of a request.
    #[track_caller]
    fn report(
        &self,
        place: Place,
        mode: Option<DeviceAllocatorMode>,
        (address, size): (usize, usize),
        on: Option<&Handle>,
        what: What<'_>,
    ) {
        spans::may_begin();
        #[cfg(feature = "trace-events")]
        if let What::Failure(error) = what {
            crate::foreign::log(
                || tracing::info!(%place, bytes = size, %error, "a request was refused"),
            );
        }
        if !self.observed.is_set() {
            return;
        }
        let stream = on.map(|handle| handle.core().id());
        // By itself: the caller of a closure would be somebody else.
        let site = if self.call_sites {
            Some(Location::caller())
        } else {
            None
        };
        self.observed.tell(&Told {
            place,
            mode,
            address,
            size,
            by: stream.map_or(By::Host, By::Stream),
            stream,
            site,
            what,
        });
    }
}
