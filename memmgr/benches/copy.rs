//! What a copy through the manager costs beside the plain call: `cargo bench -p memmgr --bench copy` on a GPU, and with
//! `--features sim` on the simulated runtime without its checker, prints nanoseconds on the host for each.
//!
//! The difference is split: what the runtime takes for the calls that a copy makes beside `cudaMemcpyAsync`, and the rest,
//! which is the manager's own. The latter is about the same on both; the simulated runtime's own calls are not a GPU's.
//! `… --bench copy -- manager 20000` runs one kind so often and nothing else, for a profiler.

use cuda_sys as sys;
use memmgr::{Config, MemoryManager, Stream, cuda_calls_on_this_thread};
use std::{ffi::c_void, hint::black_box, ptr::null_mut, time::Instant};

const BYTES: usize = 256;
const ROUNDS: usize = 200;
/// A stream takes as many without a wait.
const COPIES: usize = 200;

macro_rules! cuda {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the pointers and handles are those that this program has made, and are alive.
        assert_eq!(unsafe { sys::$name($($argument),*) }.0, 0)
    };
}

struct Bench {
    manager: MemoryManager,
    stream: Stream,
    raw: sys::cudaStream_t,
    event: sys::cudaEvent_t,
    host: *mut c_void,
    device: *mut c_void,
}

impl Bench {
    fn new() -> Self {
        let manager = MemoryManager::new(Config::default()).expect("the defaults are valid");
        let stream = Stream::new().expect("a stream can be made");
        let mut event = null_mut();
        cuda!(cudaEventCreateWithFlags(
            &mut event,
            sys::cudaEventDisableTiming
        ));
        // Others live beside them, so that the tables are not those of an empty pool.
        for _ in 0..500 {
            manager.allocate_pinned(4096).expect("there is room");
            manager.allocate_device(4096).expect("there is room");
        }
        Self {
            raw: stream.as_raw().cast(),
            event,
            host: manager.allocate_pinned(BYTES).expect("there is room"),
            device: manager.allocate_device(BYTES).expect("there is room"),
            manager,
            stream,
        }
    }

    fn plain(&self) {
        let kind = sys::cudaMemcpyKind::cudaMemcpyHostToDevice;
        cuda!(cudaMemcpyAsync(
            self.device,
            self.host,
            BYTES,
            kind,
            self.raw
        ));
    }

    /// The calls that a copy through the manager makes, without the manager.
    fn calls(&self) {
        let mut status = sys::cudaStreamCaptureStatus::cudaStreamCaptureStatusNone;
        cuda!(cudaStreamIsCapturing(self.raw, &mut status));
        self.plain();
        cuda!(cudaEventRecord(self.event, self.raw));
    }

    fn manager(&self) {
        // SAFETY: both blocks have that many bytes.
        unsafe {
            self.manager
                .copy_to_device_async(self.device, self.host, BYTES, &self.stream)
        }
        .expect("the copy is submitted");
    }

    fn settle(&self) {
        self.stream.synchronize().expect("the stream ends");
    }
}

/// Nanoseconds for each call of each kind: the best of several rounds, in which they take turns.
fn nanoseconds<const N: usize>(bench: &Bench, kinds: &[(&str, &dyn Fn()); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for ((_, f), best) in kinds.iter().zip(&mut best) {
            bench.settle();
            let begun = Instant::now();
            for _ in 0..COPIES {
                f();
            }
            *best = best.min(begun.elapsed().as_nanos() as f64 / COPIES as f64);
        }
    }
    best
}

/// Nothing runs beside what is measured: work waits until the stream is waited for.
#[cfg(feature = "sim")]
fn configure() {
    let mut config = cudart_sim::Config::devices(1, 1 << 30);
    config.schedule = cudart_sim::Schedule::Lazy;
    let configured = cudart_sim::configure(config);
    assert!(configured.is_ok(), "nothing was called before");
}

#[cfg(not(feature = "sim"))]
fn configure() {}

fn main() {
    configure();
    let bench = Bench::new();
    let parts = (
        bench
            .manager
            .device::<u8>(BYTES, &bench.stream)
            .expect("there is room"),
        bench.manager.pinned::<u8>(BYTES).expect("there is room"),
    );
    let guards = || {
        let (device, host) = &parts;
        drop(black_box(bench.stream.copy_to_device(host, device)));
    };
    let kinds: [(&str, &dyn Fn()); 4] = [
        ("plain", &|| bench.plain()),
        ("calls", &|| bench.calls()),
        ("manager", &|| bench.manager()),
        ("guards", &guards),
    ];
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    if let [kind, count] = &arguments[..] {
        let count: usize = count.parse().expect("how often");
        let (_, f) = kinds
            .iter()
            .find(|(name, _)| name == kind)
            .expect("plain, calls, manager or guards");
        for at in 0..count {
            f();
            if at % COPIES == COPIES - 1 {
                bench.settle();
            }
        }
        return;
    }
    bench.manager();
    let before = cuda_calls_on_this_thread();
    bench.manager();
    println!(
        "{} CUDA calls for a copy",
        cuda_calls_on_this_thread() - before
    );
    let times = nanoseconds(&bench, &kinds);
    for ((name, _), time) in kinds.iter().zip(times) {
        println!("{name:>8} {time:>7.0} ns");
    }
    let [plain, calls, manager, guards] = times;
    println!(
        "beside the plain copy: {:.0} ns by pointers, {:.0} ns by guards, of which the runtime's are {:.0} ns",
        manager - plain,
        guards - plain,
        calls - plain
    );
}
