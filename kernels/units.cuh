// Rows of base-three digits, five a byte: a thread takes one unit of 20 digits in 4 bytes, a warp 32 units of
// one row. Rows of packed bytes start at any address.
#pragma once
#include "blocks.cuh"
#include "packing.cuh"

constexpr int kUnit = 20, kUnitBytes = 4, kUnitsOfWarp = 32 * kUnit;

// Where a warp is: its row, and the element and the packed byte of the row that it starts with.
struct WarpOfRow {
    uint64_t row, element, byte;

    __device__ __forceinline__ explicit WarpOfRow(uint64_t rows, uint64_t columns) {
        uint64_t warps_a_row = (columns + kUnitsOfWarp - 1) / kUnitsOfWarp, warp = thread_index() >> 5;
        row = quotient(warp, warps_a_row, rows * warps_a_row + 32);
        uint64_t across = warp - row * warps_a_row;
        element = across * kUnitsOfWarp, byte = across * 32 * kUnitBytes;
    }
};

// Stores a word from each lane, one after another, at any address; ``bytes`` of them exist. Words of memory
// take bytes from two lanes; those that are not whole are stored byte by byte.
__device__ __forceinline__ void store_units(uint8_t* to, uint32_t word, uint64_t bytes) {
    int lane = threadIdx.x & 31, shift = int(reinterpret_cast<uintptr_t>(to) % 4), end = shift + int(bytes);
    uint32_t before = __shfl_up_sync(~0u, word, 1);
    auto put = [&](int at, uint32_t value) {
        uint8_t* place = to - shift + at;
        if (at >= shift && at + 4 <= end)
            __stcs(reinterpret_cast<uint32_t*>(place), value);
        else
            for (int i = 0; i < 4; ++i)
                if (at + i >= shift && at + i < end) place[i] = uint8_t(value >> (8 * i));
    };
    put(4 * lane, __funnelshift_l(before, word, 8 * shift));
    if (lane == 31) put(4 * 32, __funnelshift_l(word, 0, 8 * shift));
}

// Four bytes at any address inside [begin, end); those outside are zeros.
__device__ __forceinline__ uint32_t load_unit(const uint8_t* from, const uint8_t* begin, const uint8_t* end) {
    int shift = int(reinterpret_cast<uintptr_t>(from) % 4);
    const uint8_t* aligned = from - shift;
    if (aligned >= begin && aligned + 8 <= end) {
        const uint32_t* words = reinterpret_cast<const uint32_t*>(aligned);
        return __funnelshift_r(words[0], words[1], 8 * shift);
    }
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i)
        if (from + i < end) word |= uint32_t(from[i]) << (8 * i);
    return word;
}
