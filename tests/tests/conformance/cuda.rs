//! Short forms: calls that answer numbers, streams that are stalled, physical memory that is mapped.

pub use cuda_sys as sys;
use memmgr_tests::Gate;
use std::{
    ffi::c_void,
    fmt::{Debug, Formatter},
    ptr::null_mut,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Calls a CUDA function; the answer is the number of the error.
macro_rules! cuda {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the tests pass places for results, and handles and pointers that are alive or that the call has to refuse.
        unsafe { $crate::cuda::sys::$name($($argument),*) }.0
    }};
}

/// A call without which the test cannot go on.
macro_rules! ok {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(cuda!($name($($argument),*)), 0, "{}", stringify!($name))
    };
}

/// Calls a function of the driver, found by its name the first time; the answer is the number of the error. Its type is the
/// header's of that name, or the one given.
macro_rules! driver {
    ($name:literal, type $type:ident($($argument:expr),* $(,)?)) => {{
        static FOUND: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let at = *FOUND.get_or_init(|| {
            let at = $crate::cuda::sys::driver_entry_point($name, 12000);
            at.expect("the driver has it").expose_provenance()
        });
        let at = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(at);
        // SAFETY: the type is that of a function of this name.
        let function: $type = unsafe { std::mem::transmute(at) };
        let function = function.expect("it is not null");
        // SAFETY: as for the runtime's functions.
        unsafe { function($($argument),*) }.0
    }};
    ($name:literal, $type:ident($($argument:expr),* $(,)?)) => {{
        use $crate::cuda::sys::$type;
        driver!($name, type $type($($argument),*))
    }};
}

pub type Stream = sys::cudaStream_t;
pub type Event = sys::cudaEvent_t;
pub type Pool = sys::cudaMemPool_t;
pub type Pointer = *mut c_void;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
pub const GIB: usize = 1 << 30;
pub const CHUNK: usize = 2 * MIB;
pub const H2D: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyHostToDevice;
pub const D2H: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDeviceToHost;
pub const D2D: sys::cudaMemcpyKind = sys::cudaMemcpyKind::cudaMemcpyDeviceToDevice;
pub const LEGACY: Stream = sys::cudaStreamLegacy;
pub const PER_THREAD: Stream = sys::cudaStreamPerThread;

/// A pointer or handle that another thread may use.
#[derive(Clone, Copy)]
pub struct Shared<T>(T);
// SAFETY: CUDA's handles and device addresses may be used by any thread.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    pub fn new(value: T) -> Self {
        Shared(value)
    }

    pub fn get(&self) -> T {
        self.0
    }
}

/// A stream that pays no heed to the legacy stream.
pub fn stream() -> Stream {
    let mut s = null_mut();
    ok!(cudaStreamCreateWithFlags(
        &mut s,
        sys::cudaStreamNonBlocking
    ));
    s
}

pub fn blocking_stream() -> Stream {
    let mut s = null_mut();
    ok!(cudaStreamCreate(&mut s));
    s
}

pub fn event() -> Event {
    let mut e = null_mut();
    ok!(cudaEventCreateWithFlags(
        &mut e,
        sys::cudaEventDisableTiming
    ));
    e
}

/// An event whose record has run.
pub fn done_event() -> Event {
    let (s, e) = (stream(), event());
    ok!(cudaEventRecord(e, s));
    ok!(cudaStreamSynchronize(s));
    ok!(cudaStreamDestroy(s));
    e
}

pub fn destroy<const N: usize>(streams: [Stream; N]) {
    for s in streams {
        ok!(cudaStreamDestroy(s));
    }
}

pub fn malloc(size: usize) -> Pointer {
    let mut p = null_mut();
    ok!(cudaMalloc(&mut p, size));
    p
}

pub fn pinned(size: usize) -> Pointer {
    let mut p = null_mut();
    ok!(cudaHostAlloc(&mut p, size, 0));
    p
}

pub fn malloc_async(size: usize, s: Stream) -> Pointer {
    let mut p = null_mut();
    ok!(cudaMallocAsync(&mut p, size, s));
    p
}

