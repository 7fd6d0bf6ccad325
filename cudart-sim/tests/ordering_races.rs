//! Programs with a mistake that the ordering checker has to find, under every schedule.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{FindingKind, host_read, host_write, launch, launch_host};
use programs::*;

programs! { Race:
    fn two_streams_write_the_same_bytes() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        fill(d, K, b);
    }
    fn one_stream_reads_what_another_writes() {
        let (a, b) = two();
        let (d, other) = (malloc(K), malloc(K));
        fill(d, K, a);
        copy(other, d, K, b);
    }
    fn one_stream_writes_what_another_reads() {
        let (a, b) = two();
        let (d, other) = (malloc(K), malloc(K));
        copy(other, d, K, b);
        fill(d, K, a);
    }
    fn the_last_byte_is_shared() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, 513, a);
        fill(at(d, 512), 512, b);
    }
    fn a_non_blocking_stream_ignores_the_legacy_stream() {
        let a = stream();
        let d = malloc(K);
        fill(d, K, LEGACY);
        fill(d, K, a);
    }
    fn two_blocking_streams_are_not_ordered() {
        let (a, b) = (blocking_stream(), blocking_stream());
        let d = malloc(K);
        fill(d, K, a);
        fill(d, K, b);
    }
    fn a_record_on_the_legacy_stream_orders_no_non_blocking_stream() {
        let (a, b) = (blocking_stream(), stream());
        let d = malloc(K);
        fill(d, K, a);
        record(event(), LEGACY);
        fill(d, K, b);
    }
    fn a_record_on_the_per_thread_stream_is_no_barrier() {
        let (a, b) = (blocking_stream(), blocking_stream());
        let d = malloc(K);
        fill(d, K, a);
        record(event(), PER_THREAD);
        fill(d, K, b);
    }
    fn per_thread_streams_of_two_threads_are_not_ordered() {
        let d = malloc(K);
        fill(d, K, PER_THREAD);
        let address = d as usize;
        std::thread::spawn(move || fill(address as Pointer, K, PER_THREAD)).join().unwrap();
    }
    fn a_wait_before_the_record_is_no_order() {
        let ((a, b), e) = (two(), event());
        let d = malloc(K);
        wait(b, e);
        fill(d, K, a);
        record(e, a);
        fill(d, K, b);
    }
    fn work_after_the_record_is_not_waited_for() {
        let ((a, b), e) = (two(), event());
        let d = malloc(K);
        record(e, a);
        fill(d, K, a);
        wait(b, e);
        fill(d, K, b);
    }
    fn a_later_record_does_not_change_a_wait() {
        let ((a, b), e) = (two(), event());
        let d = malloc(K);
        record(e, a);
        wait(b, e);
        fill(d, K, a);
        record(e, a);
        fill(d, K, b);
    }
    fn a_record_again_on_another_stream_forgets_the_first() {
        let ((a, b), c, e) = (two(), stream(), event());
        let d = malloc(K);
        fill(d, K, a);
        record(e, a);
        record(e, c);
        wait(b, e);
        fill(d, K, b);
    }
    fn a_chain_of_events_with_a_link_missing() {
        let ((a, b), c) = (two(), stream());
        let d = malloc(K);
        fill(d, K, a);
        behind(b, a);
        behind(c, stream());
        fill(d, K, c);
    }
    fn a_host_that_waits_for_the_wrong_stream() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        sync(b);
        fill(d, K, b);
    }
    fn a_host_that_waits_for_an_earlier_event() {
        let ((a, b), e) = (two(), event());
        let d = malloc(K);
        record(e, a);
        fill(d, K, a);
        cuda!(cudaEventSynchronize(e));
        fill(d, K, b);
    }
    fn a_query_of_another_stream() {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        until(|| cuda!(cudaStreamQuery(b)));
        fill(d, K, b);
    }
    fn the_host_overwrites_a_pinned_source() {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        copy(d, p, K, a);
        host_write(p, K);
    }
    fn the_host_reads_a_pinned_target_too_early() {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        copy(p, d, K, a);
        host_read(at(p, 100), 1);
    }
    fn a_pageable_copy_that_returned_is_not_on_the_device_for_others() {
        // Small ones are staged, large ones are waited for by this machine: neither is promised.
        let (a, b) = two();
        let (d, p) = (malloc(256 * K), pinned(256 * K));
        let mut host = vec![1u8; 256 * K];
        copy(d, host.as_mut_ptr().cast(), 256 * K, a);
        host.fill(2);
        copy(p, d, 256 * K, b);
    }
    fn a_small_pageable_copy_likewise() {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        let mut host = vec![1u8; K];
        copy(d, host.as_mut_ptr().cast(), K, a);
        host.fill(2);
        copy(p, d, K, LEGACY);
    }
    fn a_plain_copy_from_pageable_memory_orders_no_non_blocking_stream() {
        let a = stream();
        let d = malloc(K);
        let host = [1u8; K];
        cuda!(cudaMemcpy(d, host.as_ptr().cast(), K, H2D));
        fill(d, K, a);
    }
    fn a_plain_fill_orders_no_non_blocking_stream() {
        let a = stream();
        let d = malloc(K);
        cuda!(cudaMemset(d, 1, K));
        fill(d, K, a);
    }
    fn a_plain_copy_does_not_wait_for_non_blocking_streams() {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        fill(d, K, a);
        cuda!(cudaMemcpy(p, d, K, D2H));
    }
    fn rows_that_share_one_byte() {
        let (a, b) = two();
        let d = malloc(4 * K);
        cuda!(cudaMemset2DAsync(d, 64, 1, 17, 8, a));
        cuda!(cudaMemset2DAsync(at(d, 16), 64, 1, 16, 8, b));
    }
    fn a_device_copy_whose_source_is_being_written() {
        let (a, b) = two();
        let (x, y) = (malloc(K), malloc(K));
        fill(x, K, a);
        copy(y, x, K, b);
    }
    fn a_device_copy_whose_target_is_being_read() {
        let (a, b) = two();
        let (x, y, z) = (malloc(K), malloc(K), malloc(K));
        copy(z, y, K, a);
        copy(y, x, K, b);
    }
    fn kernels_on_two_streams() {
        let (a, b) = two();
        let d = malloc(K);
        launch(a, &[], &[(d, K)], |_| {});
        launch(b, &[(at(d, 8), 8)], &[], |_| {});
    }
    fn a_host_function_fills_what_a_copy_of_another_stream_reads() {
        let (a, b) = two();
        let (d, p) = (malloc(K), pinned(K));
        launch_host(a, &[], &[(p, K)], || {});
        copy(d, p, K, b);
    }
    fn a_host_function_and_the_host() {
        let a = stream();
        let host = vec![0u8; K];
        let p = host.as_ptr() as Pointer;
        launch_host(a, &[(p, K)], &[], || {});
        host_write(p, 1);
        sync(a);
    }
    fn a_reader_that_is_not_waited_for_among_several() {
        let ((a, b), c) = (two(), stream());
        let (d, x, y) = (malloc(K), malloc(K), malloc(K));
        copy(x, d, K, a);
        copy(y, d, K, b);
        behind(c, b);
        fill(d, K, c);
    }
    fn a_race_older_than_the_latest_read() {
        let ((a, b), c) = (two(), stream());
        let (d, x) = (malloc(K), malloc(K));
        fill(d, K, a);
        behind(b, a);
        copy(x, d, K, b);
        copy(x, d, K, b);
        copy(malloc(K), d, K, c);
    }
    fn host_pool_memory_is_like_pinned_memory() {
        let a = stream();
        let p = pinned(4 * K);
        cuda!(cudaMemsetAsync(p, 1, K, a));
        host_read(p, 4 * K);
    }
    fn registered_memory_is_tracked_too() {
        let a = stream();
        let mut host = vec![0u8; 8192];
        let p: Pointer = host.as_mut_ptr().cast();
        let d = malloc(K);
        assert_eq!(cuda!(cudaHostRegister(p, 8192, 0)), 0);
        copy(d, p, K, a);
        host_write(p, 8192);
        assert_eq!(cuda!(cudaHostUnregister(p)), 0);
    }
}

