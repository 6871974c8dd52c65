"""Estimates on a sample of a large tensor, shown while the whole tensor is read and quantized."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from app import limits
from app.state.analyses import known_report
from app.state.memo import Memo
from app.state.selection import Selection, file_source, is_read, matrix_of, tensor_key
from explorer.analysis.estimate import (
    Estimate,
    Sizes,
    estimate,
    layout_of,
    of_matrix,
    sizes_of,
    worth_estimating,
)
from explorer.analysis.report import Report
from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.sources.base import Pieces

_ESTIMATES = Memo[Estimate](256)
_SIZES = Memo[Sizes](1 << 26)
"""The sizes of tensors' units, by their layout, in bytes: most schemes have one layout."""


@dataclass(frozen=True, eq=False)
class Estimated:
    """A tensor by its ``name``, its ``description``, its ``dtype`` and its matrix's ``shape``; each recipe
    with its estimate, or with the report of the whole tensor where that is known. At least one has an
    estimate."""

    name: str
    description: str
    dtype: str
    shape: tuple[int, int]
    sides: tuple[tuple[Recipe, Estimate | Report], ...]

    @property
    def recipes(self) -> list[Recipe]:
        return [recipe for recipe, _ in self.sides]

    @property
    def estimates(self) -> list[Estimate | None]:
        """The estimates of the recipes; None for one whose whole report is known."""
        return [side if isinstance(side, Estimate) else None for _, side in self.sides]

    @property
    def reports(self) -> list[Report]:
        return [side.report if isinstance(side, Estimate) else side for _, side in self.sides]


def estimated(chosen: Selection) -> Estimated | None:
    """Estimates of what ``analyses_of`` would compute, from a sample of the tensor alone, which is read from
    the file where the tensor has not been read yet.

    None where nothing is missing or the whole takes no longer than about a second; where a method is chosen;
    and where no sample can be had: the tensor lies on a GPU, its file or model has to be read whole, or the
    scheme's blocks do not fit its rows. ``ValueError`` for values that cannot be quantized.
    """
    missing = [recipe for recipe in chosen.recipes if known_report(chosen, recipe) is None]
    if not missing or any(recipe.method for recipe in chosen.recipes):
        return None
    found = _pieces(chosen)
    if found is None:
        return None
    pieces, shape, name, description, dtype = found
    if not all(worth_estimating(shape, recipe.scheme) for recipe in missing):
        return None
    sides: list[tuple[Recipe, Estimate | Report]] = []
    for recipe in chosen.recipes:
        side = known_report(chosen, recipe) or _estimate(chosen, recipe, pieces, shape)
        if side is None:
            return None
        sides.append((recipe, side))
    return Estimated(name, description, dtype, shape, tuple(sides))


def _estimate(chosen: Selection, recipe: Recipe, pieces: Pieces, shape: tuple[int, int]) -> Estimate | None:
    key: tuple[Hashable, ...] = (*tensor_key(chosen), limits.current().elements, str(recipe))
    known = _ESTIMATES.peek(key)
    if known is None:
        layout = layout_of(shape, recipe.scheme)
        if layout is None:
            return None
        sizes = _SIZES.get((*key[:-1], layout), lambda: sizes_of(pieces, layout), lambda one: one.nbytes)
        made = estimate(pieces, shape, recipe.scheme, sizes=sizes)
        return None if made is None else _ESTIMATES.get(key, lambda: made, lambda _: 1)
    return known


def _pieces(chosen: Selection) -> tuple[Pieces, tuple[int, int], str, str, str] | None:
    """What gives pieces of the selected tensor, its matrix's shape, name, description and dtype."""
    if is_read(chosen):
        matrix = matrix_of(chosen)
        x = matrix.values
        if x.device.type != "cpu" or not x.is_contiguous():
            return None
        return of_matrix(x), (x.shape[0], x.shape[1]), matrix.name, matrix.description, matrix.dtype
    if chosen.source != "file" or not chosen.file:
        return None
    source = file_source(chosen.file)
    info = source.info(chosen.file_tensor)
    if info.elements > limits.current().elements or work_device().type != "cpu":
        return None
    pieces = source.pieces(info.name)
    if pieces is None:
        return None
    rows, columns = info.matrix_shape
    description = f"{source.origin} · {info.name} · {rows}×{columns} · {info.dtype}"
    return pieces, (rows, columns), info.name, description, info.dtype
