// From x to codes in memory: divide by the step, round, clamp, pack.
// -D: CODEC, MAPPING, SCALE_RULE, STOCHASTIC.
#pragma once
#include "memory.cuh"
#include "packing.cuh"
#include "scale.cuh"

using Q = CODEC;
constexpr bool kStochastic = STOCHASTIC;
constexpr bool kPowerOfTwo = is_power_of_two(SCALE_RULE);

// The code of x / step. ``element`` is the index in row-major order, which stochastic rounding draws noise
// by.
template <typename C = Q>
__device__ __forceinline__ uint32_t encode_one(float scaled, float zero, uint64_t seed, uint64_t element) {
    if constexpr (C::is_integer) {
        if constexpr (kStochastic) {
            float below = floorf(scaled);
            float q = below + (philox_uniform(seed, element) < scaled - below ? 1.0f : 0.0f);
            if constexpr (kAsymmetric) q += zero;
            return C::code_of(fminf(fmaxf(q, kLowCode<C>), C::max_value()));
        } else {
            // Clamping between whole numbers gives the same result before rounding as after. The rounding
            // itself is the adder's, on the way to the low bits: a rounding instruction has a quarter of an
            // addition's rate.
            float low = kAsymmetric ? kLowCode<C> - zero : kLowCode<C>;
            float high = kAsymmetric ? C::max_value() - zero : C::max_value();
            uint32_t whole = __float_as_uint(__fadd_rn(fminf(fmaxf(scaled, low), high), 12582912.0f));
            if constexpr (kAsymmetric) whole += uint32_t(int(zero));
            return whole & ((1u << C::bits) - 1);
        }
    } else if constexpr (kStochastic) {
        return C::encode_stochastic(scaled, philox_uniform(seed, element));
    } else {
        return C::encode(scaled);
    }
}

// x / step rounded as IEEE division rounds it, at the cost of a multiplication and two fused multiply-adds.
//
// Markstein: with the reciprocal correctly rounded, one residual step gives the correctly rounded quotient,
// barring underflow; steps outside 2^±60 are divided by. Multiplying by the reciprocal of a power of two is
// exact.
struct Divider {
    float step, inverse;
    bool exact_by_residual;

    __device__ __forceinline__ explicit Divider(float s) : step(s) {
        exact_by_residual = s >= power_of_two(-60) && s <= power_of_two(60);
        inverse = __frcp_rn(s);
    }

    __device__ __forceinline__ float by_residual(float x) const {
        float q = __fmul_rn(x, inverse);
        q = __fmaf_rn(__fmaf_rn(-q, step, x), inverse, q);
        return Q::is_integer ? q : copysignf(q, x);
    }

    __device__ __forceinline__ float operator()(float x) const {
        if constexpr (SCALE_RULE == CAST) return x;
        if constexpr (kPowerOfTwo) return __fmul_rn(x, inverse);
        return exact_by_residual ? by_residual(x) : __fdiv_rn(x, step);
    }
};

// Whether codes are looked up in cells that a warp's lanes hold (Nf4Cells); all of them take part then.
constexpr bool kCells = std::is_same_v<Q, CodebookCodec<Nf4>> && !kStochastic;
__device__ const Nf4Cells kNf4Cells;

// One warp's NF4 codes.
struct WarpCells {
    float threshold;
    uint32_t before;

    __device__ __forceinline__ WarpCells()
        : threshold(kNf4Cells.threshold[threadIdx.x & 31]), before(kNf4Cells.before[threadIdx.x & 31]) {}
    __device__ __forceinline__ uint32_t encode(float v) const {
        int cell = int(Nf4Cells::cell(v));
        float own = __shfl_sync(~0u, threshold, cell);
        return __shfl_sync(~0u, before, cell) + (v >= own ? 1u : 0u);
    }
};

// Encodes a run by the cells of the warp, whose lanes all come here, and writes it if it is ``live``.
template <typename T, int N>
__device__ __forceinline__ void encode_run_in_cells(const Run<T, N>& run, const Divider& divide_by, bool live,
                                                    uint8_t* out) {
    constexpr int bytes = packed_bytes<Q>(N);
    WarpCells cells;
    uint32_t word[(bytes + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < N; ++i) put_code<Q>(word, i, cells.encode(divide_by(run.at(i))));
    if (live) store_bytes<bytes>(out, word);
}

// Encodes a run and writes it; ``element`` is the index of its first element.
template <typename T, int N>
__device__ __forceinline__ void encode_run(
    const Run<T, N>& run, const Divider& divide_by, float zero, uint64_t seed, uint64_t element,
    uint8_t* out) {
    constexpr int bytes = packed_bytes<Q>(N);
    // Rows are whole runs, so this changes nothing; it tells the compiler that four elements share a Philox
    // block.
    if constexpr (kStochastic && N % 4 == 0) element &= ~uint64_t(3);
    uint32_t word[(bytes + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < N; ++i)
        put_code<Q>(word, i, encode_one(divide_by(run.at(i)), zero, seed, element + i));
    store_bytes<bytes>(out, word);
}
