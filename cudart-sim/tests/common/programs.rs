//! Small programs for the ordering checker: short forms of the calls, and tests made of a list of them.
#![allow(dead_code, unused_macros, unused_imports)]

pub use super::common::*;
use cudart_sim::sys::cudaEvent_t as Event;
pub use cudart_sim::sys::cudaStream_t as Stream;
use std::ffi::c_void;

pub type Pointer = *mut c_void;

pub const K: usize = 1 << 10;

pub fn fill(p: Pointer, len: usize, s: Stream) {
    assert_eq!(cuda!(cudaMemsetAsync(p, 1, len, s)), 0);
}

pub fn copy(to: Pointer, from: Pointer, len: usize, s: Stream) {
    assert_eq!(cuda!(cudaMemcpyAsync(to, from, len, ANY, s)), 0);
}

pub fn at(p: Pointer, offset: usize) -> Pointer {
    p.wrapping_byte_add(offset)
}

pub fn record(e: Event, s: Stream) {
    assert_eq!(cuda!(cudaEventRecord(e, s)), 0);
}

pub fn wait(s: Stream, e: Event) {
    assert_eq!(cuda!(cudaStreamWaitEvent(s, e, 0)), 0);
}

/// What `b` gets from now on comes after what `a` has.
pub fn behind(b: Stream, a: Stream) {
    let e = event();
    record(e, a);
    wait(b, e);
    cuda!(cudaEventDestroy(e));
}

pub fn sync(s: Stream) {
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
}

/// Asks until the answer is yes.
pub fn until(mut ask: impl FnMut() -> u32) {
    loop {
        match ask() {
            0 => return,
            code => assert_eq!(code, 600),
        }
        std::thread::yield_now();
    }
}

/// Two streams that nothing orders.
pub fn two() -> (Stream, Stream) {
    (stream(), stream())
}

/// Makes a test of each program, and one that says how many there are.
macro_rules! programs {
    (clean: $(fn $name:ident() $body:block)*) => {
        $(#[test] fn $name() { is_clean(|| $body); })*
    };
    ($kind:ident: $(fn $name:ident() $body:block)*) => {
        $(#[test] fn $name() { is_found(cudart_sim::FindingKind::$kind, || $body); })*
    };
}
pub(crate) use programs;
