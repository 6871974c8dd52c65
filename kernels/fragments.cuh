// Packed weights in the order in which tensor cores take them from registers, and their decoding there.
//
// A tile is 64 rows by 128 of K. Each of a warpgroup's 128 threads holds 64 of its codes, those that wgmma's
// A operand wants from it: in every 32 bytes of K (a step) four registers of two bfloat16 or four bytes. They
// fill 2 · Bits words, placed so that few instructions turn a word into registers. Words lie in pairs, a pair
// of every thread after the other: [Bits][128 threads][2 words].
#pragma once
#include <cuda_bf16.h>

#include <type_traits>

#include "codec.cuh"

constexpr int kFragmentRows = 64, kFragmentK = 128, kFragmentThreads = 128;

// Bytes of a tile: codes, then scales of Groups groups of K for each row, then as many int8 zero points.
template <int Bits, int Groups, bool Zeros, typename Scale>
struct TileBytes {
    static constexpr int codes = kFragmentRows * kFragmentK / 8 * Bits;
    static constexpr int scales = kFragmentRows * Groups * int(sizeof(Scale));
    static constexpr int all = codes + scales + (Zeros ? kFragmentRows * Groups : 0);
};

// Positions of a thread's codes in the tile. Bytes: operands of 8 bits, else of 16.
template <bool Bytes>
struct Fragment {
    static constexpr int parts = Bytes ? 4 : 2;  // elements in a register
    static constexpr int steps = Bytes ? 4 : 8;  // of a tile
    static HD int row(int thread, int reg) { return thread / 32 * 16 + thread % 32 / 4 + 8 * (reg & 1); }
    static HD int k(int thread, int step, int reg, int part) {
        return (4 * step + 2 * (reg >> 1)) * 2 * parts + thread % 4 * parts + part;
    }
};

// The bit of a thread's words in which bit ``bit`` of a code lies. Paired: the codes of a register are
// neighbours (for look-ups of a byte); else they lie as far apart as the register's elements. Float4: E2M1 in
// bfloat16, whose sign and magnitude one shift brings to their places.
enum class CodeOrder { APART, PAIRED, FLOAT4 };

template <int Bits, bool Bytes, CodeOrder ORDER>
HD int place_of_bit(int step, int reg, int part, int bit) {
    constexpr bool Paired = ORDER == CodeOrder::PAIRED;
    if (Bytes) {
        if (Bits == 2) return 32 * step + 8 * part + 2 * reg + bit;
        int word = 2 * step + (reg >> 1);  // 4 bits
        return 32 * word + (Paired ? 16 * (reg & 1) + 4 * part : 8 * part + 4 * (reg & 1)) + bit;
    }
    int pair = 4 * (step & 1) + reg, half = 16 * part;  // pair: of eight that share two steps' words
    if (Bits == 8) return 32 * (2 * step + (reg >> 1)) + 8 * (reg & 1) + half + bit;
    if (ORDER == CodeOrder::FLOAT4) {
        int at = bit == 3 ? 15 - 3 * reg : 6 - 3 * reg + bit;
        if (reg == 3) at = bit == 3 ? 14 : bit ? 9 + bit : 13;  // in the bits that are left
        return 32 * step + half + at;
    }
    if (Bits == 4) return 32 * step + (Paired ? 8 * reg + 4 * part : 4 * reg + half) + bit;
    if (Bits == 6) {
        // Two codes a half word; the seventh and eighth in the four bits that each of three words has left.
        int first = 96 * (step >> 1) + half;
        if (pair < 6) return first + 32 * (pair / 2) + 6 * (pair & 1) + bit;
        if (pair == 6) return first + (bit < 4 ? 12 + bit : 32 + 8 + bit);
        return first + (bit < 2 ? 32 + 14 + bit : 64 + 10 + bit);
    }
    if (Bits == 3) {
        // Sixteen codes of four steps: five a half word, the last in the bits that three words have left.
        int code = 4 * (step & 3) + reg, first = 96 * (step >> 2) + half;
        return code < 15 ? first + 32 * (code / 5) + 3 * (code % 5) + bit : first + 32 * bit + 15;
    }
    return 32 * (step >> 1) + 2 * pair + half + bit;  // 2 bits
}

