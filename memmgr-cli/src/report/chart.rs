//! What the page's charts draw, as compact JSON: arrays are little-endian numbers in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::figures::{Figures, Series};
use super::recording::{Block, Recording};

/// The most points of time lines and the most blocks of maps on a page; the page stays below 15 MB.
const MOST_POINTS: u64 = 300_000;
const MOST_BLOCKS: u64 = 160_000;
/// The most changes of the reserved bytes that are drawn, and the most known times.
const MOST_STEPS: usize = 20_000;
/// Addresses further apart than this lie in different regions.
const GAP: u64 = 2 << 20;
const MOST_REGIONS: usize = 500;
/// Names that are told apart; further ones are all called other.
const MOST_NAMES: usize = 500;

#[derive(Debug, Serialize)]
pub struct Chart {
    name: String,
    last: u32,
    peak: u64,
    peak_at: u32,
    /// The moments of the points; empty where each moment has one.
    at: String,
    live: String,
    reserved_at: String,
    reserved: String,
    reserved_known: bool,
    /// Microseconds of every `time_step`-th moment and of the last.
    times: String,
    time_step: usize,
    /// First address, place on the stacked axis and length.
    regions: Vec<(String, u64, u64)>,
    /// How many blocks there are, of which the map may have only the largest.
    all_blocks: usize,
    start: String,
    end: String,
    place: String,
    size: String,
    stream: String,
    owner: String,
    streams: Vec<String>,
    owners: Vec<String>,
    owner_kind: &'static str,
}

/// How much of a page each recording may take.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    moments: u64,
    blocks: u64,
}

impl Budget {
    pub fn of(recordings: &[Recording]) -> Self {
        let moments = recordings.iter().map(|r| u64::from(r.last) + 1).sum();
        let blocks = recordings.iter().map(|r| r.blocks.len() as u64).sum();
        Self { moments, blocks }
    }

    /// What of `count` may be shown, where `most` are for all.
    fn part(count: usize, all: u64, most: u64) -> usize {
        let part = count as u128 * u128::from(most) / u128::from(all.max(1));
        count
            .min(usize::try_from(part).unwrap_or(usize::MAX))
            .max(count.min(8))
    }
}

/// The moments to draw of a series: all of them, or for each stretch its first, lowest and highest.
pub fn sampled(values: &[u64], most: usize) -> Vec<u32> {
    if values.len() <= most {
        return (0..values.len() as u32).collect();
    }
    let stretch = (values.len() * 3).div_ceil(most.max(3));
    let mut moments = Vec::new();
    for (number, part) in values.chunks(stretch).enumerate() {
        let at = |place: usize| (number * stretch + place) as u32;
        let (mut low, mut high) = (0, 0);
        for (place, value) in part.iter().enumerate() {
            if Some(value) < part.get(low) {
                low = place;
            }
            if Some(value) > part.get(high) {
                high = place;
            }
        }
        let mut three = [0, low, high];
        three.sort_unstable();
        moments.extend(three.map(at));
    }
    moments.dedup();
    moments
}

/// Where addresses lie on an axis without the gaps between regions.
pub struct Regions {
    /// First address, place, length.
    pub all: Vec<(u64, u64, u64)>,
}

impl Regions {
    pub fn of(blocks: &[Block]) -> Self {
        let ends = blocks
            .iter()
            .map(|block| (block.address, block.address.saturating_add(block.size)));
        let mut ranges: Vec<(u64, u64)> = ends.collect();
        ranges.sort_unstable();
        let mut gap = GAP;
        loop {
            let mut joined: Vec<(u64, u64)> = Vec::new();
            for &(from, to) in &ranges {
                match joined.last_mut() {
                    Some((_, end)) if from <= end.saturating_add(gap) => *end = to.max(*end),
                    _ => joined.push((from, to)),
                }
            }
            if joined.len() <= MOST_REGIONS {
                let mut place = 0_u64;
                let all = joined.into_iter().map(|(from, to)| {
                    let region = (from, place, to - from);
                    place = place.saturating_add(to - from);
                    region
                });
                return Self { all: all.collect() };
            }
            gap = gap.saturating_mul(4);
        }
    }

    pub fn place(&self, address: u64) -> u64 {
        let after = self.all.partition_point(|&(from, _, _)| from <= address);
        let region = after.checked_sub(1).and_then(|index| self.all.get(index));
        region.map_or(0, |&(from, place, _)| place.saturating_add(address - from))
    }

    pub fn length(&self) -> u64 {
        self.all
            .last()
            .map_or(0, |&(_, place, length)| place.saturating_add(length))
    }
}

/// At most so many blocks: those that hold the most bytes for the longest, in order.
pub fn largest(blocks: &[Block], most: usize) -> Vec<&Block> {
    let area = |block: &Block| u128::from(block.size) * u128::from(block.lifetime());
    let mut chosen: Vec<&Block> = blocks.iter().collect();
    if chosen.len() > most {
        chosen.sort_by_key(|block| std::cmp::Reverse(area(block)));
        chosen.truncate(most);
        chosen.sort_by_key(|block| block.start);
    }
    chosen
}

