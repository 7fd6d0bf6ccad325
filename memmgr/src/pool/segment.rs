//! Where segments come from: `cudaMalloc` or mapped memory (`mapped.rs`) for devices, `host_memory.rs` for pinned memory.
//!
//! A segment is zeroed once when it is made, so that no buffer ever shows what another process left in memory.

use super::{arena::Idles, mapped::Mapped};
use crate::{
    context, cuda,
    device::on_device,
    error::{Error, Place, Result},
    event::Fence,
    foreign,
    manager::adopted,
    planted::{self, Mistake},
    pool::host_memory,
    stream::{Stream, handle_of},
    sync::{Mutex, OnceLock, lock},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// A source of segments. Its functions make CUDA calls: no lock may be held.
#[derive(Debug)]
pub(crate) enum Source {
    /// `cudaMalloc` on one device. The stream, made when first needed, zeroes new segments.
    Malloc {
        /// The ordinal of the device.
        device: i32,
        /// Its stream for zeroing.
        zeroing: OnceLock<Stream>,
    },
    /// Chunks of physical memory, mapped to reserved addresses.
    Virtual(Mapped),
    /// `cudaHostAlloc`, portable.
    Pinned,
    /// Pages of the host's that are registered; where that fails, `cudaHostAlloc`.
    Registered,
}

impl Source {
    /// Segments on a device.
    pub fn malloc(device: i32) -> Self {
        Source::Malloc {
            device,
            zeroing: OnceLock::new(),
        }
    }

    /// Mapped memory of a device.
    pub fn mapped_on(device: i32) -> Self {
        Source::Virtual(Mapped::new(device))
    }

    /// What the settings leave open: mapped memory, or segments if the process has no addresses left.
    pub fn mapped_or_malloc(device: i32) -> Self {
        if Mapped::has_addresses() {
            return Self::mapped_on(device);
        }
        foreign::log(|| {
            tracing::warn!(
                device,
                "the process has no addresses left to map memory to: this manager's device pool takes segments of cudaMalloc"
            );
        });
        Self::malloc(device)
    }

    /// Where chunks come from, if segments are made of those.
    #[inline]
    pub fn mapped(&self) -> Option<&Mapped> {
        match self {
            Source::Virtual(mapped) => Some(mapped),
            Source::Malloc { .. } | Source::Pinned | Source::Registered => None,
        }
    }

    /// Whether idle segments may be given back for a longer one. Page-locked memory costs too much to make.
    pub fn joins(&self) -> bool {
        matches!(self, Source::Malloc { .. })
    }

    /// Whose memory it is.
    pub fn place(&self) -> Place {
        match self {
            Source::Malloc { device, .. } => Place::Device(*device),
            Source::Virtual(mapped) => Place::Device(mapped.device()),
            Source::Pinned | Source::Registered => Place::Pinned,
        }
    }

    /// A zeroed segment of `len` bytes; its address.
    pub fn create(&self, len: usize) -> Result<usize> {
        match self {
            Source::Malloc { device, zeroing } => on_device(*device, || {
                let base = cuda::malloc(len)?;
                let zeroed = internal_stream(zeroing, *device).and_then(|stream| {
                    // SAFETY: the memory was just made and nobody else knows it; the stream is alive.
                    unsafe { cuda::memset_async(base, 0, len, handle_of(stream).raw())? };
                    if planted::is_made(Mistake::ZeroingIsNotAwaited) {
                        return Ok(());
                    }
                    stream.synchronize()
                });
                if let Err(error) = zeroed {
                    // SAFETY: the memory was just made and nobody else knows it.
                    let _ = unsafe { cuda::free(base) };
                    return Err(error);
                }
                context::note(*device);
                Ok(base)
            }),
            Source::Virtual(_) => Err(Error::Unsupported {
                reason: "a segment in one piece where memory is mapped in chunks".into(),
            }),
            Source::Pinned => host_memory::create(len, false),
            Source::Registered => host_memory::create(len, true),
        }
    }

    /// Gives a segment back. Both calls behind it wait for the device, as CUDA defines them.
    ///
    /// # Safety
    /// `base` came from [`Source::create`] of this source, and nobody uses the memory afterwards.
    pub unsafe fn destroy(&self, base: usize) -> Result<()> {
        match self {
            // SAFETY: as this function demands.
            Source::Malloc { device, .. } => on_device(*device, || unsafe { cuda::free(base) }),
            // `create` makes none.
            Source::Virtual(_) => Ok(()),
            // SAFETY: as this function demands.
            Source::Pinned | Source::Registered => unsafe { host_memory::destroy(base) },
        }
    }

    /// The most that could ever be allocated, and what is free now, as far as is known: bytes.
    pub fn capacity(&self) -> Result<Capacity> {
        match self {
            Source::Malloc { .. } | Source::Virtual(_) => {
                let device = match self.place() {
                    Place::Device(device) => device,
                    Place::Pinned => 0,
                };
                let (free, total) = on_device(device, cuda::mem_get_info)?;
                Ok(Capacity {
                    total,
                    free: Some(free),
                })
            }
            Source::Pinned | Source::Registered => {
                // SAFETY: sysconf reads a number of the system.
                let (pages, size) = unsafe {
                    (
                        libc::sysconf(libc::_SC_PHYS_PAGES),
                        libc::sysconf(libc::_SC_PAGESIZE),
                    )
                };
                let total = usize::try_from(pages)
                    .ok()
                    .zip(usize::try_from(size).ok())
                    .and_then(|(p, s)| p.checked_mul(s));
                Ok(Capacity {
                    total: total.unwrap_or(usize::MAX),
                    free: None,
                })
            }
        }
    }
}

/// Segments of a pool that was dropped, and what may still touch them.
pub(super) struct Orphans {
    pub source: Source,
    pub bases: Vec<usize>,
    pub chunks: Idles,
    /// Ranges of addresses in which nothing is live: start and length.
    pub ranges: Vec<(usize, usize)>,
    pub marks: Vec<Arc<Fence>>,
}

impl Orphans {
    /// Waits until nothing touches the segments any more.
    fn settle(&self) -> Result<()> {
        self.marks.iter().try_for_each(|mark| mark.wait_on_host())
    }
}

static ORPHANS: Mutex<Vec<Orphans>> = Mutex::new(Vec::new());
static RELEASED: AtomicU64 = AtomicU64::new(0);

/// Leaves segments to the next call that may wait, with the marks that their memory carries.
pub(super) fn orphan(orphans: Orphans) {
    lock(&ORPHANS).push(orphans);
}

/// Whether there is anything for [`release_orphans`] to do.
pub(crate) fn has_orphans() -> bool {
    !lock(&ORPHANS).is_empty() || super::native::has_orphans() || adopted::has_orphans()
}

/// Grows when [`release_orphans`] gives something back, or may have.
pub(crate) fn orphans_released() -> u64 {
    RELEASED.load(Relaxed)
}

/// As [`release_orphans`], if there is anything to release and no stream has work that it would wait for.
pub(crate) fn release_idle_orphans() {
    if has_orphans() && crate::stream::all_idle() {
        release_orphans();
    }
}

/// Gives back the segments of pools that were dropped, and what dropped managers had adopted. Waits for work that may still touch them.
pub(crate) fn release_orphans() {
    if super::native::has_orphans() || adopted::has_orphans() {
        super::native::release_orphans();
        adopted::release_orphans();
        RELEASED.fetch_add(1, Relaxed);
    }
    let orphans = std::mem::take(&mut *lock(&ORPHANS));
    for left in orphans {
        if !planted::is_made(Mistake::OrphansDoNotWait)
            && let Err(error) = left.settle()
        {
            // Without a proof they stay; whoever comes next tries again.
            tracing::warn!(%error, "segments of a dropped manager cannot be given back now");
            lock(&ORPHANS).push(left);
            continue;
        }
        for base in left.bases {
            // SAFETY: the segment came from this source, its pool and every guard that held the pool are gone, and the
            // work that touched it has finished.
            if let Err(error) = unsafe { left.source.destroy(base) } {
                tracing::warn!(%error, "a segment of a dropped manager could not be given back");
            }
        }
        if let Source::Virtual(mapped) = &left.source {
            // SAFETY: as above, for chunks.
            let (_, _, mut released) = unsafe { mapped.release(left.chunks) };
            for (start, len) in left.ranges {
                // SAFETY: the range is the pool's, which is gone; all that was mapped in it was just unmapped. Where that failed,
                // the driver refuses.
                let freed = unsafe { mapped.free_range(start, len) };
                released = released.and(freed);
            }
            if let Err(error) = released {
                tracing::warn!(%error, "memory of a dropped manager could not be given back");
            }
        }
        RELEASED.fetch_add(1, Relaxed);
    }
}

/// How much is to be idle, and who asks.
pub(crate) struct Warm<'a> {
    /// Bytes.
    pub idle: usize,
    /// Who asks lies ahead of need on a thread of the manager's own: by the pool's growth at a time, only in a pool that is
    /// in use, and only while this says so (asked under the pool's lock). Otherwise everything at once.
    pub ahead: Option<&'a dyn Fn() -> bool>,
}

/// How one step of it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Warmed {
    /// So much is idle.
    Enough,
    /// The pool has grown by so many bytes.
    Grown(usize),
    /// It is not wanted any more.
    Stopped,
}

/// How much memory a place has, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub total: usize,
    pub free: Option<usize>,
}

/// A stream of the manager's own on `device`, made when first needed.
pub(crate) fn internal_stream(place: &OnceLock<Stream>, device: i32) -> Result<&Stream> {
    if let Some(stream) = place.get() {
        return Ok(stream);
    }
    let made = Stream::builder().device(device).build()?;
    // Where another thread was faster, its stream is used and ours is destroyed.
    let _ = place.set(made);
    place.get().ok_or_else(|| Error::Unsupported {
        reason: "no internal stream could be made".into(),
    })
}
