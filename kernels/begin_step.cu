// The first kernel of a step: the embedding h of each text's token, X = h · g of the first norm, and the sum
// of the squares of h, as a product with a residual leaves them (step.cuh). One CTA a text.
#include <cuda_bf16.h>

#include <cstdint>

#include "dependent.cuh"

constexpr int kThreads = 256;

// ids [texts]; embeddings [tokens, k], norm [k], k a multiple of 8; state and x [texts, k]; squares [texts].
extern "C" __global__ void __launch_bounds__(kThreads)
    begin_step(const int64_t* ids, const __nv_bfloat16* embeddings, const __nv_bfloat16* norm,
               __nv_bfloat16* state, __nv_bfloat16* x, float* squares, int k) {
    let_dependents_launch();
    const __nv_bfloat16* from = embeddings + size_t(ids[blockIdx.x]) * k;
    float square = 0.0f;
    for (int i = threadIdx.x * 8; i < k; i += kThreads * 8) {
        union Eight {
            uint4 chunk;
            __nv_bfloat16 value[8];
            __device__ Eight() {}
        } h, gain, out;
        h.chunk = *reinterpret_cast<const uint4*>(from + i);
        gain.chunk = *reinterpret_cast<const uint4*>(norm + i);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float one = __bfloat162float(h.value[j]);
            square = fmaf(one, one, square);
            out.value[j] = __float2bfloat16(one * __bfloat162float(gain.value[j]));
        }
        *reinterpret_cast<uint4*>(state + size_t(blockIdx.x) * k + i) = h.chunk;
        *reinterpret_cast<uint4*>(x + size_t(blockIdx.x) * k + i) = out.chunk;
    }
    __shared__ float of_warp[kThreads / 32];
    for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = square;
    __syncthreads();
    if (threadIdx.x == 0) {
        square = 0.0f;
        for (int warp = 0; warp < kThreads / 32; ++warp) square += of_warp[warp];
        squares[blockIdx.x] = square;
    }
}
