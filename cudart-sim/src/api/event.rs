//! Events: made, recorded, asked, waited for, destroyed.

use super::{api, need, put};
use crate::error::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED};
use crate::event::Event;
use crate::runtime::{self, lock};
use crate::sys::{self, cudaError, cudaEvent_t, cudaStream_t};
use crate::work::Work;
use crate::{check, thread, worker};
use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

const KNOWN: c_uint =
    sys::cudaEventBlockingSync | sys::cudaEventDisableTiming | sys::cudaEventInterprocess;

fn create(place: *mut cudaEvent_t, flags: c_uint) -> Answer {
    need(place)?;
    if flags & !KNOWN != 0 {
        return Err(INVALID_VALUE);
    }
    if flags & sys::cudaEventInterprocess != 0 {
        if flags & sys::cudaEventDisableTiming == 0 {
            return Err(INVALID_VALUE);
        }
        return Err(NOT_SUPPORTED);
    }
    let mut rt = worker::pass_full_queues(lock());
    let handle = rt.events.insert(Event {
        device: thread::device(),
        timing: flags & sys::cudaEventDisableTiming == 0,
        recorded: None,
        captured: None,
    })?;
    put(place, handle as cudaEvent_t)
}

pub(super) fn record(call: &str, event: cudaEvent_t, stream: cudaStream_t) -> Answer {
    let mut rt = lock();
    let slot = rt.stream(stream as usize, call)?;
    let device = rt.engine.stream(slot).map(|s| s.device);
    let known = rt.event(event as usize, call)?;
    if device != Some(known.device) {
        return Err(INVALID_HANDLE);
    }
    let timing = known.timing;
    if let Some(mark) = rt.capture_record(slot)? {
        let event = rt.event(event as usize, call)?;
        (event.recorded, event.captured) = (None, Some(mark));
        return Ok(());
    }
    let (work, time) = if timing {
        let time = Arc::new(AtomicU64::new(0));
        (Work::Stamp(time.clone()), Some(time))
    } else {
        (Work::Marker, None)
    };
    let (mut rt, point) = worker::submit(rt, call, slot, work, Vec::new())?;
    if let Some(known) = rt.events.get_mut(event as usize) {
        (known.recorded, known.captured) = (Some((point, time)), None);
        check::recorded(event as usize, point.uid);
    }
    Ok(())
}

api! {
    fn cudaEventCreate(event: *mut cudaEvent_t) needs Context {
        create(event, 0)
    }

    fn cudaEventCreateWithFlags(event: *mut cudaEvent_t, flags: c_uint) needs Context {
        create(event, flags)
    }

    fn cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) needs Context {
        record("cudaEventRecord", event, stream)
    }

    fn cudaEventQuery(event: cudaEvent_t) needs Context {
        let mut rt = lock();
        let known = rt.event(event as usize, "cudaEventQuery")?;
        let (recorded, captured) = (known.recorded.clone(), known.captured.clone());
        rt.forbid_event(captured)?;
        match recorded {
            None => Ok(()),
            Some((point, _)) => {
                let seen = check::event(event as usize);
                worker::query(rt, &[point])?;
                check::host_behind(&seen);
                Ok(())
            }
        }
    }

    fn cudaEventSynchronize(event: cudaEvent_t) needs Context {
        let mut rt = lock();
        let known = rt.event(event as usize, "cudaEventSynchronize")?;
        let (recorded, captured) = (known.recorded.clone(), known.captured.clone());
        rt.forbid_event(captured)?;
        if let Some((point, _)) = recorded {
            let seen = check::event(event as usize);
            drop(worker::wait(rt, &[point]));
            check::host_behind(&seen);
        }
        runtime::broken(thread::device()).map_or(Ok(()), Err)
    }

    fn cudaEventDestroy(event: cudaEvent_t) needs Context {
        let mut rt = lock();
        rt.event(event as usize, "cudaEventDestroy")?;
        rt.events.remove(event as usize);
        check::event_destroyed(event as usize);
        Ok(())
    }

    fn cudaEventElapsedTime(ms: *mut f32, start: cudaEvent_t, end: cudaEvent_t) needs Context {
        need(ms)?;
        let mut rt = lock();
        let mut times = [0u64; 2];
        let mut points = Vec::new();
        for (time, event) in times.iter_mut().zip([start, end]) {
            let event = rt.event(event as usize, "cudaEventElapsedTime")?;
            if event.captured.is_some() {
                return Err(cudaError::cudaErrorCapturedEvent);
            }
            let Some((point, Some(stamp))) = event.recorded.clone() else {
                return Err(INVALID_HANDLE);
            };
            points.push(point);
            *time = stamp.load(Acquire);
        }
        if points.iter().any(|p| !rt.engine.done(*p)) {
            rt.engine.demand(&points);
            worker::wake(&mut rt, 0);
            return Err(NOT_READY);
        }
        for event in [start, end] {
            check::host_behind(&check::event(event as usize));
        }
        let [start, end] = times;
        put(ms, (end as f64 - start as f64) as f32 / 1e6)
    }
}
