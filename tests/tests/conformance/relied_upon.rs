//! What else `memmgr` relies on: documented, where it was not measured.

use crate::{cuda::*, facts, is};
use std::{
    ffi::{CStr, c_void},
    ptr::null_mut,
    sync::atomic::{AtomicU32, Ordering},
};

fn versions() {
    let (mut driver, mut runtime) = (0, 0);
    is("driver", cuda!(cudaDriverGetVersion(&mut driver)), 0);
    is("runtime", cuda!(cudaRuntimeGetVersion(&mut runtime)), 0);
    let major = runtime / 1000 == sys::CUDART_VERSION as i32 / 1000;
    is(
        format!("runtime {runtime} is that of the headers"),
        major,
        true,
    );
    let fits = driver / 1000 >= runtime / 1000;
    is(
        format!("driver {driver} fits runtime {runtime}"),
        fits,
        true,
    );
}

fn devices() {
    let mut count = 0;
    is(
        "cudaGetDeviceCount",
        cuda!(cudaGetDeviceCount(&mut count)),
        0,
    );
    is(format!("{count} devices"), count > 0, true);
    let mut device = 9;
    let got = (cuda!(cudaGetDevice(&mut device)), device);
    is("a fresh thread's device", got, (0, 0));
    let pools = sys::cudaDeviceAttr::cudaDevAttrMemoryPoolsSupported;
    let got = (cuda!(cudaDeviceGetAttribute(&mut device, pools, 0)), device);
    is("memory pools", got, (0, 1));
    let got = cuda!(cudaDeviceGetAttribute(&mut device, pools, 9999));
    is("an attribute of device 9999", got, 101);
    is("cudaSetDevice(-1)", cuda!(cudaSetDevice(-1)), 101);
    cuda!(cudaGetLastError());
    is("cudaSetDevice", cuda!(cudaSetDevice(0)), 0);
}

fn free_memory() {
    let (free, total) = memory();
    is("some is free", free <= total, true);
    let p = malloc(256 * MIB);
    let taken = free as i64 - memory().0 as i64;
    let as_much = (256 << 20..300 << 20).contains(&taken);
    is(format!("{taken} less after 256 MiB"), as_much, true);
    ok!(cudaFree(p));
    let lost = free as i64 - memory().0 as i64;
    is(format!("{lost} less after the free"), lost < 32 << 20, true);
}

fn error_names() {
    let name = |code| {
        // SAFETY: any code may be asked for; the answer is a string of static life.
        unsafe { CStr::from_ptr(sys::cudaGetErrorName(sys::cudaError(code))) }
    };
    is("2", name(2), c"cudaErrorMemoryAllocation");
    is("101", name(101), c"cudaErrorInvalidDevice");
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(sys::cudaGetErrorString(sys::cudaError(2))) };
    is("the text of 2", text, c"out of memory");
    is("last error", cuda!(cudaPeekAtLastError()), 0);
}

fn streams() {
    let (free, blocking) = (stream(), blocking_stream());
    let flags = |s| {
        let mut flags = 9;
        (cuda!(cudaStreamGetFlags(s, &mut flags)), flags)
    };
    is("flags of a non-blocking stream", flags(free), (0, 1));
    is("flags of a blocking stream", flags(blocking), (0, 0));
    is("flags of null", flags(null_mut()), (0, 0));
    is("flags of legacy", flags(LEGACY), (0, 0));
    let all = [free, blocking, null_mut(), LEGACY, PER_THREAD];
    for (s, name) in all
        .into_iter()
        .zip(["free", "blocking", "null", "legacy", "per-thread"])
    {
        // SAFETY: live streams and default streams.
        let device = unsafe { sys::stream_get_device(s) };
        is(format!("device of {name}"), device, Ok(0));
        let mut capturing = sys::cudaStreamCaptureStatus(9);
        let code = cuda!(cudaStreamIsCapturing(s, &mut capturing));
        is(format!("capture of {name}"), (code, capturing.0), (0, 0));
        is(format!("query of {name}"), cuda!(cudaStreamQuery(s)), 0);
        is(
            format!("synchronisation of {name}"),
            cuda!(cudaStreamSynchronize(s)),
            0,
        );
    }
    for priority in [-99, 0, 99] {
        let mut s = null_mut();
        let code = cuda!(cudaStreamCreateWithPriority(&mut s, 1, priority));
        is(format!("priority {priority}"), code, 0);
        destroy([s]);
    }
    destroy([free, blocking]);
}

