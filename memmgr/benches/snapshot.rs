//! How long a snapshot of a million blocks takes, and its files: `cargo bench -p memmgr --features sim --bench snapshot`.

use memmgr::{Config, MemoryManager, Stream};
use std::time::Instant;

const BLOCKS: usize = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let manager = MemoryManager::new(Config::default().device_pool_size(BLOCKS * 512))?;
    let streams = [Stream::new()?, Stream::new()?];
    let mut blocks = Vec::with_capacity(BLOCKS);
    for number in 0..BLOCKS {
        let stream = &streams[number % 2];
        blocks.push(manager.allocate_device_on(1 + number % 256, stream)?);
    }
    // Every fourth is free, so that there are as many free pieces.
    for (number, block) in blocks.iter().enumerate().skip(1).step_by(4) {
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device_on(*block, &streams[number % 2])? };
    }
    let timed = |what: &str, begun: Instant| {
        println!("{what:<12} {:>7.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    };
    for _ in 0..3 {
        let begun = Instant::now();
        let snapshot = manager.snapshot();
        timed("taken", begun);
        let found: usize = snapshot.segments.iter().map(|of| of.blocks.len()).sum();
        let folder = std::env::temp_dir().join(format!("memmgr-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        for (name, json) in [("pickle", false), ("json", true)] {
            let path = folder.join(name);
            let begun = Instant::now();
            match json {
                true => snapshot.write_json(&path)?,
                false => snapshot.write_pickle(&path)?,
            }
            timed(name, begun);
            println!("{found} blocks, {} bytes", std::fs::metadata(&path)?.len());
        }
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}
