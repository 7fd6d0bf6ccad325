/* The C interface, called from C: what succeeds, what is refused, and random sequences of both. Prints what it found. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memmgr.h"

/* Of the CUDA runtime; its header is not needed for these. */
int cudaStreamCreate(CUstream_st **stream);
int cudaStreamDestroy(CUstream_st *stream);
int cudaStreamSynchronize(CUstream_st *stream);
int cudaPeekAtLastError(void);

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            printf("line %d: %s; last error: %s\n", __LINE__, #condition, memmgr_last_error()); \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* What the first bytes of a file are. */
static int begins(const char *path, const char *with, size_t size) {
    char there[16] = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    const size_t got = fread(there, 1, sizeof there, file);
    fclose(file);
    return got >= size && memcmp(there, with, size) == 0;
}

static void snapshots(void) {
    const char *path = "snapshot-of-calls";
    void *block = NULL;
    CHECK(memmgr_allocate_device(1000, &block) == MEMMGR_OK);
    CHECK(memmgr_snapshot(path, MEMMGR_SNAPSHOT_PICKLE) == MEMMGR_OK && begins(path, "\x80\x04}(", 4));
    CHECK(memmgr_snapshot(path, MEMMGR_SNAPSHOT_JSON) == MEMMGR_OK && begins(path, "{\"segments\":[{", 14));
    CHECK(memmgr_snapshot(path, 2) == MEMMGR_INVALID_ARGUMENT && begins(path, "{", 1));
    CHECK(memmgr_snapshot(NULL, MEMMGR_SNAPSHOT_JSON) == MEMMGR_INVALID_ARGUMENT);
    CHECK(memmgr_snapshot("no/such/folder/file", MEMMGR_SNAPSHOT_JSON) == MEMMGR_INVALID_ARGUMENT);
    CHECK(strstr(memmgr_last_error(), "no/such/folder/file cannot be written") != NULL);
    CHECK(remove(path) == 0 && memmgr_free_device(block) == MEMMGR_OK);
}

static void what_succeeds(void) {
    CHECK(memmgr_set_pinned_pool_size(8u << 20) == MEMMGR_OK);
    CHECK(memmgr_set_device_pool_size(16u << 20) == MEMMGR_OK);
    const size_t size = 1000003;
    void *host = NULL, *back = NULL, *device = NULL, *other = NULL;
    CHECK(memmgr_allocate_pinned(size, &host) == MEMMGR_OK && host != NULL);
    CHECK(memmgr_allocate_pinned(size, &back) == MEMMGR_OK && back != NULL);
    for (size_t i = 0; i < size; ++i) ((unsigned char *)host)[i] = (unsigned char)(i * 7 % 251);
    memset(back, 0, size);

    CUstream_st *stream = NULL;
    CHECK(cudaStreamCreate(&stream) == 0);
    memmgr_stream_t handle = 0;
    CHECK(memmgr_stream_register(stream, &handle) == MEMMGR_OK && handle != 0);

    CHECK(memmgr_allocate_device_on(size, stream, &device) == MEMMGR_OK && device != NULL);
    CHECK(memmgr_allocate_device_on_registered(size, handle, &other) == MEMMGR_OK && other != NULL);
    CHECK(memmgr_copy_to_device_async(device, host, size, stream) == MEMMGR_OK);
    CHECK(memmgr_copy_on_device_async_registered(other, device, size, handle) == MEMMGR_OK);
    CHECK(memmgr_copy_to_host_async_registered(back, other, size, handle) == MEMMGR_OK);
    CHECK(memmgr_record_use((char *)device + 17, stream) == MEMMGR_OK);
    CHECK(cudaStreamSynchronize(stream) == 0);
    CHECK(memcmp(host, back, size) == 0);
    CHECK(memmgr_memset_async(other, 0x1ab, 1000, stream) == MEMMGR_OK);
    CHECK(memmgr_copy_to_host_async(back, other, 1000, stream) == MEMMGR_OK);
    CHECK(cudaStreamSynchronize(stream) == 0);
    CHECK(((unsigned char *)back)[999] == 0xab);

    memmgr_pool_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK(memmgr_device_stats(0, MEMMGR_BEST_FIT_POOL, &stats, sizeof stats) == MEMMGR_OK);
    CHECK(stats.reserved == 16u << 20 && stats.live_blocks == 2 && stats.in_use >= 2 * size);
    /* A program that was built with fewer figures gets those. */
    memset(&stats, 0xee, sizeof stats);
    CHECK(memmgr_pinned_stats(&stats, sizeof(size_t)) == MEMMGR_OK);
    CHECK(stats.in_use >= 2 * size && stats.reserved == (size_t)0xeeeeeeeeeeeeeeee);

    CHECK(memmgr_free_device_on(device, stream) == MEMMGR_OK);
    CHECK(memmgr_free_device_on_registered(other, handle) == MEMMGR_OK);
    CHECK(memmgr_free_pinned(host) == MEMMGR_OK && memmgr_free_pinned(back) == MEMMGR_OK);
    CHECK(memmgr_stream_release(handle) == MEMMGR_OK);
    CHECK(cudaStreamDestroy(stream) == 0);

    /* The default stream, raw. */
    CHECK(memmgr_allocate_device_on(size, NULL, &device) == MEMMGR_OK);
    CHECK(memmgr_memset_async(device, 1, size, NULL) == MEMMGR_OK);
    CHECK(memmgr_free_device_on(device, NULL) == MEMMGR_OK);
    /* No stream. */
    CHECK(memmgr_allocate_device(size, &device) == MEMMGR_OK && memmgr_free_device(device) == MEMMGR_OK);
    CHECK(memmgr_allocate_device_at(0, size, &device) == MEMMGR_OK && memmgr_free_device(device) == MEMMGR_OK);

    for (int mode = 2; mode >= 0; --mode) {
        memmgr_device_allocator_mode effective;
        CHECK(memmgr_set_device_allocator_mode(mode) == MEMMGR_OK);
        CHECK((int)memmgr_requested_device_allocator_mode() == mode);
        CHECK(memmgr_effective_device_allocator_mode(&effective) == MEMMGR_OK && (int)effective == mode);
        CHECK(memmgr_allocate_device_on(size, NULL, &device) == MEMMGR_OK);
        CHECK(memmgr_free_device_on(device, NULL) == MEMMGR_OK);
    }
    int32_t supported = -1;
    CHECK(memmgr_supports_async_device_allocator(&supported) == MEMMGR_OK && supported == 1);
}

static int asked = 0;

static int32_t hook(size_t requested, const char *text, void *user) {
    ++asked;
    CHECK(requested > 0 && strstr(text, "requested") != NULL && user == &asked);
    return 0;
}

static int asked_again = 0;

/* It asks for memory itself, of which there is none either. */
static int32_t hook_that_asks(size_t requested, const char *text, void *user) {
    (void)text;
    void *block = NULL;
    ++asked_again;
    CHECK(memmgr_allocate_device(requested, &block) == MEMMGR_OUT_OF_MEMORY && block == NULL && user == NULL);
    return 0;
}

static void what_is_refused(void) {
    void *block = &block;
    CHECK(memmgr_allocate_device(0, &block) == MEMMGR_OK && block == NULL);
    CHECK(memmgr_allocate_pinned(16, NULL) == MEMMGR_INVALID_ARGUMENT);
    CHECK(strstr(memmgr_last_error(), "null") != NULL && memmgr_last_cuda_error() == 1);
    block = &block;
    CHECK(memmgr_allocate_pinned(SIZE_MAX, &block) == MEMMGR_INVALID_SIZE && block == NULL);
    int local = 0;
    CHECK(memmgr_free_device(&local) == MEMMGR_UNKNOWN_POINTER);
    CHECK(memmgr_free_pinned(&local) == MEMMGR_UNKNOWN_POINTER);
    CHECK(memmgr_free_device(NULL) == MEMMGR_OK && memmgr_free_pinned(NULL) == MEMMGR_OK);
    CHECK(memmgr_allocate_device(100, &block) == MEMMGR_OK);
    CHECK(memmgr_free_device((char *)block + 16) == MEMMGR_UNKNOWN_POINTER);
    CHECK(memmgr_free_device(block) == MEMMGR_OK && memmgr_free_device(block) == MEMMGR_DOUBLE_FREE);
    CHECK(strstr(memmgr_last_error(), "double free") != NULL);
    CHECK(memmgr_allocate_device_at(99, 100, &block) == MEMMGR_WRONG_DEVICE);
    CHECK(memmgr_set_device_allocator_mode(3) == MEMMGR_INVALID_ARGUMENT);
    CHECK(memmgr_set_device_pool_size(1 << 20) == MEMMGR_ALREADY_INITIALIZED);
    CHECK(memmgr_allocate_device_on_registered(8, 12345, &block) == MEMMGR_INVALID_ARGUMENT);
    CHECK(strstr(memmgr_last_error(), "memmgr_stream_register") != NULL);
    CHECK(memmgr_stream_release(0) == MEMMGR_OK && memmgr_stream_release(77) == MEMMGR_INVALID_ARGUMENT);
    CHECK(memmgr_device_stats(0, 9, NULL, 0) == MEMMGR_INVALID_ARGUMENT);
    memmgr_pool_stats stats;
    size_t waste = 0;
    CHECK(memmgr_device_stats(9, MEMMGR_BEST_FIT_POOL, &stats, sizeof stats) == MEMMGR_WRONG_DEVICE);
    CHECK(memmgr_external_waste(-2, &waste) == MEMMGR_WRONG_DEVICE);
    CHECK(memmgr_external_waste(77, &waste) == MEMMGR_WRONG_DEVICE);
    CHECK(memmgr_external_waste(-1, &waste) == MEMMGR_OK && memmgr_external_waste(0, &waste) == MEMMGR_OK);

    /* A handle of a slot that was used again is known to be old. */
    memmgr_stream_t first = 0, second = 0;
    CHECK(memmgr_stream_register(NULL, &first) == MEMMGR_OK && memmgr_stream_release(first) == MEMMGR_OK);
    CHECK(memmgr_stream_register(NULL, &second) == MEMMGR_OK && second != first);
    CHECK(memmgr_allocate_device_on_registered(8, first, &block) == MEMMGR_INVALID_ARGUMENT);
    CHECK(memmgr_stream_release(first) == MEMMGR_INVALID_ARGUMENT);
    CHECK(memmgr_stream_release(second) == MEMMGR_OK);

    CHECK(memmgr_set_out_of_memory_hook(hook, &asked) == MEMMGR_OK);
    CHECK(memmgr_set_device_pool_limit((size_t)18 << 30) == MEMMGR_OK);
    /* What can never fit is not asked about. */
    CHECK(memmgr_allocate_device((size_t)1 << 46, &block) == MEMMGR_LIMIT_EXCEEDED && block == NULL);
    CHECK(asked == 0 && memmgr_last_cuda_error() == 2);
    void *most = NULL;
    CHECK(memmgr_allocate_device((size_t)16 << 30, &most) == MEMMGR_OK);
    CHECK(memmgr_allocate_device((size_t)16 << 30, &block) == MEMMGR_OUT_OF_MEMORY && asked > 0);
    CHECK(memmgr_set_out_of_memory_hook(hook_that_asks, NULL) == MEMMGR_OK);
    CHECK(memmgr_allocate_device((size_t)16 << 30, &block) == MEMMGR_OUT_OF_MEMORY && asked_again == 1);
    CHECK(memmgr_free_device(most) == MEMMGR_OK && memmgr_trim(NULL) == MEMMGR_OK);
    CHECK(memmgr_set_out_of_memory_hook(NULL, NULL) == MEMMGR_OK);
    CHECK(memmgr_set_device_pool_limit(32u << 20) == MEMMGR_OK);
    CHECK(memmgr_allocate_device(64u << 20, &block) == MEMMGR_LIMIT_EXCEEDED);
    CHECK(memmgr_set_device_pool_limit(SIZE_MAX) == MEMMGR_OK);

    CHECK(strcmp(memmgr_status_name(MEMMGR_DOUBLE_FREE), "MEMMGR_DOUBLE_FREE") == 0);
    CHECK(strcmp(memmgr_status_name(-1), "unknown status") == 0);
    memmgr_clear_last_error();
    CHECK(*memmgr_last_error() == 0 && memmgr_last_cuda_error() == 0);
}

static uint64_t state = 42;

static uint64_t below(uint64_t n) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % n;
}

