"""Find the factors that the columns and rows of a weight were multiplied by before it was quantized.

AWQ and SmoothQuant multiply the columns of a layer by factors, and divide the norm or the layer before it by
them. The network computes the same, but the weight itself looks 20 dB worse than it is. The factors are found
from the norm that took them in, or from the weight by least squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 4
"""Rounds of the fit, each of columns and then rows."""
LEAST_GAIN_DB, LEAST_SPREAD = 3.0, 1.1
"""Least gain of undoing factors, and least ratio of the factors at 90 % and 10 % of the columns, for which
factors are accepted."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of a weight [N, K]: ``columns`` float32 [K], ``rows`` float32 [N], and their origin in
    words."""

    columns: Tensor
    rows: Tensor
    why: str

    def undo(self, weight: Tensor) -> Tensor:
        """Divide ``weight`` [N, K] by the factors."""
        return weight / self.columns / self.rows[:, None]


def noise(x: Tensor, y: Tensor) -> float:
    """Σ(y - x)² in float64."""
    return float((y - x).double().square().sum())


def find_factors(weight: Tensor, restored: Tensor, norms: Mapping[str, Tensor]) -> Factors | None:
    """The factors between the original ``weight`` and ``restored``, both float32 [N, K]; None if they do not
    explain the difference. ``norms``: norm that differs -> the original's weight over the other's."""
    before = noise(weight, restored)
    limit = before / 10 ** (LEAST_GAIN_DB / 10)
    ones = torch.ones(len(weight))
    for name, ratio in norms.items():
        if ratio.shape == weight.shape[1:] and _spread(ratio) > LEAST_SPREAD:
            found = Factors(ratio, ones, f"{name} took in the inverse of factors of its columns")
            if noise(weight, found.undo(restored)) < limit:
                return _with_rows(weight, restored, found)
    columns, rows = _fit(weight, restored)
    wide, tall = _spread(columns) > LEAST_SPREAD, _spread(rows) > LEAST_SPREAD
    if not (wide or tall):
        return None
    where = " and ".join(word for word, on in (("columns", wide), ("rows", tall)) if on)
    found = Factors(columns, rows, f"its {where} were multiplied by factors, which are found from the weight")
    whole = noise(weight, restored / _whole(weight, restored))  # one factor for all is no fold
    limit = min(before, whole) / 10 ** (LEAST_GAIN_DB / 10)
    return found if noise(weight, found.undo(restored)) < limit else None


def whole_factor(weight: Tensor, restored: Tensor) -> float | None:
    """Find one factor of all of ``restored``; None unless dividing by it gains ``LEAST_GAIN_DB``."""
    factor = _whole(weight, restored)
    limit = noise(weight, restored) / 10 ** (LEAST_GAIN_DB / 10)
    return factor if noise(weight, restored / factor) < limit else None


def _whole(weight: Tensor, restored: Tensor) -> float:
    """Find the number with the least Σ(restored - number · weight)²; 1 in place of 0 and NaN."""
    w = weight.double()
    return float(_ratio((w * restored).sum(), w.square().sum()))


def _with_rows(weight: Tensor, restored: Tensor, found: Factors) -> Factors:
    """Add factors of rows, for the layer behind, to ``found`` if they explain more."""
    without = found.undo(restored)
    rows = _ratio((without * weight).double().sum(1), weight.double().square().sum(1))
    more = Factors(found.columns, rows, f"{found.why}; its rows have factors too, for the layer behind it")
    limit = noise(weight, without) / 10 ** (LEAST_GAIN_DB / 10)
    return more if _spread(rows) > LEAST_SPREAD and noise(weight, more.undo(restored)) < limit else found


def _fit(weight: Tensor, restored: Tensor) -> tuple[Tensor, Tensor]:
    """Find factors of columns [K] and rows [N] with about the least Σ(restored - rows · columns ·
    weight)²."""
    w, q = weight.double(), restored.double()
    products, squares = w * q, w.square()
    columns = torch.ones(w.shape[1], dtype=torch.float64)
    rows = torch.ones(w.shape[0], dtype=torch.float64)
    for _ in range(ROUNDS):
        columns = _ratio(rows @ products, rows.square() @ squares).double()
        rows = _ratio(products @ columns, squares @ columns.square()).double()
    middle = rows.abs().median()
    return (columns * middle).float(), (rows / middle).float()


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """float32: above / below; 1 in place of 0 and NaN."""
    found = above / below
    return torch.where(found.isfinite() & (found.abs() > 1e-12), found, 1.0).float()


def _spread(factors: Tensor) -> float:
    """The ratio of the magnitudes at 90 % and 10 %."""
    low, high = torch.quantile(factors.abs().double(), torch.tensor([0.1, 0.9], dtype=torch.float64))
    return float(high / low.clamp_min(1e-30))
