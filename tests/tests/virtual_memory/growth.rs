//! How much a pool grows by, and what new memory is.

use crate::{
    common::{KIB, MIB, assert_sound},
    rig, stats, turn, virtual_memory,
};
use memmgr::{Config, DeviceSource, MemoryManager, Stream};

/// The first growth is the configured one, as far as there is room; from then on a pool grows by what is missing.
#[test]
fn the_first_growth_is_the_configured_one() {
    let _turn = turn();
    for (limit, first) in [(None, 32 * MIB), (Some(5 * MIB), 5 * MIB)] {
        let config = Config::default().device_pool_limit(limit);
        let manager = MemoryManager::new(config).unwrap();
        manager.allocate_device(256).unwrap();
        assert_eq!(stats(&manager).reserved, first);
        let device = manager.stats().device[0];
        if limit.is_none() && device.source == DeviceSource::Virtual {
            manager.allocate_device(32 * MIB).unwrap();
            assert_eq!(stats(&manager).reserved, first + 2 * MIB);
        }
        assert_sound(&manager);
    }
}

#[test]
fn a_growing_pool_is_one_piece() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let blocks: Vec<_> = (0..400)
        .map(|_| manager.allocate_device(100 * KIB).unwrap())
        .collect();
    let grown = stats(&manager);
    assert_eq!(grown.segments, 1);
    assert!(grown.reserved - 400 * 100 * KIB < 2 * MIB, "{grown:?}");
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { manager.free_device(block).unwrap() };
    }
    let all = manager.allocate_device(grown.reserved).unwrap();
    let now = stats(&manager);
    assert_eq!(
        (now.growths, now.moves, now.reserved),
        (grown.growths, 0, grown.reserved)
    );
    assert_sound(&manager);
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device(all).unwrap() };
    assert_eq!(manager.shutdown().unwrap().released, grown.reserved);
}

/// The device has no more than so many bytes for anybody, as long as this lives.
#[cfg(feature = "sim")]
struct Limit;

#[cfg(feature = "sim")]
impl Limit {
    fn of_what_is_left(bytes: usize) -> Self {
        let now = cudart_sim::memory_info(0).unwrap();
        let limit = now.total - now.free + bytes as u64;
        cudart_sim::limit(cudart_sim::Limited::Device(0), Some(limit));
        Self
    }
}

#[cfg(feature = "sim")]
impl Drop for Limit {
    fn drop(&mut self) {
        cudart_sim::limit(cudart_sim::Limited::Device(0), None);
    }
}

/// Case B14.
#[test]
fn a_growth_asks_for_no_more_than_is_needed() {
    memmgr_tests::sim_only!("it limits the device");
    let _turn = turn();
    #[cfg(feature = "sim")]
    {
        {
            let manager = virtual_memory(Config::default()).unwrap();
            // What other tests have left goes.
            manager.trim().unwrap();
            let _limit = Limit::of_what_is_left(32 * MIB);
            for _ in 0..3 {
                manager.allocate_device(8 * MIB).unwrap();
            }
            assert_eq!(stats(&manager).reserved, 24 * MIB);
            let refused = manager.allocate_device(8 * MIB + 1).unwrap_err();
            assert!(refused.is_out_of_memory(), "{refused}");
        }
        let size = 15_250_961;
        let manager = virtual_memory(Config::default().device_pool_size(size)).unwrap();
        let _limit = Limit::of_what_is_left(16 * MIB);
        manager.allocate_device(MIB).unwrap();
        assert_eq!(stats(&manager).reserved, size.next_multiple_of(256));
        manager.allocate_device(size - MIB).unwrap();
        assert_sound(&manager);
    }
    let both = Config::default()
        .device_pool_size(1000)
        .device_pool_limit(Some(1000));
    let manager = virtual_memory(both).unwrap();
    manager.allocate_device(700).unwrap();
    assert!(manager.allocate_device(700).is_err());
    assert_eq!(stats(&manager).reserved, 768);
    assert_sound(&manager);
    let contrary = Config::default()
        .device_pool_size(2000)
        .device_pool_limit(Some(1000));
    assert!(MemoryManager::new(contrary).is_err());
}

/// New memory is zero, whatever the device had there; memory that has moved is not made so again.
#[test]
fn new_chunks_are_zero() {
    let _turn = turn();
    let Some(manager) = virtual_memory(Config::default()) else {
        return;
    };
    let stream = Stream::new().unwrap();
    for _ in 0..2 {
        let block = manager.allocate_device(3 * MIB).unwrap();
        // SAFETY: the block has so many bytes.
        unsafe {
            let found = rig::read_back(&manager, block, 3 * MIB, &stream);
            assert!(found.iter().all(|byte| *byte == 0));
            manager.memset(block, 9, 3 * MIB, &stream).unwrap();
            stream.synchronize().unwrap();
            manager.free_device(block).unwrap();
        }
        manager.trim().unwrap();
    }
}
