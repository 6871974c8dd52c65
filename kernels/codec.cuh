// One codec for every number format, for host and device alike.
//
//   FloatCodec<E, M, BIAS, SPECIALS>   sign, exponent and mantissa bits; a fifth argument false: no sign bit
//   TruncatedCodec<M, BITS, AWAY>      a float32 with M mantissa bits, stored in its upper BITS bits
//   PowerOfTwoCodec                    E8M0, for scales only
//   IntegerCodec<BITS>                 two's complement
//   FixedPointCodec<BITS, FRACTION>    two's complement with FRACTION bits after the point
//   CodebookCodec<TABLE>               a sorted list of levels
//
// Each has: bits, max_value(), encode(float) -> code, decode(code) -> float. A format's row in
// explorer/formats/table.py names its codec (cuda_codec).
//
// All arithmetic is round-to-nearest float32 with subnormals kept (compile with --fmad=false and without
// -ftz or -use_fast_math), so the codes equal the CPU reference's bit for bit. Where the hardware has a
// conversion with the same bits (E4M3 and E5M2 from sm_89 on) it is used.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#define HD __host__ __device__ __forceinline__

HD uint32_t bits_of(float v) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(v);
#else
    uint32_t u;
    std::memcpy(&u, &v, 4);
    return u;
#endif
}

HD float float_of(uint32_t u) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(u);
#else
    float v;
    std::memcpy(&v, &u, 4);
    return v;
#endif
}

// The smaller and the larger of two numbers, as std::min and std::max order them (b if either is NaN).
HD float least(float a, float b) { return a < b ? a : b; }
HD float most(float a, float b) { return a > b ? a : b; }

// The smaller of two numbers, neither of which is NaN, in one instruction.
HD float smaller(float a, float b) {
#ifdef __CUDA_ARCH__
    return fminf(a, b);
#else
    return least(a, b);
#endif
}

// 2^e for -126 <= e <= 127.
HD constexpr float power_of_two(int e) {
    float v = 1.0f;
    for (int i = 0; i < e; ++i) v *= 2.0f;
    for (int i = 0; i > e; --i) v *= 0.5f;
    return v;
}

// float_of for normal numbers from 2^-103 on, in constant expressions too.
HD constexpr float normal_float(uint32_t u) {
    float magnitude = float(0x00800000u | (u & 0x007fffffu)) * power_of_two(int(u >> 23 & 0xff) - 150);
    return u >> 31 ? -magnitude : magnitude;
}

// Rounds to the nearest whole number, ties to even.
HD float round_even(float v) {
#ifdef __CUDA_ARCH__
    return rintf(v);
#else
    return __builtin_rintf(v);
#endif
}

HD float whole_below(float v) {
#ifdef __CUDA_ARCH__
    return floorf(v);
#else
    return __builtin_floorf(v);
#endif
}

// a · b + c, rounded once.
HD float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

enum Specials { IEEE = 0, FN = 1, FNUZ = 2, NONE = 3 };

// True if a float format's codes come from FloatCodec::magnitude_bits.
template <typename Q>
constexpr bool has_magnitude_bits = false;
template <int E, int M, int BIAS, int SPECIALS, bool SIGNED = true>
struct FloatCodec;
template <int M>
constexpr bool has_magnitude_bits<FloatCodec<2, M, 1, NONE>> = true;

// Four FNUZ codes of M mantissa bits from the hardware's E4M3 or E5M2 codes of the same values and of their
// doubles. The bias is larger by one, so that codes lie a binade higher; where that binade is below the
// hardware's normal numbers, the doubles' codes have one more digit. Zero has no sign. ``beyond`` becomes
// nonzero where a code is larger than the format's, or NaN.
template <int M>
HD uint32_t fnuz_codes(uint32_t codes, uint32_t doubled, uint32_t& beyond) {
    constexpr uint32_t ones = 0x01010101u, signs = 0x80u * ones, magnitudes = 0x7fu * ones;
    uint32_t raised = (codes & magnitudes) + (ones << M);
    beyond |= raised & signs;
    // A sign bit where a code is in the second binade of normal numbers or above, then 255 in its byte.
    uint32_t normal = (raised + ones * (0x80u - (3u << M))) & signs, all = (normal >> 7) * 255u;
    uint32_t magnitude = (raised & all) | (doubled & magnitudes & ~all);
    return magnitude | (codes & signs & (magnitude + magnitudes));
}

