// Base-three codes under one step for the whole matrix, five a byte, in rows of any length; least-squares sums.
//
// Bytes: each element once in, each code once out. -D: ELEMENT, CODEC, REFIT.
#include "memory.cuh"
#include "sums.cuh"
#include "units.cuh"

using T = ELEMENT;
using Q = CODEC;

// What a thread encodes: x is compared with bounds that hold the step (Bounds). Elements that do not exist are
// NaN, whose code is 0.
struct Unit {
    uint32_t word = 0;
    int nonzero = 0;
    double magnitudes = 0;

    template <typename Value>
    __device__ __forceinline__ void encode(const Bounds<Q>& bounds, Value value) {
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
            float v = value(i);
            word += bounds.encode(v, place_of_digit(i));
            if constexpr (REFIT) {
                bool kept = v < bounds.low || v >= bounds.high;
                nonzero += kept;
                magnitudes += double(kept ? fabsf(v) : 0.0f);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(256) encode_units(
    const T* x, uint8_t* packed, const float* steps, double* sums, uint64_t rows, uint64_t columns,
    uint64_t row_bytes) {
    constexpr int alignment = kUnit * sizeof(T) % 16 ? 8 : 16;
    WarpOfRow warp(rows, columns);
    uint64_t first = warp.element + (threadIdx.x & 31) * kUnit;
    Unit unit;
    if (warp.row < rows && first < columns) {
        Bounds<Q> bounds(*steps);
        const T* from = x + warp.row * columns + first;
        if (first + kUnit <= columns && reinterpret_cast<uintptr_t>(from) % alignment == 0) {
            Run<T, kUnit> run;
            run.load(from);
            unit.encode(bounds, [&](int i) { return run.at(i); });
        } else {
            unit.encode(bounds, [&](int i) { return first + i < columns ? to_float(from[i]) : NAN; });
        }
    }
    if (warp.row < rows) {
        uint64_t left = row_bytes - warp.byte, bytes = left < 32 * kUnitBytes ? left : 32 * kUnitBytes;
        store_units(packed + warp.row * row_bytes + warp.byte, unit.word, bytes);
    }
    if constexpr (REFIT) add_sums(sums, unit.magnitudes, double(unit.nonzero));
}
