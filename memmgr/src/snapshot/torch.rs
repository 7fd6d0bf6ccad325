//! A snapshot as PyTorch's `torch.cuda.memory._dump_snapshot` says it, with some keys of our own beside.
//!
//! PyTorch calls memory that a stream may use again at once, and others not yet, inactive; so does this. What more than one
//! stream must be done with is `active_pending_free`.

use super::{Block, BlockState, Segment, Snapshot, encode::Encoder};
use crate::{
    error::Place,
    events::{Action, Event},
    mode::DeviceAllocatorMode,
};
use std::{io, panic::Location};

/// Writes all of it.
pub(super) fn write(snapshot: &Snapshot, mut to: impl Encoder) -> io::Result<()> {
    let pinned = snapshot.pinned();
    to.dict();
    to.key("segments");
    to.list();
    for one in &snapshot.segments {
        segment(one, pinned, &mut to);
    }
    to.end_list();
    to.key("device_traces");
    to.list();
    for device in 0..=pinned {
        to.list();
        for one in &snapshot.events {
            if number(one.place, pinned) == device {
                event(one, &mut to);
            }
        }
        to.end_list();
    }
    to.end_list();
    settings(snapshot, &mut to);
    to.key("external_annotations");
    to.list();
    to.end_list();
    to.key("memmgr");
    to.dict();
    entry(&mut to, "version", env!("CARGO_PKG_VERSION"));
    entry(&mut to, "backend", &crate::backend().to_string());
    to.key("time_us");
    to.number(snapshot.time_us);
    to.key("pinned");
    to.number(pinned);
    to.end_dict();
    to.end_dict();
    to.finish()
}

impl Snapshot {
    /// The number that stands for pinned memory among those of devices.
    fn pinned(&self) -> u64 {
        let segments = self.segments.iter().map(|segment| segment.place);
        let places = segments.chain(self.events.iter().map(|event| event.place));
        let beyond = places.map(|place| number(place, 0).saturating_add(1));
        beyond.max().unwrap_or(1).max(self.devices as u64).max(1)
    }
}

/// The number of a place.
fn number(place: Place, pinned: u64) -> u64 {
    match place {
        Place::Device(ordinal) => u64::try_from(ordinal).unwrap_or(0),
        Place::Pinned => pinned,
    }
}

fn entry(to: &mut impl Encoder, key: &str, text: &str) {
    to.key(key);
    to.text(text);
}

fn count(to: &mut impl Encoder, key: &str, number: usize) {
    to.key(key);
    to.number(number as u64);
}

fn stream(to: &mut impl Encoder, stream: Option<u64>) {
    to.key("stream");
    to.number(stream.unwrap_or(0));
}

fn mode(to: &mut impl Encoder, mode: Option<DeviceAllocatorMode>) {
    if let Some(mode) = mode {
        entry(to, "mode", &mode.to_string());
    }
}

/// What PyTorch says of its allocator, as far as it has a meaning here.
fn settings(snapshot: &Snapshot, to: &mut impl Encoder) {
    to.key("allocator_settings");
    to.dict();
    entry(to, "PYTORCH_CUDA_ALLOC_CONF", "");
    to.key("max_split_size");
    to.negative(-1);
    to.key("garbage_collection_threshold");
    to.float(0.0);
    to.key("expandable_segments");
    to.truth(snapshot.segments.iter().any(|segment| segment.mapped));
    to.key("release_lock_on_cudamalloc");
    to.truth(true);
    to.end_dict();
}

