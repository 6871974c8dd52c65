// Y = X · Wᵀ on Hopper with the operands' sides swapped: rows of W are the 64-row side of wgmma and tokens
// its N columns, so that eight tokens waste nothing of an instruction.
//
// W is either decoded in registers (WBITS > 0, tiles of repack.cu) or multiplied as it is from shared memory.
// A producer fills a ring of STAGES: W's tiles by bulk copies or TMA, X by TMA with the 128-byte swizzle.
// Each of BLOCKS warpgroups multiplies 64 rows of W by TOKENS rows of X; the next codes are decoded while the
// tensor core works on the last. How CTAs share the work:
//
//   STREAMED=0      a CTA multiplies one output tile; those of a cluster share it: each takes a part of K,
//                   and they add their sums through distributed shared memory
//   STREAMED=1      persistent: a CTA multiplies one output tile after another, while the producer fills the
//                   ring for the next one. Split: every CTA takes an equal part of all the K of all tiles
//                   (stream-K, Osama et al., arXiv 2301.03598); sums of a tile that began in another CTA go
//                   to that one through global memory
//
// Sums are added in a fixed order.
//
//   SCALES=ROW      none along K: scales in the epilogue only
//   SCALES=SUM      the sums of each group of K are scaled in float32
//   SCALES=WEIGHT   weights are multiplied by their scale in bfloat16; scales of floats come times a power of
//                   two, which with one in the epilogue's brings a code's bits to its value
//   SCALES=BLOCK    FP8 with x_scale [k_tiles, M] and w_scale [N/128, k_tiles], rows padded to fours
//
// With STEP it is a product of a network's step (step.cuh): norm, residual and gate are joined to it, and
// its last loads are followed by those of the next product's W into L2. All tokens are of one tile.
//
// -D: X_TYPE (tensor_core.cuh), WBITS, CODEC, TWO_BIT (fragments.cuh), TOKENS (8 to 256), BLOCKS, WAYS,
// SCALES, GROUP (elements of K under a scale, at most 128), SCALE_TYPE, ZEROS, STAGES, CTAS (on a
// multiprocessor), SYNCHRONOUS, HALVES (of a repacked tile, a stage each), STREAMED, OUT, STEP. Technique:
// operands swapped for few tokens as in DeepGEMM and Humming; decoding in registers: Marlin, arXiv 2408.11743.
#include "dependent.cuh"
#include "epilogue.cuh"
#include "fragments.cuh"
#include "mma.cuh"
#include "step.cuh"
#include "wgmma.cuh"

enum class Scales { ROW, SUM, WEIGHT, BLOCK };

constexpr OperandType kType = OperandType::X_TYPE;
constexpr Scales kScales = Scales::SCALES;
constexpr bool kDecode = WBITS > 0, kBytes = kType != OperandType::BF16 && kType != OperandType::F16;
constexpr bool kOnSums = kScales == Scales::SUM || kScales == Scales::BLOCK;
constexpr bool kOnWeights = kScales == Scales::WEIGHT;
using Acc = Accumulator<kType>;
using Total = std::conditional_t<kOnSums, float, Acc>;
using Decoder = FragmentDecoder<CODEC, WBITS ? WBITS : 8, TWO_BIT, kBytes, kType == OperandType::E4M3,
                                kScales == Scales::WEIGHT>;

constexpr int kConsumers = 128 * BLOCKS * WAYS, kThreads = kConsumers + 128;
constexpr int kSlab = TOKENS * 128;                          // X: 128 bytes of K of every token
constexpr int kSlabs = kDecode && !kBytes ? 2 / HALVES : 1;  // of a stage
constexpr int kStepsInSlab = 4;                              // a step is 32 bytes of K
constexpr int kSteps = kSlabs * kStepsInSlab;                // of a stage
constexpr int kTileGroups = !kDecode || kScales == Scales::ROW ? 0 : kFragmentK / GROUP;  // of a tile
constexpr int kGroups = kTileGroups > 1 ? kTileGroups / HALVES : kTileGroups;             // of a stage
constexpr int kAllCodes = kFragmentRows * kFragmentK / 8 * WBITS, kCodeBytes = kAllCodes / HALVES;
constexpr int kScaleBytes = kFragmentRows * kTileGroups * int(sizeof(SCALE_TYPE));
constexpr int kScalesAndZeros = kScaleBytes + (ZEROS ? kFragmentRows * kTileGroups : 0);
constexpr int kTileW = kDecode ? kCodeBytes + kScalesAndZeros : kFragmentRows * 128;  // of a stage
constexpr int kBlockScales = kScales == Scales::BLOCK ? TOKENS * 4 + 16 : 0;
constexpr int kTileX = kSlabs * kSlab;
constexpr int kStageX = WAYS * kTileX, kStageW = WAYS * BLOCKS * kTileW;
constexpr int kRowPad = 64 * BLOCKS + 4;  // of the sums in shared memory, against bank conflicts
constexpr int kUnits = 8 * BLOCKS;        // eight rows of W: eight outputs of a token
// Tokens whose sums are in shared memory at a time: all, over the ring, or one unit a thread beside it.
constexpr int kStored = STREAMED && kConsumers / kUnits < TOKENS ? kConsumers / kUnits : TOKENS;
constexpr int kTokensBeside = 4;  // token tiles that are visited together, while a part of W is in L2

