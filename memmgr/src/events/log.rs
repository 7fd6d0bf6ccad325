//! The log file: CSV in the format of RMM, a file for each device and one for pinned memory.
//!
//! A line goes into a buffer in memory, under a lock that is held for nothing else; a thread writes it out, within a second
//! or as soon as there is a page of lines. So a request waits for no disk, unless the lines of a long while wait for one. All
//! logs of a process are known here: managers that name the same file share it, what is buffered is written when the process
//! exits, and a forked child writes nothing.
//!
//! What cannot be written ends the log, with one warning; the file then ends with its last whole line.

use super::{Action, Event};
use crate::{
    error::{Error, Place, Result},
    foreign,
};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    // No program of the model checker has a log: these are the standard library's in every build.
    sync::{
        Arc, Condvar, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// The first line.
const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream\n";
/// How long a line may wait.
const PAUSE: Duration = Duration::from_millis(500);
/// How many bytes are worth a write at once.
const FULL: usize = 64 << 10;
/// From how many bytes on whoever adds a line writes, too.
const MOST: usize = 8 << 20;
/// The largest size that readers of the format take.
const LARGEST: u64 = 1 << 63;

/// All log files of this process that have ever been begun.
static FILES: Mutex<Vec<Arc<LogFile>>> = Mutex::new(Vec::new());
static WRITER: Writer = Writer {
    state: Mutex::new(Due {
        any: false,
        now: false,
    }),
    news: Condvar::new(),
};
/// This is a forked child: the buffers are the parent's, and locks may be held by threads that are not there.
static OFF: AtomicBool = AtomicBool::new(false);

/// Locks; nothing under these locks panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The logs of one manager.
pub(super) struct Logs {
    base: PathBuf,
    files: Mutex<Vec<(Place, Arc<LogFile>)>>,
}

/// One file.
struct LogFile {
    path: PathBuf,
    /// Whole lines that are still to be written.
    buffer: Mutex<Vec<u8>>,
    sink: Mutex<Sink>,
    /// Whether lines are of no use any more.
    ended: AtomicBool,
}

#[derive(Default)]
struct Sink {
    /// Open as long as a manager has the log.
    file: Option<File>,
    /// How many managers have it.
    users: usize,
    /// Whether the header has been written.
    begun: bool,
    /// How long the file is, in whole lines.
    whole: u64,
    /// Why nothing is written any more.
    error: Option<String>,
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
        if OFF.load(Ordering::Relaxed) {
            return;
        }
        let file = self.file(event.place);
        if file.ended.load(Ordering::Relaxed) {
            return;
        }
        let second = event.time_us / 1_000_000 % 86_400;
        let (minute, hour) = (second / 60 % 60, second / 3600);
        let mut buffer = lock(&file.buffer);
        let before = buffer.len();
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
        let after = buffer.len();
        drop(buffer);
        if before == 0 {
            WRITER.wake(false);
        }
        if before < FULL && after >= FULL {
            WRITER.wake(true);
        }
        if after >= MOST {
            file.flush();
        }
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
        let file = LogFile::attach(named(&self.base, place));
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
        if OFF.load(Ordering::Relaxed) {
            return Ok(());
        }
        let files: Vec<_> = lock(&self.files)
            .iter()
            .map(|(_, file)| file.clone())
            .collect();
        let mut result = Ok(());
        for file in files {
            file.flush();
            if let Some(reason) = lock(&file.sink).error.clone() {
                result = result.and(Err(Error::InvalidSetting { reason }));
            }
        }
        result
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        if OFF.load(Ordering::Relaxed) {
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

impl LogFile {
    /// The log of this process with this name, for one more manager. Begun anew by the first one.
    fn attach(path: PathBuf) -> Arc<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler stores to an atomic, which is all that a forked child may safely do.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // SAFETY: the handler may run at any point of the process's exit: it waits for no lock for long.
            unsafe { libc::atexit(at_exit) };
            WRITER.start();
        });
        let mut files = lock(&FILES);
        let known = files.iter().find(|file| file.path == path).cloned();
        let file = known.unwrap_or_else(|| {
            let file = Arc::new(Self {
                path,
                buffer: Mutex::default(),
                sink: Mutex::default(),
                ended: AtomicBool::new(false),
            });
            files.push(file.clone());
            file
        });
        drop(files);
        let mut sink = lock(&file.sink);
        sink.users = sink.users.saturating_add(1);
        if sink.file.is_none() && sink.error.is_none() {
            match open(&file.path, sink.begun) {
                Ok((opened, whole)) => {
                    (sink.file, sink.whole) = (Some(opened), whole);
                    if !std::mem::replace(&mut sink.begun, true) {
                        lock(&file.buffer).extend_from_slice(HEADER);
                        WRITER.wake(false);
                    }
                }
                Err(why) => {
                    let path = file.path.display();
                    let reason = format!(
                        "the log {path} cannot be written: {why}; set log_file (MEMMGR_LOG_FILE) to a file in a folder that is there and can be written"
                    );
                    file.end(sink, reason);
                    return file;
                }
            }
        }
        drop(sink);
        file
    }

    /// One manager less.
    fn detach(&self) {
        self.flush();
        let mut sink = lock(&self.sink);
        sink.users = sink.users.saturating_sub(1);
        if sink.users == 0 {
            // Another manager may have added a line, but none has the log any more.
            sink.file = None;
        }
    }

    /// Writes out what is buffered, in order. No lock may be held.
    fn flush(&self) {
        self.write(lock(&self.sink));
    }

    fn write(&self, mut sink: MutexGuard<'_, Sink>) {
        let lines = std::mem::take(&mut *lock(&self.buffer));
        let Sink { file, whole, .. } = &mut *sink;
        let Some(file) = file.as_mut().filter(|_| !lines.is_empty()) else {
            return;
        };
        let Err(error) = file.write_all(&lines) else {
            *whole = whole.saturating_add(lines.len() as u64);
            return;
        };
        // What is there is to be read: half a line is not.
        if file.metadata().is_ok_and(|found| found.is_file()) {
            let _ = file.set_len(*whole);
        }
        let path = self.path.display();
        let reason = format!(
            "the log {path} ends here, as it cannot be written: {error}; make room there, or set log_file (MEMMGR_LOG_FILE) to a file elsewhere"
        );
        self.end(sink, reason);
    }

    /// Nothing is written any more.
    fn end(&self, mut sink: MutexGuard<'_, Sink>, reason: String) {
        self.ended.store(true, Ordering::Relaxed);
        sink.file = None;
        sink.error = Some(reason.clone());
        drop(sink);
        *lock(&self.buffer) = Vec::new();
        foreign::log(|| {
            if tracing::enabled!(tracing::Level::WARN) {
                tracing::warn!("{reason}");
            } else {
                // Who asked for a log by a variable, of a program that shows no warnings, is to know it all the same.
                let _ = writeln!(std::io::stderr(), "memmgr: {reason}");
            }
        });
    }
}