// Without a sign bit the code is that of the magnitude.
template <int E, int M, int BIAS, int SPECIALS, bool SIGNED>
struct FloatCodec {
    static_assert(SIGNED || SPECIALS != FNUZ, "the code of -0 needs a sign bit");
    static constexpr int bits = (SIGNED ? 1 : 0) + E + M;
    static constexpr bool is_integer = false, has_nan = SPECIALS != NONE;
    static constexpr int mantissa = M, bias = BIAS;
    static constexpr uint32_t magnitude_mask = (1u << (E + M)) - 1, sign_bit = SIGNED ? 1u << (E + M) : 0u;
    static constexpr uint32_t reserved_codes = SPECIALS == IEEE ? (1u << M) : SPECIALS == FN ? 1u : 0u;
    static constexpr uint32_t max_code = magnitude_mask - reserved_codes;
    static constexpr uint32_t nan_code = SPECIALS == FNUZ ? sign_bit : magnitude_mask;
    static constexpr bool fnuz = SPECIALS == FNUZ;

    static HD constexpr float max_value() {
        float significand = 1.0f + float(max_code & ((1u << M) - 1)) / float(1u << M);
        return significand * power_of_two(int(max_code >> M) - BIAS);
    }
    // floor(log2(max)): emax_elem of the MX scale rules.
    static constexpr int max_exponent = int(max_code >> M) - BIAS;

    static HD uint32_t finish(float magnitude_on_grid, float v) {
        uint32_t code = bits_of(magnitude_on_grid * power_of_two(BIAS - 127)) >> (23 - M);
        uint32_t sign = (bits_of(v) >> (31 - (E + M))) & sign_bit;
        if (SPECIALS == FNUZ && code == 0) sign = 0;
        code |= sign;
        return has_nan && v != v ? nan_code : code;
    }

    // The magnitude lies in a binade whose grid step is 2^(e-M); adding and subtracting a power of two 23
    // binades above that step rounds it to the grid, ties to even, subnormals included.
    static HD uint32_t encode_generic(float v) {
        float a = least(float_of(bits_of(v) & 0x7fffffffu), max_value());
        uint32_t e = bits_of(a) & 0x7f800000u, floor_e = uint32_t(128 - BIAS) << 23;
        float magic = float_of((e > floor_e ? e : floor_e) + (uint32_t(23 - M) << 23));
        return finish((a + magic) - magic, v);
    }

    static HD uint32_t encode(float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        if constexpr (SIGNED && E == 4 && M == 3 && SPECIALS == FN) {
            uint16_t pair;
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
            return pair & 0xffu;
        }
        if constexpr (SIGNED && E == 5 && M == 2 && SPECIALS == IEEE) {
            uint16_t pair;
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
            return pair & 0xffu;
        }
#endif
        if constexpr (has_magnitude_bits<FloatCodec>)
            return (magnitude_bits(v) - kMagnitudeBits) | ((bits_of(v) >> (31 - (E + M))) & sign_bit);
        return encode_generic(v);
    }

    // kMagnitudeBits + the code of |v|, for formats of three binades (E = 2, of bias 1) without NaN. The code
    // is a concave function of |v|, a line in each binade: the least of the lines, each rounded to a whole
    // number by an addition, is the rounded code. Even codes are even mantissas, so ties go the same way.
    static constexpr uint32_t kMagnitudeBits = 0x4b000000u;  // of 2^23, above which floats are whole numbers
    static HD uint32_t magnitude_bits(float v) {
        constexpr float whole = 8388608.0f, first = 1 << M;  // the codes of 1, 2 and 4 are 1, 2 and 3 · 2^M
        float a = smaller(fabsf(v), max_value());
        float lower = fused(a, first, whole), middle = fused(a, first / 2, whole + first);
        return bits_of(smaller(smaller(lower, middle), fused(a, first / 4, whole + 2 * first)));
    }

