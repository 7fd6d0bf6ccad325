//! Reads allocation traces in RMM's log format into a list of events that can be replayed.
//!
//! A trace is CSV text, plain or compressed with gzip, with the header
//! `Thread,Time,Action,Pointer,Size,Stream` and one row per call. Pointers become small numbers (the
//! n-th allocation is block n) and streams are renumbered in order of appearance, so that a replay
//! needs no look-up. Thread and time are not used. The format knows no quotes, so a row is a line.
//!
//! What is odd but usual in such logs is left out and counted ([`Skipped`]): a free of a pointer that
//! the log never allocated (the log began later than the program), an allocation that failed in the
//! recorded program, and a request for zero bytes. A last line that ends in the middle, as a program that was
//! killed leaves it, is left out too ([`Trace::cut`]). Everything else that does not make sense is an error that
//! names the line.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::gzip;

/// The columns of RMM's log, as its first line spells them.
pub const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// The largest size that a row may name: what an allocator of any kind accepts at most.
const LARGEST_SIZE: u64 = 1 << 63;

/// A row of a log is far shorter; a longer line is something else.
const LONGEST_LINE: u64 = 4096;

/// One call to the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Block `block` of `size` bytes is requested on stream `stream`.
    Allocate {
        block: u32,
        stream: u32,
        size: usize,
    },
    /// Block `block` is given back on stream `stream`.
    Free { block: u32, stream: u32 },
}

/// Rows that are left out of the replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Frees of pointers that the log did not allocate.
    pub unknown_frees: usize,
    /// Allocations that failed in the recorded program.
    pub recorded_failures: usize,
    /// Allocations and frees of zero bytes.
    pub empty_requests: usize,
}

impl Skipped {
    pub fn total(&self) -> usize {
        self.unknown_frees + self.recorded_failures + self.empty_requests
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (
                self.unknown_frees,
                "freeing a pointer that the log did not allocate",
            ),
            (
                self.recorded_failures,
                "that failed when the trace was recorded",
            ),
            (self.empty_requests, "of zero bytes"),
        ];
        let mut first = true;
        for (count, what) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            if !first {
                f.write_str(", ")?;
            }
            first = false;
            write!(f, "{count} {what}")?;
        }
        Ok(())
    }
}

/// A trace that is ready to be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub events: Vec<Event>,
    /// How many blocks there are: each event's `block` is below it.
    pub blocks: usize,
    /// How many streams there are: each event's `stream` is below it.
    pub streams: usize,
    /// The most bytes live at one time, as requested.
    pub peak_live: u64,
    /// The number of the event after which they are.
    pub peak_at: usize,
    pub skipped: Skipped,
    /// The number of the last line, if it ends in the middle and was left out.
    pub cut: Option<u64>,
}

/// Why a file is not a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot read it: {0}")]
    Open(io::Error),
    #[error("line {line}: {reason}")]
    Row { line: u64, reason: String },
    #[error("the file is empty")]
    Empty,
    #[error("it has a header but no allocation")]
    NoEvents,
    #[error("this is not a trace: it holds binary data, not CSV text")]
    NotATrace,
}

fn row(line: u64, reason: impl Into<String>) -> TraceError {
    TraceError::Row {
        line,
        reason: reason.into(),
    }
}

impl Trace {
    /// What is said of a file whose last line was left out.
    pub fn warning(&self) -> Option<String> {
        let line = self.cut?;
        Some(format!(
            "line {line}, the last, is incomplete and was left out; what is before it is used"
        ))
    }

