//! Makes recordings, one for each device, of a memory snapshot: PyTorch's, or one of memmgr's in the same form.
//!
//! A snapshot holds the segments as they are at the end and, where the history was recorded, the last
//! calls of each device (`device_traces`). What was live before those calls began follows from both: what
//! is in use at the end and was not allocated since, and what was freed and not allocated before. A block
//! lives until its free is complete: before that another stream may still use it.

use rustc_hash::FxHashMap;

use super::pickle::{Id, Pickle};
use super::recording::{Block, MOST_BYTES, Numbered, Recording, Segment};

/// More blocks and calls than this are refused: shared lists could name any number of them.
const MOST_ENTRIES: usize = 1 << 23;

/// Frames of one call that are looked at for a place in the program.
const MOST_FRAMES: usize = 64;

type Result<T> = std::result::Result<T, String>;

/// All devices of a snapshot that have a segment or a call.
pub fn read(name: &str, bytes: &[u8], moved: impl FnMut(u64)) -> Result<Vec<Recording>> {
    recordings(name, &Pickle::read(bytes, moved)?)
}

/// As [`read`], of a snapshot in JSON.
pub fn read_json(name: &str, bytes: &[u8]) -> Result<Vec<Recording>> {
    let mut text = Vec::new();
    let (nodes, root) = super::plain::read(bytes, &mut text)?;
    recordings(name, &Pickle::of(&text, nodes, root))
}

fn recordings(name: &str, pickle: &Pickle) -> Result<Vec<Recording>> {
    let root = pickle.root;
    if !pickle.is_dict(root) {
        return Err(format!(
            "expected a PyTorch memory snapshot (a dictionary with `segments`), found {}",
            pickle.kind(root)
        ));
    }
    // What memmgr writes says so.
    let own = pickle.get(root, "memmgr");
    let pinned = own.and_then(|own| pickle.number(pickle.get(own, "pinned")?));
    let mut reader = Reader {
        pickle,
        own: own.is_some(),
        entries: 0,
        places: FxHashMap::default(),
        owners: Numbered::default(),
    };
    let mut devices: Vec<Device> = Vec::new();
    reader.segments(root, &mut devices)?;
    let traces = match pickle.get(root, "device_traces") {
        None => &[],
        Some(list) => reader.list(list, "device_traces")?,
    };
    for (number, trace) in traces.iter().enumerate() {
        let device = device(&mut devices, number as u64)?;
        let path = format!("device_traces[{number}]");
        device.trace = reader.list(*trace, &path)?;
    }
    let used: Vec<_> = devices
        .iter()
        .enumerate()
        .filter(|(_, device)| device.is_used())
        .collect();
    if used.is_empty() {
        return Err(if own.is_some() {
            "the snapshot has no segment: nothing had been allocated when it was taken".to_owned()
        } else {
            "the snapshot has no segment and no call; in PyTorch, call \
            torch.cuda.memory._record_memory_history() before the work to be seen"
                .to_owned()
        });
    }
    let several = used.len() > 1;
    let mut recordings = Vec::new();
    for (number, device) in used {
        let name = if pinned == Some(number as u64) {
            format!("{name}, pinned memory")
        } else if several {
            format!("{name}, device {number}")
        } else {
            name.to_owned()
        };
        recordings.push(super::history::recording(
            &mut reader,
            number,
            device,
            name,
        )?);
    }
    // All devices share one list of places.
    for recording in &mut recordings {
        recording.owners.clone_from(&reader.owners.names);
    }
    Ok(recordings)
}

/// What the snapshot says of one device.
#[derive(Default)]
pub struct Device<'a> {
    pub segments: Vec<Segment>,
    /// Blocks in use at the end, with the stream's handle and the place.
    pub in_use: Vec<(Block, u64)>,
    pub trace: &'a [Id],
}

impl Device<'_> {
    fn is_used(&self) -> bool {
        !self.segments.is_empty() || !self.trace.is_empty()
    }
}

