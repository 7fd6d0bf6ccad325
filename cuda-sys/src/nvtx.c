/* What the manager says to tools through NVTX: ranges in a timeline, and what memory is whose. NVTX is headers alone; without a
 * tool each call is a look at one pointer. No call may come before CUDA has been initialized: tools ask for that. */

#include <pthread.h>
#include <stddef.h>

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

static nvtxDomainHandle_t domain;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin(void) { domain = nvtxDomainCreateA("memmgr"); }

static nvtxDomainHandle_t the_domain(void) {
    pthread_once(&once, begin);
    return domain;
}

void memmgr_nvtx_push(const char *name, unsigned long long bytes) {
    nvtxEventAttributes_t attributes = {0};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = bytes;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    nvtxDomainRangePushEx(the_domain(), &attributes);
}

void memmgr_nvtx_pop(void) { nvtxDomainRangePop(the_domain()); }

/* Memory that is handed out in parts. Null if no tool wants to know. */
void *memmgr_nvtx_heap(const void *start, size_t size) {
    nvtxMemVirtualRangeDesc_t range = {0};
    range.size = size;
    range.ptr = start;
    nvtxMemHeapDesc_t heap = {0};
    heap.extCompatID = NVTX_EXT_COMPATID_MEM;
    heap.structSize = sizeof heap;
    heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    heap.typeSpecificDescSize = sizeof range;
    heap.typeSpecificDesc = &range;
    const nvtxMemHeapHandle_t handle = nvtxMemHeapRegister(the_domain(), &heap);
    return handle == NVTX_MEM_HEAP_HANDLE_NO_TOOL ? NULL : (void *)handle;
}

void memmgr_nvtx_heap_end(void *heap) { nvtxMemHeapUnregister(the_domain(), (nvtxMemHeapHandle_t)heap); }

/* A part of it that may be used. */
void memmgr_nvtx_region(void *heap, const void *start, size_t size) {
    nvtxMemVirtualRangeDesc_t range = {0};
    range.size = size;
    range.ptr = start;
    nvtxMemRegionsRegisterBatch_t regions = {0};
    regions.extCompatID = NVTX_EXT_COMPATID_MEM;
    regions.structSize = sizeof regions;
    regions.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    regions.heap = (nvtxMemHeapHandle_t)heap;
    regions.regionCount = 1;
    regions.regionDescElementSize = sizeof range;
    regions.regionDescElements = &range;
    nvtxMemRegionsRegister(the_domain(), &regions);
}

void memmgr_nvtx_region_end(const void *start) {
    nvtxMemRegionRef_t region;
    region.pointer = start;
    nvtxMemRegionsUnregisterBatch_t regions = {0};
    regions.extCompatID = NVTX_EXT_COMPATID_MEM;
    regions.structSize = sizeof regions;
    regions.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    regions.refCount = 1;
    regions.refElementSize = sizeof region;
    regions.refElements = &region;
    nvtxMemRegionsUnregister(the_domain(), &regions);
}
