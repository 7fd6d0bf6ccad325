//! Stream capture: what an H200 answered, asserted with the same calls. Calls CUDA functions only.

mod cuda;
use cuda::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

type Stream = sys::cudaStream_t;

/// Addresses and handles that another thread may use.
#[derive(Clone, Copy)]
struct Shared<T>(T);
// SAFETY: CUDA's handles and device addresses may be used by any thread.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(&self) -> T {
        self.0
    }
}

fn begin(s: Stream, mode: u32) -> u32 {
    cuda!(cudaStreamBeginCapture(s, sys::cudaStreamCaptureMode(mode)))
}

fn end(s: Stream) -> (u32, sys::cudaGraph_t) {
    let mut graph = null_mut();
    let code = cuda!(cudaStreamEndCapture(s, &mut graph));
    cuda!(cudaGetLastError());
    (code, graph)
}

/// 0: none, 1: active, 2: invalidated.
fn status(s: Stream) -> u32 {
    let mut status = sys::cudaStreamCaptureStatus(9);
    assert_eq!(cuda!(cudaStreamIsCapturing(s, &mut status)), 0);
    status.0
}

fn relaxed(call: impl FnOnce() -> u32) -> u32 {
    let mut mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
    assert_eq!(cuda!(cudaThreadExchangeStreamCaptureMode(&mut mode)), 0);
    let code = call();
    assert_eq!(cuda!(cudaThreadExchangeStreamCaptureMode(&mut mode)), 0);
    code
}

/// What a call answers while a stream captures, in the modes global, thread-local and relaxed, on the capturing thread
/// and on another one; and whether the capture is alive afterwards. Its end agrees with that.
fn answers(call: impl Fn(Stream) -> u32 + Sync) -> [[(u32, bool); 3]; 2] {
    [false, true].map(|elsewhere| {
        [0, 1, 2].map(|mode| {
            let s = Shared(stream());
            assert_eq!(begin(s.get(), mode), 0);
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
            let alive = status(s.get()) == 1;
            let (ended, graph) = end(s.get());
            assert_eq!(ended, if alive { 0 } else { 901 });
            assert_eq!(graph.is_null(), !alive);
            if alive {
                assert_eq!(cuda!(cudaGraphDestroy(graph)), 0);
            }
            assert_eq!(cuda!(cudaStreamDestroy(s.get())), 0);
            (code, alive)
        })
    })
}

const FINE: (u32, bool) = (0, true);
const DEAD: (u32, bool) = (900, false);

/// Forbidden to the capturing thread unless it captures relaxed, and to all threads while a capture is global.
const UNSAFE: [[(u32, bool); 3]; 2] = [[DEAD, DEAD, FINE], [DEAD, FINE, FINE]];
const ALWAYS_FINE: [[(u32, bool); 3]; 2] = [[FINE; 3]; 2];
const ALWAYS_DEAD: [[(u32, bool); 3]; 2] = [[DEAD; 3]; 2];

