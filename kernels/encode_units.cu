// Base-three codes under one step for the whole matrix, five a byte, in rows of any length; least-squares
// sums.
//
// Bytes: each element once in, each code once out. -D: ELEMENT, CODEC, REFIT.
#include "dependent.cuh"
#include "memory.cuh"
#include "sums.cuh"
#include "units.cuh"

using T = ELEMENT;
using Q = CODEC;
constexpr float kWhole = 8388608.0f;
// Per multiprocessor, as registers allow.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kThreadBlocks = sizeof(T) == 4 ? 2 : 3;
#else
constexpr int kThreadBlocks = sizeof(T) == 4 ? 4 : 5;
#endif

// Elements pass through shared memory, so that neighbouring lanes load neighbouring 16 bytes. Those that a
// unit does not have get the code 0. Warps take stretches in turn, so that few thread blocks add to ``sums``;
// the last ones first, which were read last where the tensor's range was found.
extern "C" __global__ void __launch_bounds__(256, kThreadBlocks)
    encode_units(const T* x, uint8_t* packed, const float* steps, double* sums, uint64_t rows,
                 uint64_t columns, uint64_t row_bytes) {
    follow();
    __shared__ __align__(16) T stage[8][kStretch];
    int lane = threadIdx.x & 31;
    T* staged = stage[threadIdx.x >> 5];
    Bounds<Q> bounds(*steps);
    float nonzero = 0.0f;
    double products = 0.0;  // times 2^-896
    uint64_t a_row = Stretch<1>::in_row(columns);
    int64_t index = from_end(thread_index() >> 5, rows * a_row);
    for (; index >= 0; index -= thread_count() >> 5) {
        Stretch<1> stretch(index, a_row, rows, columns);
        const T* from = x + stretch.row * columns + stretch.element;
        copy_stretch<true>(staged, from, stretch.count);
        __syncwarp();
        int left = stretch.count - lane * kUnit;
        Run<T, kUnit> run;
        run.load_cached(staged + lane * kUnit);
        // Digits are summed as floats above 2^23, whose low bits are the sum: additions to integers that
        // depend on a comparison take the pipe that the comparisons take.
        float byte[4] = {kWhole, kWhole, kWhole, kWhole};
        auto encode = [&](auto exists) {
#pragma unroll
            for (int i = 0; i < kUnit; ++i) {
                float v = run.at(i), above = exists(i) && v >= bounds.low ? 1.0f : 0.0f;
                float top = exists(i) && v >= bounds.high ? 1.0f : 0.0f;
                byte[i / 5] = __fmaf_rn(above + top, float(place_of_digit(i % 5)), byte[i / 5]);
                if constexpr (REFIT) {
                    // A level other than 0 has the value's sign: their product is its magnitude.
                    float level = exists(i) ? above + top - 1.0f : 0.0f;
                    nonzero = __fmaf_rn(level, level, nonzero);
                    products += scaled_magnitude(level == 0.0f ? 0.0f : v);
                }
            }
        };
        if (left >= kUnit)
            encode([](int) { return true; });
        else
            encode([&](int i) { return i < left; });
        uint32_t low = __byte_perm(__float_as_uint(byte[0]), __float_as_uint(byte[1]), 0x0040);
        uint32_t high = __byte_perm(__float_as_uint(byte[2]), __float_as_uint(byte[3]), 0x0040);
        uint8_t* to = packed + stretch.row * row_bytes + stretch.byte();
        store_units(to, __byte_perm(low, high, 0x5410), (stretch.count + 4) / 5);
        __syncwarp();
    }
    if constexpr (REFIT) add_sums(sums, products * kScaledBack, double(nonzero));
}
