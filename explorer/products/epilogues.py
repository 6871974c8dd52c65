"""Epilogue of each kind of product, after the sum over K: scales, zero-point terms, bias, activation."""

from __future__ import annotations

import dataclasses

import torch

from explorer.formats import FloatFormat
from explorer.gpu.gemm import Epilogue, ScalePlace, Tiles, row_bits
from explorer.products.layouts import code_sums, folded_scale, scale_vector, tensor_scale, zero_points
from explorer.products.operands import Operands


def unscaled(ops: Operands) -> Epilogue:
    """Make an epilogue of bias and activation alone: the operands' scales are applied elsewhere."""
    return Epilogue(ops.out, bias=ops.bias, activation=ops.activation)


def scaled(ops: Operands) -> Epilogue:
    """Make an epilogue of scales that are constant along K (one, per token, per channel), zero-point terms,
    bias and activation."""
    epilogue = dataclasses.replace(
        unscaled(ops), row_scale=scale_vector(ops.x.q), col_scale=scale_vector(ops.w.q)
    )
    return with_zero_terms(ops, epilogue)


def with_zero_terms(ops: Operands, epilogue: Epilogue) -> Epilogue:
    """Add the vectors of Σ(a - za)(b - zb) = Σab - za · (Σb - K·zb) - zb · Σa; symmetric schemes need
    none."""
    if not (ops.x.scheme.asymmetric or ops.w.scheme.asymmetric):
        return epilogue
    za, zb = zero_points(ops.x.q), zero_points(ops.w.q)
    epilogue = dataclasses.replace(epilogue, row_a=za, col_a=code_sums(ops.w.q) - ops.shape[2] * zb)
    if ops.w.scheme.asymmetric:
        epilogue = dataclasses.replace(epilogue, row_b=code_sums(ops.x.q), col_b=zb)
    return epilogue


def bits_xor(ops: Operands) -> Epilogue:
    """Make the epilogue that turns counts of differing bits into ±1 products: K - 2·popc(a ^ b)."""
    n, k = ops.shape[1:]
    minus_k = torch.full((n,), -k, dtype=torch.int32, device=ops.x.q.packed.device)
    return dataclasses.replace(scaled(ops), multiply=-2, col_b=minus_k)


def bits_and(ops: Operands) -> Epilogue:
    """Make the epilogue that turns counts of common set bits into ±1 products: K - 2·popc(a) - 2·popc(b) +
    4·popc(a & b)."""
    k = ops.shape[2]
    return dataclasses.replace(
        scaled(ops),
        multiply=4,
        row_a=2 * row_bits(ops.x.q.packed),
        col_b=2 * row_bits(ops.w.q.packed) - k,
    )


def weight_only(ops: Operands) -> Epilogue:
    """Make an epilogue of the scales of X, and of a whole W above its blocks (NVFP4); scales of W's blocks
    are applied in the product."""
    return dataclasses.replace(
        unscaled(ops), row_scale=scale_vector(ops.x.q), col_scale=tensor_scale(ops.w.q)
    )


def tiled(ops: Operands, tiles: Tiles) -> Epilogue:
    """Return the epilogue with the remaining scales, for W stored in ``tiles``."""
    if tiles.scales is ScalePlace.ROW:
        return scaled(ops)
    epilogue = weight_only(ops)
    folded = tiles.scales is ScalePlace.WEIGHT and isinstance(ops.w.scheme.format, FloatFormat)
    return dataclasses.replace(epilogue, col_scale=folded_scale(ops.w.q)) if folded else epilogue


def tensor_scales(ops: Operands) -> Epilogue:
    """Return the scales of whole tensors, which ``dequantized_rows`` leaves out."""
    return dataclasses.replace(
        unscaled(ops), row_scale=tensor_scale(ops.x.q), col_scale=tensor_scale(ops.w.q)
    )
