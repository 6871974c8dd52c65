"""Files of a report: HTML, PDF, figures as SVG, PDF and PNG, tables as CSV, JSON and LaTeX.

The HTML file is interactive; it contains its script and fonts, and needs no network.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jinja2

from explorer.export.files import replacing
from explorer.export.tables import cell, write_table
from explorer.figures.paper import WIDE, Page, faces, font, scripts
from explorer.progress import Progress, checkpoint
from explorer.reports.content import Content

TEMPLATE = Path(__file__).with_name("report.html.j2")
NUMBERS_ID = "explorer-report"
"""Id of the element that holds the report's numbers and recipe."""
WIDTH = 860
"""Pixels of the printed report."""


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
        scripts=scripts(),
        inter=faces("Inter", font),
        mono=font("jetbrains-mono-latin-wght-normal.woff2"),
    )


def _safe(text: str) -> str:
    """Encode JSON so that no text ends the script element around it."""
    return text.replace("<", "\\u003c")


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


DRAW = """async ([name, mm]) => {
  const {paper} = explorer, drawn = await paper.draw(figures[name], mm);
  const png = await paper.png(new Blob([drawn.svg], {type: 'image/svg+xml'}), drawn);
  return [drawn.svg, await paper.dataUrl(png), paper.sheet(drawn)];
}"""


def _write_figures(content: Content, page: Page, folder: Path, step: Callable[[], None]) -> Iterator[Path]:
    """Write each figure as a file two columns of a paper wide."""
    alone = page.context.new_page()
    for name in (name for part in content.parts for name, _, _ in part.figures):
        svg, png, sheet = page.evaluate(DRAW, [name, WIDE])
        yield _replace(folder / f"{name}.svg", svg.encode())
        yield _replace(folder / f"{name}.png", base64.b64decode(png.partition(",")[2]))
        alone.set_content(sheet)
        alone.evaluate("document.fonts.ready")
        printed = alone.pdf(prefer_css_page_size=True, print_background=True)
        yield _replace(folder / f"{name}.pdf", printed)
        step()
    alone.close()
