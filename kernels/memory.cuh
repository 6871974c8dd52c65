// Vector loads and stores, 16 bytes at a time where the size allows it.
//
// Tensors are read and written once, so loads and stores are streaming (evicted from the caches first) unless
// a second pass follows.
// Pointers are aligned to the widest access that divides the size.
#pragma once
#include <cstdint>
#include <type_traits>

#include "element.cuh"

// KEEP: the bytes stay in the L2 cache, for another pass over them.
template <int BYTES, bool KEEP = false>
__device__ __forceinline__ void load_bytes(const void* from, uint32_t* word) {
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; ++i) {
            const uint4* at = static_cast<const uint4*>(from) + i;
            uint4 w = KEEP ? __ldcg(at) : __ldcs(at);
            word[4 * i] = w.x, word[4 * i + 1] = w.y, word[4 * i + 2] = w.z, word[4 * i + 3] = w.w;
        }
    } else if constexpr (BYTES % 8 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; ++i) {
            uint2 w = __ldcs(static_cast<const uint2*>(from) + i);
            word[2 * i] = w.x, word[2 * i + 1] = w.y;
        }
    } else if constexpr (BYTES % 4 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) word[i] = __ldcs(static_cast<const uint32_t*>(from) + i);
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 2; ++i) {
            uint32_t half = static_cast<const uint16_t*>(from)[i];
            word[i / 2] = i % 2 ? word[i / 2] | half << 16 : half;
        }
    }
}

template <int BYTES>
__device__ __forceinline__ void store_bytes(void* to, const uint32_t* word) {
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; ++i) {
            uint4 w = make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
            __stcs(static_cast<uint4*>(to) + i, w);
        }
    } else if constexpr (BYTES % 8 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; ++i)
            __stcs(static_cast<uint2*>(to) + i, make_uint2(word[2 * i], word[2 * i + 1]));
    } else if constexpr (BYTES % 4 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) __stcs(static_cast<uint32_t*>(to) + i, word[i]);
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 2; ++i)
            static_cast<uint16_t*>(to)[i] = uint16_t(word[i / 2] >> (16 * (i % 2)));
    }
}

// N neighbouring elements as they lie in memory: of 16-bit types half the registers that their floats take.
template <typename T, int N>
struct Run {
    static constexpr int count = N, words = N * sizeof(T) / 4;
    uint32_t word[words];

    template <bool KEEP = false>
    __device__ __forceinline__ void load(const T* from) {
        load_bytes<N * sizeof(T), KEEP>(from, word);
    }

    // Elements at index ``at`` of ``x``; those from ``kept`` on stay in the L2 cache.
    __device__ __forceinline__ void load_from(const T* x, uint64_t at, uint64_t kept) {
        if (at >= kept)
            load<true>(x + at);
        else
            load(x + at);
    }

    // From shared memory.
    __device__ __forceinline__ void load_cached(const T* from) {
        using Piece = std::conditional_t<N * sizeof(T) % 16 == 0, uint4, uint2>;
#pragma unroll
        for (int i = 0; i < N * sizeof(T) / sizeof(Piece); ++i)
            reinterpret_cast<Piece*>(word)[i] = reinterpret_cast<const Piece*>(from)[i];
    }

    __device__ __forceinline__ float at(int i) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(word[i]);
        if constexpr (std::is_same_v<T, __nv_bfloat16>)
            return __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
        return __half2float(__ushort_as_half(uint16_t(word[i / 2] >> (16 * (i % 2)))));
    }
};

// N neighbouring results on their way to memory. ``piece`` is the widest store that divides them.
template <typename T, int N>
union Results {
    using Piece = std::conditional_t<N * sizeof(T) % 16 == 0, uint4, uint2>;
    static constexpr int pieces = N * sizeof(T) / sizeof(Piece);
    T value[N];
    Piece piece[pieces];

    __device__ __forceinline__ Results() {}
    __device__ __forceinline__ void store(T* to) const {
#pragma unroll
        for (int i = 0; i < pieces; ++i) __stcs(reinterpret_cast<Piece*>(to) + i, piece[i]);
    }
    // To shared memory.
    __device__ __forceinline__ void store_cached(T* to) const {
#pragma unroll
        for (int i = 0; i < pieces; ++i) reinterpret_cast<Piece*>(to)[i] = piece[i];
    }
};
