//! Sharing memory between processes: which memory could be shared. Nothing opens the handles.

use super::{api, need, put};
use crate::error::INVALID_VALUE;
use crate::memory::Source;
use crate::runtime::lock;
use crate::sys;
use std::ffi::{c_char, c_void};

api! {
    // Memory from `cudaMalloc`, by any address in it; the handle is that of the whole allocation.
    fn cudaIpcGetMemHandle(
        handle: *mut sys::cudaIpcMemHandle_t,
        devPtr: *mut c_void,
    ) needs Context {
        need(handle)?;
        let rt = lock();
        let (start, _) = rt
            .memory
            .block(devPtr as u64)
            .filter(|(_, b)| b.source == Source::Malloc)
            .ok_or(INVALID_VALUE)?;
        let mut made = sys::cudaIpcMemHandle_t::default();
        let process = u64::from(std::process::id()).to_le_bytes();
        let bytes = process.into_iter().chain(start.to_le_bytes());
        for (to, from) in made.reserved.iter_mut().zip(bytes) {
            *to = from as c_char;
        }
        put(handle, made)
    }
}
