//! What is tried before a request is refused: idle memory goes back to CUDA, the least work is waited for, the hook is asked.

use super::inner::{DeviceState, Inner};
use crate::{
    capture,
    error::{Error, Place, Result},
    out_of_memory::OutOfMemory,
    pool::{Pool, native::Family, segment},
};

/// How often the hook of [`MemoryManager::on_out_of_memory`](super::MemoryManager::on_out_of_memory) is asked for one
/// request.
const HOOK_CALLS: usize = 16;

/// Who serves a request, and who may have what it lacks.
#[derive(Clone, Copy)]
pub(super) struct Served<'a> {
    /// The pool of the place.
    pub pool: &'a Pool,
    /// Device memory: the async modes of the device, and the one that serves the request.
    pub native: Option<(&'a DeviceState, Option<Family>)>,
    /// Gives idle memory of all families back; the bytes.
    pub trim: &'a dyn Fn() -> Result<usize>,
    /// Whether memory of another kind may serve what has run out here. Whoever tries that counts the failure.
    pub falls_back: bool,
}

impl Inner {
    /// Tries a request. When memory has run out: gives idle memory back, waits for what is pending, asks the hook, each
    /// time trying again.
    #[inline]
    pub(super) fn with_rescue(
        &self,
        allocate: impl Fn() -> Result<usize>,
        served: Served<'_>,
    ) -> Result<usize> {
        match allocate() {
            Err(Error::OutOfMemory(refusal)) => self.rescue(refusal, &allocate, served),
            other => other,
        }
    }

    /// A request has found no memory.
    #[cold]
    fn rescue(
        &self,
        mut refusal: Box<OutOfMemory>,
        allocate: &dyn Fn() -> Result<usize>,
        served: Served<'_>,
    ) -> Result<usize> {
        // Nothing that is freed would make room for what can never fit.
        if refusal.can_ever_fit() {
            match self.relieve(refusal, allocate, served) {
                Err(Error::OutOfMemory(again)) => refusal = again,
                other => return other,
            }
            for _ in 0..HOOK_CALLS {
                if !self.hook.is_set() {
                    break;
                }
                refusal.holders = served.holders();
                if self.hook.ask(&refusal) != Some(true) {
                    break;
                }
                let again = match allocate() {
                    Err(Error::OutOfMemory(again)) => self.relieve(again, allocate, served),
                    other => other,
                };
                match again {
                    Err(Error::OutOfMemory(again)) => refusal = again,
                    other => return other,
                }
            }
        }
        refusal.holders = served.holders();
        if let Place::Device(ordinal) = refusal.place
            && refusal.requested <= refusal.capacity
            && (refusal.device_free).is_some_and(|free| free < refusal.requested)
        {
            refusal.idle_of_others = self.idle_of_others(ordinal);
        }
        let waits_for_a_capture = refusal.can_ever_fit() && served.pool.waits_for_a_capture();
        if waits_for_a_capture || !served.falls_back {
            served.count_failure();
        }
        if waits_for_a_capture {
            return Err(capture::refusal(
                &format!("{refusal}. Part of it was freed on a stream, which nobody can ask"),
                "allocate before the capture begins, or after it has ended",
            ));
        }
        Err(Error::OutOfMemory(refusal))
    }

    /// Gives back what is idle and tries again; then waits, each time for the least that may help: the streams behind
    /// some segments, the frees of one stream in the async modes, adopted memory that is on its way back.
    fn relieve(
        &self,
        mut refusal: Box<OutOfMemory>,
        allocate: &dyn Fn() -> Result<usize>,
        served: Served<'_>,
    ) -> Result<usize> {
        let mut step = Step::Trim;
        let mut waited = Vec::new();
        loop {
            let (released, failed) = match step {
                Step::Trim => {
                    // It gives back what dropped managers have left, too, and counts only its own.
                    let before = segment::orphans_released();
                    let released = served.released();
                    let others = segment::orphans_released() != before;
                    (released.max(usize::from(others)), false)
                }
                Step::Segment => match served.pool.settle_segments(&refusal) {
                    Ok(true) => (served.released(), false),
                    Ok(false) => (0, false),
                    Err(error) => {
                        tracing::debug!(%error, "some memory stays pending");
                        (0, true)
                    }
                },
                Step::Stream => match served.native {
                    // A request of an async mode has waited for all of them already.
                    Some((state, None))
                        if state.native.is_used() && state.native.settle_one(&mut waited) =>
                    {
                        (served.released().max(1), false)
                    }
                    _ => (0, false),
                },
                Step::Adopted => {
                    let leaving = self.adopted.leaving();
                    if leaving > 0 {
                        self.adopted.release();
                    }
                    (served.released().max(leaving), false)
                }
            };
            if released > 0 {
                match allocate() {
                    Err(Error::OutOfMemory(again)) => refusal = again,
                    other => return other,
                }
            }
            let again = released > 0 && !failed;
            step = match step {
                Step::Segment | Step::Stream if again => step,
                Step::Trim => Step::Segment,
                Step::Segment => Step::Stream,
                Step::Stream => Step::Adopted,
                Step::Adopted => return Err(Error::OutOfMemory(refusal)),
            };
        }
    }
}

/// What is tried, in this order; the two in the middle as long as they help.
#[derive(Clone, Copy)]
enum Step {
    Trim,
    Segment,
    Stream,
    Adopted,
}

impl Served<'_> {
    /// The request is refused. However often it was tried, that is one.
    fn count_failure(&self) {
        match self.native {
            Some((state, Some(family))) => state.native.count_failure(family),
            _ => self.pool.count_failure(),
        }
    }

    /// Gives back what is idle; the bytes. A failure must not hide that memory has run out.
    fn released(&self) -> usize {
        (self.trim)().unwrap_or_else(|error| {
            tracing::warn!(%error, "some idle memory could not be given back to a request that found none");
            // What was given back before that may do.
            1
        })
    }

    /// Who holds what the request wants.
    fn holders(&self) -> crate::out_of_memory::Holders {
        match self.native {
            Some((state, Some(family))) => state.native.holders(family),
            _ => self.pool.holders(),
        }
    }
}
