//! What the integration tests share.
#![allow(dead_code)]

pub mod checks;
pub mod child;

use memmgr::{Config, DeviceAllocatorMode, DeviceSource, MemoryManager, Stream};
use memmgr_tests::Gate;
use std::ffi::c_void;

pub const MIB: usize = 1 << 20;
pub const KIB: usize = 1 << 10;

/// All modes.
pub const MODES: [DeviceAllocatorMode; 3] = DeviceAllocatorMode::ALL;

/// The defaults, with the source of device memory that the environment names (`MEMMGR_DEVICE_SOURCE`).
pub fn config() -> Config {
    let named = std::env::var("MEMMGR_DEVICE_SOURCE").ok();
    let source = named.map(|name| name.parse().expect("a source of device memory"));
    Config::default().device_source(source.unwrap_or_default())
}

/// A manager of the test's own.
pub fn manager() -> MemoryManager {
    MemoryManager::new(config()).expect("the defaults are valid")
}

/// A manager whose device memory comes in segments of `cudaMalloc`.
pub fn manager_of_segments() -> MemoryManager {
    let config = Config::default().device_source(DeviceSource::Malloc);
    MemoryManager::new(config).expect("the settings are valid")
}

/// A manager in a mode.
pub fn manager_in(mode: DeviceAllocatorMode) -> MemoryManager {
    MemoryManager::new(config().mode(mode)).expect("the defaults are valid")
}

/// A manager whose device pool has so many bytes at the first request, and never more.
pub fn manager_of(config: Config, bytes: usize) -> MemoryManager {
    let config = (config.device_pool_size(bytes)).device_pool_limit(Some(bytes));
    MemoryManager::new(config).expect("the settings are valid")
}

/// Puts work on a stream that ends when the gate opens.
pub fn stall(stream: &Stream, gate: &Gate) {
    let gate = gate.clone();
    stream
        .launch_host(move || gate.pass())
        .expect("a host function can be launched");
}

/// What `cudaPeekAtLastError` says on this thread.
pub fn last_error() -> u32 {
    // SAFETY: the function has no preconditions.
    unsafe { cuda_sys::cudaPeekAtLastError() }.0
}

/// The bytes of a pinned block.
///
/// # Safety
/// `ptr` has `len` readable bytes that nobody writes meanwhile.
pub unsafe fn bytes<'a>(ptr: *const c_void, len: usize) -> &'a [u8] {
    // SAFETY: as this function demands.
    unsafe { std::slice::from_raw_parts(ptr.cast(), len) }
}

/// The bytes of a pinned block, to be written.
///
/// # Safety
/// `ptr` has `len` bytes that nobody else uses meanwhile.
pub unsafe fn bytes_mut<'a>(ptr: *mut c_void, len: usize) -> &'a mut [u8] {
    // SAFETY: as this function demands.
    unsafe { std::slice::from_raw_parts_mut(ptr.cast(), len) }
}

/// Verifies all bookkeeping, and that in-use and live blocks agree.
pub fn assert_sound(manager: &MemoryManager) {
    manager.check().expect("the bookkeeping is sound");
}

/// On the simulated runtime nothing completes before somebody waits or asks, and the first mistake in the order of things
/// ends the program, unless the environment says otherwise (`CUDART_SIM_SCHEDULE`, `CUDART_SIM_CHECK`).
#[cfg(feature = "sim")]
#[used]
// SAFETY: the section holds pointers to functions that the loader calls before `main`.
#[unsafe(link_section = ".init_array")]
static STRICT: extern "C" fn() = {
    extern "C" fn strict() {
        for (name, value) in [
            ("CUDART_SIM_SCHEDULE", "lazy"),
            ("CUDART_SIM_CHECK", "abort"),
        ] {
            if std::env::var_os(name).is_none() {
                // SAFETY: there is one thread before `main`.
                unsafe { std::env::set_var(name, value) };
            }
        }
    }
    strict
};
