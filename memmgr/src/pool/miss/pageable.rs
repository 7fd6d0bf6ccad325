//! The last way out where no memory can be page-locked: a segment that is pageable.

use super::{Pool, Ticket, growth_inside_a_growth};
use crate::{
    error::{Error, Result},
    pool::host_memory,
    sync::thread,
};

impl Pool {
    /// Adds a pageable, zeroed segment of `len` bytes, a multiple of the granule. The limit is the caller's affair.
    pub fn grow_pageable(&self, len: usize) -> Result<()> {
        loop {
            let mut state = self.state.lock();
            match state.growing {
                None => {
                    state.growing = Some(thread::current().id());
                    break;
                }
                Some(by) if by == thread::current().id() => return Err(growth_inside_a_growth()),
                Some(_) => {
                    drop(state);
                    self.wait_for_growth();
                }
            }
        }
        let _ticket = Ticket(self);
        let base = host_memory::pageable(len).ok_or_else(|| self.refusal(len))?;
        let entered = self.enter(base, len).map(|mut state| {
            // It stands for the configured size, too.
            state.prepared = true;
        });
        if let Err(error) = entered {
            // SAFETY: the segment was just made, and is in no books.
            unsafe { host_memory::destroy(base)? };
            return Err(error);
        }
        Ok(())
    }

    /// Whether the address lies in a page-locked segment of this pool of the host's.
    pub fn is_page_locked(&self, address: usize) -> bool {
        let segment = self.state.lock().space.segment_of(address);
        segment.is_some_and(|segment| !host_memory::is_pageable(segment.base))
    }
}

/// Whether nothing but the limit refuses.
pub(crate) fn is_refused_by_limit(error: &Error) -> bool {
    let Error::OutOfMemory(refusal) = error else {
        return false;
    };
    let room = |limit: usize| limit.saturating_sub(refusal.reserved);
    refusal
        .limit
        .is_some_and(|limit| refusal.requested > room(limit))
}
