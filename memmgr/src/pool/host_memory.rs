//! Where pinned memory comes from: pages of the host's that are mapped, touched and registered; or `cudaHostAlloc`.
//!
//! Registering is the faster way for long segments (on an H200 88 ms for 256 MiB, where `cudaHostAlloc` took 175 ms): the
//! pages are huge where the system has such, and several threads touch them. What is registered must be unregistered and
//! unmapped with its length, so it is kept in a table here; whatever is not in it came from `cudaHostAlloc`.

use crate::{
    cuda,
    error::{Error, Result},
    sync::{Mutex, lock},
};
use std::{collections::BTreeMap, ffi::c_void, fs};

/// The length of a huge page, to which mappings are aligned.
const HUGE: usize = 2 << 20;
/// Shorter segments come from `cudaHostAlloc`: there is little to win.
const LEAST: usize = 2 * HUGE;
/// A thread touches at least so much, and there are no more threads than this.
const PART: usize = 16 << 20;
const THREADS: usize = 4;
/// So much of the host's memory is left to others: pages that are not there end the process when they are touched.
const LEFT: usize = 64 << 20;

/// A segment that was mapped here.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    len: usize,
    /// Otherwise the memory is pageable.
    registered: bool,
}

static MAPPED: Mutex<BTreeMap<usize, Mapped>> = Mutex::new(BTreeMap::new());

/// A zeroed, page-locked segment of `len` bytes for every device; its address.
pub(super) fn create(len: usize, may_register: bool) -> Result<usize> {
    let mut replaced = None;
    if may_register && len >= LEAST {
        match register(len) {
            Ok(base) => return Ok(base),
            Err(pending) => replaced = pending,
        }
    }
    let base = cuda::host_alloc(len).map_err(|mut error| {
        if let Error::Cuda { also_pending, .. } = &mut error {
            *also_pending = also_pending.or(replaced);
        }
        error
    })?;
    // SAFETY: the runtime just gave us `len` writable bytes that nobody else knows.
    unsafe { std::ptr::write_bytes(cuda::pointer(base).cast::<u8>(), 0, len) };
    Ok(base)
}

/// The same, mapped and registered. Where that cannot be done `cudaHostAlloc` has the last word, and the error: with the one
/// of other code that a failure here has replaced.
fn register(len: usize) -> Result<usize, Option<i32>> {
    if available().is_some_and(|bytes| len > bytes.saturating_sub(LEFT)) {
        return Err(None);
    }
    let mapping = Mapping::new(len).ok_or(None)?;
    mapping.touch();
    // SAFETY: the mapping has so many bytes, and stays until they are unregistered.
    match unsafe { cuda::host_register(mapping.base, mapping.len) } {
        Ok(()) => Ok(mapping.keep(true)),
        Err(error) => {
            tracing::debug!(%error, len, "memory could not be registered: cudaHostAlloc is asked");
            match error {
                Error::Cuda { also_pending, .. } => Err(also_pending),
                _ => Err(None),
            }
        }
    }
}

/// A zeroed segment of `len` bytes that is not page-locked; its address. `None` if the host has no memory.
pub(super) fn pageable(len: usize) -> Option<usize> {
    Some(Mapping::new(len)?.keep(false))
}

/// Whether a segment is not page-locked.
pub(crate) fn is_pageable(base: usize) -> bool {
    (lock(&MAPPED).get(&base)).is_some_and(|mapped| !mapped.registered)
}

/// Gives a segment back. Waits for the devices, as CUDA defines it, unless the memory is pageable.
///
/// # Safety
/// `base` came from [`create`] or [`pageable`], and nobody uses the memory afterwards.
pub(super) unsafe fn destroy(base: usize) -> Result<()> {
    let Some(mapped) = lock(&MAPPED).remove(&base) else {
        // SAFETY: what is not in the table came from `cudaHostAlloc`; as this function demands.
        return unsafe { cuda::free_host(base) };
    };
    if mapped.registered {
        // SAFETY: it was registered when it was entered; as this function demands. If it fails, the pages may still be
        // locked, and stay where they are for good.
        unsafe { cuda::host_unregister(base)? };
    }
    drop(Mapping {
        base,
        len: mapped.len,
    });
    Ok(())
}

/// Pages that are this one's alone.
struct Mapping {
    base: usize,
    len: usize,
}

