//! The calls of one device of a PyTorch memory snapshot, in order, and what was live before them.

use rustc_hash::FxHashMap;

use super::recording::{Block, MOST_BYTES, Numbered, OwnerKind, Recording};
use super::snapshot::{Device, Reader};
use crate::table::counted;

type Result<T> = std::result::Result<T, String>;

#[derive(Default)]
struct History {
    blocks: Vec<Block>,
    streams: Numbered<u64>,
    /// Live blocks by address.
    live: FxHashMap<u64, u32>,
    live_bytes: u64,
    /// What each moment added to the reserved bytes, and took.
    grown: Vec<(u32, i128)>,
    times: Vec<u64>,
    timeless: bool,
    again: usize,
    failures: usize,
    /// The first action that is not known, and how many calls have such a one.
    unknown: Option<(String, usize)>,
}

/// The recording of one device; its owners' names are still to come.
pub fn recording(
    reader: &mut Reader,
    number: usize,
    device: &Device,
    name: String,
) -> Result<Recording> {
    let mut history = History::default();
    for (index, &entry) in device.trace.iter().enumerate() {
        let path = format!("device_traces[{number}][{index}]");
        reader.count()?;
        history.call(reader, entry, &path)?;
    }
    let last = u32::try_from(history.times.len()).map_err(|_| "too many calls")?;
    let mut before = 0;
    for &(block, stream) in &device.in_use {
        // What is in use and was allocated by no call was there all the time.
        if !history.live.contains_key(&block.address) {
            let stream = history.stream(stream);
            history.add(
                Block {
                    stream,
                    start: 0,
                    end: u32::MAX,
                    ..block
                },
                "segments",
            )?;
            before += usize::from(last > 0);
        }
    }
    let mut notes = Vec::new();
    before += history
        .blocks
        .iter()
        .filter(|block| block.start == 0 && block.end <= last)
        .count();
    if before > 0 {
        let count = counted(before, "block");
        notes.push(format!("{count} from before the recorded calls."));
    }
    if history.again > 0 {
        let count = counted(history.again, "allocation");
        notes.push(format!(
            "{count} of an address whose free is not recorded; it is assumed."
        ));
    }
    if history.failures > 0 {
        let count = counted(history.failures, "request");
        notes.push(format!("{count} found no memory (action oom)."));
    }
    if let Some((action, count)) = &history.unknown {
        let count = counted(*count, "call");
        notes.push(format!(
            "{count} passed over, as what they did is not known: action `{action}`."
        ));
    }
    if last == 0 {
        notes.push("The snapshot has no history: it shows one moment only.".to_owned());
    }
    for block in &mut history.blocks {
        block.end = block.end.min(last.saturating_add(1));
    }
    let reserved = device
        .segments
        .iter()
        .map(|segment| i128::from(segment.size))
        .sum();
    Ok(Recording {
        name,
        source: if reader.own {
            "memory snapshot of memmgr"
        } else {
            "PyTorch memory snapshot"
        },
        reserved: steps(&history.grown, reserved),
        times: since_first(history.times, history.timeless),
        blocks: history.blocks,
        last,
        streams: history.streams.names,
        owners: Vec::new(),
        owner_kind: OwnerKind::Place,
        segments: device.segments.clone(),
        notes,
        warning: None,
    })
}

/// The reserved bytes from each moment on, from what they are at the end.
fn steps(grown: &[(u32, i128)], end: i128) -> Vec<(u32, u64)> {
    let mut now = end - grown.iter().map(|(_, change)| change).sum::<i128>();
    let clamped = |bytes: i128| u64::try_from(bytes.max(0)).unwrap_or(u64::MAX);
    let mut steps = vec![(0, clamped(now))];
    for &(moment, change) in grown {
        now += change;
        steps.push((moment, clamped(now)));
    }
    steps
}

fn since_first(times: Vec<u64>, timeless: bool) -> Vec<u64> {
    let Some(&first) = times.first().filter(|_| !timeless) else {
        return Vec::new();
    };
    let since = times.iter().map(|time| time.saturating_sub(first));
    std::iter::once(0).chain(since).collect()
}