/// Opens a log that no other process writes, and how long it is.
fn open(path: &Path, goes_on: bool) -> Result<(File, u64), String> {
    let said = |error: std::io::Error| error.to_string();
    let file = OpenOptions::new().append(true).create(true).open(path);
    let file = file.map_err(said)?;
    let found = file.metadata().map_err(said)?;
    if !found.is_file() {
        return Ok((file, 0));
    }
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = std::io::Error::last_os_error();
        // Some file systems have no locks.
        if error.raw_os_error() == Some(libc::EWOULDBLOCK) {
            return Err(
                "another process writes it: %p in the name is the number of the process".into(),
            );
        }
    }
    if goes_on {
        return Ok((file, found.len()));
    }
    file.set_len(0).map_err(said)?;
    Ok((file, 0))
}

/// The one thread that writes logs.
struct Writer {
    state: Mutex<Due>,
    /// Signalled when a line is the first in its buffer, and when there are many.
    news: Condvar,
}

struct Due {
    any: bool,
    now: bool,
}

impl Writer {
    fn start(&'static self) {
        let started = thread::Builder::new()
            .name("memmgr-log".into())
            .spawn(|| self.run());
        if let Err(error) = started {
            foreign::log(
                || tracing::warn!(%error, "logs are written late: their thread cannot be started"),
            );
        }
    }

    fn wake(&self, now: bool) {
        let mut due = lock(&self.state);
        due.any = true;
        due.now |= now;
        drop(due);
        self.news.notify_one();
    }

    fn run(&self) {
        loop {
            let mut due = lock(&self.state);
            while !due.any {
                due = (self.news.wait(due)).unwrap_or_else(PoisonError::into_inner);
            }
            if !due.now {
                due = (self.news.wait_timeout_while(due, PAUSE, |due| !due.now))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            (due.any, due.now) = (false, false);
            drop(due);
            let files = lock(&FILES).clone();
            for file in files {
                file.flush();
            }
        }
    }
}

extern "C" fn in_child() {
    OFF.store(true, Ordering::Relaxed);
}

/// Writes out what is buffered. A thread that holds a lock now may never let it go.
extern "C" fn at_exit() {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let patiently = |f: &dyn Fn() -> bool| {
        (0..200).any(|_| {
            f() || {
                std::thread::sleep(Duration::from_millis(5));
                false
            }
        })
    };
    patiently(&|| {
        let Ok(files) = FILES.try_lock() else {
            return false;
        };
        for file in files.iter() {
            patiently(&|| {
                let Ok(sink) = file.sink.try_lock() else {
                    return false;
                };
                file.write(sink);
                true
            });
        }
        true
    });
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
