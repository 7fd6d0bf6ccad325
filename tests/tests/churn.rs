//! A long run of mixed lifetimes: what a pool holds beyond what is live must not creep upwards.
//!
//! Usually two million calls; `MEMMGR_CHURN=100000000`, in a release build, makes as many as a server makes in a day.

use memmgr::{Config, MemoryManager, PoolStats, Stream};
use memmgr_tests::Rng;
use std::{cmp::Reverse, collections::BinaryHeap, ffi::c_void};

const MIB: usize = 1 << 20;
/// The most that is live, in bytes.
const MOST: usize = 2048 * MIB;
const STREAMS: usize = 4;
const PARTS: usize = 10;

/// A live block: when it goes, its address, its size in bytes and its stream.
type Block = (Reverse<u64>, usize, usize, usize);

fn calls() -> u64 {
    match std::env::var("MEMMGR_CHURN") {
        Ok(text) => text.parse().expect("MEMMGR_CHURN is a number of calls"),
        Err(_) => 2_000_000,
    }
}

/// From 256 bytes to 32 MiB, each power of two as often as any other.
fn size(rng: &mut Rng) -> usize {
    let power = rng.below(18);
    ((256 << power) + rng.below(256 << power)) as usize
}

/// Most blocks go soon, some later, a few stay for a long time; in calls.
fn lifetime(rng: &mut Rng) -> u64 {
    let most = match rng.below(100) {
        0..70 => 100,
        70..97 => 3_000,
        _ => 200_000,
    };
    1 + rng.below(most)
}

fn stats(manager: &MemoryManager) -> PoolStats {
    manager.stats().device[0].best_fit
}

#[test]
fn what_is_held_beyond_what_is_live_does_not_creep() {
    let manager = MemoryManager::new(Config::default()).expect("a manager");
    let streams: Vec<Stream> = (0..STREAMS)
        .map(|_| Stream::new().expect("a stream"))
        .collect();
    let mut rng = Rng(1);
    let mut blocks: BinaryHeap<Block> = BinaryHeap::new();
    let (mut live, mut peak) = (0, 0);
    let part = calls() / PARTS as u64;
    let mut ratios = Vec::new();
    for now in 0..part * PARTS as u64 {
        let size = size(&mut rng);
        let due = blocks
            .peek()
            .is_some_and(|(Reverse(until), ..)| *until <= now);
        if due || live + size > MOST {
            let (_, address, size, stream) = blocks.pop().expect("something is live");
            let block = std::ptr::with_exposed_provenance_mut::<c_void>(address);
            // SAFETY: the block was allocated on this stream, is freed once, and no work uses it.
            unsafe { manager.free_device_on(block, &streams[stream]) }.expect("a live block");
            live -= size;
        } else {
            let stream = rng.below(STREAMS as u64) as usize;
            let block = manager
                .allocate_device_on(size, &streams[stream])
                .expect("there is memory");
            let until = now + lifetime(&mut rng);
            blocks.push((Reverse(until), block.expose_provenance(), size, stream));
            live += size;
            peak = peak.max(live);
        }
        if (now + 1) % part == 0 {
            let stats = stats(&manager);
            let ratio = stats.peak_reserved as f64 / peak as f64;
            println!(
                "{} calls: {:.1} MiB live at most, {:.1} reserved at most: {ratio:.4}; {} growths, {} moves",
                now + 1,
                peak as f64 / MIB as f64,
                stats.peak_reserved as f64 / MIB as f64,
                stats.growths,
                stats.moves
            );
            ratios.push(ratio);
        }
    }
    // The pool finds its size within the first millions of calls, while moves are rationed (`pool/miss/growth.rs`).
    let (settled, most) = if calls() < 100_000_000 {
        (ratios[PARTS / 2], 1.05)
    } else {
        (ratios[0], 1.0)
    };
    assert!(ratios[PARTS - 1] <= most * settled, "{ratios:?}");
}
