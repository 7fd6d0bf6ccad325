//! Mistakes that tests plant: a protection of the manager is switched off on one thread, to show that the ordering checker
//! of the simulated runtime sees what follows. There is nothing to switch in a build for a GPU.

/// A protection that can be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// Copies and other recorded uses leave no trace on their blocks.
    UsesAreForgotten,
    /// A free replaces the marks that the block's memory carries, instead of adding to them.
    FreesReplaceMarks,
    /// What a stream was still doing when its last handle went is taken for done.
    EndsAreForgotten,
    /// Operations on guards do not wait for the last use on another stream.
    GuardsDoNotWait,
    /// A use of one part of a block replaces an earlier one of another part.
    UsesCoverOtherParts,
    /// A block is freed with the first of its parts that goes.
    PartsTakeTheBlockAlong,
    /// A scope ends without waiting for its copies.
    ScopesDoNotWait,
    /// Adopted memory goes back to its owner while work may still touch it.
    AdoptionsDoNotWait,
    /// A captured graph does not keep the blocks that it uses.
    GraphsKeepNothing,
    /// Whoever records a fence does not wake those who wait for that.
    FencesWakeNobody,
    /// The last user of a stream does not wait for the visitors that still use its handle.
    VisitorsAreForgotten,
    /// Memory that other streams have freed is handed out without a wait for their marks.
    MarksAreNotWaitedFor,
    /// The end of a pool's growth wakes nobody.
    GrowthWakesNobody,
}

/// Whether the mistake is made on this thread.
#[cfg(not(feature = "sim"))]
#[inline]
pub(crate) fn is_made(_: Mistake) -> bool {
    false
}

#[cfg(feature = "sim")]
pub(crate) use simulated::is_made;
#[cfg(feature = "sim")]
pub use simulated::make;

#[cfg(feature = "sim")]
mod simulated {
    use super::Mistake;
    use std::cell::Cell;

    crate::sync::thread_local! {
        static MADE: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    /// Whether the mistake is made on this thread.
    #[inline]
    pub(crate) fn is_made(mistake: Mistake) -> bool {
        #[cfg(shuttle)]
        if crate::model::is_planted(mistake) {
            return true;
        }
        MADE.try_with(Cell::get).ok().flatten() == Some(mistake)
    }

    /// Runs `f` with the mistake made on this thread.
    pub fn make<T>(mistake: Option<Mistake>, f: impl FnOnce() -> T) -> T {
        struct Undo(Option<Mistake>);
        impl Drop for Undo {
            fn drop(&mut self) {
                MADE.with(|made| made.set(self.0));
            }
        }
        let _undo = Undo(MADE.with(|made| made.replace(mistake)));
        f()
    }
}
