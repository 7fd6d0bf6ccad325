//! What a stream can be asked to do, and the doing of it.

use crate::config::TimeModel;
use crate::contents::Space;
use crate::graph::Body;
use crate::mirror::{copy_bytes, fill_bytes};
use crate::sys::cudaError;
use crate::trace::Access;
use crate::{runtime, thread, vmm};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Release};
use std::time::Duration;

/// Work below this is done by the submitting thread when nothing is in its way.
const SMALL: usize = 32 << 10;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// An offset in the memory of a device.
    Device(Arc<Space>, usize),
    /// An address that the page table translates when the work runs, and the device that runs it.
    Mapped(u64, u32),
    /// An address of host memory; whether it is page-locked.
    Host(usize, bool),
}

/// Rows of bytes. One row: the pitches do not matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) src_pitch: usize,
}

impl Place {
    /// The address as the program sees it.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Place::Device(space, at) => space.base() + *at as u64,
            Place::Mapped(at, _) => *at,
            Place::Host(at, _) => *at as u64,
        }
    }

    /// Whether it is device memory.
    pub(crate) fn on_device(&self) -> bool {
        matches!(self, Place::Device(..) | Place::Mapped(..))
    }

    /// The same place as it is reached by work of another device.
    pub(crate) fn reached_by(self, device: u32) -> Place {
        match self {
            Place::Mapped(at, _) => Place::Mapped(at, device),
            other => other,
        }
    }

    /// The first part of `len` bytes from `offset` on, and how long it is. An address that the device may not reach
    /// breaks its context.
    fn part(&self, offset: usize, len: usize, write: bool) -> Option<(Part, usize)> {
        match self {
            Place::Host(at, _) => Some((Part::Host(at + offset), len)),
            Place::Device(space, at) => Some((Part::Device(space.clone(), at + offset), len)),
            Place::Mapped(address, device) => {
                let found = address
                    .checked_add(offset as u64)
                    .and_then(|address| vmm::piece(address, *device, write));
                let Some((space, at, rest)) = found else {
                    runtime::set_broken(*device, ILLEGAL_ADDRESS);
                    return None;
                };
                Some((Part::Device(space, at), rest.min(len)))
            }
        }
    }
}

/// What work calls an address that it must not touch.
const ILLEGAL_ADDRESS: u32 = cudaError::cudaErrorIllegalAddress.0;

/// A stretch of memory that lies in one piece.
enum Part {
    Host(usize),
    Device(Arc<Space>, usize),
}

impl Shape {
    pub(crate) fn line(width: usize) -> Shape {
        Shape {
            width,
            height: 1,
            dst_pitch: width,
            src_pitch: width,
        }
    }

    /// From the first byte of the first row to the last byte of the last; `None` if that overflows.
    pub(crate) fn extent(&self, pitch: usize) -> Option<usize> {
        match self.height {
            0 => Some(0),
            n => pitch.checked_mul(n - 1)?.checked_add(self.width),
        }
    }

    fn bytes(&self) -> usize {
        self.width.saturating_mul(self.height)
    }

    /// The same rows as one row, where they lie without gaps.
    fn flat(self) -> Shape {
        if self.dst_pitch == self.width && self.src_pitch == self.width {
            Shape::line(self.bytes())
        } else {
            self
        }
    }
}

/// One operation of a stream.
pub(crate) enum Work {
    /// Nothing: a place in the stream's order (event records, waits, frees).
    Marker,
    /// Notes the time, for an event that measures.
    Stamp(Arc<AtomicU64>),
    Copy {
        dst: Place,
        src: Place,
        shape: Shape,
    },
    /// A copy whose source was read when it was submitted.
    Staged {
        dst: Place,
        bytes: Box<[u8]>,
    },
    Fill {
        dst: Place,
        value: u8,
        shape: Shape,
    },
    /// A host function and its argument.
    Host(unsafe extern "C" fn(*mut std::ffi::c_void), usize),
    /// All operations of a graph, one after another.
    Graph(Arc<Body>),
    /// What stands for a kernel, how long it takes at least, and what it touches.
    Kernel(Box<dyn FnOnce() + Send>, Duration, Vec<Access>),
}

