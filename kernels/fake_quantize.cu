// Fake quantization in one pass: x and given steps -> x̂ in x's type, and whether an element was not clipped
// (bool).
//
// x̂ equals what dequantize makes of quantize's codes bit for bit. Steps are float32 [grid]. Bytes an
// element: x, x̂ and one of mask. -D: ELEMENT, CODEC, MAPPING, SCALE_RULE, STOCHASTIC.
#include "dependent.cuh"
#include "elementwise.cuh"
#include "encode.cuh"

// An element restored from its code, and whether rounding alone moved it. A float format clips beyond
// ``overflow``.
__device__ __forceinline__ float restored(
    float v, float step, float zero, float overflow, uint64_t seed, uint64_t element, bool& inside) {
    float scaled = SCALE_RULE == CAST ? v : __fdiv_rn(v, step);
    float value = Q::decode(encode_one(scaled, zero, seed, element));
    if constexpr (kAsymmetric) value -= zero;
    if constexpr (Q::is_integer) {
        float code = rintf(scaled) + zero;
        inside = code >= kLowCode<Q> && code <= Q::max_value();
    } else {
        inside = fabsf(scaled) <= overflow;
    }
    return SCALE_RULE == CAST ? value : value * step;
}

extern "C" __global__ void __launch_bounds__(256) fake_quantize(
    const T* x, T* out, uint8_t* inside, const float* steps, const int8_t* zeros, Blocks blocks, int fours,
    float overflow, uint64_t seed) {
    follow();
    auto work = [&](uint64_t i, const auto& v, const auto& cell) {
        constexpr int n = sizeof(v) / sizeof(float);
        float values[n];
        uint32_t mask = 0;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            float step = SCALE_RULE == CAST ? 1.0f : steps[cell[k]];
            float zero = kAsymmetric ? float(zeros[cell[k]]) : 0.0f;
            bool kept;
            values[k] = restored(v[k], step, zero, overflow, seed, i + k, kept);
            mask |= uint32_t(kept) << (8 * k);
        }
        store(out + i, values);
        if constexpr (n == 4)
            __stcs(reinterpret_cast<uint32_t*>(inside + i), mask);
        else
            inside[i] = uint8_t(mask);
    };
    for_each(x, blocks.rows * blocks.columns, blocks, fours, work);
}
