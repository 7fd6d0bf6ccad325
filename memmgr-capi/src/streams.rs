//! Streams as C names them: raw `cudaStream_t` handles, which are asked for their id in each call, and registered ones, which are
//! asked once.
//!
//! A registered stream lies in a slot of a table that only grows, so that a call reads it without a lock. A handle is the number of
//! the slot and that of its use; of a slot that was used again an old handle is known to be old.

use std::{
    cell::UnsafeCell,
    ffi::c_void,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use manager::{MemoryManager, PerThreadStream, Stream};

use crate::{
    CUstream_st,
    status::{Failure, call, memmgr_status, put},
};

/// A registered stream. 0 is none.
pub type memmgr_stream_t = u64;

/// The raw values of the default streams (`driver_types.h`).
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// A stream of one call.
pub(crate) enum Known {
    /// It stays known.
    Shared(&'static Stream),
    /// Of this call alone.
    Borrowed(Stream),
    /// The calling thread's.
    PerThread(PerThreadStream),
}

/// Runs an expression with whatever stream it is.
macro_rules! on_stream {
    ($known:expr, $stream:ident => $run:expr) => {
        match $known {
            $crate::streams::Known::Shared($stream) => $run,
            $crate::streams::Known::Borrowed(ref $stream) => $run,
            $crate::streams::Known::PerThread(ref $stream) => $run,
        }
    };
}
pub(crate) use on_stream;

/// The legacy streams of the devices, which CUDA never ends.
static LEGACY_STREAMS: [OnceLock<Stream>; 64] = [const { OnceLock::new() }; 64];

/// The legacy default stream of a device.
pub(crate) fn legacy(device: i32) -> Result<Known, Failure> {
    let place = usize::try_from(device)
        .ok()
        .and_then(|place| LEGACY_STREAMS.get(place));
    let Some(place) = place else {
        return Ok(Known::Borrowed(Stream::legacy(device)?));
    };
    if let Some(stream) = place.get() {
        return Ok(Known::Shared(stream));
    }
    let made = Stream::legacy(device)?;
    Ok(Known::Shared(place.get_or_init(|| made)))
}

/// The stream of a raw handle.
///
/// # Safety
/// `stream` is a live `cudaStream_t`, and stays so during the call.
pub(crate) unsafe fn raw(stream: *mut CUstream_st) -> Result<Known, Failure> {
    match stream.addr() {
        0 | LEGACY => legacy(manager::current_device()?),
        PER_THREAD => Ok(Known::PerThread(PerThreadStream::new()?)),
        // SAFETY: as this function demands.
        _ => unsafe { of_other(stream) },
    }
}

/// Memory in the order of a raw stream; the default streams are those of `device`, or else of the current one.
///
/// # Safety
/// As [`raw`].
pub(crate) unsafe fn allocate(
    device: Option<i32>,
    size: usize,
    stream: *mut CUstream_st,
) -> Result<*mut c_void, Failure> {
    let mm = MemoryManager::instance();
    if stream.addr() > PER_THREAD {
        // SAFETY: as this function demands.
        return Ok(unsafe { mm.allocate_device_on_raw(size, stream.cast::<c_void>())? });
    }
    let known = match device {
        // SAFETY: as this function demands.
        Some(device) => unsafe { raw_on(device, stream)? },
        // SAFETY: as this function demands.
        None => unsafe { raw(stream)? },
    };
    Ok(on_stream!(known, stream => mm.allocate_device_on(size, stream))?)
}

/// As [`raw`]; the default streams are those of `device`.
///
/// # Safety
/// As [`raw`].
pub(crate) unsafe fn raw_on(device: i32, stream: *mut CUstream_st) -> Result<Known, Failure> {
    match stream.addr() {
        0 | LEGACY => legacy(device),
        PER_THREAD => Ok(Known::PerThread(PerThreadStream::on(device)?)),
        // SAFETY: as this function demands.
        _ => unsafe { of_other(stream) },
    }
}

/// # Safety
/// As [`raw`].
unsafe fn of_other(stream: *mut CUstream_st) -> Result<Known, Failure> {
    // SAFETY: the handle is alive and stays so during the call, which drops what is made from it.
    let borrowed = unsafe { Stream::borrow_raw(stream.cast::<c_void>())? };
    Ok(Known::Borrowed(borrowed))
}

/// A place for a registered stream.
struct Slot {
    /// Odd while a stream is here; grows by one with each that comes and each that goes.
    turn: AtomicU32,
    stream: UnsafeCell<Option<Stream>>,
}

// SAFETY: `stream` is written only under the lock of `VACANT`, by who registers (nobody has a handle of that turn yet) and by who
// releases (nobody else uses the handle then: `memmgr_stream_release` demands it); otherwise it is only read. A `Stream` may be
// used by several threads.
unsafe impl Sync for Slot {}

/// How many slots are made at a time.
const CHUNK: usize = 64;
/// How many times that is done at most.
const CHUNKS: usize = 1024;

static SLOTS: [OnceLock<Box<[Slot; CHUNK]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// Slots without a stream, and how many there are in all.
struct Vacant {
    slots: Vec<u32>,
    made: usize,
}

static VACANT: Mutex<Vacant> = Mutex::new(Vacant {
    slots: Vec::new(),
    made: 0,
});

fn slot(number: usize) -> Option<&'static Slot> {
    SLOTS.get(number / CHUNK)?.get()?.get(number % CHUNK)
}

/// The slot of a handle whose stream is registered.
fn slot_of(handle: memmgr_stream_t) -> Option<(usize, &'static Slot)> {
    let number = (handle & u64::from(u32::MAX)) as usize;
    let found = slot(number)?;
    let turn = (handle >> 32) as u32;
    (turn % 2 == 1 && found.turn.load(Ordering::Acquire) == turn).then_some((number, found))
}

fn unknown(handle: memmgr_stream_t) -> Failure {
    Failure::argument(format!(
        "{handle:#x} is no registered stream (memmgr_stream_register makes one; it ends with memmgr_stream_release)"
    ))
}

/// The stream of a registered handle.
///
/// # Safety
/// Nobody releases the handle during the call.
#[inline]
pub(crate) unsafe fn registered(handle: memmgr_stream_t) -> Result<Known, Failure> {
    let stream = slot_of(handle).and_then(|(_, slot)| {
        // SAFETY: the turn says that a stream is here, and nobody takes it away during the call.
        unsafe { (*slot.stream.get()).as_ref() }
    });
    stream.map(Known::Shared).ok_or_else(|| unknown(handle))
}

impl Vacant {
    /// A slot, of those that were used or a new one.
    fn take(&mut self) -> Result<(usize, &'static Slot), Failure> {
        if let Some(number) = self.slots.pop().map(|number| number as usize) {
            return slot(number)
                .map(|slot| (number, slot))
                .ok_or_else(|| Failure::argument("the table of streams contradicts itself"));
        }
        let number = self.made;
        let Some(chunk) = SLOTS.get(number / CHUNK) else {
            return Err(Failure::argument(format!(
                "{} streams are registered: release some of them (memmgr_stream_release)",
                self.made
            )));
        };
        let made = chunk.get_or_init(|| {
            Box::new(std::array::from_fn(|_| Slot {
                turn: AtomicU32::new(0),
                stream: UnsafeCell::new(None),
            }))
        });
        self.made += 1;
        made.get(number % CHUNK)
            .map(|slot| (number, slot))
            .ok_or_else(|| Failure::argument("the table of streams contradicts itself"))
    }
}

/// Registers a stream, so that calls with the handle need not ask CUDA about it. Calls with the raw `cudaStream_t` gain as well,
/// as long as it is registered.
///
/// `stream` is a live `cudaStream_t`: its owner releases the handle before the stream is destroyed. It may be one of the default
/// streams: null and `cudaStreamLegacy` are that of the current device. `cudaStreamPerThread` cannot be registered, since it is
/// another stream on each thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_stream_register(
    stream: *mut CUstream_st,
    handle: *mut memmgr_stream_t,
) -> memmgr_status {
    call(|| {
        if handle.is_null() {
            return Err(Failure::argument("the pointer for the result is null"));
        }
        // SAFETY: the pointer is not null and may be written, says the caller.
        unsafe { put(handle, 0)? };
        // SAFETY: the stream is alive until the handle is released, says the caller.
        let made = unsafe { Stream::borrow_raw(stream.cast::<c_void>())? };
        let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, slot) = vacant.take()?;
        // SAFETY: the lock is held, and no handle of this turn exists.
        unsafe { *slot.stream.get() = Some(made) };
        let turn = slot.turn.load(Ordering::Relaxed).wrapping_add(1);
        slot.turn.store(turn, Ordering::Release);
        drop(vacant);
        // SAFETY: the pointer is not null and may be written, says the caller.
        unsafe { put(handle, u64::from(turn) << 32 | number as u64) }
    })
}

/// Releases a registered stream, before its owner destroys it. No other call may be using the handle. 0 is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmgr_stream_release(handle: memmgr_stream_t) -> memmgr_status {
    call(|| {
        if handle == 0 {
            return Ok(());
        }
        // In a forked child the lock may be held by a thread that it does not have.
        MemoryManager::instance().usable()?;
        let taken = {
            let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
            let (number, slot) = slot_of(handle).ok_or_else(|| unknown(handle))?;
            slot.turn.fetch_add(1, Ordering::AcqRel);
            vacant.slots.push(number as u32);
            // SAFETY: the lock is held, and nobody else uses the handle, says the caller.
            unsafe { (*slot.stream.get()).take() }
        };
        // Without the lock: the end of the stream is recorded.
        drop(taken);
        Ok(())
    })
}
