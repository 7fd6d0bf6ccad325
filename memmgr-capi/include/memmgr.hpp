// The memory manager for C++17: the reference API, RAII handles, and a pinned std::pmr::memory_resource, over memmgr.h.
//
//     memmgr::MemoryManager& mm = memmgr::MemoryManager::getInstance();
//     void* data = mm.allocateDevice(size, stream);
//     ...
//     mm.freeDevice(data, stream);
//
// Header only; link libmemmgr. It needs the CUDA runtime's header, <cuda_runtime_api.h>, and calls cudaGetDevice in the program
// itself. What fails returns null or a cudaError_t, and memmgr_last_error() says why; with MEMMGR_THROW defined before it is
// included, memmgr::Error is thrown instead.

#ifndef MEMMGR_HPP
#define MEMMGR_HPP

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "memmgr.h"

namespace memmgr {

// Which family of CUDA calls serves device memory. A mode can be changed at any time: each block is freed by the family that made
// it.
enum class DeviceAllocatorMode : int {
    // The manager's own exact best-fit pool.
    BEST_FIT_POOL = MEMMGR_BEST_FIT_POOL,
    // cudaMallocAsync and cudaFreeAsync on the device's current memory pool (CUDA 11.2+).
    ASYNC_STREAM_ORDERED = MEMMGR_ASYNC_STREAM_ORDERED,
    // cudaMallocFromPoolAsync on a memory pool of the manager's own.
    CUDA_ASYNC_POOL = MEMMGR_CUDA_ASYNC_POOL,
};

// What a call had to say that failed.
class Error : public std::runtime_error {
public:
    explicit Error(memmgr_status status)
        : std::runtime_error(memmgr_last_error()), status_(status),
          cuda_(static_cast<cudaError_t>(memmgr_last_cuda_error())) {}

    memmgr_status status() const noexcept { return status_; }
    // The cudaError_t of the CUDA call that failed, or the one that says the same.
    cudaError_t cudaError() const noexcept { return cuda_; }

private:
    memmgr_status status_;
    cudaError_t cuda_;
};

namespace detail {

// Null is the default stream of this translation unit, which a macro of CUDA's can make the thread's own.
inline cudaStream_t stream_of(cudaStream_t stream) noexcept {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    return stream == nullptr ? cudaStreamPerThread : stream;
#else
    return stream;
#endif
}

inline bool succeeded(memmgr_status status) {
#ifdef MEMMGR_THROW
    if (status != MEMMGR_OK) throw Error(status);
#endif
    return status == MEMMGR_OK;
}

inline cudaError_t cuda_error(memmgr_status status) {
    return succeeded(status) ? cudaSuccess : static_cast<cudaError_t>(memmgr_last_cuda_error());
}

// The device that is current for the program's own CUDA runtime, which need not be the library's.
inline int current_device() {
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}

}  // namespace detail

// The process's memory manager. All methods may be called from any thread.
class MemoryManager {
public:
    static MemoryManager& getInstance() noexcept {
        static MemoryManager instance;
        return instance;
    }

    MemoryManager(const MemoryManager&) = delete;
    MemoryManager& operator=(const MemoryManager&) = delete;

    // Page-locked host memory, 256-byte aligned; null if there is none, and for size 0.
    void* allocatePinned(std::size_t size) {
        void* block = nullptr;
        detail::succeeded(memmgr_allocate_pinned(size, &block));
        return block;
    }

    // Not handed out again before every copy made through the manager that touches it has finished.
    void freePinned(void* ptr) { detail::succeeded(memmgr_free_pinned(ptr)); }

    // Memory of the current device, 256-byte aligned, usable at once in any stream.
    void* allocateDevice(std::size_t size) {
        void* block = nullptr;
        detail::succeeded(memmgr_allocate_device_at(detail::current_device(), size, &block));
        return block;
    }

    // Memory that no device work uses any more, but for copies through the manager. Waits for nothing.
    void freeDevice(void* ptr) { detail::succeeded(memmgr_free_device(ptr)); }

    // Memory for what is submitted to the stream from now on.
    void* allocateDevice(std::size_t size, cudaStream_t stream) {
        void* block = nullptr;
        detail::succeeded(memmgr_allocate_device_at_on(detail::current_device(), size,
                                                       detail::stream_of(stream), &block));
        return block;
    }

    // In the order of the stream: what it has been given may still use the memory.
    void freeDevice(void* ptr, cudaStream_t stream) {
        detail::succeeded(memmgr_free_device_at_on(detail::current_device(), ptr, detail::stream_of(stream)));
    }

    cudaError_t copyToDeviceAsync(void* dst, const void* src, std::size_t size, cudaStream_t stream) {
        return detail::cuda_error(memmgr_copy_to_device_async(dst, src, size, detail::stream_of(stream)));
    }

    cudaError_t copyToHostAsync(void* dst, const void* src, std::size_t size, cudaStream_t stream) {
        return detail::cuda_error(memmgr_copy_to_host_async(dst, src, size, detail::stream_of(stream)));
    }

    // What each pool reserves at its first allocation; to be called before that.
    void setPinnedPoolSize(std::size_t size) { detail::succeeded(memmgr_set_pinned_pool_size(size)); }
    void setDevicePoolSize(std::size_t size) { detail::succeeded(memmgr_set_device_pool_size(size)); }