/* Live blocks, freed ones, null and pointers that never were any, in one bag, with every call. */
static void random_sequences(int sequences) {
    enum { ROOM = 24, STREAMS = 3 };
    CUstream_st *streams[STREAMS + 1] = {NULL};
    memmgr_stream_t handles[STREAMS + 1] = {0};
    for (int i = 0; i < STREAMS; ++i) {
        CHECK(cudaStreamCreate(&streams[i]) == 0);
        /* All but the first, which is known by its raw handle alone. */
        if (i > 0) CHECK(memmgr_stream_register(streams[i], &handles[i]) == MEMMGR_OK);
    }
    unsigned long long counts[MEMMGR_INTERNAL_ERROR + 1] = {0};
    for (int sequence = 0; sequence < sequences; ++sequence) {
        struct { char *at; size_t size; int pinned, stream; } live[ROOM];
        void *stale[ROOM];
        int lives = 0, stales = 0;
        for (int step = 0; step < 60; ++step) {
            memmgr_status status = MEMMGR_OK;
            const int stream = (int)below(STREAMS + 1), registered = (int)below(2);
            const size_t size = below(8) == 0 ? (size_t)below(3) - 1 : below(1 << 18);
            void *block = NULL;
            switch (below(10)) {
            case 0: case 1: case 2: {
                const int pinned = (int)below(3) == 0;
                if (lives == ROOM) break;
                status = pinned ? memmgr_allocate_pinned(size, &block)
                         : registered ? memmgr_allocate_device_on_registered(size, handles[stream], &block)
                                      : memmgr_allocate_device_on(size, streams[stream], &block);
                CHECK((status == MEMMGR_OK && size != 0) == (block != NULL));
                if (block == NULL) break;
                live[lives].at = block, live[lives].size = size;
                live[lives].pinned = pinned, live[lives].stream = stream, ++lives;
                break;
            }
            case 3: case 4: case 5: {
                if (lives == 0) break;
                const int which = (int)below((uint64_t)lives);
                char *at = live[which].at;
                status = live[which].pinned                 ? memmgr_free_pinned(at)
                         : registered && handles[live[which].stream] != 0
                             ? memmgr_free_device_on_registered(at, handles[live[which].stream])
                             : memmgr_free_device_on(at, streams[live[which].stream]);
                CHECK(status == MEMMGR_OK);
                stale[stales++ % ROOM] = at;
                live[which] = live[--lives];
                break;
            }
            case 6: {
                /* A freed pointer: its address may be a live block by now, which is not freed then. */
                if (stales == 0) break;
                void *at = stale[below((uint64_t)(stales < ROOM ? stales : ROOM))];
                int is_live = 0;
                for (int i = 0; i < lives; ++i) is_live |= live[i].at == at;
                if (is_live) break;
                status = registered ? memmgr_free_device(at) : memmgr_free_pinned(at);
                CHECK(status == MEMMGR_DOUBLE_FREE || status == MEMMGR_UNKNOWN_POINTER);
                break;
            }
            case 7: {
                void *foreign = below(2) ? (void *)&live[0] : (void *)(uintptr_t)(below(1u << 30) | 1);
                if (below(8) == 0) foreign = NULL;
                status = registered ? memmgr_free_device_on(foreign, streams[stream]) : memmgr_free_pinned(foreign);
                CHECK((status == MEMMGR_OK) == (foreign == NULL));
                break;
            }
            case 8: {
                if (lives == 0) break;
                const int which = (int)below((uint64_t)lives);
                if (live[which].pinned) {
                    status = memmgr_record_use(live[which].at + live[which].size / 2, streams[stream]);
                } else {
                    status = memmgr_memset_async(live[which].at, step, live[which].size, streams[live[which].stream]);
                }
                CHECK(status == MEMMGR_OK);
                break;
            }
            default:
                status = below(2) ? memmgr_allocate_device_on_registered(size, below(1u << 20) << 40, &block)
                                  : memmgr_stream_release(below(1u << 20) << 20 | 1);
                CHECK(status == MEMMGR_INVALID_ARGUMENT);
            }
            CHECK(status != MEMMGR_INTERNAL_ERROR);
            ++counts[status];
        }
        while (lives > 0) {
            --lives;
            CHECK((live[lives].pinned ? memmgr_free_pinned(live[lives].at)
                                      : memmgr_free_device_on(live[lives].at, streams[live[lives].stream])) == MEMMGR_OK);
        }
        if (sequence % 50 == 0) CHECK(memmgr_check() == MEMMGR_OK);
    }
    for (int i = 0; i < STREAMS; ++i) {
        CHECK(memmgr_stream_release(handles[i]) == MEMMGR_OK && cudaStreamDestroy(streams[i]) == 0);
    }
    for (int status = 0; status <= MEMMGR_INTERNAL_ERROR; ++status) {
        if (counts[status] > 0) printf("%s: %llu\n", memmgr_status_name(status), counts[status]);
    }
}

int main(int argc, char **argv) {
    const int sequences = argc > 1 ? atoi(argv[1]) : 1000;
    printf("memmgr %s, backend: %s\n", memmgr_version(), memmgr_backend());
    what_succeeds();
    what_is_refused();
    random_sequences(sequences);
    snapshots();
    size_t released = 0, live = 1;
    CHECK(memmgr_trim(NULL) == MEMMGR_OK);
    CHECK(memmgr_shutdown(&released, &live) == MEMMGR_OK && live == 0);
    CHECK(cudaPeekAtLastError() == 0);
    printf("%d random sequences, nothing lost\n", sequences);
    return 0;
}
