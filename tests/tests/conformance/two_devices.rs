//! Two devices: what belongs to which, and what may be done from the other.

use crate::{cuda::*, facts, is, skip};
use std::ptr::null_mut;

/// Whether there are two devices; the fact is skipped otherwise.
fn two() -> bool {
    let mut count = 0;
    ok!(cudaGetDeviceCount(&mut count));
    if count < 2 {
        skip("there is one device");
    }
    count >= 2
}

/// Does something with device 1 current; device 0 is current before and after.
fn there<T>(make: impl FnOnce() -> T) -> T {
    ok!(cudaSetDevice(1));
    let made = make();
    ok!(cudaSetDevice(0));
    made
}

fn current() -> i32 {
    let mut device = 9;
    ok!(cudaGetDevice(&mut device));
    device
}

fn device_of(s: Stream) -> Result<i32, sys::cudaError> {
    // SAFETY: the tests pass live streams and default streams.
    unsafe { sys::stream_get_device(s) }
}

fn place(p: Pointer) -> (u32, i32) {
    let mut a = sys::cudaPointerAttributes::default();
    ok!(cudaPointerGetAttributes(&mut a, p));
    (a.type_.0, a.device)
}

fn current_is_of_the_thread() {
    if !two() {
        return;
    }
    let fresh = || std::thread::spawn(current).join().expect("it answers");
    there(|| {
        is("here", current(), 1);
        is("a fresh thread's device", fresh(), 0);
    });
    is("here again", current(), 0);
}

fn streams() {
    if !two() {
        return;
    }
    let (a, b) = (stream(), there(stream));
    is("of a stream made on device 0", device_of(a), Ok(0));
    is("of one made on device 1", device_of(b), Ok(1));
    for s in [null_mut(), LEGACY, PER_THREAD] {
        is("a default stream on device 0", device_of(s), Ok(0));
        is("on device 1", there(|| device_of(s)), Ok(1));
    }
    let d = there(|| malloc(64));
    let fill = cuda!(cudaMemsetAsync(d, 5, 64, b));
    is("a fill from device 0", fill, 0);
    is("synchronisation", cuda!(cudaStreamSynchronize(b)), 0);
    is("query", cuda!(cudaStreamQuery(b)), 0);
    is("its bytes", read(d, 64), vec![5; 64]);
    ok!(cudaFree(d));
    destroy([a, b]);
}

fn events() {
    if !two() {
        return;
    }
    let (a, b, mine, theirs) = (stream(), there(stream), event(), there(event));
    let wrong = cuda!(cudaEventRecord(mine, b));
    is("device 0's on a stream of device 1", wrong, 400);
    let wrong = cuda!(cudaEventRecord(theirs, a));
    is("device 1's on a stream of device 0", wrong, 400);
    cuda!(cudaGetLastError());
    let stall = Stall::on(b);
    is("record from device 0", cuda!(cudaEventRecord(theirs, b)), 0);
    is("query from device 0", cuda!(cudaEventQuery(theirs)), 600);
    let wait = cuda!(cudaStreamWaitEvent(a, theirs, 0));
    is("a wait of the other device's stream", wait, 0);
    is("it holds", cuda!(cudaStreamQuery(a)), 600);
    stall.end();
    is("and goes on", cuda!(cudaStreamSynchronize(a)), 0);
    let done = cuda!(cudaEventSynchronize(theirs));
    is("synchronisation from device 0", done, 0);
    ok!(cudaEventDestroy(mine));
    ok!(cudaEventDestroy(theirs));
    destroy([a, b]);
}

fn plain_memory() {
    if !two() {
        return;
    }
    // The first use of a device takes some of its memory.
    ok!(cudaFree(there(|| malloc(MIB))));
    let (mine, theirs) = (memory().0, there(memory).0);
    let d = there(|| malloc(256 * MIB));
    is("its device", place(d), (2, 1));
    let (mine, theirs) = (mine.abs_diff(memory().0), theirs - there(memory).0);
    let as_much = (256 << 20..300 << 20).contains(&theirs) && mine < 32 << 20;
    let what = format!("{theirs} less on device 1 and {mine} on device 0 after 256 MiB");
    is(what, as_much, true);
    is("cudaFree from device 0", cuda!(cudaFree(d)), 0);
    is("the current device", current(), 0);
}

fn pools() {
    if !two() {
        return;
    }
    let b = there(stream);
    let d = malloc_async(MIB, b);
    is("cudaMallocAsync from device 0", place(d), (2, 1));
    is("cudaFreeAsync from device 0", cuda!(cudaFreeAsync(d, b)), 0);
    let none = sys::cudaMemAllocationHandleType::cudaMemHandleTypeNone;
    let (mut pool, mut d) = (null_mut(), null_mut());
    let code = cuda!(cudaMemPoolCreate(
        &mut pool,
        &sys::mem_pool_props(1, none, 0)
    ));
    is("cudaMemPoolCreate for device 1 from device 0", code, 0);
    let code = cuda!(cudaMallocFromPoolAsync(&mut d, MIB, pool, b));
    is(
        "cudaMallocFromPoolAsync from device 0",
        (code, place(d)),
        (0, (2, 1)),
    );
    is("cudaFreeAsync from device 0", cuda!(cudaFreeAsync(d, b)), 0);
    ok!(cudaStreamSynchronize(b));
    is("cudaMemPoolDestroy", cuda!(cudaMemPoolDestroy(pool)), 0);
    let mut theirs = null_mut();
    let code = cuda!(cudaDeviceGetMemPool(&mut theirs, 1));
    let mut mine = null_mut();
    ok!(cudaDeviceGetMemPool(&mut mine, 0));
    is("two pools", (code, mine == theirs), (0, false));
    destroy([b]);
}

