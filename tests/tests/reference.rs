//! The C++ samples of the reference, line by line in Rust, on the singleton, in their own process.

mod common;

use common::{bytes, bytes_mut};
use memmgr::{DeviceAllocatorMode, Error, MemoryManager, Stream};

/// One test, since all samples share the process's manager and its first allocation.
#[test]
fn the_samples_of_the_reference_work_on_the_singleton() {
    // MemoryManager& mm = MemoryManager::getInstance();
    let mm = MemoryManager::instance();
    assert!(std::ptr::eq(mm, MemoryManager::instance()));
    println!("backend: {}", memmgr::backend());

    // Pool sizes, before the first allocation.
    mm.set_pinned_pool_size(128 * 1024 * 1024).unwrap();
    mm.set_device_pool_size(512 * 1024 * 1024).unwrap();
    assert_eq!(
        mm.stats().pinned.reserved,
        0,
        "configuring reserves nothing"
    );

    // void* h_data = mm.allocatePinned(size);
    let size = 1 << 20;
    let h_data = mm.allocate_pinned(size).unwrap();
    assert_eq!(
        mm.stats().pinned.reserved,
        128 << 20,
        "the size is really reserved at the first allocation"
    );
    // SAFETY: the block is ours and has `size` bytes.
    unsafe { bytes_mut(h_data, size) }
        .iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = (i % 251) as u8);

    // void* d_data = mm.allocateDevice(size);
    let d_data = mm.allocate_device(size).unwrap();
    assert_eq!(mm.stats().device[0].best_fit.reserved, 512 << 20);
    match mm.set_device_pool_size(1 << 20) {
        Err(Error::AlreadyInitialized { in_force, .. }) => assert_eq!(in_force, 512 << 20),
        other => panic!("a second configuration: {other:?}"),
    }

    // cudaStream_t stream; cudaStreamCreate(&stream);
    let stream = Stream::builder().blocking(true).build().unwrap();

    // mm.copyToDeviceAsync(d_data, h_data, size, stream); mm.copyToHostAsync(h_back, d_data, size, stream);
    let h_back = mm.allocate_pinned(size).unwrap();
    // SAFETY: all three blocks are live and have `size` bytes; the stream orders the copies.
    unsafe {
        mm.copy_to_device_async(d_data, h_data, size, &stream)
            .unwrap();
        mm.copy_to_host_async(h_back, d_data, size, &stream)
            .unwrap();
    }
    // cudaStreamSynchronize(stream);
    stream.synchronize().unwrap();
    // SAFETY: both blocks are live and the copies have finished.
    assert!(unsafe { bytes(h_back, size) == bytes(h_data, size) });

    // mm.freeDevice(d_data); mm.freePinned(h_data);
    // SAFETY: nobody uses the blocks afterwards.
    unsafe {
        mm.free_device(d_data).unwrap();
        mm.free_pinned(h_data).unwrap();
        mm.free_pinned(h_back).unwrap();
    }

    // mm.setDeviceAllocatorMode(DeviceAllocatorMode::ASYNC_STREAM_ORDERED); and CUDA_ASYNC_POOL
    assert_eq!(
        mm.requested_device_allocator_mode(),
        DeviceAllocatorMode::BestFitPool
    );
    for mode in [
        DeviceAllocatorMode::AsyncStreamOrdered,
        DeviceAllocatorMode::CudaAsyncPool,
    ] {
        mm.set_device_allocator_mode(mode);
        assert_eq!(mm.requested_device_allocator_mode(), mode);
        let granted = if mm.supports_async_device_allocator().unwrap() {
            mode
        } else {
            DeviceAllocatorMode::BestFitPool
        };
        assert_eq!(mm.effective_device_allocator_mode().unwrap(), granted);

        // void* d_data = mm.allocateDevice(size, stream); mm.freeDevice(d_data, stream);
        let d_data = mm.allocate_device_on(size, &stream).unwrap();
        let h_data = mm.allocate_pinned(size).unwrap();
        // SAFETY: the blocks are live; the stream orders all work; nobody uses them after the free.
        unsafe {
            mm.memset(d_data, 0x5A, size, &stream).unwrap();
            mm.copy_to_host_async(h_data, d_data, size, &stream)
                .unwrap();
            mm.free_device_on(d_data, &stream).unwrap();
            stream.synchronize().unwrap();
            assert!(bytes(h_data, size).iter().all(|byte| *byte == 0x5A));
            mm.free_pinned(h_data).unwrap();
        }
        // Without a stream, too.
        let d_data = mm.allocate_device(size).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(d_data).unwrap() };
    }

    // mm.shutdown();
    let report = mm.shutdown().unwrap();
    assert!(report.live.is_empty(), "{report}");
    assert_eq!(mm.stats().in_use(), 0);
    assert_eq!(mm.stats().pinned.reserved, 0);
    mm.check().unwrap();

    // And it can be configured and used again.
    mm.set_device_allocator_mode(DeviceAllocatorMode::BestFitPool);
    mm.set_pinned_pool_size(0).unwrap();
    mm.set_device_pool_size(0).unwrap();
    let again = mm.allocate_pinned(1).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_pinned(again).unwrap() };
    mm.shutdown().unwrap();
}
