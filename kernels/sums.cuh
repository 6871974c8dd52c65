// Sums in double precision: of magnitudes, and for the least-squares scale.
#pragma once
#include <cstdint>

// |v| · 2^-896: the bits of a float, subnormals too, moved to their places in a double. A conversion to
// double has a quarter of this rate.
constexpr double kScaledBack = 0x1p896;
__device__ __forceinline__ double scaled_magnitude(float v) {
    uint32_t magnitude = __float_as_uint(v) & 0x7fffffffu;
    return __hiloint2double(int(magnitude >> 3), int(magnitude << 29));
}

// Sums of x·v and v·v (v: a code's value) over all threads, whose ratio is the least-squares scale.
__device__ __forceinline__ void add_sums(double* sums, double xv, double vv) {
    for (int offset = 16; offset; offset >>= 1) {
        xv += __shfl_xor_sync(0xffffffffu, xv, offset);
        vv += __shfl_xor_sync(0xffffffffu, vv, offset);
    }
    __shared__ double part[2][32];
    if ((threadIdx.x & 31) == 0) part[0][threadIdx.x >> 5] = xv, part[1][threadIdx.x >> 5] = vv;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < blockDim.x >> 5; ++i) xv += part[0][i], vv += part[1][i];
    atomicAdd(sums, xv);
    atomicAdd(sums + 1, vv);
}