fn done_after_synchronisation() {
    let (s, e) = (stream(), event());
    ok!(cudaEventRecord(e, s));
    ok!(cudaStreamSynchronize(s));
    is("cudaEventQuery", cuda!(cudaEventQuery(e)), 0);
    let stall = Stall::on(s);
    ok!(cudaEventRecord(e, s));
    stall.end_after(20);
    is("cudaEventSynchronize", cuda!(cudaEventSynchronize(e)), 0);
    is("the stall before it is over", stall.is_over(), true);
    is("cudaEventQuery", cuda!(cudaEventQuery(e)), 0);
    ok!(cudaEventDestroy(e));
    destroy([s]);
}

fn waits_for_done_events() {
    let (s, e, done) = (stream(), event(), done_event());
    is("done", cuda!(cudaStreamWaitEvent(s, done, 0)), 0);
    is("never recorded", cuda!(cudaStreamWaitEvent(s, e, 0)), 0);
    is("and goes on", cuda!(cudaStreamSynchronize(s)), 0);
    ok!(cudaEventRecord(e, s));
    is("its own", cuda!(cudaStreamWaitEvent(s, e, 0)), 0);
    is("and goes on", cuda!(cudaStreamSynchronize(s)), 0);
    ok!(cudaEventDestroy(e));
    ok!(cudaEventDestroy(done));
    destroy([s]);
}

fn one_stream_behind_another() {
    let (a, b, e, d) = (stream(), stream(), event(), malloc(MIB));
    let stall = Stall::on(a);
    ok!(cudaMemsetAsync(d, 1, MIB, a));
    ok!(cudaEventRecord(e, a));
    is("wait", cuda!(cudaStreamWaitEvent(b, e, 0)), 0);
    ok!(cudaMemsetAsync(d, 2, MIB, b));
    is("query", cuda!(cudaStreamQuery(b)), 600);
    stall.end();
    ok!(cudaStreamSynchronize(b));
    is("query of the first", cuda!(cudaEventQuery(e)), 0);
    is("the later fill", Bytes(read(d, MIB)), Bytes(vec![2; MIB]));
    ok!(cudaFree(d));
    ok!(cudaEventDestroy(e));
    destroy([a, b]);
}

fn nothing_but_a_wait() {
    let (a, b, e) = (stream(), stream(), event());
    let stall = Stall::on(a);
    ok!(cudaEventRecord(e, a));
    is("wait", cuda!(cudaStreamWaitEvent(b, e, 0)), 0);
    is("query", cuda!(cudaStreamQuery(b)), 600);
    stall.end();
    ok!(cudaStreamSynchronize(b));
    is("query afterwards", cuda!(cudaStreamQuery(b)), 0);
    ok!(cudaEventDestroy(e));
    destroy([a, b]);
}

fn recorded_again() {
    let (a, b, c, e) = (stream(), stream(), stream(), event());
    let first = Stall::on(a);
    ok!(cudaEventRecord(e, a));
    is(
        "wait for the first record",
        cuda!(cudaStreamWaitEvent(b, e, 0)),
        0,
    );
    let second = Stall::on(c);
    is("record again", cuda!(cudaEventRecord(e, c)), 0);
    is("the waiting stream", cuda!(cudaStreamQuery(b)), 600);
    first.end();
    is(
        "the waiting stream goes on",
        cuda!(cudaStreamSynchronize(b)),
        0,
    );
    is("while the second stall lasts", second.is_over(), false);
    is(
        "the event is that of its second record",
        cuda!(cudaEventQuery(e)),
        600,
    );
    second.end();
    is("and done in the end", cuda!(cudaEventSynchronize(e)), 0);
    ok!(cudaEventDestroy(e));
    destroy([a, b, c]);
}

