// The epilogue: what happens to an accumulator before it is stored.
//
//   int32 accumulators first:  v = multiply · acc - row_a[m] · col_a[n] - row_b[m] · col_b[n]
//                              (exact; a missing col_a or row_b is one): zero points, or ±1 products from
//                              bit counts
//   then:                      y = activation(v · row_scale[m] · col_scale[n] + bias[n])
//
// A null pointer leaves its term out; a stride of 0 reads one scale for all. -D: OUT, the output's C++
// type.
#pragma once
#include <type_traits>

#include "element.cuh"
#include "vectors.cuh"

using Result = OUT;
constexpr bool kIntegerOutput = std::is_same_v<Result, int>;  // accumulators are stored unscaled
template <>
__device__ __forceinline__ int from_float<int>(float v) {
    return int(v);
}

enum class Activation { NONE, GELU_TANH, GELU };

__device__ __forceinline__ float activate(float v, int activation) {
    if (activation == int(Activation::GELU_TANH))
        return 0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
    return 0.5f * v * (1.0f + erff(v * 0.7071067811865476f));
}

// Vectors over columns are padded to a multiple of eight by the launcher, so that eight may be loaded at a
// time.
struct Epilogue {
    Result* out;
    const float *row_scale, *col_scale, *bias;
    const int *row_a, *col_a, *row_b, *col_b;
    int row_stride, col_stride, multiply, activation;
    int m, n;

    __device__ __forceinline__ float load_row_scale(int r) const {
        return row_scale ? row_scale[min(r, m - 1) * row_stride] : 1.0f;
    }

    // The scales of COUNT columns from c on.
    template <int COUNT>
    __device__ __forceinline__ void load_column_scales(int c, float (&scales)[COUNT]) const {
        if constexpr (!kIntegerOutput) {
            if (col_scale && col_stride) {
                load_vector(col_scale + c, scales);
            } else {
                float one = col_scale ? col_scale[0] : 1.0f;
#pragma unroll
                for (int k = 0; k < COUNT; ++k) scales[k] = one;
            }
        }
    }

    __device__ __forceinline__ bool has_integer_terms() const { return row_a || col_b; }

    // The integer terms of COUNT accumulators of row r from column c on.
    template <int COUNT>
    __device__ __forceinline__ void apply_integer_terms(int (&v)[COUNT], int r, int c) const {
        int a[COUNT], b[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) a[k] = 1, b[k] = 0;
        if (col_a) load_vector(col_a + c, a);
        if (col_b) load_vector(col_b + c, b);
        int a_of_row = row_a ? row_a[r] : 0, b_of_row = row_b ? row_b[r] : 1;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) v[k] = multiply * v[k] - a_of_row * a[k] - b_of_row * b[k];
    }

    // No bias, no activation, and rows of the output that start at multiples of 16 bytes.
    __device__ __forceinline__ bool only_scales() const { return !bias && !activation && n % 8 == 0; }

    // Accumulators of one row from column c on -> outputs.
    template <bool ONLY_SCALES, typename Acc, int COUNT>
    __device__ __forceinline__ void apply(const Acc (&acc)[COUNT], float row, int c,
                                          const float (&column)[COUNT], Result (&results)[COUNT]) const {
        if constexpr (kIntegerOutput) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) results[k] = int(acc[k]);
        } else {
            float y[COUNT];
#pragma unroll
            for (int k = 0; k < COUNT; ++k) y[k] = float(acc[k]) * row * column[k];
            if (!ONLY_SCALES && bias) {
                float add[COUNT];
                load_vector(bias + c, add);
#pragma unroll
                for (int k = 0; k < COUNT; ++k) y[k] += add[k];
            }
            if (!ONLY_SCALES && activation) {
#pragma unroll
                for (int k = 0; k < COUNT; ++k) y[k] = activate(y[k], activation);
            }
#pragma unroll
            for (int k = 0; k < COUNT; ++k) results[k] = from_float<Result>(y[k]);
        }
    }

    // One accumulator; nothing outside the matrix.
    template <typename Acc>
    __device__ __forceinline__ void store(Acc acc, int r, int c) const {
        if (r >= m || c >= n) return;
        Acc accs[1] = {acc};
        Result results[1];
        float column[1];
        if constexpr (std::is_same_v<Acc, int>) {
            if (has_integer_terms()) apply_integer_terms(accs, r, c);
        }
        load_column_scales(c, column);
        apply<false>(accs, load_row_scale(r), c, column, results);
        out[size_t(r) * n + c] = results[0];
    }
};

