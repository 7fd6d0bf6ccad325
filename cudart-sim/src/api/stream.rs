//! Streams: made, asked, waited for, destroyed; host functions.

use super::device::PRIORITIES;
use super::{api, need, put};
use crate::engine::Kind;
use crate::error::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::runtime::{self, Guard, lock};
use crate::sys::{self, cudaEvent_t, cudaStream_t};
use crate::work::Work;
use crate::{check, thread, worker};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

fn create(place: *mut cudaStream_t, flags: c_uint, priority: c_int) -> Answer {
    need(place)?;
    let kind = match flags {
        sys::cudaStreamDefault => Kind::Blocking,
        sys::cudaStreamNonBlocking => Kind::NonBlocking,
        _ => return Err(INVALID_VALUE),
    };
    let priority = priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
    let mut rt = worker::pass_full_queues(lock());
    let slot = rt.engine.create(thread::device(), kind, priority);
    let uid = rt.engine.last(slot).uid;
    match rt.streams.insert((slot, uid)) {
        Ok(handle) => put(place, handle as cudaStream_t),
        Err(code) => {
            rt.retire_stream(slot, uid);
            Err(code)
        }
    }
}

/// Refuses to ask or wait for a stream where a capture forbids it.
fn may_ask(rt: &mut Guard, slot: u32) -> Answer {
    rt.forbid_captured(slot)?;
    rt.forbid_implicit(slot)?;
    rt.forbid_unsafe()
}

api! {
    fn cudaStreamCreate(pStream: *mut cudaStream_t) needs Context {
        create(pStream, 0, 0)
    }

    fn cudaStreamCreateWithFlags(pStream: *mut cudaStream_t, flags: c_uint) needs Context {
        create(pStream, flags, 0)
    }

    fn cudaStreamCreateWithPriority(
        pStream: *mut cudaStream_t,
        flags: c_uint,
        priority: c_int,
    ) needs Context {
        create(pStream, flags, priority)
    }

    fn cudaStreamDestroy(stream: cudaStream_t) needs Context {
        let handle = stream as usize;
        if handle <= 2 {
            return Err(INVALID_HANDLE);
        }
        let mut rt = lock();
        rt.stream(handle, "cudaStreamDestroy")?;
        let (slot, uid) = rt.streams.remove(handle).ok_or(INVALID_HANDLE)?;
        rt.retire_stream(slot, uid);
        Ok(())
    }

    fn cudaStreamGetPriority(hStream: cudaStream_t, priority: *mut c_int) needs Context {
        need(priority)?;
        let mut rt = lock();
        let slot = rt.stream(hStream as usize, "cudaStreamGetPriority")?;
        put(priority, rt.engine.stream(slot).map_or(0, |s| s.priority))
    }

    fn cudaStreamGetFlags(hStream: cudaStream_t, flags: *mut c_uint) needs Context {
        need(flags)?;
        let mut rt = lock();
        let slot = rt.stream(hStream as usize, "cudaStreamGetFlags")?;
        let non_blocking = rt
            .engine
            .stream(slot)
            .is_some_and(|s| s.kind == Kind::NonBlocking);
        put(flags, c_uint::from(non_blocking))
    }

    fn cudaStreamGetId(hStream: cudaStream_t, streamId: *mut c_ulonglong) needs Context {
        need(streamId)?;
        let mut rt = lock();
        let slot = rt.stream(hStream as usize, "cudaStreamGetId")?;
        rt.forbid_captured(slot)?;
        put(streamId, rt.engine.last(slot).uid)
    }

    fn cudaStreamGetDevice(hStream: cudaStream_t, device: *mut c_int) needs Context {
        need(device)?;
        let mut rt = lock();
        let slot = rt.stream(hStream as usize, "cudaStreamGetDevice")?;
        put(device, rt.engine.stream(slot).map_or(0, |s| s.device as c_int))
    }

    fn cudaStreamWaitEvent(
        stream: cudaStream_t,
        event: cudaEvent_t,
        flags: c_uint,
    ) needs Context {
        if flags != sys::cudaEventWaitDefault {
            return Err(INVALID_VALUE);
        }
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaStreamWaitEvent")?;
        let handle = event as usize;
        let event = rt.event(handle, "cudaStreamWaitEvent")?;
        let (recorded, captured) = (event.recorded.clone(), event.captured.clone());
        if rt.capture_wait(slot, captured, recorded.is_some())? {
            return Ok(());
        }
        // An event that was never recorded is waited for by nobody; a done one still makes the legacy stream a barrier.
        let Some((point, _)) = recorded else {
            return Ok(());
        };
        rt.engine.follow(slot, point);
        let seen = check::event(handle);
        let (rt, wait) = worker::submit(rt, "cudaStreamWaitEvent", slot, Work::Marker, vec![point])?;
        check::waited(wait.uid, &seen);
        drop(rt);
        Ok(())
    }

    fn cudaStreamSynchronize(stream: cudaStream_t) needs Context {
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaStreamSynchronize")?;
        may_ask(&mut rt, slot)?;
        let points = rt.stream_ends(slot);
        let seen = check::stream(&rt.engine, slot);
        drop(worker::wait(rt, &points));
        check::host_behind(&seen);
        runtime::broken(thread::device()).map_or(Ok(()), Err)
    }

    fn cudaStreamQuery(stream: cudaStream_t) needs Context {
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaStreamQuery")?;
        may_ask(&mut rt, slot)?;
        let points = rt.stream_ends(slot);
        let seen = check::stream(&rt.engine, slot);
        worker::query(rt, &points)?;
        check::host_behind(&seen);
        Ok(())
    }

    fn cudaLaunchHostFunc(
        stream: cudaStream_t,
        fn_: sys::cudaHostFn_t,
        userData: *mut c_void,
    ) needs Context {
        let function = fn_.ok_or(INVALID_VALUE)?;
        let mut rt = lock();
        let slot = rt.stream(stream as usize, "cudaLaunchHostFunc")?;
        drop(worker::submit(
            rt,
            "cudaLaunchHostFunc",
            slot,
            Work::Host(function, userData as usize),
            Vec::new(),
        )?);
        Ok(())
    }
}
