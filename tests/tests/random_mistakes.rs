//! The random programs find mistakes: with a protection of the manager switched off, one of the first has a finding. Each
//! mistake has a process of its own, since what failed is left as it is: work of a program in which a mistake was found may use
//! memory that is gone, which ends the context.
#![cfg(feature = "sim")]

mod common;
#[path = "random/guards.rs"]
mod guards;
#[path = "random/program.rs"]
mod program;
#[path = "random/raws.rs"]
mod raws;
#[path = "common/rig.rs"]
mod rig;
#[path = "random/worker.rs"]
mod worker;
#[path = "random/world.rs"]
mod world;

use common::child;
use memmgr::planted::Mistake;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

const STEPS: u64 = 300;
/// How many programs may pass without a finding.
const PROGRAMS: u64 = 300;

/// How long the programs of one mistake may take.
const PATIENCE: Duration = Duration::from_secs(300);

fn alone(case: &str) {
    // One process at a time: a machine may have few processors.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (status, errors) = child::run(case, PATIENCE);
    assert!(status.success(), "{errors}");
}

fn found(mistake: Mistake) {
    let mut failed = 0;
    for seed in 1..=PROGRAMS {
        let outcome = program::run(seed, STEPS, Some(mistake));
        failed += u64::from(outcome.failure.is_some());
        if let Some(finding) = outcome.findings.first() {
            println!("{mistake:?}: found by program {seed}: {finding}");
            return;
        }
    }
    panic!("{PROGRAMS} programs, {failed} with wrong answers: no finding for {mistake:?}");
}

macro_rules! mistakes {
    ($($name:ident: $mistake:ident;)*) => {
        $(#[test]
        fn $name() {
            alone(stringify!($name));
        })*

        #[test]
        fn the_case_that_the_environment_names() {
            match std::env::var(child::CASE).as_deref() {
                $(Ok(stringify!($name)) => found(Mistake::$mistake),)*
                Ok(other) => panic!("no case is called {other}"),
                Err(_) => {}
            }
        }
    };
}

// Three are beyond these programs: `JoinedUsesEndEarly` (no block has 64 uses in flight), `OrphansDoNotWait` (every manager is
// shut down before it goes) and `EpochsGoOn` (not found by 60 of them); `planted.rs` has programs for them.
mistakes! {
    uses_that_are_forgotten_are_found: UsesAreForgotten;
    frees_that_replace_marks_are_found: FreesReplaceMarks;
    ends_of_streams_that_are_forgotten_are_found: EndsAreForgotten;
    guards_that_do_not_wait_are_found: GuardsDoNotWait;
    uses_that_cover_other_parts_are_found: UsesCoverOtherParts;
    parts_that_take_their_block_along_are_found: PartsTakeTheBlockAlong;
    scopes_that_do_not_wait_are_found: ScopesDoNotWait;
    adoptions_that_do_not_wait_are_found: AdoptionsDoNotWait;
    graphs_that_keep_nothing_are_found: GraphsKeepNothing;
    frees_of_the_async_modes_that_do_not_wait_are_found: AsyncFreesDoNotWait;
    frees_of_the_async_modes_that_ignore_others_are_found: AsyncFreesIgnoreOthers;
    allocations_that_are_not_followed_are_found: AllocationsAreNotFollowed;
    inherited_marks_that_are_forgotten_are_found: InheritedMarksAreForgotten;
    requests_that_do_not_wait_are_found: RequestsDoNotWait;
    epochs_that_end_unproven_are_found: EpochsEndUnproven;
    shared_memory_that_is_anybodys_is_found: SharedMemoryIsAnybodys;
    threads_that_leave_no_events_are_found: ThreadsLeaveNoEvents;
    reads_that_replace_writes_are_found: ReadsReplaceWrites;
    views_that_do_not_wait_are_found: ViewsDoNotWait;
    zeroing_that_is_not_awaited_is_found: ZeroingIsNotAwaited;
}
