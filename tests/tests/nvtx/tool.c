/* A tool for the tests, which NVTX loads: writes a line for each call to the file that MEMMGR_TEST_TOOL names, and keeps the books
 * of a sub-allocator as a checker of memory does. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

static FILE *out;

static void open_file(void) {
    if (out == NULL) {
        out = fopen(getenv("MEMMGR_TEST_TOOL"), "a");
        if (out == NULL) abort();
        setvbuf(out, NULL, _IOLBF, 4096);
    }
}

/* Memory */

static nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t domain, const nvtxMemHeapDesc_t *heap) {
    const nvtxMemVirtualRangeDesc_t *range = heap->typeSpecificDesc;
    const int sound = domain != NULL && heap->extCompatID == NVTX_EXT_COMPATID_MEM &&
                      heap->structSize == sizeof *heap && heap->usage == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR &&
                      heap->type == NVTX_MEM_TYPE_VIRTUAL_ADDRESS && heap->typeSpecificDescSize == sizeof *range;
    fprintf(out, "%s %zu %zu\n", sound ? "heap" : "unsound", (size_t)range->ptr, range->size);
    return (nvtxMemHeapHandle_t)range->ptr;
}

static void heap_unregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t heap) {
    (void)domain;
    fprintf(out, "heap-end %zu 0\n", (size_t)heap);
}

static void regions_register(nvtxDomainHandle_t domain, const nvtxMemRegionsRegisterBatch_t *batch) {
    const nvtxMemVirtualRangeDesc_t *range = batch->regionDescElements;
    const int sound = domain != NULL && batch->structSize == sizeof *batch && batch->regionCount == 1 &&
                      batch->regionType == NVTX_MEM_TYPE_VIRTUAL_ADDRESS && batch->heap != NULL;
    fprintf(out, "%s %zu %zu\n", sound ? "region" : "unsound", (size_t)range->ptr, range->size);
}

static void regions_unregister(nvtxDomainHandle_t domain, const nvtxMemRegionsUnregisterBatch_t *batch) {
    const int sound = domain != NULL && batch->structSize == sizeof *batch && batch->refCount == 1 &&
                      batch->refType == NVTX_MEM_REGION_REF_TYPE_POINTER;
    fprintf(out, "%s %zu 0\n", sound ? "region-end" : "unsound", (size_t)batch->refElements[0].pointer);
}

int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module) {
    open_file();
    if (module->moduleId != NVTX_EXT_MODULEID_MEM) return 0;
    intptr_t *slots = module->segments[0].functionSlots;
    slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = (intptr_t)heap_register;
    slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = (intptr_t)heap_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = (intptr_t)regions_register;
    slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = (intptr_t)regions_unregister;
    return 1;
}

/* Ranges */

static nvtxDomainHandle_t domain_create(const char *name) {
    fprintf(out, "domain-%s 0 0\n", name);
    return (nvtxDomainHandle_t)1;
}

static int range_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
    (void)domain;
    char name[64];
    snprintf(name, sizeof name, "%s", attributes->message.ascii);
    for (char *at = name; *at; ++at)
        if (*at == ' ') *at = '-';
    fprintf(out, "push-%s 0 %llu\n", name, (unsigned long long)attributes->payload.ullValue);
    return 0;
}

static int range_pop(nvtxDomainHandle_t domain) {
    (void)domain;
    fprintf(out, "pop 0 0\n");
    return 0;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    open_file();
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)range_push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)range_pop;
    return 1;
}
