// The range of a tensor, of columns or of any blocks, where it has to be known before the codes are made.
//
//   tensor_range    one range for the whole tensor
//   column_range    one for every column, or every few columns, of rows that are whole runs
//   block_range     one for each of any blocks, a warp each
//
// range[cell] and range[cells + cell] are the largest -x and x, or doubles the sums of |x|; they start at
// zero. Bytes: each element once in. -D: ELEMENT, RUN (elements a thread), MAPPING, RANGE.
#include "blocks.cuh"
#include "extent.cuh"

using T = ELEMENT;

// Non-negative floats are ordered as their bits are, so that an integer atomic takes their maximum.
__device__ __forceinline__ void raise(float* target, float value) {
    atomicMax(reinterpret_cast<int*>(target), __float_as_int(value));
}

// Two runs are loaded before either is used: more bytes in flight.
extern "C" __global__ void __launch_bounds__(256, 2) tensor_range(
    const T* x, float* range, int* unusable, uint64_t elements) {
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

// Cells are ``width`` columns wide; blockIdx.y walks the rows.
extern "C" __global__ void __launch_bounds__(128) column_range(
    const T* x, float* range, int* unusable, uint64_t rows, uint64_t columns, uint64_t cells, int width) {
    uint64_t column = thread_index() * RUN;
    if (column >= columns) return;
    Extent extent[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) extent[i].clear();
    for (uint64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        Run<T, RUN> run;
        run.load(x + row * columns + column);
#pragma unroll
        for (int i = 0; i < RUN; ++i) extent[i].add(run.at(i));
    }
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
        extent[i].report(unusable);
        uint64_t cell = (column + i) / width;
        raise(range + cells + cell, extent[i].high);
        raise(range + cell, kBothEnds ? extent[i].low : extent[i].high);
    }
}

extern "C" __global__ void __launch_bounds__(256) block_range(
    const T* x, float* range, int* unusable, Blocks blocks, uint64_t cells) {
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