#define EPILOGUE_PARAMETERS                                                                                 \
    Result *out, const float *row_scale, const float *col_scale, const float *bias, const int *row_a,       \
        const int *col_a, const int *row_b, const int *col_b, int row_stride, int col_stride, int multiply, \
        int activation, int m, int n
#define EPILOGUE                                                                                       \
    Epilogue {                                                                                         \
        out, row_scale, col_scale, bias, row_a, col_a, row_b, col_b, row_stride, col_stride, multiply, \
            activation, m, n                                                                           \
    }

// Stages the column vectors of the integer terms for one warp's fragment through the warp's shared memory
// (4 · COUNT words of ``staging``) in one coalesced load, which can overlap the end of the main loop.
template <typename Acc, int COUNT>
__device__ __forceinline__ void stage_integer_terms(const Epilogue& e, const Acc (&)[COUNT], Acc* staging,
                                                    int first_column) {
    if constexpr (std::is_same_v<Acc, int>) {
        if (!e.has_integer_terms()) return;
        constexpr int kColumns = COUNT * 2;
        int lane = threadIdx.x & 31;
        __syncwarp();
#pragma unroll
        for (int first = 0; first < kColumns; first += 128) {
            int at = first + lane * 4, c = first_column + at;
            int a[4] = {1, 1, 1, 1}, b[4] = {};
            if (at < kColumns && c < e.n) {
                if (e.col_a) load_vector(e.col_a + c, a);
                if (e.col_b) load_vector(e.col_b + c, b);
            }
            if (at < kColumns) {
#pragma unroll
                for (int k = 0; k < 4; k += 2) {  // column pairs: a, a, b, b
                    *reinterpret_cast<int4*>(staging + (at + k) * 2) =
                        make_int4(a[k], a[k + 1], b[k], b[k + 1]);
                }
            }
        }
    }
}

// Applies the staged terms to a fragment in registers: 16 rows, four registers to each 8 columns.
template <typename Acc, int COUNT>
__device__ __forceinline__ void apply_staged_terms(const Epilogue& e, Acc (&d)[COUNT], const Acc* staging,
                                                   int first_row) {
    if constexpr (std::is_same_v<Acc, int>) {
        if (!e.has_integer_terms()) return;
        int lane = threadIdx.x & 31;
        int upper = min(first_row + lane / 4, e.m - 1), lower = min(first_row + lane / 4 + 8, e.m - 1);
        int a_up = e.row_a ? e.row_a[upper] : 0, a_low = e.row_a ? e.row_a[lower] : 0;
        int b_up = e.row_b ? e.row_b[upper] : 1, b_low = e.row_b ? e.row_b[lower] : 1;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            int4 pair = *reinterpret_cast<const int4*>(staging + j * 16 + lane % 4 * 4);
            int a[2] = {pair.x, pair.y}, b[2] = {pair.z, pair.w};
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                d[4 * j + k] = e.multiply * d[4 * j + k] - a_up * a[k] - b_up * b[k];
                d[4 * j + 2 + k] = e.multiply * d[4 * j + 2 + k] - a_low * a[k] - b_low * b[k];
            }
            // A barrier for the compiler, which would hoist all the loads and run out of registers.
            if (j % 4 == 3) asm volatile("" ::: "memory");
        }
    }
}

// Store of a fragment of 16 rows by a warp: COLUMNS at a time, transposed through its own 16 × COLUMNS words
// of shared memory so that each lane writes eight consecutive outputs. A lane keeps the same rows
// throughout. Row scales are loaded once and the next columns' scales are prefetched, to hide global-memory
// latency.
template <int COLUMNS>
struct LaneLayout {
    static constexpr int kUnits = COLUMNS / 8, kStride = 32 / kUnits,
                         kRows = 16 / kStride;  // units of eight columns
    float row_scales[kRows];
    int unit, first;  // this lane's unit, and its first row of the sixteen

