// Tiles of repack.cu -> rows [n, width] again, k elements of which are the matrix's and the rest zeros.
//
//   VALUES=0   a byte for each code, as it was packed (ternary: a plain 2-bit code)
//   VALUES=1   bfloat16 of (value - zero point) · scale, where the tile has scales: what gemm_swap_ab
//              multiplies, up to scales of rows, which its epilogue applies
//
// One CTA a tile. Codes go through shared memory, as those of a row lie with several threads.
//
// -D: those of repack.cu; VALUES, CODEC, TWO_BIT (fragments.cuh), FOLDED: a power of two from bfloat16's
// exponents to those of the format is left to the epilogue.
#include <cuda_fp16.h>

#include "fragments.cuh"

constexpr int kRowBytes = kFragmentK + 16;  // of codes in shared memory, against bank conflicts
using Tile = TileBytes<WBITS, GROUPS, ZEROS, SCALE_TYPE>;
constexpr int kRun = 8;  // codes that a thread writes at a time

__device__ __forceinline__ void load_codes(const uint8_t* tile, uint8_t (*codes)[kRowBytes]) {
    constexpr bool bytes = BYTES;
    constexpr int kWords = 2 * WBITS;
    using Held = Fragment<bytes>;
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < WBITS; ++i) {
        uint2 two = reinterpret_cast<const uint2*>(tile)[i * kFragmentThreads + threadIdx.x];
        words[2 * i] = two.x, words[2 * i + 1] = two.y;
    }
#pragma unroll
    for (int step = 0; step < Held::steps; ++step) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg) {
#pragma unroll
            for (int part = 0; part < Held::parts; ++part) {
                uint32_t code = 0;
#pragma unroll
                for (int i = 0; i < WBITS; ++i) {
                    int place = place_of_bit<WBITS, bytes, CodeOrder::ORDER>(step, reg, part, i);
                    code |= (words[place / 32] >> (place % 32) & 1u) << i;
                }
                codes[Held::row(threadIdx.x, reg)][Held::k(threadIdx.x, step, reg, part)] = uint8_t(code);
            }
        }
    }
    __syncthreads();
}

__device__ __forceinline__ float value_of(uint32_t code) {
    float value = TWO_BIT == 1 ? float(code) - 1.0f : CODEC::decode(code);
    return FOLDED ? value * power_of_two(CODEC::bias - 127) : value;
}

extern "C" __global__ void __launch_bounds__(kFragmentThreads)
    unpack(const uint8_t* tiles, uint8_t* out, int n, int k, int width, int k_tiles) {
    constexpr int kGroups = GROUPS ? GROUPS : 1, kGroup = kFragmentK / kGroups;
    static_assert(kGroup % kRun == 0, "a run has one scale");
    __shared__ __align__(16) uint8_t codes[kFragmentRows][kRowBytes];
    int tile = blockIdx.x, first_row = tile / k_tiles * kFragmentRows, first_k = tile % k_tiles * kFragmentK;
    const uint8_t* from = tiles + size_t(tile) * Tile::all;
    load_codes(from, codes);
    for (int i = threadIdx.x; i < kFragmentRows * kFragmentK / kRun; i += kFragmentThreads) {
        int row = i / (kFragmentK / kRun), at = i % (kFragmentK / kRun) * kRun;
        if (first_row + row >= n || first_k + at >= width) continue;
        size_t to = size_t(first_row + row) * width + first_k + at;
        if (!VALUES) {
            *reinterpret_cast<uint2*>(out + to) = *reinterpret_cast<const uint2*>(&codes[row][at]);
            continue;
        }
        float scale = 1.0f, zero = 0.0f;
        int group = row * kGroups + at / kGroup;
        if (GROUPS) scale = float(reinterpret_cast<const SCALE_TYPE*>(from + Tile::codes)[group]);
        if (ZEROS) zero = float(reinterpret_cast<const int8_t*>(from + Tile::codes + Tile::scales)[group]);
        uint4 eight;
        uint32_t* pairs = reinterpret_cast<uint32_t*>(&eight);
#pragma unroll
        for (int j = 0; j < kRun; j += 2) {
            float two[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                bool inside = first_k + at + j + h < k;
                two[h] = inside ? (value_of(codes[row][at + j + h]) - zero) * scale : 0.0f;
            }
            pairs[j / 2] = as_bits(__floats2bfloat162_rn(two[0], two[1]));
        }
        *reinterpret_cast<uint4*>(out + 2 * to) = eight;
    }
}
