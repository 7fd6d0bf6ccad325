//! The files of logs: what is buffered, the thread that writes it out, and what forks and exits do to both.

use crate::foreign;
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

/// How long a line may wait.
const PAUSE: Duration = Duration::from_millis(500);
/// How many bytes are worth a write at once.
const FULL: usize = 64 << 10;
/// From how many bytes on whoever adds a line writes, too.
const MOST: usize = 8 << 20;

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

/// Whether this is a forked child: nothing is to be done, nor waited for.
pub(super) fn is_off() -> bool {
    OFF.load(Ordering::Relaxed)
}

/// Locks; nothing under these locks panics.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One file.
pub(super) struct LogFile {
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

impl LogFile {
    /// The log of this process with this name, for one more manager. Begun anew, with `header`, by the first one.
    pub fn attach(path: PathBuf, header: &[u8]) -> Arc<Self> {
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
                        lock(&file.buffer).extend_from_slice(header);
                        WRITER.wake(false);
                    }
                }
                Err(why) => {
                    let path = file.path.display();
                    let reason = format!("the log {path} cannot be written: {why}");
                    file.end(sink, reason);
                    return file;
                }
            }
        }
        drop(sink);
        file
    }

    /// Adds what `line` writes, unless nothing is written any more.
    pub fn append(&self, line: impl FnOnce(&mut Vec<u8>)) {
        if self.ended.load(Ordering::Relaxed) {
            return;
        }
        let mut buffer = lock(&self.buffer);
        let before = buffer.len();
        line(&mut buffer);
        let after = buffer.len();
        drop(buffer);
        if before == 0 {
            WRITER.wake(false);
        }
        if before < FULL && after >= FULL {
            WRITER.wake(true);
        }
        if after >= MOST {
            self.flush();
        }
    }

    /// Why nothing is written any more.
    pub fn error(&self) -> Option<String> {
        lock(&self.sink).error.clone()
    }

    /// One manager less.
    pub fn detach(&self) {
        self.flush();
        let mut sink = lock(&self.sink);
        sink.users = sink.users.saturating_sub(1);
        if sink.users == 0 {
            // Another manager may have added a line, but none has the log any more.
            sink.file = None;
        }
    }

    /// Writes out what is buffered, in order. No lock may be held.
    pub fn flush(&self) {
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
    let said = |error: std::io::Error| {
        format!(
            "{error}; set log_file (MEMMGR_LOG_FILE) to a file in a folder that is there and can be written"
        )
    };
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
                "another process writes it; %p in its name (MEMMGR_LOG_FILE) stands for the number of the process, so that each has its own".into(),
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
    if is_off() {
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
