//! Graphs: what was captured, made ready to run, and run as one operation of a stream.
//!
//! The nodes of a graph run one after another in the order in which they were captured, which is one of the orders that
//! their dependencies allow. Launches of one graph follow one another. Memory that a graph allocates is taken when it
//! is captured and stays until the graph, all that was instantiated from it and all its launches are gone.

use crate::check;
use crate::engine::Point;
use crate::handles::Handles;
use crate::memory::Source;
use crate::runtime::Runtime;
use crate::sync::{Mutex, spawn};
use crate::thread;
use crate::work::{Place, Shape, Work};
use std::ffi::c_void;
use std::sync::{Arc, PoisonError};

/// How many graphs may be in one another.
const MOST_NESTED: u32 = 32;

/// What can be done again and again.
pub(crate) enum Step {
    Marker,
    Copy(Place, Place, Shape),
    Fill(Place, u8, Shape),
    Host(unsafe extern "C" fn(*mut c_void), usize),
    Graph(Arc<Body>),
}

impl Step {
    /// The step that does this work; `None` if the work can be done only once, or lies too deep.
    pub(crate) fn of(work: Work) -> Option<Step> {
        Some(match work {
            Work::Marker => Step::Marker,
            Work::Copy { dst, src, shape } => Step::Copy(dst, src, shape),
            Work::Fill { dst, value, shape } => Step::Fill(dst, value, shape),
            Work::Host(function, argument) => Step::Host(function, argument),
            Work::Graph(body) if body.depth < MOST_NESTED => Step::Graph(body),
            Work::Graph(_) => return None,
            Work::Stamp(_) | Work::Staged { .. } | Work::Kernel(..) => return None,
        })
    }

    /// The work of one run.
    pub(crate) fn work(&self) -> Work {
        match self {
            Step::Marker => Work::Marker,
            Step::Copy(dst, src, shape) => Work::Copy {
                dst: dst.clone(),
                src: src.clone(),
                shape: *shape,
            },
            Step::Fill(dst, value, shape) => Work::Fill {
                dst: dst.clone(),
                value: *value,
                shape: *shape,
            },
            Step::Host(function, argument) => Work::Host(*function, *argument),
            Step::Graph(body) => Work::Graph(body.clone()),
        }
    }
}

/// One operation of a graph, and the nodes that it follows.
pub(crate) struct Node {
    pub(crate) step: Step,
    pub(crate) after: Vec<usize>,
}

/// What a graph keeps for its user: a function that is called on a thread of the runtime once nothing can run any more that
/// keeps it.
pub(crate) struct Object {
    destroy: unsafe extern "C" fn(*mut c_void),
    data: usize,
    /// What the host knows when the function is called: that the launches are done.
    told: Mutex<Vec<check::Seen>>,
}

impl Object {
    pub(crate) fn new(destroy: unsafe extern "C" fn(*mut c_void), data: usize) -> Object {
        Object {
            destroy,
            data,
            told: Mutex::default(),
        }
    }
}

/// The destructor of an object that is gone, its argument, and what the host knows then.
type Gone = (unsafe extern "C" fn(*mut c_void), usize, Vec<check::Seen>);
static GONE: Mutex<Vec<Gone>> = Mutex::new(Vec::new());

/// Calls the destructors that wait.
fn destroy_gone() {
    loop {
        let next = GONE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some((destroy, data, told)) = next else {
            return;
        };
        told.iter().for_each(check::host_behind);
        // SAFETY: the program gave the function for this one call with this argument.
        thread::as_host_function(|| unsafe { destroy(data as *mut c_void) });
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let told = std::mem::take(self.told.get_mut().unwrap_or_else(PoisonError::into_inner));
        GONE.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((self.destroy, self.data, told));
        // The lock of the runtime may be held here, and the function may take its time. Without a thread it is called when
        // the next object goes.
        spawn("cudart-sim destructor", destroy_gone);
    }
}

