//! Memory of others that guards own: what touches it, and how it goes back to its owner.
//!
//! A guard that is dropped leaves its memory on a list, with the marks of what may still touch it. The next call that may
//! wait gives it back: `cudaHostUnregister` waits for the whole device, which a drop must not.

use crate::{
    context,
    cuda::{self, NOT_PERMITTED},
    device::keeping_current,
    error::{Error, Result},
    event::Fence,
    foreign,
    planted::{self, Mistake},
    pool::{BlockRange, Span, Users, check_inside, pending_uses, query_all, record},
    process,
    stream::{Handle, StreamCore},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        lock,
    },
};
use std::{any::Any, collections::BTreeMap, mem::ManuallyDrop, sync::Arc};

/// Whose memory it is.
pub(crate) enum Owner {
    /// Of the host, registered: what holds it. Registered memory must not reach the host's heap, whatever becomes of this:
    /// only [`Owner::take_host`] can free it.
    Host(ManuallyDrop<Box<dyn Any + Send>>),
    /// Of a device: what frees it.
    Device(Box<dyn FnOnce() + Send>),
}

impl Owner {
    /// What holds memory of the host that is registered.
    pub fn host(holds: Box<dyn Any + Send>) -> Self {
        Self::Host(ManuallyDrop::new(holds))
    }

    /// What holds memory of the host: it is not registered any more, and nothing touches it.
    pub fn take_host(self) -> Option<Box<dyn Any + Send>> {
        match self {
            Self::Host(holds) => Some(ManuallyDrop::into_inner(holds)),
            Self::Device(_) => None,
        }
    }
}

struct Block {
    bytes: usize,
    users: Users,
    owner: Owner,
}

/// The live blocks of one manager.
#[derive(Default)]
pub(crate) struct Adopted {
    blocks: Mutex<BTreeMap<usize, Block>>,
    /// How many there are, for those who find none.
    count: AtomicUsize,
    leaving: Mutex<Vec<Leaving>>,
}

impl Adopted {
    /// Enters memory; what adopts an address twice is given its owner back.
    pub fn enter(
        &self,
        address: usize,
        bytes: usize,
        stream: Option<Arc<StreamCore>>,
        owner: Owner,
    ) -> Result<(), Owner> {
        let mut blocks = lock(&self.blocks);
        let before = blocks.range(..address.saturating_add(bytes)).next_back();
        if before.is_some_and(|(start, block)| start.saturating_add(block.bytes) > address) {
            return Err(owner);
        }
        let block = Block {
            bytes,
            users: Users::new(stream, Vec::new()),
            owner,
        };
        blocks.insert(address, block);
        self.count.store(blocks.len(), Ordering::Release);
        Ok(())
    }

    fn remove(&self, address: usize) -> Option<Block> {
        let mut blocks = lock(&self.blocks);
        let block = blocks.remove(&address);
        self.count.store(blocks.len(), Ordering::Release);
        block
    }

    /// Whether the address lies in memory of the host that is registered.
    pub fn is_host(&self, address: usize) -> bool {
        let blocks = lock(&self.blocks);
        (blocks.range(..=address).next_back()).is_some_and(|(start, block)| {
            matches!(block.owner, Owner::Host(_)) && address - start < block.bytes
        })
    }

    /// Takes host memory out of the books: nothing touches it any more, and it is not registered.
    pub fn take_host(&self, address: usize) -> Option<Box<dyn Any + Send>> {
        self.remove(address)?.owner.take_host()
    }

    /// The guard is gone: the memory goes back at a later call. Makes no CUDA call.
    pub fn leave(&self, address: usize) {
        let Some(block) = self.remove(address) else {
            return;
        };
        let mut marks: Vec<Arc<Fence>> = block
            .users
            .uses
            .into_iter()
            .map(|used| used.fence)
            .collect();
        marks.retain(|mark| !mark.is_done());
        marks.extend(block.users.stream.map(Fence::open));
        let wait = !planted::is_made(Mistake::AdoptionsDoNotWait);
        lock(&self.leaving).push(Leaving {
            address,
            owner: block.owner,
            marks: if wait { marks } else { Vec::new() },
        });
    }

    /// How much there is for [`Adopted::release`] to do.
    pub fn leaving(&self) -> usize {
        lock(&self.leaving).len()
    }

    /// Gives memory back whose guards are gone. Waits for work that may still touch it; no lock may be held.
    pub fn release(&self) {
        release(&self.leaving);
    }

