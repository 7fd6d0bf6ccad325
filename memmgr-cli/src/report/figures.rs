//! The figures of a recording: its peak and what was live then, lifetimes, sizes, what was never freed,
//! and what the memory that was reserved, or that a best-fit pool would reserve, has over it.

use super::model::{self, Modelled};
use super::recording::{Block, Recording};

/// What blocks with something in common hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub name: String,
    pub blocks: usize,
    pub bytes: u64,
}

/// A bar of a histogram: blocks from `from` on and below twice that (`from` 0: only 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    pub from: u64,
    pub blocks: usize,
    pub bytes: u64,
}

/// Live and reserved bytes of all moments.
#[derive(Debug, Default)]
pub struct Series {
    pub live: Vec<u64>,
    /// As recorded, or as the model has it; a value for each moment.
    pub reserved: Vec<u64>,
}

#[derive(Debug, Default)]
pub struct Figures {
    pub allocations: usize,
    pub frees: usize,
    /// Bytes of all allocations together.
    pub turnover: u64,
    pub peak: u64,
    /// The first moment of the peak.
    pub peak_at: u32,
    /// Blocks live at the peak, the largest first.
    pub holders: Vec<u32>,
    pub by_class: Vec<Share>,
    pub by_owner: Vec<Share>,
    pub by_stream: Vec<Share>,
    pub sizes: Vec<Bin>,
    pub lifetimes: Vec<Bin>,
    /// The lifetimes, in calls, that half and nine tenths of the freed blocks do not exceed.
    pub median_life: u32,
    pub long_life: u32,
    /// Blocks that nothing freed.
    pub kept: Share,
    /// The largest of them.
    pub kept_largest: Option<u32>,
    /// The bytes between the addresses that were ever used, overlaps counted once.
    pub addresses: u64,
    /// The most bytes that were reserved, as recorded; 0 where unknown.
    pub peak_reserved: u64,
    pub modelled: Modelled,
    pub modelled_peak: u64,
}

/// The power of two at or below a size; 0 for 0.
fn class(size: u64) -> u64 {
    size.checked_ilog2().map_or(0, |log| 1 << log)
}

fn bins(values: impl Iterator<Item = (u64, u64)>) -> Vec<Bin> {
    let mut counts = [Bin::default(); 65];
    for (value, bytes) in values {
        let place = value.checked_ilog2().map_or(0, |log| log as usize + 1);
        if let Some(bin) = counts.get_mut(place) {
            bin.from = class(value);
            bin.blocks += 1;
            bin.bytes = bin.bytes.saturating_add(bytes);
        }
    }
    // Empty ones between others stay, so that bars are where their sizes are.
    let mut bins: Vec<Bin> = counts.into();
    for (place, bin) in bins.iter_mut().enumerate().skip(1) {
        bin.from = 1_u64.checked_shl(place as u32 - 1).unwrap_or(u64::MAX);
    }
    while bins.last().is_some_and(|bin| bin.blocks == 0) {
        bins.pop();
    }
    let first = bins.iter().position(|bin| bin.blocks > 0).unwrap_or(0);
    bins.split_off(first)
}

