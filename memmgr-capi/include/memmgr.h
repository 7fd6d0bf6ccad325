// The memory manager's C interface. Made from memmgr-capi/src by `MEMMGR_UPDATE=1 cargo test -p memmgr-capi --test header`; do not edit.

#ifndef MEMMGR_H
#define MEMMGR_H

#include <stddef.h>
#include <stdint.h>
// cudaStream_t and CUstream are pointers to it; no header of CUDA is needed here.
typedef struct CUstream_st CUstream_st;


// How a call ended. Where it is not `MEMMGR_OK`, `memmgr_last_error` says more.
typedef enum memmgr_status {
  // It did what was asked.
  MEMMGR_OK = 0,
  // A CUDA call failed; `memmgr_last_cuda_error` is its code.
  MEMMGR_CUDA_ERROR = 1,
  // Neither the pool nor CUDA had the memory.
  MEMMGR_OUT_OF_MEMORY = 2,
  // The request can never be met within the limit that was set.
  MEMMGR_LIMIT_EXCEEDED = 3,
  // A size that cannot be served: it overflows when it is rounded up.
  MEMMGR_INVALID_SIZE = 4,
  // An argument that cannot be used: a null pointer for a result, an unknown mode, a stream handle that is none.
  MEMMGR_INVALID_ARGUMENT = 5,
  // A pointer that the manager does not know as the start of a live block, or whose block is not freed by pointer.
  MEMMGR_UNKNOWN_POINTER = 6,
  // A pointer into memory that is free: its block was freed before, or no block ever started there.
  MEMMGR_DOUBLE_FREE = 7,
  // A range that leaves its block.
  MEMMGR_INVALID_RANGE = 8,
  // A size was configured after the pool had been made.
  MEMMGR_ALREADY_INITIALIZED = 9,
  // The device, the toolkit or the present situation cannot do this.
  MEMMGR_UNSUPPORTED = 10,
  // There is no CUDA to talk to: no driver, no device, or the process is exiting.
  MEMMGR_UNAVAILABLE = 11,
  // The process was forked from one that had used CUDA.
  MEMMGR_FORKED_CHILD = 12,
  // A block or stream of one device was used with another.
  MEMMGR_WRONG_DEVICE = 13,
  // The library contradicts itself; please report it.
  MEMMGR_INTERNAL_ERROR = 14,
} memmgr_status;

// Which family of CUDA calls serves device memory.
typedef enum memmgr_device_allocator_mode {
  // The manager's own exact best-fit pool.
  MEMMGR_BEST_FIT_POOL = 0,
  // `cudaMallocAsync` and `cudaFreeAsync` on the device's current memory pool.
  MEMMGR_ASYNC_STREAM_ORDERED = 1,
  // `cudaMallocFromPoolAsync` on a memory pool of the manager's own.
  MEMMGR_CUDA_ASYNC_POOL = 2,
} memmgr_device_allocator_mode;

// How a snapshot is written.
typedef enum memmgr_snapshot_format {
  // As `torch.cuda.memory._dump_snapshot` of PyTorch writes it, for its viewer.
  MEMMGR_SNAPSHOT_PICKLE = 0,
  // The same values in JSON.
  MEMMGR_SNAPSHOT_JSON = 1,
} memmgr_snapshot_format;

// What a pool holds, and what it has done. Sizes are in bytes.
typedef struct memmgr_pool_stats {
  // In live blocks, rounded up to the granule of 256 bytes.
  size_t in_use;
  // Held from CUDA.
  size_t reserved;
  // Free, and usable at once by anybody.
  size_t idle;
  // Free, but work that may touch it has not finished.
  size_t pending;
  // The largest idle piece.
  size_t largest_idle;
  // The most that `in_use` has been.
  size_t peak_in_use;
  // The most that `reserved` has been.
  size_t peak_reserved;
  // Successful allocations.
  uint64_t allocations;
  // Frees.
  uint64_t frees;
  // Allocations served from memory that was used before.
  uint64_t reuses;
  // Allocations that took memory which still had the mark of another stream, and had to wait for that.
  uint64_t waits;
  // How often the pool grew.
  uint64_t growths;
  // Allocations that failed.
  uint64_t failures;
  // How many blocks are live.
  size_t live_blocks;
  // What live blocks hold beyond what was asked for.
  size_t internal_waste;
  // The largest request that found nothing.
  size_t largest_miss;
  // Allocations that took memory which still had the mark of another stream, those that had to wait included.
  uint64_t steals;
  // Blocks divided in two.
  uint64_t splits;
  // Neighbouring free blocks joined.
  uint64_t merges;
} memmgr_pool_stats;

