//! Each rule by which CUDA orders work, from both sides: what it promises is no finding, and the next thing that it does
//! not promise is one.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{host_read, host_write, launch_host};
use programs::*;
use std::ptr::null_mut;

/// Runs something with another device as the current one.
fn on_device<T>(device: i32, f: impl FnOnce() -> T) -> T {
    assert_eq!(cuda!(cudaSetDevice(device)), 0);
    let answer = f();
    assert_eq!(cuda!(cudaSetDevice(0)), 0);
    answer
}

fn device_function(s: Stream, reads: &[cudart_sim::Range], writes: &[cudart_sim::Range]) {
    assert_eq!(cudart_sim::launch(s, reads, writes, |_| {}).0, 0);
}

mod promised {
    use super::*;

    programs! { clean:
        fn an_event_recorded_again_before_the_wait_covers_both() {
            let ((a, b), e) = (two(), event());
            let (x, y) = (malloc(K), malloc(K));
            fill(x, K, a);
            record(e, a);
            fill(y, K, a);
            record(e, a);
            wait(b, e);
            fill(x, K, b);
            fill(y, K, b);
        }
        fn a_wait_holds_although_the_event_is_recorded_elsewhere_after_it() {
            let ((a, b), e) = (two(), event());
            let d = malloc(K);
            fill(d, K, a);
            record(e, a);
            wait(b, e);
            record(e, stream());
            fill(d, K, b);
        }
        fn a_wait_for_an_event_that_was_destroyed_at_once() {
            let (a, b) = two();
            let d = malloc(K);
            for _ in 0..3 {
                fill(d, K, a);
                behind(b, a);
                fill(d, K, b);
                behind(a, b);
            }
        }
        fn a_wait_is_for_all_that_the_waited_for_stream_had_waited_for() {
            let ((a, b), (c, d)) = (two(), two());
            let x = malloc(K);
            fill(x, K, a);
            behind(b, a);
            behind(c, b);
            behind(d, c);
            fill(x, K, d);
        }
        fn a_chain_through_the_legacy_stream() {
            let ((a, c), b) = (two(), blocking_stream());
            let d = malloc(K);
            fill(d, K, a);
            behind(b, a);
            record(event(), LEGACY);
            let other = blocking_stream();
            fill(malloc(K), K, other);
            behind(c, other);
            fill(d, K, c);
        }
        fn an_event_goes_from_device_to_device() {
            let s = stream();
            let d = malloc(K);
            fill(d, K, s);
            let e = event();
            record(e, s);
            on_device(1, || {
                let other = stream();
                wait(other, e);
                let there = malloc(K);
                assert_eq!(cuda!(cudaMemcpyPeerAsync(there, 1, d, 0, K, other)), 0);
                sync(other);
            });
            fill(d, K, stream());
        }
        fn a_mere_wait_on_the_legacy_stream_for_an_event_of_a_third_stream() {
            let (a, b) = (blocking_stream(), blocking_stream());
            let (d, e) = (malloc(K), event());
            record(e, stream());
            fill(d, K, a);
            wait(null_mut(), e);
            fill(d, K, b);
        }
        fn a_blocking_stream_that_is_destroyed_is_waited_for_by_the_legacy_stream() {
            let a = blocking_stream();
            let d = malloc(K);
            fill(d, K, a);
            cuda!(cudaStreamDestroy(a));
            fill(d, K, LEGACY);
        }
        fn per_thread_streams_through_the_legacy_stream() {
            let d = malloc(K);
            fill(d, K, PER_THREAD);
            record(event(), LEGACY);
            let address = d as usize;
            std::thread::spawn(move || fill(address as Pointer, K, PER_THREAD)).join().unwrap();
        }
        fn a_synchronisation_with_the_legacy_stream_is_one_with_the_per_thread_stream() {
            let d = malloc(K);
            fill(d, K, PER_THREAD);
            sync(null_mut());
            fill(d, K, stream());
        }
        fn a_query_of_the_legacy_stream_that_succeeds() {
            let a = blocking_stream();
            let d = malloc(K);
            fill(d, K, a);
            until(|| cuda!(cudaStreamQuery(LEGACY)));
            fill(d, K, stream());
        }
        fn an_elapsed_time_that_is_answered() {
            let a = stream();
            let (mut begin, mut end) = (null_mut(), null_mut());
            cuda!(cudaEventCreate(&mut begin));
            cuda!(cudaEventCreate(&mut end));
            let d = malloc(K);
            record(begin, a);
            fill(d, K, a);
            record(end, a);
            let mut ms = 0.0;
            until(|| cuda!(cudaEventElapsedTime(&mut ms, begin, end)));
            fill(d, K, stream());
        }
        fn the_host_that_waited_tells_every_thread() {
            let a = stream();
            let d = malloc(K);
            fill(d, K, a);
            let (s, address) = (a as usize, d as usize);
            std::thread::spawn(move || sync(s as Stream)).join().unwrap();
            std::thread::spawn(move || fill(address as Pointer, K, stream())).join().unwrap();
        }
        fn a_synchronisation_with_a_device_covers_streams_that_are_gone() {
            let a = stream();
            let d = malloc(K);
            fill(d, K, a);
            cuda!(cudaStreamDestroy(a));
            cuda!(cudaDeviceSynchronize());
            fill(d, K, stream());
        }
        fn cuda_free_waits_for_its_device() {
            let (a, d, other) = (stream(), malloc(K), malloc(K));
            fill(d, K, a);
            cuda!(cudaFree(other));
            fill(d, K, stream());
        }
        fn cuda_free_host_waits_for_every_device() {
            let p = pinned(K);
            on_device(1, || copy(malloc(K), p, K, stream()));
            assert_eq!(cuda!(cudaFreeHost(p)), 0);
        }
        fn a_host_function_comes_after_what_was_before_it_and_before_what_is_after_it() {
            let a = stream();
            let (d, p) = (malloc(K), pinned(K));
            copy(p, d, K, a);
            launch_host(a, &[(p, K)], &[(p, 16)], || {});
            copy(d, p, K, a);
            sync(a);
            host_write(p, K);
        }
        fn a_host_function_writes_pageable_memory_that_a_plain_copy_reads() {
            // The plain copy waits for its stream before it reads.
            let host = [0u8; K];
            let (p, d) = (host.as_ptr() as Pointer, malloc(K));
            launch_host(LEGACY, &[], &[(p, K)], || {});
            assert_eq!(cuda!(cudaMemcpy(d, p, K, H2D)), 0);
        }
        fn a_blocking_stream_s_host_function_likewise() {
            let (a, host) = (blocking_stream(), [0u8; K]);
            let (p, d) = (host.as_ptr() as Pointer, malloc(K));
            launch_host(a, &[], &[(p, K)], || {});
            assert_eq!(cuda!(cudaMemcpy(d, p, K, H2D)), 0);
        }
        fn rows_of_a_pageable_source_leave_their_gaps_alone() {
            let (a, b, host) = (stream(), stream(), [0u8; K]);
            let (p, d) = (host.as_ptr() as Pointer, malloc(K));
            launch_host(b, &[], &[(at(p, 8), 8), (at(p, 24), 8)], || {});
            assert_eq!(cuda!(cudaMemcpy2DAsync(d, 16, p, 16, 8, 4, H2D, a)), 0);
            sync(b);
        }
        fn copies_between_host_memory_are_done_when_they_return() {
            let (p, q) = (pinned(K), pinned(K));
            assert_eq!(cuda!(cudaMemcpyAsync(q, p, K, H2H, stream())), 0);
            host_write(p, K);
            host_read(q, K);
        }
        fn a_plain_fill_of_page_locked_memory_is_done_when_it_returns() {
            let p = pinned(K);
            assert_eq!(cuda!(cudaMemset(p, 1, K)), 0);
            host_read(p, K);
        }
        fn a_plain_copy_to_the_host_is_behind_blocking_streams() {
            let (a, d, p) = (blocking_stream(), malloc(K), pinned(K));
            fill(d, K, a);
            assert_eq!(cuda!(cudaMemcpy(p, d, K, D2H)), 0);
            host_read(p, K);
        }
        fn a_block_that_a_stream_gives_up_before_it_has_done_anything_else() {
            let (a, b) = two();
            let d = malloc(K);
            record(event(), a);
            cudart_sim::on_free(d, K, cudart_sim::By::Stream(a));
            cuda!(cudaDeviceSynchronize());
            cudart_sim::on_allocate(d, K, cudart_sim::By::Stream(b));
        }
        fn a_block_freed_in_the_name_of_a_stream_that_is_gone_and_that_the_host_waited_for() {
            let (a, d) = (stream(), malloc(K));
            let id = id(a);
            fill(d, K, a);
            sync(a);
            cuda!(cudaStreamDestroy(a));
            cudart_sim::on_free(d, K, cudart_sim::By::StreamId(id));
            cudart_sim::on_allocate(d, K, cudart_sim::By::Stream(stream()));
        }
        fn a_block_freed_in_the_name_of_a_stream_that_is_gone_among_many() {
            // It did nothing but wait for the one that used the block.
            let (a, last, d) = (stream(), stream(), malloc(K));
            let id = id(last);
            fill(d, K, a);
            behind(last, a);
            cuda!(cudaStreamDestroy(last));
            for _ in 0..200 {
                let s = stream();
                fill(malloc(K), K, s);
                cuda!(cudaStreamDestroy(s));
            }
            cudart_sim::on_free(d, K, cudart_sim::By::StreamId(id));
        }
    }
}