programs! { UsedBeforeAllocation:
    fn stream_ordered_memory_freed_on_a_stream_that_knows_nothing() {
        let (a, b) = two();
        let d = malloc_async(K, a);
        cuda!(cudaFreeAsync(d, b));
    }
    fn stream_ordered_memory_used_on_another_stream() {
        let (a, b) = two();
        let d = malloc_async(K, a);
        fill(d, K, b);
        sync(b);
    }
    fn stream_ordered_memory_used_behind_an_event_from_before_it() {
        let ((a, b), e) = (two(), event());
        record(e, a);
        let d = malloc_async(K, a);
        wait(b, e);
        fill(d, K, b);
    }
}

programs! { FreedInUse:
    fn stream_ordered_memory_freed_while_another_stream_uses_it() {
        let (a, b) = two();
        let d = malloc_async(K, a);
        behind(b, a);
        fill(d, K, b);
        cuda!(cudaFreeAsync(d, a));
    }
    fn the_source_of_a_running_copy_is_freed_in_stream_order() {
        let (a, b) = two();
        let (d, x) = (malloc_async(K, a), malloc(K));
        sync(a);
        copy(x, d, K, b);
        cuda!(cudaFreeAsync(d, a));
    }
    fn stream_ordered_memory_given_to_cuda_free_while_in_use() {
        // This form waits for nobody.
        let a = stream();
        let d = malloc_async(K, a);
        fill(d, K, a);
        cuda!(cudaFree(d));
    }
}