fn segment(segment: &Segment, pinned: u64, to: &mut impl Encoder) {
    let sum = |of: fn(&Block) -> usize| {
        (segment.blocks.iter()).fold(0, |sum: usize, block| sum.saturating_add(of(block)))
    };
    let live = |block: &Block| {
        let is_live = matches!(block.state, BlockState::Live | BlockState::KeptByGraph);
        if is_live { block.size } else { 0 }
    };
    let active = |block: &Block| {
        if word(block) == INACTIVE {
            0
        } else {
            block.size
        }
    };
    to.dict();
    to.key("device");
    to.number(number(segment.place, pinned));
    count(to, "address", segment.address);
    count(to, "total_size", segment.size);
    count(to, "allocated_size", sum(live));
    count(to, "active_size", sum(active));
    count(to, "requested_size", sum(|block| block.requested));
    stream(to, None);
    entry(to, "segment_type", "large");
    to.key("segment_pool_id");
    to.pair((0, 0));
    to.key("is_expandable");
    to.truth(segment.mapped);
    to.key("frames");
    to.list();
    to.end_list();
    mode(to, segment.mode);
    to.key("blocks");
    to.list();
    for one in &segment.blocks {
        block(one, to);
    }
    to.end_list();
    to.end_dict();
}

const INACTIVE: &str = "inactive";

/// The state, as PyTorch calls it.
fn word(block: &Block) -> &'static str {
    match block.state {
        BlockState::Live | BlockState::KeptByGraph => "active_allocated",
        BlockState::Pending if block.stream.is_none() => "active_pending_free",
        BlockState::Pending | BlockState::Idle => INACTIVE,
    }
}

fn block(block: &Block, to: &mut impl Encoder) {
    to.dict();
    count(to, "address", block.address);
    count(to, "size", block.size);
    count(to, "requested_size", block.requested);
    entry(to, "state", word(block));
    if let Some(of) = block.stream {
        stream(to, Some(of));
    }
    match block.state {
        BlockState::Pending => {
            to.key("pending");
            to.truth(true);
        }
        BlockState::KeptByGraph => {
            to.key("kept_by_graph");
            to.truth(true);
        }
        BlockState::Live | BlockState::Idle => {}
    }
    frames(to, block.name.as_deref(), block.call_site);
    to.end_dict();
}

/// The one frame that there is, if anything is known.
fn frames(to: &mut impl Encoder, name: Option<&str>, site: Option<&Location<'_>>) {
    to.key("frames");
    to.list();
    if name.is_some() || site.is_some() {
        to.dict();
        entry(to, "name", name.unwrap_or(""));
        entry(to, "filename", site.map_or("", |at| at.file()));
        count(to, "line", site.map_or(0, |at| at.line()) as usize);
        to.end_dict();
    }
    to.end_list();
}

fn event(event: &Event, to: &mut impl Encoder) {
    // A block of an async mode is all that is known of the driver's memory there.
    let alone = !matches!(event.mode, None | Some(DeviceAllocatorMode::BestFitPool));
    let mut say = |action: &str, size: usize| {
        to.dict();
        entry(to, "action", action);
        if action == "oom" {
            count(to, "device_free", event.device_free.unwrap_or(0));
        } else {
            count(to, "addr", event.address);
        }
        count(to, "size", size);
        // Segments belong to no stream.
        stream(to, event.stream.filter(|_| !action.starts_with("segment")));
        to.key("time_us");
        to.number(event.time_us);
        entry(to, "compile_context", "N/A");
        entry(to, "user_metadata", "");
        to.key("thread");
        to.number(event.thread);
        frames(to, None, event.call_site);
        to.end_dict();
    };
    match event.action {
        Action::Allocate => {
            if alone {
                say("segment_alloc", event.size);
            }
            say("alloc", event.requested);
        }
        Action::Free => {
            say("free_requested", event.requested);
            say("free_completed", event.requested);
            if alone {
                say("segment_free", event.size);
            }
        }
        Action::Failure {
            out_of_memory: true,
        } => say("oom", event.requested),
        Action::Failure {
            out_of_memory: false,
        } => {}
        Action::SegmentAdded if event.mapped => say("segment_map", event.size),
        Action::SegmentAdded => say("segment_alloc", event.size),
        Action::SegmentRemoved if event.mapped => say("segment_unmap", event.size),
        Action::SegmentRemoved => say("segment_free", event.size),
    }
}
