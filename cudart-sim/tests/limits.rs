//! Byte limits that are set while the machine runs: one test for each kind of memory.

mod common;
use common::machine;
mod cuda;
use cuda::*;
use cudart_sim::{Config, Limited, limit};
use std::ptr::null_mut;

fn try_malloc(size: usize) -> u32 {
    let mut p = null_mut();
    let code = cuda!(cudaMalloc(&mut p, size));
    assert_eq!(p.is_null(), code != 0 || size == 0);
    code
}

/// The most that can be had in steps of `step`, and what the call after that answers.
fn steps(most: usize, mut more: impl FnMut() -> u32) -> (usize, u32) {
    for n in 0..=most {
        let code = more();
        if code != 0 {
            return (n, code);
        }
    }
    (most + 1, 0)
}

#[test]
fn cuda_malloc_is_out_of_memory_at_its_limit() {
    let _turn = machine();
    limit(Limited::Malloc(0), Some(10 << 20));
    assert_eq!(steps(9, || try_malloc(4 << 20)), (2, 2));
    assert_eq!((try_malloc(2 << 20), try_malloc(1)), (0, 2), "to the byte");
    // Other memory has limits of its own.
    let mut q = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut q, 64 << 20, null_mut())), 0);
    assert_eq!(release(create(64 << 20)), 0);
    limit(Limited::Malloc(0), Some(11 << 20));
    let p = malloc(1 << 20);
    assert_eq!(try_malloc(1), 2);
    assert_eq!(cuda!(cudaFree(p)), 0);
    assert_eq!(try_malloc(1), 0, "a free makes room");
    limit(Limited::Malloc(0), Some(0));
    assert_eq!(
        (try_malloc(1), try_malloc(0)),
        (2, 0),
        "nothing takes no room"
    );
    limit(Limited::Malloc(0), None);
    assert_eq!(try_malloc(64 << 20), 0);
    cuda!(cudaGetLastError());
}

#[test]
fn pools_are_out_of_memory_at_their_limit_and_hand_out_what_they_have() {
    let _turn = machine();
    let more = || {
        let mut q = null_mut();
        cuda!(cudaMallocAsync(&mut q, 10 << 20, null_mut()))
    };
    limit(Limited::Pools(0), Some(64 << 20));
    let mut first = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut first, 10 << 20, null_mut())), 0);
    // Two pieces of 32 MiB, three blocks in each.
    assert_eq!(steps(20, more), (5, 2));
    assert_eq!(try_malloc(64 << 20), 0, "cudaMalloc is not a pool");
    limit(Limited::Pools(0), Some(0));
    assert_eq!(cuda!(cudaFreeAsync(first, null_mut())), 0);
    assert_eq!(more(), 0, "from what it holds");
    assert_eq!(more(), 2);
    // A pool of the program's own is a pool of the device as well.
    let mut props = sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        ..Default::default()
    };
    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeDevice;
    let (mut pool, mut q) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 0);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 16, pool, null_mut())),
        2
    );
    limit(Limited::Pools(0), None);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 16, pool, null_mut())),
        0
    );
}

fn try_create(len: usize) -> (u32, u64) {
    let (mut handle, prop) = (0, on_device_0());
    let code = driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut handle, len, &prop, 0));
    (code, handle)
}

#[test]
fn physical_memory_is_out_of_memory_at_its_limit() {
    let _turn = machine();
    limit(Limited::Physical(0), Some(5 * CHUNK as u64));
    let (code, first) = try_create(2 * CHUNK);
    assert_eq!(code, 0);
    assert_eq!(steps(9, || try_create(2 * CHUNK).0), (1, 2));
    assert_eq!((try_create(CHUNK).0, try_create(CHUNK).0), (0, 2));
    assert_eq!(try_malloc(64 << 20), 0);
    assert_eq!(release(first), 0);
    assert_eq!(try_create(2 * CHUNK).0, 0, "a release makes room");
    limit(Limited::Physical(0), None);
    assert_eq!(try_create(64 << 20).0, 0);
}

#[test]
fn host_memory_is_out_of_memory_at_its_limit() {
    let _turn = machine();
    let more = |size: usize| {
        let mut h = null_mut();
        let code = cuda!(cudaHostAlloc(&mut h, size, 0));
        assert_eq!(h.is_null(), code != 0);
        (code, h)
    };
    limit(Limited::Host, Some(10 << 20));
    let (code, first) = more(4 << 20);
    assert_eq!(code, 0);
    assert_eq!(steps(9, || more(4 << 20).0), (1, 2));
    let mut h = null_mut();
    assert_eq!(cuda!(cudaMallocHost(&mut h, 4 << 20)), 2);
    assert_eq!(
        try_malloc(64 << 20),
        0,
        "device memory has limits of its own"
    );
    assert_eq!(cuda!(cudaFreeHost(first)), 0);
    assert_eq!(more(4 << 20).0, 0);
    let mut mine = vec![0u8; 64 << 10];
    assert_eq!(
        cuda!(cudaHostRegister(mine.as_mut_ptr().cast(), mine.len(), 0)),
        0,
        "registering allocates nothing"
    );
    assert_eq!(cuda!(cudaHostUnregister(mine.as_mut_ptr().cast())), 0);
    // A pool of host memory takes page-locked memory.
    let mut props = sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        ..Default::default()
    };
    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeHost;
    let (mut pool, mut q) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 0);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 4 << 20, pool, null_mut())),
        2
    );
    limit(Limited::Host, None);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 4 << 20, pool, null_mut())),
        0
    );
    assert_eq!(more(64 << 20).0, 0);
    // A reset lifts it, too.
    limit(Limited::Host, Some(0));
    assert_eq!(more(1).0, 2);
    cudart_sim::reset();
    assert_eq!(more(1).0, 0);
}

#[test]
fn a_device_is_out_of_memory_at_its_limit_and_tells_what_is_free_below_it() {
    let _turn = machine();
    cudart_sim::configure(Config::devices(2, 1 << 30)).unwrap();
    let free = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(cuda!(cudaMemGetInfo(&mut free, &mut total)), 0);
        assert_eq!(total, 1 << 30);
        free
    };
    assert_eq!(try_malloc(100 << 20), 0);
    limit(Limited::Device(0), Some(110 << 20));
    assert_eq!(free(), 10 << 20);
    assert_eq!((try_malloc(12 << 20), try_create(12 << 20).0), (2, 2));
    let mut q = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut q, 12 << 20, null_mut())), 2);
    // All of them share what is left.
    assert_eq!((try_create(4 << 20).0, try_malloc(4 << 20)), (0, 0));
    assert_eq!(cuda!(cudaMallocAsync(&mut q, 2 << 20, null_mut())), 0);
    assert_eq!((free(), try_malloc(16)), (0, 2));
    // Below what is held: nothing is taken away.
    limit(Limited::Device(0), Some(1 << 20));
    assert_eq!((free(), try_malloc(16)), (0, 2));
    assert_eq!(cuda!(cudaSetDevice(1)), 0);
    assert_eq!(try_malloc(500 << 20), 0, "another device has room");
    assert_eq!(cuda!(cudaSetDevice(0)), 0);
    // A reset of the device frees its memory and leaves its limit.
    assert_eq!(cuda!(cudaDeviceReset()), 0);
    assert_eq!(try_malloc(2 << 20), 2);
    limit(Limited::Device(0), None);
    assert_eq!(
        (try_malloc(500 << 20), free()),
        (0, (1 << 30) - (500 << 20))
    );
}
