//! The end of a pool: its work is waited for, and its memory given back, at once or by whoever comes next.

use super::State;
use crate::{
    error::Result,
    pool::{Pool, segment},
};

impl Pool {
    /// Gives segments back that `shutdown` could not, unless CUDA would make this call wait for running work.
    pub(super) fn release_retiring(&self) {
        {
            let mut state = self.state.lock();
            state.release_due = false;
            if !state.has_empty_retiring() {
                return;
            }
        }
        if !crate::stream::all_idle() {
            return;
        }
        self.poll(true);
        self.end_epochs(None);
        let released = self.release_segments(|state, base| state.retiring.contains(&base));
        if let Err(error) = released {
            tracing::warn!(%error, "a segment could not be given back");
        }
    }

    pub(super) fn release_segments(
        &self,
        mut wanted: impl FnMut(&State, usize) -> bool,
    ) -> Result<usize> {
        if let Some(mapped) = self.source.mapped() {
            return self.release_chunks(mapped, usize::MAX, wanted);
        }
        let segments = {
            let mut state = self.state.lock();
            self.take_segments(&mut state, &mut wanted)
        };
        let mut released = 0;
        let mut first_error = Ok(());
        for (base, len) in segments {
            match self.destroy_segment(base, len) {
                Ok(()) => released += len,
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        first_error.map(|()| released)
    }

    /// Waits on the host for everything that the pool's free memory waits for, and makes it idle.
    pub fn wait_for_pending(&self) -> Result<()> {
        self.flush_front();
        crate::stream::finish_retirements();
        let marks = self.state.lock().order.all_marks();
        let mut waited = Ok(());
        for mark in &marks {
            // A capture that kept everybody from the stream may be over.
            if mark.core().was_capturing() {
                let _ = mark.waits_for_a_capture();
            }
            if !mark.is_lost() {
                waited = waited.and(mark.wait_on_host());
            }
        }
        let mut state = self.state.lock();
        state.note_waited(marks);
        state.order.sweep();
        waited
    }

    /// Waits for everything that the pool's memory waits for, gives back what is idle, and lets the configuration be
    /// changed again. Segments with live blocks follow when those are freed. The bytes given back.
    pub fn shutdown(&self) -> Result<usize> {
        let waited = self.wait_for_pending();
        let released = self.release_segments(|_, _| true)?;
        let mut state = self.state.lock();
        state.release_due = false;
        state.retiring = state.space.segments().map(|segment| segment.base).collect();
        state.prepared = false;
        // What is freed from now on is to be noticed.
        state.recall_all(&self.front);
        drop(state);
        self.flush_front();
        waited.map(|()| released)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if crate::process::is_over() {
            return;
        }
        self.flush_front();
        // CUDA's free functions wait for the whole device, which a drop must not: the next slow call of any manager
        // gives the segments back.
        let state = self.state.get_mut();
        if let segment::Source::Virtual(_) = self.source {
            // Chunks with raw blocks that are still live stay for good, and so do their addresses.
            let State { space, arena, .. } = &mut *state;
            let unused = arena.take_unused(space);
            let ranges = space
                .segments()
                .filter(|segment| !space.has_live_blocks(*segment))
                .map(|segment| (segment.base, segment.len))
                .collect();
            segment::orphan(segment::Orphans {
                source: std::mem::replace(&mut self.source, segment::Source::Pinned),
                bases: Vec::new(),
                chunks: unused,
                ranges,
                marks: state.order.all_marks(),
            });
            return;
        }
        // No guard is left, since a guard holds the manager. Raw blocks may be: their segments stay for good.
        let bases: Vec<usize> = state
            .space
            .segments()
            .filter(|segment| !state.space.has_live_blocks(*segment))
            .map(|segment| segment.base)
            .collect();
        if !bases.is_empty() {
            segment::orphan(segment::Orphans {
                source: std::mem::replace(&mut self.source, segment::Source::Pinned),
                bases,
                chunks: Default::default(),
                ranges: Vec::new(),
                marks: state.order.all_marks(),
            });
        }
    }
}
