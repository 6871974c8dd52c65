// What happens to a sum before it is stored: zero-point terms, scales, bias, activation, output type.
//
//   integer sums first:  v = multiply · sum - row_a[m] · col_a[n] - row_b[m] · col_b[n]     (exact, 32-bit; a missing
//                        col_a or row_b is one)
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
template <>
__device__ __forceinline__ int from_float<int>(float v) { return int(v); }

// A call, not inlined: a hundred copies in a fragment's epilogue would not fit the instruction cache.
__device__ __noinline__ float activated(float v, int activation) {
    if (activation == GELU_TANH) return 0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
    return 0.5f * v * (1.0f + erff(v * 0.7071067811865476f));
}

// Eight neighbours of a vector, zero beyond ``count``; sixteen bytes at a time where the vector's length allows it.
template <typename T>
__device__ __forceinline__ void load8(const T* from, int count, bool wide, T (&v)[8]) {
    if (wide) {
        *reinterpret_cast<uint4*>(v) = __ldg(reinterpret_cast<const uint4*>(from));
        *reinterpret_cast<uint4*>(v + 4) = __ldg(reinterpret_cast<const uint4*>(from + 4));
    } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) v[k] = k < count ? from[k] : T(0);
    }
}

struct Epilogue {
    Result* out;
    const float *row_scale, *col_scale, *bias;
    const int *row_a, *col_a, *row_b, *col_b;
    int row_stride, col_stride, multiply, activation;
    int m, n;

    __device__ __forceinline__ float row(int r) const { return row_scale ? row_scale[r * row_stride] : 1.0f; }

    // What eight neighbouring columns bring, read once for all rows that a lane stores.
    struct Columns {
        float scale[8];
    };

    __device__ __forceinline__ void columns(int c, int count, bool wide, Columns& of) const {
        if constexpr (OUT != OUT_S32) {
            if (col_scale && col_stride) {
                load8(col_scale + c, count, wide, of.scale);
            } else {
                float one = col_scale ? col_scale[0] : 1.0f;
#pragma unroll
                for (int k = 0; k < 8; ++k) of.scale[k] = one;
            }
        }
    }

    // The results of eight neighbours of row r.
    template <typename Acc>
    __device__ __forceinline__ void eight(const Acc* sum, int r, int c, int count, bool wide, const Columns& of, Result (&out8)[8]) const {
        Acc v[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) v[k] = sum[k];
        if constexpr (std::is_same_v<Acc, int>) {
            if (multiply != 1) {
#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] *= multiply;
            }
            if (row_a) {
                int at = row_a[r], col[8] = {1, 1, 1, 1, 1, 1, 1, 1};
                if (col_a) load8(col_a + c, count, wide, col);
#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] -= at * col[k];
            }
            if (col_b) {
                int at = row_b ? row_b[r] : 1, col[8];
                load8(col_b + c, count, wide, col);
#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] -= at * col[k];
            }
        }
        if constexpr (OUT == OUT_S32) {
#pragma unroll
            for (int k = 0; k < 8; ++k) out8[k] = int(v[k]);
        } else {
            float y[8], scale = row(r);
#pragma unroll
            for (int k = 0; k < 8; ++k) y[k] = float(v[k]) * scale * of.scale[k];
            if (bias) {
                float add[8];
                load8(bias + c, count, wide, add);
#pragma unroll
                for (int k = 0; k < 8; ++k) y[k] += add[k];
            }
            if (activation) {
#pragma unroll
                for (int k = 0; k < 8; ++k) y[k] = activated(y[k], activation);
            }
#pragma unroll
            for (int k = 0; k < 8; ++k) out8[k] = from_float<Result>(y[k]);
        }
    }

    template <typename Acc>
    __device__ __forceinline__ void store(Acc sum, int r, int c) const {
        if (r >= m || c >= n) return;
        Acc eight_sums[8] = {sum};
        Result results[8];
        Columns of;
        columns(c, 1, false, of);
        eight(eight_sums, r, c, 1, false, of, results);
        out[size_t(r) * n + c] = results[0];
    }
};

#define EPILOGUE_PARAMETERS                                                                                                      \
    Result *out, const float *row_scale, const float *col_scale, const float *bias, const int *row_a, const int *col_a,            \
        const int *row_b, const int *col_b, int row_stride, int col_stride, int multiply, int activation, int m, int n
#define EPILOGUE \
    Epilogue { out, row_scale, col_scale, bias, row_a, col_a, row_b, col_b, row_stride, col_stride, multiply, activation, m, n }

// Stores 16 rows × COLUMNS of a warp's fragment (registers FROM ... of ``d``, four to each 8 columns) by way of the warp's own
// 16 × COLUMNS words of shared memory. Straight from registers this would be thousands of instructions, more than the
// instruction cache holds; from shared memory it is a loop, and every lane writes eight outputs in a row.
template <int COLUMNS, int FROM, typename Acc, int COUNT>
__device__ __forceinline__ void store_fragment(const Epilogue& e, const Acc (&d)[COUNT], Acc* tile, int first_row, int first_column) {
    int lane = threadIdx.x & 31, q = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
        // Units of eight columns are swapped by row, so that the rows of half a warp lie in different banks.
        Acc* to = tile + q * COLUMNS + (j ^ (q & 3)) * 8 + t * 2;
        to[0] = d[FROM + 4 * j], to[1] = d[FROM + 4 * j + 1];
        to[8 * COLUMNS] = d[FROM + 4 * j + 2], to[8 * COLUMNS + 1] = d[FROM + 4 * j + 3];
    }
    __syncwarp();
    constexpr int kUnits = COLUMNS / 8;  // divides 32, so that a lane keeps its columns
    int unit = lane % kUnits, c = first_column + unit * 8, count = min(8, e.n - c);
    if (count <= 0) return;
    Epilogue::Columns of;
    bool wide = e.n % 8 == 0;
    e.columns(c, count, wide, of);
#pragma unroll 1
    for (int in_row = lane / kUnits; in_row < 16; in_row += 32 / kUnits) {
        int r = first_row + in_row;
        if (r >= e.m) break;
        const Acc* from = tile + in_row * COLUMNS + (unit ^ (in_row & 3)) * 8;
        Result* to = e.out + size_t(r) * e.n + c;
        union {
            Result value[8];
            uint4 piece[sizeof(Result) / 2];
        } u;
        e.eight(from, r, c, count, wide, of, u.value);
        if (wide) {
#pragma unroll
            for (int k = 0; k < sizeof(Result) / 2; ++k) reinterpret_cast<uint4*>(to)[k] = u.piece[k];
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k)
                if (k < count) to[k] = u.value[k];
        }
    }
}
