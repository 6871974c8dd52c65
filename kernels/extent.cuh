// The range of a block: the largest magnitudes on either side of zero, or the mean of |x|, reduced over lanes
// and thread blocks. -D: MAPPING, RANGE.
#pragma once
#include "memory.cuh"
#include "scale.cuh"
#include "sums.cuh"

// minmax; mean |x|; 1.4 · mean |x| (Ternary Weight Networks).
enum Range { MINMAX, ABSMEAN, TWN };

constexpr bool kBothEnds = MAPPING == ASYMMETRIC || MAPPING == NO_CLIP;
constexpr bool kMean = RANGE != MINMAX;

// The largest -x and x (or the largest |x| alone, as in Extent) of pairs of 16-bit elements, of the first and
// of the second apart. One instruction compares a pair, and keeps NaN.
template <typename T>
struct Extremes {
    using Pair = typename PairOf<T>::type;
    Pair top, bottom;

    static __device__ __forceinline__ Pair pair_of(uint32_t word) { return *reinterpret_cast<Pair*>(&word); }

    __device__ __forceinline__ void clear() { top = bottom = pair_of(0); }
    __device__ __forceinline__ void add(uint32_t word) {
        top = __hmax2_nan(top, pair_of(kBothEnds ? word : word & 0x7fff7fffu));
        if constexpr (kBothEnds) bottom = __hmax2_nan(bottom, pair_of(word ^ 0x80008000u));
    }
    __device__ __forceinline__ float high(int which) const { return to_float(which ? top.y : top.x); }
    __device__ __forceinline__ float low(int which) const { return to_float(which ? bottom.y : bottom.x); }
};

// Running statistics of a block. ``low`` and ``high`` are the largest -x and x (where one scale serves both
// sides, ``high`` is the largest |x|), ``sum`` is that of |x| · 2^-896; ``poison`` is NaN if any element is
// not finite.
struct Extent {
    float low, high, poison;
    double sum;

    __device__ __forceinline__ void clear() { low = high = poison = 0.0f, sum = 0.0; }

    __device__ __forceinline__ void add(float v) {
        if constexpr (kMean) {
            sum += scaled_magnitude(v);
        } else if constexpr (kBothEnds) {
            low = fmaxf(low, -v);
            high = fmaxf(high, v);
        } else {
            high = fmaxf(high, fabsf(v));
        }
        poison = __fmaf_rn(v, 0.0f, poison);
    }

    // A whole run.
    template <typename T, int N>
    __device__ __forceinline__ void add_run(const Run<T, N>& run) {
        if constexpr (sizeof(T) == 4 || kMean) {
#pragma unroll
            for (int i = 0; i < N; ++i) add(run.at(i));
        } else {
            Extremes<T> pair;
            pair.clear();
#pragma unroll
            for (int i = 0; i < Run<T, N>::words; ++i) pair.add(run.word[i]);
            add_pair(pair, 0);
            add_pair(pair, 1);
        }
    }

    // The first or the second of the columns of a pair.
    template <typename T>
    __device__ __forceinline__ void add_pair(const Extremes<T>& pair, int which) {
        float top = pair.high(which);
        poison = __fmaf_rn(top, 0.0f, poison);
        high = fmaxf(high, top);
        if constexpr (kBothEnds) {
            float bottom = pair.low(which);
            poison = __fmaf_rn(bottom, 0.0f, poison);
            low = fmaxf(low, bottom);
        }
    }

    // Over ``lanes`` neighbouring lanes, a power of two.
    __device__ __forceinline__ void merge_lanes(int lanes) {
        for (int offset = lanes >> 1; offset; offset >>= 1) {
            if constexpr (kMean) {
                sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            } else {
                if constexpr (kBothEnds) low = fmaxf(low, __shfl_xor_sync(0xffffffffu, low, offset));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, offset));
            }
        }
    }

    // Over the whole thread block; every thread gets the result.
    __device__ __forceinline__ void merge_block() {
        __shared__ Extent part[32];
        merge_lanes(32);
        int warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
        if (warps == 1) return;
        if ((threadIdx.x & 31) == 0) part[warp] = *this;
        __syncthreads();
        Extent all;
        all.clear();
        for (int i = 0; i < warps; ++i) {
            all.low = fmaxf(all.low, part[i].low), all.high = fmaxf(all.high, part[i].high);
            if constexpr (kMean) all.sum += part[i].sum;
        }
        low = all.low, high = all.high, sum = all.sum;
    }

    // [lo, hi] with lo <= 0 <= hi, as the calibrator gives it for ``count`` elements.
    __device__ __forceinline__ void range(double count, float& lo, float& hi) const {
        if constexpr (kMean) {
            hi = float(sum * kScaledBack / count);
            if (RANGE == TWN) hi *= 1.4f;
            lo = -hi;
        } else {
            hi = high;
            lo = kBothEnds ? -low : -high;
        }
    }

    // NaN or Inf, or a range so large that restored values could overflow.
    __device__ __forceinline__ void report(int* unusable) const {
        if (poison != poison || fmaxf(low, high) > power_of_two(kAsymmetric ? 126 : 127)) *unusable = 1;
    }
};
