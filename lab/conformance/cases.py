"""Matrices for comparing implementations: a real layer, and inputs on which they tend to disagree.

Most are float32. Those of the cases ``BF16`` and ``FP16`` have that dtype, in which the packages that take it
compute; the others are given the same values in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from explorer.sources import open_source
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES

ONE, ALL, ALL_BF16 = "one layer", "whole model", "whole model, BF16"
"""Names of the cases of real weights: a part of a layer of all-MiniLM-L6-v2, all its linear layers, and these
in BF16."""
BOUNDARIES, SUBNORMALS, ZERO_SIGNS = "boundaries", "subnormals", "-0.0"
BF16, FP16 = "BF16", "FP16"
HALVES = {BF16: torch.bfloat16, FP16: torch.float16}
ROWS, COLUMNS = 128, 256
SIGNIFICANDS = (1.0, 1.25, 1.5, 1.75, 1.875)
"""Largest values of a block, but for a power of two, at which scales change: powers of two for FLOOR and
CEIL, the largest values of E2M1 (1.5), of E4M3, E5M2 and E3M2 (1.75) and of E2M3 (1.875), and the ties of
EVEN."""
EXPONENTS = range(-33, 8)
"""The powers of two of these values: 41, up to 240, below every format's largest value but those of FP6 and
FP4."""
NEIGHBOURS = range(-2, 3)
"""Distances in ulp of a block's largest value from such a value."""


def sample_cases() -> dict[str, Tensor]:
    """Matrices by name; sides are multiples of 128, which most implementations ask for."""
    r = np.random.default_rng(0)
    normal = torch.from_numpy(r.standard_normal((ROWS, COLUMNS)).astype(np.float32))
    layer = SAMPLES["attention_query"].load().values[:ROWS, :COLUMNS].contiguous()
    return {
        ONE: layer,
        "heavy tails": torch.from_numpy(r.standard_t(2, (ROWS, COLUMNS)).astype(np.float32)),
        "outliers": _with_outliers(normal, r),
        "spreads": _spread(normal, r),
        "zeros": _with_zeros(normal),
        "ties": _ties(r),
        BOUNDARIES: _boundaries(r),
        SUBNORMALS: _subnormals(normal, r),
        ZERO_SIGNS: _zero_signs(normal, r),
        **{name: layer.to(dtype) for name, dtype in HALVES.items()},
    }


def share_of_sample(codes: int) -> float:
    """The share of a sample case's values that so many codes are, up to the next of six decimals, which a
    recording keeps."""
    return math.ceil(1e6 * codes / (ROWS * COLUMNS)) / 1e6


def _with_outliers(x: Tensor, r: np.random.Generator) -> Tensor:
    """Six columns a hundred times larger than the rest."""
    out = x.clone()
    out[:, torch.from_numpy(r.choice(COLUMNS, 6, replace=False))] *= 100
    return out


def _spread(x: Tensor, r: np.random.Generator) -> Tensor:
    """Every 16 values have a magnitude of their own, from 2^-60 to 2^60."""
    exponents = torch.from_numpy(r.integers(-60, 61, (ROWS, COLUMNS // 16)))
    return torch.ldexp(x, exponents.repeat_interleave(16, 1))


def _with_zeros(x: Tensor) -> Tensor:
    """A tile, some rows, some groups and every seventh value are zero."""
    out = x.clone()
    out[::5] = 0
    out[:, 64:96] = 0
    out.view(-1)[::7] = 0
    out[:, 128:] = 0
    return out


def _ties(r: np.random.Generator) -> Tensor:
    """Values halfway between codes: groups whose largest value is that of a format, the others multiples of
    half its steps. For INT8, for INT4 and for E2M1."""
    rows = []
    for largest, step in ((127.0, 0.5), (7.0, 0.5), (6.0, 0.25)):
        steps = int(largest / step)
        x = torch.from_numpy(r.integers(-steps, steps + 1, (48, COLUMNS))).float() * step
        x[:, ::16] = largest
        rows.append(x)
    return torch.cat(rows)[:ROWS]


def _boundaries(r: np.random.Generator) -> Tensor:
    """Runs of 32 values whose largest lies within 2 ulp of ``SIGNIFICANDS`` · 2^k, on both sides; in the
    second half of a run it is a half of that. The others are smaller, of either sign."""
    grid = np.meshgrid(SIGNIFICANDS, EXPONENTS, NEIGHBOURS, indexing="ij")
    order = r.permutation(grid[0].size)[: ROWS * COLUMNS // 32]
    significand, exponent, ulps = (part.reshape(-1)[order] for part in grid)
    largest = np.ldexp(significand, exponent).astype(np.float32)
    amax = torch.from_numpy((largest.view(np.int32) + ulps.astype(np.int32)).view(np.float32))
    x = torch.from_numpy(r.uniform(-0.45, 0.45, (len(amax), 32)).astype(np.float32)) * amax[:, None]
    x[:, 5], x[:, 21] = amax, -amax / 2
    return x.view(ROWS, COLUMNS)


def _subnormals(x: Tensor, r: np.random.Generator) -> Tensor:
    """Rows around 2^-126, the smallest normal float32: every row has a magnitude of its own, from 2^-149 to
    2^-100; in the second half of the rows one value in a hundred is a subnormal, and the others are not."""
    half = ROWS // 2
    exponents = torch.from_numpy(r.integers(-149, -99, (half, 1)))
    few = torch.from_numpy(r.random((half, COLUMNS)) < 0.01)
    return torch.cat([torch.ldexp(x[:half], exponents), torch.where(few, x[half:] * 2.0**-130, x[half:])])


def _zero_signs(x: Tensor, r: np.random.Generator) -> Tensor:
    """Zeros of both signs among the values, and rows and runs of 32 that hold nothing else."""
    zeros = torch.from_numpy(r.random((ROWS, COLUMNS)) < 0.25)
    zeros[:, 96:128] = zeros[::8] = True
    return torch.where(zeros, x * 0.0, x)


def model_cases(model: str) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model's linear layers as one case, and in BF16 as another."""
    for _, weight in model_weights(model):
        yield ALL, weight
        yield ALL_BF16, weight.to(torch.bfloat16)


def model_weights(model: str) -> Iterator[tuple[str, Tensor]]:
    """Names and float32 weights [outputs, inputs] of a model's linear layers: all its matrices but the
    tables of embeddings."""
    source = open_source(model)
    for info in layers(source, ".weight"):
        if len(info.shape) == 2 and "embedding" not in info.name:
            yield info.name, source.matrix(info.name).values
