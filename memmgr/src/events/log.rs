//! The log file: CSV in the format of RMM, a file for each device and one for pinned memory.
//!
//! A line goes into a buffer in memory, under a lock that is held for nothing else; a thread writes it out, within a second
//! or as soon as there is a page of lines. So a request waits for no disk, unless the lines of a long while wait for one. All
//! logs of a process are known here: managers that name the same file share it, what is buffered is written when the process
//! exits, and a forked child writes nothing.
//!
//! What cannot be written ends the log, with one warning; the file then ends with its last whole line.

mod file;

use super::{Action, Event};
use crate::error::{Error, Place, Result};
use file::{LogFile, is_off, lock};
use std::{
    io::Write,
    path::{Path, PathBuf},
    // No program of the model checker has a log: these are the standard library's in every build.
    sync::{Arc, Mutex},
};

/// The first line.
const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream\n";
/// The largest size that readers of the format take.
const LARGEST: u64 = 1 << 63;

/// The logs of one manager.
pub(super) struct Logs {
    base: PathBuf,
    files: Mutex<Vec<(Place, Arc<LogFile>)>>,
}

impl Logs {
    /// Logs whose files are named after `base`; none is made yet.
    pub fn new(base: PathBuf) -> Self {
        Self {
            base,
            files: Mutex::default(),
        }
    }

    /// Adds the line of an event, if it has one.
    pub fn add(&self, event: &Event) {
        let (action, pointer) = match event.action {
            Action::Allocate => ("allocate", event.address),
            Action::Free => ("free", event.address),
            Action::Failure { .. } => ("allocate failure", 0),
            Action::SegmentAdded | Action::SegmentRemoved => return,
        };
        if is_off() {
            return;
        }
        let second = event.time_us / 1_000_000 % 86_400;
        let (minute, hour) = (second / 60 % 60, second / 3600);
        self.file(event.place).append(|buffer| {
            // A vector takes all that is written to it.
            let _ = writeln!(
                buffer,
                "{},{hour:02}:{minute:02}:{:02}.{:06},{action},{pointer:#x},{},{:#x}",
                event.thread,
                second % 60,
                event.time_us % 1_000_000,
                (event.requested as u64).min(LARGEST),
                event.stream.unwrap_or(0),
            );
        });
    }

    fn file(&self, place: Place) -> Arc<LogFile> {
        let known = |files: &[(Place, Arc<LogFile>)]| {
            let found = files.iter().find(|(of, _)| *of == place);
            found.map(|(_, file)| file.clone())
        };
        if let Some(file) = known(&lock(&self.files)) {
            return file;
        }
        // A warning may call anybody, who may call the manager.
        let file = LogFile::attach(named(&self.base, place), HEADER);
        let mut files = lock(&self.files);
        if let Some(other) = known(&files) {
            drop(files);
            file.detach();
            return other;
        }
        files.push((place, file.clone()));
        file
    }

    /// Writes out what is buffered; an error if a log has ended.
    pub fn flush(&self) -> Result<()> {
        if is_off() {
            return Ok(());
        }
        let files: Vec<_> = lock(&self.files)
            .iter()
            .map(|(_, file)| file.clone())
            .collect();
        let mut result = Ok(());
        for file in files {
            file.flush();
            if let Some(reason) = file.error() {
                result = result.and(Err(Error::InvalidSetting { reason }));
            }
        }
        result
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        if is_off() {
            return;
        }
        for (_, file) in lock(&self.files).drain(..) {
            file.detach();
        }
    }
}

/// The file for a place: `log.csv` gives `log.dev0.csv` and `log.pinned.csv`; `%p` is the process.
fn named(base: &Path, place: Place) -> PathBuf {
    let place = match place {
        Place::Device(ordinal) => format!("dev{ordinal}"),
        Place::Pinned => "pinned".to_owned(),
    };
    let name = base.file_name().map(|name| name.to_string_lossy());
    let name = name.as_deref().unwrap_or("memmgr.csv");
    let name = name.replace("%p", &std::process::id().to_string());
    let named = match name.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() => format!("{stem}.{place}.{ending}"),
        _ => format!("{name}.{place}"),
    };
    base.with_file_name(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_place_and_process() {
        let device = |base: &str| named(Path::new(base), Place::Device(1));
        assert_eq!(device("/x/log.csv"), Path::new("/x/log.dev1.csv"));
        assert_eq!(device("log"), Path::new("log.dev1"));
        assert_eq!(device(".log"), Path::new(".log.dev1"));
        let pinned = named(Path::new("a.b/l-%p.csv"), Place::Pinned);
        let process = std::process::id();
        assert_eq!(pinned, PathBuf::from(format!("a.b/l-{process}.pinned.csv")));
    }
}