// Asked when a request found no memory, without a lock held: it may free memory, through the manager too. `requested` is in
// bytes, `text` says what holds the rest. Returns 1 to have the request tried again, 0 to give up. A request that the hook makes
// itself, on its thread, does not ask it again: it fails with its own status.
typedef int32_t (*memmgr_out_of_memory_hook)(size_t requested, const char *text, void *user);

// A registered stream. 0 is none.
typedef uint64_t memmgr_stream_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, for example "0.3.0".
const char *memmgr_version(void);

// What executes CUDA calls: "gpu", or "simulated" in a library that was built for machines without a GPU.
const char *memmgr_backend(void);

// For `cupy.cuda.CFunctionAllocator`: memory in the order of the device's default stream, so for programs that use no stream
// created as non-blocking; null where there is none. The allocator written in Python (`memmgr_cupy`) knows CuPy's current stream.
void *memmgr_cupy_malloc(void *_param,
                         size_t size,
                         int32_t device);

// For `cupy.cuda.CFunctionAllocator`: memory of `memmgr_cupy_malloc` back, in the order of the device's default stream.
void memmgr_cupy_free(void *_param,
                      void *ptr,
                      int32_t device);

// The figures of the pinned pool. `size` is `sizeof(memmgr_pool_stats)`.
enum memmgr_status memmgr_pinned_stats(struct memmgr_pool_stats *out, size_t size);

// The figures of a device's memory in one mode (a `memmgr_device_allocator_mode`): zero where it was not used. `size` is
// `sizeof(memmgr_pool_stats)`.
enum memmgr_status memmgr_device_stats(int32_t device,
                                       int32_t mode,
                                       struct memmgr_pool_stats *out,
                                       size_t size);

// What is idle in a device's own pool, or in the pinned pool for device -1, and was of no use to the largest request that
// found nothing; bytes. Looks at every block.
enum memmgr_status memmgr_external_waste(int32_t device,
                                         size_t *bytes);

// Writes all figures in Prometheus' text format, with a zero byte behind them, into `buf`, which has `len` bytes; and how many
// bytes that takes, the zero byte included, to `needed` (unless that is null). Where `len` is less, nothing is written to
// `buf`, which may be null then, and the call fails but for `len` 0. Figures grow longer as they grow: ask for the length,
// and leave some room.
enum memmgr_status memmgr_stats_prometheus(char *buf,
                                           size_t len,
                                           size_t *needed);

// Lets the peaks begin anew at what is there now.
enum memmgr_status memmgr_reset_peaks(void);

// Sets what is asked when a request finds no memory; null ends that. The hook may be called on any thread that allocates, with
// `user`, and must not throw.
//
// When this returns, no call of the hook that was set before is running on any thread, nor will one begin: `user` may go. So do
// not hold a lock that the hook wants. From inside a hook it returns at once, and the calls that run go on to their end.
enum memmgr_status memmgr_set_out_of_memory_hook(memmgr_out_of_memory_hook hook,
                                                 void *user);

// Page-locked host memory of at least `size` bytes, 256-byte aligned. Size 0 gives null and `MEMMGR_OK`.
enum memmgr_status memmgr_allocate_pinned(size_t size, void **out);

// Gives pinned memory back. It is not handed out again before every copy made through the manager that touches it has finished.
// Null is ignored.
enum memmgr_status memmgr_free_pinned(void *ptr);

// Device memory of at least `size` bytes on the current device, 256-byte aligned, usable at once on any stream. Size 0 gives null
// and `MEMMGR_OK`.
enum memmgr_status memmgr_allocate_device(size_t size,
                                          void **out);

// As `memmgr_allocate_device`, on the device with this ordinal.
enum memmgr_status memmgr_allocate_device_at(int32_t device, size_t size, void **out);

// Gives device memory back, in any mode. Unlike `cudaFree` it waits for nothing: no device work may use the memory any more, but
// for copies through the manager and recorded uses. Null is ignored.
enum memmgr_status memmgr_free_device(void *ptr);

// Device memory of at least `size` bytes on the device of a raw stream, usable by what is submitted to the stream from now on.
enum memmgr_status memmgr_allocate_device_on(size_t size,
                                             CUstream_st *stream,
                                             void **out);

// Gives device memory back in the order of a raw stream: what the stream has been given may still use it.
enum memmgr_status memmgr_free_device_on(void *ptr, CUstream_st *stream);

// Memory in the order of a raw stream; the default streams (null, `cudaStreamLegacy`, `cudaStreamPerThread`) are those of
// `device`. As `memmgr_allocate_device_on` otherwise.
enum memmgr_status memmgr_allocate_device_at_on(int32_t device,
                                                size_t size,
                                                CUstream_st *stream,
                                                void **out);

