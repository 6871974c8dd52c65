// Y = X · Wᵀ on Hopper's asynchronous tensor cores: one kernel for every type that wgmma multiplies.
//
// Persistent and warp-specialized: in each CTA a producer thread fills a ring of STAGES in shared memory by
// TMA (one k-tile, 128 bytes of K, a stage), and two consumer warpgroups multiply: beside each other along N
// (ROWS=64), or one above the other with 64 or 128 rows each. The CTAs of a cluster share one side's tile:
// each loads a part and multicasts it. Output tiles are visited in groups of rows, to reuse L2.
//
//   SCALE_K=NONE    scales in the epilogue only
//   SCALE_K=BLOCK   FP8 with x_scale [k_tiles, M] and w_scale [N/128, k_tiles]: the accumulator of each
//                   k-tile is scaled and added to a float32 total (promotion)
//   SCALE_K=COLUMN  promotion with w_scale [k_tiles, N] alone: a scale for each column (int4 groups widened
//                   to 8 bits)
//   GROUPED         rows of X belong to groups, each with a W of its own (experts of a mixture): group g has
//                   rows ends[g-1] ... ends[g], or, with a ``capacity``, the first ends[g] of the rows
//                   g · capacity ...; W is [groups · N, K], w_scale [groups · N/128, k_tiles]. Rows of no
//                   group are not written.
//
// Scales come with their stage, by a bulk copy: loaded by the consumers, each k-tile would wait for global
// memory. Rows of x_scale and w_scale are padded to a multiple of 4 (COLUMN: 128).
//
// Operands are rows of bytes, K-major, each row a multiple of 16 bytes; what lies beyond the matrix reads
// as zero. ``x_rows``: of X's box, all that a CTA waits for: ROWS or, if there are fewer, M; what lies behind
// them in a stage are rows that are not stored. Bytes read per output tile: (ROWS + BN) · K. The grid covers
// tiles_m × tiles_n tiles, which along the shared side's other axis are a multiple of CLUSTER.
// -D: TYPE (tensor_core.cuh), ROWS (64, 128, 256), BN (128, 256), CLUSTER (1, 2), SHARED (W, X: what a
// cluster shares), SCALE_K, GROUPED, OUT (the output's C++ type), STAGES.
// Technique: CUTLASS's and DeepGEMM's documentation of warp-specialized persistent kernels; arXiv
// 2402.13499.
#include "epilogue.cuh"
#include "wgmma.cuh"

enum class ScaleK { NONE, BLOCK, COLUMN };
enum class Side { X, W };

constexpr OperandType kType = OperandType::TYPE;
constexpr ScaleK kScaleK = ScaleK::SCALE_K;
constexpr bool kPromote = kScaleK != ScaleK::NONE, kSharesX = Side::SHARED == Side::X;
using Acc = Accumulator<kType>;
using Total = std::conditional_t<kPromote, float, Acc>;
constexpr int kTileBytes = 128, kStripRows = 2048, kConsumers = 256;
constexpr int kTileX = ROWS * kTileBytes, kTileW = BN * kTileBytes;
// A warpgroup's part of the tile: kPieces of 64 rows, kWide columns.
constexpr int kPieces = ROWS == 256 ? 2 : 1, kWide = ROWS == 64 ? BN / 2 : BN, kSums = kWide / 2;
constexpr int kAcross = kSharesX ? CLUSTER : 1;  // CTAs of a cluster beside each other along N
constexpr int kColumns = kPromote ? 32 : 64;     // of the output, stored at a time
// Scales of a stage: ROWS of x_scale and up to three more, as copies start at multiples of four; then four of
// w_scale for each 128 columns, or 128.
constexpr int kXScales = ROWS + 4, kWScales = kScaleK == ScaleK::COLUMN ? 128 : BN / 128 * 4;
constexpr int kScaleStage = kPromote ? (kXScales + kWScales) * 4 : 0;

// A tile of the output; rows from ``end`` on are not the group's.
struct Tile {
    int row, column, end, group;
};

// Order of tiles for CTAs: tiles in groups of rows of tiles, column by column; the CTAs of a cluster stay
// together.
struct Schedule {
    int tiles_m, tiles_n, m;
    const int *ends, *tiles_before;  // the second in shared memory: [groups + 1]
    int groups, capacity, group = 0;

