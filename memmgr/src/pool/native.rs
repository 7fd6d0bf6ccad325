//! The two async modes: blocks of `cudaMallocAsync` and of a `cudaMemPool_t` that the manager owns.
//!
//! The driver keeps the memory and orders its reuse. What is added here: which blocks are live and how they were made;
//! a free that follows every stream that used the block; allocation and free without a stream, on two internal streams
//! (one that allocates and never waits, one that frees and waits for whatever it must).

use super::{
    Announced, BlockRange, FreeOn, Freed, Label, Leaving, LiveRange, Span, Use, Users, best_fit,
    core_of, freed_by, leave_to_graph,
    peaks::{High, Peaks},
    pending_uses, query_all, record,
    segment::internal_stream,
    uses::{check_inside, kept_by_a_graph},
};
use crate::{
    context,
    cuda::{self, PoolAttr, RawPool},
    device::on_device,
    error::{Error, Place, Result},
    event::Fence,
    mode::DeviceAllocatorMode,
    out_of_memory::{Held, Holders, OutOfMemory},
    planted::{self, Mistake},
    process,
    snapshot::{self, BlockState, Segment},
    stats::{NativePoolUsage, PoolStats},
    stream::{Handle, Stream, StreamCore, handle_of},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        lock,
    },
};
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

/// Which of the two families made a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// `cudaMallocAsync` on the device's current pool.
    Current,
    /// `cudaMallocFromPoolAsync` on the manager's pool.
    Own,
}

/// Both.
pub(crate) const FAMILIES: [Family; 2] = [Family::Current, Family::Own];

impl Family {
    /// The family that serves a mode.
    pub fn of(mode: DeviceAllocatorMode) -> Option<Self> {
        match mode {
            DeviceAllocatorMode::BestFitPool => None,
            DeviceAllocatorMode::AsyncStreamOrdered => Some(Family::Current),
            DeviceAllocatorMode::CudaAsyncPool => Some(Family::Own),
        }
    }

    /// The mode that it serves.
    pub fn mode(self) -> DeviceAllocatorMode {
        match self {
            Family::Current => DeviceAllocatorMode::AsyncStreamOrdered,
            Family::Own => DeviceAllocatorMode::CudaAsyncPool,
        }
    }
}

/// A live block.
#[derive(Debug)]
struct Block {
    requested: usize,
    raw: bool,
    family: Family,
    users: Users,
    /// As of [`Live`](super::order::Live).
    held: u32,
    freed: Option<Freed>,
    label: Option<Box<Label>>,
}

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<usize, Block>,
    /// The peak is the highest since one was asked for anew: `peaks` has what was before.
    stats: [PoolStats; 2],
    peaks: [Peaks; 2],
    /// Blocks whose free could not be submitted where it was asked for (in a host function, or behind a stream that is being
    /// captured): the next call that can does it.
    parked: Vec<(usize, Vec<Arc<Fence>>)>,
    /// Points of streams on which blocks were freed that the host has not seen to be free since, by the stream's uid:
    /// open ones, or, on a per-thread stream, the last free.
    freed_on: BTreeMap<u64, Arc<Fence>>,
}

fn watermark(stats: &PoolStats) -> High {
    High {
        in_use: stats.peak_in_use,
        reserved: 0,
    }
}

/// What managers left that were dropped in a host function.
static ORPHANS: Mutex<Vec<Native>> = Mutex::new(Vec::new());

/// Whether there is anything for [`release_orphans`] to do.
pub(crate) fn has_orphans() -> bool {
    !lock(&ORPHANS).is_empty()
}

/// Gives back what managers left that were dropped in a host function.
pub(crate) fn release_orphans() {
    let orphans = std::mem::take(&mut *lock(&ORPHANS));
    drop(orphans);
}

/// How many streams [`State::freed_on`] may hold before those that have ended are dropped.
const FREED_ON: usize = 64;

