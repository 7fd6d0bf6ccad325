//! Where blocks lie, and what pointers tell.

use crate::{cuda::*, facts, is};
use std::ptr::null_mut;

fn malloc_alignment() {
    let blocks: Vec<Pointer> = (0..50).map(|_| malloc(100)).collect();
    let low = blocks.iter().fold(0, |mask, p| mask | *p as usize) & 0xfff;
    is("low bits of 50 blocks of 100 bytes", low, 0xe00);
    for p in blocks {
        ok!(cudaFree(p));
    }
}

fn async_alignment() {
    let s = stream();
    let mut blocks: Vec<Pointer> = (0..50).map(|_| malloc_async(100, s)).collect();
    let low = blocks.iter().fold(0, |mask, p| mask | *p as usize) & 0xfff;
    is("low bits of 50 blocks of 100 bytes", low, 0xe00);
    let (p, q) = (malloc_async(1000, s), malloc_async(1000, s));
    is(
        "distance of two of 1000 bytes",
        q as isize - p as isize,
        1024,
    );
    blocks.extend([p, q]);
    for p in blocks {
        ok!(cudaFreeAsync(p, s));
    }
    ok!(cudaStreamSynchronize(s));
    destroy([s]);
}

fn host_flags() {
    let h = pinned(MIB);
    let mut flags = 0;
    is(
        "cudaHostGetFlags",
        (cuda!(cudaHostGetFlags(&mut flags, h)), flags),
        (0, 2),
    );
    ok!(cudaFreeHost(h));
}

/// Answer, kind of memory, device.
fn attributes(p: Pointer) -> (u32, sys::cudaPointerAttributes) {
    let mut a = sys::cudaPointerAttributes::default();
    (cuda!(cudaPointerGetAttributes(&mut a, p)), a)
}

fn of_pinned_memory() {
    let h = pinned(MIB);
    let inside = h.wrapping_byte_add(77);
    let (code, a) = attributes(inside);
    let got = (code, a.type_.0, a.device, a.devicePointer);
    is("an interior pointer", got, (0, 1, 0, inside));
    is("its host pointer", a.hostPointer, inside);
    ok!(cudaFreeHost(h));
}

fn of_pageable_memory() {
    let mut local = 0u64;
    let (code, a) = attributes((&raw mut local).cast());
    is("the stack", (code, a.type_.0), (0, 0));
    let (code, a) = attributes(0x64 as Pointer);
    is("0x64", (code, a.type_.0), (0, 0));
    is("last error", cuda!(cudaGetLastError()), 0);
}

fn of_device_memory() {
    let s = stream();
    let (p, q) = (malloc_async(MIB, s), malloc(MIB));
    for (what, p) in [("cudaMallocAsync", p), ("cudaMalloc", q)] {
        let (code, a) = attributes(p);
        is(what, (code, a.type_.0, a.device), (0, 2, 0));
        is(what, a.hostPointer, null_mut());
    }
    ok!(cudaFreeAsync(p, s));
    ok!(cudaFree(q));
    ok!(cudaStreamSynchronize(s));
    destroy([s]);
}

fn for_other_processes() {
    let p = malloc(MIB);
    let mut handle = sys::cudaIpcMemHandle_t::default();
    is("cudaMalloc", cuda!(cudaIpcGetMemHandle(&mut handle, p)), 0);
    ok!(cudaFree(p));
    let v = Mapped::new(CHUNK, 1);
    let code = cuda!(cudaIpcGetMemHandle(&mut handle, v.pointer(0)));
    is("mapped memory", code, 1);
    v.end();
}

facts! {
    malloc_alignment, Gpu: "`cudaMalloc` blocks lie on multiples of 512 bytes";
    async_alignment, Gpu: "`cudaMallocAsync` blocks lie on multiples of 512 bytes and close together";
    host_flags, Gpu: "Page-locked memory is mapped even if nobody asked (flags 2)";
    of_pinned_memory, Gpu: "An interior pointer to page-locked memory is known, and is its own device pointer";
    of_pageable_memory, Gpu: "Attributes of pageable memory, or of no memory, are no error";
    of_device_memory, Gpu: "Stream-ordered memory is device memory by its attributes";
    for_other_processes, Gpu: "Memory of `cudaMalloc` has a handle for other processes, mapped memory has none";
}
