//! Stream capture: which streams record instead of running, what that forbids to whom, and when a capture dies.
//!
//! A capture belongs to the stream and the thread that began it. Other streams join it by waiting for an event that was
//! recorded in it. A call that the capture forbids answers an error and invalidates the capture: it is "dead", and its
//! end answers 901. Until that end it still counts as a capture.

use crate::calls::Call;
use crate::engine::Kind;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::graph::{Body, Node, Object, Step};
use crate::memory::{Block, Source};
use crate::runtime::{Runtime, lock};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sys::cudaError;
use crate::work::Work;
use crate::{check, thread};
use std::sync::Arc;

const FORBIDDEN: cudaError = cudaError::cudaErrorStreamCaptureUnsupported;
const INVALIDATED: cudaError = cudaError::cudaErrorStreamCaptureInvalidated;
const IMPLICIT: cudaError = cudaError::cudaErrorStreamCaptureImplicit;
const ISOLATION: cudaError = cudaError::cudaErrorStreamCaptureIsolation;
const CAPTURED_EVENT: cudaError = cudaError::cudaErrorCapturedEvent;

/// The modes of a capture and of a thread.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// How many captures there are, dead ones too: usually none, and then nothing here takes time.
static ONGOING: AtomicUsize = AtomicUsize::new(0);

/// Where in a capture an event was recorded: which capture, and the nodes that it stands for.
pub(crate) type Mark = (u64, Vec<usize>);

/// A capture that has not ended.
struct Capture {
    id: u64,
    mode: u32,
    thread: u64,
    origin: (u32, u64),
    device: u32,
    dead: bool,
    nodes: Vec<Node>,
    /// The streams in it, each with the nodes that its next operation follows.
    streams: Vec<((u32, u64), Vec<usize>)>,
    /// Blocks that its memory nodes allocate.
    blocks: Vec<u64>,
    /// The handle of its graph, once somebody has asked for it.
    graph: Option<usize>,
    /// What its graph keeps for the program.
    objects: Vec<Arc<Object>>,
}

/// All captures that have not ended.
pub(crate) struct Captures {
    list: Vec<Capture>,
    next: u64,
}

/// What a stream is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    None,
    Active,
    Dead,
}

impl Capture {
    fn frontier(&mut self, stream: (u32, u64)) -> Option<&mut Vec<usize>> {
        let found = self.streams.iter_mut().find(|(s, _)| *s == stream);
        found.map(|(_, nodes)| nodes)
    }

    /// Whether everything in it precedes the end of its first stream.
    fn joined(&self) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        let first = self.streams.iter().find(|(s, _)| *s == self.origin);
        let mut todo = first.map(|(_, nodes)| nodes.clone()).unwrap_or_default();
        while let Some(at) = todo.pop() {
            if let Some(seen) = reached.get_mut(at)
                && !std::mem::replace(seen, true)
                && let Some(node) = self.nodes.get(at)
            {
                todo.extend_from_slice(&node.after);
            }
        }
        reached.iter().all(|r| *r)
    }
}

impl Captures {
    pub(crate) const fn new() -> Captures {
        Captures {
            list: Vec::new(),
            next: 1,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        ONGOING.store(0, Relaxed);
    }
}

fn none() -> bool {
    ONGOING.load(Relaxed) == 0
}

/// Refuses what may not be called while something is captured, whatever the arguments.
pub(crate) fn gate(call: Call) -> Answer {
    if none() {
        return Ok(());
    }
    match call {
        Call::cudaMalloc
        | Call::cudaFree
        | Call::cudaHostAlloc
        | Call::cudaMallocHost
        | Call::cudaFreeHost
        | Call::cudaHostRegister
        | Call::cudaHostUnregister
        | Call::cudaMemPoolCreate
        | Call::cudaMemPoolDestroy
        | Call::cudaMemPoolTrimTo
        | Call::cudaMemPoolGetAttribute
        | Call::cudaMemPoolSetAttribute
        | Call::cudaMemPoolGetAccess
        | Call::cudaMemPoolSetAccess
        | Call::cudaDeviceSetMemPool => lock().forbid_unsafe(),
        Call::cudaDeviceSynchronize | Call::cudaDeviceReset => lock().forbid_device(),
        _ => Ok(()),
    }
}

impl Runtime {
    fn name_of(&self, slot: u32) -> (u32, u64) {
        (slot, self.engine.last(slot).uid)
    }

