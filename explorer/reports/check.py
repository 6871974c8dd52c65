"""Whether a report still holds: its numbers computed again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.reports.content import Content, Table
from explorer.reports.page import NUMBERS_ID, as_html, tables_of

TOLERANCE = 1e-6
"""Relative difference from which on a number has moved: sums in another order differ by less."""
LOOSE = 1e-3
"""The same of what a method's search or a model's run ends in: other machines round on the way, and end
elsewhere."""
SHOWN, LOOSE_SHOWN = 1e-5, LOOSE + 1e-5
"""The same of what tables show, in six digits."""
NUMBER = re.compile(r"[+−-]?[\d.,]*\d(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Moved:
    """A number that is not what the report says; None where one of them has no such number."""

    name: str
    said: float | None
    now: float | None


def read_record(path: Path) -> dict[str, Any]:
    """What a report holds for this; ``ValueError`` where ``path`` is no report."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no report of `explorer report`: it is no text") from error
    found = re.search(rf'<script type="application/json" id="{NUMBERS_ID}">(.*?)</script>', text, re.S)
    try:
        record = json.loads(found.group(1)) if found else None
    except json.JSONDecodeError:
        record = None
    if isinstance(record, dict) and "tensor_sha256" in record:  # of reports before those of other kinds
        record["sha256"] = record.pop("tensor_sha256")
    keys = {"recipe", "sha256", "versions", "numbers"}
    if not isinstance(record, dict) or not keys <= record.keys() or not isinstance(record["recipe"], dict):
        raise ValueError(f"{path} is no report of `explorer report`: it has no numbers to compare")
    return record


def moved(record: dict[str, Any], now: Content) -> list[Moved]:
    """The numbers of a report that are others now, by name."""
    said = record["numbers"]
    names = sorted(said.keys() | now.numbers.keys())
    pairs = [Moved(name, said.get(name), now.numbers.get(name)) for name in names]
    return [
        pair for pair in pairs if not _same(pair, LOOSE if pair.name.startswith(now.loose) else TOLERANCE)
    ]


def edited_tables(text: str, now: Content) -> list[str]:
    """Names of the tables that show something else in a report's ``text`` than they do ``now``, machine and
    versions aside: numbers may differ as far as ``moved`` allows, in the digits shown."""
    here, there = _tables(text), _tables(as_html(now))
    tables = {table.name: table for table in tables_of(now)}
    names = (here.keys() | there.keys()) - {"provenance"}
    return sorted(
        name for name in names if not _alike(here.get(name, []), there.get(name, []), tables.get(name))
    )


Cell = tuple[str, str]
"""Its tag, "td" or "th", and its content."""


def _tables(text: str) -> dict[str, list[Cell]]:
    """Cells of each table."""
    found = re.findall(r'<table id="table-([\w-]+)"[^>]*>(.*?)</table>', text, re.S)
    return {name: re.findall(r"<(t[dh])\b[^>]*>(.*?)</t[dh]>", body, re.S) for name, body in found}


def _alike(here: list[Cell], there: list[Cell], table: Table | None) -> bool:
    """Cell by cell. Headings are the same, and texts too, but for the numbers in those that were ``worked``
    out."""
    if len(here) != len(there) or table is None:
        return False
    tolerance = LOOSE_SHOWN if table.loose else SHOWN
    return all(
        a == b
        or (
            a[0] == b[0] == "td"
            and (_near(a[1], b[1], tolerance) or (table.worked and _same_words(a[1], b[1])))
        )
        for a, b in zip(here, there, strict=True)
    )


def _near(a: str, b: str, tolerance: float) -> bool:
    try:
        x, y = float(a.replace(",", "")), float(b.replace(",", ""))
    except ValueError:
        return False
    return abs(x - y) <= tolerance * max(abs(x), abs(y))


def _same_words(a: str, b: str) -> bool:
    """Whether two texts differ in their numbers alone, and are no numbers themselves."""
    words = NUMBER.sub("", a)
    return words == NUMBER.sub("", b) and bool(words.strip())


def _same(pair: Moved, tolerance: float) -> bool:
    if pair.said is None or pair.now is None:
        return False
    return pair.said == pair.now or abs(pair.said - pair.now) <= tolerance * max(
        abs(pair.said), abs(pair.now)
    )
