//! On a machine whose driver is from before memory pools everything but the async modes works, and those fall back.
//!
//! In a process of its own, on a simulated machine with such a driver.
#![cfg(feature = "sim")]

use memmgr::{DeviceAllocatorMode, MemoryManager, Stream};

#[test]
fn a_driver_without_pools_leaves_the_best_fit_pool() {
    let config = cudart_sim::Config {
        driver_version: 11_010,
        runtime_version: 11_040,
        ..cudart_sim::Config::devices(1, 1 << 30)
    };
    cudart_sim::configure(config).unwrap();
    let versions = memmgr::versions().unwrap();
    assert_eq!((versions.driver, versions.runtime), (11_010, 11_040));
    // The attribute is unknown to such a driver: asking for it would be an error.
    let devices = memmgr::devices().unwrap();
    assert_eq!(devices.len(), 1);
    assert!(!devices[0].memory_pools_supported && devices[0].virtual_memory_supported);
    let mm = MemoryManager::instance();
    assert!(!mm.supports_async_device_allocator().unwrap());
    let stream = Stream::new().unwrap();
    for mode in DeviceAllocatorMode::ALL {
        mm.set_device_allocator_mode(mode);
        assert_eq!(mm.requested_device_allocator_mode(), mode);
        let granted = match mode {
            DeviceAllocatorMode::AsyncStreamOrdered | DeviceAllocatorMode::CudaAsyncPool => {
                DeviceAllocatorMode::BestFitPool
            }
            plain => plain,
        };
        assert_eq!(mm.effective_device_allocator_mode().unwrap(), granted);
        let block = mm.allocate_device_on(4096, &stream).unwrap();
        // SAFETY: the block is ours, and freed once.
        unsafe {
            mm.memset(block, 1, 4096, &stream).unwrap();
            mm.free_device_on(block, &stream).unwrap();
        }
    }
    stream.synchronize().unwrap();
    assert_eq!(cudart_sim::calls("cudaMallocAsync"), 0);
    mm.shutdown().unwrap();
}
