// A libcuda that launches nothing and says what it was given, with the structures of the real cuda.h.
//
// ``stub_current`` sets the context that is current, ``stub_waited`` is the stream that was waited for last.
// ``stub_parameters`` sets the sizes of every function's parameters, ``stub_fail`` what launches return then,
// ``stub_launch`` describes the last launch as JSON. A map is encoded as the arguments it is encoded from.
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOST 64
static size_t sizes[MOST], count;
static int failing, asked, unequal, waits;
static uint64_t current, waited;
static char said[1 << 16];

void stub_parameters(const size_t* of, size_t n) {
    memcpy(sizes, of, n * sizeof(size_t));
    count = n, asked = unequal = failing = waits = 0, said[0] = 0, current = waited = 0;
}
void stub_current(uint64_t context) { current = context; }
uint64_t stub_waited(void) { return waited; }
void stub_fail(int code) { failing = code; }
// From now on a launch reads its first parameter, waits and counts whether the last one is another.
void stub_wait(void) { waits = 1; }
int stub_unequal(void) { return unequal; }
int stub_asked(void) { return asked; }
const char* stub_launch(void) { return said; }

CUresult cuGetErrorString(CUresult code, const char** text) {
    *text = code == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
            : code == CUDA_ERROR_NOT_FOUND   ? "not found"
                                             : 0;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorName(CUresult code, const char** name) {
    *name = code == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
            : code == CUDA_ERROR_NOT_FOUND   ? "CUDA_ERROR_NOT_FOUND"
                                             : 0;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = (CUcontext)current;
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
    if (failing) return failing;
    waited = (uint64_t)stream;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    *module = (CUmodule)0x700000000010;
    return memcmp(image, "cubin", 5) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    if (module != (CUmodule)0x700000000010) return CUDA_ERROR_INVALID_VALUE;
    *function = (CUfunction)0x700000000020;
    return strcmp(name, "absent") ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
    if (function != (CUfunction)0x700000000020 || index >= count) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0, *size = sizes[index];
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    bool shared = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    if (function != (CUfunction)0x700000000020 || !shared || value > 232448) return CUDA_ERROR_INVALID_VALUE;
    ++asked;
    return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    if ((uintptr_t)map % 64 || box[1] > 256) return CUDA_ERROR_INVALID_VALUE;
    uint64_t numbers[16] = {(uint64_t)address, type, rank, dims[0], dims[1], strides[0], box[0], box[1],
                            steps[0], steps[1], interleave, swizzle, promotion, fill, 0, 0};
    memcpy(map, numbers, sizeof *map);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
    if (function != (CUfunction)0x700000000020 || extra) return CUDA_ERROR_INVALID_VALUE;
    if (failing) return failing;
    if (waits) {
        uint64_t first, last;
        memcpy(&first, parameters[0], 8);
        usleep(200);
        memcpy(&last, parameters[count - 1], 8);
        unequal += first != last || config->gridDimX != first;
        return CUDA_SUCCESS;
    }
    char* to = said;
    to += sprintf(to, "{\"grid\": [%u, %u, %u]", config->gridDimX, config->gridDimY, config->gridDimZ);
    to += sprintf(to, ", \"block\": [%u, %u, %u]", config->blockDimX, config->blockDimY, config->blockDimZ);
    to += sprintf(to, ", \"shared\": %u, \"stream\": %lu, \"attributes\": {", config->sharedMemBytes,
                  (unsigned long)config->hStream);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const CUlaunchAttribute* of = config->attrs + i;
        if (i) to += sprintf(to, ", ");
        if (of->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            to += sprintf(to, "\"cluster\": [%u, %u, %u]", of->value.clusterDim.x, of->value.clusterDim.y,
                          of->value.clusterDim.z);
        else if (of->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            to += sprintf(to, "\"early\": %d", of->value.programmaticStreamSerializationAllowed);
        else
            to += sprintf(to, "\"unknown\": %d", (int)of->id);
    }
    to += sprintf(to, "}, \"parameters\": [");
    for (size_t i = 0; i < count; ++i) {
        to += sprintf(to, "%s\"", i ? ", " : "");
        for (size_t b = 0; b < sizes[i]; ++b) to += sprintf(to, "%02x", ((unsigned char*)parameters[i])[b]);
        to += sprintf(to, "\"");
    }
    to += sprintf(to, "], \"beyond\": [");
    for (size_t i = 0; i < count; ++i) {
        size_t aligned = sizes[i] >= 128 ? 64 : sizes[i] > 8 ? 8 : sizes[i];
        to += sprintf(to, "%s%d", i ? ", " : "", (int)((uintptr_t)parameters[i] % aligned));
    }
    sprintf(to, "]}");
    return CUDA_SUCCESS;
}
