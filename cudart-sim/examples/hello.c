/* A C program on the simulated runtime. It needs no CUDA headers: the few functions it calls are declared here.
 *
 *   cargo rustc -p cudart-sim --release --crate-type staticlib
 *   cc cudart-sim/examples/hello.c target/release/libcudart_sim.a -lpthread -ldl -lm -o hello
 *   ./hello
 */
#include <stdio.h>
#include <string.h>

typedef struct CUstream_st *cudaStream_t;
int cudaGetDeviceCount(int *);
int cudaMemGetInfo(size_t *, size_t *);
int cudaStreamCreate(cudaStream_t *);
int cudaStreamSynchronize(cudaStream_t);
int cudaStreamDestroy(cudaStream_t);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemcpyAsync(void *, const void *, size_t, int, cudaStream_t);
int cudaMemsetAsync(void *, int, size_t, cudaStream_t);
const char *cudaGetErrorString(int);

#define CHECK(call)                                                        \
    do {                                                                   \
        int code_ = (call);                                                \
        if (code_ != 0) {                                                  \
            printf("%s: %s\n", #call, cudaGetErrorString(code_));          \
            return 1;                                                      \
        }                                                                  \
    } while (0)

int main(void) {
    int devices = 0;
    size_t free_bytes = 0, total = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    printf("%d device(s), %zu MiB\n", devices, total >> 20);

    char text[32] = "hello, device", back[32] = "";
    void *memory = NULL;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&memory, sizeof text));
    CHECK(cudaMemcpyAsync(memory, text, sizeof text, 1 /* host to device */, stream));
    CHECK(cudaMemsetAsync(memory, 'H', 1, stream));
    CHECK(cudaMemcpyAsync(back, memory, sizeof back, 2 /* device to host */, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("%s\n", back);
    CHECK(cudaFree(memory));
    CHECK(cudaStreamDestroy(stream));
    return strcmp(back, "Hello, device") != 0;
}