/// A user object as the program sees it: its handle lives as long as the program has references.
pub(crate) struct Owned {
    pub(crate) object: Arc<Object>,
    pub(crate) references: u32,
}

/// What was captured.
pub(crate) struct Body {
    /// The number of its capture.
    pub(crate) id: u64,
    pub(crate) nodes: Vec<Node>,
    /// The memory that it allocates.
    pub(crate) blocks: Vec<u64>,
    /// How many graphs there are in one another, this one included.
    pub(crate) depth: u32,
    /// Whether something in it may wait for other work.
    pub(crate) may_block: bool,
    /// What it keeps for the program.
    objects: Mutex<Vec<Arc<Object>>>,
}

impl Body {
    pub(crate) fn new(id: u64, nodes: Vec<Node>, blocks: Vec<u64>) -> Body {
        let inner = |node: &Node| match &node.step {
            Step::Graph(body) => body.depth,
            _ => 0,
        };
        Body {
            id,
            depth: 1 + nodes.iter().map(inner).max().unwrap_or(0),
            may_block: nodes.iter().any(|n| n.step.work().may_block()),
            nodes,
            blocks,
            objects: Mutex::default(),
        }
    }

    /// Keeps objects from now on.
    pub(crate) fn keep(&self, objects: Vec<Arc<Object>>) {
        let mut kept = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(objects);
    }

    /// A launch was submitted just now, in this stream: whoever learns that the objects are gone knows that it is done.
    pub(crate) fn launched(&self, uid: u64) {
        let kept = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        for object in kept.iter().filter(|_| check::on()) {
            let mut told = object.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.push(check::operation(uid));
        }
        for node in &self.nodes {
            if let Step::Graph(inner) = &node.step {
                inner.launched(uid);
            }
        }
    }
}

/// A graph that is ready to run.
pub(crate) struct Exec {
    pub(crate) body: Arc<Body>,
    /// Its latest launch, which the next one follows.
    pub(crate) last: Option<Point>,
}

/// All graphs.
pub(crate) struct Graphs {
    pub(crate) graphs: Handles<Arc<Body>>,
    pub(crate) execs: Handles<Exec>,
    pub(crate) objects: Handles<Owned>,
    /// Without a handle; some may still be running.
    retired: Vec<Arc<Body>>,
}

impl Graphs {
    pub(crate) const fn new() -> Graphs {
        Graphs {
            graphs: Handles::new(),
            execs: Handles::new(),
            objects: Handles::new(),
            retired: Vec::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.graphs.clear();
        self.execs.clear();
        self.objects.clear();
        self.retired.clear();
    }

    /// A handle to it is gone.
    pub(crate) fn retire(&mut self, body: Arc<Body>) {
        if !body.blocks.is_empty() && !self.retired.iter().any(|b| Arc::ptr_eq(b, &body)) {
            self.retired.push(body);
        }
    }
}

impl Runtime {
    /// Gives back the memory of graphs that nobody can run any more.
    pub(crate) fn bury_graphs(&mut self) {
        if self.graphs.retired.is_empty() {
            return;
        }
        let retired = std::mem::take(&mut self.graphs.retired);
        for body in retired {
            if Arc::strong_count(&body) > 1 {
                self.graphs.retired.push(body);
            } else {
                self.free_graph_blocks(body.id, &body.blocks);
            }
        }
    }

    /// Gives back what one capture has allocated.
    pub(crate) fn free_graph_blocks(&mut self, id: u64, blocks: &[u64]) {
        for start in blocks {
            let known = self.memory.blocks.get(start).copied();
            let Some(block) = known.filter(|b| b.source == Source::Graph(id)) else {
                continue;
            };
            self.memory.blocks.remove(start);
            check::gone(*start, block.size);
            if let Some(device) = self.devices.get_mut(block.device as usize) {
                device.give(*start, block.size);
            }
        }
    }
}
