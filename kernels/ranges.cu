// The range of a tensor, of columns or of any blocks, where it has to be known before the codes are made.
//
//   tensor_range    one range for the whole tensor
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

// Two runs are loaded before either is used: more bytes in flight.
extern "C" __global__ void __launch_bounds__(256, 6)
    tensor_range(const T* x, float* range, int* unusable, uint64_t elements) {
    follow();
    uint64_t first = thread_index(), stride = thread_count();
    uint64_t runs = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? elements / RUN : 0, run = first;
    Extent extent;
    extent.clear();
    for (; run + stride < runs; run += 2 * stride) {
        Run<T, RUN> a, b;
        a.load(x + run * RUN);
        b.load(x + (run + stride) * RUN);
        extent.add_run(a);
        extent.add_run(b);
    }
    if (run < runs) {
        Run<T, RUN> a;
        a.load(x + run * RUN);
        extent.add_run(a);
    }
    for (uint64_t i = runs * RUN + first; i < elements; i += stride) extent.add(to_float(x[i]));
    extent.report(unusable);
    extent.merge_block();
    if (threadIdx.x) return;
    if constexpr (kMean) {
        atomicAdd(reinterpret_cast<double*>(range), extent.sum);
    } else {
        raise(range + 1, extent.high);
        raise(range, kBothEnds ? extent.low : extent.high);
    }
}

// Cells are ``width`` columns wide. A thread block first merges what its warps have seen of each column.
extern "C" __global__ void __launch_bounds__(256)
    column_range(const T* x, float* range, int* unusable, uint64_t rows, uint64_t columns, uint64_t cells,
                 int width) {
    follow();
    constexpr int warps = 8, across = 32 * RUN;
    __shared__ float low[kBothEnds ? warps : 1][across], high[warps][across];
    ColumnWalk walk(rows);
    uint64_t column = walk.column<RUN>();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    Extent extent[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) extent[i].clear();
    Run<T, RUN> run[ColumnWalk::kRows];
    if (column < columns)
        walk.rows([&](int k, uint64_t row) { run[k].load(x + row * columns + column); },
                  [&](int k, uint64_t) {
#pragma unroll
                      for (int i = 0; i < RUN; ++i) extent[i].add(run[k].at(i));
                  });
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
        extent[i].report(unusable);
        high[warp][i * 32 + lane] = extent[i].high;
        if constexpr (kBothEnds) low[warp][i * 32 + lane] = extent[i].low;
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
