// Attention of a step by the products of its block alone (Hopper): queries, the new key and value as the
// product of query, key and value leaves them. They get their norms and their rotation here, and the new key
// and value their place in the cache.
//
// The CTAs of a cluster share the keys of GROUP query heads, and the kLanes lanes of a team a key. Keys of
// earlier steps are loaded while the kernel before this one ends. Teams, warps and CTAs hold sums of
// softmax(q·k)·v (online softmax: Milakov and Gimelshein, arXiv 1805.02867; keys in parts: Flash-Decoding,
// Dao et al. 2023), which are added in a fixed order, at last through distributed shared memory: the same
// inputs give the same bits.
//
// -D: HEAD (elements of a head: 64 or 128), GROUP (query heads that share a cluster's keys, at most 4).
#include <cuda_bf16.h>

#include <cstdint>

#include "dependent.cuh"

constexpr int kElements = 8, kLanes = HEAD / kElements, kThreads = 256, kWarps = kThreads / 32;
constexpr int kTeams = kThreads / kLanes, kAtOnce = 2, kStep = kTeams * kAtOnce, kMostRanks = 8;
static_assert(HEAD == 64 || HEAD == 128, "the teams of a warp are whole");

// Eight bfloat16. Loads bypass L1, which may hold what lay there before the last kernels wrote.
struct Row {
    uint4 words;

    __device__ __forceinline__ Row() : words() {}
    __device__ __forceinline__ explicit Row(const __nv_bfloat16* at)
        : words(__ldcg(reinterpret_cast<const uint4*>(at))) {}
    __device__ __forceinline__ explicit Row(const float (&values)[kElements]) {
        __nv_bfloat162 pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) pairs[j] = __floats2bfloat162_rn(values[2 * j], values[2 * j + 1]);
        words = *reinterpret_cast<const uint4*>(pairs);
    }
    __device__ __forceinline__ void as_floats(float (&values)[kElements]) const {
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            values[2 * j] = __uint_as_float(word[j] << 16);
            values[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
        }
    }
};

// 2^(x - y), 0 where x is -inf, whatever y.
__device__ __forceinline__ float weight(float x, float y) { return x == -INFINITY ? 0.0f : exp2f(x - y); }

__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
#endif
}

// A word in the shared memory of the cluster's CTA ``rank``.
__device__ __forceinline__ float load_shared(const float& own, int rank) {
    float v = 0.0f;
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\n"
        "ld.shared::cluster.f32 %0, [there];\n}\n"
        : "=f"(v)
        : "r"(uint32_t(__cvta_generic_to_shared(&own))), "r"(rank)
        : "memory");
#endif
    return v;
}

// Sums over the keys so far of GROUP query heads, eight elements a lane.
struct Sums {
    float sums[GROUP][kElements], most[GROUP], total[GROUP];

    // Adds N keys and values of a team, kTeams apart; those from ``end`` on do not count.
    template <int N>
    __device__ __forceinline__ void add(const float (&query)[GROUP][kElements], const Row (&k)[N],
                                        const Row (&v)[N], int at, int end) {
        uint32_t team = (kLanes == 16 ? 0xffffu : 0xffu) << (threadIdx.x % 32 / kLanes * kLanes);
        float scores[GROUP][N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float key[kElements];
            k[j].as_floats(key);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < kElements; ++i) dot = fmaf(query[g][i], key[i], dot);
                scores[g][j] = dot;
            }
        }
#pragma unroll
        for (int offset = 1; offset < kLanes; offset *= 2)
#pragma unroll
            for (int g = 0; g < GROUP; ++g)
#pragma unroll
                for (int j = 0; j < N; ++j) scores[g][j] += __shfl_xor_sync(team, scores[g][j], offset);
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float highest = most[g];
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if (at + j * kTeams >= end) scores[g][j] = -INFINITY;
                highest = fmaxf(highest, scores[g][j]);
            }
            float kept = weight(most[g], highest);
            most[g] = highest, total[g] *= kept;
