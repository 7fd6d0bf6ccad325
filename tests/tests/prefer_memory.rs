//! `Reuse::PreferMemory`: what a stream has freed itself is waited for before a pool of virtual memory grows, so that it can move.

mod common;

use common::{MIB, assert_sound, stall};
use memmgr::{Config, DeviceSource, MemoryManager, Reuse, Stream};
use memmgr_tests::{Gate, sim_only};
use std::time::Duration;

/// Every second of 16 blocks is freed behind work that runs; then one request is as long as all of them. What the pool holds.
fn reserved_with(reuse: Reuse) -> usize {
    let config = Config::default()
        .device_source(DeviceSource::Virtual)
        .reuse(reuse);
    let mm = MemoryManager::new(config).unwrap();
    let stream = Stream::new().unwrap();
    let blocks: Vec<_> = (0..16)
        .map(|_| mm.allocate_device_on(8 * MIB, &stream).unwrap())
        .collect();
    let gate = Gate::new();
    stall(&stream, &gate);
    for block in blocks.iter().step_by(2) {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(*block, &stream).unwrap() };
    }
    let opens = gate.open_after(Duration::from_millis(100));
    let long = mm.allocate_device_on(64 * MIB, &stream).unwrap();
    let reserved = mm.stats().device[0].best_fit.reserved;
    opens.join().unwrap();
    assert_sound(&mm);
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_device_on(long, &stream).unwrap();
        for block in blocks.iter().skip(1).step_by(2) {
            mm.free_device_on(*block, &stream).unwrap();
        }
    }
    stream.synchronize().unwrap();
    mm.shutdown().unwrap();
    reserved
}

#[test]
fn a_streams_own_pending_memory_moves_instead_of_a_growth() {
    sim_only!("the device has virtual memory");
    // The default does not wait: it makes what is missing.
    assert!(reserved_with(Reuse::PreferSpeed) >= 192 * MIB);
    let reserved = reserved_with(Reuse::PreferMemory);
    assert!(reserved <= 130 * MIB, "{reserved}");
}
