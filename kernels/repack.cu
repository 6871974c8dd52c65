// Packed weights [n, k] -> tiles of 64 rows by 128 of K in the order of fragments.cuh, each followed by its
// scales [64 rows][groups of the tile] and int8 zero points of the same shape: what gemm_swap_ab reads.
//
// One CTA a tile. What lies outside the matrix is code 0 with scale 0. Runs once, when a model is loaded.
//
// -D: WBITS, BYTES (operands of 8 bits), ORDER (fragments.cuh), SCALE_TYPE (of what follows a tile), GROUPS
// (of a tile; 0: no scales), ZEROS.
#include <cuda_fp16.h>

#include "fragments.cuh"

// 2^group_shift elements of K share a scale; scales and zeros are [n, groups].
extern "C" __global__ void __launch_bounds__(kFragmentThreads)
    repack(const uint8_t* packed, const SCALE_TYPE* scales, const int8_t* zeros, uint8_t* out, int n, int k,
           int row_bytes, int groups, int group_shift, int k_tiles) {
    constexpr int kWords = 2 * WBITS;
    using Tile = TileBytes<WBITS, GROUPS, ZEROS, SCALE_TYPE>;
    using Held = Fragment<BYTES>;
    int tile = blockIdx.x, first_row = tile / k_tiles * kFragmentRows, first_k = tile % k_tiles * kFragmentK;
    uint8_t* to = out + size_t(tile) * Tile::all;
    uint32_t words[kWords] = {};
#pragma unroll
    for (int step = 0; step < Held::steps; ++step) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg) {
#pragma unroll
            for (int part = 0; part < Held::parts; ++part) {
                int row = first_row + Held::row(threadIdx.x, reg);
                int at = first_k + Held::k(threadIdx.x, step, reg, part);
                if (row >= n || at >= k) continue;
                int bit = at * WBITS;
                const uint8_t* from = packed + size_t(row) * row_bytes + bit / 8;
                uint32_t code = from[0];
                if (bit % 8 + WBITS > 8) code |= uint32_t(from[1]) << 8;
                code >>= bit % 8;
#pragma unroll
                for (int i = 0; i < WBITS; ++i) {
                    constexpr bool bytes = BYTES;
                    int place = place_of_bit<WBITS, bytes, CodeOrder::ORDER>(step, reg, part, i);
                    words[place / 32] |= (code >> i & 1u) << (place % 32);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < WBITS; ++i)
        reinterpret_cast<uint2*>(to)[i * kFragmentThreads + threadIdx.x] =
            make_uint2(words[2 * i], words[2 * i + 1]);
    for (int i = threadIdx.x; i < kFragmentRows * GROUPS; i += kFragmentThreads) {
        constexpr int kGroups = GROUPS ? GROUPS : 1;
        int row = first_row + i / kGroups, at = first_k + i % kGroups * (kFragmentK / kGroups);
        size_t from = size_t(row) * groups + min(at >> group_shift, groups - 1);
        bool inside = row < n && at < k;
        reinterpret_cast<SCALE_TYPE*>(to + Tile::codes)[i] = inside ? scales[from] : SCALE_TYPE(0.0f);
        if (ZEROS)
            reinterpret_cast<int8_t*>(to + Tile::codes + Tile::scales)[i] = inside ? zeros[from] : int8_t(0);
    }
}
