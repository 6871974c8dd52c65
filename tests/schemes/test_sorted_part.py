"""The search for the least squared error in large blocks takes the range that the plain search takes.

If these fail, a range by "least squared error" is not the one with the least error, or another one than that
of the same values in smaller blocks or on a GPU.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from explorer import CALIBRATORS, SCHEMES, Scheme
from explorer.analysis.calibration import whole_tensor
from explorer.core.ranges import find_ranges
from explorer.schemes import calibrators, sorted_part
from explorer.schemes.sorted_part import RUN, SortedPart, squared_errors
from tests.covering import covering, parts_of, sampled

SHAPE = (6, 1001)
"""Not a multiple of the runs."""


def _values(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    normal = torch.randn(SHAPE, generator=generator)
    return {
        "normal": normal,
        "heavy tails": normal / normal.roll(1, 1).abs().clamp(min=1e-3),
        "multiples of 1/4": (normal * 20).round() / 4,
        "ReLU": normal.relu(),
        "spread": normal * torch.exp(8 * normal.roll(7, 1)),
        "subnormal": normal * 1e-40,
        "large": normal.clamp(-4, 4) * 1e37,
        "zeros": torch.zeros(SHAPE),
    }[name]


def _schemes() -> dict[str, Scheme]:
    """Every format and mapping with one scale for the whole tensor, searched; named by one scheme of each."""
    found: dict[Scheme, str] = {}
    for name, scheme in SCHEMES.items():
        if scheme.scale is not None:
            whole = whole_tensor(scheme)
            searched = dataclasses.replace(whole, calibrator=CALIBRATORS["mse"], name="", label="")
            found.setdefault(searched, name)
    return {name: scheme for scheme, name in found.items()}


ALL_KINDS = ("normal", "heavy tails", "multiples of 1/4", "ReLU", "spread", "subnormal", "large", "zeros")
TRIED = {name: ALL_KINDS if name == "int4_row" else (ALL_KINDS[i % 8],) for i, name in enumerate(_schemes())}
FEW_TRIED = sampled(
    list(TRIED),
    {"int4_row", *covering(TRIED, lambda name: {*parts_of(name), SCHEMES[name].mapping, *TRIED[name]})},
)


@pytest.mark.parametrize("name", FEW_TRIED)
def test_the_range_is_that_of_the_plain_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = _schemes()[name]
    for kind in TRIED[name]:
        x = _values(kind)
        monkeypatch.setattr(calibrators, "FEWEST", x.numel())
        found = find_ranges(x, scheme)
        monkeypatch.setattr(calibrators, "FEWEST", x.numel() + 1)
        wanted = find_ranges(x, scheme)
        assert torch.equal(found.low, wanted.low) and torch.equal(found.high, wanted.high), kind


def _restored(scale: float) -> sorted_part.Restore:
    """INT4 under ``scale``."""
    return lambda values: (values / scale).round().clamp(-7, 7) * scale


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_errors_are_within_their_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several parts, the last of them shorter than a run; a wider bound would rule nothing out."""
    monkeypatch.setattr(sorted_part, "PART", 1500)
    x = _values(kind)
    largest = float(x.abs().max()) or 1.0
    restores = [_restored(largest / 7 * share) for share in (1.0, 0.5, 0.1)]
    for restore, (error, bound) in zip(restores, squared_errors([x[:4], x[4:]], restores), strict=True):
        exact = float((restore(x) - x).double().square().sum())
        signal = float(x.double().square().sum())
        assert abs(error - exact) <= bound <= 1e-6 * exact + 1e-11 * signal


def test_few_values_are_restored() -> None:
    """One run for each of 15 codes, and both ends of every run: the reason for sorting."""
    asked = []

    def restore(values: Tensor) -> Tensor:
        asked.append(len(values))
        return _restored(0.1)(values)

    part = SortedPart(torch.randn(1 << 17, generator=torch.Generator().manual_seed(1)))
    part.error(restore)
    assert asked[0] == 2 * (1 << 17) // RUN and asked[1] <= 14 * RUN
