//! Frees: by pointer and of guards, the short way and at length, and of blocks that captured graphs keep.

use super::inner::{DeviceState, Home, Inner};
use crate::{
    error::{Error, Place, Result},
    event::Fence,
    foreign,
    pool::{
        Announced, BlockRange, FreeOn, Who,
        observer::{Told, What},
    },
    process,
    sync::{atomic::Ordering, lock},
};

/// Which kind of memory a pointer should belong to.
#[derive(Clone, Copy)]
pub(super) enum Memory {
    Pinned,
    /// Of this device, or of any.
    Device(Option<i32>),
}

impl Inner {
    /// Frees a block by pointer; null does nothing.
    #[inline]
    pub(super) fn free(&self, address: usize, on: FreeOn<'_>, memory: Memory) -> Result<()> {
        self.free_as(address, on, memory, Who::Pointer)
    }

    #[inline]
    fn free_as(&self, address: usize, on: FreeOn<'_>, memory: Memory, who: Who) -> Result<()> {
        if self.free_plain(address, on, memory) {
            Ok(())
        } else {
            self.free_at_length(address, on, memory, who)
        }
    }

    /// Frees a block of an own pool, if nothing else has to be looked at.
    #[inline]
    fn free_plain(&self, address: usize, on: FreeOn<'_>, memory: Memory) -> bool {
        if !self.is_usual() {
            return false;
        }
        match memory {
            Memory::Device(Some(device)) => self
                .known_state(device)
                .is_some_and(|state| state.pool.free_plain(address, on)),
            // The pools of others do not know the address, and leave it alone.
            Memory::Device(None) => self
                .states()
                .any(|state| state.pool.free_plain(address, on)),
            Memory::Pinned => {
                let freed = self.pinned.free_plain(address, on);
                if freed {
                    self.warmer.after_free();
                }
                freed
            }
        }
    }

