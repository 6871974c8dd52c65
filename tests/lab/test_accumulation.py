"""Sums of FP8 products: probes find what an accumulator keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lab.accumulation import (
    CUT,
    DATA,
    INSTRUCTION,
    PLACES,
    POSITIVE,
    PROBES,
    ROUNDED,
    Kernel,
    error_at,
    probe,
    run_sums,
)
from tests.covering import by_pairs

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated accumulator is slow."""
    monkeypatch.setattr("lab.accumulation.SIDE", 8)


def emulated(bits: int, step: int, rounds: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """An accumulator that adds ``step`` products at a time, each brought to ``bits`` below the largest
    exponent among them and the sum."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        total = torch.zeros(len(x), len(w), dtype=torch.float64)
        for start in range(0, x.shape[1], step):
            xs, ws = (v[:, start : start + step].double() for v in (x, w))
            parts = torch.cat([total[..., None], xs[:, None, :] * ws[None, :, :]], 2)
            exponent = torch.frexp(parts.abs().amax(2, keepdim=True)).exponent - 1
            unit = 2.0 ** (exponent - bits).double()
            total = (rounds(parts / unit) * unit).sum(2)
        return total.float()

    return run


ROUNDS = ((torch.trunc, CUT), (torch.round, ROUNDED))
CASES = [
    (bits, data, *end, place) for bits in (7, 13, 20) for data in PROBES for end in ROUNDS for place in PLACES
]


@pytest.mark.parametrize(("bits", "data", "rounds", "rest", "place"), by_pairs(CASES, lambda *case: case))
def test_a_probe_finds_what_an_accumulator_keeps(
    bits: int, data: str, rounds: Callable[[Tensor], Tensor], rest: str, place: int
) -> None:
    """If this fails, the bits on the page are not those of the hardware."""
    assert probe(emulated(bits, INSTRUCTION, rounds), place, CPU, PROBES[data]) == (bits, rest)


def test_a_negative_sum_tells_a_cut_downwards_from_one_towards_zero() -> None:
    """If this fails, the page says "cut off" of sums that are rounded down: positive ones look alike."""
    found = {
        name: probe(emulated(13, INSTRUCTION, torch.floor), 1, CPU, factors)
        for name, factors in PROBES.items()
    }
    assert found == {"probe": (13, CUT), "probe_24": (13, CUT), "probe_minus_24": (13, ROUNDED)}


def test_sums_in_float32_lose_nothing_that_a_probe_can_see() -> None:
    """If this fails, an exact sum looks like a short one."""
    assert probe(lambda x, w: x.float() @ w.float().t(), INSTRUCTION, CPU)[0] == 23


def test_cut_sums_are_too_small_and_worse_the_longer_they_are() -> None:
    """If this fails, the figure's errors do not come from the sums."""
    kernels = {
        "short": Kernel("short", emulated(10, INSTRUCTION, torch.trunc)),
        "exact": Kernel("exact", lambda x, w: (x.double() @ w.double().t()).float()),
    }
    rows = list(run_sums(kernels, (128, 1024), CPU))
    probes = [row for row in rows if row.data in PROBES]
    assert [(row.kernel, row.data, row.k) for row in probes] == [
        (name, data, k) for name in kernels for data in PROBES for k in PLACES
    ]
    assert [row.bits for row in probes] == [10] * 9 + [23] * 9
    short = [error_at(rows, "short", POSITIVE, k) for k in (128, 1024)]
    exact = [error_at(rows, "exact", data, 1024) for data in DATA]
    assert all(row is not None and row.bias < 0 for row in short)
    assert short[0] and short[1] and short[1].error > 2 * short[0].error
    assert all(row is not None and row.error < 2.0**-22 and row.bias < 2.0**-22 for row in exact)
