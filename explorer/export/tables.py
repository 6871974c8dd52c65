"""Writer of tables: CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from explorer.export.files import replacing

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write a table in the format of the suffix of ``path``, whole or not at all; return the path.

    .csv   numbers in full, after a line of ``columns``
    .json  a list of objects with the keys ``columns``; numbers that are not finite are texts
    .tex   a tabular of the package booktabs, numbers in six digits
    """
    path = Path(path)
    text = _FORMATS[path.suffix](columns, rows)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")
    return path


def write_records(path: str | Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``records`` as a table with the keys of the first as columns."""
    columns = list(records[0]) if records else []
    return write_table(path, columns, [[record.get(column, "") for column in columns] for record in records])


def cell(value: Any) -> str:
    """Return a number in six digits, a text as it is."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return file.getvalue()


def _json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    records = [dict(zip(columns, map(plain, row), strict=True)) for row in rows]
    return json.dumps(records, indent=2, ensure_ascii=False) + "\n"


def _latex(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def line(values: Sequence[Any]) -> str:
        return " & ".join(re.sub(r"[\\~^&%$#_{}]", _escaped, cell(value)) for value in values) + r" \\"

    body = [rf"\begin{{tabular}}{{{'l' * len(columns)}}}", r"\toprule", line(columns), r"\midrule"]
    body += [*map(line, rows), r"\bottomrule", r"\end{tabular}"]
    return "\n".join(body) + "\n"


def _escaped(letter: re.Match[str]) -> str:
    return _LATEX.get(letter[0], "\\" + letter[0])


_FORMATS: dict[str, Callable[[Sequence[str], Iterable[Sequence[Any]]], str]] = {
    ".csv": _csv,
    ".json": _json,
    ".tex": _latex,
}