/// The shares of `blocks`, the largest first.
fn shares<'a>(
    blocks: impl Iterator<Item = &'a Block>,
    key: impl Fn(&Block) -> u64,
    name: impl Fn(u64) -> String,
) -> Vec<Share> {
    let mut shares = std::collections::BTreeMap::<u64, Share>::new();
    for block in blocks {
        let share = shares.entry(key(block)).or_default();
        share.blocks += 1;
        share.bytes = share.bytes.saturating_add(block.size);
    }
    let named = shares.into_iter().map(|(key, share)| Share {
        name: name(key),
        ..share
    });
    let mut shares: Vec<_> = named.collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

/// The length of all addresses that were ever in use.
fn covered(blocks: &[Block]) -> u64 {
    let ends = blocks
        .iter()
        .map(|block| (block.address, block.address.saturating_add(block.size)));
    let mut ranges: Vec<(u64, u64)> = ends.collect();
    ranges.sort_unstable();
    let (mut sum, mut reached) = (0_u64, 0_u64);
    for (from, to) in ranges {
        let from = from.max(reached);
        sum = sum.saturating_add(to.saturating_sub(from));
        reached = reached.max(to);
    }
    sum
}

/// A value for each moment, from the moments at which it changes.
fn spread(steps: &[(u32, u64)], last: u32) -> Vec<u64> {
    let mut steps = steps.iter().peekable();
    let mut now = 0;
    let values = (0..=last).map(|moment| {
        while let Some(&&(from, value)) = steps.peek().filter(|(from, _)| *from <= moment) {
            let _ = from;
            now = value;
            steps.next();
        }
        now
    });
    values.collect()
}

pub fn of(recording: &Recording, moved: impl FnMut(u64)) -> (Figures, Series) {
    let live = recording.live();
    let (mut peak, mut peak_at) = (0, 0);
    for (moment, &bytes) in live.iter().enumerate() {
        if bytes > peak {
            (peak, peak_at) = (bytes, moment as u32);
        }
    }
    let blocks = &recording.blocks;
    let at = |index: &u32| blocks.get(*index as usize);
    let indices = 0..u32::try_from(blocks.len()).unwrap_or(u32::MAX);
    let is_live = |index: &u32| at(index).is_some_and(|block| block.live_at(peak_at));
    let mut holders: Vec<u32> = indices.clone().filter(is_live).collect();
    holders.sort_by_key(|index| std::cmp::Reverse(at(index).map_or(0, |block| block.size)));
    let held = || holders.iter().filter_map(at);
    let name = |names: &[String], key: u64| names.get(key as usize).cloned().unwrap_or_default();

    let last = recording.last;
    let kept = indices.filter(|index| at(index).is_some_and(|block| block.end > last));
    let kept: Vec<u32> = if last == 0 {
        Vec::new()
    } else {
        kept.collect()
    };
    let mut lives: Vec<u32> = blocks
        .iter()
        .filter(|block| block.end <= last)
        .map(Block::lifetime)
        .collect();
    lives.sort_unstable();
    // The `part`-th of ten parts of them.
    let life = |part: usize| {
        let place = (lives.len() * part).div_ceil(10).saturating_sub(1);
        lives.get(place).copied().unwrap_or(0)
    };
    let modelled = model::run(recording, moved);
    let modelled_peak = modelled.reserved.last().map_or(0, |&(_, bytes)| bytes);
    let made = || blocks.iter().filter(|block| block.start > 0);
    let known = !recording.reserved.is_empty();
    let steps = if known {
        &recording.reserved
    } else {
        &modelled.reserved
    };
    let reserved = spread(steps, last);
    let figures = Figures {
        allocations: made().count(),
        frees: lives.len(),
        turnover: made().fold(0, |sum, block| sum.saturating_add(block.size)),
        peak,
        peak_at,
        by_class: shares(held(), |block| class(block.size), super::words::class_name),
        by_owner: shares(
            held(),
            |b| b.owner.into(),
            |key| name(&recording.owners, key),
        ),
        by_stream: shares(
            held(),
            |b| b.stream.into(),
            |key| name(&recording.streams, key),
        ),
        sizes: bins(blocks.iter().map(|block| (block.size, block.size))),
        lifetimes: bins(
            blocks
                .iter()
                .filter(|block| block.end <= last)
                .map(|block| (block.lifetime().into(), block.size)),
        ),
        median_life: life(5),
        long_life: life(9),
        kept: Share {
            name: String::new(),
            blocks: kept.len(),
            bytes: kept
                .iter()
                .filter_map(at)
                .fold(0, |sum, b| sum.saturating_add(b.size)),
        },
        kept_largest: kept
            .iter()
            .copied()
            .max_by_key(|i| at(i).map_or(0, |b| b.size)),
        addresses: covered(blocks),
        peak_reserved: if known {
            reserved.iter().copied().max().unwrap_or(0)
        } else {
            0
        },
        modelled,
        modelled_peak,
        holders,
    };
    (figures, Series { live, reserved })
}

#[cfg(test)]
mod tests {
    use super::super::recording::tests::{block, recording};
    use super::*;

    #[test]
    fn the_peak_and_what_was_live_at_it() {
        let blocks = vec![
            block(0, 100, 1, 3),
            block(200, 300, 2, 5),
            block(0, 90, 4, 5),
        ];
        let (figures, series) = of(&recording(blocks, 4), |_| {});
        assert_eq!((figures.peak, figures.peak_at), (400, 2));
        assert_eq!(figures.holders, [1, 0]);
        assert_eq!(series.live, [0, 100, 400, 300, 390]);
        assert_eq!((figures.allocations, figures.frees), (3, 1));
        assert_eq!((figures.kept.blocks, figures.kept.bytes), (2, 390));
        assert_eq!(figures.kept_largest, Some(1));
        assert_eq!((figures.median_life, figures.addresses), (2, 400));
        assert_eq!(
            figures.by_class.iter().map(|s| s.bytes).collect::<Vec<_>>(),
            [300, 100]
        );
        assert_eq!(series.reserved, [0, 32 << 20, 32 << 20, 32 << 20, 32 << 20]);
    }

    #[test]
    fn bars_lie_where_their_sizes_are() {
        let bins = bins([(256, 1), (300, 2), (1024, 4)].into_iter());
        let found: Vec<_> = bins.iter().map(|b| (b.from, b.blocks, b.bytes)).collect();
        assert_eq!(found, [(256, 2, 3), (512, 0, 0), (1024, 1, 4)]);
    }
}
