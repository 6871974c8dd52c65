// The range of columns or of any blocks, where it has to be known before the codes are made.
//
//   column_range    one for every column, or every few columns, of rows that are whole runs
//   block_range     one for each of any blocks, a warp each
//
// range[cell] and range[cells + cell] are the largest -x and x, or doubles the sums of |x| as Extent
// scales them; they start at zero. Bytes: each element once in. -D: ELEMENT, RUN (elements a thread),
// MAPPING, RANGE.
#include "blocks.cuh"
#include "dependent.cuh"
#include "extent.cuh"

using T = ELEMENT;

// Non-negative floats are ordered as their bits are, so that an integer atomic takes their maximum.
__device__ __forceinline__ void raise(float* target, float value) {
    atomicMax(reinterpret_cast<int*>(target), __float_as_int(value));
}

// The extents of N neighbouring columns; those of 16-bit elements are kept in pairs.
template <typename E, int N>
struct ColumnExtents {
    static constexpr bool kPairs = sizeof(E) == 2 && !kMean;
    using Part = std::conditional_t<kPairs, Extremes<E>, Extent>;
    static constexpr int kParts = kPairs ? N / 2 : N;
    Part part[kParts];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kParts; ++i) part[i].clear();
    }
    __device__ __forceinline__ void add(const Run<E, N>& run) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
            if constexpr (kPairs)
                part[i].add(run.word[i]);
            else
                part[i].add(run.at(i));
        }
    }
    __device__ __forceinline__ Extent of(int column) const {
        Extent extent;
        if constexpr (kPairs) {
            extent.clear();
            extent.add_pair(part[column / 2], column % 2);
        } else {
            extent = part[column];
        }
        return extent;
    }
};

// Cells are ``width`` columns wide. A thread block first merges what its warps have seen of each column.
// Elements from ``kept`` on stay in the L2 cache.
extern "C" __global__ void __launch_bounds__(256, 4)
    column_range(const T* x, float* range, int* unusable, uint64_t rows, uint64_t columns, uint64_t cells,
                 int width, uint64_t kept) {
    follow();
    constexpr int warps = 8, across = 32 * RUN;
    __shared__ float low[kBothEnds ? warps : 1][across], high[warps][across];
    ColumnWalk walk(rows);
    uint64_t column = walk.column<RUN>();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    ColumnExtents<T, RUN> extents;
    extents.clear();
    Run<T, RUN> run[ColumnWalk::kRows];
    if (column < columns)
        walk.rows([&](int k, uint64_t row) { run[k].load_from(x, row * columns + column, kept); },
                  [&](int k, uint64_t) { extents.add(run[k]); });
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
        Extent extent = extents.of(i);
        extent.report(unusable);
        high[warp][i * 32 + lane] = extent.high;
        if constexpr (kBothEnds) low[warp][i * 32 + lane] = extent.low;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < across; i += 32 * warps) {
        uint64_t at = uint64_t(blockIdx.x) * across + i;
        if (at >= columns) continue;
        int place = i % RUN * 32 + i / RUN;
        float top = 0.0f, bottom = 0.0f;
        for (int k = 0; k < warps; ++k) {
            top = fmaxf(top, high[k][place]);
            if constexpr (kBothEnds) bottom = fmaxf(bottom, low[k][place]);
        }
        uint64_t cell = quotient(at, width, columns);
        raise(range + cells + cell, top);
        raise(range + cell, kBothEnds ? bottom : top);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    block_range(const T* x, float* range, int* unusable, Blocks blocks, uint64_t cells) {
    follow();
    uint64_t cell = thread_index() >> 5;
    if (cell >= cells) return;
    Cell block = blocks.at(cell);
    Extent extent;
    extent.clear();
    uint64_t r = (threadIdx.x & 31) / block.wide, c = (threadIdx.x & 31) % block.wide;
    for (; r < block.tall;) {
        extent.add(to_float(x[(block.top + r) * blocks.columns + block.left + c]));
        c += 32;
        if (c >= block.wide) r += c / block.wide, c %= block.wide;
    }
    extent.report(unusable);
    extent.merge_lanes(32);
    if (threadIdx.x & 31) return;
    if constexpr (kMean) {
        reinterpret_cast<double*>(range)[cell] = extent.sum;
    } else {
        range[cells + cell] = extent.high;
        range[cell] = kBothEnds ? extent.low : extent.high;
    }
}
