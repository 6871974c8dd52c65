// Shared by the mma.sync and the wgmma kernels: operand types, their accumulators, shared-memory
// addresses.
#pragma once
#include <cstdint>
#include <type_traits>

// Operand types by their PTX names; explorer/gpu/gemm/names.py has the same. -DTYPE=BF16 selects one as
// OperandType::TYPE.
enum class OperandType { BF16, F16, TF32, E4M3, E5M2, S8, B1 };

template <OperandType OPERAND>
using Accumulator = std::conditional_t<OPERAND == OperandType::S8 || OPERAND == OperandType::B1, int, float>;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return uint32_t(__cvta_generic_to_shared(p));
}
