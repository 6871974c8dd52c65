// Dequantize base-three digits, five a byte, in rows of any length. -D: as dequantize.cu, without RUN.
#include "dequantize.cuh"

using T = ELEMENT;

// A thread decodes one unit of 20 digits in 4 bytes. A warp stores its units element by element through
// shared memory, so that neighbouring lanes store neighbouring elements.
extern "C" __global__ void __launch_bounds__(256) dequantize_units(
    const uint8_t* packed, const void* scales, const int8_t* zeros, const float* tensor_scale, T* out,
    Blocks blocks, uint64_t row_bytes) {
    constexpr int unit = 20;
    constexpr int stride = unit + 1;  // an odd distance between lanes: no bank conflicts
    __shared__ T stage[8][32 * stride];
    uint64_t rows = blocks.rows, columns = blocks.columns;
    uint64_t units = (columns + unit - 1) / unit, total = rows * units, at = thread_index();
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint64_t my_row = quotient(at, units, total), my_unit = at - my_row * units;
    if (at < total) {
        uint64_t first = my_unit * unit;
        const uint8_t* from = packed + my_row * row_bytes + my_unit * 4;
        uint32_t word = 0;
        for (int i = 0; i < 4; ++i)
            if (my_unit * 4 + i < row_bytes) word |= uint32_t(from[i]) << (8 * i);
        uint64_t first_cell = blocks.first_cell(my_row), held = ~uint64_t(0);
        float step = 1.0f, zero = 0.0f;
        Stored stored{scales, zeros, tensor_scale};
#pragma unroll
        for (int i = 0; i < unit; ++i) {
            uint64_t cell = blocks.cell_from(first_cell, first + i < columns ? first + i : columns - 1);
            if (cell != held) {
                held = cell;
                stored.read(cell, step, zero);
            }
            stage[warp][lane * stride + i] = restored_as<T>(restore(code_at<Q>(&word, i), step, zero));
        }
    }
    __syncwarp();
    uint64_t base = at - lane, base_row = __shfl_sync(0xffffffffu, my_row, 0);
    uint64_t base_unit = __shfl_sync(0xffffffffu, my_unit, 0);
    T* to = out + base_row * columns + base_unit * unit;
    if (base + 32 <= total && (base_unit + 32) * unit <= columns) {  // 640 elements of one row
#pragma unroll
        for (int i = 0; i < unit; ++i) {
            int element = i * 32 + lane;
            to[element] = stage[warp][element / unit * stride + element % unit];
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < unit; ++i) {
        int element = i * 32 + lane;
        uint64_t row = base_row, place = base_unit + element / unit;
        while (place >= units) place -= units, ++row;
        uint64_t column = place * unit + element % unit;
        if (base + element / unit < total && column < columns)
            out[row * columns + column] = stage[warp][element / unit * stride + element % unit];
    }
}
