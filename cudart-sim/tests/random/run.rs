//! Runs a random program step by step, and has each step judged by the checker and by the oracle.

use super::oracle::{BYTES, Oracle, Set, Touch};
use super::program::{Mode, Program, Repair, Span, Step};
use super::programs::*;
use super::world::{Kind, Lane, Threads, World, lane, new_event};
use cudart_sim::sys;
use std::collections::{BTreeMap, HashMap};

/// What happened, counted.
#[derive(Default)]
pub struct Counts {
    pub operations: u64,
    /// How often each kind of step was taken.
    pub kinds: BTreeMap<&'static str, u64>,
    pub race_free: u64,
    pub planted: u64,
    pub wild_with_races: u64,
}

pub struct Run<'a> {
    pub threads: &'a Threads,
    pub counts: &'a mut Counts,
    pub world: World,
    pub oracle: Oracle,
    /// Blocking streams that are gone, by device; and all nodes of each device.
    pub gone_blocking: [Vec<Option<usize>>; 2],
    pub of_device: [Vec<Option<usize>>; 2],
    /// Streams that are gone: what they were.
    pub gone: Vec<Lane>,
    pub streams_made: usize,
    /// The allocation in some stream's order of each block in use, by buffer and block.
    pub allocated: HashMap<(usize, usize), usize>,
    /// Operations by stream and number, and how many each stream has had.
    names: HashMap<(u64, u64), usize>,
    numbers: HashMap<u64, u64>,
    mode: Mode,
    /// The step that runs, and the one that was let race.
    now: usize,
    planted: Option<usize>,
    races: usize,
    /// What was done: the step, what, in which lane.
    log: Vec<(usize, &'static str, Option<usize>)>,
    failed: Option<String>,
}

/// In whose order something is done.
#[derive(Clone, Copy)]
pub enum Target {
    Host,
    Lane(usize),
}

