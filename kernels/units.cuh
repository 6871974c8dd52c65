// Rows of base-three digits, five a byte: a thread takes one unit of 20 digits in 4 bytes, a warp 32 units of
// one row. Rows of packed bytes start at any address.
#pragma once
#include "blocks.cuh"
#include "packing.cuh"

constexpr int kUnit = 20, kUnitBytes = 4, kStretch = 32 * kUnit;

// The part of a row that a warp takes, TIMES units a lane: its first element, and how many it has.
template <int TIMES>
struct Stretch {
    uint64_t row, element;
    int count;

    // Stretches are numbered row by row, ``a_row`` of them in each.
    __device__ __forceinline__ Stretch(uint64_t index, uint64_t a_row, uint64_t rows, uint64_t columns) {
        row = quotient(index, a_row, rows * a_row);
        element = (index - row * a_row) * (TIMES * kStretch);
        uint64_t left = columns - element;
        count = left < TIMES * kStretch ? int(left) : TIMES * kStretch;
    }
    static __device__ __forceinline__ uint64_t in_row(uint64_t columns) {
        return (columns + TIMES * kStretch - 1) / (TIMES * kStretch);
    }
    __device__ __forceinline__ uint64_t byte() const { return element / kUnit * kUnitBytes; }
};

// Copies up to kStretch elements from global to shared memory (LOAD) or back, 16 bytes a lane where the
// global side is aligned; the shared one is.
template <bool LOAD, typename T>
__device__ __forceinline__ void copy_stretch(T* to, const T* from, int count) {
    constexpr int each = 16 / sizeof(T), pieces = (kStretch / each + 31) / 32;
    auto global = reinterpret_cast<uintptr_t>(LOAD ? from : to);
    int lane = threadIdx.x & 31, wide = global % 16 == 0 ? count / each : 0;
    auto source = reinterpret_cast<const uint4*>(from) + lane;
    auto target = reinterpret_cast<uint4*>(to) + lane;
    uint4 piece[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i)
        if (i * 32 + lane < wide) {
            if constexpr (LOAD)
                piece[i] = __ldcs(source + i * 32);
            else
                piece[i] = source[i * 32];
        }
#pragma unroll
    for (int i = 0; i < pieces; ++i)
        if (i * 32 + lane < wide) {
            if constexpr (LOAD)
                target[i * 32] = piece[i];
            else
                __stcs(target + i * 32, piece[i]);
        }
    for (int i = wide * each + lane; i < count; i += 32) to[i] = from[i];
}

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
