"""Time of each method for one layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from explorer.bench.timing import wall_seconds
from explorer.methods import METHODS, apply
from explorer.recordings.files import Recording, recorded
from explorer.schemes import Scheme

NAME = "methods"


@dataclass(frozen=True)
class MethodTiming:
    """Seconds on the clock for one method on a random layer [N, K] with so many tokens: median and extremes
    of the repeats."""

    method: str
    scheme: str
    shape: tuple[int, int]
    tokens: int
    median_s: float
    low_s: float
    high_s: float


def recorded_methods() -> Recording[MethodTiming]:
    """The recording in ``assets/measurements/methods.json``; empty if it was never recorded."""
    return recorded(NAME, MethodTiming)


def time_methods(
    schemes: Iterable[Scheme],
    shape: tuple[int, int],
    device: torch.device,
    repeats: int = 3,
    tokens: int = 512,
) -> Iterator[MethodTiming]:
    """Time every method that the schemes allow, on seeded normal numbers; on a GPU after one run to
    warm up."""
    generator = torch.Generator().manual_seed(0)
    w = (torch.randn(shape, generator=generator) * 0.02).to(device)
    x = torch.randn(tokens, shape[1], generator=generator).to(device)
    warm_up = 1 if device.type == "cuda" else 0
    for scheme in schemes:
        for name in METHODS:
            try:
                seconds = wall_seconds(partial(apply, name, w, scheme, x), device, repeats, warm_up)
            except ValueError:
                continue  # the method does not serve this scheme
            yield MethodTiming(
                name, scheme.name, shape, tokens, seconds.median_s, seconds.low_s, seconds.high_s
            )