    /// As [`crate::pool::Pool::locate`].
    pub fn locate(&self, address: usize, size: usize) -> Result<Option<BlockRange>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let blocks = lock(&self.blocks);
        let Some((start, block)) = blocks.range(..=address).next_back() else {
            return Ok(None);
        };
        if address - start >= block.bytes {
            return Ok(None);
        }
        check_inside(address, size, *start, block.bytes)?;
        Ok(Some(BlockRange {
            start: *start,
            span: Span::new(address, size),
        }))
    }

    /// As [`crate::pool::Pool::add_use`].
    pub fn add_use(&self, range: BlockRange, fence: &Arc<Fence>, writes: bool) {
        let many = (lock(&self.blocks).get_mut(&range.start))
            .map(|block| record(&mut block.users.uses, range.span, fence, writes));
        query_all(many.unwrap_or_default());
    }

    /// As [`crate::pool::Pool::uses`].
    pub fn uses(&self, range: BlockRange, only_writes: bool) -> Vec<Arc<Fence>> {
        lock(&self.blocks)
            .get(&range.start)
            .map_or_else(Vec::new, |block| {
                pending_uses(&block.users.uses, range.span, only_writes)
            })
    }

    /// As [`crate::pool::Pool::before_use`]: another stream than the one that the memory was adopted on must follow it.
    pub fn before_use(&self, range: BlockRange, handle: &Handle, writes: bool) -> Vec<Arc<Fence>> {
        (lock(&self.blocks).get(&range.start)).map_or_else(Vec::new, |block| {
            block.users.before_use(range.span, handle, writes)
        })
    }

    /// As [`crate::pool::Pool::follows`].
    pub fn follows(&self, range: BlockRange, handle: &Handle) {
        if let Some(block) = lock(&self.blocks).get_mut(&range.start) {
            block.users.follows(handle);
        }
    }
}

/// Memory whose guard is gone.
struct Leaving {
    address: usize,
    owner: Owner,
    /// What may still touch it.
    marks: Vec<Arc<Fence>>,
}

/// What managers left that were dropped.
static ORPHANS: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

/// Whether there is anything for [`release_orphans`] to do.
pub(crate) fn has_orphans() -> bool {
    !lock(&ORPHANS).is_empty()
}

/// As [`Adopted::release`], for managers that were dropped.
pub(crate) fn release_orphans() {
    release(&ORPHANS);
}

impl Drop for Adopted {
    fn drop(&mut self) {
        let blocks = self.blocks.get_mut().map(std::mem::take);
        let leaving = self.leaving.get_mut().map(std::mem::take);
        // Registered memory must not reach the host's heap, and at exit nobody can unregister it.
        std::mem::forget(blocks);
        match leaving {
            Ok(leaving) if !leaving.is_empty() && !process::is_over() => {
                lock(&ORPHANS).extend(leaving);
            }
            leaving => std::mem::forget(leaving),
        }
    }
}

/// What is left of a list while it is worked on.
struct Rest<'a> {
    leaving: std::vec::IntoIter<Leaving>,
    list: &'a Mutex<Vec<Leaving>>,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        lock(self.list).extend(&mut self.leaving);
    }
}

fn release(list: &Mutex<Vec<Leaving>>) {
    if process::gate().is_err() {
        return;
    }
    // What is not reached goes back to the list, whatever happens.
    let mut rest = Rest {
        leaving: std::mem::take(&mut *lock(list)).into_iter(),
        list,
    };
    for left in rest.leaving.by_ref() {
        let settled = left.marks.iter().try_for_each(|mark| {
            context::check(mark.core().device())?;
            mark.wait_on_host()
        });
        // Work of a context that is gone touches nothing any more.
        if let Err(error) = settled
            && !error.ends_context()
        {
            tracing::warn!(%error, "adopted memory cannot be given back now");
            lock(list).push(left);
            continue;
        }
        match left.owner {
            Owner::Device(free) => {
                // Whoever wrote it could not know that somebody captures now, nor which device is current.
                let mut free = Some(free);
                let mut call = || {
                    if let Some(free) = free.take() {
                        foreign::report("what frees adopted memory", || keeping_current(free));
                    }
                };
                if cuda::relaxed(|| {
                    call();
                    Ok(())
                })
                .is_err()
                {
                    call();
                }
            }
            owner @ Owner::Host(_) => {
                // SAFETY: the memory was registered when it was adopted, its guard is gone, and so is all work on it.
                match unsafe { cuda::host_unregister(left.address) } {
                    Ok(()) => drop(owner.take_host()),
                    Err(Error::Cuda {
                        code: NOT_PERMITTED,
                        ..
                    }) => lock(list).push(Leaving {
                        address: left.address,
                        owner,
                        marks: Vec::new(),
                    }),
                    // It stays for good.
                    Err(error) => {
                        tracing::warn!(%error, "adopted memory could not be unregistered: it is not given back");
                    }
                }
            }
        }
    }
}
