"""Choices shared by the pickers of several sections, and their meanings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from app import limits
from explorer import Scheme
from explorer.methods import label_of, names_in

INPUT_SCHEMES = {
    "as they are": "",
    "INT8 per token": "int8_row",
    "INT8, one scale": "int8_tensor",
    "FP8 E4M3 per token": "fp8_e4m3_row",
    "MXFP4": "mxfp4",
    "NVFP4": "nvfp4",
    "INT4 per token": "int4_row",
}
"""Quantization of a layer's inputs: the picker's label, and the scheme's name ("" for none)."""


MOST_SCHEMES = 200
"""Limit for one request: twice the number of named schemes."""


MOST_PATTERNS = 1000
"""Characters of the patterns that name layers: to read one takes a time that grows with its square."""


def schemes_of(texts: Sequence[str]) -> list[Scheme]:
    """The schemes of names and texts, each once. ``ValueError`` for none, for one that is no scheme, and for
    more than ``MOST_SCHEMES``."""
    if not texts:
        raise ValueError("choose at least one scheme")
    once = list(dict.fromkeys(texts))
    if len(once) > MOST_SCHEMES:
        raise ValueError(f"{len(once)} schemes in one request; at most {MOST_SCHEMES} are taken")
    return list({str(scheme): scheme for scheme in map(Scheme.parse, once)}.values())


OF_ANALYSIS, OF_A_BLOCK = 24, 80
"""Bytes that an analysis takes for each value and for each block, measured on the CPU with 4096 × 4096."""


def bytes_of(values: Tensor, schemes: Iterable[Scheme] = (), methods: Sequence[str] = ()) -> int:
    """Memory that work on a matrix [N, K] takes: its analysis under one of ``schemes`` after the other, or
    ``methods``, whose part was measured likewise. One that factors the inputs' Hessian does so for several
    dampings at once."""
    if not methods:
        shape = values.shape[0], values.shape[1]
        blocks = max((math.prod(one.grid(shape)) for one in schemes if one.scale is not None), default=0)
        return OF_ANALYSIS * values.numel() + OF_A_BLOCK * blocks
    solves = any(method.solves for name in methods for method in names_in(name))
    return max(8 * 5 * values.numel(), 8 * 12 * values.shape[-1] ** 2 * solves)


def check_cost(methods: Sequence[str], weight: Tensor) -> None:
    """``ValueError`` with the numbers for a model's layer that is larger than a tensor that is read here, and
    where a method would factor a matrix larger than is taken here.

    That takes K^3 operations in one step, which cannot be stopped in between, for the K columns of
    ``weight``.
    """
    bounds = limits.current()
    if bounds.hosted and weight.numel() > bounds.elements:
        raise ValueError(
            f"the layer has {weight.numel():,} weights; here methods take layers of at most "
            f"{bounds.elements:,} weights"
        )
    columns, most = weight.shape[1], bounds.solved_columns
    if columns <= most:
        return
    for name in methods:
        if any(method.solves for method in names_in(name)):
            raise ValueError(
                f"{label_of(name)} factors a matrix of {columns:,} × {columns:,} inputs (K³ = "
                f"{columns**3:.1e} operations at once); here layers of at most {most:,} input channels are "
                "taken for it. Rounding to nearest, AWQ and HQQ take larger ones"
            )
