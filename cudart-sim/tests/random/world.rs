//! What a random program runs on: threads that take turns, streams of every kind on two devices, memory of every kind.

use super::cuda::{self, CHUNK};
use super::oracle::{BYTES, Set, Touch};
use super::program::{DEVICES, EVENTS, GRAPHS, LANES, Memory, SLOTS, Span, THREADS};
use super::programs::*;
use cudart_sim::sys;
use std::cell::RefCell;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// A thread, with default streams of its own.
struct Helper {
    work: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    thread: JoinHandle<()>,
}

impl Helper {
    fn new() -> Helper {
        let (work, receive) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::spawn(move || receive.into_iter().for_each(|f| f()));
        Helper { work, thread }
    }
}

/// The threads: the first is the caller's.
pub struct Threads(Vec<RefCell<Helper>>);

impl Threads {
    pub fn new() -> Threads {
        let helpers = (1..THREADS).map(|_| RefCell::new(Helper::new()));
        Threads(helpers.collect())
    }

    /// A thread ends, and its default streams with it; another one takes its place. Not the first.
    pub fn renew(&self, thread: usize) {
        let old = self.0[thread - 1].replace(Helper::new());
        drop(old.work);
        old.thread.join().unwrap();
    }

    /// Runs something on a thread whose device is that one, and waits for it.
    pub fn on<T: Send + 'static>(
        &self,
        thread: usize,
        device: usize,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let f = move || {
            assert_eq!(cuda!(cudaSetDevice(device as i32)), 0);
            f()
        };
        match thread.checked_sub(1) {
            None => f(),
            Some(helper) => {
                let (send, receive) = mpsc::channel();
                let run = Box::new(move || drop(send.send(f())));
                self.0[helper].borrow().work.send(run).unwrap();
                receive.recv().unwrap()
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NonBlocking,
    Blocking,
    Legacy,
    PerThread(usize),
}

/// A stream.
#[derive(Clone, Debug)]
pub struct Lane {
    pub kind: Kind,
    pub device: usize,
    pub handle: usize,
    pub id: u64,
    pub last: Option<usize>,
}

impl Lane {
    pub fn blocks(&self) -> bool {
        matches!(self.kind, Kind::Blocking | Kind::PerThread(_))
    }

    pub fn thread(&self, wanted: usize) -> usize {
        match self.kind {
            Kind::PerThread(thread) => thread,
            _ => wanted,
        }
    }
}

pub fn lane(threads: &Threads, kind: Kind, device: usize) -> Lane {
    let thread = match kind {
        Kind::PerThread(thread) => thread,
        _ => 0,
    };
    let (handle, id) = threads.on(thread, device, move || {
        let handle = match kind {
            Kind::NonBlocking => stream(),
            Kind::Blocking => blocking_stream(),
            Kind::Legacy => LEGACY,
            Kind::PerThread(_) => PER_THREAD,
        };
        (handle as usize, id(handle))
    });
    Lane {
        kind,
        device,
        handle,
        id,
        last: None,
    }
}

const KINDS: [(Kind, usize); LANES] = [
    (Kind::Legacy, 0),
    (Kind::NonBlocking, 0),
    (Kind::NonBlocking, 0),
    (Kind::Blocking, 0),
    (Kind::Blocking, 0),
    (Kind::NonBlocking, 0),
    (Kind::PerThread(0), 0),
    (Kind::PerThread(1), 0),
    (Kind::PerThread(2), 0),
    (Kind::Legacy, 1),
    (Kind::NonBlocking, 1),
    (Kind::Blocking, 1),
    (Kind::PerThread(1), 1),
    (Kind::NonBlocking, 1),
];

pub struct Event {
    pub handle: usize,
    pub device: usize,
    pub timing: bool,
    pub recorded: Option<usize>,
}

pub fn new_event(threads: &Threads, place: usize) -> Event {
    let (device, timing) = (place % DEVICES, place >= 4);
    let handle = threads.on(0, device, move || {
        let mut e = null_mut();
        let flags = if timing {
            0
        } else {
            sys::cudaEventDisableTiming
        };
        assert_eq!(cuda!(cudaEventCreateWithFlags(&mut e, flags)), 0);
        e as usize
    });
    Event {
        handle,
        device,
        timing,
        recorded: None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    MallocAsync,
    Malloc,
    HostAlloc,
}

#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub at: usize,
    pub buffer: usize,
    pub source: Source,
    pub device: usize,
}

pub struct Graph {
    pub graph: usize,
    pub exec: usize,
    pub touches: Vec<Touch>,
    pub last: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Device,
    Locked,
    Pageable,
}

const PINNED: usize = 2;
const PAGEABLE: usize = 3;
pub const POOL: usize = 4;
pub const SEGMENT: usize = 5;
/// Two pieces of physical memory.
pub const PHYSICAL: usize = 6;
/// The blocks of the imagined allocators.
pub const BLOCK: usize = BYTES / 4;

/// Everything that a program has.
pub struct World {
    pub lanes: Vec<Lane>,
    pub events: Vec<Event>,
    pub blocks: Vec<Block>,
    pub graphs: Vec<Option<Graph>>,
    pub capture: usize,
    /// Where the memory that everybody has lies, by its number.
    fixed: [usize; 6],
    _pageable: Box<[u8]>,
    pub live: [bool; 4],
    pub physical: [u64; 2],
    /// Addresses, and which piece of physical memory is mapped there.
    pub slots: [(u64, Option<usize>); SLOTS],
    pub buffers: usize,
}

impl World {
    pub fn new(threads: &Threads, lanes: &[usize]) -> World {
        let mut pageable = vec![0u8; BYTES].into_boxed_slice();
        let on = |device| threads.on(0, device, || malloc(BYTES) as usize);
        let fixed = [
            on(0),
            on(1),
            pinned(BYTES) as usize,
            pageable.as_mut_ptr() as usize,
            on(0),
            pinned(BYTES) as usize,
        ];
        cudart_sim::on_segment(fixed[SEGMENT] as Pointer, BYTES, true);
        let used = std::iter::once(&0).chain(lanes).map(|l| KINDS[*l]);
        World {
            lanes: used.map(|(kind, d)| lane(threads, kind, d)).collect(),
            events: (0..EVENTS).map(|e| new_event(threads, e)).collect(),
            blocks: Vec::new(),
            graphs: (0..GRAPHS).map(|_| None).collect(),
            capture: 0,
            fixed,
            _pageable: pageable,
            live: [false; 4],
            physical: [0; 2],
            slots: [(0, None); SLOTS],
            buffers: PHYSICAL + 2,
        }
    }

    pub fn map(&mut self, slot: usize, piece: usize) {
        if self.physical[0] == 0 {
            self.physical = [cuda::create(CHUNK), cuda::create(CHUNK)];
            self.slots = [(); SLOTS].map(|()| (cuda::reserve(CHUNK), None));
        }
        let (at, mapped) = self.slots[slot];
        if mapped.is_some() {
            assert_eq!(cuda::unmap(at, CHUNK), 0);
        }
        assert_eq!(cuda::map(at, CHUNK, 0, self.physical[piece]), 0);
        assert_eq!(cuda::access(at, CHUNK, 3), 0);
        self.slots[slot].1 = Some(piece);
    }

    fn block(&self, n: usize) -> Option<Block> {
        let count = self.blocks.len();
        (count > 0).then(|| self.blocks[n % count])
    }

    /// Where memory lies, its number, and what kind it is. None: there is none now, or that device does not reach it.
    pub fn find(&self, memory: Memory, device: usize) -> Option<(usize, usize, Class)> {
        Some(match memory {
            Memory::Device(d) => (self.fixed[d], d, Class::Device),
            Memory::Pinned => (self.fixed[PINNED], PINNED, Class::Locked),
            Memory::Pageable => (self.fixed[PAGEABLE], PAGEABLE, Class::Pageable),
            Memory::Pool => (self.fixed[POOL], POOL, Class::Device),
            Memory::Segment => (self.fixed[SEGMENT], SEGMENT, Class::Locked),
            Memory::Slot(s) => {
                let (at, mapped) = self.slots[s];
                let piece = mapped.filter(|_| device == 0)?;
                (at as usize, PHYSICAL + piece, Class::Device)
            }
            Memory::Block(n) => {
                let block = self.block(n)?;
                let class = match block.source {
                    Source::HostAlloc => Class::Locked,
                    _ => Class::Device,
                };
                (block.at, block.buffer, class)
            }
        })
    }

    /// What an access to these rows is, and whether it is a mistake whatever the order is: rows of the segment that no
    /// block in use covers. Those rows count for nothing else.
    pub fn touch(&self, span: Span, write: bool, device: usize) -> Option<(Touch, bool)> {
        let (_, buffer, _) = self.find(span.memory, device)?;
        let (mut bytes, mut wrong) = (Set::default(), false);
        // Rows without gaps are one row.
        let (width, height) = match span.pitch == span.width {
            true => (span.width * span.height, 1),
            false => (span.width, span.height),
        };
        for row in 0..height {
            let first = span.at + row * span.pitch;
            let last = first + width - 1;
            let inside = first / BLOCK == last / BLOCK && self.live[first / BLOCK];
            if buffer == SEGMENT && !inside {
                wrong = true;
            } else {
                (first..=last).for_each(|b| bytes.add(b));
            }
        }
        let touch = Touch {
            buffer,
            bytes,
            write,
        };
        Some((touch, wrong))
    }

    pub fn pool(&self, segment: bool) -> (usize, usize) {
        let buffer = if segment { SEGMENT } else { POOL };
        (self.fixed[buffer], buffer)
    }
}
