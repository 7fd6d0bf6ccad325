// Every sample of the reference API, as it is written there, and what each must have done; then the handles and the pinned
// memory resource. Exits with 0 if all of it holds.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "memmgr.hpp"

using namespace memmgr;

static const std::size_t size = 1 << 20;

static void pool_sizes() {
    MemoryManager& mm = MemoryManager::getInstance();

    // Configured before the first allocation.
    mm.setPinnedPoolSize(128 * 1024 * 1024);  // 128MB
    mm.setDevicePoolSize(512 * 1024 * 1024);  // 512MB
    CHECK(memmgr_last_cuda_error() == 0);
}

static void samples() {
    MemoryManager& mm = MemoryManager::getInstance();
    CHECK(&mm == &MemoryManager::getInstance());

    void* h_data = mm.allocatePinned(size);
    CHECK(h_data != nullptr);
    for (std::size_t i = 0; i < size; ++i) static_cast<unsigned char*>(h_data)[i] = i % 251;

    void* d_data = mm.allocateDevice(size);
    CHECK(d_data != nullptr);

    cudaStream_t stream;
    cudaStreamCreate(&stream);

    // Host to device.
    mm.copyToDeviceAsync(d_data, h_data, size, stream);

    std::memset(h_data, 0, 0);
    void* h_back = mm.allocatePinned(size);
    // Device to host.
    mm.copyToHostAsync(h_back, d_data, size, stream);

    cudaStreamSynchronize(stream);
    CHECK(std::memcmp(h_data, h_back, size) == 0);
    mm.freePinned(h_back);

    mm.freeDevice(d_data);
    mm.freePinned(h_data);

    memmgr_pool_stats stats{};
    CHECK(memmgr_device_stats(0, MEMMGR_BEST_FIT_POOL, &stats, sizeof stats) == MEMMGR_OK);
    CHECK(stats.reserved == 512 * 1024 * 1024 && stats.live_blocks == 0);
    CHECK(memmgr_pinned_stats(&stats, sizeof stats) == MEMMGR_OK && stats.reserved == 128 * 1024 * 1024);

    {
        mm.setDeviceAllocatorMode(DeviceAllocatorMode::ASYNC_STREAM_ORDERED);

        void* d_data = mm.allocateDevice(size, stream);
        CHECK(d_data != nullptr);
        mm.freeDevice(d_data, stream);
        CHECK(mm.supportsAsyncDeviceAllocator());
        CHECK(mm.getEffectiveDeviceAllocatorMode() == DeviceAllocatorMode::ASYNC_STREAM_ORDERED);
    }
    {
        // CUDA's own pool where there is one.
        mm.setDeviceAllocatorMode(DeviceAllocatorMode::CUDA_ASYNC_POOL);
        CHECK(mm.getRequestedDeviceAllocatorMode() == DeviceAllocatorMode::CUDA_ASYNC_POOL);
        void* d_data = mm.allocateDevice(size, stream);
        CHECK(d_data != nullptr);
        mm.freeDevice(d_data, stream);
    }
    mm.setDeviceAllocatorMode(DeviceAllocatorMode::BEST_FIT_POOL);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

// "All methods may be called from several threads."
static void threads() {
    std::vector<std::thread> all;
    for (int number = 0; number < 4; ++number) {
        all.emplace_back([number] {
            MemoryManager& mm = MemoryManager::getInstance();
            cudaStream_t stream;
            CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
            for (int turn = 0; turn < 200; ++turn) {
                const std::size_t bytes = 1000 + 977 * turn;
                unsigned char* host = static_cast<unsigned char*>(mm.allocatePinned(bytes));
                unsigned char* back = static_cast<unsigned char*>(mm.allocatePinned(bytes));
                void* device = mm.allocateDevice(bytes, stream);
                CHECK(host && back && device);
                std::memset(host, number * 50 + turn % 50, bytes);
                CHECK(mm.copyToDeviceAsync(device, host, bytes, stream) == cudaSuccess);
                CHECK(mm.copyToHostAsync(back, device, bytes, stream) == cudaSuccess);
                mm.freeDevice(device, stream);
                mm.freePinned(host);
                CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
                CHECK(back[0] == number * 50 + turn % 50 && back[bytes - 1] == back[0]);
                mm.freePinned(back);
            }
            CHECK(cudaStreamDestroy(stream) == cudaSuccess);
        });
    }
    for (std::thread& thread : all) thread.join();
    CHECK(memmgr_check() == MEMMGR_OK);
}

static void mistakes() {
    MemoryManager& mm = MemoryManager::getInstance();
    CHECK(mm.allocateDevice(0) == nullptr && mm.allocatePinned(0) == nullptr);
    memmgr_clear_last_error();
    int local = 0;
    mm.freeDevice(&local);
    CHECK(memmgr_last_cuda_error() == cudaErrorInvalidValue && *memmgr_last_error() != 0);
    CHECK(mm.allocateDevice(std::size_t(1) << 60) == nullptr);
    CHECK(memmgr_last_cuda_error() == cudaErrorMemoryAllocation);
    void* pinned = mm.allocatePinned(100);
    void* device = mm.allocateDevice(100);
    // A range that leaves its block.
    CHECK(mm.copyToDeviceAsync(device, pinned, 5000, nullptr) == cudaErrorInvalidValue);
    mm.freeDevice(device);
    mm.freePinned(pinned);
    memmgr_clear_last_error();
    mm.freePinned(pinned);
    CHECK(std::strstr(memmgr_last_error(), "double free") != nullptr);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

static void handles() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    {
        RegisteredStream registered(stream);
        CHECK(registered.handle() != 0);
        PinnedBuffer<float> host(1000);
        for (float& value : host) value = 1.5f;
        DeviceBuffer<float> device(host.size(), stream);
        DeviceBuffer<float> moved(std::move(device));
        CHECK(device.data() == nullptr && moved.data() != nullptr);
        MemoryManager& mm = MemoryManager::getInstance();
        CHECK(mm.copyToDeviceAsync(moved.data(), host.data(), host.bytes(), stream) == cudaSuccess);
        PinnedBuffer<float> back(host.size());
        CHECK(mm.copyToHostAsync(back.data(), moved.data(), back.bytes(), stream) == cudaSuccess);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(back[0] == 1.5f && back[999] == 1.5f);
    }
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);

    PinnedMemoryResource pinned;
    std::pmr::vector<int> numbers(&pinned);
    for (int i = 0; i < 10000; ++i) numbers.push_back(i);
    CHECK(numbers[9999] == 9999);
    memmgr_pool_stats stats{};
    CHECK(memmgr_pinned_stats(&stats, sizeof stats) == MEMMGR_OK && stats.live_blocks == 1);
    bool refused = false;
    try {
        PinnedBuffer<double> too_many(SIZE_MAX / 16);
    } catch (const Error& error) {
        refused = error.status() != MEMMGR_OK && *error.what() != 0;
    }
    CHECK(refused);
}

int main() {
    std::printf("memmgr %s, backend: %s\n", memmgr_version(), memmgr_backend());
    pool_sizes();
    samples();
    threads();
    mistakes();
    handles();

    MemoryManager& mm = MemoryManager::getInstance();
    CHECK(mm.allocateDevice(size) != nullptr);
    mm.shutdown();  // Frees it, too.
    memmgr_pool_stats stats{};
    CHECK(memmgr_device_stats(0, MEMMGR_BEST_FIT_POOL, &stats, sizeof stats) == MEMMGR_OK);
    CHECK(stats.reserved == 0 && stats.live_blocks == 0);
    std::printf("every sample did what it says\n");
    return 0;
}
