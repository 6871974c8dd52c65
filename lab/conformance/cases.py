"""Matrices for comparing implementations: a real layer, and inputs on which they tend to disagree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from explorer.sources import open_source
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES

ONE, ALL = "one layer", "whole model"
"""Names of the cases of real weights: a layer of all-MiniLM-L6-v2, and all its linear layers."""
ROWS, COLUMNS = 128, 256


def sample_cases() -> dict[str, Tensor]:
    """Matrices of float32 by name; sides are multiples of 128, which most implementations ask for."""
    r = np.random.default_rng(0)
    normal = torch.from_numpy(r.standard_normal((ROWS, COLUMNS)).astype(np.float32))
    return {
        ONE: SAMPLES["attention_query"].load().values,
        "heavy tails": torch.from_numpy(r.standard_t(2, (ROWS, COLUMNS)).astype(np.float32)),
        "outliers": _with_outliers(normal, r),
        "spreads": _spread(normal, r),
        "zeros": _with_zeros(normal),
        "ties": _ties(r),
    }


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


def model_cases(model: str) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model's linear layers as one case."""
    for _, weight in model_weights(model):
        yield ALL, weight


def model_weights(model: str) -> Iterator[tuple[str, Tensor]]:
    """Names and float32 weights [outputs, inputs] of a model's linear layers: all its matrices but the
    tables of embeddings."""
    source = open_source(model)
    for info in layers(source, ".weight"):
        if len(info.shape) == 2 and "embedding" not in info.name:
            yield info.name, source.matrix(info.name).values