    /// Reads a file, compressed or not: its first bytes tell, not its name.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(TraceError::Open)?;
        Self::read(file)
    }

    /// Reads a trace from `source`, compressed or not.
    pub fn read(source: impl Read) -> Result<Self, TraceError> {
        let mut source = BufReader::new(source);
        let start = source.fill_buf().map_err(TraceError::Open)?;
        if start.is_empty() {
            return Err(TraceError::Empty);
        }
        if start.starts_with(gzip::MAGIC) {
            let mut text = BufReader::new(gzip::Members::new(source));
            if text.fill_buf().map_err(|e| read_error(1, &e))?.is_empty() {
                return Err(TraceError::Empty);
            }
            Self::parse(text)
        } else {
            Self::parse(source)
        }
    }

    fn parse(mut text: impl BufRead) -> Result<Self, TraceError> {
        check_start(text.fill_buf().map_err(|e| read_error(1, &e))?)?;
        let mut builder = Builder::default();
        let mut buffer = Vec::new();
        for line in 1.. {
            buffer.clear();
            // One byte more than allowed shows that a line is too long without reading all of it.
            (&mut text)
                .take(LONGEST_LINE + 1)
                .read_until(b'\n', &mut buffer)
                .map_err(|e| read_error(line, &e))?;
            if buffer.is_empty() {
                break;
            }
            if buffer.len() as u64 > LONGEST_LINE {
                return Err(row(line, format!("longer than {LONGEST_LINE} bytes")));
            }
            let content = buffer.trim_ascii();
            if line == 1 {
                check_header(content)?;
            } else if !buffer.ends_with(b"\n") && is_cut(content) {
                builder.cut = Some(line);
            } else if !content.is_empty() {
                builder.add(line, content)?;
            }
        }
        builder.finish()
    }
}

/// What went wrong while reading on, most often a compressed file that was cut off.
fn read_error(line: u64, error: &io::Error) -> TraceError {
    match gzip::reason(error) {
        Some(reason) => row(line, reason),
        None => row(line, format!("reading failed: {error}")),
    }
}

/// Whether a last line without an end is the beginning of a row: it lacks columns, or the digits of the last one.
fn is_cut(content: &[u8]) -> bool {
    let mut columns = content.split(|&b| b == b',').map(<[u8]>::trim_ascii);
    let begun = |stream: &[u8]| b"0x" == stream || b"0X" == stream || is_begin_of_nil(stream);
    !content.is_empty() && columns.nth(5).is_none_or(begun)
}

/// Whether it is `(nil)`, with which the C library prints null, without its end.
fn is_begin_of_nil(field: &[u8]) -> bool {
    field.len() < 5 && b"(nil)".starts_with(field)
}

/// Refuses binary data at once, and says so rather than complaining about its first line.
fn check_start(start: &[u8]) -> Result<(), TraceError> {
    let first = start.split(|&b| b == b'\n').next().unwrap_or(start);
    let is_text = |&b: &u8| b >= b' ' || b == b'\t' || b == b'\r';
    if first.iter().all(is_text) {
        Ok(())
    } else {
        Err(TraceError::NotATrace)
    }
}

fn check_header(line: &[u8]) -> Result<(), TraceError> {
    // Some editors put a byte-order mark at the start of a file.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    if line.eq_ignore_ascii_case(HEADER.as_bytes()) {
        return Ok(());
    }
    let found = shown(line);
    Err(row(
        1,
        format!("expected the header `{HEADER}`, found `{found}`"),
    ))
}

