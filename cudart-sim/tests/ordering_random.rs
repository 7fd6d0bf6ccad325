//! Random programs on several streams, judged by the ordering checker and by an oracle that shares nothing with it: a
//! graph of all operations, in which two accesses race if neither can be reached from the other. Both have to agree about
//! every single operation, under every schedule.

mod common;
#[path = "common/graph.rs"]
mod graph;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{
    By, Check, Schedule, host_read, host_write, launch, launch_host, on_allocate, on_free, sys,
};
use graph::{BYTES, Helper, Oracle, Random, Touch};
use programs::*;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    NonBlocking,
    Blocking,
    Legacy,
    PerThread,
    /// The default stream of another thread.
    Foreign,
}

#[derive(Clone, Copy)]
struct Lane {
    handle: sys::cudaStream_t,
    kind: Kind,
    id: u64,
    last: Option<usize>,
}

struct World {
    random: Random,
    helper: Helper,
    device: Pointer,
    pinned: Pointer,
    pool: Pointer,
    pageable: Vec<u8>,
    /// How many operations each stream has had, by id.
    counts: HashMap<u64, u64>,
    operations: usize,
}

struct Program {
    oracle: Oracle,
    lanes: Vec<Lane>,
    events: Vec<(sys::cudaEvent_t, Option<usize>)>,
    /// Stream-ordered memory that is in use, and its number as a buffer.
    blocks: Vec<(Pointer, usize)>,
    buffers: usize,
    /// Operations by stream and number.
    names: HashMap<(u64, u64), usize>,
    careful: bool,
    racy: bool,
}

impl Program {
    fn last(&self, kind: impl Fn(Kind) -> bool) -> Vec<Option<usize>> {
        let lanes = self.lanes.iter().filter(|l| kind(l.kind));
        lanes.map(|l| l.last).collect()
    }

    /// What an operation in a lane comes after.
    fn direct(&self, lane: usize) -> Vec<Option<usize>> {
        let mut direct = vec![self.lanes[lane].last, self.oracle.host];
        match self.lanes[lane].kind {
            Kind::NonBlocking => {}
            Kind::Legacy => {
                direct.extend(self.last(|k| !matches!(k, Kind::NonBlocking | Kind::Legacy)))
            }
            _ => direct.extend(self.last(|k| k == Kind::Legacy)),
        }
        direct
    }

    /// What a synchronisation with a lane waits for.
    fn ends(&self, lane: usize) -> Vec<Option<usize>> {
        let mut ends = vec![self.lanes[lane].last];
        if self.lanes[lane].kind == Kind::Legacy {
            ends.extend(self.last(|k| !matches!(k, Kind::NonBlocking | Kind::Legacy)));
        }
        ends
    }

    /// Compares the two judgements about what was just done.
    fn judge(&mut self, races: &[usize], what: &str) {
        let mut found = cudart_sim::report();
        // That a block is handed out twice is another matter.
        found.retain(|f| f.kind != cudart_sim::FindingKind::Overlap);
        assert_eq!(
            !found.is_empty(),
            !races.is_empty(),
            "{what}: the oracle says {races:?}, the checker {found:#?}"
        );
        for finding in &found {
            let first = finding.first.as_ref().unwrap();
            if let Some(id) = first.stream
                && let Some(node) = self.names.get(&(id, first.number))
            {
                assert!(races.contains(node), "{what}: no race: {finding}");
            }
        }
        self.racy |= !races.is_empty();
    }

    /// Submits something to a lane, if that is wanted, and compares. Returns its node.
    fn submit(
        &mut self,
        world: &mut World,
        lane: usize,
        touches: Vec<Touch>,
        more: Option<usize>,
        what: &str,
        call: impl FnOnce(sys::cudaStream_t) -> u32 + Send + 'static,
    ) -> Option<usize> {
        let mut before = self.oracle.closure(&self.direct(lane));
        let races = self.oracle.races(&before, &touches);
        if self.careful && !races.is_empty() {
            return None;
        }
        for (place, b) in self.oracle.closure(&[more]).iter().enumerate() {
            before[place] |= b;
        }
        let Lane {
            handle, kind, id, ..
        } = self.lanes[lane];
        let answer = if kind == Kind::Foreign {
            let handle = handle as usize;
            world.helper.run(move || call(handle as _))
        } else {
            call(handle)
        };
        assert_eq!(answer, 0, "{what}");
        let node = self.oracle.add(before, touches);
        self.lanes[lane].last = Some(node);
        let count = world.counts.entry(id).or_default();
        *count += 1;
        world.operations += 1;
        self.names.insert((id, *count), node);
        self.judge(&races, what);
        Some(node)
    }