impl Run<'_> {
    /// What the next thing there comes after.
    pub fn direct(&self, target: Target) -> Vec<Option<usize>> {
        let mut direct = vec![self.oracle.host];
        if let Target::Lane(lane) = target {
            let lane = &self.world.lanes[lane];
            direct.push(lane.last);
            match lane.kind {
                Kind::NonBlocking => {}
                Kind::Legacy => direct.extend(self.blocking(lane.device)),
                _ => {
                    let lanes = self.world.lanes.iter();
                    let legacy = lanes.filter(|l| l.kind == Kind::Legacy);
                    direct.extend(legacy.filter(|l| l.device == lane.device).map(|l| l.last));
                }
            }
        }
        direct
    }

    fn blocking(&self, device: usize) -> Vec<Option<usize>> {
        let lanes = self.world.lanes.iter();
        let live = lanes.filter(|l| l.device == device && l.blocks());
        let mut all: Vec<_> = live.map(|l| l.last).collect();
        all.extend(&self.gone_blocking[device]);
        all
    }

    /// What a synchronisation with a lane waits for.
    pub fn ends(&self, lane: usize) -> Vec<Option<usize>> {
        let lane = &self.world.lanes[lane];
        let mut ends = vec![lane.last];
        if lane.kind == Kind::Legacy {
            ends.extend(self.blocking(lane.device));
        }
        ends
    }

    pub fn fail(&mut self, text: String) {
        self.failed.get_or_insert(text);
    }

    /// The answer has to be 0.
    pub fn need(&mut self, code: u32, what: &str) {
        if code != 0 {
            self.fail(format!("{what}: answered {code}"));
        }
    }

    pub fn count(&mut self, what: &'static str, lane: Option<usize>) {
        *self.counts.kinds.entry(what).or_default() += 1;
        self.log.push((self.now, what, lane));
    }

    /// Compares the two judgements about what was just done.
    pub fn judge(&mut self, races: &[usize], wrong: bool, what: &'static str) {
        let mut found = cudart_sim::report();
        // That a block is handed out twice is another matter.
        found.retain(|f| f.kind != cudart_sim::FindingKind::Overlap);
        let expected = wrong || !races.is_empty();
        if found.is_empty() == expected {
            let known = if wrong { "a mistake" } else { "races with" };
            self.fail(format!(
                "{what}: the oracle says {known} {races:?}, the checker {}",
                found.iter().map(|f| format!("{f}\n")).collect::<String>()
            ));
        }
        for finding in &found {
            if let Some(first) = &finding.first
                && let Some(id) = first.stream
                && let Some(node) = self.names.get(&(id, first.number))
                && !races.contains(node)
            {
                self.fail(format!("{what}: no race: {finding}"));
            }
        }
        self.races += usize::from(expected);
    }

    /// Whether the step may be taken, and what it will race with. A program that is to have no races makes the missing
    /// order, or leaves the step out.
    pub fn admit(
        &mut self,
        step: &Step,
        target: Target,
        more: &dyn Fn(&Self) -> Vec<Option<usize>>,
        touches: &[Touch],
        wrong: bool,
    ) -> Option<Vec<usize>> {
        let mut races = self.races_of(target, more, touches);
        if (races.is_empty() && !wrong) || self.mode == Mode::Wild {
            return Some(races);
        }
        let free = self.mode == Mode::Planted && step.may_race;
        if free && *self.planted.get_or_insert(self.now) == self.now {
            return Some(races);
        }
        if wrong {
            return None;
        }
        for repair in [step.repair, Repair::DeviceSynchronize] {
            if matches!(step.repair, Repair::LeaveOut) {
                return None;
            }
            for node in races {
                self.order(node, target, repair, step.thread);
            }
            races = self.races_of(target, more, touches);
            if races.is_empty() {
                return Some(races);
            }
        }
        None
    }

    fn races_of(
        &self,
        target: Target,
        more: &dyn Fn(&Self) -> Vec<Option<usize>>,
        touches: &[Touch],
    ) -> Vec<usize> {
        let mut direct = self.direct(target);
        direct.extend(more(self));
        self.oracle.races(&self.oracle.closure(&direct), touches)
    }

    /// What comes next there comes after the node from now on.
    fn order(&mut self, node: usize, target: Target, repair: Repair, thread: usize) {
        let stream = self.oracle.nodes[node].stream;
        let lanes = &self.world.lanes;
        let Some(from) = lanes.iter().position(|l| l.id == stream) else {
            (0..2).for_each(|d| self.device_synchronize(d, thread));
            return;
        };
        let count = lanes.len();
        match (repair, target) {
            (Repair::Event, Target::Lane(to)) => self.behind(from, to, thread),
            (Repair::Chain(over), Target::Lane(to)) => {
                let over = over % count;
                self.behind(from, over, thread);
                self.behind(over, to, thread);
            }
            (Repair::StreamQuery, _) => while !self.query(from, thread) {},
            (Repair::EventSynchronize | Repair::EventQuery, _) => {
                let device = self.world.lanes[from].device;
                let mut event = new_event(self.threads, device);
                let handle = event.handle;
                event.recorded = self.record(from, handle, thread);
                let ask = matches!(repair, Repair::EventQuery);
                let code = self.threads.on(thread, device, move || {
                    loop {
                        let event = handle as sys::cudaEvent_t;
                        match ask {
                            true => match cuda!(cudaEventQuery(event)) {
                                600 => std::thread::yield_now(),
                                code => break code,
                            },
                            false => break cuda!(cudaEventSynchronize(event)),
                        }
                    }
                });
                self.need(code, "waiting for an event");
                self.oracle.wait(&[event.recorded]);
                cuda!(cudaEventDestroy(handle as _));
            }
            (Repair::DeviceSynchronize, _) => {
                let device = self.world.lanes[from].device;
                self.device_synchronize(device, thread);
            }
            _ => self.synchronize(from, thread),
        }
    }

    pub fn behind(&mut self, from: usize, to: usize, thread: usize) {
        if from == to {
            return;
        }
        let event = new_event(self.threads, self.world.lanes[from].device);
        let recorded = self.record(from, event.handle, thread);
        self.wait(to, event.handle, recorded, thread);
        let code = cuda!(cudaEventDestroy(event.handle as _));
        self.need(code, "cudaEventDestroy");
    }

    pub fn record(&mut self, lane: usize, event: usize, thread: usize) -> Option<usize> {
        self.enqueue(lane, thread, Vec::new(), &[], "record", move |s| {
            cuda!(cudaEventRecord(event as _, s))
        })
    }

    pub fn wait(&mut self, lane: usize, event: usize, recorded: Option<usize>, thread: usize) {
        self.enqueue(lane, thread, Vec::new(), &[recorded], "wait", move |s| {
            cuda!(cudaStreamWaitEvent(s, event as _, 0))
        });
    }

    pub fn synchronize(&mut self, lane: usize, thread: usize) {
        self.count("cudaStreamSynchronize", Some(lane));
        let code = self.call(lane, thread, |s| cuda!(cudaStreamSynchronize(s)));
        self.need(code, "cudaStreamSynchronize");
        self.oracle.wait(&self.ends(lane));
    }

    pub fn query(&mut self, lane: usize, thread: usize) -> bool {
        let code = self.call(lane, thread, |s| cuda!(cudaStreamQuery(s)));
        if code != 600 {
            self.count("cudaStreamQuery answered yes", Some(lane));
            self.need(code, "cudaStreamQuery");
            self.oracle.wait(&self.ends(lane));
            return true;
        }
        std::thread::yield_now();
        false
    }

    pub fn device_synchronize(&mut self, device: usize, thread: usize) {
        self.count("cudaDeviceSynchronize", None);
        let code = self
            .threads
            .on(thread, device, || cuda!(cudaDeviceSynchronize()));
        self.need(code, "cudaDeviceSynchronize");
        self.oracle.wait(&self.of_device[device].clone());
    }

    /// A call with a lane's stream, on a thread that may make it.
    pub fn call<T: Send + 'static>(
        &self,
        lane: usize,
        thread: usize,
        call: impl FnOnce(Stream) -> T + Send + 'static,
    ) -> T {
        let lane = &self.world.lanes[lane];
        let handle = lane.handle;
        self.threads
            .on(lane.thread(thread), lane.device, move || call(handle as _))
    }

    /// Submits an operation that is allowed. Returns its node.
    pub fn enqueue(
        &mut self,
        lane: usize,
        thread: usize,
        touches: Vec<Touch>,
        after: &[Option<usize>],
        what: &'static str,
        call: impl FnOnce(Stream) -> u32 + Send + 'static,
    ) -> Option<usize> {
        let mut direct = self.direct(Target::Lane(lane));
        direct.extend(after);
        let before = self.oracle.closure(&direct);
        self.count(what, Some(lane));
        let code = self.call(lane, thread, call);
        self.need(code, what);
        self.counts.operations += 1;
        let node = self.add(lane, before, touches);
        let id = self.world.lanes[lane].id;
        let number = self.numbers.entry(id).or_default();
        *number += 1;
        self.names.insert((id, *number), node);
        Some(node)
    }

    /// A node at the end of a lane.
    pub fn add(&mut self, lane: usize, before: Set, touches: Vec<Touch>) -> usize {
        let lane = &mut self.world.lanes[lane];
        let node = self.oracle.add(before, touches, lane.id);
        lane.last = Some(node);
        self.of_device[lane.device].push(Some(node));
        node
    }

    /// The host does something to memory.
    pub fn host(
        &mut self,
        step: &Step,
        touches: Vec<Touch>,
        wrong: bool,
        what: &'static str,
        call: impl FnOnce(),
    ) -> bool {
        let none = |_: &Self| Vec::new();
        let Some(races) = self.admit(step, Target::Host, &none, &touches, wrong) else {
            return false;
        };
        self.count(what, None);
        call();
        let before = self.oracle.closure(&[self.oracle.host]);
        self.oracle.host = Some(self.oracle.add(before, touches, 0));
        self.judge(&races, wrong, what);
        true
    }

    /// An operation of a lane, if it may be; judged.
    pub fn submit(
        &mut self,
        step: &Step,
        lane: usize,
        touched: Vec<(Touch, bool)>,
        after: &[Option<usize>],
        what: &'static str,
        call: impl FnOnce(Stream) -> u32 + Send + 'static,
    ) -> Option<usize> {
        let wrong = touched.iter().any(|(_, w)| *w);
        let touches: Vec<Touch> = touched.into_iter().map(|(t, _)| t).collect();
        let more = |_: &Self| after.to_vec();
        let races = self.admit(step, Target::Lane(lane), &more, &touches, wrong)?;
        let node = self.enqueue(lane, step.thread, touches, after, what, call);
        self.judge(&races, wrong, what);
        node
    }

    pub fn span(&self, span: Span, write: bool, lane: usize) -> Option<(Touch, bool)> {
        self.world.touch(span, write, self.world.lanes[lane].device)
    }

    pub fn at(&self, span: Span, lane: usize) -> Option<usize> {
        let device = self.world.lanes[lane].device;
        Some(self.world.find(span.memory, device)?.0 + span.at)
    }

    /// A thread ends: its default streams go as blocking streams do.
    pub fn renew(&mut self, thread: usize) {
        if thread == 0 {
            return;
        }
        self.count("a thread ended and another begun", None);
        self.threads.renew(thread);
        for place in 0..self.world.lanes.len() {
            let old = self.world.lanes[place].clone();
            if old.kind == Kind::PerThread(thread) {
                self.gone_blocking[old.device].push(old.last);
                self.world.lanes[place] = lane(self.threads, old.kind, old.device);
                self.gone.push(old);
                self.streams_made += 1;
            }
        }
    }

    pub fn replace(&mut self, lane_number: usize) {
        let old = self.world.lanes[lane_number].clone();
        if !matches!(old.kind, Kind::NonBlocking | Kind::Blocking) {
            return;
        }
        self.count("a stream destroyed and another made", Some(lane_number));
        let code = cuda!(cudaStreamDestroy(old.handle as _));
        self.need(code, "cudaStreamDestroy");
        if old.kind == Kind::Blocking {
            self.gone_blocking[old.device].push(old.last);
        }
        self.world.lanes[lane_number] = lane(self.threads, old.kind, old.device);
        self.gone.push(old);
        self.streams_made += 1;
    }
}

