"""Check of a report: its numbers are recomputed and compared."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from html import unescape
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from explorer.reports.content import Content, Table
from explorer.reports.page import NUMBERS_ID, as_html, tables_of
from explorer.schemes.scheme import todays_text

TOLERANCE = 1e-6
"""Relative difference from which on a number has moved: sums in another order differ by less."""
LOOSE = 1e-3
"""The same of what a method's search or a model's run ends in: other machines round on the way, and end
elsewhere."""
SHOWN, LOOSE_SHOWN = 1e-5, LOOSE + 1e-5
"""The same of what tables show, in six digits."""
CUSTOM = re.compile(r"[^\s,+'\"]*~[^\s,+'\"]+")
"""The text of a custom scheme, which earlier versions wrote in upper case."""
NUMBER = re.compile(r"[+−-]?\d[\d.,]*(?:e[+-]?\d+)?")
VERSION = ("quantization-explorer", "commit")
"""Versions that determine the wording and layout of a report."""


@dataclass(frozen=True)
class Moved:
    """A number that differs from the report; None for a number missing on one side."""

    name: str
    said: float | None
    now: float | None


def read_record(path: Path) -> dict[str, Any]:
    """Read the record in a report; ``ValueError`` if ``path`` is not a report."""
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


@dataclass(frozen=True)
class Edited:
    """Content of a report that does not follow from its numbers: its location, its text, and the expected
    text ("" if there is none)."""

    place: str
    said: str
    now: str


def by_this_version(record: dict[str, Any], now: Content) -> bool:
    """True if this version of the explorer wrote the report; the wording of other versions may differ."""
    return all(record["versions"].get(key) == now.versions.get(key) for key in VERSION)


def edited(text: str, now: Content, whole: bool) -> list[Edited]:
    """Return the differences between a report's ``text`` and ``now``, except machine and versions: tables,
    and for the ``whole`` report headings, sentences and figures. Numbers may differ as far as ``moved``
    allows, in the digits shown; figures are not compared where a method chose the codes or a model was
    run."""
    other, tables = as_html(now), {table.name: table for table in tables_of(now)}
    here, there = _shown(text, now), _shown(other, now)
    if not whole:
        here, there = ([one for one in every if one.table] for every in (here, there))
    found = [
        Edited(a.place if a else b.place if b else "", a.text if a else "", b.text if b else "")
        for a, b in zip_longest(here, there)
        if a is None or b is None or not _alike(a, b, tables.get(b.table))
    ]
    if whole and not any(table.loose for table in tables.values()):
        ours, theirs = _figures(text), _figures(other)
        names = sorted(ours.keys() | theirs.keys())
        changed = [n for n in names if not _alike_json(ours.get(n), theirs.get(n))]
        found += [Edited(f"figure {name}", "other curves or marks", "") for name in changed]
    return found


@dataclass(frozen=True)
class _Text:
    """A piece of a report's text, its element, and the name of its table, if any."""

    tag: str
    text: str
    table: str = ""

    @property
    def place(self) -> str:
        return f"table {self.table}" if self.table else "text"


def _shown(text: str, now: Content) -> list[_Text]:
    """Every text of the body, in order, but for the rows that name the machine and versions."""
    body = text[text.find("<body") : text.find("<script", text.find("<body"))]
    names = "|".join(map(re.escape, now.versions))
    body = re.sub(rf"<tr><td>(?:{names})</td><td[^>]*>[^<]*</td></tr>", "", body)
    shown, tag, table = [], "", ""
    for part in re.findall(r"<[^>]*>|[^<]+", body):
        if part.startswith("<table"):
            name = re.search(r'id="table-([\w-]+)"', part)
            table = name[1] if name else "without a name"
        elif part == "</table>":
            table = ""
        if part.startswith("<"):
            tag = part[1:-1].split(" ")[0]
        elif part.strip():
            text = CUSTOM.sub(lambda found: todays_text(found[0]), " ".join(unescape(part).split()))
            shown.append(_Text(tag, text, table))
    return shown


def _alike(a: _Text, b: _Text, table: Table | None) -> bool:
    """The same text, or the same words with numbers that are near. Of texts that were ``worked`` out the
    numbers do not count."""
    if a == b:
        return True
    words = NUMBER.sub("", a.text)
    if (a.tag, a.table) != (b.tag, b.table) or a.tag == "th" or words != NUMBER.sub("", b.text):
        return False
    if table is not None and table.worked and words.strip():
        return True
    near = LOOSE_SHOWN if table is not None and table.loose else SHOWN
    pairs = zip(NUMBER.findall(a.text), NUMBER.findall(b.text), strict=False)
    return all(_near(x, y, near, rounded=table is None) for x, y in pairs)


def _near(a: str, b: str, tolerance: float, rounded: bool) -> bool:
    """``rounded``: numbers of a sentence, with few decimals: the last one may be another."""
    try:
        x, y = (float(text.replace(",", "").replace("−", "-").rstrip(".")) for text in (a, b))
    except ValueError:
        return a == b
    decimals = len(a.partition(".")[2].rstrip(".")) if "e" not in a else 0
    last = 1.001 * 10.0**-decimals if rounded and decimals else 0.0
    return abs(x - y) <= max(last, tolerance * max(abs(x), abs(y)))


def _figures(text: str) -> dict[str, Any]:
    """The figures of a report by name, as they are drawn."""
    found = re.search(r"const figures = \{ (.*?)\n? ?\};\n", text, re.S)
    if not found:
        return {}
    lines = re.findall(r'^"([\w-]+)": (\{.*\}),$', found[1], re.M)
    try:
        return {name: json.loads(drawn) for name, drawn in lines}
    except json.JSONDecodeError:
        return {}


def _alike_json(a: Any, b: Any) -> bool:
    """True if two figures are equal up to rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() == b.keys() == {"dtype", "bdata"} or a.keys() == b.keys() == {"dtype", "bdata", "shape"}:
            x, y = (np.frombuffer(base64.b64decode(one["bdata"]), one["dtype"]) for one in (a, b))
            return x.shape == y.shape and bool(np.allclose(x, y, LOOSE, 0.0, equal_nan=True))
        return a.keys() == b.keys() and all(_alike_json(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike_json, a, b))
    if isinstance(a, float) and isinstance(b, float | int):
        return abs(a - b) <= LOOSE * max(abs(a), abs(b))
    return bool(a == b)


def _same(pair: Moved, tolerance: float) -> bool:
    if pair.said is None or pair.now is None:
        return False
    return pair.said == pair.now or abs(pair.said - pair.now) <= tolerance * max(
        abs(pair.said), abs(pair.now)
    )
