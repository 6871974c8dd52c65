// From x to codes in memory: divide by the step, round, clamp, pack.
// -D: CODEC, MAPPING, SCALE_RULE, STOCHASTIC.
#pragma once
#include "memory.cuh"
#include "packing.cuh"
#include "scale.cuh"

using Q = CODEC;
constexpr bool kStochastic = STOCHASTIC;
constexpr bool kPowerOfTwo = is_power_of_two(SCALE_RULE);

// kWholeBits + x / step, rounded and clamped to the codes less the zero point.
//
// Clamping between whole numbers gives the same result before rounding as after. The rounding itself is the
// adder's, on the way to the low bits: a rounding instruction has a quarter of an addition's rate.
constexpr uint32_t kWholeBits = 0x4b400000u;  // of 1.5 · 2^23, whose neighbours are whole numbers
template <typename C = Q>
__device__ __forceinline__ uint32_t whole_bits(float scaled, float zero) {
    float low = kAsymmetric ? kLowCode<C> - zero : kLowCode<C>;
    float high = kAsymmetric ? C::max_value() - zero : C::max_value();
    return __float_as_uint(__fadd_rn(fminf(fmaxf(scaled, low), high), __uint_as_float(kWholeBits)));
}

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
            uint32_t whole = whole_bits<C>(scaled, zero);
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
// barring underflow and overflow; steps outside 2^±60, and ``given`` ones (not those of these values, so that
// quotients may be of any size), are divided by. Multiplying by the reciprocal of a power of two is exact.
struct Divider {
    float step, inverse;
    bool exact_by_residual;

    __device__ __forceinline__ explicit Divider(float s, bool given = false) : step(s) {
        exact_by_residual = !given && s >= power_of_two(-60) && s <= power_of_two(60);
        inverse = __frcp_rn(s);
    }
    __device__ __forceinline__ Divider(float s, float reciprocal) : step(s), inverse(reciprocal) {}

    __device__ __forceinline__ float by_residual(float x) const { return divide_by(x, step, inverse); }
};

// Calls encode(quotient), quotient(i) being value(i) over divider(i)'s step. One branch for all values: a
// branch for each would keep their arithmetic from overlapping. ``by_residual``: all dividers allow it.
template <typename Value, typename DividerOf, typename Encode>
__device__ __forceinline__ void with_quotients(bool by_residual, Value value, DividerOf divider,
                                               Encode encode) {
    if constexpr (SCALE_RULE == CAST)
        encode(value);
    else if constexpr (kPowerOfTwo)
        encode([&](int i) { return __fmul_rn(value(i), divider(i).inverse); });
    else if (by_residual)
        encode([&](int i) { return divider(i).by_residual(value(i)); });
    else
        encode([&](int i) { return __fdiv_rn(value(i), divider(i).step); });
}

// Codebooks of so few levels that x itself is compared, with bounds that hold the step; x is not divided.
constexpr bool kBounded = is_bounded<Q> && !kStochastic;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
constexpr bool kHardwareFp8 = Q::bits == 8 && (Q::mantissa == 3 || Q::mantissa == 2) && Q::has_nan;
#else
constexpr bool kHardwareFp8 = false;
#endif

// Four values to E4M3 or E5M2 (one byte each), by the hardware.
__device__ __forceinline__ uint32_t hardware_fp8(float a, float b, float c, float d) {
    uint32_t low = 0, high = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    auto pair = [](float first, float second) {
        uint16_t codes;
        if constexpr (Q::mantissa == 3)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
        else
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
        return uint32_t(codes);
    };
    low = pair(a, b), high = pair(c, d);
#endif
    return __byte_perm(low, high, 0x5410);
}

// N FP8 codes, four a word.
template <int N, typename C = Q, typename Quotient>
__device__ __forceinline__ void encode_fp8(uint32_t* word, Quotient quotient) {
    uint32_t beyond = 0;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float v[4] = {quotient(i), quotient(i + 1), quotient(i + 2), quotient(i + 3)};
        word[i / 4] = hardware_fp8(v[0], v[1], v[2], v[3]);
        if constexpr (C::fnuz) {
            uint32_t doubled = hardware_fp8(2.0f * v[0], 2.0f * v[1], 2.0f * v[2], 2.0f * v[3]);
            word[i / 4] = fnuz_codes<C::mantissa>(word[i / 4], doubled, beyond);
        }
    }
    if constexpr (C::fnuz) {
        if (!beyond) return;
#pragma unroll
        for (int i = 0; i < N; i += 4) word[i / 4] = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) put_code<C>(word, i, C::encode(quotient(i)));
    }
}

