//! Stream-ordered memory: what is reused when, and when a pool gives memory back. Facts measured on an H200, except
//! where a test says otherwise.

mod common;
use common::*;
use cudart_sim::sys;
use std::ptr::null_mut;
use sys::cudaMemPoolAttr as Attr;

fn props() -> sys::cudaMemPoolProps {
    sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        location: sys::cudaMemLocation {
            type_: sys::cudaMemLocationType::cudaMemLocationTypeDevice,
            id: 0,
        },
        ..Default::default()
    }
}

fn create(props: &sys::cudaMemPoolProps) -> (u32, sys::cudaMemPool_t) {
    let mut pool = null_mut();
    (cuda!(cudaMemPoolCreate(&mut pool, props)), pool)
}

fn take(
    size: usize,
    pool: sys::cudaMemPool_t,
    s: sys::cudaStream_t,
) -> (u32, *mut std::ffi::c_void) {
    let mut p = null_mut();
    (cuda!(cudaMallocFromPoolAsync(&mut p, size, pool, s)), p)
}

fn keep(pool: sys::cudaMemPool_t, mut bytes: u64) {
    let at = (&raw mut bytes).cast();
    assert_eq!(
        cuda!(cudaMemPoolSetAttribute(
            pool,
            Attr::cudaMemPoolAttrReleaseThreshold,
            at
        )),
        0
    );
}

fn used(pool: sys::cudaMemPool_t) -> u64 {
    pool_attribute(pool, Attr::cudaMemPoolAttrUsedMemCurrent)
}

fn reserved(pool: sys::cudaMemPool_t) -> u64 {
    pool_attribute(pool, Attr::cudaMemPoolAttrReservedMemCurrent)
}

const MIB: usize = 1 << 20;
/// As much as a pool takes from its device at a time.
const WHOLE: usize = 32 << 20;

#[test]
fn a_pool_starts_empty_and_wrong_properties_are_refused() {
    let _turn = machine();
    let (code, pool) = create(&props());
    assert_eq!(code, 0);
    assert_eq!(
        pool_attribute(pool, Attr::cudaMemPoolAttrReleaseThreshold),
        0
    );
    assert_eq!((used(pool), reserved(pool)), (0, 0));
    let mut dirty = props();
    dirty.reserved[53] = 7;
    assert_eq!(create(&dirty).0, 1);
    let mut elsewhere = props();
    elsewhere.location.id = 77;
    assert_eq!(create(&elsewhere).0, 1);
    let (mut default, mut current) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaDeviceGetDefaultMemPool(&mut default, 0)), 0);
    assert_eq!(cuda!(cudaDeviceGetMemPool(&mut current, 0)), 0);
    assert_eq!(default, current);
    assert_eq!(cuda!(cudaMemPoolDestroy(default)), 1);
    assert_eq!(cuda!(cudaDeviceSetMemPool(0, pool)), 0);
    malloc_async(100, stream());
    assert_eq!(used(pool), 512);
    assert_eq!(cuda!(cudaMemPoolTrimTo(null_mut(), 0)), 1);
}

#[test]
fn max_size_bounds_a_pool() {
    let _turn = machine();
    let mut bounded = props();
    bounded.maxSize = 1 << 30;
    let (code, pool) = create(&bounded);
    assert_eq!(code, 0);
    let s = stream();
    assert_eq!(take(2 << 30, pool, s).0, 2);
    assert_eq!(take(512 * MIB, pool, s).0, 0);
    assert_eq!(take(512 * MIB, pool, s).0, 0);
    assert_eq!(take(1, pool, s).0, 2);
}