/// A field as it can be shown in a message: on one line, and short.
fn shown(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(&field[..field.len().min(80)]);
    shorten(&text.escape_debug().to_string())
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A block that is live at this point of the log.
struct Live {
    block: u32,
    size: u64,
    line: u64,
}

/// Turns rows into events.
#[derive(Default)]
struct Builder {
    events: Vec<Event>,
    live: HashMap<u64, Live>,
    streams: HashMap<u64, u32>,
    blocks: u32,
    live_bytes: u64,
    peak_live: u64,
    peak_at: usize,
    skipped: Skipped,
    cut: Option<u64>,
}

impl Builder {
    fn add(&mut self, line: u64, content: &[u8]) -> Result<(), TraceError> {
        let columns: Vec<&[u8]> = content
            .split(|&b| b == b',')
            .map(<[u8]>::trim_ascii)
            .collect();
        let &[_thread, _time, action, pointer, size, stream] = columns.as_slice() else {
            let count = columns.len();
            let plural = if count == 1 { "" } else { "s" };
            return Err(row(
                line,
                format!("{count} column{plural} where `{HEADER}` has 6"),
            ));
        };
        let failed = match action {
            b"allocate" | b"free" => false,
            b"allocate failure" | b"allocate_failure" => true,
            other => {
                return Err(row(
                    line,
                    format!(
                        "unknown action `{}`; expected allocate, free or allocate failure",
                        shown(other)
                    ),
                ));
            }
        };
        let number = |name: &str, field: &[u8]| {
            parse_address(field)
                .ok_or_else(|| row(line, format!("{name} `{}` is not a number", shown(field))))
        };
        let stream = number("stream", stream)?;
        let size = parse_size(size).map_err(|reason| row(line, reason))?;
        if failed {
            // The pointer of a failed request means nothing.
            self.skipped.recorded_failures += 1;
            return Ok(());
        }
        let pointer = number("pointer", pointer)?;
        if action == b"free" {
            self.free(pointer, size, stream);
            Ok(())
        } else {
            self.allocate(line, pointer, size, stream)
        }
    }

    fn allocate(
        &mut self,
        line: u64,
        pointer: u64,
        size: u64,
        stream: u64,
    ) -> Result<(), TraceError> {
        if size == 0 {
            self.skipped.empty_requests += 1;
            return Ok(());
        }
        if pointer == 0 {
            return Err(row(line, format!("{size} bytes allocated at address 0")));
        }
        if let Some(live) = self.live.get(&pointer) {
            let since = live.line;
            return Err(row(
                line,
                format!("allocates {pointer:#x}, which line {since} allocated and nothing freed"),
            ));
        }
        let live_bytes = self
            .live_bytes
            .checked_add(size)
            .filter(|&bytes| bytes <= LARGEST_SIZE)
            .ok_or_else(|| row(line, "more than 2^63 bytes would be live"))?;
        let block = self.blocks;
        self.blocks = block
            .checked_add(1)
            .ok_or_else(|| row(line, "more than 2^32 allocations"))?;
        let stream = self.stream(stream);
        self.live.insert(pointer, Live { block, size, line });
        self.live_bytes = live_bytes;
        if live_bytes > self.peak_live {
            (self.peak_live, self.peak_at) = (live_bytes, self.events.len());
        }
        self.events.push(Event::Allocate {
            block,
            stream,
            size: usize::try_from(size)
                .map_err(|_| row(line, format!("size {size} is too large here")))?,
        });
        Ok(())
    }

    fn free(&mut self, pointer: u64, size: u64, stream: u64) {
        let Some(live) = self.live.remove(&pointer) else {
            if size == 0 || pointer == 0 {
                self.skipped.empty_requests += 1;
            } else {
                self.skipped.unknown_frees += 1;
            }
            return;
        };
        self.live_bytes -= live.size;
        let stream = self.stream(stream);
        self.events.push(Event::Free {
            block: live.block,
            stream,
        });
    }

    /// The number of a stream, in order of appearance among the rows that are replayed.
    fn stream(&mut self, handle: u64) -> u32 {
        // There are no more streams than events, whose blocks are counted in 32 bits.
        let next = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        *self.streams.entry(handle).or_insert(next)
    }

    fn finish(self) -> Result<Trace, TraceError> {
        if self.events.is_empty() {
            return Err(TraceError::NoEvents);
        }
        Ok(Trace {
            events: self.events,
            blocks: self.blocks as usize,
            streams: self.streams.len(),
            peak_live: self.peak_live,
            peak_at: self.peak_at,
            skipped: self.skipped,
            cut: self.cut,
        })
    }
}

/// A pointer or stream handle: `0x…`, decimal, or `(nil)` as the C library prints null.
fn parse_address(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    if text == "(nil)" {
        return Some(0);
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => digits_only(digits, 16),
        None => digits_only(text, 10),
    }
}

fn digits_only(text: &str, radix: u32) -> Option<u64> {
    // `from_str_radix` takes a sign, which has no place here.
    if text.starts_with('+') {
        return None;
    }
    u64::from_str_radix(text, radix).ok()
}

fn parse_size(field: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(field).unwrap_or("");
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("size `{}` is not a number of bytes", shown(field)));
    }
    text.parse::<u64>()
        .ok()
        .filter(|&size| size <= LARGEST_SIZE)
        .ok_or_else(|| format!("size {} is above 2^63 bytes", shown(field)))
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