pub fn id(s: Stream) -> u64 {
    let mut n = 0;
    ok!(cudaStreamGetId(s, &mut n));
    n
}

/// Free and total memory.
pub fn memory() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    ok!(cudaMemGetInfo(&mut free, &mut total));
    (free, total)
}

/// What device memory holds.
pub fn read(p: *const c_void, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    ok!(cudaMemcpy(bytes.as_mut_ptr().cast(), p, len, D2H));
    bytes
}

/// Fills device memory, and waits until that is done.
pub fn fill(p: Pointer, value: i32, len: usize) {
    ok!(cudaMemset(p, value, len));
    ok!(cudaStreamSynchronize(null_mut()));
}

/// Bytes in which no two chunks are alike.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 255) as u8).collect()
}

/// Bytes that are told from one another by their beginning and number, so that a difference can be printed.
#[derive(PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Debug for Bytes {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        let start = &self.0[..self.0.len().min(16)];
        let sum = self.0.iter().fold(0u64, |sum, b| {
            sum.wrapping_mul(0x100_0000_01B3) ^ u64::from(*b)
        });
        write!(f, "{} bytes {start:x?}.. (hash {sum:x})", self.0.len())
    }
}

/// Work on a stream that ends when it is told to, and after ten seconds by itself.
pub struct Stall(Arc<(Gate, AtomicBool)>);

impl Stall {
    pub fn on(s: Stream) -> Stall {
        extern "C" fn wait(data: *mut c_void) {
            // SAFETY: the pointer was made by `Arc::into_raw` below, for this one call.
            let state = unsafe { Arc::from_raw(data.cast::<(Gate, AtomicBool)>()) };
            state.0.pass();
            state.1.store(true, Ordering::SeqCst);
        }
        let state = Arc::new((Gate::new(), AtomicBool::new(false)));
        let data = Arc::into_raw(state.clone()).cast_mut().cast();
        ok!(cudaLaunchHostFunc(s, Some(wait), data));
        Stall(state)
    }

    pub fn end(&self) {
        self.0.0.open();
    }

    /// Ends it after a while, from another thread.
    pub fn end_after(&self, milliseconds: u64) {
        drop(self.0.0.open_after(Duration::from_millis(milliseconds)));
    }

    pub fn is_over(&self) -> bool {
        self.0.1.load(Ordering::SeqCst)
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a call does while a stream is stalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    Returns,
    Waits,
}
pub use Shape::{Returns, Waits};

/// Makes a call while a stream is stalled, and tells its answer and its shape. The stall is 100 ms if the call is expected to
/// wait for its end, and three seconds otherwise, so that a busy machine is not taken for a call that waits. Waits for all
/// work afterwards.
pub fn beside_a_stall(s: Stream, expected: Shape, call: impl FnOnce() -> u32) -> (u32, Shape) {
    let stall = Stall::on(s);
    stall.end_after(if expected == Waits { 100 } else { 3_000 });
    let start = Instant::now();
    let code = call();
    let waited = stall.is_over() && start.elapsed() >= Duration::from_millis(60);
    stall.end();
    ok!(cudaDeviceSynchronize());
    (code, if waited { Waits } else { Returns })
}

/// Notes how a call that should succeed does beside a stall.
#[track_caller]
pub fn timed(what: &str, s: Stream, expected: Shape, call: impl FnOnce() -> u32) {
    crate::is(what, beside_a_stall(s, expected, call), (0, expected));
}

pub const LOCATION: sys::CUmemLocation =
    sys::cu_mem_location(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);

pub fn on_device_0() -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: LOCATION,
        ..Default::default()
    }
}

/// The driver's functions for streams; their types are not among the header's that are bound here.
type HtoD = Option<unsafe extern "C" fn(u64, Pointer, usize, Stream) -> sys::CUresult>;
type DtoH = Option<unsafe extern "C" fn(Pointer, u64, usize, Stream) -> sys::CUresult>;
type Record = Option<unsafe extern "C" fn(Event, Stream) -> sys::CUresult>;
type IsCapturing = Option<unsafe extern "C" fn(Stream, *mut u32) -> sys::CUresult>;

