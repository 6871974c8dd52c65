// The stored scale and zero point of a block whose range is known.
//
// -D: CODEC, MAPPING, SCALE, SCALE_RULE, SMALLEST_SCALE.
#pragma once
#include "scale.cuh"

using Q = CODEC;
using ScaleCodec = SCALE;

// As tensor_range.cu has left it in ``amax``: the largest -x and x, the tensor scale and its reciprocal.
__device__ __forceinline__ TensorScale tensor_scale_from(const float* amax) {
    if constexpr (SCALE_RULE == TWO_LEVEL) return {amax[2], amax[3]};
    return {};
}

// The scale and zero point of a cell that spans [lo, hi]; stored by the thread for which ``write`` holds.
__device__ __forceinline__ float settle(float lo, float hi, TensorScale tensor_scale, void* scales,
                                        int8_t* zeros, uint64_t cell, bool write, float& zero) {
    Scale scale = scale_for<Q, ScaleCodec>(MAPPING, SCALE_RULE, SMALLEST_SCALE, lo, hi, tensor_scale);
    zero = kAsymmetric ? zero_point_of<Q>(lo, scale.step) : 0.0f;
    if (write && SCALE_RULE != CAST) {
        store_scale<ScaleCodec>(scales, cell, scale.code);
        if constexpr (kAsymmetric) zeros[cell] = int8_t(zero);
    }
    return scale.step;
}
