//! The driver's functions that do what the runtime's do to a stream: copies, records of events, the question for a capture.

use crate::{cuda::*, facts, is};
use std::{ffi::c_void, ptr::null_mut};

/// Memory to copy, a stream and an event.
#[derive(Clone, Copy)]
struct Ends {
    device: Shared<Pointer>,
    host: Shared<Pointer>,
    stream: Shared<Stream>,
    event: Shared<Event>,
}

impl Ends {
    fn new() -> Ends {
        Ends {
            device: Shared::new(malloc(MIB)),
            host: Shared::new(pinned(MIB)),
            stream: Shared::new(stream()),
            event: Shared::new(event()),
        }
    }

    /// What the functions answer here and now.
    fn answers(&self) -> [u32; 5] {
        let (d, h, s) = (self.device.get(), self.host.get(), self.stream.get());
        let (asked, status) = is_capturing(s);
        let copied = [to_device(d, h, KIB, s), to_host(h, d, KIB, s)];
        [
            asked,
            status,
            record(self.event.get(), s),
            copied[0],
            copied[1],
        ]
    }

    fn end(self) {
        ok!(cudaStreamSynchronize(self.stream.get()));
        ok!(cudaFree(self.device.get()));
        ok!(cudaFreeHost(self.host.get()));
        ok!(cudaEventDestroy(self.event.get()));
        destroy([self.stream.get()]);
    }
}

fn on_any_thread() {
    let ends = Ends::new();
    is("here", ends.answers(), [0; 5]);
    let there = std::thread::spawn(move || ends.answers());
    let there = there.join().expect("it does not panic");
    is("on a thread that has made no call", there, [0; 5]);
    ends.end();
}

fn in_order() {
    let ends = Ends::new();
    let (d, h, s) = (ends.device.get(), ends.host.get(), ends.stream.get());
    let back = h.wrapping_byte_add(64 * KIB).cast::<u32>();
    for round in 0..100u32 {
        // SAFETY: the block is alive, and no work uses it.
        unsafe { h.cast::<u32>().write(round) };
        is("to the device", to_device(d, h, 64 * KIB, s), 0);
        ok!(cudaMemsetAsync(d.wrapping_byte_add(4), 7, KIB, s));
        is("to the host", to_host(back.cast(), d, 64 * KIB, s), 0);
        is("record", record(ends.event.get(), s), 0);
        ok!(cudaEventSynchronize(ends.event.get()));
        // SAFETY: the block is alive, and the copies have run.
        let got = unsafe { (back.read(), back.add(1).read()) };
        is(format!("round {round}"), got, (round, 0x0707_0707));
    }
    ends.end();
}

fn no_last_error() {
    let ends = Ends::new();
    let (d, h, s) = (ends.device.get(), ends.host.get(), ends.stream.get());
    let past = MIB - 16;
    is("no memory", to_device(null_mut(), h, KIB, s), 1);
    is(
        "past the end",
        to_device(d.wrapping_byte_add(past), h, KIB, s),
        1,
    );
    let mut page = vec![0u8; KIB];
    let page: Pointer = page.as_mut_ptr().cast();
    is("to pageable memory", to_device(page, h, KIB, s), 1);
    is("from pageable memory", to_host(h, page, KIB, s), 1);
    is("no event", record(null_mut(), s), 400);
    is("no bytes", to_device(d, h, 0, s), 0);
    is("last error", cuda!(cudaPeekAtLastError()), 0);
    let mut p = null_mut();
    is("1 PiB", cuda!(cudaMalloc(&mut p, 1 << 50)), 2);
    is("no memory", to_device(null_mut(), h, KIB, s), 1);
    is("last error", cuda!(cudaGetLastError()), 2);
    ends.end();
}

fn waiting() {
    let ends = Ends::new();
    let (d, h, s) = (ends.device.get(), ends.host.get(), ends.stream.get());
    let mut page = vec![1u8; MIB];
    let page: Pointer = page.as_mut_ptr().cast();
    timed("page-locked to the device", s, Returns, || {
        to_device(d, h, MIB, s)
    });
    timed("to page-locked memory", s, Returns, || {
        to_host(h, d, MIB, s)
    });
    timed("16 KiB of pageable memory", s, Returns, || {
        to_device(d, page, 16 * KIB, s)
    });
    timed("1 MiB to pageable memory", s, Waits, || {
        to_host(page, d, MIB, s)
    });
    timed("record", s, Returns, || record(ends.event.get(), s));
    timed("question for a capture", s, Returns, || is_capturing(s).0);
    ends.end();
}

fn captured() {
    let (ends, other) = (Ends::new(), Ends::new());
    for mode in 0..3 {
        let (d, h, s) = (ends.device.get(), ends.host.get(), ends.stream.get());
        ok!(cudaStreamBeginCapture(s, sys::cudaStreamCaptureMode(mode)));
        is("captured", is_capturing(s), (0, 1));
        is("copy", to_device(d, h, KIB, s), 0);
        is("record", record(ends.event.get(), s), 0);
        is("another stream", other.answers(), [0; 5]);
        let there = std::thread::spawn(move || other.answers());
        let there = there.join().expect("it does not panic");
        is("another stream on another thread", there, [0; 5]);
        is("captured still", is_capturing(s), (0, 1));
        let mut graph = null_mut();
        ok!(cudaStreamEndCapture(s, &mut graph));
        ok!(cudaGraphDestroy(graph));
        is("not captured", is_capturing(s), (0, 0));
    }
    // The event was captured last.
    ok!(cudaEventRecord(ends.event.get(), ends.stream.get()));
    other.end();
    ends.end();
}

fn in_a_host_function() {
    extern "C" fn call(data: *mut c_void) {
        // SAFETY: the test passes this, and looks at it only after the stream's work.
        let (ends, answers, last) = unsafe { &mut *data.cast::<(Ends, [u32; 5], u32)>() };
        // What an earlier host function left on this thread.
        cuda!(cudaGetLastError());
        *answers = ends.answers();
        *last = cuda!(cudaPeekAtLastError());
    }
    let (s, ends) = (stream(), Ends::new());
    // The functions are found here: a host function may not look for them.
    is("before", ends.answers(), [0; 5]);
    let mut data = (ends, [u32::MAX; 5], u32::MAX);
    ok!(cudaLaunchHostFunc(s, Some(call), (&raw mut data).cast()));
    ok!(cudaStreamSynchronize(s));
    is("questions and records, copies", data.1, [0, 0, 0, 800, 800]);
    is("last error", data.2, 0);
    destroy([s]);
    ends.end();
}

facts! {
    on_any_thread, Gpu: "The driver's copies, records of events and question for a capture work on every thread, whatever is current there";
    in_order, Gpu: "They are in the order of the stream, with what the runtime submits";
    no_last_error, Gpu: "What they refuse they answer with the runtime's numbers, and leave the last error as it is";
    waiting, Gpu: "They wait for a stalled stream where the runtime's do";
    captured, Gpu: "They know captures as the runtime's do, and disturb none";
    in_a_host_function, Gpu: "In a host function only the copies are refused (800), and no error is left";
}
