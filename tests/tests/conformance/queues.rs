//! A stalled stream that takes no more work.

use crate::{cuda::*, facts, is};
use std::{
    ptr::null_mut,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{JoinHandle, sleep},
    time::{Duration, Instant},
};

const DEPTH: usize = 1021;

/// A call for another thread to make.
type Call = Box<dyn Fn() -> u32 + Send>;

/// A stream that is stalled and full, and a thread that waits to put more on it.
struct Full {
    stream: Stream,
    stall: Stall,
    taken: Arc<AtomicUsize>,
    filler: JoinHandle<u32>,
    memory: Pointer,
}

impl Full {
    fn new() -> Full {
        let (stream, memory) = (stream(), malloc(256));
        let stall = Stall::on(stream);
        let taken = Arc::new(AtomicUsize::new(0));
        let (count, shared) = (taken.clone(), Shared::new((stream, memory)));
        let filler = std::thread::spawn(move || {
            let (s, p) = shared.get();
            let put = |_| {
                let code = cuda!(cudaMemsetAsync(p, 0, 256, s));
                count.fetch_add(1, Ordering::SeqCst);
                code
            };
            (0..DEPTH + 100).map(put).max().unwrap_or(0)
        });
        let start = Instant::now();
        while taken.load(Ordering::SeqCst) < DEPTH && start.elapsed() < Duration::from_secs(3) {
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(100));
        Full {
            stream,
            stall,
            taken,
            filler,
            memory,
        }
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    fn end(self) {
        self.stall.end();
        is("the fills", self.filler.join().expect("it ends"), 0);
        is(
            "all of them",
            self.taken.load(Ordering::SeqCst),
            DEPTH + 100,
        );
        ok!(cudaDeviceSynchronize());
        ok!(cudaFree(self.memory));
        destroy([self.stream]);
    }
}

fn depth() {
    let full = Full::new();
    is(
        "fills behind a stall before the caller waits",
        full.taken(),
        DEPTH,
    );
    is("the stall is over", full.stall.is_over(), false);
    full.end();
}

fn held_up() {
    let e = event();
    let full = Full::new();
    let e = Shared::new((full.stream, e));
    let calls: [(&str, Call); 5] = [
        (
            "cudaEventRecord on the full stream",
            Box::new(move || cuda!(cudaEventRecord(e.get().1, e.get().0))),
        ),
        (
            "cudaEventCreate",
            Box::new(|| {
                let mut e = null_mut();
                cuda!(cudaEventCreateWithFlags(&mut e, 2)) + cuda!(cudaEventDestroy(e))
            }),
        ),
        (
            "cudaStreamCreate",
            Box::new(|| {
                let mut s = null_mut();
                cuda!(cudaStreamCreateWithFlags(&mut s, 1)) + cuda!(cudaStreamDestroy(s))
            }),
        ),
        (
            "cudaHostAlloc",
            Box::new(|| {
                let mut p = null_mut();
                cuda!(cudaHostAlloc(&mut p, 4096, 0)) + cuda!(cudaFreeHost(p))
            }),
        ),
        (
            "cudaMalloc",
            Box::new(|| {
                let mut p = null_mut();
                cuda!(cudaMalloc(&mut p, MIB)) + cuda!(cudaFree(p))
            }),
        ),
    ];
    let threads = calls.map(|(what, call)| (what, std::thread::spawn(call)));
    sleep(Duration::from_millis(100));
    for (what, thread) in &threads {
        is(format!("{what} returned"), thread.is_finished(), false);
    }
    is("the stall is over", full.stall.is_over(), false);
    full.stall.end();
    for (what, thread) in threads {
        is(what, thread.join().expect("it ends"), 0);
    }
    full.end();
    ok!(cudaEventDestroy(e.get().1));
}

fn goes_on() {
    let (s, d, done, e) = (stream(), malloc(256), done_event(), event());
    // What a first use takes is behind us, and the pool has room.
    let small = malloc_async(256, s);
    Mapped::new(CHUNK, 1).end();
    ok!(cudaDeviceSynchronize());
    let full = Full::new();
    let mut p = null_mut();
    let mut mapped = None;
    let check = |what: &str, call: &mut dyn FnMut() -> u32| {
        let code = call();
        let shape = if full.stall.is_over() { Waits } else { Returns };
        is(what, (code, shape), (0, Returns));
    };
    check("cudaEventQuery", &mut || cuda!(cudaEventQuery(done)));
    check("cudaStreamWaitEvent", &mut || {
        cuda!(cudaStreamWaitEvent(s, done, 0))
    });
    check("cudaMemsetAsync", &mut || {
        cuda!(cudaMemsetAsync(d, 0, 256, s))
    });
    check("cudaMallocAsync", &mut || {
        cuda!(cudaMallocAsync(&mut p, MIB, s))
    });
    check("cudaEventRecord", &mut || cuda!(cudaEventRecord(e, s)));
    check("mapping", &mut || {
        mapped = Some(Mapped::new(CHUNK, 1));
        0
    });
    full.end();
    mapped.expect("it was mapped").end();
    ok!(cudaFreeAsync(p, s));
    ok!(cudaFreeAsync(small, s));
    ok!(cudaDeviceSynchronize());
    ok!(cudaFree(d));
    ok!(cudaEventDestroy(e));
    ok!(cudaEventDestroy(done));
    destroy([s]);
}

fn questions() {
    let s = stream();
    let small = malloc_async(256, s);
    ok!(cudaStreamSynchronize(s));
    let full = Full::new();
    let check = |what: &str, code: u32| {
        let shape = if full.stall.is_over() { Waits } else { Returns };
        is(what, (code, shape), (0, Returns));
    };
    check("cudaStreamGetId", cuda!(cudaStreamGetId(s, &mut 0)));
    check("cudaStreamQuery", cuda!(cudaStreamQuery(s)));
    let mut status = sys::cudaStreamCaptureStatus(9);
    let code = cuda!(cudaStreamIsCapturing(s, &mut status));
    check("cudaStreamIsCapturing", code);
    check("cudaGetDevice", cuda!(cudaGetDevice(&mut 0)));
    check("cudaSetDevice", cuda!(cudaSetDevice(0)));
    check("cudaMemGetInfo", cuda!(cudaMemGetInfo(&mut 0, &mut 0)));
    check("cudaFreeAsync", cuda!(cudaFreeAsync(small, s)));
    full.end();
    destroy([s]);
}

facts! {
    depth, Gpu: "A stalled stream takes 1,021 fills, then its caller waits";
    held_up, Gpu: "While a caller waits so, recording on the full stream, creating events and streams, `cudaHostAlloc` and `cudaMalloc` wait too";
    goes_on, Gpu: "Meanwhile event queries, and waits, fills, stream-ordered allocations and records on other streams, and mapping, do not wait";
    questions, Assumed: "Nor do ids, queries and capture of other streams, the current device, free memory, and `cudaFreeAsync` elsewhere";
}