constexpr int kRstdBytes = STEP ? TOKENS * 4 : 0;
[[maybe_unused]] constexpr int kNorming = 96;  // the producer's other threads: each adds a token's squares
static_assert(!STEP || std::is_same_v<Total, float>, "what is joined to a product is added in float32");
static_assert(kScales != Scales::BLOCK || WAYS == 1, "a stage holds the scales of one K-tile");
static_assert(HALVES == 1 || (WAYS == 1 && kScales != Scales::SUM),
              "a stage's half and groups are by its index");
static_assert(HALVES == 1 || (kDecode && !kBytes && WBITS != 3), "only whole words of both halves are split");

// Steps that are decoded and issued together: half a tile, as two sets of registers take turns, and all of
// half a tile; whole groups or parts of one.
constexpr int kGroupSteps = kGroups ? kSteps / kGroups : kSteps;
constexpr int kMostChunk = kSteps * HALVES / 2;
constexpr int kChunk = kOnSums && kGroupSteps < kMostChunk ? kGroupSteps : kMostChunk;
[[maybe_unused]] constexpr int kChunks = kSteps / kChunk;
static_assert(!SYNCHRONOUS || !kOnSums || kGroupSteps % 2 == 0,
              "steps are multiplied in twos under one scale");

// Four sums in the shared memory of the cluster's CTA ``rank``, or in this one's.
__device__ __forceinline__ float4 load_sums(uint32_t address, uint32_t rank) {
    float4 v;
    if constexpr (STREAMED) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(address)
                     : "memory");
        return v;
    }
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}\n"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "r"(address), "r"(rank)
        : "memory");
    return v;
}

__device__ __forceinline__ void add(float (&sum)[8], float4 a, int at) {
    sum[at] += a.x, sum[at + 1] += a.y, sum[at + 2] += a.z, sum[at + 3] += a.w;
}
__device__ __forceinline__ void add(int (&sum)[8], float4 a, int at) {
    sum[at] += __float_as_int(a.x), sum[at + 1] += __float_as_int(a.y);
    sum[at + 2] += __float_as_int(a.z), sum[at + 3] += __float_as_int(a.w);
}

// Remaining work on complete sums before the epilogue's scales.
__device__ __forceinline__ void finish(const Epilogue& e, int (&v)[8], int token, int column) {
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] /= Decoder::factor;
    if (e.has_integer_terms()) e.apply_integer_terms(v, token, column);
}
__device__ __forceinline__ void finish(const Epilogue&, float (&)[8], int, int) {}

// A part of an output tile: fills ``first`` to ``last`` of the ring.
struct Part {
    int output, first, last;
};

// Parts that a CTA multiplies, one after another.
struct Parts {
    int fills, at, end;
    bool split;

    // The first fill of CTA ``cta`` among those of all outputs.
    static __device__ __forceinline__ int start(int fills, int outputs, int cta) {
        return int(int64_t(fills) * outputs * cta / gridDim.x);
    }
    __device__ __forceinline__ Parts(int k_fills, int outputs, bool is_split)
        : fills(k_fills), at(blockIdx.x), end(outputs), split(is_split) {
        if (split) at = start(fills, outputs, blockIdx.x), end = start(fills, outputs, blockIdx.x + 1);
    }
    __device__ __forceinline__ bool next(Part& part) {
        if (at >= end) return false;
        if (split) {
            int output = at / fills, first = at - output * fills;
            part = {output, first, min(fills, first + end - at)};
            at += part.last - part.first;
        } else {
            part = {at, 0, fills};
            at += gridDim.x;
        }
        return true;
    }
};

