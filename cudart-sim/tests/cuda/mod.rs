//! Short forms for tests that call nothing but CUDA functions, so that they hold for any CUDA runtime.
#![allow(dead_code, unused_macros, unused_imports)]

pub use cudart_sim::sys;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Calls a CUDA function; the answer is the number of the error.
macro_rules! cuda {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the tests pass pointers that are valid, or that the call has to refuse.
        unsafe { sys::$name($($argument),*) }.0
    }};
}
pub(crate) use cuda;

/// Calls a function of the driver, found by its name; the answer is the number of the error.
macro_rules! driver {
    ($name:ident: own $type:ident($($argument:expr),* $(,)?)) => {
        driver!($name as $type, $($argument),*)
    };
    ($name:ident: $type:ident($($argument:expr),* $(,)?)) => {
        driver!($name as sys::$type, $($argument),*)
    };
    ($name:ident as $type:ty, $($argument:expr),*) => {{
        // SAFETY: the type is that of a function of this name.
        let function: $type = unsafe { std::mem::transmute(symbol(stringify!($name), 13000)) };
        // SAFETY: as for the runtime's functions.
        unsafe { function.expect("the driver has it")($($argument),*) }.0
    }};
}
pub(crate) use driver;

/// Functions of the driver whose types are not among the header's that are bound here.
pub type MemcpyHtoDAsync =
    Option<unsafe extern "C" fn(u64, *const c_void, usize, sys::cudaStream_t) -> sys::CUresult>;
pub type MemcpyDtoHAsync =
    Option<unsafe extern "C" fn(*mut c_void, u64, usize, sys::cudaStream_t) -> sys::CUresult>;
pub type EventRecord =
    Option<unsafe extern "C" fn(sys::cudaEvent_t, sys::cudaStream_t) -> sys::CUresult>;
pub type StreamIsCapturing = Option<
    unsafe extern "C" fn(sys::cudaStream_t, *mut sys::cudaStreamCaptureStatus) -> sys::CUresult,
>;

pub const MIB: usize = 1 << 20;
pub const CHUNK: usize = 2 << 20;
pub const H2D: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyHostToDevice;
pub const D2H: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDeviceToHost;
pub const D2D: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDeviceToDevice;

/// Tests of one process take turns: a capture forbids things to all threads. The machine is fresh, lazy and checked.
pub fn turn() -> cudart_sim::testing::Machine {
    cudart_sim::testing::Machine::new()
}

/// Runs a test of this name in a process of its own, with these variables: for what cannot be mended, or what needs a
/// certain machine where the machine can be chosen.
pub fn in_a_process_of_its_own(name: &str, variables: &[(&str, &str)], test: impl FnOnce()) {
    const INSIDE: &str = "TEST_IN_A_PROCESS_OF_ITS_OWN";
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let program = std::env::current_exe().expect("the test program is known");
    let run = std::process::Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

/// Asks for a function of the driver; null if there is none for that version.
pub fn symbol(name: &str, version: u32) -> *mut c_void {
    let (at, _) = symbol_and_status(name, version);
    at
}

pub fn symbol_and_status(name: &str, version: u32) -> (*mut c_void, u32) {
    let name = CString::new(name).expect("a plain name");
    let mut at = null_mut();
    let mut status = sys::cudaDriverEntryPointQueryResult(99);
    let code = cuda!(cudaGetDriverEntryPointByVersion(
        name.as_ptr(),
        &mut at,
        version,
        0,
        &mut status
    ));
    assert_eq!(code, 0);
    (at, status.0)
}

pub fn stream() -> sys::cudaStream_t {
    let mut s = null_mut();
    let flags = sys::cudaStreamNonBlocking;
    assert_eq!(cuda!(cudaStreamCreateWithFlags(&mut s, flags)), 0);
    s
}

pub fn event() -> sys::cudaEvent_t {
    let mut e = null_mut();
    let flags = sys::cudaEventDisableTiming;
    assert_eq!(cuda!(cudaEventCreateWithFlags(&mut e, flags)), 0);
    e
}

pub fn malloc(size: usize) -> *mut c_void {
    let mut p = null_mut();
    assert_eq!(cuda!(cudaMalloc(&mut p, size)), 0);
    p
}

extern "C" fn sleep(milliseconds: *mut c_void) {
    std::thread::sleep(Duration::from_millis(milliseconds as u64));
}

/// Puts work on a stream that takes that long.
pub fn stall(s: sys::cudaStream_t, milliseconds: usize) {
    let argument = milliseconds as *mut c_void;
    assert_eq!(cuda!(cudaLaunchHostFunc(s, Some(sleep), argument)), 0);
}

/// How long `f` takes, in milliseconds.
pub fn milliseconds(f: impl FnOnce()) -> u128 {
    let start = Instant::now();
    f();
    start.elapsed().as_millis()
}

/// What device memory holds.
pub fn read(p: *const c_void, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    assert_eq!(cuda!(cudaMemcpy(bytes.as_mut_ptr().cast(), p, len, D2H)), 0);
    bytes
}

/// Fills device memory, and waits until that is done.
pub fn fill(p: *mut c_void, value: i32, len: usize) {
    assert_eq!(cuda!(cudaMemset(p, value, len)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(null_mut())), 0);
}

/// Bytes in which no two chunks are alike.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 255) as u8).collect()
}

