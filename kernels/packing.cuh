// Codes in bytes: code i of a row in bits [i·b, (i+1)·b) of a little-endian bit stream, or five base-three
// digits a byte (explorer/formats/packing.py).
#pragma once
#include "codec.cuh"

// How many codes share a byte in base three; 0 for plain bits.
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

// byte / 3^digits for bytes of five digits, below 243, by a multiplication and a shift.
HD uint32_t third(uint32_t byte, int digits) {
    constexpr uint32_t factors[6] = {1, 171, 57, 19, 203, 0}, shifts[6] = {0, 9, 9, 9, 14, 0};
    return byte * factors[digits] >> shifts[digits];
}

// Adds code i to zeroed words; ``i`` is known when the loop round it is unrolled.
template <typename Q>
__device__ __forceinline__ void put_code(uint32_t* word, int i, uint32_t code) {
    if constexpr (kPerByte<Q> > 0) {
        constexpr uint32_t powers[5] = {1, 3, 9, 27, 81};
        word[i / 20] += (code * powers[i % 5]) << (8 * (i / 5 % 4));
    } else {
        constexpr int b = Q::bits;
        word[i * b / 32] |= code << (i * b % 32);
        if (i * b % 32 + b > 32) word[i * b / 32 + 1] |= code >> (32 - i * b % 32);
    }
}

template <typename Q>
__device__ __forceinline__ uint32_t code_at(const uint32_t* word, int i) {
    if constexpr (kPerByte<Q> > 0) {
        uint32_t byte = (word[i / 20] >> (8 * (i / 5 % 4))) & 0xff;
        return third(byte, i % 5) - 3 * third(byte, i % 5 + 1);
    } else {
        constexpr int b = Q::bits;
        uint32_t code = word[i * b / 32] >> (i * b % 32);
        if (i * b % 32 + b > 32) code |= word[i * b / 32 + 1] << (32 - i * b % 32);
        return b < 32 ? code & ((1u << (b & 31)) - 1) : code;
    }
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
