// Stored scales, zero points and steps of cells whose ranges ranges.cu has found.
//
// -D: CODEC, MAPPING, SCALE, SCALE_RULE, SMALLEST_SCALE, RANGE.
#include "blocks.cuh"
#include "dependent.cuh"
#include "extent.cuh"
#include "settle.cuh"

// steps [cells]: float32, what the encode kernels divide by. ``amax``: settle.cuh's ``tensor_scale_from``.
// ``range`` is zero afterwards, for the next launch.
extern "C" __global__ void __launch_bounds__(256)
    scales_of_ranges(float* range, const float* amax, void* scales, int8_t* zeros, float* steps,
                     Blocks blocks, uint64_t cells) {
    follow();
    uint64_t cell = thread_index();
    if (cell >= cells) return;
    float lo, hi, zero;
    if constexpr (kMean) {
        Cell block = blocks.at(cell);
        Extent extent;
        extent.clear();
        extent.sum = reinterpret_cast<double*>(range)[cell];
        reinterpret_cast<double*>(range)[cell] = 0.0;
        extent.range(double(block.tall) * double(block.wide), lo, hi);
    } else {
        lo = -range[cell];
        hi = range[cells + cell];
        range[cell] = range[cells + cell] = 0.0f;
    }
    steps[cell] = settle(lo, hi, tensor_scale_from(amax), scales, zeros, cell, true, zero);
}
