//! Reads an input file and finds out by its content what it is.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use indicatif::ProgressBar;
use serde::Deserialize;

use super::recording::Recording;
use super::{log, snapshot};
use crate::gzip;

/// The most bytes of an input, after decompression; they are kept in memory.
const MOST_INPUT: u64 = 1 << 30;

/// What an input holds.
pub enum Input {
    Recordings(Vec<Recording>),
    Replays(Vec<Replay>),
}

/// One row of what `memmgr replay --json` writes; what else is in it is not used.
#[derive(Clone, Debug, Deserialize)]
pub struct Replay {
    pub trace: String,
    pub mode: String,
    pub backend: String,
    pub events: u64,
    pub ns_per_op: Vec<f64>,
    pub peak_live_bytes: u64,
    pub peak_reserved_bytes: u64,
    pub waits: u64,
    pub failures: u64,
}

/// Reads a file; the error says what is wrong with it, and where.
pub fn open(path: &Path, name: &str, bar: &ProgressBar) -> Result<Input, String> {
    let cannot = |error: io::Error| format!("cannot read it: {error}");
    let mut file = File::open(path).map_err(cannot)?;
    // Directories are opened without complaint and cannot be read.
    let content = limited(&mut file).map_err(|(_, error)| cannot(error))?;
    parse(name, content?, bar)
}

/// What `content`, compressed or not, holds.
pub fn parse(name: &str, content: Vec<u8>, bar: &ProgressBar) -> Result<Input, String> {
    let bytes = if content.starts_with(gzip::MAGIC) {
        let plain = limited(&mut gzip::Members::new(content.as_slice()));
        plain.map_err(|(read, error)| damaged(read, &error))??
    } else {
        content
    };
    // What is to be done is first known now.
    bar.inc_length(bytes.len() as u64);
    let moved = |bytes| bar.inc(bytes);
    let start = bytes.trim_ascii_start();
    match start.first() {
        None => Err("the file is empty".to_owned()),
        Some(0x1f) if bytes.starts_with(gzip::MAGIC) => {
            Err("it is compressed twice; decompress it once (gunzip)".to_owned())
        }
        Some(0x80) => snapshot::read(name, &bytes, moved).map(Input::Recordings),
        Some(b'[') => {
            bar.inc(bytes.len() as u64);
            replays(&bytes).map(Input::Replays)
        }
        Some(b'{') => {
            bar.inc(bytes.len() as u64);
            snapshot::read_json(name, &bytes).map(Input::Recordings)
        }
        Some(_) => {
            let recording = log::read(name, &bytes, moved).map_err(|reason| {
                if reason.contains("this is not a trace") {
                    "expected an allocation log (CSV), a memory snapshot (pickle or JSON) or what \
                     `memmgr replay --json` writes; found other binary data at byte 0"
                        .to_owned()
                } else {
                    reason
                }
            });
            Ok(Input::Recordings(vec![recording?]))
        }
    }
}

type Limited = Result<Result<Vec<u8>, String>, (u64, io::Error)>;

/// All of a source; an inner error if that is too much, an outer one with what was read before it.
fn limited(source: &mut dyn Read) -> Limited {
    let mut content = Vec::new();
    let read = source.take(MOST_INPUT + 1).read_to_end(&mut content);
    match read {
        Err(error) => Err((content.len() as u64, error)),
        Ok(_) if content.len() as u64 > MOST_INPUT => Ok(Err(
            "it is longer than 1 GiB, which is the most that is read; record a shorter run"
                .to_owned(),
        )),
        Ok(_) => Ok(Ok(content)),
    }
}

fn damaged(read: u64, error: &io::Error) -> String {
    let reason = gzip::reason(error).unwrap_or("the compressed data cannot be read");
    format!("after {read} bytes of content: {reason}")
}

fn replays(bytes: &[u8]) -> Result<Vec<Replay>, String> {
    /// A row that `--lag` or `--capacity` has made.
    #[derive(Deserialize)]
    struct Other {
        #[serde(alias = "capacity_bytes", alias = "lag_ms")]
        _is_other: serde::de::IgnoredAny,
    }
    let rows: Vec<Replay> = serde_json::from_slice(bytes).map_err(|error| {
        if serde_json::from_slice::<Vec<Other>>(bytes).is_ok_and(|rows| !rows.is_empty()) {
            return "it has what `memmgr replay` found with --capacity or --lag, of which there is no page; replay without them"
                .to_owned();
        }
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let reason = text.split(" at line").next().unwrap_or_default();
        format!(
            "line {line}, column {column}: expected what `memmgr replay --json` writes: {reason}"
        )
    })?;
    if rows.is_empty() {
        return Err("it has no row; expected what `memmgr replay --json` writes".to_owned());
    }
    Ok(rows)
}
