"""Errors of schemes on a tensor, as far as they are known: kept for all visitors."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from app import limits
from app.state.estimates import known_overview
from app.state.memo import Memo
from app.state.selection import Selection, tensor_key
from explorer import ComparisonRow
from explorer.analysis.report import Report

_ROWS = Memo[dict[str, ComparisonRow]](256)
"""Each tensor's rows so far, by the text of the named scheme: the next visit continues a run that was cut."""
_WHOLE = Memo[Report](4096)
"""The report of one recipe on all of one tensor."""
_REFUSED = Memo[str](256)
"""Why a recipe cannot be computed on a tensor, or not on all of it."""


def _key(chosen: Selection, *more: str) -> tuple[Hashable, ...]:
    return (*tensor_key(chosen), limits.current().elements, *more)


def known_rows(chosen: Selection) -> dict[str, ComparisonRow]:
    """The rows of the selected tensor so far, by the text of the recipe: of all of it where that is known, of
    a small sample where nothing better is."""
    rows = {row.scheme.text: row for row in known_overview(chosen)} | dict(surveyed(chosen))
    return {str(row.scheme): _whole_row(chosen, row) for row in rows.values()}


def surveyed(chosen: Selection) -> dict[str, ComparisonRow]:
    """The rows of ``explorer.analysis.survey`` so far; ``filling`` adds to them."""
    return _ROWS.get(_key(chosen), dict, lambda _: 1)


def _whole_row(chosen: Selection, row: ComparisonRow) -> ComparisonRow:
    report = whole_report(chosen, str(row.scheme))
    return row if report is None else dataclasses.replace(row, report=report, share=1.0, half_db=None)


def keep_whole(chosen: Selection, text: str, report: Report) -> None:
    """Keep the report of the recipe ``text`` on all of the selected tensor."""
    _WHOLE.get(_key(chosen, text), lambda: report, lambda _: 1)


def whole_report(chosen: Selection, text: str) -> Report | None:
    """The report of the recipe ``text`` on all of the selected tensor, if it was computed."""
    return _WHOLE.peek(_key(chosen, text))


def refuse(chosen: Selection, text: str, why: str) -> None:
    """Keep ``why`` the recipe ``text`` cannot be computed on the selected tensor, or not on all of it."""
    _REFUSED.get(_key(chosen, text), lambda: why, lambda _: 1)


def refused(chosen: Selection, text: str) -> str:
    """The reason that ``refuse`` kept; empty if there is none."""
    return _REFUSED.peek(_key(chosen, text)) or ""
