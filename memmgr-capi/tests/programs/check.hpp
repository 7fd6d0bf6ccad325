// What the programs check with: the first thing that does not hold ends the program, with its line and what the library says.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "memmgr.h"

#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            std::printf("line %d: %s; last error: %s\n", __LINE__, #condition, memmgr_last_error()); \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)

// The figures of a device's own pool.
inline memmgr_pool_stats stats_of(int device) {
    memmgr_pool_stats found{};
    CHECK(memmgr_device_stats(device, MEMMGR_BEST_FIT_POOL, &found, sizeof found) == MEMMGR_OK);
    return found;
}
