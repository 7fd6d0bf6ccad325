//! Who wakes those who await points in streams: one thread, which lives only while something is awaited, and a second more.
//!
//! For the oldest awaited point of each stream a host function (a *bell*) lies behind the point's event, in a stream of
//! the watchdog's own, so that the awaited stream is not held up and no queue fills: one bell a stream, however many
//! points are awaited. A bell makes no CUDA call and runs no waker, since that may be anybody's code: it only tells the
//! thread, which queries the points in order and wakes whoever awaits those that are done.
//!
//! Host functions are not called once a context is broken, and there are only so many bells. So the thread also queries
//! the oldest points by itself, at growing intervals. It queries in the relaxed capture mode, which ends nobody's
//! capture, and neither locks nor CUDA calls are held or made while a waker runs.

use crate::{
    cuda::{self, RawStream},
    error::{Error, Result},
    event::Fence,
    foreign, process,
    sync::{Condvar, Mutex, lock, thread},
};
use cuda_sys as sys;
use std::{
    collections::BTreeMap,
    ffi::c_void,
    fmt,
    sync::{Arc, PoisonError},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

/// How long the thread stays when nothing is awaited.
const LINGER: Duration = Duration::from_secs(1);
/// The shortest and the longest time between two queries of everything that is awaited.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);
/// The longest, while some stream has no bell.
const LONGEST_UNBELLED: Duration = Duration::from_millis(4);
/// How many bells a device has. Streams beyond that are queried only.
const BELLS: usize = 16;
/// After so many failures nobody tries to make bells any more.
const FAILURES: u32 = 3;

static STATE: Mutex<Watched> = Mutex::new(Watched {
    runs: false,
    news: false,
    next: None,
    pause: SHORTEST,
    lines: BTreeMap::new(),
    bells: Vec::new(),
    founding: false,
    failures: 0,
    last_key: 0,
});
static NEWS: Condvar = Condvar::new();

/// Everything that is awaited.
struct Watched {
    /// Whether the thread lives.
    runs: bool,
    /// Whether some line is to be looked at.
    news: bool,
    /// When all lines are looked at next.
    next: Option<Instant>,
    pause: Duration,
    /// What is awaited, by the stream's uid.
    lines: BTreeMap<u64, Line>,
    bells: Vec<Bell>,
    /// Whether a thread is making a bell.
    founding: bool,
    failures: u32,
    last_key: u64,
}

/// What is awaited in one stream, oldest first.
#[derive(Default)]
struct Line {
    waits: BTreeMap<Key, Arc<Wait>>,
    /// Whether a bell lies behind one of its points.
    belled: bool,
    look: bool,
}

/// When the point was recorded, on the stream's clock; and a number that makes it unique.
type Key = (u64, u64);

/// A stream that only host functions run in. Never destroyed: it is used again.
struct Bell {
    stream: RawStream,
    device: i32,
    /// Whom it rings for; `None`: it is free.
    line: Option<u64>,
}

/// Somebody who awaits a point.
struct Wait {
    fence: Arc<Fence>,
    slot: Mutex<Slot>,
}

enum Slot {
    Pending(Waker),
    Over(Result<()>),
}

/// A point that is awaited; no more once this is dropped.
pub(crate) struct Awaited {
    wait: Arc<Wait>,
    line: u64,
    key: Key,
}

/// Wakes `waker` when the fence has been passed. `None` if there is no thread to do so.
pub(crate) fn watch(fence: &Arc<Fence>, waker: &Waker) -> Option<Awaited> {
    let wait = Arc::new(Wait {
        fence: fence.clone(),
        slot: Mutex::new(Slot::Pending(waker.clone())),
    });
    let line = fence.core().uid;
    let mut state = lock(&STATE);
    state.last_key += 1;
    let key = (fence.ended(), state.last_key);
    let awaited = Awaited {
        wait: wait.clone(),
        line,
        key,
    };
    let known = state.lines.entry(line).or_default();
    known.waits.insert(key, wait);
    // Behind an older point there is nothing to look at yet.
    let oldest = known.waits.first_key_value().map(|(key, _)| *key) == Some(key);
    known.look |= oldest;
    state.news |= oldest;
    if oldest {
        state.soon();
    }
    let starts = !std::mem::replace(&mut state.runs, true);
    drop(state);
    if starts {
        let thread = thread::Builder::new().name("memmgr-watchdog".into());
        if thread.spawn(run).is_err() {
            drop(awaited);
            give_up();
            return None;
        }
    }
    NEWS.notify_all();
    Some(awaited)
}

/// No thread could be started: whoever counts on one is told.
fn give_up() {
    let mut state = lock(&STATE);
    state.runs = false;
    let lines = std::mem::take(&mut state.lines);
    drop(state);
    for wait in lines
        .into_values()
        .flat_map(|line| line.waits.into_values())
    {
        let reason = "no thread could be started that watches what is awaited".into();
        if let Some(waker) = wait.end(Err(Error::Unsupported { reason })) {
            wake(waker);
        }
    }
}

/// Runs what may be anybody's code: wakers, and whoever listens to the log.
fn wake(waker: Waker) {
    foreign::report("a waker", || waker.wake());
}

impl Watched {
    /// Everything is looked at before long.
    fn soon(&mut self) {
        self.pause = SHORTEST;
        let soon = Instant::now() + SHORTEST;
        self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
    }

    fn remove(&mut self, line: u64, key: &Key) -> Option<Arc<Wait>> {
        let known = self.lines.get_mut(&line)?;
        let wait = known.waits.remove(key);
        if known.waits.is_empty() {
            self.lines.remove(&line);
        }
        wait
    }

    /// The lines to look at now; none if the thread is to end.
    fn wait_for_news() -> Option<Vec<u64>> {
        let mut state = lock(&STATE);
        loop {
            let now = Instant::now();
            if state.lines.is_empty() {
                let (after, wait) = NEWS
                    .wait_timeout(state, LINGER)
                    .unwrap_or_else(PoisonError::into_inner);
                state = after;
                if wait.timed_out() && state.lines.is_empty() {
                    state.runs = false;
                    return None;
                }
                continue;
            }
            let next = *state.next.get_or_insert(now + SHORTEST);
            if next <= now {
                state.news = true;
                let belled = state.lines.values().all(|line| line.belled);
                let longest = if belled { LONGEST } else { LONGEST_UNBELLED };
                state.next = Some(now + state.pause);
                state.pause = (state.pause * 2).min(longest);
                state.lines.values_mut().for_each(|line| line.look = true);
            }
            if std::mem::take(&mut state.news) {
                let looks = state.lines.iter_mut();
                return Some(
                    looks
                        .filter_map(|(uid, line)| std::mem::take(&mut line.look).then_some(*uid))
                        .collect(),
                );
            }
            state = NEWS
                .wait_timeout(state, next.saturating_duration_since(now))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// The thread.
fn run() {
    let mut current = None;
    while let Some(lines) = Watched::wait_for_news() {
        for line in lines {
            look(line, &mut current);
        }
    }
}

/// Wakes whoever awaits a point of this line that is done, or of which nothing will be known any more.
fn look(line: u64, current: &mut Option<i32>) {
    let mut wakers = Vec::new();
    loop {
        let oldest = lock(&STATE)
            .lines
            .get(&line)
            .and_then(|line| line.waits.first_key_value())
            .map(|(key, wait)| (*key, wait.clone()));
        let Some((key, wait)) = oldest else { break };
        let device = wait.fence.core().device();
        // So that no context comes into being on a device where nothing was asked.
        if *current != Some(device) {
            *current = cuda::set_device(device).is_ok().then_some(device);
        }
        let over = match wait.fence.query() {
            Ok(true) => Ok(()),
            Ok(false) => {
                arm(line, &wait.fence);
                break;
            }
            Err(error) => Err(error),
        };
        lock(&STATE).remove(line, &key);
        wakers.extend(wait.end(over));
    }
    if !wakers.is_empty() {
        // They may make another device current.
        *current = None;
    }
    wakers.into_iter().for_each(wake);
}

/// Puts a bell behind a point, if the line has none and one is free.
fn arm(line: u64, fence: &Fence) {
    let Some(event) = fence.raw_event() else {
        return;
    };
    let device = fence.core().device();
    let (at, stream) = {
        let mut state = lock(&STATE);
        let Watched { lines, bells, .. } = &mut *state;
        let Some(known) = lines.get_mut(&line).filter(|known| !known.belled) else {
            return;
        };
        let mut mine = bells.iter_mut().enumerate();
        let Some((at, bell)) = mine.find(|(_, bell)| bell.device == device && bell.line.is_none())
        else {
            drop(state);
            return found(device);
        };
        bell.line = Some(line);
        known.belled = true;
        (at, bell.stream)
    };
    // SAFETY: bells are never destroyed, nor are pooled events, and the fence keeps this one from being recorded anew.
    let armed = unsafe { cuda::stream_wait_event(stream, event) }.and_then(|()| {
        // SAFETY: bells are never destroyed; `ring` reads its argument as a number, may run on any thread at any time, and
        // makes no CUDA call.
        unsafe { cuda::launch_host_func(stream, ring, std::ptr::without_provenance_mut(at)) }
    });
    if armed.is_err() {
        free_bell(&mut lock(&STATE), at);
    }
}

/// The bell is free, and its line has none; which line it was.
fn free_bell(state: &mut Watched, at: usize) -> Option<u64> {
    let line = state.bells.get_mut(at)?.line.take()?;
    if let Some(known) = state.lines.get_mut(&line) {
        known.belled = false;
    }
    Some(line)
}

/// The host function: tells the thread that a line is worth a look.
unsafe extern "C" fn ring(at: *mut c_void) {
    let mut state = lock(&STATE);
    let line = free_bell(&mut state, at.addr());
    if let Some(known) = line.and_then(|line| state.lines.get_mut(&line)) {
        known.look = true;
        state.news = true;
        NEWS.notify_all();
    }
}

/// Makes one more bell, on a thread of its own: as long as any stream's queue is full, no stream can be made.
fn found(device: i32) {
    {
        let mut state = lock(&STATE);
        let bells = state.bells.iter().filter(|bell| bell.device == device);
        if state.founding || state.failures >= FAILURES || bells.count() >= BELLS {
            return;
        }
        state.founding = true;
    }
    let make = move || {
        let made = cuda::set_device(device)
            .and_then(|()| cuda::stream_create(sys::cudaStreamNonBlocking, 0));
        let mut state = lock(&STATE);
        state.founding = false;
        match made {
            Ok(stream) => {
                state.bells.push(Bell {
                    stream,
                    device,
                    line: None,
                });
                for line in state.lines.values_mut() {
                    line.look |= !line.belled;
                }
                state.news = true;
                NEWS.notify_all();
            }
            Err(_) => state.failures += 1,
        }
    };
    let thread = thread::Builder::new().name("memmgr-founder".into());
    if thread.spawn(make).is_err() {
        let mut state = lock(&STATE);
        state.founding = false;
        state.failures += 1;
    }
}

impl Wait {
    /// Nothing more will be known; whom to wake.
    fn end(&self, how: Result<()>) -> Option<Waker> {
        match std::mem::replace(&mut *lock(&self.slot), Slot::Over(how)) {
            Slot::Pending(waker) => Some(waker),
            Slot::Over(_) => None,
        }
    }
}

impl Awaited {
    /// What is known; otherwise `waker` is woken when more is.
    pub fn poll(&self, waker: &Waker) -> Poll<Result<()>> {
        // In a forked child the locks may be held by a thread that does not exist.
        if process::is_forked() {
            return Poll::Ready(Err(Error::ForkedChild));
        }
        // Wakers may be anybody's code: they are copied and dropped while no lock is held.
        let mut other = waker.clone();
        match &mut *lock(&self.wait.slot) {
            Slot::Over(how) => Poll::Ready(how.clone()),
            Slot::Pending(known) => {
                std::mem::swap(known, &mut other);
                Poll::Pending
            }
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // What is removed may hold the last use of an event, which goes without the lock.
        let removed = lock(&STATE).remove(self.line, &self.key);
        let waker = self.wait.end(Ok(()));
        drop((removed, waker));
    }
}

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fence.fmt(f)
    }
}
