// From stored codes and scales to values. -D: CODEC, MAPPING, SCALE, SCALE_RULE.
#pragma once
#include "blocks.cuh"
#include "memory.cuh"
#include "packing.cuh"
#include "scale.cuh"

using Q = CODEC;

// A codebook of 16 levels is looked up in shared memory, where the 16 words lie in 16 banks.
constexpr bool kTable = !Q::is_integer && Q::bits == 4 && Q::mantissa == 0;
__shared__ float table[kTable ? 16 : 1];

__device__ __forceinline__ void fill_table() {
    if constexpr (kTable) {
        if (threadIdx.x < 16) {
            float level = 0.0f;
#pragma unroll
            for (int i = 0; i < 16; ++i)
                level = threadIdx.x == i ? Q::decode(i & ((1u << Q::bits) - 1)) : level;
            table[threadIdx.x] = level;
        }
        __syncthreads();
    }
}

__device__ __forceinline__ float decode(uint32_t code) {
    if constexpr (kTable) return table[code];
#if __CUDA_ARCH__ >= 890
    uint32_t pair;
    if constexpr (std::is_same_v<Q, FloatCodec<4, 3, 7, FN>>) {
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(uint16_t(code)));
        return __half2float(__ushort_as_half(uint16_t(pair)));
    } else if constexpr (std::is_same_v<Q, FloatCodec<5, 2, 15, IEEE>>) {
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(uint16_t(code)));
        return __half2float(__ushort_as_half(uint16_t(pair)));
    }
#endif
    return Q::decode(code);
}

// Source of a cell's step and zero point.
struct Stored {
    const void* scales;
    const int8_t* zeros;
    const float* tensor_scale;

    __device__ __forceinline__ void read(uint64_t cell, float& step, float& zero) const {
        step = 1.0f;
        if constexpr (SCALE_RULE != CAST) step = SCALE::decode(load_scale<SCALE>(scales, cell));
        if constexpr (SCALE_RULE == TWO_LEVEL) step *= *tensor_scale;
        zero = kAsymmetric ? float(zeros[cell]) : 0.0f;
    }
};

__device__ __forceinline__ float restore(uint32_t code, float step, float zero) {
    float value = decode(code);
    if constexpr (kAsymmetric) value -= zero;
    return SCALE_RULE == CAST ? value : value * step;
}
