// What stands behind the entry points for PyTorch's pluggable allocator (torch.cuda.memory.CUDAPluggableAllocator,
// torch.cuda.MemPool), which src/torch.rs exports: only what is written in Rust can be exported from the shared library.
//
// PyTorch does not look at a null pointer, so a request that fails throws. It frees on any thread, whatever device is current
// there, and names the stream that the block was allocated on. While it captures a graph, blocks come from a private pool: what is
// freed there is handed out to that pool alone, since the graph uses it again whenever it is replayed.

#include "memmgr.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

// Of src/torch.rs.
extern "C" {
// Keeps the calling thread's last failure for `memmgr_take_failure`.
void memmgr_torch_note_failure(void);
// The current device; 0 where there is none.
int memmgr_torch_current_device(void);
}

namespace {

using Stream = CUstream_st *;
// c10::cuda::MempoolId_t
using PoolId = std::pair<unsigned long long, unsigned long long>;

[[noreturn]] void refuse() {
    throw std::runtime_error(std::string("memmgr: ") + memmgr_last_error());
}

// A stream that a block was said to be used in. The device is that of the default streams, whose handles name none: the one that
// was current then.
struct Use {
    Stream stream;
    int device;
    bool operator==(const Use &other) const { return stream == other.stream && device == other.device; }
};

// Null, cudaStreamLegacy and cudaStreamPerThread.
bool is_default(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }
bool is_per_thread(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) == 2; }

// Who uses a pool at the moment.
struct Filter {
    std::function<bool(Stream)> accepts;
    std::thread::id begun_by;
    // The stream that it has accepted last.
    bool has_accepted = false;
    Stream accepted = nullptr;
};

// A private pool of PyTorch's.
struct Pool {
    int device;
    // Several captures may share a pool.
    std::vector<Filter> filters;
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
    std::unordered_map<void *, std::vector<Use>> uses;
    // What could not be given back yet, since one of the streams is being captured.
    struct Late {
        void *ptr;
        int device;
        Stream stream;
        std::vector<Use> uses;
    };
    std::vector<Late> late;
    // Free, but nobody knows which streams still use it: a graph ran somewhere, or a use could not be recorded. By device: given
    // back once the device has been waited for.
    std::map<int, std::vector<void *>> parked;
};

// Whether any of the rooms above is in use: nearly always not, and then nobody takes the lock.
std::atomic<bool> any_pool{false};
std::atomic<bool> any_use{false};
std::atomic<bool> any_late{false};

alignas(Pools) unsigned char room[sizeof(Pools)];

Pools &pools() { return *std::launder(reinterpret_cast<Pools *>(room)); }

// In a forked child the lock may be held by a thread that does not exist, in the middle of a change. The blocks are of no use to
// it, so it begins anew; what was there is left where it is. None of the constructors allocates.
void in_child() {
    new (room) Pools;
    any_pool.store(false);
    any_use.store(false);
    any_late.store(false);
}

// When the library is loaded, so that no thread is ever in the middle of it.
const bool ready = (new (room) Pools, pthread_atfork(nullptr, nullptr, in_child) == 0);

// Frees what no stream uses any more.
void free_all(const std::vector<void *> &blocks) {
    for (void *block : blocks) {
        if (memmgr_free_device(block) != MEMMGR_OK) memmgr_torch_note_failure();
    }
}

// Waits for the device and gives back what is parked there; false if there was nothing, or the wait failed. Then the blocks stay
// where they are, and the failure is kept for `memmgr_take_failure`. The caller does not have the lock.
bool settle(int device) {
    std::vector<void *> blocks;
    {
        std::lock_guard<std::mutex> held(pools().mutex);
        auto found = pools().parked.find(device);
        if (found == pools().parked.end()) return false;
        blocks.swap(found->second);
    }
    if (blocks.empty()) return false;
    if (memmgr_synchronize_device(device) == MEMMGR_OK) {
        free_all(blocks);
        return true;
    }
    memmgr_torch_note_failure();
    std::lock_guard<std::mutex> held(pools().mutex);
    std::vector<void *> &parked = pools().parked[device];
    parked.insert(parked.end(), blocks.begin(), blocks.end());
    return false;
}

// What is idle in the pool is parked. The caller has the lock.
void park_idle(Pool &pool) {
    std::vector<void *> &parked = pools().parked[pool.device];
    for (auto &of_stream : pool.idle) {
        for (auto &block : of_stream.second) parked.push_back(block.second);
    }
    pool.idle.clear();
    parked.insert(parked.end(), pool.held.begin(), pool.held.end());
    pool.held.clear();
}

