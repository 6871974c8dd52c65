"""Errors of schemes on a tensor, as far as they are known: kept for all visitors."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from app.state.analyses import Pairs, sides_of
from app.state.estimates import known_overview
from app.state.memo import Memo
from app.state.selection import Selection, tensor_key
from app.state.visits import visit
from explorer import ComparisonRow
from explorer.analysis.report import Report
from explorer.figures.errors import Errors, errors_of
from explorer.sources.base import UnreachableError

_ROWS = Memo[dict[str, ComparisonRow]](64 << 20)
"""Each tensor's rows so far, by the text of the named scheme: the next visit continues a run that was cut."""
_ROWS_BYTES = 1 << 18
"""Of a tensor's rows, once all named schemes are among them."""
_WHOLE = Memo[Report](32 << 20)
"""The report of one recipe on all of one tensor."""
_ERRORS = Memo[Errors](16 << 20)
_REFUSED = Memo[str](1 << 20)
"""Why a recipe cannot be computed on a tensor, or not on all of it."""


def _key(chosen: Selection, *more: str) -> tuple[Hashable, ...]:
    return (*tensor_key(chosen), *more)


def known_rows(chosen: Selection) -> dict[str, ComparisonRow]:
    """The rows of the selected tensor so far, by the text of the recipe: of all of it where that is known, of
    a small sample where nothing better is."""
    rows = {row.scheme.text: row for row in known_overview(chosen)} | dict(surveyed(chosen))
    return {str(row.scheme): _whole_row(chosen, row) for row in rows.values()}


def surveyed(chosen: Selection) -> dict[str, ComparisonRow]:
    """The rows of ``explorer.analysis.survey`` so far; ``filling`` adds to them."""
    return _ROWS.get(_key(chosen), dict, lambda _: _ROWS_BYTES)


def _whole_row(chosen: Selection, row: ComparisonRow) -> ComparisonRow:
    report = whole_report(chosen, str(row.scheme))
    return row if report is None else dataclasses.replace(row, report=report, share=1.0, half_db=None)


def keep_whole(chosen: Selection, text: str, report: Report, errors: Errors | None = None) -> None:
    """Keep the report of the recipe ``text`` on all of the selected tensor, and its errors."""
    _WHOLE.keep(_key(chosen, text), report)
    if errors is not None:
        _ERRORS.keep(_key(chosen, text), errors)


def keep_analyses(chosen: Selection, pairs: Pairs) -> None:
    """``keep_whole`` of the selected schemes."""
    found = zip(chosen.schemes, pairs, errors_of(sides_of(pairs)), strict=True)
    for text, (_, analysis), errors in found:
        keep_whole(chosen, text, analysis.report, errors)


def whole_errors(chosen: Selection, text: str) -> Errors | None:
    """The errors of the recipe ``text`` on all of the selected tensor, if they were computed."""
    return _ERRORS.peek(_key(chosen, text))


def whole_report(chosen: Selection, text: str) -> Report | None:
    """The report of the recipe ``text`` on all of the selected tensor, if it was computed."""
    return _WHOLE.peek(_key(chosen, text))


def refuse(chosen: Selection, text: str, error: Exception) -> None:
    """Keep why the recipe ``text`` cannot be computed on the selected tensor, or not on all of it. What may
    pass is kept for this visitor alone, until the next filling."""
    if isinstance(error, OSError | UnreachableError):
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        visit().failed[tensor_key(chosen), (text,)] = why
        return
    _REFUSED.keep(_key(chosen, text), str(error))


def refused(chosen: Selection, text: str) -> str:
    """The reason that ``refuse`` kept; empty if there is none."""
    return _REFUSED.peek(_key(chosen, text)) or visit().failed.get((tensor_key(chosen), (text,)), "")
