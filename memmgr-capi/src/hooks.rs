//! The program's own functions that the manager calls.

use std::ffi::{CString, c_char, c_void};

use manager::{MemoryManager, OutOfMemory};

use crate::status::{call, memmgr_status};

/// Asked when a request found no memory, without a lock held: it may free memory, through the manager too. `requested` is in
/// bytes, `text` says what holds the rest. Returns 1 to have the request tried again, 0 to give up. A request that the hook makes
/// itself, on its thread, does not ask it again: it fails with its own status.
pub type memmgr_out_of_memory_hook =
    Option<unsafe extern "C" fn(requested: usize, text: *const c_char, user: *mut c_void) -> i32>;

/// A hook with what it wants to be given.
struct Hook {
    function: unsafe extern "C" fn(usize, *const c_char, *mut c_void) -> i32,
    user: *mut c_void,
}

// SAFETY: who sets the hook says that it may be called on any thread, with this pointer.
unsafe impl Send for Hook {}
// SAFETY: and on several at once.
unsafe impl Sync for Hook {}

impl Hook {
    fn ask(&self, refusal: &OutOfMemory) -> bool {
        let text = CString::new(refusal.to_string()).unwrap_or_default();
        // SAFETY: the function may be called on any thread with this pointer, says who set it.
        unsafe { (self.function)(refusal.requested, text.as_ptr(), self.user) != 0 }
    }
}

/// Sets what is asked when a request finds no memory; null ends that. The hook may be called on any thread that allocates, with
/// `user`, and must not throw.
///
/// When this returns, no call of the hook that was set before is running on any thread, nor will one begin: `user` may go. So do
/// not hold a lock that the hook wants. From inside a hook it returns at once, and the calls that run go on to their end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_set_out_of_memory_hook(
    hook: memmgr_out_of_memory_hook,
    user: *mut c_void,
) -> memmgr_status {
    call(|| {
        let mm = MemoryManager::instance();
        mm.usable()?;
        let Some(function) = hook else {
            mm.clear_out_of_memory_hook();
            return Ok(());
        };
        let hook = Hook { function, user };
        mm.on_out_of_memory(move |refusal| hook.ask(refusal));
        Ok(())
    })
}
