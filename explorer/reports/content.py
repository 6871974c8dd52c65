"""Content that all reports share, and their metadata: the command, versions, the machine."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from explorer.core.backend import work_device
from explorer.recordings.machine import this_machine
from explorer.version import __version__

TENSOR, SURVEY, SPEED, TRAINING = "tensor", "survey", "speed", "training"
"""Kinds of reports: names of subcommands, and values of ``recipe["kind"]``."""
NO_OPTION = ("kind", "file", "measured")
"""Keys of a recipe that are not options of the command."""
TIMINGS = "YOUR_TIMINGS.json"
"""Placeholder in the command for the downloaded file of timings measured on the page."""


@dataclass(frozen=True)
class Table:
    """Table of a report: its name (also its file's), columns, and rows of numbers and texts."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Part:
    """Section of a report: heading, paragraphs, then tables and figures. A figure comes with its name and an
    explanation."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[tuple[str, go.Figure, str], ...] = ()


@dataclass(frozen=True)
class Content:
    """Whole report, with its ``numbers``.

    ``recipe``: the kind and the command's options, which build it again. ``sha256`` of its subject: the
    tensor, the survey's file, the timings.
    """

    title: str
    lead: tuple[str, ...]
    parts: tuple[Part, ...]
    appendix: tuple[Part, ...]
    numbers: dict[str, float]
    recipe: dict[str, Any]
    sha256: str
    versions: dict[str, str]

    @property
    def tables(self) -> list[Table]:
        """Every table, in the order of the report."""
        return [table for part in (*self.parts, *self.appendix) for table in part.tables]


def content(
    title: str,
    lead: Sequence[str],
    parts: Sequence[Part],
    method: Sequence[str],
    about: Mapping[str, str],
    numbers: Mapping[str, float],
    recipe: Mapping[str, Any],
    sha256: str,
) -> Content:
    """Complete a report by its appendix: ``method`` in paragraphs, and the provenance (``about``, the
    command, versions, the machine). ``numbers`` that are not finite are left out."""
    machine = this_machine(work_device(), ("numpy", "plotly"))
    versions = {
        "quantization-explorer": __version__,
        "commit": machine.commit,
        "machine": machine.chip or "this machine",
        "torch": machine.torch,
        "python": machine.python,
        "date": machine.date,
        **machine.packages,
    }
    provenance = {**about, "command": command_of(recipe), **versions}
    table = Table("provenance", ("what", "value"), tuple(provenance.items()))
    return Content(
        title=title,
        lead=tuple(text for text in lead if text),
        parts=tuple(parts),
        appendix=(Part("Method", tuple(method)), Part("Provenance", (), (table,))),
        numbers={name: float(value) for name, value in numbers.items() if math.isfinite(value)},
        recipe=dict(recipe),
        sha256=sha256,
        versions=versions,
    )


def command_of(recipe: Mapping[str, Any], out: str = "report.html") -> str:
    """Return the command that rebuilds the report; keys and values of a recipe are its options."""
    kind = recipe.get("kind", TENSOR)
    command = ["python", "-m", "explorer", "report", *([] if kind == TENSOR else [kind])]
    command += [str(recipe["file"])] if recipe.get("file") else []
    for key, value in recipe.items():
        if key in NO_OPTION or value is None or value is False or value == "" or value == []:
            continue
        separator = "x" if key == "shape" else ","
        text = separator.join(map(str, value)) if isinstance(value, list) else str(value)
        command += [f"--{key.replace('_', '-')}", *([] if value is True else [text])]
    command += ["--timings", TIMINGS] if recipe.get("measured") else []
    return shlex.join([*command, "--out", out])
