//! What a copy calls, by the driver's functions: they do what the runtime's do and take less time, and what fails is left to the
//! runtime, whose call says why.

use super::{
    RawStream,
    call::gate,
    count::{Call, count},
};
use cuda_sys as sys;

/// What a function of the driver has done in place of the runtime's `which`, or answered. `None` if nothing has happened: the
/// runtime is to be called.
#[inline]
pub(super) fn by_driver<T>(
    which: Call,
    stream: RawStream,
    f: impl FnOnce(&sys::StreamCalls) -> Option<T>,
) -> Option<T> {
    // Which streams the handles of default streams mean is the runtime's business; this is the highest of them.
    if stream.0 <= sys::cudaStreamPerThread.addr() || gate(which).is_err() {
        return None;
    }
    let done = f(sys::stream_calls()?);
    if done.is_some() {
        count(which);
    }
    done
}
