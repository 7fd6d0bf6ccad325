//! Wrong frees, and the last error.

use crate::{cuda::*, facts, is, skip};
use memmgr_tests::SIMULATED;
use std::{ffi::c_void, ptr::null_mut};

fn wrong_frees() {
    let p = malloc(MIB);
    let interior = p.wrapping_byte_add(256);
    is("cudaFree inside a block", cuda!(cudaFree(interior)), 1);
    is("cudaFree of the block", cuda!(cudaFree(p)), 0);
    is("cudaFree once more", cuda!(cudaFree(p)), 1);
    is("last error", cuda!(cudaGetLastError()), 1);
    let mut local = 0u64;
    let at = (&raw mut local).cast();
    is("cudaFree of the stack", cuda!(cudaFree(at)), 1);
    is("cudaFreeHost of the stack", cuda!(cudaFreeHost(at)), 1);
}

fn last_error() {
    let mut p = null_mut();
    is("cudaMalloc", cuda!(cudaMalloc(&mut p, 1 << 50)), 2);
    is("peek", cuda!(cudaPeekAtLastError()), 2);
    is("get", cuda!(cudaGetLastError()), 2);
    is("get again", cuda!(cudaGetLastError()), 0);
}

fn success_does_not_clear() {
    is("cudaSetDevice(9999)", cuda!(cudaSetDevice(9999)), 101);
    is("peek", cuda!(cudaPeekAtLastError()), 101);
    ok!(cudaFree(malloc(256)));
    is("peek after success", cuda!(cudaPeekAtLastError()), 101);
}

fn a_failure_replaces() {
    is("cudaSetDevice(9999)", cuda!(cudaSetDevice(9999)), 101);
    is("cudaMalloc", cuda!(cudaMalloc(&mut null_mut(), 1 << 50)), 2);
    is("peek", cuda!(cudaPeekAtLastError()), 2);
    is("get", cuda!(cudaGetLastError()), 2);
    is("get again", cuda!(cudaGetLastError()), 0);
}

fn of_its_thread() {
    is("cudaSetDevice(9999)", cuda!(cudaSetDevice(9999)), 101);
    let elsewhere = std::thread::spawn(|| cuda!(cudaPeekAtLastError())).join();
    is("peek on another thread", elsewhere.expect("it answers"), 0);
    is("get", cuda!(cudaGetLastError()), 101);
}

fn in_a_host_function() {
    extern "C" fn call(answer: *mut c_void) {
        let code = cuda!(cudaMalloc(&mut null_mut(), 256));
        // SAFETY: the test passes a number that it reads after the stream's work.
        unsafe { *answer.cast::<u32>() = code };
    }
    let s = stream();
    let mut answer = u32::MAX;
    ok!(cudaLaunchHostFunc(s, Some(call), (&raw mut answer).cast()));
    ok!(cudaStreamSynchronize(s));
    is("cudaMalloc in a host function", answer, 800);
    is("last error", cuda!(cudaGetLastError()), 0);
    destroy([s]);
}

/// What a host function tries, and what it is answered.
struct Tries {
    stream: Stream,
    event: Event,
    plain: Pointer,
    pooled: Pointer,
    pinned: Pointer,
    answers: Vec<(&'static str, u32)>,
}

fn refused_in_a_host_function() {
    extern "C" fn call(data: *mut c_void) {
        // SAFETY: the test passes this, and looks at it only after the stream's work.
        let t = unsafe { &mut *data.cast::<Tries>() };
        let (mut p, mut e) = (null_mut(), null_mut());
        t.answers = vec![
            ("cudaFree", cuda!(cudaFree(t.plain))),
            ("cudaFreeAsync", cuda!(cudaFreeAsync(t.pooled, t.stream))),
            ("cudaFreeHost", cuda!(cudaFreeHost(t.pinned))),
            ("cudaStreamDestroy", cuda!(cudaStreamDestroy(t.stream))),
            (
                "cudaEventRecord",
                cuda!(cudaEventRecord(t.event, null_mut())),
            ),
            (
                "cudaEventCreate",
                cuda!(cudaEventCreateWithFlags(&mut e, 2)),
            ),
            ("cudaEventQuery", cuda!(cudaEventQuery(t.event))),
            ("cudaHostAlloc", cuda!(cudaHostAlloc(&mut p, 4096, 0))),
        ];
    }
    let (s, other) = (stream(), stream());
    let mut tries = Tries {
        stream: other,
        event: event(),
        plain: malloc(MIB),
        pooled: malloc_async(MIB, other),
        pinned: pinned(MIB),
        answers: Vec::new(),
    };
    ok!(cudaLaunchHostFunc(s, Some(call), (&raw mut tries).cast()));
    ok!(cudaStreamSynchronize(s));
    for (what, code) in &tries.answers {
        is(*what, *code, 800);
    }
    // What was not refused may be gone, and using it again would end the program.
    if tries.answers.iter().any(|(_, code)| *code != 800) {
        return;
    }
    is("cudaFree later", cuda!(cudaFree(tries.plain)), 0);
    let later = cuda!(cudaFreeAsync(tries.pooled, other));
    is("cudaFreeAsync later", later, 0);
    is("cudaFreeHost later", cuda!(cudaFreeHost(tries.pinned)), 0);
    ok!(cudaStreamSynchronize(other));
    ok!(cudaEventDestroy(tries.event));
    destroy([s, other]);
}

fn dead_handles() {
    if !SIMULATED {
        return skip("a GPU's runtime crashes");
    }
    let (s, e) = (stream(), event());
    destroy([s]);
    is("cudaStreamGetId", cuda!(cudaStreamGetId(s, &mut 0)), 400);
    is("cudaEventRecord", cuda!(cudaEventRecord(e, s)), 400);
    is("cudaStreamQuery", cuda!(cudaStreamQuery(s)), 400);
    is("cudaFreeAsync", cuda!(cudaFreeAsync(null_mut(), s)), 400);
    ok!(cudaEventDestroy(e));
}

facts! {
    wrong_frees, Gpu: "Freeing inside a block, twice, or what is not CUDA's is error 1";
    last_error, Gpu: "A failure is the last error until it is fetched, not longer";
    success_does_not_clear, Gpu: "A successful call leaves the last error as it is";
    a_failure_replaces, Gpu: "A failing call replaces the last error";
    of_its_thread, Documentation: "The last error is the thread's own";
    in_a_host_function, Gpu: "A CUDA call in a host function answers 800 and leaves no error";
    refused_in_a_host_function, Documentation: "Frees, records, queries, and destroying a stream, too: refused there (800), they have done nothing";
    dead_handles, Own: "A destroyed stream's handle is answered with 400";
}