    fn capture_of(&mut self, slot: u32) -> Option<&mut Capture> {
        if none() {
            return None;
        }
        let name = self.name_of(slot);
        let list = &mut self.captures.list;
        list.iter_mut()
            .find(|c| c.streams.iter().any(|(s, _)| *s == name))
    }

    fn capture_by_id(&mut self, id: u64) -> Option<&mut Capture> {
        self.captures.list.iter_mut().find(|c| c.id == id)
    }

    /// Whether a stream captures.
    pub(crate) fn capture_status(&mut self, slot: u32) -> Status {
        match self.capture_of(slot) {
            None => Status::None,
            Some(capture) if capture.dead => Status::Dead,
            Some(_) => Status::Active,
        }
    }

    /// Refuses calls that are unsafe while captures go on that the calling thread has to respect, and kills these.
    pub(crate) fn forbid_unsafe(&mut self) -> Answer {
        let mode = thread::with(|t| t.capture_mode.get());
        if none() || mode == RELAXED {
            return Ok(());
        }
        let me = thread::id();
        let mut hit = false;
        for capture in &mut self.captures.list {
            let own = capture.thread == me && capture.mode != RELAXED;
            let others = capture.thread != me && capture.mode == GLOBAL && mode == GLOBAL;
            if own || others {
                capture.dead = true;
                hit = true;
            }
        }
        if hit { Err(FORBIDDEN) } else { Ok(()) }
    }

    /// Refuses to wait for a device on which something is captured.
    fn forbid_device(&mut self) -> Answer {
        let device = thread::device();
        let mut answer = Ok(());
        for capture in self.captures.list.iter_mut().filter(|c| c.device == device) {
            capture.dead = true;
            answer = Err(FORBIDDEN);
        }
        answer
    }

    /// Refuses questions about a stream that captures, whatever the mode.
    pub(crate) fn forbid_captured(&mut self, slot: u32) -> Answer {
        match self.capture_of(slot) {
            Some(capture) => {
                capture.dead = true;
                Err(FORBIDDEN)
            }
            None => Ok(()),
        }
    }

    /// Whether using this stream would tie a capture to the legacy stream.
    pub(crate) fn implicit(&self, slot: u32) -> bool {
        if none() {
            return false;
        }
        let Some(stream) = self.engine.stream(slot) else {
            return false;
        };
        stream.kind == Kind::Legacy
            && self
                .captures
                .list
                .iter()
                .any(|c| self.bound_to_legacy(c, stream.device))
    }

    /// Whether a capture holds a stream that follows the legacy stream of that device.
    fn bound_to_legacy(&self, capture: &Capture, device: u32) -> bool {
        capture.streams.iter().any(|((slot, _), _)| {
            self.engine.stream(*slot).is_some_and(|s| {
                s.device == device && matches!(s.kind, Kind::Blocking | Kind::PerThread)
            })
        })
    }

    /// Refuses the legacy stream while a stream that follows it captures, and kills that capture.
    pub(crate) fn forbid_implicit(&mut self, slot: u32) -> Answer {
        if !self.implicit(slot) {
            return Ok(());
        }
        let device = self.engine.stream(slot).map_or(0, |s| s.device);
        let bound: Vec<bool> = self
            .captures
            .list
            .iter()
            .map(|c| self.bound_to_legacy(c, device))
            .collect();
        for (capture, bound) in self.captures.list.iter_mut().zip(bound) {
            capture.dead |= bound;
        }
        Err(IMPLICIT)
    }

    /// Takes the work of a stream that captures; gives back what is to run.
    pub(crate) fn capture_work(
        &mut self,
        call: &str,
        slot: u32,
        work: Work,
    ) -> Answer<Option<Work>> {
        if none() {
            return Ok(Some(work));
        }
        self.forbid_implicit(slot)?;
        let name = self.name_of(slot);
        let Some(capture) = self.capture_of(slot) else {
            return Ok(Some(work));
        };
        if capture.dead {
            return Err(INVALIDATED);
        }
        let Some(step) = Step::of(work) else {
            eprintln!("cudart-sim: {call} cannot be captured here");
            capture.dead = true;
            return Err(NOT_SUPPORTED);
        };
        let at = capture.nodes.len();
        if let Some(frontier) = capture.frontier(name) {
            let after = std::mem::replace(frontier, vec![at]);
            capture.nodes.push(Node { step, after });
        }
        Ok(None)
    }