#[test]
fn memory_goes_back_at_a_synchronisation_down_to_the_threshold() {
    under_every_schedule(|| {
        let s = stream();
        let (_, pool) = create(&props());
        let (_, p) = take(64 * MIB, pool, s);
        assert_eq!((used(pool), reserved(pool)), (64 << 20, 64 << 20));
        cuda!(cudaFreeAsync(p, s));
        assert_eq!((used(pool), reserved(pool)), (0, 64 << 20));
        cuda!(cudaStreamSynchronize(s));
        assert_eq!((used(pool), reserved(pool)), (0, 0));
        assert_eq!(
            pool_attribute(pool, Attr::cudaMemPoolAttrUsedMemHigh),
            64 << 20
        );
        keep(pool, u64::MAX);
        let (_, p) = take(64 * MIB, pool, s);
        cuda!(cudaFreeAsync(p, s));
        cuda!(cudaDeviceSynchronize());
        assert_eq!(reserved(pool), 64 << 20);
        let mut zero = 0u64;
        let at = (&raw mut zero).cast();
        assert_eq!(
            cuda!(cudaMemPoolSetAttribute(
                pool,
                Attr::cudaMemPoolAttrUsedMemHigh,
                at
            )),
            0
        );
        assert_eq!(pool_attribute(pool, Attr::cudaMemPoolAttrUsedMemHigh), 0);
        zero = 1;
        let at = (&raw mut zero).cast();
        assert_eq!(
            cuda!(cudaMemPoolSetAttribute(
                pool,
                Attr::cudaMemPoolAttrUsedMemHigh,
                at
            )),
            1
        );
        assert_eq!(
            cuda!(cudaMemPoolSetAttribute(
                pool,
                Attr::cudaMemPoolAttrUsedMemCurrent,
                at
            )),
            1
        );
        cuda!(cudaGetLastError());
    });
}

#[test]
fn a_trim_gives_nothing_back_before_the_host_knows_of_the_free() {
    under_every_schedule(|| {
        let s = stream();
        let (_, pool) = create(&props());
        keep(pool, u64::MAX);
        let (_, p) = take(256 * MIB, pool, s);
        let gate = Gate::on(s);
        cuda!(cudaFreeAsync(p, s));
        assert_eq!(used(pool), 0);
        assert_eq!(cuda!(cudaMemPoolTrimTo(pool, 0)), 0);
        assert_eq!(reserved(pool), 256 << 20);
        gate.open();
        cuda!(cudaStreamSynchronize(s));
        assert_eq!(reserved(pool), 256 << 20);
        cuda!(cudaMemPoolTrimTo(pool, 0));
        assert_eq!(reserved(pool), 0);
    });
}

#[test]
fn a_query_is_not_enough_for_a_pool_to_give_memory_back() {
    under_every_schedule(|| {
        let (s, e) = (stream(), event());
        let (_, pool) = create(&props());
        let (_, p) = take(64 * MIB, pool, s);
        cuda!(cudaFreeAsync(p, s));
        cuda!(cudaEventRecord(e, s));
        while cuda!(cudaEventQuery(e)) == 600 || cuda!(cudaStreamQuery(s)) == 600 {
            std::thread::yield_now();
        }
        assert_eq!(cuda!(cudaMemPoolTrimTo(pool, 0)), 0);
        assert_eq!(reserved(pool), 64 << 20, "by a trim");
        cuda!(cudaMallocHost(&mut null_mut(), 16));
        assert_eq!(reserved(pool), 64 << 20, "down to the threshold");
        cuda!(cudaEventSynchronize(e));
        assert_eq!(reserved(pool), 0);
    });
}

#[test]
fn a_pool_that_is_destroyed_goes_with_its_last_block() {
    under_every_schedule(|| {
        let s = stream();
        let before = cudart_sim::memory_info(0).unwrap().free;
        let (_, pool) = create(&props());
        let (_, p) = take(4096, pool, s);
        assert_eq!(cuda!(cudaMemPoolDestroy(pool)), 0);
        assert_eq!(cuda!(cudaMemPoolTrimTo(pool, 0)), 1, "the handle is dead");
        assert_eq!(cuda!(cudaMemsetAsync(p, 1, 4096, s)), 0);
        assert_eq!(cuda!(cudaFreeAsync(p, s)), 0);
        cuda!(cudaDeviceSynchronize());
        assert_eq!(cudart_sim::memory_info(0).unwrap().free, before);
        cuda!(cudaGetLastError());
    });
}

#[test]
fn the_stream_that_freed_a_block_has_it_back_at_once() {
    under_every_schedule(|| {
        let s = stream();
        let _gate = Gate::on(s);
        let p = malloc_async(MIB, s);
        cuda!(cudaFreeAsync(p, s));
        assert_eq!(malloc_async(MIB, s), p);
    });
}