    __device__ __forceinline__ LaneLayout(const Epilogue& e, int first_row) {
        int lane = threadIdx.x & 31;
        unit = lane % kUnits, first = lane / kUnits;
#pragma unroll
        for (int i = 0; i < kRows; ++i) row_scales[i] = e.load_row_scale(first_row + first + i * kStride);
    }

    __device__ __forceinline__ void load_column_scales(const Epilogue& e, int first_column,
                                                       float (&scales)[8]) const {
        e.load_column_scales(min(first_column + unit * 8, (e.n - 1) / 8 * 8), scales);
    }
};

// Stores the fragment's columns from register FROM of ``d`` on, COLUMNS at a time; ``column_scales`` are
// the first ones'.
template <bool ONLY_SCALES, int COLUMNS, int FROM, typename Acc, int COUNT>
__device__ __forceinline__ void store_columns(const Epilogue& e, const Acc (&d)[COUNT], Acc* staging,
                                              int first_row, int first_column,
                                              const LaneLayout<COLUMNS>& layout,
                                              const float (&column_scales)[8]) {
    using Layout = LaneLayout<COLUMNS>;
    constexpr bool kMore = FROM + COLUMNS / 2 < COUNT;
    float next_scales[8];
    if constexpr (kMore) layout.load_column_scales(e, first_column + COLUMNS, next_scales);
    int lane = threadIdx.x & 31, q = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
        // Units of eight columns are permuted by row, and the halves of some units swapped, so that neither
        // the half-warp writes nor the quarter-warp reads have bank conflicts.
        int half = COLUMNS == 64 ? j & 4 : (q & 1) * 4;
        Acc* to = staging + q * COLUMNS + (j ^ (q & 3)) * 8 + (t * 2 ^ half);
        to[0] = d[FROM + 4 * j], to[1] = d[FROM + 4 * j + 1];
        to[8 * COLUMNS] = d[FROM + 4 * j + 2], to[8 * COLUMNS + 1] = d[FROM + 4 * j + 3];
    }
    __syncwarp();
    int c = first_column + layout.unit * 8;
    auto read = [&](int i, Acc(&acc)[8]) {
        int row = layout.first + i * Layout::kStride;
        int half = COLUMNS == 64 ? layout.unit & 4 : (row & 1) * 4;
        const Acc* from = staging + row * COLUMNS + (layout.unit ^ (row & 3)) * 8;
        *reinterpret_cast<uint4*>(acc) = *reinterpret_cast<const uint4*>(from + half);
        *reinterpret_cast<uint4*>(acc + 4) = *reinterpret_cast<const uint4*>(from + (half ^ 4));
    };
    union Eight {
        Result value[8];
        uint4 chunk[sizeof(Result) / 2];
    };
    if constexpr (ONLY_SCALES) {
        Acc accs[Layout::kRows][8];
#pragma unroll
        for (int i = 0; i < Layout::kRows; ++i) read(i, accs[i]);
#pragma unroll
        for (int i = 0; i < Layout::kRows; ++i) {
            int r = first_row + layout.first + i * Layout::kStride;
            Result* to = e.out + size_t(r) * e.n + c;
            Eight eight;
            e.apply<true>(accs[i], layout.row_scales[i], c, column_scales, eight.value);
            if (r < e.m && c < e.n) {
#pragma unroll
                for (int k = 0; k < sizeof(Result) / 2; ++k) reinterpret_cast<uint4*>(to)[k] = eight.chunk[k];
            }
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < Layout::kRows; ++i) {
            int r = first_row + layout.first + i * Layout::kStride;
            Acc acc[8];
            Result value[8];
            read(i, acc);
            if (r < e.m && c < e.n) {
                e.apply<false>(acc, e.load_row_scale(r), c, column_scales, value);
#pragma unroll
                for (int k = 0; k < 8; ++k)
                    if (c + k < e.n) e.out[size_t(r) * e.n + c + k] = value[k];
            }
        }
    }
    if constexpr (kMore)
        store_columns<ONLY_SCALES, COLUMNS, FROM + COLUMNS / 2>(e, d, staging, first_row,
                                                                first_column + COLUMNS, layout, next_scales);
}

