// Peak rate of the CUDA cores on 32-bit words when nothing is loaded: dp4a, or xor + popc + add.
// Sixteen independent chains a thread. -D: OP (simt32.cuh).
#include "simt32.cuh"

extern "C" __global__ void __launch_bounds__(256) peak_simt32(const uint32_t* noise, int* out, int rounds) {
    uint32_t a = noise[threadIdx.x], b[16];
    int acc[16] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) b[i] = noise[256 + threadIdx.x + i];
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            // Bit counts of constant words would be hoisted out of the loop.
            uint32_t word = WordOp::OP == WordOp::POPC ? b[i] ^ acc[i] : b[i];
            acc[i] = accumulate<WordOp::OP>(a, word, acc[i]);
        }
    }
    int total = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) total += acc[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