#pragma unroll
            for (int i = 0; i < kElements; ++i) sums[g][i] *= kept;
        }
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float value[kElements];
            v[j].as_floats(value);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float p = weight(scores[g][j], most[g]);
                total[g] += p;
#pragma unroll
                for (int i = 0; i < kElements; ++i) sums[g][i] = fmaf(p, value[i], sums[g][i]);
            }
        }
    }
};

// qkv [texts, rows of queries, keys and values of all heads]; cosines and sines [room, HEAD] of the rotation;
// query_norm and key_norm [HEAD] or null; keys and values [texts, groups, room, HEAD]; before: tokens before
// this one. scale: of the scores, times log2(e). out [texts, heads, HEAD]. grid (splits, groups · parts,
// texts), splits in a cluster.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    attend_step(const __nv_bfloat16* qkv, const __nv_bfloat16* cosines, const __nv_bfloat16* sines,
                const __nv_bfloat16* query_norm, const __nv_bfloat16* key_norm, __nv_bfloat16* keys,
                __nv_bfloat16* values, const int64_t* before, __nv_bfloat16* out, int groups, int parts,
                int room, float scale, float epsilon) {
    int split = blockIdx.x, splits = gridDim.x, used = min(int(__ldcg(before)), room - 1);
    int heads = groups * parts * GROUP, head = blockIdx.y * GROUP, group = blockIdx.y / parts;
    int each = (used + splits - 1) / splits, first = min(split * each, used), end = min(first + each, used);
    int lane = threadIdx.x % kLanes, team = threadIdx.x / kLanes, element = lane * kElements;
    auto place = [&](int key) {
        return (size_t(blockIdx.z * groups + group) * room + key) * HEAD + element;
    };
    qkv += size_t(blockIdx.z) * (heads + 2 * groups) * HEAD;

    Row k[2][kAtOnce], v[2][kAtOnce];
    auto load = [&](int at, Row(&of_k)[kAtOnce], Row(&of_v)[kAtOnce]) {
        if (at >= end) return;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) of_k[j] = Row(keys + place(min(at + j * kTeams, end - 1)));
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) of_v[j] = Row(values + place(min(at + j * kTeams, end - 1)));
    };
    load(first + team, k[0], v[0]);
    load(first + team + kStep, k[1], v[1]);
    Row of_cosine(cosines + size_t(used) * HEAD + element), of_sine(sines + size_t(used) * HEAD + element);
    dependency_wait();
    let_dependents_launch();

    // A head's elements by its norm and its rotation; by whole warps.
    auto rotated = [&](Row row, const __nv_bfloat16* norm) {
        float own[kElements], other[kElements], gain[kElements];
        row.as_floats(own);
        if (norm) {
            float square = 0.0f;
#pragma unroll
            for (int i = 0; i < kElements; ++i) square = fmaf(own[i], own[i], square);
#pragma unroll
            for (int offset = 1; offset < kLanes; offset *= 2) square += __shfl_xor_sync(~0u, square, offset);
            float rstd = rsqrtf(square / HEAD + epsilon);
            Row(norm + element).as_floats(gain);
#pragma unroll
            for (int i = 0; i < kElements; ++i) own[i] *= rstd;
            row = Row(own), row.as_floats(own);
#pragma unroll
            for (int i = 0; i < kElements; ++i) own[i] *= gain[i];
            row = Row(own), row.as_floats(own);
            row = Row(own), row.as_floats(own);
        }
        uint32_t* word = &row.words.x;
#pragma unroll
        for (int i = 0; i < 4; ++i) word[i] = __shfl_xor_sync(~0u, word[i], kLanes / 2);
        row.as_floats(other);
        float cosine[kElements], sine[kElements], sign = lane < kLanes / 2 ? -1.0f : 1.0f;
        of_cosine.as_floats(cosine), of_sine.as_floats(sine);
#pragma unroll
        for (int i = 0; i < kElements; ++i) own[i] = fmaf(own[i], cosine[i], sign * other[i] * sine[i]);
        return Row(own);
    };
    float query[GROUP][kElements];
    {
        Row rows[GROUP];
#pragma unroll
        for (int g = 0; g < GROUP; ++g) rows[g] = Row(qkv + (head + g) * HEAD + element);
#pragma unroll
        for (int g = 0; g < GROUP; ++g) rotated(rows[g], query_norm).as_floats(query[g]);
    }
    Sums here;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        here.most[g] = -INFINITY, here.total[g] = 0.0f;
