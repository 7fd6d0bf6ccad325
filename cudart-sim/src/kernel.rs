//! What stands for a kernel: a closure that runs in a stream and sees only the ranges that were declared.

use crate::check::called_from;
use crate::entry::{Needs, enter_named};
use crate::error::{Answer, INVALID_VALUE};
use crate::runtime::lock;
use crate::sys;
use crate::trace::Access;
use crate::work::{Place, Shape, Work};
use crate::{vmm, worker};
use std::ffi::c_void;
use std::panic::Location;
use std::time::Duration;

/// A range of device (or page-locked) memory: where it starts, and how many bytes it has.
pub type Range = (*const c_void, usize);

/// What a simulated kernel sees: copies of the ranges that it reads, and buffers for those that it writes.
#[derive(Debug)]
pub struct KernelView {
    /// The ranges that it reads, as they are when it starts.
    pub reads: Vec<Vec<u8>>,
    /// The ranges that it writes: their contents when it starts, written back when it ends.
    pub writes: Vec<Vec<u8>>,
}

/// Runs `f` in a stream, as a kernel that reads and writes just these ranges. Returns what a launch would:
/// `cudaErrorInvalidValue` for a range that is not inside one allocation, `cudaErrorInvalidResourceHandle` for a
/// destroyed stream. CUDA calls inside are refused with 800.
#[track_caller]
pub fn launch(
    stream: sys::cudaStream_t,
    reads: &[Range],
    writes: &[Range],
    f: impl FnOnce(&mut KernelView) + Send + 'static,
) -> sys::cudaError_t {
    launch_for(stream, Duration::ZERO, reads, writes, f)
}

/// Runs `f` in a stream as a host function that reads and writes these ranges itself: host memory, page-locked or not.
/// For the ordering checker; what `f` really touches is its own affair. CUDA calls inside are refused with 800.
#[track_caller]
pub fn launch_host(
    stream: sys::cudaStream_t,
    reads: &[Range],
    writes: &[Range],
    f: impl FnOnce() + Send + 'static,
) -> sys::cudaError_t {
    let site = Location::caller();
    let line = |write| {
        move |(pointer, len): &Range| {
            let place = Place::Host(*pointer as usize, false);
            Access::new(&place, Shape::line(*len), *len, write)
        }
    };
    let accesses = reads
        .iter()
        .map(line(false))
        .chain(writes.iter().map(line(true)))
        .collect();
    let work = Work::Kernel(Box::new(f), Duration::ZERO, accesses);
    enter_named(Needs::Context, || {
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "launch_host")?;
        called_from(site, || {
            worker::submit(rt, "launch_host", slot, work, Vec::new())
        })
        .map(drop)
    })
}

/// As [`launch`]; the kernel takes at least that long if a time model is on.
#[track_caller]
pub fn launch_for(
    stream: sys::cudaStream_t,
    duration: Duration,
    reads: &[Range],
    writes: &[Range],
    f: impl FnOnce(&mut KernelView) + Send + 'static,
) -> sys::cudaError_t {
    let site = Location::caller();
    enter_named(Needs::Context, || {
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "launch")?;
        let find = |(pointer, len): &Range| -> Answer<(Place, usize)> {
            let place = rt.memory.resolve(&rt.devices, *pointer as u64, *len)?;
            match place {
                Place::Host(_, false) => Err(INVALID_VALUE),
                _ => Ok((place, *len)),
            }
        };
        let reads = reads.iter().map(find).collect::<Answer<Vec<_>>>()?;
        let writes = writes.iter().map(find).collect::<Answer<Vec<_>>>()?;
        let touched = |write| {
            move |(place, len): &(Place, usize)| Access::new(place, Shape::line(*len), *len, write)
        };
        let accesses = reads
            .iter()
            .map(touched(false))
            .chain(writes.iter().map(touched(true)))
            .collect();
        let body = move || {
            let mut view = KernelView {
                reads: reads.iter().map(load).collect(),
                writes: writes.iter().map(load).collect(),
            };
            f(&mut view);
            for ((place, len), bytes) in writes.iter().zip(&view.writes) {
                if bytes.len() == *len {
                    store(place, bytes);
                }
            }
        };
        let work = Work::Kernel(Box::new(body), duration, accesses);
        called_from(site, || {
            worker::submit(rt, "launch", slot, work, Vec::new())
        })
        .map(drop)
    })
}

fn load((place, len): &(Place, usize)) -> Vec<u8> {
    let mut bytes = vec![0; *len];
    let to = Place::Host(bytes.as_mut_ptr() as usize, false);
    crate::work::copy_line(&to, place, *len);
    bytes
}

fn store(place: &Place, bytes: &[u8]) {
    let from = Place::Host(bytes.as_ptr() as usize, false);
    crate::work::copy_line(place, &from, bytes.len());
}

/// What device memory holds now, whatever is running: for tests. Empty if the range is not inside one allocation.
pub fn read_device(pointer: *const c_void, len: usize) -> Vec<u8> {
    if crate::runtime::forked() {
        return Vec::new();
    }
    let rt = lock();
    let place = rt.memory.resolve(&rt.devices, pointer as u64, len);
    drop(rt);
    match place {
        Ok(place @ (Place::Device(..) | Place::Host(_, true))) => load(&(place, len)),
        // Only what can be read: a look from outside breaks nothing.
        Ok(Place::Mapped(at, _)) => {
            let owner = vmm::mapping(at).map_or(0, |(_, m)| m.device);
            if vmm::piece(at, owner, false).is_none() {
                return Vec::new();
            }
            load(&(Place::Mapped(at, owner), len))
        }
        _ => Vec::new(),
    }
}
