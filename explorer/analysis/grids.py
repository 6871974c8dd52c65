"""Detect weights that lie on a grid already, and the scheme that restores them exactly."""

from __future__ import annotations

import itertools

from torch import Tensor

from explorer.core.quantize import nvfp4_exactly, quantize
from explorer.progress import checkpoint
from explorer.schemes import SCHEMES, Scheme

MOST_VALUES = 256
"""Largest number of different values of a row on a grid of 8 bits."""
MOST_BITS = 12
"""Largest number of bits of an element, scales included, of what is called a grid."""
CLOSE = 1e-6
"""Accepted error from rounding a scale and a product, relative to the largest magnitude."""
_ROWS = 8
_BLOCKS = ("tensor", "row", "1x128", "1x64", "1x32")
_MAPPINGS = ("symmetric", "full", "power", "asymmetric")


def exact_scheme(x: Tensor, most_bits: int = 8) -> Scheme | None:
    """Find the integer scheme of the fewest bits, up to ``most_bits``, with the largest blocks, or MXFP4,
    that restores the finite matrix ``x`` [rows, cols] within ``CLOSE``; None if there is none.

    Weights that were quantized before, and stored as values, have such a scheme; under another mapping of the
    same bits their errors are large.
    """
    x = x.float()
    first = x[:_ROWS]
    if not x.numel() or any(len(row.unique()) > MOST_VALUES for row in first):
        return None
    integers = itertools.product((2, 3, 4, 8), _BLOCKS, _MAPPINGS)
    texts = [f"int{bits}~{block}~{mapping}~float32~minmax" for bits, block, mapping in integers]
    texts.insert(3 * len(_BLOCKS) * len(_MAPPINGS), "mxfp4")
    for scheme in map(Scheme.parse, texts):
        if scheme.format.bits > most_bits:
            return None
        checkpoint()
        if scheme.bits_per_element((x.shape[0], x.shape[1])).total > MOST_BITS:
            continue  # a scale for few values restores anything
        if _restores(first, scheme) and _restores(x, scheme):
            return scheme
    return None


def grid_words(x: Tensor) -> str:
    """Name the scheme that restores the matrix ``x`` exactly (``exact_scheme``), or return an empty text. For
    MXFP4's values, also state whether NVFP4 can represent them (``nvfp4_exactly``)."""
    if not (scheme := exact_scheme(x)):
        return ""
    said = f"These values lie on a grid: {scheme.label} restores them exactly ({scheme})."
    if scheme.text != SCHEMES["mxfp4"].text:
        return said
    if nvfp4_exactly(x) is None:
        return f"{said} NVFP4 cannot: their blocks span more than 17 binades."
    return (
        f"{said} So does NVFP4 with powers of two as scales (explorer.nvfp4_exactly), which `apply` writes."
    )


def _restores(x: Tensor, scheme: Scheme) -> bool:
    return bool((quantize(x, scheme).dequantize() - x).abs().max() <= CLOSE * x.abs().max())
