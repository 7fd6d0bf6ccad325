//! The checks can fail: with a protection missing, the programs do, in a process of their own.

use crate::explore::is_found;

#[test]
fn waiters_of_a_fence_that_are_not_woken_are_found() {
    let program = "fences::whoever_waits_for_a_fence_goes_on_after_the_work_and_is_not_left_behind";
    is_found("FencesWakeNobody", program, "deadlock!");
}

#[test]
fn a_handle_that_is_used_after_its_owner_destroyed_it_is_found() {
    let program = "fences::a_borrowed_stream_may_be_destroyed_as_soon_as_its_last_handle_is_gone";
    is_found(
        "VisitorsAreForgotten",
        program,
        "cudaErrorInvalidResourceHandle",
    );
}

#[test]
fn streams_whose_end_is_taken_for_done_are_found() {
    let program = "fences::the_last_user_of_a_stream_may_go_while_its_fence_is_waited_for";
    is_found("EndsAreForgotten", program, "went on before the work");
}

#[test]
fn memory_that_is_handed_out_without_a_wait_is_found() {
    let program = "pools::memory_that_another_stream_freed_is_used_after_that_streams_work";
    is_found(
        "RequestsDoNotWait",
        program,
        "memory was used before its last owner's work",
    );
}

#[test]
fn threads_that_wait_for_a_pool_to_grow_and_are_not_woken_are_found() {
    let program = "pools::two_threads_that_find_nothing_make_the_pool_grow_once";
    is_found("GrowthWakesNobody", program, "deadlock!");
}

#[test]
fn blocks_of_graphs_that_are_not_kept_are_found() {
    let program = "shared::blocks_that_a_graph_keeps_may_be_freed_while_the_graph_goes";
    is_found("GraphsKeepNothing", program, "unordered:");
}

#[test]
fn copies_that_leave_no_trace_are_found() {
    let program = "shared::pinned_memory_is_written_again_after_its_copies_only";
    is_found("UsesAreForgotten", program, "unordered:");
}
