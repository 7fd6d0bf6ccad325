//! The oracle of the random programs: a graph of all operations, and which of them can be reached from which. And what
//! else they need: random numbers, and a thread with a default stream of its own.

use std::sync::mpsc;

/// Bytes of a buffer.
pub const BYTES: usize = 256;

/// Which bytes of which buffer, and whether they are written.
#[derive(Clone)]
pub struct Touch {
    pub buffer: usize,
    pub bytes: [bool; BYTES],
    pub write: bool,
}

impl Touch {
    pub fn rows(
        buffer: usize,
        at: usize,
        width: usize,
        height: usize,
        pitch: usize,
        write: bool,
    ) -> Touch {
        let mut bytes = [false; BYTES];
        for row in 0..height {
            bytes[at + row * pitch..][..width].fill(true);
        }
        Touch {
            buffer,
            bytes,
            write,
        }
    }

    pub fn conflicts(&self, other: &Touch) -> bool {
        self.buffer == other.buffer
            && (self.write || other.write)
            && self.bytes.iter().zip(&other.bytes).any(|(a, b)| *a && *b)
    }
}

pub struct Node {
    /// All nodes that come before this one.
    pub before: Vec<bool>,
    pub touches: Vec<Touch>,
}

/// The graph of what was submitted.
#[derive(Default)]
pub struct Oracle {
    pub nodes: Vec<Node>,
    pub host: Option<usize>,
}

impl Oracle {
    pub fn closure(&self, direct: &[Option<usize>]) -> Vec<bool> {
        let mut before = vec![false; self.nodes.len()];
        for &node in direct.iter().flatten() {
            before[node] = true;
            for (place, b) in self.nodes[node].before.iter().enumerate() {
                before[place] |= b;
            }
        }
        before
    }

    pub fn races(&self, before: &[bool], touches: &[Touch]) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|n| !before[*n])
            .filter(|n| {
                let theirs = &self.nodes[*n].touches;
                touches
                    .iter()
                    .any(|t| theirs.iter().any(|u| t.conflicts(u)))
            })
            .collect()
    }

    pub fn add(&mut self, before: Vec<bool>, touches: Vec<Touch>) -> usize {
        self.nodes.push(Node { before, touches });
        self.nodes.len() - 1
    }

    /// The host waits for these.
    pub fn wait(&mut self, ends: &[Option<usize>]) {
        let mut direct = ends.to_vec();
        direct.push(self.host);
        let before = self.closure(&direct);
        self.host = Some(self.add(before, Vec::new()));
    }
}

/// A thread with a default stream of its own.
pub struct Helper(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Helper {
    pub fn new() -> Helper {
        let (send, receive) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || receive.into_iter().for_each(|f| f()));
        Helper(send)
    }

    pub fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = mpsc::channel();
        self.0.send(Box::new(move || drop(send.send(f())))).unwrap();
        receive.recv().unwrap()
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }
}
