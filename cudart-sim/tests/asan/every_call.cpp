// Calls every function of the simulator from C++, with the real headers, under AddressSanitizer (`cargo xtask asan`).
//
// Without an argument nothing may be found. With one, the program makes that mistake, which has to be found.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static void check(int code, int wanted, const char *call, int line) {
    if (code != wanted) {
        std::fprintf(stderr, "line %d: %s answered %d, not %d\n", line, call, code, wanted);
        std::exit(1);
    }
}

#define ANSWERS(wanted, call) check((int)(call), wanted, #call, __LINE__)
#define OK(call) ANSWERS(0, call)
#define HOLDS(what) check((what) ? 0 : 1, 0, #what, __LINE__)

// Places for results are blocks of the heap of just that size, so that a write beside one is found.
template <class T> struct Out {
    T *at = (T *)std::malloc(sizeof(T));
    Out() { std::memset((void *)at, 0x5a, sizeof(T)); }
    Out(const Out &) = delete;
    ~Out() { std::free((void *)at); }
    operator T *() { return at; }
    T operator*() const { return *at; }
};

static void *malloc_device(size_t size) {
    Out<void *> p;
    OK(cudaMalloc((void **)p, size));
    return *p;
}

static cudaStream_t stream() {
    Out<cudaStream_t> s;
    OK(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    return *s;
}

static void add(void *n) { ++*(int *)n; }

static void versions_and_devices() {
    Out<int> n, m;
    OK(cudaDriverGetVersion(n));
    OK(cudaRuntimeGetVersion(n));
    OK(cudaGetDeviceCount(n));
    HOLDS(*n == 2);
    OK(cudaInitDevice(0, 0, 0));
    OK(cudaSetDevice(0));
    OK(cudaGetDevice(n));
    Out<cudaDeviceProp> properties;
    OK(cudaGetDeviceProperties(properties, 0));
    HOLDS(std::strlen((*properties).name) > 0);
    OK(cudaDeviceGetAttribute(n, cudaDevAttrWarpSize, 0));
    OK(cudaDeviceGetStreamPriorityRange(n, m));
    OK(cudaDeviceGetStreamPriorityRange(nullptr, nullptr));
    OK(cudaDeviceCanAccessPeer(n, 0, 1));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    OK(cudaDeviceDisablePeerAccess(1));
    ANSWERS(101, cudaSetDevice(7));
    ANSWERS(101, cudaPeekAtLastError());
    ANSWERS(101, cudaGetLastError());
    for (int code = -3; code < 1100; ++code) {
        HOLDS(std::strlen(cudaGetErrorName((cudaError_t)code)) > 0);
        HOLDS(std::strlen(cudaGetErrorString((cudaError_t)code)) > 0);
    }
}

static void streams_and_events() {
    Out<cudaStream_t> a, b, c;
    OK(cudaStreamCreate(a));
    OK(cudaStreamCreateWithFlags(b, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithPriority(c, cudaStreamDefault, -1));
    Out<int> priority, device;
    Out<unsigned> flags;
    Out<unsigned long long> id;
    OK(cudaStreamGetPriority(*c, priority));
    OK(cudaStreamGetFlags(*b, flags));
    OK(cudaStreamGetId(*a, id));
    OK(cudaStreamGetDevice(*a, device));
    Out<cudaEvent_t> e, f;
    OK(cudaEventCreate(e));
    OK(cudaEventCreateWithFlags(f, cudaEventDefault));
    int *n = (int *)std::calloc(1, sizeof(int));
    OK(cudaEventRecord(*e, *a));
    OK(cudaLaunchHostFunc(*a, add, n));
    OK(cudaEventRecord(*f, *a));
    OK(cudaStreamWaitEvent(*b, *f, 0));
    OK(cudaLaunchHostFunc(*b, add, n));
    OK(cudaEventSynchronize(*f));
    OK(cudaEventQuery(*f));
    Out<float> ms;
    OK(cudaEventElapsedTime(ms, *e, *f));
    OK(cudaStreamSynchronize(*b));
    OK(cudaStreamQuery(*b));
    HOLDS(*n == 2);
    std::thread other([n] {
        OK(cudaLaunchHostFunc(cudaStreamPerThread, add, n));
        OK(cudaStreamSynchronize(cudaStreamPerThread));
    });
    other.join();
    HOLDS(*n == 3);
    std::free(n);
    OK(cudaEventDestroy(*e));
    OK(cudaEventDestroy(*f));
    for (cudaStream_t s : {*a, *b, *c}) OK(cudaStreamDestroy(s));
    ANSWERS(400, cudaStreamQuery(*a));
    ANSWERS(400, cudaEventQuery(*e));
    OK(cudaDeviceSynchronize());
}

// Every kind of copy, at odd sizes, from and to blocks of just that size.
static void copies() {
    cudaStream_t s = stream();
    for (size_t size : {1ul, 7ul, 4096ul, 70001ul, 300001ul}) {
        char *in = (char *)std::malloc(size), *out = (char *)std::malloc(size);
        for (size_t i = 0; i < size; ++i) in[i] = (char)(i * 31);
        Out<void *> pinned, also;
        OK(cudaHostAlloc(pinned, size, cudaHostAllocMapped));
        OK(cudaMallocHost((void **)also, size));
        void *d = malloc_device(size), *e = malloc_device(size);
        OK(cudaMemcpy(d, in, size, cudaMemcpyHostToDevice));
        OK(cudaMemcpyAsync(e, d, size, cudaMemcpyDeviceToDevice, s));
        OK(cudaMemcpyAsync(*pinned, e, size, cudaMemcpyDeviceToHost, s));
        OK(cudaMemcpyAsync(*also, *pinned, size, cudaMemcpyHostToHost, s));
        OK(cudaMemcpyAsync(out, e, size, cudaMemcpyDefault, s));
        OK(cudaStreamSynchronize(s));
        HOLDS(!std::memcmp(in, out, size) && !std::memcmp(in, *also, size));
        // A small source may go as soon as the call has returned.
        char *gone = (char *)std::malloc(size);
        std::memcpy(gone, in, size);
        OK(cudaMemcpyAsync(d, gone, size, cudaMemcpyHostToDevice, s));
        std::free(gone);
        OK(cudaMemset(d, 1, size));
        OK(cudaMemsetAsync(d, 2, size, s));
        OK(cudaStreamSynchronize(s));
        OK(cudaFreeHost(*pinned));
        OK(cudaFreeHost(*also));
        OK(cudaFree(d));
        OK(cudaFree(e));
        std::free(in);
        std::free(out);
    }
    // Rows: the block ends with the last byte of the last row.
    const size_t width = 33, height = 40, pitch = 64, bytes = pitch * (height - 1) + width;
    char *in = (char *)std::calloc(bytes, 1), *out = (char *)std::calloc(bytes, 1);
    std::memset(in, 9, bytes);
    char *d = (char *)malloc_device(bytes);
    OK(cudaMemcpy2D(d, pitch, in, pitch, width, height, cudaMemcpyHostToDevice));
    OK(cudaMemset2DAsync(d, pitch, 5, width / 2, height, s));
    OK(cudaMemcpy2DAsync(out, pitch, d, pitch, width, height, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    HOLDS(out[0] == 5 && out[width - 1] == 9 && out[width] == 0 && out[bytes - 1] == 9);
    ANSWERS(1, cudaMemset(d, 0, bytes + 1));
    std::free(in);
    std::free(out);
    // Between devices.
    OK(cudaSetDevice(1));
    char *there = (char *)malloc_device(bytes);
    OK(cudaSetDevice(0));
    OK(cudaMemcpyPeerAsync(there, 1, d, 0, bytes, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(there));
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
}

static void memory() {
    Out<size_t> free_, total;
    OK(cudaMemGetInfo(free_, total));
    char *mine = (char *)std::malloc(10001);
    OK(cudaHostRegister(mine, 10001, cudaHostRegisterDefault));
    Out<void *> device;
    Out<unsigned> flags;
    OK(cudaHostGetDevicePointer(device, mine, 0));
    OK(cudaHostGetFlags(flags, mine));
    Out<cudaPointerAttributes> attributes;
    OK(cudaPointerGetAttributes(attributes, mine + 5000));
    HOLDS((*attributes).type == cudaMemoryTypeHost);
    OK(cudaHostUnregister(mine));
    std::free(mine);
    void *d = malloc_device(100);
    Out<cudaIpcMemHandle_t> handle;
    OK(cudaIpcGetMemHandle(handle, d));
    OK(cudaFree(d));
}

static void pools() {
    cudaStream_t s = stream();
    Out<cudaMemPool_t> pool, own;
    OK(cudaDeviceGetDefaultMemPool(pool, 0));
    OK(cudaDeviceGetMemPool(pool, 0));
    cudaMemPoolProps *properties = (cudaMemPoolProps *)std::calloc(1, sizeof(cudaMemPoolProps));
    properties->allocType = cudaMemAllocationTypePinned;
    properties->location.type = cudaMemLocationTypeDevice;
    OK(cudaMemPoolCreate(own, properties));
    std::free(properties);
    OK(cudaDeviceSetMemPool(0, *own));
    for (int attribute = 0; attribute < 12; ++attribute) {
        // The first three are an int, as the header says.
        bool word = attribute >= 1 && attribute <= 3;
        void *value = std::calloc(1, word ? sizeof(int) : sizeof(cuuint64_t));
        if (!cudaMemPoolGetAttribute(*own, (cudaMemPoolAttr)attribute, value))
            cudaMemPoolSetAttribute(*own, (cudaMemPoolAttr)attribute, value);
        std::free(value);
    }
    cudaGetLastError();
    Out<cudaMemAccessFlags> flags;
    Out<cudaMemLocation> location;
    *location.at = {cudaMemLocationTypeDevice, 1};
    Out<cudaMemAccessDesc> access;
    *access.at = {*location, cudaMemAccessFlagsProtReadWrite};
    OK(cudaMemPoolSetAccess(*own, access, 1));
    OK(cudaMemPoolGetAccess(flags, *own, location));
    Out<void *> a, b;
    OK(cudaMallocAsync((void **)a, 1000, s));
    OK(cudaMallocFromPoolAsync((void **)b, 3 << 20, *own, s));
    OK(cudaFreeAsync(*a, s));
    OK(cudaFreeAsync(*b, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaMemPoolTrimTo(*own, 0));
    OK(cudaDeviceSetMemPool(0, *pool));
    OK(cudaMemPoolDestroy(*own));
    OK(cudaStreamDestroy(s));
}

static void graphs() {
    cudaStream_t s = stream();
    int *n = (int *)std::calloc(1, sizeof(int)), *gone = (int *)std::calloc(1, sizeof(int));
    char *d = (char *)malloc_device(256), *out = (char *)std::malloc(256);
    Out<cudaStreamCaptureMode> mode;
    *mode.at = cudaStreamCaptureModeRelaxed;
    OK(cudaThreadExchangeStreamCaptureMode(mode));
    Out<cudaStreamCaptureStatus> status;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(s, status));
    Out<unsigned long long> number;
    Out<cudaGraph_t> into;
    OK(cudaStreamGetCaptureInfo(s, status, number, into, nullptr, nullptr, nullptr));
    Out<cudaUserObject_t> object;
    OK(cudaUserObjectCreate(object, gone, add, 2, cudaUserObjectNoDestructorSync));
    OK(cudaGraphRetainUserObject(*into, *object, 1, cudaGraphUserObjectMove));
    OK(cudaUserObjectRelease(*object, 1));
    OK(cudaLaunchHostFunc(s, add, n));
    OK(cudaMemsetAsync(d, 3, 256, s));
    OK(cudaMemcpyAsync(out, d, 256, cudaMemcpyDeviceToHost, s));
    Out<cudaGraph_t> graph;
    Out<cudaGraphExec_t> exec;
    OK(cudaStreamEndCapture(s, graph));
    OK(cudaGraphInstantiate(exec, *graph, 0));
    OK(cudaGraphDestroy(*graph));
    for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(*exec, s));
    OK(cudaGraphExecDestroy(*exec));
    OK(cudaStreamSynchronize(s));
    HOLDS(*n == 3 && out[255] == 3);
    // The last launch has ended; its object goes with it, at a later call.
    for (int i = 0; i < 10000 && *(volatile int *)gone == 0; ++i) OK(cudaStreamSynchronize(s));
    HOLDS(*gone == 1);
    std::free(n);
    std::free(gone);
    std::free(out);
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
}

template <class F> static F driver(const char *name) {
    Out<void *> found;
    Out<cudaDriverEntryPointQueryResult> how;
    OK(cudaGetDriverEntryPointByVersion(name, (void **)found, 13000, cudaEnableDefault, how));
    HOLDS(*how == cudaDriverEntryPointSuccess);
    OK(cudaGetDriverEntryPoint(name, (void **)found, cudaEnableDefault, how));
    return (F)*found;
}

#define DRIVER(name) driver<decltype(&name)>(#name)

// The driver's functions, with the declarations of cuda.h. Their names there may be macros: these are plain.
#undef cuMemGetAddressRange
static void virtual_memory() {
    auto cuMemGetAddressRange_ = driver<decltype(&cuMemGetAddressRange_v2)>("cuMemGetAddressRange");
    Out<CUcontext> context;
    Out<CUdevice> device;
    OK(DRIVER(cuCtxGetCurrent)(context));
    Out<unsigned long long> id;
    OK(DRIVER(cuCtxGetId)(*context.at, id));
    OK(DRIVER(cuCtxGetDevice)(device));
    Out<int> attribute;
    OK(DRIVER(cuDeviceGetAttribute)(attribute, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    Out<const char *> name;
    OK(DRIVER(cuGetErrorName)(CUDA_ERROR_INVALID_VALUE, name));
    Out<CUmemAllocationProp> properties;
    std::memset(properties.at, 0, sizeof(CUmemAllocationProp));
    properties.at->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.at->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    Out<size_t> granularity, len;
    OK(DRIVER(cuMemGetAllocationGranularity)(granularity, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    size_t unit = *granularity;
    Out<CUdeviceptr> at, start;
    OK(DRIVER(cuMemAddressReserve)(at, 4 * unit, 0, 0, 0));
    std::vector<CUmemGenericAllocationHandle> handles;
    for (int i = 0; i < 4; ++i) {
        Out<CUmemGenericAllocationHandle> handle, again;
        OK(DRIVER(cuMemCreate)(handle, unit, properties, 0));
        OK(DRIVER(cuMemMap)(*at + i * unit, unit, 0, *handle, 0));
        OK(DRIVER(cuMemRetainAllocationHandle)(again, (void *)(*at + i * unit)));
        OK(DRIVER(cuMemRelease)(*again));
        handles.push_back(*handle);
    }
    Out<CUmemAccessDesc> access;
    *access.at = {properties.at->location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(DRIVER(cuMemSetAccess)(*at, 4 * unit, access, 1));
    OK(cuMemGetAddressRange_(start, len, *at + unit + 1));
    HOLDS(*start == *at + unit && *len == unit);
    Out<unsigned> type;
    OK(DRIVER(cuPointerGetAttribute)(type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, *at));
    char *d = (char *)*at, *out = (char *)std::malloc(4 * unit - 1);
    OK(cudaMemset(d, 8, 4 * unit));
    OK(cudaMemcpy(out, d + 1, 4 * unit - 1, cudaMemcpyDeviceToHost));
    HOLDS(out[4 * unit - 2] == 8);
    std::free(out);
    OK(DRIVER(cuMemUnmap)(*at, 4 * unit));
    for (auto handle : handles) OK(DRIVER(cuMemRelease)(handle));
    OK(DRIVER(cuMemAddressFree)(*at, 4 * unit));
}

static void stream_calls() {
    cudaStream_t s = stream();
    size_t n = 199999;
    char *d = (char *)malloc_device(n), *h = (char *)std::malloc(n), *out = (char *)std::malloc(n);
    std::memset(h, 5, n);
    OK(cudaHostRegister(h, n, 0));
    Out<CUstreamCaptureStatus> status;
    OK(DRIVER(cuStreamIsCapturing)(s, status));
    HOLDS(*status == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(DRIVER(cuMemcpyHtoDAsync)((CUdeviceptr)d, h, n, s));
    OK(DRIVER(cuMemcpyDtoHAsync)(out, (CUdeviceptr)d, n, s));
    Out<cudaEvent_t> e;
    OK(cudaEventCreate(e));
    OK(DRIVER(cuEventRecord)(*e, s));
    OK(cudaEventSynchronize(*e));
    HOLDS(out[n - 1] == 5);
    OK(cudaEventDestroy(*e));
    OK(cudaHostUnregister(h));
    std::free(h);
    std::free(out);
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
}

// What the sanitizer has to find.
static int mistake(const char *which) {
    cudaStream_t s = stream();
    char *d = (char *)malloc_device(200000), *small = (char *)std::malloc(199999);
    std::memset(small, 1, 199999);
    if (!std::strcmp(which, "small-place")) {
        // The place for a pointer has four bytes.
        cudaMalloc((void **)std::malloc(4), 100);
    } else if (!std::strcmp(which, "small-structure")) {
        cudaGetDeviceProperties((cudaDeviceProp *)std::malloc(sizeof(cudaDeviceProp) - 8), 0);
    } else if (!std::strcmp(which, "short-source")) {
        cudaMemcpy(d, small, 200000, cudaMemcpyHostToDevice);
    } else if (!std::strcmp(which, "short-target")) {
        cudaMemcpyAsync(small, d, 200000, cudaMemcpyDeviceToHost, s);
        cudaStreamSynchronize(s);
    } else if (!std::strcmp(which, "freed-too-early")) {
        // Page-locked, so that the copy is still to come when the memory goes. The schedule is lazy.
        cudaHostRegister(small, 199999, 0);
        cudaMemcpyAsync(d, small, 199999, cudaMemcpyHostToDevice, s);
        std::free(small);
        cudaStreamSynchronize(s);
        small = nullptr;
    } else if (!std::strcmp(which, "device-pointer")) {
        d[0] = 1;
    } else if (!std::strcmp(which, "leak")) {
        small = nullptr;
    }
    std::free(small);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return mistake(argv[1]);
    versions_and_devices();
    for (int round = 0; round < 3; ++round) {
        streams_and_events();
        copies();
        memory();
        pools();
        graphs();
        virtual_memory();
        stream_calls();
    }
    OK(cudaSetDevice(1));
    OK(cudaDeviceReset());
    std::puts("every call answered");
    return 0;
}