mod not_promised {
    use super::*;

    programs! { Race:
        fn a_wait_for_an_event_that_was_never_recorded() {
            let ((a, b), e) = (two(), event());
            let d = malloc(K);
            fill(d, K, a);
            wait(b, e);
            fill(d, K, b);
        }
        fn a_handle_of_a_destroyed_event_that_came_back_knows_nothing() {
            let ((a, b), e) = (two(), event());
            let d = malloc(K);
            fill(d, K, a);
            record(e, a);
            cuda!(cudaEventDestroy(e));
            let again = event();
            assert_eq!(e, again);
            wait(b, again);
            fill(d, K, b);
        }
        fn the_waited_for_stream_learns_nothing() {
            let (a, b) = two();
            let d = malloc(K);
            behind(b, a);
            fill(d, K, b);
            fill(d, K, a);
        }
        fn a_wait_for_a_never_recorded_event_on_the_legacy_stream_is_no_barrier() {
            let (a, b) = (blocking_stream(), blocking_stream());
            let d = malloc(K);
            fill(d, K, a);
            wait(LEGACY, event());
            fill(d, K, b);
        }
        fn a_query_of_the_legacy_stream_is_no_barrier_in_the_device() {
            let (a, b) = (blocking_stream(), blocking_stream());
            let d = malloc(K);
            // Whatever it answers is about what was submitted before it.
            cuda!(cudaStreamQuery(LEGACY));
            fill(d, K, a);
            fill(d, K, b);
        }
        fn the_legacy_stream_of_another_device() {
            let a = blocking_stream();
            let (d, p) = (malloc(K), pinned(K));
            fill(p, K, a);
            on_device(1, || copy(malloc(K), p, K, LEGACY));
            fill(d, K, a);
        }
        fn a_barrier_on_the_legacy_stream_of_another_device() {
            let (a, b) = (blocking_stream(), blocking_stream());
            let d = malloc(K);
            fill(d, K, a);
            on_device(1, || record(event(), LEGACY));
            fill(d, K, b);
        }
        fn a_synchronisation_with_another_device() {
            let (a, b) = two();
            let d = malloc(K);
            fill(d, K, a);
            on_device(1, || assert_eq!(cuda!(cudaDeviceSynchronize()), 0));
            fill(d, K, b);
        }
        fn cuda_free_of_another_device_s_memory() {
            let (a, b) = two();
            let d = malloc(K);
            fill(d, K, a);
            let there = on_device(1, || malloc(K));
            assert_eq!(cuda!(cudaFree(there)), 0);
            fill(d, K, b);
        }
        fn cuda_free_of_stream_ordered_memory_waits_for_nobody() {
            let ((a, b), c) = (two(), stream());
            let (d, x) = (malloc(K), malloc_async(K, c));
            sync(c);
            fill(d, K, a);
            assert_eq!(cuda!(cudaFree(x)), 0);
            fill(d, K, b);
        }
        fn allocations_are_no_synchronisation() {
            let (a, b) = two();
            let d = malloc(K);
            fill(d, K, a);
            malloc(K);
            pinned(K);
            malloc_async(K, b);
            fill(d, K, b);
        }
        fn destroying_a_stream_is_no_synchronisation() {
            let (a, b) = two();
            let d = malloc(K);
            fill(d, K, a);
            cuda!(cudaStreamDestroy(a));
            fill(d, K, b);
        }
        fn destroying_an_event_is_no_synchronisation() {
            let ((a, b), e) = (two(), event());
            let d = malloc(K);
            fill(d, K, a);
            record(e, a);
            cuda!(cudaEventDestroy(e));
            fill(d, K, b);
        }
        fn a_stream_with_the_handle_of_one_that_is_gone_is_another_stream() {
            let a = stream();
            let d = malloc(K);
            fill(d, K, a);
            cuda!(cudaStreamDestroy(a));
            let b = stream();
            assert_eq!(a, b);
            fill(d, K, b);
        }
        fn a_query_that_says_not_ready_is_no_order() {
            let (a, b) = two();
            let d = malloc(K);
            let gate = Gate::on(a);
            fill(d, K, a);
            assert_eq!(cuda!(cudaStreamQuery(a)), 600);
            fill(d, K, b);
            gate.open();
        }
        fn a_plain_copy_inside_a_device_tells_the_host_nothing() {
            let (a, x, y) = (stream(), malloc(K), malloc(K));
            assert_eq!(cuda!(cudaMemcpy(y, x, K, D2D)), 0);
            fill(y, K, a);
        }
        fn a_host_function_that_ran_tells_the_host_nothing() {
            let (a, p) = (stream(), pinned(K));
            launch_host(a, &[], &[(p, K)], || {});
            host_read(p, K);
        }
        fn a_host_function_writes_pageable_memory_that_an_async_copy_reads() {
            // Even in the same stream: the source may be read when the call is made.
            let (a, host) = (stream(), [0u8; K]);
            let (p, d) = (host.as_ptr() as Pointer, malloc(K));
            launch_host(a, &[], &[(p, K)], || {});
            copy(d, p, K, a);
            sync(a);
        }
        fn a_plain_copy_of_pageable_memory_does_not_wait_for_non_blocking_streams() {
            let (a, host) = (stream(), [0u8; K]);
            let (p, d) = (host.as_ptr() as Pointer, malloc(K));
            launch_host(a, &[], &[(p, K)], || {});
            assert_eq!(cuda!(cudaMemcpy(d, p, K, H2D)), 0);
            sync(a);
        }
        fn rows_of_a_pageable_source_are_read() {
            let (a, b, host) = (stream(), stream(), [0u8; K]);
            let (p, d) = (host.as_ptr() as Pointer, malloc(K));
            launch_host(b, &[], &[(at(p, 23), 8)], || {});
            assert_eq!(cuda!(cudaMemcpy2DAsync(d, 16, p, 16, 8, 4, H2D, a)), 0);
            sync(b);
        }
        fn an_async_fill_of_page_locked_memory_tells_the_host_nothing() {
            let p = pinned(K);
            fill(p, K, LEGACY);
            host_read(p, K);
        }
        fn a_per_thread_stream_and_a_blocking_one_are_not_ordered() {
            let (a, d) = (blocking_stream(), malloc(K));
            fill(d, K, a);
            fill(d, K, PER_THREAD);
        }
        fn a_per_thread_stream_and_a_non_blocking_one_are_not_ordered() {
            let (a, d) = (stream(), malloc(K));
            fill(d, K, PER_THREAD);
            record(event(), LEGACY);
            fill(d, K, a);
        }
        fn per_thread_streams_of_one_thread_on_two_devices() {
            let p = pinned(K);
            fill(p, K, PER_THREAD);
            on_device(1, || copy(malloc(K), p, K, PER_THREAD));
        }
        fn a_synchronisation_with_the_per_thread_stream_of_another_thread() {
            let (d, other) = (malloc(K), stream());
            fill(d, K, PER_THREAD);
            std::thread::spawn(|| sync(PER_THREAD)).join().unwrap();
            fill(d, K, other);
        }
        fn the_middle_of_a_chain_was_recorded_before_it_waited() {
            let ((a, b), c, e) = (two(), stream(), event());
            let d = malloc(K);
            fill(d, K, a);
            record(e, b);
            behind(b, a);
            wait(c, e);
            fill(d, K, c);
        }
        fn the_end_of_a_chain_waited_before_its_middle() {
            let ((a, b), c) = (two(), stream());
            let d = malloc(K);
            fill(d, K, a);
            behind(c, b);
            behind(b, a);
            fill(d, K, c);
        }
        fn work_behind_the_beginning_of_a_chain() {
            let ((a, b), c) = (two(), stream());
            let d = malloc(K);
            behind(b, a);
            fill(d, K, a);
            behind(c, b);
            fill(d, K, c);
        }
        fn a_chain_through_a_blocking_stream_reaches_no_further() {
            let ((a, c), b) = (two(), blocking_stream());
            let d = malloc(K);
            fill(d, K, a);
            behind(b, a);
            fill(malloc(K), K, LEGACY);
            behind(c, stream());
            fill(d, K, c);
        }
        fn two_threads_that_use_one_stream_each_without_an_event() {
            let (a, d) = (stream(), malloc(K));
            fill(d, K, a);
            let address = d as usize;
            std::thread::spawn(move || fill(address as Pointer, K, stream())).join().unwrap();
        }
    }

    programs! { FreedInUse:
        fn cuda_free_does_not_wait_for_another_device() {
            let d = malloc(K);
            on_device(1, || device_function(stream(), &[(d, K)], &[]));
            assert_eq!(cuda!(cudaFree(d)), 0);
        }
        fn the_target_of_a_running_copy_is_freed_in_stream_order() {
            let (a, b) = two();
            let (d, p) = (malloc_async(K, a), pinned(K));
            behind(b, a);
            copy(d, p, K, b);
            assert_eq!(cuda!(cudaFreeAsync(d, a)), 0);
        }
    }
}

/// Used after its free in stream order: the memory is nobody's then, and the call that uses it says so itself.
#[test]
fn a_use_after_a_free_in_stream_order_is_refused() {
    under_every_schedule(|| {
        let (a, d) = (stream(), malloc(K));
        let x = malloc_async(K, a);
        assert_eq!(cuda!(cudaFreeAsync(x, a)), 0);
        assert_eq!(cuda!(cudaMemsetAsync(x, 1, K, a)), 1);
        assert_eq!(cuda!(cudaMemcpyAsync(d, x, K, D2D, a)), 1);
        assert_eq!(cudart_sim::launch(a, &[(x, K)], &[], |_| {}).0, 1);
    });
}