/// What came of a program: whether it raced, or what was wrong, and what it had done.
pub type Verdict = Result<(), (String, String)>;

/// Runs a program on a machine that is new.
pub fn run(program: &Program, threads: &Threads, counts: &mut Counts) -> Verdict {
    let mut run = Run {
        threads,
        counts,
        world: World::new(threads, &program.lanes),
        oracle: Oracle::default(),
        gone_blocking: Default::default(),
        of_device: Default::default(),
        gone: Vec::new(),
        streams_made: 0,
        allocated: HashMap::new(),
        names: HashMap::new(),
        numbers: HashMap::new(),
        mode: program.mode,
        now: 0,
        planted: None,
        races: 0,
        log: Vec::new(),
        failed: None,
    };
    for (now, step) in program.steps.iter().enumerate() {
        run.now = now;
        run.step(step);
        if run.failed.is_some() {
            break;
        }
    }
    run.now = program.steps.len();
    for device in 0..2 {
        run.device_synchronize(device, 0);
    }
    run.judge(&[], false, "the end");
    run.world.lanes.clear();
    match (program.mode, run.races) {
        (Mode::RaceFree, _) | (Mode::Planted, 0) => run.counts.race_free += 1,
        (Mode::Planted, _) => run.counts.planted += 1,
        (Mode::Wild, 0) => run.counts.race_free += 1,
        (Mode::Wild, _) => run.counts.wild_with_races += 1,
    }
    match run.failed.take() {
        None => Ok(()),
        Some(text) => Err((text, listing(&run.log, program, run.planted))),
    }
}

fn listing(
    log: &[(usize, &'static str, Option<usize>)],
    program: &Program,
    planted: Option<usize>,
) -> String {
    let mut text = format!("lanes: 0 and {:?}\n", program.lanes);
    for (now, what, lane) in log {
        let lane = lane.map_or("host".into(), |l| format!("lane {l}"));
        let step = program.steps.get(*now).map(|s| format!("{:?}", s.what));
        let mark = if Some(*now) == planted { "*" } else { " " };
        text += &format!(
            "{mark}{now:4} {lane:8} {what:24} {}\n",
            step.unwrap_or_default()
        );
    }
    text
}

/// All bytes of a buffer.
pub fn whole(buffer: usize) -> Touch {
    Touch::all(buffer, 0, BYTES)
}
