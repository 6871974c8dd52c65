// The element types of tensors: float, __nv_bfloat16 and __half, to and from float.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) { return v; }
template <>
__device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

// A restored value as T: what is finite stays finite in __half.
template <typename T>
__device__ __forceinline__ T restored_as(float v) {
    if constexpr (std::is_same_v<T, __half>)
        if (fabsf(v) > 65504.0f && fabsf(v) < INFINITY) v = copysignf(65504.0f, v);
    return from_float<T>(v);
}

// The vector of two elements, which one instruction compares.
template <typename T>
struct PairOf;
template <>
struct PairOf<float> {
    using type = float2;
};
template <>
struct PairOf<__half> {
    using type = __half2;
};
template <>
struct PairOf<__nv_bfloat16> {
    using type = __nv_bfloat162;
};