    static HD uint32_t encode_stochastic(float v, float noise) {
        float a = least(float_of(bits_of(v) & 0x7fffffffu), max_value());
        uint32_t e = bits_of(a) & 0x7f800000u, floor_e = uint32_t(128 - BIAS) << 23;
        float step = float_of((e > floor_e ? e : floor_e) - (uint32_t(M) << 23));
        float scaled = a / step, below = whole_below(scaled);
        return finish((below + (noise < scaled - below ? 1.0f : 0.0f)) * step, v);
    }

    static HD float decode(uint32_t code) {
        uint32_t magnitude = code & magnitude_mask, sign = (code & sign_bit) << (31 - (E + M));
        if (has_nan && SPECIALS == FNUZ && code == nan_code) return float_of(0x7fc00000u);
        if (has_nan && SPECIALS != FNUZ && magnitude > max_code) {
            bool infinite = SPECIALS == IEEE && magnitude == max_code + 1;
            return float_of(infinite ? (0x7f800000u | sign) : 0x7fc00000u);
        }
        return float_of(bits_of(float_of(magnitude << (23 - M)) * power_of_two(127 - BIAS)) | sign);
    }
};

// A float32 with M mantissa bits, stored in its upper BITS bits (bfloat16: 16, TF32 and float32: 32).
template <int M, int BITS, bool AWAY>
struct TruncatedCodec {
    static constexpr int bits = BITS, dropped = 23 - M, mantissa = M, bias = 127, max_exponent = 127;
    static constexpr bool is_integer = false, has_nan = true;
    static HD float max_value() { return float_of(0x7f7fffffu >> dropped << dropped); }

    static HD uint32_t encode(float v) {
        if (dropped == 0) return bits_of(v);
        if (v != v) return (0x7fffffffu >> dropped << dropped) >> (32 - BITS);
        uint32_t u = bits_of(most(-max_value(), least(v, max_value())));
        u += AWAY ? (1u << (dropped - 1)) : ((1u << (dropped - 1)) - 1) + ((u >> dropped) & 1);
        return (u >> dropped << dropped) >> (32 - BITS);
    }

    static HD uint32_t encode_stochastic(float v, float noise) {
        if (dropped == 0) return bits_of(v);
        if (v != v) return (0x7fffffffu >> dropped << dropped) >> (32 - BITS);
        uint32_t u = bits_of(most(-max_value(), least(v, max_value()))), kept = u >> dropped << dropped;
        if (noise < float(u - kept) * power_of_two(-dropped)) kept += 1u << dropped;
        return kept >> (32 - BITS);
    }

    static HD float decode(uint32_t code) { return float_of(code << (32 - BITS)); }
};

// ceil(log2 v) + 127 for positive v, at most 254, as the conversion to E8M0 that rounds up has it
// (cvt.rp.satfinite.ue8m0x2).
// Subnormals of float32 lie below 2^-126: 2^-127 and less give 0, the others 1.
HD int ceil_exponent_code(float v) {
    uint32_t u = bits_of(v), e = u >> 23;
    bool inexact = e == 0 ? u > 0x00400000u : (u & 0x007fffffu) != 0;
    int code = int(e) + (inexact ? 1 : 0);
    return code > 254 ? 254 : code;
}

// E8M0: 2^(code - 127), no sign, no zero; code 0 is a subnormal float32. The magnitude is rounded up.
struct PowerOfTwoCodec {
    static constexpr int bits = 8, mantissa = 0, bias = 127, max_exponent = 127;
    static constexpr bool is_integer = false, has_nan = true;
    static HD float max_value() { return float_of(254u << 23); }
    static HD uint32_t encode(float v) {
        return v != v ? 255u : uint32_t(ceil_exponent_code(float_of(bits_of(v) & 0x7fffffffu)));
    }
    static HD float decode(uint32_t code) {
        return float_of(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
    }
};

template <int BITS>
struct IntegerCodec {
    static constexpr int bits = BITS, mantissa = BITS - 2, bias = 0, max_exponent = BITS - 2;
    static constexpr bool is_integer = true, has_nan = false;
    static constexpr int qmax = (1 << (BITS - 1)) - 1, qmin = -(1 << (BITS - 1));
    static HD constexpr float max_value() { return float(qmax); }

