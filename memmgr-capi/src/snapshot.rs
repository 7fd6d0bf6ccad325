//! A snapshot of all memory, as a file.

use std::{
    ffi::{CStr, OsStr, c_char},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use manager::MemoryManager;

use crate::status::{Failure, call, memmgr_status, refuse_in_child};

/// How a snapshot is written.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum memmgr_snapshot_format {
    /// As `torch.cuda.memory._dump_snapshot` of PyTorch writes it, for its viewer.
    MEMMGR_SNAPSHOT_PICKLE = 0,
    /// The same values in JSON.
    MEMMGR_SNAPSHOT_JSON = 1,
}

/// Writes all segments with their blocks, and the last events that `MEMMGR_EVENT_RING` keeps, to the file at `path`, in a
/// `memmgr_snapshot_format`. The file is replaced as a whole, or stays what it was. `memmgr report` and PyTorch's viewer open it. In a forked
/// child it answers `MEMMGR_FORKED_CHILD`, and the file is not touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_snapshot(path: *const c_char, format: i32) -> memmgr_status {
    call(|| {
        if path.is_null() {
            return Err(Failure::argument("the path is null"));
        }
        // SAFETY: the path is a string that ends with a null byte, says the caller.
        let path = unsafe { CStr::from_ptr(path) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let mm = MemoryManager::instance();
        refuse_in_child(mm)?;
        let snapshot = || mm.snapshot();
        const PICKLE: i32 = memmgr_snapshot_format::MEMMGR_SNAPSHOT_PICKLE as i32;
        const JSON: i32 = memmgr_snapshot_format::MEMMGR_SNAPSHOT_JSON as i32;
        let written = match format {
            PICKLE => snapshot().write_pickle(path),
            JSON => snapshot().write_json(path),
            _ => {
                return Err(Failure::argument(format!(
                    "{format} is no format of a snapshot: 0 (pickle) or 1 (JSON)"
                )));
            }
        };
        written.map_err(|error| {
            let path = path.display();
            Failure::argument(format!(
                "{path} cannot be written: {error}; name a file in a folder that is there and can be written"
            ))
        })
    })
}