pub fn on_device_0() -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(),
        ..Default::default()
    }
}

pub fn location() -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: 0,
    }
}

pub fn reserve(len: usize) -> u64 {
    let mut at = 0;
    let code = driver!(cuMemAddressReserve: PFN_cuMemAddressReserve_v10020(&mut at, len, 0, 0, 0));
    assert_eq!(code, 0);
    at
}

pub fn free(at: u64, len: usize) -> u32 {
    driver!(cuMemAddressFree: PFN_cuMemAddressFree_v10020(at, len))
}

pub fn create(len: usize) -> u64 {
    let mut handle = 0;
    let prop = on_device_0();
    let code = driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut handle, len, &prop, 0));
    assert_eq!(code, 0);
    handle
}

pub fn release(handle: u64) -> u32 {
    driver!(cuMemRelease: PFN_cuMemRelease_v10020(handle))
}

pub fn map(at: u64, len: usize, offset: usize, handle: u64) -> u32 {
    driver!(cuMemMap: PFN_cuMemMap_v10020(at, len, offset, handle, 0))
}

pub fn unmap(at: u64, len: usize) -> u32 {
    driver!(cuMemUnmap: PFN_cuMemUnmap_v10020(at, len))
}

/// 0: none, 1: read, 3: read and write.
pub fn access(at: u64, len: usize, flags: u32) -> u32 {
    let entry = sys::CUmemAccessDesc {
        location: location(),
        flags: sys::CUmemAccess_flags(flags),
    };
    driver!(cuMemSetAccess: PFN_cuMemSetAccess_v10020(at, len, &entry, 1))
}

/// Chunks of physical memory, mapped one after another.
pub struct Mapped {
    pub at: u64,
    pub chunk: usize,
    pub handles: Vec<u64>,
}

impl Mapped {
    pub fn new(chunk: usize, count: usize) -> Mapped {
        let at = reserve(chunk * count);
        let handles: Vec<u64> = (0..count).map(|_| create(chunk)).collect();
        for (i, handle) in handles.iter().enumerate() {
            assert_eq!(map(at + (i * chunk) as u64, chunk, 0, *handle), 0);
        }
        assert_eq!(access(at, chunk * count, 3), 0);
        Mapped { at, chunk, handles }
    }

    pub fn len(&self) -> usize {
        self.chunk * self.handles.len()
    }

    pub fn pointer(&self, offset: usize) -> *mut c_void {
        (self.at + offset as u64) as *mut c_void
    }

    /// Unmaps and releases all of it, and gives the addresses back.
    pub fn end(self) {
        assert_eq!(unmap(self.at, self.len()), 0);
        for handle in &self.handles {
            assert_eq!(release(*handle), 0);
        }
        assert_eq!(free(self.at, self.len()), 0);
    }
}