fn outlives_its_stream() {
    let (s, b, e) = (stream(), stream(), event());
    let stall = Stall::on(s);
    ok!(cudaEventRecord(e, s));
    destroy([s]);
    is("query", cuda!(cudaEventQuery(e)), 600);
    is("wait", cuda!(cudaStreamWaitEvent(b, e, 0)), 0);
    is("the waiting stream", cuda!(cudaStreamQuery(b)), 600);
    stall.end();
    is("synchronise", cuda!(cudaEventSynchronize(e)), 0);
    is("the waiting stream", cuda!(cudaStreamSynchronize(b)), 0);
    ok!(cudaEventDestroy(e));
    destroy([b]);
}

fn host_functions_keep_order() {
    static LAST: AtomicU32 = AtomicU32::new(0);
    static WRONG: AtomicU32 = AtomicU32::new(0);
    extern "C" fn next(number: *mut c_void) {
        let number = number as usize as u32;
        if LAST.swap(number, Ordering::SeqCst) + 1 != number {
            WRONG.fetch_add(1, Ordering::SeqCst);
        }
    }
    LAST.store(0, Ordering::SeqCst);
    let s = stream();
    for number in 1..=50usize {
        ok!(cudaLaunchHostFunc(s, Some(next), number as Pointer));
    }
    ok!(cudaStreamSynchronize(s));
    is("out of order", WRONG.load(Ordering::SeqCst), 0);
    is("the last", LAST.load(Ordering::SeqCst), 50);
    destroy([s]);
}

fn portable_memory() {
    let (mut h, mut flags) = (null_mut(), 0);
    let portable = sys::cudaHostAllocPortable;
    ok!(cudaHostAlloc(&mut h, MIB, portable));
    let code = cuda!(cudaHostGetFlags(&mut flags, h));
    is("its flags", (code, flags & portable), (0, portable));
    is("alignment", h as usize % 512, 0);
    // SAFETY: a live block of that size, which no work uses.
    unsafe { h.cast::<u8>().write_bytes(7, MIB) };
    let (d, s) = (malloc(MIB), Shared::new(stream()));
    let shared = Shared::new((d, h));
    let elsewhere = std::thread::spawn(move || {
        let (d, h) = shared.get();
        let code = cuda!(cudaMemcpyAsync(d, h, MIB, H2D, s.get()));
        code + cuda!(cudaStreamSynchronize(s.get()))
    });
    is(
        "a copy by another thread",
        elsewhere.join().expect("it ends"),
        0,
    );
    is("its bytes", Bytes(read(d, MIB)), Bytes(vec![7; MIB]));
    ok!(cudaFree(d));
    is("cudaFreeHost", cuda!(cudaFreeHost(h)), 0);
    destroy([s.get()]);
}

fn attributes() {
    let mut properties = sys::cudaDeviceProp::default();
    ok!(cudaGetDeviceProperties(&mut properties, 0));
    let attribute = |name| {
        let mut value = -1;
        (cuda!(cudaDeviceGetAttribute(&mut value, name, 0)), value)
    };
    let major = attribute(sys::cudaDeviceAttr::cudaDevAttrComputeCapabilityMajor);
    is("major", major, (0, properties.major));
    let minor = attribute(sys::cudaDeviceAttr::cudaDevAttrComputeCapabilityMinor);
    is("minor", minor, (0, properties.minor));
    // The runtime has no name for the driver's "virtual memory management".
    let virtual_memory = attribute(sys::cudaDeviceAttr(102));
    is("virtual memory", virtual_memory, (0, 1));
}

fn unknown_errors() {
    // SAFETY: any code may be asked for; the answer is null or a string of static life.
    let [name, text] = unsafe {
        let code = sys::cudaError(54_321);
        [sys::cudaGetErrorName(code), sys::cudaGetErrorString(code)]
    };
    for (what, at) in [("name", name), ("text", text)] {
        is(format!("{what} is null"), at.is_null(), false);
        if !at.is_null() {
            // SAFETY: as above.
            let told = unsafe { CStr::from_ptr(at) };
            is(what, told, c"unrecognized error code");
        }
    }
    is("last error", cuda!(cudaPeekAtLastError()), 0);
}