/// A stream with an event that is done, and some memory.
fn bystander() -> (Shared<Stream>, Shared<sys::cudaEvent_t>) {
    let (s, e) = (stream(), event());
    assert_eq!(cuda!(cudaEventRecord(e, s)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    (Shared(s), Shared(e))
}

#[test]
fn unsafe_calls_kill_a_capture_of_their_thread_and_every_global_one() {
    let _turn = turn();
    let (s, done) = bystander();
    let mut p = null_mut();
    assert_eq!(cuda!(cudaMalloc(&mut p, 4096)), 0);
    let allocate = |_| cuda!(cudaMalloc(&mut null_mut(), 1 << 20));
    assert_eq!(answers(allocate), UNSAFE);
    let free = |_| {
        let mut p = null_mut();
        assert_eq!(relaxed(|| cuda!(cudaMalloc(&mut p, 4096))), 0);
        cuda!(cudaFree(p))
    };
    assert_eq!(answers(free), UNSAFE);
    let pin = |_| cuda!(cudaHostAlloc(&mut null_mut(), 4096, 0));
    assert_eq!(answers(pin), UNSAFE);
    let pooled = |_| cuda!(cudaMallocAsync(&mut null_mut(), 256, s.get()));
    assert_eq!(answers(pooled), UNSAFE);
    let query = |_| cuda!(cudaEventQuery(done.get()));
    assert_eq!(answers(query), UNSAFE);
    let state = |_| cuda!(cudaStreamQuery(s.get()));
    assert_eq!(answers(state), UNSAFE);
    let block = Shared({
        let mut p = null_mut();
        assert_eq!(cuda!(cudaMallocAsync(&mut p, 256, s.get())), 0);
        p
    });
    let give = |_| match cuda!(cudaFreeAsync(block.get(), s.get())) {
        // Where it is allowed the first one frees it.
        1 => 0,
        code => code,
    };
    assert_eq!(answers(give), UNSAFE);
    let wait = |_| cuda!(cudaEventSynchronize(done.get()));
    assert_eq!(answers(wait), UNSAFE);
    let synchronize = |_| cuda!(cudaStreamSynchronize(s.get()));
    assert_eq!(answers(synchronize), UNSAFE);
}

#[test]
fn a_pending_event_may_be_queried_where_a_done_one_may() {
    let _turn = turn();
    let (s, e) = (Shared(stream()), Shared(event()));
    const PENDING: (u32, bool) = (600, true);
    let query = |_| {
        stall(s.get(), 20);
        assert_eq!(cuda!(cudaEventRecord(e.get(), s.get())), 0);
        cuda!(cudaEventQuery(e.get()))
    };
    assert_eq!(
        answers(query),
        [[DEAD, DEAD, PENDING], [DEAD, PENDING, PENDING]]
    );
}

#[test]
fn a_relaxed_thread_may_do_what_is_unsafe() {
    let _turn = turn();
    let (s, done) = bystander();
    let allocate = |_| {
        let mut p = null_mut();
        relaxed(|| cuda!(cudaMalloc(&mut p, 4096)) + cuda!(cudaFree(p)))
    };
    assert_eq!(answers(allocate), ALWAYS_FINE);
    let query = |_| relaxed(|| cuda!(cudaEventQuery(done.get())));
    assert_eq!(answers(query), ALWAYS_FINE);
    let wait = |_| relaxed(|| cuda!(cudaEventSynchronize(done.get())));
    assert_eq!(answers(wait), ALWAYS_FINE);
    let synchronize = |_| relaxed(|| cuda!(cudaStreamSynchronize(s.get())));
    assert_eq!(answers(synchronize), ALWAYS_FINE);
}

#[test]
fn nobody_may_wait_for_a_device_that_captures() {
    let _turn = turn();
    assert_eq!(answers(|_| cuda!(cudaDeviceSynchronize())), ALWAYS_DEAD);
    let wait = |_| relaxed(|| cuda!(cudaDeviceSynchronize()));
    assert_eq!(answers(wait), ALWAYS_DEAD);
}

#[test]
fn nobody_may_ask_a_stream_that_captures_for_its_id_or_its_state() {
    let _turn = turn();
    let id = |s: Stream| cuda!(cudaStreamGetId(s, &mut 0));
    assert_eq!(answers(id), ALWAYS_DEAD);
    assert_eq!(answers(|s| relaxed(|| id(s))), ALWAYS_DEAD);
    assert_eq!(answers(|s| cuda!(cudaStreamQuery(s))), ALWAYS_DEAD);
}

#[test]
fn a_capturing_stream_may_not_wait_for_what_is_outside() {
    let _turn = turn();
    let (_, done) = bystander();
    let wait = |s| cuda!(cudaStreamWaitEvent(s, done.get(), 0));
    assert_eq!(answers(wait), [[(905, false); 3]; 2]);
}

#[test]
fn what_touches_no_capture_is_allowed_beside_one() {
    let _turn = turn();
    let (s, _) = bystander();
    let e = Shared(event());
    assert_eq!(answers(|_| 0), ALWAYS_FINE);
    let id = |_| cuda!(cudaStreamGetId(s.get(), &mut 0));
    assert_eq!(answers(id), ALWAYS_FINE);
    assert_eq!(answers(|_| status(s.get())), ALWAYS_FINE);
    let free = |_| cuda!(cudaMemGetInfo(&mut 0, &mut 0));
    assert_eq!(answers(free), ALWAYS_FINE);
    let record = |_| cuda!(cudaEventRecord(e.get(), s.get()));
    assert_eq!(answers(record), ALWAYS_FINE);
    let create = |_| cuda!(cudaEventCreateWithFlags(&mut null_mut(), 2));
    assert_eq!(answers(create), ALWAYS_FINE);
    assert_eq!(answers(|_| cuda!(cudaStreamDestroy(stream()))), ALWAYS_FINE);
    let map = |_| {
        Mapped::new(CHUNK, 1).end();
        0
    };
    assert_eq!(answers(map), ALWAYS_FINE);
}

#[test]
fn asking_for_a_captured_event_kills_the_capture() {
    let _turn = turn();
    for (mode, afterwards) in [(0, 900), (1, 900), (2, 0)] {
        let (s, other, e) = (stream(), stream(), event());
        assert_eq!(begin(s, mode), 0);
        assert_eq!(cuda!(cudaEventRecord(e, s)), 0);
        assert_eq!(cuda!(cudaEventQuery(e)), 907);
        assert_eq!(status(s), 2);
        // A dead capture still forbids what it forbade.
        let mut p = null_mut();
        assert_eq!(cuda!(cudaMalloc(&mut p, 1 << 20)), afterwards);
        assert_eq!(status(s), 2);
        let pooled = cuda!(cudaMallocAsync(&mut p, 1 << 20, other));
        assert_eq!(pooled, afterwards);
        assert_eq!(end(s), (901, null_mut()));
    }
}

#[test]
fn pageable_memory_is_captured_and_a_plain_copy_does_no_harm() {
    let _turn = turn();
    let (s, d) = (Shared(stream()), Shared(malloc(65536)));
    let bytes = vec![1u8; 65536];
    let plain = |_| cuda!(cudaMemcpy(d.get(), bytes.as_ptr().cast(), 65536, H2D));
    assert_eq!(answers(plain), ALWAYS_FINE);
    assert_eq!(begin(s.get(), 1), 0);
    let code = cuda!(cudaMemcpyAsync(
        d.get(),
        bytes.as_ptr().cast(),
        65536,
        H2D,
        s.get()
    ));
    assert_eq!((code, status(s.get())), (0, 1));
    assert_eq!(end(s.get()).0, 0);
    assert_eq!(cuda!(cudaFree(d.get())), 0);
}

#[test]
fn a_stream_that_waits_for_a_captured_event_is_pulled_into_the_capture() {
    let _turn = turn();
    let (x, c, e) = (stream(), stream(), event());
    let p = malloc(256);
    assert_eq!(cuda!(cudaMemsetAsync(p, 1, 256, c)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(c)), 0);
    assert_eq!(begin(x, 1), 0);
    assert_eq!(cuda!(cudaEventRecord(e, x)), 0);
    assert_eq!(cuda!(cudaStreamWaitEvent(c, e, 0)), 0);
    assert_eq!(status(c), 1);
    assert_eq!(cuda!(cudaMemsetAsync(p, 2, 256, c)), 0);
    assert_eq!(end(x), (904, null_mut()));
    assert_eq!(status(c), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(c)), 0);
    assert_eq!(read(p, 2), [1, 1], "the fill was captured and never ran");
    assert_eq!(cuda!(cudaFree(p)), 0);
}

#[test]
fn a_capture_may_allocate_and_free_on_its_stream() {
    let _turn = turn();
    let s = stream();
    assert_eq!(begin(s, 1), 0);
    let mut p = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut p, 1 << 20, s)), 0);
    assert!(!p.is_null());
    assert_eq!(cuda!(cudaFreeAsync(p, s)), 0);
    let (code, graph) = end(s);
    assert_eq!(code, 0);
    assert_eq!(cuda!(cudaGraphDestroy(graph)), 0);
}

