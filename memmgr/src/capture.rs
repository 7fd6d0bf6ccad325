//! What is done to a stream that is being captured into a graph, and who keeps the memory that the graph uses.
//!
//! A captured operation has not run when its call returns, and runs whenever the graph is launched, so that no event marks
//! its end: its blocks are *held* instead. A block that is freed while it is held stays live until the last graph that
//! uses it is gone. The [`Keeper`] of a graph holds its blocks: a [`Graph`](crate::Graph) has one, and so has every
//! capture by other code, which the runtime tells when the last graph made from it is gone (a user object).

use crate::{
    context,
    cuda::{self, RawExec, RawGraph},
    error::{Error, Result},
    event::Fence,
    manager::{Home, Inner},
    planted::{self, Mistake},
    pool::BlockRange,
    process,
    stream::Handle,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        lock,
    },
};
use std::{collections::BTreeMap, ffi::c_void, sync::Arc};

/// The error for what a capture does not allow.
pub(crate) fn refusal(what: &str, instead: &str) -> Error {
    Error::Unsupported {
        reason: format!("{what} while the stream is being captured: {instead}"),
    }
}

/// The error for work that would meet the beginning or the end of a capture on another thread.
pub(crate) fn turning() -> Error {
    Error::Unsupported {
        reason: "work on a stream while another thread begins or ends to capture it, or the other way round: let one of them wait for the other".into(),
    }
}

/// What the runtime says of the legacy stream while a stream that follows it is captured, with what would help.
pub(crate) fn implicit(error: Error) -> Error {
    if error.cuda_code() != Some(cuda::CAPTURE_IMPLICIT) {
        return error;
    }
    Error::Unsupported {
        reason: "the legacy default stream while a blocking stream is being captured: capture a non-blocking stream, or use one here".into(),
    }
}

/// A block that a graph uses.
pub(crate) struct Kept {
    pub inner: Arc<Inner>,
    pub home: Home,
    pub block: BlockRange,
    /// Whether the graph may write it.
    pub writes: bool,
}

/// Holds the blocks that one graph uses.
#[derive(Default)]
pub(crate) struct Keeper {
    kept: Mutex<Vec<Kept>>,
}

impl Keeper {
    /// The graph uses a live block.
    pub fn keep(&self, inner: &Arc<Inner>, home: Home, block: BlockRange, writes: bool) {
        if block.start == 0 || planted::is_made(Mistake::GraphsKeepNothing) {
            return;
        }
        {
            let mut kept = lock(&self.kept);
            let known = kept.iter_mut().find(|known| {
                known.block == block && known.home == home && Arc::ptr_eq(&known.inner, inner)
            });
            if let Some(known) = known {
                known.writes |= writes;
                return;
            }
        }
        if inner.hold(home, block) {
            let inner = inner.clone();
            lock(&self.kept).push(Kept {
                inner,
                home,
                block,
                writes,
            });
        }
    }

    /// Does something with every block, until the first failure.
    pub fn try_each(&self, f: impl FnMut(&Kept) -> Result<()>) -> Result<()> {
        // The list is taken out: no lock is held across a CUDA call.
        let kept = std::mem::take(&mut *lock(&self.kept));
        let result = kept.iter().try_for_each(f);
        lock(&self.kept).extend(kept);
        result
    }

    /// Nothing runs the graph any more, but for launches that the blocks are marked with.
    pub fn release(&self) {
        for kept in std::mem::take(&mut *lock(&self.kept)) {
            kept.inner.unhold(kept.home, kept.block);
        }
    }
}

/// The captures that go on, and those by other code whose graphs live, by the runtime's number.
static KEEPERS: Mutex<BTreeMap<u64, Arc<Keeper>>> = Mutex::new(BTreeMap::new());

/// Who keeps what is submitted to the stream now: `None` if it is not being captured. Asks the runtime.
pub(crate) fn keeper(handle: &Handle) -> Result<Option<Arc<Keeper>>> {
    if !handle.is_capturing()? {
        return Ok(None);
    }
    // SAFETY: the handle is alive.
    let info = handle.with_device(|| unsafe { cuda::stream_capture_info(handle.raw()) })?;
    let Some((id, graph)) = info else {
        return Err(refusal(
            "work on a stream",
            "an error has invalidated the capture; end it and begin another",
        ));
    };
    if let Some(known) = lock(&KEEPERS).get(&id) {
        return Ok(Some(known.clone()));
    }
    let keeper = Arc::new(Keeper::default());
    let data = Box::into_raw(Box::new(Foreign(id, keeper.clone())));
    // SAFETY: the graph is that of a capture that goes on; `gone` takes the box back once, on whatever thread.
    match unsafe { cuda::graph_on_gone(graph, gone, data.cast()) } {
        Ok(()) => {}
        Err((error, called)) => {
            if !called {
                // SAFETY: `gone` is never called, so that nobody else takes the box.
                drop(unsafe { Box::from_raw(data) });
            }
            return Err(error);
        }
    }
    Ok(Some(lock(&KEEPERS).entry(id).or_insert(keeper).clone()))
}