/// More devices than any machine has.
const MOST_DEVICES: u64 = 1024;

fn device<'d, 'a>(devices: &'d mut Vec<Device<'a>>, number: u64) -> Result<&'d mut Device<'a>> {
    if number >= MOST_DEVICES {
        return Err(format!("device {number}; at most {MOST_DEVICES} are read"));
    }
    let index = number as usize;
    if devices.len() <= index {
        devices.resize_with(index + 1, Device::default);
    }
    devices
        .get_mut(index)
        .ok_or_else(|| format!("device {number} is not known"))
}

pub struct Reader<'a> {
    pub pickle: &'a Pickle<'a>,
    /// Whether memmgr wrote it.
    pub own: bool,
    entries: usize,
    /// The places of lists of frames that have been seen.
    places: FxHashMap<Id, u32>,
    pub owners: Numbered<String>,
}

impl<'a> Reader<'a> {
    pub fn list(&self, id: Id, path: &str) -> Result<&'a [Id]> {
        let kind = || format!("{path}: expected a list, found {}", self.pickle.kind(id));
        self.pickle.list(id).ok_or_else(kind)
    }

    /// One more of what [`MOST_ENTRIES`] counts.
    pub fn count(&mut self) -> Result<()> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(format!(
                "more than {MOST_ENTRIES} blocks and calls; record a shorter history (max_entries)"
            ));
        }
        Ok(())
    }

    pub fn field(&self, entry: Id, key: &str, path: &str) -> Result<Id> {
        if !self.pickle.is_dict(entry) {
            let kind = self.pickle.kind(entry);
            return Err(format!("{path}: expected a dictionary, found {kind}"));
        }
        let missing = || format!("{path}: `{key}` is missing");
        self.pickle.get(entry, key).ok_or_else(missing)
    }

    pub fn number(&self, entry: Id, key: &str, path: &str) -> Result<u64> {
        let value = self.field(entry, key, path)?;
        self.pickle.number(value).ok_or_else(|| {
            let kind = self.pickle.kind(value);
            format!("{path}: `{key}` should be a number that is not negative, found {kind}")
        })
    }

    pub fn size(&self, entry: Id, key: &str, path: &str) -> Result<u64> {
        let size = self.number(entry, key, path)?;
        if size > MOST_BYTES {
            return Err(format!("{path}: `{key}` is above 2^63 bytes"));
        }
        Ok(size)
    }

    pub fn word(&self, entry: Id, key: &str, path: &str) -> Result<&'a str> {
        let value = self.field(entry, key, path)?;
        self.pickle.text(value).ok_or_else(|| {
            let kind = self.pickle.kind(value);
            format!("{path}: `{key}` should be text, found {kind}")
        })
    }

    /// The stream of a segment or call; the default one where none is named.
    pub fn stream(&self, entry: Id) -> u64 {
        let stream = self.pickle.get(entry, "stream");
        stream
            .and_then(|stream| self.pickle.number(stream))
            .unwrap_or(0)
    }

    /// The place in the program that a block or call names: its innermost Python frame.
    pub fn place(&mut self, entry: Id) -> u32 {
        let frames = self.pickle.get(entry, "frames");
        let list = frames
            .and_then(|frames| self.pickle.list(frames))
            .unwrap_or(&[]);
        let key = frames.filter(|_| !list.is_empty()).unwrap_or(Id::MAX);
        if let Some(&place) = self.places.get(&key) {
            return place;
        }
        let name = self
            .frame(list)
            .unwrap_or_else(|| "place unknown".to_owned());
        let place = self.owners.number(name.clone(), || name);
        self.places.insert(key, place);
        place
    }

    fn frame(&self, frames: &[Id]) -> Option<String> {
        let text = |frame, key| {
            self.pickle
                .get(frame, key)
                .and_then(|id| self.pickle.text(id))
        };
        let shown = |frame: Id| {
            let file = text(frame, "filename")?;
            let file = file.rsplit('/').next().unwrap_or(file);
            let name = text(frame, "name").unwrap_or("?");
            let line = self
                .pickle
                .get(frame, "line")
                .and_then(|id| self.pickle.number(id));
            let cut = |text: &str| text.chars().take(80).collect::<String>();
            let line = line.map_or(String::new(), |line| format!(":{line}"));
            // A call site of Rust has no function.
            Some(match name {
                "" => format!("{}{line}", cut(file)),
                _ => format!("{} ({}{line})", cut(name), cut(file)),
            })
        };
        let looked_at = frames.get(..frames.len().min(MOST_FRAMES))?;
        let is_python = |frame: &&Id| text(**frame, "filename").is_some_and(|f| f.ends_with(".py"));
        let python = looked_at.iter().find(is_python);
        python.or(looked_at.first()).and_then(|&frame| shown(frame))
    }

    fn segments(&mut self, root: Id, devices: &mut Vec<Device<'a>>) -> Result<()> {
        let Some(list) = self.pickle.get(root, "segments") else {
            return Err(
                "expected a PyTorch memory snapshot, but the dictionary has no `segments`"
                    .to_owned(),
            );
        };
        for (index, &entry) in self.list(list, "segments")?.iter().enumerate() {
            let path = format!("segments[{index}]");
            self.count()?;
            let address = self.number(entry, "address", &path)?;
            let size = self.size(entry, "total_size", &path)?;
            let number = match self.pickle.get(entry, "device") {
                None => 0,
                Some(_) => self.number(entry, "device", &path)?,
            };
            let kind = self.pickle.get(entry, "segment_type");
            let kind = kind.and_then(|kind| self.pickle.text(kind)).unwrap_or("");
            let stream = self.stream(entry);
            let device = device(devices, number)?;
            let mut segment = Segment {
                address,
                size,
                used: 0,
                largest_hole: 0,
                kind: kind.chars().take(40).collect(),
            };
            let mut at = address;
            let blocks = self.field(entry, "blocks", &path)?;
            for (index, &entry) in self.list(blocks, &path)?.iter().enumerate() {
                let path = format!("{path}.blocks[{index}]");
                self.count()?;
                let size = self.size(entry, "size", &path)?;
                // Old snapshots give no addresses; blocks follow one another.
                let address = match self.pickle.get(entry, "address") {
                    None => at,
                    Some(_) => self.number(entry, "address", &path)?,
                };
                at = address
                    .checked_add(size)
                    .ok_or_else(|| format!("{path}: it ends above 2^64"))?;
                let state = self.word(entry, "state", &path)?;
                // To memmgr a free is complete at once, whatever work may still use the memory.
                if state == "inactive" || (self.own && state == "active_pending_free") {
                    segment.largest_hole = segment.largest_hole.max(size);
                    continue;
                }
                segment.used = segment.used.saturating_add(size);
                let owner = self.place(entry);
                let block = Block {
                    address,
                    size,
                    stream: 0,
                    owner,
                    start: 0,
                    end: 0,
                };
                let stream = match self.pickle.get(entry, "stream") {
                    Some(own) => self.pickle.number(own).unwrap_or(stream),
                    None => stream,
                };
                device.in_use.push((block, stream));
            }
            device.segments.push(segment);
        }
        for device in devices {
            let used = sum(device.in_use.iter().map(|(block, _)| block.size));
            let all = sum(device.segments.iter().map(|segment| segment.size));
            if used.is_none() || all.is_none() {
                return Err("its segments add up to more than 2^63 bytes".to_owned());
            }
        }
        Ok(())
    }
}

/// The sum, unless it is more than any device has.
fn sum(mut sizes: impl Iterator<Item = u64>) -> Option<u64> {
    let sum = sizes.try_fold(0_u64, u64::checked_add);
    sum.filter(|&bytes| bytes <= MOST_BYTES)
}