/// The async modes of one device.
#[derive(Debug)]
pub(crate) struct Native {
    device: i32,
    state: Mutex<State>,
    own: OnceLock<RawPool>,
    /// Whether the own pool keeps what is configured.
    sized: AtomicBool,
    /// How much the own pool keeps when memory is released, in bytes; 0 means everything, unless there is a threshold.
    keep: Mutex<usize>,
    /// The configured release threshold.
    threshold: Option<usize>,
    allocating: OnceLock<Stream>,
    freeing: OnceLock<Stream>,
}

impl Native {
    /// No blocks; makes no CUDA call.
    pub fn new(device: i32, keep: usize, threshold: Option<usize>) -> Self {
        Self {
            device,
            state: Mutex::default(),
            own: OnceLock::new(),
            sized: AtomicBool::new(false),
            keep: Mutex::new(keep),
            threshold,
            allocating: OnceLock::new(),
            freeing: OnceLock::new(),
        }
    }

    /// Sets what the own pool keeps when memory is released; 0 means everything.
    pub fn set_keep(&self, bytes: usize) {
        *lock(&self.keep) = bytes;
    }

    /// Whether any block was ever allocated here.
    pub fn is_used(&self) -> bool {
        self.own.get().is_some()
            || lock(&self.state)
                .stats
                .iter()
                .any(|stats| stats.allocations > 0)
    }

    /// Whether the own pool has been used since the beginning or the last `shutdown`.
    pub fn is_initialized(&self) -> bool {
        self.sized.load(Ordering::Acquire)
    }

    fn own_pool(&self) -> Result<RawPool> {
        let pool = match self.own.get() {
            Some(pool) => *pool,
            None => {
                let made = on_device(self.device, || cuda::mem_pool_create(self.device))?;
                let pool = *self.own.get_or_init(|| made);
                if pool != made {
                    // SAFETY: another thread was faster; nobody knows this pool.
                    let _ = unsafe { cuda::mem_pool_destroy(made) };
                }
                pool
            }
        };
        if !self.is_initialized() {
            let keep = *lock(&self.keep);
            let threshold = match self.threshold {
                Some(threshold) => threshold.max(keep) as u64,
                None if keep == 0 => u64::MAX,
                None => keep as u64,
            };
            // SAFETY: the pool lives as long as this.
            unsafe {
                cuda::mem_pool_set(pool, PoolAttr::cudaMemPoolAttrReleaseThreshold, threshold)?
            };
            self.sized.store(true, Ordering::Release);
        }
        Ok(pool)
    }

    fn pool_of(&self, family: Family) -> Result<RawPool> {
        match family {
            Family::Current => on_device(self.device, || cuda::device_mem_pool(self.device)),
            Family::Own => self.own_pool(),
        }
    }

    fn submit_allocation(&self, family: Family, size: usize, handle: &Handle) -> Result<usize> {
        match family {
            Family::Current => handle.with_device(|| {
                // SAFETY: the handle is alive.
                unsafe { cuda::malloc_async(size, handle.raw()) }
            }),
            Family::Own => {
                let pool = self.own_pool()?;
                handle.with_device(|| {
                    // SAFETY: pool and handle are alive; the pool is destroyed with this, after all blocks' managers.
                    unsafe { cuda::malloc_from_pool_async(size, pool, handle.raw()) }
                })
            }
        }
    }

