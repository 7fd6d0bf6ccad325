// The entry points for PyTorch, called as PyTorch calls them: private pools, graphs, recorded streams, two devices, a fork. Exits
// with 0 if all of it holds.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "memmgr.h"

using Stream = CUstream_st *;
using PoolId = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(Stream)>;

extern "C" {
// Of the CUDA runtime; its header is not needed for these.
int cudaSetDevice(int device);
int cudaStreamCreateWithFlags(Stream *stream, unsigned flags);
int cudaStreamDestroy(Stream stream);
int cudaStreamSynchronize(Stream stream);
int cudaStreamBeginCapture(Stream stream, int mode);
int cudaStreamEndCapture(Stream stream, void **graph);
int cudaStreamIsCapturing(Stream stream, int *status);
int cudaGraphDestroy(void *graph);
int cudaLaunchHostFunc(Stream stream, void (*function)(void *), void *data);
int cudaIpcGetMemHandle(void *handle, void *base);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
// What takes C++ objects is not in the header.
void memmgr_torch_begin_allocate_to_pool(int device, PoolId id, Filter filter);
void memmgr_torch_end_allocate_to_pool(int device, PoolId id);
void memmgr_torch_release_pool(int device, PoolId id);
// Of a simulated library alone.
void memmgr_simulate_fault(const char *name, int code, unsigned long long times);
}

static const std::size_t MIB = 1 << 20;
static const int RELAXED = 2;

static Stream make(int device = 0) {
    Stream stream = nullptr;
    CHECK(cudaSetDevice(device) == 0 && cudaStreamCreateWithFlags(&stream, 1) == 0 && cudaSetDevice(0) == 0);
    return stream;
}

static bool capturing(Stream stream) {
    int status = 0;
    return cudaStreamIsCapturing(stream, &status) == 0 && status == 1;
}

// As PyTorch's: this stream, as long as it is being captured.
static Filter while_captured(Stream stream) {
    return [stream](Stream asked) { return asked == stream && capturing(stream); };
}

static void end_capture(Stream stream) {
    void *graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == 0 && graph != nullptr && cudaGraphDestroy(graph) == 0);
}

