//! Makes a recording of an allocation log in RMM's CSV format.
//!
//! [`Trace`] reads and checks the log first, so that what is an error for `memmgr replay` is one here, in
//! the same words. What a trace does not keep (addresses, times, threads) is read in a second pass.

use rustc_hash::FxHashMap;

use super::recording::{Block, Numbered, OwnerKind, Recording};
use crate::trace::Trace;

/// Half a day: a clock that goes back further has passed midnight.
const HALF_DAY: u64 = 12 * 3600 * 1_000_000;

/// Reads a log; `what` went wrong, and in which line, is the error.
pub fn read(name: &str, text: &[u8], mut moved: impl FnMut(u64)) -> Result<Recording, String> {
    let trace = Trace::read(text).map_err(|error| error.to_string())?;
    moved(text.len() as u64 / 2);
    let mut pass = Pass::default();
    // The trace has left out a last line that is incomplete.
    let whole = match (trace.cut, text.iter().rposition(|&byte| byte == b'\n')) {
        (Some(_), Some(end)) => &text[..=end],
        _ => text,
    };
    for line in whole.split(|&byte| byte == b'\n').skip(1) {
        pass.row(line);
    }
    moved(text.len() as u64 - text.len() as u64 / 2);
    let last = pass.moments;
    // The two passes leave out the same rows; were one changed alone, this would tell.
    if last as usize != trace.events.len() || pass.blocks.len() != trace.blocks {
        return Err(format!(
            "{} of its {} calls have an address and a time that can be read",
            last,
            trace.events.len()
        ));
    }
    let mut blocks = pass.blocks;
    for block in &mut blocks {
        // Those that nothing freed.
        block.end = block.end.min(last.saturating_add(1));
    }
    let mut notes = Vec::new();
    let warning = trace.warning();
    if let Some(line) = trace.cut {
        notes.push(format!(
            "Line {line}, the last, is incomplete and was left out."
        ));
    }
    if trace.skipped.total() > 0 {
        let count = crate::table::counted(trace.skipped.total(), "row");
        notes.push(format!("{count} left out: {}.", trace.skipped));
    }
    let times = if pass.timeless || last == 0 {
        notes.push("Its times cannot be read, so only the order of calls is shown.".to_owned());
        Vec::new()
    } else {
        let first = pass.times.first().copied().unwrap_or(0);
        let since = pass.times.iter().map(|time| time.saturating_sub(first));
        // Moment 0 is that of the first call.
        std::iter::once(0).chain(since).collect()
    };
    Ok(Recording {
        name: name.to_owned(),
        source: "allocation log",
        blocks,
        last,
        times,
        streams: pass.streams.names,
        owners: pass.threads.names,
        owner_kind: OwnerKind::Thread,
        reserved: Vec::new(),
        segments: Vec::new(),
        notes,
        warning,
    })
}

#[derive(Default)]
struct Pass {
    blocks: Vec<Block>,
    live: FxHashMap<u64, u32>,
    streams: Numbered<u64>,
    threads: Numbered<Vec<u8>>,
    moments: u32,
    times: Vec<u64>,
    /// The day of the last time, in microseconds.
    day: u64,
    timeless: bool,
}

impl Pass {
    /// One row of a log that is known to be sound; others are passed over.
    fn row(&mut self, line: &[u8]) -> Option<()> {
        let mut columns = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        let (thread, time) = (columns.next()?, columns.next()?);
        let (action, pointer) = (columns.next()?, columns.next()?);
        let (size, stream) = (columns.next()?, columns.next()?);
        match action {
            b"free" => {
                let pointer = number(pointer)?;
                let block = self.live.remove(&pointer)?;
                self.moment(time)?;
                self.blocks.get_mut(block as usize)?.end = self.moments;
            }
            b"allocate" => {
                let (pointer, size, stream) = (number(pointer)?, number(size)?, number(stream)?);
                if size == 0 {
                    return None;
                }
                self.moment(time)?;
                let block = u32::try_from(self.blocks.len()).ok()?;
                self.live.insert(pointer, block);
                let thread = thread.get(..thread.len().min(100))?.to_vec();
                let name = String::from_utf8_lossy(&thread).into_owned();
                self.blocks.push(Block {
                    address: pointer,
                    size,
                    stream: self.streams.number(stream, || format!("{stream:#x}")),
                    owner: self.threads.number(thread, || name),
                    start: self.moments,
                    end: u32::MAX,
                });
            }
            _ => {}
        }
        Some(())
    }

    fn moment(&mut self, time: &[u8]) -> Option<()> {
        self.moments = self.moments.checked_add(1).filter(|&m| m < u32::MAX)?;
        let last = self.times.last().copied().unwrap_or(0);
        match clock(time) {
            Some(clock) => {
                let mut time = self.day.saturating_add(clock);
                if time.saturating_add(HALF_DAY) < last {
                    self.day = self.day.saturating_add(2 * HALF_DAY);
                    time = time.saturating_add(2 * HALF_DAY);
                }
                // Threads may have written their rows a little out of order.
                self.times.push(time.max(last));
            }
            None => self.timeless = true,
        }
        Some(())
    }
}

/// Microseconds since midnight of `14:15:02:109192`.
fn clock(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let mut parts = text.split([':', '.']).map(|part| part.parse::<u64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let micros = parts.next().unwrap_or(Some(0))?;
    let sound = hours < 24 && minutes < 60 && seconds < 62 && micros < 1_000_000;
    // The sum of numbers that are not sound may be none.
    let total = || ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros;
    (sound && parts.next().is_none()).then(total)
}

/// A number as [`Trace`] reads it.
fn number(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    if text == "(nil)" {
        return Some(0);
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(rows: &str) -> Recording {
        let text = format!("{}\n{rows}", crate::trace::HEADER);
        read("log", text.as_bytes(), |_| {}).expect("a log")
    }

    #[test]
    fn addresses_times_and_threads_are_kept() {
        let log = log("7,23:59:59:999999,allocate,0x100,16,0x0\n\
             8,00:00:00:000001,allocate,0x200,32,0x5\n\
             7,00:00:00:000004,free,0x100,16,0x0\n");
        assert_eq!(log.times, [0, 0, 2, 5]);
        assert_eq!(
            (log.owners, log.streams.len()),
            (vec!["7".into(), "8".into()], 2)
        );
        assert_eq!((log.blocks[0].start, log.blocks[0].end), (1, 3));
        assert_eq!((log.blocks[1].start, log.blocks[1].end), (2, 4));
        assert_eq!(log.blocks[1].address, 0x200);
        assert!(log.notes.is_empty());
    }

    #[test]
    fn what_the_trace_leaves_out_is_left_out() {
        let log = log("0,x,allocate,0x100,16,0x0\n0,x,free,0x300,4,0x0\n\
             0,x,allocate,0x400,0,0x0\n0,x,allocate failure,(nil),9,0x0\n");
        assert_eq!((log.last, log.blocks.len()), (1, 1));
        assert!(log.times.is_empty());
        assert_eq!(log.notes.len(), 2, "{:?}", log.notes);
    }

    #[test]
    fn times_are_read() {
        assert_eq!(clock(b"00:00:01:000002"), Some(1_000_002));
        assert_eq!(clock(b"01:00:00"), Some(3_600_000_000));
        for bad in [
            "",
            "1",
            "24:00:00:0",
            "a:b:c:d",
            "1:2:3:4:5",
            "1:2:3:1000000",
            "18446744073709551615:0:0:0",
        ] {
            assert_eq!(clock(bad.as_bytes()), None, "{bad}");
        }
    }
}