fn copies() {
    if !two() {
        return;
    }
    let (a, b) = (stream(), there(stream));
    let (mine, theirs) = (malloc(MIB), there(|| malloc(MIB)));
    let mut h = null_mut();
    ok!(cudaHostAlloc(&mut h, MIB, sys::cudaHostAllocPortable));
    let bytes = pattern(MIB);
    // SAFETY: a live block of that size, which no work uses.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), h.cast(), MIB) };
    let code = cuda!(cudaMemcpyAsync(theirs, h, MIB, H2D, b));
    is("from portable memory to device 1", code, 0);
    ok!(cudaStreamSynchronize(b));
    let code = cuda!(cudaMemcpyAsync(mine, theirs, MIB, D2D, a));
    is("from device 1 to device 0, its stream", code, 0);
    ok!(cudaStreamSynchronize(a));
    is("its bytes", Bytes(read(mine, MIB)), Bytes(bytes));
    ok!(cudaMemsetAsync(mine, 3, MIB, a));
    ok!(cudaStreamSynchronize(a));
    let code = cuda!(cudaMemcpyAsync(theirs, mine, MIB, D2D, a));
    is("from device 0 to device 1, device 0's stream", code, 0);
    ok!(cudaStreamSynchronize(a));
    is("its bytes", Bytes(read(theirs, MIB)), Bytes(vec![3; MIB]));
    ok!(cudaFreeHost(h));
    ok!(cudaFree(mine));
    ok!(cudaFree(theirs));
    destroy([a, b]);
}

fn copies_of_pools() {
    if !two() {
        return;
    }
    let b = there(stream);
    let (code, block) = there(|| {
        let mut block = null_mut();
        (cuda!(cudaMallocAsync(&mut block, MIB, b)), block)
    });
    is("an allocation", code, 0);
    ok!(cudaStreamSynchronize(b));
    let mut h = null_mut();
    ok!(cudaHostAlloc(&mut h, MIB, sys::cudaHostAllocPortable));
    is("a fill", cuda!(cudaMemsetAsync(block, 5, MIB, b)), 0);
    for kind in [D2H, sys::cudaMemcpyKind::cudaMemcpyDefault] {
        let out = || cuda!(cudaMemcpyAsync(h, block, MIB, kind, b));
        is("out, from device 0", out(), 1);
        is("out, from device 1", there(out), 0);
    }
    for kind in [H2D, sys::cudaMemcpyKind::cudaMemcpyDefault] {
        let back = || cuda!(cudaMemcpyAsync(block, h, MIB, kind, b));
        is("back, from device 0", back(), 1);
        is("back, from device 1", there(back), 0);
    }
    let a = stream();
    let out = || cuda!(cudaMemcpyAsync(h, block, MIB, D2H, a));
    is("out by a stream of device 0, from device 0", out(), 1);
    is("from device 1", there(out), 0);
    ok!(cudaStreamSynchronize(a));
    destroy([a]);
    cuda!(cudaGetLastError());
    ok!(cudaStreamSynchronize(b));
    ok!(cudaFreeAsync(block, b));
    ok!(cudaStreamSynchronize(b));
    ok!(cudaFreeHost(h));
    destroy([b]);
}

fn calls_of_the_driver() {
    if !two() {
        return;
    }
    let (s, d, e) = there(|| (stream(), malloc(MIB), event()));
    let h = pinned(MIB);
    is("question for a capture", is_capturing(s), (0, 0));
    is("copy to the device", to_device(d, h, KIB, s), 0);
    is("copy to the host", to_host(h, d, KIB, s), 0);
    is("record", record(e, s), 0);
    is("record of an event of device 0", record(event(), s), 400);
    is("here still", current(), 0);
    ok!(cudaStreamSynchronize(s));
    there(|| {
        ok!(cudaFree(d));
        ok!(cudaEventDestroy(e));
        destroy([s]);
    });
    ok!(cudaFreeHost(h));
}

facts! {
    calls_of_the_driver, Assumed: "The driver's copies, records and question for a capture work on a stream of another device than the current one (needs two devices)";
    current_is_of_the_thread, Documentation: "The current device is the thread's own (needs two devices)";
    streams, Documentation: "A stream made on a device belongs to it, is used from any other, and default streams follow the current device (needs two devices)";
    events, Documentation: "An event is refused by another device's stream (400), but queried and waited for from there (needs two devices)";
    plain_memory, Documentation: "`cudaMalloc` and free memory are those of the current device, `cudaFree` finds the device (needs two devices)";
    pools, Documentation: "Stream-ordered memory lies on the stream's device or the pool's, whichever is current (needs two devices)";
    copies_of_pools, Gpu: "Copies of stream-ordered memory want its device to be current (else 1), whatever the stream; fills do not (needs two devices)";
    copies, Documentation: "Copies go between two devices, and from portable memory to each (needs two devices)";
}
