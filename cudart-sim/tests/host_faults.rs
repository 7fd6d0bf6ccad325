//! What the host must not touch it cannot touch: device memory, and what lies beside page-locked memory. Each access is
//! made by a process of its own, which has to die of it. Calls CUDA functions only.

mod cuda;
use cuda::*;
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr::null_mut;

const CASE: &str = "TEST_ACCESS";
const READY: &str = "ready for the access";

/// Reads or writes one byte, after saying that nothing else is left to do.
fn touch(p: *mut c_void, write: bool) {
    println!("{READY}");
    let p = p.cast::<u8>();
    // SAFETY: this process is there to die of it, unless the byte is memory of its own.
    unsafe {
        match write {
            true => p.write_volatile(1),
            false => _ = p.read_volatile(),
        }
    }
}

/// Makes the access of each case in a process of its own; true: the process lives on.
fn accesses(name: &str, cases: &[(&str, bool)], touch: impl Fn(&str)) {
    if let Ok(case) = std::env::var(CASE) {
        return touch(&case);
    }
    for (case, lives) in cases {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CASE, case)
            // A sanitizer would take the fault for its own.
            .env("ASAN_OPTIONS", "handle_segv=0")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(text.contains(READY), "{case}: {text}");
        if *lives {
            assert!(
                run.status.success() && text.contains("1 passed"),
                "{case}: {text}"
            );
        } else {
            assert_eq!(run.status.signal(), Some(libc::SIGSEGV), "{case}: {text}");
        }
    }
}

fn pinned(size: usize) -> *mut c_void {
    let mut h = null_mut();
    assert_eq!(cuda!(cudaHostAlloc(&mut h, size, 0)), 0);
    h
}

#[test]
fn a_host_that_touches_device_memory_faults() {
    let cases: Vec<(String, bool)> = ["malloc", "async", "mapped", "interior", "pinned"]
        .iter()
        .flat_map(|memory| {
            ["read", "write"].map(|how| (format!("{memory} {how}"), *memory == "pinned"))
        })
        .collect();
    let cases: Vec<(&str, bool)> = cases.iter().map(|(c, l)| (c.as_str(), *l)).collect();
    accesses("a_host_that_touches_device_memory_faults", &cases, |case| {
        let (memory, how) = case.split_once(' ').unwrap();
        let mapped = Mapped::new(CHUNK, 2);
        let mut stream_ordered = null_mut();
        assert_eq!(
            cuda!(cudaMallocAsync(&mut stream_ordered, MIB, null_mut())),
            0
        );
        let p = match memory {
            "malloc" => malloc(MIB),
            "async" => stream_ordered,
            "mapped" => mapped.pointer(CHUNK + 100),
            "interior" => malloc(MIB).wrapping_byte_add(4097),
            _ => pinned(MIB),
        };
        // It is memory that a copy reaches.
        fill(p, 3, 16);
        assert_eq!(read(p, 16), [3; 16]);
        touch(p, how == "write");
    });
}

#[test]
fn a_host_that_runs_over_the_end_of_page_locked_memory_faults() {
    let cases = [
        ("last write", true),
        ("after write", false),
        ("after read", false),
        ("before write", false),
        ("before read", false),
        ("pool write", false),
    ];
    accesses(
        "a_host_that_runs_over_the_end_of_page_locked_memory_faults",
        &cases,
        |case| {
            let (place, how) = case.split_once(' ').unwrap();
            // Neighbours on both sides would be hit without the guards.
            let blocks = [(); 5].map(|()| pinned(3 * 4096));
            let p = match place {
                "last" => blocks[2].wrapping_byte_add(3 * 4096 - 1),
                "after" => blocks[2].wrapping_byte_add(3 * 4096),
                "before" => blocks[2].wrapping_byte_sub(1),
                _ => {
                    let mut props = sys::cudaMemPoolProps {
                        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
                        ..Default::default()
                    };
                    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeHost;
                    let (mut pool, mut q) = (null_mut(), null_mut());
                    assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 0);
                    assert_eq!(
                        cuda!(cudaMallocFromPoolAsync(&mut q, 64 * MIB, pool, null_mut())),
                        0
                    );
                    q.wrapping_byte_add(64 * MIB)
                }
            };
            touch(p, how == "write");
        },
    );
}

#[test]
fn device_work_that_runs_past_the_end_of_an_allocation_is_refused() {
    let _turn = turn();
    cudart_sim::check(cudart_sim::Check::Off);
    let s = stream();
    let h = pinned(4 * MIB);
    let mapped = Mapped::new(CHUNK, 1);
    let mut stream_ordered = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut stream_ordered, MIB + 1, s)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    // The neighbours of each have the same size, so that there is memory behind the end.
    let (plain, _beside) = (malloc(MIB + 1), malloc(MIB + 1));
    let small = malloc(1000);
    let _beside = malloc(1000);
    for (p, len) in [
        (plain, MIB + 1),
        (small, 1000),
        (stream_ordered, MIB + 1),
        (mapped.pointer(0), CHUNK),
    ] {
        for start in [0, 1, 511, len / 2, len - 1] {
            let rest = len - start;
            let from = p.wrapping_byte_add(start);
            for (more, code) in [(0, 0), (1, 1), (4096, 1), (usize::MAX - rest, 1)] {
                let count = rest + more;
                let answers = [
                    cuda!(cudaMemsetAsync(from, 1, count, s)),
                    cuda!(cudaMemset(from, 1, count)),
                    // Page-locked memory is long enough for what is accepted, and never touched by what is not.
                    cuda!(cudaMemcpyAsync(h, from, count, D2H, s)),
                    cuda!(cudaMemcpyAsync(from, h, count, H2D, s)),
                    cuda!(cudaMemcpy(h, from, count, D2H)),
                    cuda!(cudaMemcpyAsync(from, from, count, D2D, s)),
                    cuda!(cudaMemset2DAsync(from, count, 1, count, 1, s)),
                    cuda!(cudaMemcpy2DAsync(h, count, from, count, count, 1, D2H, s)),
                ];
                assert_eq!(
                    answers, [code; 8],
                    "{len} bytes, from {start}, {more} too many"
                );
            }
            // Rows that begin inside and end outside.
            let rows = |height: usize| cuda!(cudaMemset2DAsync(from, 7, 1, 1, height, s));
            assert_eq!((rows((rest - 1) / 7 + 1), rows((rest - 1) / 7 + 2)), (0, 1));
        }
        // One past the end, and one before the start.
        for outside in [p.wrapping_byte_add(len), p.wrapping_byte_sub(1)] {
            let code = cuda!(cudaMemsetAsync(outside, 1, 2, s));
            assert_eq!(code, 1, "{len} bytes");
        }
    }
    assert_eq!(
        cuda!(cudaStreamSynchronize(s)),
        0,
        "nothing broke the context"
    );
}