    // ``q`` is a whole number inside [qmin, qmax]: adding 1.5 * 2^23 leaves it in the low bits.
    static HD uint32_t code_of(float q) { return bits_of(q + 12582912.0f) & ((1u << BITS) - 1); }
    static HD uint32_t encode(float v) {
        return code_of(round_even(most(float(qmin), least(v, float(qmax)))));
    }
    static HD float decode(uint32_t code) {
        uint32_t flipped = code ^ (1u << (BITS - 1));  // 0 ... 2^BITS-1, in order
        return float_of(0x4b000000u | flipped) - float(8388608 + (1 << (BITS - 1)));
    }
};

template <int BITS, int FRACTION>
struct FixedPointCodec {
    using Whole = IntegerCodec<BITS>;
    static constexpr int bits = BITS, mantissa = BITS - 2, bias = 0, max_exponent = BITS - 2 - FRACTION;
    static constexpr bool is_integer = false, has_nan = false;
    static HD constexpr float max_value() { return Whole::max_value() * power_of_two(-FRACTION); }
    static HD uint32_t encode(float v) { return Whole::encode(v * power_of_two(FRACTION)); }
    static HD uint32_t encode_stochastic(float v, float noise) {
        float scaled = v * power_of_two(FRACTION), below = whole_below(scaled);
        return Whole::encode(below + (noise < scaled - below ? 1.0f : 0.0f));
    }
    static HD float decode(uint32_t code) { return Whole::decode(code) * power_of_two(-FRACTION); }
};

// A codebook of up to 16 levels, whose code is found by a binary search. TABLE gives threshold_bits(i): for
// each code > 0 the bits of the least float32 that rounds to it (ties go to the lower level); and level(i).
template <typename TABLE>
struct SixteenLevels {
    static constexpr int bits = 4, per_byte = 0;
    static HD float threshold(int i) { return float_of(TABLE::threshold_bits(i)); }
    static HD uint32_t encode(float v) {
        auto t = [](int i) { return threshold(i); };
        bool b3 = v >= t(7);
        bool b2 = v >= (b3 ? t(11) : t(3));
        bool b1 = v >= (b3 ? (b2 ? t(13) : t(9)) : (b2 ? t(5) : t(1)));
        float low = b2 ? (b1 ? t(6) : t(4)) : (b1 ? t(2) : t(0));
        float high = b2 ? (b1 ? t(14) : t(12)) : (b1 ? t(10) : t(8));
        bool b0 = v >= (b3 ? high : low);
        return (b3 ? 8u : 0u) | (b2 ? 4u : 0u) | (b1 ? 2u : 0u) | (b0 ? 1u : 0u);
    }
};

struct Nf4 : SixteenLevels<Nf4> {
    static constexpr int count = 16;
    static HD constexpr uint32_t threshold_bits(int i) {
        constexpr uint32_t t[15] = {
            0xbf591cd8u, 0xbf1c5270u, 0xbeeb847fu, 0xbeadea76u, 0xbe703cecu, 0xbe0d38bbu,
            0xbd3a7870u, 0x3d22fb00u, 0x3df64863u, 0x3e5067e1u, 0x3e9582d5u, 0x3ec753fau,
            0x3f006d04u, 0x3f248db0u, 0x3f5c89dau};
        return t[i];
    }
    static HD float level(int i) {
        constexpr uint32_t l[16] = {
            0xbf800000u, 0xbf3239b1u, 0xbf066b30u, 0xbeca32a0u, 0xbe91a24du, 0xbe3d353fu,
            0xbdba7871u, 0x00000000u, 0x3da2faffu, 0x3e24cae3u, 0x3e7c04ddu, 0x3ead033au,
            0x3ee1a4b8u, 0x3f1007abu, 0x3f3913b3u, 0x3f800000u};
        return float_of(l[i]);
    }
};

struct Af4 : SixteenLevels<Af4> {
    static constexpr int count = 16;
    static HD constexpr uint32_t threshold_bits(int i) {
        constexpr uint32_t t[15] = {
            0xbf58e26du, 0xbf1a79fau, 0xbee2d994u, 0xbea138a5u, 0xbe4fd22au, 0xbdcbf3fbu,
            0xbcca2140u, 0x3caf0760u, 0x3db034d1u, 0x3e32aa92u, 0x3e894f82u, 0x3ebe0da2u,
            0x3efb08aeu, 0x3f23bd30u, 0x3f5cb42fu};
        return t[i];
    }
    static HD float level(int i) {
        constexpr uint32_t l[16] = {
            0xbf800000u, 0xbf31c4dcu, 0xbf032f19u, 0xbebf54f7u, 0xbe831c55u, 0xbe196babu,
            0xbd4a2141u, 0x00000000u, 0x3d2f075fu, 0x3e0472f9u, 0x3e60e22au, 0x3ea22deeu,
            0x3ed9ed55u, 0x3f0e1203u, 0x3f39685cu, 0x3f800000u};
        return float_of(l[i]);
    }
};

// The last threshold lies beyond every number: there is no sixteenth level.
struct BnbFp4 : SixteenLevels<BnbFp4> {
    static constexpr int count = 15;
    static HD constexpr uint32_t threshold_bits(int i) {
        constexpr uint32_t t[15] = {
            0xbf555555u, 0xbf155555u, 0xbed55555u, 0xbe955555u, 0xbe555555u, 0xbdb00000u,
            0xbb2aaaaau, 0x3b2aaaacu, 0x3db00001u, 0x3e555556u, 0x3e955556u, 0x3ed55556u,
            0x3f155556u, 0x3f555556u, 0x7fc00000u};
        return t[i];
    }
    static HD float level(int i) {
        constexpr uint32_t l[16] = {
            0xbf800000u, 0xbf2aaaabu, 0xbf000000u, 0xbeaaaaabu, 0xbe800000u, 0xbe2aaaabu,
            0xbbaaaaabu, 0x00000000u, 0x3baaaaabu, 0x3e2aaaabu, 0x3e800000u, 0x3eaaaaabu,
            0x3f000000u, 0x3f2aaaabu, 0x3f800000u, 0x7fc00000u};
        return float_of(l[i]);
    }
};

// The thresholds of 16 levels by 32 cells of [-1, 1], at most one in each: a code is the number of thresholds
// in the cells before, and one more from the cell's own on. Lane i of a warp holds cell i, so that a look-up
// is two shuffles where a search takes four comparisons with selected thresholds.
template <typename TABLE>
struct LevelCells {
    float threshold[32];
    uint32_t before[32];

