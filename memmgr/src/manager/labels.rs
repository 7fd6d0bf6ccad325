//! Live blocks, with their names and the places in the program where they were allocated.

use super::{Home, Inner, MemoryManager};
use crate::{
    error::{Error, Place, Result},
    out_of_memory::Counted,
    pool::{Label, LiveRange},
    process,
};
use std::{ffi::c_void, fmt, panic::Location, sync::Arc};

/// A block that is still live.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBlock {
    /// Whose memory it is.
    pub place: Place,
    /// Its address.
    pub address: usize,
    /// What was asked for, in bytes.
    pub size: usize,
    /// Whether it was handed out as a raw pointer; otherwise a guard owns it.
    pub raw: bool,
    /// Whether it was freed, and only a captured graph that uses it keeps it.
    pub kept_by_graph: bool,
    /// CUDA's id of the stream that it was allocated on; `None` without one.
    pub stream: Option<u64>,
    /// Its name, if it was given one: [`MemoryManager::name_block`], and `with_name` of the buffers.
    pub name: Option<Arc<str>>,
    /// Where the program allocated it, if [`Config::call_sites`](crate::Config::call_sites) is set.
    pub call_site: Option<&'static Location<'static>>,
}

impl fmt::Display for LiveBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.kept_by_graph, self.raw) {
            (true, _) => "freed, kept by a captured graph",
            (false, true) => "raw pointer",
            (false, false) => "guard",
        };
        let label = Label {
            name: self.name.clone(),
            site: self.call_site,
        };
        write!(
            f,
            "{} at {:#x} on {} ({kind}{label})",
            Counted(self.size, "byte"),
            self.address,
            self.place
        )
    }
}

impl LiveBlock {
    fn new(place: Place, range: LiveRange) -> Self {
        Self {
            place,
            address: range.start,
            size: range.len,
            raw: range.raw,
            kept_by_graph: range.kept,
            stream: range.stream,
            name: range.label.name,
            call_site: range.label.site,
        }
    }
}

impl MemoryManager {
    /// Gives the live block that `ptr` points into a name, in place of the one that it had: out-of-memory errors, the report
    /// of [`MemoryManager::shutdown`] and [`MemoryManager::live_blocks`] show it. The name goes with the block. A block with a
    /// name takes longer to free, about as long as one that was copied.
    ///
    /// Buffers have `with_name`.
    ///
    /// # Errors
    /// [`Error::UnknownPointer`] if `ptr` points into no live block of the manager.
    pub fn name_block(&self, ptr: *const c_void, name: impl Into<Arc<str>>) -> Result<()> {
        process::gate()?;
        let address = ptr.expose_provenance();
        let found = self.inner.find(address, 0)?;
        let named =
            found.is_some_and(|(home, block)| self.inner.name(home, block.start, name.into()));
        if named {
            Ok(())
        } else {
            Err(Error::unknown(
                address,
                "no live block of the manager contains it",
            ))
        }
    }

    /// Every live block, by place, and by address within a pool; adopted memory, which is not the manager's, is left out. Makes no CUDA call;
    /// takes time in proportion to the number of blocks. Empty in a forked child.
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        if process::is_forked() {
            return Vec::new();
        }
        self.inner.live_blocks()
    }
}

impl Inner {
    /// Gives a live block a name; whether there is one.
    pub fn name(&self, home: Home, address: usize, name: Arc<str>) -> bool {
        let name = Some(name);
        self.label(home, address, Label { name, site: None })
    }

    /// Keeps where the caller was called with a block that was just handed out, if that is wanted.
    #[track_caller]
    pub(super) fn note_site(&self, home: Home, address: usize) {
        if self.call_sites {
            self.keep_site(home, address, Location::caller());
        }
    }

    #[cold]
    fn keep_site(&self, home: Home, address: usize, site: &'static Location<'static>) {
        let site = Some(site);
        self.label(home, address, Label { name: None, site });
    }

    fn label(&self, home: Home, address: usize, label: Label) -> bool {
        if address == 0 || process::is_forked() {
            return false;
        }
        match home {
            Home::Pinned => self.pinned.label(address, label),
            Home::Pool(device) => self
                .known_state(device)
                .is_some_and(|state| state.pool.label(address, label)),
            Home::Native(device) => self
                .known_state(device)
                .is_some_and(|state| state.native.label(address, label)),
            Home::Adopted => false,
        }
    }

    /// Every live block, by place, and by address within a pool; with name and call site.
    pub(crate) fn live_blocks(&self) -> Vec<LiveBlock> {
        let mut live = Vec::new();
        let mut enter = |place, ranges: Vec<LiveRange>| {
            live.extend(ranges.into_iter().map(|range| LiveBlock::new(place, range)));
        };
        enter(Place::Pinned, self.pinned.live_blocks());
        for state in self.states() {
            let place = Place::Device(state.ordinal);
            enter(place, state.pool.live_blocks());
            enter(place, state.native.live_blocks());
        }
        live
    }
}