fn the_whole_device() {
    let (a, b) = (stream(), blocking_stream());
    let stalls = [Stall::on(a), Stall::on(b)];
    for stall in &stalls {
        stall.end_after(30);
    }
    is("synchronisation", cuda!(cudaDeviceSynchronize()), 0);
    let over = stalls.each_ref().map(Stall::is_over);
    is("both stalls are over", over, [true, true]);
    destroy([a, b]);
}

fn events_of_per_thread_streams() {
    let (b, e) = (Shared::new(stream()), Shared::new(event()));
    let (ready, wait) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let theirs = std::thread::spawn(move || {
        let stall = Stall::on(PER_THREAD);
        let code = cuda!(cudaEventRecord(e.get(), PER_THREAD));
        let _ = ready.send((code, stall));
        let _ = ended.recv();
        cuda!(cudaStreamSynchronize(PER_THREAD))
    });
    let (code, stall) = wait.recv().expect("it answers");
    is("record", code, 0);
    is("query elsewhere", cuda!(cudaEventQuery(e.get())), 600);
    let code = cuda!(cudaStreamWaitEvent(b.get(), e.get(), 0));
    is("wait elsewhere", code, 0);
    is("it holds", cuda!(cudaStreamQuery(b.get())), 600);
    stall.end();
    is("and goes on", cuda!(cudaStreamSynchronize(b.get())), 0);
    let _ = end.send(());
    is("the other thread", theirs.join().expect("it ends"), 0);
    let code = cuda!(cudaEventSynchronize(e.get()));
    is("after the thread has ended", code, 0);
    ok!(cudaEventDestroy(e.get()));
    destroy([b.get()]);
}

fn freed_by_another_thread() {
    let s = stream();
    let all = Shared::new((s, malloc(MIB), pinned(MIB), malloc_async(MIB, s)));
    let elsewhere = std::thread::spawn(move || {
        let (s, p, h, q) = all.get();
        let codes = [
            cuda!(cudaFree(p)),
            cuda!(cudaFreeHost(h)),
            cuda!(cudaFreeAsync(q, s)),
        ];
        (codes, cuda!(cudaStreamDestroy(s)))
    });
    let codes = elsewhere.join().expect("it ends");
    is("by a thread that had made no call", codes, ([0, 0, 0], 0));
}

facts! {
    versions, Documentation: "Runtime and headers have one major version, and the driver is not older";
    devices, Documentation: "A fresh thread's device is 0; a device that does not exist is error 101";
    free_memory, Documentation: "Free memory falls by what `cudaMalloc` takes, and comes back";
    error_names, Documentation: "Errors have their names and texts, and asking leaves no error";
    streams, Documentation: "Streams tell flags, device and capture; idle ones are done; a priority out of range is accepted";
    done_after_synchronisation, Documentation: "An event is done once its stream was synchronised, or itself";
    waits_for_done_events, Documentation: "Waiting for an event that is done, never recorded, or the stream's own holds nothing up";
    one_stream_behind_another, Documentation: "An event orders one stream behind another";
    nothing_but_a_wait, Gpu: "A stream that holds nothing but a pending wait is not done (600)";
    recorded_again, Documentation: "A wait is for the record that it found; a later record does not change it";
    outlives_its_stream, Documentation: "An event outlives the stream that it was recorded on";
    host_functions_keep_order, Documentation: "Host functions of a stream run in order";
    portable_memory, Documentation: "Portable page-locked memory can be used by every thread";
    attributes, Documentation: "The attributes tell the compute capability of the properties, and of virtual memory (102)";
    unknown_errors, Documentation: "An unknown error has a name and a text, which say so";
    the_whole_device, Documentation: "`cudaDeviceSynchronize` waits for every stream";
    events_of_per_thread_streams, Documentation: "An event of a per-thread stream is queried and waited for by other threads, also after the thread has ended";
    freed_by_another_thread, Documentation: "A thread that has made no call yet may free what others allocated, and destroy their streams";
}