impl History {
    fn stream(&mut self, handle: u64) -> u32 {
        self.streams.number(handle, || format!("{handle:#x}"))
    }

    /// One entry of the trace; each is a moment.
    fn call(&mut self, reader: &mut Reader, entry: u32, path: &str) -> Result<()> {
        let action = reader.word(entry, "action", path)?;
        let time = reader.pickle.get(entry, "time_us");
        let time = time.and_then(|time| reader.pickle.number(time));
        self.timeless |= time.is_none();
        let last = self.times.last().copied().unwrap_or(0);
        self.times.push(time.unwrap_or(0).max(last));
        let moment = u32::try_from(self.times.len())
            .ok()
            .filter(|&moment| moment < u32::MAX);
        let moment = moment.ok_or("too many calls")?;
        match action {
            "alloc" => {
                let address = reader.number(entry, "addr", path)?;
                let size = reader.size(entry, "size", path)?;
                if address.checked_add(size).is_none() {
                    return Err(format!("{path}: the block ends above 2^64"));
                }
                if let Some(block) = self.live.remove(&address) {
                    self.again += 1;
                    self.end(block, moment);
                }
                let stream = self.stream(reader.stream(entry));
                let owner = reader.place(entry);
                self.add(
                    Block {
                        address,
                        size,
                        stream,
                        owner,
                        start: moment,
                        end: u32::MAX,
                    },
                    path,
                )?;
            }
            "free_completed" | "free" => {
                let address = reader.number(entry, "addr", path)?;
                if let Some(block) = self.live.remove(&address) {
                    self.end(block, moment);
                } else {
                    self.freed_unseen(reader, entry, address, moment, path)?;
                }
            }
            "segment_alloc" | "segment_map" => {
                let size = reader.size(entry, "size", path)?;
                self.grown.push((moment, size.into()));
            }
            "segment_free" | "segment_unmap" => {
                let size = reader.size(entry, "size", path)?;
                self.grown.push((moment, -i128::from(size)));
            }
            "oom" => self.failures += 1,
            // What does not change what is live.
            "free_requested" | "snapshot" | "user_defined" => {}
            other => {
                let name = || other.escape_debug().take(60).collect();
                self.unknown.get_or_insert_with(|| (name(), 0)).1 += 1;
            }
        }
        Ok(())
    }

    /// A block that was there before the first call.
    fn freed_unseen(
        &mut self,
        reader: &mut Reader,
        entry: u32,
        address: u64,
        moment: u32,
        path: &str,
    ) -> Result<()> {
        let size = reader.size(entry, "size", path)?;
        if address.checked_add(size).is_none() {
            return Err(format!("{path}: the block ends above 2^64"));
        }
        let stream = self.stream(reader.stream(entry));
        // The place of a free says nothing of who allocated.
        let name = "before the recorded calls".to_owned();
        let owner = reader.owners.number(name.clone(), || name);
        self.add(
            Block {
                address,
                size,
                stream,
                owner,
                start: 0,
                end: moment,
            },
            path,
        )
    }

    fn add(&mut self, block: Block, path: &str) -> Result<()> {
        // An upper bound of what is live: blocks from before count from where they are found.
        let bytes = self
            .live_bytes
            .checked_add(block.size)
            .filter(|&bytes| bytes <= MOST_BYTES);
        self.live_bytes =
            bytes.ok_or_else(|| format!("{path}: more than 2^63 bytes would be live"))?;
        let index = u32::try_from(self.blocks.len()).map_err(|_| "too many blocks")?;
        if block.end == u32::MAX {
            self.live.insert(block.address, index);
        }
        self.blocks.push(block);
        Ok(())
    }

    fn end(&mut self, block: u32, moment: u32) {
        if let Some(block) = self.blocks.get_mut(block as usize) {
            block.end = moment;
            self.live_bytes = self.live_bytes.saturating_sub(block.size);
        }
    }
}