// Holds a stream up.
struct Stall {
    std::atomic<bool> open{false};
    explicit Stall(Stream stream) {
        CHECK(cudaLaunchHostFunc(stream, [](void *data) {
            while (!static_cast<Stall *>(data)->open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }, this) == 0);
    }
};

static bool refused(std::size_t size, Stream stream) {
    try {
        memmgr_torch_alloc(size, 0, stream);
        return false;
    } catch (const std::runtime_error &error) {
        return std::strlen(error.what()) > 10;
    }
}

// What is not there does not count: the pool goes with its last block.
static void nothing_and_too_much() {
    const PoolId id{1, 0};
    Stream stream = make();
    memmgr_torch_begin_allocate_to_pool(0, id, [=](Stream asked) { return asked == stream; });
    CHECK(memmgr_torch_alloc(0, 0, stream) == nullptr);
    memmgr_torch_free(nullptr, 0, 0, stream);
    CHECK(refused(std::size_t(1) << 60, stream));
    void *block = memmgr_torch_alloc(MIB, 0, stream);
    memmgr_torch_end_allocate_to_pool(0, id);
    memmgr_torch_release_pool(0, id);
    CHECK(stats_of(0).live_blocks == 1);
    memmgr_torch_free(block, MIB, 0, stream);
    CHECK(stats_of(0).live_blocks == 0);
    CHECK(cudaStreamDestroy(stream) == 0);
}

// Two graphs share a pool. Each capture ends for itself, and the blocks stay until both graphs are gone.
static void two_captures_share_a_pool() {
    const PoolId id{2, 0};
    for (int first = 0; first < 2; ++first) {
        Stream streams[2] = {make(), make()};
        for (Stream stream : streams) {
            CHECK(cudaStreamBeginCapture(stream, RELAXED) == 0);
            memmgr_torch_begin_allocate_to_pool(0, id, while_captured(stream));
        }
        void *blocks[2];
        for (int i = 0; i < 2; ++i) blocks[i] = memmgr_torch_alloc(MIB, 0, streams[i]);
        // Freed in a capture, a block is that stream's again, and not the other's.
        memmgr_torch_free(blocks[0], MIB, 0, streams[0]);
        void *other = memmgr_torch_alloc(MIB, 0, streams[1]);
        CHECK(other != blocks[0] && memmgr_torch_alloc(MIB, 0, streams[0]) == blocks[0]);

        end_capture(streams[first]);
        memmgr_torch_end_allocate_to_pool(0, id);
        // The other one is still the pool's: outside of it, a captured stream would be refused.
        Stream running = streams[1 - first];
        void *late = memmgr_torch_alloc(2 * MIB, 0, running);
        memmgr_torch_free(late, 2 * MIB, 0, running);
        CHECK(memmgr_torch_alloc(2 * MIB, 0, running) == late);
        end_capture(running);
        memmgr_torch_end_allocate_to_pool(0, id);
        // Nobody's any more.
        void *plain = memmgr_torch_alloc(2 * MIB, 0, running);
        memmgr_torch_free(plain, 2 * MIB, 0, running);

        memmgr_torch_free(blocks[0], MIB, 0, streams[0]);
        memmgr_torch_free(blocks[1], MIB, 0, streams[1]);
        memmgr_torch_free(other, MIB, 0, streams[1]);
        memmgr_torch_free(late, 2 * MIB, 0, running);
        CHECK(stats_of(0).live_blocks == 4);
        memmgr_torch_release_pool(0, id);
        CHECK(stats_of(0).live_blocks == 4);
        memmgr_torch_release_pool(0, id);
        CHECK(stats_of(0).live_blocks == 0);
        for (Stream stream : streams) CHECK(cudaStreamDestroy(stream) == 0);
    }
}

// What a pool's tensors leave behind is waited for once, and not by each free.
static void frees_after_the_graph_do_not_wait() {
    const PoolId id{3, 0};
    Stream stream = make(), busy = make();
    memmgr_torch_begin_allocate_to_pool(0, id, [=](Stream asked) { return asked == stream; });
    std::vector<void *> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(memmgr_torch_alloc(MIB, 0, stream));
    memmgr_torch_end_allocate_to_pool(0, id);
    memmgr_torch_release_pool(0, id);
    Stall stall(busy);
    alarm(60);
    while (blocks.size() > 1) {
        memmgr_torch_free(blocks.back(), MIB, 0, stream);
        blocks.pop_back();
    }
    // Work of any stream may still read them.
    CHECK(stats_of(0).live_blocks == 10);
    stall.open = true;
    memmgr_torch_free(blocks.back(), MIB, 0, stream);
    CHECK(stats_of(0).live_blocks == 0);
    alarm(0);

    // A request that finds no memory waits for them before that.
    memmgr_torch_begin_allocate_to_pool(0, id, [=](Stream asked) { return asked == stream; });
    void *kept = memmgr_torch_alloc(MIB, 0, stream), *freed = memmgr_torch_alloc(8 * MIB, 0, stream);
    memmgr_torch_end_allocate_to_pool(0, id);
    memmgr_torch_release_pool(0, id);
    memmgr_torch_free(freed, 8 * MIB, 0, stream);
    CHECK(memmgr_trim(nullptr) == MEMMGR_OK && memmgr_set_device_pool_limit(stats_of(0).reserved) == MEMMGR_OK);
    void *again = memmgr_torch_alloc(8 * MIB, 0, busy);
    CHECK(again != nullptr && memmgr_set_device_pool_limit(SIZE_MAX) == MEMMGR_OK);
    memmgr_torch_free(again, 8 * MIB, 0, busy);
    memmgr_torch_free(kept, MIB, 0, stream);
    CHECK(stats_of(0).live_blocks == 0);
    CHECK(cudaStreamDestroy(stream) == 0 && cudaStreamDestroy(busy) == 0);
}

// Where the device cannot be waited for, the blocks stay out of use, and somebody is told.
static void a_wait_that_fails_keeps_the_blocks() {
    const PoolId id{4, 0};
    Stream stream = make();
    memmgr_torch_begin_allocate_to_pool(0, id, [=](Stream asked) { return asked == stream; });
    memmgr_torch_free(memmgr_torch_alloc(MIB, 0, stream), MIB, 0, stream);
    memmgr_torch_end_allocate_to_pool(0, id);
    CHECK(memmgr_take_failure() == MEMMGR_OK);
    memmgr_simulate_fault("cudaFree", 999, 1000);
    memmgr_simulate_fault("cudaDeviceSynchronize", 999, 1000);
    memmgr_torch_release_pool(0, id);
    memmgr_simulate_fault(nullptr, 0, 0);
    CHECK(stats_of(0).live_blocks == 1);
    CHECK(memmgr_take_failure() == MEMMGR_CUDA_ERROR && std::strstr(memmgr_last_error(), "cuda") != nullptr);
    CHECK(memmgr_take_failure() == MEMMGR_OK);
    // Tried again when the idle memory is asked for.
    memmgr_torch_reset();
    CHECK(stats_of(0).live_blocks == 0 && memmgr_take_failure() == MEMMGR_OK);
    // A free that is a mistake is told as well.
    int local = 0;
    memmgr_torch_free(&local, 1, 0, stream);
    CHECK(memmgr_take_failure() == MEMMGR_UNKNOWN_POINTER);
    CHECK(cudaStreamDestroy(stream) == 0);
}

// Another stream uses a block of a pool: nobody gets it again before the pool goes.
static void recorded_streams_in_a_pool() {
    const PoolId id{5, 0};
    Stream stream = make(), other = make();
    memmgr_torch_begin_allocate_to_pool(0, id, [=](Stream asked) { return asked == stream; });
    void *used = memmgr_torch_alloc(MIB, 0, stream);
    memmgr_torch_record_stream(used, other);
    memmgr_torch_free(used, MIB, 0, stream);
    void *next = memmgr_torch_alloc(MIB, 0, stream);
    CHECK(next != used);
    // Its own stream is no other.
    memmgr_torch_record_stream(next, stream);
    memmgr_torch_free(next, MIB, 0, stream);
    CHECK(memmgr_torch_alloc(MIB, 0, stream) == next);
    memmgr_torch_free(next, MIB, 0, stream);
    memmgr_torch_end_allocate_to_pool(0, id);
    memmgr_torch_release_pool(0, id);
    CHECK(stats_of(0).live_blocks == 0);
    CHECK(cudaStreamDestroy(stream) == 0 && cudaStreamDestroy(other) == 0);
}

// The stream that uses a block is being captured when the block is freed.
static void recorded_streams_during_captures() {
    Stream stream = make(), captured = make();
    void *block = memmgr_torch_alloc(MIB, 0, stream);
    CHECK(cudaStreamBeginCapture(captured, RELAXED) == 0);
    memmgr_torch_record_stream(block, captured);
    memmgr_torch_free(block, MIB, 0, stream);
    // Not before the capture is over.
    CHECK(stats_of(0).live_blocks == 1);
    void *next = memmgr_torch_alloc(MIB, 0, stream);
    CHECK(next != block && stats_of(0).live_blocks == 2 && capturing(captured));
    end_capture(captured);
    memmgr_torch_free(next, MIB, 0, stream);
    CHECK(stats_of(0).live_blocks == 0 && memmgr_take_failure() == MEMMGR_OK);

    // A stream that is registered is known: the graph has the block, as long as it is there.
    memmgr_stream_t handle = 0;
    CHECK(memmgr_stream_register(captured, &handle) == MEMMGR_OK);
    block = memmgr_torch_alloc(MIB, 0, stream);
    CHECK(cudaStreamBeginCapture(captured, RELAXED) == 0);
    memmgr_torch_record_stream(block, captured);
    memmgr_torch_free(block, MIB, 0, stream);
    CHECK(stats_of(0).live_blocks == 1);
    void *graph = nullptr;
    CHECK(cudaStreamEndCapture(captured, &graph) == 0);
    CHECK(memmgr_torch_alloc(MIB, 0, stream) != block && stats_of(0).live_blocks == 2);
    CHECK(cudaGraphDestroy(graph) == 0);
    // The runtime says so at some time, and the next call that asks it something frees the block.
    for (int tries = 0; stats_of(0).live_blocks > 1; ++tries) {
        CHECK(tries < 1000);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        memmgr_torch_free(memmgr_torch_alloc(MIB, 0, stream), MIB, 0, stream);
    }
    CHECK(memmgr_stream_release(handle) == MEMMGR_OK);
    CHECK(memmgr_shutdown_and_free_all(nullptr, nullptr) == MEMMGR_OK);
    CHECK(cudaStreamDestroy(stream) == 0 && cudaStreamDestroy(captured) == 0);
}

// A stream of another device uses a block, by its handle and as that device's default stream.
static void recorded_streams_of_two_devices() {
    Stream stream = make(0), far = make(1);
    for (Stream use : {far, Stream(nullptr)}) {
        Stall stall(far);
        void *block = memmgr_torch_alloc(MIB, 0, stream);
        CHECK(cudaSetDevice(1) == 0);
        Stall *also = use == nullptr ? new Stall(nullptr) : nullptr;
        memmgr_torch_record_stream(block, use);
        CHECK(cudaSetDevice(0) == 0);
        memmgr_torch_free(block, MIB, 0, stream);
        // Its own device has nothing to do any more; the other one has, and keeps the memory.
        CHECK(memmgr_synchronize_device(0) == MEMMGR_OK && memmgr_trim(nullptr) == MEMMGR_OK);
        CHECK(stats_of(0).live_blocks == 0 && stats_of(0).reserved > 0 && stats_of(0).pending >= MIB);
        stall.open = true;
        if (also != nullptr) also->open = true;
        CHECK(memmgr_synchronize_device(1) == MEMMGR_OK && memmgr_trim(nullptr) == MEMMGR_OK);
        CHECK(stats_of(0).reserved == 0);
        delete also;
    }
    // A device's limit is its own.
    memmgr_torch_memory_fraction(0.001, 1);
    CHECK(!refused(512 * MIB, stream));
    try {
        memmgr_torch_alloc(512 * MIB, 1, far);
        CHECK(!"device 1 has no limit");
    } catch (const std::runtime_error &error) {
        CHECK(std::strstr(error.what(), "limit") != nullptr);
    }
    memmgr_torch_memory_fraction(1.0, 1);
    CHECK(memmgr_shutdown_and_free_all(nullptr, nullptr) == MEMMGR_OK);
    CHECK(cudaStreamDestroy(stream) == 0 && cudaStreamDestroy(far) == 0);
}

// A fork while another thread has the lock of the pools: the child is refused, and does not wait.
static void fork_beside_a_busy_thread() {
    const PoolId id{6, 0};
    Stream stream = make();
    const std::string file = "/tmp/memmgr-fork-" + std::to_string(getpid()) + ".json";
    const auto length = [&file] {
        std::FILE *read = std::fopen(file.c_str(), "r");
        if (read == nullptr) return -1L;
        std::fseek(read, 0, SEEK_END);
        const long end = std::ftell(read);
        std::fclose(read);
        return end;
    };
    void *block = memmgr_torch_alloc(MIB, 0, nullptr);
    memmgr_stream_t handle = 0;
    CHECK(memmgr_stream_register(stream, &handle) == MEMMGR_OK);
    CHECK(memmgr_snapshot(file.c_str(), MEMMGR_SNAPSHOT_JSON) == MEMMGR_OK);
    const long written = length();
    std::atomic<bool> inside{false}, go{false};
    memmgr_torch_begin_allocate_to_pool(0, id, [&](Stream) {
        inside = true;
        while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return false;
    });
    std::thread busy([&] { memmgr_torch_free(memmgr_torch_alloc(MIB, 0, stream), MIB, 0, stream); });
    while (!inside) std::this_thread::yield();
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int failed = 0;
        try {
            memmgr_torch_alloc(MIB, 0, stream);
            failed = 2;
        } catch (const std::runtime_error &error) {
            if (std::strstr(error.what(), "fork") == nullptr) failed = 3;
        }
        memmgr_torch_record_stream(block, stream);
        memmgr_torch_free(block, MIB, 0, nullptr);
        memmgr_torch_begin_allocate_to_pool(0, id, [](Stream) { return true; });
        memmgr_torch_end_allocate_to_pool(0, id);
        memmgr_torch_release_pool(0, id);
        memmgr_torch_reset();
        if (memmgr_check() != MEMMGR_FORKED_CHILD) failed = 4;
        if (memmgr_stream_release(handle) != MEMMGR_FORKED_CHILD) failed = 5;
        if (memmgr_set_out_of_memory_hook(nullptr, nullptr) != MEMMGR_FORKED_CHILD) failed = 6;
        if (std::strstr(memmgr_last_error(), "fork") == nullptr) failed = 7;
        // The child knows nothing of what there is: it says so, and leaves the parent's file alone.
        memmgr_pool_stats stats;
        if (memmgr_snapshot(file.c_str(), MEMMGR_SNAPSHOT_JSON) != MEMMGR_FORKED_CHILD) failed = 8;
        if (memmgr_device_stats(0, MEMMGR_BEST_FIT_POOL, &stats, sizeof stats) != MEMMGR_FORKED_CHILD) failed = 9;
        if (memmgr_pinned_stats(&stats, sizeof stats) != MEMMGR_FORKED_CHILD) failed = 10;
        size_t bytes = 0;
        if (memmgr_external_waste(0, &bytes) != MEMMGR_FORKED_CHILD) failed = 11;
        if (memmgr_stats_prometheus(nullptr, 0, &bytes) != MEMMGR_FORKED_CHILD) failed = 12;
        _exit(failed);
    }
    go = true;
    busy.join();
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    std::printf("the forked child ended with %#x\n", static_cast<unsigned>(status));
    CHECK(written > 0 && length() == written);
    CHECK(std::remove(file.c_str()) == 0);
    CHECK(status == 0);
    memmgr_torch_end_allocate_to_pool(0, id);
    memmgr_torch_release_pool(0, id);
    memmgr_torch_free(block, MIB, 0, nullptr);
    CHECK(memmgr_stream_release(handle) == MEMMGR_OK && cudaStreamDestroy(stream) == 0);
    CHECK(memmgr_check() == MEMMGR_OK && stats_of(0).live_blocks == 0);
}

