//! Device memory on the host: a range of addresses that nobody can touch, and a private second mapping for the simulator.
//!
//! The device address range is reserved without access, so that a host that dereferences a device pointer faults, as it
//! does on a real machine. The bytes live in an anonymous file of the same length, mapped a second time for the
//! simulator's own copies. Pages are committed when they are touched, and given back by punching holes.
//! The mirror is not inherited by forked children.

use crate::error::{Answer, OUT_OF_MEMORY};
use crate::limit;

/// A reserved range of addresses and the mapping of its bytes. Addresses are plain numbers: nothing here is borrowed.
#[derive(Debug)]
pub(crate) struct Mirror {
    device: usize,
    bytes: usize,
    len: usize,
}

fn map(len: usize, access: i32, flags: i32, file: i32) -> Option<usize> {
    // SAFETY: no address is asked for, so that no existing mapping is replaced.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file, 0) };
    (at != libc::MAP_FAILED).then_some(at as usize)
}

fn unmap(at: usize, len: usize) {
    // SAFETY: called with whole mappings that `map` made, by their only owner.
    unsafe { libc::munmap(at as *mut libc::c_void, len) };
}

const RESERVE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Reserves addresses that nobody can read, write or get from elsewhere. They stay reserved for ever.
pub(crate) fn reserve_forever(len: usize) -> Option<usize> {
    map(len, libc::PROT_NONE, RESERVE, -1)
}

/// Reserves addresses without access, aligned to `align`, where the hint says if they are free there.
pub(crate) fn reserve(len: usize, align: usize, hint: usize) -> Option<usize> {
    if hint != 0 && hint.is_multiple_of(align) {
        // SAFETY: without MAP_FIXED the address is a wish, and no existing mapping is replaced.
        let at = unsafe {
            libc::mmap(
                hint as *mut libc::c_void,
                len,
                libc::PROT_NONE,
                RESERVE,
                -1,
                0,
            )
        };
        if at == hint as *mut libc::c_void {
            return Some(hint);
        }
        if at != libc::MAP_FAILED {
            unmap(at as usize, len);
        }
    }
    let padded = len.checked_add(align)?;
    let reserved = map(padded, libc::PROT_NONE, RESERVE, -1)?;
    let start = reserved.next_multiple_of(align);
    if start > reserved {
        unmap(reserved, start - reserved);
    }
    if reserved + padded > start + len {
        unmap(start + len, reserved + padded - start - len);
    }
    Some(start)
}

/// Whether so many addresses could be reserved now.
pub(crate) fn are_free(len: usize) -> bool {
    let found = map(len, libc::PROT_NONE, RESERVE, -1);
    found.inspect(|at| unmap(*at, len)).is_some()
}

/// Gives back what [`reserve`] reserved, whole.
pub(crate) fn release(at: usize, len: usize) {
    unmap(at, len);
}

impl Mirror {
    /// Reserves `len` bytes of device addresses, aligned to `align`, with nothing committed.
    pub(crate) fn new(len: usize, align: usize) -> Answer<Mirror> {
        let size = i64::try_from(len).map_err(|_| OUT_OF_MEMORY)?;
        let device = reserve(len, align, 0).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: the name is a C string; the file is ours alone.
        let file = unsafe { libc::memfd_create(c"cudart-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            unmap(device, len);
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: `file` is an open file of ours.
        let sized = unsafe { libc::ftruncate(file, size) } == 0;
        let bytes = sized
            .then(|| {
                map(
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_NORESERVE,
                    file,
                )
            })
            .flatten();
        // SAFETY: `file` is open and closed once; the mapping keeps the memory alive.
        unsafe { libc::close(file) };
        let Some(bytes) = bytes else {
            unmap(device, len);
            return Err(OUT_OF_MEMORY);
        };
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: the whole mapping made above; neither advice changes its contents here.
            unsafe { libc::madvise(bytes as *mut libc::c_void, len, advice) };
        }
        Ok(Mirror { device, bytes, len })
    }

    /// The first device address.
    pub(crate) fn base(&self) -> u64 {
        self.device as u64
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where the simulator finds the byte at `offset`, if `offset..offset + len` lies inside.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<usize> {
        (offset.checked_add(len)? <= self.len).then_some(self.bytes + offset)
    }

    /// Gives the pages of a range back; they read as zero from then on. Whole 4 KiB pages only.
    pub(crate) fn punch(&self, offset: usize, len: usize) {
        if let Some(at) = self.at(offset, len)
            && len > 0
        {
            // SAFETY: inside the mapping, which is shared and backed by memory, as MADV_REMOVE needs. No reference
            // into it is ever formed.
            unsafe { libc::madvise(at as *mut libc::c_void, len, libc::MADV_REMOVE) };
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        unmap(self.bytes, self.len);
        unmap(self.device, self.len);
    }
}

/// What lies on both sides of host memory, without access: whoever runs over the end of it faults.
const GUARD: usize = 4096;

/// Maps ordinary memory of whole pages, zeroed, between guard pages: what `cudaHostAlloc` hands out.
pub(crate) fn map_host(len: usize) -> Option<usize> {
    let padded = len.checked_add(2 * GUARD)?;
    if !limit::host_taken(len) {
        return None;
    }
    let access = |start: usize| {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: inside the mapping just made, which nobody else knows.
        unsafe { libc::mprotect((start + GUARD) as *mut libc::c_void, len, both) == 0 }
    };
    let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let Some(start) = map(padded, libc::PROT_NONE, plain, -1) else {
        limit::host_given(len);
        return None;
    };
    if !access(start) {
        unmap(start, padded);
        limit::host_given(len);
        return None;
    }
    Some(start + GUARD)
}

/// Unmaps what [`map_host`] mapped. The caller knows that nobody uses it any more, as the caller of `cudaFreeHost` must.
pub(crate) fn unmap_host(at: usize, len: usize) {
    limit::host_given(len);
    unmap(at - GUARD, len + 2 * GUARD);
}

/// Copies bytes as the device would: the ranges may overlap, and nothing is promised while somebody else writes them.
///
/// # Safety
/// Both ranges must be mapped, readable and writable respectively.
pub(crate) unsafe fn copy_bytes(dst: usize, src: usize, len: usize) {
    // SAFETY: by the contract of this function.
    unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, len) };
}

/// Fills bytes as the device would.
///
/// # Safety
/// The range must be mapped and writable.
pub(crate) unsafe fn fill_bytes(dst: usize, value: u8, len: usize) {
    // SAFETY: by the contract of this function.
    unsafe { std::ptr::write_bytes(dst as *mut u8, value, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_cannot_read_a_device_address_but_the_mirror_can() {
        let m = Mirror::new(4 << 20, 2 << 20).unwrap();
        assert_eq!(m.base() % (2 << 20), 0);
        let at = m.at(4096, 4).unwrap();
        // SAFETY: four bytes inside the mirror.
        unsafe { fill_bytes(at, 7, 4) };
        // A system call that is given the device address reports a fault instead of dying of one.
        let mut ends = [0; 2];
        // SAFETY: a pipe of our own; write is given an address without access on purpose.
        let wrote = unsafe {
            libc::pipe(ends.as_mut_ptr());
            libc::write(ends[1], m.base() as *const libc::c_void, 4)
        };
        assert_eq!(wrote, -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EFAULT)
        );
    }

    #[test]
    fn an_impossible_reservation_is_an_error() {
        assert!(Mirror::new(usize::MAX, 4096).is_err());
        assert!(Mirror::new(1 << 60, 4096).is_err());
    }
}
