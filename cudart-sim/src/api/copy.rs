//! Copies and fills: what may be copied where, and which calls wait.
//!
//! Page-locked memory: the call returns at once. Pageable memory: a small copy to a device is read at once and returns;
//! a larger one, and any copy to the host, returns when it is done. The legacy forms return when the copy is done,
//! except inside a device and for fills, which the host does not wait for.

use super::api;
use crate::capture::Status;
use crate::error::{Answer, INVALID_VALUE};
use crate::memory::Source;
use crate::runtime::{self, Runtime, lock};
use crate::sys::{cudaError, cudaMemcpyKind as Kind, cudaStream_t};
use crate::work::{Place, Shape, Work};
use crate::{check, thread, vmm, worker};
use std::ffi::{c_int, c_void};

/// Pageable copies to a device up to this return before they are done.
const STAGED: usize = 64 << 10;

/// What an argument must point at.
///
/// With unified addressing the runtime knows each pointer better than the kind does: all that a kind excludes (measured
/// for every kind and pair) is pageable memory where it says device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    /// Memory that the device reaches.
    Device,
    Any,
}

impl Runtime {
    /// A copy of a pool's memory wants its device to be current (measured), or one that was given access to it; the stream's
    /// does not count. A fill does not ask.
    fn reach_from_here(&self, address: u64) -> Answer {
        let here = thread::device();
        let Some((_, block)) = self.memory.block(address) else {
            return Ok(());
        };
        let Source::Pool(place) = block.source else {
            return Ok(());
        };
        let pool = self.pools.get(place).and_then(|p| p.as_ref());
        let reached = block.host
            || block.device == here
            || pool.is_some_and(|pool| pool.access.get(&here).is_some_and(|flags| *flags != 0));
        reached.then_some(()).ok_or(INVALID_VALUE)
    }

    fn place(&self, pointer: usize, extent: usize, want: Want) -> Answer<Place> {
        let place = self.memory.resolve(&self.devices, pointer as u64, extent)?;
        match (want, &place) {
            // The device reaches page-locked memory too.
            (Want::Device, Place::Host(_, false)) => Err(INVALID_VALUE),
            _ => Ok(place),
        }
    }
}

fn wants(kind: Kind) -> Answer<(Want, Want)> {
    Ok(match kind {
        Kind::cudaMemcpyHostToHost => (Want::Any, Want::Any),
        Kind::cudaMemcpyHostToDevice => (Want::Device, Want::Any),
        Kind::cudaMemcpyDeviceToHost => (Want::Any, Want::Device),
        Kind::cudaMemcpyDeviceToDevice => (Want::Device, Want::Device),
        Kind::cudaMemcpyDefault => (Want::Any, Want::Any),
        _ => return Err(cudaError::cudaErrorInvalidMemcpyDirection),
    })
}

/// What a copy of rows that are longer than their pitch is answered with: another code for one row than for several
/// (measured).
fn pitch_error(shape: Shape) -> cudaError {
    if shape.height > 1 {
        cudaError::cudaErrorInvalidPitchValue
    } else {
        INVALID_VALUE
    }
}

/// One end of a copy as the caller gives it.
type End = *const c_void;

pub(super) fn copy(
    call: &str,
    dst: End,
    src: End,
    shape: Shape,
    kind: Kind,
    stream: Option<cudaStream_t>,
) -> Answer {
    let (want_dst, want_src) = wants(kind)?;
    if shape.width > shape.dst_pitch || shape.width > shape.src_pitch {
        return Err(pitch_error(shape));
    }
    let mut rt = lock();
    let slot = rt.stream(stream.map_or(0, |s| s as usize), call)?;
    if shape.width == 0 || shape.height == 0 {
        return Ok(());
    }
    let dst_extent = shape.extent(shape.dst_pitch).ok_or(INVALID_VALUE)?;
    let src_extent = shape.extent(shape.src_pitch).ok_or(INVALID_VALUE)?;
    let device = rt.engine.stream(slot).map_or(0, |s| s.device);
    let reached = |place: Place| place.reached_by(device);
    rt.reach_from_here(dst as u64)?;
    rt.reach_from_here(src as u64)?;
    let dst = rt.place(dst as usize, dst_extent, want_dst).map(reached)?;
    let src = rt.place(src as usize, src_extent, want_src).map(reached)?;
    rt.forbid_implicit(slot)?;
    let captured = rt.capture_status(slot) != Status::None;
    let pageable = [&dst, &src]
        .iter()
        .any(|p| matches!(p, Place::Host(_, false)));
    let pageable_source = match &src {
        Place::Host(at, false) if dst.on_device() && !captured => Some(*at),
        _ => None,
    };
    let (work, wait) = match (dst, src) {
        (dst @ (Place::Device(..) | Place::Mapped(..)), Place::Host(at, false))
            if !captured && stream.is_some() && shape.height == 1 && shape.width <= STAGED =>
        {
            // SAFETY: the source is readable for that many bytes, by the contract of the copy functions.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, shape.width) };
            let bytes = bytes.into();
            (Work::Staged { dst, bytes }, false)
        }
        (dst, src) => {
            let inside = dst.on_device() && src.on_device();
            let hosts = matches!((&dst, &src), (Place::Host(..), Place::Host(..)));
            let wait = !inside && (stream.is_none() || pageable || hosts);
            (Work::Copy { dst, src, shape }, wait)
        }
    };
    // A plain copy waits for its stream, then reads the source, and tells no more when it returns.
    let before = match (pageable_source, stream) {
        (Some(_), None) => Some(check::stream(&rt.engine, slot)),
        (Some(at), Some(_)) => {
            check::pageable_source(call, at, shape);
            Some(check::Seen::default())
        }
        (None, _) => None,
    };
    let (rt, point) = worker::submit(rt, call, slot, work, Vec::new())?;
    if wait && !captured {
        let seen = before.unwrap_or_else(|| check::operation(point.uid));
        drop(worker::wait(rt, &[point]));
        check::host_behind(&seen);
        if let (Some(at), None) = (pageable_source, stream) {
            check::pageable_source(call, at, shape);
        }
        return runtime::broken(device).map_or(Ok(()), Err);
    }
    Ok(())
}

