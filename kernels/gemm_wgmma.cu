// Y = X · Wᵀ on Hopper's asynchronous tensor cores: one kernel for every type that wgmma multiplies.
//
// Persistent and warp-specialized: in each CTA a producer thread fills a ring of STAGES in shared memory by
// TMA (one k-tile, 128 bytes of K, a stage), and two consumer warpgroups of 64 rows multiply. The CTAs of a
// cluster lie along M and share W's tile: each loads a part and multicasts it. Output tiles are visited in
// groups of rows, to reuse L2.
//
//   SCALE_K=NONE    scales in the epilogue only
//   SCALE_K=BLOCK   FP8 with x_scale [k_tiles, M] and w_scale [N/128, k_tiles]: the accumulator of each
//                   k-tile is scaled and added to a float32 total (promotion)
//   SCALE_K=COLUMN  promotion with w_scale [k_tiles, N] alone: a scale for each column (int4 groups widened
//                   to 8 bits)
//
// Scales come with their stage, by a bulk copy: loaded by the consumers, each k-tile would wait for global
// memory. Rows of x_scale are padded to a multiple of 256, rows of w_scale to 4 (BLOCK) or 128 (COLUMN).
//
// Operands are rows of bytes, K-major, each row a multiple of 16 bytes; what lies beyond the matrix reads
// as zero. Bytes read per output tile: (128 + BN) · K. The grid covers tiles_m (a multiple of CLUSTER) ×
// tiles_n tiles.
// -D: TYPE (tensor_core.cuh), BN (128, 256), CLUSTER (1, 2), SCALE_K, OUT (the output's C++ type), STAGES.
// Technique: CUTLASS's and DeepGEMM's documentation of warp-specialized persistent kernels; arXiv
// 2402.13499.
#include "epilogue.cuh"
#include "wgmma.cuh"

enum class ScaleK { NONE, BLOCK, COLUMN };

constexpr OperandType kType = OperandType::TYPE;
constexpr ScaleK kScaleK = ScaleK::SCALE_K;
constexpr bool kPromote = kScaleK != ScaleK::NONE;
using Acc = Accumulator<kType>;
using Total = std::conditional_t<kPromote, float, Acc>;
constexpr int kRows = 128, kTileBytes = 128, kGroup = 16;
constexpr int kTileX = kRows * kTileBytes, kTileW = BN * kTileBytes, kScaleStage = kPromote ? 1024 : 0;
constexpr int kColumns = kPromote ? 32 : 64;  // of the output, stored at a time
constexpr int kScaleBytes = kScaleK == ScaleK::BLOCK ? 512 + 16 : kScaleK == ScaleK::COLUMN ? 512 : 0;

struct Tile {
    int row, column;
    // Tiles in groups of kGroup rows of tiles, column by column; CLUSTER neighbours along M stay together.
    __device__ __forceinline__ Tile(int index, int tiles_m, int tiles_n) {
        int in_group = kGroup * tiles_n, group = index / in_group, first = group * kGroup;
        int group_rows = min(kGroup, tiles_m - first), left = index - group * in_group;
        row = (first + left % group_rows) * kRows, column = left / group_rows * BN;
    }
};

template <bool FIRST, typename A, typename B>
__device__ __forceinline__ auto& choose(A& a, B& b) {
    if constexpr (FIRST)
        return a;
    else
        return b;
}

