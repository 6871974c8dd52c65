// Quantize in one pass: a thread block holds a whole block of the scheme (a row, a tile) in registers.
//
// For blocks of whole runs that fit the registers of one thread block. Bytes: each element once in, each code
// and scale once out. -D: as quantize_groups.cu; KEPT (runs a thread: 1, 2 or 4), THREADS (the most a thread
// block has).
#include "blocks.cuh"
#include "dependent.cuh"
#include "encode.cuh"
#include "extent.cuh"
#include "settle.cuh"

using T = ELEMENT;

// Two thread blocks fit a multiprocessor, unless the runs that a thread keeps leave too few registers for
// that.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int kTwoBlocksWords = 32;
#else
constexpr int kTwoBlocksWords = 24;
#endif
constexpr int kThreadBlocks = KEPT > 1 && Run<T, RUN>::words * KEPT > kTwoBlocksWords ? 1 : 2;

extern "C" __global__ void __launch_bounds__(THREADS, kThreadBlocks) quantize_tile(
    const T* x, uint8_t* packed, void* scales, int8_t* zeros, int* unusable, Blocks blocks,
    uint64_t row_bytes, uint64_t seed) {
    follow();
    Cell tile = blocks.at(blockIdx.x);
    int across = int(tile.wide) / RUN, tall = int(tile.tall);
    Run<T, RUN> kept[KEPT];
    Extent extent;
    extent.clear();
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        int run = threadIdx.x + k * blockDim.x, r = run / across, c = run - r * across;
        if (r < tall) kept[k].load(x + (tile.top + r) * blocks.columns + tile.left + c * RUN);
    }
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        int run = threadIdx.x + k * blockDim.x;
        if (run < tall * across) extent.add_run(kept[k]);
    }
    extent.report(unusable);
    extent.merge_block();
    __shared__ float settled[2];
    if (threadIdx.x < 32) {
        float lo, hi, zero;
        extent.range(double(tall) * across * RUN, lo, hi);
        float step = settle(lo, hi, {}, scales, zeros, blockIdx.x, threadIdx.x == 0, zero);
        if (threadIdx.x == 0) settled[0] = step, settled[1] = zero;
    }
    __syncthreads();
    float zero = settled[1];
    Divider divide_by(settled[0]);
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        int run = threadIdx.x + k * blockDim.x, r = run / across, c = run - r * across;
        if (r >= tall) continue;
        uint64_t row = tile.top + r, column = tile.left + c * RUN;
        uint8_t* out = packed + row * row_bytes + column / RUN * packed_bytes<Q>(RUN);
        encode_run(kept[k], divide_by, zero, seed, row * blocks.columns + column, out);
    }
}
