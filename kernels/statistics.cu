// Statistics of a quantization: error sums, histograms, code usage, maxima over tiles. float32 in, only sums
// out.
//
//   error_sums       original and restored, 8 bytes an element: float64 sums, the largest error
//   histogram        values, or differences of two tensors, on equal bins: 4 or 8 bytes an element
//   byte_counts      packed bytes of 8-, 4-, 2- and 1-bit codes and of ternary digits
//   code_counts      packed codes of any other width
//   tile_maximum     the maximum of every tile: 4 bytes an element
//
// The host adds the thread blocks' sums in a fixed order, so that results repeat to the last bit.
#include <cstdint>

#include "blocks.cuh"
#include "dependent.cuh"

namespace {

constexpr int kThreads = 256, kSums = 8;
enum Sum { SIGNAL, NOISE, OUTPUT, INNER, ABSOLUTE, CLIPPED, ZEROED, LARGEST };

// A NaN is larger than any number and stays; of equal errors the first element counts.
__device__ __forceinline__ bool worse(double a, uint64_t at, double b, uint64_t than) {
    bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return a_nan;
    return a > b || (at < than && (a == b || a_nan));
}

struct Totals {
    double sum[kSums];
    uint64_t where;
    __device__ void clear() {
        for (double& s : sum) s = 0.0;
        sum[LARGEST] = -1.0;
        where = ~uint64_t(0);
    }
    __device__ __forceinline__ void add(float x, float y, bool outside, uint64_t at) {
        double a = x, b = y, error = b - a, size = fabs(error);
        sum[SIGNAL] += a * a, sum[NOISE] += error * error, sum[OUTPUT] += b * b;
        sum[INNER] += a * b, sum[ABSOLUTE] += size;
        sum[CLIPPED] += outside ? 1.0 : 0.0;
        sum[ZEROED] += y == 0.0f && x != 0.0f ? 1.0 : 0.0;
        if (worse(size, at, sum[LARGEST], where)) sum[LARGEST] = size, where = at;
    }
    __device__ void merge(const double* other, uint64_t at) {
        for (int i = 0; i < LARGEST; ++i) sum[i] += other[i];
        if (worse(other[LARGEST], at, sum[LARGEST], where)) sum[LARGEST] = other[LARGEST], where = at;
    }
    __device__ void merge_lanes() {
        for (int offset = 16; offset; offset >>= 1) {
            double other[kSums];
            for (int i = 0; i < kSums; ++i) other[i] = __shfl_xor_sync(0xffffffffu, sum[i], offset);
            merge(other, __shfl_xor_sync(0xffffffffu, where, offset));
        }
    }
};

// Counts of 256 bins, a copy for each warp, so that warps do not wait for each other's atomics.
using WarpCounts = uint32_t[kThreads / 32][256];

// The copy of this thread's warp, all copies zeroed.
__device__ __forceinline__ uint32_t* cleared(WarpCounts& seen) {
    for (int i = threadIdx.x; i < kThreads / 32 * 256; i += kThreads) (&seen[0][0])[i] = 0;
    __syncthreads();
    return seen[threadIdx.x >> 5];
}

__device__ __forceinline__ void add(uint64_t* counts, uint64_t bin, uint64_t count) {
    atomicAdd(reinterpret_cast<unsigned long long*>(counts) + bin, static_cast<unsigned long long>(count));
}

__device__ __forceinline__ void add_warps(const WarpCounts& seen, int bin, uint64_t* counts) {
    uint64_t total = 0;
    for (int w = 0; w < kThreads / 32; ++w) total += seen[w][bin];
    if (total) add(counts, bin, total);
}

}  // namespace