// What PyTorch asks before it shares a block: the allocation of CUDA's that holds it.
static void base_allocations() {
    std::size_t size = 0;
    char *block = static_cast<char *>(memmgr_torch_alloc(MIB, 0, nullptr));
    char *base = static_cast<char *>(memmgr_torch_base_allocation(block + 17, &size));
    CHECK(base <= block && size >= MIB && block + MIB <= base + size);
    CHECK(memmgr_torch_base_allocation(block, nullptr) == base);
    int local = 0;
    CHECK(memmgr_torch_base_allocation(&local, &size) == &local && size == 0);
    memmgr_torch_free(block, MIB, 0, nullptr);
    void *handle[8];
    // Virtual memory cannot be shared so; a segment of cudaMalloc can, and by its base alone.
    const bool segments = std::getenv("MEMMGR_DEVICE_SOURCE") != nullptr;
    CHECK((cudaIpcGetMemHandle(handle, base) == 0) == segments);
    cudaGetLastError();
}

int main() {
    std::printf("memmgr %s, backend: %s\n", memmgr_version(), memmgr_backend());
    base_allocations();
    nothing_and_too_much();
    two_captures_share_a_pool();
    frees_after_the_graph_do_not_wait();
    a_wait_that_fails_keeps_the_blocks();
    recorded_streams_in_a_pool();
    recorded_streams_during_captures();
    recorded_streams_of_two_devices();
    fork_beside_a_busy_thread();
    CHECK(cudaPeekAtLastError() == 0);
    std::printf("torch's pools hold\n");
    return 0;
}