/// A capture by other code, as its graph's user object knows it.
struct Foreign(u64, Arc<Keeper>);

/// Called on a thread of the runtime, where no CUDA call may be made: the next call of the manager does the rest.
unsafe extern "C" fn gone(data: *mut c_void) {
    // SAFETY: `data` came from `Box::into_raw` above, and the runtime calls this once.
    let foreign = unsafe { Box::from_raw(data.cast::<Foreign>()) };
    if process::is_forked() {
        return;
    }
    lock(&KEEPERS).remove(&foreign.0);
    lock(&LEFT).keepers.push(foreign.1);
    ANY_LEFT.store(true, Ordering::Release);
}

/// Begins to keep what is captured under this number.
pub(crate) fn begin(id: u64, keeper: &Arc<Keeper>) {
    lock(&KEEPERS).insert(id, keeper.clone());
}

/// Nothing more is captured under this number.
pub(crate) fn end(id: u64) {
    lock(&KEEPERS).remove(&id);
}

/// The handles of a graph that nobody launches any more.
pub(crate) struct Remains {
    pub device: i32,
    pub exec: Option<RawExec>,
    pub graph: Option<RawGraph>,
    /// Launches that may still run.
    pub launches: Vec<Arc<Fence>>,
}

/// What waits for the next call that may do something about it.
struct Left {
    keepers: Vec<Arc<Keeper>>,
    remains: Vec<Remains>,
}

static LEFT: Mutex<Left> = Mutex::new(Left {
    keepers: Vec::new(),
    remains: Vec::new(),
});
static ANY_LEFT: AtomicBool = AtomicBool::new(false);

/// Destroys the handles of a graph, at once if its launches have finished, and otherwise in a later call.
pub(crate) fn destroy(mut remains: Remains) {
    // After a reset of the device the handles are dead.
    if process::is_over() || context::check(remains.device).is_err() {
        return;
    }
    // Without an answer there is no proof.
    remains
        .launches
        .retain(|launch| !launch.query().unwrap_or(false));
    if remains.launches.is_empty() {
        // SAFETY: the handles are the graph's own, which is gone, and nothing that was launched runs any more.
        let exec = remains
            .exec
            .take()
            .map(|exec| (exec, unsafe { cuda::graph_exec_destroy(exec) }));
        // SAFETY: as above.
        let graph = remains
            .graph
            .take()
            .map(|graph| (graph, unsafe { cuda::graph_destroy(graph) }));
        // In a host function CUDA permits no call: the next one does it.
        remains.exec = exec
            .filter(|(_, result)| not_permitted(result))
            .map(|(exec, _)| exec);
        remains.graph = graph
            .filter(|(_, result)| not_permitted(result))
            .map(|(graph, _)| graph);
        if remains.exec.is_none() && remains.graph.is_none() {
            return;
        }
    }
    lock(&LEFT).remains.push(remains);
    ANY_LEFT.store(true, Ordering::Release);
}

fn not_permitted(result: &Result<()>) -> bool {
    match result {
        Ok(()) => false,
        Err(error) if error.cuda_code() == Some(cuda::NOT_PERMITTED) => true,
        Err(error) => {
            tracing::warn!(%error, "a graph could not be destroyed");
            false
        }
    }
}

/// How many captures go on, and how much graphs have left.
#[cfg(all(shuttle, feature = "sim"))]
pub(crate) fn leftovers() -> usize {
    let left = lock(&LEFT);
    left.keepers.len() + left.remains.len() + lock(&KEEPERS).len()
}

/// Frees what graphs of other code have kept, and destroys the handles of graphs whose launches have finished meanwhile.
/// No lock may be held.
pub(crate) fn bury() {
    if !ANY_LEFT.load(Ordering::Acquire) || !ANY_LEFT.swap(false, Ordering::AcqRel) {
        return;
    }
    let (keepers, remains) = {
        let mut left = lock(&LEFT);
        (
            std::mem::take(&mut left.keepers),
            std::mem::take(&mut left.remains),
        )
    };
    keepers.iter().for_each(|keeper| keeper.release());
    remains.into_iter().for_each(destroy);
}