    /// A block of `size` bytes: usable by work submitted to the stream from now on; without a stream, by anybody at once
    /// (the host waits for the allocation).
    pub fn allocate(
        &self,
        family: Family,
        size: usize,
        on: Option<&Handle>,
        raw: bool,
    ) -> Result<usize> {
        best_fit::checked(size)?;
        context::check(self.device)?;
        let _steady = on.map(|handle| handle.core().steady()).transpose()?;
        if let Some(handle) = on {
            handle.refuse_capture(
                "an allocation of the driver's pool on a stream",
                "allocate before the capture begins, or in the mode `BestFitPool`",
            )?;
        }
        self.free_parked();
        let result = match on {
            Some(handle) => self.with_retry(family, size, handle),
            None => internal_stream(&self.allocating, self.device).and_then(|stream| {
                let handle = handle_of(stream);
                let address = self.with_retry(family, size, handle)?;
                if let Err(error) = Fence::record(handle).and_then(|fence| fence.wait_on_host()) {
                    // SAFETY: the block was just made on this stream and nobody else knows it.
                    let _ = unsafe { cuda::free_async(address, handle.raw()) };
                    return Err(error);
                }
                Ok(address)
            }),
        };
        // Only its own thread can record on a per-thread stream: the point of the allocation is recorded now.
        let mut uses = Vec::new();
        let stream = match on.filter(|_| result.is_ok()) {
            Some(handle) if handle.core().is_per_thread() => {
                if !planted::is_made(Mistake::ThreadsLeaveNoEvents) {
                    uses.push(Use {
                        fence: Fence::after_work(handle).0,
                        span: Span::ALL,
                        writes: true,
                    });
                }
                None
            }
            other => other.map(|handle| handle.core().clone()),
        };
        let mut state = lock(&self.state);
        let stats = &mut state.stats[family as usize];
        let address = result.inspect_err(|_| stats.failures += 1)?;
        stats.allocations += 1;
        stats.in_use += size;
        stats.live_blocks += 1;
        stats.peak_in_use = stats.peak_in_use.max(stats.in_use);
        let former = state.blocks.insert(
            address,
            Block {
                requested: size,
                raw,
                family,
                users: Users::new(stream, uses),
                held: 0,
                freed: None,
                label: None,
            },
        );
        // Other code freed a block behind our back and the driver gave the address out again.
        if let Some(former) = former {
            let stats = &mut state.stats[former.family as usize];
            stats.in_use = stats.in_use.saturating_sub(former.requested);
            stats.live_blocks = stats.live_blocks.saturating_sub(1);
            stats.frees += 1;
        }
        Ok(address)
    }

    /// Allocates; out of memory is final only after pending frees have been seen, idle memory has gone back, and one
    /// more try.
    fn with_retry(&self, family: Family, size: usize, handle: &Handle) -> Result<usize> {
        match self.submit_allocation(family, size, handle) {
            Err(Error::Cuda {
                code: cuda::OUT_OF_MEMORY,
                ..
            }) => {}
            other => return other,
        }
        if on_device(self.device, cuda::mem_get_info)?.1 < size {
            return Err(self.refusal(family, size));
        }
        // The driver gives memory to others only once the host has seen that it is free: of one stream after the other, so
        // that a request waits for no more than it must; at last of those that free and ask.
        let mut waited = Vec::new();
        for last in [false, true] {
            while last || self.settle_one(&mut waited) {
                if last {
                    if let Some(stream) = self.freeing.get() {
                        stream.synchronize()?;
                    }
                    handle.synchronize()?;
                }
                if let Err(error) = self.trim(family) {
                    tracing::debug!(%error, "a memory pool could not be trimmed");
                }
                match self.submit_allocation(family, size, handle) {
                    Err(Error::Cuda {
                        code: cuda::OUT_OF_MEMORY,
                        ..
                    }) => {}
                    other => return other,
                }
                if last {
                    break;
                }
            }
        }
        Err(self.refusal(family, size))
    }

