"""The figures of docs/: drawn by plotly in a headless Chromium from recordings, and kept as SVG files.

A file names what it was drawn from (``data-of``), so that one that is behind its recording is found without a
browser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import plotly.graph_objects as go

from explorer.export.files import replacing
from explorer.figures import paper
from explorer.recordings.quality import recorded_quality
from lab import accumulation
from lab.files.figure import quality_figure

FOLDER = "figures"
FIGURES: Mapping[str, Callable[[], go.Figure]] = {
    "fp8-sums": lambda: accumulation.sums_figure(accumulation.recorded_sums().rows),
    "quality": lambda: quality_figure(recorded_quality().rows),
}
"""File names without their ending, and what draws them."""


def digest(figure: go.Figure) -> str:
    """16 hexadecimal digits of the figure's data and layout."""
    return hashlib.sha256(figure.to_json(engine="json").encode()).hexdigest()[:16]


def stale_figures(docs: Path) -> list[Path]:
    """The files of ``docs``/figures that are missing, or were drawn from something else than what is recorded
    now."""
    wanted = {docs / FOLDER / f"{name}.svg": draw for name, draw in FIGURES.items()}
    return [path for path, draw in wanted.items() if _digest_in(path) != digest(draw())]


def write_figures(docs: Path) -> list[Path]:
    """Draw every stale figure; the files. ``ValueError`` without playwright or Chromium."""
    stale = stale_figures(docs)
    if not stale:
        return []
    from explorer.browser import chromium

    with chromium() as browser:
        page = browser.new_page()
        page.set_content(paper.blank())
        for path in stale:
            figure = FIGURES[path.stem]()
            svg = paper.svg_of(page, figure)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                partial.write_text(f'<svg data-of="{digest(figure)}"{svg.removeprefix("<svg")}\n', "utf-8")
    return stale


def _digest_in(path: Path) -> str:
    head = path.read_text(encoding="utf-8")[:60] if path.is_file() else ""
    return head.removeprefix('<svg data-of="')[:16]