    /// An allocator hands out a block in the order of a lane: a new point in it, but no operation, so that the rules
    /// of the default streams give it an order and give none to those that come after it.
    fn allocation(&mut self, lane: usize, touch: Touch, call: impl FnOnce(By)) {
        let seen = self.oracle.closure(&self.direct(lane));
        let races = self.oracle.races(&seen, std::slice::from_ref(&touch));
        if self.careful && !races.is_empty() {
            return;
        }
        call(By::StreamId(self.lanes[lane].id));
        let before = self
            .oracle
            .closure(&[self.lanes[lane].last, self.oracle.host]);
        self.lanes[lane].last = Some(self.oracle.add(before, vec![touch]));
        self.judge(&races, "allocation of a block");
    }

    /// An allocator takes a block back in the order of a lane: at its latest operation.
    fn free(&mut self, lane: usize, touch: Touch, call: impl FnOnce(By)) {
        let Some(last) = self.lanes[lane].last else {
            return;
        };
        let seen = self.oracle.closure(&self.direct(lane));
        let races = self.oracle.races(&seen, std::slice::from_ref(&touch));
        if self.oracle.nodes[last].touches.is_empty() || self.careful && !races.is_empty() {
            return;
        }
        call(By::StreamId(self.lanes[lane].id));
        self.oracle.nodes[last].touches.push(touch);
        self.judge(&races, "free of a block");
    }

    fn host(&mut self, touch: Touch, what: &str, call: impl FnOnce()) {
        let before = self.oracle.closure(&[self.oracle.host]);
        let races = self.oracle.races(&before, std::slice::from_ref(&touch));
        if self.careful && !races.is_empty() {
            return;
        }
        call();
        self.oracle.host = Some(self.oracle.add(before, vec![touch]));
        self.judge(&races, what);
    }
}

const DEVICE: usize = 0;
const PINNED: usize = 1;
/// Memory that an imagined allocator hands out in four blocks.
const POOL: usize = 2;
const BLOCK: usize = BYTES / 4;

