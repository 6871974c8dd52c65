// Hopper's asynchronous tensor core: wgmma m64nNkK, B in shared memory, A there or in registers; K-major,
// 128-byte swizzle.
//
// Every instruction takes 32 bytes of K a row, whatever the type: 16 bf16 or fp16, 8 tf32, 32 fp8 or int8,
// 256 bits. A warpgroup (4 warps) holds D as N/2 registers a thread: in each 8 columns, lane 4q + t has
// columns 2t and 2t + 1 of rows q and q + 8 of its warp's sixteen (PTX ISA, wgmma register fragments).
#pragma once
#include <cuda.h>  // CUtensorMap

#include "tensor_core.cuh"

#define REG4(d, c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define REG8(d, c, i) REG4(d, c, i), REG4(d, c, i + 4)
#define REG16(d, c, i) REG8(d, c, i), REG8(d, c, i + 8)
#define REG32(d, c, i) REG16(d, c, i), REG16(d, c, i + 16)
#define REG64(d, c, i) REG32(d, c, i), REG32(d, c, i + 32)
#define REG128(d, c, i) REG64(d, c, i), REG64(d, c, i + 64)
#define LIST4 "%0, %1, %2, %3"
#define LIST8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LIST16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST32                                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST64                                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LIST128                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, " \
    "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
    "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "   \
    "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "  \
    "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// D = A · B + (accumulate ? D : 0), N columns. INSTRUCTION has K and the types, REST the last immediates; P0
// and on are the operands that follow D's registers. A lies in shared memory (SHARED_A) or in four registers.
#define WGMMA(N, REGS, LIST, A, B, ACCUMULATE, INPUTS, INSTRUCTION, C, REST)                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE                                         \
                 ", 0;\n"                                                                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N INSTRUCTION " {" LIST "}, " A ", " B ", p" REST \
                 ";\n}\n"                                                                               \
                 : REGS(d, C, 0)                                                                        \
                 : INPUTS, "l"(b), "r"(accumulate))
#define SHARED_A(N, REGS, LIST, P0, P1, P2, P3, P4, P5, INSTRUCTION, C, REST) \
    WGMMA(N, REGS, LIST, P0, P1, P2, "l"(a), INSTRUCTION, C, REST)
#define REGISTERS_A(N, REGS, LIST, P0, P1, P2, P3, P4, P5, INSTRUCTION, C, REST) \
    WGMMA(N, REGS, LIST, "{" P0 ", " P1 ", " P2 ", " P3 "}", P4, P5, REG4(a, "r", 0), INSTRUCTION, C, REST)
#define EACH_N(FORM, INSTRUCTION, C, REST)                                                                \
    if constexpr (N == 8) FORM(8, REG4, LIST4, "%4", "%5", "%6", "%7", "%8", "%9", INSTRUCTION, C, REST); \
    if constexpr (N == 16)                                                                                \
        FORM(16, REG8, LIST8, "%8", "%9", "%10", "%11", "%12", "%13", INSTRUCTION, C, REST);              \
    if constexpr (N == 32)                                                                                \
        FORM(32, REG16, LIST16, "%16", "%17", "%18", "%19", "%20", "%21", INSTRUCTION, C, REST);          \
    if constexpr (N == 64)                                                                                \
        FORM(64, REG32, LIST32, "%32", "%33", "%34", "%35", "%36", "%37", INSTRUCTION, C, REST);          \
    if constexpr (N == 128)                                                                               \
        FORM(128, REG64, LIST64, "%64", "%65", "%66", "%67", "%68", "%69", INSTRUCTION, C, REST);         \
    if constexpr (N == 256)                                                                               \
        FORM(256, REG128, LIST128, "%128", "%129", "%130", "%131", "%132", "%133", INSTRUCTION, C, REST);

template <int N>
constexpr bool kHasColumns = N == 8 || N == 16 || N == 32 || N == 64 || N == 128 || N == 256;

