// What happens to a sum before it is stored: zero-point terms, scales, bias, activation, output type.
//
//   integer sums first:  v = multiply · sum - row_a[m] · col_a[n] - row_b[m] · col_b[n]     (exact, 32-bit)
//   then:                y = act(v · row_scale[m] · col_scale[n] + bias[n])
//
// Null pointers leave their step out; a stride of 0 reads one scale for all. OUT by -D: the output's type.
#pragma once
#include "element.cuh"

enum Out { OUT_BF16 = 0, OUT_F16 = 1, OUT_F32 = 2, OUT_S32 = 3 };
enum Activation { NONE_AFTER = 0, GELU_TANH = 1, GELU_EXACT = 2 };

template <int KIND>
struct OutType;
template <>
struct OutType<OUT_BF16> {
    using type = __nv_bfloat16;
};
template <>
struct OutType<OUT_F16> {
    using type = __half;
};
template <>
struct OutType<OUT_F32> {
    using type = float;
};
template <>
struct OutType<OUT_S32> {
    using type = int;
};
using Result = OutType<OUT>::type;

// A call, not inlined: a hundred copies in a fragment's epilogue would not fit the instruction cache.
__device__ __noinline__ float activated(float v, int activation) {
    if (activation == GELU_TANH) return 0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
    return 0.5f * v * (1.0f + erff(v * 0.7071067811865476f));
}

struct Epilogue {
    Result* out;
    const float *row_scale, *col_scale, *bias;
    const int *row_a, *col_a, *row_b, *col_b;
    int row_stride, col_stride, multiply, activation;
    int m, n;

    __device__ __forceinline__ float row(int r) const { return row_scale ? row_scale[r * row_stride] : 1.0f; }

    // ``scale`` is row(r), read once for a row's many columns.
    template <typename Acc>
    __device__ __forceinline__ Result at(Acc sum, int r, int c, float scale) const {
        if constexpr (std::is_same_v<Acc, int>) {
            sum *= multiply;
            if (row_a) sum -= row_a[r] * col_a[c];
            if (row_b) sum -= row_b[r] * col_b[c];
        }
        if constexpr (OUT == OUT_S32) {
            return int(sum);
        } else {
            float v = float(sum) * scale;
            if (col_scale) v *= col_scale[c * col_stride];
            if (bias) v += bias[c];
            if (activation) v = activated(v, activation);
            return from_float<Result>(v);
        }
    }

    template <typename Acc>
    __device__ __forceinline__ void store(Acc sum, int r, int c) const {
        if (r < m && c < n) out[size_t(r) * n + c] = at(sum, r, c, row(r));
    }
};

#define EPILOGUE_PARAMETERS                                                                                                      \
    Result *out, const float *row_scale, const float *col_scale, const float *bias, const int *row_a, const int *col_a,            \
        const int *row_b, const int *col_b, int row_stride, int col_stride, int multiply, int activation, int m, int n
#define EPILOGUE \
    Epilogue { out, row_scale, col_scale, bias, row_a, col_a, row_b, col_b, row_stride, col_stride, multiply, activation, m, n }

// Stores one row of a fragment: registers 4j + FROM and the next one as columns 8j + 2t and 8j + 2t + 1. Four lanes of a quad trade pairs of
// 16-bit results so that each stores sixteen bytes in a row.
template <int FROM, int COUNT, typename Acc>
__device__ __forceinline__ void store_row(const Epilogue& e, const Acc (&d)[COUNT], int r, int first) {
    constexpr int PAIRS = COUNT / 4;
    int t = threadIdx.x & 3;
    float scale = r < e.m ? e.row(r) : 1.0f;
    bool whole = e.n % 8 == 0 && sizeof(Result) == 2;
    if (whole) {
        if constexpr (sizeof(Result) == 2) {
#pragma unroll
            for (int j = 0; j < PAIRS; j += 4) {
                uint32_t w[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int c = first + (j + i) * 8 + t * 2;
                    Result pair[2] = {};
                    if (r < e.m && c < e.n) {
                        pair[0] = e.at(d[(j + i) * 4 + FROM], r, c, scale);
                        pair[1] = e.at(d[(j + i) * 4 + FROM + 1], r, c + 1, scale);
                    }
                    w[i] = *reinterpret_cast<uint32_t*>(pair);
                }
                bool odd = t & 1, high = t & 2;
                uint32_t s0 = odd ? w[0] : w[1], s1 = odd ? w[2] : w[3];
                s0 = __shfl_xor_sync(0xffffffffu, s0, 1), s1 = __shfl_xor_sync(0xffffffffu, s1, 1);
                if (odd)
                    w[0] = s0, w[2] = s1;
                else
                    w[1] = s0, w[3] = s1;
                s0 = high ? w[0] : w[2], s1 = high ? w[1] : w[3];
                s0 = __shfl_xor_sync(0xffffffffu, s0, 2), s1 = __shfl_xor_sync(0xffffffffu, s1, 2);
                if (high)
                    w[0] = s0, w[1] = s1;
                else
                    w[2] = s0, w[3] = s1;
                int c = first + (j + t) * 8;
                if (r < e.m && c < e.n) *reinterpret_cast<uint4*>(e.out + size_t(r) * e.n + c) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        int c = first + j * 8 + t * 2;
        if (r >= e.m) continue;
        Result* to = e.out + size_t(r) * e.n + c;
        if (sizeof(Result) == 4 && e.n % 2 == 0 && c < e.n) {
            Result pair[2] = {e.at(d[j * 4 + FROM], r, c, scale), e.at(d[j * 4 + FROM + 1], r, c + 1, scale)};
            *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2*>(pair);
            continue;
        }
        if (c < e.n) to[0] = e.at(d[j * 4 + FROM], r, c, scale);
        if (c + 1 < e.n) to[1] = e.at(d[j * 4 + FROM + 1], r, c + 1, scale);
    }
}
