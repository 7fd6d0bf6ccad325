//! What is left when the last handle is destroyed: no thread, no open file, no memory, and nothing that grows.
//! Calls CUDA functions only, but for the reset at the end.

mod cuda;
use cuda::*;
use std::collections::BTreeSet;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// One arena for all threads, and no stacks kept for later: what the C library holds for itself stays the same.
const PLAIN_LIBC: &[(&str, &str)] = &[
    ("MALLOC_ARENA_MAX", "1"),
    ("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0"),
];

/// A mapping of this process: where, how long, with which access, of what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    start: usize,
    len: usize,
    access: String,
    name: String,
}

fn mappings() -> Vec<Line> {
    // The C library unmaps the stack of a thread that ended by itself when the next one is joined.
    std::thread::spawn(|| {}).join().unwrap();
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        Some(Line {
            start,
            len: usize::from_str_radix(end, 16).ok()? - start,
            access: words.next()?.into(),
            name: words.nth(3).unwrap_or_default().into(),
        })
    };
    let lines: Vec<Line> = text.lines().filter_map(parse).collect();
    assert!(lines.len() > 10, "{text}");
    lines
}

fn of_devices(lines: &[Line]) -> usize {
    lines
        .iter()
        .filter(|l| l.name.contains("cudart-sim"))
        .count()
}

fn sum(lines: &[Line]) -> usize {
    lines
        .iter()
        .filter(|l| l.name != "[heap]")
        .map(|l| l.len)
        .sum()
}

fn threads() -> usize {
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    all.flatten()
        .filter(|t| {
            let name = std::fs::read_to_string(t.path().join("comm"));
            name.is_ok_and(|n| n.starts_with("cudart-sim"))
        })
        .count()
}

fn files() -> BTreeSet<String> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.flatten()
        .filter_map(|f| Some(std::fs::read_link(f.path()).ok()?.display().to_string()))
        .collect()
}

/// A bit of everything, from several threads; all of it is given back.
fn round() {
    let one = || {
        let (s, e) = (stream(), event());
        let p = malloc(MIB);
        let mut h = null_mut();
        assert_eq!(cuda!(cudaHostAlloc(&mut h, MIB, 0)), 0);
        assert_eq!(cuda!(cudaMemsetAsync(p, 5, MIB, s)), 0);
        assert_eq!(cuda!(cudaMemcpyAsync(h, p, MIB, D2H, s)), 0);
        assert_eq!(cuda!(cudaEventRecord(e, s)), 0);
        let own = 2 as sys::cudaStream_t;
        assert_eq!(cuda!(cudaStreamWaitEvent(own, e, 0)), 0);
        let mut q = null_mut();
        assert_eq!(cuda!(cudaMallocAsync(&mut q, MIB, own)), 0);
        assert_eq!(cuda!(cudaMemcpyAsync(q, p, MIB, D2D, own)), 0);
        assert_eq!(cuda!(cudaFreeAsync(q, own)), 0);
        stall(s, 1);
        assert_eq!(cuda!(cudaStreamSynchronize(own)), 0);
        assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
        assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
        assert_eq!(cuda!(cudaEventDestroy(e)), 0);
        assert_eq!(cuda!(cudaFree(p)), 0);
        assert_eq!(cuda!(cudaFreeHost(h)), 0);
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(one);
        }
    });
    let chunks = Mapped::new(CHUNK, 4);
    fill(chunks.pointer(0), 3, chunks.len());
    chunks.end();
    let s = stream();
    let mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
    let p = malloc(MIB);
    let (mut graph, mut exec) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaStreamBeginCapture(s, mode)), 0);
    assert_eq!(cuda!(cudaMemsetAsync(p, 1, MIB, s)), 0);
    assert_eq!(cuda!(cudaStreamEndCapture(s, &mut graph)), 0);
    assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
    assert_eq!(cuda!(cudaGraphLaunch(exec, s)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    assert_eq!(cuda!(cudaGraphExecDestroy(exec)), 0);
    assert_eq!(cuda!(cudaGraphDestroy(graph)), 0);
    assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
    assert_eq!(cuda!(cudaFree(p)), 0);
    for kind in [
        sys::cudaMemLocationType::cudaMemLocationTypeDevice,
        sys::cudaMemLocationType::cudaMemLocationTypeHost,
    ] {
        let mut props = sys::cudaMemPoolProps {
            allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
            ..Default::default()
        };
        props.location.type_ = kind;
        let (mut pool, mut q) = (null_mut(), null_mut());
        assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 0);
        assert_eq!(
            cuda!(cudaMallocFromPoolAsync(&mut q, MIB, pool, null_mut())),
            0
        );
        assert_eq!(cuda!(cudaFreeAsync(q, null_mut())), 0);
        assert_eq!(cuda!(cudaMemPoolDestroy(pool)), 0);
    }
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
}

