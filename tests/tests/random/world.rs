//! What the threads of one program share: the manager, streams, and everything that passes from thread to thread.

use crate::common::{bytes, bytes_mut};
use memmgr::{
    DeviceBuffer, Event, Graph, MemoryManager, PinnedBuffer, Stream, Transfer, TransferResult,
};
use memmgr_tests::Rng;
use std::{
    collections::BTreeMap,
    ffi::c_void,
    future::IntoFuture,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream, and the raw one that it borrows, which goes after it.
pub struct Lane {
    pub stream: Stream,
    _lent: Option<Lent>,
}

struct Lent(usize);

impl Drop for Lent {
    fn drop(&mut self) {
        let raw = std::ptr::with_exposed_provenance_mut(self.0);
        // SAFETY: the stream was made for this, and its last handle is gone.
        let code = unsafe { cuda_sys::cudaStreamDestroy(raw) };
        assert!(code.0 == 0 || std::thread::panicking(), "cudaStreamDestroy");
    }
}

impl Lane {
    pub fn new(rng: &mut Rng) -> Arc<Self> {
        let mut lent = None;
        let stream = match rng.below(12) {
            0 => Stream::legacy(0),
            1 | 2 => Stream::builder().blocking(true).build(),
            3 | 4 => {
                let raw = raw_stream();
                lent = Some(Lent(raw.expose_provenance()));
                // SAFETY: the raw stream outlives the handles, which are in the lane alone or borrow from it.
                unsafe { Stream::borrow_raw(raw) }
            }
            5 => {
                // SAFETY: the stream is new and now belongs to its handles.
                unsafe { Stream::from_raw(raw_stream()) }
            }
            _ => Stream::new(),
        };
        Arc::new(Self {
            stream: stream.expect("a stream"),
            _lent: lent,
        })
    }
}

fn raw_stream() -> *mut c_void {
    let mut raw = std::ptr::null_mut();
    // SAFETY: `raw` is a place for one handle.
    let code =
        unsafe { cuda_sys::cudaStreamCreateWithFlags(&mut raw, cuda_sys::cudaStreamNonBlocking) };
    assert_eq!(code.0, 0, "cudaStreamCreateWithFlags");
    raw.cast()
}

/// A raw pointer of the manager, with what is in it.
pub struct Raw {
    pub address: usize,
    /// Follows all that uses it; `None`: the host knows that nothing does.
    pub after: Option<Event>,
    /// The manager knows of its last use.
    pub recorded: bool,
    pub expect: Vec<u8>,
}

impl Raw {
    pub fn ptr(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    pub fn len(&self) -> usize {
        self.expect.len()
    }
}

pub struct Guard {
    pub buffer: DeviceBuffer<u8>,
    pub expect: Vec<u8>,
}

/// Pinned memory that a copy was submitted to, and what has to arrive.
pub struct Check {
    pub host: Host,
    pub expect: Vec<u8>,
    pub what: &'static str,
}

pub enum Host {
    Guard(PinnedBuffer<u8>),
    Raw { address: usize, after: Event },
}

pub enum Transferring {
    ToDevice(Transfer<PinnedBuffer<u8>, DeviceBuffer<u8>>, Vec<u8>),
    ToHost(Transfer<DeviceBuffer<u8>, PinnedBuffer<u8>>, Vec<u8>),
}

/// A graph with the buffer that it writes, as long as that is there, and what it leaves in it.
pub struct Captured {
    pub graph: Graph,
    pub target: Option<Guard>,
    pub effect: Vec<u8>,
}

pub type Tally = BTreeMap<&'static str, u64>;

pub struct World {
    pub mm: MemoryManager,
    pub cap: usize,
    /// Whether the device has memory pools.
    pub has_pools: bool,
    /// Whether the threads run all at once.
    pub at_once: bool,
    pub lanes: Vec<Mutex<Arc<Lane>>>,
    pub raws: Mutex<Vec<Raw>>,
    pub guards: Mutex<Vec<Guard>>,
    pub checks: Mutex<Vec<Check>>,
    pub transfers: Mutex<Vec<Transferring>>,
    pub captured: Mutex<Vec<Captured>>,
    pub events: Mutex<Vec<Event>>,
    /// Forgotten, as far as the program is concerned; what is left over would be left over for good.
    pub forgotten: Mutex<Vec<Transferring>>,
    /// Pageable memory that copies may read until all has ended.
    pub pageable: Mutex<Vec<Vec<u8>>>,
    pub gate: Mutex<Option<JoinHandle<()>>>,
    /// What was done, and how often.
    pub tally: Mutex<Tally>,
    pub verified: AtomicU64,
    pub verified_bytes: AtomicU64,
}

impl World {
    pub fn count(&self, what: &'static str) {
        *lock(&self.tally).entry(what).or_default() += 1;
    }

    pub fn verify(&self, got: &[u8], expect: &[u8], what: &str) {
        assert_eq!(got.len(), expect.len(), "{what}");
        if got != expect {
            let at = got.iter().zip(expect).position(|(a, b)| a != b);
            let at = at.unwrap_or_default();
            panic!(
                "{what}: byte {at} of {} is {:#04x}, not {:#04x}",
                expect.len(),
                got[at],
                expect[at]
            );
        }
        self.verified.fetch_add(1, Relaxed);
        self.verified_bytes.fetch_add(got.len() as u64, Relaxed);
    }

    /// Waits for one copy and looks at it; the pinned buffer, to be used again.
    pub fn settle(&self, check: Check) -> Option<PinnedBuffer<u8>> {
        let Check { host, expect, what } = check;
        match host {
            Host::Guard(buffer) => {
                self.verify(buffer.as_slice().unwrap(), &expect, what);
                Some(buffer)
            }
            Host::Raw { address, after } => {
                after.synchronize().unwrap();
                let ptr = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: the copy has run, and the block is ours.
                unsafe {
                    self.verify(bytes(ptr, expect.len()), &expect, what);
                    self.mm.free_pinned(ptr).unwrap();
                }
                None
            }
        }
    }

    /// What a transfer leaves, looked at.
    pub fn arrive(&self, transfer: Transferring) {
        match transfer {
            Transferring::ToDevice(transfer, expect) => {
                let (host, buffer) = end(transfer, expect.len()).unwrap();
                self.verify(
                    host.as_slice().unwrap(),
                    &expect,
                    "the source of a transfer",
                );
                lock(&self.guards).push(Guard { buffer, expect });
            }
            Transferring::ToHost(transfer, expect) => {
                let (buffer, host) = end(transfer, expect.len()).unwrap();
                self.verify(
                    host.as_slice().unwrap(),
                    &expect,
                    "the target of a transfer",
                );
                lock(&self.guards).push(Guard { buffer, expect });
            }
        }
    }
}

/// Waits for a transfer, or awaits it.
fn end<S, D>(transfer: Transfer<S, D>, len: usize) -> TransferResult<S, D, (S, D)> {
    if len.is_multiple_of(3) {
        pollster::block_on(transfer.into_future())
    } else {
        transfer.wait()
    }
}

/// Takes one of these, at random.
pub fn take<T>(from: &Mutex<Vec<T>>, rng: &mut Rng) -> Option<T> {
    let mut from = lock(from);
    let len = from.len() as u64;
    (len > 0).then(|| from.swap_remove(rng.below(len) as usize))
}

/// Writes pinned memory.
///
/// # Safety
/// `ptr` has that many bytes that nobody else uses.
pub unsafe fn write(ptr: *mut c_void, contents: &[u8]) {
    // SAFETY: as this function demands.
    unsafe { bytes_mut(ptr, contents.len()) }.copy_from_slice(contents);
}
