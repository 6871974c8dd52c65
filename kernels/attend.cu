// Attention of one token a text over a cache of keys and values of fixed room, for grouped queries.
//
// Keys are divided among CTAs (``splits``), and those of a CTA among groups of eight lanes, each of which
// holds its sums of softmax(q·k)·v for GROUP query heads (online softmax: Milakov and Gimelshein, arXiv
// 1805.02867; keys in parts: Flash-Decoding, Dao et al. 2023). The last CTA of a head to end adds the parts
// in order, so that the same inputs give the same bits.
//
// -D: HEAD (elements of a head: 64 or 128), GROUP (query heads that share a CTA's keys, at most 4).
#include <cuda_bf16.h>

#include <cstdint>

#include "dependent.cuh"

constexpr int kLanes = 8, kElements = HEAD / kLanes, kThreads = 128, kWarps = kThreads / 32;
constexpr int kTeams = kThreads / kLanes, kAtOnce = 2, kStep = kTeams * kAtOnce;
constexpr int kPart = GROUP * (HEAD + 2);  // floats of a part: sums, then the maximum and the sum of weights
static_assert(HEAD == 64 || HEAD == 128, "a lane holds 8 or 16 elements");

struct Row {
    uint4 words[kElements / 8];
};

__device__ __forceinline__ Row load_row(const __nv_bfloat16* rows, int row, int lane) {
    Row found;
    const uint4* from = reinterpret_cast<const uint4*>(rows + size_t(row) * HEAD + lane * kElements);
#pragma unroll
    for (int i = 0; i < kElements / 8; ++i) found.words[i] = from[i];
    return found;
}

__device__ __forceinline__ void as_floats(const Row& row, float (&values)[kElements]) {
#pragma unroll
    for (int i = 0; i < kElements / 8; ++i) {
        const uint32_t word[4] = {row.words[i].x, row.words[i].y, row.words[i].z, row.words[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            values[8 * i + 2 * j] = __uint_as_float(word[j] << 16);
            values[8 * i + 2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
        }
    }
}

// 2^(x - y), 0 where x is -inf, whatever y.
__device__ __forceinline__ float weight(float x, float y) { return x == -INFINITY ? 0.0f : exp2f(x - y); }

// q [texts, heads · parts · GROUP, HEAD], keys and values [texts, heads, room, HEAD], before: tokens before
// this one, whose keys and values are written; scale: of the scores, times log2(e). partial: kPart floats a
// split; done: 0 between launches. grid (splits, heads · parts, texts).
extern "C" __global__ void __launch_bounds__(kThreads)
    attend(const __nv_bfloat16* q, const __nv_bfloat16* keys, const __nv_bfloat16* values,
           const int64_t* before, float* partial, uint32_t* done, __nv_bfloat16* out, int heads, int parts,
           int room, float scale) {
    // Not follow(): a kernel launched early after this one may read what kernels before this one wrote.
    dependency_wait();
    let_dependents_launch();
    int split = blockIdx.x, splits = gridDim.x, count = min(int(*before) + 1, room);
    int unit = blockIdx.z * gridDim.y + blockIdx.y, head = blockIdx.z * heads + blockIdx.y / parts;
    int each = ((count + kStep - 1) / kStep + splits - 1) / splits * kStep;
    int first = split * each, end = min(first + each, count);
    int lane = threadIdx.x % kLanes, team = threadIdx.x / kLanes;
    keys += size_t(head) * room * HEAD, values += size_t(head) * room * HEAD;

    float query[GROUP][kElements], sums[GROUP][kElements], most[GROUP], total[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        as_floats(load_row(q, unit * GROUP + g, lane), query[g]);
        most[g] = -INFINITY, total[g] = 0.0f;
#pragma unroll
        for (int i = 0; i < kElements; ++i) query[g][i] *= scale, sums[g][i] = 0.0f;
    }
    Row next_k[kAtOnce], next_v[kAtOnce];
    auto load = [&](int at) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) next_k[j] = load_row(keys, min(at + j * kTeams, end - 1), lane);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) next_v[j] = load_row(values, min(at + j * kTeams, end - 1), lane);
    };
    if (first + team < end) load(first + team);
    for (int at = first + team; at < end; at += kStep) {
        Row k[kAtOnce], v[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) k[j] = next_k[j], v[j] = next_v[j];
        if (at + kStep < end) load(at + kStep);
        float scores[GROUP][kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            float key[kElements];
            as_floats(k[j], key);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < kElements; ++i) dot = fmaf(query[g][i], key[i], dot);
                scores[g][j] = dot;
            }
        }
        // Lanes of a team leave the loop together: they have the same ``at``.
        uint32_t together = 0xffu << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float highest = most[g];
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
                for (int offset = 1; offset < kLanes; offset *= 2)
                    scores[g][j] += __shfl_xor_sync(together, scores[g][j], offset);
                if (at + j * kTeams >= end) scores[g][j] = -INFINITY;
                highest = fmaxf(highest, scores[g][j]);
            }
            float kept = weight(most[g], highest);
            most[g] = highest, total[g] *= kept;
