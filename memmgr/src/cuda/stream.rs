//! Streams and events.

use super::{
    RawEvent, RawStream,
    call::{ask, call, call_relaxed},
    count::Call,
    quick::by_driver,
};
use crate::error::Result;
use cuda_sys as sys;
use std::{ffi::c_void, ptr};

/// A new stream on the current device.
pub(crate) fn stream_create(flags: u32, priority: i32) -> Result<RawStream> {
    let mut stream = ptr::null_mut();
    // SAFETY: `stream` is a place for one handle.
    call(Call::StreamCreate, || unsafe {
        sys::cudaStreamCreateWithPriority(&mut stream, flags, priority)
    })?;
    Ok(RawStream(stream.expose_provenance()))
}

/// # Safety
/// The handle is alive and nobody uses it afterwards.
pub(crate) unsafe fn stream_destroy(stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::StreamDestroy, || unsafe {
        sys::cudaStreamDestroy(stream.get())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_id(stream: RawStream) -> Result<u64> {
    let mut id = 0;
    // SAFETY: the handle is alive, `id` is a place for one number.
    call(Call::StreamGetId, || unsafe {
        sys::cudaStreamGetId(stream.get(), &mut id)
    })?;
    Ok(id)
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_flags(stream: RawStream) -> Result<u32> {
    let mut flags = 0;
    // SAFETY: the handle is alive, `flags` is a place for one number.
    call(Call::StreamGetFlags, || unsafe {
        sys::cudaStreamGetFlags(stream.get(), &mut flags)
    })?;
    Ok(flags)
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_device(stream: RawStream) -> Result<i32> {
    let mut device = 0;
    // SAFETY: the handle is alive, `device` is a place for one number.
    call(Call::StreamGetDevice, || unsafe {
        sys::cudaStreamGetDevice(stream.get(), &mut device)
    })?;
    Ok(device)
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_query(stream: RawStream) -> Result<bool> {
    // SAFETY: as this function demands.
    ask(Call::StreamQuery, || unsafe {
        sys::cudaStreamQuery(stream.get())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn stream_synchronize(stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::StreamSynchronize, || unsafe {
        sys::cudaStreamSynchronize(stream.get())
    })
}

/// # Safety
/// Both handles are alive.
pub(crate) unsafe fn stream_wait_event(stream: RawStream, event: RawEvent) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::StreamWaitEvent, || unsafe {
        sys::cudaStreamWaitEvent(stream.get(), event.get(), 0)
    })
}

/// # Safety
/// The handle is alive; `function` may be called once with `data`, on another thread, and makes no CUDA call.
pub(crate) unsafe fn launch_host_func(
    stream: RawStream,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> Result<()> {
    // SAFETY: as this function demands.
    call(Call::LaunchHostFunc, || unsafe {
        sys::cudaLaunchHostFunc(stream.get(), Some(function), data)
    })
}

// Events

/// A new event of the current device, without timing.
pub(crate) fn event_create() -> Result<RawEvent> {
    let mut event = ptr::null_mut();
    // SAFETY: `event` is a place for one handle.
    call(Call::EventCreate, || unsafe {
        sys::cudaEventCreateWithFlags(&mut event, sys::cudaEventDisableTiming)
    })?;
    Ok(RawEvent(event.expose_provenance()))
}

/// # Safety
/// Both handles are alive and of one device.
pub(crate) unsafe fn event_record(event: RawEvent, stream: RawStream) -> Result<()> {
    // SAFETY: as this function demands.
    let recorded = by_driver(Call::EventRecord, stream, |driver| unsafe {
        driver.record(event.get(), stream.get()).then_some(())
    });
    if recorded.is_some() {
        return Ok(());
    }
    // SAFETY: as this function demands.
    call(Call::EventRecord, || unsafe {
        sys::cudaEventRecord(event.get(), stream.get())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn event_query(event: RawEvent) -> Result<bool> {
    // SAFETY: as this function demands.
    ask(Call::EventQuery, || unsafe {
        sys::cudaEventQuery(event.get())
    })
}

/// # Safety
/// The handle is alive.
pub(crate) unsafe fn event_synchronize(event: RawEvent) -> Result<()> {
    // SAFETY: as this function demands.
    call_relaxed(Call::EventSynchronize, || unsafe {
        sys::cudaEventSynchronize(event.get())
    })
}