    void setDeviceAllocatorMode(DeviceAllocatorMode mode) {
        detail::succeeded(memmgr_set_device_allocator_mode(static_cast<int>(mode)));
    }

    DeviceAllocatorMode getRequestedDeviceAllocatorMode() const noexcept {
        return static_cast<DeviceAllocatorMode>(memmgr_requested_device_allocator_mode());
    }

    // The mode that serves the current device.
    DeviceAllocatorMode getEffectiveDeviceAllocatorMode() const {
        memmgr_device_allocator_mode mode = MEMMGR_BEST_FIT_POOL;
        detail::succeeded(memmgr_effective_device_allocator_mode(&mode));
        return static_cast<DeviceAllocatorMode>(mode);
    }

    bool supportsAsyncDeviceAllocator() const {
        int32_t supported = 0;
        detail::succeeded(memmgr_supports_async_device_allocator(&supported));
        return supported != 0;
    }

    // Says that work in the stream uses the memory that ptr points into: it is kept until that has finished.
    cudaError_t recordUse(const void* ptr, cudaStream_t stream) {
        return detail::cuda_error(memmgr_record_use(ptr, detail::stream_of(stream)));
    }

    // Gives idle memory back to CUDA: how many bytes.
    std::size_t trim() {
        std::size_t released = 0;
        detail::succeeded(memmgr_trim(&released));
        return released;
    }

    // Waits for the devices and gives everything back. Pointers that were handed out are invalid afterwards.
    void shutdown() { detail::succeeded(memmgr_shutdown_and_free_all(nullptr, nullptr)); }

private:
    MemoryManager() = default;
};

// A registered stream: calls with it need not ask CUDA about it. The cudaStream_t outlives it.
class RegisteredStream {
public:
    RegisteredStream() = default;
    explicit RegisteredStream(cudaStream_t stream) {
        const memmgr_status status = memmgr_stream_register(detail::stream_of(stream), &handle_);
        if (status != MEMMGR_OK) throw Error(status);
    }
    RegisteredStream(RegisteredStream&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
    RegisteredStream& operator=(RegisteredStream&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~RegisteredStream() { memmgr_stream_release(handle_); }

    memmgr_stream_t handle() const noexcept { return handle_; }

private:
    memmgr_stream_t handle_ = 0;
};

// Pinned memory for `length` elements, given back at the end of its life.
template <typename T>
class PinnedBuffer {
public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(std::size_t length) : length_(length) {
        if (length > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
        void* block = nullptr;
        const memmgr_status status = memmgr_allocate_pinned(length * sizeof(T), &block);
        if (status != MEMMGR_OK) throw Error(status);
        data_ = static_cast<T*>(block);
    }
    PinnedBuffer(PinnedBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), length_(std::exchange(other.length_, 0)) {}
    PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(length_, other.length_);
        return *this;
    }
    ~PinnedBuffer() { memmgr_free_pinned(data_); }

    T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return length_; }
    std::size_t bytes() const noexcept { return length_ * sizeof(T); }
    T* begin() const noexcept { return data_; }
    T* end() const noexcept { return data_ + length_; }
    T& operator[](std::size_t place) const noexcept { return data_[place]; }

private:
    T* data_ = nullptr;
    std::size_t length_ = 0;
};

// Device memory for `length` elements on a stream, given back in the stream's order at the end of its life, whichever device is
// current then. The stream outlives it; where that is the thread's own default stream, the same thread ends it.
template <typename T>
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    DeviceBuffer(std::size_t length, cudaStream_t stream)
        : length_(length), stream_(detail::stream_of(stream)), device_(detail::current_device()) {
        if (length > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
        void* block = nullptr;
        const memmgr_status status =
            memmgr_allocate_device_at_on(device_, length * sizeof(T), stream_, &block);
        if (status != MEMMGR_OK) throw Error(status);
        data_ = static_cast<T*>(block);
    }
    DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~DeviceBuffer() { memmgr_free_device_at_on(device_, data_, stream_); }

    T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return length_; }
    std::size_t bytes() const noexcept { return length_ * sizeof(T); }
    cudaStream_t stream() const noexcept { return stream_; }

    void swap(DeviceBuffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(length_, other.length_);
        std::swap(stream_, other.stream_);
        std::swap(device_, other.device_);
    }

private:
    T* data_ = nullptr;
    std::size_t length_ = 0;
    cudaStream_t stream_ = nullptr;
    int device_ = 0;
};

// Pinned memory for the containers of std::pmr. Blocks are aligned to 256 bytes; a larger alignment throws std::bad_alloc.
class PinnedMemoryResource : public std::pmr::memory_resource {
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        // Two blocks of size 0 differ.
        const std::size_t size = bytes == 0 ? 1 : bytes;
        void* block = nullptr;
        if (alignment > 256 || memmgr_allocate_pinned(size, &block) != MEMMGR_OK) throw std::bad_alloc();
        return block;
    }
    void do_deallocate(void* ptr, std::size_t, std::size_t) override { memmgr_free_pinned(ptr); }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return dynamic_cast<const PinnedMemoryResource*>(&other) != nullptr;
    }
};

}  // namespace memmgr

#endif