// sums [thread blocks, 8], where [thread blocks]. ``low`` and ``high`` [cells]: what lies outside counts as
// clipped.
extern "C" __global__ void __launch_bounds__(kThreads) error_sums(
    const float* x, const float* y, const float* low, const float* high, double* sums, uint64_t* where,
    Blocks blocks) {
    follow();
    Totals mine;
    mine.clear();
    uint64_t elements = blocks.rows * blocks.columns, stride = uint64_t(gridDim.x) * kThreads;
    for (uint64_t i = uint64_t(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
        float a = __ldcs(x + i), b = __ldcs(y + i);
        uint64_t cell = blocks.cell_of(i);
        mine.add(a, b, a < low[cell] || a > high[cell], i);
    }
    mine.merge_lanes();
    __shared__ double part[kThreads / 32][kSums];
    __shared__ uint64_t place[kThreads / 32];
    int warp = threadIdx.x >> 5;
    if ((threadIdx.x & 31) == 0) {
        for (int i = 0; i < kSums; ++i) part[warp][i] = mine.sum[i];
        place[warp] = mine.where;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < kThreads / 32; ++i) mine.merge(part[i], place[i]);
    for (int i = 0; i < kSums; ++i) sums[blockIdx.x * kSums + i] = mine.sum[i];
    where[blockIdx.x] = mine.where;
}

// counts [bins <= 256] of x, or of x - minus; a value outside falls into the end bin.
extern "C" __global__ void __launch_bounds__(kThreads) histogram(
    const float* x, const float* minus, uint64_t* counts, uint64_t elements, float low, float per_width,
    int bins) {
    follow();
    __shared__ WarpCounts seen;
    uint32_t* mine = cleared(seen);
    float top = float(bins - 1);
    uint64_t stride = uint64_t(gridDim.x) * kThreads;
    for (uint64_t i = uint64_t(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
        float v = minus ? __fsub_rn(__ldcs(x + i), __ldcs(minus + i)) : __ldcs(x + i);
        float bin = fminf(fmaxf(__fmul_rn(__fsub_rn(v, low), per_width), 0.0f), top);
        atomicAdd(mine + int(bin), 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += kThreads) add_warps(seen, bin, counts);
}

// counts [256] of the bytes.
extern "C" __global__ void __launch_bounds__(kThreads) byte_counts(
    const uint8_t* packed, uint64_t* counts, uint64_t bytes) {
    follow();
    __shared__ WarpCounts seen;
    uint32_t* mine = cleared(seen);
    uint64_t words = reinterpret_cast<uintptr_t>(packed) % 4 == 0 ? bytes / 4 : 0;
    uint64_t first = uint64_t(blockIdx.x) * kThreads + threadIdx.x, stride = uint64_t(gridDim.x) * kThreads;
    for (uint64_t i = first; i < words; i += stride) {
        uint32_t word = __ldcs(reinterpret_cast<const uint32_t*>(packed) + i);
        for (int b = 0; b < 4; ++b) atomicAdd(mine + (word >> (8 * b) & 255u), 1u);
    }
    for (uint64_t i = words * 4 + first; i < bytes; i += stride) atomicAdd(mine + packed[i], 1u);
    __syncthreads();
    add_warps(seen, threadIdx.x, counts);
}

// counts [2^bits] of codes up to 16 bits; each row starts at a byte boundary.
extern "C" __global__ void __launch_bounds__(kThreads) code_counts(
    const uint8_t* packed, uint64_t* counts, uint64_t rows, uint64_t columns, uint64_t row_bytes, int bits) {
    follow();
    uint64_t elements = rows * columns, stride = uint64_t(gridDim.x) * kThreads;
    for (uint64_t i = uint64_t(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
        uint64_t row = i / columns, bit = (i - row * columns) * bits;
        const uint8_t* at = packed + row * row_bytes + bit / 8;
        uint32_t word = at[0];
        if (bit % 8 + bits > 8) word |= uint32_t(at[1]) << 8;
        uint32_t code = word >> (bit % 8) & ((1u << bits) - 1);
        // Lanes with the same code add once: a few codes hold most of the elements.
        uint32_t same = __match_any_sync(__activemask(), code);
        if ((threadIdx.x & 31) == __ffs(same) - 1) add(counts, code, __popc(same));
    }
}

// out [tiles]: the maximum of x over each tile, a thread block each. NaN stays NaN.
extern "C" __global__ void __launch_bounds__(kThreads) tile_maximum(
    const float* x, float* out, Blocks tiles) {
    follow();
    Cell tile = tiles.at(blockIdx.x);
    int height = int(tile.tall), width = int(tile.wide);
    float most = -INFINITY;
    for (int i = threadIdx.x; i < height * width; i += kThreads) {
        float v = x[(tile.top + i / width) * tiles.columns + tile.left + i % width];
        most = v > most || v != v ? v : most;
    }
    __shared__ float part[kThreads / 32];
    auto larger = [](float a, float b) { return a != a || a > b ? a : b; };
    for (int offset = 16; offset; offset >>= 1)
        most = larger(most, __shfl_xor_sync(0xffffffffu, most, offset));
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = most;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < kThreads / 32; ++i) most = larger(most, part[i]);
    out[blockIdx.x] = most;
}
