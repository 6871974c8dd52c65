// Dequantize: packed codes and stored scales -> float32, bfloat16 or float16.
//
//   dequantize_runs      rows of whole runs whose elements share a step: 16-byte stores
//   dequantize_columns   one step a column, or a few: a thread keeps its columns' steps and walks the rows
//   dequantize_any       everything else, an element a thread
//
// Bytes: each code and scale once in, each element once out. -D: ELEMENT (of the output), RUN (elements a
// thread), CODEC, MAPPING, SCALE, SCALE_RULE.
#include "dependent.cuh"
#include "dequantize.cuh"

using T = ELEMENT;
constexpr int kRunBytes = packed_bytes<Q>(RUN);

// A warp's runs to memory in whole 512-byte lines. Each thread holds CHUNKS pieces of 16 bytes, which pass
// through shared memory (swizzled, without bank conflicts), so that neighbouring lanes store neighbouring
// pieces. Does nothing for other pieces, whose kernels do not call it.
template <int CHUNKS, typename Piece, int PIECES>
__device__ __forceinline__ void store_warp(uint4* to, const Piece (&piece)[PIECES], uint4* stage) {
    if constexpr (PIECES == CHUNKS && sizeof(Piece) == sizeof(uint4)) {
        int lane = threadIdx.x & 31;
        auto place = [](int thread, int i) {
            return thread * CHUNKS + (i ^ ((thread * CHUNKS / 8) & (CHUNKS - 1)));
        };
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) stage[place(lane, i)] = piece[i];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            int chunk = i * 32 + lane;
            __stcs(to + chunk, stage[place(chunk / CHUNKS, chunk % CHUNKS)]);
        }
    }
}

// The cell of a run: with ``shift`` >= 0, 2^shift runs share one (63: all of them); otherwise found by
// division.
extern "C" __global__ void __launch_bounds__(256) dequantize_runs(
    const uint8_t* packed, const void* scales, const int8_t* zeros, const float* tensor_scale, T* out,
    uint64_t runs, int shift, uint32_t runs_a_row, int height, int width, uint32_t grid_columns) {
    follow();
    constexpr int chunks = RUN * sizeof(T) / 16;
    constexpr bool staged = RUN * sizeof(T) % 16 == 0 && (chunks == 2 || chunks == 4);
    __shared__ uint4 stage[staged ? 8 * 32 * chunks : 1];
    fill_table();
    uint64_t run = thread_index();
    uint64_t first_of_warp = run - (threadIdx.x & 31);
    bool whole_warp = first_of_warp + 32 <= runs;
    if (run >= runs) return;
    uint32_t word[(kRunBytes + 3) / 4];
    load_bytes<kRunBytes>(packed + run * kRunBytes, word);
    uint64_t cell = shift >= 0 ? run >> shift : 0;
    if (shift < 0) {
        uint32_t row = uint32_t(run / runs_a_row), column = uint32_t(run - uint64_t(row) * runs_a_row) * RUN;
        cell = uint64_t(row / uint32_t(height)) * grid_columns + column / uint32_t(width);
    }
    float step, zero;
    Stored{scales, zeros, tensor_scale}.read(cell, step, zero);
    Results<T, RUN> results;
#pragma unroll
    for (int i = 0; i < RUN; ++i) results.value[i] = restored_as<T>(restore(code_at<Q>(word, i), step, zero));
    if constexpr (staged) {
        if (whole_warp) {
            uint4* to = reinterpret_cast<uint4*>(out + first_of_warp * RUN);
            store_warp<chunks>(to, results.piece, stage + threadIdx.x / 32 * 32 * chunks);
            return;
        }
    }
    results.store(out + run * RUN);
}

extern "C" __global__ void __launch_bounds__(256) dequantize_columns(
    const uint8_t* packed, const void* scales, const int8_t* zeros, const float* tensor_scale, T* out,
    uint64_t rows, uint64_t columns, uint64_t row_bytes, int width) {
    follow();
    fill_table();
    ColumnWalk walk(rows);
    uint64_t column = walk.column<RUN>();
    if (column >= columns) return;
    float step[RUN], zero[RUN];
    Stored stored{scales, zeros, tensor_scale};
#pragma unroll
    for (int i = 0; i < RUN; ++i) stored.read(quotient(column + i, width, columns), step[i], zero[i]);
    uint32_t word[ColumnWalk::kRows][(kRunBytes + 3) / 4];
    walk.rows(
        [&](int k, uint64_t row) {
            load_bytes<kRunBytes>(packed + row * row_bytes + column / RUN * kRunBytes, word[k]);
        },
        [&](int k, uint64_t row) {
            Results<T, RUN> results;
#pragma unroll
            for (int i = 0; i < RUN; ++i)
                results.value[i] = restored_as<T>(restore(code_at<Q>(word[k], i), step[i], zero[i]));
            results.store(out + row * columns + column);
        });
}

extern "C" __global__ void __launch_bounds__(256) dequantize_any(
    const uint8_t* packed, const void* scales, const int8_t* zeros, const float* tensor_scale, T* out,
    Blocks blocks, uint64_t row_bytes) {
    follow();
    fill_table();
    uint64_t at = thread_index();
    if (at >= blocks.rows * blocks.columns) return;
    uint64_t row = at / blocks.columns, column = at % blocks.columns;
    uint32_t code = code_in_row<Q>(packed + row * row_bytes, column, row_bytes);
    float step, zero;
    Stored{scales, zeros, tensor_scale}.read(blocks.cell_from(blocks.first_cell(row), column), step, zero);
    out[at] = restored_as<T>(restore(code, step, zero));
}
