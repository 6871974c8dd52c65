"""Estimates on a sample of a large tensor, shown while the whole tensor is read and quantized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from app import limits
from app.state.analyses import known_report
from app.state.memo import Memo
from app.state.selection import Selection, file_source, is_read, matrix_of, tensor_key
from explorer import SCHEMES, ComparisonRow
from explorer.analysis.estimate import (
    Estimate,
    Sizes,
    Units,
    estimate,
    of_matrix,
    overview,
    sizes_of,
    worth_estimating,
)
from explorer.analysis.report import Report
from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.sources.base import Pieces

_ESTIMATES = Memo[Estimate | None](4 << 20)
_OVERVIEWS = Memo[tuple[ComparisonRow, ...]](32 << 20)
_SIZES = Memo[Sizes](1 << 26)
"""The sizes of tensors' units, in bytes."""


@dataclass(frozen=True, eq=False)
class Estimated:
    """A tensor by its ``name``, ``description``, ``dtype`` and matrix ``shape``. ``sides``: each recipe with
    its estimate, or with the report of the whole tensor if that is known; at least one is an estimate.
    ``rows``: every named scheme that a small sample shows the error of."""

    name: str
    description: str
    dtype: str
    shape: tuple[int, int]
    sides: tuple[tuple[Recipe, Estimate | Report], ...]
    rows: tuple[ComparisonRow, ...] = ()

    @property
    def recipes(self) -> list[Recipe]:
        return [recipe for recipe, _ in self.sides]

    @property
    def estimates(self) -> list[Estimate | None]:
        """The recipes' estimates; None if the report of the whole tensor is known."""
        return [side if isinstance(side, Estimate) else None for _, side in self.sides]

    @property
    def reports(self) -> list[Report]:
        return [side.report if isinstance(side, Estimate) else side for _, side in self.sides]


def estimated(chosen: Selection) -> Estimated | None:
    """Estimate what ``analyses_of`` would compute, on a sample of the tensor, which is read from the file if
    the tensor has not been read yet.

    None if everything is known or the whole takes no longer than about a second; if a method is chosen; and
    if no sample is possible: the tensor lies on a GPU, its file or model has to be read whole, or the
    scheme's blocks do not fit its rows. ``ValueError`` for values that cannot be quantized.
    """
    recipes = chosen.recipes
    known = [known_report(chosen, recipe) for recipe in recipes]
    if all(known) or any(recipe.method for recipe in recipes) or (found := _pieces(chosen)) is None:
        return None
    pieces, shape, name, description, dtype = found
    missing = [recipe.scheme for recipe, report in zip(recipes, known, strict=True) if report is None]
    if not all(worth_estimating(shape, scheme) for scheme in missing):
        return None
    find_sizes = _finding_sizes(chosen)
    sides: list[tuple[Recipe, Estimate | Report]] = []
    for recipe, report in zip(recipes, known, strict=True):
        compute = partial(estimate, pieces, shape, recipe.scheme, find_sizes=find_sizes)
        side = report or _ESTIMATES.get((*tensor_key(chosen), str(recipe)), compute)
        if side is None:
            return None
        sides.append((recipe, side))
    return Estimated(name, description, dtype, shape, tuple(sides), overview_rows(chosen))


def overview_rows(chosen: Selection) -> tuple[ComparisonRow, ...]:
    """Every named scheme on a small sample of the selected tensor, as ``estimated`` reads it; those of which
    the sample shows no error are left out. Empty where no sample is possible."""

    def compute() -> tuple[ComparisonRow, ...]:
        found = _pieces(chosen)
        if found is None:
            return ()
        seen = overview(found[0], found[1], SCHEMES.values(), _finding_sizes(chosen))
        return tuple(
            ComparisonRow(scheme, one.report, share=one.share, half_db=one.half_db)
            for scheme, one in seen
            if one is not None
        )

    return _OVERVIEWS.get(tensor_key(chosen), compute)


def known_overview(chosen: Selection) -> tuple[ComparisonRow, ...]:
    """``overview_rows``, if they were computed."""
    return _OVERVIEWS.peek(tensor_key(chosen)) or ()


def _finding_sizes(chosen: Selection) -> Callable[[Pieces, Units], Sizes]:
    """``sizes_of`` of the selected tensor, kept: most schemes have the same units."""
    key = tensor_key(chosen)
    return lambda pieces, units: _SIZES.get((*key, units), lambda: sizes_of(pieces, units))


def _pieces(chosen: Selection) -> tuple[Pieces, tuple[int, int], str, str, str] | None:
    """Pieces of the selected tensor, its matrix's shape, its name, description and dtype."""
    if chosen.source == "builtin" or is_read(chosen):
        matrix = matrix_of(chosen)
        x = matrix.values
        if x.device.type != "cpu" or not x.is_contiguous():
            return None
        return of_matrix(x), (x.shape[0], x.shape[1]), matrix.name, matrix.description, matrix.dtype
    if chosen.source != "file" or not chosen.file:
        return None
    source = file_source(chosen.file)
    info = source.info(chosen.file_tensor)
    if info.elements > limits.current().most_of(info) or work_device().type != "cpu":
        return None
    pieces = source.pieces(info.name)
    if pieces is None:
        return None
    rows, columns = info.matrix_shape
    description = f"{source.origin} · {info.name} · {rows}×{columns} · {info.dtype}"
    return pieces, (rows, columns), info.name, description, info.dtype