// True if store_packed applies: outputs of 16 bits, fragments of whole runs of 64 columns, and stmatrix.
#if __CUDA_ARCH__ >= 900
template <int COUNT>
constexpr bool kPacks = sizeof(Result) == 2 && COUNT % 32 == 0;
#else
template <int COUNT>
constexpr bool kPacks = false;
#endif

// Four 8 × 8 matrices of 16-bit elements into shared memory, of which a thread holds two neighbours in each:
// lane l gives the place of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(void* to, const uint32_t (&word)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                     uint32_t(__cvta_generic_to_shared(to))),
                 "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
}

// Stores a fragment whose columns have one scale, 64 columns at a time, through 2 KiB of shared memory; there
// the 16-byte units of a row are permuted by row, so that nothing conflicts.
template <typename Acc, int COUNT>
__device__ __forceinline__ void store_packed(const Epilogue& e, const Acc (&d)[COUNT], Acc* staging,
                                             int first_row, int first_column) {
    int lane = threadIdx.x & 31;
    float column = e.col_scale ? e.col_scale[0] : 1.0f;
    float row_scales[2] = {e.load_row_scale(first_row + lane / 4),
                           e.load_row_scale(first_row + lane / 4 + 8)};
    uint4* units = reinterpret_cast<uint4*>(staging);
    auto unit_at = [&](int row, int unit) { return units + row * 8 + (unit ^ (row & 7)); };
#pragma unroll
    for (int from = 0; from < COUNT; from += 32) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t word[4];  // two rows of eight columns, then of the next eight
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                Result pair[2];
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    pair[k] =
                        from_float<Result>(float(d[from + 4 * j + 2 * i + k]) * row_scales[i & 1] * column);
                word[i] = *reinterpret_cast<uint32_t*>(pair);
            }
            store_matrices(unit_at(lane % 16, j + lane / 16), word);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int row = i * 4 + lane / 8, r = first_row + row, c = first_column + from * 2 + lane % 8 * 8;
            if (r < e.m && c < e.n)
                *reinterpret_cast<uint4*>(e.out + size_t(r) * e.n + c) = *unit_at(row, lane % 8);
        }
    }
}

// Stores a warp's fragment whose integer terms are staged and whose first scales are loaded.
template <int COLUMNS, typename Acc, int COUNT>
__device__ __forceinline__ void store_fragment(const Epilogue& e, Acc (&d)[COUNT], Acc* staging,
                                               int first_row, int first_column,
                                               const LaneLayout<COLUMNS>& layout,
                                               const float (&column_scales)[8]) {
    apply_staged_terms(e, d, staging, first_row);
    if constexpr (kPacks<COUNT>) {
        if (e.only_scales() && !(e.col_scale && e.col_stride)) {
            store_packed(e, d, staging, first_row, first_column);
            return;
        }
    }
    if (e.only_scales())
        store_columns<true, COLUMNS, 0>(e, d, staging, first_row, first_column, layout, column_scales);
    else
        store_columns<false, COLUMNS, 0>(e, d, staging, first_row, first_column, layout, column_scales);
}

// Stores a warp's fragment of 16 rows, four registers to each 8 columns, through 16 × COLUMNS words of
// ``staging``.
template <int COLUMNS, typename Acc, int COUNT>
__device__ __forceinline__ void store_fragment(const Epilogue& e, Acc (&d)[COUNT], Acc* staging,
                                               int first_row, int first_column) {
    LaneLayout<COLUMNS> layout(e, first_row);
    float column_scales[8];
    layout.load_column_scales(e, first_column, column_scales);
    stage_integer_terms(e, d, staging, first_column);
    store_fragment(e, d, staging, first_row, first_column, layout, column_scales);
}
