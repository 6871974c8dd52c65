"""Weights that lie on a grid already: the integer scheme that restores them exactly."""

from __future__ import annotations

import itertools

from torch import Tensor

from explorer.core.quantize import quantize
from explorer.progress import checkpoint
from explorer.schemes import Scheme

MOST_VALUES = 256
"""Different values of a row, at most, on the grid of 8 bits."""
CLOSE = 1e-6
"""The error of rounding a scale and a product, as a share of the largest magnitude."""
_ROWS = 8
_BLOCKS = ("tensor", "row", "1x128", "1x64", "1x32")
_MAPPINGS = ("symmetric", "full", "power", "asymmetric")


def exact_scheme(x: Tensor, most_bits: int = 8) -> Scheme | None:
    """The integer scheme of the fewest bits, up to ``most_bits``, with the largest blocks, that restores the
    finite matrix ``x`` [rows, cols] within ``CLOSE``; None if there is none.

    Weights that were quantized before, and stored as values, are such: their errors under another mapping of
    the same bits are not small.
    """
    x = x.float()
    first = x[:_ROWS]
    if not x.numel() or any(len(row.unique()) > MOST_VALUES for row in first):
        return None
    for bits, block, mapping in itertools.product((2, 3, 4, 8), _BLOCKS, _MAPPINGS):
        if bits > most_bits:
            return None
        checkpoint()
        scheme = Scheme.parse(f"int{bits}~{block}~{mapping}~float32~minmax")
        if _restores(first, scheme) and _restores(x, scheme):
            return scheme
    return None


def _restores(x: Tensor, scheme: Scheme) -> bool:
    return bool((quantize(x, scheme).dequantize() - x).abs().max() <= CLOSE * x.abs().max())
