//! Memory pools.

use crate::{cuda::*, facts, is, skip};
use std::ptr::null_mut;
use sys::cudaMemPoolAttr as Attr;

/// `cudaDevAttrHostMemoryPoolsSupported` and `cudaMemLocationTypeHost`: older headers lack the names.
const HOST_POOLS: sys::cudaDeviceAttr = sys::cudaDeviceAttr(144);
const HOST: sys::cudaMemLocationType = sys::cudaMemLocationType(2);

fn props() -> sys::cudaMemPoolProps {
    sized(0, 0)
}

fn sized(device: i32, most: usize) -> sys::cudaMemPoolProps {
    let none = sys::cudaMemAllocationHandleType::cudaMemHandleTypeNone;
    sys::mem_pool_props(device, none, most)
}

fn create(props: &sys::cudaMemPoolProps) -> (u32, Pool) {
    let mut pool = null_mut();
    (cuda!(cudaMemPoolCreate(&mut pool, props)), pool)
}

fn pool() -> Pool {
    let (code, pool) = create(&props());
    assert_eq!(code, 0, "cudaMemPoolCreate");
    pool
}

fn default_pool() -> Pool {
    let mut pool = null_mut();
    ok!(cudaDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

fn take(size: usize, pool: Pool, s: Stream) -> (u32, Pointer) {
    let mut p = null_mut();
    (cuda!(cudaMallocFromPoolAsync(&mut p, size, pool, s)), p)
}

fn attribute(pool: Pool, attribute: Attr) -> u64 {
    let mut n = 0u64;
    ok!(cudaMemPoolGetAttribute(
        pool,
        attribute,
        (&raw mut n).cast()
    ));
    n
}

fn threshold(pool: Pool) -> u64 {
    attribute(pool, Attr::cudaMemPoolAttrReleaseThreshold)
}

fn keep(pool: Pool, mut bytes: u64) {
    let at = (&raw mut bytes).cast();
    let name = Attr::cudaMemPoolAttrReleaseThreshold;
    ok!(cudaMemPoolSetAttribute(pool, name, at));
}

/// Used and reserved bytes.
fn held(pool: Pool) -> (u64, u64) {
    let used = attribute(pool, Attr::cudaMemPoolAttrUsedMemCurrent);
    (
        used,
        attribute(pool, Attr::cudaMemPoolAttrReservedMemCurrent),
    )
}

fn default_is_current() {
    let mut current = null_mut();
    ok!(cudaDeviceGetMemPool(&mut current, 0));
    is("the current pool", current, default_pool());
    is("its threshold", threshold(current), 0);
}

fn starts_empty() {
    let p = pool();
    is("threshold", threshold(p), 0);
    is("used, reserved", held(p), (0, 0));
    ok!(cudaMemPoolDestroy(p));
}

fn refused_properties() {
    let mut dirty = props();
    // SAFETY: the last byte of the structure is one of its reserved bytes, which may have any value.
    unsafe {
        (&raw mut dirty)
            .cast::<u8>()
            .add(size_of_val(&dirty) - 1)
            .write(7)
    };
    is("a reserved byte", create(&dirty).0, 1);
    is("device 77", create(&sized(77, 0)).0, 1);
    cuda!(cudaGetLastError());
}

fn most() {
    if !sys::HAS_MEM_POOL_MAX_SIZE {
        return skip("these headers have no maximum size");
    }
    let s = stream();
    let (code, p) = create(&sized(0, GIB));
    is("a pool of 1 GiB", code, 0);
    is("2 GiB of it", take(2 * GIB, p, s).0, 2);
    cuda!(cudaGetLastError());
    let (code, block) = take(512 * MIB, p, s);
    is("512 MiB of it", code, 0);
    ok!(cudaFreeAsync(block, s));
    ok!(cudaStreamSynchronize(s));
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

fn goes_back() {
    const SIZE: u64 = 64 << 20;
    let (s, p) = (stream(), pool());
    let (code, block) = take(SIZE as usize, p, s);
    is("64 MiB", (code, held(p)), (0, (SIZE, SIZE)));
    is("the free", cuda!(cudaFreeAsync(block, s)), 0);
    is("after the free", held(p), (0, SIZE));
    ok!(cudaStreamSynchronize(s));
    is("after a synchronisation", held(p), (0, 0));
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

fn trims() {
    const SIZE: u64 = 256 << 20;
    let (s, p) = (stream(), pool());
    keep(p, u64::MAX);
    is("threshold", threshold(p), u64::MAX);
    let (code, block) = take(SIZE as usize, p, s);
    is("256 MiB", code, 0);
    let stall = Stall::on(s);
    ok!(cudaFreeAsync(block, s));
    is("after a free behind a stall", held(p), (0, SIZE));
    is("a trim", cuda!(cudaMemPoolTrimTo(p, 0)), 0);
    is("after the trim", held(p), (0, SIZE));
    stall.end();
    ok!(cudaStreamSynchronize(s));
    is("after a synchronisation", held(p), (0, SIZE));
    is(
        "a trim to more than that",
        cuda!(cudaMemPoolTrimTo(p, 1 << 40)),
        0,
    );
    is("after it", held(p), (0, SIZE));
    is("a trim", cuda!(cudaMemPoolTrimTo(p, 0)), 0);
    is("after the trim", held(p), (0, 0));
    is("a trim of nothing", cuda!(cudaMemPoolTrimTo(p, 0)), 0);
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

fn most_of_the_device() {
    let (a, b) = (stream(), stream());
    ok!(cudaMemPoolTrimTo(default_pool(), 0));
    let tenth = memory().0 / 10;
    let p = malloc_async(6 * tenth, a);
    ok!(cudaMemsetAsync(p, 1, 6 * tenth, a));
    let stall = Stall::on(a);
    ok!(cudaFreeAsync(p, a));
    let mut q = null_mut();
    let got = cuda!(cudaMallocAsync(&mut q, 7 * tenth, b));
    let during = stall.is_over();
    is("0.7 F at once on another stream", (got, during), (2, false));
    cuda!(cudaGetLastError());
    stall.end();
    ok!(cudaDeviceSynchronize());
    ok!(cudaMemPoolTrimTo(default_pool(), 0));
    let got = cuda!(cudaMallocAsync(&mut q, 7 * tenth, b));
    is("after a synchronisation and a trim", got, 0);
    if got == 0 {
        ok!(cudaFreeAsync(q, b));
    }
    ok!(cudaDeviceSynchronize());
    destroy([a, b]);
}

fn had_again_by_its_stream() {
    let (s, p) = (stream(), pool());
    let (code, block) = take(MIB, p, s);
    is("1 MiB", code, 0);
    let stall = Stall::on(s);
    ok!(cudaFreeAsync(block, s));
    let again = take(MIB, p, s);
    is("again behind a stall", again, (0, block));
    is("the stall is over", stall.is_over(), false);
    is("used", held(p).0, 1 << 20);
    stall.end();
    ok!(cudaFreeAsync(again.1, s));
    ok!(cudaStreamSynchronize(s));
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

fn destroyed() {
    let (s, p) = (stream(), pool());
    let (code, block) = take(4096, p, s);
    is("4 KiB", code, 0);
    is("cudaMemPoolDestroy", cuda!(cudaMemPoolDestroy(p)), 0);
    is("the free afterwards", cuda!(cudaFreeAsync(block, s)), 0);
    is(
        "of the default pool",
        cuda!(cudaMemPoolDestroy(default_pool())),
        1,
    );
    cuda!(cudaGetLastError());
    ok!(cudaStreamSynchronize(s));
    destroy([s]);
}

fn host_pools() {
    let mut supported = 0;
    let code = cuda!(cudaDeviceGetAttribute(&mut supported, HOST_POOLS, 0));
    is("the attribute", (code, supported), (0, 1));
    let s = stream();
    let mut host = props();
    host.location = sys::mem_location(HOST, 0);
    let (code, p) = create(&host);
    assert_eq!(code, 0, "cudaMemPoolCreate");
    let (code, block) = take(64 * MIB, p, s);
    assert_eq!(code, 0, "64 MiB");
    ok!(cudaStreamSynchronize(s));
    // SAFETY: a live block of host memory of that size, which no work uses.
    unsafe { block.cast::<u8>().write_bytes(8, 64 * MIB) };
    let d = malloc(4096);
    ok!(cudaMemcpyAsync(d, block, 4096, H2D, s));
    ok!(cudaFreeAsync(block, s));
    ok!(cudaStreamSynchronize(s));
    is(
        "what was copied from it",
        Bytes(read(d, 4096)),
        Bytes(vec![8; 4096]),
    );
    ok!(cudaFree(d));
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

fn freed_by_cuda_free() {
    let (s, p) = (stream(), pool());
    let (code, block) = take(MIB, p, s);
    is("1 MiB", code, 0);
    ok!(cudaStreamSynchronize(s));
    is("cudaFree", cuda!(cudaFree(block)), 0);
    is("used", held(p).0, 1 << 20);
    ok!(cudaStreamSynchronize(s));
    ok!(cudaDeviceSynchronize());
    is("used after synchronisations", held(p).0, 1 << 20);
    is("cudaFree again", cuda!(cudaFree(block)), 1);
    is("cudaFreeAsync again", cuda!(cudaFreeAsync(block, s)), 1);
    cuda!(cudaGetLastError());
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

fn freed_by_cuda_free_and_taken_again() {
    let (a, b, p) = (stream(), stream(), pool());
    for (name, s) in [("the same stream", a), ("another stream", b)] {
        let (code, block) = take(MIB, p, a);
        is("1 MiB", code, 0);
        ok!(cudaStreamSynchronize(a));
        is("cudaFree", cuda!(cudaFree(block)), 0);
        let (code, again) = take(MIB, p, s);
        is(format!("again, {name}"), (code, again), (0, block));
        ok!(cudaFreeAsync(again, s));
        ok!(cudaDeviceSynchronize());
    }
    ok!(cudaMemPoolDestroy(p));
    destroy([a, b]);
}

fn freed_on_another_stream() {
    let (a, b, e, p) = (stream(), stream(), event(), pool());
    let (code, block) = take(MIB, p, a);
    is("1 MiB", code, 0);
    ok!(cudaMemsetAsync(block, 1, MIB, a));
    ok!(cudaEventRecord(e, a));
    ok!(cudaStreamWaitEvent(b, e, 0));
    is("cudaFreeAsync", cuda!(cudaFreeAsync(block, b)), 0);
    ok!(cudaDeviceSynchronize());
    is("used, reserved", held(p), (0, 0));
    ok!(cudaMemPoolDestroy(p));
    ok!(cudaEventDestroy(e));
    destroy([a, b]);
}

fn high_marks() {
    let (s, p) = (stream(), pool());
    let (_, block) = take(64 * MIB, p, s);
    ok!(cudaFreeAsync(block, s));
    ok!(cudaStreamSynchronize(s));
    let most = attribute(p, Attr::cudaMemPoolAttrUsedMemHigh);
    is("used at most", most, 64 << 20);
    let most = attribute(p, Attr::cudaMemPoolAttrReservedMemHigh);
    is("reserved at most", most, 64 << 20);
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

fn seen_by_an_event() {
    const SIZE: u64 = 64 << 20;
    let (s, e, p) = (stream(), event(), pool());
    keep(p, u64::MAX);
    for synchronises in [true, false] {
        let (code, block) = take(SIZE as usize, p, s);
        is("64 MiB", code, 0);
        ok!(cudaFreeAsync(block, s));
        ok!(cudaEventRecord(e, s));
        if synchronises {
            ok!(cudaEventSynchronize(e));
        } else {
            while cuda!(cudaEventQuery(e)) == 600 {
                std::thread::yield_now();
            }
        }
        is("after the event", held(p), (0, SIZE));
        is("a trim", cuda!(cudaMemPoolTrimTo(p, 0)), 0);
        let how = if synchronises { "waited" } else { "asked" };
        is(format!("after it, {how}"), held(p), (0, 0));
    }
    ok!(cudaMemPoolDestroy(p));
    ok!(cudaEventDestroy(e));
    destroy([s]);
}

fn block_outlives_its_stream() {
    let (a, b, e, p) = (stream(), stream(), event(), pool());
    let (code, block) = take(MIB, p, a);
    is("1 MiB", code, 0);
    ok!(cudaEventRecord(e, a));
    destroy([a]);
    ok!(cudaStreamWaitEvent(b, e, 0));
    is("a fill", cuda!(cudaMemsetAsync(block, 6, MIB, b)), 0);
    ok!(cudaStreamSynchronize(b));
    is("its bytes", Bytes(read(block, MIB)), Bytes(vec![6; MIB]));
    is("the free", cuda!(cudaFreeAsync(block, b)), 0);
    ok!(cudaStreamSynchronize(b));
    is("used, reserved", held(p), (0, 0));
    ok!(cudaMemPoolDestroy(p));
    ok!(cudaEventDestroy(e));
    destroy([b]);
}

fn on_default_streams() {
    for (what, s) in [
        ("null", null_mut()),
        ("legacy", LEGACY),
        ("per-thread", PER_THREAD),
    ] {
        let p = pool();
        let (code, block) = take(MIB, p, s);
        is(format!("{what}: 1 MiB"), code, 0);
        ok!(cudaMemsetAsync(block, 6, MIB, s));
        ok!(cudaStreamSynchronize(s));
        is(what, Bytes(read(block, 64)), Bytes(vec![6; 64]));
        let code = cuda!(cudaFreeAsync(block, s));
        is(format!("{what}: the free"), code, 0);
        ok!(cudaStreamSynchronize(s));
        is(what, held(p), (0, 0));
        ok!(cudaMemPoolDestroy(p));
    }
}

fn destroyed_with_a_free_in_flight() {
    let (s, p) = (stream(), pool());
    keep(p, u64::MAX);
    // The first use of a pool may take memory for good.
    let before = memory().0;
    let (code, block) = take(256 * MIB, p, s);
    is("256 MiB", code, 0);
    let stall = Stall::on(s);
    ok!(cudaFreeAsync(block, s));
    is("cudaMemPoolDestroy", cuda!(cudaMemPoolDestroy(p)), 0);
    is("the stall is over", stall.is_over(), false);
    stall.end();
    ok!(cudaStreamSynchronize(s));
    ok!(cudaDeviceSynchronize());
    let lost = before as i64 - memory().0 as i64;
    is(format!("{lost} less afterwards"), lost < 64 << 20, true);
    destroy([s]);
}

fn more_than_there_is() {
    let (s, p) = (stream(), pool());
    for size in [1 << 50, usize::MAX] {
        is(format!("{size} bytes"), take(size, p, s), (2, null_mut()));
    }
    is("last error", cuda!(cudaGetLastError()), 2);
    let (code, block) = take(MIB, p, s);
    is("afterwards", code, 0);
    ok!(cudaFreeAsync(block, s));
    ok!(cudaStreamSynchronize(s));
    ok!(cudaMemPoolDestroy(p));
    destroy([s]);
}

facts! {
    default_is_current, Gpu: "A device's default pool is its current one, with threshold 0";
    starts_empty, Gpu: "A new pool is empty, with threshold 0";
    refused_properties, Gpu: "Pool properties with a dirty reserved byte or a wrong device are error 1";
    most, Gpu: "A pool's `maxSize` holds: 2 GiB of 1 GiB are error 2, 512 MiB are had";
    goes_back, Gpu: "Used memory falls at the free, reserved memory at the next synchronisation";
    trims, Gpu: "A trim gives nothing back while the host has not seen the free complete, and succeeds all the same";
    most_of_the_device, Gpu: "What one stream has just freed is refused to another (2); after a synchronisation and a trim it is had";
    had_again_by_its_stream, Documentation: "The stream that freed a block has it back at once, before the free is done";
    destroyed, Gpu: "A pool may be destroyed before its last block is freed; the default pool cannot (1)";
    host_pools, Gpu: "There are pools of host memory, which the host can write";
    freed_by_cuda_free, Gpu: "`cudaFree` frees stream-ordered memory, once (1), and the pool goes on counting it as used";
    freed_by_cuda_free_and_taken_again, Gpu: "What `cudaFree` freed is had again at once, by any stream";
    freed_on_another_stream, Documentation: "A stream that waited for the work may free the block";
    high_marks, Documentation: "A pool knows the most that it has held";
    seen_by_an_event, Documentation: "A free that the host has seen by an event (waited for, or asked) is trimmed";
    block_outlives_its_stream, Documentation: "A block is used and freed on another stream after its own was destroyed";
    on_default_streams, Documentation: "Pools serve null, legacy and per-thread streams";
    destroyed_with_a_free_in_flight, Documentation: "A pool may be destroyed while a free is in flight, without waiting, and its memory comes back";
    more_than_there_is, Documentation: "1 PiB and `SIZE_MAX` of a pool of one's own are error 2, and nothing is broken afterwards";
}