    /// Waits until the frees of one more stream have been seen, those first that have finished; false if there is none
    /// beside those that `waited` names, by uid. What was waited for is added there.
    pub fn settle_one(&self, waited: &mut Vec<u64>) -> bool {
        let mut known: Vec<(u64, Arc<Fence>)> = (lock(&self.state).freed_on.iter())
            .map(|(uid, fence)| (*uid, fence.clone()))
            .collect();
        known.retain(|(uid, _)| !waited.contains(uid));
        let Some(first) = known.first().cloned() else {
            return false;
        };
        known.retain(|(_, fence)| fence.query().unwrap_or(false));
        if known.is_empty() {
            if let Err(error) = first.1.wait_on_host() {
                tracing::debug!(%error, "some frees cannot be waited for");
            }
            known.push(first);
        }
        let mut state = lock(&self.state);
        for (uid, fence) in known {
            waited.push(uid);
            // What was freed meanwhile is later.
            if (state.freed_on.get(&uid)).is_some_and(|found| Arc::ptr_eq(found, &fence)) {
                state.freed_on.remove(&uid);
            }
        }
        true
    }

    /// Who holds what is in use in a family.
    pub fn holders(&self, family: Family) -> Holders {
        let state = lock(&self.state);
        let live = (state.blocks.iter()).filter(|(_, block)| block.family == family);
        Holders::of(live.map(|(address, block)| Held {
            size: block.requested,
            address: *address,
            stream: block.users.stream.as_ref().map(|core| core.id()),
            label: block.label.as_deref(),
        }))
    }

    fn refusal(&self, family: Family, size: usize) -> Error {
        let usage = self.usage(family).unwrap_or_default();
        let (free, total) = on_device(self.device, cuda::mem_get_info).unwrap_or((0, usize::MAX));
        Error::OutOfMemory(Box::new(OutOfMemory {
            place: Place::Device(self.device),
            requested: size,
            in_use: usage.used,
            reserved: usage.reserved,
            idle: usage.reserved.saturating_sub(usage.used),
            pending: 0,
            largest_idle: None,
            free_pieces: 0,
            initial: false,
            device_free: Some(free),
            limit: None,
            capacity: total,
            holders: Holders::default(),
        }))
    }

    /// Frees a block in stream order; never waits on the host.
    ///
    /// `None`: no live block contains the address.
    pub fn free(&self, address: usize, on: FreeOn<'_>) -> Result<Option<()>> {
        if lock(&self.state).blocks.contains_key(&address) {
            context::check(self.device)?;
            // Only its own thread can record the point of the free, and only now: what is refused stays live.
            if let FreeOn::Stream(handle) = on
                && handle.core().is_per_thread()
            {
                handle.refuse_capture(
                    "a free on the thread's default stream",
                    "free it after the capture has ended, or on another stream",
                )?;
            }
        }
        let block = {
            let mut state = lock(&self.state);
            if let Some(block) = state
                .blocks
                .get_mut(&address)
                .filter(|block| block.held > 0)
            {
                if block.freed.is_some() {
                    return Err(Error::DoubleFree { ptr: address });
                }
                block.freed = Some(Freed::new(on, block.users.stream.as_ref()));
                return Ok(Some(()));
            }
            let Some(block) = state.blocks.remove(&address) else {
                return match containing(&state, address) {
                    Some((start, block)) => Err(Error::unknown(
                        address,
                        format!(
                            "it lies inside the live block of {} bytes at {start:#x}; free its start",
                            block.requested
                        ),
                    )),
                    None => Ok(None),
                };
            };
            let stats = &mut state.stats[block.family as usize];
            stats.in_use = stats.in_use.saturating_sub(block.requested);
            stats.live_blocks = stats.live_blocks.saturating_sub(1);
            stats.frees += 1;
            block
        };
        self.free_parked();
        self.submit_free(address, &block, on).map(Some)
    }

