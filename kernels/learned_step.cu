// LSQ (Esser et al., arXiv 1902.08153): fake quantization by a step that is learned for each block, integer
// codes.
//
//   learned_forward    x and steps -> x̂
//   learned_backward   dL/dx where x / step lies strictly inside the codes, and the sums of dL/dstep
//
// Steps are float32 [grid]. Bytes an element: forward x and x̂; backward x, dL/dx̂ and dL/dx.
// -D: ELEMENT, CODEC, MAPPING.
#include "dependent.cuh"
#include "elementwise.cuh"
#include "scale.cuh"

using Q = CODEC;
static_assert(Q::is_integer, "steps are learned for integer codes");

extern "C" __global__ void __launch_bounds__(256) learned_forward(
    const T* x, T* out, const float* steps, Blocks blocks, int fours) {
    follow();
    auto work = [&](uint64_t i, const auto& v, const auto& cell) {
        constexpr int n = sizeof(v) / sizeof(float);
        float values[n];
#pragma unroll
        for (int k = 0; k < n; ++k) {
            float step = steps[cell[k]];
            values[k] = rintf(fminf(fmaxf(__fdiv_rn(v[k], step), kLowCode<Q>), Q::max_value())) * step;
        }
        store(out + i, values);
    };
    for_each(x, blocks.rows * blocks.columns, blocks, fours, work);
}

// A block of the scheme for each blockIdx.x, its elements shared by gridDim.y thread blocks; sums [cells,
// gridDim.y].
extern "C" __global__ void __launch_bounds__(256) learned_backward(
    const T* x, const T* upstream, T* gradient, const float* steps, double* sums, Blocks blocks) {
    follow();
    Cell block = blocks.at(blockIdx.x);
    float step = steps[blockIdx.x];
    double sum = 0.0;
    uint64_t first = uint64_t(blockIdx.y) * blockDim.x + threadIdx.x;
    uint64_t stride = uint64_t(gridDim.y) * blockDim.x;
    for (uint64_t i = first; i < block.tall * block.wide; i += stride) {
        uint64_t at = (block.top + i / block.wide) * blocks.columns + block.left + i % block.wide;
        float scaled = __fdiv_rn(to_float(x[at]), step), flows = to_float(upstream[at]);
        bool inside = scaled > kLowCode<Q> && scaled < Q::max_value();
        float slope = inside ? rintf(scaled) - scaled : scaled <= kLowCode<Q> ? kLowCode<Q> : Q::max_value();
        sum += double(flows) * double(slope);
        gradient[at] = from_float<T>(inside ? flows : 0.0f);
    }
    __shared__ double part[8];
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < 8; ++w) sum += part[w];
    sums[uint64_t(blockIdx.x) * gridDim.y + blockIdx.y] = sum;
}
