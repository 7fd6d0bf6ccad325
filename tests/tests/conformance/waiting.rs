//! Which calls wait for a stream that is stalled. The stream pays no heed to the legacy stream, where nothing is said.

use crate::{cuda::*, facts, is};
use std::ptr::null_mut;

fn allocations() {
    let (a, b) = (stream(), stream());
    // The pool has room.
    let small = malloc_async(256, b);
    ok!(cudaStreamSynchronize(b));
    let (mut p, mut h, mut q) = (null_mut(), null_mut(), null_mut());
    timed("cudaMalloc", a, Returns, || cuda!(cudaMalloc(&mut p, MIB)));
    timed("cudaHostAlloc", a, Returns, || {
        cuda!(cudaHostAlloc(&mut h, MIB, 0))
    });
    timed("cudaMallocAsync on another stream", a, Returns, || {
        cuda!(cudaMallocAsync(&mut q, MIB, b))
    });
    ok!(cudaFree(p));
    ok!(cudaFreeHost(h));
    ok!(cudaFreeAsync(q, b));
    ok!(cudaFreeAsync(small, b));
    ok!(cudaStreamSynchronize(b));
    destroy([a, b]);
}

fn frees() {
    let s = stream();
    let (p, h) = (malloc(MIB), pinned(MIB));
    timed("cudaFree", s, Waits, || cuda!(cudaFree(p)));
    timed("cudaFreeHost", s, Waits, || cuda!(cudaFreeHost(h)));
    let mut mine = vec![1u8; 64 * MIB + 4096];
    let aligned = mine.as_ptr().align_offset(4096);
    let at = mine[aligned..].as_mut_ptr().cast();
    is(
        "cudaHostRegister",
        cuda!(cudaHostRegister(at, 64 * MIB, 1)),
        0,
    );
    timed("cudaHostUnregister", s, Waits, || {
        cuda!(cudaHostUnregister(at))
    });
    destroy([s]);
}

fn free_of_stream_ordered_memory() {
    let s = stream();
    let p = malloc_async(MIB, s);
    ok!(cudaStreamSynchronize(s));
    timed("cudaFree", s, Returns, || cuda!(cudaFree(p)));
    destroy([s]);
}

fn pinned_copies_and_fills() {
    let s = stream();
    let (d, h) = (malloc(MIB), pinned(MIB));
    timed("host to device", s, Returns, || {
        cuda!(cudaMemcpyAsync(d, h, MIB, H2D, s))
    });
    timed("device to host", s, Returns, || {
        cuda!(cudaMemcpyAsync(h, d, MIB, D2H, s))
    });
    timed("cudaMemsetAsync", s, Returns, || {
        cuda!(cudaMemsetAsync(d, 1, MIB, s))
    });
    ok!(cudaFree(d));
    ok!(cudaFreeHost(h));
    destroy([s]);
}

fn pageable_copies() {
    let s = stream();
    let d = malloc(64 * MIB);
    let mut page = vec![1u8; 64 * MIB];
    let at: Pointer = page.as_mut_ptr().cast();
    timed("16 KiB to the device", s, Returns, || {
        cuda!(cudaMemcpyAsync(d, at, 16 * KIB, H2D, s))
    });
    timed("64 MiB to the device", s, Waits, || {
        cuda!(cudaMemcpyAsync(d, at, 64 * MIB, H2D, s))
    });
    timed("1 MiB from the device", s, Waits, || {
        cuda!(cudaMemcpyAsync(at, d, MIB, D2H, s))
    });
    ok!(cudaFree(d));
    destroy([s]);
}

fn plain_copies() {
    let (free, blocking) = (stream(), blocking_stream());
    let (d, page) = (malloc(MIB), vec![1u8; MIB]);
    let copy = || cuda!(cudaMemcpy(d, page.as_ptr().cast(), MIB, H2D));
    timed("beside a non-blocking stream", free, Returns, copy);
    timed("beside a blocking stream", blocking, Waits, copy);
    ok!(cudaFree(d));
    destroy([free, blocking]);
}

fn destroying() {
    let (s, other) = (stream(), stream());
    timed("cudaStreamDestroy of the stream", s, Returns, || {
        cuda!(cudaStreamDestroy(s))
    });
    let e = event();
    timed(
        "cudaEventDestroy of a pending event",
        other,
        Returns,
        || {
            ok!(cudaEventRecord(e, other));
            cuda!(cudaEventDestroy(e))
        },
    );
    destroy([other]);
}

fn destroyed_streams_finish() {
    let (s, d) = (stream(), malloc(64));
    fill(d, 1, 64);
    let stall = Stall::on(s);
    is("cudaMemsetAsync", cuda!(cudaMemsetAsync(d, 6, 64, s)), 0);
    is("cudaStreamDestroy", cuda!(cudaStreamDestroy(s)), 0);
    stall.end();
    ok!(cudaDeviceSynchronize());
    is("the memory", read(d, 64), vec![6; 64]);
    ok!(cudaFree(d));
}

facts! {
    allocations, Gpu: "Allocations do not wait for a stalled stream";
    frees, Gpu: "`cudaFree`, `cudaFreeHost` and `cudaHostUnregister` wait for unrelated streams";
    free_of_stream_ordered_memory, Gpu: "`cudaFree` of stream-ordered memory does not wait";
    pinned_copies_and_fills, Gpu: "Copies of page-locked memory and fills return at once";
    pageable_copies, Gpu: "A pageable copy may return before it is done (16 KiB to the device) or only afterwards (64 MiB; 1 MiB from the device)";
    plain_copies, Gpu: "`cudaMemcpy` waits for blocking streams only";
    destroying, Gpu: "A busy stream, and a pending event, can be destroyed without waiting";
    destroyed_streams_finish, Documentation: "A destroyed stream's work is done all the same";
}