    fn submit_free(&self, address: usize, block: &Block, on: FreeOn<'_>) -> Result<()> {
        let upgraded;
        let handle = match on {
            FreeOn::Recorded => None,
            FreeOn::Stream(handle) => Some(handle),
            FreeOn::Core(core) => {
                upgraded = core.upgrade();
                upgraded.as_ref()
            }
            FreeOn::Allocating => {
                upgraded = block.users.stream.as_ref().and_then(StreamCore::upgrade);
                upgraded.as_ref()
            }
        };
        let uses: Vec<Arc<Fence>> = block
            .users
            .uses
            .iter()
            .map(|used| used.fence.clone())
            .filter(|fence| !fence.is_done())
            .collect();
        let steady = handle.map(|handle| handle.core().steady());
        // The stream itself, if nobody else has anything to do with the block, and a free in it would not be captured.
        if let (Some(handle), Some(Ok(_))) = (handle, &steady)
            && !handle.is_out_of_bounds()
        {
            let mine = |core: &Arc<StreamCore>| {
                core.is_same(handle.core()) || planted::is_made(Mistake::AsyncFreesIgnoreOthers)
            };
            if block.users.stream.as_ref().is_none_or(mine)
                && uses.iter().all(|fence| mine(fence.core()))
            {
                let result = handle.with_device(|| {
                    // SAFETY: the block was live and is out of the books; the handle is alive; the caller says that its
                    // other work comes before in this stream.
                    unsafe { cuda::free_async(address, handle.raw()) }
                });
                self.note_freed_on(handle);
                let mut marks = uses;
                marks.push(Fence::open(handle.core().clone()));
                return self.finish_free(address, marks, result);
            }
        }
        drop(steady);
        // Otherwise an internal stream waits for everybody and frees; no stream of the user's waits.
        let mut marks = uses;
        if let Some(handle) = handle {
            // Recorded when the free waits for it, which is later where CUDA permits no call now.
            marks.push(if handle.core().is_per_thread() {
                Fence::after_work(handle).0
            } else {
                Fence::open(handle.core().clone())
            });
        }
        if let (FreeOn::Core(core), None) = (on, handle) {
            // Its last handle went while a graph kept the block: what was in it then comes first all the same.
            marks.push(Fence::open(core.clone()));
        }
        let allocated_elsewhere = block
            .users
            .stream
            .as_ref()
            .filter(|core| !handle.is_some_and(|handle| handle.core().is_same(core)));
        if let Some(core) = allocated_elsewhere {
            // The allocation itself is a point of its stream that the free must follow.
            marks.push(Fence::open(core.clone()));
        }
        self.free_behind_or_park(address, marks)
    }

    fn free_behind_or_park(&self, address: usize, marks: Vec<Arc<Fence>>) -> Result<()> {
        if marks.iter().any(|mark| mark.waits_for_a_capture()) {
            lock(&self.state).parked.push((address, marks));
            return Ok(());
        }
        let handle = match self.follow(&marks) {
            Ok(stream) => handle_of(stream),
            // Nothing was submitted: the block is what it was, and the next call tries again.
            Err(error) => {
                if !error.ends_context() {
                    lock(&self.state).parked.push((address, marks));
                }
                return match error.cuda_code() {
                    Some(cuda::NOT_PERMITTED) => Ok(()),
                    _ => Err(error),
                };
            }
        };
        // SAFETY: the block is out of the books and the stream waits for everything that may touch it.
        let result = unsafe { cuda::free_async(address, handle.raw()) };
        self.finish_free(address, marks, result)
    }

    /// Remembers a stream on which a block was freed.
    fn note_freed_on(&self, handle: &Handle) {
        let core = handle.core();
        // Only its own thread can record on a per-thread stream.
        let recorded = core.is_per_thread().then(|| Fence::after_work(handle).0);
        let mut state = lock(&self.state);
        if recorded.is_none() && state.freed_on.contains_key(&core.uid) {
            return;
        }
        let point = recorded.unwrap_or_else(|| Fence::open(core.clone()));
        if state.freed_on.len() >= FREED_ON {
            // Asking makes CUDA calls, which is not for this lock.
            let known = std::mem::take(&mut state.freed_on);
            drop(state);
            let pending: Vec<_> = known
                .into_iter()
                .filter(|(_, fence)| !fence.query().unwrap_or(false))
                .collect();
            state = lock(&self.state);
            state.freed_on.extend(pending);
        }
        state.freed_on.insert(core.uid, point);
    }

