//! What was recorded, whatever file it came from: blocks with their addresses and lives, moments, and
//! what is known of the memory that the program reserved.
//!
//! Moment 0 is before the first call, moment `n` after the n-th. A block is live at the moments from
//! `start` to `end`, which is not one of them; a block that nothing freed ends after the last moment.

use std::collections::HashMap;
use std::hash::Hash;

/// More than an allocator of any kind has; all sums stay far from the end of 64 bits.
pub const MOST_BYTES: u64 = 1 << 63;

/// A block and its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    pub size: u64,
    /// Its place in [`Recording::streams`].
    pub stream: u32,
    /// Its place in [`Recording::owners`].
    pub owner: u32,
    pub start: u32,
    pub end: u32,
}

impl Block {
    pub fn live_at(&self, moment: u32) -> bool {
        self.start <= moment && moment < self.end
    }

    /// For how many moments it was live.
    pub fn lifetime(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

/// A piece of address space that the program had from the device, and what was in it at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    pub size: u64,
    /// The bytes in it that were in use.
    pub used: u64,
    /// The longest piece that was not.
    pub largest_hole: u64,
    pub kind: String,
}

/// What the owners of blocks are: threads in a log, places in the program in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    Thread,
    Place,
}

impl OwnerKind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Place => "place",
        }
    }
}

/// All that is known of one program, or of one device of it.
#[derive(Clone, Debug)]
pub struct Recording {
    pub name: String,
    /// What kind of file it is from.
    pub source: &'static str,
    pub blocks: Vec<Block>,
    /// The number of the last moment.
    pub last: u32,
    /// Microseconds since the first call, one for each moment; empty where no times are known.
    pub times: Vec<u64>,
    pub streams: Vec<String>,
    pub owners: Vec<String>,
    pub owner_kind: OwnerKind,
    /// The bytes that the program reserved, from each moment on at which that changed; empty where
    /// unknown.
    pub reserved: Vec<(u32, u64)>,
    pub segments: Vec<Segment>,
    /// What was left out or had to be assumed, in whole sentences.
    pub notes: Vec<String>,
    /// What is said of the file where it was read.
    pub warning: Option<String>,
}

impl Recording {
    /// The bytes that are live at each moment.
    pub fn live(&self) -> Vec<u64> {
        let moments = self.last as usize + 1;
        let mut come = vec![0_u64; moments];
        let mut gone = vec![0_u64; moments];
        for block in &self.blocks {
            if let Some(bytes) = come.get_mut(block.start as usize) {
                *bytes = bytes.saturating_add(block.size);
            }
            if let Some(bytes) = gone.get_mut(block.end as usize) {
                *bytes = bytes.saturating_add(block.size);
            }
        }
        let mut now = 0_u64;
        let steps = come.iter().zip(&gone).map(|(come, gone)| {
            now = now.saturating_add(*come).saturating_sub(*gone);
            now
        });
        steps.collect()
    }

    /// Microseconds from the first call to this moment.
    pub fn time(&self, moment: u32) -> Option<u64> {
        self.times.get(moment as usize).copied()
    }
}

/// Numbers for names, in order of appearance.
#[derive(Debug)]
pub struct Numbered<K> {
    numbers: HashMap<K, u32>,
    pub names: Vec<String>,
}

impl<K> Default for Numbered<K> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            names: Vec::new(),
        }
    }
}

impl<K: Hash + Eq> Numbered<K> {
    pub fn number(&mut self, key: K, name: impl FnOnce() -> String) -> u32 {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(key).or_insert_with(|| {
            self.names.push(name());
            next
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn block(address: u64, size: u64, start: u32, end: u32) -> Block {
        Block {
            address,
            size,
            stream: 0,
            owner: 0,
            start,
            end,
        }
    }

    pub fn recording(blocks: Vec<Block>, last: u32) -> Recording {
        Recording {
            name: "test".to_owned(),
            source: "test",
            blocks,
            last,
            times: Vec::new(),
            streams: vec!["0x0".to_owned()],
            owners: vec!["0".to_owned()],
            owner_kind: OwnerKind::Thread,
            reserved: Vec::new(),
            segments: Vec::new(),
            notes: Vec::new(),
            warning: None,
        }
    }

    #[test]
    fn live_bytes_follow_starts_and_ends() {
        let recording = recording(vec![block(0, 10, 0, 2), block(16, 5, 1, 4)], 3);
        assert_eq!(recording.live(), [10, 15, 5, 5]);
    }

    #[test]
    fn numbers_are_given_in_order() {
        let mut numbered = Numbered::default();
        assert_eq!(numbered.number(7, || "seven".to_owned()), 0);
        assert_eq!(numbered.number(9, || "nine".to_owned()), 1);
        assert_eq!(numbered.number(7, || unreachable!()), 0);
        assert_eq!(numbered.names, ["seven", "nine"]);
    }
}
