//! Events: a flag word, and the point at which the event was last recorded.

use crate::capture::Mark;
use crate::engine::Point;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// An event.
pub(crate) struct Event {
    pub(crate) device: u32,
    pub(crate) timing: bool,
    /// Where it was last recorded, and where the time of that is noted if it measures.
    pub(crate) recorded: Option<(Point, Option<Arc<AtomicU64>>)>,
    /// Where in a capture it was last recorded, if it was in one.
    pub(crate) captured: Option<Mark>,
}