#ifdef __CUDACC__
__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t w) {
    return *reinterpret_cast<__nv_bfloat162*>(&w);
}
__device__ __forceinline__ uint32_t as_bits(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ uint32_t twice(float v) { return as_bits(__float2bfloat162_rn(v)); }
// Shift left, or right by a negative distance.
__device__ __forceinline__ uint32_t shifted(uint32_t w, int left) {
    return left >= 0 ? w << left : w >> -left;
}

// (a & b) ^ c and (a & b) | c in one instruction: written out, two constants make the compiler take two.
__device__ __forceinline__ uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Decodes a thread's words. Added: 0, or what plain 2-bit codes are stored plus. ``zero``: for integers, the
// stored zero point of the row of registers 0 and 2, and of 1 and 3.
template <typename Coded, int Bits, int Added, bool Bytes, bool FloatBytes, bool Folded>
struct FragmentDecoder {
    static constexpr bool fp4 = std::is_same_v<Coded, FloatCodec<2, 1, 1, NONE>>;
    static constexpr bool paired = Bits == 4 && (Bytes ? FloatBytes : !Coded::is_integer && !fp4);
    static constexpr int words = 2 * Bits;
    static_assert(!Bytes || Bits == 8 || (Coded::is_integer && (Bits == 4 || (Bits == 2 && !FloatBytes))),
                  "8-bit operands: int4, and 2 bits for int8 (8: not decoded)");
    static_assert(Bytes || Bits == 2 || Bits == 3 || Bits == 4 || Bits == 6 || Bits == 8,
                  "no code order for this bit width");
    static_assert(!Coded::is_integer || Bits != 6, "6 bits are floats");
    // int4 times int8 is multiplied as sixteen times the code.
    static constexpr int factor = Bytes && !FloatBytes && Bits == 4 ? 16 : 1;
    // Sixteen values two at a time, as pairs of bfloat16: [byte of two codes][lane], so that no two lanes
    // meet in a bank. An entry takes 256 bytes, of which half are used: the byte is moved into an address in
    // one instruction.
    static constexpr bool tabled = paired && !Bytes;
    static constexpr int kEntry = 256, table_bytes = tabled ? 256 * kEntry : 0;
    uint32_t table, lane_bytes;  // its shared-memory address, and four times the lane

    static __device__ __forceinline__ void fill_table(uint32_t* table, int thread, int threads) {
        for (int codes = thread; codes < 256; codes += threads) {
            float low = 0.0f, high = 0.0f;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                float level = Coded::decode(j);
                low = (codes & 15) == j ? level : low, high = codes >> 4 == j ? level : high;
            }
            uint32_t two = as_bits(__floats2bfloat162_rn(low, high));
#pragma unroll
            for (int j = 0; j < 8; ++j)  // in an order in which neighbours write to different banks
                reinterpret_cast<uint4*>(table)[codes * (kEntry / 16) + (j + codes) % 8] =
                    make_uint4(two, two, two, two);
        }
    }
    // Value subtracted from 128 + code, for both elements of a register.
    static __device__ __forceinline__ uint32_t offset(int zero) {
        return twice(128.0f + (Added ? Added : 1 << (Bits - 1)) + zero);
    }
    // E4M3 of four int4 codes: bits 0 to 2 of each select in two tables of eight bytes, bit 3 between them.
    static __device__ __forceinline__ uint32_t e4m3_of(uint32_t codes) {
        uint32_t select = codes & 0x7777u, upper = __byte_perm(0x0000ff00u, 0u, codes >> 3 & 0x1111u);
        uint32_t positive = __byte_perm(0x44403800u, 0x4e4c4a48u, select);  // 0 ... 7
        uint32_t negative = __byte_perm(0xcaccced0u, 0xb8c0c4c8u, select);  // -8 ... -1
        return (positive & ~upper) | (negative & upper);
    }
    __device__ __forceinline__ void decode(const uint32_t (&w)[words], int step, const uint32_t (&offsets)[2],
                                           uint32_t (&out)[4]) const {
        if constexpr (Bytes && Bits == 2) {
            constexpr uint32_t flip = Added == 2 ? 0x02020202u : 0u, down = (128u - Added) * 0x01010101u;
#pragma unroll
            for (int r = 0; r < 4; ++r)
                out[r] = (and_xor(w[step] >> (2 * r), 0x03030303u, flip) + down) ^ 0x80808080u;
        } else if constexpr (Bytes && paired) {
#pragma unroll
            for (int r = 0; r < 4; ++r) out[r] = e4m3_of(w[2 * step + r / 2] >> (16 * (r & 1)));
        } else if constexpr (Bytes) {
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                out[r] = w[2 * step + r / 2] << 4 & 0xf0f0f0f0u,
                out[r + 1] = w[2 * step + r / 2] & 0xf0f0f0f0u;
            }
        } else if constexpr (paired) {
#pragma unroll
            for (int r = 0; r < 4; ++r)
                asm("ld.shared.b32 %0, [%1];"
                    : "=r"(out[r])
                    : "r"(table + __byte_perm(w[step], lane_bytes, 0x5504 | r << 4)));
        } else {
#pragma unroll
            for (int r = 0; r < 4; ++r) out[r] = pair(w, step, r, offsets[r & 1]);
        }
    }

    // Two elements in bfloat16, as exact as it holds the codes' values.
    __device__ __forceinline__ uint32_t pair(const uint32_t (&w)[words], int step, int r,
                                             uint32_t offset) const {
        const int i = 4 * (step & 1) + r;
        if constexpr (Bits == 8 && Coded::is_integer) {
            // 128 + the lower seven bits, less 128 or 256 by the sign.
            uint32_t v = w[2 * step + r / 2] >> (8 * (r & 1));
            uint32_t lower = and_or(v, 0x007f007fu, 0x43004300u), sign = and_or(v, 0x00800080u, 0x43004300u);
            return as_bits(__hsub2(as_pair(lower), as_pair(sign)));
        } else if constexpr (Bits == 8) {
            // The magnitude's bits as the low bits of bfloat16's exponent and the high ones of its mantissa;
            // a power of two makes up for the biases, subnormals included. (NaN: the caller's.)
            constexpr int up = 7 - Coded::mantissa;
            uint32_t v = w[2 * step + r / 2];
            uint32_t magnitude = shifted(v, up - 8 * (r & 1)) & (0x007f007fu << up);
            uint32_t sign = (r & 1 ? v : v << 8) & 0x80008000u;
            return times_power(magnitude | sign);
        } else if constexpr (Bits == 4 && Coded::is_integer) {
            uint32_t bits = and_xor(w[step] >> (4 * r), 0x000f000fu, 0x43084308u);
            return as_bits(__hsub2(as_pair(bits), as_pair(offset)));
        } else if constexpr (Bits == 4) {
            uint32_t bits = w[step] << (3 * r) & 0x81c081c0u;
            if (r == 3)
                bits = and_or(w[step] << 1, 0x80008000u,
                              and_or(w[step] >> 3, 0x01800180u, w[step] >> 7 & 0x00400040u));
            return times_power(bits);
        } else if constexpr (Bits == 6) {
            const uint32_t* three = w + 3 * (step >> 1);
            uint32_t code;
            int at = 0;
            if (i < 6)
                code = three[i / 2], at = 6 * (i & 1);
            else if (i == 6)
                code = (three[0] >> 12 & 0x000f000fu) | (three[1] >> 8 & 0x00300030u);
            else
                code = (three[1] >> 14 & 0x00030003u) | (three[2] >> 10 & 0x003c003cu);
            constexpr int up = 7 - Coded::mantissa;
            return times_power((shifted(code, up - at) & (0x001f001fu << up)) |
                               (code << (10 - at) & 0x80008000u));
        } else if constexpr (Bits == 3) {
            // Two codes fit the mantissa side by side: 128 + code and 128 + 8 · code (see 2 bits).
            const uint32_t* three = w + 3 * (step >> 2);
            const int code = 4 * (step & 3) + r;
            if (code == 15) {
                uint32_t bits = and_xor(three[0] >> 15, 0x00010001u, 0x43044304u);
                bits = and_xor(three[1] >> 14, 0x00020002u, bits);
                bits = and_xor(three[2] >> 13, 0x00040004u, bits);
                return as_bits(__hsub2(as_pair(bits), as_pair(offset)));
            }
            const int place = code % 5 & 1;
            uint32_t bits = and_xor(three[code / 5] >> (code % 5 / 2 * 6), 0x00070007u << (3 * place),
                                    0x43004300u ^ 0x00040004u << (3 * place));
            if (place == 0) return as_bits(__hsub2(as_pair(bits), as_pair(offset)));
            return as_bits(__hfma2(as_pair(bits), as_pair(twice(0.125f)),
                                   __hsub2(as_pair(twice(112.0f)), as_pair(offset))));
        } else {
            // Three codes fit the mantissa side by side: 128 + code, 128 + 4 · code, 128 + 16 · code. A fused
            // multiply-add brings each down at the cost of a subtraction.
            static_assert(Bits == 2);
            constexpr uint32_t sign = Added == 2 ? 0x00020002u : 0u;
            constexpr uint32_t factors[3] = {0x3f803f80u, 0x3e803e80u, 0x3d803d80u};  // 1, 1/4, 1/16
            constexpr uint32_t back[3] = {0u, 0x42c042c0u, 0x42f042f0u};              // 0, 96, 120
            int place = i % 3;
            uint32_t bits = and_xor(w[step >> 1] >> (6 * (i / 3)), 0x00030003u << (2 * place),
                                    0x43004300u ^ sign << (2 * place));
            return as_bits(__hfma2(as_pair(bits), as_pair(factors[place]),
                                   __hsub2(as_pair(back[place]), as_pair(offset))));
        }
    }
    // Factor from bfloat16's exponents to those of the format: 2^(127 - bias). Folded: scales have it.
    static constexpr uint32_t power = uint32_t(254 - Coded::bias) << 7;
    static __device__ __forceinline__ uint32_t times_power(uint32_t bits) {
        return Folded ? bits : as_bits(__hmul2(as_pair(bits), as_pair(power | power << 16)));
    }
};
#endif
