// What stands behind the entry points for PyTorch's pluggable allocator (torch.cuda.memory.CUDAPluggableAllocator,
// torch.cuda.MemPool), which src/torch.rs exports: only what is written in Rust can be exported from the shared library.
//
// PyTorch does not look at a null pointer, so a request that fails throws. It frees on any thread, whatever device is current
// there, and names the stream that the block was allocated on. While it captures a graph, blocks come from a private pool: what is
// freed there is handed out to that pool alone, since the graph uses it again whenever it is replayed.

#include "memmgr.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using Stream = CUstream_st *;
// c10::cuda::MempoolId_t
using PoolId = std::pair<unsigned long long, unsigned long long>;

[[noreturn]] void refuse() {
    throw std::runtime_error(std::string("memmgr: ") + memmgr_last_error());
}

struct Block {
    void *address;
    std::size_t size;
};

// A private pool of PyTorch's.
struct Pool {
    int device;
    // Who uses it at the moment, if anybody; several captures may share a pool.
    std::vector<std::function<bool(Stream)>> filters;
    // Its blocks that are free, by stream and size.
    std::map<Stream, std::multimap<std::size_t, void *>> idle;
    // Free, too, but another stream was said to use them: kept until the pool goes, since nothing here says when that is over.
    std::vector<void *> held;
    std::size_t live = 0;
    // PyTorch begins once for each graph and releases once for each: the blocks are needed until the last one is gone.
    std::size_t users = 0;
    bool released = false;
};

// Shared by all threads. It is never destroyed, since PyTorch frees while the process ends.
struct Pools {
    std::mutex mutex;
    std::map<std::pair<int, PoolId>, Pool> pools;
    // The blocks of the pools: which pool, how long, and on which stream.
    struct Owned {
        std::pair<int, PoolId> pool;
        std::size_t size;
        Stream stream;
    };
    std::unordered_map<void *, Owned> blocks;
    // The streams that a block was said to be used in, until it is freed.
    std::unordered_map<void *, std::vector<Stream>> uses;
    // What could not be given back yet, since one of the streams is being captured.
    struct Late {
        void *ptr;
        int device;
        Stream stream;
        std::vector<Stream> uses;
    };
    std::vector<Late> late;
};

Pools &pools() {
    static Pools *const all = new Pools;
    return *all;
}

// What is freed once the lock is released: no CUDA call is made under it.
struct Freed {
    int device = 0;
    std::vector<void *> blocks;

    void take_idle(Pool &pool) {
        device = pool.device;
        for (auto &of_stream : pool.idle) {
            for (auto &block : of_stream.second) blocks.push_back(block.second);
        }
        pool.idle.clear();
        blocks.insert(blocks.end(), pool.held.begin(), pool.held.end());
        pool.held.clear();
    }

    void give_back() const {
        // A graph that used them may still run: nobody knows in which stream.
        if (!blocks.empty()) memmgr_synchronize_device(device);
        for (void *block : blocks) memmgr_free_device(block);
    }
};

// The pool that serves this stream now, if one does, and a free block of it that fits. The caller has the lock.
Pool *pool_for(int device, Stream stream, std::pair<int, PoolId> &key) {
    for (auto &entry : pools().pools) {
        if (entry.second.device != device) continue;
        for (auto &filter : entry.second.filters) {
            if (filter(stream)) {
                key = entry.first;
                return &entry.second;
            }
        }
    }
    return nullptr;
}

// A block of the pool that serves this stream now; false if none does.
bool allocate_from_pool(std::size_t size, int device, Stream stream, void **out) {
    Pools &all = pools();
    std::pair<int, PoolId> key;
    {
        std::lock_guard<std::mutex> held(all.mutex);
        Pool *pool = pool_for(device, stream, key);
        if (pool == nullptr) return false;
        ++pool->live;
        auto &idle = pool->idle[stream];
        auto found = idle.lower_bound(size);
        // A much longer block would be wasted on this request.
        if (found != idle.end() && found->first <= size + size / 2 + 4096) {
            *out = found->second;
            all.blocks[*out] = Pools::Owned{key, found->first, stream};
            idle.erase(found);
            return true;
        }
    }
    // Not in the order of the stream, which is being captured: memory that nothing uses.
    const bool served = memmgr_allocate_device_at(device, size, out) == MEMMGR_OK;
    std::lock_guard<std::mutex> held(all.mutex);
    if (!served) {
        auto pool = all.pools.find(key);
        if (pool != all.pools.end()) --pool->second.live;
        refuse();
    }
    all.blocks[*out] = Pools::Owned{key, size, stream};
    return true;
}

