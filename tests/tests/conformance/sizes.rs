//! Sizes: of the structures, zero, and more than there is.

use crate::{cuda::*, facts, is, skip};
use std::ptr::{dangling_mut, null_mut};

fn structures() {
    if sys::CUDART_VERSION / 1000 != 13 {
        return skip("the sizes are those of CUDA 13");
    }
    is("cudaMemPoolProps", size_of::<sys::cudaMemPoolProps>(), 88);
    is(
        "cudaPointerAttributes",
        size_of::<sys::cudaPointerAttributes>(),
        88,
    );
    is("cudaDeviceProp", size_of::<sys::cudaDeviceProp>(), 1008);
}

/// A structure with bytes behind it that the runtime must not write.
#[repr(C)]
struct Fenced<T> {
    value: T,
    fence: [u8; 64],
}

fn layouts() {
    let fence = [0xA5; 64];
    let value = sys::cudaDeviceProp::default();
    let mut properties = Fenced { value, fence };
    ok!(cudaGetDeviceProperties(&mut properties.value, 0));
    is("behind cudaDeviceProp", properties.fence, fence);
    let (total, found) = (memory().1, properties.value.totalGlobalMem);
    let close = found.abs_diff(total) <= total / 50;
    is(
        format!("totalGlobalMem {found} is about {total}"),
        close,
        true,
    );
    let major = properties.value.major;
    is(
        format!("compute capability {major}"),
        (5..30).contains(&major),
        true,
    );

    let p = malloc(4096);
    let value = sys::cudaPointerAttributes::default();
    let mut attributes = Fenced { value, fence };
    ok!(cudaPointerGetAttributes(&mut attributes.value, p));
    is("behind cudaPointerAttributes", attributes.fence, fence);
    is("devicePointer", attributes.value.devicePointer, p);
    ok!(cudaFree(p));
}

fn zero() {
    let s = stream();
    let mut p = dangling_mut();
    is(
        "cudaMalloc",
        (cuda!(cudaMalloc(&mut p, 0)), p),
        (0, null_mut()),
    );
    p = dangling_mut();
    is(
        "cudaMallocAsync",
        (cuda!(cudaMallocAsync(&mut p, 0, s)), p),
        (0, null_mut()),
    );
    p = dangling_mut();
    is(
        "cudaHostAlloc",
        (cuda!(cudaHostAlloc(&mut p, 0, 0)), p),
        (0, null_mut()),
    );
    is("last error", cuda!(cudaGetLastError()), 0);
    destroy([s]);
}

fn free_of_null() {
    let s = stream();
    is("cudaFree", cuda!(cudaFree(null_mut())), 0);
    is("cudaFreeHost", cuda!(cudaFreeHost(null_mut())), 0);
    is("cudaFreeAsync", cuda!(cudaFreeAsync(null_mut(), s)), 0);
    is("last error", cuda!(cudaGetLastError()), 0);
    destroy([s]);
}

fn more_than_there_is() {
    let s = stream();
    for size in [1 << 50, usize::MAX] {
        let mut p = null_mut();
        let got = (cuda!(cudaMalloc(&mut p, size)), p);
        is(format!("cudaMalloc({size})"), got, (2, null_mut()));
        let got = (cuda!(cudaMallocAsync(&mut p, size, s)), p);
        is(format!("cudaMallocAsync({size})"), got, (2, null_mut()));
    }
    cuda!(cudaGetLastError());
    let p = malloc(4096);
    is("afterwards", cuda!(cudaMemsetAsync(p, 1, 4096, s)), 0);
    is("afterwards", cuda!(cudaStreamSynchronize(s)), 0);
    ok!(cudaFree(p));
    destroy([s]);
}

fn more_page_locked_memory_than_there_is() {
    let mut h = null_mut();
    let got = (cuda!(cudaHostAlloc(&mut h, 1 << 50, 0)), h);
    is("1 PiB", got, (2, null_mut()));
    cuda!(cudaGetLastError());
    ok!(cudaFreeHost(pinned(4096)));
}

facts! {
    structures, Gpu: "The structures have the sizes of the headers: pool properties 88, pointer attributes 88, device properties 1008";
    layouts, Documentation: "The runtime fills the structures and nothing behind them";
    zero, Gpu: "Size 0 gives a null pointer and no error";
    free_of_null, Gpu: "Freeing null does nothing";
    more_than_there_is, Gpu: "1 PiB and `SIZE_MAX` are error 2, and nothing is broken afterwards";
    more_page_locked_memory_than_there_is, Assumed: "1 PiB of page-locked memory is error 2";
}