// As `memmgr_free_device_on`; the default streams are those of `device`.
enum memmgr_status memmgr_free_device_at_on(int32_t device, void *ptr, CUstream_st *stream);

// As `memmgr_allocate_device_on`, on a registered stream: no CUDA call where the pool has the memory.
enum memmgr_status memmgr_allocate_device_on_registered(size_t size, memmgr_stream_t stream, void **out);

// As `memmgr_free_device_on`, on a registered stream.
enum memmgr_status memmgr_free_device_on_registered(void *ptr, memmgr_stream_t stream);

// Says that work in a raw stream uses the memory, device or pinned, that `ptr` points into. It is not handed out again before
// that work has finished, whenever it is freed: call it behind the work.
enum memmgr_status memmgr_record_use(const void *ptr,
                                     CUstream_st *stream);

// As `memmgr_record_use`; the default streams are those of `device`.
enum memmgr_status memmgr_record_use_at(int32_t device, const void *ptr, CUstream_st *stream);

// Configures how many bytes the pinned pool reserves at its first allocation. Afterwards `MEMMGR_ALREADY_INITIALIZED`.
enum memmgr_status memmgr_set_pinned_pool_size(size_t size);

// Configures how many bytes each device's pool reserves at its first allocation. Afterwards `MEMMGR_ALREADY_INITIALIZED`.
enum memmgr_status memmgr_set_device_pool_size(size_t size);

// The most bytes that the pinned pool may reserve; `SIZE_MAX` is no limit.
enum memmgr_status memmgr_set_pinned_pool_limit(size_t size);

// The most bytes that each device's pool may reserve; `SIZE_MAX` is no limit.
enum memmgr_status memmgr_set_device_pool_limit(size_t size);

// Limits the pool of a device to this share of its memory (above 0, at most 1); the pool of each device if `device` is -1. It
// takes the place of a limit in bytes.
enum memmgr_status memmgr_set_device_pool_limit_share(int32_t device,
                                                      double share);

// Sets the allocator mode (a `memmgr_device_allocator_mode`), at any time: each block is freed by the family that made it. Where
// a device cannot do what is asked, the best-fit pool serves it: see `memmgr_effective_device_allocator_mode`.
enum memmgr_status memmgr_set_device_allocator_mode(int32_t mode);

// The mode that was asked for.
enum memmgr_device_allocator_mode memmgr_requested_device_allocator_mode(void);

// The mode that serves the current device.
enum memmgr_status memmgr_effective_device_allocator_mode(enum memmgr_device_allocator_mode *out);

// Whether the current device can serve the async modes: 1 or 0.
enum memmgr_status memmgr_supports_async_device_allocator(int32_t *out);

// Gives idle memory of all pools back to CUDA. `released` may be null; otherwise how many bytes that were.
enum memmgr_status memmgr_trim(size_t *released);

// Waits for the manager's own pending work and gives every segment without a live block back. Live blocks stay valid, and how
// many there are goes to `live`. Both pointers may be null. The manager can be configured and used again.
enum memmgr_status memmgr_shutdown(size_t *released,
                                   size_t *live);

// As `memmgr_shutdown`, after waiting for the devices and freeing every block: nobody may use one afterwards.
enum memmgr_status memmgr_shutdown_and_free_all(size_t *released, size_t *live);

// Walks all bookkeeping and verifies it; for tests and debugging.
enum memmgr_status memmgr_check(void);

// The last failure that nobody could be told of, of a free in PyTorch for example, since it was last asked for: its status, and
// `memmgr_last_error` says the rest. `MEMMGR_OK` if there was none.
enum memmgr_status memmgr_take_failure(void);

// Writes all segments with their blocks, and the last events that `MEMMGR_EVENT_RING` keeps, to the file at `path`, in a
// `memmgr_snapshot_format`. The file is replaced as a whole, or stays what it was. `memmgr report` and PyTorch's viewer open it. In a forked
// child it answers `MEMMGR_FORKED_CHILD`, and the file is not touched.
enum memmgr_status memmgr_snapshot(const char *path,
                                   int32_t format);

// What the last failed call of this thread had to say: one sentence or several, "" if none has failed. The text stays where it
// is until the next call of this thread that fails.
const char *memmgr_last_error(void);

// The `cudaError_t` of the last failed call of this thread: that of the CUDA call that failed, or the one that says the same
// (`cudaErrorMemoryAllocation`, `cudaErrorInvalidValue`, `cudaErrorNotSupported`); 0 if none has failed.
int32_t memmgr_last_cuda_error(void);

