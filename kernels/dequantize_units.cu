// Dequantize base-three digits, five a byte, in rows of any length. -D: as dequantize.cu, without RUN.
#include "dequantize.cuh"
#include "units.cuh"

using T = ELEMENT;

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

// A warp's values pass through shared memory, so that neighbouring lanes store neighbouring 16 bytes where rows
// are aligned, else neighbouring elements.
extern "C" __global__ void __launch_bounds__(256) dequantize_units(
    const uint8_t* packed, const void* scales, const int8_t* zeros, const float* tensor_scale, T* out,
    Blocks blocks, uint64_t row_bytes) {
    using Values = Results<T, kUnit>;
    constexpr int each = 16 / sizeof(T);
    __shared__ __align__(16) T stage[8][kUnitsOfWarp];
    uint64_t rows = blocks.rows, columns = blocks.columns;
    WarpOfRow warp(rows, columns);
    if (warp.row >= rows) return;
    int lane = threadIdx.x & 31;
    T* staged = stage[threadIdx.x >> 5];
    uint64_t first = warp.element + lane * kUnit;
    if (first < columns) {
        const uint8_t* from = packed + warp.row * row_bytes + warp.byte + lane * kUnitBytes;
        uint32_t word = load_unit(from, packed, packed + rows * row_bytes);
        Stored stored{scales, zeros, tensor_scale};
        float step, zero;
        Values values;
        if (blocks.one()) {
            stored.read(0, step, zero);
            restore_unit(word, [&](int) { return step; }, values);
        } else {
            uint64_t first_cell = blocks.first_cell(warp.row);
            auto step_of = [&](int i) {
                uint64_t column = first + i < columns ? first + i : columns - 1;
                stored.read(blocks.cell_from(first_cell, column), step, zero);
                return step;
            };
            restore_unit(word, step_of, values);
        }
#pragma unroll
        for (int i = 0; i < Values::pieces; ++i)
            reinterpret_cast<typename Values::Piece*>(staged)[lane * Values::pieces + i] = values.piece[i];
    }
    __syncwarp();
    T* to = out + warp.row * columns + warp.element;
    int count = int(columns - warp.element < kUnitsOfWarp ? columns - warp.element : kUnitsOfWarp);
    int wide = reinterpret_cast<uintptr_t>(to) % 16 == 0 ? count / each : 0;
#pragma unroll
    for (int i = 0; i < (kUnit + each - 1) / each; ++i) {
        int piece = i * 32 + lane;
        if (piece < wide) __stcs(reinterpret_cast<uint4*>(to) + piece, reinterpret_cast<uint4*>(staged)[piece]);
    }
    for (int i = wide * each + lane; i < count; i += 32) to[i] = staged[i];
}
