// Element by element over a matrix, with the cell of each element. -D: ELEMENT.
#pragma once
#include "blocks.cuh"
#include "memory.cuh"

using T = ELEMENT;

// Calls work(i, values, cells) for four elements at a time where rows and alignment allow it, else for one.
template <typename Work>
__device__ __forceinline__ void for_each(
    const T* x, uint64_t elements, const Blocks& blocks, bool fours, Work work) {
    uint64_t first = thread_index(), stride = thread_count();
    if (fours) {
        for (uint64_t i = first * 4; i < elements; i += stride * 4) {
            Run<T, 4> run;
            run.load(x + i);
            float v[4];
            uint64_t cell[4] = {blocks.cell_of(i)};
            bool shared = blocks.width % 4 == 0 || blocks.one();
            for (int k = 0; k < 4; ++k) v[k] = run.at(k);
            for (int k = 1; k < 4; ++k) cell[k] = shared ? cell[0] : blocks.cell_of(i + k);
            work(i, v, cell);
        }
    } else {
        for (uint64_t i = first; i < elements; i += stride) {
            float v[1] = {to_float(x[i])};
            uint64_t cell[1] = {blocks.cell_of(i)};
            work(i, v, cell);
        }
    }
}

template <int N>
__device__ __forceinline__ void store(T* out, const float (&v)[N]) {
    if constexpr (N == 1) {
        out[0] = restored_as<T>(v[0]);
    } else {
        Results<T, N> results;
#pragma unroll
        for (int k = 0; k < N; ++k) results.value[k] = restored_as<T>(v[k]);
        results.store(out);
    }
}
