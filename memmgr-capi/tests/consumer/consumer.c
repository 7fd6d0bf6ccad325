/* A program of somebody else's: it knows the installed header alone. */

#include <memmgr.h>
#include <stdio.h>

int main(void) {
    void *host = NULL, *device = NULL;
    if (memmgr_allocate_pinned(1000, &host) != MEMMGR_OK || memmgr_allocate_device(1000, &device) != MEMMGR_OK) {
        puts(memmgr_last_error());
        return 1;
    }
    if (memmgr_copy_to_device_async(device, host, 1000, NULL) != MEMMGR_OK) return 2;
    if (memmgr_free_device(device) != MEMMGR_OK || memmgr_free_pinned(host) != MEMMGR_OK) return 3;
    printf("memmgr %s, backend: %s\n", memmgr_version(), memmgr_backend());
    return memmgr_check() != MEMMGR_OK;
}
