//! Which calls wait for which work. Shapes measured on an H200 while a stream was stalled.

mod common;
use common::*;
use std::ptr::null_mut;

#[test]
fn frees_of_plain_and_page_locked_memory_wait_for_unrelated_streams() {
    under_every_schedule(|| {
        let s = stream();
        let (p, h) = (malloc(1 << 20), pinned(1 << 20));
        waits_for(s, || cuda!(cudaFree(p)));
        waits_for(s, || cuda!(cudaFreeHost(h)));
        let mut mine = vec![0u8; 1 << 20];
        let at = mine.as_mut_ptr().cast();
        assert_eq!(cuda!(cudaHostRegister(at, mine.len(), 0)), 0);
        waits_for(s, || cuda!(cudaHostUnregister(at)));
    });
}

#[test]
fn allocations_and_frees_of_stream_ordered_memory_do_not_wait() {
    under_every_schedule(|| {
        let (s, other) = (stream(), stream());
        let p = malloc_async(1 << 20, s);
        let mut q = null_mut();
        does_not_wait_for(s, || cuda!(cudaMalloc(&mut q, 1 << 20)));
        does_not_wait_for(s, || cuda!(cudaHostAlloc(&mut q, 1 << 20, 0)));
        does_not_wait_for(s, || cuda!(cudaFree(p)));
        does_not_wait_for(s, || cuda!(cudaMallocAsync(&mut q, 1 << 20, other)));
        does_not_wait_for(s, || cuda!(cudaFreeAsync(q, s)));
    });
}

#[test]
fn copies_of_page_locked_memory_and_fills_do_not_wait() {
    under_every_schedule(|| {
        let s = stream();
        let (d, h) = (malloc(1 << 20), pinned(1 << 20));
        does_not_wait_for(s, || cuda!(cudaMemcpyAsync(d, h, 1 << 20, H2D, s)));
        does_not_wait_for(s, || cuda!(cudaMemcpyAsync(h, d, 1 << 20, D2H, s)));
        does_not_wait_for(s, || cuda!(cudaMemsetAsync(d, 1, 1 << 20, s)));
    });
}

#[test]
fn large_pageable_copies_wait_and_small_ones_to_a_device_do_not() {
    under_every_schedule(|| {
        let s = stream();
        let d = malloc(1 << 20);
        let mut page = vec![3u8; 1 << 20];
        let at = page.as_mut_ptr().cast();
        does_not_wait_for(s, || cuda!(cudaMemcpyAsync(d, at, 16 << 10, H2D, s)));
        waits_for(s, || cuda!(cudaMemcpyAsync(d, at, 1 << 20, H2D, s)));
        waits_for(s, || cuda!(cudaMemcpyAsync(at, d, 1 << 20, D2H, s)));
    });
}

#[test]
fn a_small_pageable_source_may_be_changed_as_soon_as_the_copy_returns() {
    under_every_schedule(|| {
        let s = stream();
        let d = malloc(64);
        let gate = Gate::on(s);
        let mut source = [5u8; 64];
        let at = source.as_mut_ptr().cast();
        assert_eq!(cuda!(cudaMemcpyAsync(d, at, 64, H2D, s)), 0);
        source.fill(9);
        gate.open();
        cuda!(cudaStreamSynchronize(s));
        assert_eq!(cudart_sim::read_device(d, 64), [5; 64]);
    });
}

#[test]
fn a_plain_copy_waits_for_blocking_streams_only() {
    under_every_schedule(|| {
        let (blocking, free) = (blocking_stream(), stream());
        let d = malloc(1 << 20);
        let page = vec![3u8; 1 << 20];
        let at = page.as_ptr().cast();
        does_not_wait_for(free, || cuda!(cudaMemcpy(d, at, 1 << 20, H2D)));
        waits_for(blocking, || cuda!(cudaMemcpy(d, at, 1 << 20, H2D)));
    });
}

#[test]
fn destroying_a_busy_stream_or_a_pending_event_does_not_wait_and_the_work_completes() {
    under_every_schedule(|| {
        let s = stream();
        let d = malloc(64);
        let e = event();
        let gate = Gate::on(s);
        let start = std::time::Instant::now();
        assert_eq!(cuda!(cudaMemsetAsync(d, 6, 64, s)), 0);
        assert_eq!(cuda!(cudaEventRecord(e, s)), 0);
        assert_eq!(cuda!(cudaEventDestroy(e)), 0);
        assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
        assert!(start.elapsed().as_secs() < 10);
        gate.open();
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        assert_eq!(cudart_sim::read_device(d, 64), [6; 64]);
    });
}