/// Captures what `work` submits to a stream, and makes it ready to run.
fn captured(s: Stream, work: impl FnOnce()) -> sys::cudaGraphExec_t {
    assert_eq!(begin(s, 1), 0);
    work();
    let (code, graph) = end(s);
    assert_eq!(code, 0);
    let mut exec = null_mut();
    assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
    assert_eq!(cuda!(cudaGraphDestroy(graph)), 0);
    exec
}

fn launch(exec: sys::cudaGraphExec_t, s: Stream) {
    assert_eq!(cuda!(cudaGraphLaunch(exec, s)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
}

#[test]
fn captured_work_runs_when_its_graph_is_launched_each_time() {
    let _turn = turn();
    static RAN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: *mut c_void) {
        RAN.fetch_add(1, Ordering::Relaxed);
    }
    let s = stream();
    let (a, b) = (malloc(4096), malloc(4096));
    fill(a, 0, 4096);
    fill(b, 0, 4096);
    let exec = captured(s, || {
        assert_eq!(cuda!(cudaMemsetAsync(a, 7, 4096, s)), 0);
        assert_eq!(cuda!(cudaMemcpyAsync(b, a, 4096, D2D, s)), 0);
        assert_eq!(cuda!(cudaLaunchHostFunc(s, Some(count), null_mut())), 0);
    });
    assert_eq!(read(b, 2), [0, 0], "nothing ran yet");
    assert_eq!(RAN.load(Ordering::Relaxed), 0);
    for times in 1..=2 {
        fill(b, 0, 4096);
        launch(exec, s);
        assert_eq!(read(b, 4096), [7; 4096]);
        assert_eq!(RAN.load(Ordering::Relaxed), times);
    }
    assert_eq!(cuda!(cudaGraphExecDestroy(exec)), 0);
    assert_eq!(cuda!(cudaFree(a)), 0);
    assert_eq!(cuda!(cudaFree(b)), 0);
}

#[test]
fn a_capture_may_fork_to_another_stream_and_join_it() {
    let _turn = turn();
    let (s, side) = (stream(), stream());
    let (fork, join) = (event(), event());
    let p = malloc(8192);
    fill(p, 0, 8192);
    let exec = captured(s, || {
        assert_eq!(cuda!(cudaEventRecord(fork, s)), 0);
        assert_eq!(cuda!(cudaStreamWaitEvent(side, fork, 0)), 0);
        assert_eq!(cuda!(cudaMemsetAsync(p, 1, 4096, s)), 0);
        let second = p.wrapping_byte_add(4096);
        assert_eq!(cuda!(cudaMemsetAsync(second, 2, 4096, side)), 0);
        assert_eq!(cuda!(cudaEventRecord(join, side)), 0);
        assert_eq!(cuda!(cudaStreamWaitEvent(s, join, 0)), 0);
        assert_eq!(cuda!(cudaMemcpyAsync(p, second, 100, D2D, s)), 0);
    });
    launch(exec, s);
    let bytes = read(p, 8192);
    assert!(bytes[..100].iter().all(|b| *b == 2));
    assert!(bytes[100..4096].iter().all(|b| *b == 1));
    assert!(bytes[4096..].iter().all(|b| *b == 2));
    assert_eq!(cuda!(cudaGraphExecDestroy(exec)), 0);
    assert_eq!(cuda!(cudaFree(p)), 0);
}

#[test]
fn captured_copies_and_fills_go_across_the_borders_of_chunks() {
    let _turn = turn();
    let v = Mapped::new(CHUNK, 8);
    let (s, n, d) = (stream(), v.len(), v.pointer(0));
    let plain = malloc(n);
    let mut pinned = null_mut();
    assert_eq!(cuda!(cudaHostAlloc(&mut pinned, n, 0)), 0);
    let bytes = pattern(n);
    // SAFETY: the page-locked block has room for as many bytes, and nobody else knows it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pinned.cast(), n) };
    let mut execs = Vec::new();
    execs.push(captured(s, || {
        assert_eq!(
            cuda!(cudaMemcpyAsync(v.pointer(100), pinned, n - 200, H2D, s)),
            0
        );
    }));
    execs.push(captured(s, || {
        assert_eq!(cuda!(cudaMemsetAsync(v.pointer(MIB), 9, 4 * MIB, s)), 0);
    }));
    execs.push(captured(s, || {
        assert_eq!(cuda!(cudaMemset2DAsync(d, 6000, 4, 4000, 2000, s)), 0);
    }));
    execs.push(captured(s, || {
        assert_eq!(cuda!(cudaMemcpyAsync(plain, d, n, D2D, s)), 0);
    }));
    for exec in &execs {
        launch(*exec, s);
    }
    let mut want = vec![0; n];
    want[100..n - 100].copy_from_slice(&bytes[..n - 200]);
    want[MIB..5 * MIB].fill(9);
    for row in 0..2000 {
        want[row * 6000..][..4000].fill(4);
    }
    assert!(read(plain, n - 100) == want[..n - 100]);
    for exec in execs {
        assert_eq!(cuda!(cudaGraphExecDestroy(exec)), 0);
    }
    assert_eq!(cuda!(cudaFree(plain)), 0);
    assert_eq!(cuda!(cudaFreeHost(pinned)), 0);
    v.end();
}
