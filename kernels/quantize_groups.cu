// Quantize blocks of one row in one pass: range, scale, encode, pack. The lanes of a warp share a block.
//
// For blocks (1, g) where g is a power of two of runs, at most 32, and rows are whole blocks. Bytes: each
// element once in, each code and scale once out.
//
// -D: ELEMENT, RUN (elements a thread), CODEC, MAPPING, SCALE, SCALE_RULE, SMALLEST_SCALE, RANGE, STOCHASTIC;
// what they are is said by explorer/gpu/quantize.py. Compile with --fmad=false: products and sums are rounded
// as written.
#include "blocks.cuh"
#include "dependent.cuh"
#include "encode.cuh"
#include "extent.cuh"
#include "settle.cuh"

using T = ELEMENT;

// ``runs``: of the matrix; ``lanes``: threads a block of the scheme, one run each. Threads take runs in turn,
// and load the next one before they encode the last. Warps begin at the end of the matrix, which a kernel
// that found the tensor's range has read last. ``amax``: settle.cuh's ``tensor_scale_from``.
extern "C" __global__ void __launch_bounds__(256)
    quantize_groups(const T* x, uint8_t* packed, void* scales, int8_t* zeros, const float* amax,
                    int* unusable, uint64_t runs, int lanes, uint64_t seed) {
    follow();
    int lane = threadIdx.x & 31;
    int64_t stride = thread_count(), run = from_end(thread_index() >> 5, (runs + 31) >> 5) * 32 + lane;
    Run<T, RUN> next = {};
    if (run >= 0 && run < runs) next.load(x + run * RUN);
    TensorScale tensor_scale = tensor_scale_from(amax);
    int shift = __ffs(lanes) - 1;
    // A warp's lanes go on together: they merge what they have seen.
    for (; run >= 0; run -= stride) {
        bool live = run < runs;
        Run<T, RUN> values = next;
        if (run >= stride) next.load(x + (run - stride) * RUN);
        Extent extent;
        extent.clear();
        extent.add_run(values);
        extent.report(unusable);
        extent.merge_lanes(lanes);
        if (kCells || live) {
            float lo, hi, zero;
            extent.range(double(lanes) * RUN, lo, hi);
            float step = settle(lo, hi, tensor_scale, scales, zeros, run >> shift,
                                live && (run & (lanes - 1)) == 0, zero);
            uint8_t* out = packed + run * packed_bytes<Q>(RUN);
            if constexpr (kCells)
                encode_run_in_cells(values, Divider(step), live, out);
            else
                encode_run(values, Divider(step), zero, seed, run * RUN, out);
        }
    }
}
