"""Reports as files for a visitor: built, written and printed with progress on the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from app.parts import html, section
from app.parts.controls import MultiSelect
from app.parts.views import Control, Shown, StatusView, listen
from app.parts.widgets import PRIVATE, QUIET, RunButtons, block, stop_button
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
class ReportView(StatusView):
    """A report's files, how far they are, and the command that writes the same."""

    files: Shown
    command: Shown


@dataclass(frozen=True)
class WrittenReport:
    """The files of a report, the command that builds it again, and why some were left out."""

    paths: list[str]
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
    paths = [str(path) for path in (page, pdf) if path]
    if parts:
        paths.append(shutil.make_archive(str(parts), "zip", folder, parts.name))
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


def report_steps(compose: Compose, kinds: Sequence[str]) -> Generator[ReportView, None, None]:
    """The steps of a handler that shows a report's files; ``ValueError`` where no kind is chosen."""
    if not any(kind in KINDS for kind in kinds or ()):
        raise ValueError("choose at least one kind of file")
    steps = steps_of(compose, kinds, fresh_folder())
    found = yield from each(steps, lambda words: ReportView.unchanged(status=html.status(words)))
    count = len(found.paths)
    yield ReportView(
        status=html.status(f"{count} file{'s' * (count > 1)}. {found.left_out}".strip()),
        files=gr.update(value=found.paths, visible=True),
        command=html.commands([found.command]),
    )


REPORT_KINDS = MultiSelect(key="kinds", label="Files", usual=HTML, options=KINDS, linked=False)


def report_slots(query: Query, compose: Compose) -> Iterator[section.Shown]:
    """Make a report of the kinds of files that the query asks for: progress in the slot "status", files and
    command in "report"."""
    yield {"report": ""}  # the one before is not of what is chosen now
    steps = steps_of(compose, REPORT_KINDS.of(query), fresh_folder())
    found = yield from each(steps, lambda words: {"status": html.status(words)})
    files = html.downloads([Path(path) for path in found.paths])
    yield {"report": f"{files}{html.commands([found.command])}{html.note(found.left_out)}"}


def build_report(handler: Any, inputs: Sequence[Control], api_name: str, about: str) -> None:
    """Lay out what makes a report of a section: the kinds of files, a button, Stop, and the files.
    ``handler`` takes ``inputs`` and, last, the kinds."""
    with gr.Row(elem_classes="tight stacked"):
        kinds = gr.CheckboxGroup(
            [(label, kind) for kind, label in KINDS.items()],
            value=[HTML],
            label=about,
            elem_id=f"{api_name}-kinds",
        )
        start = gr.Button("Make the report", min_width=140, elem_id=api_name)
        stop = stop_button()
    stopped = block(elem_id=f"{api_name}-stopped")
    outputs = ReportView(
        status=block(elem_id=f"{api_name}-status"),
        files=gr.Files(visible=False, interactive=False, label="Your report", elem_id=f"{api_name}-files"),
        command=block(elem_id=f"{api_name}-command"),
    )
    buttons = RunButtons((start,), stop, stopped)
    buttons.begin_on(start.click)
    # The report before is not that of what is chosen now.
    start.click(lambda: ["", gr.update(visible=False), ""], None, outputs.in_order(), queue=False, **PRIVATE)
    running = listen(
        start.click, handler, [*inputs, kinds], outputs, api_name=api_name, concurrency_id="report", **QUIET
    )
    halted = buttons.end_with(running, message="Stopped: no report was made.")
    halted.then(lambda: "", None, outputs.status, **PRIVATE)
