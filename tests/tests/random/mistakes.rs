//! The random programs find mistakes: with a protection of the manager switched off, one of the first has a finding.

use crate::{STEPS, program, turn};
use memmgr::planted::Mistake;

/// How many programs may pass without a finding.
const PROGRAMS: u64 = 60;

fn found(mistake: Mistake) {
    let _turn = turn();
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
    ($($name:ident: $mistake:ident;)*) => {$(
        #[test]
        fn $name() {
            found(Mistake::$mistake);
        }
    )*};
}

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
}