/// Which block another stream gets is not measured; that it never gets one that is in use is what matters.
#[test]
fn another_stream_gets_the_block_only_when_its_free_is_done() {
    under_every_schedule(|| {
        let (a, b) = (stream(), stream());
        let gate = Gate::on(a);
        let p = malloc_async(WHOLE, a);
        cuda!(cudaFreeAsync(p, a));
        assert_ne!(malloc_async(WHOLE, b), p);
        gate.open();
        cuda!(cudaStreamSynchronize(a));
        cuda!(cudaFreeAsync(malloc_async(WHOLE, a), a));
    });
    let _turn = machine().eager();
    let (a, b) = (stream(), stream());
    let p = malloc_async(WHOLE, a);
    cuda!(cudaFreeAsync(p, a));
    assert_eq!(malloc_async(WHOLE, b), p, "done, so anybody may have it");
}

/// Not measured: the documentation says so.
#[test]
fn a_stream_that_waited_for_the_free_gets_the_block() {
    under_every_schedule(|| {
        let (a, b, e) = (stream(), stream(), event());
        let _gate = Gate::on(a);
        let p = malloc_async(WHOLE, a);
        cuda!(cudaFreeAsync(p, a));
        cuda!(cudaEventRecord(e, a));
        cuda!(cudaStreamWaitEvent(b, e, 0));
        assert_eq!(malloc_async(WHOLE, b), p);
        assert_eq!(cuda!(cudaStreamQuery(b)), 600);
    });
}

/// Not measured: the documentation says so.
#[test]
fn a_stream_is_made_to_wait_when_a_device_has_no_more() {
    for allowed in [1, 0] {
        let _turn = machine().devices(1, 64 << 20);
        let (a, b) = (stream(), stream());
        let mut pool = null_mut();
        cuda!(cudaDeviceGetDefaultMemPool(&mut pool, 0));
        let mut flag: i32 = allowed;
        let attribute = Attr::cudaMemPoolReuseAllowInternalDependencies;
        cuda!(cudaMemPoolSetAttribute(
            pool,
            attribute,
            (&raw mut flag).cast()
        ));
        let p = malloc_async(64 * MIB, a);
        let gate = Gate::on(a);
        cuda!(cudaFreeAsync(p, a));
        let mut q = null_mut();
        let code = cuda!(cudaMallocAsync(&mut q, 64 * MIB, b));
        if allowed == 1 {
            assert_eq!((code, q), (0, p));
            assert_eq!(cuda!(cudaStreamQuery(b)), 600, "it waits for the free");
        } else {
            assert_eq!(code, 2);
        }
        gate.open();
        cuda!(cudaDeviceSynchronize());
    }
}

#[test]
fn most_of_a_device_freed_on_one_stream_is_refused_to_another() {
    under_every_schedule(|| {
        let (a, b) = (stream(), stream());
        let (mut free, mut total) = (0, 0);
        cuda!(cudaMemGetInfo(&mut free, &mut total));
        let p = malloc_async(free / 10 * 6, a);
        let gate = Gate::on(a);
        cuda!(cudaFreeAsync(p, a));
        let mut q = null_mut();
        assert_eq!(cuda!(cudaMallocAsync(&mut q, free / 10 * 7, b)), 2);
        gate.open();
        cuda!(cudaDeviceSynchronize());
        assert_eq!(cuda!(cudaMallocAsync(&mut q, free / 10 * 7, b)), 0);
        cuda!(cudaGetLastError());
    });
}

#[test]
fn what_vanished_streams_have_freed_is_used_again() {
    // Lazily the frees would not have run: nobody asks for them.
    let _turn = machine().eager();
    let mut pool = null_mut();
    cuda!(cudaDeviceGetDefaultMemPool(&mut pool, 0));
    keep(pool, u64::MAX);
    for _ in 0..2_000 {
        let s = stream();
        cuda!(cudaFreeAsync(malloc_async(MIB, s), s));
        cuda!(cudaStreamDestroy(s));
    }
    assert_eq!(reserved(pool), WHOLE as u64);
}

/// Not measured.
#[test]
fn a_pool_gives_its_idle_pieces_back_before_it_refuses_a_large_block() {
    let _turn = machine().devices(1, 256 << 20);
    let s = stream();
    let mut pool = null_mut();
    cuda!(cudaDeviceGetDefaultMemPool(&mut pool, 0));
    keep(pool, u64::MAX);
    let pieces: Vec<_> = (0..8).map(|_| malloc_async(WHOLE, s)).collect();
    for p in pieces {
        cuda!(cudaFreeAsync(p, s));
    }
    let mut p = null_mut();
    assert_eq!(
        cuda!(cudaMallocAsync(&mut p, 200 << 20, s)),
        2,
        "nobody has seen the frees"
    );
    cuda!(cudaStreamSynchronize(s));
    assert_eq!(reserved(pool), 256 << 20);
    assert_eq!(cuda!(cudaMallocAsync(&mut p, 200 << 20, s)), 0);
}

