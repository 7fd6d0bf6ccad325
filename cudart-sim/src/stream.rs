//! A stream: a queue of operations that complete in order, and points in it.

use crate::sync::Instant;
use crate::work::Work;
use std::collections::VecDeque;

/// A place in a stream. It is done when the stream has completed that many operations, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) slot: u32,
    pub(crate) uid: u64,
    pub(crate) seq: u64,
}

/// How a stream relates to the legacy default stream of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    PerThread,
    Blocking,
    NonBlocking,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing to do, or the head cannot start.
    Idle,
    /// In the queue for a worker.
    Ready,
    /// A worker runs its head.
    Running,
}

pub(crate) struct Op {
    pub(crate) work: Option<Work>,
    pub(crate) after: Vec<Point>,
    pub(crate) since: Option<Instant>,
}

/// One stream. Slots are used again; the `uid`, which is also the public id, never is.
pub(crate) struct Stream {
    pub(crate) uid: u64,
    pub(crate) device: u32,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    pub(crate) queue: VecDeque<Op>,
    pub(crate) completed: u64,
    pub(crate) demanded: u64,
    pub(crate) observed: u64,
    pub(crate) state: State,
    pub(crate) destroyed: bool,
    pub(crate) waiting_on: Option<Point>,
    /// Streams whose head waits for a point in this one.
    pub(crate) waiters: Vec<(u64, u32)>,
    /// The lowest number that a host thread waits for.
    pub(crate) host_wait: u64,
    pub(crate) busy_at: usize,
    /// Which streams it was told to wait for, up to which operation.
    pub(crate) followed: Vec<(u64, u64)>,
}

impl Stream {
    pub(crate) fn new(uid: u64, device: u32, kind: Kind, priority: i32) -> Stream {
        Stream {
            uid,
            device,
            kind,
            priority,
            queue: VecDeque::new(),
            completed: 0,
            demanded: 0,
            observed: 0,
            state: State::Idle,
            destroyed: false,
            waiting_on: None,
            waiters: Vec::new(),
            host_wait: u64::MAX,
            busy_at: usize::MAX,
            followed: Vec::new(),
        }
    }

    /// The number of the last operation that was submitted.
    pub(crate) fn submitted(&self) -> u64 {
        self.completed + self.queue.len() as u64
    }
}
