//! What allocators report: reuse of blocks of a pool, with and without the order that it needs.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{By, host_write, on_allocate, on_free, on_segment};
use programs::*;

/// A segment of device memory of an imagined pool.
fn segment(len: usize) -> Pointer {
    let p = malloc(len);
    on_segment(p, len, true);
    p
}

/// A segment of pinned memory.
fn pinned_segment(len: usize) -> Pointer {
    let p = pinned(len);
    on_segment(p, len, true);
    p
}

fn take(p: Pointer, s: cudart_sim::sys::cudaStream_t) {
    on_allocate(p, K, By::Stream(s));
}

fn give(p: Pointer, s: cudart_sim::sys::cudaStream_t) {
    on_free(p, K, By::Stream(s));
}

programs! { clean:
    fn a_block_goes_round_on_one_stream() {
        let (a, x) = (stream(), segment(4 * K));
        for _ in 0..3 {
            take(x, a);
            fill(x, K, a);
            give(x, a);
        }
    }
    fn a_block_passes_to_another_stream_behind_an_event() {
        let ((a, b), x) = (two(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        behind(b, a);
        take(x, b);
        fill(x, K, b);
    }
    fn a_block_passes_behind_an_event_older_than_its_free() {
        // Nothing was given to the stream in between, so the event says as much as a later one.
        let ((a, b), e, x) = (two(), event(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        record(e, a);
        give(x, a);
        wait(b, e);
        take(x, b);
        fill(x, K, b);
    }
    fn a_block_passes_when_the_host_has_seen_its_end() {
        let ((a, b), e, x) = (two(), event(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        record(e, a);
        until(|| cuda!(cudaEventQuery(e)));
        take(x, b);
        fill(x, K, b);
    }
    fn a_block_passes_between_the_legacy_stream_and_blocking_ones_without_an_event() {
        let (a, x) = (blocking_stream(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        take(x, LEGACY);
        fill(x, K, LEGACY);
        give(x, LEGACY);
        take(x, a);
        fill(x, K, a);
    }
    fn a_pinned_block_freed_early_and_reused_after_the_copy() {
        let (a, e) = (stream(), event());
        let (p, d) = (pinned_segment(4 * K), malloc(K));
        on_allocate(p, K, By::Host);
        host_write(p, K);
        copy(d, p, K, a);
        record(e, a);
        on_free(p, K, By::Nobody);
        cuda!(cudaEventSynchronize(e));
        on_allocate(p, K, By::Host);
        host_write(p, K);
    }
    fn a_guard_dropped_while_another_stream_uses_it_and_the_pool_waits_for_that() {
        let ((a, b), x, h) = (two(), segment(4 * K), pinned(K));
        take(x, a);
        behind(b, a);
        fill(x, K, b);
        copy(h, x, K, b);
        on_free(x, K, By::Nobody);
        behind(a, b);
        take(x, a);
        fill(x, K, a);
    }
    fn a_stream_is_destroyed_and_its_last_event_carries_the_block() {
        let ((a, b), e, x) = (two(), event(), segment(4 * K));
        let id = id(a);
        take(x, a);
        fill(x, K, a);
        record(e, a);
        cuda!(cudaStreamDestroy(a));
        on_free(x, K, By::StreamId(id));
        wait(b, e);
        take(x, b);
        fill(x, K, b);
    }
    fn a_block_of_a_destroyed_stream_is_freed_after_its_last_event() {
        let ((a, b), e, x) = (two(), event(), segment(4 * K));
        let id = id(a);
        take(x, a);
        fill(x, K, a);
        sync(a);
        record(e, a);
        cuda!(cudaStreamDestroy(a));
        on_free(x, K, By::StreamId(id));
        wait(b, e);
        take(x, b);
        fill(x, K, b);
    }
    fn a_handle_comes_back_and_the_new_stream_waits() {
        let (a, e, x) = (stream(), event(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        record(e, a);
        cuda!(cudaStreamDestroy(a));
        let b = stream();
        wait(b, e);
        take(x, b);
        fill(x, K, b);
    }
    fn an_older_mark_is_kept_through_an_idle_owner() {
        let ((a, b), c, x) = (two(), stream(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        behind(b, a);
        take(x, b);
        give(x, b);
        behind(c, b);
        take(x, c);
        fill(x, K, c);
    }
    fn a_block_that_its_stream_never_used_goes_to_anybody() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        on_free(x, K, By::Nobody);
        on_allocate(x, K, By::Host);
    }
    fn the_host_waits_for_an_older_mark_and_not_for_an_idle_owner() {
        let ((a, b), e, x) = (two(), event(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        record(e, a);
        wait(b, e);
        take(x, b);
        on_free(x, K, By::Nobody);
        cuda!(cudaEventSynchronize(e));
        on_allocate(x, K, By::Host);
    }
    fn an_empty_segment_may_be_used_by_the_pool_before_it_is_reported() {
        let (a, p) = (stream(), malloc(4 * K));
        fill(p, 4 * K, a);
        sync(a);
        on_segment(p, 4 * K, true);
        take(at(p, K), a);
        fill(at(p, K), K, a);
        give(at(p, K), a);
        on_segment(p, 4 * K, false);
        fill(p, 4 * K, a);
    }
    fn rows_inside_a_block() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        cuda!(cudaMemset2DAsync(x, 64, 1, 32, 16, a));
    }
    fn a_segment_freed_and_its_address_used_again() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        cuda!(cudaFree(x));
        let x = malloc(4 * K);
        fill(x, 4 * K, a);
    }
}

programs! { ReusedInUse:
    fn a_block_passes_to_another_stream_without_an_event() {
        let ((a, b), x) = (two(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        take(x, b);
    }
    fn a_block_passes_behind_an_event_that_is_too_old() {
        let ((a, b), e, x) = (two(), event(), segment(4 * K));
        take(x, a);
        record(e, a);
        fill(x, K, a);
        give(x, a);
        wait(b, e);
        take(x, b);
    }
    fn a_pinned_source_is_recycled_while_a_copy_reads_it() {
        let a = stream();
        let (p, q) = (pinned_segment(8 * K), at(pinned(K), 0));
        let (d, other) = (malloc(K), malloc(K));
        on_allocate(p, K, By::Host);
        copy(d, p, K, a);
        copy(other, q, K, a);
        on_free(p, K, By::Nobody);
        on_allocate(p, K, By::Host);
    }
    fn a_pinned_target_is_recycled_while_a_copy_writes_it() {
        let (a, p, d) = (stream(), pinned_segment(8 * K), malloc(K));
        on_allocate(p, K, By::Host);
        copy(p, d, K, a);
        on_free(p, K, By::Nobody);
        on_allocate(p, 4 * K, By::Host);
    }
    fn a_guard_dropped_on_its_stream_while_another_still_uses_it() {
        let ((a, b), x, h) = (two(), segment(4 * K), pinned(K));
        take(x, a);
        behind(b, a);
        fill(x, K, b);
        copy(h, x, K, b);
        on_free(x, K, By::Nobody);
        take(x, a);
        fill(x, K, a);
    }
    fn the_same_handle_is_another_stream() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        cuda!(cudaStreamDestroy(a));
        let b = stream();
        assert_eq!(a, b);
        take(x, b);
    }
    fn an_older_mark_washed_away_by_the_host() {
        let ((a, b), x) = (two(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        behind(b, a);
        take(x, b);
        on_free(x, K, By::Nobody);
        on_allocate(x, K, By::Host);
    }
    fn an_older_mark_washed_away_by_another_stream() {
        let ((a, b), c, x) = (two(), stream(), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        give(x, a);
        behind(b, a);
        take(x, b);
        on_free(x, K, By::Nobody);
        take(x, c);
    }
    fn a_report_on_the_legacy_stream_is_no_barrier() {
        let ((a, b), x) = ((blocking_stream(), blocking_stream()), segment(4 * K));
        take(x, a);
        fill(x, K, a);
        on_free(x, K, By::Stream(LEGACY));
        take(x, b);
    }
    fn a_part_of_the_block_that_is_in_use() {
        let ((a, b), x) = (two(), segment(4 * K));
        on_allocate(x, 4 * K, By::Stream(a));
        fill(at(x, 2 * K), 16, a);
        on_free(x, 4 * K, By::Stream(a));
        take(x, b);
        on_free(x, K, By::Stream(b));
        take(at(x, 2 * K), b);
    }
}

programs! { FreedInUse:
    fn a_block_freed_on_one_stream_while_another_uses_it() {
        let ((a, b), x) = (two(), segment(4 * K));
        take(x, a);
        behind(b, a);
        fill(x, K, b);
        give(x, a);
    }
    fn a_pinned_block_freed_by_the_host_while_a_copy_reads_it() {
        let (a, p, d) = (stream(), pinned_segment(8 * K), malloc(K));
        on_allocate(p, K, By::Host);
        copy(d, p, K, a);
        on_free(p, K, By::Host);
    }
}

programs! { UsedAfterFree:
    fn a_block_used_after_its_free_on_the_same_stream() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        give(x, a);
        fill(x, 16, a);
    }
    fn a_block_used_after_its_free_although_the_host_waited() {
        let ((a, b), x) = (two(), segment(4 * K));
        take(x, a);
        on_free(x, K, By::Nobody);
        cuda!(cudaDeviceSynchronize());
        copy(malloc(K), x, K, b);
    }
    fn the_host_writes_a_pinned_block_that_it_freed() {
        let p = pinned_segment(4 * K);
        on_allocate(p, K, By::Host);
        on_free(p, K, By::Host);
        host_write(at(p, 100), 1);
    }
}

programs! { NotAllocated:
    fn a_fill_past_the_end_of_a_block() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        fill(x, K + 1, a);
    }
    fn a_fill_into_the_next_block() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        take(at(x, K), a);
        fill(at(x, 100), K, a);
    }
    fn a_copy_before_the_beginning_of_a_block() {
        let (a, x) = (stream(), segment(4 * K));
        take(at(x, K), a);
        copy(malloc(K), at(x, K - 1), 16, a);
    }
    fn the_last_of_several_rows_leaves_the_block() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        cuda!(cudaMemset2DAsync(x, 64, 1, 32, 17, a));
    }
    fn memory_of_a_segment_that_was_never_handed_out() {
        let (a, x) = (stream(), segment(4 * K));
        fill(x, 16, a);
    }
}

programs! { UsedBeforeAllocation:
    fn a_block_used_on_another_stream_than_it_was_handed_to() {
        let ((a, b), x) = (two(), segment(4 * K));
        take(x, a);
        fill(x, K, b);
    }
    fn a_block_used_behind_an_event_from_before_it_was_handed_out() {
        let ((a, b), e, x) = (two(), event(), segment(4 * K));
        record(e, a);
        take(x, a);
        wait(b, e);
        fill(x, K, b);
    }
}

programs! { Overlap:
    fn one_block_handed_out_twice() {
        let (a, x) = (stream(), segment(4 * K));
        take(x, a);
        take(at(x, 512), a);
    }
}

#[test]
fn nonsense_does_no_harm() {
    use cudart_sim::{expect_clean, host_read, moment, ordered, report_within, sys};
    let _turn = machine();
    cudart_sim::check(cudart_sim::Check::Report);
    let gone = stream();
    cuda!(cudaStreamDestroy(gone));
    let by = [
        By::Host,
        By::Nobody,
        By::Stream(gone),
        By::Stream(0x1234 as sys::cudaStream_t),
        By::Stream(LEGACY),
        By::StreamId(u64::MAX),
        By::StreamId(0),
    ];
    for address in [0, 1, 0x7000_0000, usize::MAX] {
        let p = address as Pointer;
        for len in [0, 1, K, usize::MAX] {
            on_segment(p, len, true);
            for by in by {
                on_allocate(p, len, by);
                on_free(p, len, by);
                on_free(p, len, by);
                ordered(&moment(), by);
            }
            host_read(p, len);
            host_write(p, len);
            cudart_sim::launch_host(LEGACY, &[(p, len)], &[(p, len)], || {});
            report_within(p, len);
            on_segment(p, len, false);
        }
    }
    cuda!(cudaDeviceSynchronize());
    cudart_sim::report();
    expect_clean();
    cudart_sim::check(cudart_sim::Check::Off);
}