pub fn of(recording: &Recording, figures: &Figures, series: &Series, budget: Budget) -> Chart {
    let points = Budget::part(series.live.len(), budget.moments, MOST_POINTS);
    let at = sampled(&series.live, points);
    let all_at = at.len() == series.live.len();
    let value = |values: &[u64], moment: u32| values.get(moment as usize).copied().unwrap_or(0);
    let mut steps: Vec<u32> = Vec::new();
    let mut before = None;
    for (moment, &bytes) in series.reserved.iter().enumerate() {
        if before != Some(bytes) {
            steps.push(moment as u32);
            before = Some(bytes);
        }
    }
    let changes: Vec<u64> = steps
        .iter()
        .map(|&moment| value(&series.reserved, moment))
        .collect();
    let steps: Vec<u32> = sampled(&changes, MOST_STEPS)
        .into_iter()
        .filter_map(|index| steps.get(index as usize).copied())
        .collect();
    let time_step = recording.times.len().div_ceil(MOST_STEPS).max(1);
    let known = recording
        .times
        .iter()
        .step_by(time_step)
        .chain(recording.times.last());
    let most = Budget::part(recording.blocks.len(), budget.blocks, MOST_BLOCKS);
    let blocks = largest(&recording.blocks, most);
    let regions = Regions::of(&recording.blocks);
    let number = |number: u32| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
    let names = |names: &[String]| {
        let short = names
            .iter()
            .take(MOST_NAMES)
            .map(|name| name.chars().take(80).collect());
        short.collect::<Vec<String>>()
    };
    Chart {
        name: recording.name.clone(),
        last: recording.last,
        peak: figures.peak,
        peak_at: figures.peak_at,
        at: if all_at {
            String::new()
        } else {
            packed(at.iter().map(|m| m.to_le_bytes()))
        },
        live: packed(at.iter().map(|&m| float(value(&series.live, m)))),
        reserved_at: packed(steps.iter().map(|m| m.to_le_bytes())),
        reserved: packed(steps.iter().map(|&m| float(value(&series.reserved, m)))),
        reserved_known: !recording.reserved.is_empty(),
        times: packed(known.map(|&time| float(time))),
        time_step,
        regions: regions
            .all
            .iter()
            .map(|&(from, place, length)| (format!("{from:#x}"), place, length))
            .collect(),
        all_blocks: recording.blocks.len(),
        start: packed(blocks.iter().map(|b| b.start.to_le_bytes())),
        end: packed(blocks.iter().map(|b| b.end.to_le_bytes())),
        place: packed(blocks.iter().map(|b| float(regions.place(b.address)))),
        size: packed(blocks.iter().map(|b| float(b.size))),
        stream: packed(blocks.iter().map(|b| number(b.stream))),
        owner: packed(blocks.iter().map(|b| number(b.owner))),
        streams: names(&recording.streams),
        owners: names(&recording.owners),
        owner_kind: recording.owner_kind.word(),
    }
}

/// Exact up to 2^53, which is more than the page can show apart.
fn float(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

fn packed<const N: usize>(items: impl Iterator<Item = [u8; N]>) -> String {
    STANDARD.encode(items.flatten().collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::super::recording::tests::block;
    use super::*;

    #[test]
    fn a_sample_keeps_the_peak() {
        let mut values = vec![5; 10_000];
        values[7_321] = 9;
        values[44] = 1;
        let moments = sampled(&values, 300);
        assert!(moments.len() <= 300 && moments.is_sorted());
        assert!(moments.contains(&7_321) && moments.contains(&44));
        assert_eq!(sampled(&values[..10], 10).len(), 10);
    }

    #[test]
    fn regions_leave_out_gaps() {
        let far = 1 << 40;
        let blocks = [
            block(100, 50, 1, 2),
            block(far, 10, 1, 2),
            block(160, 40, 1, 2),
        ];
        let regions = Regions::of(&blocks);
        assert_eq!(regions.all, [(100, 0, 100), (far, 100, 10)]);
        assert_eq!((regions.place(160), regions.place(far + 3)), (60, 103));
        assert_eq!(regions.length(), 110);
        let scattered: Vec<_> = (0..5_000_u64).map(|n| block(n << 30, 1, 1, 2)).collect();
        assert!(Regions::of(&scattered).all.len() <= MOST_REGIONS);
    }

    #[test]
    fn the_largest_blocks_stay_in_order() {
        let blocks: Vec<_> = (1..100).map(|n| block(0, n.into(), n, n + 1)).collect();
        let chosen = largest(&blocks, 3);
        assert_eq!(
            chosen.iter().map(|b| b.size).collect::<Vec<_>>(),
            [97, 98, 99]
        );
    }
}
