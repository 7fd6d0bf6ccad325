//! What `MemoryManager::stats` costs: `cargo bench -p memmgr --bench stats --features sim`, or on a GPU without the feature,
//! prints nanoseconds with few and with many live blocks, and beside it what the walk of `fragmentation` takes.

use memmgr::{Config, MemoryManager, Stream};
use std::{hint::black_box, time::Instant};

const ROUNDS: u32 = 20_000;
const WALKS: u32 = 20;

/// The least nanoseconds of a few runs.
fn time(rounds: u32, mut f: impl FnMut()) -> f64 {
    let runs = (0..5).map(|_| {
        let start = Instant::now();
        (0..rounds).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(rounds)
    });
    runs.fold(f64::INFINITY, f64::min)
}

fn main() {
    println!(
        "{:>9} {:>12} {:>17}",
        "blocks", "stats ns", "fragmentation ns"
    );
    for blocks in [100usize, 100_000] {
        let config = Config::default().device_pool_size(blocks * 8192);
        let manager = MemoryManager::new(config).expect("the sizes are valid");
        let stream = Stream::new().expect("a stream can be made");
        // Twice as many, every other one free again: so many pieces lie between them.
        let made: Vec<_> = (0..2 * blocks)
            .map(|n| manager.allocate_device_on(256 + n % 3 * 256, &stream))
            .collect::<Result<_, _>>()
            .expect("there is room");
        for block in made.iter().step_by(2) {
            // SAFETY: the block is live, and nobody uses it.
            unsafe { manager.free_device_on(*block, &stream) }.expect("it is live");
        }
        let live = manager.stats().device[0].best_fit.live_blocks;
        assert_eq!(live, blocks);
        let stats = time(ROUNDS, || drop(black_box(manager.stats())));
        let walk = time(WALKS, || drop(black_box(manager.fragmentation())));
        println!("{live:>9} {stats:>12.0} {walk:>17.0}");
        // SAFETY: nobody uses or frees the blocks afterwards.
        unsafe { manager.shutdown_and_free_raw() }.expect("everything goes back");
    }
}
