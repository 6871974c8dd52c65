"""Launchers of the GEMM kernels: check the arguments, pad, choose grid and block, launch.

Every product is Y[M, N] = X[M, K] · W[N, K]ᵀ, both operands K-major. Nothing here depends on schemes:
operands are rows of bytes, codes with scales on a grid of blocks, or 32-bit words. Launchers pad rows as the
kernels require and leave the caller's tensors unchanged.
"""

from explorer.gpu.gemm.epilogue import EPILOGUE_TYPES, Epilogue
from explorer.gpu.gemm.names import (
    CPP_TYPES,
    Activation,
    BlockScaledFormat,
    OperandType,
    ProductSide,
    ScaleK,
    ScalePlace,
    WordOp,
)
from explorer.gpu.gemm.rows import padded_columns, padded_rows, row_bits, two_bit_rows
from explorer.gpu.gemm.simt import (
    Codes,
    addsub_build,
    gemm_addsub,
    gemm_reference,
    gemm_simt32,
    reference_build,
    simt32_build,
)
from explorer.gpu.gemm.swap_ab import (
    Division,
    Tiles,
    gemm_swap_ab,
    repack,
    swap_ab_builds,
    unpack_codes,
    unpack_values,
)
from explorer.gpu.gemm.tensor_cores import (
    WgmmaTile,
    block_scaled_build,
    gemm_block_scaled,
    gemm_grouped,
    gemm_mma,
    gemm_wgmma,
    grouped_tile,
    grouped_tiles,
    mma_build,
    wgmma_build,
    wgmma_tiles,
)
from explorer.gpu.gemm.weights import Weight, gemm_dequant_in_registers, widen, widen_build

__all__ = [
    "CPP_TYPES",
    "EPILOGUE_TYPES",
    "Activation",
    "BlockScaledFormat",
    "Codes",
    "Division",
    "Epilogue",
    "OperandType",
    "ProductSide",
    "ScaleK",
    "ScalePlace",
    "Tiles",
    "Weight",
    "WgmmaTile",
    "WordOp",
    "addsub_build",
    "block_scaled_build",
    "gemm_addsub",
    "gemm_block_scaled",
    "gemm_dequant_in_registers",
    "gemm_grouped",
    "gemm_mma",
    "gemm_reference",
    "gemm_simt32",
    "gemm_swap_ab",
    "gemm_wgmma",
    "grouped_tile",
    "grouped_tiles",
    "mma_build",
    "padded_columns",
    "padded_rows",
    "reference_build",
    "repack",
    "row_bits",
    "simt32_build",
    "swap_ab_builds",
    "two_bit_rows",
    "unpack_codes",
    "unpack_values",
    "wgmma_build",
    "wgmma_tiles",
    "widen",
    "widen_build",
]
