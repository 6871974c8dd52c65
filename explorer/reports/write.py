"""Files of a report: HTML, PDF, figures as SVG, PDF and PNG, tables as CSV, JSON and LaTeX.

The HTML file is interactive; it contains its script and fonts, and needs no network.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import jinja2
import plotly

from explorer.export.files import replacing
from explorer.export.tables import cell, write_table
from explorer.paths import ASSETS
from explorer.progress import Progress, checkpoint
from explorer.reports.content import Content

Page = Any
"""Page of playwright, which the HTML file does not need."""
TEMPLATE = Path(__file__).with_name("report.html.j2")
NUMBERS_ID = "explorer-report"
"""Id of the element that holds the report's numbers and recipe."""
PNG_SCALE, WIDTH = 2, 860
"""Pixels of a PNG per pixel of the figure, and the figure's width in pixels."""


def as_html(content: Content) -> str:
    """Return the whole HTML file. Texts of the tensor's source are escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["cell"] = cell
    record = {key: getattr(content, key) for key in ("recipe", "sha256", "versions", "numbers")}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        content=content,
        figures={name: _safe(fig.to_json()) for part in content.parts for name, fig, _ in part.figures},
        record=_safe(json.dumps(record, ensure_ascii=False)),
        record_id=NUMBERS_ID,
        plotly=_plotly(),
        inter=_font("inter-latin-wght-normal.woff2"),
        mono=_font("jetbrains-mono-latin-wght-normal.woff2"),
    )


def _safe(text: str) -> str:
    """Encode JSON so that no text ends the script element around it."""
    return text.replace("<", "\\u003c")


@cache
def _plotly() -> str:
    script = Path(plotly.__file__).with_name("package_data") / "plotly.min.js"
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")


@cache
def _font(name: str) -> str:
    return base64.b64encode((ASSETS / "fonts" / name).read_bytes()).decode()


def write(
    content: Content,
    out: Path | None,
    pdf: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the report to ``out``, and if requested its print to ``pdf`` and its figures and tables to
    ``folder``; return the files.

    Print and figures need the extra ``report`` and Chromium; ``ValueError`` without them, before anything is
    written.
    """
    if pdf or folder:
        check_printer()
    figures = sum(len(part.figures) for part in content.parts)
    total = 1 + (2 if pdf or folder else 0) + (figures if folder else 0)
    done = 0

    def step() -> None:
        nonlocal done
        checkpoint()
        done += 1
        if progress is not None:
            progress(done, total)

    text = as_html(content)
    written = [_replace(out, text.encode())] if out else []
    step()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for table in content.tables:
            paths = [folder / f"{table.name}.{kind}" for kind in ("csv", "json", "tex")]
            written += [write_table(path, table.columns, table.rows) for path in paths]
    if pdf or folder:
        with _opened(text) as page:
            step()
            if pdf:
                page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
                written.append(_replace(pdf, page.pdf(prefer_css_page_size=True, print_background=True)))
            step()
            if folder:
                written += _write_figures(content, page, folder, step)
    return written


def check_printer() -> None:
    """Raise ``ValueError`` with installation instructions if printing is not available."""
    from explorer.browser import chromium_path, playwright_api

    playwright_api()
    chromium_path()


def _replace(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all; return its path."""
    with replacing(path) as partial:
        partial.write_bytes(data)
    return path


@contextmanager
def _opened(text: str) -> Iterator[Page]:
    """Open the report in a headless Chromium, and wait until its figures are drawn."""
    from explorer.browser import chromium

    with chromium() as browser:
        page = browser.new_context(viewport={"width": WIDTH, "height": 1000}).new_page()
        page.set_content(text)
        page.evaluate("async () => { await document.fonts.ready; await window.drawn; }")
        yield page


def _write_figures(content: Content, page: Page, folder: Path, step: Callable[[], None]) -> Iterator[Path]:
    draw = "([id, options]) => Plotly.toImage(id, options)"
    for part in content.parts:
        for name, figure, _ in part.figures:
            size = {"width": WIDTH, "height": int(figure.layout.height or 400)}
            for kind, scale in (("svg", 1), ("png", PNG_SCALE)):
                url = page.evaluate(draw, [f"figure-{name}", {**size, "format": kind, "scale": scale}])
                yield _replace(folder / f"{name}.{kind}", _data(url))
            alone = page.context.new_page()
            svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
            alone.set_content(f'<body style="margin:0">{svg}</body>')
            height = f"{size['height'] + 1}px"
            printed = alone.pdf(width=f"{WIDTH}px", height=height, print_background=True)
            yield _replace(folder / f"{name}.pdf", printed)
            alone.close()
            step()


def _data(url: str) -> bytes:
    """Return the bytes of a data URL."""
    head, _, body = url.partition(",")
    return base64.b64decode(body) if head.endswith("base64") else unquote_to_bytes(body)
