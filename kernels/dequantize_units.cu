// Dequantize base-three digits, five a byte, in rows of any length.
//
//   dequantize_units              one step for the whole matrix
//   dequantize_units_of_cells     any blocks
//
// -D: as dequantize.cu, without RUN.
#include "dependent.cuh"
#include "dequantize.cuh"
#include "units.cuh"

using T = ELEMENT;

constexpr int kTogether = 4 / sizeof(T);  // stretches that a warp takes

// The 20 values of a unit; step_of(i) is element i's step. The digits of a byte come last digit first.
template <typename StepOf>
__device__ __forceinline__ void restore_unit(uint32_t word, StepOf step_of, Results<T, kUnit>& results) {
#pragma unroll
    for (int byte = 0; byte < kUnitBytes; ++byte) {
        DigitsOfByte digits((word >> (8 * byte)) & 0xffu);
#pragma unroll
        for (int i = 4; i >= 0; --i) {
            int at = 5 * byte + i;
            results.value[at] = restored_as<T>(restore(digits.next(), step_of(at), 0.0f));
        }
    }
}

// A warp's values pass through shared memory, so that neighbouring lanes store neighbouring 16 bytes. The
// codes of all its stretches are loaded before any is restored.
template <bool ONE_STEP>
__device__ __forceinline__ void dequantize_stretches(const uint8_t* packed, const Stored& stored, T* out,
                                                     const Blocks& blocks, uint64_t row_bytes) {
    using Values = Results<T, kUnit>;
    using Part = Stretch<kTogether>;
    __shared__ __align__(16) T stage[8][kStretch];
    int lane = threadIdx.x & 31;
    T* staged = stage[threadIdx.x >> 5];
    uint64_t a_row = Part::in_row(blocks.columns), index = thread_index() >> 5;
    if (index >= blocks.rows * a_row) return;
    Part part(index, a_row, blocks.rows, blocks.columns);
    const uint8_t* from = packed + part.row * row_bytes + part.byte() + lane * kUnitBytes;
    const uint8_t* end = packed + blocks.rows * row_bytes;
    uint32_t word[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
        if (k * kStretch + lane * kUnit < part.count)
            word[k] = load_unit(from + k * 32 * kUnitBytes, packed, end);
    float step, zero;
    if (ONE_STEP) stored.read(0, step, zero);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
        int first = k * kStretch + lane * kUnit;
        if (first < part.count) {
            Values values;
            if constexpr (ONE_STEP) {
                restore_unit(word[k], [&](int) { return step; }, values);
            } else {
                uint64_t cells = blocks.first_cell(part.row);
                auto step_of = [&](int i) {
                    int at = first + i < part.count ? first + i : part.count - 1;
                    stored.read(blocks.cell_from(cells, part.element + at), step, zero);
                    return step;
                };
                restore_unit(word[k], step_of, values);
            }
            values.store_cached(staged + lane * kUnit);
        }
        __syncwarp();
        T* to = out + part.row * blocks.columns + part.element + k * kStretch;
        int left = part.count - k * kStretch;
        copy_stretch<false>(to, staged, left < kStretch ? left : kStretch);
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(256)
    dequantize_units(const uint8_t* packed, const void* scales, const int8_t* zeros,
                     const float* tensor_scale, T* out, Blocks blocks, uint64_t row_bytes) {
    follow();
    dequantize_stretches<true>(packed, Stored{scales, zeros, tensor_scale}, out, blocks, row_bytes);
}

// With as many registers as two thread blocks leave: for sm_120a the compiler would choose so few that they
// spill.
extern "C" __global__ void __launch_bounds__(256, 2)
    dequantize_units_of_cells(const uint8_t* packed, const void* scales, const int8_t* zeros,
                              const float* tensor_scale, T* out, Blocks blocks, uint64_t row_bytes) {
    follow();
    dequantize_stretches<false>(packed, Stored{scales, zeros, tensor_scale}, out, blocks, row_bytes);
}
