// What is joined to a product of a network's step, so that a block is five launches:
//
//   before   the norm: X is h · g, unscaled, and a row's outputs are multiplied by 1 / rms(h), from sums
//            of squares that the product before stored (no atomics: the same bits each time)
//   after    the residual: h += Y; X of the next product is h · g, and h's squares are summed for it; or
//            the gate: SiLU(Y of the gate) · (Y of up), whose rows alternate in runs of 32
//
// All of it is float32 until h, X or Y are stored. Loads of what kernels just before this one wrote bypass
// L1.
#pragma once
#include "epilogue.cuh"

#if STEP
#define STEP_PARAMETER , const __grid_constant__ StepTerms step
#else
#define STEP_PARAMETER
#endif

struct StepTerms {
    const float* squares;       // [M][slots] of h, whose norm is before this product; no slots: no norm
    __nv_bfloat16* state;       // h [M, N], to which Y is added; null: no residual
    const __nv_bfloat16* norm;  // g [N] of the norm after
    float* own_squares;         // [M][blocks of rows of W] of the new h
    const uint8_t *next, *later;  // what kernels after this one read first
    int slots;
    float share, epsilon;  // 1 / K; of the norm before
    int gate, next_bytes, later_bytes;

    // 1 / rms of a token's h, by few registers.
    __device__ __forceinline__ float rstd(int token) const {
        const float* from = squares + token * slots;
        float sum = 0.0f;
        int i = 0;
#pragma unroll 2
        for (; slots % 4 == 0 && i < slots; i += 4) {
            float4 four = __ldcg(reinterpret_cast<const float4*>(from + i));
            sum += (four.x + four.y) + (four.z + four.w);
        }
        for (; i < slots; ++i) sum += __ldcg(from + i);
        return slots ? rsqrtf(fmaf(sum, share, epsilon)) : 1.0f;
    }
};

// Asks for this CTA's share of some bytes to be brought into L2; by one thread.
__device__ __forceinline__ void prefetch_share(const uint8_t* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    constexpr int kPiece = 8192;
    for (int at = blockIdx.x * kPiece; at < bytes; at += gridDim.x * kPiece)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from + at),
                     "r"(min(kPiece, bytes - at))
                     : "memory");
#endif
}

struct EightHalves {
    __nv_bfloat16 value[8];
};

// Eight outputs of a thread: the UNITS threads of a token lie side by side in a warp, and all lanes come
// here.
template <int UNITS>
struct StepStore {
    const StepTerms& step;
    const Epilogue& e;
    int column, slot, slots;
    uint4 held = {}, gains = {};
    float bias[8] = {};

    __device__ __forceinline__ StepStore(const StepTerms& terms, const Epilogue& epilogue, int first,
                                         int own_slot, int own_slots)
        : step(terms), e(epilogue), column(first), slot(own_slot), slots(own_slots) {
        if (column >= e.n) return;
        if (e.bias) load_vector(e.bias + column, bias);
        if (step.state) gains = *reinterpret_cast<const uint4*>(step.norm + column);
    }

    // h of the next token to store, while other threads still add.
    __device__ __forceinline__ void load(int token) {
        if (step.state && token < e.m && column < e.n)
            held = __ldcg(reinterpret_cast<const uint4*>(step.state + size_t(token) * e.n + column));
    }

    __device__ __forceinline__ void operator()(const float (&v)[8], float rstd, const float (&scales)[8],
                                               int token) const {
        bool inside = token < e.m && column < e.n;
        float y[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) y[k] = fmaf(v[k], rstd * scales[k], bias[k]);
        union {
            EightHalves halves;
            uint4 chunk;
        } out, sum, gain;
        size_t at = size_t(token) * e.n + column;
        if (step.gate) {
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                float up = __shfl_down_sync(~0u, y[k], 4);
                out.halves.value[k] = __float2bfloat16(y[k] / (1.0f + __expf(-y[k])) * up);
            }
            inside &= threadIdx.x % 8 < 4;
            at = size_t(token) * (e.n / 2) + column / 64 * 32 + column % 64;
        } else if (step.state) {
            sum.chunk = held, gain.chunk = gains;
            float square = 0.0f;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                sum.halves.value[k] = __float2bfloat16(__bfloat162float(sum.halves.value[k]) + y[k]);
                float h = __bfloat162float(sum.halves.value[k]);
                square = fmaf(h, h, square);
                out.halves.value[k] = __float2bfloat16(h * __bfloat162float(gain.halves.value[k]));
            }
            if (!inside) square = 0.0f;
#pragma unroll
            for (int offset = 1; offset < UNITS; offset *= 2)
                square += __shfl_xor_sync(~0u, square, offset);
            if (inside) *reinterpret_cast<uint4*>(step.state + at) = sum.chunk;
            if (token < e.m && threadIdx.x % UNITS == 0) step.own_squares[token * slots + slot] = square;
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k) out.halves.value[k] = __float2bfloat16(y[k]);
        }
        if (inside) *reinterpret_cast<uint4*>(reinterpret_cast<__nv_bfloat16*>(e.out) + at) = out.chunk;
    }
};