    __device__ __forceinline__ int first_row(int g) const {
        return capacity ? g * capacity : g ? min(max(ends[g - 1], 0), m) : 0;
    }
    __device__ __forceinline__ int end_row(int g) const {
        int first = first_row(g), end = capacity ? first + min(ends[g], capacity) : min(ends[g], m);
        return max(first, end);
    }
    __device__ __forceinline__ int count() const {
        return GROUPED ? tiles_before[groups] : tiles_m * tiles_n;
    }
    // Later calls ask for later tiles.
    __device__ __forceinline__ Tile tile(int index) {
        int rows_of_tiles = tiles_m, first = 0, end = m;
        if constexpr (GROUPED) {
            while (index >= tiles_before[group + 1]) ++group;
            index -= tiles_before[group];
            rows_of_tiles = (tiles_before[group + 1] - tiles_before[group]) / tiles_n;
            first = first_row(group), end = end_row(group);
        }
        constexpr int kTogether = kStripRows / ROWS;
        int beside = index % kAcross, cell = index / kAcross, across = tiles_n / kAcross;
        int strip = cell / (kTogether * across), left = cell - strip * kTogether * across;
        int height = min(kTogether, rows_of_tiles - strip * kTogether);
        int row = first + (strip * kTogether + left % height) * ROWS;
        // The last tile begins before its turn rather than reach beyond X, for which TMA takes long: the rows
        // of both tiles are computed twice, alike.
        if (!GROUPED) row = min(row, max(0, (m + 3) / 4 * 4 - ROWS));
        return {row, (left / height * kAcross + beside) * BN, end, group};
    }
};