// A and B by their descriptors; N is 8, 16, 32, 64, 128 or 256.
template <OperandType OPERAND, int N, typename Acc>
__device__ __forceinline__ void wgmma(Acc (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {
    static_assert(kHasColumns<N>, "no wgmma form for this number of columns");
    if constexpr (OPERAND == OperandType::BF16) {
        EACH_N(SHARED_A, "k16.f32.bf16.bf16", "+f", ", 1, 1, 0, 0")
    }
    if constexpr (OPERAND == OperandType::F16) {
        EACH_N(SHARED_A, "k16.f32.f16.f16", "+f", ", 1, 1, 0, 0")
    }
    if constexpr (OPERAND == OperandType::TF32) {
        EACH_N(SHARED_A, "k8.f32.tf32.tf32", "+f", ", 1, 1")
    }
    if constexpr (OPERAND == OperandType::E4M3) {
        EACH_N(SHARED_A, "k32.f32.e4m3.e4m3", "+f", ", 1, 1")
    }
    if constexpr (OPERAND == OperandType::E5M2) {
        EACH_N(SHARED_A, "k32.f32.e5m2.e5m2", "+f", ", 1, 1")
    }
    if constexpr (OPERAND == OperandType::S8) {
        EACH_N(SHARED_A, "k32.s32.s8.s8", "+r", "")
    }
    if constexpr (OPERAND == OperandType::B1) {
        EACH_N(SHARED_A, "k256.s32.b1.b1.and.popc", "+r", "")
    }
}

// A in four registers a thread: rows q and q + 8 of the first 16 bytes of K, then of the last 16. They must
// not change before the product is done.
template <OperandType OPERAND, int N, typename Acc>
__device__ __forceinline__ void wgmma(Acc (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    static_assert(kHasColumns<N>, "no wgmma form for this number of columns");
    static_assert(OPERAND == OperandType::BF16 || OPERAND == OperandType::E4M3 || OPERAND == OperandType::S8,
                  "no form for this type from registers");
    if constexpr (OPERAND == OperandType::BF16) {
        EACH_N(REGISTERS_A, "k16.f32.bf16.bf16", "+f", ", 1, 1, 0")
    }
    if constexpr (OPERAND == OperandType::E4M3) {
        EACH_N(REGISTERS_A, "k32.f32.e4m3.e4m3", "+f", ", 1, 1")
    }
    if constexpr (OPERAND == OperandType::S8) {
        EACH_N(REGISTERS_A, "k32.s32.s8.s8", "+r", "")
    }
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int LEFT>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(LEFT) : "memory");
}

// One of two sets of accumulators, which may differ in type.
template <bool FIRST, typename A, typename B>
__device__ __forceinline__ auto& choose(A& a, B& b) {
    if constexpr (FIRST)
        return a;
    else
        return b;
}

// A compiler barrier on the accumulators: wgmma writes them asynchronously, so their uses must not move
// across it.
template <typename Acc, int COUNT>
__device__ __forceinline__ void fence_accumulators(Acc (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        if constexpr (sizeof(Acc) == 4 && Acc(0.5f) != Acc(0))
            asm volatile("" : "+f"(d[i])::"memory");
        else
            asm volatile("" : "+r"(d[i])::"memory");
    }
}

// The descriptor of a K-major tile with rows of 128 bytes and TMA's 128-byte swizzle; eight rows are 1024
// bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
    return uint64_t((address & 0x3ffffu) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
           uint64_t(1) << 62;
}

// The descriptor of what lies ``bytes`` behind, a multiple of 16; the upper half does not change.
__device__ __forceinline__ uint64_t later(uint64_t descriptor, uint32_t bytes) {
    return (descriptor & 0xffffffff00000000) | uint32_t(uint32_t(descriptor) + bytes / 16);
}

__device__ __forceinline__ void barrier_init(uint32_t bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes)
                 : "memory");
}
// Arrives at the same barrier in CTA ``rank`` of the cluster.
__device__ __forceinline__ void barrier_arrive(uint32_t bar, uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(bar),
        "r"(rank)
        : "memory");
}
// Acquires at CTA scope: at cluster scope every wait would invalidate L1. TMA writes to shared memory past
// L1, so this is enough.
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\nbra again;\nfinished:\n}\n" ::"r"(bar),
        "r"(parity)
        : "memory");
}

// Barrier ``id`` (1 ... 15) of ``threads`` threads of the CTA: those that wait, and those that only arrive.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}

// Tensor maps are parameters of the kernel (__grid_constant__). In global memory, where the next launch's map
// may be written to the same address, TMA may still use the descriptor that it read there before.
//
// Fetches a map ahead of its first use.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

// TMA: a box of a tensor map at (byte of K, row) into shared memory, here or in every CTA of the cluster in
// ``mask``.
#define TMA_BOX "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, uint32_t bar, int x, int y) {
    asm volatile(TMA_BOX " [%0], [%1, {%3, %4}], [%2];\n" ::"r"(to), "l"(&map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void load_box_multicast(uint32_t to, const CUtensorMap& map, uint32_t bar, int x,
                                                   int y, uint16_t mask) {
    asm volatile(TMA_BOX ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(to), "l"(&map),
                 "r"(bar), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}
#undef TMA_BOX

// Consecutive bytes into shared memory; both addresses and ``bytes`` are multiples of 16.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}