fn step(world: &mut World, program: &mut Program) {
    let lane = world.random.below(program.lanes.len());
    let pool = world.pool as usize;
    let (device, pinned) = (world.device as usize, world.pinned as usize);
    let len = 1 + world.random.below(24);
    let (x, y) = (
        world.random.below(BYTES - len),
        world.random.below(BYTES - len),
    );
    let line = |buffer, at, write| Touch::rows(buffer, at, len, 1, 0, write);
    let here = move |base: usize, offset: usize| (base + offset) as Pointer;
    match world.random.below(36) {
        0..4 => {
            let touches = vec![line(DEVICE, x, true)];
            program.submit(world, lane, touches, None, "fill", move |s| {
                cuda!(cudaMemsetAsync(here(device, x), 1, len, s))
            });
        }
        4 => {
            let (pitch, height) = (8, 1 + world.random.below(12));
            let (at, width) = (world.random.below(100), 1 + world.random.below(8));
            let touches = vec![Touch::rows(DEVICE, at, width, height, pitch, true)];
            program.submit(world, lane, touches, None, "fill 2D", move |s| {
                cuda!(cudaMemset2DAsync(
                    here(device, at),
                    pitch,
                    1,
                    width,
                    height,
                    s
                ))
            });
        }
        5 => {
            let touches = vec![line(DEVICE, x, false), line(PINNED, y, true)];
            program.submit(world, lane, touches, None, "copy to the host", move |s| {
                cuda!(cudaMemcpyAsync(
                    here(pinned, y),
                    here(device, x),
                    len,
                    D2H,
                    s
                ))
            });
        }
        6 => {
            let touches = vec![line(PINNED, x, false), line(DEVICE, y, true)];
            program.submit(world, lane, touches, None, "copy to the device", move |s| {
                cuda!(cudaMemcpyAsync(
                    here(device, y),
                    here(pinned, x),
                    len,
                    H2D,
                    s
                ))
            });
        }
        7 => {
            let (width, height) = (1 + world.random.below(4), 1 + world.random.below(12));
            let (from, to) = (world.random.below(60), world.random.below(60));
            let touches = vec![
                Touch::rows(PINNED, from, width, height, 4, false),
                Touch::rows(DEVICE, to, width, height, 16, true),
            ];
            program.submit(world, lane, touches, None, "copy 2D", move |s| {
                let (to, from) = (here(device, to), here(pinned, from));
                cuda!(cudaMemcpy2DAsync(to, 16, from, 4, width, height, H2D, s))
            });
        }
        8 => {
            let source = world.pageable.as_ptr() as usize;
            let touches = vec![line(DEVICE, y, true)];
            program.submit(
                world,
                lane,
                touches,
                None,
                "pageable to the device",
                move |s| {
                    cuda!(cudaMemcpyAsync(
                        here(device, y),
                        here(source, x),
                        len,
                        H2D,
                        s
                    ))
                },
            );
        }
        9 => {
            let target = world.pageable.as_mut_ptr() as usize;
            let touches = vec![line(DEVICE, y, false)];
            let node = program.submit(world, lane, touches, None, "device to pageable", move |s| {
                cuda!(cudaMemcpyAsync(
                    here(target, x),
                    here(device, y),
                    len,
                    D2H,
                    s
                ))
            });
            if node.is_some() {
                program.oracle.wait(&[node]);
            }
        }
        10 => {
            let legacy = program.lanes.iter().position(|l| l.kind == Kind::Legacy);
            let touches = vec![line(DEVICE, x, false), line(PINNED, y, true)];
            let node = program.submit(
                world,
                legacy.unwrap(),
                touches,
                None,
                "plain copy",
                move |_| cuda!(cudaMemcpy(here(pinned, y), here(device, x), len, D2H)),
            );
            if node.is_some() {
                program.oracle.wait(&[node]);
            }
        }
        11 => {
            let touches = vec![line(DEVICE, x, false), line(DEVICE, y, true)];
            program.submit(world, lane, touches, None, "kernel", move |s| {
                launch(
                    s,
                    &[(here(device, x), len)],
                    &[(here(device, y), len)],
                    |_| {},
                )
                .0
            });
        }
        12 => {
            let touches = vec![line(PINNED, x, false), line(PINNED, y, true)];
            program.submit(world, lane, touches, None, "host function", move |s| {
                launch_host(
                    s,
                    &[(here(pinned, x), len)],
                    &[(here(pinned, y), len)],
                    || {},
                )
                .0
            });
        }
        13 => program.host(line(PINNED, x, false), "host read", || {
            host_read(here(pinned, x), len);
        }),
        14 => program.host(line(PINNED, x, true), "host write", || {
            host_write(here(pinned, x), len);
        }),
        15 | 16 => {
            let which = world.random.below(program.events.len());
            let event = program.events[which].0 as usize;
            let node = program.submit(world, lane, Vec::new(), None, "record", move |s| {
                cuda!(cudaEventRecord(event as _, s))
            });
            program.events[which].1 = node;
        }
        17 | 18 => {
            let (event, recorded) = program.events[world.random.below(program.events.len())];
            let event = event as usize;
            if recorded.is_some() {
                program.submit(world, lane, Vec::new(), recorded, "wait", move |s| {
                    cuda!(cudaStreamWaitEvent(s, event as _, 0))
                });
            }
        }
        19 => {
            let (event, recorded) = program.events[world.random.below(program.events.len())];
            let answer = match world.random.below(2) {
                0 => cuda!(cudaEventSynchronize(event)),
                _ => cuda!(cudaEventQuery(event)),
            };
            if answer == 0 && recorded.is_some() {
                program.oracle.wait(&[recorded]);
            }
        }
        20 => {
            let Lane { handle, kind, .. } = program.lanes[lane];
            let (ask, handle) = (world.random.below(3), handle as usize);
            let call = move || match ask {
                0 => cuda!(cudaStreamSynchronize(handle as _)),
                _ => cuda!(cudaStreamQuery(handle as _)),
            };
            let answer = match kind {
                Kind::Foreign => world.helper.run(call),
                _ => call(),
            };
            if answer == 0 {
                program.oracle.wait(&program.ends(lane));
            }
        }
        21 if world.random.below(4) == 0 => {
            assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
            program.oracle.wait(&program.last(|_| true));
            // Streams that are gone are waited for too, and nothing of them is left to be compared with.
            let all: Vec<_> = (0..program.oracle.nodes.len()).map(Some).collect();
            program.oracle.wait(&all);
        }
        22 if program.lanes[lane].kind == Kind::NonBlocking => {
            // A stream goes, and another one takes its handle.
            assert_eq!(cuda!(cudaStreamDestroy(program.lanes[lane].handle)), 0);
            program.lanes[lane] = new_lane(Kind::NonBlocking);
        }
        23 if program.lanes[lane].kind == Kind::NonBlocking => {
            let Lane { handle, .. } = program.lanes[lane];
            if program.blocks.len() < 2 {
                let before = program.oracle.closure(&program.direct(lane));
                let p = malloc_async(BYTES, handle);
                let touch = Touch::rows(program.buffers, 0, BYTES, 1, 0, true);
                program.lanes[lane].last = Some(program.oracle.add(before, vec![touch]));
                program.blocks.push((p, program.buffers));
                program.buffers += 1;
                program.judge(&[], "allocation");
                return;
            }
            let which = world.random.below(program.blocks.len());
            let (p, buffer) = program.blocks[which];
            let p = p as usize;
            if world.random.below(2) == 0 {
                let touches = vec![line(buffer, x, true)];
                program.submit(world, lane, touches, None, "fill of a block", move |s| {
                    cuda!(cudaMemsetAsync(here(p, x), 1, len, s))
                });
            } else {
                let touches = vec![Touch::rows(buffer, 0, BYTES, 1, 0, true)];
                let freed = program.submit(world, lane, touches, None, "free", move |s| {
                    cuda!(cudaFreeAsync(p as Pointer, s))
                });
                if freed.is_some() {
                    program.blocks.swap_remove(which);
                }
            }
        }
        24..28 => {
            let touches = vec![line(POOL, x, true)];
            program.submit(world, lane, touches, None, "fill in the pool", move |s| {
                cuda!(cudaMemsetAsync(here(pool, x), 1, len, s))
            });
        }
        28..35 => {
            let block = world.random.below(4) * BLOCK;
            let touch = Touch::rows(POOL, block, BLOCK, 1, 0, true);
            let p = here(pool, block);
            match world.random.below(5) {
                0 => program.host(touch, "allocation by the host", || {
                    on_allocate(p, BLOCK, By::Host)
                }),
                1 => program.host(touch, "free by the host", || on_free(p, BLOCK, By::Host)),
                2 | 3 => program.allocation(lane, touch, |by| on_allocate(p, BLOCK, by)),
                _ => program.free(lane, touch, |by| on_free(p, BLOCK, by)),
            }
        }
        _ => {}
    }
}