// Waits until another CTA has stored its sums, and takes the flag down for the next launch.
__device__ __forceinline__ void take_flag(int* flag) {
    int up;
    do asm volatile("ld.acquire.gpu.b32 %0, [%1];\n" : "=r"(up) : "l"(flag) : "memory");
    while (!up);
    *flag = 0;
}

// W: tiles of repack.cu [N/64][K/128] (decoded), or a tensor map of its rows.
#if WBITS
#define W_PARAMETER const uint8_t* w
#else
#define W_PARAMETER const __grid_constant__ CUtensorMap w
#endif

// ``k_tiles``: what warpgroups multiply of K between two barriers (128 elements, 64 with HALVES; 128 bytes
// where W is not decoded); a stage of the ring holds WAYS of them. ``x_rows``: of map_x's box, TOKENS or, if
// there are fewer, M: what lies behind them in a stage are tokens that are not stored. STREAMED: ``partial``
// [CTAs][TOKENS / 2][consumer threads] and ``flags`` [CTAs], which are 0 before and after, or null where no
// tile is split.
extern "C" __global__ void __launch_bounds__(kThreads, CTAS)
    gemm_swap_ab(const __grid_constant__ CUtensorMap map_x, W_PARAMETER, const float* x_scale,
                 const float* w_scale, int k_tiles, int x_rows, void* partial, int* flags,
                 EPILOGUE_PARAMETERS STEP_PARAMETER) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t base = (shared_address(raw) + 1023u) & ~1023u;
    uint8_t* memory = raw + (base - shared_address(raw));
    constexpr int kW = STAGES * kStageX, kBlocks = kW + STAGES * kStageW,
                  kFull = kBlocks + STAGES * kBlockScales;
    constexpr int kTable = kFull + STAGES * 16;  // of a codebook
    constexpr int kRstd = kTable + (kDecode ? Decoder::table_bytes : 0);
    constexpr int kSums = STREAMED ? kRstd + kRstdBytes : 0;
    uint32_t full = base + kFull, empty = full + STAGES * 8;
    uint32_t rank = 0, ranks = 1;
    if constexpr (!STREAMED) {
        asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
        asm volatile("mov.u32 %0, %%cluster_nctarank;\n" : "=r"(ranks));
    }
    int fills = (k_tiles + WAYS - 1) / WAYS;  // of a stage, over the whole K
    int row_blocks = (n + 64 * BLOCKS - 1) / (64 * BLOCKS), token_tiles = (m + TOKENS - 1) / TOKENS;
    Parts parts(fills, row_blocks * token_tiles, STREAMED && flags);
    Part part = {0, int(fills * rank / ranks), int(fills * (rank + 1) / ranks)};
    int first_row = blockIdx.x / ranks * (64 * BLOCKS), first_token, own_token;
    // A tile's tokens begin at ``own_token``. Loaded are those from ``first_token`` on, which lies before it
    // where the tile would reach beyond X: TMA takes long for boxes that mostly lie outside.
    auto set_tokens = [&](int own) {
        own_token = own, first_token = min(own, max(0, (m + 3) / 4 * 4 - TOKENS));
    };
    set_tokens(blockIdx.y * TOKENS);
    // Goes on to the next part.
    auto next_part = [&] {
        if (!STREAMED || !parts.next(part)) return false;
        int together = part.output / (kTokensBeside * row_blocks);
        int left = part.output - together * kTokensBeside * row_blocks;
        int beside = min(kTokensBeside, token_tiles - together * kTokensBeside);
        first_row = left / beside * (64 * BLOCKS);
        set_tokens((together * kTokensBeside + left % beside) * TOKENS);
        return true;
    };
    if (STREAMED && !next_part()) return;
    // Asks for W's part of fill ``tile`` of the ring, into a stage, and then for X's.
    auto fill_w = [&](int stage, int tile) {
        uint32_t bar = full + stage * 8;
        [[maybe_unused]] int x_stride = (m + 3) / 4 * 4, x_count = min(TOKENS, x_stride - first_token);
        barrier_expect(bar, WAYS * kSlabs * x_rows * 128 + kStageW + (kBlockScales ? x_count * 4 + 16 : 0));
#pragma unroll
        for (int way = 0; way < WAYS; ++way) {
            int k_tile = tile * WAYS + way;
            uint32_t to = base + kW + stage * kStageW + way * BLOCKS * kTileW;
#if WBITS
            // Blocks beyond the matrix read the last one, and their sums are not stored; K-tiles beyond it
            // read the last one too, and meet zeros of X.
            int last_block = (n + 63) / 64 - 1, of_k = min(k_tile, k_tiles - 1);
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                size_t of =
                    size_t(min(first_row / 64 + block, last_block)) * (k_tiles / HALVES) + of_k / HALVES;
                const uint8_t* from = w + of * (kAllCodes + kScalesAndZeros);
                if constexpr (HALVES == 1) {
                    load_bytes(to + block * kTileW, from, kTileW, bar);
                } else {
                    load_bytes(to + block * kTileW, from + of_k % HALVES * kCodeBytes, kCodeBytes, bar);
                    if constexpr (kScalesAndZeros > 0)
                        load_bytes(to + block * kTileW + kCodeBytes, from + kAllCodes, kScalesAndZeros, bar);
                }
            }
#else
            load_box(to, w, bar, k_tile * 128, first_row);
#endif
        }
    };
    auto fill_x = [&](int stage, int tile) {
        uint32_t bar = full + stage * 8;
#pragma unroll
        for (int way = 0; way < WAYS; ++way) {
#pragma unroll
            for (int slab = 0; slab < kSlabs; ++slab)
                load_box(base + stage * kStageX + way * kTileX + slab * kSlab, map_x, bar,
                         ((tile * WAYS + way) * kSlabs + slab) * 128, first_token);
        }
        if constexpr (kScales == Scales::BLOCK) {
            int x_stride = (m + 3) / 4 * 4, x_count = min(TOKENS, x_stride - first_token);
            uint32_t to = base + kBlocks + stage * kBlockScales;
            load_bytes(to, x_scale + size_t(tile) * x_stride + first_token, x_count * 4, bar);
            load_bytes(to + TOKENS * 4,
                       w_scale + size_t(first_row / 128) * ((k_tiles + 3) / 4 * 4) + tile / 4 * 4, 16, bar);
        }
    };
    // The producer does not wait for the others: barriers and first loads come before what they set up.
    if (threadIdx.x == kConsumers) {
        prefetch_map(map_x);
#if !WBITS
        prefetch_map(w);
#endif
        for (int s = 0; s < STAGES; ++s)
            barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 4 * BLOCKS * WAYS);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;\n" ::: "memory");
        // Kernels launched early may read W, which was stored at load time, but nothing that the kernel
        // before it writes.
        int filled = min(part.last - part.first, STAGES);
        for (int i = 0; i < filled; ++i) fill_w(i, part.first + i);
        dependency_wait();
        let_dependents_launch();
        for (int i = 0; i < filled; ++i) fill_x(i, part.first + i);
    } else if constexpr (kDecode && Decoder::tabled) {
        if (threadIdx.x < kConsumers)
            Decoder::fill_table(reinterpret_cast<uint32_t*>(memory + kTable), threadIdx.x, kConsumers);
    }
    __syncthreads();
    Epilogue e = EPILOGUE;
    [[maybe_unused]] float* rstds = reinterpret_cast<float*>(memory + kRstd);

    // Registers move to the consumers: of 168 · 384, 232 · 256 + 40 · 128; of 80 · 384, 104 · 256 + 32 · 128.
    if (threadIdx.x >= kConsumers) {
        if (BLOCKS * WAYS == 2 && CTAS == 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (BLOCKS * WAYS == 2 && CTAS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;\n");
        if (threadIdx.x == kConsumers) {
            int filled = min(part.last - part.first, STAGES), tile = part.first + filled;
            int stage = filled % STAGES;
            uint32_t phase = filled / STAGES;
            do {
                for (; tile < part.last; ++tile) {
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    fill_w(stage, tile), fill_x(stage, tile);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            } while (next_part() && (tile = part.first, true));
#if STEP
            prefetch_share(step.next, step.next_bytes);
            prefetch_share(step.later, step.later_bytes);
#endif
        }
#if STEP
        if (threadIdx.x >= kConsumers + 128 - kNorming) {
            dependency_wait();
            for (int token = threadIdx.x - (kConsumers + 128 - kNorming); token < min(m, TOKENS);
                 token += kNorming)
                rstds[token] = step.rstd(token);
            named_barrier_arrive(2, kConsumers + kNorming);
        }
#endif
        if constexpr (!STREAMED) {
            __syncwarp();
            cluster_barrier();  // as the others do: in this branch, so that theirs keep their registers
            cluster_barrier();
        }
    } else {
        if (BLOCKS * WAYS == 2 && CTAS == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        if (BLOCKS * WAYS == 2 && CTAS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 104;\n");
        int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // in a uniform register, as descriptors are
        int block = warpgroup % BLOCKS, way = warpgroup / BLOCKS, thread = threadIdx.x % 128,
            lane = threadIdx.x & 31;
        int q = thread / 32 * 16 + lane / 4, t = lane % 4;  // rows q and q + 8 of the block
        Acc acc[TOKENS / 2];
        Total total[kOnSums ? TOKENS / 2 : 1];
        int stage = 0, oldest = 0;
        uint32_t phase = 0;
        auto release = [&] {
            __syncwarp();
            if (lane == 0)
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(empty + oldest * 8)
                             : "memory");
            if (++oldest == STAGES) oldest = 0;
        };
        auto x_at = [&](int s, int step) {
            uint32_t slab = base + s * kStageX + way * kTileX + step / kStepsInSlab * kSlab;
            return tile_descriptor(slab) + 2 * (step % kStepsInSlab);
        };
        // total += upper · rows q, lower · rows q + 8.
        auto promote = [&](float upper, float lower) {
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i += 4) {
                total[i] = fmaf(upper, float(acc[i]), total[i]);
                total[i + 1] = fmaf(upper, float(acc[i + 1]), total[i + 1]);
                total[i + 2] = fmaf(lower, float(acc[i + 2]), total[i + 2]);
                total[i + 3] = fmaf(lower, float(acc[i + 3]), total[i + 3]);
            }
        };
        // B of two steps' mma.sync: 64 bytes of K of eight tokens, from a slab with TMA's swizzle.
        [[maybe_unused]] auto load_b = [&](int s, int step, int tokens, uint32_t (&b)[4]) {
            int token = tokens + lane % 8, chunk = step % kStepsInSlab * 2 + lane / 8;
            uint32_t slab = base + s * kStageX + way * kTileX + step / kStepsInSlab * kSlab;
            ldmatrix_x4(b, slab + token * 128 + ((chunk ^ token % 8) << 4));
        };
        [[maybe_unused]] bool normed = false;
        do {
            const int first = part.first, last = part.last;
#pragma unroll
            for (int i = 0; i < TOKENS / 2; ++i) {
                if constexpr (SYNCHRONOUS) acc[i] = 0;  // else the first product does not add
                if constexpr (kOnSums) total[i] = 0;
            }
            if constexpr (kDecode) {
                Decoder decoder;
                decoder.table = base + kTable, decoder.lane_bytes = lane * 4;
                uint32_t words[Decoder::words], scales[kOnWeights ? 2 * kGroups : 1];
                [[maybe_unused]] uint32_t a[2][kChunk][4];
                constexpr int kZeros = ZEROS ? kGroups : 1;
                uint32_t offsets[kZeros][2];
                if constexpr (!ZEROS) offsets[0][0] = offsets[0][1] = Decoder::offset(0);
                auto load = [&](int tile) {
                    barrier_wait(full + stage * 8, phase);
                    const int at = kTileGroups > 1 ? tile % HALVES * kGroups : 0;  // of a row's groups
                    const uint8_t* codes = memory + kW + stage * kStageW + (way * BLOCKS + block) * kTileW;
#pragma unroll
                    for (int i = 0; i < WBITS / HALVES; ++i) {
                        uint2 two = reinterpret_cast<const uint2*>(codes)[i * 128 + thread];
                        words[2 * i] = two.x, words[2 * i + 1] = two.y;
                    }
                    if constexpr (kOnWeights) {
                        constexpr int kPairs = kGroups > 1 ? kGroups / 2 : 1;
                        const auto* of = reinterpret_cast<const __nv_bfloat16*>(codes + kCodeBytes);
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            uint32_t pairs[kPairs];
                            if constexpr (kGroups > 1)
                                load_vector(of + (q + 8 * half) * kTileGroups + at, pairs);
                            else
                                pairs[0] =
                                    as_bits(__bfloat162bfloat162(of[(q + 8 * half) * kTileGroups + at]));
#pragma unroll
                            for (int g = 0; g < kGroups; ++g)
                                scales[2 * g + half] = __byte_perm(pairs[g / 2], 0u, g % 2 ? 0x3232 : 0x1010);
                        }
                    }
                    if constexpr (ZEROS) {
                        const auto* of = reinterpret_cast<const int8_t*>(codes + kCodeBytes + kScaleBytes);
#pragma unroll
                        for (int g = 0; g < kGroups; ++g) {
                            offsets[g][0] = Decoder::offset(of[q * kTileGroups + at + g]);
                            offsets[g][1] = Decoder::offset(of[(q + 8) * kTileGroups + at + g]);
                        }
                    }
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                };
                auto load_group_scales = [&](int s, float (&to)[kScales == Scales::SUM ? 2 * kGroups : 1]) {
                    if constexpr (kScales == Scales::SUM) {
                        const auto* of = reinterpret_cast<const SCALE_TYPE*>(
                            memory + kW + s * kStageW + (way * BLOCKS + block) * kTileW + kCodeBytes);
#pragma unroll
                        for (int g = 0; g < kGroups; ++g) {
                            to[2 * g] = float(of[q * kGroups + g]),
                                   to[2 * g + 1] = float(of[(q + 8) * kGroups + g]);
                        }
                    }
                };
                auto decode_step = [&](int step, uint32_t (&to)[4]) {
                    int g = kGroups ? step / kGroupSteps : 0;
                    decoder.decode(words, step, offsets[ZEROS ? g : 0], to);
                    if constexpr (kOnWeights) {
#pragma unroll
                        for (int r = 0; r < 4; ++r)
                            to[r] = as_bits(__hmul2(as_pair(to[r]), as_pair(scales[2 * g + (r & 1)])));
                    }
                };
                [[maybe_unused]] auto decode = [&](int chunk, uint32_t (&to)[kChunk][4]) {
#pragma unroll
                    for (int i = 0; i < kChunk; ++i) decode_step(chunk * kChunk + i, to[i]);
                };
#if SYNCHRONOUS
                Acc odd[TOKENS / 2] = {};  // the odd steps' sums: two shorter chains of dependent products
                for (int tile = first; tile < last; ++tile) {
                    int now = stage;
                    load(tile);
                    float group_scales[kScales == Scales::SUM ? 2 * kGroups : 1];
                    load_group_scales(now, group_scales);
#pragma unroll
                    for (int step = 0; step < kSteps; step += 2) {
                        uint32_t of_w[2][4];
                        decode_step(step, of_w[0]), decode_step(step + 1, of_w[1]);
#pragma unroll
                        for (int tokens = 0; tokens < TOKENS; tokens += 8) {
                            uint32_t b[4];
                            load_b(now, step, tokens, b);
                            mma<kType>(acc, tokens / 2, of_w[0], {b[0], b[1]});
                            mma<kType>(odd, tokens / 2, of_w[1], {b[2], b[3]});
                        }
                        if (kOnSums && (step + 2) % kGroupSteps == 0) {
                            int g = step / kGroupSteps;
                            constexpr float kShare = 1.0f / Decoder::factor;
#pragma unroll
                            for (int i = 0; i < TOKENS / 2; ++i) acc[i] += odd[i], odd[i] = 0;
                            promote(group_scales[2 * g] * kShare, group_scales[2 * g + 1] * kShare);
#pragma unroll
                            for (int i = 0; i < TOKENS / 2; ++i) acc[i] = 0;
                        }
                    }
                    release();
                }
#pragma unroll
                for (int i = 0; i < TOKENS / 2; ++i) acc[i] += odd[i];
#else
                if (first < last) load(first), decode(0, a[0]);
                // Multiplies what ``a[turn]`` and then the other hold of a tile, and leaves the next tile's.
                auto multiply = [&](int tile, auto which) {
                    constexpr int turn = decltype(which)::value;
                    int now = stage == 0 ? STAGES - 1 : stage - 1;
                    float group_scales[kScales == Scales::SUM ? 2 * kGroups : 1];
                    load_group_scales(now, group_scales);
#pragma unroll
                    for (int chunk = 0; chunk < kChunks; ++chunk) {
                        constexpr int kPerGroup = kOnSums ? kGroupSteps / kChunk : 1;
                        auto& current = a[(chunk + turn) & 1];
                        auto& next = a[~(chunk + turn) & 1];
                        bool fresh = kOnSums ? chunk % kPerGroup == 0 : chunk == 0 && tile == first;
                        fence_accumulators(acc);
                        wgmma_fence();
#pragma unroll
                        for (int i = 0; i < kChunk; ++i)
                            if constexpr (kDecode)  // else there may be no such form
                                wgmma<kType, TOKENS>(acc, current[i], x_at(now, chunk * kChunk + i),
                                                     !fresh || i);
                        wgmma_commit();
                        wgmma_wait<1>();
                        // The chunk before this is done: its registers may be written again.
#pragma unroll
                        for (int i = 0; i < kChunk; ++i) fence_accumulators(next[i]);
                        if (!kOnSums && chunk == 0 && tile > first) release();
                        if (chunk + 1 < kChunks)
                            decode(chunk + 1, next);
                        else if (tile + 1 < last)
                            load(tile + 1), decode(0, next);
                        if constexpr (kOnSums) {
                            if ((chunk + 1) % kPerGroup == 0) {
                                wgmma_wait<0>();
                                fence_accumulators(acc);
                                if (chunk + 1 == kChunks) release();
                                int g = chunk / kPerGroup;
                                constexpr float kShare = 1.0f / Decoder::factor;
                                promote(group_scales[2 * g] * kShare, group_scales[2 * g + 1] * kShare);
                            }
                        }
                    }
                };
                constexpr int kInTurn =
                    kChunks % 2 ? 2 : 1;  // tiles until the first registers' turn comes again
                for (int tile = first; tile < last; tile += kInTurn) {
                    multiply(tile, std::integral_constant<int, 0>());
                    if (kInTurn == 2 && tile + 1 < last) multiply(tile + 1, std::integral_constant<int, 1>());
                }
                wgmma_wait<0>();
#pragma unroll
                for (int i = 0; i < kChunk; ++i) fence_accumulators(a[0][i]), fence_accumulators(a[1][i]);
#endif
            } else {
                for (int tile = first; tile < last; ++tile) {
                    barrier_wait(full + stage * 8, phase);
                    fence_accumulators(acc);
                    wgmma_fence();
                    uint64_t rows =
                        tile_descriptor(base + kW + stage * kStageW + (way * BLOCKS + block) * kTileW);
#pragma unroll
                    for (int step = 0; step < kSteps; ++step)
                        wgmma<kType, TOKENS>(acc, rows + 2 * step, x_at(stage, step),
                                             kScales == Scales::BLOCK ? step : tile > first || step);
                    wgmma_commit();
                    if constexpr (kScales == Scales::BLOCK) {
                        const float* of =
                            reinterpret_cast<const float*>(memory + kBlocks + stage * kBlockScales);
                        float2 x_scales[TOKENS / 8];
                        float of_block = of[TOKENS + tile % 4];
#pragma unroll
                        for (int j = 0; j < TOKENS / 8; ++j)
                            x_scales[j] = *reinterpret_cast<const float2*>(of + j * 8 + 2 * t);
                        wgmma_wait<0>();
                        fence_accumulators(acc);
                        release();
#pragma unroll
                        for (int j = 0; j < TOKENS / 8; ++j) {
                            float even = x_scales[j].x * of_block, odd = x_scales[j].y * of_block;
                            total[4 * j] = fmaf(even, acc[4 * j], total[4 * j]);
                            total[4 * j + 1] = fmaf(odd, acc[4 * j + 1], total[4 * j + 1]);
                            total[4 * j + 2] = fmaf(even, acc[4 * j + 2], total[4 * j + 2]);
                            total[4 * j + 3] = fmaf(odd, acc[4 * j + 3], total[4 * j + 3]);
                        }
                    } else {
                        wgmma_wait<1>();
                        if (tile > first) release();
                    }
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
                wgmma_wait<0>();
            }
            fence_accumulators(acc);
            // Release now, if they multiplied after the last release.
            if constexpr (STREAMED && !kOnSums && !SYNCHRONOUS) release();
            auto& sums = choose<kOnSums>(total, acc);
            dependency_wait();  // before anything is written
            if constexpr (STREAMED) {
                auto of_cta = [&](int cta) {
                    return static_cast<Total*>(partial) + size_t(cta) * (TOKENS / 2 * kConsumers) +
                           threadIdx.x;
                };
                if (part.first > 0) {  // the tile began in another CTA
                    Total* to = of_cta(blockIdx.x);
#pragma unroll
                    for (int i = 0; i < TOKENS / 2; ++i) __stcg(to + i * kConsumers, sums[i]);
                    __threadfence();
                    named_barrier_sync(1, kConsumers);
                    if (threadIdx.x == 0)
                        asm volatile("st.release.gpu.b32 [%0], 1;\n" ::"l"(flags + blockIdx.x) : "memory");
                    continue;
                }
                // The later parts of a tile that began here are added.
                int end = (part.output + 1) * fills;
                for (int cta = blockIdx.x + 1;
                     part.last < fills && Parts::start(fills, row_blocks * token_tiles, cta) < end; ++cta) {
                    if (threadIdx.x == 0) take_flag(flags + cta);
                    named_barrier_sync(1, kConsumers);
                    const Total* from = of_cta(cta);
#pragma unroll
                    for (int i = 0; i < TOKENS / 2; ++i) sums[i] += __ldcg(from + i * kConsumers);
                }
            }
            // A thread's units are all of the same eight rows of W.
            int column = first_row + threadIdx.x % kUnits * 8;
            float scales[8];
            e.load_column_scales(min(column, (e.n - 1) / 8 * 8), scales);
            Total* mine = reinterpret_cast<Total*>(memory + kSums) + way * kStored * kRowPad;
#if STEP
            StepStore<kUnits> store(step, e, column, first_row / (64 * BLOCKS), row_blocks);
            if (!normed) named_barrier_sync(2, kConsumers + kNorming), normed = true;
#endif
#pragma unroll
            for (int stored = 0; stored < TOKENS; stored += kStored) {
                // Every load has arrived and was multiplied, in all warpgroups, and the ring's memory takes
                // the sums; or, beside the ring, all have read the last ones.
                named_barrier_sync(1, kConsumers);
#pragma unroll
                for (int i = stored / 2; i < (stored + kStored) / 2; ++i) {
                    int token = i / 4 * 8 + 2 * t + (i & 1) - stored, row = block * 64 + q + (i & 2) * 4;
                    mine[token * kRowPad + row] = sums[i];
                }
#if STEP
                store.load(stored + (int(rank) * kConsumers + int(threadIdx.x)) / kUnits);
#endif
                if constexpr (STREAMED)
                    named_barrier_sync(1, kConsumers);
                else
                    cluster_barrier();
                for (int i = int(rank) * kConsumers + threadIdx.x; i < kStored * kUnits;
                     i += int(ranks) * kConsumers) {
                    int token = first_token + stored + i / kUnits;
                    if (!STEP && (token < own_token || token >= e.m || column >= e.n)) continue;
                    uint32_t at = base + kSums + ((i / kUnits) * kRowPad + i % kUnits * 8) * 4;
                    Total v[8] = {};
                    for (uint32_t from = 0; from < ranks; ++from) {
#pragma unroll
                        for (int of = 0; of < WAYS; ++of) {
                            uint32_t there = at + of * kStored * kRowPad * 4;
                            add(v, load_sums(there, from), 0), add(v, load_sums(there + 16, from), 4);
                        }
                    }
#if STEP
                    store(v, rstds[token], scales, token);
                    store.load(token + int(ranks) * kConsumers / kUnits);
                    continue;
#endif
                    finish(e, v, token, column);
                    union Eight {
                        Result value[8];
                        uint4 chunk[sizeof(Result) / 2];
                    } eight;
                    Result* to = e.out + size_t(token) * e.n + column;
                    if (e.only_scales()) {
                        e.apply<true>(v, e.load_row_scale(token), column, scales, eight.value);
#pragma unroll
                        for (int k = 0; k < sizeof(Result) / 2; ++k)
                            reinterpret_cast<uint4*>(to)[k] = eight.chunk[k];
                    } else {
                        e.apply<false>(v, e.load_row_scale(token), column, scales, eight.value);
                        for (int k = 0; k < 8; ++k)
                            if (column + k < e.n) to[k] = eight.value[k];
                    }
                }
            }
        } while (next_part());
        if constexpr (!STREAMED) cluster_barrier();  // until the others have read this CTA's sums
    }
#endif
}