// Fills tiles_before with one warp.
__device__ __forceinline__ void count_tiles(const Schedule& schedule, int* tiles_before) {
    int lane = threadIdx.x, before = 0;
    if (lane == 0) tiles_before[0] = 0;
    for (int first = 0; first < schedule.groups; first += 32) {
        int g = first + lane, tiles = 0;
        if (g < schedule.groups)
            tiles = (schedule.end_row(g) - schedule.first_row(g) + ROWS - 1) / ROWS * schedule.tiles_n;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int lower = __shfl_up_sync(~0u, tiles, step);
            if (lane >= step) tiles += lower;
        }
        if (g < schedule.groups) tiles_before[g + 1] = before + tiles;
        before += __shfl_sync(~0u, tiles, 31);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        gemm_wgmma(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                   const float* x_scale, const float* w_scale, const int* ends, int groups, int capacity,
                   int k_tiles, int x_rows, int tiles_m, int tiles_n, EPILOGUE_PARAMETERS) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t base = (shared_address(raw) + 1023u) & ~1023u;
    uint32_t tile_x = base, tile_w = base + STAGES * kTileX, full = tile_w + STAGES * kTileW,
             empty = full + STAGES * 8;
    // Behind the barriers, 16 × kColumns words for each of the eight consumer warps.
    uint8_t* staging = raw + (base - shared_address(raw)) + STAGES * (kTileX + kTileW) + 128;
    uint8_t* scale_stages = staging + 8 * 16 * kColumns * 4;
    int* tiles_before = reinterpret_cast<int*>(scale_stages + STAGES * kScaleStage);
    Schedule schedule{tiles_m, tiles_n, m, ends, tiles_before, groups, capacity};
    int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // in a uniform register
    if (GROUPED && threadIdx.x < 32) count_tiles(schedule, tiles_before);
    if (threadIdx.x == 0) {
        prefetch_map(map_x), prefetch_map(map_w);
        for (int s = 0; s < STAGES; ++s)
            barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 8 * CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;\n" ::: "memory");
    }
    __syncthreads();
    if (CLUSTER > 1) cluster_barrier();
    int tiles = schedule.count();

    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (threadIdx.x == 0) {
            uint32_t rank = 0;
            if (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
            int stage = 0;
            uint32_t phase = 0;
            // A box of one side: a part of it multicast where the cluster shares it.
            auto load = [&](bool shared, uint32_t to, const CUtensorMap& map, int bytes, int rows, int k_tile,
                            int row) {
                uint32_t bar = full + stage * 8;
                if (shared && CLUSTER > 1)
                    load_box_multicast(to + rank * (bytes / CLUSTER), map, bar, k_tile * kTileBytes,
                                       row + int(rank) * (rows / CLUSTER), (1 << CLUSTER) - 1);
                else
                    load_box(to, map, bar, k_tile * kTileBytes, row);
            };
            int x_stride = (m + 3) / 4 * 4;
            for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
                Tile tile = schedule.tile(index);
                int x_first = min(tile.row / 4 * 4, x_stride - 4),
                    x_count = min(kXScales, x_stride - x_first);
                int scale_bytes = kScaleK == ScaleK::BLOCK    ? (x_count + kWScales) * 4
                                  : kScaleK == ScaleK::COLUMN ? kWScales * 4
                                                              : 0;
                for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(full + stage * 8, x_rows * kTileBytes + kTileW + scale_bytes);
                    load(kSharesX, tile_x + stage * kTileX, map_x, kTileX, ROWS, k_tile, tile.row);
                    load(!kSharesX, tile_w + stage * kTileW, map_w, kTileW, BN, k_tile,
                         tile.group * n + tile.column);
                    uint32_t scales = shared_address(scale_stages) + stage * kScaleStage;
                    if constexpr (kScaleK == ScaleK::BLOCK) {
                        load_bytes(scales, x_scale + size_t(k_tile) * x_stride + x_first, x_count * 4,
                                   full + stage * 8);
                        int blocks_n = (n + 127) / 128, stride = (k_tiles + 3) / 4 * 4;
#pragma unroll
                        for (int i = 0; i < BN / 128; ++i) {
                            int block = tile.group * blocks_n + min(tile.column / 128 + i, blocks_n - 1);
                            load_bytes(scales + (kXScales + i * 4) * 4,
                                       w_scale + size_t(block) * stride + k_tile / 4 * 4, 16,
                                       full + stage * 8);
                        }
                    }
                    if constexpr (kScaleK == ScaleK::COLUMN) {
                        const float* of_columns =
                            w_scale + size_t(k_tile) * ((n + 127) / 128 * 128) + tile.column;
                        load_bytes(scales + kXScales * 4, of_columns, 512, full + stage * 8);
                    }
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        Epilogue e = EPILOGUE;
        int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
        // Position of this warpgroup in the tile.
        int own_row = ROWS == 64 ? 0 : (warpgroup - 1) * 64 * kPieces;
        int own_column = ROWS == 64 ? (warpgroup - 1) * kWide : 0;
        uint64_t first_x = tile_descriptor(tile_x + own_row * kTileBytes);
        uint64_t first_w = tile_descriptor(tile_w + own_column * kTileBytes);
        int stage = 0;
        uint32_t phase = 0;
        if (kPromote && warpgroup == 2) named_barrier_arrive(1, kConsumers);
        for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
            Tile tile = schedule.tile(index);
            if constexpr (GROUPED) e.m = tile.end;
            int first_row = tile.row + own_row + warp * 16, first_column = tile.column + own_column;
            // One piece times the stage's W.
            auto multiply_piece = [&](Acc(&into)[kSums], int piece, bool accumulate) {
                // Warpgroups that promote take turns: otherwise both would promote at the same time, and
                // leave the tensor cores idle.
                if (kPromote) named_barrier_sync(warpgroup, kConsumers);
                fence_accumulators(into);
                wgmma_fence();
                uint64_t x = later(first_x, stage * kTileX + piece * 64 * kTileBytes);
                uint64_t w = later(first_w, stage * kTileW);
#pragma unroll
                for (int part = 0; part < 4; ++part)
                    wgmma<kType, kWide>(into, later(x, 32 * part), later(w, 32 * part), accumulate || part);
                if (kPromote) named_barrier_arrive(3 - warpgroup, kConsumers);
                wgmma_commit();
                fence_accumulators(into);
            };
            auto next_stage = [&] {
                if (++stage == STAGES) stage = 0, phase ^= 1;
            };
            int oldest = stage;  // the stage to release next
            auto release = [&] {
                __syncwarp();
                if (lane < CLUSTER) barrier_arrive(empty + oldest * 8, lane);
                if (++oldest == STAGES) oldest = 0;
            };
            Acc d[kPieces][kSums];
            Total total[kPieces][kSums];
            if constexpr (!kPromote) {
                auto multiply = [&](bool accumulate) {
                    barrier_wait(full + stage * 8, phase);
#pragma unroll
                    for (int piece = 0; piece < kPieces; ++piece) multiply_piece(d[piece], piece, accumulate);
                    next_stage();
                };
                multiply(false);
                for (int k_tile = 1; k_tile < k_tiles; ++k_tile) {
                    multiply(true);
                    wgmma_wait<kPieces>();
                    release();
                }
            } else {
                // The scales of stage ``at`` for this thread's two rows of a piece.
                auto scales_of = [&](int at) {
                    return reinterpret_cast<const float*>(scale_stages + at * kScaleStage);
                };
                auto row_scales = [&](const float* scales, int piece, int k_tile) {
                    if constexpr (kScaleK != ScaleK::BLOCK) return make_float2(1.0f, 1.0f);
                    const float* of_row = scales + tile.row % 4 + own_row + piece * 64 + warp * 16 + lane / 4;
                    float of_w = scales[kXScales + own_column / 128 * 4 + k_tile % 4];
                    return make_float2(of_row[0] * of_w, of_row[8] * of_w);
                };
                auto promote = [&](Total(&to)[kSums], Acc(&from)[kSums], float2 row, const float* scales) {
                    fence_accumulators(from);
#pragma unroll
                    for (int j = 0; j < kWide / 8; ++j) {
                        float2 column = make_float2(1.0f, 1.0f);
                        if constexpr (kScaleK == ScaleK::COLUMN)
                            column =
                                *reinterpret_cast<const float2*>(scales + kXScales + j * 8 + lane % 4 * 2);
                        to[4 * j] = fmaf(row.x * column.x, float(from[4 * j]), to[4 * j]);
                        to[4 * j + 1] = fmaf(row.x * column.y, float(from[4 * j + 1]), to[4 * j + 1]);
                        to[4 * j + 2] = fmaf(row.y * column.x, float(from[4 * j + 2]), to[4 * j + 2]);
                        to[4 * j + 3] = fmaf(row.y * column.y, float(from[4 * j + 3]), to[4 * j + 3]);
                    }
                };
#pragma unroll
                for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
                    for (int i = 0; i < kSums; ++i) total[piece][i] = 0.0f;
                if constexpr (kPieces == 2) {
                    // One accumulator: while a warpgroup promotes, the other one's products run.
                    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
                        barrier_wait(full + stage * 8, phase);
#pragma unroll
                        for (int piece = 0; piece < kPieces; ++piece) {
                            multiply_piece(d[0], piece, false);
                            const float* scales = scales_of(stage);
                            float2 row = row_scales(scales, piece, k_tile);
                            wgmma_wait<0>();
                            if (kScaleK == ScaleK::BLOCK && piece + 1 == kPieces) release();
                            promote(total[piece], d[0], row, scales);
                            if (kScaleK == ScaleK::COLUMN && piece + 1 == kPieces) release();
                        }
                        next_stage();
                    }
                } else {
                    // Two accumulators alternate: one is promoted while the tensor core fills the other.
                    Acc other[kSums];
                    auto multiply = [&](Acc(&into)[kSums]) {
                        barrier_wait(full + stage * 8, phase);
                        multiply_piece(into, 0, false);
                        next_stage();
                    };
                    auto promote_oldest = [&](Acc(&from)[kSums], int k_tile) {
                        const float* scales = scales_of(oldest);
                        float2 row = row_scales(scales, 0, k_tile);
                        if (kScaleK == ScaleK::BLOCK) release();
                        promote(total[0], from, row, scales);
                        // Only now: the stage's scales were read in the loop.
                        if (kScaleK == ScaleK::COLUMN) release();
                    };
                    multiply(d[0]);
                    int k_tile = 1;
                    for (; k_tile + 1 < k_tiles; k_tile += 2) {
                        multiply(other);
                        wgmma_wait<1>();
                        promote_oldest(d[0], k_tile - 1);
                        multiply(d[0]);
                        wgmma_wait<1>();
                        promote_oldest(other, k_tile);
                    }
                    if (k_tile < k_tiles) {
                        multiply(other);
                        wgmma_wait<1>();
                        promote_oldest(d[0], k_tile - 1);
                        wgmma_wait<0>();
                        promote_oldest(other, k_tile);
                    } else {
                        wgmma_wait<0>();
                        promote_oldest(d[0], k_tile - 1);
                    }
                }
            }
            // The epilogue's vectors are loaded while the last k-tile is still being multiplied.
            Total* warp_staging = reinterpret_cast<Total*>(staging) + (threadIdx.x / 32 - 4) * 16 * kColumns;
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                auto& sums = choose<kPromote>(total[piece], d[piece]);
                int row = first_row + piece * 64;
                LaneLayout<kColumns> layout(e, row);
                float column_scales[8];
                layout.load_column_scales(e, first_column, column_scales);
                stage_integer_terms(e, sums, warp_staging, first_column);
                if constexpr (!kPromote) {
                    if (piece == 0) {
                        wgmma_wait<0>();
#pragma unroll
                        for (int i = 0; i < kPieces; ++i) fence_accumulators(d[i]);
                        release();
                    }
                }
                store_fragment(e, sums, warp_staging, row, first_column, layout, column_scales);
            }
        }
    }
    if (CLUSTER > 1) cluster_barrier();
#endif
}