// The pool that serves this stream now, if one does. The caller has the lock, as PyTorch's own allocator does when it asks a
// filter: whoever ends an allocation to a pool may destroy what the filter refers to. A filter asks CUDA whether the stream is
// being captured, which waits for nothing.
Pool *pool_for(int device, Stream stream, std::pair<int, PoolId> &key) {
    for (auto &entry : pools().pools) {
        if (entry.second.device != device) continue;
        for (auto &filter : entry.second.filters) {
            if (filter.accepts(stream)) {
                filter.has_accepted = true;
                filter.accepted = stream;
                key = entry.first;
                return &entry.second;
            }
        }
    }
    return nullptr;
}

// A block of the pool that serves this stream now; false if none does. `*out` is null where there is no memory.
bool allocate_from_pool(std::size_t size, int device, Stream stream, void **out) {
    Pools &all = pools();
    std::pair<int, PoolId> key;
    {
        std::lock_guard<std::mutex> held(all.mutex);
        Pool *pool = pool_for(device, stream, key);
        if (pool == nullptr) return false;
        auto of_stream = pool->idle.find(stream);
        if (of_stream != pool->idle.end()) {
            auto found = of_stream->second.lower_bound(size);
            // A much longer block would be wasted on this request.
            if (found != of_stream->second.end() && found->first <= size + size / 2 + 4096) {
                *out = found->second;
                all.blocks[*out] = Pools::Owned{key, found->first, stream};
                of_stream->second.erase(found);
                ++pool->live;
                return true;
            }
        }
    }
    // Not in the order of the stream, which is being captured: memory that nothing uses.
    if (memmgr_allocate_device_at(device, size, out) != MEMMGR_OK) return true;
    try {
        std::lock_guard<std::mutex> held(all.mutex);
        auto pool = all.pools.find(key);
        // Without its pool it is a block like any other.
        if (pool == all.pools.end()) return true;
        all.blocks[*out] = Pools::Owned{key, size, stream};
        ++pool->second.live;
    } catch (...) {
        memmgr_free_device(*out);
        throw;
    }
    return true;
}

// Whether the block was a pool's, which has it back now.
bool free_into_pool(void *ptr, const std::vector<Use> &uses) {
    Pools &all = pools();
    int device = -1;
    {
        std::lock_guard<std::mutex> held(all.mutex);
        auto found = all.blocks.find(ptr);
        if (found == all.blocks.end()) return false;
        Pools::Owned owned = found->second;
        auto entry = all.pools.find(owned.pool);
        if (entry == all.pools.end()) {
            all.blocks.erase(found);
            return false;
        }
        Pool &pool = entry->second;
        const bool elsewhere =
            std::any_of(uses.begin(), uses.end(), [&](const Use &use) { return use.stream != owned.stream; });
        if (pool.released) {
            // The graph is gone, but it, and whoever read what it wrote, may have used the block in any stream.
            all.parked[pool.device].push_back(ptr);
        } else if (elsewhere) {
            pool.held.push_back(ptr);
        } else {
            pool.idle[owned.stream].emplace(owned.size, ptr);
        }
        all.blocks.erase(found);
        --pool.live;
        if (pool.released && pool.live == 0) {
            device = pool.device;
            all.pools.erase(entry);
        }
    }
    // With the last block of the pool, once for all of them.
    if (device >= 0) settle(device);
    return true;
}

std::vector<Use> uses_of(void *ptr) {
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    auto found = all.uses.find(ptr);
    if (found == all.uses.end()) return {};
    std::vector<Use> streams = std::move(found->second);
    all.uses.erase(found);
    return streams;
}

// Gives a block back behind its uses; false if a capture is in the way, and then `uses` are those that are left.
bool give_back(void *ptr, int device, Stream stream, std::vector<Use> &uses) {
    while (!uses.empty()) {
        const Use use = uses.back();
        memmgr_status status = memmgr_record_use_at(use.device, ptr, use.stream);
        // Which device's default stream was meant, nobody says.
        if (status == MEMMGR_OK && is_default(use.stream) && use.device != device) {
            status = memmgr_record_use_at(device, ptr, use.stream);
        }
        if (status == MEMMGR_UNSUPPORTED) return false;
        if (status == MEMMGR_FORKED_CHILD || status == MEMMGR_UNAVAILABLE) return true;
        if (status != MEMMGR_OK) {
            // Whatever uses it: it is kept until the device has been waited for.
            memmgr_torch_note_failure();
            std::lock_guard<std::mutex> held(pools().mutex);
            pools().parked[device].push_back(ptr);
            return true;
        }
        uses.pop_back();
    }
    const memmgr_status status = memmgr_free_device_at_on(device, ptr, stream);
    if (status == MEMMGR_UNSUPPORTED) return false;
    if (status != MEMMGR_OK) memmgr_torch_note_failure();
    return true;
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

void give(void *ptr, int device, Stream stream) {
    if (any_late.load(std::memory_order_acquire)) give_late_back();
    std::vector<Use> uses;
    if (any_use.load(std::memory_order_acquire)) uses = uses_of(ptr);
    if (any_pool.load(std::memory_order_acquire) && free_into_pool(ptr, uses)) return;
    if (give_back(ptr, device, stream, uses)) return;
    std::lock_guard<std::mutex> held(pools().mutex);
    pools().late.push_back(Pools::Late{ptr, device, stream, std::move(uses)});
    any_late.store(true, std::memory_order_release);
}

// A block, or null.
void *take(std::size_t size, int device, Stream stream) {
    void *block = nullptr;
    if (any_pool.load(std::memory_order_acquire) && allocate_from_pool(size, device, stream, &block)) return block;
    memmgr_allocate_device_at_on(device, size, stream, &block);
    return block;
}

}  // namespace