// Whether the block was a pool's, which has it back now.
bool free_into_pool(void *ptr, const std::vector<Stream> &uses) {
    Pools &all = pools();
    Freed freed;
    {
        std::lock_guard<std::mutex> held(all.mutex);
        auto found = all.blocks.find(ptr);
        if (found == all.blocks.end()) return false;
        Pools::Owned owned = found->second;
        all.blocks.erase(found);
        auto entry = all.pools.find(owned.pool);
        if (entry == all.pools.end()) return true;
        Pool &pool = entry->second;
        const bool elsewhere = std::any_of(uses.begin(), uses.end(), [&](Stream use) { return use != owned.stream; });
        if (elsewhere) {
            pool.held.push_back(ptr);
        } else {
            pool.idle[owned.stream].emplace(owned.size, ptr);
        }
        --pool.live;
        if (pool.released) freed.take_idle(pool);
        if (pool.released && pool.live == 0) all.pools.erase(entry);
    }
    freed.give_back();
    return true;
}

// Whether any of the rooms below is in use: nearly always not, and then nobody takes the lock.
std::atomic<bool> any_pool{false};
std::atomic<bool> any_use{false};
std::atomic<bool> any_late{false};

std::vector<Stream> uses_of(void *ptr) {
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    auto found = all.uses.find(ptr);
    if (found == all.uses.end()) return {};
    std::vector<Stream> streams = std::move(found->second);
    all.uses.erase(found);
    return streams;
}

// Gives a block back behind its uses; false if a capture is in the way, and then `uses` are those that are left.
bool give_back(void *ptr, int device, Stream stream, std::vector<Stream> &uses) {
    while (!uses.empty()) {
        if (memmgr_record_use_at(device, ptr, uses.back()) == MEMMGR_UNSUPPORTED) return false;
        uses.pop_back();
    }
    return memmgr_free_device_at_on(device, ptr, stream) != MEMMGR_UNSUPPORTED;
}

// Tries again what a capture was in the way of.
void give_late_back() {
    std::vector<Pools::Late> late;
    {
        std::lock_guard<std::mutex> held(pools().mutex);
        late.swap(pools().late);
        any_late.store(false, std::memory_order_release);
    }
    for (auto &block : late) {
        if (give_back(block.ptr, block.device, block.stream, block.uses)) continue;
        std::lock_guard<std::mutex> held(pools().mutex);
        pools().late.push_back(std::move(block));
        any_late.store(true, std::memory_order_release);
    }
}

}  // namespace

extern "C" {

void *memmgr_cpp_alloc(std::size_t size, int device, CUstream_st *stream) {
    if (any_late.load(std::memory_order_acquire)) give_late_back();
    void *block = nullptr;
    if (any_pool.load(std::memory_order_acquire) && allocate_from_pool(size, device, stream, &block)) {
        return block;
    }
    if (memmgr_allocate_device_at_on(device, size, stream, &block) != MEMMGR_OK) refuse();
    return block;
}

void memmgr_cpp_free(void *ptr, std::size_t, int device, CUstream_st *stream) {
    if (ptr == nullptr) return;
    if (any_late.load(std::memory_order_acquire)) give_late_back();
    std::vector<Stream> uses;
    if (any_use.load(std::memory_order_acquire)) uses = uses_of(ptr);
    if (any_pool.load(std::memory_order_acquire) && free_into_pool(ptr, uses)) return;
    // Called from destructors, which must not throw: what fails is left to memmgr_last_error.
    if (give_back(ptr, device, stream, uses)) return;
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    all.late.push_back(Pools::Late{ptr, device, stream, std::move(uses)});
    any_late.store(true, std::memory_order_release);
}

void memmgr_cpp_record_stream(void *ptr, CUstream_st *stream) {
    if (ptr == nullptr) return;
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    any_use.store(true, std::memory_order_release);
    auto &streams = all.uses[ptr];
    for (Stream known : streams) {
        if (known == stream) return;
    }
    streams.push_back(stream);
}

void memmgr_cpp_reset(void) {
    if (any_late.load(std::memory_order_acquire)) give_late_back();
    memmgr_trim(nullptr);
}

void memmgr_cpp_memory_fraction(double fraction, int device) {
    if (memmgr_set_device_pool_limit_share(device, fraction) != MEMMGR_OK) refuse();
}

}  // extern "C"

// These take C++ objects.

extern "C" {

void memmgr_cpp_begin_allocate_to_pool(int device, PoolId id, std::function<bool(Stream)> filter) {
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    Pool &pool = all.pools[{device, id}];
    pool.device = device;
    ++pool.users;
    pool.released = false;
    pool.filters.push_back(std::move(filter));
    any_pool.store(true, std::memory_order_release);
}

void memmgr_cpp_end_allocate_to_pool(int device, PoolId id) {
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    auto found = all.pools.find({device, id});
    if (found == all.pools.end() || found->second.filters.empty()) return;
    found->second.filters.pop_back();
}

void memmgr_cpp_release_pool(int device, PoolId id) {
    Pools &all = pools();
    Freed freed;
    {
        std::lock_guard<std::mutex> held(all.mutex);
        auto found = all.pools.find({device, id});
        if (found == all.pools.end()) return;
        Pool &pool = found->second;
        if (pool.users > 0 && --pool.users > 0) return;
        pool.released = true;
        freed.take_idle(pool);
        if (pool.live == 0) all.pools.erase(found);
    }
    freed.give_back();
}

}  // extern "C"
