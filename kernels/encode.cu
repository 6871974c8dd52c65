// Codes under steps that are known: found by ranges.cu and scales.cu, or given.
//
//   encode_flat       one step for the whole tensor, or none (a cast)
//   encode_columns    one step a column, or a few: a thread keeps its columns' steps and walks the rows
//   encode_any        any blocks, any alignment, ragged rows; least-squares sums
//
// Bytes: each element once in, each code once out. -D: ELEMENT, RUN (elements a thread; the first two kernels
// need rows of whole runs), CODEC, MAPPING, SCALE_RULE, STOCHASTIC, REFIT, GIVEN (whether the steps are
// others than those of these values).
#include "blocks.cuh"
#include "dependent.cuh"
#include "encode.cuh"
#include "sums.cuh"

using T = ELEMENT;
constexpr bool kGiven = GIVEN;
constexpr int kRunBytes = packed_bytes<Q>(RUN);

// 0, or NaN if ``v`` or any value before it is NaN or Inf. A cast looks for them here: it has no range.
__device__ __forceinline__ float poisoned(float poison, float v) {
    return SCALE_RULE == CAST ? __fmaf_rn(v, 0.0f, poison) : poison;
}

__device__ __forceinline__ void report(float poison, int* unusable) {
    if (SCALE_RULE == CAST && poison != poison) *unusable = 1;
}

// From the end, which a kernel that found the tensor's range has read last.
extern "C" __global__ void __launch_bounds__(256)
    encode_flat(const T* x, uint8_t* packed, const float* steps, const int8_t* zeros, int* unusable,
                uint64_t runs, uint64_t seed) {
    follow();
    uint64_t run = uint64_t(from_end(blockIdx.x, gridDim.x)) * blockDim.x + threadIdx.x;
    if (run >= runs) return;
    Run<T, RUN> values;
    values.load(x + run * RUN);
    float poison = 0.0f;
#pragma unroll
    for (int i = 0; i < RUN; ++i) poison = poisoned(poison, values.at(i));
    report(poison, unusable);
    float step = SCALE_RULE == CAST ? 1.0f : steps[0], zero = kAsymmetric ? float(zeros[0]) : 0.0f;
    encode_run(values, Divider(step, kGiven), zero, seed, run * RUN, packed + run * kRunBytes);
}

// On a multiprocessor, as registers allow; explorer/gpu/quantize.py fills whole rounds of them.
constexpr int kColumnBlocks = RUN * sizeof(T) > 16 ? 1 : kAsymmetric ? 3 : 4;

// Lanes lie across the columns and warps up the rows (blocks.cuh's ColumnWalk), from the last, which the
// range pass has read last.
extern "C" __global__ void __launch_bounds__(256, kColumnBlocks)
    encode_columns(const T* x, uint8_t* packed, const float* steps, const int8_t* zeros, uint64_t rows,
                   uint64_t columns, uint64_t row_bytes, int width, uint64_t seed) {
    follow();
    ColumnWalk walk(rows);
    uint64_t column = walk.column<RUN>();
    if (column >= columns) return;
    float step[RUN], inverse[RUN], zero[RUN];
    bool by_residual = true;
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
        uint64_t cell = quotient(column + i, width, columns);
        Divider divide_by(steps[cell], kGiven);
        step[i] = divide_by.step, inverse[i] = divide_by.inverse;
        by_residual &= divide_by.exact_by_residual;
        zero[i] = kAsymmetric ? float(zeros[cell]) : 0.0f;
    }
    Run<T, RUN> run[ColumnWalk::kRows];
    walk.rows([&](int k, uint64_t up) { run[k].load(x + (rows - 1 - up) * columns + column); },
              [&](int k, uint64_t up) {
                  uint64_t row = rows - 1 - up;
                  uint32_t word[(kRunBytes + 3) / 4] = {};
                  with_quotients(
                      by_residual, [&](int i) { return run[k].at(i); },
                      [&](int i) { return Divider(step[i], inverse[i]); },
                      [&](auto quotient) {
                          auto zero_of = [&](int i) { return zero[i]; };
                          encode_words<RUN, false>(word, quotient, zero_of, seed, row * columns + column);
                      });
                  store_bytes<kRunBytes>(packed + row * row_bytes + column / RUN * kRunBytes, word);
              });
}

// A thread takes one packing unit of a row and stores it byte by byte where it does not lie on a word.
extern "C" __global__ void __launch_bounds__(256)
    encode_any(const T* x, uint8_t* packed, const float* steps, const int8_t* zeros, double* sums,
               int* unusable, Blocks blocks, uint64_t row_bytes, uint64_t seed) {
    follow();
    constexpr int unit = kPerByte<Q> ? 20 : 8, unit_bytes = packed_bytes<Q>(unit);
    constexpr bool runs = unit == RUN;  // a unit is as long as a run: it may be loaded as one
    uint64_t rows = blocks.rows, columns = blocks.columns;
    uint64_t units = (columns + unit - 1) / unit, at = thread_index();
    double xv = 0, vv = 0;
    if (at < rows * units) {
        uint64_t row = quotient(at, units, rows * units), first = (at - row * units) * unit;
        uint64_t first_cell = blocks.first_cell(row), held = ~uint64_t(0);
        float step = 1.0f, zero = 0.0f;
        const T* from = x + row * columns + first;
        constexpr int alignment = unit % 8 && sizeof(T) == 2 ? 8 : 16;
        bool vector = runs && first + unit <= columns && reinterpret_cast<uintptr_t>(from) % alignment == 0;
        Run<T, runs ? unit : 4> loaded;
        if (vector) loaded.load(from);
        uint32_t word[(unit_bytes + 3) / 4] = {};
        float poison = 0.0f;
#pragma unroll
        for (int i = 0; i < unit; ++i) {
            if (first + i < columns) {
                uint64_t cell = blocks.cell_from(first_cell, first + i);
                if (SCALE_RULE != CAST && cell != held) {
                    held = cell;
                    step = steps[cell];
                    zero = kAsymmetric ? float(zeros[cell]) : 0.0f;
                }
                float v = vector ? loaded.at(runs ? i : 0) : to_float(from[i]), scaled = v;
                poison = poisoned(poison, v);
                if constexpr (SCALE_RULE != CAST)
                    scaled = kPowerOfTwo ? __fmul_rn(v, __frcp_rn(step)) : __fdiv_rn(v, step);
                uint32_t code = encode_one(scaled, zero, seed, row * columns + first + i);
                if constexpr (REFIT) {
                    double level = double(Q::decode(code));
                    xv += double(v) * level, vv += level * level;
                }
                put_code<Q>(word, i, code);
            }
        }
        report(poison, unusable);
        uint64_t start = first / unit * unit_bytes;
        uint8_t* to = packed + row * row_bytes + start;
        if (unit_bytes == 4 && start + 4 <= row_bytes && reinterpret_cast<uintptr_t>(to) % 4 == 0)
            *reinterpret_cast<uint32_t*>(to) = word[0];
        else
#pragma unroll
            for (int i = 0; i < unit_bytes; ++i)
                if (start + i < row_bytes) to[i] = uint8_t(word[i / 4] >> (8 * (i % 4)));
    }
    if constexpr (REFIT) add_sums(sums, xv, vv);
}