extern "C" {

void *memmgr_cpp_alloc(std::size_t size, int device, CUstream_st *stream) {
    // Nothing, of which nobody keeps a record.
    if (size == 0) return nullptr;
    if (any_late.load(std::memory_order_acquire)) give_late_back();
    void *block = take(size, device, stream);
    // What is parked may be what is missing.
    if (block == nullptr && any_pool.load(std::memory_order_acquire) && settle(device)) block = take(size, device, stream);
    if (block == nullptr) refuse();
    return block;
}

void memmgr_cpp_free(void *ptr, std::size_t, int device, CUstream_st *stream) {
    if (ptr == nullptr) return;
    // Called from destructors, which must not throw: what fails is kept for `memmgr_take_failure`.
    try {
        give(ptr, device, stream);
    } catch (...) {
        // The host has no memory for a list: the block stays out of use.
    }
}

void memmgr_cpp_record_stream(void *ptr, CUstream_st *stream) {
    if (ptr == nullptr) return;
    const int device = is_default(stream) ? memmgr_torch_current_device() : 0;
    // Another stream for whoever frees: what it has been given so far is all that can be said.
    if (is_per_thread(stream) && memmgr_record_use_at(device, ptr, stream) == MEMMGR_OK) return;
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    any_use.store(true, std::memory_order_release);
    auto &streams = all.uses[ptr];
    const Use use{stream, device};
    if (std::find(streams.begin(), streams.end(), use) == streams.end()) streams.push_back(use);
}

void memmgr_cpp_reset(void) {
    if (any_late.load(std::memory_order_acquire)) give_late_back();
    std::vector<int> devices;
    {
        std::lock_guard<std::mutex> held(pools().mutex);
        for (auto &parked : pools().parked) devices.push_back(parked.first);
    }
    for (int device : devices) settle(device);
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
    pool.filters.push_back(Filter{std::move(filter), std::this_thread::get_id()});
    ++pool.users;
    pool.released = false;
    any_pool.store(true, std::memory_order_release);
}

// PyTorch does not say whose allocation to the pool ends: of those that this thread has begun (or all, if it has begun none), one
// that refuses a stream that it has accepted, since its capture is over; else the last one.
void memmgr_cpp_end_allocate_to_pool(int device, PoolId id) {
    Pools &all = pools();
    std::lock_guard<std::mutex> held(all.mutex);
    auto found = all.pools.find({device, id});
    if (found == all.pools.end() || found->second.filters.empty()) return;
    auto &filters = found->second.filters;
    const auto me = std::this_thread::get_id();
    const bool any_mine =
        std::any_of(filters.begin(), filters.end(), [&](const Filter &filter) { return filter.begun_by == me; });
    auto ended = filters.end();
    bool is_over = false;
    for (auto filter = filters.begin(); filter != filters.end(); ++filter) {
        if ((any_mine && filter->begun_by != me) || is_over) continue;
        ended = filter;
        is_over = filter->has_accepted && !filter->accepts(filter->accepted);
    }
    if (ended != filters.end()) filters.erase(ended);
}

void memmgr_cpp_release_pool(int device, PoolId id) {
    Pools &all = pools();
    {
        std::lock_guard<std::mutex> held(all.mutex);
        auto found = all.pools.find({device, id});
        if (found == all.pools.end()) return;
        Pool &pool = found->second;
        if (pool.users > 0 && --pool.users > 0) return;
        pool.released = true;
        park_idle(pool);
        if (pool.live == 0) all.pools.erase(found);
    }
    // A graph that used them may still run: nobody knows in which stream.
    settle(device);
}

}  // extern "C"
