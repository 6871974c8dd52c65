// From a block's range to its stored scale and zero point, and back: the device's ``scale_for``.
// Divisions are IEEE. -D: MAPPING.
#pragma once
#include "codec.cuh"

enum Mapping { SYMMETRIC, ASYMMETRIC, FULL, POWER, NO_CLIP };
// No scale; rounded to the scale's format; E8M0 by one of four exponent rules; rounded under a tensor scale.
enum ScaleRule { CAST, ROUNDED, FLOOR, RCEIL, CEIL, EVEN, TWO_LEVEL };

constexpr bool kAsymmetric = MAPPING == ASYMMETRIC;

// The least value that a code of Q stands for under MAPPING: symmetric integers leave -max - 1 out.
template <typename Q>
constexpr float kLowCode =
    Q::is_integer ? (MAPPING == SYMMETRIC ? -Q::max_value() : -Q::max_value() - 1.0f) : 0.0f;

// Binary alone has no code for 0.
template <typename Q>
constexpr bool has_zero = Q::bits > 1;

HD constexpr bool is_power_of_two(ScaleRule rule) { return rule >= FLOOR && rule <= EVEN; }

HD float divide(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

// a / b by its correctly rounded reciprocal and one residual step (Markstein): correctly rounded where a and
// b are far from overflow and underflow. The residual is negated twice so that -0 / b stays -0: q · b - a is
// +0 for either zero.
HD float divide_by(float a, float b, float inverse) {
    float q = a * inverse;
    return fused(-fused(q, b, -a), inverse, q);
}

HD int floor_log2(float v) { return int((bits_of(v) >> 23) & 0xff) - 127; }
HD int ceil_log2(float v) { return ceil_exponent_code(v) - 127; }

template <typename Q>
HD float raw_scale(Mapping mapping, float low, float high) {
    float amax = most(-low, high);
    if constexpr (Q::is_integer) {
        if (mapping == ASYMMETRIC) return divide(high - low, float((1 << Q::bits) - 1));
        if (mapping == FULL) return divide(amax, float(Q::qmax) + 0.5f);
        if (mapping == POWER) return divide(amax, float(Q::qmax + 1));
        if (mapping == NO_CLIP) return most(divide(-low, float(-Q::qmin)), divide(high, float(Q::qmax)));
    }
    return divide(amax, Q::max_value());
}

template <typename Q>
HD int scale_exponent(ScaleRule rule, float amax) {
    int e;
    if (rule == RCEIL)
        e = ceil_log2(divide(amax, Q::max_value()));
    else if (rule == CEIL)
        e = ceil_log2(amax) - Q::max_exponent;
    else if (rule == EVEN)
        e = floor_log2(float_of(bits_of(amax) + (1u << (23 - Q::mantissa - 1)))) - Q::max_exponent;
    else
        e = floor_log2(amax) - Q::max_exponent;
    return e < -127 ? -127 : e > 127 ? 127 : e;
}

// The float32 over the whole tensor of a two-level scheme, whose largest magnitude is ``amax``. Other rules
// do not read it.
struct TensorScale {
    float value, inverse;
};
template <typename Q, typename S>
HD TensorScale tensor_scale_of(float amax) {
    float scale = divide(amax, Q::max_value() * S::max_value());
    scale = amax == 0.0f ? 1.0f : most(scale, float_of(0x00800000u));
    return {scale, divide(1.0f, scale)};
}

// The unrounded scale of a block under a tensor scale.
template <typename Q>
HD float raw_scale_under(TensorScale tensor, Mapping mapping, float low, float high) {
    constexpr float far = power_of_two(60);
    float amax = most(-low, high);
    bool near = tensor.value >= 1.0f / far && tensor.value <= far && amax >= 1.0f / far && amax <= far;
    if (!Q::is_integer && near)
        return divide_by(divide_by(amax, Q::max_value(), 1.0f / Q::max_value()), tensor.value,
                         tensor.inverse);
    return divide(raw_scale<Q>(mapping, low, high), tensor.value);
}

// A block's scale: ``code`` as it is stored, ``step`` what the values of codes are multiplied by.
struct Scale {
    uint32_t code;
    float step;
};

// The scale of a block that spans [low, high], at least ``smallest``. An empty block's restores zeros: 1, or
// for elements without a zero 0, or the smallest.
template <typename Q, typename S>
HD Scale scale_for(Mapping mapping, ScaleRule rule, float smallest, float low, float high,
                   TensorScale tensor) {
    if (rule == CAST) return {0, 1.0f};
    bool empty = mapping == ASYMMETRIC ? high - low == 0.0f : most(-low, high) == 0.0f;
    if (is_power_of_two(rule)) {
        uint32_t code = empty ? (has_zero<Q> ? 127 : 0) : 127 + scale_exponent<Q>(rule, most(-low, high));
        return {code, S::decode(code)};
    }
    float raw =
        rule == TWO_LEVEL ? raw_scale_under<Q>(tensor, mapping, low, high) : raw_scale<Q>(mapping, low, high);
    float clamped = least(most(raw, smallest), S::max_value()), of_zeros = has_zero<Q> ? 1.0f : 0.0f;
    uint32_t code = S::encode(empty ? of_zeros : clamped);
    float value = S::decode(code);
    return {code, rule == TWO_LEVEL ? value * tensor.value : value};
}

template <typename Q>
HD float zero_point_of(float low, float step) {
    if constexpr (Q::is_integer)
        return most(float(Q::qmin), least(round_even(float(Q::qmin) - divide(low, step)), float(Q::qmax)));
    return 0.0f;
}

// Stored scales lie in memory as codes of 1, 2 or 4 bytes.
template <typename S>
HD uint32_t load_scale(const void* scales, uint64_t cell) {
    if constexpr (S::bits == 32) return static_cast<const uint32_t*>(scales)[cell];
    if constexpr (S::bits == 16) return static_cast<const uint16_t*>(scales)[cell];
    return static_cast<const uint8_t*>(scales)[cell];
}

template <typename S>
HD void store_scale(void* scales, uint64_t cell, uint32_t code) {
    if constexpr (S::bits == 32)
        static_cast<uint32_t*>(scales)[cell] = code;
    else if constexpr (S::bits == 16)
        static_cast<uint16_t*>(scales)[cell] = uint16_t(code);
    else
        static_cast<uint8_t*>(scales)[cell] = uint8_t(code);
}