#pragma unroll
            for (int i = 0; i < kElements; ++i) sums[g][i] *= kept;
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            float value[kElements];
            as_floats(v[j], value);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float p = weight(scores[g][j], most[g]);
                total[g] += p;
#pragma unroll
                for (int i = 0; i < kElements; ++i) sums[g][i] = fmaf(p, value[i], sums[g][i]);
            }
        }
    }

    // The four teams of a warp, then the warps.
    __shared__ float warp_sums[kWarps][GROUP][HEAD], warp_most[kWarps][GROUP], warp_total[kWarps][GROUP];
    int warp = threadIdx.x / 32;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        float highest = most[g];
        for (int offset = kLanes; offset < 32; offset *= 2)
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, offset));
        float kept = weight(most[g], highest);
        total[g] *= kept;
        for (int offset = kLanes; offset < 32; offset *= 2)
            total[g] += __shfl_xor_sync(0xffffffffu, total[g], offset);
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            sums[g][i] *= kept;
            for (int offset = kLanes; offset < 32; offset *= 2)
                sums[g][i] += __shfl_xor_sync(0xffffffffu, sums[g][i], offset);
            if (threadIdx.x % 32 < kLanes) warp_sums[warp][g][lane * kElements + i] = sums[g][i];
        }
        if (threadIdx.x % 32 == 0) warp_most[warp][g] = highest, warp_total[warp][g] = total[g];
    }
    __syncthreads();

    float* mine = partial + (size_t(unit) * splits + split) * kPart;
    for (int i = threadIdx.x; i < GROUP * HEAD; i += kThreads) {
        int g = i / HEAD;
        float highest = warp_most[0][g], sum = 0.0f, weights = 0.0f;
        for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, warp_most[w][g]);
        for (int w = 0; w < kWarps; ++w) {
            float kept = weight(warp_most[w][g], highest);
            sum += kept * warp_sums[w][g][i % HEAD], weights += kept * warp_total[w][g];
        }
        if (splits == 1) {
            out[size_t(unit) * GROUP * HEAD + i] = __float2bfloat16(sum / weights);
        } else {
            mine[i] = sum;
            if (i % HEAD == 0) mine[GROUP * HEAD + g] = highest, mine[GROUP * HEAD + GROUP + g] = weights;
        }
    }
    if (splits == 1) return;

    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(done + unit, 1) == uint32_t(splits) - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) done[unit] = 0;
    // A thread asks for one maximum and one sum of weights of kOfSplits splits, and adds kEach elements.
    constexpr int kOfSplits = kThreads / GROUP, kEach = (GROUP * HEAD + kThreads - 1) / kThreads;
    __shared__ float its_most[kOfSplits][GROUP], its_weight[kOfSplits][GROUP], its_total[kOfSplits][GROUP];
    __shared__ float rescale[GROUP];
    const float* every = partial + size_t(unit) * splits * kPart;
    int s = threadIdx.x / GROUP, g = threadIdx.x % GROUP;
    float highest = -INFINITY, sum[kEach] = {}, weights[kEach] = {};
    for (int earlier = 0; earlier < splits; earlier += kOfSplits) {
        int here = min(splits - earlier, kOfSplits);
        const float* part = every + size_t(earlier) * kPart;
        if (s < here) {
            its_most[s][g] = __ldcg(part + size_t(s) * kPart + GROUP * HEAD + g);
            its_total[s][g] = __ldcg(part + size_t(s) * kPart + GROUP * HEAD + GROUP + g);
        }
        __syncthreads();
        float before_these = highest;
        for (int o = 0; o < here; ++o) highest = fmaxf(highest, its_most[o][g]);
        if (s < here) its_weight[s][g] = weight(its_most[s][g], highest);
        if (s == 0) rescale[g] = weight(before_these, highest);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            int of = min(int(threadIdx.x) + e * kThreads, GROUP * HEAD - 1) / HEAD;
            sum[e] *= rescale[of], weights[e] *= rescale[of];
        }
#pragma unroll 8
        for (int o = 0; o < here; ++o) {
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                int i = min(int(threadIdx.x) + e * kThreads, GROUP * HEAD - 1);
                sum[e] = fmaf(its_weight[o][i / HEAD], __ldcg(part + size_t(o) * kPart + i), sum[e]);
                weights[e] = fmaf(its_weight[o][i / HEAD], its_total[o][i / HEAD], weights[e]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
        int i = threadIdx.x + e * kThreads;
        if (i < GROUP * HEAD) out[size_t(unit) * GROUP * HEAD + i] = __float2bfloat16(sum[e] / weights[e]);
    }
}
