//! The judge of the random programs: a graph of all operations, in which two accesses race if neither operation can be
//! reached from the other. It shares nothing with the checker: no clocks, no ticks, no ranges.

/// Bytes of a buffer.
pub const BYTES: usize = 256;

/// A set of nodes, or of bytes.
#[derive(Clone, Default, Debug)]
pub struct Set(Vec<u64>);

impl Set {
    pub fn has(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|w| w >> (n % 64) & 1 == 1)
    }

    pub fn add(&mut self, n: usize) {
        if self.0.len() <= n / 64 {
            self.0.resize(n / 64 + 1, 0);
        }
        self.0[n / 64] |= 1 << (n % 64);
    }

    pub fn join(&mut self, other: &Set) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    fn meets(&self, other: &Set) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }
}

/// Which bytes of which memory, and whether they are written.
#[derive(Clone, Debug)]
pub struct Touch {
    pub buffer: usize,
    pub bytes: Set,
    pub write: bool,
}

impl Touch {
    pub fn all(buffer: usize, at: usize, len: usize) -> Touch {
        let mut bytes = Set::default();
        (at..at + len).for_each(|b| bytes.add(b));
        Touch {
            buffer,
            bytes,
            write: true,
        }
    }

    fn conflicts(&self, other: &Touch) -> bool {
        self.buffer == other.buffer && (self.write || other.write) && self.bytes.meets(&other.bytes)
    }
}

pub struct Node {
    /// All nodes that come before this one.
    before: Set,
    pub touches: Vec<Touch>,
    /// The id of the stream; 0: the host.
    pub stream: u64,
}

/// The graph of what was submitted.
#[derive(Default)]
pub struct Oracle {
    pub nodes: Vec<Node>,
    pub host: Option<usize>,
}

impl Oracle {
    /// Everything from which one of these can be reached, they themselves included.
    pub fn closure(&self, direct: &[Option<usize>]) -> Set {
        let mut before = Set::default();
        for &node in direct.iter().flatten() {
            before.add(node);
            before.join(&self.nodes[node].before);
        }
        before
    }

    pub fn races(&self, before: &Set, touches: &[Touch]) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|n| !before.has(*n))
            .filter(|n| {
                let theirs = &self.nodes[*n].touches;
                touches
                    .iter()
                    .any(|t| theirs.iter().any(|u| t.conflicts(u)))
            })
            .collect()
    }

    pub fn add(&mut self, before: Set, touches: Vec<Touch>, stream: u64) -> usize {
        self.nodes.push(Node {
            before,
            touches,
            stream,
        });
        self.nodes.len() - 1
    }

    /// The host waits for these.
    pub fn wait(&mut self, ends: &[Option<usize>]) {
        let mut direct = ends.to_vec();
        direct.push(self.host);
        let before = self.closure(&direct);
        self.host = Some(self.add(before, Vec::new(), 0));
    }
}
