// With CUDA_API_PER_THREAD_DEFAULT_STREAM, null is the calling thread's own stream.

#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#define MEMMGR_THROW
#include "memmgr.hpp"

#include <cstdio>
#include <thread>

int main() {
    memmgr::MemoryManager& mm = memmgr::MemoryManager::getInstance();
    if (memmgr::detail::stream_of(nullptr) != cudaStreamPerThread) return 1;
    void* here = mm.allocateDevice(1000, nullptr);
    void* there = nullptr;
    std::thread([&] { there = mm.allocateDevice(1000, nullptr); }).join();
    mm.freeDevice(here, nullptr);
    mm.freeDevice(there, nullptr);
    // A buffer goes back to its own device, whichever is current then.
    if (cudaSetDevice(1) != cudaSuccess) return 4;
    memmgr_pool_stats stats{};
    {
        memmgr::DeviceBuffer<float> buffer(1000, nullptr);
        memmgr_device_stats(1, MEMMGR_BEST_FIT_POOL, &stats, sizeof stats);
        if (cudaSetDevice(0) != cudaSuccess || stats.live_blocks != 1) return 5;
    }
    memmgr_device_stats(1, MEMMGR_BEST_FIT_POOL, &stats, sizeof stats);
    if (stats.live_blocks != 0) return 6;
    try {
        mm.freeDevice(here, nullptr);
        return 2;
    } catch (const memmgr::Error& error) {
        if (error.status() != MEMMGR_DOUBLE_FREE || error.cudaError() != cudaErrorInvalidValue) return 3;
    }
    std::puts("null was the thread's own stream");
    return 0;
}