extern "C" __global__ void __launch_bounds__(384, 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        gemm_wgmma(const void* map_x, const void* map_w, const float* x_scale, const float* w_scale,
                   int k_tiles, int tiles_m, int tiles_n, EPILOGUE_PARAMETERS) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t base = (shared_address(raw) + 1023u) & ~1023u;
    uint32_t tile_x = base, tile_w = base + STAGES * kTileX, full = tile_w + STAGES * kTileW,
             empty = full + STAGES * 8;
    // Behind the barriers, 16 × kColumns words for each of the eight consumer warps.
    uint8_t* staging = raw + (base - shared_address(raw)) + STAGES * (kTileX + kTileW) + 128;
    // A stage of scales: 128 of x_scale, then four or 128 of w_scale.
    uint8_t* scale_stages = staging + 8 * 16 * kColumns * 4;
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s)
            barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 8 * CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;\n" ::: "memory");
    }
    if (CLUSTER > 1)
        cluster_barrier();
    else
        __syncthreads();

    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (threadIdx.x == 0) {
            uint32_t rank = 0;
            if (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
            int stage = 0;
            uint32_t phase = 0;
            for (int index = blockIdx.x; index < tiles_m * tiles_n; index += gridDim.x) {
                Tile tile(index, tiles_m, tiles_n);
                for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(full + stage * 8, kTileX + kTileW + kScaleBytes);
                    load_box(tile_x + stage * kTileX, map_x, full + stage * 8, k_tile * kTileBytes, tile.row);
                    uint32_t part = tile_w + stage * kTileW + rank * (kTileW / CLUSTER);
                    int column = tile.column + int(rank) * (BN / CLUSTER);
                    if (CLUSTER > 1)
                        load_box_multicast(part, map_w, full + stage * 8, k_tile * kTileBytes, column,
                                           (1 << CLUSTER) - 1);
                    else
                        load_box(part, map_w, full + stage * 8, k_tile * kTileBytes, column);
                    uint32_t scales = shared_address(scale_stages) + stage * kScaleStage;
                    if constexpr (kScaleK == ScaleK::BLOCK) {
                        const float* of_rows = x_scale + size_t(k_tile) * ((m + 255) / 256 * 256) + tile.row;
                        load_bytes(scales, of_rows, 512, full + stage * 8);
                        const float* four =
                            w_scale + size_t(tile.column / 128) * ((k_tiles + 3) / 4 * 4) + k_tile / 4 * 4;
                        load_bytes(scales + 512, four, 16, full + stage * 8);
                    }
                    if constexpr (kScaleK == ScaleK::COLUMN) {
                        const float* of_columns =
                            w_scale + size_t(k_tile) * ((n + 127) / 128 * 128) + tile.column;
                        load_bytes(scales + 512, of_columns, 512, full + stage * 8);
                    }
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        Epilogue e = EPILOGUE;
        int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, half = (warpgroup - 1) * 64;
        int stage = 0;
        uint32_t phase = 0;
        for (int index = blockIdx.x; index < tiles_m * tiles_n; index += gridDim.x) {
            Tile tile(index, tiles_m, tiles_n);
            int first_row = tile.row + half + warp * 16;
            Acc d[BN / 2];
            Total total[kPromote ? BN / 2 : 1];
            auto multiply = [&](Acc(&into)[BN / 2], bool accumulate) {
                barrier_wait(full + stage * 8, phase);
                fence_accumulators(into);
                wgmma_fence();
                uint64_t x = tile_descriptor(tile_x + stage * kTileX + half * kTileBytes);
                uint64_t w = tile_descriptor(tile_w + stage * kTileW);
#pragma unroll
                for (int part = 0; part < 4; ++part)
                    wgmma<kType, BN>(into, x + 2 * part, w + 2 * part, accumulate || part);
                wgmma_commit();
                fence_accumulators(into);
                if (++stage == STAGES) stage = 0, phase ^= 1;
            };
            int oldest = stage;  // the stage to release next
            auto release = [&] {
                if (lane < CLUSTER) barrier_arrive(empty + oldest * 8, lane);
                if (++oldest == STAGES) oldest = 0;
            };
            if constexpr (!kPromote) {
                multiply(d, false);
                for (int k_tile = 1; k_tile < k_tiles; ++k_tile) {
                    multiply(d, true);
                    wgmma_wait<1>();
                    release();
                }
            } else {
                // Two accumulators alternate: one is promoted while the tensor core fills the other.
                Acc other[BN / 2];
                int w_index = 0;  // of the four scales of W loaded with the stage
                auto promote = [&](Acc(&from)[BN / 2]) {
                    fence_accumulators(from);
                    const float* scales = reinterpret_cast<const float*>(scale_stages + oldest * kScaleStage);
                    float upper = 1.0f, lower = 1.0f;
                    if constexpr (kScaleK == ScaleK::BLOCK) {
                        const float* of_row = scales + half + warp * 16 + lane / 4;
                        upper = of_row[0] * scales[128 + w_index], lower = of_row[8] * scales[128 + w_index];
                        w_index = (w_index + 1) % 4;
                        release();
                    }
#pragma unroll
                    for (int j = 0; j < BN / 8; ++j) {
                        float2 column = make_float2(1.0f, 1.0f);
                        if constexpr (kScaleK == ScaleK::COLUMN)
                            column = *reinterpret_cast<const float2*>(scales + 128 + j * 8 + lane % 4 * 2);
                        total[4 * j] = fmaf(upper * column.x, float(from[4 * j]), total[4 * j]);
                        total[4 * j + 1] = fmaf(upper * column.y, float(from[4 * j + 1]), total[4 * j + 1]);
                        total[4 * j + 2] = fmaf(lower * column.x, float(from[4 * j + 2]), total[4 * j + 2]);
                        total[4 * j + 3] = fmaf(lower * column.y, float(from[4 * j + 3]), total[4 * j + 3]);
                    }
                    // Only now: the stage's scales were read in the loop.
                    if constexpr (kScaleK == ScaleK::COLUMN) release();
                };
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) total[i] = 0.0f;
                multiply(d, false);
                int k_tile = 1;
                for (; k_tile + 1 < k_tiles; k_tile += 2) {
                    multiply(other, false);
                    wgmma_wait<1>();
                    promote(d);
                    multiply(d, false);
                    wgmma_wait<1>();
                    promote(other);
                }
                if (k_tile < k_tiles) {
                    multiply(other, false);
                    wgmma_wait<1>();
                    promote(d);
                    wgmma_wait<0>();
                    promote(other);
                } else {
                    wgmma_wait<0>();
                    promote(d);
                }
            }
            // The epilogue's vectors are loaded while the last k-tile is still being multiplied.
            Total* warp_staging = reinterpret_cast<Total*>(staging) + (threadIdx.x / 32 - 4) * 16 * kColumns;
            auto& sums = choose<kPromote>(total, d);
            LaneLayout<kColumns> layout(e, first_row);
            float column_scales[8];
            layout.load_column_scales(e, tile.column, column_scales);
            stage_integer_terms(e, sums, warp_staging, tile.column);
            if constexpr (!kPromote) {
                wgmma_wait<0>();
                fence_accumulators(d);
                release();
            }
            store_fragment(e, sums, warp_staging, first_row, tile.column, layout, column_scales);
        }
    }
    if (CLUSTER > 1) cluster_barrier();
#endif
}
