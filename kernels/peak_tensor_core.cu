// Peak rate of Hopper's tensor cores when nothing is loaded: the limit that GEMMs are measured
// against.
//
// wgmma m64n256 on 48 KiB of random values in shared memory, two warpgroups a CTA, accumulators in
// registers (sm_90a).
// -D: TYPE (tensor_core.cuh).
#include "wgmma.cuh"

constexpr OperandType kType = OperandType::TYPE;
constexpr int kNoiseBytes = 384 * 128;

extern "C" __global__ void __launch_bounds__(256, 1)
    peak_tensor_core(const uint4* noise, float* out, int rounds) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t base = (shared_address(raw) + 1023u) & ~1023u;
    uint4* shared = reinterpret_cast<uint4*>(raw + (base - shared_address(raw)));
    for (int i = threadIdx.x; i < kNoiseBytes / 16; i += 256) shared[i] = noise[i];
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    __syncthreads();
    Accumulator<kType> d[128] = {};
    uint64_t a = tile_descriptor(base + threadIdx.x / 128 * 8192), b = tile_descriptor(base + 16384);
    for (int i = 0; i < rounds; ++i) {
        fence_accumulators(d);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < 4; ++part) wgmma<kType, 256>(d, a + 2 * part, b + 2 * part, 1);
        wgmma_commit();
        fence_accumulators(d);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    fence_accumulators(d);
    float sum = 0.0f;  // stored so that no product is optimized away
#pragma unroll
    for (int i = 0; i < 128; ++i) sum += float(d[i]);
    out[blockIdx.x * 256 + threadIdx.x] = sum;
#endif
}
