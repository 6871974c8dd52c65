"""All schemes on the tensor as a table: what the frontier draws, in all numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app import limits
from app.parts import html
from app.state.files import write_table
from app.state.known import known_rows, surveyed
from app.state.memo import Memo
from app.state.query import Query
from app.state.record import Record
from app.state.selection import tensor_key
from explorer import SCHEMES, ComparisonRow, mark_frontier
from explorer.analysis.schemes import comparison_record

COLUMNS = ("scheme", "bits", "codes", "scales", "zero points", "SQNR dB", "max error", "clipped %",
           "to zero %", "entropy", "frontier")  # fmt: skip
_FILES = Memo[tuple[Path, Path]](1 << 20)


def all_schemes_table(query: Query) -> str:
    """Return the named schemes that are known of the record's tensor as a table, which its headings sort and
    whose rows become A or B; once all are known, with links to a CSV and a JSON file."""
    chosen = query.record
    rows = mark_frontier(known_rows(chosen).values())
    if not rows:
        return html.status("No scheme is computed yet.")
    lines = [(str(row.scheme), _cells(row)) for row in rows]
    table = html.scheme_table("all-schemes", COLUMNS, lines, (chosen.scheme, chosen.second))
    if len(surveyed(chosen)) < len(SCHEMES):
        return html.status(f"{len(rows)} of {len(SCHEMES)} schemes so far") + table
    return html.downloads(_files(chosen, rows)) + table


def _files(chosen: Record, rows: Sequence[ComparisonRow]) -> tuple[Path, Path]:
    """The rows as a CSV and a JSON file, written anew before the ones before are deleted."""

    def write() -> tuple[Path, Path]:
        records = [comparison_record(row) for row in rows]
        name = chosen.file_tensor or chosen.layer or chosen.sample
        return write_table(f"{name} schemes", [_flat(record) for record in records], records)

    age = int(time.time() / limits.current().keep_seconds * 2)
    return _FILES.get((*tensor_key(chosen), sum(row.share == 1 for row in rows), age), write)


def _cells(row: ComparisonRow) -> list[html.Cell]:
    """One line of the table, in the order of ``COLUMNS``; numbers of a part of the tensor are marked."""
    r, bits = row.report, row.report.bits
    sampled = row.share < 1
    return [
        html.Cell.of(row.scheme.name),
        *map(html.Cell.of, (bits.total, bits.codes, bits.scales, bits.zero_points)),
        _sqnr(row),
        html.Cell.of(r.max_error, "≥ " if sampled else ""),
        *(html.Cell.of(number, "≈ " if sampled else "") for number in (100 * r.clipped, 100 * r.zeroed)),
        html.Cell.of(r.entropy_bits, "≈ " if sampled else ""),
        html.Cell("●" if row.on_frontier else "", float(row.on_frontier), True),
    ]


def _sqnr(row: ComparisonRow) -> html.Cell:
    """The SQNR; of a sample with half its interval."""
    cell = html.Cell.of(row.report.sqnr_db, "≈ " if row.share < 1 else "")
    return cell if row.half_db is None else cell._replace(text=f"{cell.text} ± {row.half_db:.2g}")


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its nested objects, and the parts of its bits."""
    plain = {key: value for key, value in record.items() if not isinstance(value, dict)}
    return plain | {f"bits.{key}": value for key, value in record["bits"].items()}
