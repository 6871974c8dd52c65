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
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a report: {error}") from error
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


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return False
    return a == b or abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
