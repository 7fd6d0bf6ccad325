//! A random program: a list of steps, each of which makes sense (or does nothing) wherever it stands, so that any part of
//! the list is a program too.

use super::oracle::BYTES;

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds begin far apart.
        let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Random((x ^ (x >> 31)) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// What a program is made to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// What would race is ordered first, or left out.
    RaceFree,
    /// The same, but for one step.
    Planted,
    /// Whatever comes.
    Wild,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Device(usize),
    Pinned,
    Pageable,
    /// Device memory that an imagined allocator hands out in four blocks.
    Pool,
    /// Page-locked memory likewise, reported as a segment: only blocks in use may be touched.
    Segment,
    /// A place at which one of two pieces of physical memory may be mapped.
    Slot(usize),
    /// Memory that the program allocated.
    Block(usize),
}

/// Rows of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub memory: Memory,
    pub at: usize,
    pub width: usize,
    pub height: usize,
    pub pitch: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum By {
    Host,
    /// The step's lane, by its id.
    Id,
    /// The step's lane, by its handle.
    Handle,
    /// A stream that was destroyed.
    Gone,
    Nobody,
}

#[derive(Clone, Debug)]
pub enum What {
    Fill(Span, bool),
    /// To, from, plain.
    Copy(Span, Span, bool),
    Peer(Span, Span),
    Kernel(Span, Span),
    HostFunction(Span, Span),
    SilentHostFunction,
    HostRead(Span),
    HostWrite(Span),
    Record(usize),
    Wait(usize),
    EventSynchronize(usize),
    EventQuery(usize),
    Elapsed,
    NewEvent(usize),
    StreamSynchronize,
    StreamQuery,
    DeviceSynchronize(usize),
    NewStream,
    /// The step's thread ends, and another one takes its place.
    NewThread,
    MallocAsync,
    Malloc,
    HostAlloc,
    FreeAsync(usize),
    Free(usize),
    /// A report about a block; in the segment?
    ReportAllocation(usize, By, bool),
    ReportFree(usize, By, bool),
    /// Unmaps a slot and maps a piece of physical memory there.
    Map(usize, usize),
    Capture(usize, Vec<(Span, Option<Span>)>),
    Launch(usize),
    /// A host function tells its moment; what the host, or that lane, does comes after it.
    Tell(Option<usize>),
}

/// How a careful program makes an order that is missing.
#[derive(Clone, Copy, Debug)]
pub enum Repair {
    Event,
    /// An event, waited for by another lane, and an event of that.
    Chain(usize),
    StreamSynchronize,
    StreamQuery,
    EventSynchronize,
    EventQuery,
    DeviceSynchronize,
    LeaveOut,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub thread: usize,
    pub lane: usize,
    pub what: What,
    pub repair: Repair,
    /// Whether the race may be planted here, or later.
    pub may_race: bool,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub mode: Mode,
    /// Which of the lanes that there can be (`run.rs`) there are, beside the first.
    pub lanes: Vec<usize>,
    pub steps: Vec<Step>,
}

pub const LANES: usize = 14;
pub const THREADS: usize = 3;
pub const EVENTS: usize = 6;
pub const SLOTS: usize = 3;
pub const GRAPHS: usize = 2;
pub const DEVICES: usize = 2;

fn span(r: &mut Random, memory: Memory, plain: bool) -> Span {
    let flat = plain || r.below(3) > 0;
    let (width, height) = match flat {
        true => (1 + r.below(24), 1),
        false => (1 + r.below(6), 1 + r.below(8)),
    };
    shaped(r, memory, width, height)
}

fn shaped(r: &mut Random, memory: Memory, width: usize, height: usize) -> Span {
    let pitch = match height {
        1 => width,
        _ => width + r.below(10),
    };
    let extent = pitch * (height - 1) + width;
    let at = r.below(BYTES - extent);
    Span {
        memory,
        at,
        width,
        height,
        pitch,
    }
}

fn device_memory(r: &mut Random) -> Memory {
    match r.below(12) {
        0..5 => Memory::Device(0),
        5 => Memory::Device(1),
        6 | 7 => Memory::Pool,
        8 => Memory::Slot(r.below(SLOTS)),
        _ => Memory::Block(r.below(8)),
    }
}

fn locked_memory(r: &mut Random) -> Memory {
    r.one(&[Memory::Pinned, Memory::Pinned, Memory::Segment])
}

fn any_memory(r: &mut Random) -> Memory {
    match r.below(8) {
        0..4 => device_memory(r),
        4..7 => locked_memory(r),
        _ => Memory::Pageable,
    }
}

fn graph_memory(r: &mut Random) -> Memory {
    r.one(&[Memory::Device(0), Memory::Pool, Memory::Pinned])
}

