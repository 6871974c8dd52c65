// Packed 4- and 2-bit codes -> one byte each (int8 or E4M3), for tensor cores that take no narrower type.
// SCALED: each code times its group's ratio, rounded: scales then vary by row alone.
//
// 4 bits: 32 codes a thread, each looked up in the sixteen bytes that there can be, which are computed once.
// 2 bits: eight codes a thread. Bytes moved: the codes (and ratios) once in, one byte per element out.
// -D: CODEC, WBITS, TWO_BIT (0, or for plain 2-bit codes the value that they are stored plus), TO_E4M3 (0,
// 1), SCALED (0, 1). Group scales folded into 8-bit weights: QServe (arXiv 2405.04532), whose group scales
// are integers, so that nothing is rounded there.
#include <cstdint>

#include "codec.cuh"

__device__ __forceinline__ float value_of(uint32_t code) {
    return TWO_BIT == 1 ? float(code) - 1.0f : CODEC::decode(code);
}

// Two values as bytes, the first in the low one.
__device__ __forceinline__ uint32_t two_bytes(float low, float high) {
    if constexpr (!TO_E4M3) return (uint32_t(__float2int_rn(high)) & 0xffu) << 8 |
                                   (uint32_t(__float2int_rn(low)) & 0xffu);
#if __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(two) : "f"(high), "f"(low));
    return two;
#else
    using E4M3 = FloatCodec<4, 3, 7, FN>;
    return E4M3::encode(high) << 8 | E4M3::encode(low);
#endif
}

// The bytes of all codes: [4 code + byte].
__device__ __forceinline__ void fill_table(float ratio, uint32_t (&table)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        table[i] = two_bytes(value_of(4 * i) * ratio, value_of(4 * i + 1) * ratio) |
                   two_bytes(value_of(4 * i + 2) * ratio, value_of(4 * i + 3) * ratio) << 16;
}

// The bytes of the four codes in the lower half of ``codes``: bits 0 to 2 of each select in both halves of
// the table, bit 3 between them.
__device__ __forceinline__ uint32_t look_up(const uint32_t (&table)[4], uint32_t codes) {
    uint32_t select = codes & 0x7777u, upper = __byte_perm(0x0000ff00u, 0u, codes >> 3 & 0x1111u);
    return (__byte_perm(table[0], table[1], select) & ~upper) |
           (__byte_perm(table[2], table[3], select) & upper);
}

// ``units`` of a row, 32 codes each, or eight of 2 bits; rows of both sides lie one after another, whole
// units each. ``ratios`` [rows, groups], of groups of 2^shift units.
extern "C" __global__ void __launch_bounds__(256)
    widen(const uint8_t* packed, uint8_t* out, const float* ratios, int rows, int units, int groups,
          int shift) {
    int unit = blockIdx.x * blockDim.x + threadIdx.x;
    if (unit >= units) return;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        size_t at = size_t(row) * units + unit;
        // Beyond the last group lies filling, which meets zeros of X.
        float ratio = SCALED ? ratios[size_t(row) * groups + min(unit >> shift, groups - 1)] : 1.0f;
        if constexpr (WBITS == 4) {
            uint32_t table[4], words[8];
            fill_table(ratio, table);
            uint4 codes = reinterpret_cast<const uint4*>(packed)[at];
            const uint32_t four[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) words[i] = look_up(table, four[i / 2] >> (16 * (i % 2)));
            uint4* to = reinterpret_cast<uint4*>(out) + 2 * at;
            to[0] = make_uint4(words[0], words[1], words[2], words[3]);
            to[1] = make_uint4(words[4], words[5], words[6], words[7]);
        } else {
            uint32_t codes = reinterpret_cast<const uint16_t*>(packed)[at], words[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float v[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) v[j] = value_of(codes >> (8 * i + 2 * j) & 3u) * ratio;
                words[i] = two_bytes(v[0], v[1]) | two_bytes(v[2], v[3]) << 16;
            }
            reinterpret_cast<uint2*>(out)[at] = make_uint2(words[0], words[1]);
        }
    }
}
