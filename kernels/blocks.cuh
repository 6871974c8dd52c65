// A matrix cut into the blocks of a scheme: which block (cell) an element lies in, and where a cell lies.
//
// Kernels take a Blocks by value. Its members have no gaps, so the launcher passes them as five arguments
// (QQiiQ).
#pragma once
#include <cstdint>

// The elements of one cell: rows [top, top + tall), columns [left, left + wide). The last cells may be
// smaller.
struct Cell {
    uint64_t top, left, tall, wide;
};

// This thread's index along x of the grid, and how many there are.
__device__ __forceinline__ uint64_t thread_index() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ uint64_t thread_count() { return uint64_t(gridDim.x) * blockDim.x; }

// The index of ``count`` that is as far from the last as ``index`` is from the first; negative beyond them.
__device__ __forceinline__ int64_t from_end(uint64_t index, uint64_t count) {
    return int64_t(count) - 1 - int64_t(index);
}

// a / b for a <= most: a division of 64 bits takes several times as long as one of 32, which usually
// suffices.
__device__ __forceinline__ uint64_t quotient(uint64_t a, uint64_t b, uint64_t most) {
    return most < (uint64_t(1) << 32) ? uint32_t(a) / uint32_t(b) : a / b;
}

struct Blocks {
    uint64_t rows, columns;
    int height, width;
    uint64_t grid_columns;

    __device__ __forceinline__ bool one() const { return height >= rows && width >= columns; }

    // The first cell of the blocks that ``row`` runs through.
    __device__ __forceinline__ uint64_t first_cell(uint64_t row) const {
        return height >= rows ? 0 : row / height * grid_columns;
    }

    // The cell of a column, from the first cell of its row.
    __device__ __forceinline__ uint64_t cell_from(uint64_t first, uint64_t column) const {
        return grid_columns == 1 ? first : first + uint32_t(column) / uint32_t(width);
    }

    // The cell of an element, by its index in row-major order; for fewer than 2^32 rows.
    __device__ __forceinline__ uint64_t cell_of(uint64_t element) const {
        if (one()) return 0;
        uint64_t row = quotient(element, columns, element);
        uint32_t down = uint32_t(row) / uint32_t(height);
        uint32_t across = uint32_t(element - row * columns) / uint32_t(width);
        return down * grid_columns + across;
    }

    __device__ __forceinline__ Cell at(uint64_t cell) const {
        uint64_t top = cell / grid_columns * height, left = cell % grid_columns * width;
        uint64_t tall = rows - top < height ? rows - top : height;
        uint64_t wide = columns - left < width ? columns - left : width;
        return {top, left, tall, wide};
    }
};

// Column-by-column traversal of a matrix by a thread block: its lanes lie across the columns, a run each,
// its warps and the blocks along y of the grid take rows in turn. Several rows are loaded before any is used.
struct ColumnWalk {
    static constexpr int kRows = 4;
    uint64_t first, stride, end;

    __device__ __forceinline__ explicit ColumnWalk(uint64_t rows) {
        uint64_t warps = blockDim.x >> 5;
        first = blockIdx.y * warps + (threadIdx.x >> 5), stride = gridDim.y * warps, end = rows;
    }

    // The first column of this lane's run.
    template <int N>
    __device__ __forceinline__ uint64_t column() const {
        return (uint64_t(blockIdx.x) * 32 + (threadIdx.x & 31)) * N;
    }

    // Calls load(k, row) for up to kRows rows, then use(k, row) for the same ones.
    template <typename Load, typename Use>
    __device__ __forceinline__ void rows(Load load, Use use) const {
        for (uint64_t row = first; row < end; row += kRows * stride) {
#pragma unroll
            for (int k = 0; k < kRows; ++k)
                if (row + k * stride < end) load(k, row + k * stride);
#pragma unroll
            for (int k = 0; k < kRows; ++k)
                if (row + k * stride < end) use(k, row + k * stride);
        }
    }
};