    /// An event is recorded in a stream that captures: what it stands for. `None`: the stream does not capture.
    pub(crate) fn capture_record(&mut self, slot: u32) -> Answer<Option<Mark>> {
        let name = self.name_of(slot);
        let Some(capture) = self.capture_of(slot) else {
            return Ok(None);
        };
        if capture.dead {
            return Err(INVALIDATED);
        }
        let id = capture.id;
        let frontier = capture.frontier(name).cloned().unwrap_or_default();
        Ok(Some((id, frontier)))
    }

    /// A stream is told to wait for an event, recorded in a capture or outside: whether that is all there is to do.
    pub(crate) fn capture_wait(
        &mut self,
        slot: u32,
        mark: Option<Mark>,
        recorded: bool,
    ) -> Answer<bool> {
        let name = self.name_of(slot);
        let own = self.capture_of(slot).map(|c| (c.id, c.dead));
        match (own, mark) {
            (None, None) => Ok(false),
            (Some((_, true)), _) => Err(INVALIDATED),
            (Some((id, _)), Some((other, nodes))) if id == other => {
                if let Some(frontier) = self.capture_by_id(id).and_then(|c| c.frontier(name)) {
                    frontier.extend(nodes);
                    frontier.sort_unstable();
                    frontier.dedup();
                }
                Ok(true)
            }
            (Some((id, _)), Some((other, _))) => {
                let alive = self.kill(other);
                self.kill(id);
                Err(match alive {
                    true => cudaError::cudaErrorStreamCaptureMerge,
                    false => ISOLATION,
                })
            }
            // Nobody waits for an event that was never recorded.
            (Some(_), None) if !recorded => Ok(true),
            (Some((id, _)), None) => {
                self.kill(id);
                Err(ISOLATION)
            }
            (None, Some((id, nodes))) => {
                let legacy = self
                    .engine
                    .stream(slot)
                    .is_some_and(|s| s.kind == Kind::Legacy);
                let Some(capture) = self.capture_by_id(id) else {
                    return Err(CAPTURED_EVENT);
                };
                if capture.dead {
                    return Err(INVALIDATED);
                }
                if legacy {
                    capture.dead = true;
                    return Err(IMPLICIT);
                }
                capture.streams.push((name, nodes));
                Ok(true)
            }
        }
    }

    fn kill(&mut self, id: u64) -> bool {
        let capture = self.capture_by_id(id);
        capture.map(|c| c.dead = true).is_some()
    }

    /// Refuses to ask or wait for an event: one that was recorded in a capture, or any, where that is unsafe.
    pub(crate) fn forbid_event(&mut self, mark: Option<Mark>) -> Answer {
        if let Some((id, _)) = mark {
            let ongoing = self.capture_by_id(id).is_some();
            self.kill(id);
            // Of a capture that has ended well: another code (measured).
            return Err(if ongoing {
                CAPTURED_EVENT
            } else {
                INVALID_VALUE
            });
        }
        self.forbid_unsafe()
    }