    /// The stream that frees, made to wait for these.
    fn follow(&self, marks: &[Arc<Fence>]) -> Result<&Stream> {
        let stream = internal_stream(&self.freeing, self.device)?;
        let handle = handle_of(stream);
        if !planted::is_made(Mistake::AsyncFreesDoNotWait) {
            marks
                .iter()
                .try_for_each(|mark| mark.wait_on_stream(handle))?;
        }
        Ok(stream)
    }

    /// A free that CUDA does not permit here (in a host function) is left to the next call. After any other failure the
    /// block's state is unknown: it stays out of use.
    fn finish_free(
        &self,
        address: usize,
        marks: Vec<Arc<Fence>>,
        result: Result<()>,
    ) -> Result<()> {
        match result {
            Err(Error::Cuda {
                code: cuda::NOT_PERMITTED,
                ..
            }) => {
                lock(&self.state).parked.push((address, marks));
                Ok(())
            }
            other => other,
        }
    }

    fn free_parked(&self) {
        crate::stream::finish_retirements();
        let parked = {
            let mut state = lock(&self.state);
            if state.parked.is_empty() {
                return;
            }
            std::mem::take(&mut state.parked)
        };
        for (address, marks) in parked {
            if let Err(error) = self.free_behind_or_park(address, marks) {
                tracing::debug!(%error, "a parked block could not be freed");
            }
        }
    }

    /// Whether a live block contains the address.
    pub fn contains(&self, address: usize) -> bool {
        containing(&lock(&self.state), address).is_some()
    }

    /// As [`super::Pool::locate`].
    pub fn locate(&self, address: usize, size: usize) -> Result<Option<BlockRange>> {
        let state = lock(&self.state);
        let Some((start, block)) = containing(&state, address) else {
            return Ok(None);
        };
        if block.freed.is_some() {
            return Err(kept_by_a_graph(address));
        }
        check_inside(address, size, start, block.requested)?;
        Ok(Some(BlockRange {
            start,
            span: Span::new(address, size),
        }))
    }