/// Waits until no thread of the simulator is left; how many are left after a minute.
fn threads_in_the_end() -> usize {
    let start = Instant::now();
    while threads() > 0 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
    }
    threads()
}

macro_rules! nothing_is_left {
    ($($name:ident: $schedule:literal;)*) => {
        $(#[test] fn $name() {
            let mut variables = PLAIN_LIBC.to_vec();
            variables.push(("CUDART_SIM_SCHEDULE", $schedule));
            in_a_process_of_its_own(stringify!($name), &variables, look_for_leftovers);
        })*
    };
}

nothing_is_left! {
    nothing_is_left_after_the_last_handle_and_nothing_grows_eagerly: "eager";
    nothing_is_left_after_the_last_handle_and_nothing_grows_lazily: "lazy";
    nothing_is_left_after_the_last_handle_and_nothing_grows_at_random: "random:3";
}

fn look_for_leftovers() {
    let (before, open) = (mappings(), files());
    assert_eq!(threads(), 0);
    // While there is work there is a thread, and it is seen.
    let s = stream();
    stall(s, 200);
    let start = Instant::now();
    while threads() == 0 && start.elapsed() < Duration::from_secs(60) {
        assert!(matches!(cuda!(cudaStreamQuery(s)), 0 | 600));
    }
    assert!(threads() > 0, "it could not see the threads");
    assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
    round();
    assert_eq!(threads_in_the_end(), 0);
    assert_eq!(files(), open);
    let after_one = mappings();
    // The addresses of the device and the memory behind them stay until its reset.
    assert_eq!(of_devices(&after_one), 1, "{after_one:#?}");
    for _ in 0..5 {
        round();
    }
    assert_eq!(threads_in_the_end(), 0);
    assert_eq!(files(), open);
    let after_all = mappings();
    assert_eq!(sum(&after_all), sum(&after_one), "{after_all:#?}");
    let (mut free, mut total) = (0, 0);
    assert_eq!(cuda!(cudaMemGetInfo(&mut free, &mut total)), 0);
    assert_eq!(free, total);
    assert_eq!(cuda!(cudaDeviceReset()), 0);
    left_for_handles(&before, &mappings());
    round();
    assert_eq!(threads_in_the_end(), 0);
    cudart_sim::reset();
    left_for_handles(&before, &mappings());
    assert_eq!(files(), open);
}

/// Nothing of the devices is left; the values of handles, which are never memory, take up addresses and nothing else.
fn left_for_handles(before: &[Line], after: &[Line]) {
    const SPAN: usize = 64 << 20;
    assert_eq!(of_devices(after), 0, "{after:#?}");
    let plain = |lines: &[Line], touchable: bool| {
        let lines = lines.iter().filter(|l| (l.access != "---p") == touchable);
        sum(&lines.cloned().collect::<Vec<_>>())
    };
    assert_eq!(plain(after, true), plain(before, true), "{after:#?}");
    let reserved = plain(after, false) - plain(before, false);
    assert!(
        reserved <= 6 * SPAN && reserved.is_multiple_of(SPAN),
        "{after:#?}"
    );
}
