/* What a pair of calls through the C interface takes, by how the stream is named. A benchmark: it tests nothing. */

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "memmgr.h"

int cudaStreamCreate(CUstream_st **stream);
int cudaStreamDestroy(CUstream_st *stream);

enum { REGISTERED, RAW_KNOWN, RAW, DEFAULT, NONE, KINDS };

static const char *const names[KINDS] = {
    "registered stream", "raw stream that is registered", "raw stream", "default stream", "no stream",
};

static CUstream_st *stream;
static memmgr_stream_t handle;

static void pair(int kind, size_t size) {
    void *block = NULL;
    memmgr_status status = MEMMGR_OK;
    switch (kind) {
    case REGISTERED:
        status = memmgr_allocate_device_on_registered(size, handle, &block);
        if (status == MEMMGR_OK) status = memmgr_free_device_on_registered(block, handle);
        break;
    case NONE:
        status = memmgr_allocate_device(size, &block);
        if (status == MEMMGR_OK) status = memmgr_free_device(block);
        break;
    default: {
        CUstream_st *raw = kind == DEFAULT ? NULL : stream;
        status = memmgr_allocate_device_on(size, raw, &block);
        if (status == MEMMGR_OK) status = memmgr_free_device_on(block, raw);
    }
    }
    if (status != MEMMGR_OK) {
        printf("%s: %s\n", names[kind], memmgr_last_error());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_size(const void *left, const void *right) {
    const double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

int main(void) {
    enum { PASSES = 9, PAIRS = 20000 };
    printf("memmgr %s, backend: %s; ns per pair of 4 KiB, median of %d passes\n", memmgr_version(), memmgr_backend(), PASSES);
    if (cudaStreamCreate(&stream) != 0) return 1;
    for (int kind = 0; kind < KINDS; ++kind) {
        const int known = kind == REGISTERED || kind == RAW_KNOWN;
        if (known && memmgr_stream_register(stream, &handle) != MEMMGR_OK) return 1;
        for (int i = 0; i < 1000; ++i) pair(kind, 4096);
        double times[PASSES];
        for (int pass = 0; pass < PASSES; ++pass) {
            const double begin = now();
            for (int i = 0; i < PAIRS; ++i) pair(kind, 4096);
            times[pass] = (now() - begin) / PAIRS;
        }
        qsort(times, PASSES, sizeof *times, by_size);
        printf("%-30s %8.1f  (%.1f .. %.1f)\n", names[kind], times[PASSES / 2], times[0], times[PASSES - 1]);
        if (known) memmgr_stream_release(handle);
    }
    return cudaStreamDestroy(stream);
}
