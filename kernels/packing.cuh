// Codes in bytes: code i of a row in bits [i·b, (i+1)·b) of a little-endian bit stream, or five base-three
// digits a byte (explorer/formats/packing.py).
#pragma once
#include "codec.cuh"

// Number of codes per byte in base three; 0 for plain bits.
template <typename Q>
constexpr int kPerByte = 0;
template <>
constexpr int kPerByte<CodebookCodec<Ternary>> = Ternary::per_byte;

// Bytes of ``count`` codes, a whole number of bytes.
template <typename Q>
HD constexpr int packed_bytes(int count) {
    if constexpr (kPerByte<Q> > 0)
        return count / kPerByte<Q>;
    else
        return count * Q::bits / 8;
}

// The five digits of a byte below 243, the last (of 3^4) first. byte / 243 as a fraction of 2^16, rounded up:
// times three, the next digit stands above the fraction.
struct DigitsOfByte {
    uint32_t fraction;

    HD explicit DigitsOfByte(uint32_t byte) : fraction(byte * 270) {}
    HD uint32_t next() {
        uint32_t tripled = fraction * 3;
        fraction = tripled & 0xffffu;
        return tripled >> 16;
    }
};

// Weight of digit i of the 20 in a word.
HD constexpr uint32_t place_of_digit(int i) {
    constexpr uint32_t powers[5] = {1, 3, 9, 27, 81};
    return powers[i % 5] << (8 * (i / 5 % 4));
}

// Adds code i to zeroed words; ``i`` is known when the loop round it is unrolled.
template <typename Q>
__device__ __forceinline__ void put_code(uint32_t* word, int i, uint32_t code) {
    if constexpr (kPerByte<Q> > 0) {
        word[i / 20] += code * place_of_digit(i);
    } else {
        constexpr int b = Q::bits;
        word[i * b / 32] |= code << (i * b % 32);
        if (i * b % 32 + b > 32) word[i * b / 32 + 1] |= code >> (32 - i * b % 32);
    }
}

// Adds the low COUNT bits of ``bits``, above which are zeros, to zeroed words from bit ``at`` on.
template <int COUNT>
__device__ __forceinline__ void put_bits(uint32_t* word, int at, uint32_t bits) {
    word[at / 32] |= bits << (at % 32);
    if (at % 32 + COUNT > 32) word[at / 32 + 1] |= bits >> (32 - at % 32);
}

// A word with a one at every ``bits``-th bit, ``count`` of them.
HD constexpr uint32_t ones_every(int bits, int count) {
    uint32_t word = 0;
    for (int i = 0; i < count; ++i) word |= 1u << (bits * i);
    return word;
}

// Code i of plain bits; base-three digits come from DigitsOfByte.
template <typename Q>
__device__ __forceinline__ uint32_t code_at(const uint32_t* word, int i) {
    constexpr int b = Q::bits;
    uint32_t code = word[i * b / 32] >> (i * b % 32);
    if (i * b % 32 + b > 32) code |= word[i * b / 32 + 1] << (32 - i * b % 32);
    return b < 32 ? code & ((1u << (b & 31)) - 1) : code;
}

// One code of a row of any alignment, read byte by byte.
template <typename Q>
__device__ __forceinline__ uint32_t code_in_row(const uint8_t* bytes, uint64_t column, uint64_t row_bytes) {
    if constexpr (kPerByte<Q> > 0) {
        uint32_t code = bytes[column / 5];
        for (int i = column % 5; i; --i) code /= 3;
        return code % 3;
    } else {
        uint64_t bit = column * Q::bits;
        uint32_t code = 0;
        for (int i = 0; i < (Q::bits + 14) / 8; ++i)
            if (bit / 8 + i < row_bytes && 8 * i < int(bit % 8) + Q::bits) {
                uint64_t part = uint64_t(bytes[bit / 8 + i]) << (8 * i);
                code |= uint32_t(part >> (bit % 8));
            }
        return Q::bits < 32 ? code & ((1u << (Q::bits & 31)) - 1) : code;
    }
}