/// Nanoseconds since the first question.
pub(crate) fn now() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Work {
    pub(crate) fn is_marker(&self) -> bool {
        matches!(self, Work::Marker | Work::Stamp(_))
    }

    /// Whether it is so little that handing it to another thread would take longer.
    pub(crate) fn is_small(&self) -> bool {
        match self {
            Work::Marker | Work::Stamp(_) => true,
            Work::Copy { shape, .. } | Work::Fill { shape, .. } => shape.bytes() <= SMALL,
            Work::Staged { bytes, .. } => bytes.len() <= SMALL,
            Work::Host(..) | Work::Kernel(..) | Work::Graph(_) => false,
        }
    }

    /// Whether it may wait for something that other work does, so that it must have a thread of its own.
    pub(crate) fn may_block(&self) -> bool {
        match self {
            Work::Host(..) | Work::Kernel(..) => true,
            Work::Graph(body) => body.may_block,
            _ => false,
        }
    }

    /// Which memory it reads and writes. Page-locked and pageable memory count; a staged source was read long ago.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        match self {
            Work::Marker | Work::Stamp(_) | Work::Host(..) => Vec::new(),
            Work::Copy { dst, src, shape } => vec![
                Access::new(src, *shape, shape.src_pitch, false),
                Access::new(dst, *shape, shape.dst_pitch, true),
            ],
            Work::Staged { dst, bytes } => {
                let shape = Shape::line(bytes.len());
                vec![Access::new(dst, shape, shape.width, true)]
            }
            Work::Fill { dst, shape, .. } => {
                vec![Access::new(dst, *shape, shape.dst_pitch, true)]
            }
            Work::Kernel(_, _, accesses) => accesses.clone(),
            Work::Graph(body) => body
                .nodes
                .iter()
                .flat_map(|n| n.step.work().accesses())
                .collect(),
        }
    }

    /// How long the modelled machine takes for it.
    pub(crate) fn cost(&self, model: &TimeModel) -> Duration {
        let (bytes, rate) = match self {
            Work::Marker | Work::Stamp(_) | Work::Host(..) => return Duration::ZERO,
            Work::Kernel(_, time, _) => return model.latency + *time,
            Work::Graph(body) => return body.nodes.iter().map(|n| n.step.work().cost(model)).sum(),
            Work::Copy { dst, src, shape } => {
                let pinned = [dst, src]
                    .iter()
                    .all(|p| !matches!(p, Place::Host(_, false)));
                let inside = [dst, src].iter().all(|p| p.on_device());
                let rate = match (inside, pinned) {
                    (true, _) => model.device_gb_s,
                    (_, true) => model.pinned_gb_s,
                    _ => model.pageable_gb_s,
                };
                (shape.bytes(), rate)
            }
            Work::Staged { bytes, .. } => (bytes.len(), model.pageable_gb_s),
            Work::Fill { shape, .. } => (shape.bytes(), model.device_gb_s),
        };
        let time = Duration::try_from_secs_f64(bytes as f64 / (rate.max(1e-3) * 1e9));
        model.latency + time.unwrap_or(Duration::ZERO)
    }

    /// Over which bus, and which way, it moves bytes: 0 to a device, 1 to the host, `None` neither.
    pub(crate) fn direction(&self) -> Option<usize> {
        match self {
            Work::Staged { .. } => Some(0),
            Work::Copy { dst, src, .. } => match (dst.on_device(), src.on_device()) {
                (true, false) => Some(0),
                (false, true) => Some(1),
                _ => None,
            },
            _ => None,
        }
    }

    /// Does it.
    pub(crate) fn run(self) {
        match self {
            Work::Marker => {}
            Work::Stamp(time) => time.store(now(), Release),
            Work::Copy { dst, src, shape } => copy(&dst, &src, shape.flat()),
            Work::Staged { dst, bytes } => {
                let src = Place::Host(bytes.as_ptr() as usize, false);
                copy(&dst, &src, Shape::line(bytes.len()));
            }
            Work::Fill { dst, value, shape } => fill(&dst, value, shape.flat()),
            Work::Host(function, argument) => {
                // SAFETY: whoever launched the host function promised that it may be called with this argument.
                thread::as_host_function(|| unsafe { function(argument as *mut std::ffi::c_void) });
            }
            Work::Graph(body) => {
                for node in &body.nodes {
                    node.step.work().run();
                }
            }
            Work::Kernel(body, ..) => thread::as_host_function(|| {
                // A closure that panics is a failed kernel of a test: say so, and go on.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
                    eprintln!("cudart-sim: the closure of a simulated kernel panicked");
                }
            }),
        }
    }
}

/// Copies bytes that lie in one row.
pub(crate) fn copy_line(dst: &Place, src: &Place, len: usize) {
    copy(dst, src, Shape::line(len));
}

fn copy(dst: &Place, src: &Place, shape: Shape) {
    for row in 0..shape.height {
        let (to, from) = (row * shape.dst_pitch, row * shape.src_pitch);
        let mut done = 0;
        while done < shape.width {
            let rest = shape.width - done;
            let Some((source, have)) = src.part(from + done, rest, false) else {
                return;
            };
            let Some((target, room)) = dst.part(to + done, rest, true) else {
                return;
            };
            let len = have.min(room);
            copy_part(&target, &source, len);
            done += len;
        }
    }
}

fn copy_part(dst: &Part, src: &Part, len: usize) {
    match (dst, src) {
        // SAFETY: host ranges are valid until the copy is done, by the contract of the copy functions.
        (Part::Host(dst), Part::Host(src)) => unsafe { copy_bytes(*dst, *src, len) },
        // SAFETY: as above.
        (Part::Device(space, at), Part::Host(src)) => unsafe { space.write(*at, *src, len) },
        // SAFETY: as above.
        (Part::Host(dst), Part::Device(space, at)) => unsafe { space.read(*at, *dst, len) },
        (Part::Device(space, at), Part::Device(other, from)) => {
            space.copy_from(*at, other, *from, len);
        }
    }
}

fn fill(dst: &Place, value: u8, shape: Shape) {
    for row in 0..shape.height {
        let mut done = 0;
        while done < shape.width {
            let offset = row * shape.dst_pitch + done;
            let Some((target, len)) = dst.part(offset, shape.width - done, true) else {
                return;
            };
            match target {
                Part::Device(space, at) => space.fill(at, len, value),
                // SAFETY: only page-locked memory is filled, and it stays until the device is idle.
                Part::Host(at) => unsafe { fill_bytes(at, value, len) },
            }
            done += len;
        }
    }
}
