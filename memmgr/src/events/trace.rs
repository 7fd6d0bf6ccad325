//! Every block as an event of `tracing`, at the level TRACE of the target `memmgr::blocks`.

use super::{Action, Event};
use crate::foreign;

const TARGET: &str = "memmgr::blocks";

/// Whether anybody listens to that.
pub(super) fn is_wanted() -> bool {
    foreign::run(|| tracing::enabled!(target: TARGET, tracing::Level::TRACE)).unwrap_or(false)
}

/// Tells of a block. Segments and refusals are told where they come about.
pub(super) fn add(event: &Event) {
    let what = match event.action {
        Action::Allocate => "allocated",
        Action::Free => "freed",
        _ => return,
    };
    let address = format_args!("{:#x}", event.address);
    foreign::log(|| {
        tracing::trace!(
            target: TARGET,
            place = %event.place,
            address,
            bytes = event.requested,
            stream = event.stream,
            "{what}"
        );
    });
}
