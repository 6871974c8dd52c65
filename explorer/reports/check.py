"""Whether a report still holds: its numbers computed again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.reports.build import Content
from explorer.reports.page import NUMBERS_ID

TOLERANCE = 1e-6
"""Relative difference from which on a number has moved: sums in another order differ by less."""


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
    keys = {"recipe", "tensor_sha256", "versions", "numbers"}
    if not isinstance(record, dict) or not keys <= record.keys():
        raise ValueError(f"{path} is no report of `explorer report`: it has no numbers to compare")
    return record


def moved(record: dict[str, Any], now: Content) -> list[Moved]:
    """The numbers of a report that are others now, by name."""
    said = record["numbers"]
    names = sorted(said.keys() | now.numbers.keys())
    pairs = [Moved(name, said.get(name), now.numbers.get(name)) for name in names]
    return [pair for pair in pairs if not _same(pair.said, pair.now)]


def edited_tables(text: str, now: str) -> list[str]:
    """Names of the tables that show something else in a report's ``text`` than they do ``now``, machine and
    versions aside: numbers may differ as far as ``moved`` allows, in the digits shown."""
    here, there = _tables(text), _tables(now)
    names = (here.keys() | there.keys()) - {"provenance"}
    return sorted(name for name in names if not _alike(here.get(name, []), there.get(name, [])))


def _tables(text: str) -> dict[str, list[str]]:
    """Cells of each table."""
    found = re.findall(r'<table id="table-([\w-]+)">(.*?)</table>', text, re.S)
    return {name: re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", body, re.S) for name, body in found}


def _alike(a: list[str], b: list[str]) -> bool:
    return len(a) == len(b) and all(x == y or _near(x, y) for x, y in zip(a, b, strict=True))


def _near(a: str, b: str) -> bool:
    try:
        x, y = float(a.replace(",", "")), float(b.replace(",", ""))
    except ValueError:
        return False
    return abs(x - y) <= 1e-5 * max(abs(x), abs(y))


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return False
    return a == b or abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
