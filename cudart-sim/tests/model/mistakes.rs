//! The checker finds what it is there for: with a broken primitive the programs fail, in a process of their own.
//!
//! Mistakes in the simulator itself were planted by hand, one at a time, and each was found: the notice to host threads dropped
//! (deadlock); `notified`, or `starting`, never counted down (the counts never return to zero); a waiter that does not set
//! `host_wait`, and `host_wait` compared with `>` (deadlock); a worker that ends at its timeout although work is ready
//! (deadlock); the end of `blocked_on_full` not announced (deadlock).

use crate::explore::is_found;

#[test]
fn a_worker_that_is_not_woken_is_found() {
    let program = "programs::an_idle_worker_is_woken_whether_or_not_its_time_passes_meanwhile";
    is_found("LostOne", program, "deadlock!");
}

#[test]
fn host_threads_that_are_not_woken_are_found() {
    let one = "programs::a_synchronisation_returns_after_the_work_which_ran_once";
    is_found("LostAll", one, "deadlock!");
    let two = "programs::two_host_threads_that_wait_for_one_stream_are_both_woken";
    is_found("OneOfAll", two, "deadlock!");
    let full = "programs::whoever_is_stuck_on_a_full_queue_goes_on_and_so_do_those_held_up_by_that";
    is_found("OneOfAll", full, "deadlock!");
}