#pragma unroll
        for (int i = 0; i < kElements; ++i) query[g][i] *= scale, here.sums[g][i] = 0.0f;
    }
    if (split == splits - 1 && threadIdx.x < 32) {  // the new key: a warp rotates it, one team adds it
        const __nv_bfloat16* of = qkv + (heads + group) * HEAD;
        Row new_k[1] = {rotated(Row(of + element), key_norm)}, new_v[1] = {Row(of + groups * HEAD + element)};
        if (team == 0) {
            here.add(query, new_k, new_v, 0, 1);
            if (blockIdx.y % parts == 0) {
                *reinterpret_cast<uint4*>(keys + place(used)) = new_k[0].words;
                *reinterpret_cast<uint4*>(values + place(used)) = new_v[0].words;
            }
        }
    }
    for (int at = first + team; at < end; at += 2 * kStep) {
        here.add(query, k[0], v[0], at, end);
        load(at + 2 * kStep, k[0], v[0]);
        if (at + kStep < end) here.add(query, k[1], v[1], at + kStep, end);
        load(at + 3 * kStep, k[1], v[1]);
    }
    __syncwarp();

    // The teams of a warp, the warps, and the CTAs of the cluster.
    __shared__ float warp_sums[kWarps][GROUP][HEAD], warp_most[kWarps][GROUP], warp_total[kWarps][GROUP];
    __shared__ float own_sums[GROUP][HEAD], own_most[GROUP], own_total[GROUP];
    int warp = threadIdx.x / 32;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        float highest = here.most[g];
#pragma unroll
        for (int offset = kLanes; offset < 32; offset *= 2)
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, offset));
        float kept = weight(here.most[g], highest), total = here.total[g] * kept;
#pragma unroll
        for (int offset = kLanes; offset < 32; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            float sum = here.sums[g][i] * kept;
#pragma unroll
            for (int offset = kLanes; offset < 32; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
            if (threadIdx.x % 32 < kLanes) warp_sums[warp][g][element + i] = sum;
        }
        if (threadIdx.x % 32 == 0) warp_most[warp][g] = highest, warp_total[warp][g] = total;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < GROUP * HEAD; i += kThreads) {
        int g = i / HEAD;
        float highest = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, warp_most[w][g]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            float kept = weight(warp_most[w][g], highest);
            sum = fmaf(kept, warp_sums[w][g][i % HEAD], sum), total = fmaf(kept, warp_total[w][g], total);
        }
        own_sums[g][i % HEAD] = sum;
        if (i % HEAD == 0) own_most[g] = highest, own_total[g] = total;
    }
    if (splits > 1)
        cluster_barrier();
    else
        __syncthreads();
    int share = GROUP * HEAD / splits;
    for (int i = split * share + threadIdx.x; i < (split + 1) * share; i += kThreads) {
        int g = i / HEAD;
        float most[kMostRanks], totals[kMostRanks], sums[kMostRanks];
        float highest = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int r = 0; r < kMostRanks; ++r) {
            if (r >= splits) break;
            most[r] = load_shared(own_most[g], r), totals[r] = load_shared(own_total[g], r);
            sums[r] = load_shared(own_sums[g][i % HEAD], r);
        }
#pragma unroll
        for (int r = 0; r < kMostRanks; ++r)
            if (r < splits) highest = fmaxf(highest, most[r]);
#pragma unroll
        for (int r = 0; r < kMostRanks; ++r) {
            if (r >= splits) break;
            float kept = weight(most[r], highest);
            sum = fmaf(kept, sums[r], sum), total = fmaf(kept, totals[r], total);
        }
        out[(size_t(blockIdx.z) * heads + head) * HEAD + i] = __float2bfloat16(sum / total);
    }
    if (splits > 1) cluster_barrier();  // until the others have read this CTA's sums
}
