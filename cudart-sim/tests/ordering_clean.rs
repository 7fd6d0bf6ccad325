//! Correct programs about which the ordering checker has to say nothing, under every schedule.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{By, host_read, host_write, launch, launch_host, moment, ordered};
use programs::*;
use std::ptr::null_mut;
use std::sync::mpsc;

programs! { clean:
    fn one_stream() {
        let a = stream();
        let (x, y) = (malloc(K), malloc(K));
        fill(x, K, a);
        copy(y, x, K, a);
        fill(x, K, a);
    }
    fn two_streams_that_only_read() {
        let (a, b) = two();
        let (x, y, z) = (malloc(K), malloc(K), malloc(K));
        copy(y, x, K, a);
        copy(z, x, K, b);
    }
    fn two_streams_on_neighbouring_bytes() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, 513, a);
        fill(at(d, 513), 511, b);
    }
    fn an_event_between_two_streams() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        behind(b, a);
        fill(d, K, b);
    }
    fn a_chain_of_events_over_three_streams() {
        let ((a, b), c) = (two(), stream());
        let d = malloc(K);
        fill(d, K, a);
        behind(b, a);
        behind(c, b);
        fill(d, K, c);
        behind(a, c);
        fill(d, K, a);
    }
    fn a_record_again_covers_more() {
        let ((a, b), e) = (two(), event());
        let d = malloc(K);
        record(e, a);
        fill(d, K, a);
        record(e, a);
        wait(b, e);
        fill(d, K, b);
    }
    fn an_event_that_is_destroyed_after_the_wait() {
        let ((a, b), e) = (two(), event());
        let d = malloc(K);
        fill(d, K, a);
        record(e, a);
        wait(b, e);
        cuda!(cudaEventDestroy(e));
        fill(d, K, b);
    }
    fn the_legacy_stream_and_a_blocking_one() {
        let a = blocking_stream();
        let d = malloc(K);
        fill(d, K, a);
        fill(d, K, LEGACY);
        fill(d, K, a);
        fill(d, K, null_mut());
    }
    fn the_legacy_stream_between_two_blocking_ones() {
        let (a, b) = (blocking_stream(), blocking_stream());
        let d = malloc(K);
        fill(d, K, a);
        fill(malloc(K), K, LEGACY);
        fill(d, K, b);
    }
    fn a_mere_record_on_the_legacy_stream() {
        let (a, b) = (blocking_stream(), blocking_stream());
        let d = malloc(K);
        fill(d, K, a);
        record(event(), LEGACY);
        fill(d, K, b);
    }
    fn a_mere_wait_on_the_legacy_stream() {
        let ((a, b), e) = ((blocking_stream(), blocking_stream()), event());
        let d = malloc(K);
        record(e, stream());
        cuda!(cudaEventSynchronize(e));
        fill(d, K, a);
        wait(LEGACY, e);
        fill(d, K, b);
    }
    fn the_per_thread_stream_and_the_legacy_one() {
        let d = malloc(K);
        fill(d, K, PER_THREAD);
        fill(d, K, LEGACY);
        fill(d, K, PER_THREAD);
    }
    fn a_blocking_stream_passes_on_what_it_waited_for() {
        let (a, b) = (stream(), blocking_stream());
        let d = malloc(K);
        fill(d, K, a);
        behind(b, a);
        fill(d, K, LEGACY);
    }
    fn per_thread_streams_with_a_wait_between() {
        let d = malloc(K);
        fill(d, K, PER_THREAD);
        sync(PER_THREAD);
        let address = d as usize;
        std::thread::spawn(move || fill(address as Pointer, K, PER_THREAD)).join().unwrap();
    }
    fn a_host_that_waits_for_the_stream() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        sync(a);
        fill(d, K, b);
    }
    fn a_host_that_waits_for_an_event() {
        let ((a, b), e) = (two(), event());
        let (d, other) = (malloc(K), malloc(K));
        fill(d, K, a);
        record(e, a);
        fill(other, K, a);
        cuda!(cudaEventSynchronize(e));
        fill(d, K, b);
    }
    fn a_host_that_waits_for_the_device() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        cuda!(cudaDeviceSynchronize());
        fill(d, K, b);
    }
    fn a_host_that_waits_for_the_legacy_stream() {
        let (a, b) = (blocking_stream(), stream());
        let d = malloc(K);
        fill(d, K, a);
        sync(LEGACY);
        fill(d, K, b);
    }
    fn a_query_that_succeeds() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        until(|| cuda!(cudaStreamQuery(a)));
        fill(d, K, b);
    }
    fn an_event_query_that_succeeds() {
        let ((a, b), e) = (two(), event());
        let d = malloc(K);
        fill(d, K, a);
        record(e, a);
        until(|| cuda!(cudaEventQuery(e)));
        fill(d, K, b);
    }
    fn a_pinned_source_used_again_after_the_wait() {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        host_write(p, K);
        copy(d, p, K, a);
        sync(a);
        host_write(p, K);
        copy(d, p, K, a);
    }
    fn a_pinned_target_read_after_the_event() {
        let (a, e) = (stream(), event());
        let (d, p) = (malloc(K), pinned(K));
        copy(p, d, K, a);
        record(e, a);
        cuda!(cudaEventSynchronize(e));
        host_read(p, K);
    }
    fn two_readers_of_a_pinned_source_and_the_host() {
        let (a, b) = two();
        let (x, y, p) = (malloc(K), malloc(K), pinned(K));
        copy(x, p, K, a);
        copy(y, p, K, b);
        host_read(p, K);
    }
    fn a_pageable_source_overwritten_after_the_return() {
        let a = stream();
        let d = malloc(256 * K);
        let mut host = vec![1u8; 256 * K];
        for len in [K, 256 * K] {
            copy(d, host.as_mut_ptr().cast(), len, a);
            host_write(host.as_ptr().cast(), len);
            host.fill(2);
        }
        copy(host.as_mut_ptr().cast(), d, 256 * K, a);
        host_read(host.as_ptr().cast(), 256 * K);
    }
    fn a_pageable_copy_read_by_others_after_a_wait() {
        let (a, b) = two();
        let (d, p) = (malloc(256 * K), pinned(256 * K));
        let mut host = vec![1u8; 256 * K];
        copy(d, host.as_mut_ptr().cast(), 256 * K, a);
        host.fill(2);
        behind(b, a);
        copy(p, d, 256 * K, b);
        sync(b);
        host_read(p, 256 * K);
    }
    fn a_copy_to_pageable_memory_is_done_when_it_returns() {
        let (a, b) = two();
        let d = malloc(K);
        let mut host = vec![0u8; K];
        fill(d, K, a);
        copy(host.as_mut_ptr().cast(), d, K, a);
        fill(d, K, b);
    }
    fn a_plain_copy_of_pinned_memory_is_done_when_it_returns() {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        cuda!(cudaMemcpy(d, p, K, H2D));
        host_write(p, K);
        fill(d, K, a);
    }
    fn rows_that_lie_between_each_other() {
        let (a, b) = two();
        let (d, x) = (malloc(4 * K), malloc(4 * K));
        cuda!(cudaMemset2DAsync(d, 64, 1, 32, 8, a));
        cuda!(cudaMemset2DAsync(at(d, 32), 64, 1, 32, 8, b));
        cuda!(cudaMemcpy2DAsync(at(d, 1024), 64, x, 32, 16, 8, D2D, a));
        cuda!(cudaMemcpy2DAsync(at(d, 1040), 64, x, 16, 16, 8, D2D, b));
    }
    fn a_device_copy_ordered_on_both_sides() {
        let ((a, b), c) = (two(), stream());
        let (x, y) = (malloc(K), malloc(K));
        fill(x, K, a);
        fill(y, K, b);
        behind(c, a);
        behind(c, b);
        copy(y, x, K, c);
    }
    fn kernels_with_an_event_between() {
        let (a, b) = two();
        let (d, x) = (malloc(K), malloc(K));
        launch(a, &[], &[(d, K)], |_| {});
        behind(b, a);
        launch(b, &[(d, K)], &[(x, K)], |_| {});
    }
    fn a_host_function_in_the_middle_of_a_stream() {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        copy(p, d, K, a);
        launch_host(a, &[(p, K)], &[(p, K)], || {});
        copy(d, p, K, a);
    }
    fn a_host_function_that_tells_the_host() {
        let a = stream();
        let p = pinned(K);
        fill(p, K, a);
        let (tell, told) = mpsc::channel();
        launch_host(a, &[(p, K)], &[], move || {
            let _ = tell.send(moment());
        });
        until(|| cuda!(cudaStreamQuery(a)).min(600));
        ordered(&told.recv().unwrap(), By::Host);
        host_write(p, K);
    }
    fn stream_ordered_memory_on_its_own_stream() {
        let a = stream();
        for _ in 0..3 {
            let d = malloc_async(K, a);
            fill(d, K, a);
            cuda!(cudaFreeAsync(d, a));
        }
    }
    fn stream_ordered_memory_passed_on_with_events() {
        let (a, b) = two();
        let d = malloc_async(K, a);
        behind(b, a);
        fill(d, K, b);
        behind(a, b);
        cuda!(cudaFreeAsync(d, a));
    }
    fn stream_ordered_memory_freed_where_it_was_used() {
        let (a, b) = two();
        let d = malloc_async(K, a);
        behind(b, a);
        fill(d, K, b);
        cuda!(cudaFreeAsync(d, b));
        let d = malloc_async(K, a);
        fill(d, K, a);
    }
    fn stream_ordered_memory_on_the_default_streams() {
        let a = blocking_stream();
        let d = malloc_async(K, LEGACY);
        fill(d, K, a);
        cuda!(cudaFreeAsync(d, LEGACY));
        let d = malloc_async(K, a);
        fill(d, K, LEGACY);
        cuda!(cudaFreeAsync(d, a));
    }
    fn frees_that_wait_for_the_device() {
        let (a, b) = two();
        let (d, p) = (malloc(K), pinned(K));
        copy(d, p, K, a);
        cuda!(cudaFree(d));
        fill(p, K, b);
        cuda!(cudaFreeHost(p));
    }
    fn new_memory_at_an_old_address() {
        let (a, b) = two();
        for s in [a, b, a] {
            let d = malloc(K);
            fill(d, K, s);
            cuda!(cudaFree(d));
        }
    }
    fn a_free_on_one_stream_and_the_pool_s_reuse_on_another() {
        // The driver orders this by itself, in one of three ways.
        let (a, b) = two();
        let d = malloc_async(K, a);
        fill(d, K, a);
        cuda!(cudaFreeAsync(d, a));
        sync(a);
        let d = malloc_async(K, b);
        fill(d, K, b);
    }
}

#[test]
fn what_was_submitted_before_the_check_was_turned_on_is_nobodys_fault() {
    let _turn = machine();
    cudart_sim::check(cudart_sim::Check::Off);
    let ((a, b), e) = (two(), event());
    let d = malloc(K);
    fill(d, K, a);
    record(e, a);
    cudart_sim::check(cudart_sim::Check::Report);
    wait(b, e);
    fill(d, K, b);
    cuda!(cudaEventSynchronize(e));
    cudart_sim::expect_clean();
    cudart_sim::check(cudart_sim::Check::Off);
}
