//! Short forms for the tests: calls that answer numbers, streams that are stalled, both schedules.
#![allow(dead_code, unused_macros, unused_imports)]

use cudart_sim::testing::Machine;
use cudart_sim::{Schedule, sys};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Calls a CUDA function; the answer is the number of the error.
macro_rules! cuda {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the tests pass pointers that are valid, or that the call has to refuse.
        unsafe { cudart_sim::sys::$name($($argument),*) }.0
    }};
}
pub(crate) use cuda;

pub const H2D: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyHostToDevice;
pub const D2H: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDeviceToHost;
pub const D2D: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDeviceToDevice;
pub const H2H: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyHostToHost;
pub const ANY: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDefault;

pub const LEGACY: sys::cudaStream_t = 1 as sys::cudaStream_t;
pub const PER_THREAD: sys::cudaStream_t = 2 as sys::cudaStream_t;

/// Tests that share the one machine of the process take turns. Leaves a fresh machine, lazy and checked: a test that does
/// something without the order that a correct program needs says so (`without_check`), or takes its findings.
pub fn machine() -> Machine {
    Machine::new()
}

/// What this test does has not the order that a correct program needs.
pub fn unordered() {
    cudart_sim::check(cudart_sim::Check::Off);
}

/// Runs a test on a fresh machine under each schedule that must not make a difference to it.
pub fn under_every_schedule(test: impl Fn()) {
    cudart_sim::testing::under_every_schedule(|schedule| {
        eprintln!("schedule {schedule:?}");
        test();
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    });
}

pub fn stream() -> sys::cudaStream_t {
    let mut s = null_mut();
    assert_eq!(
        cuda!(cudaStreamCreateWithFlags(
            &mut s,
            sys::cudaStreamNonBlocking
        )),
        0
    );
    s
}

pub fn blocking_stream() -> sys::cudaStream_t {
    let mut s = null_mut();
    assert_eq!(cuda!(cudaStreamCreate(&mut s)), 0);
    s
}

pub fn event() -> sys::cudaEvent_t {
    let mut e = null_mut();
    assert_eq!(
        cuda!(cudaEventCreateWithFlags(
            &mut e,
            sys::cudaEventDisableTiming
        )),
        0
    );
    e
}

pub fn malloc(size: usize) -> *mut c_void {
    let mut p = null_mut();
    assert_eq!(cuda!(cudaMalloc(&mut p, size)), 0);
    p
}

pub fn pinned(size: usize) -> *mut c_void {
    let mut p = null_mut();
    assert_eq!(cuda!(cudaHostAlloc(&mut p, size, 0)), 0);
    p
}

pub fn malloc_async(size: usize, s: sys::cudaStream_t) -> *mut c_void {
    let mut p = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut p, size, s)), 0);
    p
}

pub fn id(s: sys::cudaStream_t) -> u64 {
    let mut n = 0;
    assert_eq!(cuda!(cudaStreamGetId(s, &mut n)), 0);
    n
}

pub fn pool_attribute(pool: sys::cudaMemPool_t, attribute: sys::cudaMemPoolAttr) -> u64 {
    let mut n = 0u64;
    assert_eq!(
        cuda!(cudaMemPoolGetAttribute(
            pool,
            attribute,
            (&raw mut n).cast()
        )),
        0
    );
    n
}

extern "C" fn sleep(milliseconds: *mut c_void) {
    std::thread::sleep(Duration::from_millis(milliseconds as u64));
}

/// Puts work on a stream that takes that long.
pub fn stall(s: sys::cudaStream_t, milliseconds: usize) {
    assert_eq!(
        cuda!(cudaLaunchHostFunc(
            s,
            Some(sleep),
            milliseconds as *mut c_void
        )),
        0
    );
}

/// How long `f` takes, in milliseconds.
pub fn milliseconds(f: impl FnOnce()) -> u128 {
    let start = Instant::now();
    f();
    start.elapsed().as_millis()
}

/// Work on a stream that cannot end before the gate is opened (or dropped).
pub struct Gate(&'static AtomicBool);

impl Gate {
    pub fn on(s: sys::cudaStream_t) -> Gate {
        extern "C" fn wait(open: *mut c_void) {
            // SAFETY: the flag is leaked and lives for ever.
            let open = unsafe { &*(open as *const AtomicBool) };
            let start = Instant::now();
            while !open.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let open: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let argument = (open as *const AtomicBool).cast_mut().cast();
        assert_eq!(cuda!(cudaLaunchHostFunc(s, Some(wait), argument)), 0);
        Gate(open)
    }

    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Opens it from another thread, some time from now.
    pub fn open_later(&self) {
        let flag = self.0;
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            flag.store(true, Ordering::Release);
        });
    }
}

/// A call that has to wait for the work of a stream that is stalled.
pub fn waits_for(s: sys::cudaStream_t, call: impl FnOnce() -> u32) {
    let gate = Gate::on(s);
    gate.open_later();
    assert_eq!(call(), 0);
    assert!(gate.is_open(), "it returned before the work was done");
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
}

/// A call that has to return while a stream is stalled.
pub fn does_not_wait_for(s: sys::cudaStream_t, call: impl FnOnce() -> u32) {
    let gate = Gate::on(s);
    // The gate opens by itself in the end, so that a failure does not hang.
    let start = Instant::now();
    assert_eq!(call(), 0);
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "it waited for the work"
    );
    gate.open();
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// What the ordering checker says about a program, under each schedule; it has to be the same under all of them.
pub fn findings(program: impl Fn()) -> Vec<cudart_sim::Finding> {
    let mut kinds: Option<Vec<cudart_sim::FindingKind>> = None;
    let mut found = Vec::new();
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(5)] {
        let _turn = machine().schedule(schedule).devices(2, 1 << 30);
        cudart_sim::check(cudart_sim::Check::Report);
        program();
        found = cudart_sim::report();
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        let these: Vec<_> = found.iter().map(|f| f.kind).collect();
        assert_eq!(
            *kinds.get_or_insert_with(|| these.clone()),
            these,
            "{schedule:?}"
        );
    }
    found
}

/// A program in which the checker has to find this first.
pub fn is_found(kind: cudart_sim::FindingKind, program: impl Fn()) {
    let found = findings(program);
    let first = found.first().expect("nothing was found");
    assert_eq!(first.kind, kind, "{first}");
}

/// A program in which the checker has to find nothing.
pub fn is_clean(program: impl Fn()) {
    let found: Vec<String> = findings(program).iter().map(|f| f.to_string()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Random numbers (xorshift), from a seed above 0.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }
}