    // Cell of v: the low five bits; monotone in v, and so the same for thresholds and for values.
    static HD uint32_t cell(float v) {
#ifdef __CUDA_ARCH__
        return __float_as_uint(__fmaf_rn(__saturatef(__fmaf_rn(v, 0.5f, 0.5f)), 31.0f, 12582912.0f));
#else
        float half = __builtin_fmaf(v, 0.5f, 0.5f);
        return bits_of(__builtin_fmaf(half < 0.0f ? 0.0f : half > 1.0f ? 1.0f : half, 31.0f, 12582912.0f));
#endif
    }

    // The place of a threshold among the cells: cells are the whole numbers nearest to it.
    static constexpr double place(int i) {
        return 15.5 + 15.5 * double(normal_float(TABLE::threshold_bits(i)));
    }
    static constexpr int cell_of(int i) { return int(place(i) + 0.5); }

    // Whether no two thresholds share a cell, and none lies so near to a bound of its cell that rounding
    // matters.
    static constexpr bool fit() {
        for (int i = 0; i < TABLE::count - 1; ++i) {
            double from_bound = place(i) + 0.5 - cell_of(i);
            if (from_bound < 1e-3 || from_bound > 1 - 1e-3) return false;
            if (i && cell_of(i) == cell_of(i - 1)) return false;
        }
        return true;
    }