    /// Begins a capture.
    pub(crate) fn capture_begin(&mut self, slot: u32, mode: u32) -> Answer {
        if mode > RELAXED {
            return Err(INVALID_VALUE);
        }
        let Some(stream) = self.engine.stream(slot) else {
            return Err(INVALID_VALUE);
        };
        let device = stream.device;
        if stream.kind == Kind::Legacy {
            return Err(FORBIDDEN);
        }
        if self.capture_of(slot).is_some() {
            return Err(cudaError::cudaErrorIllegalState);
        }
        let origin = self.name_of(slot);
        let id = self.captures.next;
        self.captures.next += 1;
        self.captures.list.push(Capture {
            id,
            mode,
            thread: thread::id(),
            origin,
            device,
            dead: false,
            nodes: Vec::new(),
            streams: vec![(origin, Vec::new())],
            blocks: Vec::new(),
            graph: None,
            objects: Vec::new(),
        });
        ONGOING.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The number of a stream's capture and the handle of its graph. `None`: no capture, or a dead one.
    pub(crate) fn capture_info(&mut self, slot: u32) -> Answer<Option<(u64, usize)>> {
        let (id, known) = match self.capture_of(slot) {
            Some(capture) if !capture.dead => (capture.id, capture.graph),
            _ => return Ok(None),
        };
        if let Some(handle) = known {
            return Ok(Some((id, handle)));
        }
        // Empty until the capture ends.
        let body = Arc::new(Body::new(id, Vec::new(), Vec::new()));
        let handle = self.graphs.graphs.insert(body)?;
        if let Some(capture) = self.capture_by_id(id) {
            capture.graph = Some(handle);
        }
        Ok(Some((id, handle)))
    }

    /// Whether this is the graph of a capture that has not ended.
    pub(crate) fn is_captured_into(&self, graph: usize) -> bool {
        self.captures.list.iter().any(|c| c.graph == Some(graph))
    }

    /// Gives objects to the graph of a capture. Gives them back if it is none.
    pub(crate) fn capture_keep(
        &mut self,
        graph: usize,
        objects: Vec<Arc<Object>>,
    ) -> Option<Vec<Arc<Object>>> {
        let mut list = self.captures.list.iter_mut();
        match list.find(|c| c.graph == Some(graph)) {
            Some(capture) => {
                capture.objects.extend(objects);
                None
            }
            None => Some(objects),
        }
    }

    /// Ends a capture: what was captured, and the handle that its graph has already.
    pub(crate) fn capture_end(&mut self, slot: u32) -> Answer<(Body, Option<usize>)> {
        let name = self.name_of(slot);
        let Some(capture) = self.capture_of(slot) else {
            return Err(cudaError::cudaErrorIllegalState);
        };
        if capture.origin != name {
            capture.dead = true;
            return Err(cudaError::cudaErrorStreamCaptureUnmatched);
        }
        if capture.mode != RELAXED && capture.thread != thread::id() {
            return Err(cudaError::cudaErrorStreamCaptureWrongThread);
        }
        let id = capture.id;
        let Some(at) = self.captures.list.iter().position(|c| c.id == id) else {
            return Err(INVALID_VALUE);
        };
        let capture = self.captures.list.remove(at);
        ONGOING.fetch_sub(1, Relaxed);
        let failure = if capture.dead {
            Some(INVALIDATED)
        } else if !capture.joined() {
            Some(cudaError::cudaErrorStreamCaptureUnjoined)
        } else {
            None
        };
        let body = Body::new(id, capture.nodes, capture.blocks);
        body.keep(capture.objects);
        match failure {
            None => Ok((body, capture.graph)),
            Some(code) => {
                if let Some(handle) = capture.graph {
                    self.graphs.graphs.remove(handle);
                }
                self.free_graph_blocks(id, &body.blocks);
                self.forget_marks(id);
                Err(code)
            }
        }
    }

    /// A capture has come to nothing: the events that were recorded in it are as if never recorded.
    fn forget_marks(&mut self, id: u64) {
        for event in self.events.values_mut() {
            if event.captured.as_ref().is_some_and(|(of, _)| *of == id) {
                event.captured = None;
            }
        }
    }

    /// A stream goes: what it captures is lost.
    pub(crate) fn capture_forget(&mut self, slot: u32, uid: u64) {
        if none() {
            return;
        }
        let name = (slot, uid);
        let list = std::mem::take(&mut self.captures.list);
        for mut capture in list {
            if capture.origin == name {
                ONGOING.fetch_sub(1, Relaxed);
                if let Some(handle) = capture.graph {
                    self.graphs.graphs.remove(handle);
                }
                self.free_graph_blocks(capture.id, &capture.blocks);
                self.forget_marks(capture.id);
                continue;
            }
            let before = capture.streams.len();
            capture.streams.retain(|(s, _)| *s != name);
            capture.dead |= capture.streams.len() != before;
            self.captures.list.push(capture);
        }
    }

    /// Memory for the work of a graph that is being captured. `None`: the stream does not capture.
    pub(crate) fn capture_allocation(&mut self, slot: u32, size: u64) -> Answer<Option<u64>> {
        let Some(capture) = self.capture_of(slot) else {
            return Ok(None);
        };
        if capture.dead {
            return Err(INVALIDATED);
        }
        let (id, device) = (capture.id, capture.device);
        if size == 0 {
            return Ok(Some(0));
        }
        let start = self.device(device as i32)?.take(size)?;
        let block = Block {
            size,
            source: Source::Graph(id),
            device,
            host: false,
        };
        self.memory.blocks.insert(start, block);
        check::allocated(start, size);
        self.capture_work("cudaMallocAsync", slot, Work::Marker)?;
        if let Some(capture) = self.capture_of(slot) {
            capture.blocks.push(start);
        }
        Ok(Some(start))
    }
}