fn fill(
    call: &str,
    pointer: *mut c_void,
    value: c_int,
    shape: Shape,
    stream: Option<cudaStream_t>,
) -> Answer {
    // The pitch of a single row does not matter (measured).
    let shape = match shape.height {
        1 => Shape::line(shape.width),
        _ if shape.width > shape.dst_pitch => return Err(INVALID_VALUE),
        _ => shape,
    };
    let mut rt = lock();
    let slot = rt.stream(stream.map_or(0, |s| s as usize), call)?;
    if shape.width == 0 || shape.height == 0 {
        return Ok(());
    }
    let extent = shape.extent(shape.dst_pitch).ok_or(INVALID_VALUE)?;
    let device = rt.engine.stream(slot).map_or(0, |s| s.device);
    let dst = rt
        .place(pointer as usize, extent, Want::Device)?
        .reached_by(device);
    let wait = stream.is_none() && matches!(dst, Place::Host(..));
    // Only the lowest byte counts.
    let value = value as u8;
    let (rt, point) = worker::submit(rt, call, slot, Work::Fill { dst, value, shape }, Vec::new())?;
    if wait {
        let seen = check::operation(point.uid);
        drop(worker::wait(rt, &[point]));
        check::host_behind(&seen);
    }
    Ok(())
}

fn rows(width: usize, height: usize, dst_pitch: usize, src_pitch: usize) -> Shape {
    Shape {
        width,
        height,
        dst_pitch,
        src_pitch,
    }
}

api! {
    fn cudaMemcpy(
        dst: *mut c_void,
        src: *const c_void,
        count: usize,
        kind: Kind,
    ) needs Context {
        copy("cudaMemcpy", dst, src, Shape::line(count), kind, None)
    }

    fn cudaMemcpyAsync(
        dst: *mut c_void,
        src: *const c_void,
        count: usize,
        kind: Kind,
        stream: cudaStream_t,
    ) needs Context {
        copy("cudaMemcpyAsync", dst, src, Shape::line(count), kind, Some(stream))
    }

    fn cudaMemcpy2D(
        dst: *mut c_void,
        dpitch: usize,
        src: *const c_void,
        spitch: usize,
        width: usize,
        height: usize,
        kind: Kind,
    ) needs Context {
        let shape = rows(width, height, dpitch, spitch);
        copy("cudaMemcpy2D", dst, src, shape, kind, None)
    }

    fn cudaMemcpy2DAsync(
        dst: *mut c_void,
        dpitch: usize,
        src: *const c_void,
        spitch: usize,
        width: usize,
        height: usize,
        kind: Kind,
        stream: cudaStream_t,
    ) needs Context {
        let shape = rows(width, height, dpitch, spitch);
        copy("cudaMemcpy2DAsync", dst, src, shape, kind, Some(stream))
    }

    fn cudaMemcpyPeerAsync(
        dst: *mut c_void,
        dstDevice: c_int,
        src: *const c_void,
        srcDevice: c_int,
        count: usize,
        stream: cudaStream_t,
    ) needs Context {
        {
            let mut rt = lock();
            // The devices have to exist; where the memory lies, its address tells (measured).
            for (pointer, device) in [(dst as u64, dstDevice), (src as u64, srcDevice)] {
                rt.device(device)?;
                let on_a_device = rt.memory.block(pointer).is_some_and(|(_, b)| !b.host)
                    || vmm::mapping(pointer).is_some();
                if count > 0 && !on_a_device {
                    return Err(INVALID_VALUE);
                }
            }
        }
        let kind = Kind::cudaMemcpyDeviceToDevice;
        copy("cudaMemcpyPeerAsync", dst, src, Shape::line(count), kind, Some(stream))
    }

    fn cudaMemset(devPtr: *mut c_void, value: c_int, count: usize) needs Context {
        fill("cudaMemset", devPtr, value, Shape::line(count), None)
    }

    fn cudaMemsetAsync(
        devPtr: *mut c_void,
        value: c_int,
        count: usize,
        stream: cudaStream_t,
    ) needs Context {
        fill("cudaMemsetAsync", devPtr, value, Shape::line(count), Some(stream))
    }

    fn cudaMemset2DAsync(
        devPtr: *mut c_void,
        pitch: usize,
        value: c_int,
        width: usize,
        height: usize,
        stream: cudaStream_t,
    ) needs Context {
        // A fill has no source: its pitch is the target's, so that rows without gaps are one row.
        let shape = rows(width, height, pitch, pitch);
        fill("cudaMemset2DAsync", devPtr, value, shape, Some(stream))
    }
}
