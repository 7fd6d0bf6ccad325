//! Stream capture: which calls are forbidden to whom, and what they do to the capture.

use crate::{cuda::*, facts, is};
use std::{
    cell::Cell,
    ptr::null_mut,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

const MODES: [&str; 3] = ["global", "thread-local", "relaxed"];

/// A stream that captures, until it is dropped.
struct Capture {
    stream: Stream,
    ended: Cell<bool>,
}

impl Capture {
    fn new(mode: u32) -> Capture {
        let s = stream();
        ok!(cudaStreamBeginCapture(s, sys::cudaStreamCaptureMode(mode)));
        Capture {
            stream: s,
            ended: Cell::new(false),
        }
    }

    /// Ends the capture: the answer and the graph.
    fn end(&self) -> (u32, sys::cudaGraph_t) {
        self.ended.set(true);
        let mut graph = null_mut();
        let code = cuda!(cudaStreamEndCapture(self.stream, &mut graph));
        cuda!(cudaGetLastError());
        (code, graph)
    }

    /// Ends the capture and forgets what was captured; the answer.
    fn discard(&self) -> u32 {
        let (code, graph) = self.end();
        if !graph.is_null() {
            ok!(cudaGraphDestroy(graph));
        }
        code
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.ended.get() {
            self.end();
        }
        cuda!(cudaStreamDestroy(self.stream));
    }
}

/// 0: none, 1: active, 2: dead.
fn status(s: Stream) -> u32 {
    let mut status = sys::cudaStreamCaptureStatus(9);
    ok!(cudaStreamIsCapturing(s, &mut status));
    status.0
}

fn relaxed(call: impl FnOnce() -> u32) -> u32 {
    let mut mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
    ok!(cudaThreadExchangeStreamCaptureMode(&mut mode));
    let code = call();
    ok!(cudaThreadExchangeStreamCaptureMode(&mut mode));
    code
}

/// Answer of the call, and status and end of the capture afterwards.
type Cell3 = (u32, u32, u32);
const FINE: Cell3 = (0, 1, 0);
const DEAD: Cell3 = (900, 2, 901);

/// By thread (the capturing one, another) and by mode.
type Table = [[Cell3; 3]; 2];
const ALWAYS_FINE: Table = [[FINE; 3]; 2];
const ALWAYS_DEAD: Table = [[DEAD; 3]; 2];
/// Forbidden to the capturing thread unless it captures relaxed, and to all threads while a capture is global.
const UNSAFE: Table = [[DEAD, DEAD, FINE], [DEAD, FINE, FINE]];

fn cell(mode: u32, elsewhere: bool, call: &(impl Fn(Stream) -> u32 + Sync)) -> Cell3 {
    let capture = Capture::new(mode);
    let s = Shared::new(capture.stream);
    let work = || {
        let code = call(s.get());
        cuda!(cudaGetLastError());
        code
    };
    let code = if elsewhere {
        std::thread::scope(|scope| scope.spawn(work).join()).expect("it answers")
    } else {
        work()
    };
    let status = status(s.get());
    (code, status, capture.discard())
}

/// Makes a call beside captures of every mode, on both threads.
#[track_caller]
fn row(what: &str, want: Table, call: impl Fn(Stream) -> u32 + Sync) {
    for (thread, want) in ["the capturing", "another"].into_iter().zip(want) {
        for (mode, want) in want.into_iter().enumerate() {
            let got = cell(mode as u32, thread == "another", &call);
            let what = format!("{what}, {} capture, on {thread} thread", MODES[mode]);
            is(what, got, want);
        }
    }
}

/// What calls have made beside a capture, to be freed when it is over.
#[derive(Default)]
struct Made(Mutex<Vec<usize>>);

impl Made {
    fn add(&self, p: Pointer) {
        if !p.is_null() {
            self.0.lock().expect("nobody panics").push(p as usize);
        }
    }

    fn free(self, free: impl Fn(Pointer) -> u32) {
        for p in self.0.into_inner().expect("nobody panics") {
            assert_eq!(free(p as Pointer), 0, "what was made can be freed");
        }
    }
}

fn memory_calls() {
    let s = Shared::new(stream());
    let made = Made::default();
    row("cudaMalloc", UNSAFE, |_| {
        let mut p = null_mut();
        let code = cuda!(cudaMalloc(&mut p, MIB));
        made.add(p);
        code
    });
    made.free(|p| cuda!(cudaFree(p)));

    let left = Made::default();
    row("cudaFree", UNSAFE, |_| {
        let mut p = null_mut();
        assert_eq!(relaxed(|| cuda!(cudaMalloc(&mut p, 4096))), 0);
        let code = cuda!(cudaFree(p));
        if code != 0 {
            left.add(p);
        }
        code
    });
    left.free(|p| cuda!(cudaFree(p)));

    let made = Made::default();
    row("cudaHostAlloc", UNSAFE, |_| {
        let mut p = null_mut();
        let code = cuda!(cudaHostAlloc(&mut p, 4096, 0));
        made.add(p);
        code
    });
    made.free(|p| cuda!(cudaFreeHost(p)));

    let made = Made::default();
    row("cudaMallocAsync on another stream", UNSAFE, |_| {
        let mut p = null_mut();
        let code = cuda!(cudaMallocAsync(&mut p, 256, s.get()));
        made.add(p);
        code
    });
    made.free(|p| cuda!(cudaFreeAsync(p, s.get())));
    ok!(cudaStreamSynchronize(s.get()));
    destroy([s.get()]);
}

fn waiting_calls() {
    let (s, done) = (Shared::new(stream()), Shared::new(done_event()));
    row("cudaEventQuery", UNSAFE, |_| {
        cuda!(cudaEventQuery(done.get()))
    });
    row("cudaEventSynchronize", UNSAFE, |_| {
        cuda!(cudaEventSynchronize(done.get()))
    });
    row("cudaStreamSynchronize", UNSAFE, |_| {
        cuda!(cudaStreamSynchronize(s.get()))
    });
    ok!(cudaEventDestroy(done.get()));
    destroy([s.get()]);
}

fn pending_events() {
    let (s, e) = (Shared::new(stream()), Shared::new(event()));
    const PENDING: Cell3 = (600, 1, 0);
    let want = [[DEAD, DEAD, PENDING], [DEAD, PENDING, PENDING]];
    let stalls = Mutex::new(Vec::new());
    row("cudaEventQuery", want, |_| {
        stalls
            .lock()
            .expect("nobody panics")
            .push(Stall::on(s.get()));
        ok!(cudaEventRecord(e.get(), s.get()));
        cuda!(cudaEventQuery(e.get()))
    });
    drop(stalls);
    ok!(cudaStreamSynchronize(s.get()));
    ok!(cudaEventDestroy(e.get()));
    destroy([s.get()]);
}

fn while_relaxed() {
    let (s, done) = (Shared::new(stream()), Shared::new(done_event()));
    row("cudaMalloc and cudaFree", ALWAYS_FINE, |_| {
        let mut p = null_mut();
        relaxed(|| cuda!(cudaMalloc(&mut p, 4096)) + cuda!(cudaFree(p)))
    });
    row("cudaEventQuery", ALWAYS_FINE, |_| {
        relaxed(|| cuda!(cudaEventQuery(done.get())))
    });
    row("cudaEventSynchronize", ALWAYS_FINE, |_| {
        relaxed(|| cuda!(cudaEventSynchronize(done.get())))
    });
    row("cudaStreamSynchronize", ALWAYS_FINE, |_| {
        relaxed(|| cuda!(cudaStreamSynchronize(s.get())))
    });
    ok!(cudaEventDestroy(done.get()));
    destroy([s.get()]);
}

fn device_synchronize() {
    let call = || cuda!(cudaDeviceSynchronize());
    row("cudaDeviceSynchronize", ALWAYS_DEAD, |_| call());
    row("cudaDeviceSynchronize, relaxed", ALWAYS_DEAD, |_| {
        relaxed(call)
    });
}

fn capturing_stream() {
    let id = |s| cuda!(cudaStreamGetId(s, &mut 0));
    row("cudaStreamGetId", ALWAYS_DEAD, id);
    row("cudaStreamGetId, relaxed", ALWAYS_DEAD, |s| {
        relaxed(|| id(s))
    });
    row("cudaStreamQuery", ALWAYS_DEAD, |s| {
        cuda!(cudaStreamQuery(s))
    });
}

fn waits_for_outside() {
    let done = Shared::new(done_event());
    for (mode, name) in MODES.into_iter().enumerate() {
        let got = cell(mode as u32, false, &|s| {
            cuda!(cudaStreamWaitEvent(s, done.get(), 0))
        });
        is(
            format!("cudaStreamWaitEvent, {name} capture"),
            got,
            (905, 2, 901),
        );
    }
    ok!(cudaEventDestroy(done.get()));
}

fn allowed() {
    let (s, e) = (Shared::new(stream()), Shared::new(event()));
    // The driver's functions are known before anything captures.
    Mapped::new(CHUNK, 1).end();
    row("nothing", ALWAYS_FINE, |_| 0);
    row("cudaStreamGetId of another stream", ALWAYS_FINE, |_| {
        cuda!(cudaStreamGetId(s.get(), &mut 0))
    });
    row(
        "cudaStreamIsCapturing of another stream",
        ALWAYS_FINE,
        |_| status(s.get()),
    );
    row("cudaMemGetInfo", ALWAYS_FINE, |_| {
        cuda!(cudaMemGetInfo(&mut 0, &mut 0))
    });
    row("cudaEventRecord on another stream", ALWAYS_FINE, |_| {
        cuda!(cudaEventRecord(e.get(), s.get()))
    });
    let events = Made::default();
    row("cudaEventCreate", ALWAYS_FINE, |_| {
        let mut e = null_mut();
        let code = cuda!(cudaEventCreateWithFlags(&mut e, 2));
        events.add(e.cast());
        code
    });
    events.free(|e| cuda!(cudaEventDestroy(e.cast())));
    row("creating and destroying a stream", ALWAYS_FINE, |_| {
        let mut s = null_mut();
        cuda!(cudaStreamCreateWithFlags(&mut s, 1)) + cuda!(cudaStreamDestroy(s))
    });
    row("mapping and unmapping", ALWAYS_FINE, |_| {
        Mapped::new(CHUNK, 1).end();
        0
    });
    ok!(cudaStreamSynchronize(s.get()));
    ok!(cudaEventDestroy(e.get()));
    destroy([s.get()]);
}

fn captured_events() {
    for (mode, afterwards) in [(0, 900), (1, 900), (2, 0)] {
        let (other, e) = (stream(), event());
        let name = MODES[mode as usize];
        let capture = Capture::new(mode);
        ok!(cudaEventRecord(e, capture.stream));
        let got = (cuda!(cudaEventQuery(e)), status(capture.stream));
        is(format!("{name}: query"), got, (907, 2));
        let (mut p, mut q) = (null_mut(), null_mut());
        let got = (cuda!(cudaMalloc(&mut p, MIB)), status(capture.stream));
        is(
            format!("{name}: cudaMalloc afterwards"),
            got,
            (afterwards, 2),
        );
        let got = cuda!(cudaMallocAsync(&mut q, MIB, other));
        is(
            format!("{name}: cudaMallocAsync afterwards"),
            got,
            afterwards,
        );
        is(format!("{name}: end"), capture.end(), (901, null_mut()));
        ok!(cudaFree(p));
        ok!(cudaFreeAsync(q, other));
        ok!(cudaStreamSynchronize(other));
        ok!(cudaEventDestroy(e));
        destroy([other]);
    }
}

fn pulled_in() {
    let (c, e, p) = (stream(), event(), malloc(256));
    fill(p, 1, 256);
    let capture = Capture::new(1);
    is("record", cuda!(cudaEventRecord(e, capture.stream)), 0);
    is("wait", cuda!(cudaStreamWaitEvent(c, e, 0)), 0);
    is("status of the other stream", status(c), 1);
    is("its fill", cuda!(cudaMemsetAsync(p, 2, 256, c)), 0);
    is("end", capture.end().0, 904);
    is("status of the other stream afterwards", status(c), 0);
    ok!(cudaStreamSynchronize(c));
    is("the fill has not run", read(p, 2), vec![1, 1]);
    drop(capture);
    ok!(cudaFree(p));
    ok!(cudaEventDestroy(e));
    destroy([c]);
}

fn allocations_of_its_own() {
    let capture = Capture::new(1);
    let mut p = null_mut();
    let code = cuda!(cudaMallocAsync(&mut p, MIB, capture.stream));
    is("cudaMallocAsync", (code, p.is_null()), (0, false));
    let code = cuda!(cudaFreeAsync(p, capture.stream));
    is("cudaFreeAsync", code, 0);
    is("end", capture.discard(), 0);
}

fn runs_when_launched() {
    let (s, p) = (stream(), malloc(4096));
    fill(p, 1, 4096);
    let capture = Capture::new(1);
    is(
        "fill",
        cuda!(cudaMemsetAsync(p, 7, 4096, capture.stream)),
        0,
    );
    let (code, graph) = capture.end();
    is("end", code, 0);
    is("before", Bytes(read(p, 4096)), Bytes(vec![1; 4096]));
    let mut exec = null_mut();
    is(
        "instantiate",
        cuda!(cudaGraphInstantiate(&mut exec, graph, 0)),
        0,
    );
    is("launch", cuda!(cudaGraphLaunch(exec, s)), 0);
    ok!(cudaStreamSynchronize(s));
    is("after", Bytes(read(p, 4096)), Bytes(vec![7; 4096]));
    ok!(cudaGraphExecDestroy(exec));
    ok!(cudaGraphDestroy(graph));
    ok!(cudaFree(p));
    destroy([s]);
}

/// Makes a call beside a thread-local capture, on its thread.
#[track_caller]
fn beside(what: &str, want: Cell3, call: impl Fn(Stream) -> u32 + Sync) {
    is(what, cell(1, false, &call), want);
}

fn pageable_copies() {
    let (d, bytes) = (Shared::new(malloc(64 * KIB)), vec![1u8; 64 * KIB]);
    beside("cudaMemcpy", FINE, |_| {
        cuda!(cudaMemcpy(d.get(), bytes.as_ptr().cast(), 64 * KIB, H2D))
    });
    beside("cudaMemcpyAsync on the stream", FINE, |s| {
        let from = bytes.as_ptr().cast();
        cuda!(cudaMemcpyAsync(d.get(), from, 64 * KIB, H2D, s))
    });
    ok!(cudaFree(d.get()));
}

fn calls_elsewhere() {
    let s = Shared::new(stream());
    let p = Shared::new(malloc_async(MIB, s.get()));
    let mut page = vec![0u8; 64 * KIB];
    let page = Shared::new(page.as_mut_ptr().cast());
    beside("cudaFreeAsync on another stream", DEAD, |_| {
        cuda!(cudaFreeAsync(p.get(), s.get()))
    });
    beside("cudaStreamQuery of another stream", DEAD, |_| {
        cuda!(cudaStreamQuery(s.get()))
    });
    beside("cudaHostRegister", DEAD, |_| {
        cuda!(cudaHostRegister(page.get(), 64 * KIB, 0))
    });
    ok!(cudaFreeAsync(p.get(), s.get()));
    ok!(cudaStreamSynchronize(s.get()));
    destroy([s.get()]);
}

fn begun_and_ended_twice() {
    let (s, mut graph) = (stream(), null_mut());
    let code = cuda!(cudaStreamEndCapture(s, &mut graph));
    is("the end of no capture", code, 401);
    cuda!(cudaGetLastError());
    destroy([s]);
    beside("a capture of what captures", (401, 1, 0), |s| {
        let mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeThreadLocal;
        cuda!(cudaStreamBeginCapture(s, mode))
    });
}

fn events_of_ended_captures() {
    let (e, f) = (event(), event());
    let capture = Capture::new(1);
    ok!(cudaEventRecord(e, capture.stream));
    is("end", capture.discard(), 0);
    is("of one that ended well", cuda!(cudaEventQuery(e)), 1);
    cuda!(cudaGetLastError());
    let capture = Capture::new(1);
    is("query", cuda!(cudaStreamQuery(capture.stream)), 900);
    cuda!(cudaEventRecord(f, capture.stream));
    is("end", capture.discard(), 901);
    is("of a dead one", cuda!(cudaEventQuery(f)), 0);
    cuda!(cudaGetLastError());
    ok!(cudaEventDestroy(e));
    ok!(cudaEventDestroy(f));
}

fn while_relaxed_elsewhere() {
    let s = Shared::new(stream());
    row("cudaHostAlloc and cudaFreeHost", ALWAYS_FINE, |_| {
        let mut p = null_mut();
        relaxed(|| cuda!(cudaHostAlloc(&mut p, 4096, 0)) + cuda!(cudaFreeHost(p)))
    });
    row(
        "stream-ordered memory of another stream",
        ALWAYS_FINE,
        |_| {
            let mut p = null_mut();
            relaxed(|| {
                cuda!(cudaMallocAsync(&mut p, 4096, s.get())) + cuda!(cudaFreeAsync(p, s.get()))
            })
        },
    );
    row("cudaStreamQuery of another stream", ALWAYS_FINE, |_| {
        relaxed(|| match cuda!(cudaStreamQuery(s.get())) {
            600 => 0,
            code => code,
        })
    });
    row("a pool made, trimmed and destroyed", ALWAYS_FINE, |_| {
        let (mut pool, props) = (null_mut(), sys::mem_pool_props(0, NO_HANDLES, 0));
        relaxed(|| {
            cuda!(cudaMemPoolCreate(&mut pool, &props))
                + cuda!(cudaMemPoolTrimTo(pool, 0))
                + cuda!(cudaMemPoolDestroy(pool))
        })
    });
    ok!(cudaStreamSynchronize(s.get()));
    destroy([s.get()]);
}

const NO_HANDLES: sys::cudaMemAllocationHandleType =
    sys::cudaMemAllocationHandleType::cudaMemHandleTypeNone;

/// A graph with one fill, ready to run.
fn graph_of(p: Pointer, value: i32, size: usize) -> (sys::cudaGraph_t, sys::cudaGraphExec_t) {
    let (capture, mut exec) = (Capture::new(1), null_mut());
    ok!(cudaMemsetAsync(p, value, size, capture.stream));
    let (code, graph) = capture.end();
    is("end", code, 0);
    ok!(cudaGraphInstantiate(&mut exec, graph, 0));
    (graph, exec)
}

fn graphs_beside_a_capture() {
    let (s, p) = (Shared::new(stream()), Shared::new(malloc(4096)));
    let (graph, exec) = graph_of(p.get(), 3, 4096);
    let (graph, exec) = (Shared::new(graph), Shared::new(exec));
    row(
        "a graph instantiated, launched and destroyed, relaxed",
        ALWAYS_FINE,
        |_| {
            let mut again = null_mut();
            relaxed(|| {
                cuda!(cudaGraphInstantiate(&mut again, graph.get(), 0))
                    + cuda!(cudaGraphLaunch(exec.get(), s.get()))
                    + cuda!(cudaGraphExecDestroy(again))
            })
        },
    );
    ok!(cudaStreamSynchronize(s.get()));
    is(
        "it has run",
        Bytes(read(p.get(), 4096)),
        Bytes(vec![3; 4096]),
    );
    ok!(cudaGraphExecDestroy(exec.get()));
    ok!(cudaGraphDestroy(graph.get()));
    ok!(cudaFree(p.get()));
    destroy([s.get()]);
}

fn what_a_stream_is_captured_into() {
    let (s, t) = (Capture::new(1), stream());
    // SAFETY: both streams are alive.
    let info = |s| unsafe { sys::stream_capture_info(s) }.map_err(|code| code.0);
    let first = info(s.stream);
    is("it answers", first.is_ok(), true);
    is("the same again", info(s.stream), first);
    if let Ok((status, id, graph)) = first {
        is(
            "active",
            (status.0, id != 0, graph.is_null()),
            (1, true, false),
        );
        let other = Capture::new(1);
        let answer = info(other.stream).map(|(status, id, _)| (status.0, id));
        is(
            "another capture has another number",
            answer.is_ok_and(|(s, i)| s == 1 && i != id),
            true,
        );
        is("end of the other", other.discard(), 0);
        let (code, ended) = s.end();
        is("the graph that it ends with", (code, ended), (0, graph));
        ok!(cudaGraphDestroy(ended));
    }
    let none = info(t).map(|(status, ..)| status.0);
    is("no capture", none, Ok(0));
    destroy([t]);
}

/// How often the destructor was called for each of the objects of the fact below.
static GONE: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

unsafe extern "C" fn object_gone(at: Pointer) {
    if let Some(count) = GONE.get(at as usize) {
        count.fetch_add(1, SeqCst);
    }
}

fn gone(at: usize) -> usize {
    GONE.get(at).map_or(0, |count| count.load(SeqCst))
}

fn soon_gone(at: usize) -> usize {
    let until = Instant::now() + Duration::from_secs(20);
    while gone(at) == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    gone(at)
}

fn object(at: usize) -> sys::cudaUserObject_t {
    let mut object = null_mut();
    ok!(cudaUserObjectCreate(
        &mut object,
        at as Pointer,
        Some(object_gone),
        1,
        1
    ));
    object
}

fn objects_of_graphs() {
    GONE.iter().for_each(|count| count.store(0, SeqCst));
    ok!(cudaUserObjectRelease(object(0), 1));
    is("released", soon_gone(0), 1);
    let (s, p) = (stream(), malloc(256));
    // Given to a graph while it is captured.
    let (capture, mut exec) = (Capture::new(1), null_mut());
    // SAFETY: the stream is alive.
    let info = unsafe { sys::stream_capture_info(capture.stream) };
    let graph = info.map_or(null_mut(), |(_, _, graph)| graph);
    is(
        "given",
        cuda!(cudaGraphRetainUserObject(graph, object(1), 1, 1)),
        0,
    );
    ok!(cudaMemsetAsync(p, 5, 256, capture.stream));
    let (code, graph) = capture.end();
    is("end", code, 0);
    ok!(cudaGraphInstantiate(&mut exec, graph, 0));
    ok!(cudaGraphDestroy(graph));
    std::thread::sleep(Duration::from_millis(50));
    is("kept by the executable graph", gone(1), 0);
    let stall = Stall::on(s);
    ok!(cudaGraphLaunch(exec, s));
    ok!(cudaGraphExecDestroy(exec));
    std::thread::sleep(Duration::from_millis(20));
    is(
        "kept by the launch",
        (cuda!(cudaStreamQuery(s)), gone(1)),
        (600, 0),
    );
    drop(stall);
    ok!(cudaStreamSynchronize(s));
    is("gone with the last launch", soon_gone(1), 1);
    // Given to a capture that dies, and to one whose graph is thrown away.
    let capture = Capture::new(1);
    // SAFETY: the stream is alive.
    let info = unsafe { sys::stream_capture_info(capture.stream) };
    let graph = info.map_or(null_mut(), |(_, _, graph)| graph);
    ok!(cudaGraphRetainUserObject(graph, object(2), 1, 1));
    cuda!(cudaStreamQuery(capture.stream));
    is("dead", capture.discard(), 901);
    is("gone with a dead capture", soon_gone(2), 1);
    let capture = Capture::new(1);
    // SAFETY: the stream is alive.
    let info = unsafe { sys::stream_capture_info(capture.stream) };
    let graph = info.map_or(null_mut(), |(_, _, graph)| graph);
    ok!(cudaGraphRetainUserObject(graph, object(3), 1, 1));
    is("end", capture.discard(), 0);
    is("gone with the graph", soon_gone(3), 1);
    ok!(cudaFree(p));
    destroy([s]);
}

fn legacy_stream() {
    let p = malloc(4096);
    for (mode, name) in MODES.into_iter().enumerate() {
        let s = blocking_stream();
        let mode = sys::cudaStreamCaptureMode(mode as u32);
        ok!(cudaStreamBeginCapture(s, mode));
        let mut found = sys::cudaStreamCaptureStatus(9);
        let code = cuda!(cudaStreamIsCapturing(LEGACY, &mut found));
        is(
            format!("{name}: capture of legacy"),
            (code, status(s)),
            (906, 1),
        );
        let code = cuda!(cudaMemsetAsync(p, 1, 4096, LEGACY));
        is(format!("{name}: fill there"), (code, status(s)), (906, 2));
        let code = cuda!(cudaStreamEndCapture(s, &mut null_mut()));
        is(format!("{name}: end"), code, 901);
        cuda!(cudaGetLastError());
        destroy([s]);
    }
    beside("a fill on legacy, non-blocking", FINE, |_| {
        let mut p = null_mut();
        assert_eq!(relaxed(|| cuda!(cudaMalloc(&mut p, 4096))), 0);
        let code = cuda!(cudaMemsetAsync(p, 1, 4096, LEGACY));
        assert_eq!(relaxed(|| cuda!(cudaFree(p))), 0);
        code
    });
    ok!(cudaFree(p));
}

fn pools_and_page_locked_memory() {
    let held = Shared::new({
        let (mut pool, props) = (std::ptr::null_mut(), pool_of_device_0());
        ok!(cudaMemPoolCreate(&mut pool, &props));
        pool
    });
    let threshold = sys::cudaMemPoolAttr::cudaMemPoolAttrReleaseThreshold;
    row("cudaMemPoolTrimTo", UNSAFE, |_| {
        cuda!(cudaMemPoolTrimTo(held.get(), 0))
    });
    row("cudaMemPoolGetAttribute", UNSAFE, |_| {
        let mut value = 0u64;
        cuda!(cudaMemPoolGetAttribute(
            held.get(),
            threshold,
            (&raw mut value).cast()
        ))
    });
    row("cudaMemPoolSetAttribute", UNSAFE, |_| {
        let mut value = 1u64 << 20;
        cuda!(cudaMemPoolSetAttribute(
            held.get(),
            threshold,
            (&raw mut value).cast()
        ))
    });
    let made = Made::default();
    row("cudaMemPoolCreate", UNSAFE, |_| {
        let (mut pool, props) = (std::ptr::null_mut(), pool_of_device_0());
        let code = cuda!(cudaMemPoolCreate(&mut pool, &props));
        if code == 0 {
            made.add(pool.cast());
        }
        code
    });
    made.free(|pool| cuda!(cudaMemPoolDestroy(pool.cast())));
    row("cudaDeviceGetMemPool", ALWAYS_FINE, |_| {
        cuda!(cudaDeviceGetMemPool(&mut std::ptr::null_mut(), 0))
    });
    let made = Made::default();
    row("cudaMallocHost", UNSAFE, |_| {
        let mut p = std::ptr::null_mut();
        let code = cuda!(cudaMallocHost(&mut p, 4096));
        if code == 0 {
            made.add(p);
        }
        code
    });
    made.free(|p| cuda!(cudaFreeHost(p)));
    ok!(cudaMemPoolDestroy(held.get()));
}

fn pool_of_device_0() -> sys::cudaMemPoolProps {
    sys::mem_pool_props(0, NO_HANDLES, 0)
}

facts! {
    pools_and_page_locked_memory, Gpu: "The same of pools (made, trimmed, asked and told attributes) and of `cudaMallocHost`; asking for the device's pool is fine";
    while_relaxed_elsewhere, Documentation: "A relaxed thread may call `cudaHostAlloc` and `cudaFreeHost`, use stream-ordered memory of another stream and query it, and make pools";
    graphs_beside_a_capture, Documentation: "A relaxed thread may instantiate, launch and destroy graphs beside a capture";
    what_a_stream_is_captured_into, Documentation: "`cudaStreamGetCaptureInfo` gives a number of the capture and the graph that it will end with";
    objects_of_graphs, Documentation: "A user object goes once with the last graph, executable graph and launch that keeps it, also with a dead capture";
    memory_calls, Gpu: "`cudaMalloc`, `cudaFree`, `cudaHostAlloc`, `cudaMallocAsync` elsewhere: 900 and the capture is dead, on the capturing thread unless relaxed, on every thread if global";
    waiting_calls, Gpu: "The same of event queries, event and stream synchronisation";
    pending_events, Gpu: "The same of a query of a pending event, which answers 600 where it is allowed";
    while_relaxed, Gpu: "A thread that has exchanged its mode for relaxed may do all of that";
    device_synchronize, Gpu: "`cudaDeviceSynchronize` kills every capture, relaxed or not, on any thread";
    capturing_stream, Gpu: "So do `cudaStreamGetId` and `cudaStreamQuery` of the capturing stream";
    waits_for_outside, Gpu: "A capturing stream that is made to wait for an outside event: 905, and the capture is dead";
    allowed, Gpu: "Ids and capture state of other streams, free memory, records elsewhere, creating events and streams, and mapping are allowed";
    captured_events, Gpu: "A query of a captured event answers 907 and kills the capture, which goes on forbidding";
    pulled_in, Gpu: "A stream that waits for a captured event is pulled into the capture: its work never runs, the end is 904";
    allocations_of_its_own, Gpu: "A capturing stream may allocate and free stream-ordered memory";
    pageable_copies, Gpu: "A plain pageable copy does a capture no harm, and one on the capturing stream is captured";
    calls_elsewhere, Gpu: "`cudaFreeAsync` on another stream, `cudaStreamQuery` of another, `cudaHostRegister` on the capturing thread: 900, dead";
    begun_and_ended_twice, Gpu: "The end of no capture, and a second begin: 401, and the capture lives on";
    events_of_ended_captures, Gpu: "An event of a capture that ended well is refused (1); one recorded on a dead capture's stream is done";
    runs_when_launched, Documentation: "Captured work runs when its graph is launched, not before";
    legacy_stream, Documentation: "While a blocking stream captures, legacy answers 906: to the question whether it captures, harmlessly, and to work, which kills the capture";
}