    #[cold]
    fn free_at_length(
        &self,
        address: usize,
        on: FreeOn<'_>,
        memory: Memory,
        who: Who,
    ) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        process::gate()?;
        let on = match on {
            FreeOn::Stream(handle) if handle.core().is_per_thread() => {
                self.order_of_free(address, on)?
            }
            _ => on,
        };
        if self.observed.is_set() && self.report_free(address, on, memory, who)? {
            return Ok(());
        }
        match memory {
            Memory::Pinned => {
                if self.pinned.free_as(address, on, who)?.is_some() {
                    self.warmer.after_free();
                    return Ok(());
                }
                if self.find_device(address, 0).ok().flatten().is_some() {
                    return Err(Error::unknown(
                        address,
                        "it is device memory: free_device frees it",
                    ));
                }
            }
            Memory::Device(of) => {
                for state in self
                    .states()
                    .filter(|state| of.is_none_or(|device| state.ordinal == device))
                {
                    if state.pool.free_as(address, on, who)?.is_some()
                        || state.native.free(address, on, who)?.is_some()
                    {
                        return Ok(());
                    }
                }
                if let Some(device) = of
                    && let Some(other) = self.states().find(|state| {
                        state.pool.contains(address) || state.native.contains(address)
                    })
                {
                    return Err(Error::WrongDevice {
                        reason: format!(
                            "the block at {address:#x} belongs to device {}, the stream to device {device}",
                            other.ordinal
                        ),
                    });
                }
                if self.pinned.contains(address) {
                    return Err(Error::unknown(
                        address,
                        "it is pinned memory: free_pinned frees it",
                    ));
                }
            }
        }
        Err(Error::unknown(
            address,
            "no live block of this manager starts there (freed already, or from elsewhere)",
        ))
    }

    /// In whose order a block is freed that may have to wait for a graph. Only its own thread can record on a thread's
    /// default stream: there the point of the free is recorded now.
    fn order_of_free<'a>(&self, address: usize, on: FreeOn<'a>) -> Result<FreeOn<'a>> {
        let FreeOn::Stream(handle) = on else {
            return Ok(on);
        };
        let home = |state: &DeviceState| {
            if state.pool.is_held(address) {
                Some(Home::Pool(state.ordinal))
            } else {
                let native = state.native.is_held(address);
                native.then_some(Home::Native(state.ordinal))
            }
        };
        if handle.core().is_per_thread()
            && let Some(home) = self.states().find_map(home)
        {
            let _steady = handle.core().steady()?;
            handle.refuse_capture(
                "a free on the thread's default stream of what a graph uses",
                "free it after the capture has ended",
            )?;
            let (fence, _) = Fence::after_work(handle);
            self.add_use(home, BlockRange::all(address), &fence, true);
            return Ok(FreeOn::Recorded);
        }
        Ok(on)
    }

    /// Frees the block of a guard: after the work of the stream it was allocated on and all recorded uses. A failure is
    /// counted and kept for `take_error`.
    #[inline]
    pub fn free_guard(&self, address: usize, home: Home) {
        let plain = match home {
            Home::Pinned => self.free_plain(address, FreeOn::Allocating, Memory::Pinned),
            Home::Pool(device) => {
                self.free_plain(address, FreeOn::Allocating, Memory::Device(Some(device)))
            }
            Home::Native(_) | Home::Adopted => false,
        };
        if !plain {
            self.free_guard_at_length(address, home);
        }
    }

    #[cold]
    fn free_guard_at_length(&self, address: usize, home: Home) {
        if address == 0 || process::is_over() {
            return;
        }
        if home == Home::Adopted {
            self.adopted.leave(address);
            return;
        }
        if self.observed.is_set() {
            let memory = if home == Home::Pinned {
                Memory::Pinned
            } else {
                Memory::Device(None)
            };
            let left = self.report_free(address, FreeOn::Allocating, memory, Who::Keeper);
            if matches!(left, Ok(true)) {
                return;
            }
        }
        let result = match home {
            Home::Pinned => {
                let freed = self.pinned.free(address, FreeOn::Allocating);
                self.warmer.after_free();
                freed
            }
            Home::Pool(device) => self
                .state(device)
                .and_then(|state| state.pool.free(address, FreeOn::Allocating)),
            Home::Native(device) => self
                .state(device)
                .and_then(|state| state.native.free(address, FreeOn::Allocating, Who::Keeper)),
            Home::Adopted => Ok(None),
        };
        if let Err(error) = result {
            self.note_drop_failure("a guard", error);
        }
    }

    /// Counts and keeps what went wrong where nobody can be told. A device that turned out to be reset has taken the memory
    /// along, which is no failure of the drop.
    pub(super) fn note_drop_failure(&self, who: &str, error: Error) {
        if process::is_over() {
            return;
        }
        self.drop_failures.fetch_add(1, Ordering::Relaxed);
        foreign::log(
            || tracing::warn!(%error, "{who} could not free its memory: the block stays out of use"),
        );
        *lock(&self.last_drop_failure) = Some(error);
    }

    /// A captured graph uses a block from now on; whether there is such a block.
    pub fn hold(&self, home: Home, block: BlockRange) -> bool {
        match home {
            Home::Pinned => self.pinned.hold(block),
            Home::Pool(device) => self.state(device).is_ok_and(|state| state.pool.hold(block)),
            Home::Native(device) => self
                .state(device)
                .is_ok_and(|state| state.native.hold(block)),
            Home::Adopted => false,
        }
    }

    /// A graph does not use the block any more: frees it, if it was freed meanwhile and no other graph uses it.
    pub fn unhold(&self, home: Home, block: BlockRange) {
        if process::is_over() {
            return;
        }
        let freed = match home {
            Home::Pinned => self.pinned.unhold(block),
            Home::Pool(device) => self
                .state(device)
                .ok()
                .and_then(|state| state.pool.unhold(block)),
            Home::Native(device) => self
                .state(device)
                .ok()
                .and_then(|state| state.native.unhold(block)),
            Home::Adopted => None,
        };
        let Some(freed) = freed else { return };
        let memory = match home {
            Home::Pinned => Memory::Pinned,
            Home::Pool(device) | Home::Native(device) => Memory::Device(Some(device)),
            Home::Adopted => return,
        };
        // Whoever had it has freed it before.
        if let Err(error) = self.free_as(block.start, freed.on(), memory, Who::Keeper) {
            self.note_drop_failure("a graph that is gone", error);
        }
    }

    /// Tells the observer, before anybody else can get the memory. Whether nothing is left to do, since a captured graph
    /// keeps the block. An error where the free will be refused.
    fn report_free(
        &self,
        address: usize,
        on: FreeOn<'_>,
        memory: Memory,
        who: Who,
    ) -> Result<bool> {
        let announced = match memory {
            Memory::Pinned => self
                .pinned
                .announce_free(address, on, who)
                .map(|announced| (Place::Pinned, announced)),
            Memory::Device(of) => self
                .states()
                .filter(|state| of.is_none_or(|device| state.ordinal == device))
                .find_map(|state| {
                    let announced = state
                        .pool
                        .announce_free(address, on, who)
                        .or_else(|| state.native.announce_free(address, on, who))?;
                    Some((Place::Device(state.ordinal), announced))
                }),
        };
        match announced {
            Some((place, Announced::Now(leaving))) => {
                self.observed.tell(&Told {
                    place,
                    mode: leaving.mode,
                    address,
                    size: leaving.size,
                    by: leaving.by,
                    stream: leaving.stream,
                    site: None,
                    what: What::Free,
                });
                Ok(false)
            }
            Some((_, Announced::Left)) => Ok(true),
            Some((_, Announced::Refused(error))) => Err(error),
            None => Ok(false),
        }
    }
}