impl Mapping {
    /// Zeroed memory, aligned to huge pages. A forked child does not have it: copies on write would give this process other
    /// pages than those that the device knows.
    fn new(len: usize) -> Option<Self> {
        let len = len.checked_next_multiple_of(page())?;
        let all = len.checked_add(HUGE)?;
        // SAFETY: an anonymous mapping at an address of the system's choice touches nothing that is there.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                all,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start.expose_provenance();
        // The end of the mapping is an address, so that this does not overflow.
        let base = start.next_multiple_of(HUGE);
        unmap(start, base - start);
        unmap(base + len, start + all - (base + len));
        let mapping = Self { base, len };
        // Where a kernel has none of these, memory is as it is.
        mapping.advise(libc::MADV_HUGEPAGE);
        mapping.advise(libc::MADV_DONTFORK);
        Some(mapping)
    }

    fn advise(&self, advice: i32) {
        // SAFETY: the mapping is this one's alone, and the advice changes no contents.
        unsafe { libc::madvise(pointer(self.base), self.len, advice) };
    }

    /// Has the system give all pages now, on several threads where it is worth it: the time of a registration is mostly this.
    fn touch(&self) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(THREADS).min(self.len / PART).max(1);
        // The model checker counts threads.
        let threads = if cfg!(all(shuttle, feature = "sim")) {
            1
        } else {
            threads
        };
        let part = self.len.div_ceil(threads).next_multiple_of(HUGE);
        std::thread::scope(|scope| {
            for number in 1..threads {
                let start = part.saturating_mul(number).min(self.len);
                let end = start.saturating_add(part).min(self.len);
                let work = move || self.touch_part(start, end);
                // Where there are no more threads, this one does it.
                if (std::thread::Builder::new().spawn_scoped(scope, work)).is_err() {
                    self.touch_part(start, end);
                }
            }
            self.touch_part(0, part.min(self.len));
        });
    }

    fn touch_part(&self, start: usize, end: usize) {
        for at in (start..end).step_by(page()) {
            // SAFETY: the byte is inside the mapping, which nobody else knows yet; no other thread touches this part.
            unsafe { cuda::pointer(self.base + at).cast::<u8>().write_volatile(0) };
        }
    }

    /// Enters it as a segment.
    fn keep(self, registered: bool) -> usize {
        let (base, len) = (self.base, self.len);
        std::mem::forget(self);
        lock(&MAPPED).insert(base, Mapped { len, registered });
        base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base, self.len);
    }
}

fn pointer(address: usize) -> *mut c_void {
    cuda::pointer(address)
}

fn unmap(start: usize, len: usize) {
    if len > 0 {
        // SAFETY: the range is part of a mapping that `Mapping::new` made, and nobody uses it.
        unsafe { libc::munmap(pointer(start), len) };
    }
}

/// The length of a page.
fn page() -> usize {
    // SAFETY: sysconf reads a number of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two())
        .unwrap_or(4096)
}

/// How much memory the host can still give, in bytes, as far as the system says.
fn available() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let host = text.lines().find_map(|line| {
        let kib: usize = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse()
            .ok()?;
        kib.checked_mul(1024)
    });
    // A container's share, where it is shown.
    let number = |name: &str| -> Option<usize> {
        fs::read_to_string(format!("/sys/fs/cgroup/{name}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let group =
        number("memory.max").map(|most| most.saturating_sub(number("memory.current").unwrap_or(0)));
    match (host, group) {
        (Some(host), Some(group)) => Some(host.min(group)),
        (host, group) => host.or(group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_aligned_zeroed_and_all_there() {
        for len in [1, HUGE, 3 * HUGE + 5, 40 << 20] {
            let mapping = Mapping::new(len).unwrap();
            assert_eq!(mapping.base % HUGE, 0);
            assert!(mapping.len >= len && mapping.len < len + page());
            mapping.touch();
            let mut states = vec![0u8; mapping.len / page()];
            // SAFETY: the mapping has so many pages, and the vector a byte for each.
            let asked = unsafe {
                libc::mincore(
                    pointer(mapping.base),
                    mapping.len,
                    states.as_mut_ptr().cast(),
                )
            };
            assert_eq!(asked, 0);
            assert!(states.iter().all(|state| state & 1 == 1), "{len}");
            // SAFETY: the mapping has so many bytes, which nobody writes.
            let bytes = unsafe {
                std::slice::from_raw_parts(pointer(mapping.base).cast::<u8>(), mapping.len)
            };
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_length_that_cannot_be_mapped_is_no_memory() {
        assert!(Mapping::new(usize::MAX).is_none());
        assert!(Mapping::new(isize::MAX as usize).is_none());
    }

    #[test]
    fn the_host_says_what_it_has() {
        assert!(available().is_some_and(|bytes| bytes > 0));
    }
}
