//! Faults of the simulated runtime, for tests in C and C++. A library for GPUs has none of it, nor has the header.

use std::{
    ffi::{CStr, c_char},
    sync::{Mutex, PoisonError},
};

static FAULTS: Mutex<Vec<cudart_sim::Fault>> = Mutex::new(Vec::new());

/// The next `times` calls of the function of this name answer `code`, on any thread. Null: no fault is left.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_simulate_fault(name: *const c_char, code: i32, times: u64) {
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    if name.is_null() {
        faults.clear();
        return;
    }
    // SAFETY: a text that ends with a zero byte, says the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let code = cudart_sim::sys::cudaError(code as _);
    faults.push(cudart_sim::fail(&name, code).times(times).any_thread());
}
