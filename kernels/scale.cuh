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

// The float32 over the whole tensor of a two-level scheme; ``amax`` is the tensor's.
template <typename Q, typename S>
HD float tensor_scale_of(float amax) {
    float scale = divide(amax, Q::max_value() * S::max_value());
    return amax == 0.0f ? 1.0f : most(scale, float_of(0x00800000u));
}

// A block's scale: ``code`` as it is stored, ``step`` what the values of codes are multiplied by.
struct Scale {
    uint32_t code;
    float step;
};

// The scale of a block that spans [low, high], at least ``smallest``. An empty block's restores zeros: 1, or
// for elements without a zero 0, or the smallest.
template <typename Q, typename S>
HD Scale scale_for(
    Mapping mapping, ScaleRule rule, float smallest, float low, float high, float tensor_scale) {
    if (rule == CAST) return {0, 1.0f};
    bool empty = mapping == ASYMMETRIC ? high - low == 0.0f : most(-low, high) == 0.0f;
    if (is_power_of_two(rule)) {
        uint32_t code = empty ? (has_zero<Q> ? 127 : 0) : 127 + scale_exponent<Q>(rule, most(-low, high));
        return {code, S::decode(code)};
    }
    float raw = raw_scale<Q>(mapping, low, high);
    if (rule == TWO_LEVEL) raw = divide(raw, tensor_scale);
    float clamped = least(most(raw, smallest), S::max_value()), of_zeros = has_zero<Q> ? 1.0f : 0.0f;
    uint32_t code = S::encode(empty ? of_zeros : clamped);
    float value = S::decode(code);
    return {code, rule == TWO_LEVEL ? value * tensor_scale : value};
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
