//! What is said to tools through NVTX (`nvtx.c`): ranges in a timeline, and what memory is whose (feature `nvtx`).
//!
//! Any thread may call any of these, once CUDA has been initialized in the process; without a tool nothing happens.

use std::ffi::{c_char, c_ulonglong, c_void};

unsafe extern "C" {
    fn memmgr_nvtx_push(name: *const c_char, bytes: c_ulonglong);
    fn memmgr_nvtx_pop();
    fn memmgr_nvtx_heap(start: *const c_void, size: usize) -> *mut c_void;
    fn memmgr_nvtx_heap_end(heap: *mut c_void);
    fn memmgr_nvtx_region(heap: *mut c_void, start: *const c_void, size: usize);
    fn memmgr_nvtx_region_end(start: *const c_void);
}

/// Begins a range on this thread, inside of those that it has begun; with a number of bytes.
pub fn push(name: &'static std::ffi::CStr, bytes: u64) {
    // SAFETY: the name ends with a null byte and lives for ever.
    unsafe { memmgr_nvtx_push(name.as_ptr(), bytes) }
}

/// Ends the last range of this thread that has not ended.
pub fn pop() {
    // SAFETY: a range that is not there is not ended.
    unsafe { memmgr_nvtx_pop() }
}

/// Memory that is handed out in parts, as a tool knows it: its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heap(*mut c_void);

// SAFETY: the handle is a name, which the tool gave and which NVTX lets any thread use.
unsafe impl Send for Heap {}

impl Heap {
    /// Tells of `size` bytes at `start` of which nothing may be used yet; `None` if no tool wants to know.
    pub fn register(start: usize, size: usize) -> Option<Self> {
        // SAFETY: addresses are told, and nothing is read or written there.
        let heap = unsafe { memmgr_nvtx_heap(std::ptr::without_provenance(start), size) };
        (!heap.is_null()).then_some(Self(heap))
    }

    /// It is not there any more, nor are its parts.
    pub fn unregister(self) {
        // SAFETY: the handle is of a heap that was registered.
        unsafe { memmgr_nvtx_heap_end(self.0) }
    }

    /// `size` bytes of it at `start` may be used.
    pub fn add(self, start: usize, size: usize) {
        // SAFETY: the handle is of a heap that was registered; addresses are told, and nothing is read or written there.
        unsafe { memmgr_nvtx_region(self.0, std::ptr::without_provenance(start), size) }
    }

    /// The part that begins at `start` may not be used any more.
    pub fn remove(self, start: usize) {
        // SAFETY: an address is told, and nothing is read or written there.
        unsafe { memmgr_nvtx_region_end(std::ptr::without_provenance(start)) }
    }
}