// N codes of which each is the low bits of a float: these are added up, shifted, without being cut out, and
// what stands above the codes is taken off the sum. SAME_ZERO: all have the zero point zero(0).
template <int N, bool SAME_ZERO, typename C = Q, typename Quotient, typename Zero>
__device__ __forceinline__ void encode_summed(uint32_t* word, Quotient quotient, Zero zero) {
    constexpr int b = C::bits, fitting = b <= 2 ? 16 : b <= 4 ? 8 : 4, together = fitting < N ? fitting : N;
    constexpr uint32_t ones = ones_every(b, together), signs = ones << (b - 1);
    constexpr uint32_t kept = b * together < 32 ? (1u << (b * together & 31)) - 1 : ~0u;
#pragma unroll
    for (int i = 0; i < N; i += together) {
        uint32_t sum = 0, negative = 0;
#pragma unroll
        for (int k = together - 1; k >= 0; --k) {
            float v = quotient(i + k);
            if constexpr (C::is_integer) {
                float z = kAsymmetric ? zero(SAME_ZERO ? 0 : i + k) : 0.0f;
                uint32_t whole = whole_bits(v, z);
                if constexpr (kAsymmetric && !SAME_ZERO) whole += uint32_t(int(z));
                sum += whole << (b * k);
            } else {
                sum += C::magnitude_bits(v) << (b * k);
                negative = __funnelshift_l(__float_as_uint(v), negative, b);  // the sign and what follows
            }
        }
        if constexpr (C::is_integer) {
            uint32_t offset = (1u << (b - 1)) - kWholeBits;  // so that codes of negative numbers are positive
            if constexpr (kAsymmetric && SAME_ZERO) offset += uint32_t(int(zero(0)));
            sum = (sum + offset * ones) ^ signs;
        } else {
            sum = (sum - C::kMagnitudeBits * ones) | (negative & signs);
        }
        put_bits<b * together>(word, i * b, sum & kept);
    }
}

// Writes N codes into zeroed words; ``element`` is the index of the first.
template <int N, bool SAME_ZERO, typename Quotient, typename Zero>
__device__ __forceinline__ void encode_words(uint32_t* word, Quotient quotient, Zero zero, uint64_t seed,
                                             uint64_t element) {
    // Rows are whole runs, so this changes nothing; it tells the compiler that four elements share a Philox
    // block.
    if constexpr (kStochastic && N % 4 == 0) element &= ~uint64_t(3);
    if constexpr (!kStochastic && kHardwareFp8) {
        encode_fp8<N>(word, quotient);
    } else if constexpr (!kStochastic && (Q::is_integer || has_magnitude_bits<Q>)) {
        encode_summed<N, SAME_ZERO>(word, quotient, zero);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) put_code<Q>(word, i, encode_one(quotient(i), zero(i), seed, element + i));
    }
}

// True if codes are looked up in cells held by a warp's lanes (LevelCells); all lanes then take part.
constexpr bool kCells = has_cells<Q> && !kStochastic;
template <typename C>
__device__ const typename CellsOf<C>::type kCellTable;

// Encodes a run and writes it; ``element`` is the index of its first element.
template <typename T, int N, typename C = Q>
__device__ __forceinline__ void encode_run(const Run<T, N>& run, const Divider& divide_by, float zero,
                                           uint64_t seed, uint64_t element, uint8_t* out) {
    constexpr int bytes = packed_bytes<Q>(N);
    uint32_t word[(bytes + 3) / 4] = {};
    if constexpr (kBounded) {
        Bounds<C> bounds(divide_by.step);
        if constexpr (C::bits == 1) {
            // Bits are summed as floats above 2^23: integer additions that depend on a comparison would take
            // the pipe of the comparisons.
#pragma unroll
            for (int i = 0; i < N; i += 16) {
                float sum = 8388608.0f;
#pragma unroll
                for (int k = 0; k < 16; ++k)
                    sum = __fmaf_rn(run.at(i + k) >= bounds.low ? 1.0f : 0.0f, float(1 << k), sum);
                put_bits<16>(word, i, __float_as_uint(sum) & 0xffffu);
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) put_code<C>(word, i, bounds.encode(run.at(i)));
        }
    } else {
        with_quotients(
            divide_by.exact_by_residual, [&](int i) { return run.at(i); }, [&](int) { return divide_by; },
            [&](auto quotient) {
                encode_words<N, true>(word, quotient, [=](int) { return zero; }, seed, element);
            });
    }
    store_bytes<bytes>(out, word);
}

// Encodes a run by the cells of the warp, whose lanes all come here, and writes it if it is ``live``.
template <typename T, int N, typename C = Q>
__device__ __forceinline__ void encode_run_in_cells(const Run<T, N>& run, const Divider& divide_by, bool live,
                                                    uint8_t* out) {
    constexpr int bytes = packed_bytes<Q>(N);
    uint32_t word[(bytes + 3) / 4] = {};
    if (__all_sync(~0u, divide_by.exact_by_residual)) {
        float threshold = kCellTable<C>.threshold[threadIdx.x & 31];
        uint32_t before = kCellTable<C>.before[threadIdx.x & 31];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float v = divide_by.by_residual(run.at(i));
            int cell = int(CellsOf<C>::type::cell(v));
            float own = __shfl_sync(~0u, threshold, cell);
            word[i / 8] += __shfl_sync(~0u, before, cell) << (i % 8 * 4);
            if (v >= own) word[i / 8] += 1u << (i % 8 * 4);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) put_code<Q>(word, i, Q::encode(__fdiv_rn(run.at(i), divide_by.step)));
    }
    if (live) store_bytes<bytes>(out, word);
}