// Forgets the last failure of this thread.
void memmgr_clear_last_error(void);

// The name of a status, for example "MEMMGR_OUT_OF_MEMORY"; "unknown status" for a number that is none.
const char *memmgr_status_name(int32_t status);

// Registers a stream, so that calls with the handle need not ask CUDA about it. Calls with the raw `cudaStream_t` gain as well,
// as long as it is registered.
//
// `stream` is a live `cudaStream_t`: its owner releases the handle before the stream is destroyed. It may be one of the default
// streams: null and `cudaStreamLegacy` are that of the current device. `cudaStreamPerThread` cannot be registered, since it is
// another stream on each thread.
enum memmgr_status memmgr_stream_register(CUstream_st *stream,
                                          memmgr_stream_t *handle);

// Releases a registered stream, before its owner destroys it. No other call may be using the handle. 0 is ignored.
enum memmgr_status memmgr_stream_release(memmgr_stream_t handle);

// For `CUDAPluggableAllocator`: memory in the order of a stream. Throws `std::runtime_error` where there is none.
void *memmgr_torch_alloc(size_t size,
                         int32_t device,
                         CUstream_st *stream);

// For `CUDAPluggableAllocator`: memory back, in the order of the stream that it was allocated on. Never throws: what fails is kept
// for `memmgr_take_failure`, and the block stays out of use.
void memmgr_torch_free(void *ptr,
                       size_t size,
                       int32_t device,
                       CUstream_st *stream);

// For `set_record_stream_fn`: another stream uses the block until it is freed.
void memmgr_torch_record_stream(void *ptr, CUstream_st *stream);

// For `set_reset_fn` (`torch.cuda.empty_cache`): idle memory goes back to CUDA.
void memmgr_torch_reset(void);

// For `set_memory_fraction_fn`: limits the device's pool to this share of its memory. Throws for one that is none.
void memmgr_torch_memory_fraction(double fraction,
                                  int32_t device);

// For `set_base_alloc_fn`: where the allocation of CUDA's that holds `ptr` begins, and its size, unless `size` is null. That is what
// `cudaIpcGetMemHandle` would share of it, where the memory comes from `cudaMalloc` (`MEMMGR_DEVICE_SOURCE=malloc`). Of memory of
// others, `ptr` and 0.
void *memmgr_torch_base_allocation(void *ptr,
                                   size_t *size);

// Waits until nothing runs on a device any more (`cudaDeviceSynchronize`).
enum memmgr_status memmgr_synchronize_device(int32_t device);

// Copies `size` bytes from host to device memory in a raw stream. Returns at once for pinned memory.
//
// The bytes are there until the copy has run; memory of the manager is kept until then by itself, also when it is freed before.
// A null stream is the default stream of the current device.
enum memmgr_status memmgr_copy_to_device_async(void *dst,
                                               const void *src,
                                               size_t size,
                                               CUstream_st *stream);

// As `memmgr_copy_to_device_async`, in a registered stream.
enum memmgr_status memmgr_copy_to_device_async_registered(void *dst,
                                                          const void *src,
                                                          size_t size,
                                                          memmgr_stream_t stream);

// Copies `size` bytes from device to host memory in a raw stream. Returns at once for pinned memory.
//
// The bytes are there until the copy has run; memory of the manager is kept until then by itself, also when it is freed before.
// A null stream is the default stream of the current device.
enum memmgr_status memmgr_copy_to_host_async(void *dst,
                                             const void *src,
                                             size_t size,
                                             CUstream_st *stream);

// As `memmgr_copy_to_host_async`, in a registered stream.
enum memmgr_status memmgr_copy_to_host_async_registered(void *dst,
                                                        const void *src,
                                                        size_t size,
                                                        memmgr_stream_t stream);

// Copies `size` bytes within device memory in a raw stream.
//
// The bytes are there until the copy has run; memory of the manager is kept until then by itself, also when it is freed before.
// A null stream is the default stream of the current device.
enum memmgr_status memmgr_copy_on_device_async(void *dst,
                                               const void *src,
                                               size_t size,
                                               CUstream_st *stream);

// As `memmgr_copy_on_device_async`, in a registered stream.
enum memmgr_status memmgr_copy_on_device_async_registered(void *dst,
                                                          const void *src,
                                                          size_t size,
                                                          memmgr_stream_t stream);

// Sets `size` bytes of device memory to the low byte of `value` in a raw stream.
enum memmgr_status memmgr_memset_async(void *ptr, int32_t value, size_t size, CUstream_st *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MEMMGR_H */