fn what(r: &mut Random, churn: bool) -> What {
    match r.below(if churn { 110 } else { 100 }) {
        0..9 => {
            let plain = r.below(6) == 0;
            let memory = match r.below(8) {
                0 => locked_memory(r),
                _ => device_memory(r),
            };
            What::Fill(span(r, memory, plain), plain)
        }
        9..26 => {
            let (to, from) = (any_memory(r), any_memory(r));
            let plain = r.below(4) == 0;
            let to = span(r, to, false);
            let from = shaped(r, from, to.width, to.height);
            What::Copy(to, from, plain)
        }
        26 => {
            let to = span(r, Memory::Device(1), true);
            What::Peer(to, shaped(r, Memory::Device(0), to.width, 1))
        }
        27..31 => {
            let (x, y) = (device_memory(r), device_memory(r));
            What::Kernel(span(r, x, true), span(r, y, true))
        }
        31..34 => {
            let host = [Memory::Pinned, Memory::Pageable, Memory::Segment];
            let (x, y) = (r.one(&host), r.one(&host));
            What::HostFunction(span(r, x, true), span(r, y, true))
        }
        34 => What::SilentHostFunction,
        35 | 36 => {
            let memory = r.one(&[Memory::Pinned, Memory::Pageable, Memory::Segment]);
            What::HostRead(span(r, memory, true))
        }
        37 | 38 => {
            let memory = r.one(&[Memory::Pinned, Memory::Pageable, Memory::Segment]);
            What::HostWrite(span(r, memory, true))
        }
        39..44 => What::Record(r.below(EVENTS)),
        44..49 => What::Wait(r.below(EVENTS)),
        49 => What::EventSynchronize(r.below(EVENTS)),
        50 | 51 => What::EventQuery(r.below(EVENTS)),
        52 => What::Elapsed,
        53 => What::NewEvent(r.below(EVENTS)),
        54 => What::StreamSynchronize,
        55..58 => What::StreamQuery,
        58 if r.below(4) == 0 => What::DeviceSynchronize(r.below(DEVICES)),
        58 if r.below(2) == 0 => What::NewThread,
        58 | 59 => What::NewStream,
        60..63 => What::MallocAsync,
        63 => What::Malloc,
        64 => What::HostAlloc,
        65 | 66 => What::FreeAsync(r.below(8)),
        67 => What::Free(r.below(8)),
        68..78 => {
            let by = r.one(&[By::Host, By::Id, By::Id, By::Handle]);
            What::ReportAllocation(r.below(4), by, r.below(2) == 0)
        }
        78..87 => {
            let by = r.one(&[By::Host, By::Id, By::Id, By::Handle, By::Gone, By::Nobody]);
            What::ReportFree(r.below(4), by, r.below(2) == 0)
        }
        87..91 => What::Map(r.below(SLOTS), r.below(2)),
        91 | 92 => {
            let nodes = (0..1 + r.below(3))
                .map(|_| {
                    let to = graph_memory(r);
                    let to = span(r, to, false);
                    let from = graph_memory(r);
                    let copy = r.below(2) == 0;
                    (to, copy.then(|| shaped(r, from, to.width, to.height)))
                })
                .collect();
            What::Capture(r.below(GRAPHS), nodes)
        }
        93..98 => What::Launch(r.below(GRAPHS)),
        98 | 99 => What::Tell((r.below(3) > 0).then(|| r.below(LANES))),
        _ => What::NewStream,
    }
}

impl Program {
    /// The program of a seed.
    pub fn new(seed: u64) -> Program {
        let mut r = Random::new(seed);
        let mode = match seed % 5 {
            0 | 1 => Mode::RaceFree,
            2 | 3 => Mode::Planted,
            _ => Mode::Wild,
        };
        let few = r.below(3) == 0;
        let lanes = (1..LANES)
            .filter(|_| r.below(if few { 5 } else { 2 }) == 0)
            .collect();
        // Now and then a long one, with many streams that come and go.
        let long = mode != Mode::Wild && r.below(40) == 0;
        let count = match (long, mode) {
            (true, _) => 800,
            (_, Mode::Wild) => 5 + r.below(30),
            _ => 10 + r.below(90),
        };
        let plant_at = match mode {
            Mode::Planted => r.below(count / 2 + 1),
            _ => usize::MAX,
        };
        let steps = (0..count)
            .map(|now| Step {
                may_race: now >= plant_at,
                thread: r.below(THREADS),
                lane: r.below(LANES),
                what: what(&mut r, long),
                repair: r.one(&[
                    Repair::Event,
                    Repair::Event,
                    Repair::Event,
                    Repair::Chain(3),
                    Repair::Chain(5),
                    Repair::StreamSynchronize,
                    Repair::StreamQuery,
                    Repair::EventSynchronize,
                    Repair::EventQuery,
                    Repair::DeviceSynchronize,
                    Repair::LeaveOut,
                    Repair::LeaveOut,
                ]),
            })
            .collect();
        Program { mode, lanes, steps }
    }
}