fn new_lane(kind: Kind) -> Lane {
    let handle = match kind {
        Kind::NonBlocking => stream(),
        Kind::Blocking => blocking_stream(),
        Kind::Legacy => LEGACY,
        Kind::PerThread | Kind::Foreign => PER_THREAD,
    };
    Lane {
        handle,
        kind,
        id: id(handle),
        last: None,
    }
}

fn many(schedule: Schedule, programs: usize) {
    let _turn = machine();
    cudart_sim::set_schedule(schedule);
    let mut world = World {
        random: Random(0x9E37_79B9_7F4A_7C15 ^ programs as u64),
        helper: Helper::new(),
        device: malloc(BYTES),
        pinned: pinned(BYTES),
        pool: malloc(BYTES),
        pageable: vec![0; BYTES],
        counts: HashMap::new(),
        operations: 0,
    };
    let mut racy = 0;
    for number in 0..programs {
        cudart_sim::check(Check::Off);
        cudart_sim::check(Check::Report);
        let kinds = [
            Kind::Legacy,
            Kind::NonBlocking,
            Kind::NonBlocking,
            Kind::Blocking,
            Kind::Blocking,
            Kind::PerThread,
            Kind::Foreign,
            Kind::NonBlocking,
        ];
        let count = 2 + world.random.below(kinds.len() - 1);
        let mut program = Program {
            oracle: Oracle::default(),
            lanes: kinds.iter().take(count).map(|k| new_lane(*k)).collect(),
            events: (0..4).map(|_| (event(), None)).collect(),
            blocks: Vec::new(),
            buffers: 3,
            names: HashMap::new(),
            careful: number % 2 == 0,
            racy: false,
        };
        for lane in &mut program.lanes {
            if lane.kind == Kind::Foreign {
                lane.id = world.helper.run(|| id(PER_THREAD));
            }
        }
        let steps = if program.careful { 60 } else { 25 };
        for _ in 0..5 + world.random.below(steps) {
            step(&mut world, &mut program);
        }
        racy += usize::from(program.racy);
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        for (p, _) in program.blocks {
            cuda!(cudaFree(p));
        }
        for lane in program.lanes {
            if matches!(lane.kind, Kind::NonBlocking | Kind::Blocking) {
                cuda!(cudaStreamDestroy(lane.handle));
            }
        }
        for (e, _) in program.events {
            cuda!(cudaEventDestroy(e));
        }
    }
    cudart_sim::check(Check::Off);
    println!(
        "{schedule:?}: {programs} programs, {racy} of them with races, {} operations",
        world.operations
    );
    assert!(racy > programs / 10 && racy < programs * 9 / 10);
}

#[test]
fn the_checker_and_the_oracle_agree_when_work_runs_at_once() {
    many(Schedule::Eager, 6000);
}

#[test]
fn the_checker_and_the_oracle_agree_when_work_runs_late() {
    many(Schedule::Lazy, 3000);
}

#[test]
fn the_checker_and_the_oracle_agree_when_work_runs_at_any_time() {
    many(Schedule::Random(7), 300);
}