/// `cuMemcpyHtoDAsync`.
pub fn to_device(d: Pointer, h: Pointer, len: usize, s: Stream) -> u32 {
    driver!(c"cuMemcpyHtoDAsync", type HtoD(d as u64, h, len, s))
}

/// `cuMemcpyDtoHAsync`.
pub fn to_host(h: Pointer, d: Pointer, len: usize, s: Stream) -> u32 {
    driver!(c"cuMemcpyDtoHAsync", type DtoH(h, d as u64, len, s))
}

/// `cuEventRecord`.
pub fn record(e: Event, s: Stream) -> u32 {
    driver!(c"cuEventRecord", type Record(e, s))
}

/// `cuStreamIsCapturing`: its answer, and the status.
pub fn is_capturing(s: Stream) -> (u32, u32) {
    let mut status = 9;
    let code = driver!(c"cuStreamIsCapturing", type IsCapturing(s, &mut status));
    (code, status)
}

pub fn reserve(len: usize) -> (u32, u64) {
    let mut at = 0;
    let code = driver!(
        c"cuMemAddressReserve",
        PFN_cuMemAddressReserve_v10020(&mut at, len, 0, 0, 0)
    );
    (code, at)
}

pub fn give_back(at: u64, len: usize) -> u32 {
    driver!(c"cuMemAddressFree", PFN_cuMemAddressFree_v10020(at, len))
}

pub fn create(len: usize) -> (u32, u64) {
    let (mut handle, prop) = (0, on_device_0());
    let code = driver!(
        c"cuMemCreate",
        PFN_cuMemCreate_v10020(&mut handle, len, &prop, 0)
    );
    (code, handle)
}

pub fn release(handle: u64) -> u32 {
    driver!(c"cuMemRelease", PFN_cuMemRelease_v10020(handle))
}

pub fn map(at: u64, len: usize, handle: u64) -> u32 {
    driver!(c"cuMemMap", PFN_cuMemMap_v10020(at, len, 0, handle, 0))
}

pub fn unmap(at: u64, len: usize) -> u32 {
    driver!(c"cuMemUnmap", PFN_cuMemUnmap_v10020(at, len))
}

/// Lets device 0 read and write a mapped range.
pub fn allow(at: u64, len: usize) -> u32 {
    let entry = sys::CUmemAccessDesc {
        location: LOCATION,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    driver!(
        c"cuMemSetAccess",
        PFN_cuMemSetAccess_v10020(at, len, &entry, 1)
    )
}

/// Chunks of physical memory, mapped one after another.
pub struct Mapped {
    pub at: u64,
    pub chunk: usize,
    pub handles: Vec<u64>,
}

impl Mapped {
    pub fn new(chunk: usize, count: usize) -> Mapped {
        let (code, at) = reserve(chunk * count);
        assert_eq!(code, 0, "cuMemAddressReserve");
        let make = |_| {
            let (code, handle) = create(chunk);
            assert_eq!(code, 0, "cuMemCreate");
            handle
        };
        let handles: Vec<u64> = (0..count).map(make).collect();
        for (i, handle) in handles.iter().enumerate() {
            assert_eq!(map(at + (i * chunk) as u64, chunk, *handle), 0, "cuMemMap");
        }
        assert_eq!(allow(at, chunk * count), 0, "cuMemSetAccess");
        Mapped { at, chunk, handles }
    }

    pub fn len(&self) -> usize {
        self.chunk * self.handles.len()
    }

    pub fn pointer(&self, offset: usize) -> Pointer {
        (self.at + offset as u64) as Pointer
    }

    /// Unmaps and releases all of it, and gives the addresses back.
    pub fn end(self) {
        assert_eq!(unmap(self.at, self.len()), 0, "cuMemUnmap");
        for handle in &self.handles {
            assert_eq!(release(*handle), 0, "cuMemRelease");
        }
        assert_eq!(give_back(self.at, self.len()), 0, "cuMemAddressFree");
    }
}