#[test]
fn memory_of_one_device_freed_while_the_stream_of_another_uses_it() {
    let _turn = machine().devices(2, 64 << 20);
    let d = malloc(K);
    cuda!(cudaSetDevice(1));
    let other = malloc(K);
    let s = stream();
    assert_eq!(cuda!(cudaMemcpyPeerAsync(other, 1, d, 0, K, s)), 0);
    assert_eq!(cuda!(cudaFree(d)), 0, "it waits for its own device");
    let found = cudart_sim::report();
    assert_eq!(found.first().map(|f| f.kind), Some(FindingKind::FreedInUse));
    cudart_sim::check(cudart_sim::Check::Off);
}

#[test]
fn a_finding_names_both_operations() {
    let found = findings(|| {
        let (a, b) = two();
        let d = malloc(K);
        cudart_sim::tag("upload");
        launch(a, &[], &[(d, 100)], |_| {});
        cudart_sim::tag("");
        cuda!(cudaMemset2DAsync(at(d, 50), 64, 1, 10, 2, b));
    });
    let [finding] = found.as_slice() else {
        panic!("{found:?}")
    };
    let first = finding.first.as_ref().unwrap();
    assert_eq!(
        (first.call.as_str(), first.number, first.writes),
        ("launch", 1, true)
    );
    assert_eq!((first.width, first.height), (100, 1));
    assert_eq!(first.tag.as_deref(), Some("upload"));
    assert!(first.site.as_ref().unwrap().contains("ordering_races.rs"));
    let second = &finding.second;
    assert_eq!(second.call, "cudaMemset2DAsync");
    assert_eq!((second.width, second.height, second.pitch), (10, 2, 64));
    assert_eq!(second.tag, None);
    assert_eq!((finding.address, finding.len), (second.start, 10));
    assert_ne!(first.stream, second.stream);
    let text = finding.to_string();
    assert!(text.contains("no order between two accesses"), "{text}");
    assert!(text.contains("launch on stream"), "{text}");
}

#[test]
fn findings_can_be_taken_by_address() {
    let _turn = machine();
    cudart_sim::check(cudart_sim::Check::Report);
    let (a, b) = two();
    let (x, y) = (malloc(K), malloc(K));
    for d in [x, y] {
        fill(d, K, a);
        fill(d, K, b);
    }
    assert_eq!(cudart_sim::report_within(x, K).len(), 1);
    assert_eq!(cudart_sim::report().len(), 1);
    assert!(cudart_sim::report().is_empty());
    cudart_sim::expect_clean();
    fill(x, K, a);
    let caught = std::panic::catch_unwind(cudart_sim::expect_clean);
    assert!(caught.is_err());
    cuda!(cudaDeviceSynchronize());
    cudart_sim::check(cudart_sim::Check::Off);
}