    /// As [`super::Pool::hold`].
    pub fn hold(&self, range: BlockRange) -> bool {
        match lock(&self.state).blocks.get_mut(&range.start) {
            Some(block) if block.freed.is_none() => {
                block.held = block.held.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// As [`super::Pool::is_held`].
    pub fn is_held(&self, address: usize) -> bool {
        let state = lock(&self.state);
        let block = state.blocks.get(&address);
        block.is_some_and(|block| block.held > 0 && block.freed.is_none())
    }

    /// As [`super::Pool::unhold`].
    pub fn unhold(&self, range: BlockRange) -> Option<Freed> {
        let mut state = lock(&self.state);
        let block = state.blocks.get_mut(&range.start)?;
        block.held = block.held.saturating_sub(1);
        if block.held > 0 {
            None
        } else {
            block.freed.take()
        }
    }

    /// As [`super::Pool::add_use`].
    pub fn add_use(&self, range: BlockRange, fence: &Arc<Fence>, writes: bool) {
        let many = (lock(&self.state).blocks.get_mut(&range.start))
            .map(|block| record(&mut block.users.uses, range.span, fence, writes));
        query_all(many.unwrap_or_default());
    }

    /// As [`super::Pool::uses`].
    pub fn uses(&self, range: BlockRange, only_writes: bool) -> Vec<Arc<Fence>> {
        lock(&self.state)
            .blocks
            .get(&range.start)
            .map_or_else(Vec::new, |block| {
                pending_uses(&block.users.uses, range.span, only_writes)
            })
    }

    /// As [`super::Pool::before_use`]: another stream than the allocating one must follow the allocation.
    pub fn before_use(&self, range: BlockRange, handle: &Handle, writes: bool) -> Vec<Arc<Fence>> {
        (lock(&self.state).blocks.get(&range.start)).map_or_else(Vec::new, |block| {
            block.users.before_use(range.span, handle, writes)
        })
    }

    /// As [`super::Pool::follows`].
    pub fn follows(&self, range: BlockRange, handle: &Handle) {
        if let Some(block) = lock(&self.state).blocks.get_mut(&range.start) {
            block.users.follows(handle);
        }
    }

    /// Every live block.
    pub fn live_blocks(&self) -> Vec<LiveRange> {
        let state = lock(&self.state);
        state
            .blocks
            .iter()
            .map(|(start, block)| LiveRange {
                start: *start,
                len: block.requested,
                raw: block.raw,
                kept: block.freed.is_some(),
                stream: block.users.stream.as_ref().map(|core| core.id()),
                label: Label::of(block.label.as_deref()),
            })
            .collect()
    }

    /// As [`super::Pool::listing`]: each block is a segment, since the driver keeps the memory.
    pub fn listing(&self) -> Vec<Segment> {
        let state = lock(&self.state);
        let segment = |(address, block): (&usize, &Block)| Segment {
            place: Place::Device(self.device),
            mode: Some(block.family.mode()),
            address: *address,
            size: block.requested,
            mapped: false,
            blocks: vec![snapshot::Block {
                address: *address,
                size: block.requested,
                requested: block.requested,
                state: match block.freed {
                    Some(_) => BlockState::KeptByGraph,
                    None => BlockState::Live,
                },
                stream: block.users.stream.as_ref().map(|core| core.id()),
                raw: block.raw,
                name: block.label.as_ref().and_then(|label| label.name.clone()),
                call_site: block.label.as_ref().and_then(|label| label.site),
            }],
        };
        state.blocks.iter().map(segment).collect()
    }

    /// Changes the label of the live block that starts at `address`; whether there is one.
    pub(super) fn with_label(&self, address: usize, change: impl FnOnce(&mut Label)) -> bool {
        let mut state = lock(&self.state);
        let block = state.blocks.get_mut(&address);
        (block.map(|block| change(block.label.get_or_insert_default()))).is_some()
    }

    /// As [`super::Pool::announce_free`].
    pub fn announce_free(&self, address: usize, on: FreeOn<'_>) -> Option<Announced> {
        let mut state = lock(&self.state);
        let block = state.blocks.get_mut(&address)?;
        if block.held > 0 {
            return leave_to_graph(&mut block.freed, on, block.users.stream.as_ref());
        }
        let by = freed_by(on, block.users.stream.as_ref(), &block.users.uses, false);
        let stream = block.users.stream.as_ref();
        Some(Announced::Now(Leaving {
            size: block.requested,
            by,
            stream: core_of(on, stream).map(|core| core.id()),
            mode: Some(block.family.mode()),
        }))
    }

    /// The figures of one family.
    pub fn stats(&self, family: Family) -> PoolStats {
        let state = lock(&self.state);
        let family = family as usize;
        let stats = state.stats[family];
        PoolStats {
            peak_in_use: state.peaks[family].since_reset(watermark(&stats)).in_use,
            ..stats
        }
    }

    /// As [`super::Pool::begin_peak`]; nothing is known of what the driver holds.
    pub fn begin_peak(&self, family: Family, scope: u64) -> High {
        let mut state = lock(&self.state);
        let State { stats, peaks, .. } = &mut *state;
        let stats = &mut stats[family as usize];
        peaks[family as usize].begin(scope, watermark(stats));
        stats.peak_in_use = stats.in_use;
        watermark(stats)
    }

    /// As [`super::Pool::peak_since`].
    pub fn peak_since(&self, family: Family, scope: u64) -> High {
        let state = lock(&self.state);
        let family = family as usize;
        state.peaks[family].since(scope, watermark(&state.stats[family]))
    }

    /// As [`super::Pool::end_peak`].
    pub fn end_peak(&self, family: Family, scope: u64) {
        let mut state = lock(&self.state);
        let State { stats, peaks, .. } = &mut *state;
        peaks[family as usize].end(scope, watermark(&stats[family as usize]));
    }

    /// Sets the peaks to what is the case now, also in the driver's pool if `family` owns one.
    pub fn reset_peak(&self) {
        let mut state = lock(&self.state);
        let State { stats, peaks, .. } = &mut *state;
        for (stats, peaks) in stats.iter_mut().zip(peaks) {
            peaks.reset(watermark(stats));
            stats.peak_in_use = stats.in_use;
        }
    }

    /// What the driver holds.
    pub fn usage(&self, family: Family) -> Result<NativePoolUsage> {
        let pool = self.pool_of(family)?;
        // SAFETY: the device's pool lives as long as the device, the own one as long as this manager is not shut down.
        let get =
            |attribute| unsafe { cuda::mem_pool_get(pool, attribute) }.map(|value| value as usize);
        Ok(NativePoolUsage {
            used: get(PoolAttr::cudaMemPoolAttrUsedMemCurrent)?,
            used_high: get(PoolAttr::cudaMemPoolAttrUsedMemHigh)?,
            reserved: get(PoolAttr::cudaMemPoolAttrReservedMemCurrent)?,
            reserved_high: get(PoolAttr::cudaMemPoolAttrReservedMemHigh)?,
        })
    }

    /// Gives the family's idle memory back to the device; the bytes.
    pub fn trim(&self, family: Family) -> Result<usize> {
        self.trim_to(family, 0)
    }

    /// As [`Native::trim`], until at most `target` bytes are held.
    pub fn trim_to(&self, family: Family, target: usize) -> Result<usize> {
        if family == Family::Own && self.own.get().is_none() {
            return Ok(0);
        }
        let before = self.usage(family)?.reserved;
        let pool = self.pool_of(family)?;
        // SAFETY: as in `usage`.
        unsafe { cuda::mem_pool_trim(pool, target)? };
        Ok(before.saturating_sub(self.usage(family)?.reserved))
    }

    /// Waits for frees in flight on the internal streams and gives back what is idle in the own pool, and in the
    /// device's pool if this manager used it.
    pub fn shutdown(&self) -> Result<usize> {
        self.free_parked();
        for stream in [&self.freeing, &self.allocating]
            .into_iter()
            .filter_map(OnceLock::get)
        {
            stream.synchronize()?;
        }
        let mut released = self.trim(Family::Own)?;
        if lock(&self.state).stats[Family::Current as usize].allocations > 0 {
            released += self.trim(Family::Current)?;
        }
        self.sized.store(false, Ordering::Release);
        Ok(released)
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        if process::is_over() {
            return;
        }
        self.free_parked();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let parked = std::mem::take(&mut state.parked);
        // A pool with live blocks or frees in flight stays until they are gone, says CUDA; memory of a manager that is
        // dropped has no user.
        let own = self.own.take().filter(|pool| {
            // SAFETY: this was the last user of the pool.
            match unsafe { cuda::mem_pool_destroy(*pool) } {
                Err(Error::Cuda {
                    code: cuda::NOT_PERMITTED,
                    ..
                }) => true,
                Err(error) => {
                    tracing::debug!(%error, "a memory pool could not be destroyed");
                    false
                }
                Ok(()) => false,
            }
        });
        // In a host function nothing can be given back: a later call does it, by dropping what is left.
        if own.is_some() || !parked.is_empty() {
            let left = Self::new(self.device, 0, None);
            lock(&left.state).parked = parked;
            if let Some(own) = own {
                let _ = left.own.set(own);
            }
            lock(&ORPHANS).push(left);
        }
    }
}

fn containing(state: &State, address: usize) -> Option<(usize, &Block)> {
    let (start, block) = state.blocks.range(..=address).next_back()?;
    (address - start < block.requested).then_some((*start, block))
}
