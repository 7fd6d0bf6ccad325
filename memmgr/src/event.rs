//! [`Event`] and [`Submitted`]: points in the order of a stream, for users. What they are made of is a [`Fence`].

mod fence;

pub(crate) use fence::Fence;
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) use fence::forget;

use crate::error::Result;
use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

/// A point in a stream that others can wait for (`cudaEventRecord`, timing disabled). Cheap to clone. With the feature
/// `async` it can be awaited.
#[derive(Debug, Clone)]
pub struct Event {
    pub(crate) fence: Arc<Fence>,
}

/// Whether both are the same point, and not only as far.
impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fence, &other.fence)
    }
}

impl Eq for Event {}

impl Hash for Event {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.fence).hash(state);
    }
}

impl Event {
    /// Whether all work before it has finished (`cudaEventQuery`).
    ///
    /// # Errors
    /// What the runtime says, for example an error that ended the context.
    pub fn is_done(&self) -> Result<bool> {
        self.fence.query()
    }

    /// Waits on the host until all work before it has finished (`cudaEventSynchronize`).
    ///
    /// # Errors
    /// What the runtime says, for example an error that ended the context.
    pub fn synchronize(&self) -> Result<()> {
        self.fence.wait_on_host()
    }
}

/// What a borrowing operation returns: it has been submitted. Dropping it is fine; the buffers know for themselves. With
/// the feature `async` it can be awaited.
#[derive(Debug, Clone)]
#[must_use = "the operation runs in any case; drop with `let _ =`, or use `wait()` to see that it has finished"]
pub struct Submitted {
    pub(crate) event: Option<Event>,
}

impl Submitted {
    /// Waits on the host until the operation has finished.
    ///
    /// # Errors
    /// As [`Event::synchronize`].
    pub fn wait(&self) -> Result<()> {
        self.event.as_ref().map_or(Ok(()), Event::synchronize)
    }

    /// Whether the operation has finished.
    ///
    /// # Errors
    /// As [`Event::is_done`].
    pub fn is_done(&self) -> Result<bool> {
        self.event.as_ref().map_or(Ok(true), Event::is_done)
    }

    /// The event behind the operation; `None` if there was nothing to do, or if it was captured into a graph and not
    /// submitted.
    pub fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }
}
