//! The program's own functions that the manager calls.

use std::{
    ffi::{CString, c_char, c_void},
    sync::{Mutex, PoisonError},
};

use manager::MemoryManager;

use crate::status::{call, memmgr_status};

/// Asked when a request found no memory, without a lock held: it may free memory, through the manager too. `requested` is in
/// bytes, `text` says what holds the rest. Returns 1 to have the request tried again, 0 to give up.
pub type memmgr_out_of_memory_hook =
    Option<unsafe extern "C" fn(requested: usize, text: *const c_char, user: *mut c_void) -> i32>;

/// A hook with what it wants to be given.
#[derive(Clone, Copy)]
struct Hook {
    function: memmgr_out_of_memory_hook,
    user: *mut c_void,
}

// SAFETY: who sets the hook says that it may be called on any thread, with this pointer.
unsafe impl Send for Hook {}

static HOOK: Mutex<Hook> = Mutex::new(Hook {
    function: None,
    user: std::ptr::null_mut(),
});

/// Sets what is asked when a request finds no memory; null ends that. The hook may be called on any thread that allocates, with
/// `user`, and must not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_set_out_of_memory_hook(
    hook: memmgr_out_of_memory_hook,
    user: *mut c_void,
) -> memmgr_status {
    call(|| {
        *HOOK.lock().unwrap_or_else(PoisonError::into_inner) = Hook {
            function: hook,
            user,
        };
        MemoryManager::instance().on_out_of_memory(|refusal| {
            let Hook { function, user } = *HOOK.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(function) = function else {
                return false;
            };
            let text = CString::new(refusal.to_string()).unwrap_or_default();
            // SAFETY: the function may be called on any thread with this pointer, says who set it.
            unsafe { function(refusal.requested, text.as_ptr(), user) != 0 }
        });
        Ok(())
    })
}
