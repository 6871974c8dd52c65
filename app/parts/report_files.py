"""Reports as files for a visitor: built, written and printed with progress on the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.parts import html, section
from app.parts.controls import MultiSelect
from app.state.analyses import each, reported
from app.state.files import fresh_folder
from app.state.query import Query
from explorer.figures.style import file_name
from explorer.progress import Progress
from explorer.reports import Content, command_of, write
from explorer.reports.write import check_printer

HTML, PDF, PARTS = "page", "pdf", "parts"
KINDS = {HTML: "report (.html)", PDF: "report (.pdf)", PARTS: "the report's figures and tables (.zip)"}
"""Output types of a report, and their labels on the page."""
PRINTED = (PDF, PARTS)
Compose = Callable[[Progress], Content]
"""Function that builds a report, and reports progress."""


@dataclass(frozen=True)
class WrittenReport:
    """The files of a report, the command that builds it again, and why some were left out."""

    paths: list[Path]
    command: str
    left_out: str = ""


def steps_of(compose: Compose, kinds: Sequence[str], folder: Path) -> Generator[str, None, WrittenReport]:
    """Build a report and write it as ``kinds`` into ``folder``; yields how far it is, in words. Where nothing
    can be printed, the kinds that are printed are left out; ``ValueError`` if no other was asked for."""
    kinds, left_out = _printable([kind for kind in KINDS if kind in kinds])
    content = yield from _counted(compose, "sections of the report")
    name = file_name(f"{content.title} report".replace(",", ""))  # 4096, not 4-096
    page = folder / f"{name}.html" if HTML in kinds else None
    pdf = folder / f"{name}.pdf" if PDF in kinds else None
    parts = folder / f"{name} figures and tables" if PARTS in kinds else None

    def print_it(progress: Progress) -> None:
        write(content, page, pdf, parts, progress)

    yield from _counted(print_it, "steps of writing it")
    paths = [path for path in (page, pdf) if path]
    if parts:
        paths.append(Path(shutil.make_archive(str(parts), "zip", folder, parts.name)))
        shutil.rmtree(parts)
    return WrittenReport(paths, command_of(content.recipe).removeprefix("python -m "), left_out)


def _printable(kinds: list[str]) -> tuple[list[str], str]:
    """Those of ``kinds`` that can be written here, and why the others cannot."""
    if not any(kind in PRINTED for kind in kinds):
        return kinds, ""
    try:
        check_printer()
    except ValueError as missing:
        words = (
            f"No PDF and no images here: {missing}. The HTML report prints the same from your own browser "
            "(Ctrl+P), and its tables and figures can be copied from there."
        )
        left = [kind for kind in kinds if kind not in PRINTED]
        if not left:
            raise ValueError(words) from missing
        return left, words
    return kinds, ""


def _counted(compute: Callable[[Progress], Any], what: str) -> Generator[str, None, Any]:
    result = yield from each(reported(compute), lambda step: f"{step[0]} of {step[1]} {what}")
    return result


REPORT_KINDS = MultiSelect(key="kinds", label="Files", usual=HTML, options=KINDS, linked=False)


def report_slots(query: Query, compose: Compose) -> Iterator[section.Shown]:
    """Make a report of the kinds of files that the query asks for: progress in the slot "status", files and
    command in "report"."""
    yield {"report": ""}  # the one before is not of what is chosen now
    steps = steps_of(compose, REPORT_KINDS.of(query), fresh_folder())
    found = yield from each(steps, lambda words: {"status": html.status(words)})
    said = html.status(found.left_out) if found.left_out else ""
    yield {"report": html.downloads(found.paths) + html.commands([found.command]) + said}
