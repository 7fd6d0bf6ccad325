//! Short forms: calls that must succeed, host functions that are closures, and a list of what ran.

use cudart_sim::sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// Calls a CUDA function that must succeed.
macro_rules! ok {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the programs pass valid pointers and live handles.
        let code = unsafe { cudart_sim::sys::$name($($argument),*) };
        assert_eq!(code.0, 0, stringify!($name));
    }};
}
pub(crate) use ok;

pub const PER_THREAD: sys::cudaStream_t = 2 as sys::cudaStream_t;

/// A handle that threads may share.
pub struct Handle<T>(*mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: handles are names; only the simulator looks behind them.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

pub type Stream = Handle<sys::CUstream_st>;
pub type Event = Handle<sys::CUevent_st>;

impl<T> Handle<T> {
    pub fn raw(self) -> *mut T {
        self.0
    }
}

pub fn stream() -> Stream {
    let mut s = null_mut();
    ok!(cudaStreamCreateWithFlags(
        &mut s,
        sys::cudaStreamNonBlocking
    ));
    Handle(s)
}

pub fn blocking_stream() -> Stream {
    let mut s = null_mut();
    ok!(cudaStreamCreate(&mut s));
    Handle(s)
}

pub fn event() -> Event {
    let mut e = null_mut();
    ok!(cudaEventCreateWithFlags(
        &mut e,
        sys::cudaEventDisableTiming
    ));
    Handle(e)
}

/// Runs a closure as a host function of a stream.
pub fn host(s: sys::cudaStream_t, f: impl FnOnce() + Send + 'static) {
    assert_eq!(try_host(s, f), 0);
}

/// As [`host`], with the call's answer.
pub fn try_host(s: sys::cudaStream_t, f: impl FnOnce() + Send + 'static) -> u32 {
    type Closure = Box<dyn FnOnce() + Send>;
    extern "C" fn call(argument: *mut c_void) {
        // SAFETY: made by `into_raw` below, and called once.
        unsafe { Box::from_raw(argument.cast::<Closure>())() };
    }
    let argument = Box::into_raw(Box::new(Box::new(f) as Closure)).cast();
    // SAFETY: the stream's handle is live, or answered with 400; the argument is the function's.
    let code = unsafe { sys::cudaLaunchHostFunc(s, Some(call), argument) }.0;
    if code != 0 {
        // SAFETY: refused, so that nobody else has it.
        drop(unsafe { Box::from_raw(argument.cast::<Closure>()) });
    }
    code
}

/// What ran, in order. Its own lock is none of the checker's.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    pub fn add(&self, n: u32) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(n);
    }

    pub fn get(&self) -> Vec<u32> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts a host function on a stream that notes this number.
    pub fn on(&self, s: sys::cudaStream_t, n: u32) {
        let log = self.clone();
        host(s, move || log.add(n));
    }
}
