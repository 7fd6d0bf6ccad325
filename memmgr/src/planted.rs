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
    /// In the async modes, a free on an internal stream waits for nobody.
    AsyncFreesDoNotWait,
    /// In the async modes, a free goes into the stream at hand, whoever else uses the block.
    AsyncFreesIgnoreOthers,
    /// In the async modes, and for adopted memory, operations on another stream do not follow the allocation.
    AllocationsAreNotFollowed,
    /// Operations on guards on another stream than the block's do not wait for the marks of its memory.
    InheritedMarksAreForgotten,
    /// Who takes what others have freed does not wait for them.
    RequestsDoNotWait,
    /// An epoch that somebody asks for is taken for done, whatever its stream does.
    EpochsEndUnproven,
    /// Later frees join an epoch whose event was recorded.
    EpochsGoOn,
    /// What waits for several streams is taken for memory of one of them.
    SharedMemoryIsAnybodys,
    /// What a thread frees on its default stream, or allocates there in an async mode, is taken for done.
    ThreadsLeaveNoEvents,
    /// A later read of a stream replaces its earlier write.
    ReadsReplaceWrites,
    /// Many uses of a block are joined to the first of each stream, not the last.
    JoinedUsesEndEarly,
    /// A view is given out before the copies of its bytes have ended.
    ViewsDoNotWait,
    /// New segments are given out before they are zeroed.
    ZeroingIsNotAwaited,
    /// Segments of dropped managers go back whatever their memory waits for.
    OrphansDoNotWait,
    /// Whoever records a fence does not wake those who wait for that.
    FencesWakeNobody,
    /// The last user of a stream does not wait for the visitors that still use its handle.
    VisitorsAreForgotten,
    /// Chunks of physical memory move while work may still touch them.
    ChunksMoveUnderWork,
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