#[test]
fn blocks_are_512_byte_aligned_and_close_together() {
    let _turn = machine();
    let s = stream();
    let (p, q) = (malloc_async(1000, s), malloc_async(1000, s));
    assert_eq!(q as usize - p as usize, 1024);
    let low = (0..50).fold(0, |m, _| m | malloc_async(100, s) as usize) & 0xfff;
    assert_eq!(low, 0xe00);
}

#[test]
fn a_pool_block_is_freed_once() {
    let _turn = machine();
    let s = stream();
    let p = malloc_async(1000, s);
    assert_eq!(cuda!(cudaFreeAsync(p.wrapping_byte_add(256), s)), 1);
    assert_eq!(cuda!(cudaFreeAsync(p, s)), 0);
    assert_eq!(cuda!(cudaFreeAsync(p, s)), 1);
    assert_eq!(cuda!(cudaFree(p)), 1);
    let q = malloc_async(1000, s);
    cuda!(cudaStreamSynchronize(s));
    assert_eq!(cuda!(cudaFree(q)), 0);
    assert_eq!(cuda!(cudaFree(q)), 1);
    assert_eq!(cuda!(cudaFreeAsync(q, s)), 1);
    // Another stream has it again at once.
    assert_eq!(malloc_async(1000, stream()), q);
}

#[test]
fn a_host_pool_gives_memory_that_the_host_can_write() {
    let _turn = machine();
    let s = stream();
    let mut host = props();
    host.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeHost;
    let (code, pool) = create(&host);
    assert_eq!(code, 0);
    let (code, p) = take(MIB, pool, s);
    assert_eq!(code, 0);
    cuda!(cudaStreamSynchronize(s));
    // SAFETY: a live block of host memory of that size, which no work uses.
    unsafe { p.cast::<u8>().write_bytes(8, MIB) };
    let d = malloc(MIB);
    assert_eq!(cuda!(cudaMemcpyAsync(d, p, MIB, H2D, s)), 0);
    cuda!(cudaFreeAsync(p, s));
    cuda!(cudaStreamSynchronize(s));
    assert_eq!(cudart_sim::read_device(d, 3), [8; 3]);
}

#[test]
fn a_device_without_pools_says_so() {
    let _turn = machine().with(|c| c.devices[0].memory_pools = false);
    let mut n = 9;
    let attribute = sys::cudaDeviceAttr::cudaDevAttrMemoryPoolsSupported;
    assert_eq!(
        (cuda!(cudaDeviceGetAttribute(&mut n, attribute, 0)), n),
        (0, 0)
    );
    let (mut p, mut pool) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaMallocAsync(&mut p, 16, null_mut())), 801);
    assert_eq!(cuda!(cudaDeviceGetDefaultMemPool(&mut pool, 0)), 801);
    assert_eq!(create(&props()).0, 801);
}

#[test]
fn random_traffic_keeps_blocks_apart_and_ends_empty() {
    under_every_schedule(|| {
        unordered();
        let streams = [stream(), stream(), stream()];
        let mut live: Vec<(usize, usize)> = Vec::new();
        let mut seed = 88172645463325252u64;
        let mut next = |bound: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % bound as u64) as usize
        };
        for _ in 0..3_000 {
            let s = streams[next(3)];
            if live.len() < 40 || next(2) == 0 {
                let size = 1 + next(300_000);
                let p = malloc_async(size, s) as usize;
                assert!(live.iter().all(|(q, n)| p + size <= *q || q + n <= p));
                live.push((p, size));
            } else {
                let (p, _) = live.swap_remove(next(live.len()));
                assert_eq!(cuda!(cudaFreeAsync(p as *mut _, s)), 0);
            }
            if next(200) == 0 {
                cuda!(cudaStreamSynchronize(s));
            }
        }
        for (p, _) in live {
            cuda!(cudaFreeAsync(p as *mut _, streams[0]));
        }
        cuda!(cudaDeviceSynchronize());
        let info = cudart_sim::memory_info(0).unwrap();
        assert_eq!((info.pool_blocks, info.pool_reserved), ((0, 0), 0));
        assert_eq!(info.free, info.total);
    });
}
