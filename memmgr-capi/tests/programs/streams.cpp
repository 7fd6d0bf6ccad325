// Streams by their raw handles: the calling thread's own on any device, and streams that are being captured. And the hook, which
// nobody is in once it was unset. Exits with 0 if all of it holds.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <thread>

#include "check.hpp"
#include "memmgr.h"

using Stream = CUstream_st *;

extern "C" {
// Of the CUDA runtime; its header is not needed for these.
int cudaSetDevice(int device);
int cudaGetDevice(int *device);
int cudaStreamCreateWithFlags(Stream *stream, unsigned flags);
int cudaStreamDestroy(Stream stream);
int cudaStreamBeginCapture(Stream stream, int mode);
int cudaStreamEndCapture(Stream stream, void **graph);
int cudaGraphDestroy(void *graph);
int cudaPeekAtLastError(void);
}

static const std::size_t MIB = 1 << 20;

// The default streams are those of the device that is named, whichever is current.
static void default_streams_of_a_device() {
    for (std::uintptr_t handle : {std::uintptr_t(0), std::uintptr_t(1), std::uintptr_t(2)}) {
        const Stream stream = reinterpret_cast<Stream>(handle);
        for (int device = 0; device < 2; ++device) {
            void *block = nullptr;
            CHECK(memmgr_allocate_device_at_on(device, MIB, stream, &block) == MEMMGR_OK);
            CHECK(stats_of(device).live_blocks == 1 && stats_of(1 - device).live_blocks == 0);
            CHECK(memmgr_record_use_at(device, block, stream) == MEMMGR_OK);
            int current = -1;
            CHECK(cudaGetDevice(&current) == 0 && current == 0);
            CHECK(memmgr_free_device_at_on(device, block, stream) == MEMMGR_OK && stats_of(device).live_blocks == 0);
        }
        void *block = &block;
        CHECK(memmgr_allocate_device_at_on(7, MIB, stream, &block) != MEMMGR_OK && block == nullptr);
    }
}

// A stream that is registered is known while it is captured; another one is refused, and says what to do.
static void captured_streams() {
    Stream known = nullptr, unknown = nullptr;
    CHECK(cudaStreamCreateWithFlags(&known, 1) == 0 && cudaStreamCreateWithFlags(&unknown, 1) == 0);
    memmgr_stream_t handle = 0;
    CHECK(memmgr_stream_register(known, &handle) == MEMMGR_OK);
    void *before = nullptr, *warm = nullptr, *block = nullptr;
    CHECK(memmgr_allocate_device_on(MIB, known, &before) == MEMMGR_OK);
    CHECK(memmgr_allocate_device_on(MIB, unknown, &warm) == MEMMGR_OK);
    // Global: calls that a capture forbids end it.
    CHECK(cudaStreamBeginCapture(known, 0) == 0);
    CHECK(memmgr_allocate_device_on(MIB, known, &block) == MEMMGR_OK && block != nullptr);
    CHECK(memmgr_memset_async(block, 1, MIB, known) == MEMMGR_OK);
    CHECK(memmgr_free_device_on(before, known) == MEMMGR_OK);
    memmgr_stream_t again = 0;
    CHECK(memmgr_stream_register(known, &again) == MEMMGR_OK && memmgr_stream_release(again) == MEMMGR_OK);
    void *graph = nullptr;
    CHECK(cudaStreamEndCapture(known, &graph) == 0 && graph != nullptr && cudaGraphDestroy(graph) == 0);

    CHECK(cudaStreamBeginCapture(unknown, 0) == 0);
    void *none = &none;
    CHECK(memmgr_allocate_device_on(MIB, unknown, &none) == MEMMGR_UNSUPPORTED && none == nullptr);
    CHECK(std::strstr(memmgr_last_error(), "memmgr_stream_register") != nullptr);
    CHECK(memmgr_free_device_on(warm, unknown) == MEMMGR_UNSUPPORTED);
    CHECK(cudaStreamEndCapture(unknown, &graph) == 0 && graph != nullptr && cudaGraphDestroy(graph) == 0);
    CHECK(memmgr_free_device_on(warm, unknown) == MEMMGR_OK && memmgr_free_device_on(block, known) == MEMMGR_OK);
    CHECK(memmgr_stream_release(handle) == MEMMGR_OK);
    // What the graph had is free when the runtime has said that it is gone, and somebody asks it something.
    for (int tries = 0; stats_of(0).live_blocks > 0; ++tries) {
        CHECK(tries < 1000 && memmgr_allocate_device_on(MIB, unknown, &block) == MEMMGR_OK);
        CHECK(memmgr_free_device_on(block, unknown) == MEMMGR_OK);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(cudaStreamDestroy(known) == 0 && cudaStreamDestroy(unknown) == 0);
}

struct Asked {
    std::atomic<int> calls{0};
    std::atomic<bool> inside{false}, go{false};
};

// Whoever unsets the hook may take away what it was given.
static void the_hook() {
    void *most = nullptr;
    CHECK(memmgr_synchronize_device(0) == MEMMGR_OK && memmgr_trim(nullptr) == MEMMGR_OK);
    CHECK(stats_of(0).reserved == 0 && memmgr_set_device_pool_limit(8 * MIB) == MEMMGR_OK);
    CHECK(memmgr_allocate_device(6 * MIB, &most) == MEMMGR_OK);
    Asked *asked = new Asked;
    const auto waits = [](std::size_t, const char *, void *user) -> std::int32_t {
        Asked *asked = static_cast<Asked *>(user);
        ++asked->calls;
        asked->inside = true;
        while (!asked->go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        asked->inside = false;
        return 1;
    };
    CHECK(memmgr_set_out_of_memory_hook(waits, asked) == MEMMGR_OK);
    std::thread wants([] {
        void *block = nullptr;
        CHECK(memmgr_allocate_device(4 * MIB, &block) == MEMMGR_OUT_OF_MEMORY);
    });
    while (!asked->inside) std::this_thread::yield();
    std::thread lets_go([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        asked->go = true;
    });
    CHECK(memmgr_set_out_of_memory_hook(nullptr, nullptr) == MEMMGR_OK);
    // Neither running, nor asked again, although it has said "once more".
    CHECK(!asked->inside && asked->calls == 1);
    lets_go.join();
    wants.join();
    CHECK(asked->calls == 1);
    delete asked;

    // From inside, it does not wait for itself.
    const auto unsets = [](std::size_t, const char *, void *user) -> std::int32_t {
        ++*static_cast<int *>(user);
        return memmgr_set_out_of_memory_hook(nullptr, nullptr) == MEMMGR_OK;
    };
    int calls = 0;
    void *block = nullptr;
    CHECK(memmgr_set_out_of_memory_hook(unsets, &calls) == MEMMGR_OK);
    CHECK(memmgr_allocate_device(4 * MIB, &block) == MEMMGR_OUT_OF_MEMORY && calls == 1);
    CHECK(memmgr_allocate_device(4 * MIB, &block) == MEMMGR_OUT_OF_MEMORY && calls == 1);
    CHECK(memmgr_free_device(most) == MEMMGR_OK && memmgr_set_device_pool_limit(SIZE_MAX) == MEMMGR_OK);
}

int main() {
    std::printf("memmgr %s, backend: %s\n", memmgr_version(), memmgr_backend());
    default_streams_of_a_device();
    captured_streams();
    the_hook();
    CHECK(memmgr_check() == MEMMGR_OK && cudaPeekAtLastError() == 0);
    std::printf("every stream was the one that was meant\n");
    return 0;
}