    constexpr LevelCells() : threshold(), before() {
        for (int lane = 0, i = 0; lane < 32; ++lane) {
            before[lane] = uint32_t(i);
            threshold[lane] = __builtin_nanf("");  // which no value reaches
            if (i < TABLE::count - 1 && cell_of(i) == lane)
                threshold[lane] = normal_float(TABLE::threshold_bits(i++));
        }
    }
};

struct Ternary {
    static constexpr int bits = 2, count = 3, per_byte = 5;
    // Whole numbers are made by an addition: a conversion has a quarter of its rate.
    static HD float level(int i) { return float_of(0x4b000000u | uint32_t(i)) - 8388609.0f; }
    static HD uint32_t encode(float v) { return (v >= -0.5f ? 1u : 0u) + (v > 0.5f ? 1u : 0u); }
};

struct Binary {
    static constexpr int bits = 1, count = 2, per_byte = 0;
    static HD float level(int i) { return i ? 1.0f : -1.0f; }
    static HD uint32_t encode(float v) { return v >= 0.0f ? 1u : 0u; }
};

// Codebooks whose codes are found by comparing x with bounds that hold the step (Bounds).
template <typename TABLE>
struct CodebookCodec;
template <typename Q>
constexpr bool is_bounded = false;
template <>
constexpr bool is_bounded<CodebookCodec<Ternary>> = true;
template <>
constexpr bool is_bounded<CodebookCodec<Binary>> = true;

// The codes of x / step from x and the bounds of a step that is not negative.
template <typename Q>
struct Bounds;
template <>
struct Bounds<CodebookCodec<Ternary>> {
    float low, high;

    // x / step rounds to at most 0.5 up to half the step, rounded down. Of a zero step 0 / 0 has the code 0.
    HD explicit Bounds(float step) {
        float half = 0.5f * step;
        if (half + half > step) half = float_of(bits_of(half) - 1);
        high = float_of(bits_of(half) + 1);
        low = step == 0.0f ? high : -half;
    }
    // One (or the place of a digit) for each bound that x reaches.
    HD uint32_t encode(float x, uint32_t one = 1) const {
        return (x >= low ? one : 0u) + (x >= high ? one : 0u);
    }
};
template <>
struct Bounds<CodebookCodec<Binary>> {
    float low;

    // x / step rounds to -0, which is not negative, up to half the smallest float32 times the step. Of a zero
    // step 0 / 0 has the code 0.
    HD explicit Bounds(float step) {
        float smallest = float_of(1u);
        low = step == 0.0f ? smallest : -(whole_below(0.5f * step) * smallest);
    }
    HD uint32_t encode(float x) const { return x >= low ? 1u : 0u; }
};

template <typename TABLE>
struct CodebookCodec {
    static constexpr int bits = TABLE::bits, mantissa = 0, bias = 0, max_exponent = 0;
    static constexpr bool is_integer = false, has_nan = false;
    static HD float max_value() { return 1.0f; }
    static HD uint32_t encode(float v) { return TABLE::encode(v); }
    static HD float decode(uint32_t code) { return TABLE::level(int(code)); }
    static HD uint32_t encode_stochastic(float v, float noise) {
        v = most(-1.0f, least(v, 1.0f));
        int below = 0;
        for (int i = 1; i < TABLE::count - 1; ++i) below += v >= TABLE::level(i);
        float lower = TABLE::level(below), upper = TABLE::level(below + 1);
        return uint32_t(below) + (noise < (v - lower) / (upper - lower) ? 1u : 0u);
    }
};

// The cells of a codec of 16 levels; other codecs have none.
template <typename Q>
constexpr bool has_cells = false;
template <typename TABLE>
constexpr bool has_cells<CodebookCodec<TABLE>> = std::is_base_of_v<SixteenLevels<TABLE>, TABLE>;
template <typename Q>
struct CellsOf;
template <typename TABLE>
struct CellsOf<CodebookCodec<TABLE>> {
    static_assert(LevelCells<TABLE>::fit(), "thresholds share a cell");
    using type = LevelCells<TABLE>;
};

// Philox 4x32-10 (Salmon et al., SC 2011): word ``element % 4`` of block ``element / 4``, 24 bits in [0, 1).
HD float philox_uniform(uint64_t seed, uint64_t element) {
    uint64_t counter = element >> 2;
    uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int i = 0; i < 10; ++i) {
        uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
        uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c1 = uint32_t(p1);
        c3 = uint32_t(p0);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    uint32_t lane = uint32_t(element & 3), word = lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3;
    return float(word >> 8) * power_of_two(-24);
}
